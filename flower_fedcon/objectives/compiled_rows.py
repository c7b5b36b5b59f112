"""Gradients of means over rows, by the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.arrays import is_array, number, of_type
from flower_fedcon.kernels.dispatch import kernels
from flower_fedcon.kernels.links import LINEAR, LOGISTIC, PRODUCT
from flower_fedcon.objectives.client_axis import VertexStep, Which
from flower_fedcon.objectives.compiled_softmax import CompiledSoftmax
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.losses import LeastSquares, LogisticRegression
from flower_fedcon.objectives.softmax import SoftmaxRegression
from flower_fedcon.objectives.step_arguments import drift_of, numbers_of
from flower_fedcon.validation import Array


class _Plain(NamedTuple):
    """Plain gradient steps, all rows in each."""

    shift: Any
    step: Any
    times: int


class _Ahead(NamedTuple):
    """Where everyone's plain steps lead from one point."""

    start: bytes
    steps: LocalPass
    models: Array


class CompiledRows:
    """The gradients of several clients whose losses depend on one score <a_i, x> for each row.

    Parameters
    ----------
    module : module
        `flower_fedcon.kernels.compiled`, or what stands for it where a round is traced.
    tables : array, shape (clients, rows, d)
    targets : array, shape (clients, rows)
    factors : array, shape (clients,)
        What multiplies each client's gradient.
    logistic : bool
        Whether the link of a score s is tanh(s / 2); else it is s.
    ridges : array, shape (clients,), optional
        l2 of each client, which steps heed; None where that is no number, and no steps are taken.
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
        self._none = module.read_only(np.empty((0, 0), tables.dtype))
        self._products: Array | None = None
        self._find_products: Callable[[], Array] = lambda: np.matmul(
            self.tables, self.tables.swapaxes(1, 2)
        )
        self._habit: LocalPass | None = (
            None  # everyone's last ones; None if these are hard to guess
        )
        self._guessing = True
        self._ahead: _Ahead | None = None

    def of(self, tables: Array, targets: Array, which: Which) -> CompiledRows:
        """Return the same for some of the clients, whose tables and targets these are."""
        ridges = None if self.ridges is None else self.ridges[which]
        part = CompiledRows(
            self.module, tables, targets, self.factors[which], self.logistic, ridges
        )
        part._find_products = lambda: self._row_products()[which]
        return part

    def traced(self, module: Any, tables: Array, targets: Array) -> CompiledRows:
        """Return the same where a round is traced, with the data as `module` takes them."""
        ridges = None if self.ridges is None else module.held(self.ridges)
        made = CompiledRows(
            module, tables, targets, module.held(self.factors), self.logistic, ridges
        )
        made._find_products = lambda: module.held(self._row_products())
        made._guessing = False  # a guess would ask for entries
        return made

    def takes(self, *arrays: Array) -> bool:
        """Return whether the arrays have the data's dtype, which the kernels need."""
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
            The rows of each client that count; all by default.
        center : array of the model's shape, optional
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
            number(pull),
        )

    def vertex_step(self, step: VertexStep, clients: Array) -> tuple[Array, Array] | None:
        """Return the vertices and where the step leads; None if a gradient is not finite."""
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
            number(step.pull),
            step.step,
            step.radius,
        )
        if np.count_nonzero(np.isfinite(tops)) == tops.size:  # a trace takes conditions for true
            # States are kept as they are if they are no views of other arrays.
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
        at = x.reshape(-1)
        habit = self._habit
        plain = None if habit is None else self._plain(habit)
        if habit is None or plain is None or not self._is_cheap(plain):
            at = module.read_only(at)
            module.find_losses(self.tables, self.targets, at, self.logistic, means)
            return means
        # The pass over the rows that finds the losses takes the steps that follow them, too: those
        # of the last round, from here.
        start = module.read_only(at[None])
        models, _ = self._take_plain(start, plain, self._everyone, (self._none,) * 3, losses=means)
        self._ahead = _Ahead(at.tobytes(), habit, models)
        return means

    def walk(
        self, steps: LocalPass, clients: Array, rows: Array | None, rate: float | None
    ) -> tuple[Array, Array]:
        """Return where gradient steps of some clients lead, or how far, and their variates.

        Parameters
        ----------
        steps : LocalPass
        clients : array of int, shape (n,)
        rows : array of int, shape (n, steps, batch size), optional
            The rows of each client that count; all by default.
        rate : float, optional
            See `LocalPass`; without it, only `models` is found.

        Returns
        -------
        models, variates : array, shape (n, d)
        """
        module = self.module
        start = module.read_only(steps.start.reshape(-1, self.tables.shape[-1]))
        drift = drift_of(module, steps, start)
        plain = self._plain(steps) if rows is None else None
        if plain is not None:
            return self._take_plain(start, plain, clients, drift, rate)
        moved: tuple[Array, Array] = module.take_steps(
            rate,
            self.tables,
            self.targets,
            clients,
            module.ALL_STEPS if rows is None else rows,
            start,
            self.factors,
            self.ridges,
            self.logistic,
            *drift,
            *numbers_of(steps),
        )
        return moved

    def taken_ahead(self, steps: LocalPass, clients: Array, rows: Array | None) -> Array | None:
        """Return where these steps lead if an evaluation has taken them, shape (clients, d).

        After a wrong guess there is no other.
        """
        alike = steps.start.size == self.tables.shape[-1] and len(clients) == len(self.tables)
        alike = alike and rows is None and steps.linear is None and not steps.shift
        ahead, self._ahead = self._ahead, None
        self._habit = steps if alike and self._guessing else None
        if ahead is None:
            return None
        if alike and _are_alike(steps, ahead.steps) and ahead.start == steps.start.tobytes():
            return ahead.models
        self._guessing, self._habit = False, None
        return None

    def _plain(self, steps: LocalPass) -> _Plain | None:
        """Return steps on all rows as plain ones, if the rows' products save work."""
        count = steps.steps
        if count < 2 or not (self._few_rows and steps.plain):
            return None
        shift, step = (of_type(x, steps.start.dtype) for x in (steps.shift, steps.rate))
        return _Plain(shift, step, count)

    def _is_cheap(self, plain: _Plain) -> bool:
        """Return whether such steps take no longer than a few passes, should nobody want them."""
        _, rows, d = self.tables.shape
        return bool(plain.times * rows <= 2 * d)

    def _take_plain(
        self,
        start: Array,
        plain: _Plain,
        clients: Array,
        drift: tuple[Array, ...],
        rate: float | None = None,
        losses: Array | None = None,
    ) -> tuple[Array, Array]:
        """Take steps by the rows' products; write the losses at the start, if these are wanted."""
        moved: tuple[Array, Array] = self.module.take_steps_by_scores(
            rate,
            self.tables,
            self.targets,
            self._row_products(),
            np.empty(0, start.dtype) if losses is None else losses,
            clients,
            start,
            self.factors,
            self.ridges,
            self.logistic,
            *drift[:3],
            *plain,
        )
        return moved

    @cached_property
    def _everyone(self) -> Array:
        return np.arange(len(self.tables))

    @property
    def _few_rows(self) -> bool:
        """Whether the rows' products with one another are few beside the rows' entries."""
        _, rows, d = self.tables.shape
        return bool(_SCARCE * rows <= d)

    def _row_products(self) -> Array:
        """Return A A' of all clients, shape (clients, rows, rows), which are kept."""
        if self._products is None:
            self._products = self._find_products()
        return self._products


