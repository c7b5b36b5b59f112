"""Exact fits, extreme units, missing outcomes and names that collide: said, or right."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular import deal, run

from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedElasticNet,
    FederatedGammaRegressor,
    FederatedLasso,
    FederatedLogisticRegression,
    FederatedNegativeBinomial,
    FederatedOrdinalRegression,
    FederatedPoissonRegressor,
)
from flower_fedcon.sets import Box, Simplex
from flower_fedcon.survival import kaplan_meier, logrank
from flower_fedcon.tables.builders import tables

RNG = np.random.default_rng(0)
N = 90
X, GROUPS = RNG.normal(size=(N, 2)), np.arange(N) % 3
EXACT = "fits all outcomes exactly"


@given(seed=st.integers(0, 2**16), size=st.integers(-40, 40), method=st.sampled_from(
    ["model", "robust", "cluster"]), constant=st.booleans())  # fmt: skip
@settings(max_examples=20)
def test_rounding_is_no_significance(seed, size, method, constant):
    """Of a constant target, and of one that is computed from the columns, in any unit."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(N, 2)) * 10.0 ** rng.uniform(-3, 3, 2)
    y = np.full(N, 3.0) if constant else A @ rng.normal(size=2) + rng.normal()
    with pytest.warns(UserWarning, match=EXACT):
        model = FederatedElasticNet(0, inference=method).fit(A, 10.0**size * y, GROUPS)
    assert np.isnan(model.bse_).all()
    assert np.isnan(model.pvalues_).all()
    assert np.isnan([model.loglik_, model.aic_]).all()
    assert EXACT in model.summary()


@pytest.mark.parametrize(
    "fit",
    [
        lambda: FederatedPoissonRegressor(0, inference="quasi").fit(X, np.full(N, 3.0), GROUPS),
        lambda: FederatedPoissonRegressor(0, inference="robust").fit(X, np.full(N, 3.0), GROUPS),
        lambda: FederatedGammaRegressor(0, inference="model").fit(X, np.full(N, 3.0), GROUPS),
        lambda: FederatedGammaRegressor(0, inference="model").fit(X, np.exp(X[:, 0]), GROUPS),
        lambda: FederatedGammaRegressor(0, inference="cluster").fit(X, np.exp(X[:, 0]), GROUPS),
        lambda: FederatedPoissonRegressor(0, inference="quasi").fit(X, np.exp(X[:, 0]), GROUPS),
        lambda: FederatedLasso(0.1, inference="debiased").fit(X, np.full(N, 3.0), GROUPS),
    ],
)
def test_losses_whose_spread_is_estimated_say_so_too(fit):
    with pytest.warns(UserWarning, match=EXACT):
        model = fit()
    assert np.isnan(model.pvalues_).all()
    assert np.isnan(model.bse_).all()


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("method", ["robust", "cluster"])
def test_times_that_are_all_tied_have_no_robust_errors(method, stratified):
    """No row is compared with another: scores are rounding, and so is their distance from 0."""
    settings = {"inference": method, "weight_kind": "sampling", "stratified": stratified}
    model = FederatedCoxRegression(0, **settings)
    for weight in (1e-40, 1.0, 1e40):
        with pytest.warns(UserWarning, match=EXACT):
            model.fit(X, np.ones((N, 2)), GROUPS, np.linspace(1, 2, N) * weight)
        assert np.isnan(model.pvalues_).all()
        assert model.n_iter_ < 5
        model.fit(X, np.c_[1 + np.arange(N) % 9, np.ones(N)], GROUPS, np.linspace(1, 2, N) * weight)
        assert np.isfinite(model.pvalues_).all()


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_counts_equal_to_their_exposures_end_at_once(unit):
    """The start is the fit, so its gradient is rounding; in any unit of the counts."""
    counts = (1.0 + np.arange(N) % 7) * unit
    model = FederatedPoissonRegressor(0, inference="model").fit(X, counts, GROUPS, exposure=counts)
    assert model.n_iter_ < 5
    np.testing.assert_allclose(model.coef_, 0.0, atol=1e-12)
    part = FederatedPoissonRegressor(0, tol=1e-10).fit(X, counts * np.exp(X[:, 0]), GROUPS)
    whole = FederatedPoissonRegressor(0, tol=1e-10).fit(X, counts / unit * np.exp(X[:, 0]), GROUPS)
    np.testing.assert_allclose(part.coef_, whole.coef_, rtol=1e-7)


