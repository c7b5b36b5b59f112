"""Noise in whole steps: its distribution, what no low bit tells, and how far one summand goes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import LOSSES
from scipy import stats
from scipy.sparse import csr_array
from scipy.special import ndtr, ndtri

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    PrivateObjective,
    Quadratic,
)
from flower_fedcon.objectives.row_gradients import clipped_steps, losses_of_rows
from flower_fedcon.privacy import ExampleDP, GaussianDP
from flower_fedcon.privacy.clipping import clipped
from flower_fedcon.privacy.noise import Grid, discrete_gaussian
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg

DELTA = 1e-5


# --- the distribution --------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_small_noise_has_the_probabilities_of_a_discrete_gaussian(bits):
    drawn = discrete_gaussian(40_000, bits)
    k = np.arange(-6 * 2**bits, 6 * 2**bits + 1)
    p = np.exp(-(k**2) / 2 / 4.0**bits)
    often = 40_000 * p / p.sum()
    seen = np.array([(drawn == j).sum() for j in k])
    known = often > 5
    ratio = seen[known].sum() / often[known].sum()
    assert stats.chisquare(seen[known], often[known] * ratio).pvalue > 1e-6


def test_fine_noise_is_gaussian_to_the_last_bit():
    drawn = discrete_gaussian(40_000, 31)
    assert stats.kstest(drawn / 2.0**31, "norm").pvalue > 1e-6
    for bit in range(20):  # fair coins
        assert abs((drawn >> bit & 1).mean() - 0.5) < 0.02
    assert abs((drawn > 0).mean() - 0.5) < 0.02


@pytest.mark.nightly
def test_the_tails_and_the_moments_of_ten_million_draws():
    drawn = discrete_gaussian(10_000_000, 31) / 2.0**31
    for far in (2.0, 3.0, 4.0, 4.7):
        expected = 2 * stats.norm.sf(far) * len(drawn)
        assert abs((np.abs(drawn) > far).sum() - expected) < 6 * math.sqrt(expected)
    assert drawn.std() == pytest.approx(1.0, abs=2e-3)


# --- what the low bits tell ---------------------------------------------------------------------


def likely(released, total, deviation):
    """Return for how many entries some 52-bit number gives just this noise on this sum.

    Of noise that is added in floating point, nearly all entries of the true sum have one, and one
    in ten of another sum's.
    """
    k = np.rint(ndtr((released - total) / deviation) * 2.0**52 - 0.5)
    found = np.zeros(released.shape, bool)
    with np.errstate(all="ignore"):
        for near in range(-6, 7):
            found |= deviation * ndtri((k + near + 0.5) * 2.0**-52) + total == released
    return found.mean()


def told_apart(release, sums, deviation, runs=16):
    """Return in how many of so many runs the low bits tell which of two sums was released."""
    right = 0
    for run in range(runs):
        truth = run % 2
        released = release(truth)
        scores = [likely(released, total, deviation) for total in sums]
        assert max(scores) < 0.4  # none of them is the noise of either sum
        right += int(scores[1] > scores[0]) == truth
    return right


class Pull(Quadratic):
    """A client whose gradient at 0 is -b."""

    def __init__(self, b):
        super().__init__(np.eye(len(b)), b)


@pytest.mark.parametrize("by", ["server", "clients"])
def test_low_bits_of_a_model_tell_nothing_of_a_client(by):
    d, clients, z = 200, 4, 100.0
    moved = np.full(d, 0.01)

    def release(truth):
        problem = FederatedProblem([Pull(np.zeros(d))] * (clients - 1) + [Pull(truth * moved)])
        rule = GaussianDP(1.0, z, DELTA, noise_by=by)
        strategy = FedAvg(client_lr=1.0, local_steps=1, privacy=rule)
        return simulate(strategy, problem, 1, evaluate_every=0).x * clients

    deviation = z * (1.0 if by == "server" else math.sqrt(2.0))  # of four, two suffice
    assert told_apart(release, (np.zeros(d), moved), deviation) < 16


def test_nor_do_those_behind_a_prox():
    d, clients, z = 200, 4, 100.0
    moved, psi = np.full(d, 0.01), L1(0.001)

    def release(truth):
        problem = FederatedProblem(
            [Pull(np.zeros(d))] * (clients - 1) + [Pull(truth * moved)], regularizer=psi
        )
        strategy = FedDualAvg(psi, client_lr=1.0, local_steps=1, privacy=GaussianDP(1.0, z, DELTA))
        x = simulate(strategy, problem, 1, evaluate_every=0).x
        return (x + 0.001 * np.sign(x)) * clients

    assert told_apart(release, (np.zeros(d), moved), z) < 16


def test_nor_do_those_of_private_examples():
    rng, m, d, z = np.random.default_rng(0), 50, 200, 1000.0
    A, b = rng.standard_normal((m, d)), np.sign(rng.standard_normal(m))
    without = A.copy()
    without[-1] = 0.0
    worlds = [LogisticRegression(each, b) for each in (without, A)]
    sums = [f.clipped_sum(np.zeros(d), 1.0, np.arange(m)) for f in worlds]
    rule = ExampleDP(1.0, z, DELTA)

    def release(truth):
        return PrivateObjective(worlds[truth], rule).gradient(np.zeros(d)) * m

    assert told_apart(release, sums, z) < 16


def test_a_release_is_a_whole_number_of_steps_whoever_is_in_it():
    grid = Grid(1.0, 3.0, 2)
    released = simulate(
        FedAvg(client_lr=1.0, local_steps=1, privacy=GaussianDP(1.0, 3.0, DELTA)),
        FederatedProblem([Pull(np.array([0.1, 0.2])), Pull(np.array([1 / 3, 5.0]))]),
        1,
    ).x
    steps = released * 2 / grid.step
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)


# --- how far one summand moves a sum ------------------------------------------------------------


def squared(steps):
    """Return the squared length of whole numbers, exactly."""
    return sum(int(k) ** 2 for k in steps)


def farthest(grid, clip, deviation):
    """Return the squared length that a summand may have, in steps, exactly."""
    return (Fraction(clip) * 2**grid.bits / Fraction(deviation)) ** 2


def hold_a_summand(rng):
    clip, z = 10.0 ** rng.uniform(-6, 6), 10.0 ** rng.uniform(-3, 3)
    grid = Grid(clip, z * clip, 10.0 ** rng.integers(0, 6))
    length = clip * rng.choice([0.0, 0.5, 1 - 1e-15, 1.0, 1 + 1e-15, 3.0, 1e9, 1e200])
    values = rng.standard_normal((3, rng.integers(1, 40)))
    values *= length / np.linalg.norm(values, axis=1)[:, None]
    dtype = rng.choice([np.float32, np.float64])
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    found = grid.steps(values)
    assert max(map(squared, found)) <= farthest(grid, clip, z * clip)
    if length <= 0.5 * clip:
        np.testing.assert_array_equal(found, np.rint(values.astype(float) / grid.step))


def test_no_summand_is_longer_than_the_clip():
    rng = np.random.default_rng(0)
    for _ in range(150):
        hold_a_summand(rng)


@pytest.mark.nightly
def test_no_summand_of_a_hundred_thousand_is_longer_than_the_clip():
    rng = np.random.default_rng()
    for _ in range(100_000):
        hold_a_summand(rng)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([np.float32, np.float64]))
def test_a_clipped_point_is_no_farther_from_its_centre_than_the_clip(seed, dtype):
    rng = np.random.default_rng(seed)
    clip, far = 10.0 ** rng.uniform(-2, 0), 10.0 ** rng.uniform(0, 7)
    center = (far * (1 + rng.random(300))).astype(dtype)
    points = (center + 10 * clip * rng.standard_normal((4, 300))).astype(dtype)
    points[0] = center + np.where(rng.random(300) < 0.1, 4 * np.spacing(center.max()), 0)
    found = clipped({"z": points}, {"z": center}, clip)["z"].astype(np.float64)
    assert np.linalg.norm(found - center.astype(np.float64), axis=1).max() <= clip


def neighbours(rng, dtype, form, kind):
    """Return data, a point at which rounding is all that scores are, and the row that leaves."""
    m, d = int(rng.integers(2, 40)), int(rng.choice([1, 3, 4, 8, 17]))
    rank = max(1, d // 2)
    A = (rng.standard_normal((m, rank)) @ rng.standard_normal((rank, d))).astype(dtype)
    null = np.linalg.svd(A.astype(float))[2][rank:]
    x = rng.standard_normal(d) if rng.random() < 0.3 or not len(null) else (
        10.0 ** rng.uniform(0, 25) * rng.standard_normal(len(null)) @ null
    )  # fmt: skip
    if form == "sparse":
        A[rng.random(A.shape) < 0.5] = 0.0
    rows = rng.integers(0, 11, m)
    made = LOSSES[kind](A if form == "dense" else csr_array(A), rows)
    keep = np.delete(np.arange(m), leaves := int(rng.integers(m)))
    other = LOSSES[kind](A[keep] if form == "dense" else csr_array(A[keep]), rows[keep])
    if len(made.shape) > 1:
        x = np.stack([x, -x, rng.standard_normal(d)], axis=1)
    return made, other, x.astype(dtype), leaves


def hold_neighbours(rng, dtype, form, kind):
    made, other, x, leaves = neighbours(rng, dtype, form, kind)
    clip, deviation = 0.7, 0.7 * 10.0 ** rng.uniform(-2, 2)
    grid = Grid(clip, deviation, 64)
    whole = clipped_steps(made, x, grid, np.arange(made.num_examples))
    rest = clipped_steps(other, x, grid, np.arange(other.num_examples))
    assert squared(whole - rest) <= farthest(grid, clip, deviation)
    # more than that: the row's own gradient is the difference, to the last bit
    np.testing.assert_array_equal(whole - rest, clipped_steps(made, x, grid, np.array([leaves])))


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_row_moves_the_sum_by_its_own_clipped_gradient(kind, form):
    rng = np.random.default_rng(len(kind))
    for dtype in (np.float64, np.float32):
        for _ in range(25):
            hold_neighbours(rng, dtype, form, kind)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_sparse_row_that_names_a_column_twice_is_the_sum_of_both(kind):
    """Their squares apart are less than that of their sum, by which a row is clipped."""
    data, columns, ends = np.full(8, 100.0), np.array([0, 0, 1, 1, 1, 2, 0, 2]), [0, 3, 6, 8]
    rows, grid = np.array([5, 1, 8]), Grid(0.7, 1.0, 3)
    twice = csr_array((data, columns, ends), shape=(3, 3))
    sparse, dense = (LOSSES[kind](form, rows) for form in (twice, twice.toarray()))
    x = np.zeros(dense.shape)
    for row in range(3):
        found, expected = (clipped_steps(f, x, grid, np.array([row])) for f in (sparse, dense))
        assert squared(found) <= farthest(grid, 0.7, 1.0)
        assert np.abs(found - expected).max() <= 1
    assert sparse.smoothness == pytest.approx(dense.smoothness)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", LOSSES)
def test_a_row_moves_the_sum_by_its_own_gradient_in_a_hundred_thousand_cases(kind):
    rng = np.random.default_rng()
    for _ in range(17_000):
        hold_neighbours(rng, rng.choice([np.float32, np.float64]), rng.choice(["dense", "sparse"]),
                        kind)  # fmt: skip


@pytest.mark.parametrize("kind", [LogisticRegression, HuberRegression])
def test_a_public_clipped_sum_moves_by_the_clip_too(kind):
    rng = np.random.default_rng(1)
    for _ in range(100):
        d, m = int(rng.choice([3, 17])), int(rng.integers(2, 60))
        A = rng.standard_normal((m + 1, d // 2)) @ rng.standard_normal((d // 2, d))
        b = np.sign(rng.standard_normal(m + 1))
        null = np.linalg.svd(A)[2][d // 2 :]
        x = 1e25 * (rng.standard_normal(len(null)) @ null)
        rest = np.delete(np.arange(m + 1), rng.integers(m + 1))
        whole = kind(A, b).clipped_sum(x, 1.0, np.arange(m + 1))
        less = kind(A[rest], b[rest]).clipped_sum(x, 1.0, np.arange(m))
        assert np.linalg.norm(whole - less) <= 1 + 1e-12


class Own:
    """An objective of a user's own, whose sum is rounded by what stands beside a row."""

    def __init__(self, A):
        self.A, self.shape, self.num_examples = A, A.shape[1:], len(A)

    def value(self, x):
        return 0.0

    def clipped_sum(self, x, clip, rows):
        return np.float32(1e9 * len(rows)) - np.float32(1e9 * len(rows)) + self.A[rows].sum(axis=0)


