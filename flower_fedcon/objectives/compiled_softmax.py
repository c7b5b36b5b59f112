"""Gradient steps of softmax regression, by compiled loops."""

from __future__ import annotations

from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.step_arguments import CompiledSteps, steps_of
from flower_fedcon.validation import Array


class CompiledSoftmax(CompiledSteps):
    """Steps of several clients with softmax regression."""

    def walk(
        self,
        steps: LocalPass,
        clients: Array,
        rows: Array | None,
        rate: float | None,
        products: Array | None = None,
    ) -> tuple[Array, Array]:
        """Do the same as `CompiledRows.walk`, for models of shape (n, d, classes)."""
        features, classes = steps.start.shape[-2:]
        arguments = steps_of(steps, features * classes, rows, rate)
        moved: tuple[Array, Array] = self.module.take_softmax_steps(
            self.data, arguments, clients, classes, rate is not None
        )
        return moved
