"""Steps taken in one go by compiled loops: those that the clients would take one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import agree
from row_clients import clients

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon import compiled as door
from flower_fedcon.clients.fedfw import FedFWClient
from flower_fedcon.errors import RoundError
from flower_fedcon.objectives import LeastSquares, SoftmaxRegression
from flower_fedcon.objectives.client_axis import VertexStep
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.objectives.local_pass import LocalPass, Prox
from flower_fedcon.objectives.stacked_objective import StackedObjective
from flower_fedcon.problems import digits
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import L1, ElasticNet
from flower_fedcon.sets import L1Ball, L2Ball
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FedDualAvg, FedFW, FedProx

pytest.importorskip("numba", reason="the extra `fast` is not installed")
from flower_fedcon.compiled import calls as compiled

pytestmark = pytest.mark.usefixtures("always")
WHICH = np.array([0, 2, 3])
each_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def parts_of(kind: str, dtype: Any, d: int) -> list[Any]:
    """Return four clients of nine rows."""
    rng = np.random.default_rng(7)
    if kind == "several outputs":
        draws = [(rng.standard_normal((9, d)), rng.standard_normal((9, 5))) for _ in range(4)]
        tables = [[table.astype(dtype) for table in pair] for pair in draws]
        return [LeastSquares(*pair, 1.5, l2=0.1 * j) for j, pair in enumerate(tables)]
    if kind != "softmax":
        return clients(kind, 4, 9, (d,), dtype)
    tables = [(rng.standard_normal((9, d)), rng.integers(0, 5, 9)) for _ in range(4)]
    own = enumerate(tables)
    return [SoftmaxRegression(A.astype(dtype), y, 5, l2=0.1 * j) for j, (A, y) in own]


def one_by_one(parts: list[Any], taken: LocalPass, rows: Any) -> np.ndarray:
    """Return where z := a z + b w - rate g(w) leads each client of WHICH."""

    def own(name: str, i: int) -> Any:
        value = getattr(taken, name)
        own_axis = value is not None and value.ndim > len(parts[0].shape)
        return 0.0 if value is None else value[i] if own_axis else value

    ends = []
    for i, j in enumerate(WHICH):
        z = own("start", i)
        for k in range(taken.steps):
            w = z if taken.point is None else taken.point(z, k)
            w = taken.first if k == 0 and taken.first is not None else w
            chosen = np.arange(9) if rows is None else rows[i, k]
            g = parts[j].batch_gradient(w, chosen) + own("linear", i)
            g = g + taken.shift * (w - own("center", i))
            z = taken.onward[0] * z + taken.onward[1] * w - taken.rate * g
        ends.append(z)
    return np.array(ends)


PROXES = Prox(ElasticNet(0.3, 0.2), [0.0, 0.1, 0.2, 0.3, 0.4].__getitem__)
BOTH = {"terms": ["linear", "center"], "shift": 0.7}
PASSES = {  # what a pass has beside start, steps and rate
    "plain": {},
    "drift": {"terms": ["linear"]},
    "one drift and pull": {"terms": ["one linear"], "shift": 0.7},
    "pull": {"terms": ["center"], "shift": 0.7},
    "to one point": {"terms": ["linear", "one center"], "shift": 0.7},
    "from both": {"onward": (0.5, 0.25)},
    "prox, from z": {**BOTH, "point": PROXES},
    "prox, from the point": {**BOTH, "point": PROXES, "onward": (0.0, 1.0)},
    "prox, from both": {
        "terms": ["linear", "center", "first"], "shift": 0.7,
        "point": PROXES, "onward": (1.0, 0.25),
    },
}  # fmt: skip


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("name", PASSES)
@each_dtype
@pytest.mark.parametrize(
    ("kind", "d"),
    [(kind, d) for kind in ("least squares", "logistic") for d in (7, 60)]
    + [("softmax", 6), ("several outputs", 6)],
)
def test_steps_taken_in_one_go_are_those_one_by_one(kind, d, dtype, name, batches, monkeypatch):
    """Of few rows with many entries, plain steps by the rows' products."""
    used, module = [], door.loops(np.ones(1))
    real = module.take_steps_by_scores
    monkeypatch.setattr(module, "take_steps_by_scores", lambda *a: (used.append(1), real(*a))[1])
    parts, rng, given = parts_of(kind, dtype, d), np.random.default_rng(5), dict(PASSES[name])
    for term in given.pop("terms", []):
        value = rng.standard_normal((3, *parts[0].shape)).astype(dtype)
        alone = term == "first" or term.startswith("one ")
        given[term.removeprefix("one ")] = value[0] if alone else value
    start = rng.standard_normal((3, *parts[0].shape)).astype(dtype)
    taken = LocalPass(start, steps=5, rate=0.01, **given)
    rows = rng.integers(0, 9, (3, 5, 4)) if batches else None
    whole = stack(parts)
    assert whole.takes(taken)
    found = whole.gradient_steps(taken, WHICH, rows)
    assert found.dtype == dtype
    exact = 1e-13 if dtype == np.float64 else 2e-5 if kind == "softmax" else 1e-5
    np.testing.assert_allclose(found, one_by_one(parts, taken, rows), rtol=exact, atol=exact)
    assert len(used) == (d == 60 and not batches and "from" not in name)
    lost = LocalPass(np.full(parts[0].shape, np.nan, dtype), steps=2, rate=0.05)
    assert np.isnan(whole.gradient_steps(lost, WHICH, None)).all()
    used.clear()
    whole.gradient_steps(taken._replace(steps=1), WHICH, None)  # which has the rows once
    assert not used


