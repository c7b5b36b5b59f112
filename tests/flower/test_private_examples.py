"""Privacy of each example: what is clipped, what noise is added, what is counted, what refused."""

from __future__ import annotations

import json
import tomllib
from dataclasses import make_dataclass, replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from pages import blocks
from private_rows import DELTA, LOUD, regression, sums_without_noise
from scipy.stats import kstest

from flower_fedcon import FederatedProblem, Full, simulate
from flower_fedcon.cli import main
from flower_fedcon.errors import ConfigError, FedConError, RefusedError, StorageError
from flower_fedcon.lab.advice.facts import facts_of
from flower_fedcon.objectives import LogisticRegression, PrivateObjective, Quadratic, Scaled
from flower_fedcon.objectives.private_objective import Steps, for_steps
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import AOGM, SGD, GradientDescent
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedExProx, FedNewton, FedProx
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.ledgers import FileLedger

PAGE = "docs/private_examples.md"
STEPS = FedAvg(client_lr=0.5, local_steps=3)


def privately(rule=LOUD, clients=2, seed=0):
    return [PrivateObjective(regression(seed=seed + j), rule) for j in range(clients)]


def spent(objectives):
    return [f.ledger.spent for f in objectives]


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
    private = privately()
    solver = SGD(epochs=2, batch_size=10, lr=0.1, clip=clip)
    made = FedProx(proximal=1.0, local_solver=solver)
    history = simulate(made, FederatedProblem(private), 2, evaluate_every=0)
    assert np.isfinite(history.x).all()
    assert spent(private) == [{0.2: 20}] * 2


def test_batches_are_poisson_samples(monkeypatch):
    f, seen, rng = regression(m=200), [], np.random.default_rng(0)
    slopes = type(f).slopes_and_rows
    note = lambda self, x, rows: seen.append(rows) or slopes(self, x, rows)  # noqa: E731
    monkeypatch.setattr(type(f), "slopes_and_rows", note)
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
    own.stochastic_gradient(np.zeros(4), rng, 20)
    assert own.ledger.spent == {0.25: 2}


def test_a_clip_above_every_norm_and_next_to_no_noise_leave_the_iterates():
    quiet, psi = ExampleDP(clip=100.0, noise_multiplier=1e-12, target_delta=DELTA), L1(weight=0.01)
    private = privately(quiet, 3)
    strategy = FedDualAvg(psi, client_lr=0.5, local_steps=3)
    open_ = FederatedProblem([f.objective for f in private], regularizer=psi)
    plain = simulate(strategy, open_, 20)
    same = simulate(strategy, FederatedProblem(private, regularizer=psi), 20, unsafe=True)
    np.testing.assert_allclose(same.x, plain.x, rtol=0, atol=1e-9)
    assert same["objective"][-1] == pytest.approx(plain["objective"][-1], abs=1e-9)
    assert spent(private) == [{1.0: 60}] * 3


def test_weights_of_clients_scale_the_noisy_gradient():
    """With minibatches too, which an objective that draws them itself need not have by rows."""
    problem = FederatedProblem(privately(ExampleDP(9.0, 1e-12, DELTA)), weights=[1.0, 3.0])
    strategy = FedAvg(client_lr=0.1, local_steps=2, batch_size=10)
    assert np.isfinite(simulate(strategy, problem, 3).x).all()
    assert spent(f.objective for f in problem.objectives) == [{0.2: 6}] * 2


# --- noisy evaluations -------------------------------------------------------------------------


def test_a_noisy_value_is_the_mean_of_cut_losses_and_counted():
    f, x = regression(l2=0.3), np.array([3.0, -2.0, 1.0, 0.5])
    losses = f.row_losses(x, np.arange(50))
    assert losses.mean() + f.ridge(x) == pytest.approx(f.value(x))
    private = PrivateObjective(f, replace(LOUD, loss_clip=0.4))
    found = np.array([private.noisy_value(x) for _ in range(500)])
    exact = np.clip(losses, -0.4, 0.4).mean() + f.ridge(x)
    deviation = 2.0 * 0.4 / 50
    assert kstest((found - exact) / deviation, "norm").pvalue > 1e-6
    assert private.ledger.spent == {1.0: 500}
    with pytest.raises(RefusedError, match="and so is its loss"):
        PrivateObjective(f, LOUD).noisy_value(x)


