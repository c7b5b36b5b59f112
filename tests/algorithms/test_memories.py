"""MIFA and FedVARP against loops of NumPy, under every kind of rule, and where they end."""

from __future__ import annotations

from types import SimpleNamespace

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.fedvarp import by_card as fedvarp
from cases.mifa import by_card as mifa
from problems import q6, q6_l1, q6_objectives

from flower_fedcon import (
    Available,
    Bernoulli,
    Buffered,
    Clock,
    Cyclic,
    FederatedProblem,
    Markov,
    Sample,
    Weighted,
    simulate,
)
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.optimizers import Momentum
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.regularizers import L1
from flower_fedcon.schedules import Inverse
from flower_fedcon.strategies import MIFA, FedVARP

ROUNDS = 60
PSI = L1(0.6)
UNEQUAL = Weighted([0.1, 0.2, 0.4, 0.6, 0.8, 1.0], unbiased=False)


def coming_late():
    """A random trace in which client 4 comes in round 12, and client 5 in round 31, first."""
    there = np.random.default_rng(3).random((ROUNDS, 6)) < 0.4
    there[:, 0] |= ~there[:, :4].any(axis=1)
    there[:11, 4] = there[:30, 5] = False
    there[11, 4] = there[30, 5] = True
    return there


def cohorts_of(there):
    return [np.flatnonzero(row) for row in there]


