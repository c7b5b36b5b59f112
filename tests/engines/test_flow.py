"""Runs that do not wait for their slowest client, in this process."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from flows import COMPOSITE, EACH, METHODS, PLAIN, PSI, WAITING, N, columns_apart, retimed
from hypothesis import given
from hypothesis import strategies as st
from problems import random_quadratics

from flower_fedcon import (
    Buffered,
    Clock,
    Deadline,
    Exponential,
    FederatedProblem,
    Full,
    LogNormal,
    Sample,
    Uniform,
    simulate,
)
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.core.simulated_flow import SimulatedFlow
from flower_fedcon.errors import ConfigError, FedConError, ParticipationError
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.runs.toml import argument
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.strategies import (
    AREA,
    MIFA,
    FedAvg,
    FedDR,
    FedLin,
    FedVARP,
)
from flower_fedcon.testing.open_run import OpenRun

# --- against rounds, and against NumPy ------------------------------------------------------------


@EACH
@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
def test_steps_that_wait_for_everyone_are_rounds(name: str, engine: str) -> None:
    """The same bytes, of the model and of each column."""
    make, problem = METHODS[name]
    clock = Clock(compute=LogNormal(spread=1.0, per="round"), up=1e4, down=2e4)
    options: dict[str, Any] = {"seed": 3, "clock": clock}
    waits = simulate(make(participation=WAITING), problem, 8, engine=engine, **options)
    rounds = "stacked" if engine == "jax" else engine  # which plays what jax cannot
    whole = simulate(make(), problem, 8, engine=rounds, **options)
    assert waits.x.tobytes() == whole.x.tobytes()
    assert columns_apart(whole, waits) == []


TIMES = np.exp(np.random.default_rng(5).standard_normal((400, N))) * [1, 1, 1, 3, 6, 10]


def by_hand(
    buffer: int, steps: int, model: Any, work: Any, apply: Any, most: int | None
) -> list[float]:
    """Play steps with all clients at work, and return their times.

    `model()` is what is sent, `work(i, sent)` client i's upload, and `apply` takes (i, upload, age)
    in client order.
    """
    heap: list[tuple[float, int, int]] = []
    wave, now, version, held, sent, times = 0, 0.0, 0, [], {}, []
    idle = list(range(N))
    while version < steps:
        if idle:
            wave += 1
            for i in idle:
                heapq.heappush(heap, (now + TIMES[(wave - 1) % len(TIMES)][i], wave, i))
                sent[i] = version, model()
        now, _, i = heapq.heappop(heap)
        age = version - sent[i][0]
        if most is None or age <= most:
            held.append((i, work(i, sent[i][1]), age))
        if len(held) == buffer:
            apply(sorted(held, key=lambda each: each[0]))
            version, held = version + 1, []
            times.append(now)
        away = {task[2] for task in heap} | {each[0] for each in held}
        idle = [i for i in range(N) if i not in away]
    return times


def gradients(problem: FederatedProblem) -> list[Any]:
    """Return A'(A x - b) times its factor as functions, and the matrices behind them."""
    found = []
    for f in problem.objectives:
        A, b = np.asarray(f.A), np.asarray(f.b)
        probe = np.ones(A.shape[1])
        factor = (f.gradient(probe) / (A.T @ (A @ probe - b)))[0]
        found.append((factor * A.T @ A, factor * A.T @ b))
    return found


def soft(v: Any, t: float) -> Any:
    return np.sign(v) * np.maximum(np.abs(v) - t, 0)


FEDBUFF = [(1, None, 0.0), (3, None, 0.0), (3, None, 0.5), (3, 2, 0.5)]


@pytest.mark.parametrize(("buffer", "most", "discount"), FEDBUFF)
def test_fedbuff_by_hand(buffer: int, most: int | None, discount: float) -> None:
    x, quadratics = np.zeros(5), gradients(PLAIN)

    def work(i: int, w: Any) -> Any:
        v = w.copy()
        for _ in range(3):
            v = v - 0.02 * (quadratics[i][0] @ v - quadratics[i][1])
        return v - w

    def apply(uploads: list) -> None:
        nonlocal x
        x = x + sum((1 + age) ** -discount * u for _, u, age in uploads) / len(uploads)

    times = by_hand(buffer, 300, lambda: x, work, apply, most)
    rule = Buffered(buffer=buffer, max_staleness=most, discount=discount)
    strategy = FedAvg(local_steps=3, client_lr=0.02, participation=rule)
    history = simulate(strategy, PLAIN, 300, clock=Clock(compute=TIMES))
    assert history.x == pytest.approx(x, abs=1e-12)
    assert history["simulated_seconds"] == pytest.approx(times, rel=1e-12)


