"""A hostile week in minutes: everything that carries a run is killed, torn or crowded at random.

Three runs share three SuperNodes. Until all have ended, one misfortune follows another: a node
dies (in a step, in its handshake), a ServerApp dies, the SuperLink dies with all its apps; a
ServerApp or a client dies between two file operations (of a checkpoint, of a resumption, of a state
write); the disk is full for a while, for servers and nodes; the rows behind the checkpoint are
torn; a stranger joins that has no data. What a supervisor does is done here: what died is started
again, and a run that ended is submitted again with ``resume=true``. Nobody mends a file. ::

    python tests/support/chaos.py --minutes 10 --seed 0

prints what happened and whether each run ended at the bytes of the undisturbed one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from deployment import Deployment, Run
from problems import l1ls
from processes import FlowerProcess, free_ports, key_value_pairs
from row_nodes import APP, model_of, node_configs, run_config

from flower_fedcon import FederatedProblem, History, simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.registry import strategy_class
from flower_fedcon.sets import L1Ball

CLIENTS, EVERY = 3, 2
STEPS = {"local_steps": 2, "min_replies": CLIENTS}  # with fewer replies, ask again
RUNS: dict[str, dict[str, Any]] = {
    "FedFW": {"penalty": 1.0, "oracle": "constraint"},
    "Scaffold": {"client_lr": 0.02, **STEPS},
    "DualFL": {"strong_convexity": 0.1, "momentum": 0.0, "regularization": 0.1},
}


def undisturbed(algorithm: str, rounds: int) -> np.ndarray:
    """Return where a run ends that nothing happens to."""
    settings = dict(RUNS[algorithm])
    constraint = L1Ball(radius=5.0) if settings.pop("oracle", None) else None
    if constraint is not None:
        settings["constraint"] = constraint
    problem = FederatedProblem(l1ls(CLIENTS).objectives, constraint=constraint)
    strategy = strategy_class(algorithm)(**settings)
    return simulate(strategy, problem, rounds, seed=3, evaluate_every=0).x


class Chaos:
    """Three runs on three nodes, and what befalls them.

    Parameters
    ----------
    root : Path
        Folder of all files: logs, clients' states, run directories.
    seed : int
        Of the misfortunes.
    rounds : int
        Of each run.
    """

    def __init__(self, root: Path, seed: int, rounds: int) -> None:
        self.root, self.rounds = root, rounds
        self._random = np.random.default_rng(seed)
        self.happened: Counter[str] = Counter()
        self._runs: dict[str, Run] = {}
        self._submitted: Counter[str] = Counter()
        self._stranger: FlowerProcess | None = None
        database = ["--database", str(root / "superlink.db")]
        self.deployment = Deployment(root / "flower", node_configs(root, CLIENTS), database)

    def play(self, minutes: float, *, misfortunes: Sequence[str] = (), pause: float = 12.0) -> None:
        """Let misfortunes happen, given ones or random ones, then let the runs end.

        Parameters
        ----------
        minutes : float
            For all of it; random misfortunes happen in the first half of them.
        misfortunes : sequence of str
            Those that happen, in this order; by default random ones.
        pause : float
            Seconds between two of them, on average: short beside a round of three runs on two
            cores (some 20 s), long enough for rounds to end.

        Raises
        ------
        TimeoutError
            If the runs do not end in the minutes that are left.
        """
        began = time.monotonic()
        deadline = began + 60 * minutes
        (self.root / "hold").touch()  # none ends before the last misfortune
        with self.deployment:
            try:
                self._keep_running()
                last = began + 60 * minutes / 2
                coming = list(misfortunes)
                while coming or (not misfortunes and time.monotonic() < last):
                    self._wait(self._random.exponential(pause))
                    name = coming.pop(0) if coming else str(self._random.choice(list(self.all)))
                    self.all[name](self)
                    self.happened[name] += 1
                (self.root / "hold").unlink()
                while not self._all_ended():
                    if time.monotonic() > deadline:
                        tails = [run.output[-2000:] for run in self._runs.values()]
                        raise TimeoutError("\n".join(["the runs do not end", *tails]))
                    self._wait(1.0)
            finally:
                if self._stranger is not None:
                    self._stranger.kill()

    def wrong(self) -> list[str]:
        """Return what is not as it would have been without all this."""
        found = []
        for algorithm in RUNS:
            folder = self.root / algorithm
            if model_of(folder).tobytes() != undisturbed(algorithm, self.rounds).tobytes():
                found.append(f"{algorithm}: another model")
            rows = [row["round"] for row in History.read_rows(folder / "history.csv")]
            if rows != list(range(EVERY, self.rounds + 1, EVERY)):
                found.append(f"{algorithm}: the history has rounds {rows}")
        return found

    # --- the supervisor --------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        """Wait, and start again what has ended."""
        until = time.monotonic() + seconds
        while True:
            self._keep_running()
            if time.monotonic() >= until:
                return
            time.sleep(0.2)

    def _keep_running(self) -> None:
        for algorithm in RUNS:
            run = self._runs.get(algorithm)
            if run is None or (not run.alive() and not self._has_ended(algorithm)):
                self._submit(algorithm)

    def _submit(self, algorithm: str) -> None:
        config = run_config(
            algorithm,
            RUNS[algorithm],
            self.rounds,
            self.root / algorithm,
            seed=3,
            evaluate_every=EVERY,
            checkpoint_every=1,
            resume=self._submitted[algorithm] > 0,
        )
        self._submitted[algorithm] += 1
        self._runs[algorithm] = self.deployment.submit(APP, config)

    def _has_ended(self, algorithm: str) -> bool:
        return self._last_round(algorithm) >= self.rounds

    def _last_round(self, algorithm: str) -> float:
        with suppress(OSError, FedConError, IndexError):  # none yet, or torn
            return History.read_rows(self.root / algorithm / "history.csv")[-1]["round"]
        return 0

    def _all_ended(self) -> bool:
        return all(self._has_ended(a) and not self._runs[a].alive() for a in RUNS)

    # --- misfortunes -----------------------------------------------------------------------------

    def _node(self) -> None:
        """A node dies, and comes back."""
        node = int(self._random.integers(CLIENTS))
        self.deployment.kill_node(node)
        self._wait(self._random.uniform(0.0, 3.0))
        self.deployment.restart_node(node)

    def _node_at_once(self) -> None:
        """A node dies, comes back, and dies again within two seconds: in its handshake, often."""
        node = int(self._random.integers(CLIENTS))
        self.deployment.kill_node(node)
        self.deployment.nodes[node].start()
        time.sleep(self._random.uniform(0.5, 2.0))
        self.deployment.kill_node(node)
        self.deployment.restart_node(node)

    def _server_app(self) -> None:
        """The ServerApps die."""
        self.deployment.kill_server_apps()

    def _superlink(self) -> None:
        """The SuperLink dies with its apps, and comes back; so do nodes that gave up on it."""
        self.deployment.kill_superlink()
        self.deployment.restart_superlink()
        for i, node in enumerate(self.deployment.nodes):
            if not node.alive():
                self.deployment.restart_node(i)

    def _torn(self) -> None:
        """The machine of the server goes down; a row is half written, and a checkpoint beside."""
        self.deployment.kill_superlink()
        for algorithm in RUNS:
            folder = self.root / algorithm
            if folder.is_dir():
                with (folder / "history.csv").open("ab") as file:
                    file.write(b"8,0.25,\x00\xff" + self._random.bytes(9))
                (folder / f".checkpoint.{self._random.integers(10**6)}").write_bytes(b"half")
        self._superlink()

    def _server_app_writing(self) -> None:
        """A ServerApp dies before one of its next file operations: of a checkpoint, say."""
        self._dies_writing("server", 40)

    def _client_writing(self) -> None:
        """A client dies before one of its next file operations: of the state it keeps, say."""
        self._dies_writing("node", 15)

    def _dies_writing(self, who: str, most: int) -> None:
        asked = self.root / f"die-{who}"
        asked.write_text(str(self._random.integers(1, most)))
        until = time.monotonic() + 20
        while asked.exists() and time.monotonic() < until:
            self._wait(0.5)
        if asked.exists():
            asked.unlink()
            self.happened[f"(nothing written: {who})"] += 1

    def _full(self) -> None:
        """The disk is full for some seconds: no file can grow beyond some size."""
        (self.root / "full").write_text(str(self._random.integers(4000)))
        self._wait(self._random.uniform(5.0, 15.0))
        (self.root / "full").unlink()

    def _a_stranger(self) -> None:
        """A node joins whose data is not there; it stays."""
        if self._stranger is None:
            deployment = self.deployment
            address = f"127.0.0.1:{deployment.port}"
            config = {"partition-id": 7, "num-partitions": 8, "data": str(self.root / "nowhere")}
            self._stranger = FlowerProcess(
                deployment.root,
                "stranger",
                [
                    "flower-supernode", "--insecure", "--superlink", address,
                    "--host", "127.0.0.1", "--port", str(free_ports(1)[0]),
                    "--node-config", key_value_pairs(config),
                ],
            )  # fmt: skip
            self._stranger.start()

    all: Mapping[str, Callable[[Chaos], None]] = {
        "a node dies": _node,
        "a node dies twice": _node_at_once,
        "the ServerApps die": _server_app,
        "the SuperLink dies": _superlink,
        "the server's machine goes down": _torn,
        "a ServerApp dies as it writes": _server_app_writing,
        "a client dies as it writes": _client_writing,
        "the disk is full": _full,
        "a stranger joins": _a_stranger,
    }


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), given.seed, given.rounds)
        chaos.play(given.minutes)
        for name, times in sorted(chaos.happened.items()):
            print(f"{times:4d} x {name}")
        wrong = chaos.wrong()
    print("\n".join(wrong) or "every run ended at the bytes of the undisturbed one")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
