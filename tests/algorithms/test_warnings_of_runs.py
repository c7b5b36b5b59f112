"""What a run warns of: a bias of its method, constants that do not fit, an end above the start."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from problems import q6, q6_l1, q6_objectives

from flower_fedcon import (
    Available,
    Cyclic,
    FederatedProblem,
    Full,
    Markov,
    Only,
    Participation,
    Sample,
    Weighted,
    simulate,
)
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.advice.facts import facts_of
from flower_fedcon.objectives import LeastSquares, LossBound, Quadratic
from flower_fedcon.problems.fitting import why_unfit
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import L1, Regularizer
from flower_fedcon.sets import L2Ball
from flower_fedcon.strategies import (
    AREA,
    FRECON,
    MIFA,
    SDANE,
    AveragedFW,
    DualFL,
    FastFedDA,
    FedAvg,
    FedDR,
    FedDyn,
    FedExProx,
    FedFW,
    FedFWPlus,
    FedMiD,
    FedNewton,
    FedProx,
    FedSGM,
    FedVARP,
    FiveGCS,
    LoCoDL,
    Scaffold,
)

UNEQUAL = [
    Weighted([0.2, 0.9, 0.5, 0.4, 0.7, 0.3], unbiased=False),
    Markov(stay=[0.9, 0.1, 0.5, 0.5, 0.8, 0.3], back=0.4),
    Cyclic(groups=4, count=1),
]
BALL = FederatedProblem(q6_objectives(), constraint=L2Ball(1.0))
LONG = {"client_lr": 0.3, "local_steps": 1}  # L = 20


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """Run, and return what the log warns of."""

    def run(strategy: Any, problem: FederatedProblem, rounds: int = 2, **more: Any) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            simulate(strategy, problem, rounds, **more)
        return caplog.text

    return run


# --- clients that take part unequally often ------------------------------------------------------

MEMORIES = {
    "area": (AREA, {}), "mifa": (MIFA, {}), "fedvarp": (FedVARP, {}), "feddyn": (FedDyn, {}),
    "feddr": (FedDR, {"regularizer": None}), "scaffold": (Scaffold, {"local_steps": 2}),
    "fednewton": (FedNewton, {}), "fedfw": (FedFW, {"constraint": L2Ball(1.0)}),
    "fedfwplus": (FedFWPlus, {"constraint": L2Ball(1.0)}), "frecon": (FRECON, {}),
}  # fmt: skip
"""Methods whose limit is the same however often each client takes part."""
MEANS = {
    "fedavg": (FedAvg, {}), "fedprox": (FedProx, {}), "fedexprox": (FedExProx, {}),
    "sdane": (SDANE, {}), "fedmid": (FedMiD, {"regularizer": None, "local_steps": 2}),
    "averagedfw": (AveragedFW, {"constraint": L2Ball(1.0)}),
}  # fmt: skip


def test_what_is_said_of_unequal_shares_is_what_cards_say() -> None:
    """The same of `Buffered` and of rules: a limit depends on how often clients answer, or not."""
    for name, kind in algorithms().items():
        even = not kind.favours_frequent()
        assert even == (name in MEMORIES), name
        if name not in ("fedfw", "fedfwplus", "frecon"):  # which wait for their rounds
            assert even == kind.card().asynchronous.endswith("the limit is the same"), name
        if even:
            assert "whichever clients take part" in kind.card().weights, name


@pytest.mark.parametrize("name", [*MEMORIES, *MEANS])
def test_unequal_shares_are_said_where_they_matter(name: str, said: Any) -> None:
    kind, given = (MEMORIES | MEANS)[name]
    problem = BALL if "constraint" in given else q6()
    for rule in UNEQUAL:
        text = said(kind(**given, participation=rule), problem)
        assert ("clients take part unequally often" in text) == (name in MEANS), rule
    text = said(kind(**given, participation=Available([[1, 1, 0, 1, 1, 1]])), problem)
    if name in MEMORIES:
        assert "1 of 6 clients never take part (client 2), so the model is not that" in text
    else:
        assert "from 0 of the rounds (2)" in text
    for rule in (Full(), Sample(count=2), Cyclic(groups=3)):
        text = said(kind(**given, participation=rule), problem)
        assert "participation:" not in text


def test_a_rule_of_ones_own_may_miss_a_client_in_its_trial(said: Any) -> None:
    class Rare(Participation):
        def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
            return list(range(num_clients)) if rng.random() < 1e-9 else [0, 1]

        def rate(self, num_clients: int) -> float:
            return 2 / num_clients

    assert "unequally often" in said(FedAvg(participation=Rare()), q6())
    assert "participation:" not in said(MIFA(participation=Rare()), q6())


def test_a_floor_by_sampling_is_said(said: Any) -> None:
    words = "S-DANE: rounds leave clients out, and a cohort's gradient and steps leave a floor"
    assert words in said(SDANE(participation=Sample(fraction=0.5)), q6())
    assert "leave a floor" not in said(SDANE(), q6())
    assert "leave a floor" not in said(Scaffold(participation=Sample(fraction=0.5)), q6())
    assert "floor" in SDANE.card().participation


# --- strong convexity ----------------------------------------------------------------------------


def with_flat(*others: Any) -> FederatedProblem:
    """Return a problem of a strongly convex client and others."""
    return FederatedProblem([Quadratic(np.diag([1.0, 3.0]), np.ones(2)), *others])


CONSTANT = Quadratic(np.zeros((2, 2)), np.zeros(2))
FLAT = LeastSquares(np.array([[1.0, 0.0]]), np.ones(1))


@pytest.mark.parametrize("kind", [LoCoDL, FiveGCS, DualFL])
def test_a_modulus_that_is_stated_to_be_0(kind: Any) -> None:
    for others, words in (
        ([CONSTANT], r"client 1 states mu = 0, whose objective is constant \(L = 0.*Leave such"),
        ([CONSTANT] * 2, r"clients 1, 2 state mu = 0, whose objectives are constant"),
        ([FLAT], r"client 1 states mu = 0\. Give each objective a square"),
        ([FLAT, CONSTANT], r"clients 1, 2 state mu = 0, of which client 2 has a constant obj"),
    ):
        with pytest.raises(ConfigError, match=words):
            simulate(kind(), with_flat(*others), 1)


def test_methods_that_are_left_out_for_a_modulus_of_0() -> None:
    known = {"each": False, "sampled": False, "convex": True}
    for strongly_convex, words in ((False, "mu is 0 for some client"), (None, "mu is not known")):
        why = why_unfit(LoCoDL.card(), LoCoDL, strongly_convex=strongly_convex, **known)
        assert words in why


def test_a_problem_without_slope_has_a_known_smoothness() -> None:
    problem = FederatedProblem([CONSTANT, CONSTANT])
    assert any("L = 0" in line for line in facts_of(problem, Full()).lines())


def test_a_modulus_above_what_a_theory_takes_is_said(said: Any) -> None:
    problem = with_flat(Quadratic(np.eye(2), np.ones(2)))  # mu = 1, L = 3
    words = "strong_convexity=2 is above the clients' mu = 1, so its theory does not hold"
    for kind in (LoCoDL, FiveGCS, SDANE):
        assert words in said(kind(strong_convexity=2.0), problem)
        assert "strong_convexity" not in said(kind(strong_convexity=1.0), problem)
        above = "strong_convexity=3.5 is above the smoothness L = 3, which no mu exceeds"
        assert above in said(kind(strong_convexity=3.5), problem)
    psi = L1(0.1)
    convex = FederatedProblem(problem.objectives, regularizer=psi)
    guess = FastFedDA(psi, strong_convexity=2.0, local_steps=1)  # of a restricted one
    assert "strong_convexity" not in said(guess, convex)
    above = FastFedDA(psi, strong_convexity=4.0, local_steps=1)
    assert "above the smoothness L = 3" in said(above, convex)
    for kind in (LoCoDL, FiveGCS):
        with pytest.raises(ConfigError, match="strong_convexity must be"):
            kind(strong_convexity=-1.0)


# --- an end above the start ----------------------------------------------------------------------


class Above(Regularizer):
    """0 for entries above 0, infinite elsewhere."""

    def value(self, x: Any) -> float:
        return 0.0 if (x >= 0).all() else np.inf

    def prox(self, v: Any, step: float) -> Any:
        return np.maximum(v, 0.0)

    def scaled(self, factor: float) -> Above:
        return self


WORDS = "above F(x0) = "


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_an_end_above_the_start_is_said(engine: str, said: Any) -> None:
    text = said(FedAvg(**LONG), q6(), 10, engine=engine)
    assert "FedAvg (subgradient): the objective ends at" in text
    assert f"{WORDS}0, and the clients state L = 20" in text
    assert WORDS not in said(FedAvg(**LONG), q6(), 3, engine=engine)  # it may just have begun
    for good in (FedAvg(client_lr=0.05, local_steps=1), Scaffold(), SDANE()):
        assert WORDS not in said(good, q6(), 10, engine=engine)
    assert WORDS in said(FedAvg(**LONG, participation=Sample(count=3)), q6(), 10, evaluate_every=0)


def away(*, at: Any, **more: Any) -> FederatedProblem:
    """Return a problem with the optimum (5, 0) without its constraint, and a start."""
    clients = [Quadratic(np.eye(2), np.array([c, 0.0])) for c in (4.0, 6.0)]
    return FederatedProblem(clients, x0=np.array(at), **more)


def test_there_is_no_false_alarm(said: Any) -> None:
    """Not of a start that the problem does not allow, nor of methods with another objective."""
    step: dict[str, Any] = {"client_lr": 0.5, "local_steps": 1}
    ball, psi = L2Ball(1.0), Above()
    raised = [
        (FedMiD(ball, **step), away(at=[4.0, 0.0], constraint=ball), {}),
        (FedAvg(**step), away(at=[0.0, 0.0], regularizer=L1(9.0)), {"on_mismatch": "warn"}),
        (DualFL(regularization=1.0), away(at=[5.0, 0.0]), {}),
        (FedAvg(**step, participation=Only(0)), away(at=[5.0, 0.0]), {}),
        (FedAvg(**step, clip=0.1), FederatedProblem([
            *away(at=[0.0, 0.0]).objectives, Quadratic(np.eye(2), np.array([-90.0, 0.0]))],
            x0=np.array([-80 / 3, 0.0])), {}),
        (FedAvg(**step, aggregation=CoordinateMedian()), FederatedProblem([
            *away(at=[0.0, 0.0]).objectives, Quadratic(np.eye(2), np.array([-90.0, 0.0]))],
            x0=np.array([-80 / 3, 0.0])), {}),
        (FedSGM(client_lr=0.1, local_steps=1, tolerance=0.01, constraints="each"),
         FederatedProblem([LossBound(Quadratic(np.eye(2), np.array([c, 0.0])), bound)
                           for c, bound in ((4.0, -7.8), (6.0, 0.0))],
                          x0=np.array([5.0, 0.0]), constraints="each"), {}),
    ]  # fmt: skip
    for strategy, problem, more in raised:
        history = simulate(strategy, problem, 12, **more)
        start = problem.objective(problem.x0)
        assert history["objective"][-1] > start + 1e-3, strategy
        assert WORDS not in said(strategy, problem, 12, **more), strategy
    below = away(at=[-1.0, 0.0], regularizer=psi)
    assert below.objective(below.x0) == np.inf
    assert WORDS not in said(FedMiD(psi, **step), below, 12)
    at_optimum = away(at=[5.0, 0.0])
    assert WORDS not in said(FedAvg(**step), at_optimum, 12)
    assert WORDS not in said(FedAvg(**step), FederatedProblem([CONSTANT] * 2), 12)
    assert q6_l1().objective(np.zeros(8)) == 0.0
