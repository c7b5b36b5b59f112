"""The benchmarks: each is a ratio to a yardstick that is timed in the same run, in turn.

Linear algebra has one thread. Processor time is counted where everything happens in this process,
so that what else the machine does matters less; where other processes take part, time by the clock.
Medians and quartiles are of the ratios of each turn.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from flower_fedcon.benchmarks import loops
from flower_fedcon.checks import Array
from flower_fedcon.engines import local, stacked
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.loop import Plan, Run
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.participation import Sample
from flower_fedcon.problem import FederatedProblem
from flower_fedcon.problems import lasso, sparse_regression
from flower_fedcon.simulation import make_setup, simulate
from flower_fedcon.strategies import FastFedDA, FedFW

Work = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes
    ----------
    what : str
    yardstick : str
        What it is compared with.
    ratio : float
        Median of the turns' ratios, cost over the yardstick's.
    low, high : float
        Quartiles of the ratios.
    cost : float
        Median, in `unit`.
    unit : str
    target : str
        What the ratio should be; empty for a figure without one.
    """

    what: str
    yardstick: str
    ratio: float
    low: float
    high: float
    cost: float
    unit: str
    target: str = ""


def in_turn(
    works: Mapping[str, Work], turns: int, clock: Clock = time.process_time
) -> dict[str, list[float]]:
    """Return the seconds of each work in each turn, after one turn to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            began = clock()
            work()
            if turn:
                seconds[name].append(clock() - began)
    return seconds


def ratio(
    what: str,
    yardstick: str,
    costs: list[float],
    base: list[float],
    *,
    steps: float = 1,
    unit: str = "us a client step",
    target: str = "",
) -> Result:
    """Return the ratios of costs to the yardstick's, turn by turn, as one line."""
    ratios = [cost / other for cost, other in zip(costs, base, strict=True)]
    low, middle, high = _quartiles(ratios)
    cost = statistics.median(costs) / steps * (1e6 if unit.startswith("us") else 1)
    return Result(what, yardstick, middle, low, high, cost, unit, target)


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def lasso_in_one_array(clients: int, d: int) -> tuple[Array, Array, FederatedProblem]:
    """Return A, b and the lasso with 20 rows a client; its objectives are views of A and b."""
    given = lasso(clients=clients, rows=20 * clients, columns=d, nonzeros=min(20, d // 2))
    A = np.stack([f.A for f in given.objectives])
    b = np.stack([f.b for f in given.objectives])
    parts = [LeastSquares(*data, scale=2.0 * 20) for data in zip(A, b, strict=True)]
    return A, b, FederatedProblem(parts, constraint=given.constraint)


def rounds_of(strategy: Any, problem: FederatedProblem, engine: str) -> Callable[[int], None]:
    """Return a function that plays so many further rounds of one run, without evaluation."""
    infos = local.describe(problem.objectives, problem.names, strategy.name)
    setup = make_setup(infos, 10**6, problem.layout, strategy.participation, 0)
    coordinator = Run(Plan(10**6), strategy, setup, problem.start).coordinator
    kind = stacked.StackedExchange if engine == "stacked" else local.LocalExchange
    exchange = kind(problem.objectives, coordinator.info)

    def play(rounds: int) -> None:
        for _ in range(rounds):
            coordinator.play(exchange)

    return play


def fedfw(quick: bool = False) -> Iterator[Result]:
    """FedFW on lasso, 20 rows a client, against a hand-written loop."""
    cases = [(10, 400, "<= 1.5", ""), (100, 400, "<= 1.5", "<= 0.33"), (1000, 64, "", "<= 0.2")]
    if quick:
        cases = [(3, 20, "", "")]
    for clients, d, near, far in cases:
        A, b, problem = lasso_in_one_array(clients, d)
        constraint: Any = problem.constraint
        strategy = FedFW(constraint, penalty=1.0)
        rounds = 2 if quick else max(30, 5000 // clients)
        works: dict[str, Work] = {
            "loop": partial(loops.fedfw_lasso, A, b, constraint.radius, 1.0, rounds)
        }
        for engine in ("local", "stacked"):
            works[engine] = partial(rounds_of(strategy, problem, engine), rounds)
        times = in_turn(works, 2 if quick else 15)
        what = f"FedFW, lasso, {clients} clients, d={d}"
        steps = rounds * clients
        yield ratio(
            f"{what}: local", "loop", times["local"], times["loop"], steps=steps, target=near
        )
        yield ratio(
            f"{what}: stacked", "loop", times["stacked"], times["loop"], steps=steps, target=far
        )


def fastfedda(quick: bool = False) -> Iterator[Result]:
    """FastFedDA on sparse regression: 64 clients, 10 sampled, 10 steps of 10 rows."""
    size = {"clients": 6, "rows": 24, "columns": 16, "nonzeros": 8} if quick else {}
    problem = sparse_regression(**size)
    sampled, steps, batch, l1, mu, gamma = 10, 10, 10, 2.0**-5, 0.1, 2000.0
    if quick:
        sampled = steps = batch = 2
    strategy = FastFedDA(
        problem.regularizer,
        strong_convexity=mu,
        damping=gamma,
        local_steps=steps,
        batch_size=batch,
        participation=Sample(count=sampled),
    )
    A = np.stack([f.A for f in problem.objectives])
    y = np.stack([f.b for f in problem.objectives])
    rounds = 2 if quick else 10
    works: dict[str, Work] = {
        "loop": lambda: loops.fastfedda_sparse(
            A,
            y,
            problem.start,
            l1=l1,
            mu=mu,
            gamma=gamma,
            steps=steps,
            batch=batch,
            sampled=sampled,
            rounds=rounds,
        )
    }
    for engine in ("local", "stacked"):
        works[engine] = partial(rounds_of(strategy, problem, engine), rounds)
    times = in_turn(works, 2 if quick else 15)
    count = rounds * sampled * steps
    what = "FastFedDA, sparse regression"
    yield ratio(
        f"{what}: local", "loop", times["local"], times["loop"], steps=count, target="<= 1.3"
    )
    yield ratio(f"{what}: stacked", "loop", times["stacked"], times["loop"], steps=count)


def small_clients(clients: int, d: int, rows: int = 1) -> FederatedProblem:
    """Return least squares with few rows for each of many clients, over the l1 ball."""
    from flower_fedcon.sets import L1Ball

    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((clients, rows, d)), rng.standard_normal((clients, rows))
    parts = [LeastSquares(*data) for data in zip(A, b, strict=True)]
    return FederatedProblem(parts, constraint=L1Ball(1.0))


def growth(quick: bool = False) -> Iterator[Result]:
    """Time a round from 10 to 10,000 clients: per client, against that of a tenth of them."""
    counts, d = ((5, 10), 8) if quick else ((10, 100, 1000, 10_000), 64)
    for engine in ("local", "stacked"):
        works: dict[str, Work] = {}
        rounds = {}
        for clients in counts:
            problem = small_clients(clients, d, rows=5)
            constraint: Any = problem.constraint
            rounds[clients] = max(1, counts[-1] // clients // 2)
            play = rounds_of(FedFW(constraint, penalty=1.0), problem, engine)
            works[str(clients)] = partial(play, rounds[clients])
        times = in_turn(works, 2 if quick else 7)
        for fewer, more in pairwise(counts):
            each = {c: [t / c / rounds[c] for t in times[str(c)]] for c in (fewer, more)}
            what = f"a round of FedFW, {more} clients, d={d}: {engine}"
            yield ratio(
                what, f"{fewer} clients, per client", each[more], each[fewer], target="<= 1.2"
            )


def memory(quick: bool = False) -> Iterator[Result]:
    """Peak memory of a run, data aside, against the clients' states."""
    clients, d = (50, 100) if quick else (10_000, 1000)
    for engine in ("local", "stacked"):
        problem = small_clients(clients, d)
        constraint: Any = problem.constraint
        tracemalloc.start()
        try:
            rounds_of(FedFW(constraint, penalty=1.0), problem, engine)(3)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        what = f"memory, FedFW, {clients} clients, d={d}: {engine}"
        yield ratio(
            what,
            "one model a client",
            [peak / 1e6],
            [8e-6 * clients * d],
            unit="MB",
            target="<= 2.5",
        )


def imports(quick: bool = False) -> Iterator[Result]:
    """Start-up: the time to import this package, against that of Flower's own modules."""
    pairs = [
        ("flower_fedcon", "flwr.serverapp"),
        ("flower_fedcon.strategies", "flwr.serverapp.strategy"),
        ("flower_fedcon.clients.fedfw", "flwr.clientapp"),
    ]
    for own, base in pairs[:1] if quick else pairs:
        works: dict[str, Work] = {name: partial(_import, name) for name in (base, own)}
        times = in_turn(works, 1 if quick else 7, _children)
        yield ratio(
            f"import {own}", f"import {base}", times[own], times[base], unit="s", target="<= 1.2"
        )


def _import(module: str) -> None:
    command = [sys.executable, "-c", f"import {module}"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  (names from above)


def _children() -> float:
    """Return the processor time of the processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def ray(quick: bool = False) -> Iterator[Result]:
    """Time a round in process against one through Ray, start-up aside (by the clock)."""
    problem = small_clients(10, 400, rows=20)
    constraint: Any = problem.constraint
    few, more = (1, 3) if quick else (5, 25)
    strategy = FedFW(constraint, penalty=1.0)

    def seconds(engine: str, rounds: int) -> float:
        history = simulate(strategy, problem, rounds, engine=engine, evaluate_every=0)
        return history.rows[-1]["seconds"]

    in_ray = (seconds("ray", more) - seconds("ray", few)) / (more - few)
    here = seconds("local", 2000) / 2000
    what = "a round of FedFW, 10 clients, d=400: local"
    yield ratio(what, "Ray", [here], [in_ray], unit="s", target="<= 0.01")


BENCHMARKS: dict[str, Callable[[bool], Iterator[Result]]] = {
    "fedfw": fedfw,
    "fastfedda": fastfedda,
    "growth": growth,
    "memory": memory,
    "imports": imports,
    "ray": ray,
}


def run(names: list[str] | None = None, *, quick: bool = False) -> Iterator[Result]:
    """Yield the lines of some benchmarks, by default of all but Ray's.

    Raises
    ------
    ConfigError
        If a name is unknown.
    """
    for name in names or [name for name in BENCHMARKS if name != "ray"]:
        if name not in BENCHMARKS:
            raise ConfigError(f"unknown benchmark {name!r}: {nearest(name, BENCHMARKS)}")
    with threadpool_limits(1):
        for name in names or [name for name in BENCHMARKS if name != "ray"]:
            yield from BENCHMARKS[name](quick)


def to_json(results: list[Result]) -> str:
    """Return the lines with what they were measured on, as JSON."""
    machine = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", ""),
        "load": os.getloadavg()[0],
    }
    return json.dumps({**machine, "results": [asdict(result) for result in results]}, indent=1)
