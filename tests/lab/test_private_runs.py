"""Private runs from files: tables and figures of what is recorded, and of all of it with unsafe."""

from __future__ import annotations

import csv

import pytest

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
