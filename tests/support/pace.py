"""How many steps a run does in some time, on four SuperNodes of which one is ten times slower. ::

    python tests/support/pace.py --seconds 600

prints the steps of rounds, and of runs that do not wait.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from deployment import Deployment
from processes import wait_until
from row_nodes import APP, node_configs, run_config

CLIENTS = 4
NEVER = 10**6  # steps


def paced(root: Path, seconds: float) -> list[int]:
    """Return the steps that AREA does in so many seconds, with rounds and with a buffer of 2.

    A gradient takes a second on three nodes, and ten on the fourth. What Flower needs to start a
    process for each message comes on top of it.
    """
    configs = node_configs(root, CLIENTS)
    for config in configs:
        config["seconds"] = 10.0 if config["partition-id"] == CLIENTS - 1 else 1.0
    found = []
    with Deployment(root / "flower", configs) as deployment:
        for buffer in (None, 2):
            arguments = {"oracle": "regularizer", "client_lr": 0.02}
            arguments |= {} if buffer is None else {"buffer": buffer}
            folder = root / f"run-{buffer}" / "run"
            run = deployment.submit(
                APP, run_config("AREA", arguments, NEVER, folder, evaluate_every=0)
            )
            if not wait_until(lambda: " 1 each client uploads" in run.output, 300):  # noqa: B023
                raise TimeoutError(run.output)
            time.sleep(seconds)
            rounds = re.findall(rf"\[(?:ROUND|STEP) (\d+)/{NEVER}\]", run.output)
            found.append(int(rounds[-1]) if rounds else 0)
            deployment.stop_run(run)
            wait_until(lambda: not deployment.server_apps(), 60)
    return found


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        rounds, steps = paced(Path(folder), given.seconds)
    print(f"in {given.seconds:g} s: {rounds} rounds, {steps} steps, {steps / rounds:.1f} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
