"""Estimators: scikit-learn's own checks, its results on pooled rows, and arguments in any form."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, load_iris, load_svmlight_file
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LassoCV,
    LogisticRegression,
    PoissonRegressor,
)
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    PredefinedSplit,
    ShuffleSplit,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from flower_fedcon import FederatedProblem, Sample, estimators
from flower_fedcon.core.docstrings import entries
from flower_fedcon.errors import ConfigError, FedConError
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
from flower_fedcon.estimators.argument_forms import clients_of, folds_of
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.paths import cross_validate
from flower_fedcon.regularizers import L1
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
    if name == "FederatedOrdinalRegression":
        why = "without a penalty such a table has no one best model"
        data = ("dense", "sparse")
        failing = {f"check_sample_weight_equivalence_on_{kind}_data": why for kind in data}
        failing["check_classifiers_classes"] = "three texts have no order without levels"
        failing["check_classifiers_train"] = "its three classes are not ordered along a line"
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


# --- folds, clients and mixes of penalties in every form -----------------------------------------


N = 48
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(N, 3))
TARGET = ROWS[:, 0] + 0.5 * RNG.normal(size=N)
SITES = np.arange(N) % 3
FOLD = RNG.integers(4, size=N)
PAIRS = [(np.flatnonzero(k != FOLD), np.flatnonzero(k == FOLD)) for k in range(4)]


def lasso(cv, **options):
    return FederatedLassoCV(cv=cv, num=6, min_ratio=0.05, **options).fit(ROWS, TARGET, groups=SITES)


# --- folds ----------------------------------------------------------------------------------------


def mask(rows):
    return np.isin(np.arange(N), rows)


FORMS = {
    "numbers": lambda rows: rows,
    "small numbers": lambda rows: rows.astype(np.int8),
    "from the end": lambda rows: rows - N,
    "list": lambda rows: rows.tolist(),
    "mask": mask,
    "mask in a list": lambda rows: mask(rows).tolist(),
    "series": pd.Series,
    "series of a mask": lambda rows: pd.Series(mask(rows)),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    forms=st.lists(st.sampled_from(sorted(FORMS)), min_size=8, max_size=8),
    whole=st.sampled_from([list, tuple, iter]),
)
def test_folds_in_any_form_are_the_same_folds(forms, whole):
    parts = [part for pair in PAIRS for part in pair]
    written = [FORMS[form](part) for form, part in zip(forms, parts, strict=True)]
    found = folds_of(whole(list(zip(written[::2], written[1::2], strict=True))), ROWS, TARGET, None)
    for ours, theirs in zip(found, PAIRS, strict=True):
        assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]


def test_masks_give_the_weight_that_row_numbers_give():
    masks = [(mask(fit), mask(held)) for fit, held in PAIRS]
    ours, theirs = lasso(masks), lasso(PAIRS)
    np.testing.assert_array_equal(ours.cv_.losses, theirs.cv_.losses)
    assert lasso(None).alpha_ == lasso(5).alpha_


@pytest.mark.parametrize(("cv", "match"), [
    ([(np.r_[0:40, 100], np.arange(40, 48))], "fold 0 has row 100, and the data have 48 rows"),
    ([PAIRS[0], (np.arange(-49, 0), np.arange(3))], "fold 1 has row -49"),
    ([(PAIRS[0][0].astype(float), PAIRS[0][1])],
     r"got float64: convert it, for example by `rows.astype\(int\)`"),
    ([(np.ones(5, bool), np.ones(N, bool))], "mask of 5 rows, and the data have 48"),
    ([(np.zeros(N, bool), np.ones(N, bool))], "fold 0 has no rows to fit"),
    ([(np.arange(9), [])], "fold 0 has no rows held out"),
    ([np.arange(9)], r"got array\(.* as fold 0"),
    ([(np.ones((N, 2), bool), np.arange(3))], r"got shape \(48, 2\)"),
    ([], "got no fold"),
    (1, "cv must be a whole number >= 2, got 1"),
    (True, "pairs .* got True"),
    (2.5, "pairs .* got 2.5"),
    ("loo", "pairs .* got 'loo'"),
])  # fmt: skip
def test_folds_that_are_none(cv, match):
    with pytest.raises(ConfigError, match=match):
        lasso(cv)


@pytest.mark.parametrize(
    "cv", [[PAIRS[0]], ShuffleSplit(1, random_state=0), PredefinedSplit(np.where(FOLD == 0, 0, -1))]
)
def test_one_fold_has_no_standard_error(cv):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = lasso(cv)
        assert "least mean loss" in repr(model.cv_)
        assert np.isnan(model.cv_.standard_error).all()
        with pytest.raises(ConfigError, match='rule="1se" needs at least two folds'):
            lasso(cv, rule="1se")
    with pytest.raises(ConfigError, match="no standard error"):
        _ = model.cv_.one_standard_error


def test_clients_that_are_always_held_out_are_not_fitted():
    cv = [(np.flatnonzero(SITES != 2), np.flatnonzero(SITES == 2))]
    ours = lasso(cv)
    some = SITES != 2
    alone = FederatedLasso(ours.alpha_).fit(ROWS[some], TARGET[some], groups=SITES[some])
    place = int(np.flatnonzero(ours.cv_.values == ours.alpha_)[0])
    np.testing.assert_allclose(ours.cv_.folds.x[place][0][:-1], alone.coef_, atol=1e-6)


def test_losses_that_are_no_numbers_are_never_the_least():
    found = cross_validate(FederatedProblem([LeastSquares(ROWS, TARGET)]), L1(1.0), num=4)
    found.losses[0, 1:] = np.nan
    assert found.best == found.one_standard_error == 0
    assert "finite" not in repr(found)
    found.losses[1] = np.inf
    assert "no loss is finite" in repr(found)
    with pytest.raises(FedConError, match="finite at none of 4 weights"):
        _ = found.best


def test_the_mix_of_two_penalties_is_chosen_among_several():
    ratios = [0.2, 0.9, 1.0]
    ours = FederatedElasticNetCV(l1_ratio=ratios, cv=PAIRS, num=8, min_ratio=0.01)
    ours.fit(ROWS, TARGET, groups=SITES)
    each = [
        FederatedElasticNetCV(l1_ratio=r, cv=PAIRS, num=8, min_ratio=0.01).fit(
            ROWS, TARGET, groups=SITES
        )
        for r in ratios
    ]
    least = [model.cv_.least for model in each]
    assert ours.l1_ratio_ == ratios[int(np.argmin(least))]
    assert ours.alpha_ == each[int(np.argmin(least))].alpha_
    labels = FederatedLogisticRegressionCV(l1_ratio=(0.5, 1.0), num=3, min_ratio=0.1, cv=2)
    assert labels.fit(ROWS, TARGET > 0, groups=SITES).l1_ratio_ in (0.5, 1.0)


# --- clients --------------------------------------------------------------------------------------

LABELS = st.one_of(
    st.integers(-5, 5),
    st.text("abc", min_size=1, max_size=3),
    st.tuples(st.sampled_from(["Ulm", "Bonn"]), st.integers(0, 2)),
    st.dates(),
)
MISSING = st.sampled_from([None, float("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), ("Ulm", None)])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    labels=st.lists(LABELS, min_size=1, max_size=12),
    form=st.sampled_from([list, tuple, pd.Series, lambda cells: pd.Series(cells, dtype=object)]),
)
def test_rows_of_one_client_are_those_with_one_label(labels, form):
    names, place = clients_of(form(labels), len(labels))
    assert [names[p] for p in place] == labels
    assert len(names) == len(set(labels))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(labels=st.lists(LABELS, max_size=8), missing=MISSING, series=st.booleans())
def test_a_label_that_is_missing_is_told_by_its_row(labels, missing, series):
    cells = [*labels, missing]
    groups = pd.Series(cells, dtype=object) if series else cells
    with pytest.raises(ValueError, match=f"no value for 1 row, .* row {len(labels)}: "):
        clients_of(groups, len(cells))


def test_clients_with_names_of_several_kinds():
    tuples = [("Ulm", k) for k in SITES.tolist()]
    plain = FederatedLasso(0.1).fit(ROWS, TARGET, groups=SITES)
    frame = pd.DataFrame({"site": SITES})
    for groups in (tuples, pd.Series(tuples), frame, pd.Categorical(SITES)):
        ours = FederatedLasso(0.1).fit(ROWS, TARGET, groups=groups)
        np.testing.assert_array_equal(ours.coef_, plain.coef_)
        assert len(ours.groups_) == 3
    mixed = [("one", 1, 2.5)[k] for k in SITES.tolist()]
    assert FederatedLasso(0.1).fit(ROWS, TARGET, groups=mixed).groups_.tolist() == [2.5, 1, "one"]


def test_groups_of_a_search_reach_the_clients_or_a_warning_says_that_they_do_not():
    grid = {"alpha": [0.1, 1.0]}
    for cv in (GroupKFold(3), KFold(2)):
        with pytest.warns(UserWarning, match="passes groups only to its splitter"):
            search = GridSearchCV(FederatedLasso(), grid, cv=cv).fit(ROWS, TARGET, groups=SITES)
        assert len(search.best_estimator_.groups_) == 1
    with pytest.warns(UserWarning, match="all rows belong to one client"):
        cross_val_score(FederatedLasso(0.1), ROWS, TARGET, groups=SITES, cv=GroupKFold(3))
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        search = GridSearchCV(FederatedLasso(), grid, cv=GroupKFold(3)).fit(
            ROWS, TARGET, groups=SITES
        )
    assert search.best_estimator_.groups_.tolist() == [0, 1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedLasso(0.1).fit(ROWS, TARGET)  # one client, as the pages say


def test_the_score_of_counts_is_that_of_scikit_learn():
    counts = np.random.default_rng(0).poisson(np.exp(ROWS[:, 0] + 0.5))
    weight = np.arange(N) % 4
    ours = FederatedPoissonRegressor(0.1).fit(ROWS, counts, groups=SITES)
    theirs = PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=10**4).fit(ROWS, counts)
    for weights in (None, weight):
        assert ours.score(ROWS, counts, weights) == pytest.approx(
            theirs.score(ROWS, counts, weights)
        )
    with np.errstate(over="ignore"):
        assert ours.score(-1e4 * np.abs(ROWS), counts) < 1  # expects no count that a float can be


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_argument_is_described(name):
    kind = getattr(estimators, name)
    told = [argument for names, _ in entries(inspect.getdoc(kind)) for argument in names]
    assert sorted(told) == sorted(inspect.signature(kind).parameters) == sorted(kind().get_params())
