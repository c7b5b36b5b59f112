"""Methods that are a correction of a client's local pass, which is this package's or the user's.

In a step of this package and in a training loop of the user's own (`flower_fedcon.training`) they
consist of the same functions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.kernels.passes import change_of
from flower_fedcon.objectives.client_axis import Steps, StepTaker, Z
from flower_fedcon.regularizers.batched import entry_weights
from flower_fedcon.schedules import Schedule
from flower_fedcon.solvers import Correction
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_FORESEEN = ("point", "move", "minimizer")  # what `steps_ahead` says again
_VARIATES = ("correction", "upload", "step", "on_acknowledged")  # and `variate_rate`

State = TypeVar("State")


class LocalPass(NamedTuple):
    """A local pass that is done.

    Attributes
    ----------
    start, end : array
        Of what moves, shape (..., *model).
    steps : int
        How many there were; 0 for a minimisation.
    gradient : array, optional
        The mean of the steps' gradients without correction, where the steps are the user's own.
    variates : (array, array), optional
        end - start and the control variates that follow, where these came with the steps, of a
        method that says its `variate_rate`; `end` is `start` then.
    """

    start: Array
    end: Array
    steps: int = 0
    gradient: Array | None = None
    variates: tuple[Array, Array] | None = None

    @property
    def change(self) -> Array:
        """How far it led: end - start."""
        return change_of(self.end, self.start)


class LocalPassClient(FedConClient[State]):
    """A client that states what its method adds to a local pass, and what the pass is for."""

    keeps_gradient: ClassVar[bool] = False
    """Whether a loop of the user's own has to note the mean of its gradients."""

    @classmethod
    def is_the_step(cls) -> bool:
        """Return whether the step itself is the method, and not only what is added to gradients."""
        return False

    @abstractmethod
    def correction(self, state: State, down: Payload) -> Correction:
        """Return where the pass starts, and what is added to each gradient."""

    @abstractmethod
    def upload(self, state: State, down: Payload, done: LocalPass) -> tuple[Payload, State]:
        """Return the upload and the state to keep, after the pass."""


class MinimizingClient(LocalPassClient[State]):
    """A client whose pass is a minimisation, as good as its solver."""

    def step(self, state: State, down: Payload) -> tuple[Payload, State]:
        """Minimise the corrected objective."""
        added = self.correction(state, down).simplified
        end = self.minimize(
            added.start, linear=added.linear, shift=added.shift, center=added.center
        )
        return self.upload(state, down, LocalPass(added.start, end))


