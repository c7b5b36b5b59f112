"""Benchmarks of the compiled engine, against the same methods written with JAX by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.benchmarks.in_process import small_clients
from flower_fedcon.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.core.protocol import Setup
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.runs.run import Plan, Run
from flower_fedcon.strategies import FedAvg, FedFW, Scaffold


def rounds_of(strategy: Any, problem: FederatedProblem) -> Callable[[int], None]:
    """Return a function that plays a number of further rounds of one run, without evaluation."""
    from flower_fedcon.engines.jax import JaxEngine

    engine = JaxEngine(problem)
    setup = Setup.of(engine.describe(), 10**6, problem.layout, strategy.participation, 0)
    run = Run(Plan(10**6), strategy, setup, problem.start, engine)

    def play(rounds: int) -> None:
        last = run.server.round + rounds
        while run.server.round < last:
            if not engine.advance(run.server, last - run.server.round):
                run.finish_round(run.server.begin())

    return play


def compiled(quick: bool = False) -> Iterator[Result]:
    """Least squares of 64 unknowns, 20 rows a client; five local steps, or one of FedFW."""
    import jax

    from flower_fedcon.benchmarks.jax_loops import LOOPS

    steps: dict[str, Any] = {"client_lr": 0.01, "local_steps": 5}
    for clients in (5,) if quick else (10, 100, 1000):
        problem = small_clients(clients, 64, rows=20)
        constraint: Any = problem.constraint
        free = FederatedProblem(problem.objectives)
        with jax.enable_x64(True):
            data = [
                jax.numpy.asarray(np.stack([getattr(f, name) for f in problem.objectives]))
                for name in ("A", "b")
            ]
        methods: dict[str, tuple[Any, FederatedProblem, dict[str, Any]]] = {
            "FedAvg": (FedAvg(**steps), free, {"rate": 0.01, "steps": 5}),
            "Scaffold": (Scaffold(**steps), free, {"rate": 0.01, "steps": 5}),
            "FedFW": (FedFW(constraint, penalty=1.0), problem, {"radius": 1.0, "penalty": 1.0}),
        }
        rounds = 3 if quick else max(200, 50_000 // clients)
        for name, (strategy, given, settings) in methods.items():
            play = rounds_of(strategy, given)
            for _ in range(1 if quick else 12):  # until its blocks are as long as they get
                play(rounds)
            loop = partial(_by_hand, LOOPS[name], *data, rounds=rounds, **settings)
            works: dict[str, Work] = {"loop": loop, "engine": partial(play, rounds)}
            times = in_turn(works, 2 if quick else 15)
            yield ratio(
                f"{name}, {clients} clients: jax",
                "JAX by hand",
                times["engine"],
                times["loop"],
                steps=rounds * clients,
                target="<= 1.15",
            )


def _by_hand(loop: Callable[..., Any], *data: Any, **settings: Any) -> None:
    import jax

    with jax.enable_x64(True):
        loop(*data, **settings).block_until_ready()
