"""Gradients of means over rows, by compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.arrays import is_array, known
from flower_fedcon.compiled import loops
from flower_fedcon.compiled.links import LINEAR, LOGISTIC, PRODUCT
from flower_fedcon.objectives.client_axis import VertexStep, Which
from flower_fedcon.objectives.compiled_softmax import CompiledSoftmax
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.losses import LeastSquares, LogisticRegression
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.objectives.softmax import SoftmaxRegression
from flower_fedcon.objectives.step_arguments import drift_of, numbers_of
from flower_fedcon.validation import Array


class CompiledRows:
    """The gradients of several clients whose losses depend on one score <a_i, x> for each row.

    Parameters
    ----------
    module : module
        `flower_fedcon.compiled.calls`.
    tables : array, shape (clients, rows, d)
    targets : array, shape (clients, rows)
    factors : array, shape (clients,)
        The factor of each client's gradient.
    logistic : bool
        Whether the link of a score s is tanh(s / 2); else it is s.
    ridges : array, shape (clients,), optional
        l2 of each client, for steps; None if it is not a number, and no steps are taken.
    """

    def __init__(
        self,
        module: Any,
        tables: Array,
        targets: Array,
        factors: Array,
        logistic: bool,
        ridges: Array | None,
    ) -> None:
        self.module, self.tables, self.targets = module, tables, targets
        self.factors, self.logistic, self.ridges = factors, logistic, ridges

    def of(self, tables: Array, targets: Array, which: Which) -> CompiledRows:
        """Return the same for some of the clients, with their tables and targets."""
        ridges = None if self.ridges is None else self.ridges[which]
        return CompiledRows(
            self.module, tables, targets, self.factors[which], self.logistic, ridges
        )

    def takes(self, *arrays: Array) -> bool:
        """Return whether the arrays have the data's dtype, which the loops need."""
        dtype = self.tables.dtype
        return all([array.dtype == dtype for array in arrays])  # noqa: C419  (no generator: faster)

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
            The rows of each client that count; all by default. center : array of the model's shape,
        optional
            If given, `out` is overwritten by pull * (x - center) first.
        pull : float
        """
        module, d = self.module, self.tables.shape[-1]
        module.add_gradients(
            self.tables,
            self.targets,
            clients,
            module.ALL_ROWS if rows is None else rows,
            module.read_only(x.reshape(-1, d)),
            out.reshape(len(clients), d),
            self.factors,
            scale,
            LOGISTIC if self.logistic else LINEAR,
            module.read_only(np.empty(0, x.dtype) if center is None else center.reshape(-1)),
            float(pull),
        )

    def vertex_step(self, step: VertexStep, clients: Array) -> tuple[Array, Array] | None:
        """Return the vertices and the new points; None if a gradient is not finite."""
        module, x = self.module, step.x
        codes, tops, moved = module.take_vertex_steps(
            self.tables,
            self.targets,
            clients,
            module.read_only(x.reshape(len(x), -1)),
            self.factors,
            self.ridges,
            step.scale,
            LOGISTIC if self.logistic else LINEAR,
            module.read_only(step.center.reshape(-1)),
            float(step.pull),
            step.step,
            step.radius,
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
        module, count = self.module, len(v)
        found = np.zeros_like(v)
        flat = module.read_only(v.reshape(count, -1))
        module.add_gradients(
            self.tables,
            module.read_only(curvatures),
            np.arange(count),
            module.ALL_ROWS,
            flat,
            found.reshape(flat.shape),
            np.ones(count, v.dtype),
            1.0,
            PRODUCT,
            module.read_only(np.empty(0, v.dtype)),
            0.0,
        )
        return found

    def mean_losses(self, x: Array) -> Array:
        """Return each client's mean loss at x, without its factor."""
        module, means = self.module, np.empty(len(self.tables), x.dtype)
        at = module.read_only(x.reshape(-1))
        module.find_losses(self.tables, self.targets, at, self.logistic, means)
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
        module, moved = self.module, None
        start = module.read_only(steps.start.reshape(-1, self.tables.shape[-1]))
        drift, numbers = drift_of(module, steps, start), numbers_of(steps)
        data = self.tables, self.targets
        own = clients, start, self.factors, self.ridges, self.logistic
        if products is not None:
            shift, step = numbers[:2]
            moved = module.take_steps_by_scores(
                rate, *data, products, *own, *drift[:3], shift, step, steps.steps
            )
        else:
            chosen = module.ALL_STEPS if rows is None else rows
            clients, *rest = own
            moved = module.take_steps(rate, *data, clients, chosen, *rest, *drift, *numbers)
        return moved  # type: ignore[no-any-return]


_LINKS: dict[Any, tuple[bool, float]] = {
    LeastSquares: (False, 1.0),
    LogisticRegression: (True, 0.5),
}
"""The losses of one score with compiled loops: whether the link is logistic, and the slope's
factor."""


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


def compiled_form(whole: Any, times: int) -> CompiledRows | CompiledSoftmax | None:
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
    module, data = loops(whole.rows, times), (whole.rows, whole.targets)
    number = np.full(len(whole.rows), 1.0, whole.rows.dtype)
    # l2 is not a single number with an intercept, which it leaves free.
    ridges = None if whole.intercept and np.any(whole.l2) else number * whole.l2
    kind = _compiled_kind(type(whole))
    if kind is SoftmaxRegression:
        scaled = np.any(np.not_equal(whole.scale, 1.0))
        return None if scaled else CompiledSoftmax(module, *data, ridges)
    logistic, factor = _LINKS[kind]
    return CompiledRows(module, *data, number * (factor * whole.scale), logistic, ridges)