def test_an_objective_of_ones_own_is_asked_for_one_row_at_a_time():
    A = np.array([[9.0, 0.0], [0.0, 0.25], [np.inf, 0.0]])
    grid = Grid(1.0, 1.0, 3)
    found = grid.value(clipped_steps(Own(A), np.zeros(2), grid, np.arange(3)))
    np.testing.assert_allclose(found, [1.0, 0.25], atol=1e-6)  # clipped, whatever it returns


class Mixing(LeastSquares):
    """A slope that looks at the other rows, and raises for a large outcome."""

    def slope(self, scores, targets):
        if (np.abs(targets) > 50).any():
            raise ValueError("large")
        scores -= 0.5 * scores.mean(axis=-1, keepdims=True)  # in place, as it must not
        return scores - self.targets.mean()

    def loss(self, scores, targets):
        return self.slope(scores, targets) + targets.sum()


class Careless(LogisticRegression):
    """Scores of rows that are centred."""

    def _scores(self, x, rows):
        found = super()._scores(x, rows)
        x += 1.0
        return found - found.mean()


class Gradients:
    """Gradients of rows, with the mean of those that are asked for together."""

    def __init__(self, A, b):
        self.A, self.b, self.shape, self.num_examples = A, b, A.shape[1:], len(A)

    def value(self, x):
        return 0.0

    def row_gradients(self, x, rows):
        if (np.abs(self.b[rows]) > 50).any():
            raise ZeroDivisionError
        x += 1.0
        return self.A[rows] * 100.0 - self.A[rows].mean(axis=0)

    def row_losses(self, x, rows):
        return self.row_gradients(x, rows).sum(axis=1) - self.b[rows].mean()


