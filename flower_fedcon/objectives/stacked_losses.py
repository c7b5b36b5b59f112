"""The losses of rows that can be stacked.

Each class repeats, for a stack, what the objective says that it is named after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from flower_fedcon.arrays import in_order
from flower_fedcon.compiled import loops
from flower_fedcon.objectives.client_axis import Which, chosen, per_client, places
from flower_fedcon.objectives.compiled_softmax import CompiledSoftmax
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.many import column
from flower_fedcon.objectives.stacked_rows import CompilableRows, StackedRows
from flower_fedcon.validation import Array


class StackedLeastSquares(CompilableRows):
    """A stack of `LeastSquares`."""

    def __init__(self, objectives: Sequence[Any]) -> None:
        super().__init__(objectives)
        scales = column(objectives, "scale")
        self.scale = per_client(scales, self.tables.dtype, 1)
        self._compile(scales)

    def _residuals(self, scores: Array, targets: Array, which: Which, scale: float) -> Array:
        scores -= targets
        scores *= scale * chosen(self.scale, which) / scores.shape[1]
        return scores

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = super().only(which)
        part.scale = chosen(self.scale, which)
        return part

    def _means_of(self, scores: Array, part: Which) -> Array:
        residuals = scores - self.targets[part]
        squares: Array = np.einsum("ij,ij->i", residuals, residuals)
        own = np.reshape(chosen(self.scale, part), -1)
        return own * (0.5 / scores.shape[1]) * squares  # type: ignore[no-any-return]

    def _means(self, scores: Array, clients: int) -> Array:
        residuals = scores.reshape(clients, -1)
        residuals -= self.targets
        squares: Array = np.einsum("ij,ij->i", residuals, residuals)
        return np.reshape(self.scale, -1) * (0.5 / residuals.shape[1]) * squares


class StackedLogisticRegression(CompilableRows):
    """A stack of `LogisticRegression`."""

    logistic = True

    def __init__(self, objectives: Sequence[Any]) -> None:
        super().__init__(objectives)
        self._compile(0.5)

    def _residuals(self, scores: Array, targets: Array, which: Which, scale: float) -> Array:
        scores *= 0.5
        np.tanh(scores, out=scores)
        scores -= targets
        scores *= scale * 0.5 / scores.shape[1]
        return scores

    def hessian_products(self, x: Array) -> Callable[[Array], Array]:
        """Return the Hessians' map at x."""
        compiled = self._compiled
        if compiled is not None and compiled.takes(x):
            curvatures: Array = self._first._curvatures(self._scores(x, self.tables))
            everyone = slice(0, len(x))
            return lambda v: self._with_l2(compiled.hessian_product(curvatures, v), v, everyone)

        def curve(scores: Array) -> Callable[[Array], Array]:
            curvatures = self._first._curvatures(scores)
            curvatures /= scores.shape[1]
            return lambda changes: np.multiply(changes, curvatures, out=changes)

        return self._curving(x, curve)


class StackedScoreLoss(StackedRows):
    """A stack of `HuberRegression` or `PoissonRegression`, with the same loss."""

    def __init__(self, objectives: Sequence[Any]) -> None:
        super().__init__(objectives)
        self._slopes = objectives[0].slopes

    def _residuals(self, scores: Array, targets: Array, which: Which, scale: float) -> Array:
        slopes: Array = self._slopes(scores, targets)
        slopes *= scale / scores.shape[1]
        return slopes


class StackedSoftmaxRegression(StackedRows):
    """A stack of `SoftmaxRegression`."""

    _walking: CompiledSoftmax | None = None

    def takes(self, steps: LocalPass, full: bool = True) -> bool:
        """Return whether the compiled kernel does: of its dtype, and with one l2 a client."""
        module, l2 = loops(self.tables, steps.steps), self.l2
        if module is None or np.size(l2) not in (1, len(self.tables)):
            return False
        if self._walking is None:
            ridges = np.full(len(self.tables), np.reshape(l2, -1), self.tables.dtype)
            self._walking = CompiledSoftmax(module, self.tables, self.targets, ridges)
        return all(array.dtype == self.tables.dtype for array in steps.arrays)

    def gradient_steps(self, steps: LocalPass, which: Which, rows: Array | None) -> Array:
        """Return where gradient steps of some clients lead."""
        return self._walk(steps, None, which, rows)[0]

    def variate_steps(
        self, steps: LocalPass, which: Which, rows: Array | None
    ) -> tuple[Array, Array]:
        """Return how far these lead, and control variates."""
        moved, variates = self._walk(steps, steps.variate_rate, which, rows)
        return moved, self._in_shape(variates)

    def _walk(
        self, steps: LocalPass, rate: float | None, which: Which, rows: Array | None
    ) -> tuple[Array, Array]:
        assert self._walking is not None  # noqa: S101  (see `takes`)
        own = None if rows is None else in_order(rows)
        return self._walking.walk(steps, places(which), own, rate)

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = super().only(which)
        part._walking = None
        return part

    def _residuals(self, scores: Array, targets: Array, which: Which, scale: float) -> Array:
        count, _, m = scores.shape
        scores = _probabilities(scores)
        scores[np.arange(count)[:, None], targets, np.arange(m)] -= 1
        scores *= scale / m
        return scores

    def _scores(self, x: Array, tables: Array) -> Array:
        scores: Array = np.matmul(x.swapaxes(-1, -2), tables.swapaxes(1, 2))
        return scores

    def _pull(self, weights: Array, tables: Array) -> Array:
        gradient: Array = np.matmul(tables.swapaxes(1, 2), weights.swapaxes(1, 2))
        return gradient

    def _pull_changes(self, changes: Array, tables: Array) -> Array:
        pulled: Array = np.matmul(changes, tables).swapaxes(1, 2)
        return pulled

    def _means_of(self, scores: Array, part: Which) -> Array:
        count, _, m = scores.shape
        shifted = scores - scores.max(axis=1, keepdims=True)
        own = shifted[np.arange(count)[:, None], self.targets[part], np.arange(m)]
        means: Array = (np.log(np.exp(shifted).sum(axis=1)) - own).mean(axis=1)
        return means

    def hessian_products(self, x: Array) -> Callable[[Array], Array]:
        """Return the Hessians' map at x."""

        def curve(scores: Array) -> Callable[[Array], Array]:
            p = _probabilities(scores)
            weights = p / scores.shape[2]

            def changed(changes: Array) -> Array:
                changes -= np.einsum("nij,nij->nj", p, changes)[:, None]
                changes *= weights
                return changes

            return changed

        return self._curving(x, curve)


def _probabilities(scores: Array) -> Array:
    """Return the classes' probabilities, shape (clients, classes, rows), in place of the scores."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores
