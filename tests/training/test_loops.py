"""A train loop of one's own is the client's step: the same iterates, bit for bit, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.clientapp import ClientApp
from loops import by_loops
from pages import blocks
from problems import HALF, q6

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.registry import client_class, names
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import (
    AREA,
    MIFA,
    CompositeFL,
    FastFedDA,
    FedAvg,
    FedDualAvg,
    FedDyn,
    FedExProx,
    FedMiD,
    FedProx,
    FedVARP,
    Scaffold,
)
from flower_fedcon.training import own_loop

LR, K = 1 / 64, 3
PSI = L1(0.1)
STEPS = {"client_lr": LR, "local_steps": K}
SOLVER = {"local_solver": GradientDescent(steps=K, lr=LR)}
CORRECTIONS = [
    AREA(PSI, **STEPS),
    AREA(PSI, **STEPS, **HALF),
    MIFA(PSI, **STEPS),
    MIFA(PSI, **STEPS, mirror=False, **HALF),
    FedVARP(**STEPS, **HALF),
    FedAvg(**STEPS),
    FedAvg(**STEPS, regularizer=PSI),
    FedProx(proximal=2.0, **SOLVER),
    Scaffold(**STEPS),
    Scaffold(**STEPS, mirror=False),
    Scaffold(**STEPS, **HALF),
    Scaffold(**STEPS, window=3, amplification=1.5, **HALF),
    FedAvg(**STEPS, window=3, amplification=1.5),
    FedExProx(step_size=0.5, extrapolation=1.5, **SOLVER),
    FedExProx(step_size=0.5, extrapolation="diversity", **SOLVER, **HALF),
    FedDyn(proximal=2.0, **SOLVER),
    FedDyn(proximal=2.0, **SOLVER, **HALF),
]
OWN_STEPS = [
    FedMiD(PSI, **STEPS),
    FedMiD(PSI, **STEPS, server_prox_only=True),
    FedDualAvg(PSI, **STEPS),
    FedDualAvg(PSI, **STEPS, server_prox_only=True),
    FastFedDA(PSI, strong_convexity=1.0, damping=60.0, local_steps=K),
    CompositeFL(PSI, **STEPS),
    CompositeFL(PSI, **STEPS, **HALF),
    FedAvg(**STEPS),
    AREA(PSI, **STEPS),
    MIFA(PSI, **STEPS),
    FedVARP(**STEPS),
    Scaffold(**STEPS),
]


def corrected(method, f, lr=LR, steps=K, momentum=0.0):
    """Gradient steps with what the method adds."""
    (x,), velocity = method.start, 0.0
    correction = method.begin([x])
    for _ in range(steps):
        (g,) = correction.apply_gradients([x], [f.gradient(x)])
        velocity = g if momentum == 0 else momentum * velocity + g
        x = x - lr * velocity
    return [x]


def own_steps(method, f, steps=K):
    """The method's steps."""
    model = method.start
    optimizer = method.optimizer(model)
    for _ in range(steps):
        model = optimizer.step([f.gradient(*model)])
    return model


def q6_for(strategy):
    return q6(0.0 if strategy.regularizer is None else PSI.weight)


def named(cases, loop):
    return [pytest.param(s, loop, id=f"{loop.__name__}-{i}-{s.name}") for i, s in enumerate(cases)]


@pytest.mark.parametrize(
    ("strategy", "loop"), named(CORRECTIONS, corrected) + named(OWN_STEPS, own_steps)
)
def test_a_loop_finds_the_same_bytes(strategy, loop):
    """Of corrected gradients, or of the method's steps."""
    problem = q6_for(strategy)
    found = by_loops(strategy, problem, 6, loop)
    assert found.x.tobytes() == simulate(strategy, problem, 6).x.tobytes()


def counted(method, f):
    """Unequal numbers of steps: 1 + the client's place in an order of the objectives."""
    return (corrected if method.name in ("FedAvg", "Scaffold") else own_steps)(
        method, f, steps=1 + int(f.smoothness) % 3
    )


def test_scaffold_with_steps_of_the_loops_own_finds_the_optimum():
    """Momentum, another rate and unequal numbers of steps: c_i is the mean of the gradients."""
    problem = q6()

    def loop(method, f):
        return corrected(method, f, lr=LR / 4, steps=1 + int(f.smoothness) % 3, momentum=0.5)

    x = by_loops(Scaffold(), problem, 800, loop).x
    assert np.linalg.norm(x - problem.optimum.x) < 1e-9
    averaged = by_loops(FedAvg(), problem, 800, loop).x
    assert np.linalg.norm(averaged - problem.optimum.x) > 1e-2  # what the correction is for


