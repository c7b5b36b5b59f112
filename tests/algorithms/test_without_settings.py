"""Strategies without a hyperparameter: rules that follow the units, and never diverge."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from contract import EACH, FIRST, build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import nightly
from problems import KINDS, q6_objectives, random_objective

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.core import answers
from flower_fedcon.core.scales import MARGIN, estimate
from flower_fedcon.errors import ConfigError, DivergedError, FedConError
from flower_fedcon.objectives import (
    LeastSquares,
    PoissonRegression,
)
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.problems.mismatch import why_mismatched
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import L1, ElasticNet, Indicator, L2Squared
from flower_fedcon.regularizers.rescaled import rescaled
from flower_fedcon.runs import scouting
from flower_fedcon.sets import Box, L1Ball, L2Ball
from flower_fedcon.strategies import (
    SDANE,
    APDAInexact,
    FedAvg,
    FedDyn,
    FedFW,
    FedFWPlus,
    FedLin,
    FedPD,
    FedProx,
    FedProxAL,
    Scaffnew,
    Scaffold,
)

SEVERAL = (FedAvg, Scaffold, FedLin, FedPD, FedDyn, FedProx, Scaffnew, APDAInexact, SDANE)


class Plain:
    """An objective that states nothing but its values and gradients."""

    def __init__(self, inner, scale=1.0, unit=1.0):
        self._inner, self._scale, self._unit = inner, scale, unit
        self.shape = inner.shape

    def value(self, x):
        return self._scale * self._inner.value(x / self._unit)

    def gradient(self, x):
        return self._scale / self._unit * self._inner.gradient(x / self._unit)


@EACH
def test_every_method_runs_without_a_setting(name):
    problem = FIRST[name].problem()
    rounds = 4 if name in SLOW else 30
    history = simulate(build(name, problem), problem, rounds, engine="stacked", evaluate_every=0)
    start = problem.objective(problem.start)
    assert np.isfinite(history.x).all()
    if not problem.has_functional_constraint:
        assert history["objective"][-1] <= start + 1e-9


@EACH
def test_settings_given_are_not_touched(name):
    case = FIRST[name]
    made = build(name, case.problem(), **case.settings)
    before = made.arguments()
    simulate(made, case.problem(), 1, evaluate_every=0)
    assert made.arguments() is not before
    assert {k: repr(v) for k, v in made.arguments().items()} == {
        k: repr(v) for k, v in before.items()
    }


def plain_problem(scale=1.0, unit=1.0):
    clients = [Plain(objective, scale, unit) for objective in q6_objectives()]
    return FederatedProblem(clients, x0=np.zeros(8))


@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize(("scale", "unit"), [(1e6, 1.0), (1.0, 1e-5), (1e-4, 1e3)])
def test_rules_follow_the_units_where_constants_are_estimated(kind, scale, unit):
    """With x in other units, and f in others: the same model in those."""
    first = simulate(kind(), plain_problem(), 4, evaluate_every=0).x
    other = simulate(kind(), plain_problem(scale, unit), 4, evaluate_every=0).x
    np.testing.assert_allclose(other / unit, first, rtol=1e-3, atol=1e-6)


class InUnits(Plain):
    """c f(x / u), with all that f states."""

    def __init__(self, inner, scale, unit):
        super().__init__(inner, scale, unit)
        bend = scale / unit**2
        self.smoothness = bend * inner.smoothness
        self.strong_convexity = bend * inner.strong_convexity
        self.hessian = lambda x: bend * inner.hessian(x / unit)
        if hasattr(inner, "constraint_value"):
            self.constraint_value = lambda x: inner.constraint_value(x / unit)
            self.constraint_gradient = lambda x: inner.constraint_gradient(x / unit) / unit


def in_units(given, scale, unit):
    """Return scale * F(x / unit), with the set or the regularizer in the same units."""

    def carried(psi):
        return rescaled(psi, np.full(given.start.shape, 1 / unit))[1]

    more = {}
    if given.regularizer is not None:
        more["regularizer"] = carried(given.regularizer).scaled(scale)
    if given.constraint is not None:
        more["constraint"] = carried(Indicator(given.constraint)).constraint
    if given.has_functional_constraint:
        more["constraints"] = given.constraints
    clients = [InUnits(f, scale, unit) for f in given.objectives]
    return FederatedProblem(clients, x0=given.start * unit, **more)


@pytest.mark.parametrize("examples", [2, nightly(30)])
@EACH
def test_every_rule_follows_the_units(name, examples):
    """Units that are powers of 2 change no digit of a run by rules, whatever the method."""

    def run(scale, unit):
        problem = in_units(FIRST[name].problem(), scale, unit)
        return simulate(build(name, problem), problem, 6, evaluate_every=0).x / unit

    first = run(1.0, 1.0)

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(st.integers(-80, 80), st.integers(-40, 40))
    def the_same(scale, unit):
        near = {"rtol": 0, "atol": 1e-9 * np.abs(first).max()}
        np.testing.assert_allclose(run(2.0**scale, 2.0**unit), first, **near)

    the_same()


def test_what_fedproxal_has_with_numbers_is_as_it_was():
    """kappa and s follow from a given penalty, and no gradient at the start is asked for."""
    walls = FIRST["fedproxal"].problem()
    one = simulate(FedProxAL(penalty=10.0, accuracy=1.0), walls, 20)
    other = simulate(FedProxAL(penalty=10.0), walls, 20)
    assert one.x.tobytes() == other.x.tobytes()
    by_rule = simulate(FedProxAL(), walls, 60)
    assert 1e-5 < np.abs(by_rule.x - walls.optimum.x).max() < 5e-3
    with pytest.raises(ConfigError, match='FedProxAL takes no penalty="auto"'):
        FedProxAL(penalty="auto")


@pytest.mark.parametrize(("kind", "weaker"), [(FedFW, 1), (FedFWPlus, 20)])
def test_the_penalty_of_frank_wolfe_is_the_rule_of_its_card(kind, weaker, tmp_path):
    constraint = L1Ball(0.3)
    problem = FederatedProblem(q6_objectives(), constraint=constraint)
    steepest = max(np.linalg.norm(f.gradient(np.zeros(8))) for f in problem.objectives)
    rule = steepest / (weaker * 6 * constraint.diameter_for((8,)))
    left = simulate(kind(constraint), problem, 20).x
    assert left.tobytes() == simulate(kind(constraint, penalty=rule), problem, 20).x.tobytes()
    simulate(kind(constraint), problem, 8, run_dir=tmp_path, checkpoint_every=4)
    resumed = simulate(kind(constraint), problem, 20, run_dir=tmp_path, resume=True)
    assert resumed.x.tobytes() == left.tobytes()


def poisson_problem(seed=0):
    rng = np.random.default_rng(seed)
    w, clients = np.array([1.5, -1.0, 0.5, 2.0]), []
    for _ in range(4):
        A = rng.normal(size=(30, 4))
        clients.append(PoissonRegression(A, rng.poisson(np.exp(A @ w)).astype(float)))
    return FederatedProblem(clients)


@pytest.fixture
def too_small(monkeypatch):
    """Let every estimate be 64 times too small."""
    right = answers.estimate

    def small(*of, **how):
        found = right(*of, **how)
        return found._replace(smoothness=found.smoothness * 1 / 64)

    monkeypatch.setattr(answers, "estimate", small)


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.usefixtures("too_small")
def test_an_estimate_that_is_too_small_is_made_larger(engine, caplog):
    problem = poisson_problem()
    with caplog.at_level(logging.INFO):
        history = simulate(FedAvg(), problem, 120, engine=engine, evaluate_every=30)
    assert "do not state their smoothness" in caplog.text
    assert "the run starts again from x0" in caplog.text
    assert history["objective"][-1] - problem.optimum.value < 1e-8
    assert list(history["round"]) == [30, 60, 90, 120]


@pytest.mark.usefixtures("too_small")
def test_a_run_that_has_started_again_is_resumed_to_the_same_bytes(tmp_path, caplog):
    problem = poisson_problem()
    whole = simulate(FedAvg(), problem, 60)
    simulate(FedAvg(), problem, 20, run_dir=tmp_path)
    assert "the run starts again from x0" in caplog.text
    resumed = simulate(FedAvg(), problem, 60, run_dir=tmp_path, resume=True)
    assert resumed.x.tobytes() == whole.x.tobytes()


def test_clients_that_bend_more_and_more_need_no_second_start(caplog):
    """The exponential: steps that are tried at the start say how much."""
    problem = poisson_problem()
    history = simulate(FedAvg(), problem, 120, evaluate_every=0)
    assert "starts again" not in caplog.text
    assert history["objective"][-1] - problem.optimum.value < 1e-8


def test_under_privacy_nothing_is_estimated():
    private = FedAvg(privacy=GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5))
    with pytest.raises(ConfigError, match=r"smoothness L is unknown: give client_lr.*no noise"):
        simulate(private, plain_problem(), 2)


# --- never diverges ------------------------------------------------------------------------


def random_problem(seed):
    rng = np.random.default_rng(seed)
    kind = rng.choice(KINDS)
    d, n, unit = int(rng.integers(1, 6)), int(rng.integers(2, 6)), 10.0 ** rng.uniform(-3, 3)
    rows = int(rng.integers(1, 12))
    clients = [random_objective(kind, rng, rows, d, unit) for _ in range(n)]
    if rng.random() < 0.3:
        clients = [Plain(c) for c in clients]
    size = 10.0 ** rng.uniform(-2, 2) / unit
    term = [
        {}, {}, {"regularizer": L1(0.1 * unit)}, {"regularizer": ElasticNet(0.1, 0.1)},
        {"regularizer": L2Squared(unit)}, {"constraint": L1Ball(size)},
        {"constraint": L2Ball(size)}, {"constraint": Box(-size, size)},
    ][rng.integers(8)]  # fmt: skip
    shape = (d, 3) if kind == "softmax" else (d,)
    rule = Full() if rng.random() < 0.5 else Sample(count=int(rng.integers(1, n + 1)))
    return FederatedProblem(clients, x0=np.zeros(shape), **term), rule


def growth(name, problem, rule, rounds):
    """Return by how much the objective has grown, over what it had to fall at first; or None."""
    try:
        strategy = build(name, problem, participation=rule)
        if why_mismatched(strategy, problem):
            return None
        history = simulate(strategy, problem, rounds, engine="stacked", evaluate_every=rounds)
    except DivergedError:
        return np.inf
    except FedConError:  # a problem or cohorts that the method refuses
        return None
    if name in ("fedfw", "fedfwplus", "averagedfw"):  # each step may lead to any vertex of the set
        assert problem.constraint.violation(history.x) < 1e-6 * (1 + np.abs(history.x).max())
        return None
    start = problem.objective(problem.start)
    gradients = [np.linalg.norm(c.gradient(problem.start)) for c in problem.clients]
    L = max(getattr(c, "smoothness", None) or 0.0 for c in problem.clients)
    scale = max(gradients) ** 2 / L if L else abs(start) + 1
    return (history["objective"][-1] - start) / (scale + 1e-9 * abs(start) + 1e-300)


SLOW = {"fedproxal", "fednewton"}  # FedNewton takes no step of a length; FedProxAL takes minutes
NAMES = [name for name in algorithms() if name not in SLOW and name != "fedsgm"]


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(st.integers(0, 10**6), st.sampled_from(NAMES))
def test_no_method_diverges_by_its_rules(seed, name):
    problem, rule = random_problem(seed)
    found = growth(name, problem, rule, 20)
    assert found is None or found < 30


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_no_method_diverges_on_500_problems(part):
    for seed in range(50 * part, 50 * part + 50):
        problem, rule = random_problem(seed)
        for name in NAMES:
            found = growth(name, problem, rule, 60)
            assert found is None or found < 30, (seed, name, found)


# --- L, where clients do not state it -------------------------------------------------------------

MOST = 1 + 8 + 7 + 11  # gradients


class Quartic:
    """x^4/4 + x^2/200 - b'x: it bends little at 0, and more and more farther off."""

    def __init__(self, b):
        self.b = np.asarray(b, dtype=float)
        self.shape = self.b.shape

    def gradient(self, x):
        return x**3 + x / 100 - self.b


def random_clients(seed):
    rng = np.random.default_rng(seed)
    kind, d, rows = rng.choice(KINDS), int(rng.integers(1, 6)), int(rng.integers(2, 12))
    found = [random_objective(kind, rng, rows, d) for _ in range(int(rng.integers(1, 4)))]
    return found, (d, 3) if kind == "softmax" else (d,)


def estimated(clients, x0, length=1.0, height=1.0):
    """Return L_i of height f(x / length), and the most gradients that one took."""
    found, most = [], 0
    for f in clients:
        asked = []

        def gradient(x, f=f, asked=asked):
            asked.append(x)
            return height / length * f.gradient(x / length)

        found.append(estimate(gradient, length * x0, np.random.default_rng(0)).smoothness)
        most = max(most, len(asked))
    return np.array(found), most


def check_units(seed, length, height, *, at_zero):
    """In other units of x and of f, L is the same in those."""
    clients, shape = random_clients(seed)
    x0 = np.zeros(shape) if at_zero else np.random.default_rng(seed).normal(size=shape)
    L, taken = estimated(clients, x0)
    other, others = estimated(clients, x0, length, height)
    np.testing.assert_allclose(other * length**2 / height, L, rtol=5e-3, atol=0)
    assert max(taken, others) <= MOST
    stated = np.array([f.smoothness or np.inf for f in clients])
    assert ((1 + 1e-6) * MARGIN * stated >= L).all()


