"""Paths, cross-validation and stability selection, against scikit-learn's on the pooled rows."""

from __future__ import annotations

import csv
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression as SkLogistic
from sklearn.linear_model import enet_path, lasso_path
from tabular import deal, numeric, study
from typer.testing import CliRunner

from flower_fedcon import (
    Buffered,
    FederatedProblem,
    Sample,
    cross_validate,
    regularization_path,
    stability_selection,
)
from flower_fedcon.cli import main
from flower_fedcon.cli.command import app
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import FederatedLasso, FederatedLogisticRegression
from flower_fedcon.layout import array_bytes
from flower_fedcon.objectives import (
    CoxRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    Quadratic,
    SoftmaxRegression,
)
from flower_fedcon.paths.folds import deal_all
from flower_fedcon.problems import heart
from flower_fedcon.problems.reference import solve
from flower_fedcon.regularizers import (
    L1,
    ElasticNet,
    GroupLasso,
    L2Squared,
    SparseGroupLasso,
    WithIntercept,
)
from flower_fedcon.sets import L1Ball
from flower_fedcon.solvers.quadratic_models import QuadraticModel, minimizer
from flower_fedcon.strategies import CompositeFL, FedAvg, FedDR, FedMiD, FedNewton
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.default_method import default_strategy

FREE = WithIntercept(L1(1.0))


def standardised(rows):
    spread = rows.std(axis=0)
    return ((rows - rows.mean(axis=0)) / np.where(spread, spread, 1.0))[:, spread > 0]


def pooled(name):
    """Return rows, targets and the clients' objectives as a problem of their pooled mean."""
    if name == "heart":  # its columns are prepared by exchanges
        problem = heart()
        cores = [f.objective for f in problem.objectives]
        return np.concatenate([f.A for f in cores]), np.concatenate([f.y for f in cores]), problem
    A, y = {"diabetes": load_diabetes, "cancer": load_breast_cancer, "digits": load_digits}[name](
        return_X_y=True
    )
    A, clients = standardised(A), 20 if name == "digits" else 10
    y = np.where(y == 0, 1.0, -1.0) if name == "digits" else y if y.max() > 1 else 2.0 * y - 1
    kind = LeastSquares if name == "diabetes" else LogisticRegression
    parts = np.array_split(np.random.default_rng(0).permutation(len(A)), clients)
    objectives = [kind(A[rows], y[rows], intercept=True) for rows in parts]
    weights = [f.total_weight for f in objectives]
    return A, y, FederatedProblem(objectives, weights=weights)


def test_a_large_model_takes_first_order_steps():
    """Of the methods measured the fastest without Hessians, and exact for cohorts."""
    rng = np.random.default_rng(0)
    rows = sp.random_array((60, 1200), density=0.05, rng=rng, format="csr")
    objectives = [LogisticRegression(rows[j::4], rng.choice([-1, 1], 15)) for j in range(4)]
    problem = FederatedProblem(objectives)
    assert type(default_strategy(problem)) is FedMiD
    for strategy in (None, default_strategy(problem, Sample(count=2))):
        path = regularization_path(problem, L1(1.0), strategy, num=2, min_ratio=0.7, tolerance=1e-6)
        assert path.converged.all()
        for value, x in zip(path.values, path.coefs, strict=True):
            away = L1(value).subdifferential_distance(x, problem.gradient(x))
            assert away < 1e-4


def test_the_lasso_at_a_hundred_weights_in_one_round():
    """The clients' moments say everything: one round fits the intercept, and then all points."""
    A, b, problem = pooled("diabetes")
    path = regularization_path(problem, FREE)
    assert len(path) == 100
    assert path.values[-1] == pytest.approx(1e-3 * path.values[0])
    assert path.converged.all()
    assert path.rounds.sum() == 0
    _, expected, _ = lasso_path(A, b - b.mean(), alphas=path.values, tol=1e-14, max_iter=10**6)
    np.testing.assert_allclose(path.coefs[:, :-1], expected.T, atol=1e-6)
    np.testing.assert_allclose(path.coefs[:, -1], b.mean())
    for place, active in enumerate(path.active):
        assert active.tolist() == np.flatnonzero(expected[:, place]).tolist()
    halves = regularization_path(problem, FREE, FedNewton(participation=Sample(fraction=0.5)))
    np.testing.assert_allclose(halves.coefs, path.coefs, atol=1e-6)
    net = regularization_path(problem, WithIntercept(ElasticNet(0.5, 0.5)), num=10)
    assert net.values[0] == pytest.approx(2 * path.values[0])
    _, expected, _ = enet_path(
        A, b - b.mean(), l1_ratio=0.5, alphas=net.values, tol=1e-14, max_iter=10**6
    )
    np.testing.assert_allclose(net.coefs[:, :-1], expected.T, atol=1e-6)