def test_one_row_moves_the_sum_of_losses_by_the_cut(monkeypatch):
    rng, seen = np.random.default_rng(0), sums_without_noise(monkeypatch)
    for _ in range(40):
        m, scale = int(rng.integers(2, 20)), 10.0 ** rng.uniform(-2, 200)
        A, b = rng.standard_normal((m, 3)), rng.choice([-1.0, 1.0], m)
        x, out = scale * rng.standard_normal(3), int(rng.integers(m))
        for rows in (np.arange(m), np.delete(np.arange(m), out)):
            some = LogisticRegression(A[rows], b[rows])
            PrivateObjective(some, replace(LOUD, loss_clip=0.7)).noisy_value(x)
        (grid, whole), (_, less) = seen[-2:]
        assert abs(int(whole[0] - less[0])) <= 0.7 / grid.step


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


def rule(**given):
    return ExampleDP(**{"clip": 1.0, "noise_multiplier": 1.0, "target_delta": DELTA, **given})


NODE = {"privacy.clip": 2.0, "privacy.budget": 8, "partition-id": 0}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PrivateObjective(Quadratic(np.eye(2), np.zeros(2)), LOUD),
         "Quadratic has no gradient of each example"),
        (lambda: PrivateObjective(Scaled(regression(), 2.0), LOUD),
         "Scaled has no gradient of each example"),
        (lambda: PrivateObjective(regression(sample_weight=np.arange(1.0, 51.0)), LOUD),
         "LogisticRegression has a sample_weight"),
        (lambda: rule(clip=0.0), r"ExampleDP\(clip\) must be finite and > 0, got 0.0"),
        (lambda: rule(noise_multiplier=-1.0), "noise_multiplier"),
        (lambda: rule(target_delta=1.0), "must be < 1"),
        (lambda: rule(budget=0), "budget"),
        (lambda: rule(batch_size=0), "batch_size"),
        (lambda: ExampleDP.of({"privacy.clib": 2.0}),
         r"'privacy.clib' of this node: did you mean .*clip"),
        (lambda: ExampleDP.of(NODE), r"lacks privacy.noise-multiplier: add it"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_nodes_configuration_goes_before_its_app():
    assert ExampleDP.of(NODE, LOUD) == ExampleDP(2.0, 2.0, DELTA, budget=8)
    assert ExampleDP.of({"partition-id": 0}) is None


def test_local_steps_get_gradients_alone():
    problem = FederatedProblem([PrivateObjective(regression(), LOUD)])
    steps = FedProx(proximal=1.0, local_solver=GradientDescent(steps=3, lr=0.1))
    simulate(steps, problem, 2)
    assert problem.objectives[0].ledger.spent[1.0] >= 6
    with pytest.raises(FedConError, match="asks for a value of its objective"):
        simulate(FedProx(proximal=1.0, local_solver=AOGM()), problem, 1)
    with pytest.raises(RefusedError, match="asks for a value"):
        Steps(problem.objectives[0]).value(np.zeros(4))


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (FedProx(proximal=1.0), RefusedError, "asks for a value of its objective"),
        (FedNewton(), RefusedError, "fednewton asks for values and second derivatives"),
        (FedExProx(step_size=1.0, extrapolation="polyak"), RefusedError,
         "fedexprox asks for a value"),
        # By noisy gradients near the start L was some 1e25, and nine of them were spent for it.
        (FedAvg(local_steps=1), ConfigError,
         "gradients of private examples are noisy, and each wou"),
        (None, ConfigError, "recommend asks the clients for gradients"),
    ],
    ids=["exact", "second", "polyak", "estimates", "advice"],
)  # fmt: skip
def test_what_asks_for_more_than_gradients_is_refused_and_spends_nothing(ask, error, words):
    private = privately()
    problem = FederatedProblem(private)
    with pytest.raises(error, match=words):
        facts_of(problem, Full()) if ask is None else simulate(ask, problem, 2)
    assert spent(private) == [{}, {}]


