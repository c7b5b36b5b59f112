"""Weights for how often clients take part, estimated from the gaps between their uploads."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import CONTRACTS, strategy
from everywhere import agrees_everywhere
from harness import OpenRun
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import q6

from flower_fedcon import (
    Available,
    Bernoulli,
    Buffered,
    Clock,
    Cyclic,
    Deadline,
    Estimated,
    FedConError,
    FederatedProblem,
    Full,
    Markov,
    Only,
    Participation,
    Sample,
    Weighted,
    read_cohorts,
    simulate,
)
from flower_fedcon.core.estimated import Gaps
from flower_fedcon.errors import ConfigError, ParticipationError
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.registry import algorithms, strategy_class
from flower_fedcon.runs.toml import argument, parse_value, tabled, write_value
from flower_fedcon.schedules import Inverse
from flower_fedcon.server.aggregation import CoordinateMedian
from flower_fedcon.strategies import FedAvg, FedMiD, FedProx, Scaffold

CHAINS = Markov(stay=[0.9, 0.2, 0.5, 0.6, 0.8, 0.3], back=[0.05, 0.1, 0.5, 0.2, 0.9, 0.06])
SHORT = Estimated(CHAINS, cutoff=6)


def fedau(
    gradients: list[Any], x0: Any, cohorts: list[list[int]], cutoff: int, lr: float, steps: int = 1
) -> tuple[Any, int]:
    """Return the model after these cohorts, and how many gaps were cut off: FedAU in a loop."""
    n, w, cuts = len(gradients), x0.copy(), 0
    gaps: list[list[int]] = [[] for _ in range(n)]
    misses = [0] * n
    for cohort in cohorts:
        moved = np.zeros_like(w)
        for i in range(n):
            if i in cohort:
                omega = sum(gaps[i]) / len(gaps[i]) if gaps[i] else 1.0
                v = w.copy()
                for _ in range(steps):
                    v = v - lr * gradients[i](v)
                moved += omega * (v - w) / n
                gaps[i].append(misses[i] + 1)
                misses[i] = 0
            else:
                misses[i] += 1
                if misses[i] == cutoff:
                    gaps[i].append(cutoff)
                    misses[i], cuts = 0, cuts + 1
        w = w + moved
    return w, cuts


def used(folder: Path) -> list[list[int]]:
    """Return whose uploads each round of a run used."""
    return [[int(name) for name in row["used"]] for row in read_cohorts(folder)]


@settings(deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.lists(st.sampled_from(range(4)), min_size=1, unique=True), max_size=20),
)
def test_estimates_are_means_of_past_gaps(cutoff: int, cohorts: list[list[int]]) -> None:
    noted, gaps, misses = Gaps(4, cutoff), [[] for _ in range(4)], [0] * 4  # type: ignore[var-annotated]
    for cohort in cohorts:
        again = Gaps(4, cutoff)
        again.resume(noted.snapshot())
        noted.note(sorted(cohort))
        again.note(sorted(cohort))
        for i in range(4):
            misses[i] += 1
            if i in cohort or misses[i] == cutoff:
                gaps[i].append(misses[i])
                misses[i] = 0
        means = [np.mean(each) if each else 1.0 for each in gaps]
        assert 1 / noted.shares == pytest.approx(means, rel=1e-15)
        assert again.snapshot().tolist() == noted.snapshot().tolist()


@pytest.mark.parametrize("rule", [SHORT, Estimated(CHAINS)], ids=["cut off", "whole"])
def test_a_run_is_the_loop(rule: Estimated, tmp_path: Path) -> None:
    problem = q6()
    method = FedAvg(client_lr=0.01, local_steps=3, participation=rule)
    x = simulate(method, problem, 60, run_dir=tmp_path).x
    gradients = [f.gradient for f in problem.objectives]
    w, cuts = fedau(gradients, problem.start, used(tmp_path), rule.cutoff, 0.01, 3)
    assert x == pytest.approx(w, rel=1e-12, abs=1e-14)
    assert (cuts > 0) == (rule is SHORT)


@pytest.mark.parametrize(
    "rule", [SHORT, Estimated(Cyclic(groups=3)), Estimated(Weighted([0.3, 0.9] * 3))], ids=repr
)
def test_engines_wires_and_resumed_runs_agree(rule: Estimated, tmp_path: Path) -> None:
    problem = q6(0.1)
    method = FedMiD(problem.regularizer, client_lr=0.02, local_steps=3, participation=rule)
    agrees_everywhere(method, problem, tmp_path, rounds=12)


def test_jax_leaves_such_a_run_to_the_stacked_engine(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("jax")
    method = FedAvg(client_lr=0.02, local_steps=1, participation=Estimated(Sample(count=2)))
    with caplog.at_level(logging.WARNING):
        x = simulate(method, q6(), 6, engine="jax").x
    assert "estimated from the replies of the rounds before" in caplog.text
    assert x.tobytes() == simulate(method, q6(), 6, engine="stacked").x.tobytes()


def test_clients_that_fail_take_no_part() -> None:
    """Everyone is asked in every round; a client counts if its upload is used."""
    lost = {(t, i) for t in range(1, 21) for i in (1, 4) if (t * (i + 2)) % 5 < 3}
    method = FedAvg(client_lr=0.01, local_steps=1, participation=Estimated(cutoff=4))

    def alter(asked: Any, reply: Any) -> list[Any]:
        return [] if (asked.round, asked.client) in lost else [reply]

    run = OpenRun(method, q6(), alter=alter).play(20)
    cohorts = [[i for i in range(6) if (t, i) not in lost] for t in range(1, 21)]
    gradients = [f.gradient for f in q6().objectives]
    assert run.x == pytest.approx(fedau(gradients, q6().start, cohorts, 4, 0.01)[0], rel=1e-12)
    whole = simulate(method, q6(), 5).x  # nobody fails: the plain mean
    assert whole == pytest.approx(simulate(FedAvg(client_lr=0.01, local_steps=1), q6(), 5).x)


def test_clients_that_are_late_take_no_part(tmp_path: Path) -> None:
    clock = Clock(compute=[0.5, 0.5, 3.0, 0.5, 0.5, 1.5], latency=0.0)
    rule = Estimated(Deadline(2.0, Cyclic(groups=2)))
    method = FedAvg(client_lr=0.01, local_steps=1, participation=rule)
    x = simulate(method, q6(), 12, clock=clock, run_dir=tmp_path).x
    cohorts = used(tmp_path)
    assert cohorts[:2] == [[0, 1], [3, 4, 5]]
    gradients = [f.gradient for f in q6().objectives]
    assert x == pytest.approx(fedau(gradients, q6().start, cohorts, 100_000, 0.01)[0], rel=1e-12)
    with pytest.raises(ConfigError, match="needs a clock"):
        simulate(method, q6(), 1)


class Evens(Participation):
    """Each client with its own share of the rounds, which the rule does not say."""

    def __init__(self, every: int = 2) -> None:
        self.every = every

    def step(self, memory: Any, server_round: int, num_clients: int, rng: Any) -> Any:
        there = [i for i in range(num_clients) if server_round % (1 + i % self.every) == 0]
        return there, memory

    def rate(self, num_clients: int) -> float:
        return 0.5


def test_a_rule_of_ones_own_gets_weights(tmp_path: Path) -> None:
    method = FedAvg(client_lr=0.01, local_steps=1, participation=Estimated(Evens(3)))
    x = simulate(method, q6(), 15, run_dir=tmp_path, engine="stacked").x
    gradients = [f.gradient for f in q6().objectives]
    w, _ = fedau(gradients, q6().start, used(tmp_path), 100_000, 0.01)
    assert x == pytest.approx(w, rel=1e-12)


def test_the_limit_is_nearer_to_the_optimum() -> None:
    """Unequal chains, one local step, falling steps; near what weights of known shares reach."""
    chains: dict[str, Any] = {"stay": 0.6, "back": [0.1, 0.1, 0.1, 0.6, 0.6, 0.6]}
    problem, ends = q6(), []
    for rule in (Markov(**chains), Markov(**chains, unbiased=True), Estimated(Markov(**chains))):
        method = FedAvg(client_lr=Inverse(0.02, decay=0.05), local_steps=1, participation=rule)
        run = partial(simulate, method, problem, 2000, engine="stacked", evaluate_every=2000)
        residuals = [problem.objective(run(seed=s).x) - problem.optimum.value for s in range(2)]
        ends.append(np.mean(residuals))
    plain, known, estimated = ends
    assert estimated < plain / 20
    assert estimated < 2 * known


def test_a_race_has_estimates_of_its_own_for_each_value(tmp_path: Path) -> None:
    """The one that is chosen goes on with those of its own rounds, in a resumed run too."""
    method = FedAvg(client_lr="auto", local_steps=1, participation=SHORT)
    whole = simulate(method, q6(), 60, engine="stacked", seed=2)
    (lr,) = (row["client_lr"] for row in whole.race if row["chosen"])
    others = sum(row["rounds"] for row in whole.race if not row["chosen"])
    options: dict[str, Any] = {"run_dir": tmp_path, "engine": "stacked", "seed": 2}
    simulate(method, q6(), 9, **options)
    assert simulate(method, q6(), 60, resume=True, **options).x.tobytes() == whole.x.tobytes()
    cohorts = used(tmp_path)
    assert len(cohorts) == 60 - others < 60
    gradients = [f.gradient for f in q6().objectives]
    w, cuts = fedau(gradients, q6().start, cohorts, 6, lr)
    assert whole.x == pytest.approx(w, rel=1e-12)
    assert cuts


def test_many_clients(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 400
    A, b = rng.normal(size=(n, 3, 2)), rng.normal(size=(n, 3))
    method = FedAvg(client_lr=0.05, local_steps=1, participation=Estimated(Bernoulli(0.1), 8))
    problem = FederatedProblem(ManyClients(LeastSquares, A, b))
    x = simulate(method, problem, 30, engine="stacked", run_dir=tmp_path).x
    gradients = [LeastSquares(*rows).gradient for rows in zip(A, b, strict=True)]
    w, cuts = fedau(gradients, np.zeros(2), used(tmp_path), 8, 0.05)
    assert x == pytest.approx(w, rel=1e-12)
    assert cuts > 100


def test_the_rule_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"client_lr": 0.01, "local_steps": 1}
    simulate(FedAvg(**options, participation=Sample(count=2)), q6(), 4, run_dir=tmp_path)
    method = FedAvg(**options, participation=Estimated(Sample(count=2), 5))
    more: dict[str, Any] = {"run_dir": tmp_path, "resume": True}
    with pytest.raises(FedConError, match="participation"):
        simulate(method, q6(), 8, **more)
    x = simulate(method, q6(), 8, allow_changes=["participation"], **more).x
    assert np.isfinite(x).all()


@pytest.mark.parametrize("name", algorithms())
def test_methods_weigh_or_say_why_not(name: str) -> None:
    case, kind = CONTRACTS[name].cases[0], strategy_class(name)
    rule = Estimated(Markov(stay=0.6, back=0.4), cutoff=5)
    problem = case.problem()
    if not kind.needs_uniform:
        assert np.isfinite(simulate(strategy(name, case, participation=rule), problem, 4).x).all()
        return
    with pytest.raises(ParticipationError) as refused:
        simulate(strategy(name, case, participation=rule), problem, 4)
    reason = kind.needs_everyone or kind.needs_uniform
    if name == "compositefl":
        reason = "within cohorts of a fixed size"  # its rule, checked first
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Estimated(cutoff=0), r"Estimated\(cutoff\)"),
        (lambda: Estimated(cutoff=1.5), r"Estimated\(cutoff\)"),  # type: ignore[arg-type]
        (lambda: Estimated(cutoff=True), r"Estimated\(cutoff\)"),
        (lambda: Estimated("full"), "must be a rule"),  # type: ignore[arg-type]
        (lambda: Estimated(Buffered(buffer=2)), "round by round"),
        (lambda: Estimated(Only(1)), "several clients"),
        (lambda: Estimated(SHORT), "must be a rule"),
        (lambda: Estimated(Cyclic(groups=2, unbiased=True)), "leave it out there"),
        (lambda: Deadline(2.0, SHORT), r"write Estimated\(Deadline\(2, \.\.\.\)\)"),
    ],
)
def test_bad_arguments_are_named(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


def test_runs_that_take_no_weights_say_so() -> None:
    options: dict[str, Any] = {"client_lr": 0.01, "local_steps": 1}
    never = Estimated(Available([[1, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0]]))
    for method, text in (
        (FedAvg(**options, participation=never), "2 of 6 clients are never there"),
        (
            FedAvg(**options, participation=SHORT, aggregation=CoordinateMedian()),
            r"aggregation=\.\.\. replaces the mean.*use Markov\(",
        ),
        (Scaffold(**options, participation=SHORT), r"c is the mean of all c_i.*use Markov\("),
        (
            FedProx(
                proximal=1.0, participation=Estimated(),
                privacy=GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5),
            ),
            r"give the participation Full\(\)",
        ),
    ):  # fmt: skip
        with pytest.raises(FedConError, match=text):
            simulate(method, q6(), 2)


@pytest.mark.parametrize(
    "rule",
    [Estimated(), SHORT, Estimated(Sample(count=2)), Estimated(Deadline(2.0, Full())),
     Estimated(Available([[1, 0], [0, 1]], count=1), 50)],
    ids=repr,
)  # fmt: skip
def test_files_state_it(rule: Estimated) -> None:
    again = argument("participation", parse_value(write_value(tabled(rule))))
    assert repr(again) == repr(rule)
