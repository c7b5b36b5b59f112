"""Benchmarks against Flower: start-up, and rounds through its simulation on Ray."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from flower_fedcon.lab.benchmarks.in_process import rounds_of, small_clients
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.simulation import simulate
from flower_fedcon.strategies import FedAvg, FedFW


def imports(quick: bool = False) -> Iterator[Result]:
    """Start-up: the time to import this package, against that of Flower's own modules."""
    pairs = [
        ("flower_fedcon", "flwr.serverapp", "<= 1.2"),
        ("flower_fedcon.clients.fedfw", "flwr.clientapp", "<= 1.2"),
        ("flower_fedcon.strategies", "flwr.serverapp.strategy", ""),
    ]
    for ours, base, target in pairs[:1] if quick else pairs:
        works: dict[str, Work] = {name: partial(_import, name) for name in (base, ours)}
        times = in_turn(works, 1 if quick else 7, _children)
        yield ratio(
            f"import {ours}", f"import {base}", times[ours], times[base], unit="s", target=target
        )


def _import(module: str) -> None:
    command = [sys.executable, "-c", f"import {module}"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  (names from above)


def _children() -> float:
    """Return the processor time of the processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def ray(quick: bool = False) -> Iterator[Result]:
    """Time a round through Ray, start-up aside (by the clock), against one in process.

    And one with blocks of clients against one with a message for each.
    """
    sizes = [(10, 400, 25, "<= 0.01"), (100, 400, 25, "<= 0.033"), (1_000, 64, 15, "")]
    for clients, d, rounds, target in sizes[: 1 if quick else None]:
        problem = small_clients(clients, d, rows=20)
        in_ray = _through_ray(problem, 3 if quick else rounds)
        play = rounds_of(FedFW(_constraint(problem), penalty=1.0), problem, "local")
        play(5)
        many = 20 * (3 if quick else rounds)
        began = time.perf_counter()
        play(many)
        here = (time.perf_counter() - began) / many
        what = f"a round of FedFW, {clients} clients, d={d}"
        yield ratio(f"{what}: local", "Ray", [here] * len(in_ray), in_ray, unit="s", target=target)
        if clients == 100:
            alone = _through_ray(problem, 8, clients_per_message=1)
            middle = [statistics.median(alone)] * len(in_ray)
            other = "a client to a message"
            yield ratio(f"{what}: Ray", other, in_ray, middle, unit="s", target="<= 0.67")


def _constraint(problem: FederatedProblem) -> Any:
    return problem.constraint


def _through_ray(problem: FederatedProblem, rounds: int, **options: Any) -> list[float]:
    """Return the seconds of rounds of FedFW."""
    strategy = _Clocked(_constraint(problem), penalty=1.0)
    simulate(strategy, problem, rounds, engine="ray", evaluate_every=0, **options)
    return strategy.gaps()


def flower(quick: bool = False) -> Iterator[Result]:
    """Time a round of FedAvg through Ray against that of Flower's own FedAvg, arrays alike."""
    for d in (400, 1_000_000)[: 1 if quick else 2]:
        clients, rounds = (2, 4) if quick else (10, 25)
        problem = FederatedProblem(small_clients(clients, d).objectives)  # without a constraint
        ours = ClockedFedAvg(client_lr=1e-9, local_steps=1)
        middle = statistics.median(_bare_flower(problem, rounds))
        simulate(ours, problem, rounds, engine="ray", evaluate_every=0)
        gaps = ours.gaps()
        what = f"a round of FedAvg through Ray, {clients} clients, d={d}"
        yield ratio(what, "Flower's FedAvg", gaps, [middle] * len(gaps), unit="s", target="<= 1.15")


class _Clock:
    """Records when a strategy's rounds end; copies of the strategy share the record."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ends: list[float] = []

    def aggregate(self, state: Any, uploads: Any) -> Any:
        """Record the time as well."""
        self.ends.append(time.perf_counter())
        return super().aggregate(state, uploads)  # type: ignore[misc]

    def gaps(self) -> list[float]:
        """Return the seconds from one round's end to the next, without the first rounds."""
        return [after - before for before, after in pairwise(self.ends)][len(self.ends) // 5 :]


class _Clocked(_Clock, FedFW):
    pass


class ClockedFedAvg(_Clock, FedAvg):
    """FedAvg of this package, which records when its rounds end."""


def flowers_fedavg(nodes: int) -> Any:
    """Return Flower's FedAvg of so many nodes, which records when its rounds end."""
    from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

    class Strategy(_Clock, FlowerFedAvg):
        aggregate = None  # type: ignore[assignment]

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            averaged = super().aggregate_train(server_round, replies)
            self.ends.append(time.perf_counter())
            return averaged

    return Strategy(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)


def _bare_flower(problem: FederatedProblem, rounds: int) -> list[float]:
    """Return the seconds of rounds of Flower's FedAvg, each client a gradient step."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from flower_fedcon.flower.virtual_nodes import run_on_virtual_nodes

    objectives, gaps = problem.objectives, []
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        (x,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        objective = objectives[int(context.node_config["partition-id"])]
        x = x - 1e-9 * objective.gradient(x)
        content = RecordDict(
            {
                "arrays": ArrayRecord([x]),
                "metrics": MetricRecord({"num-examples": objective.num_examples}),
            }
        )
        return Message(content=content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = flowers_fedavg(problem.num_clients)
        strategy.start(grid, ArrayRecord([problem.start]), num_rounds=rounds)
        gaps.extend(strategy.gaps())

    run_on_virtual_nodes(server, client, problem.num_clients)
    return gaps
