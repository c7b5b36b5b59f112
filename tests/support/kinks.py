"""Problems with kinks, whose optima linear programs of SciPy find."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import linprog

from flower_fedcon import FederatedProblem
from flower_fedcon.objectives import LeastAbsoluteDeviations, SupportVectorMachine
from flower_fedcon.problems.reference import Reference

CLIENTS, ROWS, ENTRIES = 5, 12, 4


def least_deviations(A: Any, b: Any, l1: float = 0.0) -> Reference:
    """Minimise mean |A x - b| + l1 ||x||_1 over all rows."""
    m, d = A.shape
    cost = np.r_[np.zeros(d), np.full(m, 1 / m), np.full(d, l1)]
    r, s, none = -np.eye(m), -np.eye(d), np.zeros((m, d))
    rows = np.block([[A, r, none], [-A, r, none], [np.eye(d), none.T, s], [-np.eye(d), none.T, s]])
    free = [(None, None)] * (2 * d + m)
    found = linprog(cost, rows, np.r_[b, -b, np.zeros(2 * d)], bounds=free)
    return Reference(found.x[:d], float(found.fun), 0.0, "linear program")


def least_hinges(A: Any, y: Any) -> Reference:
    """Minimise mean max(0, 1 - y A x) over all rows."""
    m, d = A.shape
    cost, bounds = np.r_[np.zeros(d), np.full(m, 1 / m)], [(None, None)] * d + [(0, None)] * m
    found = linprog(cost, np.c_[-y[:, None] * A, -np.eye(m)], -np.ones(m), bounds=bounds)
    return Reference(found.x[:d], float(found.fun), 0.0, "linear program")


@cache
def absolute_rows() -> tuple[Any, Any]:
    """Rows with heavy tails, and a level of each client's own."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(CLIENTS, ROWS, ENTRIES))
    noise = rng.standard_t(1.5, size=(CLIENTS, ROWS)) + 2 * rng.normal(size=(CLIENTS, 1))
    return A, A @ rng.normal(size=ENTRIES) + noise


@cache
def hinge_rows() -> tuple[Any, Any]:
    """Rows that no plane separates, sorted by label."""
    rng = np.random.default_rng(1)
    A = rng.normal(size=(CLIENTS * ROWS, ENTRIES))
    y = np.where(A @ rng.normal(size=ENTRIES) + rng.normal(size=len(A)) > 0, 1.0, -1.0)
    order = np.argsort(y, kind="stable")
    return A[order].reshape(CLIENTS, ROWS, ENTRIES), y[order].reshape(CLIENTS, ROWS)


@cache
def absolute() -> FederatedProblem:
    """Five clients with least absolute deviations."""
    A, b = absolute_rows()
    clients = [LeastAbsoluteDeviations(*own) for own in zip(A, b, strict=True)]
    return FederatedProblem(clients, optimum=least_deviations(A.reshape(-1, ENTRIES), b.ravel()))


@cache
def hinge() -> FederatedProblem:
    """Five clients with a support vector machine."""
    A, y = hinge_rows()
    clients = [SupportVectorMachine(*own) for own in zip(A, y, strict=True)]
    return FederatedProblem(clients, optimum=least_hinges(A.reshape(-1, ENTRIES), y.ravel()))
