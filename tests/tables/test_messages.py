"""What is said of tables as people have them: advice that works, and no false alarm."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from flower_fedcon.cli.command import main
from flower_fedcon.tables import DataError, Schema, read_table

LINEAR = {"target": "y", "features": {"x": "numeric"}}
COX = {"target": "y", "event": "e", "features": {"x": "numeric"}}


def write(folder, **files):
    """Write files; a run of rows is a list of texts."""
    for name, lines in files.items():
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return f"{folder}/*.csv"


def notes_of(folder, schema, lines):
    write(folder, a=lines)
    return "\n".join(read_table(folder / "a.csv", Schema.load(schema)).notes())


@pytest.mark.parametrize(("column", "place"), [("y", 0), ("w", 2)])
def test_of_a_target_no_value_can_be_missing(column, place, tmp_path):
    """So that the advice is to remove rows; of a feature it is a mark."""
    rows = [[str(i), str(i % 7), str(1 + i % 3)] for i in range(9)]
    rows[3][place], rows[4][1] = ("-999" if place == 0 else "9999"), "-999"
    lines = ["y,x,w", *map(",".join, rows)]
    said = notes_of(tmp_path, LINEAR | {"weight": "w"}, lines)
    (own,) = [line for line in said.splitlines() if repr(column) in line]
    assert "remove such rows, since no target" in own
    assert "add it to missing" not in own
    assert "column 'x': -999 (1 rows): if it stands for a missing value, add it to missing" in said


@pytest.mark.parametrize(
    ("schema", "what"),
    [(LINEAR | {"loss": "poisson"}, "a count"), (COX, "a time"), (LINEAR | {"weight": "y"}, "")],
)
def test_negative_numbers_where_the_schema_has_no_range(schema, what, tmp_path):
    if not what:
        schema, what = {"target": "e", "weight": "y", "features": {"x": "numeric"}}, "a weight"
    write(tmp_path, a=["y,e,x", "-5,1,0", "2,0,1"])
    words = f"column 'y': found '-5', expected {what} from 0 to 1e300: correct the cell, or remove"
    with pytest.raises(DataError, match=words):
        read_table(tmp_path / "a.csv", Schema.load(schema))


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Two sites and a study of all CSV files, in the folder in which commands are called."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for site in "ab":
        write(tmp_path, **{site: ["y,x", *(f"{x + 9:.3f},{x:.3f}" for x in rng.normal(size=20))]})
    (tmp_path / "s.toml").write_text('target = "y"\n[features]\nx = "numeric"\n')
    (tmp_path / "study.toml").write_text(
        '[problem]\nname = "tables"\ndata = "*.csv"\nschema = "s.toml"\nl1 = 0.01\n'
        "[run]\nrounds = 5\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("command", "origin"),
    [
        (["data", "check", "a.csv", "b.csv", "--schema", "s.toml"], "`fedcon data check --output`"),
        (["path", "study.toml", "--num", "3"], "`fedcon path --output`"),
    ],
)
def test_an_output_that_is_taken_for_a_client_s_file_is_known(command, origin, study, capsys):
    assert main([*command, "--output", "out.csv"]) == 0
    capsys.readouterr()
    assert main(["run", "study.toml", "--run-dir", "run"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"out.csv: it is no client's table, {origin} has written it: move it out" in said


@pytest.mark.parametrize(("key", "unit"), [("", "per sd"), ("standardize = false\n", "per unit")])
def test_a_path_says_of_what_its_coefficients_are(key, unit, study):
    (study / "s.toml").write_text(f'target = "y"\n{key}[features]\nx = "numeric"\n')
    assert main(["path", "study.toml", "--num", "3", "-o", "path.txt"]) == 0
    with (study / "path.txt").open() as lines:
        assert next(csv.reader(lines))[-2:] == [f"x {unit}", "(intercept)"]
