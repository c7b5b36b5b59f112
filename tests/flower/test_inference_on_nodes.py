"""Standard errors on nodes: those of this process, where a node's policy allows their sums."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import on_grid
from test_tables_on_nodes import make_grid

from flower_fedcon import Policy, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.strategies import FedAvg, FedNewton
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables

STATED = {"target": "ill", "positive": ["yes"], "features": {"a": "numeric", "b": "numeric"}}
SCHEMA = Schema.load(STATED)


def written(folder):
    rng, files = np.random.default_rng(0), []
    for site in range(3):
        rows = [
            f"{a:.2f},{b:.2f},{'yes' if rng.random() < 1 / (1 + np.exp(b - a)) else 'no'}"
            for a, b in rng.normal(size=(40, 2))
        ]
        files.append(folder / f"s{site}.csv")
        files[-1].write_text("\n".join(["a,b,ill", *rows]))
    return files


@on_grid
def test_nodes_find_the_errors_that_this_process_finds(tmp_path):
    files = written(tmp_path)
    problem = tables(data=f"{tmp_path}/s*.csv", schema=STATED, inference="robust")
    here = simulate(FedNewton(problem.regularizer), problem, 10).report

    def there(policy=None, **more):
        return FedNewton(problem.regularizer).start(
            make_grid(files, SCHEMA, policy), num_rounds=10, schema=SCHEMA, weighting="examples",
            inference="robust", **more,
        ).history.report  # fmt: skip

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


@on_grid
@pytest.mark.parametrize("loss", ["negative_binomial", "gamma"])
def test_nodes_find_models_with_an_exposure(loss, tmp_path):
    rng, files = np.random.default_rng(1), []
    for site in range(2):
        rows = [f"{a:.2f},{e:.2f},{1 + rng.poisson(90 * e * rng.gamma(2)):d}"
                for a, e in rng.uniform(0.5, 2.0, size=(40, 2))]  # fmt: skip
        files.append(tmp_path / f"s{site}.csv")
        files[-1].write_text("\n".join(["a,years,y", *rows]))
    stated = {"target": "y", "loss": loss, "features": {"a": "numeric"}, "exposure": "years"}
    stated["test_fraction"] = 0.25
    problem = tables(data=f"{tmp_path}/s*.csv", schema=stated, inference="model")
    here = simulate(FedNewton(problem.regularizer), problem, 9, run_dir=tmp_path / "here")
    schema = Schema.load(stated)
    there = FedNewton(problem.regularizer).start(
        make_grid(files, schema, Policy.open()), num_rounds=9, evaluate_every=1, schema=schema,
        weighting="examples", inference="model", run_dir=tmp_path / "there",
    ).history  # fmt: skip
    assert there.x.tobytes() == here.x.tobytes()
    assert there.report.errors == here.report.errors
    for name in ("coefficients.csv", "model.json", "quality.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


@on_grid
def test_nodes_find_models_of_terms(tmp_path):
    """Also where a node restarts, which then has only its state-dir."""
    rng, files = np.random.default_rng(2), []
    for site in range(2):
        a, k = rng.gamma(2.0, size=40).round(2), rng.integers(3, size=40)
        y = np.sin(a) + k * a / 5 + 0.1 * rng.normal(size=40)
        cells = [f"{v:.2f}" if j % 9 else "" for j, v in enumerate(a)]
        rows = [f"{c},{'xyz'[n]},{t:.3f}" for c, n, t in zip(cells, k, y, strict=True)]
        files.append(tmp_path / f"s{site}.csv")
        files[-1].write_text("\n".join(["a,kind,y", *rows]))
    stated = {
        "target": "y", "features": {"a": {"missing": "median"}, "kind": "categorical"},
        "terms": ["kind", "rcs(a, 4)", "kind:poly(a, 2)", "missing(a)"], "test_fraction": 0.25,
    }  # fmt: skip
    problem = tables(data=f"{tmp_path}/s*.csv", schema=stated, inference="model", min_rows=3)
    here = simulate(FedNewton(problem.regularizer), problem, 3, run_dir=tmp_path / "here")
    schema = Schema.load(stated)
    policy = Policy(min_rows=3, max_parameters=1.0)
    there = FedNewton(problem.regularizer).start(
        make_grid(files, schema, policy, **{"state-dir": str(tmp_path / "state")}),
        num_rounds=3, evaluate_every=1, schema=schema,
        weighting="examples", inference="model", run_dir=tmp_path / "there",
    ).history  # fmt: skip
    assert there.x.tobytes() == here.x.tobytes()
    assert there.report.errors == here.report.errors
    assert "knots of rcs(a, 4): " in there.report.text
    for name in ("coefficients.csv", "model.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


@on_grid
def test_secure_aggregation_refuses_errors_before_round_1(tmp_path):
    files = written(tmp_path)
    problem = tables(data=f"{tmp_path}/s*.csv", schema=STATED)
    method = FedAvg(client_lr=0.1, local_steps=1, regularizer=problem.regularizer)
    with pytest.raises(ConfigError, match="inference='robust' cannot be used with secure_agg"):
        method.start(
            make_grid(files, SCHEMA), num_rounds=1, schema=SCHEMA, weighting="examples",
            inference="robust", secure_aggregation=SecAggPlus(clipping_range=100.0),
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run" / "history.csv").exists()


def files_of(folder, head, sites):
    """Write a file for each site: two numbers and an outcome, and what is given for each row."""
    folder.mkdir()
    rng, files = np.random.default_rng(2), []
    for site, more in enumerate(sites):
        numbers = rng.normal(size=(len(more), 2))
        outcomes = rng.choice(["yes", "no"], len(more))
        rows = [
            f"{a:.2f},{b:.2f},{y},{own}"
            for (a, b), y, own in zip(numbers, outcomes, more, strict=True)
        ]
        files.append(folder / f"s{site}.csv")
        files[-1].write_text("\n".join([f"a,b,ill,{head}", *rows]))
    return files


@on_grid
def test_a_small_cluster_beside_few_others_is_not_told(tmp_path):
    """Of two clusters the sums give each one's score, which for one row is that row."""
    schema = Schema.load(STATED | {"cluster": "family"})

    def report(rows, policy):
        marks = np.repeat(np.arange(len(rows)), rows)
        sites = [[f"f{site}.{mark}" for mark in marks] for site in range(2)]
        folder = tmp_path / f"{len(rows)} {policy.min_cell}"
        return FedNewton().start(
            make_grid(files_of(folder, "family", sites), schema, policy),
            num_rounds=10, schema=schema, inference="cluster", max_retries=0,
        ).history.report  # fmt: skip

    few = report([17, 1, 22], Policy())
    assert "of 3 clusters here the smallest has fewer than 3 rows" in few.text
    assert few.estimates is None
    assert report([17, 1, 22], Policy(min_cell=1)).estimates.clusters == 6
    assert report([1] * 8 + [32], Policy()).estimates.clusters == 18  # three for each parameter


