"""Quadratic assignment and matrix completion: objectives and problems."""

import numpy as np
import pytest
from problems import differences

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import MatrixCompletion, QuadraticAssignment
from flower_fedcon.problems import BUILDERS, chr12a, movielens
from flower_fedcon.problems.papers.chr12a import instance
from flower_fedcon.sets import Birkhoff, NuclearNormBall
from flower_fedcon.strategies import FedFW, FedFWPlus


@pytest.mark.parametrize("entries", [[(0, 1)], [(0, 1), (3, 3), (2, 0)], None])
def test_assignment_gradients(entries):
    rng = np.random.default_rng(0)
    A, B, x = rng.normal(size=(3, 4, 4))
    f = QuadraticAssignment(A, B, entries)
    np.testing.assert_allclose(f.gradient(x), differences(f.value, x), atol=1e-7)
    mask = np.zeros((4, 4))
    for i, j in f.entries:
        mask[i, j] = 1
    product = A @ x @ B.T
    assert f.value(x) == pytest.approx((mask * x * product).sum())
    np.testing.assert_allclose(f.gradient(x), mask * product + A.T @ (mask * x) @ B)
    assert f.smoothness is None


def test_chr12a_is_the_instance():
    problem = chr12a()
    A, B = instance()
    assert A.shape == B.shape == (12, 12)
    np.testing.assert_array_equal(A, A.T)
    np.testing.assert_array_equal(B, B.T)
    assert problem.constraint == Birkhoff(12)
    assert [f.num_examples for f in problem.objectives] == [2] * 72
    np.testing.assert_array_equal(problem.objectives[7].entries, [[1, 2], [1, 3]])
    assert problem.metrics["total"](problem.x0) == pytest.approx(41361, abs=0.5)
    assert 72 * problem.objective(problem.x0) == pytest.approx(problem.metrics["total"](problem.x0))
    # QAPLIB's optimal permutation.
    best = np.array([7, 5, 12, 2, 1, 3, 9, 11, 10, 6, 8, 4]) - 1
    x = np.eye(12)[best]
    assert problem.metrics["total"](x) == problem.metrics["permutation_cost"](x) == 9552
    assert BUILDERS["chr12a"] is chr12a
    assert chr12a(clients=5).num_clients == 5
    with pytest.raises(ConfigError, match="at most 144"):
        chr12a(clients=145)


def test_chr12a_starts_beside_its_centre():
    centre = np.full((12, 12), 1 / 12)
    near, far = (chr12a(spread=spread, seed=0).x0 for spread in (1e-9, 1.0))
    assert Birkhoff(12).contains(far, 1e-12)
    assert near - centre == pytest.approx(1e-9 * (far - centre), abs=1e-16)
    assert np.abs(far - chr12a(spread=1.0, seed=1).x0).max() > 0.1
    for wrong in ({"spread": 0.5}, {"seed": 0}):
        with pytest.raises(ConfigError, match="give both, or neither"):
            chr12a(**wrong)
    with pytest.raises(ConfigError, match="spread must be at most 1"):
        chr12a(spread=2.0, seed=0)


def test_frank_wolfe_on_chr12a():
    problem = chr12a()
    totals = {}
    for kind, penalty in ((FedFW, 65.0), (FedFWPlus, 10.0)):
        history = simulate(kind(problem.constraint, penalty=penalty), problem, 100)
        totals[kind] = history["total"][-1]
        assert history["violation"][-1] == 0
        assert history["uplink_bytes"][-1] == 100 * 72 * (128 + 12)
    assert totals[FedFWPlus] < totals[FedFW] < 41361


def test_completion_by_hand_and_numerically():
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 4, 9), rng.integers(0, 5, 9)  # some occur twice
    f = MatrixCompletion(rows, cols, rng.normal(size=9), (4, 5), scale=0.7)
    x = rng.normal(size=(4, 5))
    expected = 0.7 * sum((x[i, j] - y) ** 2 for i, j, y in zip(rows, cols, f.values, strict=True))
    assert f.value(x) == pytest.approx(expected)
    assert f.rmse(x) == pytest.approx((expected / 0.7 / 9) ** 0.5)
    np.testing.assert_allclose(f.gradient(x), differences(f.value, x), atol=1e-8)
    np.testing.assert_allclose(f.gradient_operator(x).to_dense(), f.gradient(x))
    np.testing.assert_allclose(f.batch_gradient(x, np.arange(9)), f.gradient(x))
    single = [f.batch_gradient(x, np.array([k])) for k in range(9)]
    np.testing.assert_allclose(np.mean(single, axis=0), f.gradient(x))
    y = rng.normal(size=(4, 5))
    change = np.linalg.norm(f.gradient(x) - f.gradient(y))
    assert change <= f.smoothness * np.linalg.norm(x - y)
    assert f.strong_convexity == 0
    full = MatrixCompletion([0, 0], [0, 1], np.ones(2, np.float32), (1, 2))
    assert full.strong_convexity == full.smoothness == 2
    assert full.gradient(np.zeros((1, 2), np.float32)).dtype == np.float32


