"""Losses, sets and regularizers own their data: who lent an array may change it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedcon import FederatedProblem, regularizers, sets, simulate
from flower_fedcon import objectives as losses
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies import FedAvg

M, D = 6, 3
RNG = np.random.default_rng(0)
ROWS, VALUES, X = RNG.normal(size=(M, D)), RNG.normal(size=M), RNG.normal(size=D)
LABELS, COUNTS, CLASSES = np.sign(VALUES), RNG.poisson(2.0, M), np.arange(M) % 3
SQUARE = ROWS.T @ ROWS
PAIRS = np.array([[0, 1], [1, 2], [2, 0]])
WEIGHTS = np.arange(1.0, M + 1)
ONES = np.array([1.0, 2.0, 0.5])
HALF = losses.Quadratic(np.eye(D), np.zeros(D))

# What is made of which arrays, and what it is asked.
LOSSES: dict[str, Any] = {
    "LeastSquares": (losses.LeastSquares, ROWS, VALUES),
    "weighted": (lambda A, b, w: losses.LeastSquares(A, b, sample_weight=w), ROWS, VALUES, WEIGHTS),
    "intercept": (lambda A, b: losses.HuberRegression(A, b, intercept=True), ROWS, VALUES),
    "HuberRegression": (losses.HuberRegression, ROWS, VALUES),
    "LogisticRegression": (losses.LogisticRegression, ROWS, LABELS),
    "PoissonRegression": (losses.PoissonRegression, ROWS, COUNTS),
    "SoftmaxRegression": (lambda A, y: losses.SoftmaxRegression(A, y, 3), ROWS, CLASSES),
    "CoxRegression": (losses.CoxRegression, ROWS, np.arange(M) + 1.0, CLASSES % 2),
    "NeymanPearson": (losses.NeymanPearson, ROWS, ROWS[:2]),
    "Quadratic": (losses.Quadratic, SQUARE, ROWS[0]),
    "QuadraticAssignment": (losses.QuadraticAssignment, SQUARE, ROWS[:3], PAIRS),
    "MatrixCompletion": (
        lambda i, j, v: losses.MatrixCompletion(i, j, v, shape=(3, 3)),
        PAIRS[:, 0],
        PAIRS[:, 1],
        ROWS[0],
    ),
    "GroupLossBounds": (
        lambda bound, counts: losses.GroupLossBounds(HALF, [HALF] * D, bound, counts),
        ROWS[0],
        ONES,
    ),
    "ManyClients": (
        lambda A, b: losses.ManyClients(losses.LeastSquares, A, b)[1],
        ROWS.reshape(2, 3, D),
        VALUES.reshape(2, 3),
    ),
}
TERMS: dict[str, Any] = {
    "L1": (regularizers.L1, ONES),
    "SLOPE": (regularizers.SLOPE, np.array([3.0, 2.0, 1.0])),
    "GroupLasso": (lambda w, g: regularizers.GroupLasso(w, g), ONES[:2], np.array([0, 1, 1])),
    "Box": (sets.Box, -ONES, ONES),
    "GroupL2Ball": (lambda g: sets.GroupL2Ball(0.1, g), np.array([0, 1, 1])),
    "ShiftedSet": (lambda s: sets.ShiftedSet(sets.L2Ball(0.1), s), ONES),
    "ConvexHull": (sets.ConvexHull, ROWS),
    "HalfSpace": (lambda a: sets.HalfSpace(a, -1.0), ONES),
    "Hyperplane": (lambda a: sets.Hyperplane(a, -1.0), ONES),
    "AffineSubspace": (sets.AffineSubspace, ROWS[:2], VALUES[:2]),
    "Polyhedron": (sets.Polyhedron, np.r_[np.eye(D), -np.eye(D)], np.full(2 * D, 0.1)),
}
KINDS = LOSSES | TERMS


def answers(name: str, made: Any) -> list[Any]:
    if name in TERMS:
        return [made.prox(X, 0.5) if name in ("L1", "SLOPE", "GroupLasso") else made.project(X)]
    if name == "GroupLossBounds":
        return [made.constraint_sums(X), made.constraint_counts]
    x = np.resize(X, made.shape)
    return [made.value(x), made.gradient(x), made.smoothness or 0.0]


@st.composite
def lent(draw, array):
    """An array that somebody else can write to: as it is, in a larger one, or in another order."""
    form = draw(st.sampled_from(["own", "part", "view", "turned", "locked view"]))
    if array.dtype.kind == "f" and draw(st.booleans()):
        array = array.astype(np.float32)
    if form == "part":
        whole = np.zeros((2, *array.shape), array.dtype)
        whole[1] = array
        return whole[1], whole
    whole = np.array(array, order="F" if form == "turned" else "C")
    given = whole if form in ("own", "turned") else whole[:]
    if form == "locked view":
        given.flags.writeable = False
    return given, whole


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_who_lends_an_array_may_change_it(name, data):
    make, *arrays = KINDS[name]
    pairs = [data.draw(lent(array)) for array in arrays]
    made = make(*(given for given, _ in pairs))
    fresh = make(*(np.array(given) for given, _ in pairs))
    for _, whole in pairs:
        whole[...] = 1 - whole
    for ours, theirs in zip(answers(name, made), answers(name, fresh), strict=True):
        assert np.array_equal(ours, theirs)


def test_a_buffer_that_is_used_for_every_client():
    buffer, each = np.empty((M, D)), RNG.normal(size=(3, M, D))
    objectives = []
    for rows in each:
        buffer[...] = rows
        objectives.append(losses.LeastSquares(buffer, VALUES))
    problem = FederatedProblem(objectives)
    apart = FederatedProblem([losses.LeastSquares(rows, VALUES) for rows in each])
    for engine in ("local", "stacked"):
        runs = [
            simulate(FedAvg(client_lr=0.1, local_steps=2), p, 3, engine=engine)
            for p in (problem, apart)
        ]
        assert np.array_equal(runs[0].x, runs[1].x)


def test_what_nobody_can_write_to_is_not_copied(tmp_path):
    whole = np.array(RNG.normal(size=(2, M, D)))
    whole.flags.writeable = False
    np.save(tmp_path / "rows.npy", whole)
    for data in (whole, np.load(tmp_path / "rows.npy", mmap_mode="r")):
        f = losses.LeastSquares(data[1], VALUES)
        assert np.shares_memory(f.rows, data)
        assert np.shares_memory(losses.LogisticRegression(f.A, LABELS).rows, data)
        many = losses.ManyClients(losses.LeastSquares, data, np.zeros((2, M)))
        assert np.shares_memory(many[1].rows, data)
    copied = np.load(tmp_path / "rows.npy", mmap_mode="c")  # may be written to, in memory
    assert not np.shares_memory(losses.LeastSquares(copied[1], VALUES).rows, copied)


@pytest.mark.parametrize("name", KINDS)
def test_masked_entries_are_refused(name):
    make, *arrays = KINDS[name]
    for place, array in enumerate(arrays):
        hidden = np.ma.masked_array(array, mask=np.zeros(array.shape, bool))
        assert make(*arrays[:place], hidden, *arrays[place + 1 :]) is not None  # nothing is hidden
        hidden[tuple(0 for _ in array.shape)] = np.ma.masked
        with pytest.raises(ConfigError, match="masked"):
            make(*arrays[:place], hidden, *arrays[place + 1 :])
        if array.ndim == 1:
            continue
        with pytest.raises(ConfigError, match="masked"):
            make(*arrays[:place], list(hidden), *arrays[place + 1 :])


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([1e308] * M, "sum from 1e-300 to 1.8e308, got inf"),
        (np.full(M, 3e38, np.float32), None),
        ([5e-324] * M, "sum from 1e-300"),
    ],
)
def test_weights_whose_sum_is_no_number(weights, match):
    if match is None:  # the sum is one in double precision
        f = losses.LeastSquares(ROWS, VALUES, sample_weight=weights)
        assert f.value(X) == pytest.approx(losses.LeastSquares(ROWS, VALUES).value(X))
        return
    with pytest.raises(ConfigError, match=match):
        losses.LeastSquares(ROWS, VALUES, sample_weight=weights)
