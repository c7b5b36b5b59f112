"""A local minimisation to a tolerance of its primal-dual gap: DualFL."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

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
        """Return the minimiser of the local energy, and what to upload for it.

        Parameters
        ----------
        start, zeta : array, shape of the model
        r : float
        modulus : float
            Of the local energy's strong convexity, at most.
        tolerance : float, optional
            Of the primal-dual gap; without one the local solver ends as it does, and the
            minimiser is what is uploaded.
        """
        linear = -self.nu * zeta
        shift = (r - 1) * self.nu + self.regularization

        def certified(x: Array, gradient: Array) -> bool:
            terms = _norm(linear) + _norm(gradient - linear)
            rounding = 50 * float(np.finfo(x.dtype).eps) * terms
            return _norm(gradient) <= max(math.sqrt(2 * modulus * (tolerance or 0.0)), rounding)

        stop = None if tolerance is None else certified
        x = self.minimize(
            start, linear=linear, shift=shift, regularizer=self.regularizer, stop=stop
        )
        if tolerance is None:
            return x, x
        return x, x - (self.gradient(x) + shift * x + linear) / modulus


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x.reshape(-1)))
