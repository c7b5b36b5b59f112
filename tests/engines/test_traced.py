"""Arrays of JAX that the mathematics takes for NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_fedcon.arrays import added, dot, is_array, placed
from flower_fedcon.regularizers import NuclearNorm

jax = pytest.importorskip("jax")
from flower_fedcon.engines.jax.traced import NotTraceableError, TracedArray  # noqa: E402


def traced(function: Any, *arrays: Any) -> Any:
    """Return what a function of NumPy's arrays gives when it is compiled."""
    with jax.enable_x64(True):
        compiled = jax.jit(lambda *a: function(*map(TracedArray, a)).value)
        return np.asarray(compiled(*arrays))


def reductions(x: Any, y: Any) -> Any:
    level = x.max(axis=-1, keepdims=True) - np.add.reduce(y, axis=-1, keepdims=True)
    counts = np.bincount(np.abs(x).argmax(axis=0), np.sign(y[0]), 4)
    norm = np.linalg.norm(y, axis=-1)
    return np.concatenate([np.where(x > level, x, y).sum(axis=1), counts, norm / (1 + x.sum())])


def test_numpy_s_lines_do_what_they_do_with_numpy_s_arrays():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    found = traced(reductions, x, y)
    assert found == pytest.approx(reductions(x, y), abs=1e-14)


def doubled(x: Any) -> Any:
    x *= 2
    return x


@pytest.mark.parametrize(
    "change",
    [
        doubled,
        lambda x: np.tanh(x, out=x),
        lambda x: x.clip(0.0, 1.0, out=x),
        lambda x: x.__setitem__(0, 1.0),
    ],
)
def test_an_array_that_is_traced_does_not_change(change):
    with pytest.raises(NotTraceableError, match="changes an array in place"):
        traced(change, np.ones(3))


def test_numbers_added_and_placed_make_another_array():
    def change(x: Any) -> Any:
        return placed(added(x, np.array([2, 0]), 1.0), (..., 1), 7.0)

    assert traced(change, np.zeros(3)).tolist() == change(np.zeros(3)).tolist() == [1.0, 7.0, 1.0]


def test_it_says_what_it_is():
    x = TracedArray(jax.numpy.ones((2, 3)))
    assert type(x) is x.__class__ is TracedArray
    assert is_array(x)
    assert not is_array(x.sum())
    assert x.T.shape == (3, 2)


def test_what_a_trace_cannot_know():
    for function in (float, int, list, lambda x: np.asarray(x), lambda x: bool(x), np.unwrap):
        with pytest.raises(NotTraceableError), jax.enable_x64(True):
            jax.jit(lambda x, f=function: f(TracedArray(x)) and 0)(np.ones(3))


def test_a_tuple_with_names_keeps_them():
    found = traced(lambda a: np.linalg.svd(a, full_matrices=False).S, np.diag([2.0, 1.0]))
    assert found == pytest.approx([2.0, 1.0])
    with pytest.raises(NotTraceableError, match="asks for a value"):
        traced(lambda a: NuclearNorm(0.1).prox(a, 1.0), np.eye(2))


@pytest.mark.parametrize("size", [3, 32, 33, 35, 100])
def test_inner_products_of_clients_are_those_of_numpy_s_arrays(size):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 4, size))
    for others in (y, y[0]):
        found = traced(lambda a, b: dot(a, b, 1), x, others)
        assert found == pytest.approx(dot(x, others, 1), abs=1e-13)
    alone = traced(lambda a, b: dot(a, b, 1), x[0], y[0])
    assert alone.shape == ()
    assert float(alone) == pytest.approx(dot(x[0], y[0], 1), abs=1e-13)
    tables = x.reshape(2, 2, size)
    assert traced(lambda a: dot(a, a, 2), tables) == pytest.approx(dot(tables, tables, 2))


def test_a_long_inner_product_takes_one_pass():
    with jax.enable_x64(True):
        compiled = jax.jit(lambda x: dot(TracedArray(x), TracedArray(x), 1).value)
        text = compiled.lower(np.ones((10, 100))).compile().as_text()
    assert "reduce-window" not in text  # of which XLA makes passes of their own