LOGIT = np.log(9) * X[:, 0] - X[:, 1] > RNG.logistic(size=N)
OUTCOMES = {
    FederatedElasticNet: X @ [1.0, -1.0] + RNG.normal(size=N),
    FederatedLogisticRegression: LOGIT,
    FederatedPoissonRegressor: RNG.poisson(np.exp(X[:, 0])),
    FederatedNegativeBinomial: RNG.poisson(np.exp(X[:, 0]) * RNG.gamma(1, size=N)),
    FederatedGammaRegressor: np.exp(X[:, 0]) * RNG.gamma(2, size=N),
    FederatedOrdinalRegression: LOGIT + 1 * (X[:, 0] > RNG.logistic(size=N)),
    FederatedCoxRegression: np.c_[RNG.exponential(np.exp(X[:, 0])).round(2) + 0.01, LOGIT],
}


@given(kind=st.sampled_from(list(OUTCOMES)), size=st.floats(-290, 300),
       what=st.sampled_from(["columns", "column", "weights"]))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_units_change_nothing_or_are_refused(kind, size, what):
    """Squares of columns, and of sampling weights, would leave the range of floating point."""
    free = {FederatedLogisticRegression: {"C": np.inf}, FederatedNegativeBinomial: {},
            FederatedOrdinalRegression: {}}.get(kind, {"alpha": 0})  # fmt: skip
    made, unit = kind(**free, inference="robust", weight_kind="sampling"), 10.0**size
    weights, units = np.linspace(1, 3, N), np.ones(2)
    plain = made.fit(X, OUTCOMES[kind], GROUPS, weights).bse_.copy()
    if what == "weights":
        weights = weights * unit
    else:
        units[: 2 if what == "columns" else 1] = unit
    sizes, least = ([weights.max()], 1e-45) if what == "weights" else (
        np.abs(X * units).max(axis=0), 1e-100)  # fmt: skip
    refused = min(sizes) < least or max(sizes) > 1e45
    with pytest.raises(ValueError, match="in another unit") if refused else nullcontext():
        found = made.fit(X * units, OUTCOMES[kind], GROUPS, weights).bse_
        np.testing.assert_allclose(found * units, plain, rtol=1e-6)


def test_a_model_with_noise_has_errors_in_any_unit():
    y = X @ [1.0, -1.0] + 1e-6 * RNG.normal(size=N)
    errors = [
        FederatedElasticNet(0, inference="model").fit(X, y * unit, GROUPS).bse_ / unit
        for unit in (1.0, 1e-40, 1e40)
    ]
    assert np.isfinite(errors).all()
    np.testing.assert_allclose(errors[1:], errors[:1] * 2, rtol=1e-6)


def test_few_clusters_are_a_warning():
    with pytest.warns(UserWarning, match="3 clusters are few, so errors are rough"):
        FederatedElasticNet(0, inference="cluster").fit(X, RNG.normal(size=N), GROUPS)


def texts(gone):
    column = pd.Series(np.where(X[:, 0] > 0, "a", "b"), dtype="string")
    column[2] = gone
    return column


DAYS = pd.to_timedelta(np.arange(N), unit="D")
COUNTS = np.arange(N) % 4
CURVE = kaplan_meier([1, 2, 3], [1, 1, 0])


def counted(**given):
    return FederatedPoissonRegressor(0).fit(X, COUNTS, GROUPS, **given)


FOLLOWED = np.c_[1.0 + COUNTS, np.ones(N)]


def followed(y=FOLLOWED, **given):
    return FederatedCoxRegression(0).fit(X, y, GROUPS, **given)