def test_softmax_with_an_intercept_is_not_taken():
    free = [
        SoftmaxRegression(f.A, f.y, 5, l2=0.1, intercept=True)
        for f in parts_of("softmax", float, 6)
    ]
    assert not stack(free).takes(LocalPass(np.zeros((7, 5)), steps=2, rate=0.05))


@each_dtype
@pytest.mark.parametrize(("kind", "d"), [("least squares", 5), ("logistic", 60), ("softmax", 5)])
@pytest.mark.parametrize("batches", [False, True])
def test_control_variates_move_with_the_steps(kind, d, dtype, batches):
    """Bit for bit as they would after them; by either loop over rows, and softmax regression's."""
    rng, whole = np.random.default_rng(7), stack(parts_of(kind, dtype, d))
    own = rng.standard_normal((3, *whole.shape)).astype(dtype)
    chosen = rng.integers(0, 7, (3, 4, 5)) if batches else None
    for start in (own[0] / 2, own / 2):
        steps = LocalPass(start, own[1], less=own, steps=4, rate=0.01, variate_rate=-1 / 0.07)
        assert whole.takes(steps)
        delta = whole.gradient_steps(steps, WHICH, chosen) - start
        moved, variates = whole.variate_steps(steps, WHICH, chosen)
        np.testing.assert_array_equal(moved, delta)
        np.testing.assert_array_equal(variates, own + (delta * dtype(-1 / 0.07) - own[1]))
        assert moved.dtype == variates.dtype == dtype


def test_small_data_are_compiled_for_many_steps_alone(monkeypatch):
    monkeypatch.setattr(door, "WORTHWHILE", 300)
    whole = stack(clients("least squares", 2, 5, (8,), np.float64))  # 80 entries
    x, which = np.ones((2, 8)), slice(0, 2)
    assert whole._compiled is None
    assert [whole.takes(LocalPass(x, steps=n, rate=0.1)) for n in (3, 4, 3)] == [False, True, False]
    found = whole.gradient_steps(LocalPass(x, steps=4, rate=0.1), which, None)
    for _ in range(4):
        x = x - 0.1 * whole.gradient(x, which)
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)
    with door.numpy_only():
        assert not whole.takes(LocalPass(x, steps=4, rate=0.1))


# --- who takes them -------------------------------------------------------------------------------


@pytest.fixture
def count(monkeypatch):
    """Return how often a method of the stack is called from now on."""

    def calls(way: str) -> list[int]:
        found: list[int] = []
        real = getattr(StackedObjective, way)
        monkeypatch.setattr(
            StackedObjective, way, lambda *given: (found.append(1), real(*given))[1]
        )
        return found

    return calls


@pytest.mark.parametrize(
    "name", ["fedavg", "scaffold", "fedmid", "feddualavg", "compositefl", "fastfedda", "scaffnew"]
)
def test_who_takes_all_steps_in_one_go(name, count):
    taken = count("variate_steps" if name == "scaffold" else "gradient_steps")
    own = {
        "fastfedda": {"strong_convexity": 0.1, "local_steps": 3},
        "scaffnew": {"client_lr": 0.01, "communication_probability": 0.5},
    }.get(name, {"client_lr": 0.01, "local_steps": 3})
    psi = {} if name in ("fedavg", "scaffold", "scaffnew") else {"regularizer": L1(0.1)}
    problem = FederatedProblem(clients("least squares", 4, 9, (7,), np.float64), **psi)
    agree(algorithms()[name](*psi.values(), **own), problem, 6, 1e-12)
    assert len(taken) == 6


