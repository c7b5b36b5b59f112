"""What the laboratory's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

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
def fedcon(run_command):
    """Run the command in a folder that holds `small.toml`."""
    Path("small.toml").write_text(SMALL)
    return run_command


@pytest.fixture
def undrawn(monkeypatch):
    """Leave empty files for figures, which take half a second each."""
    from flower_fedcon.lab.experiments import figures

    monkeypatch.setattr(figures, "save_figure", lambda _, paths: [path.touch() for path in paths])
