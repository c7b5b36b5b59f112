"""PyTorch modules of many clients, evaluated together by `torch.func.vmap`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from flower_fedcon.errors import FedConError
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.client_axis import Stack, Which, places
from flower_fedcon.objectives.packed import PackedObjective
from flower_fedcon.torch.content import Untrained
from flower_fedcon.torch.local_loop import as_array
from flower_fedcon.validation import Array

_TF32 = (
    ". On a GPU, PyTorch rounds convolutions to TF32, with errors of 1e-3: set "
    "torch.backends.cudnn.allow_tf32 = False"
)
_FEW = 8  # clients, and rows of each, for a comparison of both ways


class OneModule(Protocol):
    """A `TorchObjective`, as a stack sees it: a module and a loss on one client's rows."""

    shape: Any
    layer_names: tuple[str, ...]
    num_examples: int
    l2: float
    _module: nn.Module
    _loss: Callable[[Any, Any], Tensor]
    _inputs: Tensor
    _targets: Tensor
    _parameters: list[nn.Parameter]
    _like: nn.Parameter
    _chunk: int

    def start(self) -> list[Array]:
        """Return the module's own parameters, as x0."""

    def packed_objective(self, layout: Layout) -> PackedObjective:
        """Return the client's function of one vector."""


class StackedTorch(Stack):
    """A stack of `TorchObjective` whose modules differ only in their trained parameters.

    A model is the packed vector. A pass of many small modules costs little more than that of one.

    Parameters
    ----------
    objectives : sequence of TorchObjective
        Objectives with the same `stack_key`.
    factors : sequence of float, optional
        The factor of each; by default 1.
    """

    models_at_once = 2**21  # a pass has an overhead of a millisecond

    def __init__(
        self, objectives: Sequence[OneModule], factors: Sequence[float] | None = None
    ) -> None:
        first = objectives[0]
        self._first = first
        # Copies: state that a module or a loss keeps of a vmap call is not usable outside of it.
        self._module, self._mean_loss = copy.deepcopy((first._module, first._loss))
        self._inputs = torch.stack([f._inputs for f in objectives])
        self._targets = torch.stack([f._targets for f in objectives])
        self._sizes = [p.numel() for p in first._parameters]
        self.shape, self.num_examples = (sum(self._sizes),), first.num_examples
        self.entries = self._inputs[0].numel()
        self.l2 = first.l2
        self._factors = np.ones(len(objectives)) if factors is None else np.array(factors)

    def _loss(self, layers: Sequence[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """Return one client's mean loss over some rows."""
        named = dict(zip(self._first.layer_names, layers, strict=True))
        loss: Tensor = self._mean_loss(functional_call(self._module, named, (inputs,)), targets)
        return loss

    def content(self) -> str:
        """Return a digest of the module, without trained parameters, and of the loss."""
        trained = [p for p in self._module.parameters() if p.requires_grad]
        return Untrained.digest(trained, self._module, self._mean_loss, exact=True)

    def _layers(self, x: Array) -> list[Tensor]:
        """Return the layers of stacked models, or of one, as views; modules do not write to them.

        See `why_not_together`. Read-only arrays are copied, since otherwise PyTorch warns.
        """
        like = self._first._like
        flat = torch.from_numpy(x if x.flags.writeable else x.copy()).to(like.device, like.dtype)
        parts = zip(torch.split(flat, self._sizes, dim=-1), self._first.shape, strict=True)
        return [part.reshape((*x.shape[:-1], *shape)) for part, shape in parts]

    def _parts(self, clients: Array, rows: Array | None) -> Iterator[tuple[slice, Any, float]]:
        """Yield the clients of each pass, the index of their rows, and the rows' share.

        A pass has as many rows as that of a single client.
        """
        m, chunk = self.num_examples if rows is None else rows.shape[1], self._first._chunk
        at_once = max(1, chunk // m)
        for start in range(0, len(clients), at_once):
            here = slice(start, min(start + at_once, len(clients)))
            some, taken = clients[here], torch.from_numpy(clients[here])
            follow = some[-1] - some[0] == len(some) - 1  # adjacent clients: their rows are a view
            for first in range(0, m, chunk):
                last = min(first + chunk, m)
                index: Any = (slice(some[0], some[-1] + 1) if follow else taken, slice(first, last))
                if rows is not None:
                    index = (taken[:, None], torch.from_numpy(rows[here, first:last]))
                yield here, index, (last - first) / m

    def _evaluated(
        self, function: Callable[..., Any], x: Array, clients: Array, rows: Array | None = None
    ) -> Iterator[tuple[slice, float, Any]]:
        """Yield a function of some clients' layers and rows, for all of `_parts`."""
        several = x.ndim > 1
        evaluate = vmap(function, in_dims=(0 if several else None, 0, 0))
        for here, index, share in self._parts(clients, rows):
            at = self._layers(x[here] if several else x)
            with _told():
                result = evaluate(at, self._inputs[index], self._targets[index])
            yield here, share, result

    def _both(self, x: Array, clients: Array, rows: Array | None = None) -> tuple[Array, Array]:
        """Return the values and gradients of some clients, at one point or each at its own."""
        values, gradient = np.zeros(len(clients)), np.empty(0)
        both = grad_and_value(self._loss)
        for here, share, (parts, losses) in self._evaluated(both, x, clients, rows):
            count = here.stop - here.start
            flat = torch.cat([part.reshape(count, -1) for part in parts], dim=1)
            packed = as_array(flat).astype(x.dtype, copy=False)
            values[here] += share * as_array(losses)
            if share == 1.0 and count == len(clients):
                gradient = packed
                continue
            if not gradient.size:
                gradient = np.zeros((len(clients), *self.shape), x.dtype)
            packed *= share
            gradient[here] += packed
        if self.l2:
            gradient += self.l2 * x
        factors = self._factors[clients]
        if (factors != 1.0).any():
            gradient *= factors[:, None].astype(gradient.dtype)
        return factors * (values + self._ridge(x)), gradient

    def _losses(self, x: Array, clients: Array) -> Array:
        values = np.zeros(len(clients))
        with torch.no_grad():
            for here, share, losses in self._evaluated(self._loss, x, clients):
                values[here] += share * as_array(losses)
        weighted: Array = self._factors[clients] * (values + self._ridge(x))
        return weighted

    def _ridge(self, x: Array) -> Any:
        return 0.5 * self.l2 * np.square(x, dtype=np.float64).sum(axis=-1) if self.l2 else 0.0

    def gradient(self, x: Array, which: Which) -> Array:
        """Return the gradients of some clients."""
        return self._both(x, places(which))[1]

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows."""
        return self._both(x, places(which), np.ascontiguousarray(rows))[1]

    def values(self, x: Array) -> Array:
        """Return each client's value at one point."""
        return self._losses(x, np.arange(len(self._inputs)))

    def own_values(self, x: Array) -> Array:
        """Return each client's value at its own point, or at one for all."""
        count = len(self._inputs)
        return self._losses(np.broadcast_to(x, (count, x.shape[-1])), np.arange(count))

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both, from one pass."""
        return self._both(x, np.arange(len(x)))

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = copy.copy(self)
        index = which if isinstance(which, slice) else torch.from_numpy(which)
        part._inputs, part._targets = self._inputs[index], self._targets[index]
        part._factors = self._factors[which]
        return part


@contextmanager
def _told() -> Iterator[None]:
    """Raise an error of a module or a loss as an error of the client."""
    try:
        yield
    except FedConError:
        raise
    except Exception as error:
        raise FedConError(f"{type(error).__name__}: {error}") from error


def why_not_together(objectives: Sequence[OneModule]) -> str | None:
    """Return why `vmap` differs from evaluating clients one by one; None if it does not.

    Both ways are compared: all rows' losses at the start, and the gradients of a few clients.
    """
    start = objectives[0].start()
    layout = Layout.of(start)
    x = layout.pack(start)
    few = min(_FEW, len(objectives))
    rows = np.arange(min(_FEW, objectives[0].num_examples))
    points = np.tile(x, (few, 1))
    try:
        stack = StackedTorch(objectives)
        before = stack.content()
        stack.values(x)
        values = stack.only(slice(0, few)).own_values(points)
        gradients = stack.batch_gradient(points, slice(0, few), np.tile(rows, (few, 1)))
        stack.gradient(x, slice(0, 1))
        if stack.content() != before:
            return "its module or its loss keeps what it was called with"
    except Exception as error:  # any error of a module, a loss, or a copy of them
        reason = next(iter(str(error).splitlines()), "")[:200]
        return f"torch.func.vmap does not take the module, the loss or the data ({reason})"
    if (points != x).any():
        return "its module changes its parameters when it is called"
    for f, value, gradient in zip(objectives[:few], values, gradients, strict=True):
        alone = f.packed_objective(layout)
        if not (_close(gradient, alone.batch_gradient(x, rows)) and _close(value, alone.value(x))):
            why = "torch.func.vmap finds another gradient or value than the client alone"
            return why + (_TF32 if _rounds_to_tf32(f._module) else "")
    return None


def _rounds_to_tf32(module: nn.Module) -> bool:
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
    return convolves and next(module.parameters()).is_cuda and torch.backends.cudnn.allow_tf32


def _close(found: Any, alone: Any) -> bool:
    """Return whether two results are equal up to rounding."""
    if not np.isfinite(alone).all():
        return not np.isfinite(found).all()
    close = 1e-3 if np.asarray(found).dtype == np.float32 else 1e-6
    return bool(np.linalg.norm(found - alone) <= close * np.linalg.norm(alone) + 1e-30)
