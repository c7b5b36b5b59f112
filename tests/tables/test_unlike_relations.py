"""Columns that at one site go otherwise with the others: turned, exchanged, or of other rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tabular import deal, numeric, run

from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.checks.unlike_relations import (
    PREDICTED,
    Change,
    _changes,
    _Predictions,
    columns_of,
    correlation,
)
from flower_fedcon.tables.site_rows import SiteRows

N = 150
LEVELS = np.array([*"abc"])
SCHEMA = {"target": "y", "features": numeric("age", "size", "width", grade="categorical")}


def patients(site: int) -> dict[str, np.ndarray]:
    """Columns of which each goes with the others; sizes and widths have one range."""
    rng = np.random.default_rng(site)
    severe, late = rng.normal(size=(2, N))
    noise = iter(rng.normal(size=(5, N)))
    return {
        "age": (60 + 9 * late + 5 * next(noise)).round(),
        "size": (40 + 8 * severe + 5 * next(noise)).round(1),
        "width": (40 + 8 * late + 5 * next(noise)).round(1),
        "grade": LEVELS[np.digitize(severe + 0.5 * next(noise), [-0.5, 0.5])],
        "y": (severe - late + next(noise)).round(3),
    }


MESSES = {  # what site s1 does to its columns, and what is said
    "as it is": ({}, ""),
    "born": ({"age": lambda d: 1990 - d["age"]}, "column 'age': what the other columns predict of "
             "it has the opposite sign at s1 (correlation -0."),
    "turned over": ({"size": lambda d: 1000 / d["size"]}, "column 'size': what the other columns "),
    "grades": ({"grade": lambda d: LEVELS[::-1][np.searchsorted(LEVELS, d["grade"])]},
               "are 'a' and 'c' exchanged there?"),
    "headers": ({"size": lambda d: d["width"], "width": lambda d: d["size"]}, "columns 'size' and "
                "'width': what the other columns predict of their difference has the opposite"),
    "a wrong key": ({"age": lambda d: np.random.default_rng(9).permutation(d["age"])},
                    "column 'age': the other columns predict it elsewhere, and not at s1 (corr"),
    "a row off from 81 on": ({"width": lambda d: np.r_[d["width"][:80], d["width"][79:-1]]},
                             "column 'width': the other columns of s1 fit it in rows "),
    "another unit": ({"age": lambda d: 12 * d["age"]}, ""),
    "logarithms": ({"size": lambda d: np.log(d["size"])}, ""),
}  # fmt: skip


def problem(mess: str, folder, scaled: bool = True, **settings):
    change = MESSES[mess][0]
    frames = [patients(site) for site in range(3)]
    frames[1] |= {name: made(frames[1]) for name, made in change.items()}
    whole = {name: np.concatenate([own[name] for own in frames]) for name in frames[0]}
    data = deal(folder, pd.DataFrame(whole), [range(k * N, (k + 1) * N) for k in range(3)], "s")
    return tables(data=data, schema=SCHEMA | {"standardize": scaled}, **settings)


@pytest.mark.parametrize("mess", MESSES)
def test_a_column_that_goes_otherwise_with_the_others_is_named(mess, tmp_path):
    """Once, in the report of a run in this process; a form or unit changes no relation."""
    words = MESSES[mess][1]
    report = " ".join(run(problem(mess, tmp_path, inference="model"), 2).report.text.split())
    assert words in report
    assert report.count(PREDICTED) == bool(words)


@pytest.mark.parametrize("times", [1.0, -0.8])
def test_a_copy_of_another_column_at_one_site(times, tmp_path):
    MESSES["copy"] = ({"age": lambda d: times * d["width"]}, "")
    remarks = problem("copy", tmp_path).preparation.remarks
    assert any("columns 'age' and 'width' tell each other in all rows of s1, and" in one
               for one in remarks)  # fmt: skip


WITHOUT_OUTCOME = {"grades": ("Or is it column 'grade'?", True), "headers": ("column 'size'", True)}


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("mess", [mess for mess in MESSES if "a row off" not in mess])
def test_nodes_show_it_by_the_sums_for_standard_errors(mess, scaled, tmp_path):
    """Of features alone, so that either of two that go together may be the one."""
    words = MESSES[mess][1]
    made = problem(mess, tmp_path, scaled, inference="model")
    made.preparation = replace(made.preparation, remarks=())  # as nodes, which send no rows
    said = [line for line in run(made).report.remarks if PREDICTED in line]
    (words, known) = WITHOUT_OUTCOME.get(mess, (words, bool(words)))
    assert [words in line for line in said] == [True] * known


def sites(count: int) -> list[SiteRows]:
    schema = Schema.load(SCHEMA)
    return [
        SiteRows("", schema, own["y"], None,
                 np.column_stack([own["age"], own["size"], own["width"]]), own["grade"][:, None])
        for own in map(patients, range(count))
    ]  # fmt: skip


def test_predictions_are_least_squares_of_the_other_sites_ranks():
    """By NumPy; the ridge of a thousandth moves them a little."""
    about = columns_of(sites(3))
    predicted = _Predictions.of(about, 1)
    others = np.concatenate([about.rows.each[0], about.rows.each[2]])
    changes: list[Change] = [*_changes(about)]
    assert len(changes) == 4 + 3 + 3 + 3  # numbers, levels, pairs of levels, and of features
    for change in changes:
        prediction = predicted.prediction(about, change)
        outside = np.concatenate([p for j, p in enumerate(about.places) if j not in change.columns])
        target = others @ change.weights
        fit = others[:, outside] @ np.linalg.lstsq(others[:, outside], target, rcond=None)[0]
        np.testing.assert_allclose(others @ prediction, fit, atol=0.03)
        r = correlation(predicted.covariance, change.weights, prediction)
        assert r == pytest.approx(np.corrcoef(target, fit)[0, 1], abs=1e-3)
        there = predicted.elsewhere(change, prediction)
        adjusted = 1 - (1 - r * r) * 2 * N / (2 * N - len(prediction))
        assert there == pytest.approx(math.sqrt(max(0, adjusted)))


@pytest.mark.parametrize("levels", [2, 400])
def test_classes_and_one_category_have_no_relations(levels, tmp_path):
    """Without numbers, and with more levels than are compared."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"c": rng.integers(0, levels, 240).astype(str),
                          "y": rng.choice(["u", "v", "w"], 240)})  # fmt: skip
    schema = {"target": "y", "classes": ["u", "v", "w"], "features": {"c": "categorical"}}
    made = tables(data=deal(tmp_path, frame), schema=schema)
    assert "correlation" not in " ".join(made.preparation.remarks)
    assert made.preparation.names
