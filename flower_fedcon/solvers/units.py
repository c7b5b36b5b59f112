"""Units that make a problem's entries alike in size, whatever the units of its data.

If F in F(x) + psi(x) has curvature c_i along entry i, take z = x / sizes with sizes_i = 1/sqrt(c_i
+ l2_i), if psi allows it (`regularizers.rescaled`). F then has curvature about 1 along each entry
of z. Another unit of a column changes sizes and x, but neither z nor anything computed from z.
Another unit of the target multiplies z and its gradients by one number, and F by its square.
Solvers, their tolerances and the certificates of solutions work in z.

The c_i need only the right order of magnitude. With powers of 2 as sizes the change of units is
exact, and it does not change standardised columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.objectives.curvatures import entry_curvatures
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.regularizers.rescaled import rescaled
from flower_fedcon.validation import Array


class Units(NamedTuple):
    """The units of a problem's entries.

    Attributes
    ----------
    sizes : array of the model's shape
        x = sizes * z.
    psi : Regularizer
        z -> psi(sizes * z).
    """

    sizes: Array
    psi: Regularizer

    @property
    def plain(self) -> bool:
        """Whether x is z."""
        return not (self.sizes != 1.0).any()

    def residual(self, x: Array, gradient: Array) -> float:
        """Return ||z - prox(z - gradient in z, 1)||: 0 exactly at stationary points.

        Its square is about the distance of F + psi from its minimum, in F's unit.
        """
        return self.psi.prox_residual(x / self.sizes, self.sizes * gradient)

    def reach(self, x: Array) -> float:
        """Return the sum of |z|; rounding errors of a gradient in z are some epsilons of it."""
        return float(np.abs(x / self.sizes).sum())

    def reach_of_one(self, columns: int) -> float:
        """Return the reach of scores of 1: of an intercept behind the columns, else 1.

        Where scores have no unit of their own, such as log odds, rounding errors of a gradient are
        some epsilons of it, also at a model of zeros.
        """
        sizes = self.sizes.reshape(len(self.sizes), -1)
        return 1.0 / float(sizes[columns].max()) if len(sizes) > columns else 1.0

    def length(self, gradient: Array) -> float:
        """Return the norm of a gradient in z."""
        return float(np.linalg.norm((self.sizes * gradient).reshape(-1)))


def units_of(
    psi: Regularizer, curvatures: Array | None, shape: tuple[int, ...], *, exact: bool = False
) -> Units:
    """Return the units of the entries of F + psi.

    Parameters
    ----------
    psi : Regularizer
    curvatures : array, optional
        The approximate curvature of F along each entry. If None, the units stay unchanged.
    shape : tuple of int
        The model's.
    exact : bool (default: False)
        Take powers of 2 for sizes, so that no rounding changes.

    Examples
    --------
    >>> from flower_fedcon.regularizers import L1
    >>> units = units_of(L1(2.0), np.array([1.0, 1e-6]), (2,))
    >>> units.sizes, units.psi.value(np.ones(2))
    (array([   1., 1000.]), 2002.0)
    """
    if curvatures is None:
        return Units(np.ones(shape), psi)
    weights = psi.entrywise(shape)
    total = np.abs(curvatures.astype(np.float64)) + (0.0 if weights is None else weights[1])
    usable = np.isfinite(total) & (total > 0)
    if not usable.any():
        return Units(np.ones(shape), psi)
    logs = -0.5 * np.log2(np.where(usable, total, 1.0))
    if not usable.all():
        logs = np.where(usable, logs, logs[usable].mean())
    units = Units(np.exp2(np.round(logs) if exact else logs), psi)
    return units if units.plain else Units(*rescaled(psi, units.sizes, weights))


def mean_curvatures(objectives: Sequence[Any]) -> Array | None:
    """Return the mean's approximate curvature along each entry, if all objectives know theirs."""
    total: Array | None = None
    for f in objectives:
        curvatures = entry_curvatures(f)
        if curvatures is None:
            return None
        total = curvatures if total is None else total + curvatures
    return None if total is None else total / len(objectives)