UNITS = st.floats(-12, 12).map(lambda power: 10.0**power)
RANDOM = given(st.integers(0, 10**6), UNITS, UNITS, st.booleans())


@settings(max_examples=30, deadline=None, derandomize=True)
@RANDOM
def test_an_estimate_follows_the_units(seed, length, height, at_zero):
    check_units(seed, length, height, at_zero=at_zero)


@pytest.mark.nightly
@settings(max_examples=2000, deadline=None)
@RANDOM
def test_estimates_follow_the_units_of_many(seed, length, height, at_zero):
    check_units(seed, length, height, at_zero=at_zero)


@pytest.mark.parametrize("length", [1e-9, 1e-3, 1.0, 1e4, 1e9])
@pytest.mark.parametrize("b", [0.1, 1.0, 10.0])
def test_it_holds_where_a_clients_own_steps_lead(b, length):
    """By its curvature at 0 alone L was 0.01, and steps of 1/L went to b/0.01."""
    clients = [Quartic([b, -b]), Quartic([2 * b, b])]
    L, taken = estimated(clients, np.zeros(2), length)
    L = L * length**2
    assert taken <= MOST
    for client, own in zip(clients, L, strict=True):
        at_its_minimum = 3 * np.abs(client.b).max() ** (2 / 3)
        assert 0.3 * at_its_minimum < own < 10 * at_its_minimum
        x = np.zeros(2)
        for _ in range(3):
            step = client.gradient(x) / own
            bent = client.gradient(x - step) - client.gradient(x)
            assert np.linalg.norm(bent) <= (1 + 1e-6) * own * np.linalg.norm(step)
            x = x - step


