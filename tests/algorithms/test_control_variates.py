"""Scaffold, Scaffnew, APDAInexact, CompositeFL: what they keep true, and what breaks them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from harness import OpenRun, latest, settled
from problems import Q6_L1_X, q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate
from flower_fedcon.clients.apdainexact import APDAInexactClient
from flower_fedcon.clients.compositefl import CompositeFLClient
from flower_fedcon.clients.scaffnew import ScaffnewClient
from flower_fedcon.errors import ConfigError, ParticipationError
from flower_fedcon.experiments.experiment import Experiment
from flower_fedcon.objectives import Quadratic
from flower_fedcon.regularizers import L1, Zero
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import APDAInexact, CompositeFL, FedAvg, Scaffnew, Scaffold

STEPS = {"client_lr": 1 / 400, "local_steps": 5}
PSI = L1(0.6)
COMPOSITE = CompositeFL(PSI, **STEPS)
PRIMAL_DUAL = APDAInexact(primal_lr=0.1)
SIMS = Path(__file__).parents[2] / "sims"


def cohort(count):
    return {**STEPS, "participation": Sample(count=count)}


@cache
def optimum(composite):
    """Return the optimum to rounding: with L1(0.6) from its signs, which are known."""
    problem = q6()
    matrix = np.mean([f.Q for f in problem.objectives], axis=0)
    b = np.mean([f.b for f in problem.objectives], axis=0)
    if not composite:
        return np.linalg.solve(matrix, b)
    x, signs = np.zeros(8), np.sign(Q6_L1_X)
    kept = signs != 0
    x[kept] = np.linalg.solve(matrix[np.ix_(kept, kept)], (b - 0.6 * signs)[kept])
    assert PSI.subdifferential_distance(x, matrix @ x - b) < 1e-14
    return x


def error(run):
    return float(np.linalg.norm(run.x - optimum(run.problem.regularizer is not None)))


def played(strategy, rounds, problem=q6):
    return OpenRun(strategy, problem(), rounds).play(rounds)


def gradients(run):
    return np.stack([f.gradient(run.x) for f in run.problem.objectives])


def forget(run, j):
    """Put client j's control variate to zero, behind the server's back."""
    versions = run.clients[j].versions
    changed = {}
    for which in ("acknowledged", "pending"):
        state = getattr(versions, which)
        names = {"c", "h", "y", "y_bar"} & set(state._fields)
        changed[which] = state._replace(**{n: np.zeros_like(getattr(state, n)) for n in names})
    run.clients[j].versions = versions._replace(**changed)


def lose(run, j):
    """Restart client j without its state."""
    run.clients[j] = run.new_client(j)


def after(what, strategy, rounds, problem=q6, client=0):
    """Return the run in which something happens to a client half-way."""
    run = OpenRun(strategy, problem(), rounds).play(rounds // 2)
    what(run, client)
    return run.play(rounds - rounds // 2)


# --- the table of Q6 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "problem", "tenth", "slack", "rounds", "last"),
    [
        (Scaffold(**STEPS), q6, 264, 1, 1000, 3e-15),
        (Scaffold(**cohort(2)), q6, 261, 53, 1000, 3e-15),
        (Scaffnew(), q6, 74, 15, 300, 3e-16),
        (Scaffnew(regularizer=PSI), q6_l1, 74, 15, 300, 3e-16),
        (PRIMAL_DUAL, q6, 1164, 1, 3000, 4e-15),
        (
            APDAInexact(primal_lr=0.1, local_solver=GradientDescent(steps=20)),
            q6,
            1164,
            1,
            3000,
            4e-15,
        ),
        (COMPOSITE, q6_l1, 229, 1, 4000, 2e-14),
        (CompositeFL(PSI, **cohort(3)), q6_l1, 222, 45, 4000, 2e-14),
        (CompositeFL(PSI, **cohort(2)), q6_l1, 221, 45, 4000, 2e-14),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_rounds_to_ten_digits(strategy, problem, tenth, slack, rounds, last):
    """The first round with an error below 1e-10, and the error in the end."""
    run = OpenRun(strategy, problem(), rounds)
    first = next(r for r in range(1, rounds) if error(run.play()) < 1e-10)
    assert abs(first - tenth) <= slack
    assert error(run.play(rounds - first)) < last


# --- Scaffold --------------------------------------------------------------------------------


def test_scaffold_of_one_client_is_gradient_descent():
    problem = FederatedProblem([Quadratic([[2.0]], [4.0])])
    for r in range(1, 6):
        x = simulate(Scaffold(client_lr=0.1, local_steps=3), problem, r).x
        plain = simulate(FedAvg(client_lr=0.1, local_steps=3), problem, r).x
        assert x == pytest.approx(plain, abs=1e-15)


def test_scaffold_starts_as_fedavg():
    x, plain = (simulate(kind(**STEPS), q6(), 1).x for kind in (Scaffold, FedAvg))
    assert x.tobytes() == plain.tobytes()


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_ends_with_the_gradients(option):
    run = played(Scaffold(**cohort(3), option=option), 1000)
    assert run.state.c == pytest.approx(np.zeros(8), abs=1e-13)
    assert run.state.mirror["c"] == pytest.approx(gradients(run), abs=1e-12)


def test_scaffold_moves_c_by_the_share_of_all():
    """One of two: c = dc/2, where the mean over the cohort would be dc."""
    strategy = Scaffold(client_lr=0.1, local_steps=2, participation=Sample(count=1))
    seen = {OpenRun(strategy, two_clients(), seed=s).play().state.c.item() for s in range(9)}
    assert sorted(seen) == pytest.approx([-0.9, 0.95])


def test_scaffold_with_the_mean_over_the_cohort_ends_elsewhere():
    class MeanOverCohort(Scaffold):
        def aggregate(self, state, uploads):
            new = super().aggregate(state, uploads)
            share = uploads.num_clients / len(uploads)
            return new._replace(c=state.c + share * (new.c - state.c))

    coins = {**STEPS, "participation": Bernoulli(0.5)}
    assert error(played(Scaffold(**coins), 600)) < 3e-15
    assert error(played(MeanOverCohort(**coins), 600)) > 0.05


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_sends_one_vector_where_it_is_enough(option):
    bytes_up = [
        played(Scaffold(**STEPS, option=option, mirror=mirror), 1).server.uplink_bytes
        for mirror in (True, False)
    ]
    vector = q6().num_clients * (128 + 8 * 8)
    assert bytes_up == [vector if option == "II" else 2 * vector, 2 * vector]


# --- what a lost state does to a conserved sum -------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "problem", "floor"),
    [(Scaffold(**STEPS), q6, 0.186), (COMPOSITE, q6_l1, 0.172)],
    ids=["scaffold", "compositefl"],
)
def test_a_lone_reset_is_never_repaired(strategy, problem, floor):
    assert error(after(forget, strategy, 1000, problem)) == pytest.approx(floor, rel=5e-3)
    assert error(after(lose, strategy, 1000, problem)) < 3e-15


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (Scaffold(**STEPS, mirror=False), q6),
        (Scaffold(**STEPS, mirror=False, option="I"), q6),
        (Scaffold(**cohort(2), mirror=False), q6),
        (CompositeFL(PSI, **STEPS, mirror=False), q6_l1),
        (CompositeFL(PSI, **STEPS, server_lr=2.0, mirror=False), q6_l1),
    ],
)
def test_without_mirror_all_start_again(strategy, problem):
    """Also who was not in that round's cohort: the sum is whole, and the run ends right."""
    run = after(lose, strategy, 1200, problem)
    assert run.state.resets == run.server.counts["lost"] == 1
    assert {latest(run, j).resets for j in range(6)} == {1}
    assert error(run) < 3e-15
    states = [latest(run, j).c for j in range(6)]
    assert np.sum(states, axis=0) == pytest.approx(np.zeros(8), abs=1e-12)


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [(Scaffold(**STEPS, mirror=False), q6), (CompositeFL(PSI, **STEPS, mirror=False), q6_l1)],
    ids=["scaffold", "compositefl"],
)
def test_after_a_reset_the_run_is_a_new_one_from_its_model(strategy, problem):
    run = OpenRun(strategy, problem()).play(20)
    x = run.state.x if strategy.name == "scaffold" else run.state.x_bar
    lose(run, 2)
    start = FederatedProblem(run.problem.objectives, regularizer=run.problem.regularizer, x0=x)
    fresh = OpenRun(strategy, start)
    for _ in range(10):
        assert run.play().x.tobytes() == fresh.play().x.tobytes()


