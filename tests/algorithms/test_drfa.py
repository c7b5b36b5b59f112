"""DRFA against loops of NumPy, its estimates and theorem, and optima of independent solvers."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from everywhere import agrees_everywhere
from harness import OpenRun
from problems import least_of, q6, q6_least, q6_objectives
from scipy.optimize import minimize

from flower_fedcon import (
    Available,
    Bernoulli,
    Buffered,
    Cyclic,
    FederatedProblem,
    Markov,
    Sample,
    Weighted,
    simulate,
)
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.compressors import EF21, TopK
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError, ParticipationError
from flower_fedcon.objectives import GroupLossBounds, LogisticRegression, Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.regularizers import L1, MCP
from flower_fedcon.schedules import Inverse
from flower_fedcon.sets import Box
from flower_fedcon.strategies import DRFA

N, D = 6, 8
COHORT, COIN = (1, 0), (4, N)  # purpose and owner of a stream: N is the server


def draws(stream, t):
    purpose, owner = stream
    return np.random.Generator(np.random.PCG64(np.array([0, purpose, t, owner], np.uint32)))


def onto_simplex(v):
    """Return the projection, by the threshold's bisection."""
    low, high = v.min() - 1.0, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def drfa(
    rounds,
    cohort,
    eta,
    gam,
    count,
    *,
    scale,
    rho=0.0,
    memory=True,
    rule="projected",
    prox=lambda v, t: v,
):
    """Return w and w_bar; `scale(S)` has the weight of each upload of a cohort in a mean."""
    fs = q6_objectives()
    w = z = total = np.zeros(D)
    lam, h = np.full(N, 1 / N), np.zeros(N)
    for t in range(1, rounds + 1):
        S, total = cohort(t), total + z
        k = 1 if count == 1 else 1 + draws(COIN, t).integers(count)
        loss = np.array([0.5 * z @ f.Q @ z - f.b @ z for f in fs])
        moves = {1: [], 2: []}
        for i in S:
            v = w
            for j in range(1, count + 1):
                v = v - eta * (fs[i].Q @ v - fs[i].b)
                if j == k:
                    moves[1].append(v - w)
            moves[2].append(v - w)
        by = N * lam[S] * scale(S)
        z = prox(w + by @ np.array(moves[1]), eta * k)
        w = prox(w + by @ np.array(moves[2]), eta * count)
        if t == 1:
            h = np.full(N, loss[S].mean())
        h[S] = loss[S]
        u = h
        if not memory:
            u = np.zeros(N)
            u[S] = N * scale(S) * loss[S]
        if rule == "projected":
            lam = onto_simplex((lam + gam * count * u) / (1 + gam * count * rho * N))
        else:
            lam = lam * np.exp(gam * count * (u - u.max()))
            lam = lam / lam.sum()
    return w, total / rounds


def uniform(S):
    return np.full(len(S), 1 / len(S))


P = np.array([0.2, 0.3, 0.5, 0.6, 0.9, 1.0])
INCLUSION = P / (1 - np.prod(1 - P))
TRACE = np.random.default_rng(3).random((40, N)) < 0.4
TRACE[:, 0] |= ~TRACE.any(axis=1)


def weighted_cohort(t):
    rng = draws(COHORT, t)
    while not (S := np.flatnonzero(rng.random(N) < P)).size:
        pass
    return S


RULES = {
    "everyone": (None, lambda t: np.arange(N), uniform),
    "two": (
        Sample(count=2),
        lambda t: np.sort(draws(COHORT, t).choice(N, size=2, replace=False)),
        uniform,
    ),
    "trace": (Available(TRACE), lambda t: np.flatnonzero(TRACE[t - 1]), uniform),
    "weighted": (Weighted(P.tolist()), weighted_cohort, lambda S: 1 / (N * INCLUSION[S])),
}
FORMS = [
    {},
    {"weight_penalty": 0.4},
    {"weight_step": "multiplicative"},
    {"loss_memory": False},
    {"regularizer": L1(0.6)},
]


def soft(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - 0.6 * t, 0)


