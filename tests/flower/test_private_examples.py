"""Privacy of each example: what is clipped, what noise is added, what is counted, what refused."""

from __future__ import annotations

import json
import tomllib
from dataclasses import make_dataclass, replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from fake_grid import FakeGrid, asked, on_grid
from flwr.app import Context, RecordDict
from pages import blocks
from scipy.stats import kstest

from flower_fedcon import FederatedProblem, Full, Policy, client_app, simulate
from flower_fedcon.cli import main
from flower_fedcon.clients import FedAvgClient
from flower_fedcon.errors import ConfigError, FedConError, RefusedError, StorageError
from flower_fedcon.lab.advice.facts import facts_of
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import (
    LeastSquares,
    LogisticRegression,
    PrivateObjective,
    Quadratic,
    Scaled,
)
from flower_fedcon.objectives.private_objective import Steps, for_steps
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import AOGM, SGD, GradientDescent
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedExProx, FedNewton, FedProx, Scaffold
from flower_fedcon.tables import Schema
from flower_fedcon.tables.noisy_sums import check_public
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.ledgers import SPENT, FileLedger, key_of

DELTA, PAGE = 1e-5, "docs/private_examples.md"
LOUD = ExampleDP(clip=0.5, noise_multiplier=2.0, target_delta=DELTA)


def regression(m=50, d=4, seed=0, **more):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, d))
    return LogisticRegression(A, np.where(A @ np.arange(1, d + 1) > 0, 1.0, -1.0), **more)