# --- Scaffnew --------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [q6, q6_l1])
def test_scaffnew_heals_in_one_round(problem):
    strategy = Scaffnew(regularizer=problem().regularizer)
    run = OpenRun(strategy, problem()).play(30)
    lose(run, 0)
    run.play()
    psi = run.server.strategy.regularizer
    assert psi.subdifferential_distance(run.x, settled(run, "h").mean(0)) < 1e-13
    assert error(run.play(150)) < 1e-15


def test_scaffnew_must_upload_its_control_variate(monkeypatch):
    step = ScaffnewClient.step

    def plain(client, state, down):
        _, kept = step(client, state, down)
        return {"v": kept.x_hat}, kept

    monkeypatch.setattr(ScaffnewClient, "step", plain)
    assert error(played(Scaffnew(), 200)) < 1e-15  # no sign of trouble
    assert error(after(forget, Scaffnew(), 300)) == pytest.approx(0.186, rel=5e-3)
    assert not played(Scaffnew(regularizer=PSI), 200, q6_l1).x.any()


def test_scaffnew_prox_step():
    class Short(Scaffnew):
        def aggregate(self, state, uploads):
            x_bar = self.regularizer.prox(uploads.mean("v"), self.constants.client_lr)
            return super().aggregate(state, uploads)._replace(x_bar=x_bar)

    assert error(played(Short(regularizer=PSI), 600, q6_l1)) == pytest.approx(0.1315, rel=5e-3)