def test_a_loop_s_steps_are_counted_as_gradients():
    problem = q6()
    own = sum(1 + int(f.smoothness) % 3 for f in problem.objectives)
    history = by_loops(Scaffold(), problem, 2, counted)
    assert history["gradients"][-1] == 2 * own
    assert by_loops(FedAvg(**STEPS), problem, 2, own_steps)["gradients"][-1] == 2 * 6 * K
    assert "examples_seen" not in history  # only the loop knows its rows


@pytest.mark.parametrize("kind", [FedMiD, FedDualAvg])
def test_unequal_numbers_of_steps_are_counted(kind):
    """One round by hand: the server's prox goes by the mean of the numbers of steps."""
    problem = q6(PSI.weight)
    strategy = kind(PSI, client_lr=LR)
    x = by_loops(strategy, problem, 1, counted).x
    ends, steps = [], []
    for f in problem.objectives:
        n, z, w = 1 + int(f.smoothness) % 3, problem.start, problem.start
        for k in range(n):
            w = PSI.prox(z, LR * k) if kind is FedDualAvg else w
            z = (z if kind is FedDualAvg else w) - LR * f.gradient(w)
            w = PSI.prox(z, LR)
        ends.append(z if kind is FedDualAvg else w)
        steps.append(n)
    assert len(set(steps)) > 1
    assert x == pytest.approx(PSI.prox(np.mean(ends, axis=0), LR * np.mean(steps)), abs=1e-14)


@pytest.mark.parametrize("number", [0, 2, 4])
def test_counted_steps_lead_where_known_ones_do(number):
    known = OWN_STEPS[number]
    arguments = {"damping": 60.0, "strong_convexity": 1.0} if number == 4 else {"client_lr": LR}
    problem = q6_for(known)
    counted = by_loops(type(known)(PSI, **arguments), problem, 6, own_steps)
    assert counted.x == pytest.approx(simulate(known, problem, 6).x, rel=1e-13)


# --- what is refused, and how it is said ---------------------------------------------------------


def untouched(method, f):
    return method.start


def two_more(method, f):
    return corrected(method, f, steps=K + 2)


def with_momentum(method, f):
    return corrected(method, f, momentum=0.9)


def elsewhere(method, f):
    method.begin([method.start[0] + 1])


def wrong_rate(method, f):
    method.optimizer(method.start, 0.5)


def gradients_of_a_step(method, f):
    method.begin(method.start)


FAST = {"strong_convexity": 1.0, "damping": 30.0, "weight_power": 1.0, "weight_shift": 1.0}
REFUSED = [
    (FedProx(proximal=1.0), untouched, r"FedProx: the train function has taken no step with it: "
     r"call correction = method.begin\(model\)"),
    (FedDualAvg(PSI, client_lr=LR), untouched, r"call method.optimizer\(model\) for"),
    (Scaffold(**STEPS), two_more, "local_steps=3, and the train function took 5"),
    (Scaffold(**STEPS), with_momentum, "takes other steps .another rate, momentum"),
    (FedProx(proximal=1.0), elsewhere, "not the one that the server sent"),
    (FedDualAvg(PSI, client_lr=LR), wrong_rate, r"client_lr is 0.015625, and .* lr=0.5"),
    (FedDualAvg(PSI, client_lr=LR), gradients_of_a_step, "instead of begin and apply_gradients"),
    (FedProx(proximal=1.0), own_steps, "only corrects gradients"),
    (Scaffold(), own_steps, "without client_lr it leaves the steps to your optimizer"),
    # What only a loop can decide is asked of a strategy.
    (Scaffold(client_lr=0.1), corrected, r"Scaffold needs both .* got 0\.1 and None"),
    (FedDualAvg(PSI), corrected, r"FedDualAvg: .* L is unknown: give client_lr"),
    (FastFedDA(PSI, **FAST), corrected, r"FastFedDA with weights.*counts its steps"),
    (FedAvg(batch_size=5), corrected, r"batch_size=5 .* draws its batches"),
    (Scaffold(**STEPS, option="I"), corrected, 'option="I" needs the gradient'),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "loop", "said"), REFUSED)
def test_a_loop_that_leaves_the_method_out_is_refused(strategy, loop, said):
    error = ConfigError if loop is corrected else RoundError
    with pytest.raises(error, match=said):
        by_loops(strategy, q6_for(strategy), 1, loop)


