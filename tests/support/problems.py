"""The problems that several tests use, with the figures that are known of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, Sample
from flower_fedcon.objectives import (
    GroupLossBounds,
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    Quadratic,
    Scaled,
    SoftmaxRegression,
)
from flower_fedcon.problems.constrained_reference import least_violation
from flower_fedcon.problems.reference import Reference
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import Box, L1Ball
from flower_fedcon.strategies import FedAvg

HALF = {"participation": Sample(fraction=0.5)}

# MNIST's 10,000 test images, beside the repository where there are any.
MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"
needs_mnist = pytest.mark.skipif(
    not MNIST.is_dir(), reason="needs MNIST's t10k files in ../shared/data/mnist"
)


def differences(value, x, h=1e-6):
    """Return the central differences of a function of x, in its shape."""
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[i] = h
        out[i] = (value(x + e) - value(x - e)) / (2 * h)
    return out


def plain(value: Any, gradient: Any, **more: Any) -> Any:
    """Return an objective that states nothing but what is given."""
    return SimpleNamespace(value=value, gradient=gradient, **more)


def random_quadratics(seed: int, n: int = 4, d: int = 3) -> list[Quadratic]:
    """Return n quadratics in d dimensions with eigenvalues in [1, 4]."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
        matrix = basis @ np.diag(rng.uniform(1, 4, d)) @ basis.T
        found.append(Quadratic((matrix + matrix.T) / 2, 2 * rng.normal(size=d)))
    return found


KINDS = ["squares", "logistic", "huber", "poisson", "softmax"]


def random_objective(kind: str, rng: Any, rows: int, d: int, unit: float = 1.0) -> Any:
    """Return the loss of random rows, in columns of different sizes about a unit."""
    A = rng.normal(size=(rows, d)) * 10.0 ** rng.uniform(-1, 1, d) * unit
    w = rng.normal(size=d) / unit / 10
    if kind == "poisson":
        A = A / np.abs(A).max()
        return PoissonRegression(A, rng.poisson(1 + rng.uniform(0, 3, rows)).astype(float))
    if kind == "logistic":
        return LogisticRegression(A, np.where(A @ w + rng.normal(size=rows) > 0, 1.0, -1.0))
    if kind == "softmax":
        return SoftmaxRegression(A, rng.integers(0, 3, rows), 3)
    targets = A @ w + rng.normal(size=rows) * 10.0 ** rng.uniform(-2, 2)
    return (HuberRegression if kind == "huber" else LeastSquares)(A, targets)


@cache
def q6_objectives() -> tuple[Quadratic, ...]:
    """Six quadratics in 8 dimensions, mu = 1, L = 20, heterogeneous."""
    rng = np.random.default_rng(1)
    objectives = []
    for _ in range(6):
        basis = np.linalg.qr(rng.standard_normal((8, 8)))[0]
        spectrum = np.array([1.0, 20.0, *rng.uniform(1, 20, 6)])
        matrix = basis @ np.diag(spectrum) @ basis.T
        objectives.append(Quadratic((matrix + matrix.T) / 2, 5 * rng.standard_normal(8)))
    return tuple(objectives)


Q6_VALUE = -0.5444246973805785
Q6_L1_X = np.array([0.176292, 0.000111, -0.002428, 0.090614, 0, 0, 0.038161, -0.075507])


def q6(l1: float = 0.0) -> FederatedProblem:
    """Q6, with L1(0.6) for its composite form."""
    return FederatedProblem(q6_objectives(), regularizer=L1(l1) if l1 else None)


def q6_l1() -> FederatedProblem:
    """Q6 with L1(0.6)."""
    return q6(0.6)


def least_of(objectives: Any, x0: Any) -> Reference:
    """Return the minimiser of the largest of some functions."""
    return least_violation(
        lambda x: np.array([f.value(x) for f in objectives]),
        lambda x: np.array([f.gradient(x) for f in objectives]),
        x0,
    )