def by_hand(noise, *schedule):
    """Return epsilon by dp-accounting, of (rate, gradients) pairs."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for rate, gradients in schedule:
        event = GaussianDpEvent(noise)
        if rate < 1:
            event = PoissonSampledDpEvent(rate, event)
        accountant.compose(event, gradients)
    return accountant.get_epsilon(DELTA)


# --- gradients ---------------------------------------------------------------------------------


def test_noise_has_the_stated_deviation_and_no_seed():
    f, x = regression(l2=0.3), np.ones(4)
    private = PrivateObjective(f, LOUD)
    exact = f.clipped_sum(x, 0.5, np.arange(50)) / 50 + 0.3 * x
    noise = np.array([private.gradient(x) - exact for _ in range(2000)]) * 50 / (2.0 * 0.5)
    assert kstest(noise.ravel(), "norm").pvalue > 1e-9
    assert np.abs(np.corrcoef(noise.T) - np.eye(4)).max() < 0.12
    assert private.ledger.spent == {1.0: 2000}


@pytest.mark.parametrize("clip", [None, 0.3])
def test_epochs_of_a_local_solver_are_counted(clip):
    """Two rounds of two epochs of five batches, each a Poisson sample of a fifth of the rows."""
    private = [PrivateObjective(regression(seed=j), LOUD) for j in range(2)]
    solver = SGD(epochs=2, batch_size=10, lr=0.1, clip=clip)
    made = FedProx(proximal=1.0, local_solver=solver)
    history = simulate(made, FederatedProblem(private), 2, evaluate_every=0)
    assert np.isfinite(history.x).all()
    assert [f.ledger.spent for f in private] == [{0.2: 20}] * 2


def test_batches_are_poisson_samples(monkeypatch):
    f = regression(m=200)
    seen = []
    slopes = type(f).slopes_and_rows
    monkeypatch.setattr(
        type(f), "slopes_and_rows", lambda self, x, rows: seen.append(rows) or slopes(self, x, rows)
    )
    private = PrivateObjective(f, LOUD)
    for _ in range(1000):
        private.stochastic_gradient(np.zeros(4), np.random.default_rng(0), 20)
    sizes = np.array([len(rows) for rows in seen])
    assert sizes.mean() == pytest.approx(20, abs=4 * np.sqrt(18 / 1000))
    assert sizes.var() == pytest.approx(18, rel=0.25)  # of a fixed size it would be 0
    often = np.bincount(np.concatenate(seen), minlength=200)
    assert often.min() > 50  # every row enters, each about 100 times
    assert private.ledger.spent == {0.1: 1000}
    own = PrivateObjective(f, ExampleDP(0.5, 2.0, DELTA, batch_size=50))
    own.gradient(np.zeros(4))  # the node's own size goes before what is asked
    own.stochastic_gradient(np.zeros(4), np.random.default_rng(0), 20)
    assert own.ledger.spent == {0.25: 2}


def test_a_clip_above_every_norm_and_next_to_no_noise_leave_the_iterates():
    objectives = [regression(seed=j) for j in range(3)]
    quiet = ExampleDP(clip=100.0, noise_multiplier=1e-12, target_delta=DELTA)
    private = [PrivateObjective(f, quiet) for f in objectives]
    psi = L1(weight=0.01)
    strategy = FedDualAvg(psi, client_lr=0.5, local_steps=3)
    plain = simulate(strategy, FederatedProblem(objectives, regularizer=psi), 20)
    same = simulate(strategy, FederatedProblem(private, regularizer=psi), 20, unsafe=True)
    np.testing.assert_allclose(same.x, plain.x, rtol=0, atol=1e-9)
    assert same["objective"][-1] == pytest.approx(plain["objective"][-1], abs=1e-9)
    assert [f.ledger.spent for f in private] == [{1.0: 60}] * 3


def test_weights_of_clients_scale_the_noisy_gradient():
    """With minibatches too, which an objective that draws them itself need not have by rows."""
    problem = FederatedProblem(
        [PrivateObjective(regression(seed=j), ExampleDP(9.0, 1e-12, DELTA)) for j in range(2)],
        weights=[1.0, 3.0],
    )
    strategy = FedAvg(client_lr=0.1, local_steps=2, batch_size=10)
    assert np.isfinite(simulate(strategy, problem, 3).x).all()
    assert [f.objective.ledger.spent for f in problem.objectives] == [{0.2: 6}] * 2


# --- the accountant ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule", [((1.0, 7),), ((0.02, 300),), ((0.02, 100), (1.0, 3), (0.5, 10))]
)
def test_epsilon_is_dp_accountings(schedule):
    privacy = ExampleDP(clip=1.0, noise_multiplier=3.0, target_delta=DELTA)
    assert privacy.epsilon(dict(schedule)) == pytest.approx(by_hand(3.0, *schedule), rel=0.02)


def test_the_budget_is_never_exceeded_and_all_of_it_can_be_used():
    privacy = ExampleDP(clip=1.0, noise_multiplier=5.0, target_delta=DELTA, budget=3.0)
    private = PrivateObjective(regression(), privacy)
    steps = next(n for n in range(1, 10_000) if privacy.epsilon({1.0: n + 1}) > 3.0)
    for _ in range(steps):
        private.gradient(np.zeros(4))
    with pytest.raises(RefusedError, match=r"spent epsilon 2\.\d+ of privacy.budget = 3"):
        private.gradient(np.zeros(4))
    assert private.ledger.spent == {1.0: steps}
    assert privacy.epsilon({1.0: steps}) <= 3.0 < privacy.epsilon({1.0: steps + 1})
    with pytest.raises(RefusedError, match="one more gradient"):
        private.stochastic_gradient(np.zeros(4), np.random.default_rng(), 49)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (Quadratic(np.eye(2), np.zeros(2)), "Quadratic has no gradient of each example"),
        (Scaled(regression(), 2.0), "Scaled has no gradient of each example"),
        (regression(sample_weight=np.arange(1.0, 51.0)), "LogisticRegression has a sample_weight"),
    ],
)
def test_an_objective_without_private_examples_is_refused_by_name(objective, words):
    with pytest.raises(ConfigError, match=words):
        PrivateObjective(objective, LOUD)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clip": 0.0}, r"ExampleDP\(clip\) must be finite and > 0, got 0.0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"target_delta": 1.0}, "must be < 1"),
        ({"budget": 0}, "budget"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_a_value_out_of_range_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        ExampleDP(**{"clip": 1.0, "noise_multiplier": 1.0, "target_delta": DELTA, **given})


def test_a_nodes_configuration_goes_before_its_app():
    node = {"privacy.clip": 2.0, "privacy.budget": 8, "partition-id": 0}
    found = ExampleDP.of(node, LOUD)
    assert found == ExampleDP(2.0, 2.0, DELTA, budget=8)
    assert ExampleDP.of({"partition-id": 0}) is None
    with pytest.raises(ConfigError, match=r"'privacy.clib' of this node: did you mean .*clip"):
        ExampleDP.of({"privacy.clib": 2.0})
    with pytest.raises(ConfigError, match=r"lacks privacy.noise-multiplier: add it"):
        ExampleDP.of(node)


def test_local_steps_get_gradients_alone():
    problem = FederatedProblem([PrivateObjective(regression(), LOUD)])
    steps = FedProx(proximal=1.0, local_solver=GradientDescent(steps=3, lr=0.1))
    simulate(steps, problem, 2)
    assert problem.objectives[0].ledger.spent[1.0] >= 6
    with pytest.raises(FedConError, match="asks for a value of its objective"):
        simulate(FedProx(proximal=1.0, local_solver=AOGM()), problem, 1)
    with pytest.raises(RefusedError, match="asks for a value"):
        Steps(problem.objectives[0]).value(np.zeros(4))


def test_nothing_is_spent_to_estimate_what_noise_hides():
    """By noisy gradients near the start L was some 1e25, and nine of them were spent for it."""
    problem = FederatedProblem([PrivateObjective(regression(), LOUD)])
    with pytest.raises(ConfigError, match="gradients of private examples are noisy, and each wou"):
        simulate(FedAvg(local_steps=1), problem, 1)
    assert not problem.objectives[0].ledger.spent


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (FedProx(proximal=1.0), "asks for a value of its objective"),
        (FedNewton(), "fednewton asks for values and second derivatives"),
        (FedExProx(step_size=1.0, extrapolation="polyak"), "fedexprox asks for a value"),
    ],
    ids=["exact", "second", "polyak"],
)
def test_what_asks_for_more_than_gradients_is_refused_before_round_1(strategy, words):
    private = [PrivateObjective(regression(seed=j), LOUD) for j in range(2)]
    with pytest.raises(RefusedError, match=words):
        simulate(strategy, FederatedProblem(private), 2)
    assert [f.ledger.spent for f in private] == [{}, {}]


# --- on a node ---------------------------------------------------------------------------------


def private_app(load):
    return client_app(load, policy=Policy.open(), privacy=LOUD)


def grid_of(tmp_path, nodes=2, make=private_app, **config):
    grid = FakeGrid([regression(seed=j) for j in range(nodes)], make=make)
    for context in grid.nodes.values():
        context.node_config.update({"state-dir": str(tmp_path), **config})
    return grid


def ledgers(tmp_path):
    found = sorted((tmp_path / "privacy").glob("*/spent.json"))
    return [{r: n for _, r, n in json.loads(path.read_text())["gradients"]} for path in found]


@on_grid
def test_nodes_count_over_rounds_restarts_and_runs(tmp_path, log):
    strategy = FedAvg(client_lr=0.5, local_steps=3)
    first = strategy.start(grid_of(tmp_path), num_rounds=2)
    assert ledgers(tmp_path) == [{1.0: 6}] * 2
    again = strategy.start(grid_of(tmp_path), num_rounds=1, seed=1)  # new nodes, another run
    assert ledgers(tmp_path) == [{1.0: 9}] * 2
    assert f"epsilon {LOUD.epsilon({1.0: 9}):.4g} at delta 1e-05, for 9 gradients" in log.text
    assert "objective" not in again.history.columns  # a loss is told nobody
    assert "this node's examples are private, and so is its loss" in log.text
    assert not np.array_equal(first.history.x, again.history.x)


@on_grid
def test_a_node_without_budget_refuses_and_says_so(tmp_path):
    with pytest.raises(FedConError, match=r"spent epsilon .* of privacy.budget = 9, and one more"):
        FedAvg(client_lr=0.5, local_steps=3).start(
            grid_of(tmp_path, **{"privacy.budget": 9.0}), num_rounds=9, max_retries=0
        )
    spent = ledgers(tmp_path)[0][1.0]
    assert LOUD.epsilon({1.0: spent}) <= 9.0 < LOUD.epsilon({1.0: spent + 1})


@on_grid
def test_no_state_is_kept_of_a_step_that_is_not_counted(tmp_path, monkeypatch):
    """A server that called such a step used would have the next upload tell its gradient."""
    kept = []

    def states():
        return {
            p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and SPENT not in p.name
        }

    class FullDisk(FakeGrid):
        def replies_to(self, message):
            if asked(message).get("round") != 2:
                return super().replies_to(message)
            before = states()
            with monkeypatch.context() as patch:
                patch.setattr(FileLedger, "_write", full_disk)
                replies = super().replies_to(message)
            kept.append((before, states()))
            return replies

    grid = FullDisk([regression()], make=private_app)
    for context in grid.nodes.values():
        context.node_config.update({"state-dir": str(tmp_path)})
    with pytest.raises(FedConError, match="the client failed: OSError"):
        Scaffold(client_lr=0.1, local_steps=1, mirror=False).start(
            grid, num_rounds=3, max_retries=0, evaluate_every=0
        )
    ((before, after),) = kept
    assert before
    assert after == before


def drawing(draw):
    """Return a client app whose load draws rows for every message."""
    rng = np.random.default_rng(0)

    def make(load):
        def drawn(context):
            whole = load(context)
            rows = draw(rng, whole.num_examples)
            return LogisticRegression(whole.A[rows], whole.targets[rows])

        return client_app(drawn, policy=Policy.open(), privacy=LOUD)

    return make


@on_grid
def test_rows_in_another_order_go_on_with_their_ledger(tmp_path):
    make = drawing(lambda rng, m: rng.permutation(m))
    FedAvg(client_lr=0.5).start(grid_of(tmp_path, make=make), num_rounds=3)
    assert ledgers(tmp_path) == [{1.0: 3}] * 2


@on_grid
def test_other_rows_for_every_message_are_refused(tmp_path):
    """Each choice would begin a ledger at 0, and no budget would ever be spent."""
    make = drawing(lambda rng, m: rng.choice(m, 40, replace=False))
    with pytest.raises(FedConError, match="rows have changed during the run"):
        FedAvg(client_lr=0.5).start(grid_of(tmp_path, make=make), num_rounds=3, max_retries=0)


def test_evaluations_of_other_rows_are_refused_too(tmp_path):
    """A budget would never be spent: each choice of rows would have its own."""
    rule, rng = replace(LOUD, loss_clip=5.0), np.random.default_rng(0)
    whole, context = regression(), Context(7, 1000, {}, RecordDict(), {})
    context.node_config.update({"state-dir": str(tmp_path), "name": "ward"})

    def answer(rows):
        some = LogisticRegression(whole.A[rows], whole.targets[rows])
        client = FedAvgClient(some, context=context, privacy=rule)
        layout = Layout.for_objective(some).to_json()
        return client.evaluate([np.zeros(4)], {"layout": layout, "client": 0})

    value, _, said = answer(np.arange(40))
    assert np.isfinite(value)
    assert "error" not in said
    value, _, said = answer(rng.choice(50, 40, replace=False))
    assert np.isnan(value)
    assert "rows have changed during the run" in said["error"]


@on_grid
def test_a_ledger_that_begins_beside_others_says_so(tmp_path, log):
    FedAvg(client_lr=0.5).start(grid_of(tmp_path), num_rounds=1)
    some = drawing(lambda rng, m: np.arange(40))
    FedAvg(client_lr=0.5).start(grid_of(tmp_path, make=some), num_rounds=1)
    assert "begins at 0, beside" in log.text
    assert len(ledgers(tmp_path)) == 4


def full_disk(*_):
    raise OSError(28, "No space left on device")


def test_what_is_not_sent_is_counted_all_the_same(tmp_path):
    """A step that fails in its middle has drawn noise, and the reply may be asked for again."""
    ledger = FileLedger(LOUD, tmp_path / "ledger")

    def fail():
        with ledger.opened():
            ledger.spend(1.0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with FileLedger(LOUD, tmp_path / "ledger").opened() as _:
        pass
    other = FileLedger(LOUD, tmp_path / "ledger")
    with other.opened():
        assert other.spent == {1.0: 1}


def test_a_damaged_ledger_is_not_begun_anew(tmp_path):
    ledger = FileLedger(LOUD, tmp_path)
    for text in ("", "{}", '{"spent": [[1.0, -3]]}'):
        (tmp_path / "spent.json").write_text(text)
        with pytest.raises(StorageError, match="does not say how much privacy"), ledger.opened():
            pass


def test_another_study_on_the_same_rows_adds_up_whatever_its_noise(tmp_path):
    quiet = ExampleDP(clip=0.5, noise_multiplier=4.0, target_delta=DELTA)
    for rule in (LOUD, LOUD, quiet):
        ledger = FileLedger(rule, tmp_path)
        with ledger.opened():
            PrivateObjective(regression(), rule, ledger).gradient(np.zeros(4))
    assert ledger.gradients == {(2.0, 1.0): 2, (4.0, 1.0): 1}
    whole = get_epsilon_gaussian((2 * 2.0**-2 + 4.0**-2) ** -0.5, DELTA)
    assert ledger.epsilon == pytest.approx(whole)


def test_a_ledger_as_nodes_once_had_it_by_name_goes_on(tmp_path):
    old = tmp_path / "privacy" / "north-1a2b3c4d"
    old.mkdir(parents=True)
    (old / "spent.json").write_text('{"noise_multiplier": 2.0, "spent": [[1.0, 7], [0.5, 2]]}')
    for _ in range(2):  # it is moved once
        ledger = FileLedger(LOUD, tmp_path / "privacy" / "data", old)
        with ledger.opened():
            ledger.spend(1.0)
    assert ledger.spent == {1.0: 9, 0.5: 2}
    assert not (old / "spent.json").exists()


@on_grid
def test_a_node_by_another_name_goes_on_with_the_ledger_of_its_rows(tmp_path):
    strategy = FedAvg(client_lr=0.5, local_steps=3)
    strategy.start(grid_of(tmp_path, nodes=1, name="north"), num_rounds=2)
    strategy.start(grid_of(tmp_path, nodes=1, name="nord"), num_rounds=1)
    assert ledgers(tmp_path) == [{1.0: 9}]


@on_grid
def test_another_study_on_the_same_rows_goes_on_with_their_ledger(tmp_path):
    """Another l2, an intercept or a loss began a ledger anew before; what that counts is added."""
    old = tmp_path / "privacy" / key_of(regression(l2=0.1))
    old.mkdir(parents=True)
    (old / "spent.json").write_text('{"gradients": [[2.0, 1.0, 7]]}')
    strategy = FedAvg(client_lr=0.5, local_steps=3)
    A, y = regression().rows, regression().targets
    studies = [
        regression(), regression(l2=0.1), regression(intercept=True), LeastSquares(A, y),
    ]  # fmt: skip
    for f in studies:
        grid = FakeGrid([f], make=private_app)
        for context in grid.nodes.values():
            context.node_config["state-dir"] = str(tmp_path)
        strategy.start(grid, num_rounds=1)
    assert ledgers(tmp_path) == [{1.0: 4 * 3 + 7}]
    other = FakeGrid([regression(seed=1)], make=private_app)
    for context in other.nodes.values():
        context.node_config["state-dir"] = str(tmp_path)
    strategy.start(other, num_rounds=1)
    assert sorted(n for own in ledgers(tmp_path) for n in own.values()) == [3, 4 * 3 + 7]


# --- in a simulation ---------------------------------------------------------------------------


def simulated(tmp_path, rounds, rule=LOUD, seed=0, wrapped=FederatedProblem, **more):
    """Play rounds in a new process, as far as anything in memory goes."""
    private = [PrivateObjective(regression(seed=seed + j), rule) for j in range(2)]
    strategy = FedAvg(client_lr=0.5, local_steps=3)
    simulate(strategy, wrapped(private), rounds, run_dir=tmp_path, **more)
    return private[0].ledger


def weighed(private):
    """Return private objectives within two others."""
    return FederatedProblem(private, weights=[0.3, 0.7]).with_noise(0.1)


def test_weights_and_simulated_noise_hide_no_private_examples(tmp_path):
    """Ledgers go on, other noise is not resumed, steps see no values, and nothing is chosen."""
    assert simulated(tmp_path, 2, wrapped=weighed).spent == {1.0: 6}
    assert simulated(tmp_path, 5, wrapped=weighed, resume=True).spent == {1.0: 15}
    other = replace(LOUD, noise_multiplier=9.0)
    with pytest.raises(FedConError, match=r"cannot resume .*data"):
        simulated(tmp_path, 6, other, wrapped=weighed, resume=True)
    private = [PrivateObjective(f, LOUD) for f in (regression(), regression(seed=1))]
    problem = weighed(private)
    assert problem.objective(np.ones(4)) == weighed([f.objective for f in private]).objective(
        np.ones(4)
    )
    with pytest.raises(RefusedError, match="asks for a value"):
        for_steps(problem.objectives[0], 1.0).value(np.zeros(4))
    with pytest.raises(FedConError, match="private examples would spend for all"):
        simulate(FedAvg(client_lr="auto", local_steps=1), problem, 1)


def test_a_resumed_simulation_goes_on_with_its_ledgers(tmp_path, capsys):
    assert simulated(tmp_path, 2).spent == {1.0: 6}
    assert simulated(tmp_path, 5, resume=True).spent == {1.0: 15}
    assert main(["privacy", "spent", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{LOUD.epsilon({1.0: 15}):.4g}" in said
    assert "rows 1" in said
    assert not any(digest in said for digest in json.loads((tmp_path / "privacy.json").read_text()))
    assert main(["privacy", "spent", str(tmp_path / "nothing")]) == 2


def test_gradients_of_certificates_are_in_the_file_and_go_on(tmp_path):
    """Each recorded certificate takes one noisy gradient of every client, the last one, too."""

    def in_file():
        return [n for _, _, n in next(iter(read_ledgers(tmp_path)))["gradients"]]

    assert simulated(tmp_path, 1, certificates=True).spent == {1.0: 3 + 1}
    assert in_file() == [4]
    assert simulated(tmp_path, 2, certificates=True, resume=True).spent == {1.0: 2 * (3 + 1)}
    assert in_file() == [8]


def read_ledgers(folder):
    return json.loads((folder / "privacy.json").read_text()).values()


def test_what_was_spent_besides_is_added_to_the_ledger_of_a_run_that_goes_on(tmp_path):
    """Before it in a new process; or in this one, in another run's folder."""

    def used(private):
        private[0].gradient(np.zeros(4))
        return FederatedProblem(private)

    assert simulated(tmp_path / "a", 2).spent == {1.0: 6}
    assert simulated(tmp_path / "a", 5, wrapped=used, resume=True).spent == {1.0: 6 + 1 + 9}
    private = [PrivateObjective(regression(seed=j), LOUD) for j in range(2)]
    strategy, problem = FedAvg(client_lr=0.5, local_steps=3), FederatedProblem(private)
    for folder, rounds, spent in (("b", 2, 6), ("c", 1, 9), ("b", 3, 12), ("c", 2, 15)):
        simulate(strategy, problem, rounds, run_dir=tmp_path / folder, resume=True)
        assert private[0].ledger.spent == {1.0: spent}
    kept = read_ledgers(tmp_path / "c")
    assert [[2.0, 1.0, 15]] in [one["gradients"] for one in kept]


