"""Features of many categories: the model is that of an array's columns, from sparse rows."""

from __future__ import annotations

import logging
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import svds
from tabular import lines, run

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.strategies import CompositeFL
from flower_fedcon.tables import encoding, preparation
from flower_fedcon.tables.builders import clients_of, tables

FEATURES = {"x": "numeric", "zip": "categorical", "sex": "categorical"}
LOSSES = {
    "squared": {},
    "logistic": {"positive": ["1"], "negative": ["0"]},
    "multinomial": {"classes": ["0", "1", "2"]},
    "poisson": {"loss": "poisson"},
    "cox": {"event": "seen"},
}


def write_sites(folder, levels, *, rows=60, missing=0.0, seed=0, top=3):
    """Two sites whose outcomes are numbers below `top`."""
    rng = np.random.default_rng(seed)
    for name in "ab":
        own = ["y,x,zip,sex,seen"]
        for i in range(rows):
            x, z = rng.normal(), rng.integers(levels)
            y = int(np.clip(round(x + z % 2 + rng.normal() / 2), 0, top - 1))
            mark = "" if rng.random() < missing else f"z{z:05d}"
            own.append(f"{y},{x:.3f},{mark},{'fm'[rng.integers(2)]},{i % 3 and 1}")
        lines(folder, **{name: own})
    return f"{folder}/*.csv"


def narrow_and_wide(monkeypatch, data, schema, **more):
    """The problem with an array's rows, and that with sparse ones."""
    found = []
    for most in (200, 3):
        monkeypatch.setattr(preparation, "WIDE", most)
        found.append(tables(data=data, schema=schema, **more))
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("loss", LOSSES)
def test_the_model_is_that_of_an_array(tmp_path, monkeypatch, loss):
    """Coefficients are the same, and so is the intercept in the columns' own units.

    The intercepts of classes are so up to one number, which is anybody's.
    """
    top = 2 if loss == "logistic" else 3
    data = write_sites(tmp_path, 6, top=top)
    schema = {"target": "y", "features": FEATURES, **LOSSES[loss]}
    array, wide = narrow_and_wide(monkeypatch, data, schema, l1=0.01)
    assert not sparse.issparse(rows_of(array))
    assert sparse.issparse(rows_of(wide))
    assert array.preparation.names == wide.preparation.names
    one, other = (run(p, 12).report for p in (array, wide))
    intercepts = []
    for (name, sd, unit, _), (same, sd_, unit_, _) in zip(one.rows, other.rows, strict=True):
        assert name == same
        if name.startswith("(intercept)"):
            intercepts.append(unit - unit_)
        else:
            assert (sd, unit) == pytest.approx((sd_, unit_), abs=1e-8)
    if loss == "multinomial":
        intercepts = [shift - intercepts[0] for shift in intercepts]
    assert intercepts == pytest.approx([0.0] * len(intercepts), abs=1e-8)


def rows_of(problem):
    """The rows of the first client's objective."""
    return getattr(problem.objectives[0], "objective", problem.objectives[0]).rows


@given(st.integers(4, 40), st.floats(0, 0.9), st.booleans(), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_rows_without_a_category_are_others(tmp_path_factory, levels, missing, scaled, seed):
    """Of a wide feature; each row has at most one entry of it, and the scores are an array's."""
    folder = tmp_path_factory.mktemp("wide")
    data = write_sites(folder, levels, missing=missing, seed=seed, rows=30)
    schema = {"target": "y", "features": FEATURES, "standardize": scaled}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "WIDE", 3)
        problem = tables(data=data, schema=schema)
    read, _ = clients_of(data, schema)
    found = problem.preparation
    lacking = sum(int((t.categories[:, 0] == "").sum()) for t in read)
    many = any("" in categories for categories in found.categories.values())
    assert ("zip=(other)" in found.names) == (many and lacking > 0)
    if not many:
        return
    for table in read:
        rows = table.matrix(found)
        assert sparse.issparse(rows)
        assert rows.nnz <= 3 * rows.shape[0]
        dense = rows.toarray() * found.scales + found.centers
        for j, name in enumerate(found.names):
            feature, _, category = name.partition("=")
            if feature in ("zip", "sex"):
                marks = table.categories[:, ("zip", "sex").index(feature)]
                wanted = marks == ("" if category == "(other)" else category)
                np.testing.assert_allclose(dense[:, j], wanted, atol=1e-12)


def test_categories_that_nobody_tells_are_others(tmp_path, monkeypatch):
    """A policy's min_rows withholds rare ones."""
    data = write_sites(tmp_path, 12, rows=90)
    monkeypatch.setattr(preparation, "WIDE", 3)
    problem = tables(data=data, schema={"target": "y", "features": FEATURES}, min_rows=8)
    told = problem.preparation.categories["zip"]
    assert 3 < len(told) - 1 < 12
    assert "zip=(other)" in problem.preparation.names


