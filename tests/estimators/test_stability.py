"""Stability selection: scikit-learn's lasso on the same halves, its bound, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import lasso_path
from typer.testing import CliRunner

from flower_fedcon import FederatedProblem, stability_selection
from flower_fedcon.cli.command import app
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import FederatedLasso, FederatedLogisticRegression
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.paths.folds import deal_all
from flower_fedcon.regularizers import L1
from flower_fedcon.tables.builders import tables


def drawn(rng, rows=(30, 41, 22), columns=12, effect=1.5):
    X = rng.normal(size=(sum(rows), columns))
    X[:, 1] += 0.6 * X[:, 0]
    y = effect * (X[:, 0] - X[:, 5]) + rng.normal(size=len(X))
    return X, y, np.repeat(np.arange(len(rows)), rows)


def test_shares_are_those_of_lassos_on_the_same_halves():
    X, y, sites = drawn(np.random.default_rng(1))
    pairs, num = 6, 25
    found = FederatedLasso().stability_selection(X, y, sites, pairs=pairs, num=num)
    assert (found.samples, found.most) == (12, 2)  # 2^2 <= 1.0 (2 .75 - 1) 12 < 3^2
    assert found.error == pytest.approx(4 / 6)
    own = [np.flatnonzero(sites == k) for k in range(3)]
    cores = [LeastSquares(X[rows], y[rows]) for rows in own]
    counts = np.zeros(12)
    for pair in range(pairs):
        for half in deal_all(cores, 2, pair):
            rows = np.concatenate([own[j][half[j][0]] for j in range(3)])
            assert abs(len(rows) - len(y) / 2) <= 3
            A, b = X[rows] - X[rows].mean(axis=0), y[rows] - y[rows].mean()
            _, coefs, _ = lasso_path(A, b, alphas=found.values, tol=1e-12, max_iter=100_000)
            ever = np.logical_or.accumulate(coefs != 0, axis=1)
            fits = np.flatnonzero(ever.sum(axis=0) <= found.most)
            counts += ever[:, fits[-1]]
    np.testing.assert_allclose(found.shares, counts / 12)
    assert set(found.selected) <= {0, 5}
    assert found.shares[[0, 5]].min() > 0.5
    assert (np.diff(found.paths, axis=0) >= 0).all()


def test_few_columns_without_an_effect_are_selected():
    """The bound is on the expected number: of 8 data sets, by far."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(8):
        A, b = rng.normal(size=(60, 10)), rng.normal(size=60)
        clients = [LeastSquares(A[:25], b[:25]), LeastSquares(A[25:], b[25:])]
        found = stability_selection(
            FederatedProblem(clients), L1(1.0), pairs=5, num=8, min_ratio=0.2, error=1.0
        )
        wrong += len(found.selected)
    assert wrong <= 8 * found.error


def test_classes_weights_and_halves_in_parts(monkeypatch):
    X, y, sites = drawn(np.random.default_rng(2), effect=3.0)
    kinds = np.digitize(y, [-1.0, 1.0])
    whole = FederatedLogisticRegression().stability_selection(
        X, kinds, sites, pairs=2, num=5, min_ratio=0.3
    )
    assert whole.shares.shape == (12,)
    monkeypatch.setattr("flower_fedcon.paths.stability._BLOCKS", 1)  # a pair at a time
    parts = FederatedLogisticRegression().stability_selection(
        X, kinds, sites, pairs=2, num=5, min_ratio=0.3
    )
    np.testing.assert_array_equal(parts.shares, whole.shares)
    np.testing.assert_array_equal(parts.paths, whole.paths)


def test_columns_of_tables(tmp_path):
    X, y, sites = drawn(np.random.default_rng(3))
    names = [f"c{j}" for j in range(12)]
    for k in range(3):
        rows = np.column_stack([X, y])[sites == k]
        lines = [",".join([*names, "y"]), *(",".join(map(repr, row.tolist())) for row in rows)]
        (tmp_path / f"s{k}.csv").write_text("\n".join(lines))
    schema = {"target": "y", "features": dict.fromkeys(names, "numeric")}
    problem = tables(data=f"{tmp_path}/*.csv", schema=schema, l1=0.1)
    found = stability_selection(problem, pairs=5, num=12)
    assert [problem.preparation.names[k] for k in found.selected] == ["c0", "c5"]
    study = tmp_path / "study.toml"
    features = ", ".join(f'{name} = "numeric"' for name in names)
    study.write_text(
        f'title = "t"\n[problem]\nname = "tables"\ndata = "{tmp_path}/*.csv"\nl1 = 0.1\n'
        f'[problem.schema]\ntarget = "y"\nfeatures = {{{features}}}\n[run]\nrounds = 50\n'
    )
    done = CliRunner().invoke(app, ["path", str(study), "--stability", "5", "--num", "12"])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert [words[0] for words in lines if words and words[-1] == "yes"] == ["c0", "c5"]
    own = tables(data=f"{tmp_path}/*.csv", schema=schema, l1=0.1, site_effects="own")
    with pytest.raises(ConfigError, match="stability selection need objectives with rows"):
        stability_selection(own)
