"""FRECON, COFIG and DIANA against loops of NumPy, where they end, and their steps."""

from __future__ import annotations

import numpy as np
import pytest
from by_card import soft
from harness import OpenRun
from problems import q6, q6_l1, q6_objectives, random_quadratics
from q6_runs import lose
from test_memories import RULES, coming_late

from flower_fedcon import Available, Buffered, FederatedProblem, Sample, simulate
from flower_fedcon.compressors import QSGD, Identity, Natural, RandK, TopK, dense
from flower_fedcon.core.rng import COMPRESS, stream
from flower_fedcon.errors import ConfigError, ParticipationError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.regularizers import L1, MCP
from flower_fedcon.strategies import FRECON

ROUNDS, PSI = 60, L1(0.6)
GAMMA, LAMBDA = 1 / 80, 0.2
COMPRESSORS = [Identity(), RandK(count=3), QSGD(levels=2), Natural()]


def gradient(i, x):
    f = q6_objectives()[i]
    return f.Q @ x - f.b


def sent(compressor, t, i, *vectors):
    """Return what client i sends of some vectors in round t, by the draws of seed 0."""
    rng = stream(0, COMPRESS, t, i)
    return [dense(compressor.compress(v, rng)) for v in vectors]


def frecon(cohorts, compressor, psi=0.0, gamma=GAMMA, lam=LAMBDA):
    """Return the last model; every client knows both of the server's, also one that was away."""
    x = before = np.zeros(8)
    g, h, alpha = np.zeros(8), np.zeros((6, 8)), 1 / (1 + compressor.q(8))
    for t, cohort in enumerate(cohorts, 1):
        own = {i: gradient(i, x) for i in cohort}
        pairs = [
            sent(compressor, t, i, own[i] - h[i], own[i] - gradient(i, before)) for i in cohort
        ]
        u, q = np.array(pairs).swapaxes(0, 1)
        g = q.mean(axis=0) + (1 - lam) * g + lam * (h.mean(axis=0) + u.mean(axis=0))
        h[cohort] += alpha * u
        before, x = x, soft(x - gamma * g, gamma * psi)
    return x


def cofig(cohorts, compressor, psi=0.0, gamma=GAMMA):
    x, h, alpha = np.zeros(8), np.zeros((6, 8)), 1 / (1 + compressor.q(8))
    for t, cohort in enumerate(cohorts, 1):
        u = np.array([sent(compressor, t, i, gradient(i, x) - h[i])[0] for i in cohort])
        x = soft(x - gamma * (h.mean(axis=0) + u.mean(axis=0)), gamma * psi)
        h[cohort] += alpha * u
    return x


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
@pytest.mark.parametrize("composite", [False, True], ids=["smooth", "composite"])
def test_the_loops_of_numpy_find_the_same(compressor, composite):
    """Also where clients were away in the round before, and where they come late."""
    there = coming_late()
    cohorts = [np.flatnonzero(row) for row in there]
    problem, weight = (q6_l1(), 0.6) if composite else (q6(), 0.0)
    own = {"uplink_compressor": compressor, "step_size": GAMMA, "participation": Available(there)}
    engines = ["stacked", "jax"] if isinstance(compressor, Identity) else []
    for mirror in (True, False):
        for variant, expected in (
            ("frecon", frecon(cohorts, compressor, weight)),
            ("cofig", cofig(cohorts, compressor, weight)),
        ):
            mixing = LAMBDA if variant == "frecon" else None
            made = FRECON(problem.regularizer, variant=variant, mixing=mixing, mirror=mirror, **own)
            for engine in ("local", *engines):
                if engine == "jax":
                    pytest.importorskip("jax")
                x = simulate(made, problem, ROUNDS, engine=engine, evaluate_every=0).x
                np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_with_everyone_cofig_is_diana(compressor):
    """DIANA as its paper states it: the server's h moves by the mean of what is sent."""
    x, h, own = np.zeros(8), np.zeros(8), np.zeros((6, 8))
    alpha = 1 / (1 + compressor.q(8))
    for k in range(1, ROUNDS + 1):
        m = [sent(compressor, k, i, gradient(i, x) - own[i])[0] for i in range(6)]
        own += alpha * np.array(m)
        estimate, h = h + np.mean(m, axis=0), h + alpha * np.mean(m, axis=0)
        x = x - GAMMA * estimate
    made = FRECON(variant="cofig", uplink_compressor=compressor, step_size=GAMMA)
    found = simulate(made, q6(), ROUNDS, evaluate_every=0).x
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ["frecon", "cofig"])
@pytest.mark.parametrize("rule", RULES)
def test_the_limit_is_the_optimum_under_every_rule(rule, variant):
    """At the default steps, also where some take part ten times as often as others."""
    own = {"variant": variant, "participation": RULES[rule]}
    half = {"uplink_compressor": RandK(count=4), **own}
    for made, problem in (
        (FRECON(**own), q6()), (FRECON(PSI, **own), q6_l1()), (FRECON(PSI, **half), q6_l1())
    ):  # fmt: skip
        x = simulate(made, problem, 1500, evaluate_every=0, engine="stacked").x
        far = problem.objective(x) - problem.optimum.value
        assert abs(far) < 1e-9


