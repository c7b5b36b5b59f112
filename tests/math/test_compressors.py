"""Compressors: their constants, what crosses the wire, and what is not accepted from it."""

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flower_fedcon.compressors import (
    EF21,
    QSGD,
    Identity,
    Natural,
    RandK,
    Sign,
    Sparse,
    TopK,
    as_compressor,
)
from flower_fedcon.errors import ConfigError
from flower_fedcon.wire import settings as specs
from flower_fedcon.wire.payloads import Compact, flatten, load_array, payload_bytes

LOSSY = [
    RandK(fraction=0.4),
    RandK(count=1),
    RandK(fraction=0.4, scaled=False),
    TopK(fraction=0.4),
    TopK(count=1),
    QSGD(levels=1),
    QSGD(levels=4),
    QSGD(levels=300),
    Natural(),
    Sign(),
]
ALL = [Identity(), *LOSSY]

vectors = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=1, max_dims=2, max_side=8),
    elements=st.floats(-1e6, 1e6, allow_subnormal=False),
)


def rng(seed=0):
    return np.random.default_rng(seed)


def dense(value):
    return value if isinstance(value, np.ndarray) else value.dense()


def travel(value):
    """Return the arrays of a value as a receiver reads them, and their bytes."""
    arrays, _ = flatten({"delta": value})
    back, total = {}, 0
    for name, array in arrays.items():
        stream = io.BytesIO()
        np.save(stream, array, allow_pickle=False)
        total += len(stream.getvalue())
        back[name.removeprefix("delta.")] = load_array(stream.getvalue())
    return back, total


# --- the constants --------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [c for c in ALL if c.unbiased], ids=repr)
@pytest.mark.parametrize("shape", [(12,), (3, 4)])
def test_unbiased(c, shape):
    x = rng(1).normal(size=shape) * np.logspace(0, -2, 12).reshape(shape)
    draws, n = rng(2), 4000
    found = np.array([dense(c.compress(x, draws)) for _ in range(n)])
    variance = float(((found - x) ** 2).sum() / n)
    square = float((x**2).sum())
    assert variance <= 1.1 * c.q(12) * square
    # Five standard deviations of each entry's mean.
    np.testing.assert_array_less(
        np.abs(found.mean(axis=0) - x), 5 * found.std(axis=0) / math.sqrt(n) + 1e-12
    )
    if isinstance(c, RandK):
        assert variance == pytest.approx(c.q(12) * square, rel=0.1)  # it is an equality


@pytest.mark.parametrize("c", [c for c in ALL if not c.unbiased], ids=repr)
def test_contractive(c):
    x = rng(1).normal(size=(3, 4))
    draws, n = rng(2), 2000
    error = np.mean([((dense(c.compress(x, draws)) - x) ** 2).sum() for _ in range(n)])
    assert error <= 1.05 * (1 - c.q(12)) * (x**2).sum()


@given(vectors, st.sampled_from([0.2, 0.5, 1.0]))
def test_top_k_contracts_every_time(x, fraction):
    c = TopK(fraction=fraction)
    error = float(((c.compress(x, rng()).dense() - x) ** 2).sum())
    assert error <= (1 - c.q(x.size)) * float((x**2).sum()) * (1 + 1e-9)


def test_constants():
    assert RandK(count=3).q(30) == 9.0
    assert RandK(fraction=0.1).q(30) == 9.0
    assert RandK(fraction=0.1, scaled=False).q(30) == TopK(count=3).q(30) == 0.1
    assert QSGD(levels=2).q(9) == 1.5
    assert QSGD(levels=6).q(9) == 0.25
    assert Identity().q(9) == 0.0
    assert [c.unbiased for c in ALL] == [
        True, True, True, False, False, False, True, True, True, True, False
    ]  # fmt: skip
    assert (Natural().q(9), Sign().q(9)) == (0.125, 1 / 9)
    assert EF21(RandK(count=3)).scale(30) == 0.1
    assert EF21(Natural()).scale(30) == 1 / 1.125
    assert EF21(TopK(count=3)).scale(30) == EF21(Sign()).scale(30) == 1.0
    assert RandK(fraction=0.01).kept(10) == 1
    assert TopK(fraction=1.0).kept(7) == 7


# --- values ---------------------------------------------------------------------------------------


