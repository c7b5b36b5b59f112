"""Gradient steps of losses with a score for each column of the model, by compiled loops."""

from __future__ import annotations

from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.step_arguments import CompiledSteps, steps_of
from flower_fedcon.validation import Array


class CompiledColumns(CompiledSteps):
    """Steps of several clients with softmax regression, or several outputs of least squares."""

    def walk(
        self,
        steps: LocalPass,
        clients: Array,
        rows: Array | None,
        rate: float | None,
        products: Array | None = None,
    ) -> tuple[Array, Array]:
        """Do the same as `CompiledRows.walk`, for models of shape (n, d, columns)."""
        features, columns = steps.start.shape[-2:]
        arguments = steps_of(steps, features * columns, rows, rate)
        moved: tuple[Array, Array] = self.module.take_column_steps(
            self.data, arguments, clients, columns, rate is not None
        )
        return moved
