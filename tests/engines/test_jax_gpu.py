"""Compiled rounds on a GPU: the iterates of the other engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from row_clients import clients

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW, Scaffold

jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
pytestmark = pytest.mark.skipif(
    jax.default_backend() == "cpu", reason="needs a GPU that JAX can use"
)

STEPS: dict[str, Any] = {"client_lr": 0.05, "local_steps": 4}
CASES = {
    "FedAvg": (FedAvg(**STEPS), {}),
    "Scaffold, sampled": (Scaffold(participation=Sample(count=2), **STEPS), {}),
    "FedDualAvg, batches": (
        FedDualAvg(L1(0.05), batch_size=3, **STEPS),
        {"regularizer": L1(0.05)},
    ),
    "FedFW": (FedFW(L1Ball(1.0), penalty=1.0), {"constraint": L1Ball(1.0)}),
}


@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-10), (np.float32, 1e-4)])
@pytest.mark.parametrize("case", CASES)
def test_iterates_on_a_gpu_are_those_of_the_local_engine(caplog, tmp_path, case, dtype, near):
    """Also where a run is resumed; and no round goes to the stacked engine."""
    strategy, more = CASES[case]
    problem = FederatedProblem(clients("least squares", 4, 7, (6,), dtype), **more)
    expected, whole = (simulate(strategy, problem, 40, engine=e, seed=3) for e in ("local", "jax"))
    scale = max(1.0, float(np.abs(expected.x).max()))
    assert whole.x.dtype == dtype
    assert np.abs(whole.x - expected.x).max() <= near * scale
    options: dict[str, Any] = {"engine": "jax", "seed": 3, "run_dir": tmp_path / "run"}
    simulate(strategy, problem, 20, **options)
    rest = simulate(strategy, problem, 40, resume=True, **options)
    assert np.abs(rest.x - whole.x).max() <= near * scale
    assert "stacked engine" not in caplog.text