@pytest.mark.parametrize(
    ("fit", "says"),
    [
        (lambda: FederatedNegativeBinomial().fit(X, 0 * COUNTS, GROUPS), "y is 0 in every row"),
        (
            lambda: FederatedElasticNet(0, site_effects="random").fit(X, np.ones(N), GROUPS),
            "fit all outcomes exactly",
        ),
        (lambda: FederatedElasticNet(0).fit(X, 1e60 * X[:, 0], GROUPS), "in another unit"),
        (lambda: FederatedGammaRegressor(0).fit(X, np.full(N, 1e-100), GROUPS), "in another unit"),
        (
            lambda: FederatedPoissonRegressor(0).fit(
                X, COUNTS, GROUPS, offset=np.where(COUNTS == 3, -np.inf, 0.0)
            ),
            "offset must be finite, got -inf in row 3",
        ),
        (
            lambda: FederatedLasso().fit(pd.DataFrame({"a": DAYS, "b": X[:, 0]}), COUNTS, GROUPS),
            "column 'a' of X holds the duration",
        ),
        (lambda: FederatedLasso().fit(X, pd.Timestamp("2020") + DAYS, GROUPS), "y holds the date"),
        (lambda: FederatedLasso().fit(X, DAYS, GROUPS), "y holds the duration"),
        (
            lambda: FederatedLogisticRegression().fit(X, texts(pd.NA), GROUPS),
            "y has no value for 1 row, the first of them row 2",
        ),
        (
            lambda: FederatedLogisticRegression().fit(X, [None, *"ab" * 44, "a"], GROUPS),
            "first of them row 0",
        ),
        (
            lambda: FederatedLogisticRegression().fit(
                X, np.array([np.nan, *"ab" * 44, "a"]), GROUPS
            ),
            "no value for 1 row, the first of them row 0 .'nan'.",
        ),
        (lambda: counted(exposure=DAYS + DAYS[1]), "exposure holds the duration"),
        (lambda: counted(exposure=pd.Timestamp("2020") + DAYS), "exposure holds the date"),
        (lambda: counted(offset=["a"] * N), "offset must hold numbers"),
        (lambda: counted(offset=np.full(N, 1e5)), "offset must be from -700 to 700"),
        (lambda: counted(sample_weight=DAYS), "sample_weight holds the duration"),
        (lambda: followed(entry=DAYS), "entry holds the duration"),
        (
            lambda: followed(y=np.array([(1, 3)] * N, [("died", bool), ("time", "m8[D]")])),
            "y holds the duration 3 days",
        ),
        (lambda: FederatedElasticNet(0).fit(X.astype("m8[s]"), COUNTS, GROUPS), "X holds the dur"),
        (lambda: kaplan_meier(DAYS, np.ones(N)), "time holds the duration"),
        (lambda: logrank(np.ones(N), np.ones(N), COUNTS, entry=DAYS), "entry must be an array of"),
        (lambda: CURVE.at(DAYS), "times holds the duration"),
        (lambda: CURVE.at([pd.NaT]), "times has NaN"),
        (lambda: CURVE.at(["a"]), "times must hold numbers"),
        (
            lambda: Box(np.nan, 1.0),
            "lower. has a value that is not finite .*: give a finite",
        ),
        (lambda: Box(0.0, np.inf), "regularizer Nonnegative"),
        (lambda: Simplex().project(np.zeros(0)), "without any: give a model with at least one"),
        (
            lambda: FederatedElasticNet(0, inference="robust").fit(
                1e40 * X, 1e40 * RNG.normal(size=N), GROUPS
            ),
            "beyond 5e.102: write columns, targets and weights in units",
        ),
        (lambda: kaplan_meier([1, 2, 3], [1, 1, 0]).at([np.nan]), "times has NaN"),
    ],
)
def test_refused_with_a_remedy(fit, says):
    with pytest.raises((ConfigError, RoundError, ValueError), match=says):
        fit()


@pytest.mark.parametrize("name", ["sex=m", "(intercept)"])
def test_a_feature_with_the_name_of_a_made_column_is_refused(tmp_path, name):
    """Coefficients are found by names: `contrast` would take one of the two."""
    rng = np.random.default_rng(1)
    d = pd.DataFrame({name: rng.normal(size=60), "sex": rng.choice(["f", "m"], 60)})
    d["y"] = 2 * d[name] + (d["sex"] == "m") + rng.normal(size=60)
    schema = {"target": "y", "features": {name: "numeric", "sex": "categorical"}}
    with pytest.raises(ConfigError, match="two columns of the model have the name"):
        tables(data=deal(tmp_path, d), schema=schema)