def test_a_budget_holds_over_resumed_runs(tmp_path):
    rule = replace(LOUD, budget=9.0)
    for _ in range(3):
        with pytest.raises(FedConError, match="one more gradient would exceed it"):
            simulated(tmp_path, 20, rule, resume=True)
    (kept, _) = read_ledgers(tmp_path)
    ((_, _, gradients),) = kept["gradients"]
    assert LOUD.epsilon({1.0: gradients}) <= 9.0 < LOUD.epsilon({1.0: gradients + 1})


def test_other_noise_or_other_rows_are_not_resumed(tmp_path):
    simulated(tmp_path, 2)
    for changed in ({"rule": replace(LOUD, noise_multiplier=9.0)}, {"seed": 7}):
        with pytest.raises(FedConError, match=r"cannot resume .*data"):
            simulated(tmp_path, 3, resume=True, **changed)
    larger = simulated(tmp_path, 3, replace(LOUD, budget=99.0), resume=True)
    assert larger.spent == {1.0: 9}


def test_a_damaged_ledger_of_a_run_is_not_begun_anew(tmp_path):
    simulated(tmp_path, 2)
    (tmp_path / "privacy.json").write_text('{"a": 1}'.replace("a", next(iter(
        json.loads((tmp_path / "privacy.json").read_text())))))  # fmt: skip
    with pytest.raises(StorageError, match="does not say how much privacy"):
        simulated(tmp_path, 3, resume=True)


