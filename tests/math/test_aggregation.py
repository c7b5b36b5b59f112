"""Robust aggregation: what each rule gives, what it bears, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from flower_fedcon.errors import ConfigError
from flower_fedcon.server.aggregation import (
    CoordinateMedian,
    GeometricMedian,
    NormClipping,
    TrimmedMean,
    as_aggregation,
)

RULES = [TrimmedMean(0.3), CoordinateMedian(), GeometricMedian(), NormClipping(2.0)]
EACH = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)


@pytest.fixture
def values():
    return np.random.default_rng(0).standard_normal((9, 3, 2))


@EACH
def test_shape_type_and_order(rule, values):
    found = rule.combine(values)
    assert found.shape == (3, 2)
    assert rule.combine(values[::-1]) == pytest.approx(found, abs=1e-14)
    single = rule.combine(values.astype(np.float32))
    assert single.dtype == np.float32
    assert single == pytest.approx(found, abs=1e-5)
    before = values.copy()
    rule.combine(values)
    assert values.tobytes() == before.tobytes()
    alone = np.array([[0.5, -1.0]])
    assert rule.combine(alone) == pytest.approx(alone[0], abs=1e-15)


@EACH
def test_liars_move_it_little_whatever_they_send(rule, values):
    """Two of nine, with the largest numbers that pass the gate."""
    honest = rule.combine(values[2:])
    for lie in (1e3, 1e102):
        false = values.copy()
        false[:2] = lie
        assert np.abs(rule.combine(false) - honest).max() < 1
        false[0] = -lie
        assert np.abs(rule.combine(false) - honest).max() < 1


def test_trimmed_mean_cuts_at_both_ends(values):
    expected = np.sort(values, axis=0)[2:-2].mean(axis=0)
    assert TrimmedMean(2 / 9).combine(values).tolist() == expected.tolist()
    assert TrimmedMean(0.12).combine(values).tolist() == expected.tolist()  # rounded up
    assert TrimmedMean(0).combine(values) == pytest.approx(values.mean(axis=0), abs=1e-15)
    assert TrimmedMean(0.1).combine(np.arange(30.0)) == np.arange(3, 27).mean()  # 3 and not 4
    assert TrimmedMean(0.4).combine(np.array([1.0, 5.0])) == 3.0  # one is left at least
    assert TrimmedMean(0.49).combine(np.array([1.0, 2.0, 9.0])) == 2.0


def test_the_geometric_median_is_where_the_sum_of_distances_is_least(values):
    flat = values.reshape(9, -1)

    def total(v):
        return np.linalg.norm(flat - v, axis=1).sum()

    options = {"xatol": 1e-12, "fatol": 1e-15, "maxiter": 20000, "maxfev": 20000}
    best = minimize(total, flat.mean(axis=0), method="Nelder-Mead", options=options)
    found = GeometricMedian(iterations=200).combine(values).ravel()
    assert total(found) <= best.fun + 1e-12
    assert total(GeometricMedian().combine(values).ravel()) <= best.fun * (1 + 1e-5)
    direction = ((found - flat) / np.linalg.norm(found - flat, axis=1)[:, None]).sum(axis=0)
    assert np.linalg.norm(direction) < 1e-6
    on_a_line = np.array([[0.0], [1.0], [7.0]])  # there it is the median, which is one of them
    assert GeometricMedian().combine(on_a_line) == pytest.approx([1.0], abs=1e-5)


def test_what_lies_within_the_smoothing_is_averaged():
    near = np.array([[0.0, 0.0], [1e-8, 0.0], [5e-8, 3e-8]])
    assert GeometricMedian().combine(near) == pytest.approx(near.mean(axis=0), rel=1e-12)


def test_numbers_have_no_direction():
    told = [5.0, 5.0, 6.0, 1e90]
    assert TrimmedMean(0.25).combine_numbers(told) == 5.5
    assert (
        NormClipping(0.1).combine_numbers(told) == CoordinateMedian().combine_numbers(told) == 5.5
    )
    assert GeometricMedian().combine_numbers([2.0, 3.0, 1e90]) == pytest.approx(3.0, abs=1e-5)


def test_clipping_keeps_directions(values):
    long = values[0] * 1e6
    found = NormClipping(0.5).combine(np.stack([long, values[1] * 1e-3]))
    expected = (0.5 * long / np.linalg.norm(long) + values[1] * 1e-3) / 2
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrimmedMean(0.5), r"TrimmedMean\(fraction\) must be in \[0, 0.5\), got 0.5"),
        (lambda: TrimmedMean(-0.1), r"TrimmedMean\(fraction\) must be finite and >= 0, got -0.1"),
        (lambda: NormClipping(0), r"NormClipping\(bound\) must be finite and > 0, got 0"),
        (lambda: GeometricMedian(0), r"GeometricMedian\(smoothing\) must be finite and > 0, got 0"),
        (lambda: GeometricMedian(iterations=0), r"\(iterations\) must be a whole number >= 1"),
        (lambda: as_aggregation("median"), r"aggregation must be TrimmedMean.*got 'median'"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
