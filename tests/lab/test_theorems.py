"""Constants, steps and rounds in the claims are those of the theorems."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pages import ROOT

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.claims import Claims
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.problems.papers.quadratics import quadratics
from flower_fedcon.runs.toml import read_toml


def terms(number, diameter, smoothness, lipschitz, dual, penalty, *, stated):
    """2 D^2 L/t + t^(-1/2) [2 N D^2 l + (2 G/(sqrt N l)) (|Y*| + D sqrt(l (L + N l)))].

    This is (31), of the proof; as stated, in (10), the denominator is sqrt(N l).
    """
    root = diameter * math.sqrt(penalty * (smoothness + number * penalty))
    second = 2 * number * diameter**2 * penalty
    below = math.sqrt(number * penalty) if stated else math.sqrt(number) * penalty
    second += 2 * lipschitz / below * (dual + root)
    return [[2 * diameter**2 * smoothness, -1.0], [second, -0.5]]


def dual(problem):
    """|Y*| of the clients' copies: a multiplier of x_i = x is (grad F - grad f_i)(x*)/N."""
    x = problem.optimum.x
    gradients = np.array([f.gradient(x) for f in problem.objectives])
    return np.linalg.norm(gradients - gradients.mean(axis=0)) / problem.num_clients


def of_least_squares(problem, vertices):
    """L and G of f_i = |A_i x - b_i|^2: |grad f_i| is convex, and largest at a vertex."""
    L = G = 0.0
    for f in problem.objectives:
        L = max(L, 2 * np.linalg.norm(f.A, 2) ** 2)
        for x in vertices:
            G = max(G, np.linalg.norm(f.gradient(x)))
    return L, G


def counterexample(problem):
    L, G = of_least_squares(problem, [np.ones(1), -np.ones(1)])
    assert (L, G) == (2.0, 8.0)
    assert dual(problem) == pytest.approx(2 * math.sqrt(2))
    return 2.0, L, G


def corners(problem):
    """The vertices of an l1 ball."""
    axes = problem.constraint.radius * np.eye(problem.x0.size)
    return np.concatenate([axes, -axes])


def lasso(problem):
    return 2 * problem.constraint.radius, *of_least_squares(problem, corners(problem))


def digits(problem):
    """Bounds: the Hessian of the loss in the logits is at most 1/2, its gradient sqrt 2 long."""
    L = max(np.linalg.norm(f.A, 2) ** 2 / (2 * len(f.A)) for f in problem.objectives)
    G = max(math.sqrt(2) * np.linalg.norm(f.A, axis=1).mean() for f in problem.objectives)
    return 2 * problem.constraint.radius, L, G


@pytest.mark.parametrize("constants", [counterexample, lasso, digits])
def test_constants(constants):
    name = {"lasso": "fedfw_lasso", "digits": "digits_fedfw"}.get(
        constants.__name__, constants.__name__
    )
    path = ROOT / "sims" / f"{name}.toml"
    bounded = [
        claim
        for claim in read_toml(path.parent / "claims" / path.name)["claim"]
        if claim["measure"] == "bounded"
    ]
    experiment = Experiment.load(path)
    problem = experiment.problem()
    D, L, G = constants(problem)
    penalty = experiment.settings(bounded[0]["algorithm"])["penalty"]
    assert len(bounded) == (2 if name == "fedfw_lasso" else 1)
    for claim in bounded:
        stated = "as the theorem states it" in claim["what"] and "(31)" not in claim["what"]
        expected = terms(problem.num_clients, D, L, G, dual(problem), penalty, stated=stated)
        assert np.allclose(claim["terms"], expected, rtol=1e-3)
        start = problem.objective(problem.x0) - problem.optimum.value
        last = sum(factor * 1e5**power for factor, power in claim["terms"])
        assert ("no test" in claim["what"]) == (last > start)


def test_constants_where_f_is_not_convex():
    """Those in fedfw_nonconvex.toml: a gap's is the largest of the five sets of data, Q's least."""
    claims = Claims(ROOT / "sims" / "claims" / "fedfw_nonconvex.toml")
    (of_gap, of_distance) = (claim["terms"] for claim in claims.claims)
    gaps, distances = [], []
    for (label, *place), experiment in claims.runs():
        if label != "FedFW" or place[-1] != 100:
            continue
        problem, penalty = experiment.problem(), experiment.settings(label)["penalty"]
        number, radius = problem.num_clients, problem.constraint.radius
        L = G = below = 0.0
        for f in problem.objectives:
            L = max(L, np.linalg.norm(f.Q, 2))
            G = max([G, *(np.linalg.norm(f.gradient(x)) for x in corners(problem))])
            below -= (np.linalg.norm(f.Q, 2) * radius**2 / 2 + abs(f.b).max() * radius) / number
        assert not problem.x0.any()  # F(x0) = 0, and `below` is less than its least value
        D = 2 * radius
        first, second = -below + penalty * number * D**2 / 2, L * D**2 / 2
        gaps.append([first + (L * D + G) ** 2 / (4 * number * penalty), second])
        away = G / math.sqrt(number) + math.sqrt(penalty * (first + second))
        distances.append(away / (penalty * math.sqrt(number)))
        gradient = np.mean([f.gradient(problem.x0) for f in problem.objectives], axis=0)
        assert radius * abs(gradient).max() < gaps[-1][0] * 1e4 ** (-1 / 3)  # no test: the start's
    assert len(gaps) == claims.repeats == 5
    assert np.allclose(of_gap, np.transpose([np.max(gaps, axis=0), [-1 / 3, -2 / 3]]), rtol=1e-4)
    assert np.allclose(of_distance, [[min(distances), -1 / 3]], rtol=1e-4)


