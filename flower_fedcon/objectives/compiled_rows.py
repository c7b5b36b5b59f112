"""Gradients of means over rows, by compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.arrays import is_array, known
from flower_fedcon.compiled import loops
from flower_fedcon.compiled.records import (
    ALL_ROWS,
    LINEAR,
    LOGISTIC,
    PRODUCT,
    SOFTMAX,
    Data,
    Point,
    read_only,
)
from flower_fedcon.objectives.client_axis import VertexStep, Which
from flower_fedcon.objectives.compiled_columns import CompiledColumns
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.losses import LeastSquares, LogisticRegression
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.objectives.softmax import SoftmaxRegression
from flower_fedcon.objectives.step_arguments import CompiledSteps, steps_of
from flower_fedcon.validation import Array


class CompiledRows(CompiledSteps):
    """The gradients of several clients whose losses depend on one score <a_i, x> for each row."""

    def of(self, tables: Array, targets: Array, which: Which) -> CompiledRows:
        """Return the same for some of the clients, with their tables and targets."""
        whole, factors, ridges = self.data, self.data.factors[which], self.data.ridges[which]
        data = Data(tables, targets, factors, ridges, whole.link)
        return CompiledRows(self.module, data, self.ridged)

    def add(
        self,
        x: Array,
        out: Array,
        scale: float,
        clients: Array,
        rows: Array | None = None,
        center: Array | None = None,
        pull: float = 0.0,
    ) -> None:
        """Add scale times the gradients of some clients to `out` in place.

        Parameters
        ----------
        x : array, shape (n, *shape), or of the model's shape for one point
        out : array, shape (n, *shape), C-contiguous
        scale : float
        clients : array of int, shape (n,)
        rows : array of int, shape (n, batch size), optional
            The rows of each client that count; all by default.
        center : array of the model's shape, optional
            If given, `out` is overwritten by pull * (x - center) first.
        pull : float
        """
        d = self.data.tables.shape[-1]
        middle = np.empty(0, x.dtype) if center is None else center.reshape(-1)
        point = Point(read_only(x.reshape(-1, d)), scale, read_only(middle), float(pull))
        chosen = ALL_ROWS if rows is None else rows
        self.module.add_gradients(self.data, point, clients, chosen, out.reshape(-1, d))

    def vertex_step(self, step: VertexStep, clients: Array) -> tuple[Array, Array] | None:
        """Return the vertices and the new points; None if a gradient is not finite."""
        x, center = step.x, read_only(step.center.reshape(-1))
        point = Point(read_only(x.reshape(len(x), -1)), step.scale, center, float(step.pull))
        codes, tops, moved = self.module.take_vertex_steps(
            self.data, point, clients, step.step, step.radius
        )
        if np.count_nonzero(np.isfinite(tops)) == tops.size:
            # Checkpoints keep states without a copy if they are not views of other arrays.
            return codes, moved if moved.shape == x.shape else moved.reshape(x.shape)
        return None

    def hessian_product(self, curvatures: Array, v: Array) -> Array:
        """Return the products with the Hessians of all clients, without l2.

        Parameters
        ----------
        curvatures : array, shape (clients, rows)
            The second derivatives of the rows' losses.
        v : array, shape (clients, *shape)
        """
        products, count = np.zeros_like(v), len(v)
        point = Point(read_only(v.reshape(count, -1)), 1.0, read_only(np.empty(0, v.dtype)), 0.0)
        data = self.data._replace(
            targets=read_only(curvatures), factors=np.ones(count, v.dtype), link=PRODUCT
        )
        out = products.reshape(point.x.shape)
        self.module.add_gradients(data, point, np.arange(count), ALL_ROWS, out)
        return products

    def mean_losses(self, x: Array) -> Array:
        """Return each client's mean loss at x, without its factor."""
        means = np.empty(len(self.data.tables), x.dtype)
        self.module.find_losses(self.data, read_only(x.reshape(-1)), means)
        return means

    def walk(
        self,
        steps: LocalPass,
        clients: Array,
        rows: Array | None,
        rate: float | None,
        products: Array | None = None,
    ) -> tuple[Array, Array]:
        """Return the end (or the moves) of some clients' gradient steps, and their variates.

        Parameters
        ----------
        steps : LocalPass
        clients : array of int, shape (n,)
        rows : array of int, shape (n, steps, batch size), optional
            The rows of each client that count; all by default.
        rate : float, optional
            See `LocalPass`; without it, only `models` is computed.
        products : array, shape (clients, rows, rows), optional
            The inner products of the rows, to take plain steps on scores.

        Returns
        -------
        models, variates : array, shape (n, d)
        """
        given = self.data, steps_of(steps, self.data.tables.shape[-1], rows, rate), clients
        if products is None:
            moved = self.module.take_steps(*given, rate is not None)
        else:
            moved = self.module.take_steps_by_scores(*given, products, rate is not None)
        return moved  # type: ignore[no-any-return]


_LINKS: dict[Any, tuple[int, float]] = {
    LeastSquares: (LINEAR, 1.0),
    LogisticRegression: (LOGISTIC, 0.5),
}
"""The losses of one score with compiled loops: the link, and the slope's factor."""


def _compiled_kind(kind: type) -> type[LinearModel] | None:
    """Return the loss of this package that a class has, if its loops are compiled; else None."""
    known_kinds: tuple[type[LinearModel], ...] = (*_LINKS, SoftmaxRegression)
    for ours in known_kinds:
        if getattr(kind, "slope", None) is ours.slope and kind.loss is ours.loss:  # type: ignore[attr-defined]
            return ours
    return None


def pays(whole: Any, times: int) -> bool:
    """Return whether to compile loops that pass `times` times over the data of all clients."""
    rows: Any = getattr(whole, "rows", None)
    if _compiled_kind(type(whole)) is None or not is_array(rows):
        return False
    return known(rows) and whole.weights is None and loops(rows, times) is not None


def compiled_form(whole: Any, times: int) -> CompiledRows | CompiledColumns | None:
    """Return the compiled loops for the clients of a loss; None if NumPy should be used.

    Parameters
    ----------
    whole : LinearModel
        All clients, along a leading axis.
    times : int
        The number of passes over the tables in a call.
    """
    if not pays(whole, times):
        return None
    module, number = loops(whole.rows, times), np.full(len(whole.rows), 1.0, whole.rows.dtype)
    # l2 is not a single number with an intercept, which it leaves free.
    ridged = not (whole.intercept and np.any(whole.l2))
    data = Data(whole.rows, whole.targets, number, number * whole.l2 if ridged else number, LINEAR)
    kind = _compiled_kind(type(whole))
    if kind is SoftmaxRegression:
        scaled = np.any(np.not_equal(whole.scale, 1.0))
        return None if scaled else CompiledColumns(module, data._replace(link=SOFTMAX), ridged)
    link, factor = _LINKS[kind]
    data = data._replace(factors=number * (factor * whole.scale), link=link)
    if whole.targets.ndim > 2:  # several outputs
        flat = whole.targets.reshape(len(whole.targets), -1)
        return CompiledColumns(module, data._replace(targets=flat), ridged)
    return CompiledRows(module, data, ridged)
