"""Estimators: folds, clients and mixes of penalties in every form that users write them in."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import PoissonRegressor
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    PredefinedSplit,
    ShuffleSplit,
    cross_val_score,
)

from flower_fedcon import FederatedProblem, estimators
from flower_fedcon.core.docstrings import entries
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.estimators import (
    FederatedElasticNet,
    FederatedElasticNetCV,
    FederatedLasso,
    FederatedLassoCV,
    FederatedLogisticRegressionCV,
    FederatedPoissonRegressor,
)
from flower_fedcon.estimators.argument_forms import clients_of, folds_of
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.paths import cross_validate
from flower_fedcon.regularizers import L1

N = 48
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
Y = X[:, 0] + 0.5 * RNG.normal(size=N)
GROUPS = np.arange(N) % 3
FOLD = RNG.integers(4, size=N)
PAIRS = [(np.flatnonzero(k != FOLD), np.flatnonzero(k == FOLD)) for k in range(4)]


def lasso(cv, **options):
    return FederatedLassoCV(cv=cv, num=6, min_ratio=0.05, **options).fit(X, Y, groups=GROUPS)


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
    found = folds_of(whole(list(zip(written[::2], written[1::2], strict=True))), X, Y, None)
    for ours, theirs in zip(found, PAIRS, strict=True):
        assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]


def test_masks_give_the_weight_that_row_numbers_give():
    masks = [(mask(fit), mask(held)) for fit, held in PAIRS]
    ours, theirs = lasso(masks), lasso(PAIRS)
    np.testing.assert_array_equal(ours.cv_.losses, theirs.cv_.losses)
    assert lasso(None).alpha_ == lasso(5).alpha_


@pytest.mark.parametrize(
    ("cv", "match"),
    [
        ([(np.r_[0:40, 100], np.arange(40, 48))], "fold 0 has row 100, and the data have 48 rows"),
        ([PAIRS[0], (np.arange(-49, 0), np.arange(3))], "fold 1 has row -49"),
        (
            [(PAIRS[0][0].astype(float), PAIRS[0][1])],
            r"got float64: convert it, for example by `rows.astype\(int\)`",
        ),
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
    ],
)
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
    cv = [(np.flatnonzero(GROUPS != 2), np.flatnonzero(GROUPS == 2))]
    ours = lasso(cv)
    some = GROUPS != 2
    alone = FederatedLasso(ours.alpha_).fit(X[some], Y[some], groups=GROUPS[some])
    place = int(np.flatnonzero(ours.cv_.values == ours.alpha_)[0])
    np.testing.assert_allclose(ours.cv_.folds.x[place][0][:-1], alone.coef_, atol=1e-6)


def test_losses_that_are_no_numbers_are_never_the_least():
    found = cross_validate(FederatedProblem([LeastSquares(X, Y)]), L1(1.0), num=4)
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
    ours.fit(X, Y, groups=GROUPS)
    each = [
        FederatedElasticNetCV(l1_ratio=r, cv=PAIRS, num=8, min_ratio=0.01).fit(X, Y, groups=GROUPS)
        for r in ratios
    ]
    least = [model.cv_.least for model in each]
    assert ours.l1_ratio_ == ratios[int(np.argmin(least))]
    assert ours.alpha_ == each[int(np.argmin(least))].alpha_
    labels = FederatedLogisticRegressionCV(l1_ratio=(0.5, 1.0), num=3, min_ratio=0.1, cv=2)
    assert labels.fit(X, Y > 0, groups=GROUPS).l1_ratio_ in (0.5, 1.0)
    for model, match in (
        (FederatedElasticNetCV(l1_ratio=[]), r"l1_ratio > 0.*got \[\]"),
        (FederatedElasticNetCV(l1_ratio=[0.5, "a"]), "l1_ratio must be a number, got 'a'"),
        (FederatedElasticNetCV(l1_ratio=[0.5, np.nan]), "l1_ratio must be finite"),
        (FederatedElasticNet(l1_ratio=[0.5]), r"l1_ratio must be a number, got \[0.5\]"),
    ):
        with pytest.raises(ConfigError, match=match):
            model.fit(X, Y, groups=GROUPS)


@pytest.mark.parametrize("level", [0.0, 0.1, -3.0, 1e9])
@pytest.mark.parametrize("centred", [False, True])
def test_a_constant_target_selects_nothing(level, centred):
    rows = X - X.mean(axis=0) if centred else X + np.array([0.0, 5.0, -7.0])
    model = FederatedElasticNetCV(l1_ratio=0.8, cv=PAIRS, num=5)
    model.fit(rows, np.full(N, level), groups=GROUPS)
    assert not model.coef_.any()
    assert all(not active.size for active in model.cv_.path.active)
    assert model.intercept_ == pytest.approx(level, rel=1e-9, abs=1e-300)


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
    with pytest.raises(ValueError, match=f"no value for 1 rows, .* row {len(labels)}: "):
        clients_of(groups, len(cells))


def test_clients_with_names_of_several_kinds():
    tuples = [("Ulm", k) for k in GROUPS.tolist()]
    plain = FederatedLasso(0.1).fit(X, Y, groups=GROUPS)
    for groups in (
        tuples,
        pd.Series(tuples),
        pd.DataFrame({"site": GROUPS}),
        pd.Categorical(GROUPS),
    ):
        ours = FederatedLasso(0.1).fit(X, Y, groups=groups)
        np.testing.assert_array_equal(ours.coef_, plain.coef_)
        assert len(ours.groups_) == 3
    mixed = [("one", 1, 2.5)[k] for k in GROUPS.tolist()]
    assert FederatedLasso(0.1).fit(X, Y, groups=mixed).groups_.tolist() == [2.5, 1, "one"]
    both = pd.Series([pd.NA, *GROUPS[1:]], dtype="Int64")
    for groups, match in (
        (both, "no value for 1 rows, the first of them row 0"),
        ([("1", 1)[k % 2] for k in range(N)], "1 and '1', which look the same"),
        (np.c_[GROUPS, GROUPS], r"one label for each row, got shape \(48, 2\)"),
        ([[k] for k in range(N)], r"groups has \[0\] in row 0"),
        ("a" * N, "one label for each row"),
    ):
        with pytest.raises(ValueError, match=match):
            FederatedLasso(0.1).fit(X, Y, groups=groups)


def test_groups_of_a_search_reach_the_clients_or_a_warning_says_that_they_do_not():
    grid = {"alpha": [0.1, 1.0]}
    for cv in (GroupKFold(3), KFold(2)):
        with pytest.warns(UserWarning, match="passes groups only to its splitter"):
            search = GridSearchCV(FederatedLasso(), grid, cv=cv).fit(X, Y, groups=GROUPS)
        assert len(search.best_estimator_.groups_) == 1
    with pytest.warns(UserWarning, match="all rows belong to one client"):
        cross_val_score(FederatedLasso(0.1), X, Y, groups=GROUPS, cv=GroupKFold(3))
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        search = GridSearchCV(FederatedLasso(), grid, cv=GroupKFold(3)).fit(X, Y, groups=GROUPS)
    assert search.best_estimator_.groups_.tolist() == [0, 1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedLasso(0.1).fit(X, Y)  # one client, as the pages say


def test_the_score_of_counts_is_that_of_scikit_learn():
    counts = np.random.default_rng(0).poisson(np.exp(X[:, 0] + 0.5))
    weight = np.arange(N) % 4
    ours = FederatedPoissonRegressor(0.1).fit(X, counts, groups=GROUPS)
    theirs = PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=10**4).fit(X, counts)
    for weights in (None, weight):
        assert ours.score(X, counts, weights) == pytest.approx(theirs.score(X, counts, weights))
    with np.errstate(over="ignore"):
        assert ours.score(-1e4 * np.abs(X), counts) < 1  # expects no count that a float can be


def test_masked_entries_and_weights_without_a_sum():
    hidden = np.ma.masked_array(X, mask=X > 2)
    target, some = np.ma.masked_array(Y, mask=Y > 1), np.ma.masked_array(GROUPS, mask=GROUPS > 1)
    for arguments in (
        {"X": hidden, "y": Y},
        {"X": X, "y": target},
        {"X": X, "y": Y, "groups": some},
        {"X": X, "y": Y, "sample_weight": np.ma.masked_array(np.ones(N), mask=Y > 1)},
    ):
        with pytest.raises(ConfigError, match=r"is a masked array, and .* are masked"):
            FederatedLasso(0.1).fit(**arguments)
    with pytest.raises(ConfigError, match="masked"):
        FederatedLasso(0.1).fit(X, Y).predict(hidden)
    with pytest.raises(ConfigError, match=r"sum from 1e-300 to 1.8e308, got inf"):
        FederatedLasso(0.1).fit(X, Y, groups=np.arange(N), sample_weight=np.full(N, 1e308))


CATEGORIES = pd.DataFrame({"age": X[:, 0], "sex": np.where(GROUPS > 0, "f", "m")})
NO_NUMBERS = {
    "texts": (
        CATEGORIES,
        r"column 'sex' of X holds the text 'm'.*get_dummies\(X, columns=\['sex'\]",
    ),
    "categories": (CATEGORIES.astype({"sex": "category"}), "column 'sex' of X holds the text 'm'"),
    "an array": (CATEGORIES.to_numpy(), "column 1 of X holds the text 'm'.*OneHotEncoder"),
    "dates": (
        CATEGORIES.assign(sex=pd.Timestamp(2020, 1, 2)),
        "'sex' of X holds the date 2020-01-02",
    ),
}


@pytest.mark.parametrize("case", NO_NUMBERS)
def test_a_column_without_numbers_is_named(case):
    """Before: "could not convert string to float: 'm'", of a table with any number of columns."""
    table, words = NO_NUMBERS[case]
    with pytest.raises(ValueError, match=words):
        FederatedLasso(0.1).fit(table, Y)
    with pytest.raises(ValueError, match=words):
        FederatedLasso(0.1).fit(X[:, :2], Y).predict(table)
    texts = CATEGORIES.assign(sex="2")  # which scikit-learn reads as numbers
    assert FederatedLasso(0.1).fit(texts, Y).coef_.shape == (2,)


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_argument_is_described(name):
    kind = getattr(estimators, name)
    told = [argument for names, _ in entries(inspect.getdoc(kind)) for argument in names]
    assert sorted(told) == sorted(inspect.signature(kind).parameters) == sorted(kind().get_params())
