"""Windows of rounds, and their amplification, against loops of NumPy, and where they end."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.scaffold import c_is_the_mean
from everywhere import agrees_everywhere
from harness import OpenRun, latest
from problems import q6, q6_objectives

from flower_fedcon import Cyclic, Full, Markov, Sample, Weighted, simulate
from flower_fedcon.compressors import EF21, RandK, TopK
from flower_fedcon.core.participation import Draws
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.optimizers import Momentum
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.schedules import Inverse
from flower_fedcon.strategies import FedAvg, Scaffold
from flower_fedcon.testing import check_algorithm

ETA, K, ROUNDS, SEED = 1 / 200, 3, 32, 3
STEPS = {"client_lr": ETA, "local_steps": K}
WINDOW = {"window": 3, "amplification": 1.5}
TURNS = Cyclic(groups=3)
RULES = {"turns": TURNS, "uniform": Sample(count=2), "everyone": Full()}


def cohorts_of(rule):
    draws = Draws(rule, 6, lambda t: stream(SEED, COHORT, t))
    return [draws.cohort(t) for t in range(1, ROUNDS + 1)]


def loops(cohorts, window, amplification, option="II", *, corrects=True, eta=lambda t: ETA):
    """The authors' program: gradients are collected, and their mean is the next variate."""
    F, x, c, variates = q6_objectives(), np.zeros(8), np.zeros(8), np.zeros((6, 8))
    start, collected = x, [[] for _ in F]
    for t, cohort in enumerate(cohorts, 1):
        moved = []
        for i in cohort:
            y = x
            for k in range(K):
                g = F[i].Q @ y - F[i].b
                if option == "II" or k == 0:
                    collected[i].append(g)
                y = y - eta(t) * (g - variates[i] + c)
            moved.append(y - x)
        x = x + np.mean(moved, axis=0)
        if t % window:
            continue
        x = start + amplification * (x - start)
        start = x
        for i in range(6):
            if collected[i] and corrects:
                mean = np.mean(collected[i], axis=0)
                c = c + (mean - variates[i]) / 6
                variates[i] = mean
            collected[i] = []
    return x


@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
@pytest.mark.parametrize("rule", RULES)
def test_the_loops_of_numpy_find_the_same(rule, engine, caplog):
    """Also where a window is not a cycle, and where the run ends within one."""
    if engine == "jax":
        pytest.importorskip("jax")
    options = {"engine": engine, "seed": SEED, "evaluate_every": 0}
    cohorts, own = cohorts_of(RULES[rule]), {**STEPS, "participation": RULES[rule]}
    falling = Inverse(ETA, 0.05)
    for window, gamma in ((1, 1.5), (3, 1.0), (3, 1.5), (5, 2.0))[-2 if engine == "jax" else 0 :]:
        more = {"window": window, "amplification": gamma, **own}
        made = [(Scaffold(**more), {}), (FedAvg(**more), {"corrects": False})]
        if window == 5:
            made += [
                (Scaffold(**more, mirror=False), {}),
                (Scaffold(**more, option="I"), {"option": "I"}),
                (Scaffold(**{**more, "client_lr": falling}), {"eta": falling.at}),
            ]
        for strategy, form in made:
            x = simulate(strategy, q6(), ROUNDS, **options).x
            expected = loops(cohorts, window, gamma, **form)
            np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12)
    assert "running on" not in caplog.text  # all of it is compiled


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("mirror", [True, False])
def test_windows_of_one_round_are_plain_scaffold_of_the_same_option(option, mirror):
    """Computed by windows, since gamma is 2, and half the server's step makes up for it."""
    own = {**STEPS, "option": option, "mirror": mirror, "participation": Sample(count=2)}
    plain = simulate(Scaffold(**own), q6(), ROUNDS, evaluate_every=0).x
    windows = Scaffold(**own, server_lr=0.5, amplification=2.0)
    x = simulate(windows, q6(), ROUNDS, evaluate_every=0).x
    np.testing.assert_allclose(x, plain, rtol=0, atol=1e-14)


def test_the_usual_values_are_no_windows():
    """Neither the state nor the arguments in a checkpoint, nor what is sent, knows of them."""
    for kind in (Scaffold, FedAvg):
        run = OpenRun(kind(**STEPS, window=1, amplification=1.0), q6()).play(2)
        assert run.state.window is None
        assert {"window", "amplification"}.isdisjoint(run.server.strategy.arguments())
        assert run.server.strategy.broadcast(run.state).keys() <= {"x", "c", "w"}
    plain, alike = (OpenRun(FedAvg(**STEPS, window=p), q6()).play(7) for p in (1, 3))
    assert plain.x.tobytes() == alike.x.tobytes()  # nothing is amplified
    assert Scaffold(**STEPS, window=3).arguments()["window"] == 3


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        *((TURNS, more) for more in ({}, {"mirror": False}, {"option": "I"})),
        (Sample(count=2), {}),
        (Markov(stay=0.8, back=0.1), {}),
        (Weighted([0.1, 0.2, 0.4, 0.6, 0.8, 1.0], unbiased=False), {}),
    ],
    ids=["turns", "without mirror", "option I", "uniform", "Markov", "unequal"],
)
def test_scaffold_ends_at_the_optimum_under_every_rule(rule, more):
    made = Scaffold(**STEPS, participation=rule, **WINDOW, **more)
    x = simulate(made, q6(), 1200, evaluate_every=0, engine="stacked").x
    np.testing.assert_allclose(x, q6().optimum.x, rtol=0, atol=1e-12)


