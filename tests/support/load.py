"""How much a run bears, and whether a long one stays flat: the figures of `sims/SCALE.md`.

    python tests/support/load.py soak     # 100,000 rounds with checkpoints and an audit log
    python tests/support/load.py grid     # 1,000 nodes in memory, models of 1 MB
    python tests/support/load.py nodes    # 20 SuperNodes on loopback, one of which dies
    python tests/support/load.py large    # 5 * 10^7 entries in float32, beside Flower's FedAvg

Each prints a line for each stage, with memory, open files and disk at its end; the last one prints
processor time and peak memory instead.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from deployment import Deployment
from fake_grid import FakeGrid, Forgetful, echo, plain_echo
from flwr.app import Array, ArrayRecord
from flwr.supercore.task_identity import TaskIdentity
from problems import l1ls
from processes import processes_of
from row_nodes import APP, node_configs, run_config

from flower_fedcon import History, Sample, simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.lab.benchmarks import million
from flower_fedcon.lab.benchmarks.flower import flowers_fedavg
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedFW, Scaffold


def soak(size: int, rounds: int) -> None:
    """Play a long run in process: state on the server and on clients, sampling, checkpoints."""
    problem = l1ls(size)
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(fraction=0.5))
    with tempfile.TemporaryDirectory() as folder:
        simulate(
            strategy,
            problem,
            rounds,
            evaluate_every=max(1, rounds // 20),
            run_dir=Path(folder) / "run",
            checkpoint_every=100,
            audit=True,
            callbacks=[told(Path(folder))],
        )


class Shifted:
    """f(x) = |x - b|^2 / 2 with one number b, so that a client holds nothing large."""

    num_examples, smoothness, strong_convexity = 1, 1.0, 1.0

    def __init__(self, b: float) -> None:
        self.b = b

    def value(self, x: np.ndarray) -> float:
        return float(np.sum((x - self.b) ** 2) / 2)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return x - self.b


class Mailbox(FakeGrid):
    """Nodes that answer when they are heard, twenty at a time, so that replies do not pile up."""

    def push_messages(self, messages):
        ids = [f"m{time.monotonic_ns()}-{i}" for i in range(len(messages))]
        self.replies |= dict(zip(ids, messages, strict=True))
        for key, message in zip(ids, messages, strict=True):
            message.metadata.__dict__["_message_id"] = key
        return ids

    def pull_messages(self, message_ids):
        due = [key for key in message_ids if key in self.replies][:20]
        return [reply for key in due for reply in self.replies_to(self.replies.pop(key))]


def grid(size: int, rounds: int) -> None:
    """Play rounds with everyone on a grid in memory, at 1 MB a model each way."""
    _be_a_task()
    nodes = Mailbox([Shifted(j / size) for j in range(size)])
    strategy = FedAvg(client_lr=0.5, local_steps=1)
    with tempfile.TemporaryDirectory() as folder:
        strategy.start(
            nodes,
            np.zeros(2**17),
            num_rounds=rounds,
            evaluate_every=1,
            run_dir=Path(folder) / "run",
            checkpoint_every=1,
            callbacks=[told(Path(folder))],
        )


def nodes(size: int, rounds: int) -> None:
    """Play FedFW on SuperNodes of this machine; one is killed half way, and comes back."""
    expected = simulate(FedFW(L1Ball(5.0), penalty=1.0), l1ls(size), rounds, seed=3).x
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        configs = node_configs(root, size)
        began, said = time.monotonic(), 0
        with Deployment(root / "flower", configs, startup=60 + 10 * size) as deployment:
            print(f"{size} SuperNodes connected after {time.monotonic() - began:.0f} s", flush=True)
            arguments = {"penalty": 1.0, "oracle": "constraint", "min_replies": size}
            every = {"evaluate_every": 1, "checkpoint_every": 1}
            given = run_config("FedFW", arguments, rounds, root / "run", seed=3, **every)
            run = deployment.submit(APP, given)
            while True:
                alive = run.alive()
                for row in rows_of(root / "run")[said:]:
                    said += 1
                    share, count = of_processes(deployment)
                    print(
                        f"round {row['round']:.0f}: {time.monotonic() - began:.0f} s, {share} MB "
                        f"in {count} processes, {row['retries']:.0f} asked again",
                        flush=True,
                    )
                    if said == rounds // 2:
                        deployment.kill_node(1)
                        deployment.restart_node(1)
                if not alive:
                    break
                time.sleep(1.0)
            run.wait(timeout=10)
            with np.load(root / "run" / "model.npz") as model:
                same = model["x"].tobytes() == expected.tobytes()
        print("the bytes of the run in process" if same else "ANOTHER MODEL", flush=True)


class Clocked(Forgetful):
    """Nodes that note the processor's time at each message."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.moments = []

    def replies_to(self, message):
        self.moments.append(time.process_time())
        return super().replies_to(message)


