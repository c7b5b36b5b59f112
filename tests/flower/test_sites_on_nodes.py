"""Effects of sites on nodes: what this process finds, where a node's policy allows it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fake_grid import on_grid
from sites import problem, run, stated, written
from test_tables_on_nodes import make_grid

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables import Schema


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("sites"))


@on_grid
def test_nodes_find_the_numbers_of_this_process(folder, tmp_path):
    schema = Schema.load(stated("logistic", test_fraction=0.2))
    files = sorted(folder.glob("s*.csv"))
    made = problem(folder, "logistic", {"test_fraction": 0.2}, inference="robust")
    here = run(made, 10).report
    how = {"schema": schema, "weighting": "examples", "site_effects": "own"}
    grid = make_grid(files, schema, **{"predictions-dir": str(tmp_path / "own")})
    there = FedNewton().start(
        grid, num_rounds=10, inference="robust", evaluate_every=10, run_dir=tmp_path / "run", **how
    ).history.report  # fmt: skip
    assert there.rows == here.rows
    assert there.errors == here.errors
    assert there.quality.pooled == here.quality.pooled
    grid = make_grid(files, schema)
    free = FedNewton(WithIntercept(L1(0.1)))
    with pytest.raises(ConfigError, match=r"last entry .* no intercept but a column"):
        free.start(grid, num_rounds=1, **how)
    # A node writes probabilities with its intercept for its own rows.
    own = pd.read_csv(tmp_path / "own" / "s0.csv")
    assert list(own) == ["row", "prediction", "linear_predictor", "probability", "outcome"]
    held = made.objectives[0].objective.metrics
    np.testing.assert_allclose(
        own["linear_predictor"], held.scores(np.array([row[1] for row in here.rows])), rtol=1e-7
    )
