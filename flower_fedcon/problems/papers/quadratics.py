"""Strongly convex quadratics of a given condition number."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.reference import Reference
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.validation import Array, choice, count, nonnegative, positive

Directions: TypeAlias = Literal["mixed", "aligned", "apart"]


@stated
def quadratics(
    *,
    clients: int = 10,
    columns: int = 20,
    condition: float = 100.0,
    smallest: float = 1.0,
    shared: bool = True,
    directions: Directions = "mixed",
    alike: float | None = None,
    l1: float = 0.0,
    radius: float | None = None,
    seed: int = 0,
) -> FederatedProblem:
    """Return f_j = x'Q_j x/2 - <b_j, x>, with b_j ~ N(0, I), from 0.

    The eigenvalues of each Q_j are `smallest`, `condition`, and powers between them, drawn
    uniformly in the exponent. With `smallest` = 0 half of them are 0: f_j is convex, and bounded
    below, since b_j is in the range of Q_j. With -1 they have random signs: neither f_j nor F is
    convex, and a radius is needed.

    Metrics: "gradient", ||grad F(x)||; without a radius "error", ||x - x*|| / ||x*||.

    Parameters
    ----------
    clients : int
        N >= 1.
    columns : int
        d >= 2.
    condition : float
        L >= 1, the largest eigenvalue of each Q_j.
    smallest : float
        The smallest one, mu: 1, 0, or -1.
    shared : bool
        Whether all clients have the same eigenbasis, with different eigenvalues. Otherwise each
        client has its own, and the mean is better conditioned than the f_j.
    directions : {"mixed", "aligned", "apart"}
        How eigenvalues belong to directions. "mixed": at random for each client. "aligned": in the
        same order for all, so that the mean is as ill-conditioned as the f_j. "apart": each client
        has its large eigenvalues in its own directions, and 1 in the others (N <= d).
    alike : float, optional
        In [0, 1), for shared directions in one order ("aligned"): all clients have the first one's
        eigenvalues, each changed by up to this share, within 1 and L.
    l1 : float
        Weight of an l1 regularizer.
    radius : float, optional
        Radius of an l1 ball as constraint.
    seed : int
        Seeds Q_j and b_j.

    >>> problem = quadratics(clients=3, columns=4, condition=50.0)
    >>> f = problem.objectives[1]
    >>> round(f.smoothness, 9), round(f.strong_convexity, 9)
    (50.0, 1.0)
    """
    d = count("columns", columns, minimum=2)
    if positive("condition", condition) < 1:
        raise ConfigError(f"condition must be at least 1, got {condition!r}")
    if smallest not in (-1, 0, 1):
        raise ConfigError(f"smallest must be -1, 0 or 1, got {smallest!r}")
    if smallest < 0 and radius is None:
        raise ConfigError("smallest = -1 is unbounded below without a radius: give one")
    choice("directions", directions, get_args(Directions))
    if directions == "apart" and clients > d:
        raise ConfigError(f"directions apart need clients at most columns = {d}, got {clients!r}")
    if alike is not None:
        if not 0 <= alike < 1:
            raise ConfigError(f"alike must be in [0, 1), got {alike!r}")
        if not shared or directions != "aligned" or smallest != 1:
            raise ConfigError(
                f"alike is a share by which clients change the same eigenvalues, and needs shared "
                f"= true, directions = 'aligned' and smallest = 1, got shared={shared!r}, "
                f"directions={directions!r}, smallest={smallest!r}"
            )
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    common = np.linalg.qr(rng.standard_normal((d, d)))[0]
    first: Array = np.empty(0)  # eigenvalues of the first client
    objectives: list[Quadratic] = []
    for j in range(count("clients", clients)):
        basis = common if shared else np.linalg.qr(rng.standard_normal((d, d)))[0]
        powers = condition ** rng.uniform(0, 1, d)
        powers[:2] = 1.0, condition
        powers = np.sort(powers) if directions == "aligned" else rng.permutation(powers)
        if not objectives:
            first = powers
        elif alike is not None:
            powers = np.clip(first * (1 + alike * rng.uniform(-1, 1, d)), 1.0, condition)
        if directions == "apart":
            mine = np.arange(d) % clients == j
            powers[~mine] = 1.0
            powers[np.argmax(mine)] = condition
        if smallest == 0:
            powers[rng.choice(d, d // 2, replace=False)] = 0.0
            powers[int(np.argmax(powers))] = condition
        if smallest < 0:
            powers *= rng.choice([-1.0, 1.0], d)
        Q = (basis * powers) @ basis.T
        b = rng.standard_normal(d)
        b = basis @ ((powers != 0) * (basis.T @ b))
        objectives.append(Quadratic((Q + Q.T) / 2, b))
    mean_Q = np.mean([f.Q for f in objectives], axis=0)
    mean_b = np.mean([f.b for f in objectives], axis=0)
    metrics = {"gradient": lambda x: float(np.linalg.norm(mean_Q @ x - mean_b))}
    if radius is not None:
        return FederatedProblem(objectives, constraint=L1Ball(radius), metrics=metrics)
    optimum = None
    if l1 == 0:
        inverse = np.linalg.pinv(mean_Q, hermitian=True)
        best: Array = inverse @ mean_b
        best = best + inverse @ (mean_b - mean_Q @ best)
        value = float((0.5 * mean_Q @ best - mean_b) @ best)
        optimum = Reference(best, value, metrics["gradient"](best), "linear system")
    psi = L1(l1) if nonnegative("l1", l1) else None
    problem = FederatedProblem(objectives, regularizer=psi, metrics=metrics, optimum=optimum)

    def error(x: Array) -> float:
        star = problem.optimum.x
        return float(np.linalg.norm(x - star) / np.linalg.norm(star))

    problem.metrics["error"] = error
    return problem