def large(size: int, rounds: int) -> None:
    """Play three clients on a grid in memory, with an empty train step and a model of this size.

    The yardstick is Flower's FedAvg in the same app. A round's processor time is the median of all
    but the first, and memory is the process's peak in models, without what it held before the run.
    """
    _be_a_task()
    theirs: dict[str, float] = {}
    for title, strategy in (
        ("Flower's FedAvg", flowers_fedavg(3)),
        ("FedAvg", FedAvg()),
        ("Scaffold", Scaffold()),
        ("Scaffold without a mirror", Scaffold(mirror=False)),
    ):
        own = isinstance(strategy, Scaffold | FedAvg)
        nodes = Clocked([None] * 3, make=echo if own else plain_echo)
        gc.collect()
        million.forget_peak()
        before = million.peak()
        model = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
        given = {"evaluate_every": 0} if own else {}
        strategy.start(nodes, model, num_rounds=rounds, **given)
        found = {
            "s of a core a round": float(np.median(np.diff(nodes.moments[-3 * rounds :: 3]))),
            "models": (million.peak() - before) * 1e6 / (4 * size),
        }
        theirs = theirs or found
        told = (f"{value:.3g} {name} ({value / theirs[name]:.3g})" for name, value in found.items())
        print(f"{title}: {', '.join(told)}", flush=True)


def _be_a_task() -> None:
    """Have what Flower's messages need."""
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)


def rows_of(folder: Path) -> list[dict[str, float]]:
    """Return what a run has recorded so far."""
    with suppress(OSError, FedConError):
        return History.read_rows(folder / "history.csv")
    return []


def of_processes(deployment: Deployment) -> tuple[int, int]:
    """Return the megabytes that all processes of a deployment have, and how many they are."""
    shares = []
    for flower in (deployment.superlink, *deployment.nodes):
        for pid in processes_of(flower.home):
            with suppress(OSError):
                shares.append(memory(pid))
    return round(sum(shares) / 1e6), len(shares)


def told(folder: Path) -> Callable[[dict[str, float]], None]:
    """Return what prints time, memory, open files and disk at each record."""
    began = time.monotonic()

    def say(record: dict[str, float]) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        sizes = {path.name: path.stat().st_size / 1e6 for path in files}
        print(
            f"round {record['round']}: {time.monotonic() - began:.1f} s, {memory() / 1e6:.1f} MB, "
            f"{len(os.listdir('/proc/self/fd'))} open files, {len(files)} files on disk:",
            ", ".join(f"{name} {size:.2f} MB" for name, size in sorted(sizes.items())),
            flush=True,
        )

    return say


def memory(pid: int | str = "self") -> int:
    """Return how many bytes of memory a process has to itself, or its part of what is shared."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


LOADS = {
    "soak": (soak, 10, 100_000),
    "grid": (grid, 1000, 2),
    "nodes": (nodes, 20, 10),
    "large": (large, 5 * 10**7, 4),
}


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--size", type=int, help="how many clients, or entries")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    play, size, rounds = LOADS[given.load]
    play(given.size or size, given.rounds or rounds)


if __name__ == "__main__":
    sys.exit(main())
