"""Passes over many clients' models: by kernels on any number of threads, and by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.kernels import dispatch, passes
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.strategies import FedAvg, Scaffold

numba = pytest.importorskip("numba", reason="the extra `fast` is not installed")
compiled = pytest.importorskip("flower_fedcon.kernels.compiled")

SHAPES = [(40, 1000), (17, 2001), (16, 30, 70), (33_000, 1), (20_000, 2), (15, 3000), (1, 40_000)]


@pytest.fixture
def called(monkeypatch):
    """Return the names of the loops that are called."""
    names = []
    call = compiled.call

    def note(loop, *arguments):
        names.append(loop)
        call(loop, *arguments)

    monkeypatch.setattr(compiled, "call", note)
    return names


@pytest.mark.parametrize("few", [0, 2**62], ids=["threads", "one thread"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_norms(shape, dtype, few, called, monkeypatch):
    """Sums are the same bits by NumPy; a part's rows are added one after another."""
    monkeypatch.setattr(compiled, "FEW", few)
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    total, norm = passes.sum_over_clients(x), passes.squared_norm_of_clients(x)
    in_parts = shape[0] >= 16 and x[0].size > 1
    assert called == ["sum_parts"] * in_parts + ["squares"]
    with dispatch.numpy_only():
        by_numpy = passes.sum_over_clients(x)
    assert total.dtype == dtype
    assert total.shape == shape[1:]
    assert total.tobytes() == by_numpy.tobytes()
    wide, eps = x.astype(np.float64), float(np.finfo(dtype).eps)
    bound = len(x) * eps * np.abs(wide).sum(axis=0)
    assert np.all(np.abs(total - wide.sum(axis=0)) <= bound)
    assert float(norm) == pytest.approx(float((wide**2).sum()), rel=200 * eps)


@pytest.mark.parametrize("layout", ["columns", "every other client"])
def test_the_order_in_memory_changes_no_bit_of_a_sum(layout):
    x = np.random.default_rng(0).standard_normal((80, 1000))
    x = np.asfortranarray(x) if layout == "columns" else x[::2]
    total = passes.sum_over_clients(x)
    assert total.tobytes() == passes.sum_over_clients(x.copy(order="C")).tobytes()
    with dispatch.numpy_only():
        assert total.tobytes() == passes.sum_over_clients(x).tobytes()
    assert float(passes.squared_norm_of_clients(x)) == pytest.approx(float((x * x).sum()))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_the_norm(value):
    x = np.ones((40, 1000))
    x[37, 901] = value
    assert not passes.squared_norm_of_clients(x) < np.inf
    assert not np.isfinite(passes.sum_over_clients(x)[901])
    assert np.isfinite(np.delete(passes.sum_over_clients(x), 901)).all()
    large = np.full((40, 1000), 1e30, np.float32)
    assert passes.squared_norm_of_clients(large) == np.inf  # as float32 has it


@pytest.mark.parametrize("method", [FedAvg, Scaffold], ids=["fedavg", "scaffold"])
def test_a_run_does_not_depend_on_the_number_of_threads(method, called):
    """Nor does it differ from the local engine's by more than rounding."""
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((4, 900)), rng.standard_normal(4)) for _ in range(40)]
    problem = FederatedProblem([LeastSquares(A, b) for A, b in data])
    strategy = method(client_lr=1e-3, local_steps=3)
    every = numba.get_num_threads()
    ends = []
    try:
        for number in (1, every):
            numba.set_num_threads(number)
            ends.append(simulate(strategy, problem, 8, engine="stacked").x)
    finally:
        numba.set_num_threads(every)
    assert {"squares", "sum_parts"} <= set(called)
    assert ends[0].tobytes() == ends[1].tobytes()
    np.testing.assert_allclose(ends[0], simulate(strategy, problem, 8).x, rtol=0, atol=1e-13)


def test_a_client_with_a_nonfinite_model_is_dropped_by_name(caplog):
    """The gate sees it in the pass over all, and tells whose it is."""
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((4, 900)), rng.standard_normal(4)) for _ in range(40)]
    data[7] = np.full((4, 900), 1e45), np.ones(4)  # which overflows in the sixth step
    problem = FederatedProblem([LeastSquares(A, b) for A, b in data])
    strategy = FedAvg(client_lr=1e-3, local_steps=8, min_replies=39)
    history = simulate(strategy, problem, 1, engine="stacked")
    assert "dropped the reply of client 7: 'delta' holds non-finite values" in caplog.text
    assert history["dropped"][-1] == caplog.text.count("dropped the reply")
    assert np.isfinite(history.x).all()
