"""Prox, projections, vertices and the reference lasso, against other packages.

copt, skglm and jaxopt are optional: without one of them its lines are left out. The timed call is
that of a user. This package checks its arguments; the others do not.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.problems.reference import solve
from flower_fedcon.regularizers import L1, SLOPE, GroupLasso, L2Norm, TotalVariation1D
from flower_fedcon.sets import Birkhoff, Box, CappedSimplex, L1Ball, L2Ball, LInfBall, Simplex
from flower_fedcon.validation import Array

Case = tuple[str, Work, dict[str, Work]]
_WIDTH = 10  # size of the groups


def _module(name: str) -> Any:
    """Return a module, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except Exception:  # another package may fail to load with any error
        return None


def _compiled(jax: Any, function: Any, x: Array) -> Work:
    """Return a call of a function compiled by JAX."""
    with jax.enable_x64(True):
        call, array = jax.jit(function), jax.numpy.asarray(x)

    def work() -> object:
        with jax.enable_x64(True):
            return call(array).block_until_ready()

    return work


def _cases(size: int) -> Iterator[Case]:
    """Yield the oracles for vectors of a given length, with other packages' calls."""
    x = np.random.default_rng(0).standard_normal(size)
    steps, decay = np.cumsum(x) * 0.1, np.linspace(1.0, 0.1, size) * 0.5
    ordered = np.sort(np.abs(x))[::-1]
    radius = float((ordered[: size // 10] - ordered[size // 10]).sum())
    side = math.isqrt(size)
    square = x[: side * side].reshape(side, side)
    copt, tv = _module("copt.penalty"), _module("copt.tv_prox")
    constraint = _module("copt.constraint")
    skglm, penalties = _module("skglm.utils.prox_funcs"), _module("skglm.penalties")
    jit, jax, jaxopt = _module("skglm.utils.jit_compilation"), _module("jax"), _module("jaxopt")
    scipy = _module("scipy.optimize")
    here: dict[str, list[tuple[str, Work]]] = {}

    def beside(name: str, package: Any, rival: str, work: Any) -> None:
        if package is not None:
            here.setdefault(name, []).append((rival, work))

    beside("L1", skglm, "skglm", lambda: skglm.ST_vec(x, 0.5))
    beside("L1", copt, "copt", lambda: copt.L1Norm(0.5).prox(x, 1.0))
    beside("L2Norm", skglm, "skglm", lambda: skglm.BST(x, 1.5))
    beside("TotalVariation1D", tv, "copt", lambda: tv.prox_tv1d(steps, 0.5))
    beside("L1Ball", constraint, "copt", lambda: constraint.L1Ball(radius).prox(x))
    beside("Simplex", constraint, "copt", lambda: constraint.SimplexConstraint(radius).prox(x, 1))
    beside("L2Ball", constraint, "copt", lambda: constraint.L2Ball(1.0).prox(x))
    beside("LInfBall", constraint, "copt", lambda: constraint.LinfBall(0.5).prox(x))
    beside("Box", np, "numpy.clip", lambda: np.clip(x, -0.5, 0.5))
    beside("Birkhoff", scipy, "SciPy", lambda: scipy.linear_sum_assignment(square))
    if penalties is not None and jit is not None:
        sorted_l1 = jit.compiled_clone(penalties.SLOPE(decay))
        beside("SLOPE", penalties, "skglm", lambda: sorted_l1.prox_vec(x, 1.0))
    if jax is not None and jaxopt is not None:
        one = partial(jaxopt.prox.prox_group_lasso, l2reg=1.5)
        groups = _compiled(jax, lambda v: jax.vmap(one)(v.reshape(-1, _WIDTH)), x)
        beside("GroupLasso", jaxopt, "jaxopt", groups)
        ball = _compiled(jax, lambda v: jaxopt.projection.projection_l1_ball(v, radius), x)
        beside("L1Ball", jaxopt, "jaxopt", ball)
        section = partial(jaxopt.projection.projection_box_section, check_feasible=False)
        within = 0.0, 1.0, np.ones(size), size / 10
        capped = _compiled(jax, lambda v: section(v, within), x)
        beside("CappedSimplex", jaxopt, "jaxopt, to 1e-6", capped)
    oracles: dict[str, Work] = {
        "L1": partial(L1(0.5).prox, x, 1.0),
        "L2Norm": partial(L2Norm(1.5).prox, x, 1.0),
        "GroupLasso": partial(GroupLasso(1.5, _WIDTH).prox, x, 1.0),
        "TotalVariation1D": partial(TotalVariation1D(0.5).prox, steps, 1.0),
        "SLOPE": partial(SLOPE(decay).prox, x, 1.0),
        "L1Ball": partial(L1Ball(radius).project, x),
        "Simplex": partial(Simplex(radius).project, x),
        "CappedSimplex": partial(CappedSimplex(cap=1.0, radius=size / 10).project, x),
        "L2Ball": partial(L2Ball(1.0).project, x),
        "LInfBall": partial(LInfBall(0.5).project, x),
        "Box": partial(Box(-0.5, 0.5).project, x),
        "Birkhoff": partial(Birkhoff(side).lmo, square),
    }
    for name, work in oracles.items():
        yield name, work, dict(here.get(name, []))


def prox(quick: bool = False) -> Iterator[Result]:
    """Time prox, projections and a lasso against copt, skglm, jaxopt and SciPy, if installed.

    Vectors have 10^2, 10^4 and 10^6 entries.
    """
    for size in (100,) if quick else (100, 10**4, 10**6):
        for name, work, rivals in _cases(size):
            for rival, other in rivals.items():
                works = {"own": partial(_often, work, size), "other": partial(_often, other, size)}
                times = in_turn(works, 3 if quick else 15)
                calls = _calls(size)
                yield ratio(
                    f"{name}, {size:,} entries", rival, times["own"], times["other"],
                    steps=calls, unit="us",
                )  # fmt: skip
    yield from _lasso(quick)


def _calls(size: int) -> int:
    return max(1, 20_000 // size)


def _often(work: Work, size: int) -> None:
    for _ in range(_calls(size)):
        work()


def _lasso(quick: bool) -> Iterator[Result]:
    """Time the reference solution of a lasso, to 1e-10, against others' coordinate descent."""
    m, d = (60, 100) if quick else (1000, 2000)
    rng = np.random.default_rng(1)
    A, truth = rng.standard_normal((m, d)), np.zeros(d)
    truth[rng.choice(d, 20, replace=False)] = rng.standard_normal(20)
    b = A @ truth + 0.1 * rng.standard_normal(m)
    weight = 0.05 * float(np.abs(A.T @ b).max()) / m
    rows = zip(np.array_split(A, 10), np.array_split(b, 10), strict=True)
    clients = [LeastSquares(part, t, scale=10 * len(part) / m) for part, t in rows]
    works: dict[str, Work] = {"own": lambda: solve(clients, L1(weight), np.zeros(d))}
    tolerance = 1e-10 / math.sqrt(d)
    for name in ("skglm", "sklearn.linear_model"):
        if (package := _module(name)) is not None:
            lasso = package.Lasso(weight, fit_intercept=False, tol=tolerance, max_iter=100_000)
            works[name] = partial(lasso.fit, A, b)
    times = in_turn(works, 1 if quick else 5)
    for name in list(works)[1:]:
        what = f"the reference lasso, {m} x {d}, 10 clients"
        yield ratio(what, name.split(".")[0], times["own"], times[name], unit="s", target="<= 1.2")
