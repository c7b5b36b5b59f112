"""Total variation of images."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.regularizers.base import Regularizer, check_prox
from flower_fedcon.sets.shapes import each, expect_floats
from flower_fedcon.validation import Array, check_field, nonnegative, positive

_ITERATIONS, _EVERY = 200_000, 10  # the most for a prox, and those between checks of its gap


@dataclass(frozen=True)
class TotalVariation2D(Regularizer):
    """psi(X) = weight times the sum over pixels of the size of X's differences, for images X.

    At each pixel there is a difference to the pixel below and one to the right, a and b (0 at the
    border). Isotropic variation adds up sqrt(a^2 + b^2), anisotropic variation |a| + |b|. A model
    of more than two axes is a stack of images, whose variations are summed.

    Parameters
    ----------
    weight : float
        >= 0.
    isotropic : bool (default: True)
    tolerance : float (default: 1e-5)
        In [1e-7, 1): a proximal point of v is within tolerance ||v - mean v|| of the exact one.

    Raises
    ------
    ConfigError
        If an argument is out of range, or a model has less than two axes. For a model that is a
        list of arrays use `Separable`.

    Examples
    --------
    >>> step = np.repeat([[0.0, 0.0, 9.0, 9.0]], 4, axis=0)
    >>> TotalVariation2D(1.0).prox(step, 1.0)[0].round(3)
    array([0.5, 0.5, 8.5, 8.5])
    """

    weight: float
    isotropic: bool = True
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", nonnegative("TotalVariation2D(weight)", self.weight))
        tolerance = positive("TotalVariation2D(tolerance)", self.tolerance)
        if not 1e-7 <= tolerance < 1:
            raise ConfigError(
                f"TotalVariation2D(tolerance) must be in [1e-7, 1), got {tolerance!r}: below that "
                "the duality gap is rounding"
            )
        object.__setattr__(self, "tolerance", tolerance)
        check_field("TotalVariation2D(isotropic)", self.isotropic, "bool")

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models are images, or stacks of them."""
        if len(shape) < 2:
            raise ConfigError(
                f"TotalVariation2D needs images of shape (height, width), and the model has shape "
                f"{shape}: use TotalVariation1D, or Separable with the image's shape"
            )

    def value(self, x: Array) -> float:
        """Return psi(X)."""
        self.check_shape(x.shape)
        images = x.reshape((-1, *x.shape[-2:])).astype(np.float64, copy=False)
        sizes = (self._sizes(*_differences(image)) for image in images)
        return self.weight * math.fsum(float(size.sum()) for size in sizes)

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Minimise by accelerated gradient steps on the dual, until its gap is small enough.

        Beck and Teboulle, "Fast gradient-based algorithms for constrained total variation image
        denoising and deblurring problems", 2009, restarted where the momentum points uphill. The
        gap bounds the distance to the exact point.

        Raises
        ------
        FedConError
            If the gap stays too large.
        """
        level = check_prox(self, v, step) * self.weight
        expect_floats("TotalVariation2D", v)
        self.check_shape(v.shape[batch:])
        return each(v, v.ndim - 2, lambda image: self._denoised(image, level)) if level else v

    def _denoised(self, v: Array, level: float) -> Array:
        """Return argmin of ||X - v||^2 / 2 + level times the variation of X."""
        mean = float(v.mean(dtype=np.float64))
        y = v.astype(np.float64) - mean
        unit = float(np.abs(y).max())
        if unit == 0:
            return v.copy()
        if level < 1e-17 * unit:  # the step would change nothing
            return v.copy()
        y, level = y / unit, level / unit
        if level >= float(np.abs(y).sum()):  # a flow this large evens everything out
            return np.full_like(v, mean)
        x = self._solve(y, level)
        return (mean + unit * x).astype(v.dtype)

    def _solve(self, y: Array, level: float) -> Array:
        target = 0.5 * self.tolerance**2 * float(np.vdot(y, y))
        p = q = ahead_p = ahead_q = np.zeros_like(y)  # flows to the pixel below and to the right
        momentum = 1.0
        for iteration in range(1, _ITERATIONS + 1):
            a, b = _differences(y - _divergence(ahead_p, ahead_q))
            new_p, new_q = self._clipped(ahead_p + a / 8.0, ahead_q + b / 8.0, level)
            move_p, move_q = new_p - p, new_q - q
            uphill = np.vdot(ahead_p - new_p, move_p) + np.vdot(ahead_q - new_q, move_q) > 0
            following = 1.0 if uphill else 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
            share = 0.0 if uphill else (momentum - 1.0) / following
            ahead_p, ahead_q = new_p + share * move_p, new_q + share * move_q
            p, q, momentum = new_p, new_q, following
            if iteration % _EVERY == 0:
                x = y - _divergence(p, q)
                a, b = _differences(x)
                # The variation, minus the lower bound on it that the flow proves.
                gap = float((level * self._sizes(a, b) - p * a - q * b).sum())
                if gap <= target:
                    return x
        raise FedConError(
            f"the prox of {self!r} has a duality gap of {gap:.3g} after {_ITERATIONS} iterations, "
            f"above {target:.3g}: pass a larger tolerance than {self.tolerance:g}"
        )

    def _sizes(self, a: Array, b: Array) -> Array:
        sizes: Array = np.hypot(a, b) if self.isotropic else np.abs(a) + np.abs(b)
        return sizes

    def _clipped(self, p: Array, q: Array, level: float) -> tuple[Array, Array]:
        """Return flows projected onto the dual norm's ball, at each pixel or along each edge."""
        if not self.isotropic:
            return np.clip(p, -level, level), np.clip(q, -level, level)
        over = np.maximum(np.sqrt(p * p + q * q) / level, 1.0)
        return p / over, q / over

    def subgradient(self, x: Array) -> Array:
        """Return weight D' (D x / |D x|), where D takes the differences and 0/0 counts as 0."""
        self.check_shape(x.shape)

        def one(image: Array) -> Array:
            a, b = _differences(image)
            if self.isotropic:
                sizes = np.hypot(a, b)
                sizes[sizes == 0] = 1.0
                a, b = a / sizes, b / sizes
            else:
                a, b = np.sign(a), np.sign(b)
            return (self.weight * _divergence(a, b)).astype(image.dtype, copy=False)

        return each(x, x.ndim - 2, one)

    def scaled(self, factor: float) -> TotalVariation2D:
        """Return factor * psi."""
        return replace(self, weight=nonnegative("factor", factor) * self.weight)


def _differences(x: Array) -> tuple[Array, Array]:
    """Return the differences to the pixel below and to the right, 0 at the border."""
    a, b = np.zeros_like(x), np.zeros_like(x)
    np.subtract(x[1:], x[:-1], out=a[:-1])
    np.subtract(x[:, 1:], x[:, :-1], out=b[:, :-1])
    return a, b


def _divergence(p: Array, q: Array) -> Array:
    """Return the transposed differences of flows that are 0 at the border."""
    out = -(p + q)
    out[1:] += p[:-1]
    out[:, 1:] += q[:, :-1]
    return out