_SCARCE = 4  # entries of a row for each row, from which on their products are kept: a fourth more


_LINKS = {
    LeastSquares.slope: (False, 1.0),
    LogisticRegression.slope: (True, 0.5),
}
"""The losses whose loops are compiled: whether by the logistic link, and the slope's factor."""


def pays(whole: Any, times: int) -> bool:
    """Return whether loops that go so often over the data of all clients are compiled."""
    plain = is_array(getattr(whole, "rows", None)) and whole.weights is None
    kind = type(whole)
    known = plain and (kind.slope in _LINKS or kind.slope is SoftmaxRegression.slope)
    return known and kernels(whole.rows, times) is not None


def compiled_form(whole: Any, times: int) -> CompiledRows | CompiledSoftmax | None:
    """Return the compiled loops of the clients of a loss; None where NumPy is to be used.

    Parameters
    ----------
    whole : LinearModel
        Of all clients, along a leading axis.
    times : int
        How often a call goes over the tables.
    """
    if not pays(whole, times):
        return None
    module, data = kernels(whole.rows, times), (whole.rows, whole.targets)
    number = np.full(len(whole.rows), 1.0, whole.rows.dtype)
    # Of an intercept, l2 is another.
    ridges = None if whole.intercept and np.any(whole.l2) else number * whole.l2
    if type(whole).slope is SoftmaxRegression.slope:
        if np.any(np.not_equal(whole.scale, 1.0)):
            return None
        return CompiledSoftmax(module, *data, ridges)
    logistic, factor = _LINKS[type(whole).slope]
    return CompiledRows(module, *data, number * (factor * whole.scale), logistic, ridges)


def _are_alike(steps: LocalPass, others: LocalPass) -> bool:
    """Return whether plain steps are those that others are, of an objective alone."""
    numbers = steps.rate == others.rate and steps.onward == others.onward
    return numbers and steps.first is None and steps.points == others.points
