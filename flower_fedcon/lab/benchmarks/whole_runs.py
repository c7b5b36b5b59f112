"""Engines in this process, against whole runs that were written by hand and compiled with JAX."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.lab.benchmarks.in_process import rounds_of, small_clients
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.problems import digits
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW, Scaffold

_ENGINES = ("local", "stacked", "jax")
_SIZES = ((10, 100), (10, 1000), (100, 100), (100, 1000), (1000, 100))  # clients and d
_FEDFW = ((10, 400), (100, 400), (1000, 64), (10_000, 64))
_ROWS, _STEPS, _RATE, _L1 = 20, 5, 0.01, 1e-3
_MANY = 200  # so many rows that precomputed products would save no work


class _Case(NamedTuple):
    """A method on a problem, and a compiled hand-written function of a number of rounds."""

    what: str
    strategy: Any
    problem: FederatedProblem
    by_hand: Callable[..., Any]
    work: int  # entries of data that a round reads, summed over steps
    target: str  # for the best engine


def compiled(quick: bool = False) -> Iterator[Result]:
    """Time rounds of each engine against hand-written JAX: five local steps (FedFW: one)."""
    for case in _cases(quick):
        rounds = 3 if quick else rounds_for(case.work)
        plays = {kind: rounds_of(case.strategy, case.problem, kind) for kind in _ENGINES}
        fewer = {kind: max(1, rounds // 8) if kind == "local" else rounds for kind in _ENGINES}
        for _ in range(1 if quick else 12):  # until its blocks have their full length
            plays["jax"](rounds)
        works: dict[str, Work] = {"loop": partial(_by_hand, case.by_hand, rounds)}
        works |= {kind: partial(plays[kind], fewer[kind]) for kind in _ENGINES}
        times = in_turn(works, 2 if quick else 9)
        times = {kind: [t / fewer.get(kind, rounds) for t in ts] for kind, ts in times.items()}
        best = min(_ENGINES, key=lambda kind: statistics.median(times[kind]))
        for kind in _ENGINES:
            yield ratio(
                f"{case.what}: {kind}",
                "JAX by hand",
                times[kind],
                times["loop"],
                unit="us a round",
                target=case.target if kind == best else "<= 1.15" if kind == "jax" else "",
            )


def rounds_for(work: int) -> int:
    """Return how many rounds to time together: at least 30 ms, with warm caches and threads."""
    return max(4, 400_000_000 // (600_000 + work))


def _cases(quick: bool) -> Iterator[_Case]:
    import jax

    from flower_fedcon.lab.benchmarks import jax_loops as loops

    def held(problem: FederatedProblem, *names: str) -> list[Any]:
        with jax.enable_x64(True):
            stacks = (np.stack([getattr(f, n) for f in problem.objectives]) for n in names)
            return [jax.numpy.asarray(one) for one in stacks]

    steps: dict[str, Any] = {"client_lr": _RATE, "local_steps": _STEPS}
    settings: dict[str, Any] = {"rate": _RATE, "steps": _STEPS}
    sizes = [(5, 64, _ROWS)] if quick else [*((n, d, _ROWS) for n, d in _SIZES), (100, 100, _MANY)]
    for clients, d, rows in sizes:
        free = FederatedProblem(small_clients(clients, d, rows=rows).objectives)
        sparse = FederatedProblem(free.objectives, regularizer=L1(_L1))
        data, work = held(free, "A", "b"), _STEPS * clients * rows * d
        methods: list[tuple[Any, FederatedProblem, Any, dict[str, Any]]] = [
            (FedAvg(**steps), free, loops.fedavg, {}),
            (Scaffold(**steps), free, loops.scaffold, {}),
            (FedDualAvg(sparse.regularizer, **steps), sparse, loops.feddualavg, {"l1": _L1}),
        ]
        for strategy, problem, loop, more in methods:
            by_hand = partial(loop, *data, **settings, **more)
            what = f"{strategy.title}, {clients} clients, d={d}"
            what += f", {rows} rows" if rows != _ROWS else ""
            target = "<= 0.67" if clients >= 100 else "<= 1.15"
            yield _Case(what, strategy, problem, by_hand, work, target)
    for clients, d in ((5, 64),) if quick else _FEDFW:
        problem = small_clients(clients, d, rows=_ROWS)
        constraint: Any = problem.constraint
        by_hand = partial(loops.fedfw, *held(problem, "A", "b"), radius=1.0, penalty=1.0)
        what, work = f"FedFW, {clients} clients, d={d}", clients * _ROWS * d
        target = "<= 0.6" if clients >= 100 else "<= 1.15"
        yield _Case(what, FedFW(constraint, penalty=1.0), problem, by_hand, work, target)
    problem = digits(l1=_L1)
    data, batch = held(problem, "A", "y"), 10
    by_hand = partial(loops.feddualavg_softmax, *data, **settings, l1=_L1, batch=batch)
    strategy = FedDualAvg(problem.regularizer, batch_size=batch, **steps)
    work = _STEPS * problem.num_clients * batch * 65 * 10
    what = "FedDualAvg, digits, batches of 10"
    yield _Case(what, strategy, problem, by_hand, work, "<= 1.15")


def bookkeeping(quick: bool = False) -> Iterator[Result]:
    """Time the cost of records and control variates in a stacked round of FedAvg, five steps."""
    steps: dict[str, Any] = {"client_lr": _RATE, "local_steps": _STEPS}
    for clients, d in ((5, 64),) if quick else _SIZES:
        problem = FederatedProblem(small_clients(clients, d, rows=_ROWS).objectives)
        rounds = 3 if quick else rounds_for(_STEPS * clients * _ROWS * d)
        plays = {
            "FedAvg": rounds_of(FedAvg(**steps), problem, "stacked"),
            "recorded": rounds_of(FedAvg(**steps), problem, "stacked", record=True),
            "Scaffold": rounds_of(Scaffold(**steps), problem, "stacked"),
        }
        times = in_turn({k: partial(play, rounds) for k, play in plays.items()}, 2 if quick else 15)
        each = {name: [t / rounds for t in seconds] for name, seconds in times.items()}
        for name, what, target in (
            ("recorded", "FedAvg stacked, evaluate_every=1", "<= 1.15"),
            ("Scaffold", "Scaffold stacked", "<= 1.3"),
        ):
            yield ratio(
                f"{what}, {clients} clients, d={d}",
                "FedAvg stacked",
                each[name],
                each["FedAvg"],
                unit="us a round",
                target=target,
            )


def _by_hand(loop: Callable[..., Any], rounds: int) -> None:
    import jax

    with jax.enable_x64(True):
        loop(rounds=rounds).block_until_ready()
