"""How much a run bears, and whether a long one stays flat: the figures of `sims/SCALE.md`.

    python tests/support/load.py soak     # 100,000 rounds with checkpoints and an audit log
    python tests/support/load.py grid     # 1,000 nodes in memory, models of 1 MB
    python tests/support/load.py nodes    # 20 SuperNodes on loopback, one of which dies
    python tests/support/load.py large    # 5 * 10^7 entries in float32, beside Flower's FedAvg
    python tests/support/load.py kept     # Scaffold with states and checkpoints, 2 * 10^7 entries
    python tests/support/load.py deployed # the same model on three SuperNodes on loopback

Each prints a line for each stage, with memory, open files and disk at its end; the last three print
the time of a round and peak memory.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self
from unittest import mock

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from deployment import Deployment
from fake_grid import FakeGrid, Forgetful, echo, plain_echo
from flwr.app import Array, ArrayRecord
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from problems import l1ls
from processes import processes_of
from row_nodes import APP, node_configs, run_config

from flower_fedcon import History, Sample, simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.lab.benchmarks import million
from flower_fedcon.lab.benchmarks.flower import flowers_fedavg
from flower_fedcon.lab.benchmarks.load import on_loopback
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


class Sent(Forgetful):
    """Nodes whose messages are taken apart and put together as by a SuperLink; times are noted."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.moments, self.held = [], []

    def replies_to(self, message):
        if message.metadata.message_type == "train":
            self.moments.append((time.process_time(), time.monotonic()))
            self.held.append(memory() / 1e6)
        arrived = as_sent(message)
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        return [as_sent(reply) for reply in super().replies_to(arrived)]

    def seconds(self, rounds: int) -> list[float]:
        """Return a round's seconds: the processor's, and the clock's; medians of all but the first.

        The moments of earlier messages, and of later ones, are not those of these rounds.
        """
        return np.median(np.diff(self.moments[-3 * rounds :: 3], axis=0), axis=0).tolist()


def as_sent(message):
    """Return a message made of the bytes of its objects, which Flower digests and sends."""
    with no_object_id_recompute():
        objects = get_all_nested_objects(message)
        contents = {key: part.deflate() for key, part in objects.items()}
        return inflate_object_from_contents(message.object_id, contents)


def large(size: int, rounds: int) -> None:
    """Play three clients on a grid in memory, with an empty train step and a model of this size.

    The yardstick is Flower's FedAvg in the same app. A round's processor time is the median of all
    but the first. Memory, without what the process held before the run, is in models: the peak, and
    what is there when the first client of a round is asked.
    """
    theirs: list[float] = []
    for title, strategy in (
        ("Flower's FedAvg", flowers_fedavg(3)),
        ("FedAvg", FedAvg()),
        ("Scaffold", Scaffold()),
        ("Scaffold without a mirror", Scaffold(mirror=False)),
    ):
        found = _measured(strategy, size, rounds)
        theirs = theirs or found
        told = (
            f"{value:.3g} {what} ({value / yardstick:.3g})"
            for what, value, yardstick in zip(_MEASURED, found, theirs, strict=True)
        )
        print(f"{title}: {', '.join(told)}", flush=True)


_MEASURED = "s of a core a round", "s a round", "models at most", "models held"


def _measured(
    strategy: Any, size: int, rounds: int, folder: str = "", **options: Any
) -> list[float]:
    """Return what is `_MEASURED` in a run; with a folder clients keep their states there."""
    _be_a_task()
    gc.collect()
    million.forget_peak()
    before = million.peak()
    own = isinstance(strategy, Scaffold | FedAvg)
    nodes = Sent([None] * 3, make=echo if own else plain_echo)
    for context in nodes.nodes.values() if folder else ():
        context.node_config["state-dir"] = folder
    if own:
        options["evaluate_every"] = 0
    model = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
    strategy.start(nodes, model, num_rounds=rounds, **options)
    megabytes = [million.peak() - before, nodes.held[-3] - before]
    return [*nodes.seconds(rounds), *(each * 1e6 / (4 * size) for each in megabytes)]


def kept(size: int, rounds: int) -> None:
    """Play Scaffold as in `large`, and then with states and checkpoints on the disk."""
    for title, states, checkpoints in (
        ("in memory", False, False),
        ("clients' states on the disk", True, False),
        ("and a checkpoint after each round", True, True),
    ):
        with tempfile.TemporaryDirectory() as folder:
            options = {"run_dir": f"{folder}/run", "checkpoint_every": 1} if checkpoints else {}
            where = f"{folder}/states" if states else ""
            core, clock, *_ = _measured(Scaffold(), size, rounds, where, **options)
            sizes = [path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()]
        on_disk = sum(sizes) / (4 * size)
        print(f"{title}: {core:.3g} s of a core, {clock:.3g} s a round, {on_disk:.3g} models on it")


def deployed(size: int, rounds: int) -> None:
    """Play the same on three SuperNodes of this machine, which take one step.

    Seconds are the median of all rounds but the first, and megabytes the peak of all processes
    together, of which the kinds of processes have their own peaks.
    """
    theirs = 0.0, 0.0
    for title, own in (("Flower's FedAvg", False), ("FedAvg", True)):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch("tempfile.tempdir", folder),
            Peak(Path(folder)) as peak,
        ):
            rows = on_loopback(own, 3, rounds, 4e-6 * size)
        seconds = float(np.median(np.diff([row["time"] for row in rows])))
        whole = peak.most.pop("all")
        theirs = theirs if own else (seconds, whole)
        print(
            f"{title}: {seconds:.3g} s a round ({seconds / theirs[0]:.3g}), {whole:.0f} MB "
            f"({whole / theirs[1]:.3g}):",
            ", ".join(f"{kind} {most:.0f}" for kind, most in sorted(peak.most.items())),
            flush=True,
        )


class Peak(Thread):
    """The most memory in MB that the processes of a deployment have, by their kinds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self._over, self.most = folder, Event(), dict[str, float]()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        """Look at all processes, several times in a second."""
        while not self._over.wait(0.2):
            now = Counter[str]()
            for pid in processes_of(self._folder):
                with suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_text()
                    kind = re.search(r"super\w+|\w+app", command)
                    megabytes = memory(pid) / 1e6
                    now["all"] += megabytes
                    now[kind[0] if kind else "others"] += megabytes
            self.most = {kind: max(now[kind], self.most.get(kind, 0)) for kind in now | self.most}


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
    "kept": (kept, 2 * 10**7, 4),
    "deployed": (deployed, 5 * 10**7, 5),
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