@pytest.mark.parametrize("strategy", [FedAvg(**STEPS), AREA(PSI, **STEPS), MIFA(), FedVARP()])
def test_a_fit_without_steps_that_can_be_corrected_suits_some(strategy):
    """As docs/training_loops.md says: they add nothing to a gradient."""
    assert by_loops(strategy, q6_for(strategy), 1, untouched).x is not None


def test_other_algorithms_say_which_can():
    for name in names():
        strategy = client_class(name)
        if name in {s.name for s in CORRECTIONS + OWN_STEPS}:
            assert own_loop(name).algorithm == name
        else:
            with pytest.raises(
                ConfigError, match=f"{name} cannot correct a train loop; .*scaffold"
            ):
                own_loop(name)
            assert strategy.algorithm == name


# --- libraries that take the steps ---------------------------------------------------------------


class Line:
    """Least squares of a line with an intercept, whose model is two arrays."""

    def __init__(self, place):
        rng = np.random.default_rng(place)
        self.X, self.y = rng.normal(size=(12, 3)), rng.normal(size=12)

    def value(self, model):
        return float(np.mean((self.X @ model[0] + model[1] - self.y) ** 2) / 2)

    def gradient(self, model):
        r = self.X @ model[0] + model[1] - self.y
        return [self.X.T @ r / len(r), np.array([r.mean()])]


def stepwise(method, f, rows):
    """Steps by hand: the mean gradient along `rows` steps, and what the method adds."""
    (w, b), rate = method.start, 0.02 * rows
    correction = method.begin([w, b])
    for start in range(0, 12, rows):
        v, c = w, b
        for i in range(start, start + rows):
            r = f.X[i] @ v + c - f.y[i]
            v, c = v - 0.02 * r * f.X[i], c - 0.02 * r
        g, h = correction.apply_gradients([w, b], [(w - v) / rate, (b - c) / rate])
        w, b = w - rate * g, b - rate * h
    return [w, b]


@on_grid
def test_parameters_in_a_tree():
    """The page's loop with JAX: two rounds of Scaffold, as worked out by NumPy."""
    pytest.importorskip("jax", reason="the extra `jax` is not installed")
    lines, names = [Line(j) for j in range(3)], {}
    names["rows"] = lambda context: (lines[k := context.node_config["partition-id"]].X, lines[k].y)
    exec(blocks("python", "docs/training_loops.md")[2], names)
    start = [np.zeros((), np.float32), np.zeros(3, np.float32)]  # b, w
    app = ClientApp()
    app.train()(names["train"])
    grid = FakeGrid(lines, make=lambda load: app)
    found = Scaffold().start(grid, start, 2, evaluate_every=0).history.x
    x, variates = np.zeros(4), np.zeros((3, 4))
    for _ in range(2):
        ends, means, shift = [], [], variates.mean(axis=0) - variates
        for f, own in zip(lines, shift, strict=True):
            A, v, seen = np.c_[np.ones(len(f.y)), f.X], x.copy(), []
            for _ in range(10):
                seen.append(A.T @ (A @ v - f.y) / len(f.y))
                v = v - 0.1 * (seen[-1] + own)
            ends.append(v)
            means.append(np.mean(seen, axis=0))
        x, variates = np.mean(ends, axis=0), np.array(means)
    assert np.r_[found[0], found[1]] == pytest.approx(x, abs=1e-5)


@pytest.mark.parametrize("strategy", [FedProx(proximal=2.0), Scaffold()], ids=lambda s: s.name)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_library_s_partial_fit_is_corrected(strategy, rows):
    """By the block of the page on train loops."""
    from sklearn.linear_model import SGDRegressor

    names: dict = {}
    exec(blocks("python", "docs/training_loops.md")[1], names)

    def by_library(method, f):
        learner = SGDRegressor(
            learning_rate="constant", eta0=0.02, penalty=None, shuffle=False
        ).partial_fit(f.X[:1], f.y[:1])
        learner.coef_, learner.intercept_ = (layer.copy() for layer in method.start)
        names["corrected_epoch"](learner, method, f.X, f.y, rows)
        return [learner.coef_, learner.intercept_]

    problem = FederatedProblem([Line(j) for j in range(3)], x0=[np.zeros(3), np.zeros(1)])
    found = by_loops(strategy, problem, 5, by_library).x
    expected = by_loops(strategy, problem, 5, lambda method, f: stepwise(method, f, rows)).x
    averaged = by_loops(FedAvg(), problem, 5, by_library).x
    for layer, same, other in zip(found, expected, averaged, strict=True):
        assert layer == pytest.approx(same, abs=1e-12)
        assert abs(layer - other).max() > 1e-4