def hold_own(kind, rng):
    """Leave out a row of an objective that mixes them: the sums move by its own part, exactly."""
    m, d = int(rng.integers(2, 12)), int(rng.integers(1, 5))
    A, b = 10.0 ** rng.uniform(-2, 3) * rng.standard_normal((m, d)), rng.standard_normal(m)
    b = np.sign(b) if kind is Careless else np.where(rng.random(m) < 0.2, 100.0, b)
    made = kind(csr_array(A), b) if rng.random() < 0.3 and kind is Mixing else kind(A, b)
    leaves, clip = int(rng.integers(m)), 10.0 ** rng.uniform(-1, 1)
    rest = np.delete(np.arange(m), leaves)
    less, grid = kind(A[rest], b[rest]), Grid(clip, 0.7 * clip, m)
    x = rng.standard_normal(d)
    start = x.copy()
    moved = clipped_steps(made, x, grid, np.arange(m))
    moved -= clipped_steps(less, x, grid, np.arange(m - 1))
    radius = Fraction(2**grid.bits) * Fraction(clip) / Fraction(0.7 * clip)
    assert sum(int(k) ** 2 for k in moved) <= radius**2
    np.testing.assert_array_equal(moved, clipped_steps(made, x, grid, np.array([leaves])))
    losses = losses_of_rows(made, x, np.arange(m))
    np.testing.assert_array_equal(losses[rest], losses_of_rows(less, x, np.arange(m - 1)))
    np.testing.assert_array_equal(x, start)
    if kind is not Careless:
        np.testing.assert_array_equal(np.isnan(losses), b > 50)
        assert moved.any() == (b[leaves] < 50)