def test_a_missing_value_of_a_narrow_feature_becomes_its_mean_beside_a_wide_one(tmp_path):
    """As in an array."""
    rows = [f"{i % 5},z{i:04d},{'' if i % 7 == 0 else 'abc'[i % 3]}" for i in range(300)]
    data = lines(tmp_path, a=["y,zip,c", *rows])
    schema = {"target": "y", "features": {"zip": "categorical", "c": "categorical"}}
    found, (table,) = tables(data=data, schema=schema).preparation, clients_of(data, schema)[0]
    j = found.names.index("c=b")
    column = table.matrix(found)[:, [j]].toarray().ravel() * found.scales[j]
    np.testing.assert_allclose(column[::7], found.means[j])
    assert sorted(set(np.delete(column, np.arange(0, 300, 7)).round(12))) == [0.0, 1.0]


# --- methods -------------------------------------------------------------------------------------


def experiment(data, *, l1=0.01, rounds=8, **algorithm):
    problem = {"name": "tables", "data": data, "l1": l1}
    problem["schema"] = {"target": "y", "features": FEATURES}
    given = {"problem": problem, "run": {"rounds": rounds}}
    return Experiment(given | ({"algorithm": algorithm} if algorithm else {}))


def test_the_default_method_converges(tmp_path):
    """FedNewton; and above a thousand columns steps with momentum, from the clients' constants."""
    small = experiment(write_sites(tmp_path, 6))
    assert small.labels == ["FedNewton"]
    assert small.chosen == "method: FedNewton, the default for tables of 7 columns"
    history = simulate(small.strategy(), small.problem(), 8)
    assert history.report.reached.converged
    folder = tmp_path / "wide"
    folder.mkdir()
    large = experiment(write_sites(folder, 5000, rows=800), l1=0.003)
    problem = large.problem()
    assert problem.layout.size > 1000
    assert large.labels == ["FedMiD"]
    history = simulate(large.strategy(), problem, 400, evaluate_every=0)
    assert history.report.reached.converged
    best = problem.optimum.value
    assert problem.objective(history.x) == pytest.approx(best, abs=1e-9)
    (tmp_path / "again.toml").write_text(large.to_toml())
    again = Experiment.load(tmp_path / "again.toml")
    assert again.settings("FedMiD")["server_optimizer"] == {"type": "Momentum", "beta": 0.9}


@pytest.mark.nightly
@pytest.mark.parametrize(("levels", "rows"), [(5000, 5000), (100_000, 25_000)])
def test_thousands_of_categories_take_little_memory(tmp_path, levels, rows):
    """An array's rows would take gigabytes; and the run converges."""
    data = write_sites(tmp_path, levels, rows=rows, missing=0.02)
    tracemalloc.start()
    try:
        described = experiment(data, l1=0.002)
        problem = described.problem()
        history = simulate(described.strategy(), problem, 500, evaluate_every=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert problem.layout.size > 0.35 * levels
    assert history.report.reached.converged
    assert peak < 150e6


def test_who_takes_part_is_kept_by_a_default_method(tmp_path):
    sampled = experiment(write_sites(tmp_path, 6), participation={"sample": 1})
    assert sampled.settings("FedNewton")["participation"] == {"sample": 1}


def test_fednewton_refuses_what_takes_minutes(tmp_path):
    """And names what converges."""
    problem = tables(
        data=write_sites(tmp_path, 50_000, rows=1100),
        schema={"target": "y", "features": FEATURES},
        l1=0.01,
    )
    with pytest.raises(ConfigError, match=r"got 2153: use FedMiD with server_optimizer="):
        run(problem, 1)


def test_the_constant_of_large_sparse_rows_is_that_of_the_rows():
    """It was up to fifty times too large, and steps as many times too short."""
    A = sparse.random_array((2100, 2300), density=0.002, random_state=0, format="csr")
    L = LeastSquares(A, np.zeros(2100)).smoothness
    true = float(svds(A, k=1, return_singular_vectors=False)[0]) ** 2 / 2100
    assert true <= L <= 1.05 * true


# --- whether it has converged --------------------------------------------------------------------


def test_a_run_says_that_it_has_not_converged(tmp_path, caplog):
    """In the log and in the report, though nobody asked for certificates; and that it has."""
    schema = {"target": "y", "features": FEATURES}
    problem = tables(data=write_sites(tmp_path, 4), schema=schema, l1=0.01)
    method = CompositeFL(problem.regularizer, client_lr=0.05, local_steps=2)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        history = simulate(method, problem, 5)
    assert history.report.reached.converged is False
    assert "NOT CONVERGED" in caplog.text
    (line,) = [one for one in history.report.lines if one.startswith("KKT residual: ")]
    assert "of the penalty 0.01, expected at most 1e-06 of it" in line
    assert line.endswith("allow more rounds, or take FedNewton, which needs a few")
    assert "kkt" not in history
    done = run(problem, 5, certificates=True)
    assert done.report.reached.kkt == done["kkt"][-1]
    assert "converged (" in done.report.text
    free = tables(data=str(tmp_path / "*.csv"), schema=schema)
    done = run(free, 5)
    assert done.report.reached.converged
    assert "of the gradient's norm at the start" in done.report.text
    early = simulate(CompositeFL(free.regularizer, client_lr=0.05, local_steps=2), free, 5)
    assert early.report.reached.converged is False


def test_codes_know_what_is_other():
    """A category that is not agreed on is missing in a narrow feature."""
    marks = np.array(["a", "q", ""])
    assert encoding.codes(marks, ("a", "b")).tolist() == [0, -1, -1]
    assert encoding.codes(marks, ("a", "b", "")).tolist() == [0, 2, 2]
