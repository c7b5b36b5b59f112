"""Stacks of objectives that are losses of rows: a table of numbers for each client.

Each class repeats, for a stack, the gradient of the objective that it is named after.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.objectives.client_axis import Stack, Steps, Which, per_client, places, together
from flower_fedcon.objectives.compiled_rows import CompiledRows, compiled_rows
from flower_fedcon.validation import Array

# Data are read twice, and should still be in the cache the second time.
_CACHED = 2**17  # entries, 1 MB of doubles
_COPIED = 2**12  # entries of a client, up to which a copy is cheaper than a pass of its own


class Table(Stack):
    """A stack of objectives whose data are a table of numbers for each client."""

    l2: Any = 0.0

    def __init__(self, tables: Sequence[Array], targets: Sequence[Array]) -> None:
        self.tables, self.targets = together(tables), together(targets)
        for array in (self.tables, self.targets):
            array.flags.writeable = False  # as in a view, so that the kernels meet one type
        self._entries = self.tables[0].size

    @abstractmethod
    def _piece(
        self, x: Array, tables: Array, targets: Array, which: Which, scale: float = 1.0
    ) -> Array:
        """Return scale times the gradients of these clients without l2, in the model's shape."""

    def uncompiled(self) -> None:
        """Take each gradient in one pass, without compiled kernels."""
        self._entries = 1

    def gradient(self, x: Array, which: Which) -> Array:
        """Return the gradients of some clients."""
        parts = self._parts(which)
        if len(parts) == 1:
            piece = self._piece(x, self.tables[which], self.targets[which], which)
            return self._with_l2(piece, x, which)
        count = parts[-1][0].stop
        gradient = np.empty((count, *self.shape), np.result_type(self.tables, x))
        stacked = x.ndim > len(self.shape)
        for here, part in parts:
            own = x[here] if stacked else x
            gradient[here] = self._piece(own, self.tables[part], self.targets[part], part)
        return self._with_l2(gradient, x, which)

    def add_gradient(self, x: Array, out: Array, scale: float, which: Which) -> None:
        """Add scale times the gradients of some clients to `out` in place."""
        stacked = x.ndim > len(self.shape)
        for here, part in self._parts(which):
            own = x[here] if stacked else x
            out[here] += self._piece(own, self.tables[part], self.targets[part], part, scale)
        self._with_l2(out, x, which, scale)

    def _parts(self, which: Which) -> list[tuple[slice, Which]]:
        """Cut some clients into parts whose tables fit into the cache.

        Of each part, return its slice of `which` and the clients in it.
        """
        first, stop = (which.start, which.stop) if isinstance(which, slice) else (0, len(which))
        at_once = max(1, _CACHED // self._entries)
        if not isinstance(which, slice) and self._entries > _COPIED:
            at_once = 1  # a view of each client's table
        elif stop - first <= at_once:
            return [(slice(0, stop - first), which)]
        parts: list[tuple[slice, Which]] = []
        for start in range(first, stop, at_once):
            some = slice(start, min(start + at_once, stop))
            part: Which = some
            if not isinstance(which, slice):
                place = int(which[start])
                part = slice(place, place + 1) if at_once == 1 else which[some]
            parts.append((slice(some.start - first, some.stop - first), part))
        return parts

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows."""
        clients = places(which)[:, None]
        piece = self._piece(x, self.tables[clients, rows], self.targets[clients, rows], which)
        return self._with_l2(piece, x, which)

    def _with_l2(self, gradient: Array, x: Array, which: Which, scale: float = 1.0) -> Array:
        if isinstance(self.l2, np.ndarray):
            gradient += scale * self.l2[which] * x
        elif self.l2:
            gradient += scale * self.l2 * x
        return gradient


class StackedRows(Table):
    """A stack of means over rows a_i of a loss of the score <a_i, x>."""

    def __init__(self, objectives: Sequence[Any]) -> None:
        super().__init__([o.rows for o in objectives], [o.targets for o in objectives])
        self._first = first = objectives[0]
        self.shape, self.num_examples = first.shape, first.num_examples
        self.l2 = per_client([o.l2 for o in objectives], self.tables.dtype, len(self.shape))
        if any(o.intercept for o in objectives):
            self.l2 = np.array([np.full(o.shape, o.l2, o.dtype) for o in objectives])
            self.l2[[o.intercept for o in objectives], -1] = 0.0

    @abstractmethod
    def _residuals(self, scores: Array, targets: Array, which: Which, scale: float) -> Array:
        """Return scale times the rows' weights in the gradient; overwrites the scores."""

    def _piece(
        self, x: Array, tables: Array, targets: Array, which: Which, scale: float = 1.0
    ) -> Array:
        count, _, d = tables.shape
        if x.ndim == len(self.shape):
            scores = np.matmul(tables, x.reshape(d))
        else:
            scores = np.matmul(tables, x.reshape(count, d, 1))[:, :, 0]
        weights = self._residuals(scores, targets, which, scale)
        gradient: Array = np.matmul(weights[:, None, :], tables)
        return gradient.reshape(count, *self.shape)

    def values(self, x: Array) -> Array:
        """Return each client's value at x, from one product with all rows."""
        clients, _, d = self.tables.shape
        scores = self._first._scores(x, self.tables.reshape(-1, d))
        values: Array = self._means(scores, clients)
        if isinstance(self.l2, np.ndarray):
            with np.errstate(over="ignore", invalid="ignore"):  # 0 times what overflows is 0
                squares = np.where(self.l2 == 0, 0.0, self.l2 * np.square(x))
            values += 0.5 * squares.reshape(clients, -1).sum(axis=1)
        elif self.l2:
            values += 0.5 * self.l2 * float(np.vdot(x, x))
        return values

    def _means(self, scores: Array, clients: int) -> Array:
        """Return each client's mean loss, from the scores of all rows."""
        losses = self._first._losses(scores, self.targets.reshape(-1))
        means: Array = losses.reshape(clients, -1).mean(axis=1)
        return means


class CompilableRows(StackedRows):
    """Losses of one score for each row: by the compiled kernels where they pay, else by NumPy."""

    logistic = False

    def _compile(self, factors: Any) -> None:
        """Prepare the compiled form, in which `factors` multiply the clients' gradients."""
        self._compiled = compiled_rows(self.tables, self.targets, factors, self.logistic)

    def uncompiled(self) -> None:
        """Take each gradient in one pass, without compiled kernels."""
        super().uncompiled()
        self._compiled = None

    def gradient(self, x: Array, which: Which) -> Array:
        """Return the gradients of some clients."""
        if self._compiled is None or not self._compiled.takes(x):
            return super().gradient(x, which)
        return self._new(self._compiled, x, which)

    def add_gradient(self, x: Array, out: Array, scale: float, which: Which) -> None:
        """Add scale times the gradients of some clients to `out` in place."""
        compiled = self._compiled
        if compiled is None or not (compiled.takes(x, out) and out.flags.c_contiguous):
            super().add_gradient(x, out, scale, which)
            return
        compiled.add(x, out, scale, places(which))
        self._with_l2(out, x, which, scale)

    def pulled_gradient(
        self, x: Array, scale: float, center: Array, pull: float, which: Which
    ) -> Array:
        """Return scale times the gradients of some clients, plus pull * (x - center)."""
        compiled = self._compiled
        if compiled is None or not (compiled.takes(x, center) and center.ndim == len(self.shape)):
            return super().pulled_gradient(x, scale, center, pull, which)
        clients = places(which)
        gradient = np.empty((len(clients), *self.shape), x.dtype)
        compiled.add(x, gradient, scale, clients, center=center, pull=pull)
        return self._with_l2(gradient, x, which, scale)

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows."""
        if self._compiled is None or not self._compiled.takes(x):
            return super().batch_gradient(x, which, rows)
        return self._new(self._compiled, x, which, np.ascontiguousarray(rows))

    def takes(self, steps: Steps) -> bool:
        """Return whether the compiled kernel does: of its dtype, and with one l2 a client."""
        if self._compiled is None or np.size(self.l2) not in (1, len(self.tables)):
            return False
        arrays = (steps.start, steps.linear, steps.center)
        return self._compiled.takes(*(array for array in arrays if array is not None))

    def gradient_steps(self, steps: Steps, which: Which, rows: Array | None) -> Array:
        """Return where gradient steps of some clients lead."""
        clients, dtype = places(which), steps.start.dtype
        models = np.empty((len(clients), *self.shape), dtype)
        models[:] = steps.start
        ridges = np.full(len(self.tables), np.reshape(self.l2, -1), dtype)
        own = None if rows is None else np.ascontiguousarray(rows)
        assert self._compiled is not None  # noqa: S101  (see `takes`)
        self._compiled.walk(models, steps, clients, ridges, own)
        return models

    def _new(
        self, compiled: CompiledRows, x: Array, which: Which, rows: Array | None = None
    ) -> Array:
        clients = places(which)
        gradient = np.zeros((len(clients), *self.shape), x.dtype)
        compiled.add(x, gradient, 1.0, clients, rows)
        return self._with_l2(gradient, x, which)


class StackedLeastSquares(CompilableRows):
    """A stack of `LeastSquares`."""

    def __init__(self, objectives: Sequence[Any]) -> None:
        super().__init__(objectives)
        scales = [o.scale for o in objectives]
        self.scale = per_client(scales, self.tables.dtype, 1)
        self._compile(scales)

    def _residuals(self, scores: Array, targets: Array, which: Which, scale: float) -> Array:
        own = self.scale[which] if isinstance(self.scale, np.ndarray) else self.scale
        scores -= targets
        scores *= scale * own / scores.shape[1]
        return scores

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

    def _residuals(self, scores: Array, targets: Array, which: Which, scale: float) -> Array:
        count, _, m = scores.shape
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores[np.arange(count)[:, None], targets, np.arange(m)] -= 1
        scores *= scale / m
        return scores

    def _piece(
        self, x: Array, tables: Array, targets: Array, which: Which, scale: float = 1.0
    ) -> Array:
        transposed = tables.swapaxes(1, 2)
        scores = np.matmul(x.swapaxes(-1, -2), transposed)
        weights = self._residuals(scores, targets, which, scale)
        gradient: Array = np.matmul(transposed, weights.swapaxes(1, 2))
        return gradient
