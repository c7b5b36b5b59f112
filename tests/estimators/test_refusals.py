"""What estimators and their results refuse, and how they say so."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

from flower_fedcon import FederatedProblem, Sample, stability_selection
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedElasticNet,
    FederatedElasticNetCV,
    FederatedGammaRegressor,
    FederatedLasso,
    FederatedLassoCV,
    FederatedLogisticRegression,
    FederatedNegativeBinomial,
    FederatedPoissonRegressor,
)
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.strategies import FedNewton

RNG = np.random.default_rng(4)
X = RNG.normal(size=(60, 4))
Y = X[:, 0] - X[:, 1] + RNG.normal(size=60)
COUNTS, CLASSES = RNG.poisson(np.exp(0.3 * Y)), np.arange(60) % 3
SITES, HALVES, SIX = np.arange(60) % 2, np.arange(60) // 30, np.arange(60) // 10
TIMES = np.stack([np.arange(60) + 1.0, np.ones(60)], axis=1)
MODEL, OWN = {"inference": "model"}, {"site_effects": "own"}
RANDOM, DEBIASED = {"site_effects": "random"}, {"inference": "debiased"}


def linear(*arguments, X=X, y=Y, groups=SITES, alpha=0, **settings):
    """Fit a linear model, by default without a penalty."""
    return FederatedElasticNet(alpha, **settings).fit(X, y, groups, *arguments)


def lasso(alpha=0.1, X=X, y=Y, groups=SITES, **settings):
    return FederatedLasso(alpha, **settings).fit(X, y, groups)


def logistic(C=np.inf, X=X, y=Y > 0, groups=SITES, **settings):
    return FederatedLogisticRegression(C, **settings).fit(X, y, groups)


def counts(alpha=0, X=X, y=COUNTS, groups=SITES, **settings):
    return FederatedPoissonRegressor(alpha, **settings).fit(X, y, groups)


def cox(alpha=0.0, X=X, y=TIMES, fit=None, **settings):
    return FederatedCoxRegression(alpha, **settings).fit(X, y, **(fit or {}))


def beside(column, rows=X):
    return np.column_stack([rows, column])


ARGUMENTS = [
    (lambda: lasso(-1.0), "alpha must be finite and >= 0, got -1.0"),
    (lambda: linear(alpha=1, l1_ratio=2), r"l1_ratio must be in \[0, 1\], got 2"),
    (lambda: linear(alpha=1, l1_ratio=[0.5]), r"l1_ratio must be a number, got \[0.5\]"),
    (lambda: FederatedElasticNetCV(l1_ratio=0).fit(X, Y), "l1_ratio > 0"),
    (lambda: FederatedElasticNetCV(l1_ratio=[]).fit(X, Y), r"l1_ratio > 0.*got \[\]"),
    (lambda: FederatedElasticNetCV(l1_ratio=[0.5, "a"]).fit(X, Y),
     "l1_ratio must be a number, got 'a'"),
    (lambda: FederatedElasticNetCV(l1_ratio=[0.5, np.nan]).fit(X, Y), "l1_ratio must be finite"),
    (lambda: lasso(penalty_factor=[1.0, 2.0]),
     "penalty_factor must be a number >= 0 for each of 4"),
    (lambda: logistic(0.0), "C must be finite and > 0"),
    (lambda: lasso(algorithm="FedNewtom"), "FedNewton"),
    (lambda: lasso(algorithm="Scaffold"), "takes no regularizer"),
    (lambda: lasso(algorithm=FedNewton(), participation=Sample(count=2)), "name the algo"),
    (lambda: FederatedLassoCV(rule="2se").fit(X, Y), "rule must be one of 'min', '1se'"),
    (lambda: cox(stratified="no"), "stratified must be True or False, got 'no'"),
    (lambda: cox(0.1).proportionality(), r"needs a fit without a penalty, got alpha=0\.1"),
    (lambda: cox().proportionality("km"), "'log', 'rank', 'identity'"),
    (lambda: cox(y=TIMES - [1.0, 0.0]).proportionality("log"), "needs times of events above 0"),
]  # fmt: skip
DATA = [
    (lambda: lasso(groups=SITES[:5]), "inconsistent numbers of samples"),
    (lambda: linear(-np.ones(60)), "sample_weight must be >= 0"),
    (lambda: linear(np.full(60, 1e308)), r"values of 1e\+308, whose squares"),
    (lambda: linear(np.zeros(60)), "0 for every row|one non-zero number"),
    (lambda: counts(y=-Y), "counts or rates >= 0"),
    (lambda: lasso(y=np.resize(["no", "yes"], 60)),
     "y must hold numbers, got the text 'no': convert it"),
    (lambda: lasso(groups=[*SITES[:-1], None]), "no value for 1 row, .* row 59: "),
    (lambda: lasso(groups=[*SITES[:-1], float("nan")]), "no value for 1 row, .* row 59: "),
    (lambda: lasso(groups=pd.Series([pd.NA, *SITES[1:]], dtype="Int64")),
     "no value for 1 row, the first of them row 0"),
    (lambda: lasso(groups=[("1", 1)[k % 2] for k in range(60)]),
     "1 and '1', which look the same"),
    (lambda: lasso(groups=np.c_[SITES, SITES]), r"one label for each row, got shape \(60, 2\)"),
    (lambda: lasso(groups=[[k] for k in range(60)]), r"groups has \[0\] in row 0"),
    (lambda: lasso(groups="a" * 60), "one label for each row"),
    (lambda: cox(X=[[0.0], [1.0]], y=[[1, 1], [-2, 1]]), "times must be >= 0, got -2 in row 1"),
    (lambda: cox(X=[[0.0], [1.0]], y=[[1, 1], [2, 2]]),
     "must be 1 for an event and 0 for none, got 2: .*== 2"),
    (lambda: cox(X=[[0.0], [1.0]], y=[[1, 0], [2, 0]]), "y has no event in any row"),
    (lambda: cox(X=[[0.0], [1.0]], y=[-1.0, -2.0]), "y has no event in any row"),
    (lambda: cox(fit={"strata": [None, *SITES[1:]]}), "strata has no value for 1 row"),
    (lambda: cox(fit={"strata": np.arange(60)}), "no client has two rows at risk together"),
    (lambda: cox(fit={"groups": np.arange(60)}), "the likelihood is constant"),
]  # fmt: skip
INFERENCE = [
    (lambda: lasso(**MODEL), "the same rows selected the columns"),
    (lambda: logistic(1.0, **MODEL), r"C=numpy\.inf"),
    (lambda: linear(inference="quasi"), "is for Poisson losses"),
    (lambda: linear(inference="HC1"), "inference must be"),
    (lambda: linear(groups=None, inference="cluster"), "at least two clusters"),
    (lambda: FederatedElasticNet(0, **MODEL).fit(X, Y, clusters=SITES),
     'clusters need inference="cluster"'),
    (lambda: FederatedElasticNet(0).fit(X, Y, exposure=np.ones(60)),
     "exposure is for models with a log link"),
    (lambda: linear().conf_int(), "was fitted without inference"),
    (lambda: linear(**MODEL).conf_int(95), "alpha must be in"),
    (lambda: linear(**MODEL).ratios(), "is not a ratio"),
    (lambda: linear(**MODEL).likelihood_ratio(linear(X=beside(SIX), **MODEL)), "fewer columns"),
    (lambda: linear(X=beside(X[:, 0]), **MODEL), "x0, x4 cannot be told apart"),
    (lambda: linear(X=beside(np.full(60, 2.0)), **MODEL),
     r"x4, \(intercept\) cannot be told apart"),
    (lambda: linear(X=beside(np.zeros(60)), **MODEL), "no information on parameter x4"),
    (lambda: linear(X=X[:3], y=Y[:3], groups=None, **MODEL), "cannot be told apart"),
    (lambda: logistic(X=beside(Y), **MODEL), "separated by column"),
    (lambda: FederatedNegativeBinomial(**MODEL).fit(X[:, :1], np.ones(60)),
     "vary no more than Poisson's"),
    (lambda: linear(groups=None, **MODEL).heterogeneity(), "at least two sites"),
    (lambda: pickle.loads(pickle.dumps(linear(**MODEL))).heterogeneity(), "fit it again"),
]  # fmt: skip
BIASED = [
    (lambda: linear(alpha=0.1, l1_ratio=0.5, **DEBIASED), "l1_ratio=1"),
    (lambda: FederatedElasticNetCV(l1_ratio=[0.5, 1], **DEBIASED).fit(X, Y), "l1_ratio=1"),
    (lambda: counts(0.1, **DEBIASED), "l1_ratio=1"),
    (lambda: lasso(0, **DEBIASED), 'give inference="model"'),
    (lambda: FederatedLassoCV(**MODEL).fit(X, Y), "inference must be"),
    (lambda: logistic(1.0, y=CLASSES, **DEBIASED), "this one is multinomial"),
    (lambda: cox(0.1, **DEBIASED), "this one is cox"),
    (lambda: lasso(X=beside(np.full(60, 2.0)), **DEBIASED), "no information on parameter x4"),
    (lambda: lasso(X=beside(5 - 3 * X[:, 0]), **DEBIASED), "x0 and x4 are not identified"),
    (lambda: lasso(1e-6, X[:5], Y[:5], None, **DEBIASED), "use a larger penalty"),
    (lambda: lasso(**DEBIASED).likelihood_ratio(lasso(**DEBIASED)),
     "does not maximise a likelihood"),
    (lambda: lasso(**DEBIASED).heterogeneity(),
     "heterogeneity compares fits without a penalty"),
    (lambda: lasso(**DEBIASED).ratios(), "is not a ratio"),
    (lambda: lasso(inference="robust"), "the same rows selected the columns"),
]  # fmt: skip
INTERCEPTS = [
    (lambda: linear(site_effects="fixed"), "site_effects must be"),
    (lambda: linear(fit_intercept=False, **OWN), "fit_intercept is False"),
    (lambda: logistic(y=CLASSES, **OWN), "has a multinomial loss here"),
    (lambda: FederatedGammaRegressor(**OWN).fit(X, COUNTS + 1, SITES), "has a gamma loss here"),
    (lambda: logistic(groups=Y > 0, **OWN), "No client is left"),
    (lambda: linear(**OWN).predict(X), "stay at their sites"),
    (lambda: linear(X=beside(X, SITES + 1.7), **OWN, **MODEL), "no information on parameter x0"),
    (lambda: logistic(X=beside(Y), **OWN, **MODEL), "separated by column"),
    (lambda: counts(groups=None, **RANDOM), "need at least two groups, and there is one"),
    (lambda: linear(groups=None, **RANDOM), "need at least two groups, and there is one"),
    (lambda: FederatedElasticNet(0, **RANDOM).fit(X, Y, SITES, clusters=np.arange(60)),
     "60 groups for 60 rows"),
    (lambda: lasso(**RANDOM), "needs a fit without a penalty: give alpha=0"),
    (lambda: counts(inference="robust", **RANDOM),
     "model's standard errors, got inference='robust'"),
    (lambda: FederatedGammaRegressor(0, **RANDOM).fit(X, COUNTS + 1, SIX),
     "has a gamma loss here"),
    (lambda: counts(nodes=8, **RANDOM), "nodes must be odd"),
    (lambda: counts(reml=True, **RANDOM), "reml=True is for linear models"),
    (lambda: linear(groups=SIX, **RANDOM, **MODEL).heterogeneity(),
     'fit with site_effects="own"'),
    (lambda: linear(groups=SIX, **RANDOM).summary(), "without inference"),
    (lambda: linear(y=X @ np.arange(4.0), groups=SIX, **RANDOM), "fit all outcomes exactly"),
    (lambda: logistic(y=HALVES, groups=HALVES, **RANDOM),
     "has no finite estimate: outcomes are all alike"),
]  # fmt: skip
PROBLEM = FederatedProblem([LeastSquares(X, Y, intercept=True)])


def selection(problem=PROBLEM, **settings):
    return stability_selection(problem, WithIntercept(L1(1.0)), **settings)


SELECTION = [
    (lambda: selection(threshold=0.5), r"threshold must be in \(0.5, 1\]"),
    (lambda: selection(pairs=0), "pairs"),
    (lambda: selection(error=0.1), "give an error of at least 0.5"),
    (lambda: selection(error=-1.0), "error"),
    (lambda: stability_selection(FederatedProblem([LeastSquares(X[:1], Y[:1])]), L1(1.0), pairs=1),
     "has no rows"),
]  # fmt: skip
SETTINGS = [*ARGUMENTS, *INFERENCE, *BIASED, *INTERCEPTS, *SELECTION]
EVERY = [*((ValueError, *row) for row in DATA), *((ConfigError, *row) for row in SETTINGS)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("error", "make", "words"), EVERY, ids=range(len(EVERY)))
def test_what_cannot_be_is_refused(error, make, words):
    with pytest.raises(error, match=words):
        make()


def masked(rows, where):
    return np.ma.masked_array(rows, mask=where)


@pytest.mark.parametrize("arguments", [
    {"X": masked(X, X > 2)},
    {"y": masked(Y, Y > 1)},
    {"groups": masked(SITES, SITES > 0)},
    {"sample_weight": masked(np.ones(60), Y > 1)},
])  # fmt: skip
def test_masked_entries_are_refused(arguments):
    with pytest.raises(ConfigError, match=r"is a masked array, and .* are masked"):
        FederatedLasso(0.1).fit(**{"X": X, "y": Y} | arguments)
    if "X" in arguments:
        with pytest.raises(ConfigError, match="masked"):
            lasso().predict(arguments["X"])


TABLE = pd.DataFrame({"age": X[:, 0], "sex": np.where(SITES > 0, "f", "m")})
DATES = TABLE.assign(sex=pd.Timestamp(2020, 1, 2))


@pytest.mark.parametrize(("table", "words"), [
    (TABLE, r"column 'sex' of X holds the text 'm'.*get_dummies\(X, columns=\['sex'\]"),
    (TABLE.astype({"sex": "category"}), "column 'sex' of X holds the text 'm'"),
    (TABLE.to_numpy(), "column 1 of X holds the text 'm'.*OneHotEncoder"),
    (DATES, "'sex' of X holds the date 2020-01-02"),
])  # fmt: skip
def test_a_column_without_numbers_is_named(table, words):
    """Before: "could not convert string to float: 'm'", of a table with any number of columns."""
    with pytest.raises(ValueError, match=words):
        lasso(X=table)
    with pytest.raises(ValueError, match=words):
        lasso(X=X[:, :2]).predict(table)
    texts = TABLE.assign(sex="2")  # which scikit-learn reads as numbers
    assert lasso(X=texts).coef_.shape == (2,)


def test_what_separates_outcomes_beside_own_intercepts_is_warned_of_before():
    with (
        pytest.warns(ConvergenceWarning, match="separated by column"),
        pytest.raises(ConfigError, match="separated by column"),
    ):
        logistic(X=beside(Y), **OWN, **MODEL)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 rounds"):
        logistic(10.0, max_iter=1)
