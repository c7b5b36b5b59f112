"""Arrays of JAX that the mathematics takes for NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_fedcon.regularizers import NuclearNorm

jax = pytest.importorskip("jax")
from flower_fedcon.engines.jax.traced import NotTraceableError, TracedArray  # noqa: E402


def traced(function: Any, *arrays: Any) -> Any:
    """Return what a function of NumPy's arrays gives when it is compiled."""
    with jax.enable_x64(True):
        compiled = jax.jit(lambda *a: function(*map(TracedArray, a)).value)
        return np.asarray(compiled(*arrays))


def in_place(x: Any, y: Any) -> Any:
    z = x - y
    z *= 2
    np.tanh(z, out=z)
    z.reshape(-1)[1] = 7.0
    z[1:, :2] -= y[1:, :2]
    column = z[:, 0]
    column += 1.0
    z[np.array([0, 1]), np.array([2, 2])] += np.array([10.0, 20.0])
    return z


def reductions(x: Any, y: Any) -> Any:
    level = x.max(axis=-1, keepdims=True) - np.add.reduce(y, axis=-1, keepdims=True)
    counts = np.bincount(np.abs(x).argmax(axis=0), np.sign(y[0]), 4)
    norm = np.linalg.norm(y, axis=-1)
    return np.concatenate([np.where(x > level, x, y).sum(axis=1), counts, norm / (1 + x.sum())])


@pytest.mark.parametrize("function", [in_place, reductions])
def test_numpy_s_lines_do_what_they_do_with_numpy_s_arrays(function):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    found = traced(function, x.copy(), y.copy())
    assert found == pytest.approx(function(x, y), abs=1e-14)


def test_what_a_trace_cannot_know():
    for function in (float, int, list, lambda x: np.asarray(x), lambda x: bool(x), np.unwrap):
        with pytest.raises(NotTraceableError), jax.enable_x64(True):
            jax.jit(lambda x, f=function: f(TracedArray(x)) and 0)(np.ones(3))


def test_it_takes_the_place_of_numpy_s_array_and_numbers():
    x = TracedArray(jax.numpy.ones((2, 3)))
    assert isinstance(x, np.ndarray)
    assert isinstance(x.sum(), float)
    assert not isinstance(x.sum(), np.ndarray)
    assert isinstance(x.argmax(), int)
    assert x.T.shape == (3, 2)


def test_a_tuple_with_names_keeps_them():
    found = traced(lambda a: np.linalg.svd(a, full_matrices=False).S, np.diag([2.0, 1.0]))
    assert found == pytest.approx([2.0, 1.0])
    with pytest.raises(NotTraceableError, match="asks for a value"):
        traced(lambda a: NuclearNorm(0.1).prox(a, 1.0), np.eye(2))