def test_scaffnew_of_one_client_and_p_one_is_proximal_gradient():
    f = q6().objectives[0]
    problem = FederatedProblem([f], regularizer=PSI)
    x = np.zeros(8)
    for r in range(1, 30):
        x = PSI.prox(x - f.gradient(x) / 40, 1 / 40)
        strategy = Scaffnew(client_lr=1 / 40, communication_probability=1.0, regularizer=PSI)
        assert simulate(strategy, problem, r).x == pytest.approx(x, abs=1e-13)


def bare(objective):
    """Return an objective that states neither L nor mu."""
    return SimpleNamespace(value=objective.value, gradient=objective.gradient, shape=(8,))


def unknown():
    return FederatedProblem([bare(f) for f in q6().objectives])


def test_scaffnew_draws_its_steps():
    run = OpenRun(Scaffnew(communication_probability=0.2), q6())
    strategy, state = run.server.strategy, run.state
    steps = [strategy.broadcast(state._replace(r=r))["steps"] for r in range(1, 4001)]
    assert min(steps) == 1
    assert np.mean(steps) == pytest.approx(5, rel=0.03)  # four standard errors are 6 %
    assert np.mean(np.array(steps) == 1) == pytest.approx(0.2, abs=0.02)


def test_scaffnew_defaults():
    known = OpenRun(Scaffnew(), q6()).server.info.settings
    assert known["client_lr"] == pytest.approx(1 / 20)
    assert known["communication_probability"] == pytest.approx(20**-0.5)
    assert OpenRun(Scaffnew(client_lr=0.01), unknown()).server.info.settings == {
        "client_lr": 0.01,
        "communication_probability": 0.1,
        "batch_size": None,
    }
    with pytest.raises(ConfigError, match="smoothness L is unknown: give client_lr"):
        simulate(Scaffnew(), unknown(), 1)
    for wrong in (0.0, 1.5):
        with pytest.raises(ConfigError, match="communication_probability must be"):
            Scaffnew(communication_probability=wrong)


# --- APDAInexact -----------------------------------------------------------------------------


def test_primal_dual_ends_with_the_gradients():
    run = played(PRIMAL_DUAL, 2500)
    assert settled(run, "y") == pytest.approx(-gradients(run), abs=1e-12)


def test_primal_dual_heals_in_one_round():
    run = OpenRun(PRIMAL_DUAL, q6()).play(300)
    lose(run, 0)
    run.play()
    assert settled(run, "y").sum(0) == pytest.approx(np.zeros(8), abs=1e-13)
    assert error(run.play(2500)) < 5e-15


def test_primal_dual_must_upload_its_dual(monkeypatch):
    """Without y_i/eta_y, the dual moves by differences: the same, until a state is lost."""
    step = APDAInexactClient.step

    def short(client, state, down):
        up, kept = step(client, state, down)
        u = up["u"] - state.y / client.dual_lr
        return {"u": u}, kept._replace(u=u)

    def on_acknowledged(client, state, down):
        y = state.y + client.dual_lr * (state.u - down["m"])
        return state._replace(y=y, y_bar=y + client.theta * (y - state.y))

    right = played(PRIMAL_DUAL, 40).x
    monkeypatch.setattr(APDAInexactClient, "step", short)
    monkeypatch.setattr(APDAInexactClient, "on_acknowledged", on_acknowledged)
    assert played(PRIMAL_DUAL, 40).x == pytest.approx(right, abs=1e-14)
    assert error(after(forget, PRIMAL_DUAL, 3000)) == pytest.approx(0.186, rel=5e-3)