@pytest.mark.parametrize("d", [7, 40])  # one by one, and by the rows' products
def test_counted_steps_of_a_local_solver_are_taken_in_one_go(d, count):
    """All but the last, whose gradient is that of the report; the work counts all."""
    taken = count("gradient_steps")
    problem = FederatedProblem(clients("least squares", 4, 9, (d,), np.float64))

    def prox(**given: Any) -> FedProx:
        return FedProx(proximal=0.5, local_solver=GradientDescent(**given))

    columns = ["local_iterations", "local_evaluations"]
    found = agree(prox(steps=6, lr=0.01), problem, 5, 1e-12, columns=columns)
    assert found["local_evaluations"][-1] == 5 * 4 * 6
    for given in ({"steps": 6}, {"steps": 6, "lr": 0.01, "tolerance": 1e-3}):
        simulate(prox(**given), problem, 2, engine="stacked")
    assert len(taken) == 5  # a step of its own for each client; a stopping rule
    for engine in ("local", "stacked"):
        with pytest.raises(RoundError, match="diverged in iteration"):
            simulate(prox(steps=900, lr=1e3), problem, 2, engine=engine)


def test_minibatch_steps_of_softmax_regression_go_as_in_the_local_engine():
    problem = digits(l1=1e-3)
    settings = {"client_lr": 0.1, "local_steps": 5, "batch_size": 10}
    agree(FedDualAvg(problem.regularizer, **settings), problem, 8, 1e-12)


# --- steps to a vertex ----------------------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch) -> list[int]:
    """For how many clients steps to a vertex are taken at once."""
    found: list[int] = []
    real = compiled.take_vertex_steps
    monkeypatch.setattr(
        compiled, "take_vertex_steps", lambda *given: (found.append(len(given[2])), real(*given))[1]
    )
    return found


@each_dtype
@pytest.mark.parametrize("which", [slice(0, 5), slice(1, 3), np.array([3, 0, 4])])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "matrix"])
def test_a_vertex_step_is_its_parts(taken, kind, which, dtype):
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


class Rounded(L1Ball):
    """With an oracle of its own."""

    def lmo(self, g: Any, *, batch: int = 0) -> Any:
        return super().lmo(np.round(g, 1), batch=batch)


class Clipped(FedFWClient):
    """With a gradient of its own."""

    algorithm = "fedfw"

    def pulled_gradient(self, x: Any, center: Any, pull: float) -> Any:
        return np.clip(super().pulled_gradient(x, center, pull), -0.1, 0.1)


BALL = L1Ball(1.0)
VERTICES = {  # the set, what else the method has, and for how many clients a step is taken at once
    "all": (BALL, {}, 4),
    "sampled": (BALL, {"participation": Sample(count=3)}, 3),
    "another set": (L2Ball(1.0), {}, 0),
    "an oracle of one's own": (Rounded(1.0), {}, 0),
    "a gradient of one's own": (BALL, {}, 0),
    "batches": (BALL, {"gradient": "stochastic", "batch_size": 3}, 0),
}


@pytest.mark.parametrize("kind", ["least squares", "logistic", "matrix"])
@pytest.mark.parametrize("name", VERTICES)
def test_runs_take_vertex_steps_where_they_are_those(taken, monkeypatch, name, kind):
    chosen, more, clients_at_once = VERTICES[name]
    if name == "a gradient of one's own":
        for place in ("local", "stacked"):
            module = f"flower_fedcon.engines.{place}.client_class"
            monkeypatch.setattr(module, lambda name: Clipped, raising=False)
    shape = (2, 3) if kind == "matrix" else (7,)
    problem = FederatedProblem(clients(kind, 4, 6, shape, np.float64), constraint=chosen)
    more = {"participation": Full(), **more}
    agree(FedFW(chosen, penalty=1.0, **more), problem, 20, 1e-13)
    assert sum(taken) == 20 * clients_at_once


def test_a_gradient_that_is_not_finite_is_told_as_by_the_local_engine(taken):
    objectives = clients("least squares", 3, 6, (7,), np.float64)
    assert all(objective.smoothness for objective in objectives)  # before it overflows
    objectives[1].rows = np.full_like(objectives[1].rows, 1e200)
    problem = FederatedProblem(objectives, constraint=BALL, x0=np.ones(7) / 7)
    said = []
    for engine in ("local", "stacked"):
        with np.errstate(all="ignore"), pytest.raises(RoundError) as caught:
            simulate(FedFW(BALL, penalty=1.0), problem, 3, engine=engine)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert taken
