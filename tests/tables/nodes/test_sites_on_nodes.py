"""Effects of sites on nodes: what this process finds, where a node's policy allows it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fake_grid import on_grid
from sites import COLUMNS, problem, run, stated, written
from table_nodes import make_grid, run_on, same_files, start, write_rows

from flower_fedcon import Policy
from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.strategies import FedAvg, FedNewton
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import clients_of, tables
from flower_fedcon.tables.ending import final_exchanges
from flower_fedcon.tables.own_files import written_by
from flower_fedcon.tables.statistics.group_sums import predicted_effects

pytestmark = on_grid


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("sites"))


def test_nodes_find_the_numbers_of_this_process(folder, tmp_path):
    schema = Schema.load(stated("logistic", test_fraction=0.2))
    files = sorted(folder.glob("s*.csv"))
    made = problem(folder, "logistic", {"test_fraction": 0.2}, inference="robust")
    here = run(made, 10).report
    node = {"predictions-dir": str(tmp_path / "own"), "policy.min-cell": 1}
    how = {"site_effects": "own", "inference": "robust", "evaluate_every": 10}
    there = start(files, schema, 10, node=node, run_dir=tmp_path / "run", **how).report
    assert there.rows == here.rows
    assert there.errors == here.errors
    assert there.quality.pooled == here.quality.pooled
    free = FedNewton(WithIntercept(L1(0.1)))
    with pytest.raises(ConfigError, match=r"last entry .* is a column, not an intercept"):
        start(files, schema, 1, made=free, site_effects="own")
    # A node writes probabilities with its intercept for its own rows.
    own = pd.read_csv(tmp_path / "own" / "s0.csv")
    assert list(own) == ["row", "prediction", "linear_predictor", "probability", "outcome"]
    held = made.objectives[0].objective.metrics
    scores = held.scores(np.array([row[1] for row in here.rows]))
    np.testing.assert_allclose(own["linear_predictor"], scores, rtol=1e-7)


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
        how = {"site_effects": "own", "inference": "model", "heterogeneity": True}
        return run_on(grid, schema, 10, **how).report

    found = there(4).heterogeneity
    for name in ("values", "bse", "q", "random", "ratio", "ratio_df"):
        assert getattr(found, name).tobytes() == getattr(here, name).tobytes()
    found = there(3).heterogeneity
    assert found.sites == ("s0", "s1", "s2")
    words = "policy.phases = train, query, evaluate, scales, prepare, statistics, not alone"
    assert words in found.left_out["s3"]
    assert found.ratio.tobytes() == here.ratio.tobytes()  # sums, which it tells
    refused = there(0)
    assert refused.heterogeneity is None
    assert "heterogeneity is not known" in refused.text


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_nodes_find_the_random_intercepts_of_this_process(loss, folder, tmp_path, monkeypatch):
    """Also where the run was ended between the last round and the fit."""
    more = {"cluster": "plan", "test_fraction": 0.2}
    schema, files = Schema.load(stated(loss, **more)), sorted(folder.glob("s*.csv"))
    made = problem(folder, loss, more, site_effects="random")
    here = run(made, 9, run_dir=tmp_path / "here")
    own = {"predictions-dir": str(tmp_path / "own"), "policy.min-cell": 1}
    grid = make_grid(files, schema, **own)
    how = {"schema": schema, "weighting": "examples", "site_effects": "random"}
    how |= {"num_rounds": 9, "evaluate_every": 9, "run_dir": tmp_path / "there"}

    def ended(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(final_exchanges, "final_intercepts", ended)
        with pytest.raises(KeyboardInterrupt):
            FedNewton().start(grid, **how)
    assert not (tmp_path / "there" / "model.json").exists()
    result = FedNewton().start(grid, resume=True, **how)
    names = ("coefficients.csv", "model.json", "quality.json")
    same_files(tmp_path / "here", tmp_path / "there", *names)
    there = result.history
    assert there.report.random.sd == here.report.random.sd
    assert there.report.quality.pooled == here.report.quality.pooled
    assert there.x.tobytes() == here.x.tobytes() == result.arrays.to_numpy_ndarrays()[0].tobytes()
    # A node writes what only it may know: its groups' intercepts, and predictions without them.
    table = clients_of(f"{folder}/s0.csv", schema.stated)[0][0]
    labels = np.array(table.cluster_names)[table.clusters[table.training_rows]]
    names, counts = np.unique(labels, return_counts=True)
    effects = pd.read_csv(tmp_path / "own" / "s0.effects.csv", dtype={"group": str})
    assert written_by(list(effects)) == "a node"
    assert effects["group"].tolist() == names.tolist()
    assert effects["rows"].tolist() == counts.tolist()
    fit = there.report.random
    known = predicted_effects(made.clients[0], here.x, fit.sd, fit.residual_sd, 7)
    np.testing.assert_allclose(effects["random_intercept"], known, rtol=1e-12)
    predicted = pd.read_csv(tmp_path / "own" / "s0.csv")
    scores = table.matrix(made.preparation)[table.held_out_rows] @ here.x[:-1] + here.x[-1]
    shown = "prediction" if loss == "squared" else "linear_predictor"
    np.testing.assert_allclose(predicted[shown], scores, rtol=1e-9)


def test_nodes_have_a_say_in_random_intercepts(folder, tmp_path):
    schema, files = Schema.load(stated("poisson", cluster="plan")), sorted(folder.glob("s*.csv"))

    def there(policy=None, **more):
        return start(files, schema, 8, policy, site_effects="random", **more).report

    p, rows = len(COLUMNS) + 1, min(len(pd.read_csv(file)) for file in files)
    for policy, why in (
        (Policy(max_parameters=(p + 0.5) / rows, min_cell=1), f"there are {p + 1} and {rows} rows"),
        (Policy(min_cell=30), "fewer than 30 rows here (policy.min-rows and min-cell) are in the "),
        (Policy(min_rows=30, min_cell=1), "fewer than 30 rows here"),
        (Policy(phases="train,prepare,evaluate"), "phases = train, prepare, evaluate, not stat"),
    ):
        report = there(policy)
        assert report.random is None
        assert "no random intercepts: " in report.text
        assert why in report.text
    with pytest.raises(ConfigError, match='needs weighting="examples"'):
        there(weighting="uniform")
    method, secure = FedAvg(client_lr=0.1, local_steps=1), SecAggPlus(clipping_range=100.0)
    with pytest.raises(ConfigError, match="site_effects='random' cannot be used with secure"):
        there(made=method, secure_aggregation=secure)


def test_nodes_count_three_rows_of_a_class_in_a_bin(folder, tmp_path):
    """By default, as DataSHIELD; what is no table of counts is that of this process."""
    rows = (folder / "s0.csv").read_text().splitlines()
    place = rows[0].split(",").index("any")
    rare = [row for row in rows[1:] if row.split(",")[place] == "no"][:9]
    often = [row for row in rows[1:] if row.split(",")[place] == "yes"][:40]
    sparse = write_rows(tmp_path / "sparse.csv", rows[0], [*rare, *often])
    files = [*sorted(folder.glob("s*.csv")), sparse]
    more = {"test_fraction": 0.2, "split_seed": 1}
    schema = Schema.load(stated("logistic", **more))
    made = tables(data=list(map(str, files)), schema=stated("logistic", **more))
    held = made.objectives[-1].objective.metrics
    assert 1 <= int((held.y < 0).sum()) < 3
    here = run(made, 8).report.quality
    found, same = (
        start(files, schema, 8, node=node).report.quality for node in ({}, {"policy.min-cell": 1})
    )
    assert same.stated == here.stated
    assert found.sites == here.sites
    assert found.pooled["brier"] == here.pooled["brier"]
    assert found.pooled["auc_error"] > here.pooled["auc_error"]
    assert "policy.min-cell" in found.absent["sparse: its part of the AUC together"]
