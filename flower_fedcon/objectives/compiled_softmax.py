"""Gradient steps of softmax regression, by compiled loops."""

from __future__ import annotations

from typing import Any

from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.step_arguments import drift_of, numbers_of
from flower_fedcon.validation import Array


class CompiledSoftmax:
    """Steps of several clients with softmax regression.

    Parameters
    ----------
    module, tables, ridges
        See `compiled_rows.CompiledRows`.
    targets : array of int, shape (clients, rows)
        Classes.
    """

    def __init__(self, module: Any, tables: Array, targets: Array, ridges: Array | None) -> None:
        self.module, self.tables, self.targets, self.ridges = module, tables, targets, ridges

    def takes(self, *arrays: Array) -> bool:
        """Return whether the arrays have the data's dtype, which the loops need."""
        return all(array.dtype == self.tables.dtype for array in arrays)

    def walk(
        self,
        steps: LocalPass,
        clients: Array,
        rows: Array | None,
        rate: float | None,
        products: Array | None = None,
    ) -> tuple[Array, Array]:
        """Do the same as `CompiledRows.walk`, for models of shape (n, d, classes)."""
        module, shape = self.module, steps.start.shape[-2:]
        start = module.read_only(steps.start.reshape(-1, shape[0] * shape[1]))
        moved: tuple[Array, Array] = module.take_softmax_steps(
            rate,
            shape[1],
            self.tables,
            self.targets,
            clients,
            module.ALL_STEPS if rows is None else rows,
            start,
            self.ridges,
            *drift_of(module, steps, start),
            *numbers_of(steps),
        )
        return moved
