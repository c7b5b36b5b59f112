"""What a subclass of one's own overrides counts in every engine, or is refused by name."""

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
ENGINES = ["local", "stacked", "jax"]


def data(client):
    rng = np.random.default_rng(client)
    return rng.normal(size=(ROWS, D)), np.sign(rng.normal(size=ROWS))


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


def made(kind, client):
    A, y = data(client)
    if issubclass(kind, Quadratic):
        return kind(A.T @ A / ROWS, A.T @ y / ROWS)
    return kind(A, (y > 0).astype(int), 2) if issubclass(kind, SoftmaxRegression) else kind(A, y)


def engine_of(name):
    return pytest.importorskip("jax") and name if name == "jax" else name


RUNS = {
    "steps": lambda problem: FedAvg(**STEPS),
    "variates": lambda problem: Scaffold(**STEPS),
    "exact": lambda problem: FedProx(proximal=1.0),
    "dual": lambda problem: DualFL(strong_convexity=1.0, momentum=0.0),
    "dynamic": lambda problem: FedDyn(proximal=1.0),
    "vertices": lambda problem: FedFW(problem.constraint, penalty=1.0),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("kind", [Quadratic, LeastSquares, LogisticRegression, SoftmaxRegression])
def test_another_gradient_counts(kind, run, engine):
    fs = [made(moved(kind), client) for client in range(CLIENTS)]
    constraint = L1Ball(1.0) if run == "vertices" else None
    problem, same = (
        FederatedProblem(clients, constraint=constraint) for clients in (fs, list(map(Bare, fs)))
    )
    found = simulate(RUNS[run](problem), problem, 4, engine=engine_of(engine))
    expected = simulate(RUNS[run](same), same, 4)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-9)


def test_the_optimum_is_that_of_the_other_function():
    for kind in (Quadratic, LeastSquares, LogisticRegression):
        problem = FederatedProblem([made(moved(kind), client) for client in range(CLIENTS)])
        assert np.linalg.norm(problem.gradient(problem.optimum.x)) < 1e-6


@pytest.mark.parametrize("kind", [Quadratic, LeastSquares, LogisticRegression, SoftmaxRegression])
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
        def hessian(self, x, columns=None):
            return np.eye(x.size)

        smoothness = 7.0

    whole = made(Whole, 0)
    assert whole.smoothness == 7.0
    np.testing.assert_array_equal(whole.hessian(x), np.eye(x.size))


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_of_the_other_function_are_refused(engine):
    problem = FederatedProblem([made(moved(LeastSquares), client) for client in range(CLIENTS)])
    words = r"Moved defines its own gradient, which LinearModel.batch_gradient does not use"
    with pytest.raises(ConfigError, match=words):
        simulate(FedAvg(**STEPS, batch_size=2), problem, 1, engine=engine_of(engine))
    simulate(FedAvg(**STEPS, batch_size=ROWS), problem, 1)  # all rows: the gradient
    with pytest.raises(ConfigError, match="clipped_sum"):
        PrivateObjective(problem.objectives[0], ExampleDP(1.0, 1.0, target_delta=1e-5))
    with pytest.raises(Exception, match="hessian"):
        simulate(FedNewton(), problem, 1)


@pytest.mark.parametrize("weights", [None, [1, 2, 3]])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stochastic_gradient_of_ones_own_is_asked(engine, weights):
    asked = []

    class Drawn(LeastSquares):
        def stochastic_gradient(self, x, rng, batch_size=None):
            asked.append((batch_size, rng.integers(10)))
            return self.gradient(x) + 1.0

    fs = [made(Drawn, client) for client in range(CLIENTS)]
    problem = FederatedProblem(fs, weights=weights)
    found = simulate(FedDualAvg(None, **STEPS, batch_size=2), problem, 2, engine=engine_of(engine))
    assert len(asked) == 2 * 2 * CLIENTS
    assert {size for size, _ in asked} == {2}
    full = simulate(FedDualAvg(None, **STEPS), problem, 2)
    assert not np.allclose(found.x, full.x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [LeastSquares, LogisticRegression, SoftmaxRegression])