@pytest.mark.parametrize("kind", [Mixing, Careless, Gradients])
def test_rows_of_an_own_function_are_asked_for_one_at_a_time(kind):
    rng = np.random.default_rng(2)
    for _ in range(40):
        hold_own(kind, rng)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [Mixing, Careless, Gradients])
def test_rows_of_an_own_function_never_move_others_in_ten_thousand_cases(kind):
    rng = np.random.default_rng()
    for _ in range(3_000):
        hold_own(kind, rng)


def test_a_function_beside_the_class_is_an_own_one_too():
    made = LeastSquares(np.ones((3, 1)), np.array([1.0, 2.0, 100.0]))
    made.slope = lambda scores, targets: scores - targets.sum()
    grid = Grid(1e3, 1e3, 3)
    each = [clipped_steps(made, np.zeros(1), grid, np.array([i])) for i in range(3)]
    np.testing.assert_array_equal(
        clipped_steps(made, np.zeros(1), grid, np.arange(3)), np.sum(each, axis=0)
    )


def test_a_model_of_another_shape_is_no_fault_of_a_row():
    made = Mixing(np.ones((3, 2)), np.ones(3))
    with pytest.raises(ConfigError, match="takes x of shape"):
        clipped_steps(made, np.zeros(3), Grid(1.0, 1.0, 3), np.arange(3))


def test_a_private_step_goes_on_where_one_row_raises():
    A, b = np.ones((50, 1)), np.zeros(50)
    b[7] = 100.0
    rule = ExampleDP(1e3, 1e-6, 1e-5, loss_clip=1e3)
    found = PrivateObjective(Mixing(A, b), rule)
    assert found.gradient(np.ones(1)) == pytest.approx(49 / 50 * 0.5, abs=1e-3)
    assert found.noisy_value(np.ones(1)) == pytest.approx(49 / 50 * 0.5, abs=1e-3)


def test_noise_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="too small for the grid"):
        Grid(1.0, 1e-19, 10)


def test_a_quantile_counts_in_whole_steps():
    rule = GaussianDP(1.0, 0.5, DELTA, quantile=0.5)
    strategy = FedAvg(client_lr=0.5, local_steps=1, privacy=rule, participation=Sample(count=2))
    history = simulate(strategy, FederatedProblem([Pull(np.ones(2))] * 4), 3)
    assert len(set(history["clip"])) == 3
