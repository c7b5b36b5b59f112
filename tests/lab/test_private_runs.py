"""Private runs from files: tables and figures of what is recorded, and of all of it with unsafe."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from harness import ran

from flower_fedcon.cli import main

FILE = """
[problem]
name = "l1_logistic"
clients = 5
rows = 20
columns = 12

[algorithm]
name = "feddualavg"
client_lr = 0.3
local_steps = 2
privacy = {{type = "GaussianDP", clip = 0.5, noise_multiplier = 6.0, target_delta = 1e-4}}
{more}
[run]
rounds = 2
"""


@pytest.mark.parametrize("unsafe", [False, True])
def test_a_private_run_ends_in_a_table_and_a_figure(tmp_path, capsys, unsafe):
    file, folder = tmp_path / "p.toml", tmp_path / "run"
    file.write_text(FILE.format(more="") + "unsafe = true\n" * unsafe)
    assert main(["run", str(file), "--run-dir", str(folder)]) == 0
    said = capsys.readouterr().out
    assert ("Objective" in said) == unsafe
    assert "Epsilon" in said
    assert ("reference optimum" in said) == unsafe  # the least of all clients' objectives, exactly
    assert (folder / "figure.png").exists()
    with (folder / "history.csv").open() as rows:
        assert ("objective" in next(csv.reader(rows))) == unsafe
    assert main(["plot", str(folder), "-o", str(tmp_path / "a.png")]) == 0
    more = ["--set", "run.rounds=3", "--resume", "--run-dir", str(folder)]
    assert main(["run", str(file), *more]) == 0


def test_a_private_run_beside_another_is_in_the_table_and_not_in_the_figure(tmp_path, capsys):
    file = tmp_path / "p.toml"
    more = '\n[[compare]]\nname = "fedavg"\nclient_lr = 0.3\nlocal_steps = 2\n'
    file.write_text(FILE.format(more=more))
    assert main(["compare", str(file), "--run-dir", str(tmp_path / "runs")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "is private and not in the figure; unsafe = true in [run] records the values" in said
    assert "nan" in said


ROWS = """
import numpy as np
from flower_fedcon import FederatedProblem
from flower_fedcon.objectives import LeastSquares, PrivateObjective
from flower_fedcon.privacy import ExampleDP

def make_problem():
    rule = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    rows = [LeastSquares(np.eye(2), np.full(2, b)) for b in (1.0, 2.0)]
    return FederatedProblem([PrivateObjective(f, rule) for f in rows])
"""
TWO = """
[problem]
name = "rows_of_two:make_problem"
[algorithm]
name = "FedAvg"
client_lr = 0.5
local_steps = 1
[[compare]]
name = "FedAvg"
label = "Slow"
client_lr = 0.1
local_steps = 1
[run]
rounds = 2
"""


@pytest.mark.parametrize("unsafe", [False, True])
def test_no_optimum_of_private_examples_is_sought(fedcon, monkeypatch, unsafe):
    pytest.importorskip("flower_fedcon.tables", reason="a study on tables")
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("rows_of_two.py").write_text(ROWS)
    Path("rows.toml").write_text(TWO + "unsafe = true\n" * unsafe)
    said = ran(fedcon, "compare", "rows.toml")
    assert ("reference optimum" in said) == ("Objective" in said) == unsafe
    assert ("none of private runs; unsafe = true in [run] records the values" in said) != unsafe
    with next(Path("runs").glob("rows/*/history.csv")).open() as rows:
        assert ("objective" in next(csv.reader(rows))) == unsafe
