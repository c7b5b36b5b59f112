"""Unequal probabilities of taking part, and means that weigh uploads by them."""

from __future__ import annotations

import itertools
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everywhere import agrees_everywhere
from hypothesis import given
from hypothesis import strategies as st
from problems import q6_objectives

from flower_fedcon import (
    Available,
    Cyclic,
    FedConError,
    FederatedProblem,
    Markov,
    Participation,
    Weighted,
    simulate,
)
from flower_fedcon.core.participation import Draws
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import AlgorithmError, ConfigError, ParticipationError
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.regularizers import L1
from flower_fedcon.runs.toml import argument, parse_value, tabled, write_value
from flower_fedcon.strategies import (
    CompositeFL,
    FedAvg,
    FedDR,
    FedExProx,
    FedMiD,
    FedProx,
    Scaffold,
)

UNEQUAL = [0.2, 0.9, 0.5, 0.4, 0.7, 0.3]


class Given:
    """Draws that are given, in the place of a generator."""

    def __init__(self, **draws: Any) -> None:
        for name, value in draws.items():
            setattr(self, name, lambda *args, value=value, **more: value)


def all_cohorts(rule: Weighted, n: int) -> list[tuple[list[int], float]]:
    """Return every cohort of a rule, as it draws them, with its probability."""
    found: list[tuple[list[int], float]] = []
    weights = np.array(rule.weights)
    if rule.count is None:
        for bits in itertools.product((0.0, 1.0), repeat=n):  # 0: below the weight, so drawn
            if min(bits) == 0.0:
                chance = math.prod(
                    1 - w if bit else w for w, bit in zip(weights, bits, strict=True)
                )
                chance /= 1 - np.prod(1 - weights)
                found.append((rule.draw(n, Given(random=np.array(bits))), chance))  # type: ignore[arg-type]
    elif rule.replacement:
        shares = weights / weights.sum()
        for drawn in itertools.product(range(n), repeat=rule.count):
            chance = math.prod(shares[list(drawn)])
            found.append((rule.draw(n, Given(choice=np.array(drawn))), chance))  # type: ignore[arg-type]
    else:
        p = rule.inclusion(n)
        orders = list(itertools.permutations(np.flatnonzero(p < 1)))
        for order in orders:
            cuts = np.unique([0.0, *(np.cumsum(p[list(order)]) % 1), 1.0])
            for low, high in itertools.pairwise(cuts):
                rng = Given(permutation=np.array(order, dtype=int), random=(low + high) / 2)
                found.append((rule.draw(n, rng), (high - low) / len(orders)))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    "rule",
    [
        Weighted([0.2, 0.9, 0.5, 0.4]),
        Weighted([1.0, 2.0, 3.0, 4.0], count=2),
        Weighted([1.0, 1.0, 2.0, 40.0], count=3),
        Weighted([1.0, 2.0, 3.0, 4.0], count=3, replacement=True),
    ],
    ids=repr,
)
def test_means_over_all_cohorts_are_the_mean_of_everyone(rule: Weighted) -> None:
    """Exactly, of arrays and numbers, one by one and stacked, around 0 and around a point."""
    n = 4
    values, about = np.random.default_rng(0).normal(size=(n, 3)), np.arange(3.0)
    p = rule.inclusion(n)
    included, means, points, numbers, plain = np.zeros(n), 0.0, 0.0, 0.0, 0.0
    for cohort, chance in all_cohorts(rule, n):
        assert cohort == sorted(set(cohort)) != []
        assert rule.size(n) in (None, len(cohort))
        included[cohort] += chance
        one = [Reply([c], 1, {"v": [values[c]], "k": [float(values[c, 0])]}) for c in cohort]
        many = [Reply(cohort, 1, {"v": values[cohort]})]
        uploads, stacked = (Uploads(replies, n, inclusion=p) for replies in (one, many))
        means += chance * uploads.mean("v")
        points += chance * stacked.mean("v", about=about)
        numbers += chance * uploads.mean_number("k")
        plain += chance * Uploads(one, n).mean("v")
        assert np.allclose(stacked.mean("v"), uploads.mean("v"), rtol=1e-14, atol=0)
    assert included == pytest.approx(p, rel=1e-12)
    assert p.mean() == pytest.approx(rule.rate(n), rel=1e-12)
    assert means == pytest.approx(values.mean(axis=0), rel=1e-12)
    assert points == pytest.approx(values.mean(axis=0), rel=1e-12)
    assert numbers == pytest.approx(values[:, 0].mean(), rel=1e-12)
    assert abs(plain - values.mean(axis=0)).max() > 0.02


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9),
    st.data(),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_weights_make_cohorts(
    weights: list[float], data: st.DataObject, replacement: bool, seed: int
) -> None:
    n = len(weights)
    size = data.draw(st.integers(1, n))
    rule = Weighted(weights, count=size, replacement=replacement)
    p = rule.inclusion(n)
    assert ((p > 0) & (p <= 1 + 1e-12)).all()
    order = np.argsort(weights)
    assert (np.diff(p[order]) >= -1e-12).all()
    assert p.sum() <= size + 1e-9
    cohort = rule.draw(n, np.random.default_rng(seed))
    assert cohort == sorted(set(cohort)) != []
    assert len(cohort) <= size
    if not replacement:
        assert p.sum() == pytest.approx(size, rel=1e-9)
        assert len(cohort) == size
        assert {*np.flatnonzero(p == 1).tolist()} <= {*cohort}


