"""Local solvers in compiled rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import agree
from nightly import nightly
from test_stacked import objectives

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.regularizers import L1, ElasticNet, L2Norm
from flower_fedcon.solvers import AOGM, LBFGS, Exact, GradientDescent
from flower_fedcon.strategies import DualFL, FedDR, FedDyn, FedExProx, FedPD, FedProx, FiveGCS

pytest.importorskip("jax")
from flower_fedcon.engines.jax.traceable import why_not_traceable
from flower_fedcon.engines.stacked import why_not_stackable

STEPS = GradientDescent(steps=5, lr=0.05)
PSI = L1(0.05)
FUNCTION = AOGM(restart="function", over_step=False)
ENERGY = AOGM(rule="energy")
SOLVERS = [
    Exact(), AOGM(), ENERGY, FUNCTION, AOGM(backtracking=False), GradientDescent(tolerance=1e-10),
    GradientDescent(steps=5), LBFGS(),
]  # fmt: skip
AT_NIGHT = [FUNCTION, AOGM(backtracking=False), GradientDescent(steps=5)]
THREE = {"participation": Sample(count=3)}
DUAL: dict[str, Any] = {"strong_convexity": 0.1, "regularization": 0.1}
PAPER: dict[str, Any] = {**DUAL, "form": "paper", "momentum": 0.0}
ACCELERATED: dict[str, Any] = {**DUAL, "form": "accelerated"}


def methods(solver: Any) -> list[Any]:
    return [
        FedProx(proximal=1.0, local_solver=solver),
        FedDyn(proximal=1.0, local_solver=solver),
        FedDR(PSI, step_size=1.0, local_solver=solver),
        FedExProx(step_size=1.0, local_solver=solver),
        FiveGCS(strong_convexity=0.1, local_solver=solver),
        FedPD(step_size=1.0, local_solver=solver),
        DualFL(**DUAL, local_solver=solver),
    ]


def prox(solver: Any, **more: Any) -> FedProx:
    return FedProx(proximal=1.0, local_solver=solver, **more)


def problem_of(strategy: Any, kind: str) -> FederatedProblem:
    if kind == "few rows":
        parts = objectives("least squares", rows=4)
    elif kind.startswith("single "):
        parts = objectives(kind.removeprefix("single "), dtype=np.float32)
    else:
        parts = objectives(kind.removeprefix("several "))
    if kind.startswith("several "):
        parts[0] = LeastSquares(np.eye(6), np.arange(6.0))
    return FederatedProblem(parts, regularizer=strategy.regularizer)


def slack_of(solver: Any) -> float:
    """Return how far work may be, by what rounding decides: 0.01 with some BLAS kernels."""
    loose = isinstance(solver, LBFGS) or solver == FUNCTION
    return 0.5 if loose else 0.03


def case(strategy: Any, kind: str, *, night: bool = False, **more: Any) -> Any:
    """Return a run: `slack` of its work, `tolerance`, and how many rounds are `compiled`."""
    words = f"{strategy.name}-{getattr(strategy, 'local_solver', '')}-{kind}-{more.get('id', '')}"
    given = {"slack": None, "tolerance": 1e-10, "compiled": 29, **more}
    given.pop("id", None)
    return (nightly if night else pytest.param)(strategy, kind, given, id=words)


def accelerated(kind: str, *, night: bool = True, **options: Any) -> list[Any]:
    """The curvature of its local problems, and what a client has missed, vary with the round.

    With few rows the problems are singular but for 0.1, and BLAS's kernels decide: 0 to 0.3 more.
    """
    slack = 0.4 if kind == "few rows" else 0.02
    more = {"slack": slack, "compiled": 20}  # a client is met once before
    made = [DualFL(**ACCELERATED, **options, participation=r) for r in (Full(), Sample(count=3))]
    return [
        case(one, kind, night=night or one is made[0], **more, id=f"{one.participation}")
        for one in made
    ]


LOGISTIC, SQUARES = "logistic", "least squares"
GAP = DualFL(**ACCELERATED, stopping="gap")
CASES = [
    *(case(m, k, slack=0.0, night=k != "softmax")
      for m in methods(STEPS)[:5] for k in ("softmax", SQUARES, LOGISTIC, f"several {SQUARES}")),
    # The same iterations, too, but for what rounding decides.
    *(case(prox(s), k, slack=slack_of(s), tolerance=1e-7 if s == ENERGY else 1e-10,
           night=k != LOGISTIC or s in AT_NIGHT)
      for s in SOLVERS for k in (LOGISTIC, SQUARES, "softmax")
      # which asks for a smoothness, and that differs from that of the stack
      if k != "softmax" or getattr(s, "backtracking", True)),
    # DualFL's first two rounds ask for where to start.
    *(case(m, k, compiled=28, night=k != SQUARES)
      for m in methods(Exact())[1:] for k in (SQUARES, LOGISTIC)),
    *(case(prox(s), "several logistic", night=s != AOGM()) for s in (AOGM(), Exact(), LBFGS())),
    *accelerated(LOGISTIC, stopping="gap", night=False),
    *accelerated("quadratic", mirror=False),
    *(one for kind in ("scaled", "few rows", LOGISTIC) for one in accelerated(kind)),
    case(DualFL(strong_convexity=0.1, **THREE), "single quadratic", tolerance=1e-5, compiled=20,
         night=True),
    # First steps where the curvature varies.
    case(DualFL(regularizer=PSI, **DUAL, local_solver=AOGM(), **THREE), LOGISTIC, compiled=20,
         night=True),
    # Each kind of clients is solved its own way, by factors or by Newton's method.
    *(case(m, "several logistic", slack=0.02, compiled=28, night=True, id="each")
      for m in (GAP, FedPD(step_size=1.0))),
    *(case(DualFL(regularizer=psi, local_solver=s, **PAPER), LOGISTIC, compiled=28, id=f"{psi}",
           night=psi is not PSI)
      for psi in (PSI, ElasticNet(0.02, 0.1)) for s in ("exact", GradientDescent(steps=5))),
    *(case(prox(s, **THREE), k, night=(s, k) != (STEPS, LOGISTIC), id="sampled")
      for s in (STEPS, AOGM(), Exact(), LBFGS()) for k in (LOGISTIC, SQUARES)),
    *(case(prox(s), "single logistic", tolerance=1e-4, compiled=0, night=s != AOGM())
      for s in (AOGM(), Exact(), LBFGS(tolerance=1e-6))),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "kind", "given"), CASES)
def test_solves_are_those_of_the_local_engine(strategy, kind, given, done):
    work = ("local_iterations", "local_evaluations")
    about = {} if given["slack"] is None else dict.fromkeys(work, given["slack"])
    problem = problem_of(strategy, kind)
    agree(strategy, problem, 30, given["tolerance"], engine="jax", about=about)
    assert sum(done) >= given["compiled"]


@pytest.mark.parametrize("psi", [PSI, ElasticNet(0.02, 0.1)], ids=str)
def test_the_energy_rule_with_a_regularizer_is_not_compiled(psi, done):
    """The penalties' values are taken one by one."""
    strategy = DualFL(regularizer=psi, local_solver=ENERGY, **PAPER)
    problem = problem_of(strategy, LOGISTIC)
    assert why_not_traceable(strategy, problem) is None
    simulate(strategy, problem, 3, engine="jax")
    assert not sum(done)