@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
@pytest.mark.parametrize("rule", RULES)
def test_a_loop_of_numpy_finds_the_same(engine, rule):
    """With the draws of cohorts and of k, and every option."""
    if engine == "jax":
        pytest.importorskip("jax")
    participation, cohort, scale = RULES[rule]
    for form in FORMS:
        for count in (1, 3):
            if engine == "jax" and count > 1 and form:
                continue
            steps = {"client_lr": 1 / 60, "weight_lr": 0.004, "local_steps": count}
            made = DRFA(**steps, **form, participation=participation)
            problem = q6(0.6) if "regularizer" in form else q6()
            found = simulate(made, problem, 40, engine=engine, evaluate_every=0)
            w, w_bar = drfa(
                40, cohort, 1 / 60, 0.004, count, scale=scale,
                rho=form.get("weight_penalty", 0.0), memory=form.get("loss_memory", True),
                rule=form.get("weight_step", "projected"),
                prox=soft if "regularizer" in form else lambda v, t: v,
            )  # fmt: skip
            np.testing.assert_allclose(found.x, w, rtol=0, atol=1e-12)
            np.testing.assert_allclose(found.outputs["average"], w_bar, rtol=0, atol=1e-12)


def test_one_local_step_is_afl():
    """Descent and ascent of sum_i lam_i f_i(w) at once, as AFL is stated."""
    fs, w, lam = q6_objectives(), np.zeros(D), np.full(N, 1 / N)
    for rounds in range(1, 61):
        gradient = sum(weight * f.gradient(w) for weight, f in zip(lam, fs, strict=True))
        losses = np.array([f.value(w) for f in fs])
        w, lam = w - 0.02 * gradient, onto_simplex(lam + 0.01 * losses)
        if rounds in (1, 2, 3, 60):
            made = DRFA(client_lr=0.02, weight_lr=0.01, local_steps=1)
            x = simulate(made, q6(), rounds, evaluate_every=0).x
            np.testing.assert_allclose(x, w, rtol=0, atol=1e-13)


def test_the_means_over_cohorts_are_right_on_average():
    """Over all cohorts of two of five, w and z move by sum_i lam_i d_i, and u is the losses."""
    rng = np.random.default_rng(0)
    made = DRFA(client_lr=0.1, weight_lr=1e-4, local_steps=3, loss_memory=False)
    setup = SimpleNamespace(num_clients=5, num_rounds=1, rate=0.4, rng=lambda *_: rng)
    made = made.with_arguments({"setup": setup})
    made.constants = made.derive()
    lam = rng.dirichlet(np.full(5, 20.0))
    start = made.initialize(rng.normal(size=3))._replace(weights=lam)
    delta, at_k, loss = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.random(5)
    after = []
    for cohort in combinations(range(5), 2):
        S = [*cohort]
        columns = {"delta": delta[S], "at_k": at_k[S], "loss": loss[S].tolist()}
        after.append(made.aggregate(start, Uploads([Reply(S, 1, columns)], 5)))
    for name, moves in (("w", delta), ("z", at_k)):
        mean = np.mean([getattr(state, name) for state in after], axis=0)
        np.testing.assert_allclose(mean, start.w + lam @ moves, rtol=0, atol=1e-14)
    mean = np.mean([state.weights for state in after], axis=0)  # no weight becomes 0
    moved = 3e-4 * (loss - loss.mean())
    np.testing.assert_allclose(mean, lam + moved, rtol=0, atol=1e-15)


# --- where it ends --------------------------------------------------------------------------------


class Raised(Quadratic):
    """A quadratic plus a constant."""

    def __init__(self, f, constant):
        super().__init__(f.Q, f.b)
        self.constant = constant

    def value(self, x):
        return super().value(x) + self.constant


def worst(x):
    return max(f.value(x) for f in q6_objectives())


def logistic():
    """Four clients with rows of length at most 1, so that G = 1."""
    rng, clients = np.random.default_rng(7), []
    for _ in range(4):
        A, w = rng.normal(size=(30, 3)), rng.normal(size=3)
        y = np.where(A @ w + rng.normal(size=30) > 0, 1.0, -1.0)
        clients.append(LogisticRegression(A / np.linalg.norm(A, axis=1).max(), y))
    return clients