def test_a_client_at_its_own_minimum_finds_its_units():
    """Of its gradient there, which is 0 or rounding, nothing is to be learnt."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(20, 3))
    x0 = np.array([1.0, -2.0, 3.0])
    clients = [LeastSquares(A, A @ x0), LeastSquares(A, A @ x0 + 1), Quartic([0.0, 0.0, 0.0])]
    for length in (1e-9, 1.0, 1e9):
        L, _ = estimated(clients[:2], x0, length)
        np.testing.assert_allclose(L * length**2 / MARGIN, clients[0].smoothness, rtol=1e-3)
    L, _ = estimated(clients[1:], np.zeros(3))
    assert L[1] < 0.02


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_linear_objective_has_none(dtype):
    asked = []

    def gradient(x):
        asked.append(x)
        return np.ones_like(x)

    assert estimate(gradient, np.zeros(2, dtype), np.random.default_rng(0)).smoothness == 0.0
    assert len(asked) <= MOST


def test_no_client_alone_decides_the_length_of_all_steps(monkeypatch, caplog):
    """It tells 1e12 for L, and for the length of its gradient; the others about 1."""
    rng, lie = np.random.default_rng(0), {"smoothness": 1e12, "steepness": 1e12}
    problem = FederatedProblem(
        [Plain(LeastSquares(rng.normal(size=(8, 2)), np.ones(8))) for _ in range(5)]
    )
    honest = simulate(FedAvg(local_steps=2), problem, 3)
    asked = scouting.asked

    def asked_with_a_lie(*args, **more):
        found, faults = asked(*args, **more)
        return {**found, 3: {name: np.array(lie[name]) for name in found[3]}}, faults

    monkeypatch.setattr(scouting, "asked", asked_with_a_lie)
    caplog.clear()
    assert np.linalg.norm(simulate(FedAvg(local_steps=2), problem, 3).x - honest.x) < 0.5
    assert "client 3 tells a smoothness of 1e+12, more than 1000 times the median" in caplog.text
    assert "client 3 tells a steepness of 1e+12" in caplog.text
    monkeypatch.setattr(scouting, "not_believed", lambda told: [])
    assert np.abs(simulate(FedAvg(local_steps=2), problem, 3).x).max() < 1e-9
