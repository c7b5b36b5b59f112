"""Cohorts, random streams, model layouts, checks of arguments, and problems."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate, validation
from flower_fedcon.core.rng import BATCH, check_seed, stream
from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.objectives.packed import PackedObjective
from flower_fedcon.problems.reference import Reference
from flower_fedcon.regularizers import L1, Indicator
from flower_fedcon.sets import Box, L1Ball, Simplex
from flower_fedcon.strategies import FedAvg

RULES = [Full(), Sample(count=3), Sample(fraction=0.3), Bernoulli(0.25)]
EYE = np.eye(3)

# --- participation --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_cohorts_are_sorted_distinct_and_never_empty(rule):
    rng = np.random.default_rng(1)
    for _ in range(500):
        cohort = rule.draw(10, rng)
        assert cohort
        assert cohort == sorted(set(cohort))
        assert 0 <= cohort[0] <= cohort[-1] < 10
        assert all(type(i) is int for i in cohort)


def test_sizes():
    rng = np.random.default_rng(0)
    assert Full().draw(4, rng) == [0, 1, 2, 3]
    assert {len(Sample(count=3).draw(10, rng)) for _ in range(50)} == {3}
    assert {len(Sample(fraction=0.3).draw(10, rng)) for _ in range(50)} == {3}
    assert [Sample(fraction=0.01).size(n) for n in (1, 10, 300)] == [1, 1, 3]
    assert len({len(Bernoulli(0.5).draw(10, rng)) for _ in range(200)}) > 4


@pytest.mark.parametrize("rule", RULES[1:], ids=repr)
def test_every_client_is_as_likely(rule):
    """Counts lie within five standard deviations of the mean of a coin of the rule's rate."""
    rng, n, draws = np.random.default_rng(2), 10, 6000
    counts, together = np.zeros(n), 0
    for _ in range(draws):
        cohort = rule.draw(n, rng)
        counts[cohort] += 1
        together += 0 in cohort and 1 in cohort
    p = rule.rate(n) / (1 - 0.75**n if isinstance(rule, Bernoulli) else 1)
    assert np.abs(counts - p * draws).max() < 5 * np.sqrt(draws * p * (1 - p))
    pair = p * rule.rate(n) if isinstance(rule, Bernoulli) else 3 / 10 * 2 / 9
    assert abs(together - pair * draws) < 5 * np.sqrt(draws * pair)


def test_empty_draws_are_repeated():
    rng = np.random.default_rng(3)
    sizes = [len(Bernoulli(0.02).draw(3, rng)) for _ in range(300)]
    assert min(sizes) == 1
    assert np.mean(sizes) < 1.1  # the rule is not bent towards larger cohorts


def test_rates():
    assert [rule.rate(10) for rule in RULES] == [1.0, 0.3, 0.3, 0.25]
    full = [Full(), Sample(count=10), Sample(fraction=1.0), Sample(fraction=0.96), Bernoulli(1.0)]
    assert all(rule.is_full(10) for rule in full)
    assert not any(rule.is_full(10) for rule in RULES[1:])


# --- streams --------------------------------------------------------------------------------------


def test_streams_depend_on_every_key_and_on_nothing_else():
    keys = [(0, 1, 1, 0), (1, 1, 1, 0), (0, 2, 1, 0), (0, 1, 2, 0), (0, 1, 1, 1), (1, 0, 1, 1)]
    keys += [(2**32, 1, 1, 0), (2**63 - 1, 1, 1, 0), (1, 1, 0, 1), (1, 2, 3, 4), (4, 3, 2, 1)]
    there = {key: stream(*key).bytes(16) for key in keys}
    back = {key: stream(*key).bytes(16) for key in reversed(keys)}
    assert there == back
    assert len(set(there.values())) == len(keys)
    # A stream that was drawn from does not move another one.
    first, second = stream(0, 1, 1, 0), stream(0, 1, 1, 1)
    first.random(1000)
    assert second.bytes(16) == there[0, 1, 1, 1]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**32 + 5, 2**63 - 1])