def test_solves_that_do_not_end_are_told(caplog, done):
    strategy, columns = prox(AOGM(max_iterations=2)), ["local_unconverged"]
    problem, more = problem_of(strategy, LOGISTIC), {"engine": "jax", "evaluate_every": 1}
    found = agree(strategy, problem, 9, 1e-12, columns=columns, **more)
    assert sum(done) == 8
    assert found["local_unconverged"][-1] > 0
    assert caplog.text.count("did not reach its tolerance") == 2


@pytest.mark.parametrize("solver", [Exact(), *map(nightly, [AOGM(), LBFGS()])], ids=str)
def test_what_is_not_convex_is_dropped_as_with_the_stacked_engine(solver):
    parts = objectives(SQUARES)
    parts[2] = Quadratic(np.diag([1.0, -30.0, 1.0, 1.0, 1.0, 1.0]), np.ones(6))
    problem = FederatedProblem(parts)
    there, found = (simulate(prox(solver), problem, 4, engine=e) for e in ("stacked", "jax"))
    np.testing.assert_allclose(found.x, there.x, atol=1e-9)
    assert found.rows[-1]["dropped"] == there.rows[-1]["dropped"]


@pytest.mark.parametrize("psi", [None, L1(0.001)])
def test_who_diverges_is_dropped_as_with_local(psi):
    """Far away, though not yet where numbers end: the others go on."""
    single = np.float32
    sizes = (1.0, 1.5, 2.0, 1e4)
    parts = [Quadratic(np.eye(4, dtype=single) * single(k), np.ones(4, single)) for k in sizes]
    solver = GradientDescent(steps=9, lr=0.1)
    strategy = prox(solver) if psi is None else FedDR(psi, step_size=1.0, local_solver=solver)
    problem = FederatedProblem(parts, regularizer=psi)
    local, found = (simulate(strategy, problem, 4, engine=e) for e in ("local", "jax"))
    np.testing.assert_allclose(found.x, local.x, rtol=1e-5)
    assert found.rows[-1]["dropped"] == local.rows[-1]["dropped"] > 0


def test_what_it_does_not_take(done):
    class Own(AOGM):
        pass

    problem = FederatedProblem(objectives(LOGISTIC))
    assert "Own(" in str(why_not_stackable(prox(Own()), problem))
    simulate(FedPD(step_size=1.0, skip_probability=0.5), problem, 3, engine="jax")
    strategy = DualFL(regularizer=L2Norm(0.1), **PAPER)  # its prox serves one client at a time
    simulate(strategy, problem_of(strategy, LOGISTIC), 3, engine="jax")
    assert not sum(done)