@pytest.mark.parametrize(
    ("rounds", "lost"),
    [(0, "the file"), (0, "its content"), (3, "the file"), (3, "its content"), (3, "two rounds")],
)
def test_a_run_whose_ledger_has_less_than_its_checkpoint_is_not_resumed(tmp_path, rounds, lost):
    """Also with a checkpoint from before the first round, as a killed run leaves it."""
    simulated(tmp_path, min(rounds, 1))
    path = tmp_path / "privacy.json"
    older = path.read_bytes()
    simulated(tmp_path, rounds, resume=True)
    if lost == "the file":
        path.unlink()
    else:
        path.write_bytes(older if lost == "two rounds" else b"{}")
    with pytest.raises(StorageError, match="lacks gradients that the checkpoint has"):
        simulated(tmp_path, 4, resume=True)


def test_advice_that_needs_gradients_of_private_examples_is_refused():
    private = [PrivateObjective(regression(seed=j), LOUD) for j in range(2)]
    with pytest.raises(ConfigError, match="recommend asks the clients for gradients"):
        facts_of(FederatedProblem(private), Full())
    assert private[0].ledger.spent == {}


def test_a_node_needs_a_place_for_its_ledger():
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises(ConfigError, match="ExampleDP needs a state-dir"):
        FedAvgClient(regression(), context=context, privacy=LOUD)
    with pytest.raises(ConfigError, match="a node keeps the ledger of its private examples itself"):
        FedAvgClient(PrivateObjective(regression(), LOUD), context=context)


