"""Scaffnew's options: GradSkip's early stops, and ProxSkip-LSVRG's minibatches without a floor."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from agreement import agree
from everywhere import agrees_everywhere
from harness import OpenRun, latest, settled
from private_rows import LOUD, regression

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon import compiled as door
from flower_fedcon.clients import ScaffnewClient
from flower_fedcon.compressors import EF21, TopK
from flower_fedcon.core.batches import Batches
from flower_fedcon.core.rng import BATCH, COIN, stream
from flower_fedcon.errors import FedConError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import LeastSquares, Noisy, PrivateObjective, Quadratic
from flower_fedcon.regularizers import L1, Zero
from flower_fedcon.strategies import Scaffnew

PSI = L1(0.02)
SKIP = {"stop_probability": "rule"}
REDUCED = {"batch_size": 4, "refresh_probability": "rule"}
COIN_OF = {"client_lr": 0.1, "communication_probability": 0.3}


def unlike(psi=None, rows=12):
    """One steep client and four flat ones, with minimisers of their own."""
    rng, own = np.random.default_rng(4), []
    for scale in (1.0, 0.2, 0.2, 0.2, 0.1):
        A = scale * rng.normal(size=(rows, 3))
        own.append(LeastSquares(A, A @ rng.normal(size=3) + 0.3 * rng.normal(size=rows)))
    return FederatedProblem(own, regularizer=psi)


def distance(x, problem):
    return float(np.linalg.norm(x - problem.optimum.x))


# --- the steps ------------------------------------------------------------------------------------


def as_in_the_papers(problem, rounds, constants, size=None, psi=None):
    """Return the model after so many rounds, with every step that a stopped client would take."""
    gamma, p, stops, s = constants
    n, x, psi = len(problem.objectives), problem.start, psi or Zero()
    h, y, ends = [np.zeros_like(x)] * n, [x] * n, [x] * n
    for r in range(1, rounds + 1):
        steps = int(stream(0, COIN, r, n).geometric(p))
        coins = stream(0, COIN, r).random(steps)
        for i, f in enumerate(problem.objectives):
            batches = Batches(f, size, stream(0, BATCH, r, i))
            q = stops[i] if stops else 0.0
            last = int(stream(0, COIN, r, i).geometric(q)) if q else steps + 1
            z = x
            for k in range(steps):
                g = f.gradient(z) if size is None else batches.gradient(z)
                if s is not None:
                    g = g - batches.again(y[i]) + f.gradient(y[i])
                    y[i] = z if coins[k] < s else y[i]
                h[i] = g if k + 1 == last else h[i]
                z = z - gamma * (g - h[i])
            ends[i] = z
        v = [end - gamma / p * one for end, one in zip(ends, h, strict=True)]
        x = psi.prox(np.mean(v, axis=0), gamma / p)
        h = [one + p / gamma * (x - end) for one, end in zip(h, ends, strict=True)]
    return x


@pytest.mark.parametrize("psi", [None, PSI], ids=["alone", "with psi"])
@pytest.mark.parametrize(
    "options",
    [
        SKIP,
        {"stop_probability": 0.3},
        {"stop_probability": [0.0, 1.0, 0.5, 0.01, 0.9]},
        REDUCED,
        {"batch_size": 1, "refresh_probability": 0.2},
        {"batch_size": 99, "refresh_probability": 1.0},
    ],
    ids=str,
)
def test_whole_runs_are_as_in_the_papers(options, psi):
    problem = unlike(psi)
    strategy = Scaffnew(regularizer=psi, **options)
    constants = OpenRun(strategy, problem).server.strategy.constants
    size = options.get("batch_size")
    expected = as_in_the_papers(problem, 40, constants, size, psi)
    found = simulate(strategy, problem, 40).x
    assert found == pytest.approx(expected, abs=1e-12, rel=1e-12)


# --- the theory -----------------------------------------------------------------------------------


def curved(kappas):
    """Quadratics with mu = 1 and these condition numbers, and with minimisers of their own."""
    rng, own = np.random.default_rng(1), []
    for kappa in kappas:
        basis = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        Q = basis * [1.0, (1 + kappa) / 2, kappa] @ basis.T
        own.append(Quadratic((Q + Q.T) / 2, rng.normal(size=3)))
    return FederatedProblem(own)


KAPPAS = (100.0, 25.0, 4.0, 1.0)


def test_the_rule_is_the_paper_s():
    strategy = OpenRun(Scaffnew(**SKIP), curved(KAPPAS)).server.strategy
    gamma, p, stops, _ = strategy.constants
    assert (gamma, p) == pytest.approx((1 / 100, 1 / 10))
    going_on = [(1 - 1 / kappa) / (1 - 1 / 100) for kappa in KAPPAS]
    assert [1 - q for q in stops] == pytest.approx(going_on, abs=1e-12)


@pytest.mark.parametrize("shorter", [1.0, 0.5])
def test_a_step_of_gradskip_contracts_as_stated(shorter):
    """In expectation over all coins, from any point; with q_i a little larger it can fail."""
    problem = curved((9.0, 4.0, 2.0))
    fs, best = problem.objectives, problem.optimum.x
    run = OpenRun(Scaffnew(**SKIP, client_lr=shorter / 9), problem).server.strategy
    gamma, p, stops, _ = run.constants
    rate = max(1 - gamma, (1 - p * p) * (1 - min(stops)))
    at_best = np.stack([f.gradient(best) for f in fs])
    rng = np.random.default_rng(2)

    def distances(x, h):
        return ((x - best) ** 2).sum() + (gamma / p) ** 2 * ((h - at_best) ** 2).sum()

    for _ in range(50):
        x, h = best + rng.normal(size=(3, 3)), at_best + rng.normal(size=(3, 3)) * rng.exponential()
        h -= (h - at_best).mean(axis=0)
        g, expected = np.stack([f.gradient(z) for f, z in zip(fs, x, strict=True)]), 0.0
        for stopped in product((False, True), repeat=3):
            likely = np.prod([q if one else 1 - q for q, one in zip(stops, stopped, strict=True)])
            shift = np.where(np.reshape(stopped, (3, 1)), g, h)
            end = x - gamma * (g - shift)
            mean = np.broadcast_to((end - gamma / p * shift).mean(axis=0), end.shape)
            met = distances(mean, shift + p / gamma * (mean - end))
            expected += likely * (p * met + (1 - p) * distances(end, shift))
        assert expected <= rate * distances(x, h) * (1 + 1e-12)


def test_the_step_follows_from_probabilities_that_are_given():
    """gamma = p^2/(L_i (p^2 + q_i (1 - p^2))) of the client for which this is least."""
    p2 = 1 / 100
    for stops, bound in (
        (0.0, 100.0),
        (1.0, 100 / p2),
        ([0.0, 0.0, 0.5, 1.0], 4 * (p2 + 0.5 * (1 - p2)) / p2),
    ):
        strategy = OpenRun(Scaffnew(stop_probability=stops), curved(KAPPAS)).server.strategy
        assert strategy.client_lr == pytest.approx(1 / bound)


def test_constants_of_minibatches():
    problem = unlike()
    strategy = OpenRun(Scaffnew(**REDUCED), problem).server.strategy
    L, mu = (pick(getattr(f, name) for f in problem.objectives)
             for pick, name in ((max, "smoothness"), (min, "strong_convexity")))  # fmt: skip
    gamma, p, stops, s = strategy.constants
    assert (gamma, p, s) == pytest.approx((1 / (6 * L), (mu / (6 * L)) ** 0.5, mu / (3 * L)))
    assert stops == ()
    flat = FederatedProblem([LeastSquares(np.eye(2, 3), np.ones(2))] * 2)  # mu = 0
    strategy = Scaffnew(batch_size=1, refresh_probability="rule")
    constants = OpenRun(strategy, flat).server.strategy.constants
    assert constants[1:] == (0.1, (), 0.5)


# --- what they save -------------------------------------------------------------------------------


def gradients_of_each(run, rounds):
    """Return the mean number of gradients of each client in a round."""
    total = np.zeros(len(run.clients))
    for _ in range(rounds):
        run.play()
        total += [client.work["gradients"] for client in run.clients]
    return total / rounds


def test_gradients_are_counted_as_the_theory_says():
    """kappa_i (1 + sqrt(kappa))/(kappa_i + sqrt(kappa)) on average."""
    run = OpenRun(Scaffnew(**SKIP), curved(KAPPAS))
    found = gradients_of_each(run, 1500)
    expected = [kappa * 11 / (kappa + 10) for kappa in KAPPAS]
    assert found == pytest.approx(expected, rel=0.1)  # four standard errors
    assert found[3] == 1.0


def first_below(error, strategy, problem, rounds):
    """Return the first round with so small a distance, and the gradients until then."""
    best = problem.optimum.x
    run, gradients = OpenRun(strategy, problem), 0
    for r in range(1, rounds + 1):
        run.play()
        gradients += sum(client.work["gradients"] for client in run.clients)
        if np.linalg.norm(run.x - best) < error:
            return r, gradients
    raise AssertionError(f"{np.linalg.norm(run.x - best)} after {rounds} rounds")


def test_gradskip_needs_scaffnew_s_rounds_and_fewer_gradients():
    problem = curved((100.0,) + (2.0,) * 9)
    plain, skipped = (first_below(1e-8, Scaffnew(**o), problem, 400) for o in ({}, SKIP))
    assert skipped[0] <= 1.1 * plain[0]
    assert skipped[1] < 0.3 * plain[1]


def test_minibatches_end_at_the_optimum_instead_of_a_floor():
    problem = unlike()
    coin = {"client_lr": 0.1, "communication_probability": 0.1, "batch_size": 4}
    plain, reduced = (
        simulate(Scaffnew(**coin, **more), problem, 300, engine="stacked", evaluate_every=300).x
        for more in ({}, {"refresh_probability": 0.1})
    )
    assert distance(plain, problem) > 1e-3
    assert distance(reduced, problem) < 1e-10


def test_work_is_counted():
    """Two gradients of a minibatch each step; y_i's of all rows at first, and when it moves."""
    strategy = Scaffnew(**COIN_OF, batch_size=4, refresh_probability=0.5)
    run = OpenRun(strategy, unlike())
    fulls = 1
    for r in range(1, 9):
        steps = int(stream(0, COIN, r, 5).geometric(0.3))
        fulls += int((stream(0, COIN, r).random(steps) < 0.5).sum())
        run.play()
        for client in run.clients:
            assert client.work["gradients"] == 2 * steps + fulls
            assert client.work["examples_seen"] == 8 * steps + 12 * fulls
        fulls = 0


