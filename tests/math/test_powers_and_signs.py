"""Natural compression and signs: what they round to, and what is not accepted from a wire."""

import numpy as np
import pytest
from hypothesis import given
from test_compressors import rng, vectors

from flower_fedcon.compressors import Natural, Sign
from flower_fedcon.errors import ConfigError


def good(c):
    return dict(c.compress(np.arange(1.0, 7.0), rng()).arrays())


def test_natural_compression_rounds_to_the_two_powers_around():
    x = np.array([1.0, -3.0, 0.75, 0.0, 2.0**-126])
    draws = rng(0)
    found = np.array([Natural().compress(x, draws).dense() for _ in range(400)])
    assert [set(column) for column in found.T] == [
        {1.0}, {-2.0, -4.0}, {0.5, 1.0}, {0.0}, {0.0, 2.0**-124}
    ]  # fmt: skip
    assert found.mean(axis=0)[1:3] == pytest.approx([-3.0, 0.75], abs=0.25)
    assert found.mean(axis=0)[4] == pytest.approx(2.0**-126, rel=0.4)
    assert not Natural().compress(np.zeros(3), rng()).dense().any()
    with pytest.raises(ConfigError, match="overflows"):
        Natural().compress(np.full(3, 1.7e308), rng())


@given(vectors)
def test_signs_contract_by_the_share_of_the_mean_magnitude(x):
    found = Sign().compress(x, rng()).dense()
    square, mean = float((x**2).sum()), float(np.abs(x).sum())
    rounding = 1e-9 * square + 1e-300  # also of squares that are hardly numbers
    assert ((found - x) ** 2).sum() == pytest.approx(square - mean**2 / x.size, abs=rounding)


@pytest.mark.parametrize(
    ("c", "change"),
    [
        (Natural(), {"top": np.array(2000, np.int16)}),
        (Natural(), {"top": np.array(1, np.int64)}),
        (Natural(), {"levels": np.full(6, -128, np.int8)}),
        (Natural(), {"levels": np.zeros(5, np.int8)}),
        (Natural(), {"levels": np.zeros(6)}),
        (Natural(), {"more": np.ones(3)}),
        (Sign(), {"scale": np.array(-1.0)}),
        (Sign(), {"scale": np.array(np.nan)}),
        (Sign(), {"bits": np.zeros(2, np.uint8)}),
        (Sign(), {"bits": np.zeros(6, np.int8)}),
        (Sign(), {"more": np.ones(3)}),
    ],
    ids=str,
)
def test_powers_and_signs_that_are_refused(c, change):
    with pytest.raises(ConfigError):
        c.decode({**good(c), **change}, (6,), np.dtype(np.float64))
