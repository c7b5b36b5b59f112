"""How much a run bears, and whether a long one stays flat: the figures of `sims/SCALE.md`.

    python tests/support/load.py soak     # 100,000 rounds with checkpoints and an audit log
    python tests/support/load.py grid     # 1,000 nodes in memory, models of 1 MB

Each prints a line for each stage, with memory, open files and disk at its end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from fake_grid import FakeGrid
from flwr.supercore.task_identity import TaskIdentity
from problems import l1ls

from flower_fedcon import Sample, simulate
from flower_fedcon.strategies import FedAvg, FedFW


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
    for name in ("_task_id", "_run_id", "_node_id"):  # which Flower's messages need
        setattr(TaskIdentity, name, 1)
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


def memory() -> int:
    """Return how many bytes of memory this process has to itself, or its part of what is shared."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


LOADS = {"soak": (soak, 10, 100_000), "grid": (grid, 1000, 2)}


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--size", type=int, help="how many clients")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    play, size, rounds = LOADS[given.load]
    play(given.size or size, given.rounds or rounds)


if __name__ == "__main__":
    sys.exit(main())
