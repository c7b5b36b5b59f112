"""A PyTorch module on a client's data, as an objective."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flower_fedcon.errors import ConfigError, nearest, repr_of
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.client_axis import Stack, Stackable
from flower_fedcon.objectives.packed import PackedObjective
from flower_fedcon.objectives.row_gradients import count_as_nothing
from flower_fedcon.objectives.set_aside import owner_of
from flower_fedcon.regularizers import Separable, as_regularizer
from flower_fedcon.sets import ConstraintSet, Product
from flower_fedcon.torch.content import Untrained
from flower_fedcon.torch.local_loop import as_array
from flower_fedcon.torch.packed_modules import PackedTorch
from flower_fedcon.torch.stacked_modules import StackedTorch, why_not_together
from flower_fedcon.validation import Array, count, nonnegative, plain_array
from flower_fedcon.wire.digests import digest

_FORMS = "value", "gradient", "value_and_gradient", "batch_gradient", "stochastic_gradient"


def _own(name: str, data: Any) -> Tensor:
    """Return data as a tensor with its own memory."""
    if isinstance(data, Tensor):
        return data.detach().clone()
    if isinstance(data, np.ndarray):
        return torch.from_numpy(np.array(plain_array(f"TorchObjective({name})", data)))
    return torch.as_tensor(data)


def _on(device: torch.device, loss: Any) -> Any:
    """Return a loss whose tensors, such as class weights, are on a device; a copy if they move."""
    if not isinstance(loss, nn.Module):
        return loss
    here = all(t.device == device for t in (*loss.parameters(), *loss.buffers()))
    return loss if here else copy.deepcopy(loss).to(device)


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def _by_layer(layers: Sequence[str], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part for each layer, by name or pattern; the last match counts."""
    by_layer: dict[str, Any] = {}
    for pattern, part in parts.items():
        names = fnmatch.filter(layers, pattern)
        if not names:
            raise ConfigError(f"no layer {pattern!r}: {nearest(pattern, layers)}")
        by_layer |= dict.fromkeys(names, part)
    return by_layer


