"""Estimators: scikit-learn's own checks, its results on pooled rows, pipelines and searches."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.datasets import load_diabetes, load_iris, load_svmlight_file
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LassoCV,
    LogisticRegression,
    PoissonRegressor,
)
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from flower_fedcon import Sample, estimators
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedElasticNet,
    FederatedElasticNetCV,
    FederatedLasso,
    FederatedLassoCV,
    FederatedLogisticRegression,
    FederatedLogisticRegressionCV,
    FederatedPoissonRegressor,
)
from flower_fedcon.strategies import CompositeFL

X, Y = load_diabetes(return_X_y=True)
X = StandardScaler().fit_transform(X)
GROUPS = np.random.default_rng(0).choice(["Ulm", "Bonn", "Jena"], len(X))
WEIGHTS = np.random.default_rng(1).uniform(0, 2, len(X))


@pytest.mark.parametrize("name", estimators.__all__)
def test_scikit_learns_checks(name):
    short = {"num": 2, "cv": 2, "min_ratio": 0.3} if name.endswith("CV") else {}
    failing = {}
    if name == "FederatedNegativeBinomial":  # of 15 rows and 30 columns many fits are as good
        why = "without a penalty such a table has no one best model"
        data = ("dense", "sparse")
        failing = {f"check_sample_weight_equivalence_on_{kind}_data": why for kind in data}
        failing["check_regressors_train"] = "it sets alpha = 0.01, and there is no penalty"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(getattr(estimators, name)(**short), expected_failed_checks=failing)


def test_linear_models_of_the_pooled_rows():
    for ours, theirs in (
        (FederatedLasso(2.0), Lasso(2.0, tol=1e-14, max_iter=10**6)),
        (FederatedElasticNet(0.7, l1_ratio=0.3), ElasticNet(0.7, l1_ratio=0.3, tol=1e-14,
                                                            max_iter=10**6)),
        (FederatedLasso(2.0, fit_intercept=False), Lasso(2.0, fit_intercept=False, tol=1e-14,
                                                         max_iter=10**6)),
    ):  # fmt: skip
        for rows in (X, sp.csr_array(X)):
            ours.fit(rows, Y, groups=GROUPS, sample_weight=WEIGHTS)
            theirs.fit(X, Y, sample_weight=WEIGHTS)
            np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
            assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-5)
            np.testing.assert_allclose(ours.predict(rows), theirs.predict(X), atol=1e-4)
            assert ours.groups_.tolist() == ["Bonn", "Jena", "Ulm"]
            assert ours.history_.converged.all()
    alone = FederatedLasso(2.0).fit(X, Y)
    together = FederatedLasso(2.0).fit(X, Y, groups=GROUPS)
    np.testing.assert_allclose(alone.coef_, together.coef_, atol=1e-8)


def test_counts_and_classes_of_the_pooled_rows():
    counts = np.random.default_rng(0).poisson(np.exp(X[:, 0] + 1))
    ours = FederatedPoissonRegressor(0.1).fit(X, counts, groups=GROUPS, sample_weight=WEIGHTS)
    theirs = PoissonRegressor(alpha=0.1, tol=1e-10, max_iter=10**4)
    theirs.fit(X, counts, sample_weight=WEIGHTS)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    many = np.random.default_rng(0).poisson(np.exp(X[:, 0] + 9))
    for options in ({}, {"participation": Sample(count=2)}):
        ours = FederatedPoissonRegressor(0.1, **options).fit(X, many, groups=GROUPS)
        np.testing.assert_allclose(ours.coef_, theirs.fit(X, many).coef_, atol=1e-6)
    rows, classes = load_iris(return_X_y=True)
    groups = np.arange(len(rows)) % 4
    for labels in (np.array(["a", "b", "c"])[classes], classes > 0):
        ours = FederatedLogisticRegression(0.5, l1_ratio=0.0).fit(rows, labels, groups=groups)
        theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=10**5).fit(rows, labels)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
        np.testing.assert_allclose(ours.predict_proba(rows), theirs.predict_proba(rows), atol=1e-5)
        assert (ours.predict(rows) == theirs.predict(rows)).all()
        assert ours.score(rows, labels) == theirs.score(rows, labels)


def test_half_of_the_clients_and_other_algorithms():
    groups = np.arange(len(X)) % 20
    high = np.median(Y) < Y
    for C in (0.01, 1.0):
        everyone = FederatedLogisticRegression(C).fit(X, high, groups=groups)
        for options in (
            {"participation": Sample(fraction=0.5)},
            {"algorithm": "FedNewton", "participation": Sample(count=5), "random_state": 3},
            {"algorithm": CompositeFL(None, client_lr=0.1, local_steps=1), "tol": 1e-7},
            {"algorithm": "CompositeFL", "tol": 1e-7},
        ):
            if C == 1.0 and "tol" in options:
                continue  # a first-order method takes thousands of rounds there
            other = FederatedLogisticRegression(C, **options).fit(X, high, groups=groups)
            np.testing.assert_allclose(other.coef_, everyone.coef_, atol=1e-4)


def test_weights_found_by_cross_validation():
    folds = list(GroupKFold(4).split(X, Y, np.arange(len(X)) % 7))
    ours = FederatedLassoCV(num=30, min_ratio=0.01, cv=folds).fit(X, Y, groups=GROUPS)
    theirs = LassoCV(alphas=ours.cv_.values, cv=folds, tol=1e-12, max_iter=10**6).fit(X, Y)
    assert ours.alpha_ == pytest.approx(theirs.alpha_)
    np.testing.assert_allclose(2 * ours.cv_.losses, theirs.mse_path_.T, rtol=1e-6)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    sparse = FederatedElasticNetCV(num=10, rule="1se").fit(X, Y, groups=GROUPS)
    assert sparse.alpha_ == sparse.cv_.values[sparse.cv_.one_standard_error]
    chosen = FederatedLogisticRegressionCV(num=10, cv=3).fit(X, Y > 150, groups=GROUPS)
    same = FederatedLogisticRegression(chosen.C_).fit(X, Y > 150, groups=GROUPS)
    np.testing.assert_allclose(chosen.coef_, same.coef_, atol=1e-6)


def test_times_to_events():
    lifelines = pytest.importorskip("lifelines")
    import pandas as pd

    rng = np.random.default_rng(0)
    rows, groups = X[:, :4] / X[:, :4].std(axis=0, ddof=1), np.arange(len(X)) % 3
    time = np.ceil(rng.exponential(np.exp(-rows[:, 0] + 0.5 * rows[:, 2])) * (3 + 4 * groups))
    event = rng.random(len(X)) < 0.8
    table = pd.DataFrame(rows).assign(time=time, event=event, site=groups)
    fitter = lifelines.CoxPHFitter(penalizer=0.1, l1_ratio=0.0)
    fitter.fit(table, "time", "event", strata=["site"], fit_options={"precision": 1e-10})
    ours = FederatedCoxRegression(0.1, l1_ratio=0.0, ties="efron")
    ours.fit(rows, np.c_[time, event], groups=groups)
    np.testing.assert_allclose(ours.coef_, fitter.params_.to_numpy(), atol=1e-4)
    np.testing.assert_allclose(ours.predict(rows), rows @ ours.coef_)
    signed = np.where(event, time, -time)
    records = np.array(list(zip(event, time, strict=True)), [("event", bool), ("time", float)])
    for y in (signed, records):
        again = FederatedCoxRegression(0.1, l1_ratio=0.0, ties="efron").fit(rows, y, groups=groups)
        np.testing.assert_array_equal(again.coef_, ours.coef_)


def test_pipelines_and_searches():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X * 7 + 3, columns=[f"x{j}" for j in range(X.shape[1])])
    plain = make_pipeline(StandardScaler(), FederatedLasso(1.0))
    plain.fit(table, Y, federatedlasso__groups=GROUPS)
    np.testing.assert_allclose(plain[-1].coef_, FederatedLasso(1.0).fit(X, Y).coef_, atol=1e-6)
    assert FederatedLasso(1.0).fit(table, Y).feature_names_in_.tolist() == list(table.columns)
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedLasso().set_fit_request(groups=True)
        search = GridSearchCV(model, {"alpha": [0.1, 1.0, 100.0]}, cv=3)
        search.fit(X, Y, groups=GROUPS)
    assert search.best_params_["alpha"] < 100
    assert search.best_estimator_.groups_.tolist() == ["Bonn", "Jena", "Ulm"]


def test_libsvm_files(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        f"{(-1) ** i} " + " ".join(f"{j}:{v:.3f}" for j, v in zip(
            np.sort(rng.choice(900_000, 5, replace=False)) + 1, rng.normal(size=5), strict=True
        ))
        for i in range(30)
    ]  # fmt: skip
    (tmp_path / "rows.svm").write_text("\n".join(lines) + "\n1 1000000:1\n")
    rows, labels = load_svmlight_file(str(tmp_path / "rows.svm"))
    assert rows.shape[1] == 10**6
    model = FederatedLogisticRegression(0.5, max_iter=2, tol=1.0)
    model.fit(rows, labels, groups=np.arange(31) % 3)
    assert model.coef_.shape == (1, 10**6)
    assert model.n_iter_ >= 1


def test_the_example_ends_at_the_pooled_coefficients():
    import runpy
    from pathlib import Path

    path = Path(__file__).parents[2] / "examples" / "estimators" / "breast_cancer.py"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = runpy.run_path(str(path))
    model = found["model"]
    assert 0 < np.count_nonzero(model.coef_) < 15
    assert found["apart"] < 1e-4
    np.testing.assert_allclose(found["halves"].coef_, model.coef_, atol=1e-4)
    np.testing.assert_allclose(found["pipeline"][-1].coef_, model.coef_, atol=1e-6)
