"""The objectives of several clients as one with a client axis, in parts that fit the cache."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from flower_fedcon.arrays import in_order, is_array, known
from flower_fedcon.objectives.client_axis import Stack, VertexStep, Which, places
from flower_fedcon.objectives.compiled_columns import CompiledColumns
from flower_fedcon.objectives.compiled_rows import CompiledRows, compiled_form, pays
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.scores import products_pay, row_products, steps_on_scores
from flower_fedcon.validation import Array

# Data are read twice, and should be in the cache the second time.
_CACHED = 2**17  # entries, 1 MB of doubles
_COPIED = 2**12  # entries of a client up to which a copy is cheaper than a separate pass


class StackedObjective(Stack):
    """The objectives of several clients, by one objective whose arrays have a client axis.

    Parameters
    ----------
    objective : objective
        The objective of all clients: `part(which)` returns that of some, and `value`, `gradient`
        and so on take x with or without the axis.
    count : int
        The number of clients.
    """

    _products: Array | None = None

    def __init__(self, objective: Any, count: int) -> None:
        self.objective, self.count = objective, count
        self.shape, self.num_examples = objective.shape, objective.num_examples
        self.entries = objective.numbers_each
        # Compiled forms for steps (small data pay if steps are many) and for gradients.
        self._steps_form = form = compiled_form(objective, 1)
        self._form = form if isinstance(form, CompiledRows) else None
        self._kept: tuple[Any, ...] = None, None, None  # the parts last used

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part, form = copy.copy(self), self._compiled
        objective = self.objective.part(which)
        part.objective, part.count, part.whole = objective, len(places(which)), (self, which)
        part._form = part._steps_form = form and form.of(objective.rows, objective.targets, which)
        part._products = None
        return part

    # --- in parts --------------------------------------------------------------------------------

    def _parts(self, which: Which) -> list[tuple[slice, Any]]:
        """Cut some clients into parts whose data fit into the cache.

        Return each part's slice of `which` and its objective.
        """
        if not known(which):
            return [(slice(0, len(places(which))), self.objective.part(which))]
        whole, asked, parts = self._kept
        same = asked is which or (type(which) is type(asked) is slice and asked == which)
        if same and whole is self.objective:
            return parts  # type: ignore[no-any-return]
        first, stop = (which.start, which.stop) if isinstance(which, slice) else (0, len(which))
        at_once = max(1, _CACHED // max(1, self.entries))  # sparse rows may have none
        if not isinstance(which, slice) and self.entries > _COPIED:
            at_once = 1  # a view of each client's table
        elif stop - first <= at_once:
            at_once = stop - first
        parts = []
        for start in range(first, stop, at_once):
            some = slice(start, min(start + at_once, stop))
            clients: Which = some
            if not isinstance(which, slice):
                place = int(which[start])
                clients = slice(place, place + 1) if at_once == 1 else which[some]
            here = slice(some.start - first, some.stop - first)
            parts.append((here, self.objective.part(clients)))
        self._kept = self.objective, which, parts
        return parts

    def _each(self, call: Callable[[Any, Array], Any], x: Array, which: Which) -> Any:
        """Return the joined results of a call for each part of some clients, at their points."""
        several = x.ndim > len(self.shape)
        results = [call(part, x[here] if several else x) for here, part in self._parts(which)]
        if len(results) == 1:
            return results[0]
        if isinstance(results[0], tuple):
            return tuple(np.concatenate(arrays) for arrays in zip(*results, strict=True))
        return np.concatenate(results)

    def _everyone(self) -> slice:
        return slice(0, self.count)

    def values(self, x: Array) -> Array:
        """Return each client's value at x."""
        form, whole = self._compiled or self._steps_form, self.objective
        if isinstance(form, CompiledRows) and known(whole.rows) and form.takes(x):
            return whole.scale * form.mean_losses(x) + whole.ridge(x)  # type: ignore[no-any-return]
        return self.own_values(x)

    def own_values(self, x: Array) -> Array:
        """Return each client's value at its own point."""
        values: Array = self._each(lambda part, own: part.value(own), x, self._everyone())
        return values

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both, from one product with the rows."""
        both: tuple[Array, Array] = self._each(
            lambda part, own: part.value_and_gradient(own), x, self._everyone()
        )
        return both

    def hessian_products(self, x: Array) -> Callable[[Array], Array] | None:
        """Return the Hessians' map at x; None if the objectives have none."""
        whole, form = self.objective, self._compiled
        if not hasattr(whole, "hessian_products"):
            return None
        if form is not None and form.takes(x):
            curvatures = whole.num_examples * whole.row_curvatures(x)
            return lambda v: whole.ridged(form.hessian_product(curvatures, v), v)
        parts = self._parts(self._everyone())
        maps = [part.hessian_products(x[here]) for here, part in parts]

        def product(v: Array) -> Array:
            products = [map_(v[here]) for (here, _), map_ in zip(parts, maps, strict=True)]
            return products[0] if len(products) == 1 else np.concatenate(products)

        return product

    # --- gradients: compiled, if that pays -------------------------------------------------------

    @property
    def _compiled(self) -> CompiledRows | None:
        """The compiled form of gradients; None if NumPy or a tracer should compute them."""
        return self._form if self._form is not None and known(self.objective.rows) else None

    def gradient(self, x: Array, which: Which) -> Array:
        """Return the gradients of some clients."""
        form = self._compiled
        if form is not None and form.takes(x):
            return self._added(form, self._zeros(x, which), x, 1.0, which)
        gradients: Array = self._each(lambda part, own: part.gradient(own), x, which)
        return gradients

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows."""
        form = self._compiled
        if form is not None and form.takes(x):
            return self._added(form, self._zeros(x, which), x, 1.0, which, rows=in_order(rows))
        gradients: Array = self.objective.part(which, rows).gradient(x)
        return gradients

    def add_gradient(self, x: Array, out: Array, scale: float, which: Which) -> None:
        """Add scale times the gradients of some clients to `out` in place."""
        form = self._compiled
        if form is None or not (form.takes(x, out) and out.flags.c_contiguous):
            super().add_gradient(x, out, scale, which)
        elif (added := self._added(form, out, x, scale, which)) is not out:
            out[...] = added

    def pulled_gradient(
        self, x: Array, scale: float, center: Array, pull: float, which: Which
    ) -> Array:
        """Return scale times the gradients of some clients, plus pull * (x - center)."""
        form = self._compiled
        if form is None or not (form.takes(x, center) and center.ndim == len(self.shape)):
            return super().pulled_gradient(x, scale, center, pull, which)
        out = np.empty_like(x, shape=(len(places(which)), *self.shape))
        return self._added(form, out, x, scale, which, center=center, pull=pull)

    def _zeros(self, x: Array, which: Which) -> Array:
        return np.zeros_like(x, shape=(len(places(which)), *self.shape))

    def _added(
        self, form: CompiledRows, out: Array, x: Array, scale: float, which: Which, **more: Any
    ) -> Array:
        """Return `out` plus scale times the gradients, added in place."""
        form.add(x, out, scale, places(which), **more)
        total: Array = self.objective.ridged(out, x, scale, which)
        return total

    def vertex_step(self, step: VertexStep, which: Which) -> tuple[Array, Array] | None:
        """Return the vertices and the new points of some clients."""
        form = self._compiled
        if form is None or not form.takes(step.x, step.center):
            return None
        if not form.ridged or step.x.ndim != step.center.ndim + 1:
            return None
        return form.vertex_step(step, places(which))

    # --- all steps of a pass: compiled, or on scores ---------------------------------------------

    def takes(self, steps: LocalPass, full: bool = True) -> bool:
        """Return whether `gradient_steps` can take these steps: compiled, or on scores."""
        return self._walker(steps) is not None or self._on_scores(steps, full)

    def gradient_steps(self, steps: LocalPass, which: Which, rows: Array | None) -> Array:
        """Return the end of some clients' gradient steps."""
        walker = self._walker(steps)
        if walker is not None:
            return self._in_shape(self._walk(walker, steps, None, which, rows)[0])
        part = self.objective.part(which)
        ridge = part.l2.reshape(-1, 1) if is_array(part.l2) else part.l2
        # Traced: of the cohort's rows alone, since a compiled round would make all clients'.
        products = self.products[which] if known(which) else row_products(part.rows)
        return self._in_shape(steps_on_scores(steps, part.rows, products, ridge, part.row_weights))

    def variate_steps(
        self, steps: LocalPass, which: Which, rows: Array | None
    ) -> tuple[Array, Array] | None:
        """Return the moves of these steps, and the control variates."""
        walker = self._walker(steps)
        if walker is None:
            return None
        moved, variates = self._walk(walker, steps, steps.variate_rate, which, rows)
        return self._in_shape(moved), self._in_shape(variates)

    def _walker(self, steps: LocalPass) -> CompiledRows | CompiledColumns | None:
        """Return the compiled form of steps, for the data's type and one l2 a client; else None."""
        if self._compiled is None:
            if not pays(self.objective, steps.steps):
                return None
            self._steps_form = self._steps_form or compiled_form(self.objective, steps.steps)
        form = self._steps_form
        takes = form is not None and form.ridged and form.takes(*steps.arrays)
        return form if takes else None

    def _walk(
        self,
        walker: CompiledRows | CompiledColumns,
        steps: LocalPass,
        rate: float | None,
        which: Which,
        rows: Array | None,
    ) -> tuple[Array, Array]:
        products = self.products if self._on_scores(steps, rows is None) else None
        ordered = None if rows is None else in_order(rows)
        return walker.walk(steps, places(which), ordered, rate, products)

    def _on_scores(self, steps: LocalPass, full: bool) -> bool:
        """Return whether steps on scores save work: see `scores`."""
        fits = full and steps.steps > 1 and getattr(self.objective, "one_score", False)
        return fits and steps.plain and products_pay(self.objective.rows)

    @property
    def products(self) -> Array:
        """The inner products of each client's rows, which are kept."""
        if self._products is None:
            whole, which = self.whole or (None, None)
            rows = self.objective.rows
            self._products = row_products(rows) if whole is None else whole.products[which]
        return self._products