def test_a_node_tells_no_constants_and_no_digest_of_its_rows(tmp_path):
    node = {"partition-id": 0, "state-dir": str(tmp_path)}
    infos = [
        FedAvgClient(f, context=Context(1, 1, node, RecordDict(), {}), privacy=LOUD).describe()
        for f in (regression(), regression(seed=1))
    ]
    assert infos[0] == infos[1]
    assert infos[0].smoothness is None
    open_info = FedAvgClient(LeastSquares(np.eye(2), np.ones(2)), name="0").describe()
    assert open_info.smoothness is not None


def test_the_page_s_blocks(capsys):
    node, schema = map(tomllib.loads, blocks("toml", PAGE))
    check_public(Schema.load(schema))
    flat = {f"privacy.{key}": value for key, value in node["privacy"].items()}
    assert ExampleDP.of(flat) == ExampleDP(1.0, 1.1, 1e-5, budget=4.0, batch_size=64)
    exec(compile(blocks("python", PAGE)[0], PAGE, "exec"), {})
    objective, epsilon = map(float, capsys.readouterr().out.split())
    assert 0.1 < objective < 0.4 < np.log(2)  # it has learnt
    assert epsilon == pytest.approx(ExampleDP(1.0, 2.0, 1e-5).epsilon({0.1: 100}))


