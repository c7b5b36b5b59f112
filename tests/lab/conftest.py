"""What the laboratory's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Command

SMALL = """
title = "Small lasso"
[problem]
name = "lasso"
clients = 4
rows = 12
columns = 20
nonzeros = 3
[run]
rounds = 20
[algorithm]
name = "FedFW"
penalty = 5.0
participation = {sample = 2}
[[compare]]
name = "FedFWPlus"
penalty = 0.5
[[compare]]
name = "FedMiD"
label = "Mirror, 2 steps"
client_lr = 0.001
local_steps = 2
"""


@pytest.fixture
def fedcon(run_command: Command) -> Command:
    """Run the command in a folder that holds `small.toml`."""
    Path("small.toml").write_text(SMALL)
    return run_command