def test_streams_are_numpys_own_of_their_four_numbers(seed):
    for key in ((seed, 2, 1, 0), (seed, 1, 70_000, 0), (seed, 3, 2**33, 2**32 - 1)):
        expected = np.random.default_rng(key).integers(2**63, size=3)
        assert stream(*key).integers(2**63, size=3).tolist() == expected.tolist()


def test_streams_are_uncorrelated():
    rows = np.array([stream(0, BATCH, 1, j).standard_normal(4000) for j in range(8)])
    correlation = np.corrcoef(rows) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


def test_numpy_seeds_are_whole_numbers():
    seed = check_seed(np.int64(5))
    assert seed == 5
    assert type(seed) is int


# --- layout ---------------------------------------------------------------------------------------

SINGLE, DOUBLE = np.float32, np.float64
LAYERS = [np.arange(6.0).reshape(2, 3), np.array(7.0), np.array([8.0])]


@pytest.mark.parametrize("model", [np.arange(3.0), np.arange(6.0).reshape(2, 3), LAYERS])
def test_layout_round_trip(model):
    layout = Layout.of(model)
    assert Layout.from_json(layout.to_json()) == layout
    packed = layout.pack(model)
    assert packed.shape == layout.shape
    assert packed.size == layout.size
    back = layout.unpack(packed)
    pair = ([m] if isinstance(m, np.ndarray) else m for m in (back, model))
    for new, old in zip(*pair, strict=True):
        assert new.shape == old.shape
        assert np.array_equal(new, old)


def test_layout_dtypes():
    assert Layout.of(np.zeros(2, SINGLE)).dtype == "float32"
    assert Layout.of([np.zeros(2, SINGLE), np.zeros(2, SINGLE)]).dtype == "float32"
    for other in (np.zeros(2), np.zeros(2, int), np.zeros(2, np.float16), np.zeros(2, bool)):
        assert Layout.of([np.zeros(2, SINGLE), other]).dtype == "float64"
    assert Layout.of(np.zeros(2, SINGLE)).pack(np.ones(2)).dtype == SINGLE
    assert Layout.of(np.zeros(2)).pack([1, 2]).dtype == DOUBLE
    single = LeastSquares(EYE.astype(SINGLE), np.ones(3, SINGLE))
    assert Layout.for_objective(single) == Layout(((3,),), "float32", False)
    assert Layout.for_objective(object()) is None


class Layered:
    """||a||^2/2 + ||b||^2/2 - c b_0, of layers a (2, 2) and b (1,)."""

    num_examples = 4

    def __init__(self, c):
        self.c, self.shape = c, [(2, 2), (1,)]

    def value(self, x):
        return sum(float(np.vdot(a, a)) / 2 for a in x) - self.c * float(x[1][0])

    def gradient(self, x):
        return [x[0], x[1] - self.c]


def test_packed_objective():
    packed = PackedObjective(Layered(3.0), Layout.for_objective(Layered(3.0)))
    x = np.arange(5.0)
    assert packed.value(x) == (0 + 1 + 4 + 9 + 16) / 2 - 3 * 4
    assert packed.gradient(x).tolist() == [0, 1, 2, 3, 1]
    assert packed.value_and_gradient(x)[0] == packed.value(x)
    assert (packed.num_examples, packed.smoothness, packed.shape) == (4, None, (5,))


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (validation.positive, [1, 0.5, np.float32(2)], [0, -1, np.inf, np.nan, True, "1", None]),
        (validation.nonnegative, [0, 0.5, np.int64(2)], [-1e-9, np.inf, np.nan, False, [1]]),
        (validation.count, [1, np.int32(7)], [0, -1, 1.0, True, "1", None]),
    ],
)
def test_numbers(check, good, bad):
    for value in good:
        assert check("rate", value) == value
        assert type(check("rate", value)) in (int, float)
    for value in bad:
        with pytest.raises(ConfigError, match=r"^rate must be .*, got "):
            check("rate", value)


def test_choices_and_arrays():
    assert validation.choice("mode", "a", ("a", "b")) == "a"
    array = validation.float_array("A", np.arange(6).reshape(2, 3).T)
    assert array.dtype == DOUBLE
    assert array.flags.c_contiguous
    assert validation.float_array("A", np.zeros(2, SINGLE)).dtype == SINGLE
    assert validation.float_array("A", 2).shape == ()