def test_primal_dual_defaults(caplog):
    known = OpenRun(PRIMAL_DUAL, q6()).server.info.settings
    assert known["dual_lr"] == pytest.approx(1 / 3.2)
    assert known["dual_damping"] == pytest.approx(1 / 20)
    assert known["theta"] == pytest.approx(max(2 / 2.1, 1 - 1 / 64))
    assert not caplog.records
    with pytest.raises(ConfigError, match="smoothness L is unknown: give dual_damping"):
        simulate(PRIMAL_DUAL, unknown(), 1)
    strategy = APDAInexact(primal_lr=0.1, dual_damping=1 / 20)
    assert OpenRun(strategy, unknown()).play(3).server.info.settings["theta"] == 1.0
    assert [r.message for r in caplog.records if "theta = 1" in r.message] == [
        "APDAInexact: the clients' strong convexity is unknown, so theta = 1, which may be slow: "
        "state it as `strong_convexity` of the objectives"
    ]
    with pytest.raises(ConfigError, match="takes no batch_size"):
        APDAInexact(primal_lr=0.1, batch_size=2)


# --- CompositeFL -----------------------------------------------------------------------------


def test_composite_ends_with_one_vector_for_all():
    run = played(CompositeFL(PSI, **cohort(2), server_lr=2.0), 1000, q6_l1)
    sums = gradients(run) + run.state.mirror["c"]
    assert sums == pytest.approx(np.tile(gradients(run).mean(0), (6, 1)), abs=1e-11)


def test_composite_moves_c_as_the_paper_writes_it(monkeypatch):
    """c_i = (P - x_bar(new))/(eta_g eta K) - (1/K) sum of the round's gradients, + their mean."""
    seen = {}
    gradient = CompositeFLClient.gradient

    def watched(client, v):
        g = gradient(client, v)
        seen.setdefault(client._index, []).append(g)
        return g

    monkeypatch.setattr(CompositeFLClient, "gradient", watched)
    run = OpenRun(CompositeFL(PSI, **STEPS, server_lr=2.0), q6_l1())
    for _ in range(5):
        seen.clear()
        p = run.x
        run.play()
        common = (p - run.state.x_bar) / (2.0 * STEPS["client_lr"] * 5)
        for i, c in enumerate(run.state.mirror["c"]):
            assert c == pytest.approx(common - np.mean(seen[i], axis=0), abs=1e-12)


@pytest.mark.parametrize(("inside", "floor"), [(False, 4.30e-3), (True, 0.1335)])
def test_composite_prox_steps(monkeypatch, inside, floor):
    """Prox steps that do not grow, or a prox inside zh, are other algorithms."""

    def step(client, state, down):
        eta, steps = client.client_lr, client.local_steps
        p = z = z_hat = PSI.prox(down["x_bar"], eta * steps)
        for _ in range(steps):
            z_hat = z_hat - eta * (client.gradient(z) + state.c)
            z = PSI.prox(z_hat, eta)
            z_hat = z if inside else z_hat
        return {"delta": z_hat - p}, state._replace(p=p, delta=z_hat - p)

    monkeypatch.setattr(CompositeFLClient, "step", step)
    assert error(played(COMPOSITE, 1000, q6_l1)) == pytest.approx(floor, rel=0.02)


def test_composite_without_psi_has_no_floor():
    assert error(played(CompositeFL(Zero(), **STEPS), 600)) < 2e-14
    assert error(played(FedAvg(**STEPS), 2000)) == pytest.approx(2.56e-2, rel=0.05)


@pytest.mark.parametrize(("rule", "vectors"), [(Full(), 6 * 1), (Sample(count=3), 3 * 2)])
def test_composite_sends_c_to_cohorts_alone(rule, vectors):
    run = played(CompositeFL(PSI, **STEPS, participation=rule), 4, q6_l1)
    assert run.server.downlink_bytes == 4 * vectors * (128 + 8 * 8)


def test_composite_refusals():
    for rule in (Sample(count=1), Sample(fraction=0.2), Bernoulli(0.5)):
        with pytest.raises(ParticipationError, match=r"fixed size of at least 2, got .*use Sample"):
            simulate(CompositeFL(PSI, **STEPS, participation=rule), q6_l1(), 1)
    with pytest.raises(ParticipationError, match=r"needs its mirror for cohorts.*use mirror=True"):
        simulate(CompositeFL(PSI, **cohort(2), mirror=False), q6_l1(), 1)


def test_composite_has_no_floor_on_digits():
    """Clients with few labels each: FedDualAvg stops at 1.27e-2, after 8,000 rounds."""
    experiment = Experiment.load(SIMS / "composite_digits.toml")
    problem, best = experiment.problem(), experiment.problem().optimum.value
    history = simulate(experiment.strategy(), problem, 500, evaluate_every=100)
    errors = (np.array(history["objective"]) - best) / best
    assert all(np.diff(errors) < 0)
    assert errors[2] < 1e-2
    assert errors[-1] == pytest.approx(1.22e-3, rel=0.05)
