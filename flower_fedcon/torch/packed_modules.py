"""A `TorchObjective` in the form for algorithms: a function of one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flower_fedcon.objectives.client_axis import StepTaker
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.packed import PackedObjective
from flower_fedcon.torch.local_loop import as_array
from flower_fedcon.validation import Array


class PackedTorch(PackedObjective, StepTaker):
    """A `TorchObjective` as a function of the packed vector; its tensors are views of it."""

    _writes: bool | None = None  # whether the module changes its parameters; None until known

    def value(self, x: Array) -> float:
        """Return f(x)."""
        return float(self._at(x, self._objective._value))

    def gradient(self, x: Array) -> Array:
        """Return the gradient, packed."""
        return self.value_and_gradient(x)[1]

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return f(x) and the packed gradient."""
        return self._value_and_gradient(x, None)

    @property
    def batch_gradient(self) -> Callable[[Array, Array], Array]:
        """The gradient over rows, packed."""
        return lambda x, rows: self._value_and_gradient(x, rows)[1]

    def gradient_steps(
        self, steps: LocalPass, next_rows: Callable[[], Array | None] | None = None
    ) -> Array | None:
        """Return the result of plain steps, in one piece of memory: the same bits, but faster."""
        objective, start = self._objective, steps.start
        if not steps.plain or steps.shift or self._writes is not False:
            return None
        if start.dtype != objective.dtype:
            return None
        z = self._tensor(start.copy())
        model, changes = self._layers_of(z), self._layers_of(torch.empty_like(z))
        drift = None
        if steps.linear is not None:
            linear = steps.linear if steps.less is None else steps.linear - steps.less
            drift = self._layers_of(self._tensor(linear.copy()))
        for _ in range(steps.steps):
            rows = None if next_rows is None else next_rows()
            _, gradient = objective._value_and_gradient(model, rows)
            for i, (w, change) in enumerate(zip(model, changes, strict=True)):
                g = gradient[i] if drift is None else gradient[i] + drift[i]
                torch.mul(g, -steps.rate, out=change)
                w += change
        return as_array(z)

    def _value_and_gradient(self, x: Array, rows: Array | None) -> tuple[float, Array]:
        ask = self._objective._value_and_gradient
        value, parts = self._at(x, lambda model: ask(model, rows))
        packed = as_array(torch.cat([part.reshape(-1) for part in parts]))
        return value, packed.astype(x.dtype, copy=False)

    def _at(self, x: Array, ask: Callable[[Sequence[Tensor]], Any]) -> Any:
        """Return the result at x; a module that writes to its parameters gets a copy of x."""
        shared = self._writes is False and x.flags.writeable  # otherwise PyTorch warns
        flat = self._tensor(x if shared else x.copy())
        before = self._versions() if self._writes is None else None
        answer = ask(self._layers_of(flat))
        if self._writes is None:  # a write that does not change a value counts, too
            same = torch.equal(flat, torch.from_numpy(x.copy()).to(flat))
            self._writes = not same or self._versions() != before
        return answer

    def _versions(self) -> list[int]:
        """Return how often each parameter was written to, by PyTorch's count."""
        return [parameter._version for parameter in self._objective._parameters]

    def _tensor(self, x: Array) -> Tensor:
        like = self._objective._like
        return torch.from_numpy(x).to(like.device, like.dtype)

    def _layers_of(self, flat: Tensor) -> list[Tensor]:
        """Return a packed tensor's layers, as views."""
        layout = self._layout
        parts = zip(torch.split(flat, list(layout.sizes)), layout.shapes, strict=True)
        return [part.view(shape) for part, shape in parts]
