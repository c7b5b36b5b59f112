"""Gradients of means over rows, by the compiled kernels."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from flower_fedcon.kernels.dispatch import kernels
from flower_fedcon.objectives.client_axis import Steps, Which
from flower_fedcon.validation import Array


class CompiledRows:
    """The gradients of several clients whose losses depend on one score <a_i, x> for each row.

    Parameters
    ----------
    module : module
        `flower_fedcon.kernels.compiled`.
    tables : array, shape (clients, rows, d)
    targets : array, shape (clients, rows)
    factors : array, shape (clients,)
        What multiplies each client's gradient.
    logistic : bool
        Whether the link of a score s is tanh(s / 2); else it is s.
    """

    def __init__(
        self, module: ModuleType, tables: Array, targets: Array, factors: Array, logistic: bool
    ) -> None:
        self.module, self.tables, self.targets = module, tables, targets
        self.factors, self.logistic = factors, logistic

    def of(self, tables: Array, targets: Array, which: Which) -> CompiledRows:
        """Return the same for some of the clients, whose tables and targets these are."""
        return CompiledRows(self.module, tables, targets, self.factors[which], self.logistic)

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
            self.logistic,
            module.read_only(np.empty(0, x.dtype) if center is None else center.reshape(-1)),
            float(pull),
        )

    def walk(
        self, models: Array, steps: Steps, clients: Array, ridges: Array, rows: Array | None
    ) -> None:
        """Take gradient steps of some clients on `models`, in place.

        Parameters
        ----------
        models : array, shape (n, *shape), C-contiguous
        steps : Steps
        clients : array of int, shape (n,)
        ridges : array, shape (N,)
        rows : array of int, shape (n, steps, batch size), optional
            The rows of each client that count in each step; all by default.
        """
        module, d, number = self.module, self.tables.shape[-1], models.dtype.type
        count, none = len(clients), module.read_only(np.empty((0, 0), models.dtype))
        linear = center = none
        if steps.linear is not None:
            whole = np.broadcast_to(steps.linear, models.shape)
            linear = module.read_only(whole.reshape(count, d))
        if steps.shift:
            middle = np.zeros(d, models.dtype) if steps.center is None else steps.center
            center = module.read_only(middle.reshape(-1, d))
        module.take_steps(
            self.tables,
            self.targets,
            clients,
            np.empty((0, 0, 0), np.intp) if rows is None else rows,
            models.reshape(count, d),
            self.factors,
            ridges,
            self.logistic,
            linear,
            center,
            number(steps.shift),
            number(steps.step),
            np.array([t * l1 for t, l1, _ in steps.levels], models.dtype),
            np.array([1.0 + t * l2 for t, _, l2 in steps.levels], models.dtype),
            steps.from_point,
        )


def compiled_rows(
    tables: Array, targets: Array, factors: Any, logistic: bool
) -> CompiledRows | None:
    """Return the compiled form of a stack; None where NumPy is to be used.

    Parameters
    ----------
    tables, targets, logistic
        See `CompiledRows`.
    factors : float or sequence of float
        What multiplies each client's gradient.
    """
    module = kernels(tables)
    if module is None:
        return None
    return CompiledRows(
        module, tables, targets, np.full(len(tables), factors, tables.dtype), logistic
    )