def test_weights_of_examples_and_of_probabilities_multiply() -> None:
    values, examples, p = (
        np.array([[1.0], [2.0], [6.0]]),
        [1.0, 2.0, 1.0],
        np.array([0.5, 1.0, 0.2]),
    )
    uploads = Uploads([Reply([0, 2], 1, {"v": values[[0, 2]]})], 3, None, examples, inclusion=p)
    assert uploads.mean("v") == pytest.approx([(1 / 4) / 0.5 * 1.0 + (1 / 4) / 0.2 * 6.0])
    with pytest.raises(AlgorithmError, match="needs_uniform"):
        uploads.sum("v")


def test_a_first_round_by_hand() -> None:
    """Of two clients at 0 the first has p = 1/4, the other 1; both are drawn with this seed."""
    problem = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (1.0, 3.0)])
    rule = Weighted([0.25, 1.0])
    for seed in range(40):
        history = simulate(
            FedAvg(client_lr=0.5, local_steps=1, participation=rule), problem, 1, seed=seed
        )
        # (1/2) (0.5 * 1 / 0.25 + 0.5 * 3 / 1), or the second term alone
        expected = 1.75 if history["cohort"][0] == 2 else 0.75
        assert history.x == pytest.approx([expected], rel=1e-15)
    moved = simulate(FedProx(proximal=1.0, participation=rule), problem, 1, seed=seed).x
    assert moved == pytest.approx([0.75] if expected == 0.75 else [1.75])  # v = b/2, around 0


def test_a_run_has_no_bias_on_average() -> None:
    problem = FederatedProblem(q6_objectives())
    optimum = problem.optimum.x
    ends = {}
    for unbiased in (None, False):
        rule = Weighted(UNEQUAL, unbiased=unbiased)
        strategy = FedAvg(client_lr=0.004, local_steps=1, participation=rule)
        points: list[Any] = []
        simulate(
            strategy, problem, 3000, engine="stacked", evaluate_every=10,
            evaluate=lambda number, x: points.append(x) or {},  # noqa: B023
        )  # fmt: skip
        ends[unbiased] = np.linalg.norm(np.mean(points[100:], axis=0) - optimum)
    assert ends[None] < 0.05 < 0.3 < ends[False]


TRACE = [[1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 1]]


