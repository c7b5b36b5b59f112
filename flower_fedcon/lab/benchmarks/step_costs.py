"""Curves of the cost of a client's step, which `fedcon bench --figure` draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.lab.benchmarks import notebook_loops
from flower_fedcon.lab.benchmarks.in_process import lasso_in_one_array, rounds_of, small_clients
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.simulation import simulate
from flower_fedcon.strategies import FedAvg, FedFW

_ENGINES = ("local", "stacked")
_MANY = (10, 30, 100, 300, 1000, 3000)
_AXES: dict[str, tuple[int, ...]] = {
    "clients": _MANY,
    "dimension": _MANY,
    "rounds": (10, 100, 1000, 10_000),
    "rows": (3, 10, 30, 100, 300, 1000),
    "local steps": (1, 3, 10, 30, 100),
}


class _Point(NamedTuple):
    """A method, a problem, and the hand-written loop of the same rounds."""

    strategy: Any
    problem: FederatedProblem
    rounds: int
    loop: Work


def curves(quick: bool = False) -> Iterator[Result]:
    """Vary clients, dimension and rounds of FedFW, and rows and local steps of FedAvg."""
    for axis, values in _AXES.items():
        for value in values[:2] if quick else values:
            point = _fedavg(axis, value) if axis in ("rows", "local steps") else _fedfw(axis, value)
            works: dict[str, Work] = {"loop": point.loop}
            for engine in _ENGINES:
                if axis == "rounds":  # the start's share falls with them
                    works[engine] = partial(simulate, *point[:3], engine=engine, evaluate_every=0)
                else:
                    play = rounds_of(point.strategy, point.problem, engine)
                    works[engine] = partial(play, point.rounds)
            times = in_turn(works, 1 if quick or value >= 10_000 else 5)
            for engine in _ENGINES:
                steps = point.rounds * point.problem.num_clients
                what = f"{point.strategy.title}, {axis} {value}: {engine}"
                line = ratio(what, "loop", times[engine], times["loop"], steps=steps)
                yield replace(line, axis=axis, at=value, series=engine)


def _fedfw(axis: str, value: int) -> _Point:
    """Return FedFW on lasso: 100 clients and 64 unknowns, except for varied quantities."""
    clients = value if axis == "clients" else 100
    A, b, problem = lasso_in_one_array(clients, value if axis == "dimension" else 64)
    constraint: Any = problem.constraint
    rounds = value if axis == "rounds" else max(3, 3000 // clients)
    loop = partial(notebook_loops.fedfw_lasso, A, b, constraint.radius, 1.0, rounds)
    return _Point(FedFW(constraint, penalty=1.0), problem, rounds, loop)


def _fedavg(axis: str, value: int) -> _Point:
    """Return FedAvg on least squares: 100 clients, 64 unknowns, 20 rows, five steps on all."""
    rows, steps = (value, 5) if axis == "rows" else (20, value)
    problem = FederatedProblem(small_clients(100, 64, rows=rows).objectives)
    A, b = (np.stack([getattr(f, name) for f in problem.objectives]) for name in ("A", "b"))
    rounds = max(3, 10_000 // (rows * steps))
    loop = partial(notebook_loops.fedavg_least_squares, A, b, 1e-3, steps, rounds)
    return _Point(FedAvg(client_lr=1e-3, local_steps=steps), problem, rounds, loop)