def test_the_reference_optimum_is_the_owner_s_and_spends_nothing():
    objectives, psi = [regression(seed=j) for j in range(3)], L1(weight=0.02)
    private = [PrivateObjective(f, LOUD) for f in objectives]
    for weights in (None, [1.0, 2.0, 3.0]):
        own = FederatedProblem(private, regularizer=psi, weights=weights)
        plain = FederatedProblem(objectives, regularizer=psi, weights=weights)
        assert own.optimum.value == pytest.approx(plain.optimum.value, abs=1e-12)
    assert [f.ledger.spent for f in private] == [{}] * 3


# --- noisy evaluations ---------------------------------------------------------------------------


def test_a_noisy_value_is_the_mean_of_cut_losses_and_counted():
    f, x = regression(l2=0.3), np.array([3.0, -2.0, 1.0, 0.5])
    rule = replace(LOUD, loss_clip=0.4)
    losses = f.row_losses(x, np.arange(50))
    assert losses.mean() + f.ridge(x) == pytest.approx(f.value(x))
    private = PrivateObjective(f, rule)
    found = np.array([private.noisy_value(x) for _ in range(500)])
    exact = np.clip(losses, -0.4, 0.4).mean() + f.ridge(x)
    deviation = 2.0 * 0.4 / 50
    assert kstest((found - exact) / deviation, "norm").pvalue > 1e-6
    assert private.ledger.spent == {1.0: 500}
    with pytest.raises(RefusedError, match="and so is its loss"):
        PrivateObjective(f, LOUD).noisy_value(x)


