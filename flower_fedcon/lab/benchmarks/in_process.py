"""Benchmarks in process: engines against hand-written loops, growth, memory."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from flower_fedcon import compiled
from flower_fedcon.core.participation import Sample
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.base import InProcess
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.engines.stacked import StackedEngine
from flower_fedcon.lab.benchmarks import notebook_loops
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.objectives import LeastSquares, LogisticRegression, SoftmaxRegression
from flower_fedcon.problems import lasso, sparse_regression
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import Zero
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.simulation import simulate
from flower_fedcon.solvers import AOGM
from flower_fedcon.strategies import DualFL, FastFedDA, FedDR, FedDyn, FedFW
from flower_fedcon.validation import Array


def lasso_in_one_array(clients: int, d: int) -> tuple[Array, Array, FederatedProblem]:
    """Return A, b and the lasso with 20 rows a client; its objectives are views of A and b."""
    given = lasso(clients=clients, rows=20 * clients, columns=d, nonzeros=min(20, d // 2))
    A = np.stack([f.A for f in given.objectives])
    b = np.stack([f.b for f in given.objectives])
    parts = [LeastSquares(*data, scale=2.0 * 20) for data in zip(A, b, strict=True)]
    return A, b, FederatedProblem(parts, constraint=given.constraint)


def rounds_of(
    strategy: Any, problem: FederatedProblem, kind: str, *, record: bool = False
) -> Callable[[int], None]:
    """Return a function that does a number of further rounds of one run.

    With `record` the model is evaluated after each round, otherwise never.
    """
    engine = _engine(problem, kind)
    rule = strategy.participation
    setup = Setup.of(engine.describe(), 10**6, problem.layout, rule, 0)
    run = Run(Plan(10**6), strategy, setup, problem.start, engine)
    server = run.server

    def play(rounds: int) -> None:
        last = server.round + rounds
        while server.round < last:
            if not engine.advance(server, last - server.round):
                run.play_round()
            if record:
                engine.evaluate(server.x)

    return play


def _engine(problem: FederatedProblem, kind: str) -> InProcess:
    if kind == "jax":
        from flower_fedcon.engines.jax.program import JaxEngine

        return JaxEngine(problem)
    return (StackedEngine if kind == "stacked" else LocalEngine)(problem)


def _plain(strategy: Any, problem: FederatedProblem, rounds: int) -> Work:
    """Return a function that does rounds of the stacked engine without compiled kernels."""
    with compiled.numpy_only():
        play = rounds_of(strategy, problem, "stacked")

    def work() -> None:
        with compiled.numpy_only():
            play(rounds)

    return work


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
            "loop": partial(notebook_loops.fedfw_lasso, A, b, constraint.radius, 1.0, rounds)
        }
        for engine in ("local", "stacked"):
            works[engine] = partial(rounds_of(strategy, problem, engine), rounds)
        works["plain"] = _plain(strategy, problem, rounds)
        times = in_turn(works, 2 if quick else 15)
        what = f"FedFW, lasso, {clients} clients, d={d}"
        steps = rounds * clients
        yield ratio(
            f"{what}: local", "loop", times["local"], times["loop"], steps=steps, target=near
        )
        yield ratio(
            f"{what}: stacked", "loop", times["stacked"], times["loop"], steps=steps, target=far
        )
        yield ratio(
            f"{what}: stacked, NumPy alone", "loop", times["plain"], times["loop"], steps=steps
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
        "plain": _plain(strategy, problem, rounds),
        "loop": lambda: notebook_loops.fastfedda_sparse(
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
        ),
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
    yield ratio(f"{what}: stacked, NumPy alone", "loop", times["plain"], times["loop"], steps=count)


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


def long(quick: bool = False) -> Iterator[Result]:
    """Play 10^5 rounds of the lasso experiment, with progress, history and checkpoints."""
    from flower_fedcon.runs.console import progress

    A, b, problem = lasso_in_one_array(10, 400)
    constraint: Any = problem.constraint
    rounds = 200 if quick else 100_000
    strategy = FedFW(constraint, penalty=5.0)

    def whole_run() -> None:
        with tempfile.TemporaryDirectory() as folder, progress("FedFW", rounds) as show:
            simulate(
                strategy,
                problem,
                rounds,
                evaluate_every=20,
                run_dir=Path(folder) / "run",
                callbacks=(show,),
            )

    works: dict[str, Work] = {
        "loop": partial(notebook_loops.fedfw_lasso, A, b, constraint.radius, 5.0, rounds),
        "run": whole_run,
    }
    times = in_turn(works, 2 if quick else 3)
    what = f"FedFW, lasso, {rounds} rounds with history and checkpoints: local"
    yield ratio(what, "loop", times["run"], times["loop"], unit="s", target="<= 2")


def solver(quick: bool = False) -> Iterator[Result]:
    """Time DualFL on 8 clients with 1,250 images of 28 x 28 each, against its local solver."""
    rows, pixels = (20, 16) if quick else (1250, 784)
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((pixels + 1, 10))
    clients = []
    for _ in range(8):  # of MNIST's size: the content of the pixels does not change the cost
        shown = rng.random((rows, pixels)) * (rng.random((rows, pixels)) < 0.2)
        A = np.hstack([shown, np.ones((rows, 1))])
        clients.append(SoftmaxRegression(A, np.argmax(A @ truth, axis=1), 10, l2=1e-2))
    strategy = DualFL(local_solver=AOGM(tolerance=1e-6))
    play = rounds_of(strategy, FederatedProblem(clients), "local")
    whole: list[float] = []
    inside: list[float] = []
    plain = AOGM.solve

    def timed(self: AOGM, *arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        solution = plain(self, *arguments, **options)
        inside[-1] += time.process_time() - began
        return solution

    with mock.patch.object(AOGM, "solve", timed):
        for _ in range(2 if quick else 5):
            inside.append(0.0)
            began = time.process_time()
            play(1)
            whole.append(time.process_time() - began)
    what = f"a round of DualFL by AOGM, 8 clients of {rows} images: local"
    yield ratio(what, "its local solver alone", whole, inside, unit="s", target="<= 1.05")


def solves(quick: bool = False) -> Iterator[Result]:
    """Time rounds of exact local solves, of clients with 50 rows x 64 entries each."""
    rows, d, count = (6, 5, 1) if quick else (50, 64, 5)
    compiled = ["jax"] if find_spec("jax") else []
    for clients in (4,) if quick else (10, 100):
        problem = _logistic(clients, rows, d)
        strategies: list[Any] = [DualFL(), FedDR(Zero(), step_size=1.0), FedDyn(proximal=1.0)]
        for strategy in strategies:
            works: dict[str, Work] = {}
            for engine in ("local", "stacked", *compiled):
                play = rounds_of(strategy, problem, engine)
                play(3)  # nothing is compiled after this
                works[engine] = partial(play, count)
            times = in_turn(works, 2 if quick else 9)
            what = f"{strategy.title}, logistic regression, {clients} clients, d={d}"
            for engine in ("stacked", *compiled):
                target = "<= 0.1" if engine == "stacked" and clients == 100 else ""
                yield ratio(
                    f"{what}: {engine}",
                    "local",
                    times[engine],
                    times["local"],
                    steps=count,
                    unit="s a round",
                    target=target,
                )


def _logistic(clients: int, rows: int, d: int) -> FederatedProblem:
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(clients):
        A = rng.standard_normal((rows, d))
        labels = np.where(A @ rng.standard_normal(d) > 0, 1, -1)
        parts.append(LogisticRegression(A, labels, l2=1e-2))
    return FederatedProblem(parts, regularizer=Zero())