class LocalStepsClient(LocalPassClient[State]):
    """A client whose pass is K steps: a gradient at a `point`, and a `move` of what moves, z."""

    from_point: ClassVar[bool] = False
    """Whether z moves on from the point."""
    _foreseen: ClassVar[bool] = False  # whether `steps_ahead` says what `point` and `move` do
    _varies: ClassVar[bool] = False  # and `variate_rate`, what those of `_VARIATES` do
    _schedule: Schedule | None = None  # of client_lr, where that changes from round to round

    def _take(self, settings: Mapping[str, Any]) -> None:
        """Take the settings; of a schedule the first step, until a round says which."""
        rate = settings.get("client_lr")
        self._schedule = rate if isinstance(rate, Schedule) else None
        if self._schedule is not None:
            settings = {**settings, "client_lr": self._schedule.at(1)}
        super()._take(settings)

    @classmethod
    def is_the_step(cls) -> bool:
        """Return whether points and moves are others than those of gradient steps."""
        plain = LocalStepsClient
        return (cls.prox_step, cls.point, cls.move) != (plain.prox_step, plain.point, plain.move)

    def prox_step(self, k: int, down: Payload) -> float | None:
        """Return the step of the prox of psi that leads to the point of step k = 0, 1, ...

        None, the default, if the point is z itself.
        """
        return None

    def prox(self, z: Array, step: float) -> Array:
        """Return the point of z for a `prox_step`."""
        return self.regularizer.prox(z, step)  # type: ignore[attr-defined, no-any-return]

    def point(self, z: Array, k: int, down: Payload) -> Array:
        """Return where the gradient of step k is taken."""
        step = self.prox_step(k, down)
        return z if step is None else self.prox(z, step)

    def move(self, z: Array, w: Array, g: Array) -> Array:
        """Return z after a step with the corrected gradient g at w."""
        moved: Array = (
            w if self.from_point else z
        ) + -self.client_lr * g  # in the product's memory
        return moved

    def counted(self, done: LocalPass) -> Payload:
        """Return the number of steps, for a server that does not know it."""
        return {"steps": float(done.steps)} if self.local_steps is None else {}

    def step(self, state: State, down: Payload) -> tuple[Payload, State]:
        """Take K steps."""
        if self._schedule is not None:
            self.client_lr = self._schedule.at(self._round)
        added, count = self.correction(state, down), self.local_steps or 0
        done = self._all_at_once(added, count, down)
        if done is None:
            added = added.simplified
            z, corrects = added.start, added.corrects
            for k in range(count):
                w = self.point(z, k, down)
                g = self.gradient(w)
                z = self.move(z, w, added.add_to(g, w) if corrects else g)
            done = LocalPass(added.start, z, count)
        return self.upload(state, down, done)

    @property
    def variate_rate(self) -> float | None:
        """What control variates move by: c_i := c_i + (rate (end - start) - c), as in Scaffold.

        Where there are such, the correction's `less` and `linear` are c_i and c, and end - start is
        what is uploaded, this is their rate; else None, the default. A class that defines one of
        `correction`, `upload`, `step` and `on_acknowledged` defines it, too.
        """
        return None

    @property
    def state_follows(self) -> bool:
        """Whether control variates, by `variate_rate`, are all that changes."""
        return self._varies and self.variate_rate is not None

    def _all_at_once(self, added: Correction, count: int, down: Payload) -> LocalPass | None:
        """Return the pass, if the objective can take all its steps in one go."""
        own = self.objective
        if not (isinstance(own, StepTaker) and count and self._foreseen):
            return None
        steps = None if added.subgradient is not None else self.steps_ahead(added, count, down)
        if steps is None:
            return None
        rate = self.variate_rate if self._varies else None
        both = None if rate is None else own.variate_steps(steps, rate)
        if both is not None:
            return LocalPass(added.start, added.start, count, variates=both)
        end = own.gradient_steps(steps, next_rows(self))
        return None if end is None else LocalPass(added.start, end, count)

    def steps_ahead(self, added: Correction, count: int, down: Payload) -> Steps | None:
        """Return all steps as numbers and arrays; None if their points follow by another prox.

        It says again what `point` and `move` do, as `prox_weights` does of `prox`: a class that
        defines these defines it, or takes its steps one by one, and so does one with a `gradient`.
        """
        start, linear, shift, center, _, less = added
        proxes = [self.prox_step(k, down) for k in range(count)]
        points = [Z] * count
        if any(step is not None for step in proxes):
            weights = self.prox_weights()
            if weights is None:
                return None
            l1, l2 = weights
            if l1 or l2:
                points = [Z if t is None else (t * l1, 1.0 + t * l2) for t in proxes]
        onward = (0.0, 1.0) if self.from_point else (1.0, 0.0)
        return Steps(start, self.client_lr, points, onward, linear, shift, center, less=less)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        where = {n: i for i, one in reversed([*enumerate(cls.__mro__)]) for n in vars(one)}
        ahead, own = where["steps_ahead"], [where[n] for n in _FORESEEN if n in where]
        cls._foreseen = ahead <= min(own) and where["prox_weights"] <= where["prox"]
        cls._foreseen &= cls.gradient is FedConClient.gradient
        cls._varies = all(where["variate_rate"] <= where[n] for n in _VARIATES)

    def prox_weights(self) -> tuple[float, float] | None:
        """Return l1 and l2 of psi = l1 |x|_1 + l2/2 |x|^2; None if psi, or the prox, is another."""
        return entry_weights(self.regularizer)  # type: ignore[attr-defined]


def next_rows(client: FedConClient[Any]) -> Callable[[], Array | None] | None:
    """Return what returns the rows of a client's next minibatch; None if it takes all."""
    return None if client._batch_size is None else client.batches.next_rows


def gradient_steps(
    client: FedConClient[Any], start: Array, count: int, linear: Array | None = None
) -> Array:
    """Return where K plain steps of a client lead, on f_j(x) + <linear, x>.

    Parameters
    ----------
    client : FedConClient
        With a `client_lr`.
    start : array, shape (..., *model)
    count : int
        K.
    linear : array, shape (..., *model), optional
    """
    own = client.objective
    if isinstance(own, StepTaker) and count and type(client).gradient is FedConClient.gradient:
        steps = Steps(start, client.client_lr, [Z] * count, linear=linear)
        found = own.gradient_steps(steps, next_rows(client))
        if found is not None:
            return found
    x = start
    for _ in range(count):
        g = client.gradient(x)
        x = x - client.client_lr * (g if linear is None else g + linear)
    return x