def test_movielens_popularity():
    """In MovieLens-100k a user has at most 737 ratings and an item 583, in the median 65 and 27."""
    for popularity, (least, most), medians in (
        (0.0, (60, 160), (106, 59)),
        (1.0, (450, 943), (80, 22)),
    ):
        problem = movielens(popularity=popularity, clients=2, test_fraction=0.0)
        rows, cols = (
            np.bincount(np.concatenate([getattr(f, name) for f in problem.objectives]))
            for name in ("rows", "cols")
        )
        assert rows.sum() == 100_000
        assert least < cols.max() < most > rows.max() > least
        assert np.median(rows) == pytest.approx(medians[0], rel=0.1)
        assert np.median(cols) == pytest.approx(medians[1], rel=0.2)


def test_movielens_file_and_synthetic(tmp_path):
    problem = movielens(clients=4, users=30, items=20, ratings=200, radius=60.0)
    assert problem.constraint == NuclearNormBall(60.0)
    assert sum(f.num_examples for f in problem.objectives) == 180
    history = simulate(FedFWPlus(problem.constraint, penalty=1e-3), problem, 60)
    assert history["train_rmse"][-1] < 0.8 * problem.metrics["train_rmse"](problem.x0)
    assert history["violation"][-1] <= 1e-9
    stars = np.concatenate([f.values for f in problem.objectives])
    assert set(stars) <= {1, 2, 3, 4, 5}
    path = tmp_path / "u.data"
    path.write_text("1\t3\t5\t881250949\n2\t1\t3\t891717742\n4\t2\t1\t878887116\n")
    problem = movielens(data=str(path), clients=2, test_fraction=0.0)
    assert problem.x0.shape == (4, 3)
    assert list(problem.metrics) == ["train_rmse"]
    whole = sum(f.gradient(problem.x0) for f in problem.objectives)
    np.testing.assert_array_equal(whole[[0, 1, 3], [2, 0, 1]], [-10, -6, -2])
    assert BUILDERS["movielens"] is movielens
    single = movielens(data=str(path), clients=2, precision="float32")
    assert {f.dtype for f in single.objectives} == {np.dtype(np.float32)}
    assert single.objective(single.x0) == pytest.approx(
        movielens(data=str(path), clients=2).objective(single.x0), rel=1e-6
    )


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: QuadraticAssignment(np.eye(2), np.eye(3)), "of one shape"),
        (lambda: QuadraticAssignment(np.eye(2), np.eye(2), [(0, 2)]), "must be 0 to 1"),
        (lambda: QuadraticAssignment(np.eye(2), np.eye(2), [(0, 1), (0, 1)]), "twice"),
        (lambda: QuadraticAssignment(np.eye(2), np.eye(2), [0.5]), "pairs of integers"),
        (lambda: QuadraticAssignment(np.eye(2), np.eye(2)).value(np.ones(4)), "takes x of shape"),
        (lambda: MatrixCompletion([0], [0], [np.nan], (1, 1)), "not finite"),
        (lambda: MatrixCompletion([1], [0], [1.0], (1, 1)), "count from 1"),
        (lambda: MatrixCompletion([0.0], [0], [1.0], (1, 1)), "array of integers"),
        (lambda: MatrixCompletion([0], [0, 1], [1.0], (1, 2)), "one length"),
        (lambda: MatrixCompletion([0], [0], [1.0], (1,)), "rows, columns"),
        (lambda: MatrixCompletion([0], [0], [1.0], (1, 1), scale=0), "scale"),
        (lambda: MatrixCompletion([0], [0], [1.0], (1, 1)).value(np.ones(1)), "takes x of shape"),
        (lambda: movielens(data="/nowhere/u.data"), "cannot read /nowhere"),
        (lambda: movielens(users=2, items=2, ratings=5), "at most users"),
        (lambda: movielens(popularity=-1.0), "popularity must be finite and >= 0, got -1.0"),
        (lambda: movielens(precision="float16"), "one of 'float64', 'float32', got 'float16'"),
        (lambda: movielens(test_fraction=1.0), "test_fraction"),
        (lambda: movielens(clients=10, users=3, items=3, ratings=9), "at most the 8"),
    ],
)
def test_refusals(build, words):
    with pytest.raises(ConfigError, match=words):
        build()