def test_constant_of_the_clients_distance():
    """Q(t) in fedfw_consensus.toml, of the consensus, which is the distance over sqrt(N)."""
    claims, found = Claims(ROOT / "sims" / "claims" / "fedfw_consensus.toml"), []
    for (label, _), experiment in claims.runs():
        problem, penalty = experiment.problem(), experiment.settings(label)["penalty"]
        D, L, _ = lasso(problem)
        root = D * math.sqrt(penalty * (L + problem.num_clients * penalty))
        found.append(2 / penalty * (dual(problem) + root) / math.sqrt(problem.num_clients))
    assert np.allclose(claims.claims[0]["terms"], [[min(found), -0.5]], rtol=1e-3)


# --- the rounds and steps of DualFL's and FedSGM's theorems ---------------------------------------


def linear(kappa):
    return math.log(1e-12) / math.log1p(-(kappa**-0.5))


def regularized(alpha):
    L = 10.0  # the quadratics' largest eigenvalue
    return (1 + 2 * math.sqrt(1 + L / alpha)) * math.log(1 / (2 * alpha))


def switching(steps=1, q=0.0):
    return 2 * (2 * steps**2 + steps * q / 4) / steps / 0.1**2  # 2 Gamma D^2 G^2/(E eps^2)


@pytest.mark.parametrize(
    ("name", "key", "rounds"),
    [
        ("dualfl_condition", "problem.condition", linear),
        ("dualfl_regularization", "algorithm.regularization", regularized),
        ("fedsgm_local_steps", "algorithm.local_steps", switching),
        ("fedsgm_compression", "algorithm.uplink.fraction", lambda d: switching(q=1 / d - 1)),
    ],
)
def test_rounds_are_the_theorems(name, key, rounds):
    sweep = read_toml(ROOT / "sims" / "claims" / f"{name}.toml")["sweep"]
    assert sweep["run.rounds"] == pytest.approx([rounds(each) for each in sweep[key]], abs=1)


def test_steps_and_bounds_of_the_smaller_gamma():
    """Gamma = E/2 + 1 + E^2/3, eta = (2 E T Gamma)^(-1/2), eps = (2 Gamma/(E T))^(1/2)."""
    tables = read_toml(ROOT / "sims" / "claims" / "fedsgm_gamma.toml")
    sweep, E = tables["sweep"], 5
    T, gamma = np.array(sweep["run.rounds"]), E / 2 + 1 + E**2 / 3
    for place, times, claim in zip((1, 3), (1, 2), tables["claim"], strict=True):
        rate, eps = sweep[f"compare.{place}.client_lr"], sweep[f"compare.{place}.tolerance"]
        assert np.allclose(rate, (2 * E * T * gamma) ** -0.5, rtol=1e-5)
        assert np.allclose(eps, times * np.sqrt(2 * gamma / (E * T)), rtol=1e-5)
        assert np.allclose(claim["terms"], [[times * math.sqrt(2 * gamma / E), -0.5]], rtol=1e-5)


# --- S-DANE ---------------------------------------------------------------------------------------


def dissimilarity(problem):
    """delta, of clients whose Hessians are Q_i: the root of |mean (Q_i - Q)^2|."""
    Q = np.array([f.Q for f in problem.objectives])
    apart = Q - Q.mean(axis=0)
    return math.sqrt(np.linalg.eigvalsh((apart @ apart).mean(axis=0))[-1])


@pytest.mark.parametrize(
    ("name", "label", "power"),
    [("sdane", "accelerated", 0.5), ("sdane_plain", "plain", 1.0), ("sdane_condition", "", 0.0)],
)
def test_steps_of_sdane(name, label, power):
    claims = Claims(ROOT / "sims" / "claims" / f"{name}.toml")
    seen = set()
    for (found, seed, *_), experiment in claims.runs():
        if found != label if label else not found.startswith("acc"):
            continue
        settings = experiment.settings(found)
        problem = experiment.problem()
        at = settings["proximal"]
        assert problem.optimum.value < 0 == abs(problem.x0).max()  # |F*| = F(x0) - F*
        assert 2 * dissimilarity(problem) <= at
        if power:
            steps = 1 + math.log(1e6 * at) / math.log1p(at**-power)
            assert (
                2 * math.floor(steps) <= experiment.run_options.rounds <= 2 * math.ceil(steps) + 2
            )
        seen.add(seed)
    assert seen == set(range(5))


def test_clients_that_are_alike():
    apart = quadratics(condition=50.0, directions="aligned", seed=3)
    for share in (0.0, 0.01, 0.3):
        problem = quadratics(condition=50.0, directions="aligned", alike=share, seed=3)
        first, *others = (np.sort(np.linalg.eigvalsh(f.Q)) for f in problem.objectives)
        assert np.allclose(problem.objectives[0].Q, apart.objectives[0].Q)
        for each in others:
            assert (abs(each / first - 1) <= share + 1e-9).all() or share > 0.1  # else they cross
            assert each[0] >= 1 - 1e-9
            assert each[-1] <= 50 * (1 + 1e-9)
        assert dissimilarity(problem) <= share * 50 + 1e-9


@pytest.mark.parametrize(
    ("key", "value"),
    [("alike", -0.1), ("alike", 1.0), ("directions", "mixed"), ("shared", False), ("smallest", 0)],
)
def test_alike_is_refused_with(key, value):
    with pytest.raises(ConfigError, match="alike"):
        quadratics(**{"directions": "aligned", "alike": 0.1} | {key: value})