# --- problems -------------------------------------------------------------------------------------


def quadratics(*targets):
    return [Quadratic(EYE, np.full(3, t)) for t in targets]


def test_problem_weights_are_a_weighted_mean():
    problem = FederatedProblem(quadratics(1.0, 4.0, 9.0), weights=[2, 1, 0], regularizer=L1(0.5))
    x = np.array([1.0, -2.0, 0.0])
    assert problem.weights == pytest.approx([2 / 3, 1 / 3, 0])
    assert problem.objective(x) == pytest.approx(5 / 2 - 2 * x.sum() + 0.5 * 3)
    assert problem.gradient(x) == pytest.approx(x - 2)
    assert problem.violation(x) == 0
    uniform = FederatedProblem(quadratics(1.0, 2.0), weights=np.array([5, 5]))
    assert all(isinstance(o, Quadratic) for o in uniform.objectives)  # not wrapped for nothing


def test_problem_start_names_and_metrics():
    box = FederatedProblem(quadratics(1.0), constraint=Box(1.0, 2.0))
    assert box.x0.tolist() == [1, 1, 1]
    assert FederatedProblem(quadratics(1.0), constraint=L1Ball(1.0)).x0.tolist() == [0, 0, 0]
    assert box.names == ("0",)
    x0 = np.array([3.0, 0.0, 0.0])
    metrics = {"largest": np.max, "sign": lambda x: x[0] > 0}
    named = FederatedProblem(
        quadratics(1, 2), x0=x0, names=["b", "a"], metrics=metrics, constraint=L1Ball(1.0)
    )
    assert named.names == ("b", "a")
    assert named.x0 is not x0
    assert named.x0.tolist() == [3, 0, 0]  # not moved: the caller's choice
    record = named.evaluate(x0)
    assert record == {"objective": 0.0, "violation": 2.0, "largest": 3.0, "sign": 1.0}


def test_indicator_is_a_constraint():
    problem = FederatedProblem(quadratics(1.0), regularizer=Indicator(Simplex()))
    assert problem.constraint == Simplex()
    assert problem.regularizer is None
    assert FederatedProblem(quadratics(1.0), regularizer=Simplex()).constraint == Simplex()
    assert problem.objective(np.ones(3)) == -1.5


def test_optimum_is_found_once_and_recorded_from_then_on():
    problem = FederatedProblem(quadratics(1.0, 3.0))
    assert not problem.has_optimum
    assert "residual" not in problem.evaluate(np.zeros(3))
    assert problem.optimum.x == pytest.approx(np.full(3, 2.0))
    assert problem.optimum is problem.optimum
    assert problem.has_optimum
    assert problem.evaluate(np.zeros(3))["residual"] == pytest.approx(6.0)
    known = Reference(np.zeros(3), -1.0, 0.0, "direct")
    assert FederatedProblem(quadratics(1.0), optimum=known).optimum is known


def test_objectives_without_a_shape_need_a_start():
    class Plain:
        def value(self, x):
            return float(x @ x)

        def gradient(self, x):
            return 2 * x

    with pytest.raises(ConfigError, match="do not state the model's shape: give x0"):
        FederatedProblem([Plain()])
    problem = FederatedProblem([Plain()], x0=np.ones(2))
    history = simulate(FedAvg(client_lr=0.25, local_steps=1), problem, 2)
    assert history.x.tolist() == [0.25, 0.25]


def test_weighted_layers():
    problem = FederatedProblem([Layered(1.0), Layered(4.0)], weights=[2, 1])
    x = simulate(FedAvg(client_lr=1.0, local_steps=1), problem, 1).x
    assert x[1] == pytest.approx([2.0])


# --- what is refused ------------------------------------------------------------------------------


def unlike(**more):
    """Make a problem of two clients with something else than it should be."""
    return FederatedProblem(**{"objectives": quadratics(1.0, 2.0), **more})


def array(value, **more):
    return validation.float_array("A", value, **more)


