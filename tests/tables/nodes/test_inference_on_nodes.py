"""Standard errors on nodes: those of this process, where a node's policy allows their sums."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import on_grid
from table_nodes import same_files, start, write_rows

from flower_fedcon import Policy, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower import nodes
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.strategies import FedAvg, FedNewton
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables

pytestmark = on_grid

STATED = {"target": "ill", "positive": ["yes"], "features": {"a": "numeric", "b": "numeric"}}
SCHEMA = Schema.load(STATED)
MODEL = ("coefficients.csv", "model.json")


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    return [
        write_rows(tmp_path / f"s{site}.csv", "a,b,ill", [
            f"{a:.2f},{b:.2f},{'yes' if rng.random() < 1 / (1 + np.exp(b - a)) else 'no'}"
            for a, b in rng.normal(size=(40, 2))
        ])
        for site in range(3)
    ]  # fmt: skip


def counts(rng):
    """Two sites of counts over years, to be seen as what they are or as a gamma's values."""
    return "a,years,y", [
        f"{a:.2f},{e:.2f},{1 + rng.poisson(90 * e * rng.gamma(2)):d}"
        for a, e in rng.uniform(0.5, 2.0, size=(40, 2))
    ]


def waves(rng):
    """Rows of which some lack a number, and whose outcome bends with it."""
    a, k = rng.gamma(2.0, size=40).round(2), rng.integers(3, size=40)
    y = np.sin(a) + k * a / 5 + 0.1 * rng.normal(size=40)
    cells = [f"{v:.2f}" if j % 9 else "" for j, v in enumerate(a)]
    return "a,kind,y", [f"{c},{'xyz'[n]},{t:.3f}" for c, n, t in zip(cells, k, y, strict=True)]


EXPOSED = {"features": {"a": "numeric"}, "exposure": "years"}
TERMS = {
    "features": {"a": {"missing": "median"}, "kind": "categorical"},
    "terms": ["kind", "rcs(a, 4)", "kind:poly(a, 2)", "missing(a)"],
}
WIDE = Policy(min_rows=3, max_parameters=1.0)


@pytest.mark.parametrize(
    ("rows", "seed", "stated", "policy", "rounds", "own", "names"),
    [
        (counts, 1, {"loss": "negative_binomial"} | EXPOSED, Policy.open(), 9, {},
         (*MODEL, "quality.json")),
        (counts, 1, {"loss": "gamma"} | EXPOSED, Policy.open(), 9, {}, (*MODEL, "quality.json")),
        (waves, 2, TERMS, WIDE, 3, {"min_rows": 3}, MODEL),
    ],
    ids=["negative_binomial", "gamma", "terms"],
)  # fmt: skip
def test_nodes_find_the_models_of_this_process(
    rows, seed, stated, policy, rounds, own, names, tmp_path
):
    """Also where a node restarts, which then has only its state-dir."""
    rng = np.random.default_rng(seed)
    files = [write_rows(tmp_path / f"s{site}.csv", *rows(rng)) for site in range(2)]
    stated = {"target": "y", "test_fraction": 0.25} | stated
    problem = tables(data=f"{tmp_path}/s*.csv", schema=stated, inference="model", **own)
    made = FedNewton(problem.regularizer)
    here = simulate(made, problem, rounds, run_dir=tmp_path / "here")
    there = start(
        files, Schema.load(stated), rounds, policy, made=made, evaluate_every=1, inference="model",
        run_dir=tmp_path / "there", node={"state-dir": str(tmp_path / "state")},
    )  # fmt: skip
    assert there.x.tobytes() == here.x.tobytes()
    assert repr(there.report.errors) == repr(here.report.errors)  # NaN where nothing is tested
    assert ("knots of rcs(a, 4): " in there.report.text) == (rows is waves)
    same_files(tmp_path / "here", tmp_path / "there", *names)