CONFUSING = ["sex", "sex=m", "sex=f", "x=(other)", "(intercept)", "(other)", "log(x)", "log alpha"]
OWN = {"(intercept)", "log alpha"}  # columns of the model that no feature makes


@settings(max_examples=12, deadline=None)
@given(
    names=st.lists(st.sampled_from(CONFUSING), min_size=3, max_size=3, unique=True),
    mark=st.sampled_from(["m", "sex=m"]),
)
def test_names_that_collide_are_refused_or_change_nothing(tmp_path_factory, names, mark):
    """Whatever columns are called, their coefficients are those of other names."""
    rng, found = np.random.default_rng(2), []
    d = pd.DataFrame(rng.normal(size=(60, 2))).assign(c=rng.choice(["f", mark], 60))
    target = 2 * d[0] - d[1] + (d["c"] == mark) + rng.normal(size=60)
    for called in (names, ["u", "v", "w"]):
        d.columns = called
        kinds = dict(zip(called, ["numeric", "numeric", "categorical"], strict=True))
        data = deal(tmp_path_factory.mktemp("names"), d.assign(y=target))
        schema = {"target": "y", "features": kinds}
        if called is names and {*names[:2]} & {f"{names[2]}={mark}", *OWN}:
            with pytest.raises(ConfigError, match="two columns of the model have the name"):
                tables(data=data, schema=schema)
            return
        found.append(run(tables(data=data, schema=schema), 3).report.rows)
    assert [row[1:3] for row in found[0]] == [row[1:3] for row in found[1]]
    assert len({row[0] for row in found[0]}) == len(found[0]) == 4


def test_an_estimator_s_column_may_not_be_named_as_its_intercept():
    frame = pd.DataFrame(X, columns=["(intercept)", "b"])
    with pytest.raises(ConfigError, match="two columns of the model have"):
        FederatedElasticNet(0, inference="model").fit(frame, COUNTS, GROUPS)


@pytest.mark.parametrize(
    ("loss", "y", "x", "offset", "says"),
    [
        ("squared", 1e160, 1, 0, "write the column in another unit"),
        ("squared", 1, 1e-200, 0, "write the column in another unit"),
        ("gamma", 1e-100, 1, 0, "write the column in another unit"),
        ("gamma", 1, 1, -1e5, "an offset from -700 to 50"),
    ],
)
def test_numbers_beyond_floating_point_are_named(tmp_path, loss, y, x, offset, says):
    d = pd.DataFrame({"x": x * X[:, 0], "y": y * np.exp(X[:, 1]), "offset": offset})
    schema = {"target": "y", "loss": loss, "offset": "offset", "features": {"x": "numeric"}}
    with pytest.raises(ConfigError, match=says):
        tables(data=deal(tmp_path, d), schema=schema)


def test_times_in_rows_to_predict_are_refused(tmp_path):
    """As numbers they would be nanoseconds."""
    d = pd.DataFrame({"days": np.arange(40.0), "y": RNG.normal(size=40)})
    schema = {"target": "y", "features": {"days": "numeric"}}
    run(tables(data=deal(tmp_path, d), schema=schema), run_dir=tmp_path / "run")
    from flower_fedcon import load_model

    model = load_model(tmp_path / "run")
    for column in (DAYS[:3], pd.Timestamp("2020") + DAYS[:3]):
        with pytest.raises(ConfigError, match="rows to predict holds d"):
            model.predict(pd.DataFrame({"days": column}))


@pytest.mark.parametrize("ratio", [1e2, 1e3, 1e5])
def test_random_intercepts_of_groups_far_apart(ratio):
    """Effects are then those of own intercepts; the fit ends in a few exchanges."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 8)
    A = rng.normal(size=(96, 2))
    y = A @ [1.0, -1.0] + ratio * rng.normal(size=12)[groups] + rng.normal(size=96)
    random, own = (
        FederatedElasticNet(0, inference="model", max_iter=60, site_effects=kind).fit(A, y, groups)
        for kind in ("random", "own")
    )
    assert random.n_iter_ < 40
    np.testing.assert_allclose(random.coef_, own.coef_, atol=0.2 / ratio)
    intercepts = np.array([(y - A @ own.coef_)[groups == j].mean() for j in range(12)])
    assert random.site_sd_ == pytest.approx(intercepts.std(), rel=1e-3)