SEED, EMPTY = r"seed must be a whole number in \[0, 2\*\*63\)", "at least one entry in every array"
TWO = [*quadratics(1), Quadratic(np.eye(2), np.ones(2))]
REFUSED = [
    (Sample, "either count=... or fraction=...: give exactly one"),
    (lambda: Sample(count=1, fraction=0.5), "give exactly one of them"),
    (lambda: Sample(count=0), r"Sample\(count\) must be a whole number >= 1, got 0"),
    (lambda: Sample(count=1.5), r"Sample\(count\) must be a whole number"),
    (lambda: Sample(fraction=0.0), r"Sample\(fraction\) must be finite and > 0"),
    (lambda: Sample(fraction=1.2), r"Sample\(fraction\) must be in \(0, 1\], got 1.2"),
    (lambda: Bernoulli(0), r"Bernoulli\(p\) must be finite and > 0"),
    (lambda: Bernoulli(1.01), r"Bernoulli\(p\) must be in \(0, 1\], got 1.01"),
    (lambda: Bernoulli("half"), r"Bernoulli\(p\) must be a number, got 'half'"),
    (lambda: Sample(count=4).size(3), "is more than the 3 clients"),
    *((lambda seed=seed: check_seed(seed), SEED) for seed in (-1, 2**63, 1.0, "1", None, True)),
    (lambda: Layout.of(np.zeros(3)).pack(np.zeros(2), "x0"),
     r"x0 has shape \(\(2,\),\), expected \(\(3,\),\)"),
    (lambda: Layout.of([np.zeros(2), np.zeros(1)]).pack([np.zeros(3)]),
     r"has shape \(\(3,\),\), expected \(\(2,\), \(1,\)\)"),
    *((lambda empty=empty: Layout.of(empty), EMPTY)
      for empty in ([], np.zeros((2, 0)), [np.ones(1), np.zeros(0)])),
    (lambda: validation.choice("mode", "c", ("a", "b")), "mode must be one of 'a', 'b', got 'c'"),
    (lambda: array(np.zeros(3), ndim=2), r"A must have 2 axes, got shape \(3,\)"),
    (lambda: array([[0.0, 1.0], [np.nan, np.inf]]), r"not finite \(nan\) at \(1, 0\)"),
    *((lambda value=value: array(value), "A must be an array")
      for value in ("abc", [[1], [2, 3]], {"a": 1})),
    (lambda: array(np.array([1 + 2j])), "A must be an array of numbers"),
    (lambda: unlike(objectives=[]), "at least one client's objective"),
    (lambda: unlike(objectives=[*quadratics(1), 3]),
     r"client 1's objective has no value\(x\): 3"),
    (lambda: unlike(objectives=[[0.5] * 99]),
     r"0\.5, .*\.\.\. \(495 characters\): expected an objective"),
    (lambda: unlike(constraint=1.0), "constraint must be one of flower_fedcon.sets, got 1.0"),
    (lambda: unlike(constraint=Box(0, 1), regularizer=L1(1)),
     "a constraint or a regularizer, not"),
    (lambda: unlike(constraint=Box(np.zeros(2), 1.0)), r"bounds of shape \(2,\), the model \(3,\)"),
    (lambda: unlike(weights=[1]), "weights must be 2 numbers >= 0"),
    (lambda: unlike(weights=[1, -1]), "weights must be 2 numbers >= 0"),
    (lambda: unlike(weights=[0, 0]), "that are not all 0"),
    (lambda: unlike(names=["a"]), "names must be 2 different texts"),
    (lambda: unlike(names=["a", "a"]), "names must be 2 different texts"),
    (lambda: unlike(x0=np.zeros(2)), r"x0 has shape \(2,\), the clients' model \(3,\)"),
    (lambda: unlike(x0=np.full(3, np.nan)), "x0 has a value that is not finite"),
    (lambda: unlike(x0=[np.zeros(3)]), "x0 is a list of arrays, the clients' model one array"),
    (lambda: unlike(objectives=TWO, names=["x", "y"]),
     r"client y has a model of shape \(2,\), client x \(3,\): all clients must share"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_what_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