@pytest.mark.parametrize("count", [1, 4])
def test_the_theorem_s_bound_holds(count):
    fs = logistic()
    best = least_of(fs, np.zeros(3))
    reach, spread = np.linalg.norm(best.x), 0.2
    gaps = []
    for rounds in (50, 800):
        given = {"distance": reach, "lipschitz": 1.0, "spread": spread, "local_steps": count}
        made = DRFA(**given, output="average")
        run, most = OpenRun(made, FederatedProblem(fs), rounds), 0.0
        for _ in range(rounds):
            losses = run.play().state.losses
            most = max(most, np.linalg.norm(losses - losses.mean()))
        assert most <= spread
        constants = run.server.strategy.constants
        c = 1 if count == 1 else 3
        primal = reach * np.sqrt((4 * count - 3) / (count * rounds))
        dual = spread * np.sqrt(c / rounds)
        assert constants.client_lr == pytest.approx(
            reach / np.sqrt(count * rounds * (4 * count - 3))
        )
        assert constants.weight_lr == pytest.approx(1 / (count * spread * np.sqrt(c * rounds)))
        gaps.append(max(f.value(run.x) for f in fs) - best.value)
        assert 0 < gaps[-1] <= primal + dual
    # At the rate 1/sqrt(T) a quarter; with four steps the first gap is small by chance.
    assert gaps[1] < gaps[0] / (3 if count == 1 else 1)


def test_with_one_step_and_everyone_w_itself_is_optimal():
    x = simulate(DRFA(client_lr=1 / 40, weight_lr=0.01), q6(), 3000, evaluate_every=0).x
    assert worst(x) == pytest.approx(q6_least().value, abs=1e-12)
    np.testing.assert_allclose(x, q6_least().x, rtol=0, atol=1e-8)


def test_a_constraint_set_holds():
    """The optimum over a box, by SLSQP."""
    fs, box = q6_objectives(), Box(-0.03, 0.03)
    problem = FederatedProblem(fs, constraint=box)
    x = simulate(DRFA(box, client_lr=1 / 40, weight_lr=0.01), problem, 4000, evaluate_every=0).x
    found = minimize(
        lambda p: p[-1], np.append(np.zeros(D), 1.0), jac=lambda p: np.eye(D + 1)[-1],
        method="SLSQP", bounds=[(-0.03, 0.03)] * D + [(None, None)],
        constraints={
            "type": "ineq",
            "fun": lambda p: p[-1] - np.array([f.value(p[:-1]) for f in fs]),
            "jac": lambda p: np.array([np.append(-f.gradient(p[:-1]), 1.0) for f in fs]),
        },
        options={"ftol": 1e-15, "maxiter": 1000},
    )  # fmt: skip
    assert np.abs(x).max() <= 0.03
    assert np.isclose(np.abs(x), 0.03).any()  # it binds
    assert worst(x) == pytest.approx(found.fun, abs=1e-9)


def test_a_penalty_leads_from_the_worst_to_the_mean():
    """The optimum for rho, by SciPy over w with the best lam of each w."""
    fs = q6_objectives()

    def function(w, rho):
        f = np.array([one.value(w) for one in fs])
        lam = onto_simplex(1 / N + f / (rho * N))
        value = lam @ f - rho / 2 * np.mean((N * lam - 1) ** 2)
        return value, lam @ np.array([one.gradient(w) for one in fs])

    values = []
    for rho in (0.3, 3.0, 300.0):
        made = DRFA(client_lr=1 / 40, weight_lr=0.01, weight_penalty=rho)
        x = simulate(made, q6(), 2000, evaluate_every=0).x
        found = minimize(function, np.zeros(D), rho, jac=True, method="BFGS", tol=1e-12)
        np.testing.assert_allclose(x, found.x, rtol=0, atol=1e-6)
        values.append(worst(x))
    assert q6_least().value < values[0] < values[1] < values[2] < worst(q6().optimum.x)
    np.testing.assert_allclose(x, q6().optimum.x, rtol=0, atol=5e-3)


SAMPLED = {
    "uniform": (Sample(count=3), 0.2, 0.2),
    "coin": (Bernoulli(0.5), 0.2, 0.2),
    "weighted": (Weighted([0.3, 0.4, 0.5, 0.6, 0.8, 1.0]), 0.2, 0.2),
    "Markov": (Markov(stay=0.8, back=0.3), 0.1, 0.2),
    "turns": (Cyclic(groups=3), 0.02, 0.1),  # whose error is of the order of client_lr
}


