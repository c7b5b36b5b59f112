"""A PyTorch module on a client's data, as an objective."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.objectives.base import Objective
from flower_fedcon.regularizers import Separable, as_regularizer
from flower_fedcon.sets import ConstraintSet, Product
from flower_fedcon.torch.training import as_array
from flower_fedcon.validation import Array, count, nonnegative


class TorchObjective(Objective):
    """The mean loss of a module over a client's rows, plus l2/2 times the squared norm of x.

    The model x is the list of the module's trained parameters, in their order and type; its layers
    bear their names. The module is copied and evaluated in its `eval` mode: dropout and the
    statistics of batch normalisation are switched off, so that f is one function.

    Parameters
    ----------
    module : torch.nn.Module
        Parameters with `requires_grad=False` stay as they are.
    loss : callable
        `loss(outputs, targets)` returns the mean over rows, as `torch.nn.CrossEntropyLoss()` does.
    data : (inputs, targets)
        Tensors or arrays, with a row for each example.
    l2 : float (default: 0.0)
        >= 0.
    device : str or torch.device, optional
        Where the module and the data are; by default the module's device.
    chunk : int (default: 4096)
        How many rows are taken at once.
    measures : dict of callables, optional
        Numbers by name, `measure(outputs, targets)`, that a deployed client evaluates as well.

    Raises
    ------
    ConfigError
        If there is nothing to train, or the data do not fit together.

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
        named = [(n, p) for n, p in self._module.named_parameters() if p.requires_grad]
        if not named:
            raise ConfigError("TorchObjective(module): it has no parameter that is trained")
        kinds = {p.dtype for _, p in named}
        if not kinds <= {torch.float32, torch.float64} or len(kinds) > 1:
            raise ConfigError(
                "TorchObjective(module): its parameters must all be float32, or all float64, got "
                + ", ".join(sorted(map(str, kinds)))
            )
        self._like = named[0][1]
        self.layer_names = tuple(name for name, _ in named)
        self.shape = [tuple(p.shape) for _, p in named]
        self.dtype = np.dtype("float32" if kinds == {torch.float32} else "float64")
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise ConfigError("TorchObjective(data) must be (inputs, targets)")
        self._inputs, self._targets = (torch.as_tensor(d).to(self._like.device) for d in data)
        if self._inputs.is_floating_point():
            self._inputs = self._inputs.to(self._like.dtype)
        self.num_examples = len(self._inputs)
        if self.num_examples == 0 or len(self._targets) != self.num_examples:
            raise ConfigError(
                f"TorchObjective(data): {self.num_examples} inputs and {len(self._targets)} targets"
            )
        self._loss, self._measures = loss, dict(measures or {})
        self.l2 = nonnegative("TorchObjective(l2)", l2)
        self._chunk = count("TorchObjective(chunk)", chunk)

    # --- the model -----------------------------------------------------------------------------

    def zeros(self) -> list[Array]:
        """Return the model of zeros."""
        return [np.zeros(shape, self.dtype) for shape in self.shape]

    def start(self, within: Product | None = None) -> list[Array]:
        """Return the module's own parameters, as x0: a network does not start from zeros.

        Parameters
        ----------
        within : Product, optional
            Project each layer onto its set.
        """
        own = dict(self._module.named_parameters())
        layers = [as_array(own[name]).copy() for name in self.layer_names]
        if within is None:
            return layers
        return [part.project(w) for (part, _), w in zip(within.parts, layers, strict=True)]

    def separable(self, parts: Mapping[str, Any]) -> Separable:
        """Return the regularizer of a model by its layers' names; the rest is free.

        Parameters
        ----------
        parts : dict
            Regularizers, or sets for their indicators, by name or pattern ("fc*.weight").
        """
        found = self._by_layer(parts)
        layers = zip(self.layer_names, self.shape, strict=True)
        return Separable(tuple((as_regularizer(found.get(name)), shape) for name, shape in layers))

    def product(
        self, parts: Mapping[str, ConstraintSet], rest: ConstraintSet | None = None
    ) -> Product:
        """Return the constraint set of a model by its layers' names.

        Parameters
        ----------
        parts : dict
            Sets by name or pattern.
        rest : ConstraintSet, optional
            That of every other layer. A Frank-Wolfe method needs a bounded one for each; where the
            rest is to be free, give a method with a prox `separable` of the same sets.

        Raises
        ------
        ConfigError
            If a layer has no set.
        """
        found = self._by_layer(parts)
        free = [name for name in self.layer_names if name not in found]
        if rest is None and free:
            raise ConfigError(
                f"product: no set for {', '.join(free)}: give rest=..., such as L2Ball(10.0), or "
                "leave them free with separable(...) and a method that takes a prox"
            )
        sets = [found.get(name, rest) for name in self.layer_names]
        return Product(tuple(zip(sets, self.shape, strict=True)))  # type: ignore[arg-type]

    def _by_layer(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for pattern, part in parts.items():
            names = fnmatch.filter(self.layer_names, pattern)
            if not names:
                raise ConfigError(f"no layer {pattern!r}: {nearest(pattern, self.layer_names)}")
            found |= dict.fromkeys(names, part)
        return found

    # --- the function --------------------------------------------------------------------------

    def value(self, x: Any) -> float:
        """Return f(x), for a list of arrays."""
        with torch.no_grad():
            return self._sum(self._tensors(x), None)

    def gradient(self, x: Any) -> Any:
        """Return the gradient, a list of arrays."""
        return self._value_and_gradient(x, None)[1]

    def value_and_gradient(self, x: Any) -> tuple[float, Any]:
        """Return f(x) and the gradient at x, which share a pass."""
        return self._value_and_gradient(x, None)

    def batch_gradient(self, x: Any, rows: Array) -> Any:
        """Return the gradient of the mean over `rows` (integers), l2 included."""
        return self._value_and_gradient(x, torch.as_tensor(np.asarray(rows)))[1]

    def outputs(self, x: Any) -> Array:
        """Return the module's outputs on all rows."""
        with torch.no_grad():
            tensors = self._tensors(x)
            return as_array(torch.cat([self._call(tensors, i) for i, _ in self._chunks(None)]))

    def metrics(self, x: Any) -> dict[str, float]:
        """Return the measures at x."""
        if not self._measures:
            return {}
        outputs = torch.as_tensor(self.outputs(x)).to(self._like.device)
        return {k: float(m(outputs, self._targets)) for k, m in self._measures.items()}

    def _value_and_gradient(self, x: Any, rows: Tensor | None) -> tuple[float, list[Array]]:
        tensors = [t.requires_grad_() for t in self._tensors(x)]
        totals = [torch.zeros_like(t) for t in tensors]

        def pull_back(part: Tensor) -> None:
            parts = torch.autograd.grad(part, tensors, allow_unused=True)
            for total, g in zip(totals, parts, strict=True):
                if g is not None:
                    total += g

        value = self._sum(tensors, rows, pull_back)
        if self.l2:
            totals = [t + self.l2 * w.detach() for t, w in zip(totals, tensors, strict=True)]
        return value, [as_array(total) for total in totals]

    def _sum(
        self,
        tensors: Sequence[Tensor],
        rows: Tensor | None,
        each: Callable[[Tensor], None] | None = None,
    ) -> float:
        """Return f over rows, part by part; `each` sees the parts of the mean loss."""
        value = 0.0
        for index, share in self._chunks(rows):
            part = self._loss(self._call(tensors, index), self._targets[index])
            if share != 1.0:
                part = part * share
            value += float(part.detach())
            if each is not None:
                each(part)
        squares = sum(float((t.detach() ** 2).sum()) for t in tensors) if self.l2 else 0.0
        return value + 0.5 * self.l2 * squares

    def _chunks(self, rows: Tensor | None) -> Iterator[tuple[Any, float]]:
        """Yield which rows are taken together, and their share of all."""
        m = self.num_examples if rows is None else len(rows)
        for first in range(0, m, self._chunk):
            last = min(first + self._chunk, m)
            part: Any = slice(first, last)
            yield (part if rows is None else rows[part]), (last - first) / m

    def _call(self, tensors: Sequence[Tensor], index: Any) -> Tensor:
        named = dict(zip(self.layer_names, tensors, strict=True))
        out: Tensor = torch.func.functional_call(self._module, named, (self._inputs[index],))
        return out

    def _tensors(self, x: Any) -> list[Tensor]:
        like = self._like
        if not isinstance(x, list | tuple) or [np.shape(a) for a in x] != self.shape:
            raise ConfigError(
                f"TorchObjective takes a list of arrays of shapes {self.shape}, got "
                f"{[np.shape(a) for a in x] if isinstance(x, list | tuple) else type(x).__name__}"
            )
        return [torch.tensor(a, dtype=like.dtype, device=like.device) for a in x]
