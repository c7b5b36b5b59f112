"""The share of the memory's bandwidth that rounds reach, against a copy of the data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

from flower_fedcon.lab.benchmarks.in_process import rounds_of, small_clients
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW, Scaffold
from flower_fedcon.validation import Array

_ROWS, _COPIED = 20, 2**24  # doubles in each of two arrays: more than the caches hold


def bandwidth(quick: bool = False) -> Iterator[Result]:
    """Time rounds on data in and out of the caches, against a copy as in STREAM.

    The yardstick is the time in which all cores copy half as many bytes as the clients' data have,
    so that bytes read plus bytes written equal the data. A ratio of 1 means that the round has read
    the data once at the speed of the memory; below 1 they came from a cache.
    """
    copied = np.ones(2**12 if quick else _COPIED)
    into = np.empty_like(copied)
    steps: dict[str, Any] = {"client_lr": 0.01, "local_steps": 5}
    psi = L1(1e-3)
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        for clients, d in ((5, 64),) if quick else ((100, 1000), (1000, 1000)):
            ball = small_clients(clients, d, rows=_ROWS)
            free = FederatedProblem(ball.objectives)
            methods: list[tuple[Any, FederatedProblem]] = [
                (FedAvg(**steps), free),
                (Scaffold(**steps), free),
                (FedDualAvg(psi, **steps), FederatedProblem(ball.objectives, regularizer=psi)),
                (FedFW(ball.constraint, penalty=1.0), ball),  # type: ignore[arg-type]
            ]
            data = 8 * clients * _ROWS * d
            rounds = 2 if quick else max(4, 2**29 // data)
            for strategy, problem in methods:
                works: dict[str, Work] = {"copy": partial(_copy, cores, copied, into)}
                for engine in ("stacked", "jax") if find_spec("jax") else ("stacked",):
                    play = rounds_of(strategy, problem, engine)
                    play(2 * rounds)  # until blocks of compiled rounds have grown
                    works[engine] = partial(play, rounds)
                times = in_turn(works, 2 if quick else 9)
                share = data / (2 * copied.nbytes)
                base = [seconds * share for seconds in times.pop("copy")]
                for engine, seconds in times.items():
                    yield ratio(
                        f"{strategy.title}, {clients} clients, d={d}: {engine}",
                        f"a copy of {data / 1e6:.3g} MB",
                        [t / rounds for t in seconds],
                        base,
                        unit="us a round",
                    )


def _copy(cores: ThreadPoolExecutor, source: Array, target: Array) -> None:
    """Copy an array; each core copies a part."""
    number = os.cpu_count() or 1
    ends = [len(source) * i // number for i in range(number + 1)]
    parts = [slice(*both) for both in pairwise(ends)]
    list(cores.map(lambda part: np.copyto(target[part], source[part]), parts))
