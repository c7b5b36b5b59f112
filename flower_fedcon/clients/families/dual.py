"""A local minimisation to a tolerance of its primal-dual gap: DualFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from flower_fedcon.arrays import larger, length, root
from flower_fedcon.clients.base import FedConClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.validation import Array

State = TypeVar("State")


class DualClient(FedConClient[State]):
    """A client that minimises f_j(x) + psi(x) + ((r - 1) nu/2) ||x||^2 - nu <zeta, x>."""

    nu: float
    regularization: float
    regularizer: Regularizer | None
    local_solver: LocalSolver

    def minimizer(
        self, start: Array, zeta: Array, r: float, modulus: float, tolerance: float | None
    ) -> tuple[Array, Array]:
        """Return the minimiser of the local energy, and the point to upload.

        Parameters
        ----------
        start, zeta : array, shape of the model
        r : float
        modulus : float
            A lower bound of the local energy's strong convexity.
        tolerance : float, optional
            The tolerance of the primal-dual gap. Without one the local solver ends by its own rule,
            and its minimiser is uploaded.
        """
        linear = -self.nu * zeta
        shift = (r - 1) * self.nu + self.regularization
        stop = None
        if tolerance is not None:
            stop = Certified(linear, root(2 * modulus * tolerance), len(self.model_axes))
        x = self.minimize(
            start, linear=linear, shift=shift, regularizer=self.regularizer, stop=stop
        )
        if tolerance is None:
            return x, x
        return x, x - (self.full_gradient(x) + shift * x + linear) / modulus


@dataclass(frozen=True)
class Certified:
    """A test that the gap is below its tolerance, or the gradient below its rounding error.

    Attributes
    ----------
    linear : array, shape (..., *model)
    length : float
        The length of the gradient at that gap.
    axes : int
        Number of axes of the model.
    """

    linear: Array
    length: float
    axes: int

    def __call__(self, x: Array, gradient: Array) -> Any:
        """Return the answer for one client, or an array of all clients' answers."""
        terms = length(self.linear, self.axes) + length(gradient - self.linear, self.axes)
        rounding = 50 * float(np.finfo(x.dtype).eps) * terms
        return length(gradient, self.axes) <= larger(self.length, rounding)

    def only(self, places: Array) -> Certified:
        """Return the test for some of many clients."""
        if self.linear.ndim == self.axes:
            return self
        return Certified(self.linear[places], self.length, self.axes)