def test_the_default_step_is_safe_and_knows_of_the_window():
    plain, long = (
        OpenRun(Scaffold(local_steps=5, **more), q6()).server.strategy.client_lr
        for more in ({}, {"window": 4, "amplification": 1.5})
    )
    assert long == pytest.approx(plain / 6)
    assert [
        OpenRun(FedAvg(local_steps=2, window=4, amplification=g), q6()).server.strategy.client_lr
        for g in (1.0, 3.0)
    ] == pytest.approx([1 / 20, 1 / 20 / 24])
    for rule in (TURNS, Sample(count=1)):
        made = Scaffold(participation=rule, window=3, amplification=3.0)
        problem = q6()
        history = simulate(made, problem, 900, engine="stacked", evaluate_every=300)
        assert history["objective"][-1] - problem.optimum.value < 1e-4


# --- what is lost, and what goes on ---------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, EF21(RandK(count=3))], ids=["plain", "EF21"])
@pytest.mark.parametrize("rule", [TURNS, Sample(count=3)], ids=["turns", "uniform"])
def test_the_mirror_holds_what_clients_do_whatever_is_lost(rule, compression):
    """A client takes part several times in a window, and loses its state in one."""

    def alter(asked, reply):
        return [] if (asked.client + asked.round) % 4 == 0 else [reply]

    own = {**STEPS, "window": 5, "amplification": 1.5, "participation": rule}
    made = Scaffold(**own, compression=compression, min_replies=1)
    run = OpenRun(made, q6(), alter=alter)
    for t in range(1, 41):
        asked = 1 in run.server.strategy.cohort(t) and (1 + t) % 4
        if t > 8 and asked and run.acknowledged[1] and not run.server.counts["lost"]:
            assert latest(run, 1).seen.max() > 0
            run.clients[1] = run.new_client(1)
        c_is_the_mean(run.play())
    assert run.server.counts["lost"] == 1


@pytest.mark.parametrize("rule", [TURNS, Sample(count=3)], ids=["turns", "uniform"])
def test_a_lost_state_within_a_window_changes_nothing(rule):
    made = Scaffold(**STEPS, window=5, amplification=1.5, participation=rule)
    calm, run = (OpenRun(made, q6()) for _ in range(2))
    run.play(13)
    for client in (0, 1, 4):
        run.clients[client] = run.new_client(client)
    assert run.play(27).x.tobytes() == calm.play(40).x.tobytes()
    assert run.server.counts["lost"] == 3


def test_without_mirror_all_start_again_and_the_optimum_is_the_limit():
    made = Scaffold(client_lr=1 / 400, local_steps=3, **WINDOW, mirror=False, participation=TURNS)
    run = OpenRun(made, q6()).play(20)
    run.clients[1] = run.new_client(1)
    run.play(1300)
    assert run.state.resets == 1
    np.testing.assert_allclose(run.x, q6().optimum.x, rtol=0, atol=1e-12)
    means = [latest(run, j).mean for j in range(6)]
    np.testing.assert_allclose(run.state.m, np.mean(means, axis=0), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "made",
    [
        Scaffold(**STEPS, **WINDOW, participation=TURNS),
        Scaffold(**STEPS, window=5, mirror=False, participation=Sample(count=2)),
        FedAvg(**STEPS, **WINDOW, server_optimizer=Momentum(0.5)),
    ],
    ids=["mirror", "without", "fedavg"],
)
def test_engines_wires_and_runs_resumed_within_a_window_agree(made, tmp_path):
    agrees_everywhere(made, q6(), tmp_path, rounds=12, engines=("stacked", "workers"))


@pytest.mark.parametrize("kind", [Scaffold, FedAvg])
def test_they_pass_what_every_algorithm_must(kind):
    """The contract test, with windows."""
    check_algorithm(kind(client_lr=0.05, local_steps=2, **WINDOW))
    check_algorithm(kind(client_lr=0.05, local_steps=2, window=2, participation=Sample(count=2)))


# --- with other options ---------------------------------------------------------------------------


def test_error_feedback_keeps_the_optimum():
    own = {"client_lr": 1 / 400, "local_steps": 3, "compression": EF21(TopK(count=4))}
    for more in ({}, {"mirror": False}, {"option": "I"}):
        made = Scaffold(**own, **WINDOW, participation=TURNS, **more)
        x = simulate(made, q6(), 900, evaluate_every=0).x
        np.testing.assert_allclose(x, q6().optimum.x, rtol=0, atol=1e-6)


def test_noise_of_sums_is_allowed_if_it_is_independent():
    noise = {"privacy": GaussianDP(1.0, 1.0, 1e-5), "participation": Sample(count=3)}
    for made in (FedAvg(**STEPS, **WINDOW), Scaffold(**STEPS, **WINDOW, mirror=False)):
        private = type(made)(**{**made.arguments(), **noise})
        assert np.isfinite(simulate(private, q6(), 7).x).all()
    assert FedAvg(**STEPS, window=3).why_independent() == ""
    assert (
        "an amplification its model is not the sum" in FedAvg(**STEPS, **WINDOW).why_independent()
    )
