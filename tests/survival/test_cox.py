"""Proportional hazards: R's survival, likelihoods written out, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_poisson_deviance
from trials import gbsg2, lung, rossi

from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedCoxRegressionCV,
    FederatedPoissonRegressorCV,
)
from flower_fedcon.objectives import CoxRegression
from flower_fedcon.tables.pairs import concordance

# R 4.2.2, survival 3.5-3: coxph(Surv(time, event) ~ columns + strata(site), ties = ...), with its
# log-likelihood, concordance(fit), and chi-squared of cox.zph(fit, transform, terms = FALSE).
STUDIES = {
    "lung": (
        lung, ["age", "sex", "ph.ecog"], ["time", "status"], "inst", None, "efron",
        [0.0095613416965579096, -0.54735667684895428, 0.5972532446804123],
        -311.24956947359607, 0.66645244215938304,
        {"log": [2.844764788608218797, 1.027556764359574215, 0.071228590160406169,
                 3.659423657719013345],
         "rank": [0.060748847703382299, 1.139444380136138246, 1.654824038441506495,
                  3.104023098885963172],
         "identity": [0.067325332400235915, 2.084288242514850398, 1.082075296694847477,
                      3.776455736641354033]},
    ),
    "lung, by sex, too": (
        lung, ["age", "ph.ecog"], ["time", "status"], "inst", "sex", "efron",
        [0.013514460973112718, 0.58068724690074636], -223.89594241076676, 0.64821648216482164,
        {"log": [3.65064668250727875, 0.32074399135216386, 3.68808449237351610]},
    ),
    "rossi": (
        rossi, ["fin", "age", "prio"], ["week", "arrest"], "race", None, "efron",
        [-0.36417192410999705, -0.067458234509804274, 0.10074817497781402],
        -621.89519455124741, 0.62537273774024982,
        {"log": [0.20858616208764588218, 8.56712120835462442869, 0.00095122468580186741,
                 8.99214147058060930817],
         "rank": [1.19107720095847602, 0.89433991247900457, 1.96426074549664853,
                  3.91395213919454310],
         "identity": [1.9038877290692629e-06, 6.8449938260894401, 0.58268180464435815,
                      7.7471743346570197]},
    ),
    "gbsg2": (
        gbsg2, ["horm", "age", "tsize", "pnodes", "progrec"], ["time", "cens"], "tgrade", None,
        "breslow",
        [-0.33540874208018367, 0.0011946673009170317, 0.0078777127781807232, 0.047759336960555787,
         -0.002191965791161053], -1508.1987942676496, 0.66903708386009275,
        {"log": [0.076847543136917995, 7.496212390475779586, 0.105449773508147840,
                 0.609665064029723536, 1.690960899228498793, 9.754774492074828274],
         "rank": [0.0481804015263842950, 7.9350659552444708922, 0.0074477258792928309,
                  1.6064771863177009781, 2.3300647346629737022, 11.6163082560380956920],
         "identity": [0.0547253589254399556, 7.4994783405810965249, 0.0093844808799507899,
                      1.6320146933139667578, 1.9147085576522746564, 10.7574295718483270434]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("study", STUDIES)
def test_against_r(study):
    load, columns, y, site, strata, ties, coef, loglik, concordant, tests = STUDIES[study]
    table = load()
    model = FederatedCoxRegression(0.0, ties=ties, tol=1e-12)
    labels = None if strata is None else table[strata]
    model.fit(table[columns], table[y].to_numpy(), groups=table[site], strata=labels)
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-7)
    found = -sum(f.value(model.coef_) * f.total_weight for f in model._sites)
    assert found == pytest.approx(loglik, rel=1e-10)
    assert model.concordance_ == pytest.approx(concordant, rel=1e-12)
    for transform, expected in tests.items():
        test = model.proportionality(transform)
        own = [*test.statistic, test.global_statistic]
        np.testing.assert_allclose(own, expected, rtol=1e-6)
        assert test.to_frame().index.tolist() == [*columns, "GLOBAL"]


def test_a_weight_is_as_many_rows_in_the_concordance():
    rng = np.random.default_rng(3)
    X, time = rng.standard_normal((40, 2)), rng.integers(1, 9, 40).astype(float)
    event, weight = rng.random(40) < 0.7, rng.integers(1, 4, 40)
    site = np.arange(40) % 2
    y = np.c_[time, event]
    weighted = FederatedCoxRegression().fit(X, y, groups=site, sample_weight=weight)
    copies = np.repeat(np.arange(40), weight)
    copied = FederatedCoxRegression().fit(X[copies], y[copies], groups=site[copies])
    np.testing.assert_allclose(weighted.coef_, copied.coef_, rtol=1e-6)
    assert weighted.concordance_ == pytest.approx(copied.concordance_, rel=1e-12)
    assert weighted.concordance_ != FederatedCoxRegression().fit(X, y, groups=site).concordance_


def test_score_is_lifelines_concordance():
    utils = pytest.importorskip("lifelines.utils")
    table = rossi()
    X, y = table[["fin", "age", "prio"]], table[["week", "arrest"]].to_numpy()
    model = FederatedCoxRegression(0.0, ties="efron").fit(X, y, groups=table["race"])
    theirs = utils.concordance_index(y[:, 0], -model.predict(X), y[:, 1])
    assert model.score(X, y) == pytest.approx(theirs, rel=1e-12)
    sites = table["race"].to_numpy()
    assert model.score(X, y, groups=sites) == pytest.approx(model.concordance_, rel=1e-12)
    each = [utils.concordance_index(y[s, 0], -model.predict(X[s]), y[s, 1])
            for s in (sites == 0, sites == 1)]  # fmt: skip
    np.testing.assert_allclose(model.site_concordance_, each, rtol=1e-12)
    with pytest.raises(ValueError, match="no two rows can be compared"):
        model.score(X[:1], y[:1])


ROWS = st.lists(
    st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 4), st.integers(0, 2)),
    min_size=1, max_size=30,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_concordance_against_pairs_written_out(rows):
    time, event, score, _ = (np.array(column) for column in zip(*rows, strict=True))
    right = pairs = 0.0
    for i in np.flatnonzero(event):
        for j in range(len(time)):
            if time[j] > time[i] or (time[j] == time[i] and not event[j]):
                pairs += 1
                right += (score[j] < score[i]) + 0.5 * (score[j] == score[i])
    share, number = concordance(score.astype(float), time.astype(float), event)
    assert number == pairs
    assert share == pytest.approx(right / pairs if pairs else 0.0)


@settings(max_examples=20, deadline=None)
@given(ROWS, st.sampled_from(["breslow", "efron"]), st.floats(-400, 400))
def test_strata_are_the_sum_of_their_likelihoods(rows, ties, far):
    """At any distance of the strata's risks from one another."""
    time, event, _, stratum = (np.array(column, float) for column in zip(*rows, strict=True))
    rng = np.random.default_rng(0)
    A = np.c_[rng.normal(size=(len(rows), 2)), stratum]
    x, weight = np.array([0.3, -0.5, far]), rng.uniform(0.5, 2.0, len(rows))
    whole = CoxRegression(A, time, event, ties=ties, strata=stratum, sample_weight=weight)
    parts = [CoxRegression(A[s], time[s], event[s], ties=ties, sample_weight=weight[s])
             for s in (stratum == k for k in np.unique(stratum))]  # fmt: skip
    for name, rtol in (("value", 1e-9), ("gradient", 1e-9), ("hessian", 1e-8)):
        found = getattr(whole, name)(x) * whole.total_weight
        expected = sum(getattr(f, name)(x) * f.total_weight for f in parts)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-9)
    again = whole.subset(np.arange(len(rows)))
    np.testing.assert_allclose(again.hessian(x), whole.hessian(x), rtol=1e-9, atol=1e-12)