# --- engines, faults and other options ------------------------------------------------------------

WAYS = {
    "skipped": lambda: (Scaffnew(**SKIP), unlike()),
    "skipped, with psi": lambda: (
        Scaffnew(regularizer=PSI, stop_probability=[0.0, 1.0, 0.5, 0.2, 0.9]), unlike(PSI)),
    "skipped, clipped": lambda: (Scaffnew(**COIN_OF, stop_probability=0.4, clip=0.1), unlike()),
    "reduced": lambda: (
        Scaffnew(**COIN_OF, batch_size=4, refresh_probability=0.2), unlike()),
    "reduced, with psi": lambda: (
        Scaffnew(**COIN_OF, regularizer=PSI, batch_size=5, refresh_probability=0.2), unlike(PSI)),
    "reduced, clipped": lambda: (
        Scaffnew(**COIN_OF, clip=0.1, batch_size=4, refresh_probability=0.2), unlike()),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_every_way_leads_to_the_same_model(name, tmp_path):
    """The stacked engine, worker processes, messages, and a run that is resumed."""
    strategy, problem = WAYS[name]()
    agrees_everywhere(strategy, problem, tmp_path, rounds=12, engines=("stacked", "workers"))


@pytest.mark.parametrize(
    ("name", "why"), [("skipped", "each client stops in a step of its own"), ("reduced", "")]
)
def test_jax_goes_on_on_the_stacked_engine_as_without_options(name, why, caplog):
    strategy, problem = WAYS[name]()
    agree(strategy, problem, 20, engine="jax")
    assert f'engine="jax": Scaffnew: {why}' in caplog.text
    assert "running on the stacked engine" in caplog.text


def test_compiled_steps_stop_early(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(door, "WORTHWHILE", 0)
    agree(Scaffnew(**COIN_OF, stop_probability=0.3), unlike(), 20, 1e-12)


def test_noise_of_objectives_is_alike_in_all_engines():
    problem = FederatedProblem([Noisy(f, 0.1) for f in unlike().objectives])
    agree(Scaffnew(**COIN_OF, batch_size=4, refresh_probability=0.2), problem, 10, 1e-12)


@pytest.mark.parametrize(
    ("options", "rounds", "high"),
    [({**SKIP}, 250, 1e-12), ({**COIN_OF, "batch_size": 6, "refresh_probability": 0.2}, 900, 1e-9)],
)
def test_a_client_that_lost_its_state_comes_back(options, rounds, high):
    problem = unlike()
    run = OpenRun(Scaffnew(**options), problem)
    run.play(20)
    run.clients[1] = run.new_client(1)
    run.play()
    assert np.abs(settled(run, "h").mean(axis=0)).max() < 1e-13
    run.play(rounds)
    assert run.server.counts["lost"] == 1
    assert distance(run.x, problem) < high


def test_compressed_uploads_of_clients_that_stop():
    """The h_i sum to 0, with the decoded uploads."""
    problem = unlike()
    run = OpenRun(Scaffnew(**SKIP, compression=EF21(TopK(count=2))), problem)
    for _ in range(400):
        run.play()
        down = run.server.strategy.broadcast(run.state)
        acting = [client._compressing for client in run.clients]
        states = [a.on_acknowledged(latest(run, j), down) for j, a in enumerate(acting)]
        assert np.abs(np.sum([one.state.h for one in states], axis=0)).max() < 1e-12
    assert distance(run.x, problem) < 1e-9


def test_a_client_is_asked_for_the_steps_up_to_its_stop():
    client = ScaffnewClient(unlike().objectives[0])
    assert client.steps_asked(None, {"steps": 77.0, "stop": 3.0}) == 3


def test_plain_runs_are_told_nothing_apart():
    """And checkpoints of versions without the options go on."""
    run = OpenRun(Scaffnew(), unlike())
    assert not run.server.has_personal
    assert not {"stop_probability", "refresh_probability"} & run.server.strategy.arguments().keys()
    assert OpenRun(Scaffnew(**SKIP), unlike()).server.has_personal


def test_gradients_that_are_noisy_for_privacy_have_no_differences():
    problem = FederatedProblem([PrivateObjective(regression(), LOUD)])
    strategy = Scaffnew(**COIN_OF, batch_size=4, refresh_probability=0.2)
    with pytest.raises(FedConError, match=r"refresh_probability=0.2 .*consist of their noise"):
        simulate(strategy, problem, 1)


@pytest.mark.parametrize(
    ("option", "stated", "override", "other"),
    [
        ("stop_probability", "rule", "0.25", 0.25),
        ("stop_probability", [0.0, 0.5], "[0.1, 0.2]", (0.1, 0.2)),
        ("refresh_probability", "rule", "0.25", 0.25),
    ],
)
def test_files_and_overrides_name_the_options(option, stated, override, other, tmp_path):
    batches = {"batch_size": 4} if option == "refresh_probability" else {}
    tables = {
        "problem": {"name": "quadratics"},
        "run": {"rounds": 5},
        "algorithm": {"name": "Scaffnew", option: stated, **batches},
    }
    made = getattr(Experiment(tables).strategy(), option)
    assert made == (tuple(stated) if isinstance(stated, list) else stated)
    changed = Experiment(tables, overrides=[f"algorithm.{option}={override}"])
    assert getattr(changed.strategy(), option) == other
    path = tmp_path / "again.toml"
    path.write_text(changed.to_toml())
    assert getattr(Experiment.load(path).strategy(), option) == other
