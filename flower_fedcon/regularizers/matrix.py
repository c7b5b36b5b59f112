"""The nuclear norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flower_fedcon.regularizers.base import Regularizer, check_prox, norm
from flower_fedcon.sets.shapes import each, expect_finite, expect_floats, expect_matrix
from flower_fedcon.sets.spectral import svd
from flower_fedcon.validation import Array, nonnegative


@dataclass(frozen=True)
class NuclearNorm(Regularizer):
    """psi(X) = weight * the sum of the singular values of X, with weight >= 0.

    Examples
    --------
    >>> NuclearNorm(2.0).prox(np.diag([3.0, 1.0]), 0.5)
    array([[2., 0.],
           [0., 0.]])
    """

    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", nonnegative("NuclearNorm(weight)", self.weight))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models are matrices."""
        expect_matrix(self, shape)

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        self.check_shape(x.shape)
        expect_finite(self, x)
        wide = x.astype(np.float64, copy=False)
        return self.weight * float(np.linalg.svd(wide, compute_uv=False).sum())

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Soft-threshold the singular values at step * weight."""
        level = check_prox(self, v, step) * self.weight
        expect_floats("NuclearNorm", v)
        self.check_shape(v.shape[batch:])
        if level == 0:
            return v

        def shrink(model: Array) -> Array:
            u, s, vt = svd(model)
            rank = int(np.count_nonzero(s > level))
            kept = (u[:, :rank] * (s[:rank] - level)) @ vt[:rank]
            return kept.astype(model.dtype, copy=False)

        return each(v, batch, shrink)

    def subgradient(self, x: Array) -> Array:
        """Return weight U V' over the singular values that are not 0."""
        self.check_shape(x.shape)
        expect_finite(self, x)
        u, vt = _support(x)
        product: Array = self.weight * (u @ vt)
        return product.astype(x.dtype, copy=False)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x.

        The elements are weight (U V' + W), with W orthogonal to U and V and singular values <= 1.
        """
        self.check_shape(x.shape)
        expect_finite(self, x)
        expect_finite(self, grad)
        u, vt = _support(x)
        total = grad + self.weight * (u @ vt)
        outside = total - u @ (u.T @ total)
        outside = outside - (outside @ vt.T) @ vt
        values = np.linalg.svd(outside, compute_uv=False)
        return float(np.hypot(norm(total - outside), norm(np.maximum(values - self.weight, 0.0))))

    def scaled(self, factor: float) -> NuclearNorm:
        """Return factor * psi."""
        return NuclearNorm(nonnegative("factor", factor) * self.weight)


def _support(x: Array) -> tuple[Array, Array]:
    """Return U and V' for the singular values above rounding."""
    u, s, vt = svd(x)
    rank = int(np.count_nonzero(s > 10 * max(x.shape) * np.finfo(x.dtype).eps * s[0]))
    return u[:, :rank], vt[:rank]
