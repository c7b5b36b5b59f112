"""Where runs end that do not wait for their slowest client."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest
from flows import COMPOSITE, PLAIN, PSI, logistic, retimed, squares

from flower_fedcon import (
    Buffered,
    Clock,
    FederatedProblem,
    LogNormal,
    simulate,
)
from flower_fedcon.errors import RoundError
from flower_fedcon.strategies import (
    AREA,
    MIFA,
    FedAvg,
    FedDR,
    FedDyn,
    FedNewton,
    FedVARP,
    Scaffold,
)
from flower_fedcon.testing.faults import corrupt
from flower_fedcon.testing.open_run import OpenRun

# --- optima, and faults ---------------------------------------------------------------------------

EIGHT = {
    "squares": squares(8, 0.05),
    "plain": squares(8, 0),
    "logistic": logistic(),
}
EXACT = {
    "AREA": (lambda p, q: AREA(p.regularizer, participation=q), ["squares", "logistic"]),
    "FedDR": (lambda p, q: FedDR(p.regularizer, participation=q), ["squares", "logistic"]),
    "FedVARP": (lambda p, q: FedVARP(participation=q), ["plain"]),
    "MIFA": (lambda p, q: MIFA(p.regularizer, participation=q), ["squares", "logistic"]),
    "Scaffold": (lambda p, q: Scaffold(participation=q), ["plain"]),
    "FedDyn": (lambda p, q: FedDyn(participation=q), ["plain"]),
    "FedNewton": (lambda p, q: FedNewton(p.regularizer, participation=q), ["squares"]),
}
CLOCKS = {
    "speeds": lambda: Clock(compute=[1, 1, 1, 1, 2, 4, 8, 20.0]),
    "lognormal": lambda: Clock(
        compute=LogNormal(spread=1.2), latency=LogNormal(median=0.2, spread=1.0, per="round")
    ),
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("rule", [Buffered(), Buffered(buffer=4, concurrency=6)], ids=repr)
@pytest.mark.parametrize(
    ("name", "problem"), [(n, p) for n, (_, problems) in EXACT.items() for p in problems]
)
def test_slow_clients_do_not_move_the_optimum(
    name: str, problem: str, rule: Buffered, clock: str
) -> None:
    make, _ = EXACT[name]
    found = EIGHT[problem]
    found.optimum  # noqa: B018  (found once)
    history = simulate(
        make(found, rule),
        found,
        9000,
        clock=CLOCKS[clock](),
        evaluate_every=100,
        callbacks=[lambda record: record["residual"] <= 1e-10],
    )
    assert history["residual"][-1] <= 1e-10


def test_averages_favour_fast_clients_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    """By 5e-2 and more, and a discount of old replies makes it worse."""
    problem, far = EIGHT["plain"], {}
    for discount in (0.0, 0.5):
        caplog.clear()
        rule = Buffered(buffer=4, concurrency=6, discount=discount)
        strategy = FedAvg(local_steps=1, participation=rule)
        with caplog.at_level(logging.WARNING, "flwr"):
            x = simulate(strategy, problem, 1500, clock=CLOCKS["speeds"](), evaluate_every=0).x
        far[discount] = problem.objective(x) - problem.optimum.value
        said = re.search(r"count more: client (\d) gave (\S+)% .* client (\d) (\S+)%", caplog.text)
        assert said is not None
        assert int(said[1]) < 4 < int(said[3]) + 1
        assert float(said[2]) > 3 * float(said[4])
        assert "AREA, FedDR, FedDyn, Scaffold and FedNewton do not" in caplog.text
        assert ("favours fast ones further" in caplog.text) == bool(discount)
    assert 5e-2 < far[0.0] < far[0.5]


@pytest.mark.parametrize(
    ("make", "problem", "far"),
    [
        (lambda q: AREA(PSI, local_steps=1, participation=q), COMPOSITE, 1e-11),
        (lambda q: MIFA(PSI, participation=q), COMPOSITE, 1e-11),
        (lambda q: Scaffold(participation=q), PLAIN, 1e-11),
        (lambda q: FedDyn(participation=q), PLAIN, 1e-11),
    ],
    ids=["AREA", "MIFA", "Scaffold", "FedDyn"],
)
@pytest.mark.parametrize("rule", [Buffered(), Buffered(buffer=3, max_staleness=400)], ids=repr)
def test_faults_do_not_move_the_optimum(
    make: Any, problem: FederatedProblem, far: float, rule: Buffered
) -> None:
    """Replies that are lost or hold NaN, and clients that lose their state, all the time."""
    draws = np.random.default_rng(0)

    def spoil(asked: Any, reply: Any) -> list[Any]:
        chance = draws.random()
        if chance < 0.05:
            return []
        if chance < 0.08 and reply.payload:
            return corrupt(reply, "nan")
        if chance < 0.11:
            run.clients[asked.client] = run.new_client(asked.client)
        return [reply]

    run = OpenRun(make(rule), problem, alter=spoil)
    retimed(run, [1, 1, 2, 4, 8, 20.0])
    run.play(2000)
    assert run.server.counts["lost"] > 20
    assert run.server.counts["dropped"] > 20
    assert problem.objective(run.x) - problem.optimum.value <= far


def test_a_run_without_usable_replies_ends_with_its_reasons() -> None:
    def nothing(asked: Any, reply: Any) -> list[Any]:
        return [] if asked.client else [reply]

    run = OpenRun(FedAvg(participation=Buffered(buffer=2)), PLAIN, alter=nothing)
    with pytest.raises(RoundError, match=r"step 1: none of the last 24 replies could be used \(cl"):
        run.play(1)


class Broken:
    """An objective without data."""

    smoothness = 1.0

    def value(self, x: Any) -> float:
        return 0.0

    def gradient(self, x: Any) -> Any:
        raise RuntimeError("no data")


@pytest.mark.parametrize("fast", [0.0, 0.01])
def test_a_client_that_fails_at_once_does_not_end_the_run(fast: float) -> None:
    """It is asked again when somebody else has answered."""
    problem = FederatedProblem([*PLAIN.objectives[:5], Broken()], x0=np.zeros(5))
    strategy = FedAvg(client_lr=0.02, local_steps=1, participation=Buffered(buffer=2))
    history = simulate(strategy, problem, 20, clock=Clock(compute=[1.0] * 5 + [fast]))
    assert history["round"][-1] == 20
    assert 5 < history["dropped"][-1] < 100


class Wall:
    """Curvature 0.1 near the start, and steep beyond 20: an estimated L is too small there."""

    def __init__(self, b: float) -> None:
        self.b = np.full(3, b)

    def value(self, x: Any) -> float:
        over = np.maximum(np.abs(x) - 20, 0)
        steep = np.where(over < 10, 5e2 * over**2, 1e4 * over - 5e4)
        return float(0.05 * np.minimum(x * x, 1e4).sum() + steep.sum() - self.b @ x)

    def gradient(self, x: Any) -> Any:
        over = np.maximum(np.abs(x) - 20, 0)
        return 0.1 * np.clip(x, -100, 100) + np.sign(x) * np.minimum(1e3 * over, 1e4) - self.b


def test_a_run_that_starts_again_goes_on_with_its_new_server() -> None:
    problem = FederatedProblem([Wall(b) for b in (2, 2.5, 3, 4)], x0=np.zeros(3))
    strategy = FedAvg(participation=Buffered(buffer=2))
    history = simulate(strategy, problem, 60, clock=Clock(compute=[1, 2, 3, 5.0]))
    assert history["round"][-1] == 60
    assert history["objective"][-1] < -40  # of -64; it began again at 0
    waves = history["waves"]  # none in the row in which it has begun again
    assert (np.diff(waves[np.isfinite(waves)]) > 0).all()
