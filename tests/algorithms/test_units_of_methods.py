"""Data in other units: DualFL and FedDR with exact local solves, certificates, constrained F*."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import nightly
from scales import LOSSES, PARTS, ROWS, SCORE, TARGETS, factors, problem, units

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.objectives import LeastSquares, LossBound
from flower_fedcon.problems.reference import solve
from flower_fedcon.regularizers import L1, L2Squared
from flower_fedcon.regularizers.rescaled import Entrywise
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.problem import LocalProblem
from flower_fedcon.strategies import DualFL, FedDR, FedNewton

COUNTS = [2, nightly(60)]


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("kind", LOSSES)
def test_dualfl_and_feddr_with_all_columns_in_another_unit(kind, engine, examples):
    """Steps in the unit of the columns' squares, an l1 weight in that of the columns."""
    if kind == "cox" and engine == "stacked":
        return  # its rows are no stack
    shape = (3, 3) if kind == "softmax" else (3,)

    def runs(u, c):
        clients = [LOSSES[kind](u * ROWS[r], r, c) for r in PARTS]
        strong = DualFL(
            regularization=0.2 * u**2, strong_convexity=0.2 * u**2, momentum=0.0,
            participation=Sample(count=2),
        )  # fmt: skip
        yield simulate(strong, FederatedProblem(clients, x0=np.zeros(shape)), 6, engine=engine).x
        psi = L1(0.02 * u * c)
        split = FedDR(psi, step_size=1.0 / u**2, relaxation=1.0)
        yield simulate(split, FederatedProblem(clients, regularizer=psi), 6, engine=engine).x

    expected = list(runs(1.0, 1.0))

    @settings(max_examples=examples)
    @given(st.floats(-9, 9), st.sampled_from([-1, 1]), st.floats(-9, 9))
    def in_units(exponent, sign, target):
        u, c = 10.0**exponent, sign * 10.0**target if kind in TARGETS else 1.0
        if kind == "huber":
            c = abs(c)  # delta is one
        for found, usual in zip(runs(u, abs(c)), expected, strict=True):
            np.testing.assert_allclose(
                found * u / abs(c), usual, rtol=0, atol=1e-8 * np.abs(usual).max()
            )

    in_units()


@pytest.mark.parametrize("examples", [8, nightly(200)])
@pytest.mark.parametrize("kind", LOSSES)
def test_exact_local_solves_with_each_column_in_another_unit(kind, examples):
    """Against the independent solver on columns of one size, the proximal term carried along."""
    shape = (3, 3) if kind == "softmax" else (3,)
    everyone = np.arange(len(ROWS))

    @settings(max_examples=examples)
    @given(st.lists(st.floats(-9, 9), min_size=3, max_size=3), st.floats(-9, 9), st.booleans())
    def in_units(exponents, shift, sparse):
        u, shift = 10.0 ** np.array(exponents), 10.0**shift
        each = np.broadcast_to(u if len(shape) == 1 else u[:, None], shape)
        psi = L1(1e-3 * u.min()) if sparse else None
        local = LocalProblem(
            LOSSES[kind](u * ROWS, everyone, 1.0), np.zeros(shape), shift=shift, regularizer=psi
        )
        weights = Entrywise(np.full(shape, 1e-3 * u.min() * sparse) / each, shift / each**2)
        exact = solve([LOSSES[kind](ROWS, everyone, 1.0)], weights, np.zeros(shape)).x
        found = Exact().solve(local).x * each
        if kind == "softmax":  # what is common to all classes next to nothing holds
            found, exact = (x - x.mean(axis=1, keepdims=True) for x in (found, exact))
        np.testing.assert_allclose(
            found, exact, rtol=0, atol=1e-6 * np.abs(exact).max(initial=1e-30)
        )

    in_units()