def test_nodes_find_the_errors_that_this_process_finds(files, tmp_path):
    problem = tables(data=f"{tmp_path}/s*.csv", schema=STATED, inference="robust")
    made = FedNewton(problem.regularizer)
    here = simulate(made, problem, 10).report

    def there(policy=None, **more):
        return start(files, SCHEMA, 10, policy, made=made, inference="robust", **more).report

    folder = {"run_dir": tmp_path / "run"}
    assert there(**folder).errors == here.errors
    assert there(**folder, resume=True).errors == here.errors
    for policy, reason in (
        (Policy(max_parameters=0.05), "max-parameters = 0.05 for each row, and there are 3 and 40"),
        (Policy(phases="train,prepare,evaluate"), "phases = train, prepare, evaluate, not stat"),
    ):
        refused = there(policy)
        assert refused.estimates is None
        assert reason in refused.text


def test_secure_aggregation_refuses_errors_before_round_1(files, tmp_path):
    secure = {"secure_aggregation": SecAggPlus(clipping_range=100.0), "run_dir": tmp_path / "run"}
    made = FedAvg(client_lr=0.1, local_steps=1)
    with pytest.raises(ConfigError, match="inference='robust' cannot be used with secure_agg"):
        start(files, SCHEMA, 1, made=made, inference="robust", **secure)
    assert not (tmp_path / "run" / "history.csv").exists()


def files_of(folder, head, sites):
    """Write a file for each site: two numbers and an outcome, and what is given for each row."""
    folder.mkdir()
    rng, files = np.random.default_rng(2), []
    for site, more in enumerate(sites):
        numbers, outcomes = rng.normal(size=(len(more), 2)), rng.choice(["yes", "no"], len(more))
        rows = [f"{a:.2f},{b:.2f},{y},{own}"
                for (a, b), y, own in zip(numbers, outcomes, more, strict=True)]  # fmt: skip
        files.append(write_rows(folder / f"s{site}.csv", f"a,b,ill,{head}", rows))
    return files


def test_a_small_cluster_beside_few_others_is_not_told(tmp_path):
    """Of two clusters the sums give each one's score, which for one row is that row."""
    schema = Schema.load(STATED | {"cluster": "family"})

    def report(rows, policy):
        marks = np.repeat(np.arange(len(rows)), rows)
        sites = [[f"f{site}.{mark}" for mark in marks] for site in range(2)]
        made = files_of(tmp_path / f"{len(rows)} {policy.min_cell}", "family", sites)
        return start(made, schema, 10, policy, inference="cluster", max_retries=0,
                     weighting="uniform").report  # fmt: skip

    few = report([17, 1, 22], Policy())
    assert "of 3 clusters here the smallest has fewer than 3 rows" in few.text
    assert few.estimates is None
    assert report([17, 1, 22], Policy(min_cell=1)).estimates.clusters == 6
    assert report([1] * 8 + [32], Policy()).estimates.clusters == 18  # three for each parameter
    assert "each row of every client is a cluster of its own" in report([1] * 40, Policy()).text


@pytest.mark.parametrize(
    ("weights", "counted"), [([1, *[0] * 39], 1), ([1, *[1e-9] * 39], 1), ([2] * 40, 40)]
)
def test_rows_that_weigh_nothing_hide_no_other(weights, counted, tmp_path, monkeypatch):
    """By a weight of 1 in one row and 0 in the others, each sum would be that row."""
    monkeypatch.setattr(nodes, "_HOPELESS", 0.0)  # seconds to wait for a policy to be changed
    schema, made = Schema.load(STATED | {"weight": "w"}), files_of(tmp_path / "x", "w", [weights])
    options = {"max_retries": 0, "weighting": "uniform"}
    if counted > 5:
        assert np.isfinite(start(made, schema, 2, Policy(min_rows=5), **options).x).all()
        return
    with pytest.raises(FedConError, match=rf"policy\.min-rows = 5, and it has {counted}"):
        start(made, schema, 2, Policy(min_rows=5), **options)


def test_a_node_without_noise_says_which_column_does_not_fit(files):
    files[0].write_text(files[0].read_text().replace("yes", "perhaps", 1))
    with pytest.raises(FedConError, match=r"cannot be read as the schema says in column 'ill'"):
        start(files, SCHEMA, 1, made=FedAvg(client_lr=0.1), start_timeout=0.1)