@cache
def q6_least() -> Reference:
    """The minimiser of the largest f_i of Q6."""
    return least_of(q6_objectives(), np.zeros(8))


@cache
def q6_worst() -> FederatedProblem:
    """Q6 with this minimiser in place of the optimum, whose value is the mean's, F*."""
    return FederatedProblem(q6_objectives(), optimum=replace(q6_least(), value=Q6_VALUE))


@cache
def q6_shared() -> FederatedProblem:
    """Q6 with b_i = Q_i x*: all clients share the minimiser x*."""
    x = q6().optimum.x
    return FederatedProblem([Quadratic(f.Q, f.Q @ x) for f in q6_objectives()])


def q6_ball() -> FederatedProblem:
    """Q6 over the l1 ball of radius 1."""
    return FederatedProblem(q6_objectives(), constraint=L1Ball(1.0))


def avg(**settings: Any) -> FedAvg:
    """FedAvg with steps that are small enough for Q6."""
    return FedAvg(client_lr=1 / 40, local_steps=2, **settings)


def two_clients(**extra: Any) -> FederatedProblem:
    """f_1 = x^2 - 4x and f_2 = x^2/2 + x, from x0 = 1: gradients 2x - 4 and x + 1."""
    clients = [Quadratic([[2.0]], [4.0]), Quadratic([[1.0]], [-1.0])]
    return FederatedProblem(clients, x0=np.array([1.0]), **extra)


def one_minimiser(x: float = 0.0) -> FederatedProblem:
    """Curvatures 2 and 1 about the minimiser x, which both clients share, from x0 = 1."""
    clients = [Quadratic([[2.0]], [2 * x]), Quadratic([[1.0]], [x])]
    return FederatedProblem(clients, x0=np.array([1.0]))


class Limited(Scaled):
    """f with g(x) = slope * (the sum of x) - level; as it is g = -1, which never binds."""

    def __init__(self, objective: Any, slope: float = 0.0, level: float = 1.0) -> None:
        super().__init__(objective, 1.0)
        self.slope, self.level = slope, level

    def constraint_value(self, x):
        layers = x if isinstance(x, list) else [x]
        return self.slope * sum(float(layer.sum()) for layer in layers) - self.level

    def constraint_gradient(self, x):
        if isinstance(x, list):
            return [np.full_like(layer, self.slope) for layer in x]
        return np.full_like(x, self.slope)


def q6_limited() -> FederatedProblem:
    """Q6 with a constraint that never binds: FedSGM is then FedAvg."""
    plain = q6()
    return FederatedProblem([Limited(f) for f in plain.objectives], optimum=plain.optimum)


def two_limited() -> FederatedProblem:
    """`two_clients` with g_1 = x - .5 and g_2 = 3x - 2.5: ghat(x) = 2x - 1.5."""
    return FederatedProblem(two_own(second=2.5).objectives, x0=np.ones(1))


def two_own(*, second: float = 2.8) -> FederatedProblem:
    """f_1 = x^2 - 4x with c_1 = x - .5, f_2 = x^2/2 + x with c_2 = 3x - second, from 1."""
    limits = [(1.0, 0.5), (3.0, second)]
    limited = [
        Limited(f, *limit) for f, limit in zip(two_clients().objectives, limits, strict=True)
    ]
    return FederatedProblem(limited, x0=np.ones(1), constraints="each")


def two_groups(bound: list[float]) -> FederatedProblem:
    """Group 0: 3 rows of x^2/2 on client 0, 1 row of x^2/2 - 2x on client 1; group 1: 2 of x^2."""
    f = two_clients().objectives
    first = GroupLossBounds(f[0], [Quadratic([[1.0]], [0.0]), None], bound, counts=[3, 0])
    losses = [Quadratic([[1.0]], [2.0]), Quadratic([[2.0]], [0.0])]
    second = GroupLossBounds(f[1], losses, bound, counts=[1, 2])
    return FederatedProblem([first, second], x0=np.ones(1), constraints="groups")