@given(vectors, st.sampled_from(ALL), st.sampled_from([np.float64, np.float32]))
def test_values_travel(x, c, dtype):
    x = x.astype(dtype)
    kept = x.copy()
    value = c.compress(x, rng(3))
    assert x.tobytes() == kept.tobytes()
    assert value.shape == x.shape
    assert value.dtype == x.dtype
    out = dense(value)
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    arrays, total = travel(value)
    assert payload_bytes({"delta": value}) == total
    if not isinstance(c, Identity):
        assert isinstance(value, Compact)
        assert value.nbytes == total
        total_out = np.ones_like(x)
        value.add_to(total_out)
        assert total_out.tobytes() == (np.ones_like(x) + out).tobytes()
    back = c.decode(arrays, x.shape, x.dtype)
    assert dense(back).tobytes() == out.tobytes()
    assert c.compress(x, rng(3)).shape == x.shape
    assert dense(c.compress(x, rng(3))).tobytes() == out.tobytes()


def test_a_sparse_value_is_added_whatever_the_memory_layout():
    x = rng().normal(size=(4, 5))
    value = TopK(count=6).compress(x, rng())
    for out in (np.zeros((4, 5)), np.zeros((5, 4)).T, np.zeros((4, 10))[:, ::2]):
        value.add_to(out)
        assert np.array_equal(out, value.dense())


def test_compression_pays():
    x = rng().normal(size=10_000)
    full = payload_bytes({"x": x})
    share = {c: payload_bytes({"x": c.compress(x, rng())}) / full for c in LOSSY}
    assert share[QSGD(levels=4)] < 0.13
    assert share[QSGD(levels=300)] < 0.26
    assert share[Natural()] < 0.13
    assert share[Sign()] < 0.02
    assert RandK(fraction=0.1).compress(x, rng()).nbytes < 0.16 * full
    assert Identity().compress(x, rng()) is x


def test_top_k_keeps_the_largest_and_the_first_of_equals():
    x = np.array([1.0, -2.0, 2.0, 0.5, -2.0, 3.0])
    assert TopK(count=3).compress(x, rng()).indices.tolist() == [1, 2, 5]
    assert TopK(count=2).compress(np.zeros(5), rng()).indices.tolist() == [0, 1]
    assert TopK(count=5).compress(np.ones(5), rng()).values.tolist() == [1.0] * 5
    for seed in range(20):
        x = np.round(rng(seed).normal(size=30), 1)
        order = np.argsort(-np.abs(x), kind="stable")[:7]
        assert TopK(count=7).compress(x, rng()).indices.tolist() == sorted(order.tolist())


def test_rand_k_draws_every_entry_alike():
    draws = rng(0)
    counts = np.zeros(10)
    for _ in range(3000):
        value = RandK(count=3).compress(np.ones(10), draws)
        assert len(value.indices) == 3
        counts[value.indices] += 1
    np.testing.assert_allclose(counts / 3000, 0.3, atol=0.04)


def test_qsgd_levels():
    value = QSGD(levels=127).compress(np.array([0.0, -1.0]), rng())
    assert value.signed.dtype == np.int8
    assert value.signed.tolist() == [0, -127]
    assert QSGD(levels=128).compress(np.ones(2), rng()).signed.dtype == np.int16
    assert not QSGD(levels=3).compress(np.zeros(4), rng()).dense().any()
    tiny = QSGD(levels=8).compress(np.full(3, 1e-300), rng()).dense()
    assert np.isfinite(tiny).all()
    with pytest.raises(ConfigError, match="overflows"):
        QSGD(levels=8).compress(np.full(3, 1e300), rng())


# --- refusals -------------------------------------------------------------------------------------


def good(c, dtype=np.float64):
    return dict(c.compress(np.arange(1.0, 7.0).astype(dtype), rng()).arrays())


