"""Stacks of objectives that are losses of rows: a table of numbers for each client."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from flower_fedcon.arrays import in_order, is_array, known
from flower_fedcon.compiled import loops
from flower_fedcon.objectives.client_axis import (
    Stack,
    VertexStep,
    Which,
    chosen,
    per_client,
    places,
    together,
)
from flower_fedcon.objectives.compiled_rows import CompiledRows, compiled_rows
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.many import column
from flower_fedcon.objectives.scores import few_rows, row_products, steps_on_scores
from flower_fedcon.validation import Array

# Data are read twice, and should still be in the cache the second time.
_CACHED = 2**17  # entries, 1 MB of doubles
_COPIED = 2**12  # entries of a client, up to which a copy is cheaper than a pass of its own


class Table(Stack):
    """A stack of objectives whose data are a table of numbers for each client."""

    l2: Any = 0.0

    def __init__(self, tables: Sequence[Array] | Array, targets: Sequence[Array] | Array) -> None:
        self._hold(together(tables), together(targets))
        self.entries = self.tables[0].size

    def _hold(self, tables: Array, targets: Array) -> None:
        self.tables, self.targets = tables, targets
        for array in (tables, targets):
            array.flags.writeable = False  # as in a view, so that the kernels meet one type

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = copy.copy(self)
        part._hold(self.tables[which], self.targets[which])
        part.l2, part.whole = chosen(self.l2, which), (self, which)
        return part

    @abstractmethod
    def _piece(
        self, x: Array, tables: Array, targets: Array, which: Which, scale: float = 1.0
    ) -> Array:
        """Return scale times the gradients of these clients without l2, in the model's shape."""

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
        at_once = max(1, _CACHED // self.entries)
        if not isinstance(which, slice) and self.entries > _COPIED:
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

    _products: Array | None = None

    def __init__(self, objectives: Sequence[Any]) -> None:
        super().__init__(column(objectives, "rows"), column(objectives, "targets"))
        self._first = first = objectives[0]
        self.shape, self.num_examples = first.shape, first.num_examples
        self.l2 = per_client(column(objectives, "l2"), self.tables.dtype, len(self.shape))
        if any(column(objectives, "intercept")):
            self.l2 = np.array([np.full(o.shape, o.l2, o.dtype) for o in objectives])
            self.l2[[o.intercept for o in objectives], -1] = 0.0

    @abstractmethod
    def _residuals(self, scores: Array, targets: Array, which: Which, scale: float) -> Array:
        """Return scale times the rows' weights in the gradient; overwrites the scores."""

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = super().only(which)
        part._products = None
        return part

    @property
    def products(self) -> Array:
        """The products of each client's rows with one another, which are kept."""
        if self._products is None:
            whole, which = self.whole or (None, None)
            found = row_products(self.tables) if whole is None else whole.products[which]
            self._products = found
        return self._products

    def takes(self, steps: LocalPass, full: bool = True) -> bool:
        """Return whether `gradient_steps` can take these: on scores, where that saves work."""
        several = full and steps.steps > 1 and steps.plain
        return several and few_rows(self.tables) and np.size(self.l2) in (1, len(self.tables))

    def gradient_steps(self, steps: LocalPass, which: Which, rows: Array | None) -> Array:
        """Return where gradient steps of some clients lead."""
        ridge, targets = chosen(self.l2, which), self.targets[which]
        found = steps_on_scores(
            steps,
            self.tables[which],
            self.products[which],
            ridge.reshape(-1, 1) if is_array(ridge) else ridge,
            lambda scores: self._residuals(scores, targets, which, 1.0),
        )
        return self._in_shape(found)

    def _piece(
        self, x: Array, tables: Array, targets: Array, which: Which, scale: float = 1.0
    ) -> Array:
        weights = self._residuals(self._scores(x, tables), targets, which, scale)
        return self._pull(weights, tables)

    def _scores(self, x: Array, tables: Array) -> Array:
        """Return the rows' scores, in a new array."""
        count, _, d = tables.shape
        if x.ndim == len(self.shape):
            scores: Array = np.matmul(tables, x.reshape(d))
        else:
            scores = np.matmul(tables, x.reshape(count, d, 1))[:, :, 0]
        return scores

    def _pull(self, weights: Array, tables: Array) -> Array:
        """Return the sums of the rows, each times its weight, in the model's shape."""
        gradient: Array = np.matmul(weights[:, None, :], tables)
        return gradient.reshape(len(tables), *self.shape)

    def _pull_changes(self, changes: Array, tables: Array) -> Array:
        """Return the same for a Hessian's product, where another order may be faster."""
        return self._pull(changes, tables)

    def _means_of(self, scores: Array, part: Which) -> Array:
        """Return the mean losses of some clients from their own scores, which stay as they are."""
        means: Array = self._first._losses(scores, self.targets[part]).mean(axis=1)
        return means

    def own_values(self, x: Array) -> Array:
        """Return each client's value at its own point."""
        values = np.empty_like(x, shape=len(x))
        for here, part in self._parts(slice(0, len(x))):
            values[here] = self._means_of(self._scores(x[here], self.tables[part]), part)
        return values + self._ridges(x)

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both, which share a product with the rows."""
        everyone = slice(0, len(x))
        values, gradient = np.empty_like(x, shape=len(x)), np.empty_like(x)
        for here, part in self._parts(everyone):
            tables = self.tables[part]
            scores = self._scores(x[here], tables)
            values[here] = self._means_of(scores, part)
            weights = self._residuals(scores, self.targets[part], part, 1.0)
            gradient[here] = self._pull(weights, tables)
        return values + self._ridges(x), self._with_l2(gradient, x, everyone)

    def _ridges(self, x: Array) -> Array | float:
        """Return l2/2 ||x||^2 of each client at its own point."""
        if isinstance(self.l2, np.ndarray):
            with np.errstate(over="ignore", invalid="ignore"):  # 0 times what overflows is 0
                squares = np.where(self.l2 == 0, 0.0, self.l2 * np.square(x))
            return 0.5 * squares.reshape(len(x), -1).sum(axis=1)  # type: ignore[no-any-return]
        flat = x.reshape(len(x), -1)
        return 0.5 * self.l2 * np.einsum("ij,ij->i", flat, flat) if self.l2 else 0.0

    def _curving(
        self, x: Array, curve: Callable[[Array], Callable[[Array], Array]]
    ) -> Callable[[Array], Array]:
        """Return the Hessians' map, from what `curve(scores)` makes of the scores of a v."""
        everyone, parts = slice(0, len(x)), self._parts(slice(0, len(x)))
        maps = [curve(self._scores(x[here], self.tables[part])) for here, part in parts]

        def product(v: Array) -> Array:
            found = np.empty_like(v)
            for (here, part), change in zip(parts, maps, strict=True):
                tables = self.tables[part]
                changes = change(self._scores(v[here], tables))
                found[here] = self._pull_changes(changes, tables)
            return self._with_l2(found, v, everyone)

        return product

    def values(self, x: Array) -> Array:
        """Return each client's value at x."""
        values = self._means_at(x)
        if isinstance(self.l2, np.ndarray):
            with np.errstate(over="ignore", invalid="ignore"):  # 0 times what overflows is 0
                squares = np.where(self.l2 == 0, 0.0, self.l2 * np.square(x))
            values += 0.5 * squares.reshape(len(values), -1).sum(axis=1)
        elif self.l2:
            values += 0.5 * self.l2 * float(np.vdot(x, x))
        return values

    def _means_at(self, x: Array) -> Array:
        """Return each client's mean loss at one point, from one product with all rows."""
        clients, _, d = self.tables.shape
        return self._means(self._first._scores(x, self.tables.reshape(-1, d)), clients)

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
        same = isinstance(factors, float)
        self._factors = factors if same else per_client(factors, self.tables.dtype, 0)
        self._gradients = self._made()
        self._walking = self._gradients  # what takes steps, of small data too if they are many

    @property
    def _compiled(self) -> CompiledRows | None:
        """The compiled form of gradients; None where NumPy, or a tracer, is to find them."""
        return self._gradients if known(self.tables) else None

    def _made(self, steps: int = 1) -> CompiledRows | None:
        data = self.tables, self.targets
        return compiled_rows(*data, self._factors, self.logistic, self.l2, steps)

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = super().only(which)
        compiled = self._compiled
        part._gradients = compiled and compiled.of(part.tables, part.targets, which)
        part._walking = part._gradients
        part._factors = chosen(self._factors, which)
        return part

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
        gradient = np.empty_like(x, shape=(len(clients), *self.shape))
        compiled.add(x, gradient, scale, clients, center=center, pull=pull)
        return self._with_l2(gradient, x, which, scale)

    def vertex_step(self, step: VertexStep, which: Which) -> tuple[Array, Array] | None:
        """Return the vertices and where the step of some clients leads."""
        compiled = self._compiled
        if compiled is None or not compiled.takes(step.x, step.center):
            return None
        if compiled.ridges is None or step.x.ndim != step.center.ndim + 1:
            return None
        return compiled.vertex_step(step, places(which))

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows."""
        if self._compiled is None or not self._compiled.takes(x):
            return super().batch_gradient(x, which, rows)
        return self._new(self._compiled, x, which, in_order(rows))

    def _means_at(self, x: Array) -> Array:
        """Return each client's mean loss at one point."""
        compiled = self._compiled or self._walking
        if compiled is None or not compiled.takes(x):
            return super()._means_at(x)
        means: Array = compiled.mean_losses(x)
        return means if self.logistic else compiled.factors * means

    def takes(self, steps: LocalPass, full: bool = True) -> bool:
        """Return whether `gradient_steps` can take these: compiled, or on scores."""
        return self._walker(steps) is not None or super().takes(steps, full)

    def gradient_steps(self, steps: LocalPass, which: Which, rows: Array | None) -> Array:
        """Return where gradient steps of some clients lead."""
        walker = self._walker(steps)
        if walker is None:
            return super().gradient_steps(steps, which, rows)
        return self._in_shape(self._walk(walker, steps, None, which, rows)[0])

    def variate_steps(
        self, steps: LocalPass, which: Which, rows: Array | None
    ) -> tuple[Array, Array] | None:
        """Return how far these lead, and control variates."""
        walker = self._walker(steps)
        if walker is None:
            return None
        moved, variates = self._walk(walker, steps, steps.variate_rate, which, rows)
        return self._in_shape(moved), self._in_shape(variates)

    def _walker(self, steps: LocalPass) -> CompiledRows | None:
        """Return what takes such steps compiled: of its dtype, and with one l2 a client."""
        if self._compiled is None:
            count = steps.steps
            if loops(self.tables, count) is None:
                return None
            self._walking = self._walking or self._made(count)
        walking = self._walking
        if walking is None or walking.ridges is None or not walking.takes(*steps.arrays):
            return None
        return walking

    def _walk(
        self,
        walker: CompiledRows,
        steps: LocalPass,
        rate: float | None,
        which: Which,
        rows: Array | None,
    ) -> tuple[Array, Array]:
        products = self.products if super().takes(steps, rows is None) else None
        own = None if rows is None else in_order(rows)
        return walker.walk(steps, places(which), own, rate, products)

    def _new(
        self, compiled: CompiledRows, x: Array, which: Which, rows: Array | None = None
    ) -> Array:
        clients = places(which)
        gradient = np.zeros_like(x, shape=(len(clients), *self.shape))
        compiled.add(x, gradient, 1.0, clients, rows)
        return self._with_l2(gradient, x, which)