@pytest.mark.parametrize("kind", ["logistic", "poisson", "huber"])
def test_columns_in_units_of_their_own_slow_a_method_and_certificates_say_so(kind):
    """FedDR's steps are in one metric; its local solves, and every engine's, are right in it."""
    u = np.array([1e7, 1.0, 1e-6])
    clients = [LOSSES[kind](u * ROWS[r], r, 1.0) for r in PARTS]
    runs = []
    for engine in ("local", "stacked"):
        split = FedDR(L1(0.01), step_size=1.0, relaxation=1.0)
        problem = FederatedProblem(clients, regularizer=split.regularizer)
        runs.append(simulate(split, problem, 6, engine=engine, certificates=True))
    np.testing.assert_allclose(runs[0].x * u, runs[1].x * u, rtol=0, atol=1e-12)
    gap = runs[0]["objective"][-1] - problem.optimum.value
    assert gap > 1e-4
    assert runs[0]["kkt"][-1] ** 2 > gap / 10


@pytest.mark.parametrize("examples", [5, nightly(200)])
@pytest.mark.parametrize("kind", LOSSES)
def test_certificates_in_any_units(kind, examples):
    """kkt is in the unit of the target alone, far from the solution and near it."""
    rounds, options = [1, 2, 20], {"certificates": True}
    usual = problem(kind, np.ones(3), 1.0, 0.03)
    expected = simulate(FedNewton(usual.regularizer), usual, rounds[-1], **options)["kkt"]
    assert expected[0] > 1e-6 or kind in ("squares", "huber")

    @settings(max_examples=examples)
    @given(units)
    def in_units(drawn):
        u, c = factors(kind, drawn)
        asked = problem(kind, u, c, 0.03)
        history = simulate(FedNewton(asked.regularizer), asked, rounds[-1], **options)
        found = history["kkt"] / c
        np.testing.assert_allclose(found[:1], expected[:1], rtol=1e-6, atol=1e-12)
        assert found[-1] <= 1e-11

    in_units()


def test_a_certificate_far_from_the_solution_in_nanometres():
    """The residual of a prox step of 1 was 0.0 there."""
    u, history = 1e-8, []
    for unit in (1.0, u):
        asked = problem("logistic", unit * np.ones(3), 1.0, 0.02)
        slow = FedDR(asked.regularizer, step_size=0.05 / unit**2)
        history.append(simulate(slow, asked, 5, certificates=True))
    np.testing.assert_allclose(history[1]["kkt"], history[0]["kkt"], rtol=1e-9)
    assert history[1]["kkt"][-1] > 1e-3


def test_the_optimum_under_bounds_in_other_units():
    """Sequential quadratic programming has numbers of its own, and gets a problem of size 1."""
    usual = None
    for unit, target in ((1.0, 1.0), (1e-7, 1e-8), (1e8, 1e5)):
        u = unit * np.array([1.0, 1e-4, 1e3])
        clients = [LeastSquares(ROWS[r] * u, target * SCORE[r]) for r in PARTS]
        level = 0.97 * max(f.value(np.zeros(3)) for f in clients)
        bounded = FederatedProblem([LossBound(f, 0.3 * level) for f in clients], constraints="each")
        found = np.array([*(bounded.optimum.x * u / target), bounded.optimum.value / target**2])
        least = bounded.least_violation / target**2
        if usual is None:
            usual = (found, least)
        np.testing.assert_allclose(found, usual[0], atol=1e-5)
        assert least == pytest.approx(usual[1], abs=1e-8)


def test_a_ridge_is_part_of_the_units():
    asked = FederatedProblem(problem("squares", np.ones(3), 1.0, 0.0).objectives)
    heavy = FederatedProblem(asked.objectives, regularizer=L2Squared(1e6))
    history = simulate(FedNewton(heavy.regularizer), heavy, 2, certificates=True)
    assert history["kkt"][-1] <= 1e-15
    assert heavy.optimum.value == pytest.approx(history["objective"][-1], rel=1e-12)