@pytest.mark.parametrize("name", ["heart", "cancer", "digits"])
def test_logistic_paths(name):
    """Everyone, half of the clients in each round, and scikit-learn's coordinate descent.

    liblinear penalises the intercept, so it is compared on the problem in which we do so too.
    """
    A, y, problem = pooled(name)
    path = regularization_path(problem, FREE)
    assert path.converged.all()
    start = 2 * np.linalg.norm(problem.gradient(problem.x0))  # a logistic loss is 1/4 curved
    assert path.kkt.max() <= 1e-8 * start
    assert path.coefs[0, :-1].tolist() == [0.0] * A.shape[1]
    halves = FedNewton(participation=Sample(fraction=0.5))
    sampled = regularization_path(problem, FREE, halves, values=path.values[::9], tolerance=1e-9)
    np.testing.assert_allclose(sampled.coefs, path.coefs[::9], atol=1e-4)
    some = slice(None) if name == "heart" else [20, 60]
    closed = regularization_path(problem, L1(1.0), values=path.values[some])
    for weight, x in zip(closed.values, closed.coefs, strict=True):
        model = SkLogistic(
            penalty="l1", C=1 / (len(A) * weight), solver="liblinear", tol=1e-9, max_iter=10**5,
            random_state=0,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(A, y)
        np.testing.assert_allclose(x, np.r_[model.coef_[0], model.intercept_], atol=1e-4)


def small(kind, sparse=False, **own):
    """Return a problem of three unlike clients, with a free intercept where it has one."""
    rng = np.random.default_rng(7)
    clients = []
    for j in range(3):
        A = rng.normal(size=(30 + 5 * j, 4)) + 0.3 * j
        score = A @ [1.0, 0.0, -0.5, 0.0]
        if kind == "poisson":
            clients.append(PoissonRegression(A, rng.poisson(np.exp(score)), intercept=True))
        elif kind == "softmax":
            labels = rng.integers(0, 3, len(A))
            clients.append(SoftmaxRegression(A, labels, 3, intercept=True))
        elif kind == "cox":
            clients.append(CoxRegression(A, rng.exponential(np.exp(-score)), np.ones(len(A))))
        else:
            y = np.where(score + rng.logistic(size=len(A)) > 0, 1, -1)
            clients.append(LogisticRegression(A, y, intercept=True, **own))
    return FederatedProblem(clients, weights=[f.total_weight for f in clients])


@pytest.mark.parametrize("kind", ["poisson", "softmax", "cox", "logistic"])
@pytest.mark.parametrize("penalty", ["l1", "groups", "sparse groups"])
def test_losses_and_penalties_against_the_independent_solver(kind, penalty):
    problem = small(kind)
    shape = (4, 3) if kind == "softmax" else (4,)
    labels = np.arange(np.prod(shape)).reshape(shape) // 2
    psi = {
        "l1": L1(1.0),
        "groups": GroupLasso(np.sqrt(np.bincount(labels.ravel())), labels),
        "sparse groups": SparseGroupLasso(0.5, 0.5, labels),
    }[penalty]
    psi = psi if kind == "cox" else WithIntercept(psi)
    path = regularization_path(problem, psi, num=4, min_ratio=0.05)
    assert path.converged.all()
    assert not path.active[0].size
    assert path.active[-1].size
    below = regularization_path(problem, psi, values=[0.999 * path.values[0]])
    assert below.active[0].size  # the largest weight is the least that makes all 0
    for value, x in zip(path.values[1::2], path.coefs[1::2], strict=True):
        reference = solve(problem.clients, psi.scaled(value), problem.x0)
        F = problem.objective(x) + psi.scaled(value).value(x)
        assert pytest.approx(reference.value, abs=1e-12) == F
        if kind != "softmax":
            np.testing.assert_allclose(x, reference.x, atol=1e-6)


@pytest.mark.parametrize(
    "strategy",
    [
        CompositeFL(None, client_lr=0.1, local_steps=2),
        FedDR(None, step_size=2.0, participation=Sample(count=2)),
    ],
    ids=["CompositeFL", "FedDR, sampled"],
)
def test_other_methods_go_on_with_what_clients_hold(strategy):
    problem, options = small("logistic"), {"values": [0.05, 0.05 * (1 - 1e-4)]}
    expected = regularization_path(problem, FREE, **options)
    path = regularization_path(problem, FREE, strategy, tolerance=1e-6, **options)
    assert path.converged.all()
    np.testing.assert_allclose(path.coefs, expected.coefs, atol=1e-4)
    assert path.rounds[1] < path.rounds[0] / 2  # control variates and duals are those of before


def test_bytes_and_exchanges_are_counted():
    """Three clients: a vector of 5 doubles down, 21 numbers of a second-order model up."""
    problem = small("logistic")
    path = regularization_path(problem, FREE, values=[0.01])
    (rounds,), (exchanges,) = path.rounds, path.exchanges
    vector = array_bytes((5,), np.dtype(float))
    model = array_bytes((21,), np.dtype(float))
    assert exchanges >= rounds + 2
    # The first exchange asks for the entries' units, too: by a number, and gets a vector.
    assert path.downlink_bytes[0] == 3 * (vector * exchanges + 8)
    assert path.uplink_bytes[0] == 3 * (model * rounds + vector * (exchanges - rounds + 1))
    assert f"{exchanges} exchanges" in repr(path)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e3])