@pytest.mark.parametrize("rule", SAMPLED)
def test_shorter_steps_and_more_rounds_come_closer(rule):
    """The average; at the rate 1/sqrt(T) sixteen times the rounds leave a quarter."""
    participation, eta, gam = SAMPLED[rule]
    gaps = []
    for rounds in (125, 2000):
        steps = {"client_lr": eta / np.sqrt(rounds), "weight_lr": gam / np.sqrt(rounds)}
        made = DRFA(**steps, participation=participation, output="average")
        found = simulate(made, q6(), rounds, evaluate_every=0, engine="stacked").x
        gaps.append(worst(found) - q6_least().value)
    assert 0 < gaps[1] < gaps[0] / 2.5
    assert gaps[1] < 0.1


def test_a_constant_in_all_losses_changes_nothing():
    """With the memory; the paper's estimate has it as noise."""
    gaps, rates = {}, 0.2 / 500**0.5
    for memory, constant in ((True, 0.0), (True, 5.0), (False, 5.0)):
        raised = [Raised(f, constant) for f in q6_objectives()]
        made = DRFA(
            client_lr=rates, weight_lr=rates, loss_memory=memory,
            participation=Sample(count=3), output="average",
        )  # fmt: skip
        x = simulate(made, FederatedProblem(raised), 500, evaluate_every=0).x
        gaps[memory, constant] = worst(x) - q6_least().value
    assert gaps[True, 5.0] == pytest.approx(gaps[True, 0.0], rel=1e-6)
    assert gaps[False, 5.0] > 2 * gaps[True, 5.0]


# --- what it refuses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weight_lr": -1.0}, "weight_lr"),
        ({"weight_penalty": -1.0}, "weight_penalty"),
        ({"weight_step": "other"}, "weight_step must be"),
        (
            {"weight_step": "multiplicative", "weight_penalty": 1.0},
            "is for weight_step='projected'",
        ),
        ({"client_lr": "auto"}, "this method minimises another number"),
        ({"local_steps": "auto"}, "this method minimises another number"),
        ({"client_lr": Inverse(0.1, 0.1)}, "its average weighs rounds equally"),
        ({"client_lr": "adaptive"}, "lambda weighs clients"),
        ({"aggregation": CoordinateMedian()}, "it weighs each client's upload by lambda_i"),
        ({"compression": EF21(TopK(fraction=0.5))}, "N lambda_i would multiply"),
        ({"clip": 1.0}, "lambda follows the losses"),
        ({"privacy": GaussianDP(1.0, 1.0, 1e-5)}, "weighs them by the losses"),
        ({"regularizer": MCP(1.0, 3.0)}, "the theorem is for a convex problem"),
    ],
)
def test_what_it_refuses_says_why(given, words):
    with pytest.raises(ConfigError, match=words):
        DRFA(**given)


def test_replies_to_earlier_models_are_refused():
    with pytest.raises(ParticipationError, match="must belong to one model"):
        simulate(DRFA(participation=Buffered()), q6(), 1)


# --- groups, whose rows lie on several clients ----------------------------------------------------

M = 3
COUNTS = np.array([[4, 1, 0], [2, 0, 2], [1, 3, 1], [0, 2, 0], [5, 1, 3]], dtype=float)


def grouped():
    """Return the losses l_jk = ||x - a||^2 q/2 + c, None without rows, and their problem."""
    rng = np.random.default_rng(8)
    losses = [[(rng.normal(size=4), 1 + 2 * rng.random()) for _ in range(M)] for _ in COUNTS]
    clients = []
    for counts, each in zip(COUNTS, losses, strict=True):
        squares = [
            Quadratic(q * np.eye(4), q * a) if n else None
            for n, (a, q) in zip(counts, each, strict=True)
        ]
        first = next(filter(None, squares))
        clients.append(GroupLossBounds(first, squares, 0.0, counts=counts))
    return losses, FederatedProblem(clients, constraints="groups")


