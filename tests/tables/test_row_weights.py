"""The rows' weights of tables count over all clients, as in one pooled file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_weights import LOSSES, SCHEMA, pooled_model, write_sites
from tabular import run

from flower_fedcon.core.protocol import Reply
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.paths import cross_validate
from flower_fedcon.tables import Schema
from flower_fedcon.tables.agreeing import Preparing
from flower_fedcon.tables.builders import tables

SMALL = {"target": "y", "weight": "w", "features": {"x": "numeric"}}


def two_sites(folder, heavy=9):
    """Two rows with the target 0 and the weight 1, and two with the target 10."""
    (folder / "a.csv").write_text("x,y,w\n0,0,1\n1,0,1\n")
    (folder / "b.csv").write_text(f"x,y,w\n0,10,{heavy}\n1,10,{heavy}\n")
    return str(folder / "*.csv")


@pytest.mark.parametrize(("weighting", "intercept"), [("examples", 9.0), ("uniform", 5.0)])
def test_a_heavier_site_counts_more(tmp_path, weighting, intercept):
    """By the sum of its weights; clients that count alike do so whatever that is."""
    problem = tables(data=two_sites(tmp_path), schema=SMALL, weighting=weighting)
    assert problem.preparation.weights == (2.0, 18.0)
    assert problem.preparation.rows == (2, 2)
    x = run(problem, 4).x
    np.testing.assert_allclose(x, [0.0, intercept], atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1), loss=st.sampled_from(sorted(LOSSES)))
@settings(max_examples=12)
def test_the_model_is_that_of_pooled_rows_with_their_weights(tmp_path_factory, seed, loss):
    """Of scikit-learn with `sample_weight`, in the columns' own units, for weights of any size."""
    folder = tmp_path_factory.mktemp("sites")
    files, rows = write_sites(folder, seed, loss)
    problem = tables(data=files, schema=SCHEMA | LOSSES[loss])
    history = run(problem, 30, evaluate_every=0)
    per_unit = [own for _, _, own, *_ in history.report.rows]
    np.testing.assert_allclose(per_unit, pooled_model(loss, rows), rtol=1e-8, atol=1e-8)


def test_means_scales_and_metrics_are_of_rows(tmp_path):
    """Whatever their weights > 0; losses of cross-validation are those of the objective."""
    plain = {"target": "y", "features": {"a": "numeric"}, "test_fraction": 0.25}
    for file in map(Path, write_sites(tmp_path, 3, "squared")[0]):
        lines = file.read_text().splitlines()
        file.write_text("\n".join(line for line in lines if not line.endswith(",0.0")))
    data = str(tmp_path / "*.csv")
    ours, other = (tables(data=data, schema=plain | own) for own in ({"weight": "w"}, {}))
    for name in ("means", "scales", "rows"):
        np.testing.assert_array_equal(
            getattr(ours.preparation, name), getattr(other.preparation, name)
        )
    record, unweighted = (problem.evaluate(np.array([0.3, 1.0])) for problem in (ours, other))
    assert record["test_mse"] == unweighted["test_mse"]
    assert record["objective"] != unweighted["objective"]
    sums = np.array([f.objective.total_weight for f in ours.objectives])
    np.testing.assert_allclose(ours.weights, sums / sums.sum(), rtol=1e-14)
    found = cross_validate(ours, folds=3, num=3, values=[0.3, 0.2, 0.1])
    assert np.isfinite(found.losses).all()


@pytest.mark.parametrize(("heavy", "found"), [("1e200", "2e\\+200"), ("1e-200", "2e-200")])
def test_a_sum_out_of_range_is_named(tmp_path, heavy, found):
    """With the file, the column, the range, and what helps."""
    words = (
        rf"b\.csv: column 'w': found weights with the sum {found}, expected a sum from 1e-100 to "
        r"1e\+100: multiply the weights of all clients by one number"
    )
    with pytest.raises(ConfigError, match=words):
        tables(data=two_sites(tmp_path, heavy), schema=SMALL)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, 1e101, np.ones(1)])
def test_a_sum_that_cannot_be_used_is_refused(value):
    """From a node that sends anything."""

    def answer(request):
        told = {"rows": 2.0, "weight": value, "observed": np.array([2.0]),
                "sums": np.array([1.0]), "categories": np.frombuffer(b"{}", np.uint8)}  # fmt: skip
        return [Reply([0], 1, {k: [v] for k, v in told.items()}, remote=True)]

    with pytest.raises(RoundError, match="client a: 'weight' h"):
        Preparing(Schema(**SMALL), ["a"], answer, max_retries=0).agree()