def test_the_null_model_takes_a_few_exchanges_in_any_units(unit):
    """Its gradients may be larger than psi's own weight, as they are of a target in large units."""
    A = np.random.default_rng(0).standard_normal((60, 4))
    b = unit * (A @ [3.0, 1.0, 0.0, 0.0] + 5.0)
    clients = [LeastSquares(A[k::3], b[k::3], intercept=True) for k in range(3)]
    path = regularization_path(FederatedProblem(clients), FREE, num=3)
    assert path.exchanges.max() <= 10
    assert path.converged.all()


def test_a_point_that_does_not_converge_says_so(caplog):
    path = regularization_path(small("logistic"), FREE, values=[0.1, 0.01], max_rounds=1)
    assert not path.converged.any()
    assert "2 of 2 points of the path did not reach a KKT residual of" in caplog.text


def test_folds_within_the_clients():
    A, _, problem = pooled("cancer")
    found = cross_validate(problem, FREE, num=12, folds=3)
    assert found.losses.shape == (3, 12)
    assert found.one_standard_error <= found.best
    assert found.mean[found.one_standard_error] <= (
        found.mean[found.best] + found.standard_error[found.best]
    )
    assert found.best > 0
    stable = found.stability
    assert stable.shape == (12, A.shape[1] + 1)
    assert set(np.round(3 * stable.ravel())) <= {0, 1, 2, 3}
    assert found.exchanges == found.path.exchanges.sum() + found.folds.exchanges.sum()
    assert found.folds.exchanges.sum() < 2 * found.path.exchanges.sum()  # side by side
    assert found.folds.coefs.shape == (12, 3, A.shape[1] + 1)
    assert f"{found.uplink_bytes:,} bytes up" in repr(found)
    # A fold by hand: its rows, its solution, its loss.
    cores = [f.objective if hasattr(f, "objective") else f for f in problem.objectives]
    splits = [[(np.arange(5, f.num_examples), np.arange(5)) for f in cores]] * 2
    given = cross_validate(problem, FREE, folds=splits, values=[0.02])
    train = [f.subset(np.arange(5, f.num_examples)) for f in cores]
    whole = LogisticRegression(
        np.concatenate([f.A for f in train]), np.concatenate([f.y for f in train]), intercept=True
    )
    x = solve([whole], FREE.scaled(0.02), np.zeros(A.shape[1] + 1)).x
    held = np.mean([f.subset(np.arange(5)).value(x) for f in cores])
    np.testing.assert_allclose(given.losses, [[held], [held]], rtol=1e-6)


