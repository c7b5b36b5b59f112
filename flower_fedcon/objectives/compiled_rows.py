"""Gradients of means over rows, by the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.arrays import number, of_type, vector
from flower_fedcon.kernels.dispatch import kernels
from flower_fedcon.kernels.links import LINEAR, LOGISTIC, PRODUCT
from flower_fedcon.kernels.passes import repeated
from flower_fedcon.objectives.client_axis import Steps, Which
from flower_fedcon.validation import Array


class _Plain(NamedTuple):
    """Plain gradient steps, all rows in each."""

    shift: Any
    step: Any
    times: int


class _Ahead(NamedTuple):
    """Where everyone's plain steps lead from one point."""

    start: bytes
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
        self._habit: _Plain | None = None  # everyone's last steps; None if these are hard to guess
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
        return all(array.dtype == self.tables.dtype for array in arrays)

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
        if self._habit is None:
            at = module.read_only(at)
            module.find_losses(self.tables, self.targets, at, self.logistic, means)
            return means
        # The pass over the rows that finds the losses takes the steps that follow them, too: those
        # of the last round, from here.
        models, everyone = repeated(at, len(means)), np.arange(len(means))
        self._take_plain(models, self._habit, everyone, (self._none, self._none), means)
        self._ahead = _Ahead(at.tobytes(), models)
        return means

    def walk(self, models: Array, steps: Steps, clients: Array, rows: Array | None) -> None:
        """Take gradient steps of some clients on `models`, in place.

        Parameters
        ----------
        models : array, shape (n, *shape), C-contiguous
        steps : Steps
        clients : array of int, shape (n,)
        rows : array of int, shape (n, steps, batch size), optional
            The rows of each client that count in each step; all by default.
        """
        module, flat = self.module, models.reshape(-1, self.tables.shape[-1])
        data, own = (self.tables, self.targets), (flat, self.factors, self.ridges, self.logistic)
        drift, count = drift_of(module, steps, models), len(steps.points)
        plain: _Plain | None = None
        if rows is None and self._few_rows and count > 1 and steps.plain:
            shift, step = (of_type(x, models.dtype) for x in (steps.shift, steps.step))
            plain = _Plain(shift, step, count)
        everyone = len(clients) == len(self.tables) and steps.start.size == flat.shape[1]
        alike = everyone and not (drift[0].size or drift[1].size)
        if self._took_ahead(flat, plain if alike else None, steps.start):
            return
        if plain is not None:
            self._take_plain(flat, plain, clients, drift)
            return
        which = module.ALL_STEPS if rows is None else rows
        module.take_steps(*data, clients, which, *own, *drift, *numbers_of(steps, models))

    def _took_ahead(self, models: Array, plain: _Plain | None, start: Array) -> bool:
        """Return whether an evaluation has taken these steps, and what it found.

        `plain` is None for steps that differ between the clients, or are not everyone's. After a
        wrong guess there is no other.
        """
        ahead, self._ahead = self._ahead, None
        hit = ahead is not None and plain == self._habit and ahead.start == start.tobytes()
        self._guessing = self._guessing and (hit or ahead is None)
        self._habit = plain if self._guessing and self._is_cheap(plain) else None
        if hit and ahead is not None:
            models[:] = ahead.models
        return hit

    def _is_cheap(self, plain: _Plain | None) -> bool:
        """Return whether such steps take no longer than a few passes, should nobody want them."""
        _, rows, d = self.tables.shape
        return plain is not None and plain.times * rows <= 2 * d

    def _take_plain(
        self,
        models: Array,
        plain: _Plain,
        clients: Array,
        drift: tuple[Array, ...],
        losses: Array | None = None,
    ) -> None:
        """Take steps by the rows' products; write the losses at the start, if these are wanted."""
        self.module.take_steps_by_scores(
            self.tables,
            self.targets,
            self._row_products(),
            np.empty(0, models.dtype) if losses is None else losses,
            clients,
            models,
            self.factors,
            self.ridges,
            self.logistic,
            *drift[:2],
            *plain,
        )

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


class CompiledSoftmax:
    """Steps of several clients with softmax regression.

    Parameters
    ----------
    module, tables, ridges
        See `CompiledRows`.
    targets : array of int, shape (clients, rows)
        Classes.
    """

    def __init__(self, module: Any, tables: Array, targets: Array, ridges: Array) -> None:
        self.module, self.tables, self.targets, self.ridges = module, tables, targets, ridges

    def traced(self, module: Any, tables: Array, targets: Array) -> CompiledSoftmax:
        """Return the same where a round is traced, as `CompiledRows.traced`."""
        return CompiledSoftmax(module, tables, targets, module.held(self.ridges))

    def walk(self, models: Array, steps: Steps, clients: Array, rows: Array | None) -> None:
        """Take gradient steps, as `CompiledRows.walk` does; models of shape (n, d, classes)."""
        module = self.module
        module.take_softmax_steps(
            self.tables,
            self.targets,
            clients,
            module.ALL_STEPS if rows is None else rows,
            models,
            self.ridges,
            *drift_of(module, steps, models),
            *numbers_of(steps, models),
        )


def drift_of(module: Any, steps: Steps, models: Array) -> tuple[Array, Array, Array]:
    """Return the arrays that steps of `models` heed, as the kernels take them, flat.

    These are the linear term, the center, and the first point, of length 0 where there is none.
    """
    none, size = np.empty((0, 0), models.dtype), models[0].size
    linear = center = none
    if steps.linear is not None:
        linear = steps.linear
        if linear.shape != models.shape:
            linear = np.broadcast_to(linear, models.shape)
        linear = linear.reshape(-1, size)
    if steps.shift:
        middle = np.zeros(size, models.dtype) if steps.center is None else steps.center
        center = middle.reshape(-1, size)
    first = none if steps.first is None else steps.first
    read_only = module.read_only
    return read_only(linear), read_only(center), read_only(first.reshape(-1))


def numbers_of(steps: Steps, models: Array) -> tuple[Any, ...]:
    """Return the numbers of steps as the kernels take them, and arrays with two for each step.

    These are shift, step, and what z and the point count for; thresholds and divisors.
    """
    dtype, each = models.dtype, zip(*steps.points, strict=True)
    singles = (steps.shift, steps.step, *steps.onward)
    return *(of_type(x, dtype) for x in singles), *(vector(numbers, dtype) for numbers in each)


_SCARCE = 4  # entries of a row for each row, from which on their products are kept: a fourth more


def compiled_rows(
    tables: Array,
    targets: Array,
    factors: Any,
    logistic: bool,
    l2: Any = None,
    steps: int = 1,
) -> CompiledRows | None:
    """Return the compiled form of a stack; None where NumPy is to be used.

    Parameters
    ----------
    tables, targets, logistic
        See `CompiledRows`.
    factors, l2 : float or sequence of float
        What multiplies each client's gradient, and its ridge.
    steps : int
        How often a call goes over the tables.
    """
    module = kernels(tables, steps)
    if module is None:
        return None
    factors = np.full(len(tables), factors, tables.dtype)
    ridges = None
    if np.size(l2) in (1, len(tables)):
        ridges = np.full(len(tables), np.reshape(l2, -1), tables.dtype)
    return CompiledRows(module, tables, targets, factors, logistic, ridges)
