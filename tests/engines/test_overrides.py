"""What a subclass of one's own overrides counts in every engine, or is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    Objective,
    Quadratic,
    SoftmaxRegression,
)
from flower_fedcon.objectives.cohorts import key
from flower_fedcon.objectives.private_objective import PrivateObjective
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import (
    DualFL,
    FedAvg,
    FedDualAvg,
    FedDyn,
    FedFW,
    FedNewton,
    FedProx,
    Scaffold,
)

D, ROWS, CLIENTS = 3, 8, 3
STEPS = {"client_lr": 0.1, "local_steps": 2}
LOSSES = [Quadratic, LeastSquares, LogisticRegression, SoftmaxRegression]
each_loss = pytest.mark.parametrize("kind", LOSSES)
each_engine = pytest.mark.parametrize("engine", ["local", "stacked", "jax"])


def data(client):
    rng = np.random.default_rng(client)
    return rng.normal(size=(ROWS, D)), np.sign(rng.normal(size=ROWS))


def made(kind, client):
    A, y = data(client)
    if issubclass(kind, Quadratic):
        return kind(A.T @ A / ROWS, A.T @ y / ROWS)
    return kind(A, (y > 0).astype(int), 2) if issubclass(kind, SoftmaxRegression) else kind(A, y)


def problem(kind, **terms):
    return FederatedProblem([made(kind, client) for client in range(CLIENTS)], **terms)


def play(strategy, given, rounds=1, engine="local"):
    if engine == "jax":
        pytest.importorskip("jax")
    place = {"workers": 2} if engine == "workers" else {"engine": engine}
    return simulate(strategy, given, rounds, **place)


def moved(kind):
    """Return a subclass of another function: f(x) + |x|^2 / 2, of which it knows no more."""

    class Moved(kind):
        def value(self, x):
            return super().value(x) + 0.5 * float(np.vdot(x, x))

        def gradient(self, x):
            return super().gradient(x) + x

    return Moved


class Bare:
    """The same function, by what every objective has at least."""

    def __init__(self, f):
        self.shape, self.value, self.gradient = f.shape, f.value, f.gradient


def bare(given):
    return FederatedProblem(list(map(Bare, given.objectives)), constraint=given.constraint)


BALL = L1Ball(1.0)
RUNS = {
    "steps": FedAvg(**STEPS),
    "variates": Scaffold(**STEPS),
    "exact": FedProx(proximal=1.0),
    "dual": DualFL(strong_convexity=1.0, momentum=0.0),
    "dynamic": FedDyn(proximal=1.0),
    "vertices": FedFW(BALL, penalty=1.0),
}


@each_engine
@pytest.mark.parametrize("run", RUNS)
@each_loss
def test_another_gradient_counts(kind, run, engine):
    given = problem(moved(kind), constraint=BALL if run == "vertices" else None)
    found = play(RUNS[run], given, 4, engine)
    np.testing.assert_allclose(found.x, play(RUNS[run], bare(given), 4).x, atol=1e-9)


@pytest.mark.parametrize("kind", LOSSES[:3])
def test_the_optimum_is_that_of_the_other_function(kind):
    given = problem(moved(kind))
    assert np.linalg.norm(given.gradient(given.optimum.x)) < 1e-6


@each_loss
def test_what_is_inherited_of_the_other_function_is_gone(kind):
    f = made(moved(kind), 0)
    x = np.ones(f.shape)
    value, gradient = f.value_and_gradient(x)
    assert value == f.value(x)
    np.testing.assert_array_equal(gradient, f.gradient(x))
    assert f.smoothness is f.strong_convexity is None
    for name in ("hessian", "hessian_products", "second_derivatives", "add_gradient"):
        assert not hasattr(f, name), name

    class Whole(moved(kind)):
        smoothness = 7.0

        def hessian(self, x, columns=None):
            return np.eye(x.size)

    whole = made(Whole, 0)
    assert whole.smoothness == 7.0
    np.testing.assert_array_equal(whole.hessian(x), np.eye(x.size))


@each_engine
def test_batches_of_the_other_function_are_refused(engine):
    given = problem(moved(LeastSquares))
    words = r"Moved defines its own gradient, which LinearModel.batch_gradient does not use"
    with pytest.raises(ConfigError, match=words):
        play(FedAvg(**STEPS, batch_size=2), given, 1, engine)
    play(FedAvg(**STEPS, batch_size=ROWS), given)  # all rows: the gradient
    with pytest.raises(ConfigError, match="clipped_sum"):
        PrivateObjective(given.objectives[0], ExampleDP(1.0, 1.0, target_delta=1e-5))
    with pytest.raises(Exception, match="hessian"):
        play(FedNewton(), given)


@pytest.mark.parametrize("weights", [None, [1, 2, 3]])
@each_engine
def test_a_stochastic_gradient_of_ones_own_is_asked(engine, weights):
    asked = []

    class Drawn(LeastSquares):
        def stochastic_gradient(self, x, rng, batch_size=None):
            asked.append((batch_size, rng.integers(10)))
            return self.gradient(x) + 1.0

    given = problem(Drawn, weights=weights)
    found = play(FedDualAvg(None, **STEPS, batch_size=2), given, 2, engine)
    assert len(asked) == 2 * 2 * CLIENTS
    assert {size for size, _ in asked} == {2}
    assert not np.allclose(found.x, play(FedDualAvg(None, **STEPS), given, 2).x)


@each_engine
@pytest.mark.parametrize("kind", LOSSES[1:])
def test_another_loss_counts_without_its_slope(kind, engine):
    """Its value is another, its gradient is not: the history shows it."""

    class Doubled(kind):
        def loss(self, scores, targets):
            return 2.0 * super().loss(scores, targets)

    once, twice = (play(FedAvg(**STEPS), problem(k), 2, engine) for k in (kind, Doubled))
    np.testing.assert_allclose(twice["objective"], 2 * np.array(once["objective"]), rtol=1e-12)
    f = made(Doubled, 0)
    assert f.value_and_gradient(once.x)[0] == pytest.approx(f.value(once.x))


class Steep(LogisticRegression):
    def loss(self, scores, targets):
        return super().loss(scores, targets) + 0.5 * scores**2

    def slope(self, scores, targets):
        return super().slope(scores, targets) + scores


@each_engine
def test_another_slope_takes_its_curvature_along(engine):
    f, given = made(Steep, 0), problem(Steep)
    assert f.smoothness is None
    assert not hasattr(f, "hessian")
    found, expected = play(FedProx(proximal=1.0), given, 3, engine), bare(given)
    np.testing.assert_allclose(found.x, play(FedProx(proximal=1.0), expected, 3).x, atol=1e-9)


def test_who_says_all_of_another_loss_keeps_its_curvature():
    class Whole(Steep):
        curvatures = 1.0, 1.25

        def curvature(self, scores, targets):
            return LogisticRegression.curvature(self, scores, targets) + 1.0

        def hessian_products(self, x):
            return self.second_derivatives(x)

    class Flat(HuberRegression):
        def loss(self, scores, targets):
            return 0.5 * scores**2

        def slope(self, scores, targets):
            return 1.0 * scores

        def curvature(self, scores, targets):
            return np.ones_like(scores)

    whole = made(Whole, 0)
    assert key(whole) is None  # its Hessian is its own
    assert whole.smoothness >= np.linalg.eigvalsh(whole.hessian(np.ones(D)))[-1]
    assert key(made(Flat, 0)) is not None  # the three functions, and no more


# --- batches of what has none ---------------------------------------------------------------------


class Mine(Objective):
    """A mean over rows that says neither how many there are, nor what some of them give."""

    def __init__(self, A, b):
        self.A, self.b, self.shape = A, b, (A.shape[1],)

    def value(self, x):
        return float(np.mean((self.A @ x - self.b) ** 2) / 2)

    def gradient(self, x):
        return self.A.T @ (self.A @ x - self.b) / len(self.b)


class Counted(Mine):
    num_examples = ROWS


class Ready(Counted):
    def batch_gradient(self, x, rows):
        A, b = self.A[rows], self.b[rows]
        return A.T @ (A @ x - b) / len(b)


class ReadyBare:
    """The same without a base class."""

    num_examples, __init__ = ROWS, Mine.__init__
    value, gradient, batch_gradient = Mine.value, Mine.gradient, Ready.batch_gradient


FEW = {"batch_size": 2}
BATCHED = {
    "fedavg": FedAvg(**STEPS, **FEW),
    "scaffold": Scaffold(**STEPS, **FEW),
    "fedfw": FedFW(BALL, penalty=1.0, gradient="stochastic", **FEW),
}


@pytest.mark.parametrize("method", BATCHED)
@pytest.mark.parametrize("engine", ["local", "stacked", "jax", "workers"])
@pytest.mark.parametrize(
    ("kind", "says"),
    [(Mine, "Mine does not state its number of rows"), (Counted, "no batch_gradient")],
)
def test_batches_of_an_objective_without_rows_are_refused(engine, method, kind, says):
    given = problem(kind, constraint=BALL if method == "fedfw" else None)
    with pytest.raises(ConfigError, match=says):
        play(BATCHED[method], given, 1, engine)


def test_batches_of_ones_own_are_drawn():
    kinds = (Ready, ReadyBare, LeastSquares)
    found = [play(BATCHED["fedavg"], problem(kind), 3).x for kind in kinds]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], found[2], atol=1e-12)