def test_a_quadratic_plus_l1_to_rounding():
    rng = np.random.default_rng(0)
    for d in (1, 5, 30):
        rows = rng.normal(size=(max(2, d // 2), d))  # singular for the larger ones
        model = QuadraticModel(rows.T @ rows, rows.T @ rng.normal(size=len(rows)), 0.0)
        for weight in (0.0, 0.05, 0.5):
            psi = L1(np.r_[0.0, np.full(d - 1, weight)]) if d > 1 else L1(weight)
            x = rng.normal(size=d)
            for _ in range(3):
                x = minimizer(model, psi, x)
            assert psi.subdifferential_distance(x, model.H @ x - model.b) < 1e-7
            y = x
            for _ in range(3):
                y = minimizer(model, GroupLasso(weight, groups=1), y)
            assert GroupLasso(weight, groups=1).subdifferential_distance(
                y, model.H @ y - model.b
            ) < 1e-6  # fmt: skip


@pytest.mark.parametrize(("arguments", "match"), [
    ({"regularizer": None}, "needs a regularizer"),
    ({"regularizer": L2Squared(1.0)}, "makes no coefficient 0 at any weight"),
    ({"min_ratio": 1.0}, r"min_ratio must be in \(0, 1\), got 1.0"),
    ({"num": 0}, "num must be a whole number >= 1"),
    ({"values": [1.0, -1.0]}, "lambdas >= 0"),
    ({"engine": "ray"}, "'local', 'stacked'"),
    ({"strategy": FedAvg(client_lr=0.1, local_steps=1)}, None),
])  # fmt: skip
def test_what_is_refused(arguments, match):
    arguments = {"regularizer": FREE, **arguments}
    if match is None:
        path = regularization_path(small("logistic"), values=[0.1], max_rounds=1, **arguments)
        assert not path.converged.any()  # it is biased
        return
    with pytest.raises(ConfigError, match=match):
        regularization_path(small("logistic"), **arguments)


def test_a_path_has_rounds():
    """Not steps in the time of a clock, which nothing here takes."""
    problem, rule = small("logistic"), Buffered(buffer=2)
    said = (
        r"a path plays rounds, and Buffered\(buffer=2\) has none: give another rule .* Full\(\), or"
    )
    for of in (regularization_path, cross_validate, stability_selection):
        with pytest.raises(ConfigError, match=said):
            of(problem, FREE, FedNewton(participation=rule))
    with pytest.raises(ConfigError, match=said):
        FederatedLasso(0.1, participation=rule).fit(np.eye(4), np.ones(4), [0, 0, 1, 1])


def test_a_constraint_has_no_path():
    A = np.eye(2)
    problem = FederatedProblem([LeastSquares(A, np.ones(2))], constraint=L1Ball(1.0))
    with pytest.raises(ConfigError, match="a path needs a regularizer"):
        regularization_path(problem, L1(1.0))
    with pytest.raises(ConfigError, match="objectives with rows"):
        cross_validate(FederatedProblem([Quadratic(A, np.ones(2))]), L1(1.0))


def test_from_the_shell(tmp_path, capsys):
    """The table of coefficients by name, and all of them as CSV."""
    file, table = tmp_path / "heart.toml", tmp_path / "path.csv"
    file.write_text(
        '[problem]\nname = "heart"\nl1 = 1.0\n[run]\nrounds = 50\n'
        '[algorithm]\nname = "FedDR"\nstep_size = 3.0\n'
    )
    given = ["path", str(file), "--num", "6", "--min-ratio", "0.02", "--output", str(table)]
    assert main([*given, "--folds", "3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"lambda 0\.\d+, the largest within a standard error:", out)
    assert re.search(r"oldpeak +0\.\d{4} +0\.\d{4} +1\.\d{4} +100%", out)
    assert "Odds ratio" in out
    assert re.search(r"\(intercept\) +0\.\d{4} +-\d\.\d+ *\n", out)  # its exponential is no ratio
    assert "CrossValidation(3 folds, 6 weights" in out
    rows = list(csv.DictReader(table.open()))
    path = regularization_path(heart(), FREE, num=6, min_ratio=0.02)
    assert [float(row["lambda"]) for row in rows] == path.values.tolist()
    assert [float(row["cp=4 per sd"]) for row in rows] == path.coefs[
        :, list(rows[0]).index("cp=4 per sd") - list(rows[0]).index("age per sd")
    ].tolist()
    assert float(rows[0]["held_out_loss"]) > float(rows[3]["held_out_loss"])
    assert main([*given[:4], "--set", "algorithm.name=Scaffold"]) == 2
    assert main([*given[:4], "--min-ratio", "2"]) == 2
    assert "min_ratio must be in (0, 1), got 2.0" in capsys.readouterr().err
    assert main([*given[:4], "--own-algorithm", "--tolerance", "0.1"]) == 0
    assert "RegularizationPath(6 points" in capsys.readouterr().out


# --- stability selection -------------------------------------------------------------------------


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
    frame = pd.DataFrame(X, columns=names).assign(y=y)
    data = deal(tmp_path, frame, [np.flatnonzero(sites == k) for k in range(3)])
    schema = {"target": "y", "features": numeric(*names)}
    problem = tables(data=data, schema=schema, l1=0.1)
    found = stability_selection(problem, pairs=5, num=12)
    assert [problem.preparation.names[k] for k in found.selected] == ["c0", "c5"]
    stated = 'target = "y"\n[features]\n' + "".join(f'{name} = "numeric"\n' for name in names)
    file = study(tmp_path, stated, "l1 = 0.1")
    done = CliRunner().invoke(app, ["path", file, "--stability", "5", "--num", "12"])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert [words[0] for words in lines if words and words[-1] == "yes"] == ["c0", "c5"]
    own = tables(data=data, schema=schema, l1=0.1, site_effects="own")
    with pytest.raises(ConfigError, match="stability selection need objectives with rows"):
        stability_selection(own)