# --- ledgers in files --------------------------------------------------------------------------


def test_what_is_not_sent_is_counted_all_the_same(tmp_path):
    """A step that fails in its middle has drawn noise, and the reply may be asked for again."""
    ledger = FileLedger(LOUD, tmp_path / "ledger")
    with pytest.raises(RuntimeError), ledger.opened():  # noqa: PT012
        ledger.spend(1.0)
        raise RuntimeError
    with FileLedger(LOUD, tmp_path / "ledger").opened() as _:
        pass
    other = FileLedger(LOUD, tmp_path / "ledger")
    with other.opened():
        assert other.spent == {1.0: 1}


def test_a_damaged_ledger_is_not_begun_anew(tmp_path):
    """A node's, or a run's."""
    ledger = FileLedger(LOUD, tmp_path)
    for text in ("", "{}", '{"spent": [[1.0, -3]]}'):
        (tmp_path / "spent.json").write_text(text)
        with pytest.raises(StorageError, match="does not say how much privacy"), ledger.opened():
            pass
    simulated(tmp_path / "run", 2)
    file = tmp_path / "run" / "privacy.json"
    file.write_text(json.dumps({next(iter(json.loads(file.read_text()))): 1}))
    with pytest.raises(StorageError, match="does not say how much privacy"):
        simulated(tmp_path / "run", 3, resume=True)


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


# --- in a simulation ---------------------------------------------------------------------------


def simulated(folder, rounds, rule=LOUD, seed=0, wrapped=FederatedProblem, **more):
    """Play rounds in a new process, as far as anything in memory goes."""
    private = privately(rule, seed=seed)
    simulate(STEPS, wrapped(private), rounds, run_dir=folder, **more)
    return private[0].ledger.spent


def read_ledgers(folder):
    kept = json.loads((folder / "privacy.json").read_text()).values()
    return [own["gradients"] for own in kept]


def weighed(private):
    """Return private objectives within two others."""
    return FederatedProblem(private, weights=[0.3, 0.7]).with_noise(0.1)


@pytest.mark.parametrize("wrapped", [FederatedProblem, weighed])
def test_other_noise_or_other_rows_are_not_resumed(tmp_path, wrapped):
    """A larger budget is."""
    assert simulated(tmp_path, 2, wrapped=wrapped) == {1.0: 6}
    for changed in ({"rule": replace(LOUD, noise_multiplier=9.0)}, {"seed": 7}):
        with pytest.raises(FedConError, match=r"cannot resume .*data"):
            simulated(tmp_path, 3, resume=True, wrapped=wrapped, **changed)
    larger = replace(LOUD, budget=99.0)
    assert simulated(tmp_path, 5, larger, resume=True, wrapped=wrapped) == {1.0: 15}


def test_weights_and_simulated_noise_hide_no_private_examples():
    """Steps see no values, and nothing is chosen."""
    private = privately()
    problem, plain = weighed(private), weighed([f.objective for f in private])
    assert problem.objective(np.ones(4)) == plain.objective(np.ones(4))
    with pytest.raises(RefusedError, match="asks for a value"):
        for_steps(problem.objectives[0], 1.0).value(np.zeros(4))
    with pytest.raises(FedConError, match="private examples would spend for all"):
        simulate(FedAvg(client_lr="auto", local_steps=1), problem, 1)


