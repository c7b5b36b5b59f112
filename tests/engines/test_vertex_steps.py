"""Frank-Wolfe steps taken at once: those that gradient, oracle and step find one by one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from row_clients import clients

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon import compiled as door
from flower_fedcon.clients.fedfw import FedFWClient
from flower_fedcon.errors import RoundError
from flower_fedcon.objectives.client_axis import VertexStep
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.sets import L1Ball, L2Ball
from flower_fedcon.strategies import FedFW

pytest.importorskip("numba", reason="the extra `fast` is not installed")
compiled = pytest.importorskip("flower_fedcon.compiled.calls")


@pytest.fixture(params=[0, sys.maxsize], ids=["threads", "one thread"], autouse=True)
def taken(request, monkeypatch) -> list[int]:
    """Use the kernels for data of any size; return for how many clients steps are taken at once."""
    monkeypatch.setattr(door, "WORTHWHILE", 0)
    monkeypatch.setattr(compiled, "FEW", request.param)
    found: list[int] = []
    real = compiled.take_vertex_steps
    monkeypatch.setattr(
        compiled, "take_vertex_steps", lambda *given: (found.append(len(given[2])), real(*given))[1]
    )
    return found


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("which", [slice(0, 5), slice(1, 3), np.array([3, 0, 4])])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "matrix"])
def test_a_step_is_its_parts(taken, kind, which, dtype):
    shape = (2, 70) if kind == "matrix" else (130,)  # more than two blocks of entries
    stacked = stack(clients(kind, 5, 6, shape, dtype))
    rng, n = np.random.default_rng(0), len(np.arange(5)[which])
    x = rng.standard_normal((n, *shape)).astype(dtype)
    center = rng.standard_normal(shape).astype(dtype)
    found = stacked.vertex_step(VertexStep(x, 0.2, center, 3.0, 0.25, 1.5), which)
    assert found is not None
    codes, moved = found
    atom = L1Ball(1.5).lmo(stacked.pulled_gradient(x, 0.2, center, 3.0, which), batch=1)
    assert taken == [n]
    assert np.array_equal(codes, atom.code)
    assert moved.dtype == dtype
    assert moved.tobytes() == atom.mix(x, 0.25).tobytes()


@pytest.mark.parametrize("kind", ["least squares", "logistic", "matrix"])
@pytest.mark.parametrize("participation", [None, Sample(count=3)])
def test_runs_take_them(taken, kind, participation):
    shape = (2, 3) if kind == "matrix" else (7,)
    problem = FederatedProblem(clients(kind, 5, 6, shape, np.float64), constraint=L1Ball(1.0))
    more = {} if participation is None else {"participation": participation}
    strategy = FedFW(problem.constraint, penalty=1.0, **more)
    local, stacked = (simulate(strategy, problem, 20, engine=e).x for e in ("local", "stacked"))
    np.testing.assert_allclose(stacked, local, rtol=0, atol=1e-13)
    assert sum(taken) == 20 * (5 if participation is None else 3)


class Rounded(L1Ball):
    """With an oracle of its own."""

    def lmo(self, g: Any, *, batch: int = 0) -> Any:
        return super().lmo(np.round(g, 1), batch=batch)


class Clipped(FedFWClient):
    """With a gradient of its own."""

    algorithm = "fedfw"

    def pulled_gradient(self, x: Any, center: Any, pull: float) -> Any:
        return np.clip(super().pulled_gradient(x, center, pull), -0.1, 0.1)


@pytest.mark.parametrize("own", ["another set", "oracle", "gradient", "batches"])
def test_what_is_not_such_a_step_is_taken_in_parts(taken, monkeypatch, own):
    chosen = {"another set": L2Ball(1.0), "oracle": Rounded(1.0)}.get(own, L1Ball(1.0))
    if own == "gradient":
        for place in ("local", "stacked"):
            module = f"flower_fedcon.engines.{place}.client_class"
            monkeypatch.setattr(module, lambda name: Clipped, raising=False)
    problem = FederatedProblem(clients("least squares", 4, 6, (7,), np.float64), constraint=chosen)
    more = {"gradient": "stochastic", "batch_size": 3} if own == "batches" else {}
    strategy = FedFW(chosen, penalty=1.0, **more)
    local, stacked = (simulate(strategy, problem, 9, engine=e).x for e in ("local", "stacked"))
    np.testing.assert_allclose(stacked, local, rtol=0, atol=1e-13)
    assert taken == []


def test_a_gradient_that_is_not_finite_is_told_as_by_the_local_engine(taken):
    objectives = clients("least squares", 3, 6, (7,), np.float64)
    assert all(objective.smoothness for objective in objectives)  # before it overflows
    objectives[1].rows = np.full_like(objectives[1].rows, 1e200)
    problem = FederatedProblem(objectives, constraint=L1Ball(1.0), x0=np.ones(7) / 7)
    said = []
    for engine in ("local", "stacked"):
        with np.errstate(all="ignore"), pytest.raises(RoundError) as caught:
            simulate(FedFW(L1Ball(1.0), penalty=1.0), problem, 3, engine=engine)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert taken
