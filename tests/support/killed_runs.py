"""A run that is killed at random moments, resumed, and killed again; then it may end.

In a process of its own, without threads: each start of the run is a fork of it, so that nothing is
imported anew, and the kills fall into the run and its resumption alone. Some kills also tear the
history's end, as a full disk does.

    python killed_runs.py FOLDER SEED KILLS ALGORITHM ...
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "algorithms")]

from contract import CONTRACTS, build  # noqa: E402

from flower_fedcon.runs.history import History  # noqa: E402
from flower_fedcon.runs.plan import Plan  # noqa: E402
from flower_fedcon.simulation import simulate  # noqa: E402

ROUNDS, EVERY = 150, 7


def late_columns(server_round: int, x: np.ndarray) -> dict[str, float]:
    """Return columns of which one more comes every eleven rounds."""
    return {f"late_{i}": float(x.sum()) for i in range(server_round // 11)}


def run(folder: Path, name: str) -> None:
    """Run to the end, from wherever the folder is."""
    case = CONTRACTS[name].sampled[0]
    problem = case.problem()
    plan = Plan(ROUNDS, run_dir=folder, resume=True, checkpoint_every=EVERY, evaluate=late_columns)
    simulate(build(name, problem, **case.settings), problem, plan=plan)


def killed(folder: Path, name: str, after: float) -> bool:
    """Run in a child that is killed after some seconds; return whether it was."""
    child = os.fork()
    if child == 0:
        try:
            run(folder, name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"{name} could not be resumed")
    return os.WIFSIGNALED(status)


def content(folder: Path) -> tuple[bytes, list[dict[str, float]]]:
    """Return a finished run's model and history."""
    rows = History.read_rows(folder / "history.csv")
    timeless = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    return (folder / "model.npz").read_bytes(), timeless


def main(folder: Path, seed: int, kills: int, names: list[str]) -> None:
    """Kill and resume; a line for each algorithm says how often."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rng = np.random.default_rng(seed)
    for name in names:
        calm, other = folder / name / "calm", folder / name / "killed"
        began = time.monotonic()
        run(calm, name)
        seconds = time.monotonic() - began
        count = torn = 0
        history = other / "history.csv"
        while count < kills and killed(other, name, after=rng.uniform(0, seconds / 4)):
            count += 1
            if history.exists() and rng.random() < 0.3:
                torn += 1
                with history.open("ab") as file:
                    file.write(rng.bytes(rng.integers(1, 200)))
        run(other, name)
        if content(calm) != content(other):
            sys.exit(f"{name}: other bytes after {count} kills")
        print(f"{name}: {count} kills, {torn} torn histories, {len(list(other.iterdir()))} files")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