@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
@pytest.mark.parametrize("rate", [1 / 40, Inverse(1 / 30, 0.05)], ids=["fixed", "falling"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_loops_of_numpy_find_the_same(engine, rate, count):
    """Also where clients come late: their memory is 0 until then."""
    if engine == "jax":
        pytest.importorskip("jax")
    there, steps = coming_late(), {"client_lr": rate, "local_steps": count}
    cohorts, own = cohorts_of(there), {**steps, "participation": Available(there)}
    for problem, psi in ((q6(), None), (q6_l1(), PSI)):
        for mirror in (True, False):
            made = MIFA(psi, mirror=mirror, **own)
            x = simulate(made, problem, ROUNDS, engine=engine, evaluate_every=0).x
            np.testing.assert_allclose(x, mifa(problem, cohorts, **steps), rtol=0, atol=1e-12)
    made = FedVARP(server_lr=0.7, **own)
    x = simulate(made, q6(), ROUNDS, engine=engine, evaluate_every=0).x
    expected = fedvarp(q6(), cohorts, **steps, server_lr=0.7)
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12)


RULES = {
    "uniform": Sample(count=2),
    "coin": Bernoulli(0.3),
    "Markov": Markov(stay=0.8, back=0.1),
    "turns": Cyclic(groups=3),
    "unequal": UNEQUAL,
    "trace": Available(coming_late()),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_limit_is_the_optimum_under_every_rule(rule):
    """With one local step, also where some clients take part ten times as often as others."""
    own = {"local_steps": 1, "participation": RULES[rule]}
    for made, problem in ((MIFA(**own), q6()), (MIFA(PSI, **own), q6_l1()), (FedVARP(**own), q6())):
        x = simulate(made, problem, 900, evaluate_every=0, engine="stacked").x
        far = problem.objective(x) - problem.optimum.value
        assert abs(far) < 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_with_several_steps_it_is_that_of_averaging_with_everyone(rule):
    """Under any rule alike: the fixed point of the mean of the clients' affine maps."""
    eta, count, mean, shift = 1 / 60, 4, np.zeros((8, 8)), np.zeros(8)
    for f in q6_objectives():
        one = np.eye(8) - eta * f.Q
        mean += np.linalg.matrix_power(one, count) / 6
        shift += sum(np.linalg.matrix_power(one, k) for k in range(count)) @ f.b * eta / 6
    limit = np.linalg.solve(np.eye(8) - mean, shift)
    assert np.linalg.norm(limit - q6().optimum.x) > 0.1
    own = {"client_lr": eta, "local_steps": count, "participation": RULES[rule]}
    for made in (MIFA(**own), FedVARP(**own)):
        x = simulate(made, q6(), 900, evaluate_every=0, engine="stacked").x
        np.testing.assert_allclose(x, limit, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [MIFA, FedVARP])
def test_falling_steps_take_the_bias_away(kind):
    """As 1/t, with two local steps and cohorts of two."""
    far = []
    for rounds in (200, 2000):
        lr = Inverse(1 / 20, 0.05)
        made = kind(client_lr=lr, local_steps=2, participation=Sample(count=2))
        x = simulate(made, q6(), rounds, evaluate_every=0, engine="stacked").x
        far.append(np.linalg.norm(x - q6().optimum.x))
    assert far[1] < 0.15 * far[0]
    assert far[1] < 2e-3


def test_a_server_s_momentum_does_not_move_the_limit():
    made = FedVARP(client_lr=1 / 40, server_optimizer=Momentum(0.5), participation=Sample(count=2))
    x = simulate(made, q6(), 800, evaluate_every=0, engine="stacked").x
    np.testing.assert_allclose(x, q6().optimum.x, rtol=0, atol=1e-12)


def test_examples_weigh_the_memory():
    """Three clients with 1, 2 and 5 rows: a share is 3/8 of these."""
    examples, shares = [1.0, 2.0, 5.0], 3 / 8 * np.array([[1.0], [2.0], [5.0]])
    sent = np.random.default_rng(0).normal(size=(2, 2, 4))
    kept, varp, mifa = np.zeros((3, 4)), np.zeros(4), np.zeros(4)
    strategies = [kind(client_lr=0.5, local_steps=1) for kind in (MIFA, FedVARP)]
    states = []
    for made in strategies:
        made.setup = SimpleNamespace(num_clients=3)
        states.append(made.initialize(np.zeros(4)))
    for cohort, delta in zip(([0, 2], [1, 2]), sent, strict=True):
        change = shares[cohort] * (delta - kept[cohort])
        varp = varp + (shares * kept).mean(axis=0) + change.mean(axis=0)
        uploads = [delta - kept[cohort], delta]  # MIFA's are differences
        kept[cohort] = delta
        mifa = mifa + 0.5 * (shares * kept).mean(axis=0)
        for k, (made, values) in enumerate(zip(strategies, uploads, strict=True)):
            reply = Reply(cohort, 1, {"delta": values})
            states[k] = made.aggregate(states[k], Uploads([reply], 3, None, examples))
    np.testing.assert_allclose(states[0].w, mifa, rtol=0, atol=1e-14)
    np.testing.assert_allclose(states[1].w, varp, rtol=0, atol=1e-14)


def test_old_replies_need_short_steps():
    """Eight equal clients, a step for each reply: eta L may be 1.2/N, and 1.1/N for many."""
    linear = np.array([1.0, -1.0])
    clients = [Quadratic(np.diag([1.0, 10.0]), j * linear) for j in range(8)]
    problem, clock = FederatedProblem(clients), Clock(compute=[1.0] * 8)

    def far(kind, **own):
        made = kind(participation=Buffered(), **own)
        x = simulate(made, problem, 1200, clock=clock, evaluate_every=0).x
        return np.abs(x - problem.optimum.x).max()

    assert far(MIFA, client_lr=1.0 / 80, local_steps=1) < 1e-5
    assert far(MIFA, client_lr=1.4 / 80, local_steps=1) > 1e3
    for kind in (MIFA, FedVARP):  # by rule
        assert far(kind) < 0.1  # of 3.5


def test_what_they_refuse_says_why():
    with pytest.raises(ConfigError, match="step of the server's prox is client_lr times"):
        MIFA(PSI).initialize(np.zeros(8))
    with pytest.raises(ConfigError, match="corrects each upload by the client's last one"):
        FedVARP(privacy=GaussianDP(1.0, 1.0, 1e-5))
    with pytest.raises(ConfigError, match=r"regularizer"):
        simulate(FedVARP(), q6_l1(), 1)
