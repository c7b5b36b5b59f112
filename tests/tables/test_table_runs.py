"""Runs on tables: what sites are told, what the report says, and advice that works."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular import coefficients, lines, numeric, run, study

from flower_fedcon.cli.command import main
from flower_fedcon.core.evaluation import pooled
from flower_fedcon.errors import ConfigError
from flower_fedcon.paths import regularization_path
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.marks import near_duplicates

LOSSES = {
    "squared": {},
    "logistic": {"positive": ["1"], "negative": ["0"]},
    "multinomial": {"classes": ["0", "1"]},
    "poisson": {"loss": "poisson"},
    "cox": {"event": "seen"},
}


def write_site(folder, name, rows, *, seed=0):
    rng = np.random.default_rng(seed)
    own = ["y,x,seen"]
    for i in range(rows):
        x = rng.normal()
        y = i % 2 if rng.random() < 0.2 else int(x > 0)
        own.append(f"{y},{x:.4f},{i % 3 and 1}")
    lines(folder, **{name: own})


def sites(folder, *rows, loss="logistic", **schema):
    """The problem of sites with so many rows each."""
    for j, number in enumerate(rows):
        write_site(folder, f"s{j}", number, seed=j)
    schema = {"target": "y", "features": {"x": "numeric"}, **LOSSES[loss], **schema}
    return tables(data=str(folder / "s*.csv"), schema=schema, l1=0.01)


def columns(folder, names, *parts):
    """Write sites of these columns; return their pattern."""
    files = {f"s{j}": [names, *zip(*part, strict=True)] for j, part in enumerate(parts)}
    return lines(folder, **files)


# --- columns that are combinations of others -----------------------------------------------------


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial", "poisson"])
def test_collinear_columns_are_named_by_the_hessians_that_are_sent(
    tmp_path, loss, standardize, caplog
):
    """Over all clients, in any units; columns that differ in their tenth digit are not."""
    rng = np.random.default_rng(0)
    parts = []
    for a, b, c, noise in rng.normal(size=(2, 4, 40)):
        y = (a + noise > 0).astype(int)
        parts.append([y, a, b, c, 1000 * a + 5, a - 10 * b, c + 1e-5 * noise])
    names = ["a", "b", "c", "twice", "sum", "near"]
    schema = {"target": "y", "features": numeric(*names), "standardize": standardize}
    data = columns(tmp_path, ",".join(["y", *names]), *parts)
    report = run(tables(data=data, schema=schema | LOSSES[loss], l1=0.01), 2).report
    assert len(report.doubts) == 2
    one, other = sorted(report.doubts)
    assert one.startswith("column '")
    assert {name for name in names if repr(name) in one} in (
        {"sum", "a", "b"}, {"sum", "twice", "b"}
    )  # fmt: skip
    assert {name for name in names if repr(name) in other} == {"a", "twice"}
    assert other.endswith("are exactly collinear: leave one out")
    assert all(text in report.text and text in caplog.text for text in report.doubts)


@pytest.mark.parametrize("loss", LOSSES)
def test_columns_that_are_none_raise_no_alarm(tmp_path, loss):
    problem = sites(tmp_path, 30, 12, 25, loss=loss)
    assert run(problem).report.doubts == ()


# --- rows held out -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_a_site_without_rows_held_out_takes_no_metric_from_the_others(tmp_path, loss):
    """Of one row nothing is held out: the metrics are those of the other sites, and it is named."""
    history = run(sites(tmp_path, 40, 1, 40, loss=loss, test_fraction=0.25))
    last = history.rows[-1]
    names = [name for name in last if name.startswith("test_") and "/" not in name]
    assert names
    for name in names:
        assert {f"{name}/s0", f"{name}/s2"} <= last.keys()
        assert f"{name}/s1" not in last
        low, high = sorted([last[f"{name}/s0"], last[f"{name}/s2"]])
        assert low <= last[name] <= high
        assert f"pooled {last[name]:.4f}; not known at client s1 (too few" in history.report.text


def test_a_metric_that_no_site_has_is_named(tmp_path):
    """One row is held out at each site, and an AUC compares two."""
    report = run(sites(tmp_path, 4, 4, test_fraction=0.25)).report
    assert "test_auc: not known at any client (too few held-out rows" in report.text
    assert "test_accuracy: s0 " in report.text


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.floats(0.01, 0.99))
@settings(max_examples=25, deadline=None)
def test_means_go_over_the_sites_that_have_rows(tmp_path_factory, rows, fraction):
    """Whatever the sites' sizes: weighted means of those that have rows, or no value."""
    folder = tmp_path_factory.mktemp("sites")
    problem = sites(folder, 12, *rows, loss="squared", test_fraction=fraction)
    record = problem.evaluate(np.full(problem.x0.shape, 0.3))
    held = [min(round(fraction * m), m - 1) for m in (12, *rows)]
    known = {f"s{j}": n for j, n in enumerate(held) if n}
    assert {k for k in record if k.startswith("test_mse/")} == {f"test_mse/{c}" for c in known}
    if not known:
        assert "test_mse" not in record
        return
    mean = sum(record[f"test_mse/{c}"] * n for c, n in known.items()) / sum(known.values())
    assert record["test_mse"] == pytest.approx(mean)