def test_baseline_hazards_stay_at_the_sites_unless_allowed():
    table = rossi()
    X, y = table[["fin", "age"]].to_numpy(float), table[["week", "arrest"]].to_numpy()
    site, sex = table["race"].to_numpy(), table["mar"].to_numpy()
    model = FederatedCoxRegression(0.0, share_baseline=True).fit(X, y, groups=site, strata=sex)
    assert sorted(model.baseline_cumulative_hazard_) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (client, stratum), found in model.baseline_cumulative_hazard_.items():
        own = (site == client) & (sex == stratum)
        time, event, risk = y[own, 0], y[own, 1], np.exp(X[own] @ model.coef_)
        total, expected = 0.0, []
        for t in np.unique(time[event == 1]):
            total += ((time == t) & (event == 1)).sum() / risk[time >= t].sum()
            expected.append((t, total))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    kept = FederatedCoxRegression(0.0).fit(X, y, groups=site)
    with pytest.raises(AttributeError, match=r"stay at the clients.*share_baseline=True"):
        kept.baseline_cumulative_hazard_  # noqa: B018


def test_sites_without_events_or_pairs_change_nothing():
    table = rossi()
    X, y = table[["fin", "age"]].to_numpy(float), table[["week", "arrest"]].to_numpy()
    site = table["race"].to_numpy() + 0.0
    model = FederatedCoxRegression(0.0).fit(X, y, groups=site)
    more = np.r_[X, [[1.0, 30.0], [0.0, 20.0], [0.0, 40.0]]]
    rows = np.r_[y, [[5, 0], [9, 0], [9, 1]]]  # a site without events, and one of a single row
    again = FederatedCoxRegression(0.0).fit(more, rows, groups=np.r_[site, 2, 2, 3])
    np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-7)
    assert again.concordance_ == pytest.approx(model.concordance_, abs=1e-9)
    assert np.isnan(again.site_concordance_[2:]).all()