@pytest.mark.parametrize("buffer", [1, 3])
def test_area_by_hand(buffer: int) -> None:
    x = z = np.zeros(5)
    y, quadratics = [x] * N, gradients(COMPOSITE)

    def work(i: int, w: Any) -> Any:
        v = w - 0.03 * (quadratics[i][0] @ w - quadratics[i][1])
        u, y[i] = v - y[i], v
        return u

    def apply(uploads: list) -> None:
        nonlocal x, z
        z = z + sum(u for _, u, _ in uploads) / N
        x = soft(z, 0.05 * 0.03)

    times = by_hand(buffer, 1000, lambda: x, work, apply, None)
    strategy = AREA(PSI, client_lr=0.03, local_steps=1, participation=Buffered(buffer=buffer))
    history = simulate(strategy, COMPOSITE, 1000, clock=Clock(compute=TIMES))
    assert history.x == pytest.approx(x, abs=1e-12)
    assert history["simulated_seconds"] == pytest.approx(times, rel=1e-12)


@pytest.mark.parametrize("buffer", [1, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_mifa_by_hand(buffer: int, count: int) -> None:
    """A reply to an earlier model replaces its client's memory, whatever its age."""
    w, G, eta = np.zeros(5), np.zeros((N, 5)), 0.01
    quadratics = gradients(COMPOSITE)

    def work(i: int, sent: Any) -> Any:
        v = sent
        for _ in range(count):
            v = v - eta * (quadratics[i][0] @ v - quadratics[i][1])
        return (v - sent) / eta

    def apply(uploads: list) -> None:
        nonlocal w
        for i, u, _ in uploads:
            G[i] = u
        w = soft(w + eta * G.mean(axis=0), 0.05 * eta * count)

    times = by_hand(buffer, 1000, lambda: w, work, apply, None)
    rule = Buffered(buffer=buffer, discount=0.5)  # which MIFA does not need
    strategy = MIFA(PSI, client_lr=eta, local_steps=count, participation=rule)
    history = simulate(strategy, COMPOSITE, 1000, clock=Clock(compute=TIMES))
    assert history.x == pytest.approx(w, abs=1e-12)
    assert history["simulated_seconds"] == pytest.approx(times, rel=1e-12)


@pytest.mark.parametrize(("buffer", "most", "discount"), FEDBUFF)
def test_fedvarp_by_hand(buffer: int, most: int | None, discount: float) -> None:
    """A discount weakens corrections; the memory takes changes as they are."""
    w, y = np.zeros(5), np.zeros((N, 5))
    quadratics = gradients(PLAIN)

    def work(i: int, sent: Any) -> Any:
        v = sent
        for _ in range(2):
            v = v - 0.01 * (quadratics[i][0] @ v - quadratics[i][1])
        return v - sent

    def apply(uploads: list) -> None:
        nonlocal w
        corrections = [(1 + age) ** -discount * (u - y[i]) for i, u, age in uploads]
        w = w + y.mean(axis=0) + sum(corrections) / len(uploads)
        for i, u, _ in uploads:
            y[i] = u

    times = by_hand(buffer, 300, lambda: w, work, apply, most)
    rule = Buffered(buffer=buffer, max_staleness=most, discount=discount)
    strategy = FedVARP(client_lr=0.01, local_steps=2, participation=rule)
    history = simulate(strategy, PLAIN, 300, clock=Clock(compute=TIMES))
    assert history.x == pytest.approx(w, abs=1e-12)
    assert history["simulated_seconds"] == pytest.approx(times, rel=1e-12)


@pytest.mark.parametrize("buffer", [1, 3])
def test_asyncfeddr_by_hand(buffer: int) -> None:
    eta = 0.3
    xbar = xtilde = np.zeros(5)
    Y, X, XH = [xbar] * N, [None] * N, [xbar] * N
    solves = [np.linalg.inv(Q + np.eye(5) / eta) for Q, _ in gradients(COMPOSITE)]
    linear = [b for _, b in gradients(COMPOSITE)]

    def work(i: int, w: Any) -> Any:
        Y[i] = w if X[i] is None else Y[i] + (w - X[i])
        X[i] = solves[i] @ (linear[i] + Y[i] / eta)
        u = 2 * X[i] - Y[i] - XH[i]
        XH[i] = XH[i] + u
        return u

    def apply(uploads: list) -> None:
        nonlocal xbar, xtilde
        xtilde = xtilde + sum(u for _, u, _ in uploads) / N
        xbar = soft(xtilde, 0.05 * eta)

    times = by_hand(buffer, 300, lambda: xbar, work, apply, None)
    strategy = FedDR(PSI, step_size=eta, participation=Buffered(buffer=buffer))
    history = simulate(strategy, COMPOSITE, 300, clock=Clock(compute=TIMES))
    assert history.x == pytest.approx(xbar, abs=1e-12)
    assert history["simulated_seconds"] == pytest.approx(times, rel=1e-12)


# --- each upload once -----------------------------------------------------------------------------


@given(data=st.data())
def test_each_upload_counts_at_most_once(data: st.DataObject) -> None:
    """Of any delays and any B, K, O; and the clients of a step are distinct."""
    n = data.draw(st.integers(1, 7), "clients")
    most = data.draw(st.integers(1, n), "concurrency")
    buffer = data.draw(st.integers(1, most), "buffer")
    dispatch = data.draw(st.integers(1, buffer), "dispatch")
    stale = data.draw(st.none() | st.integers(0, 5), "max_staleness")
    rule = Buffered(buffer, most, dispatch, stale)
    times = data.draw(
        st.lists(
            st.lists(st.sampled_from([0.0, 1.0, 1.5, 40.0]), min_size=n, max_size=n),
            min_size=1,
            max_size=4,
        )
    )
    problem = FederatedProblem(random_quadratics(1, n))
    run = OpenRun(AREA(client_lr=0.1, participation=rule), problem)
    retimed(run, times)
    used, asked, last = Counter(), {}, 0.0

    def note(event: Any) -> None:
        nonlocal last
        assert event.seconds >= last
        last = event.seconds
        for client in event.clients:
            if event.outcome == "asked":
                assert client not in asked
                asked[client] = event.wave
                assert len(asked) <= most
            else:
                assert asked[client] == event.wave
                if event.outcome != "used":
                    del asked[client]
                used[event.wave, client] += event.outcome == "used"

    run.steps.note = note
    for step in range(1, 13):
        before = dict(asked)
        cohort = run.steps.step().cohort
        assert len({*cohort}) == len(cohort) == buffer
        assert run.server.round == step
        for client in cohort:
            assert run.acknowledged[client] == asked.pop(client)
        assert before.keys() | asked.keys() | {*cohort} <= {*range(n)}
        mirror = run.state.mirror.rows["y"]
        for j, client in enumerate(run.clients):
            held = client.versions.at(run.acknowledged[j]) if run.acknowledged[j] else None
            assert mirror[j].tobytes() == (run.state.start if held is None else held.y).tobytes()
    assert max(used.values()) == 1


# --- who is asked, and time -----------------------------------------------------------------------


def test_columns_of_a_run() -> None:
    """Three clients at 1, 1 and 2.5 seconds; a step takes two replies, and may be two steps old."""
    problem = FederatedProblem(random_quadratics(0, 3))
    rule = Buffered(buffer=2, max_staleness=1)
    strategy = FedAvg(client_lr=0.1, participation=rule)
    history = simulate(strategy, problem, 4, clock=Clock(compute=[1.0, 1.0, 2.5]))
    # 1: {0, 1};  2: {0, 1};  at 2.5 client 2's reply is 2 steps old: dropped;  3, 4: {0, 1}
    assert history["simulated_seconds"].tolist() == [1, 2, 3, 4]
    assert history["stale"].tolist() == [0, 0, 1, 1]
    assert history["waves"].tolist() == [1, 2, 4, 5]
    assert history["cohort"].tolist() == [2] * 4
    assert history["most_staleness"].tolist() == [0] * 4


def test_a_client_that_is_away_pauses() -> None:
    problem, times = FederatedProblem(random_quadratics(0, 2)), Clock(compute=[1.0, 10.0])
    away = Clock(compute=[1.0, 10.0], away=[(0, 0.5, 4.0), (0, 4.25, 6.25)])
    strategy = FedAvg(client_lr=0.1, participation=Buffered())
    seconds = [
        simulate(strategy, problem, 3, clock=clock)["simulated_seconds"].tolist()
        for clock in (times, away)
    ]
    assert seconds == [[1, 2, 3], [6.5, 7.5, 8.5]]  # work from 0 to 0.5, 4 to 4.25 and 6.25 to 6.5
    strategy = FedAvg(client_lr=0.1)
    assert simulate(strategy, problem, 1, clock=away)["simulated_seconds"].tolist() == [10]


def test_times_away_that_overlap_count_once() -> None:
    problem = FederatedProblem(random_quadratics(0, 2))
    rows = [(0, 2.0, 5.0), (0, 0.5, 3.0), (0, 1.0, 2.5), (0, 5.0, 6.0), (0, 9.0, 9.25)]
    strategy = FedAvg(client_lr=0.1, participation=Buffered())
    seconds = [
        simulate(strategy, problem, 4, clock=Clock(compute=[3.0, 50.0], away=away))[
            "simulated_seconds"
        ].tolist()
        for away in (rows, [(0, 0.5, 6.0), (0, 9.0, 9.25)])
    ]
    assert seconds == [[8.5, 11.75, 14.75, 17.75]] * 2  # 0.5 seconds until 0.5, 2.5 from 6 on


@pytest.mark.parametrize("rule", [Buffered(buffer=2), Full()])
@pytest.mark.parametrize(
    ("clock", "says"),
    [
        (
            Clock(compute=1e308),
            r"Clock\(compute=1e\+308\): client 0 needs 1e\+308 seconds from .* 1",
        ),
        (Clock(compute=[1, 1, 1, 1, 1e308, 1.0], gradient=1e308), "client 0 needs inf seconds"),
        (Clock(up=1e-308), r"Clock\(up=1e-308\): client 0 .* give fewer seconds, or more bytes"),
        (Clock(compute=LogNormal(median=1e308, spread=9)), "LogNormal.*: client . needs inf sec"),
        (Clock(compute=1e308, away=[(0, 5, 1.7e308)]), "client 0 needs inf seconds from second 0"),
    ],
)
def test_times_beyond_the_largest_number_are_refused(rule: Any, clock: Clock, says: str) -> None:
    strategy = FedAvg(client_lr=0.02, local_steps=2, participation=rule)
    with pytest.raises(ConfigError, match=says):
        simulate(strategy, PLAIN, 3, clock=clock)


def test_nobody_knows_when_a_client_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other times that keep the order of arrivals ask the same clients."""
    asked: list[list[Any]] = []
    for speed in (1.0, 7.0):
        found: list[Any] = []
        asked.append(found)
        monkeypatch.setattr(
            SimulatedFlow,
            "_send",
            lambda self, clients, found=found, send=SimulatedFlow._send: (
                found.append(clients), send(self, clients),
            ),
        )  # fmt: skip
        times = speed * np.array([1, 2, 3, 5, 8, 13.0])
        rule = Buffered(buffer=2, concurrency=3)
        simulate(FedAvg(participation=rule), PLAIN, 30, seed=2, clock=Clock(compute=times))
        monkeypatch.undo()
    assert asked[0] == asked[1]
    assert len({*map(tuple, asked[0])}) > 5


@pytest.mark.parametrize("kind", [LogNormal, Exponential, Uniform])
def test_per_is_no_first_argument(kind: Any) -> None:
    assert kind(0.5, 0.75, per="round").per == "round"
    first, second = (value for name, value in vars(kind(0.5, 0.75)).items() if name != "per")
    assert (first, second) == (0.5, 0.75)


# --- what is refused ------------------------------------------------------------------------------

CLOCK = Clock(compute=1.0)
WRONG = {
    "buffer": (r"a whole number >= 1", [0, -1, 2.0, float("nan"), True, "2", None]),
    "concurrency": (r"a whole number >= 1", [0, -3, 4.5, float("inf"), False, "all"]),
    "dispatch": (r"a whole number >= 1", [0, -1, 1.0, float("nan"), True, "1", None]),
    "max_staleness": (r"a whole number >= 0", [-1, 1.5, float("inf"), True, "none"]),
    "discount": (r"(finite and >= 0|a number)", [-0.5, float("nan"), float("inf"), True, "a"]),
}
REFUSALS: list[tuple[Any, type[FedConError], str]] = [
    (lambda: Buffered(buffer=0), ConfigError, r"Buffered\(buffer\) must be a whole number >= 1, g"),
    (lambda: Buffered(buffer=3, concurrency=2), ConfigError, "give buffer <= concurrency"),
    (lambda: Buffered(buffer=3, dispatch=4), ConfigError, "give dispatch from 1 to 3"),
    (lambda: Buffered(max_staleness=-1), ConfigError, r"\(max_staleness\) must be .* >= 0, got -1"),
    (lambda: Buffered(discount=-0.5), ConfigError, r"\(discount\) must be .* >= 0, got -0.5"),
    (lambda: FedAvg(participation=Buffered(buffer=7)), ConfigError, "than the 6 clients: giv"),
    (lambda: FedAvg(participation=Buffered(1, 9)), ConfigError, r"concurrency=9\) is more than"),
    (lambda: FedLin(participation=WAITING), ParticipationError, r"FedLin cannot use repl"),
    (lambda: FedAvg(min_replies=2), ParticipationError, "min_replies=2 .* buffer is how many"),
    (lambda: FedAvg(aggregation=CoordinateMedian()), ParticipationError, "no common centre"),
    (lambda: FedAvg(client_lr=InverseSqrt(0.1)), ParticipationError, "a schedule counts rounds"),
    (lambda: FedAvg(batch_size=2, batch_order="epoch"), ParticipationError, "epochs count"),
    (
        lambda: FedAvg(privacy=GaussianDP(1.0, 1.0, 1e-3)),
        ParticipationError, "rounds of random cohorts",
    ),
    (lambda: FedAvg(client_lr="auto"), ConfigError, 'takes no client_lr="auto": a race compares'),
    (lambda: (FedAvg(), {"clock": None}), ConfigError, r"needs a clock .*clock=Clock\("),
    (lambda: (FedAvg(), {"engine": "ray"}), ParticipationError, 'engine="ray" plays no Buffered'),
    (lambda: (FedAvg(participation=Full()), {"clock": Clock(events="x")}), ConfigError, "repea"),
    (lambda: (FedAvg(), {"clock": Clock(away=[(6, 0, 1)])}), ConfigError, "there is no client 6: "),
    (lambda: Clock(away=[(0, 3, 1)]), ConfigError, "0 <= from < to, both finite"),
    (lambda: Clock(away=[(0, 3)]), ConfigError, "rows of a client's number and the seconds"),
    (lambda: Deadline(3.0, among=Buffered(2)), ConfigError, r"Deadline\(among\) must be another"),
    (lambda: Clock(events=3), ConfigError, "must be the path of a log, got 3"),
    (
        lambda: (FedAvg(), {"evaluate": lambda r, x: {"waves": 7.0}}),
        ConfigError, "a metric cannot be called 'waves'",
    ),
    (lambda: Clock(events="x", compute=1.0), ConfigError, "takes no compute: leave them out"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (_, values) in WRONG.items() for value in values]
)
def test_an_argument_that_is_wrong_is_named_with_its_range(name: str, value: Any) -> None:
    """Also in a file, which knows no None."""
    says = rf"Buffered\({name}\) must be {WRONG[name][0]}, got {re.escape(repr(value))}"
    with pytest.raises(ConfigError, match=says):
        Buffered(**{name: value})
    if value is not None:
        with pytest.raises(ConfigError, match=says):
            argument("participation", {"type": "Buffered", name: value})


def test_a_file_is_told_of_the_rule() -> None:
    with pytest.raises(
        ConfigError, match=r'participation must be .*\{type = "Buffered", buffer = 2'
    ):
        argument("participation", 3)
    with pytest.raises(ConfigError, match="Buffered takes no 'bufer': did you mean 'buffer'"):
        argument("participation", {"type": "Buffered", "bufer": 2})


def refused_run(made: Any) -> None:
    """Play what a row of the table makes: a strategy, alone or with further options."""
    strategy, options = made if isinstance(made, tuple) else (made, {})
    if isinstance(strategy.participation, Full) and "events" not in repr(options):
        strategy.participation = Buffered(buffer=2)
    simulate(strategy, PLAIN, 3, **{"clock": CLOCK, **options})


@pytest.mark.parametrize(("make", "kind", "says"), REFUSALS)
def test_what_cannot_be_is_refused_before_anybody_is_asked(make: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        refused_run(make())


def test_a_race_of_methods_is_refused() -> None:
    with pytest.raises(ConfigError, match='takes no strategy="auto"'):
        simulate("auto", PLAIN, 3, participation=Buffered(), clock=CLOCK)


def test_a_rule_is_shown_by_what_it_was_given() -> None:
    assert repr(Buffered(buffer=2, discount=0.5)) == "Buffered(buffer=2, discount=0.5)"
    assert re.fullmatch(r"Buffered\(\)", repr(Buffered()))
    assert Buffered(buffer=2).rate(8) == Sample(count=2).rate(8)
