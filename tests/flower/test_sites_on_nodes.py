"""Effects of sites on nodes: what this process finds, where a node's policy allows it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fake_grid import on_grid
from sites import problem, run, stated, written
from test_tables_on_nodes import make_grid

from flower_fedcon.errors import ConfigError
from flower_fedcon.problems.tables import tables
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
    grid = make_grid(
        files, schema, **{"predictions-dir": str(tmp_path / "own"), "policy.min-cell": 1}
    )
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


@on_grid
def test_nodes_fit_alone_where_their_policy_says_so(folder):
    schema = Schema.load(stated("logistic"))
    files = sorted(folder.glob("s*.csv"))
    made = problem(folder, "logistic", heterogeneity=True)
    here = run(made, 10).report.heterogeneity

    def there(allowed):
        grid = make_grid(files, schema)
        for j in range(allowed):
            node = grid.nodes[1000 - j].node_config
            node["policy.phases"] = "train,evaluate,prepare,statistics,alone"
        return FedNewton().start(
            grid, num_rounds=10, schema=schema, weighting="examples", site_effects="own",
            inference="model", heterogeneity=True,
        ).history.report  # fmt: skip

    found = there(4).heterogeneity
    for name in ("values", "bse", "q", "random", "ratio", "ratio_df"):
        assert getattr(found, name).tobytes() == getattr(here, name).tobytes()
    found = there(3).heterogeneity
    assert found.sites == ("s0", "s1", "s2")
    assert (
        "policy.phases = train, query, evaluate, prepare, statistics, not alone"
        in (found.left_out["s3"])
    )
    assert found.ratio.tobytes() == here.ratio.tobytes()  # sums, which it tells
    refused = there(0)
    assert refused.heterogeneity is None
    assert "heterogeneity is not known" in refused.text


@on_grid
def test_nodes_count_three_rows_of_a_class_in_a_bin(folder, tmp_path):
    """By default, as DataSHIELD; what is no table of counts is that of this process."""
    rows = (folder / "s0.csv").read_text().splitlines()
    place = rows[0].split(",").index("any")
    rare = [row for row in rows[1:] if row.split(",")[place] == "no"][:9]
    often = [row for row in rows[1:] if row.split(",")[place] == "yes"][:40]
    (tmp_path / "sparse.csv").write_text("\n".join([rows[0], *rare, *often]))
    files = [*sorted(folder.glob("s*.csv")), tmp_path / "sparse.csv"]
    more = {"test_fraction": 0.2, "split_seed": 1}
    schema = Schema.load(stated("logistic", **more))
    made = tables(data=list(map(str, files)), schema=stated("logistic", **more))
    held = made.objectives[-1].objective.metrics
    assert 1 <= int((held.y < 0).sum()) < 3
    here = run(made, 8).report.quality

    def there(**config):
        grid = make_grid(files, schema, **config)
        return FedNewton().start(
            grid, num_rounds=8, schema=schema, weighting="examples"
        ).history.report.quality  # fmt: skip

    found, same = there(), there(**{"policy.min-cell": 1})
    assert same.stated == here.stated
    assert found.sites == here.sites
    assert found.pooled["brier"] == here.pooled["brier"]
    assert found.pooled["auc_error"] > here.pooled["auc_error"]
    assert "policy.min-cell" in found.absent["sparse: its part of the AUC together"]