def test_a_metric_that_a_client_lacks_is_that_of_the_others():
    """Plain numbers count each client alike, and are taken only where all have them."""
    answers = [{"auc": (0.5, 4.0), "n": 1.0}, {"n": 3.0}, {"auc": (0.0, 0.0), "n": 2.0, "m": 1.0}]
    assert pooled(answers, "abc") == {"auc": 0.5, "auc/a": 0.5, "n": 2.0}


# --- messages ------------------------------------------------------------------------------------


def test_missing_columns_are_one_line(tmp_path, capsys):
    """However many they are, from the check and from a run."""
    write_site(tmp_path, "a", 5)
    schema = tmp_path / "schema.toml"
    schema.write_text('target = "y"\n[features]\ndosea = "numeric"\ndoseb = "numeric"\n')
    assert main(["data", "check", str(tmp_path / "a.csv"), "--schema", str(schema)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert "no columns 'dosea', 'doseb': it has y, x, seen. Correct" in line
    with pytest.raises(ConfigError, match=r"no column 'sean'.*did you mean 'seen'"):
        read_table(tmp_path / "a.csv", Schema("y", {"sean": "numeric"}))
    with pytest.raises(ConfigError, match="no column 'clinic': it has y, x, seen"):
        read_table(tmp_path / "a.csv", Schema("y", {"x": "numeric"}), column="clinic", client="a")


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_a_site_whose_weights_are_0_is_named(tmp_path, fraction):
    """With its file and the column of the weights; in the rows that are trained on."""
    for name, weight in (("a", 0), ("b", 1)):
        lines(tmp_path, **{name: ["y,x,w", *(f"{i},{i % 3},{weight}" for i in range(12))]})
    schema = {"target": "y", "weight": "w", "features": {"x": "numeric"}}
    words = r"a\.csv: column 'w': found the weight 0 in each of the \d+ training rows"
    with pytest.raises(ConfigError, match=words):
        tables(data=str(tmp_path / "*.csv"), schema=schema | {"test_fraction": fraction})


# --- the report ----------------------------------------------------------------------------------


def test_multinomial_coefficients_bear_class_and_column(tmp_path):
    """In the report, in its file and in a path; their exponentials are no odds ratios."""
    rng, marks = np.random.default_rng(0), ("low", "mid", "high")
    for name in "ab":
        rows = [f"{marks[i % 3]},{rng.normal() + i % 3},{i % 2}" for i in range(60)]
        lines(tmp_path, **{name: ["y,x,z", *rows]})
    schema = 'target = "y"\nclasses = ["low", "mid", "high"]\n[features]\n'
    schema += 'x = "numeric"\nz = "numeric"\n'
    file = study(tmp_path, schema, "l1 = 0.02\nreference = false", rounds=8)
    assert main(["run", file, "--run-dir", str(tmp_path / "run")]) == 0
    found, table = coefficients(tmp_path / "run"), tmp_path / "path.txt"
    expected = [f"{c} [{k}]" for k in marks for c in ("x", "z", "(intercept)")]
    assert list(found.index) == expected
    assert list(found) == ["coefficient", "per_unit"]
    assert main(["path", file, "--num", "3", "-o", str(table)]) == 0
    with table.open() as rows:
        header = next(csv.reader(rows))
    assert header[0] == "lambda"
    unit = [name if name.startswith("(") else f"{name} per sd" for name in expected]
    assert sorted(header[-9:]) == sorted(unit)


def test_a_ratio_is_of_a_column(tmp_path):
    """An intercept's exponential is the ratio of nothing."""
    report = run(sites(tmp_path, 40, 40), 6).report
    (name, _, unit, ratio), (last, *_, none) = report.rows
    assert (name, last, report.ratio) == ("x", "(intercept)", "odds ratio")
    assert ratio == pytest.approx(np.exp(unit))
    assert np.isnan(none)
    assert len(report.text.splitlines()[2].split()) == 3


@pytest.mark.parametrize("offset", [0.0, 1e7, 1e11, 1e13])
def test_an_outcome_so_far_from_0_that_digits_are_lost_has_not_converged(tmp_path, offset):
    """By the gradient at the start, which the offset makes as large, it had."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    parts = [(offset + 2 * own, own) for own in (x[::2], x[1::2])]
    data, schema = columns(tmp_path, "y,x", *parts), {"target": "y", "features": numeric("x")}
    for l1 in (0.0, 0.01):
        report = run(tables(data=data, schema=schema, l1=l1), 6).report
        assert report.reached.converged == (offset < 1e9)
        words = "rounding is the limit: values of the outcome, or of columns, are so far from 0"
        assert (words in report.text) == (offset > 1e9)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e9])
def test_a_constant_outcome_converges_at_once_and_selects_nothing(tmp_path, value, caplog):
    parts = [(np.full(20, value), np.random.default_rng(j).normal(size=20)) for j in range(2)]
    schema = {"target": "y", "features": numeric("x")}
    problem = tables(data=columns(tmp_path, "y,x", *parts), schema=schema, l1=1.0)
    assert run(problem, 6).report.reached.converged
    path = regularization_path(problem, num=3)
    assert [entries.tolist() for entries in path.active] == [[], [], []]
    assert path.converged.all()
    assert "the null model leaves nothing to explain, as with a constant target" in caplog.text


def test_the_weights_of_a_path_are_lambda(tmp_path, capsys):
    """Whatever l1 is in the file; 0 is refused."""
    sites(tmp_path, 40, 40)
    schema = 'target = "y"\npositive = ["1"]\nnegative = ["0"]\n[features]\nx = "numeric"\n'
    file = study(tmp_path, schema, "l1 = 0.01", data="s*.csv", rounds=20)
    shown = []
    for l1 in ("0.01", "0.5"):
        given = ["path", file, "--num", "4", "--set", f"problem.l1={l1}"]
        assert main([*given, "-o", str(tmp_path / "path.txt")]) == 0
        shown.append([line.split(",")[0] for line in (tmp_path / "path.txt").open()])
    assert shown[0][0] == "lambda"
    said = capsys.readouterr().out
    assert main(["path", file, "--num", "4", "--folds", "2"]) == 0
    (row,) = re.findall(r"^ x +(.*?) *$", capsys.readouterr().out, re.MULTILINE)
    sd, unit, ratio, _ = row.split()
    scale = tables(data=f"{tmp_path}/s*.csv", schema=f"{tmp_path}/schema.toml").preparation.scales
    np.testing.assert_allclose(float(unit), float(sd) / scale[0], rtol=1e-2)
    np.testing.assert_allclose(float(ratio), np.exp(float(unit)), rtol=1e-3)
    np.testing.assert_allclose(np.array(shown[0][1:], float), np.array(shown[1][1:], float))
    assert " Lambda " in said
    assert main(["path", file, "--set", "problem.l1=0"]) == 2
    assert "a path needs an l1 penalty" in capsys.readouterr().err


# --- tables as people have them ------------------------------------------------------------------


LINEAR = {"target": "y", "features": {"x": "numeric"}}


def notes_of(folder, schema, own):
    lines(folder, a=own)
    return "\n".join(read_table(folder / "a.csv", Schema.load(schema)).notes())


@pytest.mark.parametrize(("column", "place"), [("y", 0), ("w", 2)])
def test_of_a_target_no_value_can_be_missing(column, place, tmp_path):
    """So that the advice is to remove rows; of a feature it is a mark."""
    rows = [[str(i), str(i % 7), str(1 + i % 3)] for i in range(9)]
    rows[3][place], rows[4][1] = ("-999" if place == 0 else "9999"), "-999"
    said = notes_of(tmp_path, LINEAR | {"weight": "w"}, ["y,x,w", *rows])
    (own,) = [line for line in said.splitlines() if repr(column) in line]
    assert "remove these rows, since no target" in own
    assert "add it to missing" not in own
    assert "column 'x': -999 (row 5): if it stands for a missing value, add it to missing" in said


X_ALONE = 'target = "y"\n[features]\nx = "numeric"\n'


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two sites and a study of all CSV files, in the folder in which commands are called."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for site in "ab":
        lines(tmp_path, **{site: ["y,x", *(f"{x + 9:.3f},{x:.3f}" for x in rng.normal(size=20))]})
    study(tmp_path, X_ALONE, "l1 = 0.01")
    return tmp_path


@pytest.mark.parametrize(("command", "origin"), [
    (["data", "check", "a.csv", "b.csv", "--schema", "schema.toml"],
     "`fedcon data check --output`"),
    (["path", "study.toml", "--num", "3"], "`fedcon path --output`"),
])  # fmt: skip
def test_an_output_that_is_taken_for_a_client_s_file_is_known(command, origin, two, capsys):
    assert main([*command, "--output", "out.csv"]) == 0
    capsys.readouterr()
    assert main(["run", "study.toml", "--run-dir", "run"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    words = f"out.csv: it is not a client's table, since {origin} has written it: move it out"
    assert words in said


@pytest.mark.parametrize(("key", "unit"), [("", "per sd"), ("standardize = false\n", "per unit")])
def test_a_path_says_of_what_its_coefficients_are(key, unit, two):
    study(two, key + X_ALONE, "l1 = 0.01")
    assert main(["path", "study.toml", "--num", "3", "-o", "path.txt"]) == 0
    with (two / "path.txt").open() as rows:
        assert next(csv.reader(rows))[-2:] == [f"x {unit}", "(intercept)"]


def test_outcomes_that_look_missing_are_asked_about(tmp_path):
    own = ["y,x", "ill,1", "well,2", "unknown,3", "n/a,4", "-999,5", ".,6", "9,7"]
    said = notes_of(tmp_path, LINEAR | {"positive": ["ill"]}, own)
    assert "'unknown', 'n/a', '-999', '.', '9' count as 0. If they stand for a missing" in said
    assert "'well', 'unknown', 'n/a'" in said
    (one,) = notes_of(tmp_path, LINEAR | {"positive": ["ill"]}, own[:2] + own[3:4]).splitlines()
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
    rows = (f"{i % 3},{i % 5},{12345678901234567 + i}" for i in range(30))
    lines(tmp_path, a=["y,x,id", *rows])
    (tmp_path / "s.toml").write_text(X_ALONE + 'id = "numeric"\n')
    _, out, _ = run_command("data", "check", "a.csv", "--schema", "s.toml")
    assert "'id': whole numbers of 17 digits are rounded (12345678901234567): is it an ident" in out
    assert "column 'id' is constant over" not in out


def test_a_run_says_units_of_a_target_and_of_a_weight(tmp_path, caplog):
    for site, unit in (("a", 1), ("b", 1000)):
        rows = [f"{unit * (5 + i % 7)},{i % 5},{unit * (1 + i % 2)}" for i in range(20)]
        lines(tmp_path, **{site: ["y,x,w", *rows]})
    tables(data=f"{tmp_path}/*.csv", schema=LINEAR | {"weight": "w"})
    for column in "yw":
        assert f"tables: column '{column}': values at b are about 1,000 times" in caplog.text


def test_a_value_next_to_0_is_no_other_unit(tmp_path, caplog):
    """Of a client with one row; one that is a hundred times the others' is."""
    rng = np.random.default_rng(0)
    for site in "ab":
        rows = [f"{x},{30 + x}" for x in rng.normal(size=20)]
        lines(tmp_path, **{site: ["y,x", *rows]})
    lines(tmp_path, c=["y,x", "1,0.04"])
    tables(data=f"{tmp_path}/*.csv", schema=LINEAR)
    assert "column 'x'" not in caplog.text
    lines(tmp_path, c=["y,x", "1,30000"])
    tables(data=f"{tmp_path}/*.csv", schema=LINEAR)
    assert "column 'x': values at c are about 1,0" in caplog.text


def test_the_report_says_of_what_its_rows_are(two, capsys):
    squared = 'target = "y"\nstandardize = false\n[features]\nx = {transform = "square"}\n'
    assert main(["run", study(two, squared, "l1 = 0.01"), "--run-dir", "run"]) == 0
    header, row, *_ = (two / "run" / "report.txt").read_text().splitlines()
    assert header.split() == ["column", "per", "unit"]
    assert row.split()[0] == "square(x)"
    assert len(row.split()) == 2