@pytest.mark.parametrize(
    "change",
    [
        {"indices": np.array([0, 1, 6], np.int32)},
        {"indices": np.array([-1, 1, 2], np.int32)},
        {"indices": np.array([2, 1, 3], np.int32)},
        {"indices": np.array([1, 1, 3], np.int32)},
        {"indices": np.array([0, 1, 2])},
        {"indices": np.array([0.0, 1.0, 2.0])},
        {"indices": np.array([0, 1], np.int32)},
        {"indices": np.array([[0, 1, 2]], np.int32)},
        {"indices": None},
        {"values": np.ones(2)},
        {"values": np.ones(3, np.float32)},
        {"values": np.array([1.0, np.nan, 0.0])},
        {"values": np.array([1.0, np.inf, 0.0])},
        {"more": np.ones(3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("c", [RandK(count=3), RandK(fraction=0.5), TopK(count=3)], ids=repr)
def test_sparse_messages_that_are_refused(c, change):
    arrays = {k: v for k, v in {**good(c), **change}.items() if v is not None}
    with pytest.raises(ConfigError):
        c.decode(arrays, (6,), np.dtype(np.float64))


@pytest.mark.parametrize(
    "change",
    [
        {"norm": np.array(-1.0)},
        {"norm": np.array(np.nan)},
        {"norm": np.array(np.inf)},
        {"norm": np.ones(1)},
        {"norm": np.array(1, np.int64)},
        {"norm": None},
        {"levels": np.full(6, 4, np.int8)},
        {"levels": np.full(6, -4, np.int8)},
        {"levels": np.full(6, -128, np.int8)},
        {"levels": np.zeros(5, np.int8)},
        {"levels": np.zeros(6, np.int16)},
        {"levels": np.zeros(6)},
        {"more": np.ones(3)},
    ],
    ids=str,
)
def test_quantised_messages_that_are_refused(change):
    c = QSGD(levels=3)
    arrays = {k: v for k, v in {**good(c), **change}.items() if v is not None}
    with pytest.raises(ConfigError):
        c.decode(arrays, (6,), np.dtype(np.float64))


def test_dense_messages_that_are_refused():
    x = np.ones(6)
    assert Identity().decode({"delta": x}, (6,), x.dtype) is x
    for arrays in (
        {},
        {"a": x, "b": x},
        {"a": np.ones(5)},
        {"a": x * np.nan},
        {"a": np.ones(6, "f4")},
    ):
        with pytest.raises(ConfigError):
            Identity().decode(arrays, (6,), np.dtype(np.float64))


@pytest.mark.parametrize("c", LOSSY, ids=repr)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_compressed(c, bad):
    with pytest.raises(ConfigError, match="not finite"):
        c.compress(np.array([1.0, bad, 2.0]), rng())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RandK(), "either fraction or count"),
        (lambda: TopK(fraction=0.1, count=3), "either fraction or count"),
        (lambda: RandK(fraction=0.0), "fraction"),
        (lambda: RandK(fraction=1.2), "at most 1"),
        (lambda: TopK(fraction=math.nan), "fraction"),
        (lambda: TopK(count=0), "count"),
        (lambda: TopK(count=2.5), "count"),
        (lambda: QSGD(levels=0), "levels"),
        (lambda: QSGD(levels=40_000), "32767"),
        (lambda: TopK(count=5).compress(np.ones(4), rng()), "model's 4 entries"),
        (lambda: as_compressor("topk"), "a compressor is"),
        (lambda: as_compressor(TopK), "a compressor is"),
        (lambda: EF21(Identity()), r"EF21\(compressor\) must be TopK.*got Identity"),
        (lambda: EF21("topk"), "must be TopK.*got 'topk'"),
    ],
)
def test_settings_that_cannot_be(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("c", ALL, ids=repr)
def test_compressors_travel(c):
    assert as_compressor(c) is c
    text, arrays = specs.encode({"uplink": c})
    assert not arrays
    assert specs.decode(text, arrays)["uplink"] == c
    if not isinstance(c, Identity):
        text, arrays = specs.encode({"compression": EF21(c)})
        assert specs.decode(text, arrays)["compression"] == EF21(c)


def test_large_models_get_wide_indices():
    huge = (3, 2**30)  # more entries than an int32 can number; nothing dense is made
    c = TopK(count=2)
    arrays = {"indices": np.array([0, 2**31]), "values": np.ones(2)}
    assert isinstance(c.decode(arrays, huge, np.dtype(np.float64)), Sparse)
    with pytest.raises(ConfigError, match="int64"):
        c.decode({**arrays, "indices": np.array([0, 1], np.int32)}, huge, np.dtype(np.float64))