def test_a_resumed_simulation_goes_on_with_its_ledgers(tmp_path, capsys):
    assert simulated(tmp_path, 2) == {1.0: 6}
    assert simulated(tmp_path, 5, resume=True) == {1.0: 15}
    assert main(["privacy", "spent", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{LOUD.epsilon({1.0: 15}):.4g}" in said
    assert "rows 1" in said
    assert not any(digest in said for digest in json.loads((tmp_path / "privacy.json").read_text()))
    assert main(["privacy", "spent", str(tmp_path / "nothing")]) == 2


def test_gradients_of_certificates_are_in_the_file_and_go_on(tmp_path):
    """Each recorded certificate takes one noisy gradient of every client, the last one, too."""
    for rounds in (1, 2):
        found = simulated(tmp_path, rounds, certificates=True, resume=rounds > 1)
        assert found == {1.0: rounds * (3 + 1)}
        assert [n for _, _, n in read_ledgers(tmp_path)[0]] == [4 * rounds]


def test_what_was_spent_besides_is_added_to_the_ledger_of_a_run_that_goes_on(tmp_path):
    """Before it in a new process; or in this one, in another run's folder."""

    def used(private):
        private[0].gradient(np.zeros(4))
        return FederatedProblem(private)

    assert simulated(tmp_path / "a", 2) == {1.0: 6}
    assert simulated(tmp_path / "a", 5, wrapped=used, resume=True) == {1.0: 6 + 1 + 9}
    private = privately()
    problem = FederatedProblem(private)
    for folder, rounds, sum_ in (("b", 2, 6), ("c", 1, 9), ("b", 3, 12), ("c", 2, 15)):
        simulate(STEPS, problem, rounds, run_dir=tmp_path / folder, resume=True)
        assert private[0].ledger.spent == {1.0: sum_}
    assert [[2.0, 1.0, 15]] in read_ledgers(tmp_path / "c")


def test_a_budget_holds_over_resumed_runs(tmp_path):
    rule = replace(LOUD, budget=9.0)
    for _ in range(3):
        with pytest.raises(FedConError, match="one more gradient would exceed it"):
            simulated(tmp_path, 20, rule, resume=True)
    (((_, _, gradients),), _) = read_ledgers(tmp_path)
    assert LOUD.epsilon({1.0: gradients}) <= 9.0 < LOUD.epsilon({1.0: gradients + 1})


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


def test_the_reference_optimum_is_the_owner_s_and_spends_nothing():
    private, psi = privately(clients=3), L1(weight=0.02)
    for weights in (None, [1.0, 2.0, 3.0]):
        own, plain = (
            FederatedProblem(objectives, regularizer=psi, weights=weights)
            for objectives in (private, [f.objective for f in private])
        )
        assert own.optimum.value == pytest.approx(plain.optimum.value, abs=1e-12)
    assert spent(private) == [{}] * 3


def test_the_page_s_block(capsys):
    exec(compile(blocks("python", PAGE)[0], PAGE, "exec"), {})
    objective, epsilon = map(float, capsys.readouterr().out.split())
    assert 0.1 < objective < 0.4 < np.log(2)  # it has learnt
    assert epsilon == pytest.approx(ExampleDP(1.0, 2.0, 1e-5).epsilon({0.1: 100}))
    node, _ = map(tomllib.loads, blocks("toml", PAGE))
    flat = {f"privacy.{key}": value for key, value in node["privacy"].items()}
    assert ExampleDP.of(flat) == ExampleDP(1.0, 1.1, 1e-5, budget=4.0, batch_size=64)


def test_runs_begun_before_a_rule_had_a_loss_clip_go_on():
    """The digest by which a folder knows its rule is what it was."""
    names = ("clip", "noise_multiplier", "target_delta", "budget", "batch_size")
    parts = {name: getattr(LOUD, name) for name in names}
    older = make_dataclass("ExampleDP", [*parts], frozen=True)(*parts.values())
    type(older).__module__, type(older).__qualname__ = type(LOUD).__module__, "ExampleDP"
    assert digest(older) == digest(LOUD) != digest(replace(LOUD, loss_clip=1.0))