def test_another_loss_counts_without_its_slope(kind, engine):
    """Its value is another, its gradient is not: the history shows it."""

    class Doubled(kind):
        def loss(self, scores, targets):
            return 2.0 * super().loss(scores, targets)

    problems = [FederatedProblem([made(k, c) for c in range(CLIENTS)]) for k in (kind, Doubled)]
    once, twice = (
        simulate(FedAvg(**STEPS), problem, 2, engine=engine_of(engine)) for problem in problems
    )
    np.testing.assert_allclose(twice["objective"], 2 * np.array(once["objective"]), rtol=1e-12)
    f = problems[1].objectives[0]
    assert f.value_and_gradient(once.x)[0] == pytest.approx(f.value(once.x))


@pytest.mark.parametrize("engine", ENGINES)
def test_another_slope_takes_its_curvature_along(engine):
    class Steep(LogisticRegression):
        def loss(self, scores, targets):
            return super().loss(scores, targets) + 0.5 * scores**2

        def slope(self, scores, targets):
            return super().slope(scores, targets) + scores

    f = made(Steep, 0)
    assert f.smoothness is None
    assert not hasattr(f, "hessian")
    problem = FederatedProblem([made(Steep, client) for client in range(CLIENTS)])
    same = FederatedProblem([Bare(f) for f in problem.objectives])
    found = simulate(FedProx(proximal=1.0), problem, 3, engine=engine_of(engine))
    np.testing.assert_allclose(found.x, simulate(FedProx(proximal=1.0), same, 3).x, atol=1e-9)

    class Whole(Steep):
        curvatures = 1.0, 1.25

        def curvature(self, scores, targets):
            return LogisticRegression.curvature(self, scores, targets) + 1.0

        def hessian_products(self, x):
            return self.second_derivatives(x)

    whole = made(Whole, 0)
    assert key(whole) is None  # its Hessian is its own
    assert whole.smoothness >= np.linalg.eigvalsh(whole.hessian(np.ones(D)))[-1]

    class Flat(HuberRegression):
        def loss(self, scores, targets):
            return 0.5 * scores**2

        def slope(self, scores, targets):
            return 1.0 * scores

        def curvature(self, scores, targets):
            return np.ones_like(scores)

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
    def __init__(self, A, b):
        super().__init__(A, b)
        self.num_examples = len(b)


class Ready(Counted):
    def batch_gradient(self, x, rows):
        A, b = self.A[rows], self.b[rows]
        return A.T @ (A @ x - b) / len(b)


class ReadyBare:
    """The same without a base class."""

    value, gradient, batch_gradient = Mine.value, Mine.gradient, Ready.batch_gradient

    def __init__(self, A, b):
        self.A, self.b, self.shape, self.num_examples = A, b, (A.shape[1],), len(b)


METHODS = {
    "fedavg": lambda **more: FedAvg(**STEPS, **more),
    "scaffold": lambda **more: Scaffold(**STEPS, **more),
    "fedfw": lambda **more: FedFW(L1Ball(1.0), penalty=1.0, gradient="stochastic", **more),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", [*ENGINES, "workers"])
def test_batches_of_an_objective_without_rows_are_refused(engine, method):
    place = {"workers": 2} if engine == "workers" else {"engine": engine_of(engine)}
    constraint = L1Ball(1.0) if method == "fedfw" else None
    for kind, words in (
        (Mine, "Mine does not state its number of rows"),
        (Counted, "no batch_gradient"),
    ):
        problem = FederatedProblem([kind(*data(c)) for c in range(CLIENTS)], constraint=constraint)
        with pytest.raises(ConfigError, match=words):
            simulate(METHODS[method](batch_size=2), problem, 1, **place)


def test_batches_of_ones_own_are_drawn():
    problems = [
        FederatedProblem([kind(*data(c)) for c in range(CLIENTS)])
        for kind in (Ready, ReadyBare, LeastSquares)
    ]
    found = [simulate(FedAvg(**STEPS, batch_size=2), problem, 3).x for problem in problems]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], found[2], atol=1e-12)