def separable(module: nn.Module, parts: Mapping[str, Any]) -> Separable:
    """Return the regularizer of a module's trained parameters by name; the rest is free.

    Methods with a prox take it for a network, in a train loop or with `TorchObjective`s.

    Parameters
    ----------
    module : torch.nn.Module
        Parameters with `requires_grad=False` are left out; in a train loop declare them,
        `start(buffers=["head.*"])`.
    parts : dict
        Regularizers, or sets for their indicators, by name or pattern ("fc*.weight"). If two match
        a name, the last counts.

    Returns
    -------
    Separable

    Raises
    ------
    ConfigError
        If a pattern matches no name.

    Examples
    --------
    >>> from flower_fedcon.regularizers import L1
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    >>> psi = separable(net, {"*.weight": L1(1e-3)})
    >>> [(type(part).__name__, shape) for part, shape in psi.parts]
    [('L1', (2, 3)), ('Zero', (2,)), ('L1', (1, 2)), ('Zero', (1,))]
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(f"separable(module) must be a torch.nn.Module, got {repr_of(module)}")
    trained = _trained(module)
    by_layer = _by_layer([name for name, _ in trained], parts)
    return Separable(
        tuple((as_regularizer(by_layer.get(name)), tuple(p.shape)) for name, p in trained)
    )


class TorchObjective(Objective, Stackable):
    """The mean loss of a module over a client's rows, plus l2/2 times the squared norm of x.

    The model x is the list of the module's trained parameters, in their order and type; layers have
    the parameters' names. The module is copied and evaluated in `eval` mode, which switches off
    dropout and the statistics of batch normalisation, so that f is a fixed function.

    Parameters
    ----------
    module : torch.nn.Module
        Parameters with `requires_grad=False` are not trained.
    loss : callable
        `loss(outputs, targets)` returns the mean over rows, as `torch.nn.CrossEntropyLoss()` does.
    data : (inputs, targets)
        Tensors or arrays, with a row for each example; they are copied.
    l2 : float (default: 0.0)
        >= 0.
    device : str or torch.device, optional
        Where the module, the loss's tensors and the data are; by default the module's device.
    chunk : int (default: 4096)
        The largest number of rows in one pass.
    measures : dict of callables, optional
        Functions by name, `measure(outputs, targets)`, which a deployed client also evaluates.

    Raises
    ------
    ConfigError
        If no parameter is trained, or the data do not match.

    Examples
    --------
    >>> import torch
    >>> rows, labels = torch.eye(3), torch.tensor([0, 1, 1])
    >>> f = TorchObjective(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), (rows, labels))
    >>> f.layer_names, f.shape
    (('weight', 'bias'), [(2, 3), (2,)])
    >>> round(f.value(f.zeros()), 6)  # log 2
    0.693147
    """

    shape: Any

    why_not_traced = "is a TorchObjective, whose lines JAX cannot trace"

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        data: tuple[Any, Any],
        *,
        l2: float = 0.0,
        device: Any = None,
        chunk: int = 4096,
        measures: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    ) -> None:
        self._module = copy.deepcopy(module).eval()
        if device is not None:
            self._module.to(device)
        if not (named := _trained(self._module)):
            raise ConfigError(
                "TorchObjective(module): no parameter is trained: set requires_grad=True"
            )
        kinds = {p.dtype for _, p in named}
        if not kinds <= {torch.float32, torch.float64} or len(kinds) > 1:
            raise ConfigError(
                "TorchObjective(module): its parameters must all be float32, or all float64, got "
                + ", ".join(sorted(map(str, kinds)))
            )
        self._like = named[0][1]
        self._parameters = [p for _, p in named]  # these point at the model to be evaluated
        self._start = [p.data for p in self._parameters]
        self.layer_names = tuple(name for name, _ in named)
        self.shape = [tuple(p.shape) for p in self._parameters]
        self.dtype = np.dtype("float32" if kinds == {torch.float32} else "float64")
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise ConfigError("TorchObjective(data) must be (inputs, targets)")
        self._inputs, self._targets = (
            _own(name, d).to(self._like.device)
            for name, d in zip(("inputs", "targets"), data, strict=True)
        )
        if self._inputs.is_floating_point():
            self._inputs = self._inputs.to(self._like.dtype)
        self.num_examples = len(self._inputs)
        if self.num_examples == 0 or len(self._targets) != self.num_examples:
            raise ConfigError(
                f"TorchObjective(data) must have as many inputs as targets, got "
                f"{self.num_examples} and {len(self._targets)}"
            )
        self._loss, self._measures = _on(self._like.device, loss), dict(measures or {})
        self._untouched = self._never_called()
        self._no_hooks = [
            hooks
            for part in self._untouched[0].modules()
            for name, hooks in vars(part).items()
            if name.endswith("_hooks") and not hooks
        ]
        self.l2 = nonnegative("TorchObjective(l2)", l2)
        self._chunk = count("TorchObjective(chunk)", chunk)

    # --- the model -----------------------------------------------------------------------------

    def zeros(self) -> list[Array]:
        """Return the model of zeros."""
        return [np.zeros(shape, self.dtype) for shape in self.shape]

    def start(self, within: Product | None = None) -> list[Array]:
        """Return the module's own parameters, as x0: a network must not start from zeros.

        Parameters
        ----------
        within : Product, optional
            Project each layer onto its set.
        """
        layers = [as_array(tensor).copy() for tensor in self._start]
        if within is None:
            return layers
        return [part.project(w) for (part, _), w in zip(within.parts, layers, strict=True)]

    def separable(self, parts: Mapping[str, Any]) -> Separable:
        """Return the regularizer of a model by its layers' names, by `separable` of the module."""
        return separable(self._module, parts)

    def product(
        self, parts: Mapping[str, ConstraintSet], rest: ConstraintSet | None = None
    ) -> Product:
        """Return the constraint set of a model by its layers' names.

        Parameters
        ----------
        parts : dict
            Sets by name or pattern.
        rest : ConstraintSet, optional
            The set of every other layer. A Frank-Wolfe method needs a bounded set for each layer.
            To leave the rest free, use a method with a prox and `separable` with the same sets.

        Raises
        ------
        ConfigError
            If a layer has no set.
        """
        by_layer = _by_layer(self.layer_names, parts)
        free = [name for name in self.layer_names if name not in by_layer]
        if rest is None and free:
            raise ConfigError(
                f"product: no set for {', '.join(free)}: give rest=..., such as L2Ball(10.0), or "
                "leave them free with separable(...) and a method that takes a prox"
            )
        sets = [by_layer.get(name, rest) for name in self.layer_names]
        return Product(tuple(zip(sets, self.shape, strict=True)))  # type: ignore[arg-type]

    def _never_called(self) -> tuple[nn.Module, Any, list[Tensor]]:
        """Return the module and the loss before any call, and the trained parameters.

        The parameters have no memory: those of a model replace them.
        """
        empty: list[Tensor] = [
            nn.Parameter(torch.empty(0, dtype=p.dtype)) for p in self._parameters
        ]
        memo = {id(p): new for p, new in zip(self._parameters, empty, strict=True)}
        module, loss = copy.deepcopy((self._module, self._loss), memo)
        return module, loss, empty

    def _as_if_new(self, tensors: Sequence[Tensor]) -> tuple[nn.Module, Any, list[Tensor]]:
        """Return a module and a loss that were never called, with their parameters, at a model."""
        module, loss, empty = self._untouched
        parameters: list[Tensor] = [nn.Parameter(tensor.clone()) for tensor in tensors]
        memo: dict[int, Any] = {id(p): new for p, new in zip(empty, parameters, strict=True)}
        # The largest part of a copy: these are empty, and each row gets its own.
        memo |= {id(hooks): type(hooks)() for hooks in self._no_hooks}
        return *copy.deepcopy((module, loss), memo), parameters

    # --- the function --------------------------------------------------------------------------

    def value(self, x: Any) -> float:
        """Return f(x), for a list of arrays."""
        return self._value(self._tensors(x))

    def gradient(self, x: Any) -> Any:
        """Return the gradient, a list of arrays."""
        return self._both(x)[1]

    def value_and_gradient(self, x: Any) -> tuple[float, Any]:
        """Return f(x) and the gradient at x, from one pass."""
        return self._both(x)

    def _both(self, x: Any) -> tuple[float, Any]:
        value, parts = self._value_and_gradient(self._tensors(x), None)
        return value, [as_array(part) for part in parts]

    def batch_gradient(self, x: Any, rows: Array) -> Any:
        """Return the gradient of the mean over `rows` (integers), l2 included."""
        return [as_array(part) for part in self._value_and_gradient(self._tensors(x), rows)[1]]

    # --- single rows, for `flower_fedcon.privacy.ExampleDP` ---------------------------------------

    def row_gradients(self, x: Any, rows: Array) -> Array:
        """Return the gradient of the loss of each of some rows alone, without l2.

        Each row goes through an unused copy of the module, in its own memory, so that neither other
        rows nor its position change a bit of its result. For each row, values that a module keeps
        between calls (in parameters, buffers or attributes) and its random numbers are those after
        construction. A module's author must avoid state outside the module, in globals, in a class
        or in a function's closure. (`torch.func.vmap` takes rows together, and its matrix products
        round each row depending on its neighbours.)

        Parameters
        ----------
        x : list of array
        rows : array of int, shape (n,)

        Returns
        -------
        array of float64, shape (n, entries of x)
            NaN for a row at which the module raises.
        """

        def gradient(loss: Tensor, parameters: list[Tensor]) -> Array:
            parts = torch.autograd.grad(loss, parameters, allow_unused=True)
            pairs = zip(parts, parameters, strict=True)
            return as_array(
                torch.cat([(torch.zeros_like(w) if g is None else g).reshape(-1) for g, w in pairs])
            )

        entries = sum(p.numel() for p in self._parameters)
        return np.array(self._alone(x, rows, gradient, np.full(entries, np.nan)), np.float64)

    def row_losses(self, x: Any, rows: Array) -> Array:
        """Return the loss of each of some rows alone, without l2, as in `row_gradients`."""
        with torch.no_grad():
            return np.array(self._alone(x, rows, lambda loss, _: float(loss), np.nan))

    def _alone(self, x: Any, rows: Array, read: Callable[..., Any], failed: Any) -> list[Any]:
        """Return the result of a function of each row's loss and parameters.

        A row for which the module raises has `failed` instead, since an error that reached the
        server would reveal something about the row. If the module raises for a row of zeros, it is
        a fault of the module.
        """
        tensors, device = self._tensors(x), self._like.device

        def told(inputs: Tensor, target: Tensor) -> Any:
            torch.set_rng_state(draws)
            if on_gpu:
                torch.cuda.set_rng_state(gpu_draws, device)
            module, loss, parameters = self._as_if_new(tensors)
            return read(loss(module(inputs.clone()), target.clone()), parameters)

        results, on_gpu = [], device.type == "cuda"
        with torch.random.fork_rng([device] if on_gpu else []):
            draws = torch.get_rng_state()
            gpu_draws = torch.cuda.get_rng_state(device) if on_gpu else draws
            told(torch.zeros_like(self._inputs[:1]), torch.zeros_like(self._targets[:1]))
            for row in rows.tolist():
                each = failed
                with count_as_nothing():
                    each = told(self._inputs[row : row + 1], self._targets[row : row + 1])
                results.append(each)
        return results

    def ridge(self, x: Any) -> float:
        """Return l2/2 ||x||^2 for a model in layers."""
        return 0.5 * self.l2 * sum(float(np.square(w, dtype=np.float64).sum()) for w in x)

    def ridged(self, gradient: Any, x: Any) -> Any:
        """Return a gradient of the rows' losses, in layers, plus that of the l2 term."""
        if not self.l2:
            return gradient
        return [g + self.l2 * np.asarray(w) for g, w in zip(gradient, x, strict=True)]

    def why_rows_mix(self) -> str:
        """Return why the loss is not a mean of losses of single rows; "" if no reason is known."""
        kind = type(self)
        forms = [name for name in _FORMS if owner_of(kind, name) not in (TorchObjective, Objective)]
        if forms:
            return f"it defines its own {forms[0]}, which gradients of single rows do not use"
        if (device := self._like.device.type) not in ("cpu", "cuda"):
            return (
                f"a row's random numbers on {device!r} would depend on other rows: use cpu or cuda"
            )
        for name, part in self._module.named_modules():
            said = f"its layer {name or 'itself'!r} ({type(part).__name__})"
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                return (
                    f"{said} normalises by statistics of many rows, which no noise protects: use "
                    f"GroupNorm or LayerNorm"
                )
            if isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats:
                return (
                    f"{said} keeps running statistics of rows: set track_running_stats=False, or "
                    "use GroupNorm"
                )
        if isinstance(getattr(self._loss, "weight", None), Tensor):
            return (
                f"its loss ({type(self._loss).__name__}) has weights, and every row changes their "
                f"sum: leave weight out"
            )
        if (reduction := getattr(self._loss, "reduction", "mean")) != "mean":
            return (
                f"its loss ({type(self._loss).__name__}) must be a mean over rows, got "
                f'reduction={reduction!r}: give reduction="mean"'
            )
        return ""

    @property
    def own_rows(self) -> Array:
        """The inputs, by which a node identifies the examples."""
        return as_array(self._inputs)

    @property
    def rows_key(self) -> str:
        """A digest of the rows, independent of the module."""
        return digest((self._inputs, self._targets))

    def packed_objective(self, layout: Layout) -> PackedObjective:
        """Return the function of the packed vector that algorithms use."""
        kind = type(self)
        plain = all(owner_of(kind, name) in (TorchObjective, Objective) for name in _FORMS)
        return PackedTorch(self, layout) if plain else PackedObjective(self, layout)

    @property
    def resume_key(self) -> str | None:
        """The value that a resumed run compares, without the last model; None for subclasses."""
        if type(self) is not TorchObjective:
            return None  # for a subclass everything that pickle keeps counts
        parts = self._start, self._inputs, self._targets, self.l2, sorted(self._measures)
        return f"{self._content(exact=False)} {digest(parts)}"

    def stack_key(self) -> Hashable | None:
        """Return a key that is equal for clients whose modules can be evaluated together."""
        if type(self) is not TorchObjective:
            return None
        rows = *self._inputs.shape, self._inputs.dtype, *self._targets.shape, self._targets.dtype
        form = self.layer_names, *self.shape, self.dtype.name, self.l2, self._chunk
        return *form, *rows, str(self._like.device), self._content(exact=True)

    def _content(self, *, exact: bool) -> str:
        """Return the digest of the module and the loss."""
        return Untrained.digest(self._parameters, self._module, self._loss, exact=exact)

    @classmethod
    def along_axis(cls, objectives: Sequence[Any], factors: Sequence[float]) -> Stack:
        """Return many clients' objectives as a stack, times factors, by `torch.func.vmap`."""
        return StackedTorch(objectives, factors)

    @classmethod
    def why_not_stacked(cls, objectives: Sequence[Any]) -> str | None:
        """Return why `torch.func.vmap` cannot take these objectives; None if it can."""
        return why_not_together(objectives)

    def outputs(self, x: Any) -> Array:
        """Return the module's outputs on all rows."""
        self._load(self._tensors(x))
        with torch.no_grad():
            return as_array(torch.cat([self._call(index) for index, _ in self._chunks(None)]))

    def metrics(self, x: Any) -> dict[str, float]:
        """Return the measures at x."""
        if not self._measures:
            return {}
        outputs = torch.as_tensor(self.outputs(x)).to(self._like.device)
        return {k: float(m(outputs, self._targets)) for k, m in self._measures.items()}

    def _value(self, model: Sequence[Tensor]) -> float:
        self._load(model)
        with torch.no_grad():
            return self._sum(None)

    def _value_and_gradient(
        self, model: Sequence[Tensor], rows: Array | None
    ) -> tuple[float, list[Tensor]]:
        self._load(model)
        totals: list[Tensor | None] = [None] * len(model)

        def pull_back(part: Tensor) -> None:
            parts = torch.autograd.grad(part, self._parameters, allow_unused=True)
            for i, g in enumerate(parts):
                before = totals[i]
                if g is not None:
                    totals[i] = g if before is None else before + g

        value = self._sum(None if rows is None else torch.as_tensor(np.asarray(rows)), pull_back)
        gradient = [
            torch.zeros_like(w) if t is None else t for t, w in zip(totals, model, strict=True)
        ]
        if self.l2:
            gradient = [t + self.l2 * w for t, w in zip(gradient, model, strict=True)]
        return value, gradient

    def _load(self, model: Sequence[Tensor]) -> None:
        """Set the module to a model without a copy, which is cheaper than `functional_call`."""
        for parameter, tensor in zip(self._parameters, model, strict=True):
            parameter.data = tensor

    def _sum(self, rows: Tensor | None, each: Callable[[Tensor], None] | None = None) -> float:
        """Return f over rows, part by part; `each` is called with the parts of the mean loss."""
        value = 0.0
        for index, share in self._chunks(rows):
            part = self._loss(self._call(index), self._targets[index])
            if share != 1.0:
                part = part * share
            value += float(part.detach())
            if each is not None:
                each(part)
        if not self.l2:
            return value
        return value + 0.5 * self.l2 * sum(float((p.data**2).sum()) for p in self._parameters)

    def _chunks(self, rows: Tensor | None) -> Iterator[tuple[Any, float]]:
        """Yield the rows of each pass, and their share of all."""
        m = self.num_examples if rows is None else len(rows)
        for first in range(0, m, self._chunk):
            last = min(first + self._chunk, m)
            part: Any = slice(first, last)
            yield (part if rows is None else rows[part]), (last - first) / m

    def _call(self, index: Any) -> Tensor:
        out: Tensor = self._module(self._inputs[index])
        return out

    def _tensors(self, x: Any) -> list[Tensor]:
        like = self._like
        if not isinstance(x, list | tuple) or [np.shape(a) for a in x] != self.shape:
            raise ConfigError(
                f"TorchObjective takes a list of arrays of shapes {self.shape}, got "
                f"{[np.shape(a) for a in x] if isinstance(x, list | tuple) else type(x).__name__}"
            )
        return [torch.tensor(a, dtype=like.dtype, device=like.device) for a in x]
