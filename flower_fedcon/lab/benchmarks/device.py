"""Many clients on JAX's default device (a GPU if there is one), against the stacked engine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.lab.benchmarks.in_process import rounds_of
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW

_STEPS: dict[str, Any] = {"client_lr": 1e-4, "local_steps": 5}
_METHODS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (FedAvg(**_STEPS), {}),
    (FedDualAvg(L1(0.01), **_STEPS), {"regularizer": L1(0.01)}),
    (FedFW(L1Ball(8.0), penalty=1e-6), {"constraint": L1Ball(8.0)}),
)
_SIZES = ((100_000, 5, 64), (100_000, 2, 1024))  # clients, rows of each, d


def device(quick: bool = False) -> Iterator[Result]:
    """Time rounds of 10^5 clients in float64 and float32; five local steps (FedFW: one)."""
    import jax

    place = jax.devices()[0]
    rounds = 2 if quick else 10
    for clients, rows, d in ((6, 2, 8),) if quick else _SIZES:
        rng = np.random.default_rng(0)
        A, b = rng.standard_normal((clients, rows, d)), rng.standard_normal((clients, rows))
        for dtype in (np.float64, np.float32):
            given = ManyClients(LeastSquares, A.astype(dtype), b.astype(dtype))
            for strategy, term in _METHODS:
                problem = FederatedProblem(given, **term)
                works: dict[str, Work] = {}
                for engine in ("stacked", "jax"):
                    play = rounds_of(strategy, problem, engine)
                    play(3)  # nothing is compiled after this
                    works[engine] = partial(play, rounds)
                times = in_turn(works, 2 if quick else 5)
                what = f"{strategy.title}, {clients:,} clients, d={d}, {np.dtype(dtype).name}"
                yield ratio(
                    f"{what}: jax, {place.device_kind}", "stacked", times["jax"], times["stacked"],
                    steps=rounds, unit="s a round",
                )  # fmt: skip