def folds(n):
    place = np.arange(n) % 3
    return [(np.flatnonzero(place != k), np.flatnonzero(place == k)) for k in range(3)]


def test_folds_of_counts_are_compared_by_their_deviance():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    y, groups = rng.poisson(np.exp(0.6 * X[:, 0])), rng.integers(0, 3, 90)
    splits = folds(90)
    model = FederatedPoissonRegressorCV(num=8, min_ratio=0.01, cv=splits).fit(X, y, groups=groups)
    for k, (_, held) in enumerate(splits):
        for j in (0, 7):
            x = model.cv_.folds.coefs[j][k]
            expected = mean_poisson_deviance(y[held], np.exp(X[held] @ x[:-1] + x[-1]))
            assert model.cv_.losses[k, j] == pytest.approx(expected, rel=1e-9)
    assert model.alpha_ == model.cv_.values[model.cv_.best]
    assert model.score(X, y) > 0.1


def test_folds_of_times_are_compared_by_what_they_add_to_the_likelihood():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    time, event = np.ceil(5 * rng.exponential(np.exp(-X[:, 0]))), rng.random(90) < 0.8
    groups, splits = rng.integers(0, 3, 90), folds(90)
    model = FederatedCoxRegressionCV(num=8, min_ratio=0.01, cv=splits)
    model.fit(X, np.c_[time, event], groups=groups)

    def likelihood(x, rows):
        total, risk = 0.0, np.exp(X @ x)
        for i in rows[event[rows]]:
            others = rows[(groups[rows] == groups[i]) & (time[rows] >= time[i])]
            total += np.log(risk[others].sum()) - X[i] @ x
        return total

    every = np.arange(90)
    for k, (fit, held) in enumerate(splits):
        x = model.cv_.folds.coefs[7][k]
        expected = (likelihood(x, every) - likelihood(x, fit)) / len(held)
        assert model.cv_.losses[k, 7] == pytest.approx(expected, rel=1e-9)
    assert model.alpha_ == model.cv_.values[model.cv_.best]
    assert np.abs(model.coef_).argmax() == 0
