"""Compiled rounds call the compiled kernels, and find what the local engine finds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from row_clients import clients

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.kernels import dispatch
from flower_fedcon.objectives import Scaled, SoftmaxRegression
from flower_fedcon.regularizers import L1
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW, FedMiD, Scaffold

numba = pytest.importorskip("numba", reason="the extra `fast` is not installed")
pytest.importorskip("jax", reason="the extra `jax` is not installed")
compiled = pytest.importorskip("flower_fedcon.kernels.compiled")
calls = pytest.importorskip("flower_fedcon.kernels.custom_calls")

STEPS: dict[str, Any] = {"client_lr": 0.05, "local_steps": 4}


@pytest.fixture
def used(monkeypatch) -> set[str]:
    """Use the kernels for data of any size; return the loops that compiled rounds call."""
    monkeypatch.setattr(dispatch, "WORTHWHILE", 0)
    found: set[str] = set()
    real = calls._registered
    monkeypatch.setattr(calls, "_registered", lambda loop, t: (found.add(loop), real(loop, t))[1])
    return found


def softmax(dtype: Any) -> list[SoftmaxRegression]:
    rng = np.random.default_rng(2)
    return [
        SoftmaxRegression(rng.standard_normal((9, 5)).astype(dtype), np.arange(9) % 3, 3, l2=0.1)
        for _ in range(4)
    ]


def data(kind: str, dtype: Any) -> list[Any]:
    if kind == "softmax":
        return softmax(dtype)
    name = "logistic" if kind == "logistic" else "least squares"
    parts = clients(name, 4, 7, (30,) if kind == "few rows" else (6,), dtype)
    return [Scaled(f, 0.5) for f in parts] if kind == "scaled" else parts


WALKS = {"few rows": "take_steps_by_scores", "softmax": "take_softmax_steps"}
CASES = {
    "plain": (FedAvg(**STEPS), {}),
    "batches": (FedAvg(batch_size=3, **STEPS), {}),
    "schedule": (FedAvg(client_lr=InverseSqrt(0.05), local_steps=4), {}),
    "sampled": (FedAvg(batch_size=3, participation=Sample(count=2), **STEPS), {}),
    "drift": (Scaffold(**STEPS), {}),
    "drift, sampled": (Scaffold(participation=Sample(count=2), **STEPS), {}),
    "thresholds of the round": (FedDualAvg(L1(0.05), **STEPS), {"regularizer": L1(0.05)}),
    "from the point": (FedMiD(L1(0.05), **STEPS), {"regularizer": L1(0.05)}),
    "vertices": (FedFW(L1Ball(1.0), penalty=1.0), {"constraint": L1Ball(1.0)}),
    "vertices, batches": (
        FedFW(L1Ball(1.0), penalty=1.0, gradient="stochastic", batch_size=3),
        {"constraint": L1Ball(1.0)},
    ),
}
PLAIN = "plain", "schedule", "drift", "drift, sampled"


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "few rows", "softmax", "scaled"])
@pytest.mark.parametrize("case", CASES)
def test_compiled_rounds_call_the_kernels(used, kind, case, dtype):
    """The loop that serves, and the local engine's iterates; resumed, too, bit for bit."""
    if dtype == np.float32 and case not in ("plain", "thresholds of the round", "vertices"):
        pytest.skip("what differs is the loop")
    strategy, more = CASES[case]
    problem = FederatedProblem(data(kind, dtype), **more)
    expected, found = (simulate(strategy, problem, 30, engine=e, seed=3) for e in ("local", "jax"))
    scale = max(1.0, float(np.abs(expected.x).max()))
    assert found.x.dtype == dtype
    assert np.abs(expected.x).max() > 1e-3
    tolerance = 1e-12 if dtype == np.float64 else 1e-4
    assert np.abs(found.x - expected.x).max() <= tolerance * scale
    wanted = {"add_gradients"} if kind != "softmax" else set()
    if case == "vertices" and kind not in ("softmax", "scaled"):
        wanted = {"take_vertex_steps"}
    elif "vertices" in case:
        wanted |= {"steepest", "mix_coordinates"}
    elif kind != "scaled":
        wanted = {WALKS.get(kind, "take_steps")}
        if kind == "few rows" and case not in PLAIN:
            wanted = {"take_steps"}
    assert used == wanted