@pytest.mark.parametrize(
    "rule",
    [
        Cyclic(groups=4, unbiased=True),
        Available(TRACE, unbiased=True),
        Markov(stay=[0.9, 0.1, 0.5, 0.5, 0.8, 0.3], back=0.4, unbiased=True),
    ],
    ids=repr,
)
def test_who_comes_and_goes_counts_alike_over_time(rule: Participation) -> None:
    """The mean over rounds of what each client counts is 1/N; exactly, for turns and traces."""
    drawn = Draws(rule, 6, lambda server_round: stream(0, COHORT, server_round))
    rounds, p, counted = 2400, rule.inclusion(6), np.zeros(6)
    assert p is not None
    for number in range(1, rounds + 1):
        cohort = drawn.cohort(number)
        counted[cohort] += 1 / (6 * p[cohort])
    exact = not isinstance(rule, Markov)
    assert counted / rounds == pytest.approx(1 / 6, rel=1e-12 if exact else 0.1)
    problem = FederatedProblem(q6_objectives())
    moved = [
        simulate(FedAvg(client_lr=0.01, local_steps=1, participation=each), problem, 1).x
        for each in (rule, argument("participation", parse_value(write_value(tabled(rule)))))
    ]
    assert np.array_equal(*moved)
    cohort, x0 = drawn.cohort(1), problem.start
    step = sum(-0.01 * problem.objectives[j].gradient(x0) / (6 * p[j]) for j in cohort)
    assert moved[0] == pytest.approx(x0 + step, rel=1e-12)


@pytest.mark.parametrize("rule", [Weighted(UNEQUAL), Weighted(UNEQUAL, count=2)], ids=repr)
def test_engines_wires_and_resumed_runs_agree(rule: Weighted, tmp_path: Path) -> None:
    problem = FederatedProblem(q6_objectives(), regularizer=L1(0.1))
    strategy = FedMiD(problem.regularizer, client_lr=0.02, local_steps=3, participation=rule)
    engines = ("stacked",) if rule.count is None else ("stacked", "jax")
    agrees_everywhere(strategy, problem, tmp_path, engines=engines)


def test_rules_that_are_everyone() -> None:
    rules = [
        Weighted({"a": 1, "b": 1}), Weighted([1, 1]), Weighted("examples", count=2),
        Weighted([1, 9], count=2), Weighted([1, 0.5]), Weighted({"a": 1, "b": 0.5}),
        Weighted("examples", count=1), Weighted([1, 1], count=2, replacement=True),
    ]  # fmt: skip
    assert [rule.is_full(2) for rule in rules] == [True] * 4 + [False] * 4


def test_weights_by_name_and_by_examples() -> None:
    A = np.random.default_rng(0).normal(size=(12, 2))

    parts = {"a": slice(0, 2), "b": slice(2, 5), "c": slice(5, 12)}
    objectives = [LeastSquares(A[p], A[p, 0]) for p in parts.values()]
    problem = FederatedProblem(objectives, names=[*parts])
    ends = [
        simulate(FedAvg(client_lr=0.1, local_steps=1, participation=rule), problem, 8, seed=3).x
        for rule in (
            Weighted("examples", count=2),
            Weighted({"c": 7, "a": 2, "b": 3}, count=2),
            Weighted([2, 3, 7], count=2),
        )
    ]
    assert np.array_equal(ends[0], ends[2])
    assert np.array_equal(ends[1], ends[2])
    for rule, text in (
        (Weighted({"a": 1, "d": 2}, count=1), "'d'"),
        (Weighted({"a": 1}, count=1), "b, c"),
    ):
        with pytest.raises(ConfigError, match=text):
            simulate(FedAvg(client_lr=0.1, local_steps=1, participation=rule), problem, 1)