def test_weights_of_clients_count():
    clients, weights = random_quadratics(3), [3, 1, 0.5, 2]
    problem = FederatedProblem(clients, weights=weights)
    for variant in ("frecon", "cofig"):
        made = FRECON(variant=variant, uplink_compressor=Natural(), participation=Sample(count=2))
        x = simulate(made, problem, 900, evaluate_every=0).x
        np.testing.assert_allclose(x, problem.optimum.x, rtol=0, atol=1e-9)


def test_without_a_mirror_all_start_again_and_come_to_the_optimum():
    for variant in ("frecon", "cofig"):
        made = FRECON(variant=variant, mirror=False, participation=Sample(count=3))
        run = OpenRun(made, q6()).play(30)
        lose(run, 2)
        run.play(900)
        assert run.state.resets == 1
        np.testing.assert_allclose(run.x, q6().optimum.x, rtol=0, atol=1e-12)


def settled(problem=None, **given):
    """Return a strategy with the values of its rules, as a run has it."""
    return OpenRun(FRECON(**given), problem or q6()).server.strategy


def test_the_default_steps_are_those_of_the_theory():
    """N = 6, L = 20; RandK of 2 of 8 entries has omega = 3."""
    pairs, quarter = {"participation": Sample(count=2)}, {"uplink_compressor": RandK(count=2)}
    made = settled(**pairs, **quarter)
    assert made.mixing == pytest.approx(2 / (2 * 4 * 6))
    assert made.step_size == pytest.approx(1 / (20 * (1 + np.sqrt(10 * 4**2 * 6) / 2)))
    assert made.constants.alpha == 1 / 4
    diana = settled(variant="cofig", **quarter)
    assert diana.step_size == pytest.approx(1 / (20 * (1 + 6 * 3 / 6)))
    both = settled(variant="cofig", **pairs, **quarter)
    assert both.step_size == pytest.approx(1 / (20 * (1 + 6 * (3 / 2 + 4 / (2 * 5)))))
    assert settled(variant="cofig").step_size == pytest.approx(1 / 20)  # gradient descent
    many = FederatedProblem([Quadratic(np.eye(1), np.ones(1))] * 100)
    one = settled(many, variant="cofig", participation=Sample(count=1))
    assert one.step_size == pytest.approx(1 / np.sqrt(100))
    weakly = settled(q6(), regularizer=MCP(1.0, gamma=0.005), variant="cofig")
    assert weakly.step_size == pytest.approx(0.9 * 0.005)  # where psi has a prox


def test_cofig_sends_half():
    runs = {
        variant: OpenRun(FRECON(variant=variant, uplink_compressor=Natural()), q6()).play(3)
        for variant in ("frecon", "cofig")
    }
    up = {variant: run.server.uplink_bytes for variant, run in runs.items()}
    assert up["frecon"] == 2 * up["cofig"]


def test_what_they_refuse_says_why():
    for given, why in (
        ({"uplink_compressor": TopK(count=2)}, r"unbiased.*RandK.*got TopK.*compression=EF21"),
        ({"uplink_compressor": RandK(count=2, scaled=False)}, "must be unbiased"),
        ({"variant": "cofig", "mixing": 0.1}, r'mixing must be in \(0, 1\], for variant="frecon"'),
        ({"mixing": 1.5}, "mixing must be in"),
        ({"variant": "diana"}, "variant must be"),
        ({"batch_size": 2}, "takes no batch_size"),
        ({"clip": 1.0}, "must be those of F"),
    ):
        with pytest.raises(ConfigError, match=why):
            FRECON(**given)
    with pytest.raises(ParticipationError, match=r"gradients at one model, .* and the one before"):
        simulate(FRECON(participation=Buffered(buffer=2)), q6(), 1)
    private = FRECON(mirror=False, privacy=GaussianDP(1.0, 1.0, 1e-5))
    with pytest.raises(ConfigError, match="add up the noise of all rounds"):
        simulate(private, q6(), 1)
