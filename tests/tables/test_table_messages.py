"""What is said of tables as people have them: advice that works, and no false alarm."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from flower_fedcon.cli.command import main
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.marks import near_duplicates

LINEAR = {"target": "y", "features": {"x": "numeric"}}


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
    assert "remove these rows, since no target" in own
    assert "add it to missing" not in own
    assert "column 'x': -999 (1 rows): if it stands for a missing value, add it to missing" in said


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
    assert (
        f"out.csv: it is not a client's table, since {origin} has written it: move it out" in said
    )


@pytest.mark.parametrize(("key", "unit"), [("", "per sd"), ("standardize = false\n", "per unit")])
def test_a_path_says_of_what_its_coefficients_are(key, unit, study):
    (study / "s.toml").write_text(f'target = "y"\n{key}[features]\nx = "numeric"\n')
    assert main(["path", "study.toml", "--num", "3", "-o", "path.txt"]) == 0
    with (study / "path.txt").open() as lines:
        assert next(csv.reader(lines))[-2:] == [f"x {unit}", "(intercept)"]


def test_outcomes_that_look_missing_are_asked_about(tmp_path):
    lines = ["y,x", "ill,1", "well,2", "unknown,3", "n/a,4", "-999,5", ".,6", "9,7"]
    said = notes_of(tmp_path, LINEAR | {"positive": ["ill"]}, lines)
    assert "'unknown', 'n/a', '-999', '.', '9' count as 0. If they stand for a missing" in said
    assert "'well', 'unknown', 'n/a'" in said
    (one,) = notes_of(tmp_path, LINEAR | {"positive": ["ill"]}, lines[:2] + lines[3:4]).splitlines()
    assert "'unknown' count as 0. If they stand" in one


@pytest.mark.parametrize(("positive", "cells"), [("yes", ["yes", "no"]), ("T", ["T", "F"])])
def test_the_other_word_of_a_pair_is_no_news(positive, cells, tmp_path):
    schema = LINEAR | {"positive": [positive]}
    assert notes_of(tmp_path, schema, ["y,x", f"{cells[0]},1", f"{cells[1]},2"]) == ""
    said = notes_of(tmp_path, schema, ["y,x", f"{cells[0]},1", f"{cells[1]},2", "0,3"])
    assert said == "column 'y': read as true or false, like the schema's values: '0'"


def test_ids_of_17_digits_are_apart(tmp_path, run_command):
    assert near_duplicates([f"1234567890123456{i}" for i in (7, 8, 9)]) == []
    assert near_duplicates(["9007199254740993", "9007199254740993.00"]) != []
    lines = ["y,x,id", *(f"{i % 3},{i % 5},{12345678901234567 + i}" for i in range(30))]
    write(tmp_path, a=lines)
    (tmp_path / "s.toml").write_text('target = "y"\n[features]\nx = "numeric"\nid = "numeric"\n')
    _, out, _ = run_command("data", "check", "a.csv", "--schema", "s.toml")
    assert "'id': whole numbers of 17 digits are rounded (12345678901234567): is it an ident" in out
    assert "column 'id' is constant over" not in out


def test_a_run_says_units_of_a_target_and_of_a_weight(tmp_path, caplog):
    for site, unit in (("a", 1), ("b", 1000)):
        lines = [f"{unit * (5 + i % 7)},{i % 5},{unit * (1 + i % 2)}" for i in range(20)]
        write(tmp_path, **{site: ["y,x,w", *lines]})
    tables(data=f"{tmp_path}/*.csv", schema=LINEAR | {"weight": "w"})
    for column in "yw":
        assert f"tables: column '{column}': values at b are about 1,000 times" in caplog.text


def test_a_value_next_to_0_is_no_other_unit(tmp_path, caplog):
    """Of a client with one row; one that is a hundred times the others' is."""
    rng = np.random.default_rng(0)
    for site in "ab":
        rows = [f"{x},{30 + x}" for x in rng.normal(size=20)]
        write(tmp_path, **{site: ["y,x", *rows]})
    write(tmp_path, c=["y,x", "1,0.04"])
    tables(data=f"{tmp_path}/*.csv", schema=LINEAR)
    assert "column 'x'" not in caplog.text
    write(tmp_path, c=["y,x", "1,30000"])
    tables(data=f"{tmp_path}/*.csv", schema=LINEAR)
    assert "column 'x': values at c are about 1,0" in caplog.text


def test_the_report_says_of_what_its_rows_are(study, capsys):
    text = 'target = "y"\nstandardize = false\n[features]\nx = {transform = "square"}\n'
    (study / "s.toml").write_text(text)
    assert main(["run", "study.toml", "--run-dir", "run"]) == 0
    header, row, *_ = (study / "run" / "report.txt").read_text().splitlines()
    assert header.split() == ["column", "per", "unit"]
    assert row.split()[0] == "square(x)"
    assert len(row.split()) == 2
