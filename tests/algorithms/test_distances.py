"""FedMiD and FedDualAvg with other distances than the Euclidean one."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun

from flower_fedcon import Available, FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.regularizers import L1, ElasticNet, GroupLasso, Indicator, L2Squared, Nonnegative
from flower_fedcon.runs.toml import argument, tabled
from flower_fedcon.sets import (
    Box,
    HalfSpace,
    Hyperplane,
    L1Ball,
    L2Ball,
    LInfBall,
    Simplex,
)
from flower_fedcon.solvers import Distance, Entropy, PNorm, QuadraticForm
from flower_fedcon.strategies import FedDualAvg, FedMiD
from flower_fedcon.testing import check_algorithm
from flower_fedcon.wire import settings

D = 5
DIAGONAL = np.array([1.0, 2.0, 3.0, 4.0, 0.5])
MATRIX = np.diag(DIAGONAL) + 0.3
BOTH = pytest.mark.parametrize("kind", [FedMiD, FedDualAvg])


class Cosh(Distance):
    """h = sum cosh w."""

    strong_convexity = 1.0

    def gradient(self, x):
        return np.sinh(x)

    def inverse(self, z):
        return np.arcsinh(z)


def soft(z, level):
    return np.sign(z) * np.maximum(abs(z) - level, 0)


def p_gradient(x, p):
    norm = (abs(x) ** p).sum() ** (1 / p)
    return np.sign(x) * abs(x) ** (p - 1) * norm ** (2 - p)


def softmax(z):
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


# h, psi, grad h, and the point of (z, t), in NumPy by hand
BY_HAND = {
    "entropy, simplex": (Entropy(), Simplex(), np.log, lambda z, t: softmax(z)),
    "entropy, l1": (Entropy(), L1(0.1), np.log, lambda z, t: np.exp(z - 0.1 * t)),
    "p-norm, l1": (
        PNorm(1.5), L1(0.1), lambda x: p_gradient(x, 1.5),
        lambda z, t: p_gradient(soft(z, 0.1 * t), 3.0),
    ),
    "diagonal, l1": (
        QuadraticForm(DIAGONAL), L1(0.1), lambda x: DIAGONAL * x,
        lambda z, t: soft(z, 0.1 * t) / DIAGONAL,
    ),
    "matrix, l2": (
        QuadraticForm(MATRIX), L2Squared(0.2), lambda x: MATRIX @ x,
        lambda z, t: np.linalg.solve(MATRIX + 0.2 * t * np.eye(D), z),
    ),
    "one's own": (Cosh(), None, np.sinh, lambda z, t: np.arcsinh(z)),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", BY_HAND)


def problem_of(psi, clients=4):
    """Quadratics whose minimiser on the simplex, and with l1, has all entries above 0."""
    rng = np.random.default_rng(3)
    Q = [np.diag(rng.uniform(1, 3, D)) + 0.1 for _ in range(clients)]
    f = [Quadratic(q, q @ rng.uniform(0.2, 0.5, D)) for q in Q]
    name = "constraint" if isinstance(psi, Simplex) else "regularizer"
    return FederatedProblem(f, x0=np.full(D, 1 / D), **({} if psi is None else {name: psi}))


def loop(kind, problem, there, dual, point, lr, steps, server_lr=1.0):
    """The rounds in NumPy."""
    f, z, e = problem.objectives, dual(problem.x0), 0.0
    w = problem.x0
    for row in there:
        moves = []
        for i in np.flatnonzero(row):
            if kind is FedMiD:
                v = w
                for _ in range(steps):
                    v = point(dual(v) - lr * f[i].gradient(v), lr)
                moves.append(dual(v) - dual(w))
            else:
                own = z
                for k in range(steps):
                    own = own - lr * f[i].gradient(point(own, e + lr * k))
                moves.append(own - z)
        if kind is FedMiD:
            w = point(dual(w) + server_lr * np.mean(moves, axis=0), server_lr * lr * steps)
        else:
            z, e = z + server_lr * np.mean(moves, axis=0), e + server_lr * lr * steps
            w = point(z, e)
    return w


@BOTH
@EACH
def test_rounds_are_those_of_numpy(kind, name):
    """The first round, by hand, and 20 of sampled clients."""
    h, psi, dual, point = BY_HAND[name]
    problem = problem_of(psi)
    there = np.random.default_rng(0).random((20, 4)) < 0.5
    there[~there.any(axis=1), 0] = True
    there[0] = True
    given = {"client_lr": 0.1, "local_steps": 3, "server_lr": 0.8, "distance": h}
    for rounds in (1, 20):
        strategy = kind(psi, participation=Available(there), **given)
        expected = loop(kind, problem, there[:rounds], dual, point, 0.1, 3, 0.8)
        for engine in ("local", "stacked"):
            found = simulate(strategy, problem, rounds, engine=engine).x
            assert found == pytest.approx(expected, abs=1e-12), engine


@EACH
def test_one_step_and_the_server_s_prox_reach_the_optimum(name):
    h, psi, _, _ = BY_HAND[name]
    problem = problem_of(psi)
    for strategy in (
        FedMiD(psi, client_lr=0.1, local_steps=1, server_prox_only=True, distance=h),
        FedDualAvg(psi, client_lr=0.1, local_steps=1, distance=h),
    ):
        found = simulate(strategy, problem, 1500, engine="stacked", evaluate_every=0).x
        assert found == pytest.approx(problem.optimum.x, abs=2e-9)


@EACH
def test_several_steps_are_exact_for_one_client_and_leave_a_floor_for_more(name):
    h, psi, _, _ = BY_HAND[name]
    given = {"local_steps": 3, "distance": h}
    gaps = []
    for clients, lr in ((1, 0.1), (4, 0.1), (4, 0.02)):
        problem = problem_of(psi, clients)
        strategy = FedDualAvg(psi, client_lr=lr, **given)
        x = simulate(strategy, problem, int(60 / lr), engine="stacked", evaluate_every=0).x
        gaps.append(abs(x - problem.optimum.x).max())
    assert gaps[0] < 2e-9
    assert 1e-7 < gaps[2] < gaps[1] / 3  # in proportion to the steps


H = {
    Entropy(): lambda w: (w * np.log(w) - w).sum(),
    PNorm(1.3): lambda w: (abs(w) ** 1.3).sum() ** (2 / 1.3) / 2,
    QuadraticForm(DIAGONAL): lambda w: (DIAGONAL * w * w).sum() / 2,
    QuadraticForm(MATRIX): lambda w: w @ MATRIX @ w / 2,
}
NORMAL = np.array([1.0, -0.5, 2.0, 0.3, 1.0])
PSIS = [
    None, L1(0.4), L1(np.linspace(0, 1, D)), L2Squared(0.7), ElasticNet(0.3, 0.5), Nonnegative(),
    Simplex(0.8), L1Ball(0.6), L1Ball(60.0), L2Ball(0.5), LInfBall(0.3), Box(-0.1, 0.2),
    Box(np.full(D, 0.05), np.linspace(0.1, 0.5, D)), HalfSpace(NORMAL, 0.2), HalfSpace(NORMAL, 99),
    Hyperplane(NORMAL, 0.4),
]  # fmt: skip


@pytest.mark.parametrize("h", H, ids=str)
@pytest.mark.parametrize("psi", PSIS, ids=str)
def test_a_point_is_the_minimiser_or_is_refused(h, psi):
    made = FedMiD(psi, client_lr=0.1).regularizer
    if h.point_of(made) is None:
        served = {"L1", "L1Ball", "Simplex", "Nonnegative", "Box", "LInfBall"}
        assert h != QuadraticForm(DIAGONAL)
        assert h == QuadraticForm(MATRIX) or type(psi).__name__ not in served
        with pytest.raises(ConfigError, match="no closed form, and no equation"):
            FedDualAvg(psi, distance=h)
        return
    rng = np.random.default_rng(1)
    z, step = rng.standard_normal((3, D)), 0.6
    w = h.point(made, z, step)
    for zi, wi in zip(z, w, strict=True):
        assert h.point(made, zi, step) == pytest.approx(wi, rel=1e-12, abs=1e-15)
        assert made.value(wi) < np.inf

        def total(u, zi=zi):
            return -zi @ u + H[h](u) + step * made.value(u)

        least = total(wi)
        for size in (1e-1, 1e-3, 1e-5):
            for _ in range(30):
                near = made.prox(wi + size * rng.standard_normal(D), 0.0)
                if isinstance(h, Entropy):
                    near = np.maximum(near, 1e-300)
                if made.value(near) < np.inf:
                    assert total(near) > least - 1e-12


@BOTH
def test_euclidean_by_another_name_is_the_same(kind):
    """h = ||w||^2/2 as a quadratic form, and as a p-norm, is the default to rounding."""
    psi = L1(0.1)
    problem = problem_of(psi)
    given = {"client_lr": 0.1, "local_steps": 3}
    plain = simulate(kind(psi, **given), problem, 10)
    named = simulate(kind(psi, distance="euclidean", **given), problem, 10)
    assert named.x.tobytes() == plain.x.tobytes()
    for h in (QuadraticForm(np.ones(D)), QuadraticForm(np.eye(D)), PNorm(2.0)):
        psis = psi if h != QuadraticForm(np.eye(D)) else None
        there = problem if psis is psi else problem_of(None)
        other = simulate(kind(psis, distance=h, **given), there, 10)
        again = simulate(kind(psis, **given), there, 10)
        assert other.x == pytest.approx(again.x, abs=1e-14)


@BOTH
def test_models_are_matrices_too(kind):
    rng = np.random.default_rng(5)
    problem = FederatedProblem(
        [LeastSquares(rng.standard_normal((20, 4)), rng.standard_normal((20, 2))) for _ in "abc"],
        regularizer=L1(0.1), x0=np.full((4, 2), 0.1),
    )  # fmt: skip
    for h in (PNorm(1.5), QuadraticForm(np.arange(1.0, 9.0)), Entropy()):
        strategy = kind(L1(0.1), client_lr=0.05, local_steps=2, distance=h)
        runs = [simulate(strategy, problem, 5, engine=e) for e in ("local", "stacked")]
        assert runs[0].x.shape == (4, 2)
        assert runs[1].x == pytest.approx(runs[0].x, abs=1e-14)


def test_the_compiled_engine_finds_the_same():
    for h, psi in ((Entropy(), Simplex()), (PNorm(1.5), L1Ball(0.5))):
        problem = FederatedProblem(problem_of(None).objectives, constraint=psi, x0=np.full(D, 0.1))
        strategy = FedMiD(psi, client_lr=0.1, local_steps=2, distance=h)
        local, compiled = (simulate(strategy, problem, 5, engine=e) for e in ("local", "jax"))
        assert compiled.x == pytest.approx(local.x, abs=1e-13)


@BOTH
@pytest.mark.parametrize("h", [PNorm(1.5), QuadraticForm(DIAGONAL)], ids=str)
def test_the_rules_of_algorithms_hold(kind, h):
    check_algorithm(kind(L1(0.1), client_lr=0.05, local_steps=2, distance=h), problem_of(L1(0.1)))


def settled(strategy, problem):
    """The default step."""
    return OpenRun(strategy, problem).server.strategy.client_lr


@BOTH
def test_defaults_follow_from_the_strong_convexity_of_h(kind):
    problem = problem_of(L1(0.1))
    rates = [
        settled(kind(L1(0.1), distance=h), problem)
        for h in ("euclidean", "p-norm", PNorm(1.2), QuadraticForm(DIAGONAL))
    ]
    assert np.array(rates) / rates[0] == pytest.approx([1.0, 0.5, 0.2, 0.5])
    simplex = problem_of(Simplex())
    entropic = settled(kind(Simplex(), distance="entropy"), simplex)
    assert entropic == settled(kind(Simplex()), simplex)
    with pytest.raises(ConfigError, match="h has no known strong convexity there: give client_lr"):
        simulate(kind(L1(0.1), distance="entropy"), problem, 1)
    assert Entropy().modulus(Indicator(Simplex(4.0))) == 0.25


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"distance": "entropie"}, "unknown distance 'entropie': did you mean 'entropy'"),
        ({"distance": 2}, "distance must be one of 'euclidean', 'entropy', 'p-norm'"),
        ({"distance": "p-norm", "client_lr": "adaptive"}, "measured in the Euclidean norm"),
        ({"distance": "p-norm", "regularizer": GroupLasso(0.1, 1)}, "it serves psi = 0, L1"),
        ({"distance": Cosh(), "regularizer": L1(0.1)}, "it serves psi = 0, HalfSpace and Hyper"),
    ],
)
def test_what_is_refused_says_why(given, says):
    with pytest.raises(ConfigError, match=says):
        FedMiD(**{"regularizer": None, **given})


def test_arguments_of_distances_are_checked():
    for make, says in (
        (lambda: PNorm(1.0), "needs 1 < p <= 2"),
        (lambda: QuadraticForm(np.ones((2, 3))), "or \\(d, d\\) and symmetric"),
        (lambda: QuadraticForm([1.0, -1.0]), "positive definite A"),
    ):
        with pytest.raises(ConfigError, match=says):
            make()
    problem = problem_of(None)
    for h, x0, says in (
        (Entropy(), np.zeros(D), "entries above 0"),
        (QuadraticForm(np.ones(3)), np.ones(D), "A of 3 entries, the model 5"),
    ):
        there = FederatedProblem(problem.objectives, x0=x0)
        with pytest.raises(ConfigError, match=says):
            simulate(FedMiD(None, client_lr=0.1, distance=h), there, 1)
    apart = FederatedProblem(
        problem.objectives, constraint=Hyperplane(np.ones(D), -1.0), x0=np.ones(D)
    )
    with pytest.raises(Exception, match="psi is infinite wherever h is finite"):
        simulate(FedDualAvg(apart.constraint, client_lr=0.1, distance="entropy"), apart, 2)


@BOTH
@pytest.mark.parametrize("h", ["euclidean", "entropy", PNorm(1.3)], ids=str)
def test_a_run_s_folder_states_what_makes_it_again(kind, h):
    made = kind(Simplex(), client_lr=0.1, distance=h)
    stated = {name: value for name, value in made.arguments().items() if value is not None}
    assert kind(**stated).arguments() == made.arguments()


def test_files_and_messages_carry_them():
    for h in (Entropy(), PNorm(1.3), QuadraticForm(DIAGONAL)):
        assert argument("distance", tabled(h)) == h
        text, arrays = settings.encode({"distance": h})
        assert settings.decode(text, arrays)["distance"] == h
    own = Cosh()
    text, arrays = settings.encode({"distance": own})
    assert settings.decode(text, arrays, {"distance": own})["distance"] is own
