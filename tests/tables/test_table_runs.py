"""Runs on tables: what each site is told about, and what the report and the messages say."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from flower_fedcon import simulate
from flower_fedcon.cli import main
from flower_fedcon.core.evaluation import pooled
from flower_fedcon.errors import ConfigError
from flower_fedcon.paths import regularization_path
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables

LOSSES = {
    "squared": {},
    "logistic": {"positive": ["1"], "negative": ["0"]},
    "multinomial": {"classes": ["0", "1"]},
    "poisson": {"loss": "poisson"},
    "cox": {"event": "seen"},
}


def write_site(path, rows, *, seed=0, only=None):
    """A site of so many rows; `only` is the outcome of all of them."""
    rng = np.random.default_rng(seed)
    lines = ["y,x,seen"]
    for i in range(rows):
        x = rng.normal()
        y = (i % 2 if rng.random() < 0.2 else int(x > 0)) if only is None else only
        lines.append(f"{y},{x:.4f},{i % 3 and 1}")
    path.write_text("\n".join(lines) + "\n")


def sites(folder, *rows, loss="logistic", **schema):
    """The problem of sites with so many rows each."""
    for j, number in enumerate(rows):
        write_site(folder / f"s{j}.csv", number, seed=j)
    schema = {"target": "y", "features": {"x": "numeric"}, **LOSSES[loss], **schema}
    return tables(data=str(folder / "s*.csv"), schema=schema, l1=0.01)


def played(problem, rounds=6, **settings):
    return simulate(FedNewton(problem.regularizer), problem, rounds, **settings)


# --- columns that are combinations of others -----------------------------------------------------


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial", "poisson"])
def test_collinear_columns_are_named_by_the_hessians_that_are_sent(
    tmp_path, loss, standardize, caplog
):
    """Over all clients, in any units; columns that differ in their tenth digit are not."""
    rng = np.random.default_rng(0)
    for j in range(2):
        a, b, c, noise = rng.normal(size=(4, 40))
        y = (a + noise > 0).astype(int)
        columns = [y, a, b, c, 1000 * a + 5, a - 10 * b, c + 1e-5 * noise]
        rows = [",".join(map(repr, map(float, row))) for row in zip(*columns, strict=True)]
        (tmp_path / f"s{j}.csv").write_text("\n".join(["y,a,b,c,twice,sum,near", *rows]) + "\n")
    names = ["a", "b", "c", "twice", "sum", "near"]
    schema = {"target": "y", "features": dict.fromkeys(names, "numeric"), **LOSSES[loss]}
    schema["standardize"] = standardize
    problem = tables(data=str(tmp_path / "s*.csv"), schema=schema, l1=0.01)
    report = played(problem, 2).report
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
    assert played(problem).report.doubts == ()


# --- rows held out -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_a_site_without_rows_held_out_takes_no_metric_from_the_others(tmp_path, loss):
    """Of one row nothing is held out: the metrics are those of the other sites, and it is named."""
    history = played(sites(tmp_path, 40, 1, 40, loss=loss, test_fraction=0.25))
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
    report = played(sites(tmp_path, 4, 4, test_fraction=0.25)).report
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
    write_site(tmp_path / "a.csv", 5)
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'target = "y"\n[features]\n' + "".join(f'dose{i} = "numeric"\n' for i in "ab")
    )
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
        rows = [f"{i},{i % 3},{weight}" for i in range(12)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,x,w", *rows]))
    schema = {"target": "y", "weight": "w", "features": {"x": "numeric"}}
    words = r"a\.csv: column 'w': found the weight 0 in each of the \d+ training rows"
    with pytest.raises(ConfigError, match=words):
        tables(data=str(tmp_path / "*.csv"), schema=schema | {"test_fraction": fraction})


# --- the report ----------------------------------------------------------------------------------


def test_multinomial_coefficients_that_are_free_sum_to_0_over_the_classes(tmp_path):
    """As scikit-learn's do: one number more for each class changes no probability."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(120, 1)) * 3 + 40, rng.integers(3, size=120)
    for place, name in enumerate("ab"):
        rows = [f"{k},{x!r}" for k, x in zip(y[place::2], X[place::2, 0].tolist(), strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,x", *rows]))
    schema = {"target": "y", "classes": [0, 1, 2], "features": {"x": "numeric"}}
    problem = tables(data=f"{tmp_path}/*.csv", schema=schema)
    rows = simulate(FedNewton(problem.regularizer), problem, num_rounds=12).report.rows
    known = LogisticRegression(C=1e12, tol=1e-12).fit(scale(X), y)
    expected = np.stack([known.coef_[:, 0], known.intercept_ - known.intercept_.mean()], axis=1)
    found = [row[1] for row in rows]
    np.testing.assert_allclose(found, expected.ravel(), atol=1e-5)


def test_multinomial_coefficients_bear_class_and_column(tmp_path):
    """In the report, in its file and in a path; their exponentials are no odds ratios."""
    rng = np.random.default_rng(0)
    for name in "ab":
        rows = [
            f"{('low', 'mid', 'high')[i % 3]},{rng.normal() + i % 3},{i % 2}" for i in range(60)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,x,z", *rows]))
    (tmp_path / "schema.toml").write_text(
        'target = "y"\nclasses = ["low", "mid", "high"]\n[features]\nx = "numeric"\nz = "numeric"\n'
    )
    file, table = tmp_path / "s.toml", tmp_path / "path.csv"
    file.write_text(
        f'[problem]\nname = "tables"\ndata = "{tmp_path}/*.csv"\nl1 = 0.02\n'
        f'schema = "{tmp_path}/schema.toml"\nreference = false\n[run]\nrounds = 8\n'
        '[algorithm]\nname = "FedNewton"\n'
    )
    assert main(["run", str(file), "--run-dir", str(tmp_path / "run")]) == 0
    with (tmp_path / "run" / "coefficients.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    expected = [f"{c} [{k}]" for k in ("low", "mid", "high") for c in ("x", "z", "(intercept)")]
    assert [row["column"] for row in rows] == expected
    assert list(rows[0]) == ["column", "coefficient", "per_unit"]
    assert main(["path", str(file), "--num", "3", "-o", str(table)]) == 0
    with table.open() as lines:
        header = next(csv.reader(lines))
    assert header[0] == "lambda"
    unit = [name if name.startswith("(") else f"{name} per sd" for name in expected]
    assert sorted(header[-9:]) == sorted(unit)


def test_a_ratio_is_of_a_column(tmp_path):
    """An intercept's exponential is the ratio of nothing."""
    report = played(sites(tmp_path, 40, 40)).report
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
    for j in range(2):
        rows = [f"{offset + 2 * v!r},{v!r}" for v in x[j::2].tolist()]
        (tmp_path / f"s{j}.csv").write_text("\n".join(["y,x", *rows]) + "\n")
    schema = {"target": "y", "features": {"x": "numeric"}}
    for l1 in (0.0, 0.01):
        problem = tables(data=str(tmp_path / "s*.csv"), schema=schema, l1=l1)
        report = played(problem).report
        assert report.reached.converged == (offset < 1e9)
        words = "rounding is the limit: values of the outcome, or of columns, are so far from 0"
        assert (words in report.text) == (offset > 1e9)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e9])
def test_a_constant_outcome_converges_at_once_and_selects_nothing(tmp_path, value, caplog):
    for j in range(2):
        rows = [f"{value!r},{v!r}" for v in np.random.default_rng(j).normal(size=20).tolist()]
        (tmp_path / f"s{j}.csv").write_text("\n".join(["y,x", *rows]) + "\n")
    schema = {"target": "y", "features": {"x": "numeric"}}
    problem = tables(data=str(tmp_path / "s*.csv"), schema=schema, l1=1.0)
    assert played(problem).report.reached.converged
    path = regularization_path(problem, num=3)
    assert [entries.tolist() for entries in path.active] == [[], [], []]
    assert path.converged.all()
    assert "the null model leaves nothing to explain, as with a constant target" in caplog.text


def test_the_weights_of_a_path_are_lambda(tmp_path, capsys):
    """Whatever l1 is in the file; 0 is refused."""
    sites(tmp_path, 40, 40)
    (tmp_path / "schema.toml").write_text(
        'target = "y"\npositive = ["1"]\nnegative = ["0"]\n[features]\nx = "numeric"\n'
    )
    file = tmp_path / "s.toml"
    file.write_text(
        f'[problem]\nname = "tables"\ndata = "{tmp_path}/s*.csv"\nl1 = 0.01\n'
        f'schema = "{tmp_path}/schema.toml"\n[run]\nrounds = 20\n[algorithm]\nname = "FedNewton"\n'
    )
    shown = []
    for l1 in ("0.01", "0.5"):
        given = ["path", str(file), "--num", "4", "--set", f"problem.l1={l1}"]
        assert main([*given, "-o", str(tmp_path / "path.csv")]) == 0
        shown.append([line.split(",")[0] for line in (tmp_path / "path.csv").open()])
    assert shown[0][0] == "lambda"
    said = capsys.readouterr().out
    assert main(["path", str(file), "--num", "4", "--folds", "2"]) == 0
    (row,) = re.findall(r"^ x +(.*?) *$", capsys.readouterr().out, re.MULTILINE)
    sd, unit, ratio, _ = row.split()
    scale = tables(data=f"{tmp_path}/s*.csv", schema=f"{tmp_path}/schema.toml").preparation.scales
    np.testing.assert_allclose(float(unit), float(sd) / scale[0], rtol=1e-2)
    np.testing.assert_allclose(float(ratio), np.exp(float(unit)), rtol=1e-3)
    np.testing.assert_allclose(np.array(shown[0][1:], float), np.array(shown[1][1:], float))
    assert " Lambda " in said
    assert main(["path", str(file), "--set", "problem.l1=0"]) == 2
    assert "a path needs an l1 penalty" in capsys.readouterr().err
