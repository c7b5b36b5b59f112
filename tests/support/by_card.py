"""What the loops of `algorithms/cases`, which follow a method's card in NumPy, share."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from problems import q6_objectives

from flower_fedcon import FederatedProblem
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball

START = np.linspace(-0.2, 0.2, 8)
"""Not 0, so that x0 and a state of zeros differ."""


@cache
def away() -> FederatedProblem:
    """Q6 from `START`."""
    return FederatedProblem(q6_objectives(), x0=START)


@cache
def away_l1() -> FederatedProblem:
    """Q6 with L1(0.6), from `START`."""
    return FederatedProblem(q6_objectives(), regularizer=L1(0.6), x0=START)


@cache
def away_ball() -> FederatedProblem:
    """Q6 over the l1 ball of radius 1, from `START`."""
    return FederatedProblem(q6_objectives(), constraint=L1Ball(1.0), x0=START)


def gradient(f: Any, v: np.ndarray) -> np.ndarray:
    return f.Q @ v - f.b


def descended(f: Any, v: np.ndarray, rate: float, steps: int, more: Any = 0.0) -> np.ndarray:
    """Return v after v := v - rate (grad f(v) + more), this many times."""
    for _ in range(steps):
        v = v - rate * (gradient(f, v) + more)
    return v


def minimiser(f: Any, linear: np.ndarray, shift: float, center: Any = 0.0) -> np.ndarray:
    """Return argmin_x f(x) + <linear, x> + (shift/2) ||x - center||^2."""
    return np.linalg.solve(f.Q + shift * np.eye(len(f.b)), f.b - linear + shift * center)


def soft(v: np.ndarray, level: float) -> np.ndarray:
    """Return the prox of level ||x||_1."""
    return np.sign(v) * np.maximum(np.abs(v) - level, 0.0)


def prox(problem: FederatedProblem, v: np.ndarray, step: float) -> np.ndarray:
    """Return the prox of the problem's l1 norm, if it has one."""
    psi: Any = problem.regularizer
    return soft(v, 0.0 if psi is None else step * psi.weight)


def vertex(g: np.ndarray) -> np.ndarray:
    """Return argmin of <g, s> over the l1 ball of radius 1."""
    s = np.zeros_like(g)
    k = np.abs(g).argmax()
    s[k] = -np.sign(g[k])
    return s


def largest(v: np.ndarray, count: int) -> np.ndarray:
    """Return v with all but its `count` largest entries set to 0."""
    kept = np.argsort(-np.abs(v), kind="stable")[:count]
    out = np.zeros_like(v)
    out[kept] = v[kept]
    return out
