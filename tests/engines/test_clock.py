"""Simulated time: what rounds take, in every engine alike, and who is in time."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import blocks
from problems import q6_objectives

from flower_fedcon import (
    Clock,
    Cyclic,
    Deadline,
    Exponential,
    FedConError,
    FederatedProblem,
    Full,
    History,
    LogNormal,
    Markov,
    Sample,
    Uniform,
    simulate,
)
from flower_fedcon.compressors import EF21, TopK
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.figures import plot_histories
from flower_fedcon.lab.experiments.runner import play
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.problems import neyman_pearson
from flower_fedcon.regularizers import L1
from flower_fedcon.runs.limits import Budget
from flower_fedcon.runs.toml import argument, parse_toml, parse_value, tabled, write_value
from flower_fedcon.sets import L1Ball
from flower_fedcon.solvers import SGD
from flower_fedcon.strategies import (
    DualFL,
    FedAvg,
    FedDR,
    FedFW,
    FedProx,
    FedSGM,
    Scaffnew,
    Scaffold,
)

DRAWN = Clock(
    up=LogNormal(median=2e3, spread=1.0),
    down=[1e3, 2e3, 3e3, 4e3, 5e3, 6e3],
    latency=Uniform(low=0.0, high=0.5, per="round"),
    compute=Exponential(mean=1.0, least=0.5, per="round"),
    gradient=0.01,
)


def two() -> FederatedProblem:
    return FederatedProblem([Quadratic(np.eye(2), np.full(2, b)) for b in (1.0, 3.0)])


def q6() -> FederatedProblem:
    return FederatedProblem(q6_objectives())


def average(**more: Any) -> FedAvg:
    return FedAvg(client_lr=0.01, local_steps=3, **more)


def seconds(history: History) -> list[float]:
    found: list[float] = history["simulated_seconds"].tolist()
    return found


def test_a_first_round_by_hand() -> None:
    """Latency, bytes over speeds, work and three gradients; the slower of two clients counts."""
    clock = Clock(
        up=[10.0, 1000.0], down=50.0, latency=0.25, compute=[1.0, 2.0], gradient=[0.5, 2.0]
    )
    history = simulate(average(), two(), 2, clock=clock)
    down, up = history["downlink_bytes"][0] / 2, history["uplink_bytes"][0] / 2
    first = 0.25 + down / 50 + 1.0 + 3 * 0.5 + up / 10
    second = 0.25 + down / 50 + 2.0 + 3 * 2.0 + up / 1000
    assert first > second
    assert seconds(history) == pytest.approx([first, 2 * first], rel=1e-15)
    assert "late" not in history
    assert "simulated_seconds" not in simulate(average(), two(), 1)


SOLVED = FedProx(proximal=1.0, local_solver=SGD(epochs=2, batch_size=2, lr=0.01))


def unequal() -> FederatedProblem:
    """Clients of 2, 4 and 9 rows: 2, 4 and 8 gradients of two epochs."""
    rows = np.random.default_rng(0).standard_normal((9, 2))
    return FederatedProblem([LeastSquares(rows[:m], rows[:m, 0] + m) for m in (2, 4, 9)])


def engine_of(name: str) -> str:
    return str(pytest.importorskip("jax") and name) if name == "jax" else name


@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
def test_gradients_of_local_solvers_are_counted(engine: str) -> None:
    clock, engine = Clock(compute=1.0, gradient=[5.0, 0.25, 0.5]), engine_of(engine)
    history = simulate(SOLVED, unequal(), 3, clock=clock, engine=engine)
    assert seconds(history) == [11.0, 22.0, 33.0]  # 1 + 2 times 5
    assert history["gradients"].tolist() == [14, 28, 42]
    coin = simulate(Scaffnew(client_lr=0.01), two(), 4, clock=Clock(gradient=1.0), engine=engine)
    assert seconds(coin) == [steps / 2 for steps in coin["gradients"]]


def test_a_query_is_an_exchange_of_its_own() -> None:
    """Its latency and bytes count, and the work once."""
    problem = neyman_pearson()
    strategy = FedSGM(client_lr=0.01, local_steps=2, tolerance=0.1)
    latency = simulate(strategy, problem, 1, clock=Clock(latency=0.5, compute=2.0))
    assert seconds(latency) == [3.0]
    history = simulate(strategy, problem, 1, clock=Clock(up=100.0, down=50.0))
    n = problem.num_clients
    expected = history["downlink_bytes"][0] / n / 50 + history["uplink_bytes"][0] / n / 100
    assert seconds(history) == pytest.approx([expected], rel=1e-14)


METHODS = {
    "plain": average,
    "state": lambda **more: Scaffold(client_lr=0.01, local_steps=2, **more),
    "compressed": lambda **more: FedProx(proximal=1.0, compression=EF21(TopK(count=1)), **more),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "rule",
    [Full(), Sample(count=2), Deadline(2.0), Deadline(2.0, Markov(stay=0.5, back=0.5))],
    ids=repr,
)
def test_engines_agree(method: str, rule: Any) -> None:
    """Bit for bit, in cohorts and times; JAX compiles rounds of one size."""
    made, clock = METHODS[method], DRAWN
    if method == "compressed":  # which has no local steps
        clock = Clock(up=DRAWN.stated["up"], compute=DRAWN.stated["compute"])
    one = simulate(made(participation=rule), q6(), 9, clock=clock)
    assert (np.diff([0.0, *seconds(one)]) > 0).all()
    compiled = method != "compressed" and rule.size(6) is not None
    for engine in ("stacked", *(["jax"] if compiled else [])):
        given = {"engine": engine_of(engine), "clock": clock}
        other = simulate(made(participation=rule), q6(), 9, **given)
        assert seconds(other) == seconds(one)
        assert other["cohort"].tolist() == one["cohort"].tolist()
    again = simulate(made(participation=rule), q6(), 9, clock=clock, seed=1)
    assert seconds(again) != seconds(one)
    if isinstance(rule, Deadline):
        assert (np.diff([0.0, *seconds(one)]) <= 2.0).all()
        assert one["late"][-1] > 0


def reckoned(rule: Any) -> FedProx:
    """Return a method whose gradients of the last round say who is in time."""
    return FedProx(proximal=1.0, local_solver=SOLVED.local_solver, participation=rule)


GOES_ON = {
    "sampled": (average(participation=Sample(count=2)), q6(), DRAWN),
    "deadline": (average(participation=Deadline(1.5)), q6(), DRAWN),
    "among": (average(participation=Deadline(1.5, Cyclic(groups=2))), q6(), DRAWN),
    "by gradients": (reckoned(Deadline(6.0)), unequal(), Clock(gradient=[5.0, 0.25, 0.5])),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_a_run_that_is_resumed_goes_on(name: str, tmp_path: Path) -> None:
    made, problem, clock = GOES_ON[name]
    whole = simulate(made, problem, 9, clock=clock)
    simulate(made, problem, 4, clock=clock, run_dir=tmp_path)
    again: dict[str, Any] = {"run_dir": tmp_path, "resume": True}
    resumed = simulate(made, problem, 9, clock=clock, **again)
    for column in ("simulated_seconds", "cohort", "objective"):
        assert resumed[column].tolist() == whole[column].tolist()
    if name == "by gradients":
        assert whole["replies"].tolist()[:3] == [3, 2, 2]
        assert seconds(whole)[:3] == [6.0, 10.0, 14.0]
    with pytest.raises(FedConError, match="clock"):
        simulate(made, problem, 12, clock=Clock(compute=0.2), **again)


def test_a_clock_can_be_given_later(tmp_path: Path) -> None:
    simulate(average(), q6(), 2, run_dir=tmp_path)
    options: dict[str, Any] = {"run_dir": tmp_path, "resume": True, "allow_changes": ["clock"]}
    assert seconds(simulate(average(), q6(), 4, clock=Clock(compute=2.0), **options))[2:] == [2, 4]
    assert "simulated_seconds" in simulate(average(), q6(), 5, **options)


NUMBERS = st.one_of(
    st.floats(0.01, 100.0),
    st.lists(st.floats(0.01, 100.0), min_size=6, max_size=6),
    st.builds(LogNormal, per=st.sampled_from(["client", "round"]), median=st.floats(0.1, 10.0)),
    st.builds(Exponential, per=st.sampled_from(["client", "round"]), mean=st.floats(0.1, 10.0)),
)


@given(up=NUMBERS, down=NUMBERS, latency=NUMBERS, compute=NUMBERS, seed=st.integers(0, 9))
@settings(max_examples=25)
def test_any_clock_in_any_engine(seed: int, **stated: Any) -> None:
    """A round lasts as long as its slowest client; a slower clock is never faster."""
    strategy, clock = average(participation=Sample(count=3)), Clock(**stated)
    one, other = (
        simulate(strategy, q6(), 3, engine=engine, clock=clock, seed=seed)
        for engine in ("local", "stacked")
    )
    assert seconds(one) == seconds(other)
    late = {**stated, "latency": 1e3}
    slower = simulate(strategy, q6(), 3, clock=Clock(**late), seed=seed)
    least = np.diff([0.0, *seconds(slower)]) - 1e3
    assert (least > 0).all()
    bare = simulate(strategy, q6(), 3, seed=seed)
    assert np.array_equal(bare.x, one.x)


def test_a_trace_has_a_row_for_each_round(tmp_path: Path) -> None:
    rows = np.array([[1.0, 3.0], [2.0, 1.0], [5.0, 0.0]])
    np.savetxt(tmp_path / "compute.csv", rows, delimiter=",")
    np.save(tmp_path / "compute.npy", rows)
    for trace in (rows, str(tmp_path / "compute.csv"), tmp_path / "compute.npy"):
        history = simulate(average(), two(), 4, clock=Clock(compute=trace))
        assert seconds(history) == list(itertools.accumulate([3.0, 2.0, 5.0, 3.0]))


def test_a_deadline_leaves_out_who_is_late(caplog: pytest.LogCaptureFixture) -> None:
    """The second of two clients never takes part: the first alone is trained on, as said."""
    clock = Clock(compute=[1.0, 5.0])
    with caplog.at_level(logging.WARNING):
        history = simulate(average(participation=Deadline(2.0)), two(), 3, clock=clock)
    alone = simulate(average(), FederatedProblem([two().objectives[0]]), 3)
    assert np.array_equal(history.x, alone.x)
    assert seconds(history) == [1.0, 2.0, 3.0]
    assert history["late"].tolist() == [1, 2, 3]
    assert "1 of 2 clients never take part (client 1)" in caplog.text


@pytest.mark.parametrize(
    "slow",
    [
        {"up": [1e-3, 1e3]},
        {"down": np.array([[1e-3, 1e3], [2e-3, 1.0]])},
        {"latency": [3.0, 0.0]},
        {"compute": np.array([[3.0, 9.0], [4.0, 0.0]])},
    ],
    ids=lambda slow: next(iter(slow)),
)
def test_who_is_late_in_every_round_is_known_before_the_first(slow: Any, caplog: Any) -> None:
    """By the best that a distribution or a trace can be."""
    clock = Clock(**slow, gradient=Uniform(low=0.1, high=0.2, per="round"))
    with caplog.at_level(logging.WARNING):
        simulate(average(participation=Deadline(2.0)), two(), 0, clock=clock)
    assert "(client 0)" in caplog.text


def test_compact_uploads_are_in_time_where_arrays_are_not() -> None:
    """An atom is one entry of 64, which together would take half a second and more."""
    ball = L1Ball(radius=1.0)
    clients = [Quadratic(np.eye(64), np.full(64, b)) for b in (1.0, 3.0)]
    problem = FederatedProblem(clients, constraint=ball)
    clock, strategy = Clock(up=1000.0), FedFW(ball, penalty=1.0, participation=Deadline(0.3))
    history = simulate(strategy, problem, 3, clock=clock)
    assert seconds(history)[-1] == pytest.approx(history["uplink_bytes"][-1] / 2 / 1000.0)
    assert history["late"].tolist() == [0, 0, 0]
    whole = FederatedProblem(clients)
    with pytest.raises(ConfigError, match=r"takes at least 0\.\d+ seconds"):
        simulate(average(participation=Deadline(0.3)), whole, 3, clock=clock)


def test_a_draw_without_anybody_in_time_is_repeated() -> None:
    clock = Clock(compute=[1.0, 5.0])
    rule = Deadline(2.0, Sample(count=1))
    history = simulate(average(participation=rule), two(), 20, clock=clock)
    assert seconds(history) == np.arange(1.0, 21.0).tolist()
    assert 5 < history["late"][-1] < 50  # a draw is late with probability 1/2
    trace = Clock(compute=[[1.0, 1.0], [5.0, 5.0]])
    with pytest.raises(RoundError, match=r"round 2: .*longer Deadline"):
        simulate(average(participation=Deadline(2.0)), two(), 2, clock=trace)


IN_TIME, ALL = average(participation=Deadline(1.0)), r"takes at least 2\.5 seconds"
PRIVATE = FedProx(proximal=1.0, privacy=GaussianDP(1.0, 1.0, 1e-5))
REFUSED = [
    (lambda: Clock(up=0.0), r"Clock\(up\) must be > 0"),
    (lambda: Clock(latency=-1.0), r"Clock\(latency\) must be >= 0"),
    (lambda: Clock(compute="missing.csv"), "cannot read"),
    (lambda: Clock(compute=[1.0, float("nan")]), "finite"),
    (lambda: Clock(down="fast"), "cannot read"),
    (lambda: Clock(compute={}), "one for each client"),
    (lambda: LogNormal(median=0.0), "median"),
    (lambda: LogNormal(per="day"), "per"),
    (lambda: Uniform(low=2.0, high=1.0), "low <= high"),
    (lambda: Deadline(0.0), "seconds"),
    (lambda: Deadline(1.0, among=Deadline(2.0)), "another rule"),
    (lambda: simulate(average(), two(), 1, clock=Clock(up=[1.0])), "2 clients.*1 numbers"),
    (lambda: simulate(average(), two(), 1, clock=3.0), "flower_fedcon.Clock"),
    (lambda: simulate(IN_TIME, two(), 1), "needs a clock"),
    (lambda: simulate(IN_TIME, two(), 1, clock=Clock(compute=[2.0, 3.0])),
     "fastest client takes at least 2 seconds"),
    (lambda: late(Exponential(least=2.5, per="round")), ALL),
    (lambda: late(Uniform(low=2.5, high=9.0, per="round")), ALL),
    (lambda: simulate(PRIVATE, two(), 1, clock=Clock(gradient=1.0)),
     "FedProx took, which runs with privacy hide: give Clock"),
    (lambda: Budget(simulated_seconds=1.0)({"round": 1}), "needs a clock"),
    (lambda: simulate(DualFL(participation=Deadline(2.0)), q6(), 1, clock=Clock(compute=1.0)),
     "DualFL"),  # whose theory is of uniform cohorts
    (lambda: Experiment({**FILE, "clock": {"upp": 1.0}}), "'upp'"),
    (lambda: Experiment({**FILE, "clock": {"up": {"type": "Normal"}}}), "'LogNormal'"),
    (lambda: Experiment({**FILE, "clock": {"up": {"type": "LogNormal", "mean": 1.0}}}),
     "'median'"),
    (lambda: plot_histories({"a": simulate(average(), two(), 3).rows}, "a.png", x="simulated"),
     "clock"),
]  # fmt: skip


def late(compute: Any) -> None:
    simulate(average(participation=Deadline(2.0)), two(), 0, clock=Clock(compute=compute))


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_bad_clocks_are_named(make: Any, says: str) -> None:
    with pytest.raises(FedConError if says == "DualFL" else ConfigError, match=says):
        make()


def test_a_method_of_any_cohorts_takes_a_deadline() -> None:
    problem = FederatedProblem(q6_objectives(), regularizer=L1(0.1))
    strategy = FedDR(L1(0.1), step_size=1.0, participation=Deadline(2.0))
    assert len(simulate(strategy, problem, 2, clock=Clock(compute=1.0))) == 2


FILE = {
    "problem": {"name": "six_quadratics"},
    "run": {"rounds": 30, "budget": {"simulated_seconds": 10.0}},
    "clock": {
        "up": {"type": "LogNormal", "median": 1e3},
        "compute": {"type": "Exponential", "mean": 1.0, "per": "round"},
    },
    "algorithm": {
        "name": "FedAvg", "client_lr": 0.01, "local_steps": 1,
        "participation": {"type": "Deadline", "seconds": 2.0, "among": {"sample": 3}},
    },
}  # fmt: skip


def test_a_file_has_a_clock(tmp_path: Path) -> None:
    experiment = Experiment(FILE)
    history = play(experiment)
    assert 10.0 <= history["simulated_seconds"][-1] <= 12.0
    assert len(history) < 30
    again = play(Experiment(parse_toml(experiment.to_toml())))
    assert seconds(again) == seconds(history)
    plot_histories({"a": history.rows}, tmp_path / "figure.png", x="simulated")
    plot_histories({"a": history.rows}, tmp_path / "all.png")
    faster = Experiment(FILE, overrides=["clock.compute=0.001"])
    assert play(faster)["late"][-1] < history["late"][-1]


def test_files_state_a_deadline() -> None:
    rule = Deadline(2.0, Sample(fraction=0.3))
    assert argument("participation", parse_value(write_value(tabled(rule)))) == rule


def test_the_page_s_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks("toml", "docs/participation.md")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "gradient.csv").write_text("0.1,0.2,0.3\n0.3,0.2,0.1\n")
    problem = {"name": "quadratics", "clients": 3, "columns": 2}
    algorithm = {"name": "FedAvg", "client_lr": 0.001, "local_steps": 10}
    tables = {"problem": problem, "run": {"rounds": 3}, "algorithm": algorithm}
    history = play(Experiment(tables | parse_toml(block)))
    assert seconds(history)[0] > 0.3 + 0.5 + 10 * 0.3  # of the third client, at least


def test_steps_that_follow_from_gradients_at_the_start_take_a_deadline() -> None:
    """What asks all clients before round 1 draws no cohort, and needs no clock."""
    problem = neyman_pearson(clients=4)
    rule = Deadline(9.0, Sample(count=2))
    strategy = FedSGM(participation=rule)
    history = simulate(strategy, problem, 3, clock=Clock(compute=[1.0, 2.0, 3.0, 4.0]))
    assert len(history.rows) >= 1
    with pytest.raises(ConfigError, match="needs a clock for the clients' times"):
        simulate(FedSGM(participation=rule), problem, 3)
