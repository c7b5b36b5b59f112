"""FedFW and FedFWPlus on matrices: sparse gradients stay sparse, atoms are added as factors."""

from __future__ import annotations

import numpy as np
import pytest
from harness import reply

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.objectives import LeastSquares, MatrixCompletion, Scaled
from flower_fedcon.sets import (
    L1Ball,
    NuclearNormBall,
    Product,
    RankOneAtom,
    SpectrahedronTraceBall,
    SquareAtom,
)
from flower_fedcon.strategies import FedFW, FedFWPlus

BOTH = pytest.mark.parametrize("kind", [FedFW, FedFWPlus])
SHAPE = (70, 90)


def completion(clients=5, shape=SHAPE, dtype=float):
    """Clients with entries of their own, some of them twice."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(clients):
        rows, cols = (rng.integers(0, n, 60) for n in shape)
        values = rng.normal(size=60).astype(dtype)
        found.append(MatrixCompletion([*rows, rows[0]], [*cols, cols[0]], [*values, 1.0], shape))
    return found


class Dense:
    """The same objective, which knows its whole gradient only."""

    def __init__(self, inner):
        self.inner, self.shape, self.num_examples = inner, inner.shape, inner.num_examples

    def value(self, x):
        return self.inner.value(x)

    def gradient(self, x):
        return self.inner.gradient(x)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_gradient_is_added_in_place(dtype, order):
    rng = np.random.default_rng(1)
    f = completion(1, dtype=dtype)[0]
    x = rng.normal(size=SHAPE).astype(dtype)
    for objective in (f, Scaled(f, 0.25), Scaled(Scaled(f, 0.5), 3.0)):
        out = np.asarray(rng.normal(size=SHAPE).astype(dtype), order=order)
        expected = out + 0.3 * objective.gradient(x)
        objective.add_gradient(x, out, 0.3)
        assert out.dtype == dtype
        np.testing.assert_allclose(out, expected, rtol=0, atol=20 * np.finfo(dtype).eps)
    assert not hasattr(Scaled(Dense(f), 2.0), "add_gradient")


@BOTH
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0, 4.0, 5.0]])
def test_no_dense_gradient_is_made(kind, sampled, weights, monkeypatch):
    """And the iterates are those that the dense gradient gives."""
    ball = NuclearNormBall(20.0)
    options = {"participation": Sample(count=3)} if sampled else {}

    def run(objectives):
        problem = FederatedProblem(objectives, constraint=ball, weights=weights)
        return simulate(kind(ball, penalty=0.01, **options), problem, 12, evaluate_every=0).x

    dense = run([Dense(f) for f in completion()])

    def refuse(self, x):
        raise AssertionError("a dense gradient")

    monkeypatch.setattr(MatrixCompletion, "gradient", refuse)
    np.testing.assert_allclose(run(completion()), dense, atol=1e-8)


@BOTH
def test_stochastic_gradients_take_batches(kind, monkeypatch):
    ball = NuclearNormBall(20.0)
    problem = FederatedProblem(completion(), constraint=ball)
    monkeypatch.setattr(MatrixCompletion, "add_gradient", None)
    strategy = kind(ball, penalty=0.01, gradient="stochastic", batch_size=7)
    start = problem.objective(problem.x0)
    assert problem.objective(simulate(strategy, problem, 40, evaluate_every=0).x) < start


# --- the server's sum -----------------------------------------------------------------------------


def rank_one(rng, count, dtype):
    us, vs = rng.normal(size=(count, 40)), rng.normal(size=(count, 30))
    return [
        RankOneAtom(
            (u / np.linalg.norm(u)).astype(dtype), (v / np.linalg.norm(v)).astype(dtype), 7.0
        )
        for u, v in zip(us, vs, strict=True)
    ]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_atoms_of_matrices_are_added_by_one_product(dtype, count, monkeypatch):
    rng = np.random.default_rng(count)
    atoms = rank_one(rng, count, dtype)
    squares = [SquareAtom(atom.u, 3.0) for atom in atoms]
    squares[0] = SquareAtom(np.zeros(40, dtype), 3.0)
    expected = {
        kind: np.sum([atom.dense().astype(float) for atom in given], axis=0)
        for kind, given in (("rank one", atoms), ("square", squares))
    }

    def refuse(self, out=None):
        raise AssertionError("a dense atom")

    for kind in (RankOneAtom, SquareAtom):
        monkeypatch.setattr(kind, "dense", refuse)
        monkeypatch.setattr(kind, "add_to", refuse)
    for given, name in ((atoms, "rank one"), (squares, "square")):
        uploads = [reply(i, 1, {"atom": atom}) for i, atom in enumerate(given)]
        total = Uploads(uploads, count).sum("atom")
        assert total.dtype == dtype
        atol = 1e-13 if dtype == np.float64 else 1e-4
        np.testing.assert_allclose(total, expected[name], atol=atol)
        # What came over the wire gives the same bytes.
        ball = NuclearNormBall(7.0) if name == "rank one" else SpectrahedronTraceBall(3.0)
        again = []
        for i, a in enumerate(given):
            parts = {k: v.copy() for k, v in a.arrays().items()}
            again.append(reply(i, 1, {"atom": ball.decode_atom(parts, a.shape, a.dtype)}))
        assert Uploads(again, count).sum("atom").tobytes() == total.tobytes()


def test_products_and_moved_sets_are_added_by_their_parts():
    rng = np.random.default_rng(0)
    both = Product([(L1Ball(1.0), (3,)), (NuclearNormBall(2.0).scaled(1.5).shifted(0.5), (4, 5))])
    atoms = [both.lmo(rng.normal(size=23)) for _ in range(6)]
    total = type(atoms[0]).sum(atoms)
    np.testing.assert_allclose(total, np.sum([a.dense() for a in atoms], axis=0), atol=1e-13)


@BOTH
@pytest.mark.parametrize("ball", [NuclearNormBall(2.0), SpectrahedronTraceBall(2.0)], ids=repr)
def test_the_stacked_engine_agrees(kind, ball):
    rng = np.random.default_rng(2)
    data = [(rng.normal(size=(12, 70, 70)), rng.normal(size=12)) for _ in range(4)]
    problem = FederatedProblem([LeastSquares(A, b) for A, b in data], constraint=ball)
    local, stacked = (
        simulate(kind(ball, penalty=0.1), problem, 15, engine=engine, evaluate_every=0)
        for engine in ("local", "stacked")
    )
    np.testing.assert_allclose(stacked.x, local.x, rtol=0, atol=1e-10)
    assert stacked["uplink_bytes"][-1] == local["uplink_bytes"][-1]
    assert np.count_nonzero(local.x) > 0