@pytest.mark.parametrize("kind", ["few rows", "logistic", "softmax"])
def test_the_number_of_threads_changes_no_bit(used, monkeypatch, kind):
    """Blocks of rounds try one and all."""
    problem = FederatedProblem(data(kind, np.float64))
    found, tried = [], set()
    note = calls.Pace.note
    monkeypatch.setattr(
        calls.Pace, "note", lambda pace, *took: (tried.add(pace.alone), note(pace, *took))[1]
    )
    for few in (sys.maxsize, 0):
        monkeypatch.setattr(compiled, "FEW", few)
        found.append(simulate(FedAvg(**STEPS), problem, 60, engine="jax", evaluate_every=5).x)
    assert tried == {True, False}
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize("shared", [False, True])
def test_runs_in_several_threads_are_compiled(used, monkeypatch, caplog, shared):
    """Traces share what they note; and one run's calls share their work, the others' meanwhile not.

    What is shared is claimed, one part after another.
    """
    problem = FederatedProblem(data("few rows", np.float64), constraint=L1Ball(1.0))
    strategy = FedFW(L1Ball(1.0), penalty=1.0)
    whole = simulate(strategy, problem, 400, engine="jax", evaluate_every=100).x
    if shared:
        monkeypatch.setattr(compiled, "FEW", 0)
        everyone = property(lambda pace: False, lambda pace, alone: None)
        monkeypatch.setattr(calls.Pace, "alone", everyone, raising=False)
    before = calls._slots.copy()
    found: list[Any] = []

    def run() -> None:
        found.append(simulate(strategy, problem, 400, engine="jax", evaluate_every=100).x)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((x == whole).all() for x in found)
    assert len(found) == 4
    assert "stacked engine" not in caplog.text
    many = numba.get_num_threads() > 1
    assert (calls._slots[:, 1] > before[:, 1]).any() == (shared and many)


def test_a_resumed_run_has_the_same_bits(used, tmp_path):
    """Also where no round of the stacked engine has prepared the kernels."""
    problem = FederatedProblem(data("few rows", np.float64))
    whole = simulate(Scaffold(**STEPS), problem, 40, engine="jax", evaluate_every=10)
    options: dict[str, Any] = {"engine": "jax", "evaluate_every": 10, "run_dir": tmp_path / "run"}
    simulate(Scaffold(**STEPS), problem, 20, **options)
    rest = simulate(Scaffold(**STEPS), problem, 40, resume=True, **options)
    assert (rest.x == whole.x).all()


def test_without_kernels_rounds_are_xlas_own(used, monkeypatch):
    """The same iterates up to rounding, and none of the loops."""
    problem = FederatedProblem(data("few rows", np.float64))
    expected = simulate(FedAvg(**STEPS), problem, 20, engine="jax")
    assert used
    used.clear()
    monkeypatch.setattr(dispatch, "can_be_loaded", lambda: False)
    found = simulate(FedAvg(**STEPS), problem, 20, engine="jax")
    np.testing.assert_allclose(found.x, expected.x, rtol=0, atol=1e-12)
    assert not used


ALONE = """
from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.lab.benchmarks.in_process import small_clients
from flower_fedcon.strategies import FedAvg
problem = FederatedProblem(small_clients(10, 100, rows=20).objectives)
print(simulate(FedAvg(client_lr=0.01, local_steps=5), problem, 30, engine="jax").x.sum().hex())
"""


def test_loops_from_numbas_cache_are_whole(tmp_path):
    """A process that finds all of them compiled has to launch their threads by itself."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    found = [
        subprocess.run(
            [sys.executable, "-c", ALONE],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for _ in range(2)
    ]
    assert found[0] == found[1] != ""
