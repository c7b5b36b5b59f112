"""Times that are equal up to rounding are tied, and columns far from 0 change no Cox model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular import deal, run

from flower_fedcon.estimators import FederatedCoxRegression
from flower_fedcon.objectives.equal_times import on_grid, tied_times
from flower_fedcon.runs.paper_tables import p_equals
from flower_fedcon.survival import kaplan_meier, logrank
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.risk_counts import risk_counts

N = 240
RNG = np.random.default_rng(0)
X, GROUPS = RNG.normal(size=(N, 2)), np.arange(N) % 3
EVENTS = RNG.random(N) < 0.7
TENTHS = RNG.integers(1, 26, N)


def summed(tenths):
    """Return sums of so many tenths in half of the rows, and quotients in the others."""
    return np.array([sum([0.1] * k) if i % 2 else k / 10 for i, k in enumerate(tenths.tolist())])


def by_years(tenths):
    """Return times as differences of dates in years, from another start for each row."""
    start = RNG.integers(9000, 20000, len(tenths))
    return (start + 36 * tenths) / 365.25 - start / 365.25


@pytest.mark.parametrize("written", [summed, by_years])
@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_cox_models_of_rounded_times_are_one(written, ties):
    exact = TENTHS * (0.1 if written is summed else 36 / 365.25)
    times = written(TENTHS)
    assert len(np.unique(times)) > len(np.unique(exact))
    ours, other = (
        FederatedCoxRegression(alpha=0, ties=ties, inference="model").fit(
            X, np.c_[time, EVENTS], GROUPS
        )
        for time in (times, exact)
    )
    np.testing.assert_allclose(ours.coef_, other.coef_, rtol=1e-9)
    np.testing.assert_allclose(ours.bse_, other.bse_, rtol=1e-9)


@pytest.mark.parametrize("written", [summed, by_years])
def test_curves_and_tests_of_rounded_times_are_one(written):
    exact = TENTHS * (0.1 if written is summed else 36 / 365.25)
    times, arms = written(TENTHS), X[:, 0] > 0
    ours, other = (kaplan_meier(time, EVENTS, GROUPS) for time in (times, exact))
    np.testing.assert_array_equal(ours.survival, other.survival)
    assert len(ours.time) <= 25
    ours, other = (logrank(time, EVENTS, arms, GROUPS) for time in (times, exact))
    assert ours.pvalue == pytest.approx(other.pvalue, rel=1e-12)
    grid = np.arange(1, 26) * 0.1 if written is summed else np.arange(1, 26) * 36 / 365.25
    for one, whole in zip(
        risk_counts(times, EVENTS, arms * 1, 2, grid),
        risk_counts(grid[TENTHS - 1], EVENTS, arms * 1, 2, grid),
        strict=True,
    ):
        np.testing.assert_array_equal(one, whole)


def test_tables_count_rounded_times_at_their_point(tmp_path):
    """A site counts events of 0.1 + 0.2 at the grid's 0.3, and its Cox model has the ties."""
    d = pd.DataFrame({"x": X[:, 0], "event": EVENTS.astype(int)})
    found = []
    for name, times in (("summed", summed(TENTHS)), ("exact", TENTHS / 10)):
        (tmp_path / name).mkdir()
        schema = {"loss": "cox", "target": "t", "event": "event", "features": {"x": "numeric"},
                  "curve_times": [0.3, 0.6, 1.2, 2.4]}  # fmt: skip
        problem = tables(data=deal(tmp_path / name, d.assign(t=times)), schema=schema)
        found.append(run(problem))
    ours, exact = (history.report for history in found)
    np.testing.assert_array_equal(ours.curves.events, exact.curves.events)
    np.testing.assert_array_equal(ours.curves.at_risk, exact.curves.at_risk)
    np.testing.assert_allclose([row[1] for row in ours.rows], [row[1] for row in exact.rows],
                               rtol=1e-9)  # fmt: skip


@given(unit=st.integers(-12, 12), seed=st.integers(0, 2**16))
@settings(max_examples=50)
def test_ties_do_not_depend_on_the_unit(unit, seed):
    """Nor does rounding in the last digits; times that differ by more stay apart."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0.5, 3, 20)) + np.arange(20)
    rounded = times * (1 + rng.integers(-3, 4, 20) * 2.2e-16)
    both = np.concatenate([times, rounded]) * 10.0**unit
    tied = tied_times(both)
    assert len(np.unique(tied)) == 20
    np.testing.assert_array_equal(tied[:20], tied[20:])
    grid = times * 10.0**unit
    np.testing.assert_array_equal(on_grid(rounded * 10.0**unit, grid), grid)
    apart = np.concatenate([grid, grid * (1 + 1e-5)])
    np.testing.assert_array_equal(tied_times(apart), apart)


@given(
    shift=st.floats(-1e9, 1e9),
    unit=st.integers(-6, 6),
    method=st.sampled_from(["model", "robust", "cluster"]),
)
@settings(max_examples=20)
def test_shifts_and_units_of_columns_change_no_cox_model(shift, unit, method):
    """Seconds since 1970 have a mean of 1.6e9."""
    y = np.c_[TENTHS, EVENTS]
    moved = X * [10.0**unit, 1.0] + [shift * 10.0**unit, 0.0]
    plain, ours = (
        FederatedCoxRegression(alpha=0, inference=method, share_baseline=True).fit(A, y, GROUPS)
        for A in (X, moved)
    )
    back = [10.0**unit, 1.0]
    close = 1e-6 if abs(shift) > 1e5 else 1e-9  # of the data's own digits
    np.testing.assert_allclose(ours.coef_ * back, plain.coef_, rtol=close, atol=close)
    np.testing.assert_allclose(ours.bse_ * back, plain.bse_, rtol=close)
    if abs(shift) < 10:  # else a row of zeros is far from all rows
        for site, hazard in plain.baseline_cumulative_hazard_.items():
            np.testing.assert_allclose(
                ours.baseline_cumulative_hazard_[site][:, 1]
                * np.exp(ours.coef_[0] * shift * 10.0**unit),
                hazard[:, 1],
                rtol=1e-6,
            )


def test_a_test_on_a_grid_says_what_the_grid_does():
    """Of data sets without an effect, most have the p-value of all times in the span."""
    inside = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        times, arms = rng.exponential(size=200), rng.integers(0, 2, 200)
        events = times < rng.exponential(2.0, 200)
        grid = np.quantile(times[events], [0.2, 0.4, 0.6, 0.8, 1.0])
        test = logrank(times, events, arms, arms * 0 + seed, grid=grid)
        low, high = test.span
        assert low < test.pvalue < high
        inside.append(low <= logrank(times, events, arms).pvalue <= high)
    assert np.mean(inside) > 0.8
    assert "on a grid, of all times about" in repr(test)
    assert f"{p_equals(test.pvalue)} on this grid; p of all times is about" in test.in_words
    whole = logrank(times, events, arms)
    assert whole.span == (whole.pvalue, whole.pvalue)
    assert whole.in_words.endswith(p_equals(whole.pvalue))