class Walled(Scaled):
    """f with c(x) = <a, x> - level."""

    def __init__(self, objective: Any, a: Any, level: float) -> None:
        super().__init__(objective, 1.0)
        self.a, self.level = np.array(a), level

    def constraint_value(self, x):
        return float(self.a @ x - self.level)

    def constraint_gradient(self, x):
        return self.a


def two_walls() -> FederatedProblem:
    """F = (3/4) ||x||^2 - 2 x_1 - 2 x_2, x_1 <= 1/2 and x_1 + x_2 <= 3/2: x* = (1/2, 1).

    There mean grad f = (-5/4, -1/2): the multipliers are 3/4 and 1/2.
    """
    clients = [
        Quadratic(np.diag([2.0, 1.0]), [3.0, 1.0]),
        Quadratic(np.diag([1.0, 2.0]), [1.0, 3.0]),
    ]
    walls = [([1.0, 0.0], 0.5), ([1.0, 1.0], 1.5)]
    walled = [Walled(f, *wall) for f, wall in zip(clients, walls, strict=True)]
    optimum = Reference(np.array([0.5, 1.0]), -33 / 16, 0.0, "by hand")
    return FederatedProblem(walled, constraints="each", optimum=optimum)


@cache
def q6_walls() -> FederatedProblem:
    """Q6 with a_j'x <= a_j'x* - .05 ||a_j||; the clients 0, 1, 2 and 5 are bound at the optimum."""
    free, bound = q6().optimum.x, [0, 1, 2, 5]
    a = np.array([np.random.default_rng(20 + j).standard_normal(8) for j in range(6)])
    levels = a @ free - 0.05 * np.linalg.norm(a, axis=1)
    walls = zip(q6_objectives(), a, levels, strict=True)
    walled = [Walled(*wall) for wall in walls]
    matrix = np.mean([f.Q for f in q6_objectives()], axis=0)
    b = np.mean([f.b for f in q6_objectives()], axis=0)
    kkt = np.block([[matrix, a[bound].T], [a[bound], np.zeros((4, 4))]])
    found = np.linalg.solve(kkt, np.r_[b, levels[bound]])
    x, multipliers = found[:8], found[8:]
    assert multipliers.min() > 0  # and all are kept, so that the convex problem is solved
    assert (a @ x - levels).max() < 1e-14
    optimum = Reference(x, float(x @ matrix @ x / 2 - b @ x), 0.0, "active set")
    return FederatedProblem(walled, constraints="each", optimum=optimum)


def toy() -> FederatedProblem:
    """(x - 3)^2 and (x + 1)^2, up to constants, over [-1, 1]: x* = 1."""
    curvature = 2 * np.eye(1)
    clients = [Quadratic(curvature, np.array([6.0])), Quadratic(curvature, np.array([-2.0]))]
    return FederatedProblem(clients, constraint=Box(-1.0, 1.0))


def l1ls_data(clients: int = 20) -> list[dict[str, Any]]:
    """Rows of least squares with a sparse truth, by client."""
    matrices = np.random.default_rng(7).standard_normal((clients, 10, 50))
    truth = np.r_[np.ones(5), np.zeros(45)]
    noise = [0.3 * np.random.default_rng(100 + i).standard_normal(50) for i in range(clients)]
    return [{"A": A, "b": A @ (truth + e)} for A, e in zip(matrices, noise, strict=True)]


def l1ls(clients: int = 20, *, l1: float = 0.0) -> FederatedProblem:
    """Least squares over the l1 ball of radius 5, or with L1(l1)."""
    objectives = [LeastSquares(**data) for data in l1ls_data(clients)]
    if l1:
        return FederatedProblem(objectives, regularizer=L1(l1))
    return FederatedProblem(objectives, constraint=L1Ball(5.0))
