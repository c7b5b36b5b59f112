"""What tests have started ends with them, also when they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import processes_of, wait_until

_SCRIPT = """
import sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from processes import FlowerProcess, free_ports

link, port = free_ports(2)
node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port)]
FlowerProcess(Path(sys.argv[2]), "node", node).start()
print("started", flush=True)
time.sleep(60)
"""


def test_a_killed_test_leaves_no_process(tmp_path):
    support = Path(__file__).parents[1] / "support"
    test = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, support, tmp_path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert test.stdout is not None
        assert test.stdout.readline() == "started\n"
        # A process that has only just been started may not show its environment yet.
        assert wait_until(lambda: bool(processes_of(tmp_path)), 15)
    finally:
        test.kill()
        test.communicate()
    try:
        assert wait_until(lambda: not processes_of(tmp_path), 15)
    finally:
        for pid in processes_of(tmp_path):
            os.kill(pid, signal.SIGKILL)