def test_one_row_moves_the_sum_of_losses_by_the_cut(monkeypatch):
    seen = []
    monkeypatch.setattr(Grid, "noise", lambda grid, size: np.zeros(size, np.int64))
    monkeypatch.setattr(Grid, "value", lambda grid, k: seen.append((grid, k)) or k * grid.step)
    rng = np.random.default_rng(0)
    for _ in range(40):
        m, scale = int(rng.integers(2, 20)), 10.0 ** rng.uniform(-2, 200)
        A, b = rng.standard_normal((m, 3)), rng.choice([-1.0, 1.0], m)
        x, out = scale * rng.standard_normal(3), int(rng.integers(m))
        for rows in (np.arange(m), np.delete(np.arange(m), out)):
            PrivateObjective(
                LogisticRegression(A[rows], b[rows]), replace(LOUD, loss_clip=0.7)
            ).noisy_value(x)
        (grid, whole), (_, less) = seen[-2:]
        assert abs(int(whole[0] - less[0])) <= 0.7 / grid.step


@on_grid
def test_nodes_tell_a_noisy_loss_where_they_say_so(tmp_path):
    strategy = FedAvg(client_lr=0.5, local_steps=3)
    grid = grid_of(tmp_path, **{"privacy.loss-clip": 2.0})
    history = strategy.start(grid, num_rounds=2, evaluate_every=1).history
    assert np.isfinite(history["objective"]).all()
    assert ledgers(tmp_path) == [{1.0: 6 + 2}] * 2  # two evaluations


def test_runs_begun_before_a_rule_had_a_loss_clip_go_on():
    """The digest by which a folder knows its rule is what it was."""
    parts = {f: getattr(LOUD, f) for f in ("clip", "noise_multiplier", "target_delta", "budget",
                                           "batch_size")}  # fmt: skip
    older = make_dataclass("ExampleDP", [*parts], frozen=True)(*parts.values())
    type(older).__module__, type(older).__qualname__ = type(LOUD).__module__, "ExampleDP"
    assert digest(older) == digest(LOUD) != digest(replace(LOUD, loss_clip=1.0))
