"""One round of a method in your own train loop, in any framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NoReturn

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.errors import ConfigError, NotFiniteError, number_of
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_PLAIN = 1e-3  # tolerance of the end point of K plain steps, relative to their length
_CURRENT: ContextVar[LocalTraining] = ContextVar("current_method")


def current_method() -> Any:
    """Return the current round's `method`, within a train function.

    A loop outside the function under `train_step` can call it, so that `method` need not be passed
    on: `train(message, context)` is enough.

    Raises
    ------
    ConfigError
        If no round is running: in a thread other than the train function's, or outside of it.

    Examples
    --------
    >>> current_method()
    Traceback (most recent call last):
        ...
    flower_fedcon.errors.ConfigError: current_method() was called outside a train function ...
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise ConfigError(
            "current_method() was called outside a train function that stands under @train_step, "
            "or in a thread that this function has started: call it within the function, or pass "
            "on the method of train(message, context, method)"
        ) from None


class LocalTraining:
    """A round's local pass in a user's own loop.

    Parameters
    ----------
    client : LocalPassClient
        The client of the method.
    state, down
        As in the client's `step`.
    layout : Layout
        The layout of the model.

    Attributes
    ----------
    steps : int
        The number of steps so far that the method has seen.
    notes : dict of str
        What the server should log about the loop's end, by kind ("dtype", "unmoved").
    """

    how_to_step: ClassVar[str] = "method.optimizer(model)"
    how_to_correct: ClassVar[str] = (
        "correction = method.begin(model) before the loop, and in it "
        "correction.apply_gradients(model) between backward() and step()"
    )

    def __init__(
        self, client: LocalPassClient[Any], state: Any, down: Payload, layout: Layout
    ) -> None:
        self._client, self._state, self._down, self.layout = client, state, down, layout
        self._declared = client.local_pass(state, down)
        self._added = self._declared.simplified
        self.steps = 0
        self.notes: dict[str, str] = {}
        self._correction: LoopCorrection | None = None
        self._pulled = False
        self._z: Array | None = None  # the moving point, if the method's own steps are taken
        self._w = self._added.at(self._added.start, 0)

    @property
    def name(self) -> str:
        """The method's name."""
        return type(self._client).__name__.removeprefix("OwnLoop").removesuffix("Client")

    @property
    def rate(self) -> float | None:
        """The strategy's `client_lr` in this round; None without one."""
        return self._client.client_lr if "client_lr" in self._client.fields else None

    @property
    def keeps_gradient(self) -> bool:
        """Whether the method needs the mean of the loop's gradients."""
        return self._client.keeps_gradient

    @property
    def start(self) -> list[Array]:
        """The model that the loop starts from, layer by layer."""
        return self.layers(self._added.at(self._added.start, 0))

    def layers(self, packed: Array) -> list[Array]:
        """Return the layers of a packed array, as views."""
        model = self.layout.unpack(packed)
        return model if isinstance(model, list) else [model]

    def packed(self, layers: Sequence[Array], what: str = "model", *, keep: bool = True) -> Array:
        """Return layers as one array; without `keep` it may be that of the only layer.

        Raises
        ------
        ConfigError
            If a value is not finite; `what` names the array.
        """
        try:
            model = list(layers) if self.layout.layered else layers[0]
            return self.layout.pack(model, "a model", keep=keep)
        except ConfigError:
            for place, layer in enumerate(layers):
                if not np.isfinite(layer).all():
                    raise NotFiniteError(
                        f"the {what} of the train loop is not finite (its array {place}): take "
                        "smaller steps (a lower learning rate), or clip the gradients"
                    ) from None
            raise

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Be the `current_method`; at the end release the loop's objects."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            if self._correction is not None:
                self._correction.close()

    # --- the method as terms that are added to gradients ------------------------------------------

    def added(self) -> LocalPass:
        """Return the terms that the method adds to each gradient.

        Raises
        ------
        ConfigError
            If the method is not of this kind.
        """
        if self._added.is_the_method:
            self._refuse(
                f"its step replaces the optimizer's: use {self.how_to_step} instead of begin and "
                "apply_gradients"
            )
        return self._added

    def keep(self, correction: LoopCorrection) -> None:
        """Register the correction that `finish` will ask about the loop.

        Raises
        ------
        ConfigError
            If there is another correction, whose steps would not count.
        """
        before = self._correction
        if before is not None and (before.steps or before.by_itself):
            self._refuse("begin was called before in this round: call it once, before the loop")
        self._correction = correction

    # --- the method as the step itself -----------------------------------------------------------

    def check_optimizer(self, lr: float | None) -> None:
        """Raise unless the method has its own steps, of this length."""
        if self._added.solver is not None:
            self._refuse(
                "it only corrects gradients: use your optimizer, with correction = "
                "method.begin(model) and correction.apply_gradients(model) before its step"
            )
        rate = self.rate
        if rate is None and not self._added.is_the_method:
            self._refuse(
                "without client_lr it leaves the steps to your optimizer: use "
                "correction.apply_gradients(model), or give the strategy client_lr"
            )
        if lr is not None and lr != rate:
            has = "it has no learning rate" if rate is None else f"its client_lr is {rate!r}"
            self._refuse(f"{has}, and method.optimizer was given lr={lr!r}: the strategy decides")

    def advance(self, gradients: Sequence[Array]) -> list[Array]:
        """Take the method's own step with these gradients at the point; return the next one."""
        added = self._added
        z = added.start if self._z is None else self._z
        gradient = self.packed(gradients, "gradient")
        gradient = added.clipped(gradient, gradient.ndim)
        self._z = added.moved(z, self._w, added.add_to(gradient, self._w))
        self.steps += 1
        self._w = added.at(self._z, self.steps)
        return self.layers(self._w)

    # --- the end ---------------------------------------------------------------------------------

    def finish(self, end: Sequence[Array]) -> tuple[Payload, Any]:
        """Return upload and state after a loop that ended with these layers.

        Raises
        ------
        ConfigError
            If the loop has not used the method, its steps are not those that the method assumes,
            or its layers are not floating-point numbers.
        """
        gradient, client = self._mean_gradient(), self._client
        self._check_steps()
        if (z := self._z) is None:
            self._check_types(end)
            z = self.packed(end)
            self._compare_with_start(z)
        if gradient is not None and self._added.steps:
            self._check_plain(z - self._added.start, gradient)
        self._added = self._declared  # the sum of the terms is as long as the model
        done = Done(self._declared, z, self.steps, gradient)
        return client.upload(self._state, self._down, done)

    def _mean_gradient(self) -> Array | None:
        """Release the correction; return the mean of its gradients, if the method needs it."""
        correction, self._correction = self._correction, None  # breaks a cycle of references
        if correction is None:
            return None
        self.steps += correction.steps
        self._pulled = correction.pulled
        if not (self.keeps_gradient and correction.steps):
            return None
        return self.packed(correction.mean_gradient(), "gradient", keep=False)

    def _check_steps(self) -> None:
        """Raise unless the loop has used the method, and taken the steps that it assumes."""
        added = self._added
        changes = added.is_the_method or added.corrects or added.clip is not None
        if not self.steps and changes:
            self._refuse(
                "the train function has taken no step with it: call "
                + (
                    f"{self.how_to_step} for your optimizer, and its step()"
                    if added.is_the_method
                    else self.how_to_correct
                )
            )
        stated = added.steps or None
        if stated is not None and self.steps not in (0, stated):
            self._refuse(
                f"the strategy has local_steps={stated}, and the train function took {self.steps} "
                f"steps: make the two equal, or leave local_steps out if the method allows it"
            )

    def _check_types(self, end: Sequence[Array]) -> None:
        """Raise if a layer has lost its fractions; note if one has lost digits."""
        model = self.layout.array_dtype
        for place, layer in enumerate(end):
            dtype = np.asarray(layer).dtype
            name = place if self.layout.names is None else repr(self.layout.names[place])
            if dtype.kind in "biu":
                self._refuse(
                    f"the train function replied array {name} as {dtype}, and the model is "
                    f"{model}: reply the trained numbers with their fractions, as {model}"
                )
            if dtype.kind == "f" and dtype.itemsize < model.itemsize:
                self.notes["dtype"] = (
                    f"its train function replies array {name} as {dtype}, and the model is "
                    f"{model}: it is rounded in each round. Train in {model}, or start the run "
                    f"with arrays of the type that clients train in"
                )

    def _compare_with_start(self, z: Array) -> None:
        """Note steps that have left no trace in the loop's end."""
        if not self._pulled:
            return
        if all(map(np.array_equal, self.layers(z), self.start)):  # mostly ends at the first layer
            self.notes["unmoved"] = (
                f"its train function took {number_of(self.steps, 'step')} with nonzero gradients, "
                f"and replied the model that it was sent: reply the trained arrays, unless its "
                f"learning rate is meant to be 0"
            )

    def _check_plain(self, moved: Array, gradient: Array) -> None:
        """Raise unless the loop took K steps of length client_lr along the corrected gradients."""
        lr = self._client.client_lr
        expected = -lr * self.steps * (gradient + self._added.linear)
        if np.linalg.norm(moved - expected) > _PLAIN * np.linalg.norm(expected):
            self._refuse(
                f"the strategy has client_lr={lr!r} and local_steps={self.steps}, and the train "
                f"function takes other steps (another rate, momentum, weight decay): leave both "
                f"out, and the method uses the mean of the function's gradients"
            )

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self.name}: {reason}")