def drfa_of_groups(losses, rounds, cohort, eta, gam, count, scale, prox=lambda v, t: v):
    w = z = total = np.zeros(4)
    lam, h = np.full(M, 1 / M), None
    for t in range(1, rounds + 1):
        S, total = cohort(t), total + z
        k = 1 if count == 1 else 1 + draws((4, len(COUNTS)), t).integers(count)
        by = len(S) * scale(S)
        n = by @ COUNTS[S]
        here = n > 0
        values = np.array(
            [[q * (0.5 * z @ z - a @ z) for a, q in losses[i]] for i in S]
        )  # shape (S, M)
        found = (by @ (COUNTS[S] * values))[here] / n[here]
        h = np.full(M, found.mean()) if t == 1 else h
        h = h.copy()
        h[here] = found
        per = np.where(here, lam, 0) / np.where(here, n, 1)
        moves = {1: 0.0, 2: 0.0}
        for share, i in zip(by, S, strict=True):
            omega, v = per @ COUNTS[i], w
            for j in range(1, count + 1):
                g = sum(per[m] * COUNTS[i, m] * q * (v - a) for m, (a, q) in enumerate(losses[i]))
                v = v - (eta / omega) * g if omega else v
                if j == k:
                    moves[1] = moves[1] + share * omega * (v - w)
            moves[2] = moves[2] + share * omega * (v - w)
        z, w = prox(w + moves[1], eta * k), prox(w + moves[2], eta * count)
        lam = onto_simplex(lam + gam * count * h)
    return w, total / rounds


def two_of_five(t):
    return np.sort(draws((1, 0), t).choice(5, size=2, replace=False))


SHARES = np.array([0.3, 0.5, 0.6, 0.7, 0.9])


def some_of_five(t):
    rng = draws((1, 0), t)
    while not (S := np.flatnonzero(rng.random(5) < SHARES)).size:
        pass
    return S


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("psi", [None, L1(0.6)])
def test_groups_are_as_in_a_loop_of_numpy(count, psi):
    losses, _ = grouped()
    p = SHARES / (1 - np.prod(1 - SHARES))
    for rule, cohort, scale in (
        (None, lambda t: np.arange(5), uniform),
        (Sample(count=2), two_of_five, uniform),
        (Weighted(SHARES.tolist()), some_of_five, lambda S: 1 / (5 * p[S])),
    ):
        given = {"client_lr": 0.04, "weight_lr": 0.05, "local_steps": count}
        strategy = DRFA(psi, groups=M, participation=rule, **given)
        problem = FederatedProblem(grouped()[1].objectives, regularizer=psi, constraints="groups")
        prox = (lambda v, t: v) if psi is None else soft
        w, mean = drfa_of_groups(losses, 40, cohort, 0.04, 0.05, count, scale, prox)
        history = agrees_everywhere(strategy, problem, rounds=40)
        assert history.x == pytest.approx(w, rel=0, abs=1e-12)
        assert history.outputs["average"] == pytest.approx(mean, rel=0, abs=1e-12)


def test_the_largest_loss_of_a_group_is_least():
    """Against SLSQP on the epigraph, and the least violation of bounds of 0."""
    losses, problem = grouped()

    def values(x):
        each = np.array([[q * (0.5 * x @ x - a @ x) for a, q in own] for own in losses])
        return (COUNTS * each).sum(0) / COUNTS.sum(0)

    limit = {"type": "ineq", "fun": lambda y: y[-1] - values(y[:-1])}
    found = minimize(
        lambda y: y[-1], np.r_[np.zeros(4), 1.0], constraints=[limit], method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    assert problem.least_violation == pytest.approx(found.fun, abs=1e-8)
    strategy = DRFA(client_lr=0.05, weight_lr=0.05, groups=M)
    history = simulate(strategy, problem, 2000, evaluate_every=0)
    assert history.x == pytest.approx(found.x[:-1], abs=1e-6)
    assert values(history.x).max() == pytest.approx(found.fun, abs=1e-8)
    assert history["worst_estimate"][-1] == pytest.approx(found.fun, abs=1e-7)
    even = simulate(DRFA(client_lr=0.05, weight_lr=1e-12, groups=M), problem, 500).x
    assert values(even).max() > found.fun + 0.01  # the mean over groups is elsewhere


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss_memory": False}, "the cohort's rows estimate each group's loss"),
        ({"batch_size": 3}, "steps on groups take all rows"),
        ({"groups": 0}, "groups must be"),
        ({"groups": 2}, "this client has 3 groups, the server's DRFA has groups=2"),
    ],
)
def test_groups_that_cannot_be_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        simulate(DRFA(client_lr=0.1, weight_lr=0.1, **{"groups": M, **given}), grouped()[1], 1)


def test_groups_need_losses_of_groups():
    with pytest.raises(ConfigError, match=r"DRFA needs objectives .* no constraint_sums\(x\)"):
        simulate(DRFA(client_lr=0.1, weight_lr=0.1, groups=2), q6(), 1)
