"""The objectives of several clients as one with a client axis, in passes that fit the cache."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from flower_fedcon.arrays import in_order, known
from flower_fedcon.objectives.client_axis import Stack, VertexStep, Which, places
from flower_fedcon.objectives.compiled_rows import CompiledRows, compiled_form, pays
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.validation import Array

# Data are read twice, and should still be in the cache the second time.
_CACHED = 2**17  # entries, 1 MB of doubles
_COPIED = 2**12  # entries of a client, up to which a copy is cheaper than a pass of its own


class Cohort(Stack):
    """The objectives of several clients, by one objective whose arrays have a client axis.

    Parameters
    ----------
    whole : objective
        Of all clients: `part(which)` is that of some, and `value`, `gradient` and so on take x with
        or without the axis.
    count : int
        How many clients there are.
    """

    def __init__(self, whole: Any, count: int) -> None:
        self.whole, self.count = whole, count
        self.shape, self.num_examples = whole.shape, whole.num_examples
        self.entries = whole.numbers_each
        self._walking = compiled_form(whole, 1)
        self._loops = self._walking if isinstance(self._walking, CompiledRows) else None
        self._source: Any = None  # where this is traced: the stack that it is a copy of
        self._module: Any = None  # and what calls the kernels
        self._kept: tuple[Any, Any] = None, None  # the last clients that were asked for, in parts

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = copy.copy(self)
        part.whole, part.count = self.whole.part(which), len(places(which))
        own = part.whole
        part._loops = self._loops and self._loops.of(own.rows, own.targets, which)
        part._walking, part._module, part._kept = part._loops, None, (None, None)
        return part

    # --- in parts --------------------------------------------------------------------------------

    def _parts(self, which: Which) -> list[tuple[slice, Any]]:
        """Cut some clients into parts whose data fit into the cache.

        Of each part, return its slice of `which` and its objective.
        """
        if not known(which):
            return [(slice(0, len(places(which))), self.whole.part(which))]
        asked, parts = self._kept
        if asked is which or (type(which) is type(asked) is slice and asked == which):
            return parts  # type: ignore[no-any-return]
        first, stop = (which.start, which.stop) if isinstance(which, slice) else (0, len(which))
        at_once = max(1, _CACHED // self.entries)
        if not isinstance(which, slice) and self.entries > _COPIED:
            at_once = 1  # a view of each client's table
        elif stop - first <= at_once:
            at_once = stop - first
        parts = []
        for start in range(first, stop, at_once):
            some = slice(start, min(start + at_once, stop))
            own: Which = some
            if not isinstance(which, slice):
                place = int(which[start])
                own = slice(place, place + 1) if at_once == 1 else which[some]
            here = slice(some.start - first, some.stop - first)
            parts.append((here, self.whole.part(own)))
        self._kept = which, parts
        return parts

    def _each(self, call: Callable[[Any, Array], Any], x: Array, which: Which) -> Any:
        """Return what is found for each part of some clients, at their points, as one."""
        own = x.ndim > len(self.shape)
        found = [call(part, x[here] if own else x) for here, part in self._parts(which)]
        if len(found) == 1:
            return found[0]
        if isinstance(found[0], tuple):
            return tuple(np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return np.concatenate(found)

    def _everyone(self) -> slice:
        return slice(0, self.count)

    def values(self, x: Array) -> Array:
        """Return each client's value at x."""
        loops = self._loops or self._walking
        if isinstance(loops, CompiledRows) and loops.takes(x):
            return self.whole.scale * loops.mean_losses(x) + self.whole._ridge(x)  # type: ignore[no-any-return]
        return self.own_values(x)

    def own_values(self, x: Array) -> Array:
        """Return each client's value at its own point."""
        found: Array = self._each(lambda part, own: part.value(own), x, self._everyone())
        return found

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both, which share a product with the rows."""
        found: tuple[Array, Array] = self._each(
            lambda part, own: part.value_and_gradient(own), x, self._everyone()
        )
        return found

    def hessian_products(self, x: Array) -> Callable[[Array], Array] | None:
        """Return the Hessians' map at x; None if the objectives have none."""
        if not hasattr(self.whole, "hessian_products"):
            return None
        whole, loops = self.whole, self._loops
        if isinstance(loops, CompiledRows) and loops.takes(x):
            curvatures = whole.num_examples * whole._row_curvatures(whole._scores(x, whole.rows))
            return lambda v: whole.ridged(loops.hessian_product(curvatures, v), v)
        parts = self._parts(self._everyone())
        maps = [part.hessian_products(x[here]) for here, part in parts]

        def product(v: Array) -> Array:
            found = [map_(v[here]) for (here, _), map_ in zip(parts, maps, strict=True)]
            return found[0] if len(found) == 1 else np.concatenate(found)

        return product

    # --- gradients and steps: by the compiled loops where there are such --------------------------

    def gradient(self, x: Array, which: Which) -> Array:
        """Return the gradients of some clients."""
        if self._loops is not None and self._loops.takes(x):
            return self._added(np.zeros_like(x, shape=self._like(which)), x, 1.0, which)
        found: Array = self._each(lambda part, own: part.gradient(own), x, which)
        return found

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows."""
        if self._loops is not None and self._loops.takes(x):
            out = np.zeros_like(x, shape=self._like(which))
            return self._added(out, x, 1.0, which, rows=in_order(rows))
        found: Array = self.whole.part(which, rows).gradient(x)
        return found

    def add_gradient(self, x: Array, out: Array, scale: float, which: Which) -> None:
        """Add scale times the gradients of some clients to `out` in place."""
        loops = self._loops
        if loops is None or not (loops.takes(x, out) and out.flags.c_contiguous):
            super().add_gradient(x, out, scale, which)
        elif (found := self._added(out, x, scale, which)) is not out:
            out[...] = found

    def pulled_gradient(
        self, x: Array, scale: float, center: Array, pull: float, which: Which
    ) -> Array:
        """Return scale times the gradients of some clients, plus pull * (x - center)."""
        loops = self._loops
        if loops is None or not (loops.takes(x, center) and center.ndim == len(self.shape)):
            return super().pulled_gradient(x, scale, center, pull, which)
        out = np.empty_like(x, shape=self._like(which))
        return self._added(out, x, scale, which, center=center, pull=pull)

    def _like(self, which: Which) -> tuple[int, ...]:
        return (len(places(which)), *self.shape)

    def _added(self, out: Array, x: Array, scale: float, which: Which, **more: Any) -> Array:
        """Return what scale times the gradients make of `out`, which changes in place."""
        assert self._loops is not None  # noqa: S101
        self._loops.add(x, out, scale, places(which), **more)
        found: Array = self.whole.ridged(out, x, scale, which)
        return found

    def vertex_step(self, step: VertexStep, which: Which) -> tuple[Array, Array] | None:
        """Return the vertices and where the step of some clients leads."""
        loops = self._loops
        if loops is None or not loops.takes(step.x, step.center):
            return None
        if loops.ridges is None or step.x.ndim != step.center.ndim + 1:
            return None
        return loops.vertex_step(step, places(which))

    def takes(self, steps: LocalPass) -> bool:
        """Return whether compiled loops do: of the data's type, and with one l2 a client."""
        if self._module is not None:
            return self._takes_traced(steps)
        if self._loops is None:
            count = steps.steps
            if not pays(self.whole, count):
                return False
            self._walking = self._walking or compiled_form(self.whole, count)
        walking = self._walking
        return walking is not None and walking.ridges is not None and walking.takes(*steps.arrays)

    # --- where a round is traced -----------------------------------------------------------------

    def traced(self, source: Stack, module: Any) -> None:
        """Take each gradient in one pass, or as `source` does by compiled kernels, by `module`."""
        self.entries, self._source, self._module = 1, source, module
        self._walking, self._kept = None, (None, None)
        if self._loops is not None:
            whole = self.whole
            own = None if module is None else self._loops.traced(module, whole.rows, whole.targets)
            self._loops = own

    def _takes_traced(self, steps: LocalPass) -> bool:
        """Return whether `source` takes steps, and prepare to take these."""
        takes: bool = self._source.takes(steps)
        if takes:
            source = self._source._walking
            self._walking = source.traced(self._module, self.whole.rows, self.whole.targets)
        return takes