class LoopCorrection:
    """The terms that a method adds to a loop's gradients, in the loop's tensors.

    Parameters
    ----------
    training : LocalTraining
    to_tensor : callable
        `to_tensor(array, i)` returns an array as a tensor of layer i.
    to_array : callable
        Returns a tensor as an array.
    """

    by_itself = False
    """Whether an optimizer applies it, instead of the loop."""
    pulled = False
    """Whether the first step had a nonzero gradient; later ones are not looked at, for speed."""

    def __init__(
        self,
        training: LocalTraining,
        to_tensor: Callable[[Array, int], Any],
        to_array: Callable[[Any], Array],
    ) -> None:
        added = training.added()
        self._training, self._to_tensor, self._to_array = training, to_tensor, to_array
        self._subgradient, self._clip = added.subgradient, added.clip
        columns = [list(self._tensors(a)) for a in (added.start, added.linear, added.center)]
        parts = zip(*columns, strict=True)
        self._parts = [LocalPass(s, linear, added.shift, c) for s, linear, c in parts]
        self._sums: list[Any] = []
        self.steps = 0
        training.keep(self)

    def corrected(self, gradients: Sequence[Any], model: Sequence[Any]) -> list[Any]:
        """Count a step; return gradients at a model, clipped, with the method's terms added."""
        self.steps += 1
        if self._clip is not None:
            norm = math.sqrt(sum(float((g * g).sum()) for g in gradients))
            factor = self._clip / max(norm, self._clip)
            gradients = [factor * g for g in gradients]
        if self._training.keeps_gradient:
            if self._sums:  # in place: they are nobody else's
                for place, gradient in enumerate(gradients):
                    self._sums[place] += gradient
            else:
                self._sums = [0.0 + g for g in gradients]
        if self._subgradient is not None:
            x = self._training.packed([self._to_array(layer) for layer in model])
            extra = self._tensors(self._subgradient.subgradient(x))
            gradients = [g + q for g, q in zip(gradients, extra, strict=True)]
        layers = zip(self._parts, gradients, model, strict=True)
        corrected = [part.add_to(g, x) for part, g, x in layers]
        if self.steps == 1:
            self.pulled = any(bool(g.any()) for g in corrected)
        return corrected

    def close(self) -> None:
        """Release the loop at the end of the round."""

    def mean_gradient(self) -> list[Array]:
        """Return the mean of the gradients, without the method's terms; it ends the sums."""
        sums, self._sums = self._sums, []
        for place in range(len(sums)):
            sums[place] /= self.steps
        return [self._to_array(total) for total in sums]

    def _tensors(self, packed: Array | None) -> Iterator[Any]:
        """Yield the layers of a packed array as tensors; None for None."""
        if packed is None:
            yield from [None] * len(self._training.layout.shapes)
            return
        for i, layer in enumerate(self._training.layers(packed)):
            yield self._to_tensor(layer, i)