class Mine(Participation):
    """The last client always, each other with probability 1/2."""

    unbiased = True

    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        return [*np.flatnonzero(rng.random(num_clients - 1) < 0.5).tolist(), num_clients - 1]

    def rate(self, num_clients: int) -> float:
        return float(self.inclusion(num_clients).mean())

    def inclusion(self, num_clients: int) -> Any:
        return np.array([0.5] * (num_clients - 1) + [1.0])


def test_a_rule_of_ones_own_says_its_probabilities(caplog: pytest.LogCaptureFixture) -> None:
    problem = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (1.0, 3.0)])
    with caplog.at_level(logging.WARNING):
        history = simulate(FedAvg(client_lr=0.5, local_steps=1, participation=Mine()), problem, 1)
    assert history.x[0] in (0.75, 1.25)  # (1/2) (0.5 * 3), and (1/2) (0.5 * 1 / 0.5) more
    assert not caplog.records

    class Silent(Mine):
        def inclusion(self, num_clients: int) -> Any:
            return None

        def rate(self, num_clients: int) -> float:
            return 0.5

    with pytest.raises(ParticipationError, match="Silent has unbiased=True"):
        simulate(FedAvg(client_lr=0.5, local_steps=1, participation=Silent()), problem, 1)


def test_other_methods_refuse_weights_or_warn(caplog: pytest.LogCaptureFixture) -> None:
    problem = FederatedProblem(q6_objectives())
    options: dict[str, Any] = {"client_lr": 0.01, "local_steps": 1}
    weighed = Scaffold(**options, participation=Weighted(UNEQUAL, unbiased=True))
    with pytest.raises(ParticipationError, match=r"Scaffold cannot weigh uploads .*unbiased=False"):
        simulate(weighed, problem, 1)
    composite = CompositeFL(L1(0.1), **options, participation=Weighted(UNEQUAL, count=2))
    with pytest.raises(ParticipationError, match="Sample"):
        simulate(composite, FederatedProblem(q6_objectives(), regularizer=L1(0.1)), 1)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        simulate(Scaffold(**options, participation=Weighted(UNEQUAL)), problem, 1)
        assert "unequally often" not in caplog.text  # its limit is the same
        simulate(FedExProx(participation=Weighted(UNEQUAL)), problem, 1)
    assert "unequally often" in caplog.text
    assert Scaffold.card().weights.startswith("none: c is the mean")
    assert FedDR.card().weights.startswith("none: ")
    assert FedAvg.card().weights.startswith("1/(N p_i)")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Weighted([0.5, 1.5]), r"\(0, 1\]"),
        (lambda: Weighted([0.0, 1.0], count=1), "> 0"),
        (lambda: Weighted([float("nan")], count=1), "> 0"),
        (lambda: Weighted(["x"], count=1), "> 0"),  # type: ignore[list-item]
        (lambda: Weighted("rows", count=1), "examples"),
        (lambda: Weighted("examples"), "needs count"),
        (lambda: Weighted([1.0], replacement=True), "needs count"),
        (lambda: Weighted([1.0, 1.0], count=3).rate(2), "more than the 2 clients"),
        (lambda: Weighted([1.0, 1.0], count=1).inclusion(3), "3 clients.*2 numbers"),
        (lambda: Available([[1, 0]], unbiased=True), "client 1 is never there"),
        (lambda: Weighted([1.0], count=1, unbiased="yes"), "true or false"),  # type: ignore[arg-type]
    ],
)
def test_bad_weights_are_named(make: Any, text: str) -> None:
    with pytest.raises(FedConError, match=text):
        make()


@pytest.mark.parametrize(
    "rule",
    [
        Weighted([0.5, 0.25], unbiased=False),
        Weighted("examples", count=2),
        Weighted({"a": 1.0, "b c": 2.0}, count=1, replacement=True),
    ],
    ids=repr,
)
def test_files_state_it(rule: Weighted) -> None:
    stated = write_value(tabled(rule))
    assert argument("participation", parse_value(stated)) == rule
