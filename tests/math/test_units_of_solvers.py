"""Columns and targets in other units: solvers find the same minimiser, in its new units."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nightly import nightly
from scales import LOSSES, PARTS, ROWS, SCORE, back, factors, problem, units

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.objectives import LeastSquares, LogisticRegression, Quadratic
from flower_fedcon.problems.reference import solve
from flower_fedcon.regularizers import L1, ElasticNet, GroupLasso, Indicator, L2Norm, Zero
from flower_fedcon.regularizers.rescaled import Entrywise, rescaled
from flower_fedcon.sets import Box, L1Ball, Simplex
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.lbfgs import LBFGS
from flower_fedcon.solvers.problem import LocalProblem
from flower_fedcon.solvers.quadratic_models import QuadraticModel, apart, minimizer
from flower_fedcon.solvers.units import units_of
from flower_fedcon.strategies import FedNewton

COUNTS = [4, nightly(200)]


@cache
def usual(kind, l1):
    return problem(kind, np.ones(3), 1.0, l1).optimum


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("l1", [0.0, 0.03])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_optimum_and_fednewton_in_any_units(kind, l1, examples):
    if kind == "softmax" and not l1:
        return  # its minimiser is not one point
    expected = usual(kind, l1)

    @settings(max_examples=examples)
    @given(units)
    def in_units(drawn):
        u, c = factors(kind, drawn)
        asked = problem(kind, u, c, l1)
        found = asked.optimum
        near = {"rtol": 0, "atol": 1e-7 * np.abs(expected.x).max()}
        np.testing.assert_allclose(back(found.x, u, c), expected.x, **near)
        assert found.value / c**2 == pytest.approx(expected.value, rel=1e-10)
        assert found.residual <= 1e-9 * c
        history = simulate(FedNewton(asked.regularizer), asked, 14, evaluate_every=14)
        np.testing.assert_allclose(back(history.x, u, c), expected.x, **near)
        assert history["residual"][-1] / c**2 <= 1e-12

    in_units()


def test_units_that_a_regularizer_bears():
    sizes = np.array([1.0, 4.0, 16.0, 2.0**-6])
    rng = np.random.default_rng(0)
    for psi in (
        L1(np.array([1.0, 0.0, 2.0, 3.0])), ElasticNet(0.5, 2.0), GroupLasso(0.7, groups=2),
        Indicator(Box(-0.3, 0.5)), L2Norm(0.4), Indicator(L1Ball(2.0)), Zero(),
    ):  # fmt: skip
        own, other = rescaled(psi, sizes)
        z, g = rng.normal(size=(2, 4))
        assert other.value(z) == pytest.approx(psi.value(own * z))
        assert other.scaled(3.0).value(z) == pytest.approx(psi.scaled(3.0).value(own * z))
        # The prox is the minimiser, among points nearby.
        w = other.prox(z, 0.3)
        least = other.value(w) + np.sum((w - z) ** 2) / 0.6
        for near in w + 1e-3 * rng.normal(size=(50, 4)):
            assert other.value(near) + np.sum((near - z) ** 2) / 0.6 >= least - 1e-12
        if psi.entrywise((4,)) is not None:
            assert other.prox_residual(z, g) == pytest.approx(
                np.linalg.norm(z - other.prox(z - g, 1.0))
            )
    # What cannot be told gets a usual unit.
    assert units_of(Zero(), np.array([4.0, 0.0]), (2,)).sizes.tolist() == [0.5, 0.5]
    assert units_of(Zero(), np.zeros(2), (2,)).plain
    assert units_of(Zero(), None, (2,)).plain


@pytest.mark.parametrize("psi", [L1(0.05), Indicator(L1Ball(0.7)), Indicator(Simplex(1.0))])
def test_all_columns_in_one_unit_under_penalties_that_bear_one(psi):
    """Micrometres for kilometres: sets and norms are scaled by the same number."""
    base = solve([LogisticRegression(ROWS, np.sign(SCORE))], psi, np.zeros(3))
    for u in (1e-9, 1e-4, 1e7):
        own = {
            L1: lambda u: L1(0.05 * u),
            L1Ball: lambda u: Indicator(L1Ball(0.7 / u)),
            Simplex: lambda u: Indicator(Simplex(1.0 / u)),
        }[type(getattr(psi, "constraint", psi))](u)
        found = solve([LogisticRegression(u * ROWS, np.sign(SCORE))], own, np.zeros(3))
        assert found.value == pytest.approx(base.value, rel=1e-12)
        np.testing.assert_allclose(u * found.x, base.x, atol=1e-7)
        assert 0 <= found.gap + 1e-15 <= 1e-9


@pytest.mark.parametrize("examples", [5, nightly(200)])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_optimum_on_an_l1_ball_with_each_column_in_another_unit(kind, examples):
    """The ball of other columns is weighed: its radius follows from the weight of an l1 norm."""
    shape = (3, 3) if kind == "softmax" else (3,)

    @settings(max_examples=examples)
    @given(st.lists(st.floats(-9, 9), min_size=3, max_size=3), st.floats(0.02, 0.3))
    def in_units(exponents, share):
        u = 10.0 ** np.array(exponents)
        each = np.broadcast_to(u if len(shape) == 1 else u[:, None], shape)
        base = [LOSSES[kind](ROWS[r], r, 1.0) for r in PARTS]
        steep = np.abs(np.mean([f.gradient(np.zeros(shape)) for f in base], axis=0) * each).max()
        exact = solve(base, Entrywise(share * steep / each, np.zeros(shape)), np.zeros(shape))
        assume(exact.x.any())
        radius = float(np.abs(exact.x / each).sum())
        clients = [LOSSES[kind](ROWS[r] * u, r, 1.0) for r in PARTS]
        problem = FederatedProblem(clients, constraint=L1Ball(radius), x0=np.zeros(shape))
        least = exact.value - share * steep * radius
        assert problem.optimum.value == pytest.approx(least, rel=1e-9, abs=1e-9)
        assert np.abs(problem.optimum.x).sum() <= radius * (1 + 1e-9)

    in_units()


def test_sparse_rows_weights_and_objectives_of_ones_own_in_other_units():
    u, w = np.array([1e8, 1e-7, 1.0, 1.0]), np.linspace(0.5, 2.0, len(ROWS))

    class Own:
        """Only a value and a gradient, with a column in another unit and its target."""

        def __init__(self, unit):
            self.f = LeastSquares(ROWS * unit, SCORE * unit)

        def value(self, x):
            return self.f.value(x)

        def gradient(self, x):
            return self.f.gradient(x)

    for make in (np.asarray, sp.csr_array):
        rows, other = make(ROWS), make(ROWS * u[:3])
        first = LogisticRegression(rows, np.sign(SCORE), sample_weight=w, intercept=True)
        second = LogisticRegression(other, np.sign(SCORE), sample_weight=w, intercept=True)
        base, found = (solve([f], Zero(), np.zeros(4)) for f in (first, second))
        assert found.value == pytest.approx(base.value, rel=1e-12)
        np.testing.assert_allclose(u * found.x, base.x, atol=1e-7)
    base = solve([LeastSquares(ROWS, SCORE)], Zero(), np.zeros(3))
    for unit in (1e-9, 1e-5, 1e6):
        found = solve([Own(unit)], Zero(), np.zeros(3))
        np.testing.assert_allclose(found.x, base.x, atol=1e-7)
        Q, b = unit**2 * ROWS.T @ ROWS, unit**2 * ROWS.T @ SCORE
        quadratic = solve([Quadratic(Q, b)], L1(0.0), np.zeros(3))
        np.testing.assert_allclose(quadratic.x, base.x, atol=1e-7)


class InOwnUnits:
    """A value and a gradient alone, of c * f(x / u)."""

    def __init__(self, f, c, u):
        self.f, self.c, self.u, self.asked = f, c, u, 0

    def value(self, x):
        return self.c * self.f.value(x / self.u)

    def gradient(self, x):
        self.asked += 1
        return self.c / self.u * self.f.gradient(x / self.u)


@pytest.mark.parametrize("examples", [10, nightly(400)])
@pytest.mark.parametrize("solver", ["exact", "lbfgs"])
def test_local_solves_of_objectives_that_tell_nothing_in_any_units(solver, examples):
    """From far away and from nearby, at shifts of any size, with an l1 norm and without."""
    f = LogisticRegression(ROWS, np.sign(SCORE), l2=0.01)
    pull, center = np.array([0.01, -0.02, 0.03]), np.array([1.0, -0.5, 0.2])

    def solved(c, u, shift, sparse, start):
        own = InOwnUnits(f, c, u)
        local = LocalProblem(
            own, u * start, linear=c / u * pull, shift=c / u**2 * shift, center=u * center,
            regularizer=L1(c / u * 0.02) if sparse else None,
        )  # fmt: skip
        with np.errstate(all="raise", under="ignore"):
            found = (Exact() if solver == "exact" else LBFGS()).solve(local)
        assert found.converged
        return found.x / u, own.asked

    @settings(max_examples=examples)
    @given(
        st.floats(-30, 30), st.floats(-12, 12), st.sampled_from([0.0, 1e-3, 0.1, 10.0]),
        st.booleans(), st.sampled_from([1.0, 1e-9, 0.0]),
    )  # fmt: skip
    def in_units(value, unit, shift, sparse, away):
        sparse &= solver == "exact"
        usual, _ = solved(1.0, 1.0, shift, sparse, np.zeros(3))
        start = usual + away * np.array([1.0, -2.0, 3.0])
        found, asked = solved(10.0**value, 10.0**unit, shift, sparse, start)
        np.testing.assert_allclose(found, usual, rtol=0, atol=1e-6)
        assert asked < 700

    in_units()


def test_a_gradient_of_rounding_errors_costs_little():
    """The optimum is 0, where nothing is left by which to see that a gradient is small."""
    A = ROWS * [1.0, 0.1, 0.01]
    targets = SCORE - A @ np.linalg.lstsq(A, SCORE, rcond=None)[0]
    for away in (0.0, 1e-15, 1e-9):
        f = InOwnUnits(LeastSquares(A, targets), 1e-12, 1.0)
        found = Exact().solve(LocalProblem(f, away * np.ones(3), shift=1e-15))
        assert np.abs(found.x).max() < 1e-10
        assert f.asked < 3000


def test_a_quadratic_model_that_is_all_but_singular():
    """The pull that makes it solvable leaves its minimiser where it is."""
    rng = np.random.default_rng(0)
    t = rng.normal(size=(200, 2))
    A = np.c_[t[:, 0], t[:, 0] + 1e-5 * t[:, 1], rng.normal(size=200)] * [1.0, 1e8, 1e-7]
    b = A @ [2.0, 1e-8, 3e7]
    model = QuadraticModel(A.T @ A, A.T @ b, 0.0)
    x = minimizer(model, Zero(), np.zeros(3))
    np.testing.assert_allclose(x * [1.0, 1e8, 1e-7], [2, 1, 3], atol=1e-4)
    shares = apart(model.H, (np.zeros(3), np.zeros(3)), np.ones(3))
    assert shares[0] == pytest.approx(1e-10, rel=0.2)
    assert shares[2] > 0.9


def test_an_optimum_that_rounding_keeps_out_of_reach_says_why():
    """Two columns differ in their last digits alone."""
    rng = np.random.default_rng(0)
    t = rng.normal(size=200)
    A = np.c_[t, t + 3e-8 * rng.normal(size=200), rng.normal(size=200)] * [1.0, 1e6, 1e-6]
    y = np.where(rng.random(200) < 0.5, 1, -1)
    with pytest.raises(FedConError, match=r"of entry 0, entry 1 only \de-1\d is"):
        solve([LogisticRegression(A, y)], Zero(), np.zeros(3), max_iterations=2000)


def test_classes_common_change_is_no_collinearity():
    """Softmax has it by design; equal columns are told all the same."""
    rng = np.random.default_rng(6)
    A, none = rng.normal(size=(50, 2)), (np.zeros(6), np.zeros(6))
    classes = np.eye(3) / 3 - np.ones((3, 3)) / 9
    assert apart(np.kron(A.T @ A, classes), none, np.ones((2, 3))).min() > 0.1
    A[:, 1] = A[:, 0]
    assert apart(np.kron(A.T @ A, classes), none, np.ones((2, 3))).max() < 1e-12