@on_grid
@pytest.mark.parametrize(
    ("weights", "counted"), [([1, *[0] * 39], 1), ([1, *[1e-9] * 39], 1), ([2] * 40, 40)]
)
def test_rows_that_weigh_nothing_hide_no_other(weights, counted, tmp_path):
    """By a weight of 1 in one row and 0 in the others, each sum would be that row."""
    schema = Schema.load(STATED | {"weight": "w"})
    grid = make_grid(files_of(tmp_path / "x", "w", [weights]), schema, Policy(min_rows=5))
    options = {"num_rounds": 2, "schema": schema, "max_retries": 0}
    if counted > 5:
        assert np.isfinite(FedNewton().start(grid, **options).history.x).all()
        return
    with pytest.raises(FedConError, match=rf"policy\.min-rows = 5, and it has {counted}"):
        FedNewton().start(grid, **options)


@on_grid
def test_a_node_without_noise_says_which_column_does_not_fit(tmp_path):
    files = written(tmp_path)
    files[0].write_text(files[0].read_text().replace("yes", "perhaps", 1))
    options = {"num_rounds": 1, "schema": SCHEMA, "start_timeout": 0.1}
    with pytest.raises(FedConError, match=r"cannot be read as the schema says in column 'ill'"):
        FedAvg(client_lr=0.1).start(make_grid(files, SCHEMA), **options)
