"""A million clients: FedAvg, FedDualAvg and FedFW, with 1,000 sampled and with all."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.core.participation import Full, Sample
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.stacked import StackedEngine, why_not_stackable
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.problems import many_clients
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import L1
from flower_fedcon.runs.history import History
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.sets import L1Ball
from flower_fedcon.simulation import simulate
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW

_METHODS: dict[str, Callable[..., Any]] = {
    "FedAvg": lambda **rule: (FedAvg(client_lr=0.01, local_steps=5, **rule), {}),
    "FedDualAvg": lambda **rule: (
        FedDualAvg(L1(0.01), client_lr=0.01, local_steps=5, **rule),
        {"regularizer": L1(0.01)},
    ),
    "FedFW": lambda **rule: (FedFW(L1Ball(8.0), penalty=1e-6, **rule), {"constraint": L1Ball(8.0)}),
}


def million(quick: bool = False) -> Iterator[Result]:
    """Set up, play, evaluate and save runs of 10^6 clients with 5 rows and 64 entries each.

    It needs four gigabytes of memory, and two of disk for a checkpoint. FedAvg and FedDualAvg take
    five local steps.
    """
    clients, sampled, d, rounds = (600, 20, 8, 2) if quick else (10**6, 1000, 64, 20)
    given: Any = many_clients(clients=clients, columns=d).objectives
    A, y = given.whole.rows, given.whole.targets
    for title, made in _METHODS.items():
        for rule in (Sample(count=sampled), Full()):
            strategy, term = made(participation=rule)
            whole = rule == Full()
            few = FederatedProblem(ManyClients(LeastSquares, A[:sampled], y[:sampled]), **term)
            _play(_begun(strategy, few))  # compiled kernels are loaded once
            forget_peak()
            began = time.process_time()  # one thread: less sensitive to other programs
            problem = FederatedProblem(ManyClients(LeastSquares, A, y), **term)
            run = _begun(strategy, problem)
            seconds = time.process_time() - began
            what = f"{title}, {clients:,} clients, d={d}, {'all' if whole else f'{sampled:,}'}"
            yield ratio(
                f"{what}: setting up, processor time", "2 us a client", [seconds], [2e-6 * clients],
                steps=clients, unit="us a client", target="<= 1",
            )  # fmt: skip
            part = A if whole else A[:sampled]
            works: dict[str, Work] = {
                "round": partial(_play, run),
                "read": partial(np.vdot, part, part),
            }
            times = in_turn(works, 3 if whole else rounds)
            yield ratio(
                f"{what}: a round", "its data read once", times["round"], times["read"], unit="s"
            )
            most = [peak()]
            yield ratio(
                f"{what}: memory of the process", "16 GB", most, [16e3], unit="MB", target="<= 1"
            )
            del run, works
    yield from _kept(
        clients, d, FederatedProblem(ManyClients(LeastSquares, A, y), **term), strategy
    )


def _begun(strategy: Any, problem: FederatedProblem) -> Run:
    """Return a run that is ready for its first round, prepared as in `simulate`."""
    if reason := why_not_stackable(strategy, problem):
        raise AssertionError(reason)
    engine = StackedEngine(problem)
    rule = strategy.participation
    setup = Setup.of(engine.describe(), 10**6, problem.layout, rule, 0)
    return Run(Plan(10**6), strategy, setup, problem.start, engine)


def _play(run: Run) -> None:
    run.play_round()


def _kept(clients: int, d: int, problem: FederatedProblem, strategy: Any) -> Iterator[Result]:
    """Write a checkpoint of everyone's states, and continue from it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"

        def play(rounds: int, **options: Any) -> tuple[float, History]:
            began = time.perf_counter()
            history = simulate(
                strategy, problem, rounds, engine="stacked", evaluate_every=0, run_dir=folder,
                checkpoint_every=10**6, **options,
            )  # fmt: skip
            return time.perf_counter() - began, history

        play(1)
        size, files = (folder / "checkpoint").stat().st_size, len(list(folder.iterdir()))
        began = time.perf_counter()
        with (folder / "plain").open("wb") as file:
            piece = bytes(2**20)
            for _ in range(-(-size // 2**20)):
                file.write(piece)
        plain = time.perf_counter() - began
        (folder / "plain").unlink()
        resumed, _ = play(2, resume=True)
        what = f"{strategy.title}, {clients:,} clients, d={d}, all, {files} files"
        yield ratio(
            f"{what}: its checkpoint", "one model a client", [size / 1e6], [8e-6 * clients * d],
            unit="MB",
        )  # fmt: skip
        yield ratio(
            f"{what}: resumed, a round, two checkpoints", "as many bytes written", [resumed],
            [plain], unit="s",
        )  # fmt: skip


def forget_peak() -> None:
    """Reset the process's peak memory, if the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """Return the process's peak memory in megabytes."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1.024e-3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024e-3
