"""Noise that clients add under SecAgg+: what the server gets, void rounds, what nodes insist on."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest
from contract import strategy as build
from fake_grid import FakeGrid, on_grid
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from pages import blocks
from problems import q6_objectives
from scipy import stats
from test_release import PRIVATE, shown, suited
from test_secure_aggregation import STAGES, SecureGrid, overflowing, stage
from typer.testing import CliRunner

from flower_fedcon import (
    FederatedProblem,
    Policy,
    Sample,
    as_legacy_strategy,
    client_app,
    simulate,
)
from flower_fedcon.cli import app
from flower_fedcon.errors import BudgetError, ConfigError, FedConError, RefusedError, StorageError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.privacy import GaussianDP, SecAggPlus
from flower_fedcon.privacy.accountant import NoisySum, Sampling, spent_epsilon
from flower_fedcon.privacy.ledger import SumsLedger
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.strategies import FedAvg, FedProx, Scaffold

DELTA = 1e-5
DAILY = "fedprox", "feddyn"  # of private methods: with a solver, and with state
SECURE = SecAggPlus()


def fedavg(z=1.0, clip=10.0, *, rule=None, budget=None, min_replies=None, **more):
    privacy = GaussianDP(clip, z, DELTA, budget, **{"noise_by": "clients", **more})
    return FedAvg(
        client_lr=0.1, local_steps=3, privacy=privacy, participation=rule, min_replies=min_replies
    )


def plain(x, **more):
    return simulate(FedAvg(client_lr=0.1, local_steps=3, **more), FederatedProblem(x), 1).x


@pytest.fixture
def silent(monkeypatch):
    """No noise at all: what is left is the sum, by which rounding can be told."""
    monkeypatch.setattr(Grid, "noise", lambda grid, size: np.zeros(size, np.int64))


# --- what the server gets ------------------------------------------------------------------------


@on_grid
def test_the_sum_has_the_noise_of_all_who_are_in_it():
    """And each masked vector its own share: a server sees no sum without."""
    d, n, fewest, clip, z = 400, 5, 3, 0.5, 2.0
    grid = FakeGrid([LeastSquares(np.zeros((1, d)), np.zeros(1)) for _ in range(n)])
    made = fedavg(z, clip, fewest=fewest)
    result = made.start(grid, num_rounds=1, secure_aggregation=SECURE)
    noise = result.history.x * n / (z * clip * math.sqrt(n / fewest))
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert result.history["epsilon"].tolist() == pytest.approx(
        simulate(fedavg(z, clip, noise_by="server"), FederatedProblem(q6_objectives()), 1)[
            "epsilon"
        ].tolist(),
        rel=1e-6,
    )


def noisy(name, settings):
    """Return a method's case, its problem, and the rule by which its clients add noise."""
    first = suited(name, settings)
    problem = first.problem()
    if len(problem.objectives) < 4:
        pytest.skip("a cohort of fewer than three")
    return first, problem, GaussianDP(1e3, 1.0, DELTA, noise_by="clients", fewest=2)


@on_grid
@pytest.mark.parametrize("case", PRIVATE, ids=shown)
def test_every_private_method_has_its_iterates(case, silent):
    name, settings = case
    first, problem, rule = noisy(name, settings)
    expected = simulate(build(name, first, **settings), problem, 1, evaluate_every=0)
    result = build(name, first, **settings, privacy=rule).start(
        FakeGrid(problem.objectives), problem.start, num_rounds=1, evaluate_every=0,
        secure_aggregation=SecAggPlus(num_shares=5),
    )  # fmt: skip
    scale = max(1.0, float(np.abs(expected.x).max()))
    assert np.abs(result.history.x - expected.x).max() < 1e-3 * scale


@on_grid
def test_no_whole_step_is_lost_on_the_way(silent):
    """The server's sum is that of the whole steps, as a simulation adds them up."""
    made = fedavg(0.5, 100.0, fewest=4)
    result = made.start(FakeGrid(q6_objectives()), num_rounds=3, secure_aggregation=SECURE)
    simulated = simulate(made, FederatedProblem(q6_objectives()), 3)
    assert result.history.x.tobytes() == simulated.x.tobytes()


@on_grid
def test_releases_are_clipped_and_absent_clients_have_changed_nothing(silent):
    """Of points, too: one that does not reply counts as if it had sent what it got."""
    far = [LeastSquares(np.eye(2), np.full(2, b)) for b in (30.0, 40.0, 0.2, 0.4, 0.6)]
    grid = SecureGrid(far, dies=[(4, STAGES[2])])
    rule = GaussianDP(1.0, 1.0, DELTA, noise_by="clients", fewest=2)
    made = FedProx(proximal=0.5, privacy=rule)
    result = made.start(grid, num_rounds=1, secure_aggregation=SECURE)
    alone = [simulate(FedProx(proximal=0.5), FederatedProblem([f]), 1).x for f in far[:4]]
    cut = [x * min(1.0, 1.0 / np.linalg.norm(x)) for x in alone]
    np.testing.assert_allclose(result.history.x, np.sum(cut, axis=0) / 5, atol=1e-5)
    assert result.history["replies"].tolist() == [4]


@on_grid
def test_what_a_node_sends_is_the_same_whatever_number_it_has():
    """No reply of any stage has an upload's size, or says what the step has cost."""
    grid = SecureGrid(q6_objectives())
    fedavg().start(grid, num_rounds=1, secure_aggregation=SECURE)
    for _, now, reply in grid.seen:
        if now == STAGES[2]:
            assert {*reply.content["fitres.metrics"]} == {"client", "round"}
            assert [len(record) for record in reply.content.array_records.values()] == [0]


# --- void rounds ---------------------------------------------------------------------------------


@on_grid
@pytest.mark.parametrize("when", STAGES)
def test_those_who_stay_suffice(when):
    grid = SecureGrid(q6_objectives(), dies=[(2, when)])
    history = (
        fedavg(fewest=3).start(grid, num_rounds=1, max_retries=0, secure_aggregation=SECURE).history
    )
    assert history["replies"].tolist() == [6 if when == "unmask" else 5]
    assert history["epsilon"][0] == pytest.approx(epsilon(1))


def epsilon(rounds, z=1.0):
    return simulate(fedavg(z), FederatedProblem(q6_objectives()), rounds)["epsilon"][-1]


@on_grid
def test_a_void_round_shows_no_sum_and_counts_all_the_same():
    """Nobody unmasks too little noise; who asks again may have seen the sum that failed."""
    grid = SecureGrid(q6_objectives(), dies=[(2, STAGES[2])])
    history = fedavg(fewest=5).start(grid, num_rounds=1, secure_aggregation=SECURE).history
    assert history["retries"].tolist() == [1]
    assert history["replies"].tolist() == [6]
    assert len([c for c, now in grid.asked_for if now == "unmask"]) == 6  # of one attempt alone
    assert history["epsilon"][0] == pytest.approx(epsilon(2), rel=1e-6)


@on_grid
def test_a_round_that_is_repeated_for_a_lost_state_counts_again(tmp_path):
    """Who kept a state sends a second masked vector: the server's count is that of the nodes."""
    grid = FakeGrid(q6_objectives())
    for j in range(6):
        grid.nodes[1000 - j].node_config["state-dir"] = str(tmp_path / str(j))
    answer, forgotten = grid.replies_to, []

    def forgets(message):
        if stage(message) == STAGES[2] and message.content["fitins.config"]["round"] == 2:
            for state in () if forgotten else tmp_path.glob("0/*/*/state"):
                forgotten.append(state)
                state.unlink()
        return answer(message)

    grid.replies_to = forgets
    privacy = GaussianDP(10.0, 1.0, DELTA, noise_by="clients", fewest=3)
    strategy = Scaffold(client_lr=0.1, local_steps=2, mirror=False, privacy=privacy)
    history = strategy.start(grid, num_rounds=2, secure_aggregation=SECURE).history
    assert history["lost"][-1] == 1
    (path,) = (tmp_path / "1" / "noisy-sums").iterdir()
    sent = SumsLedger(path.read_text(), path.name).sums
    assert sent == {1.0: 3}
    assert history["epsilon"][-1] == pytest.approx(epsilon(3), rel=1e-6)


@on_grid
def test_a_void_round_may_end_the_budget():
    grid = SecureGrid(q6_objectives(), dies=[(2, STAGES[2])])
    with pytest.raises(BudgetError, match="would exceed the privacy budget"):
        fedavg(fewest=5, budget=epsilon(1) * 1.01).start(
            grid, num_rounds=1, secure_aggregation=SECURE
        )


@on_grid
def test_more_may_be_asked_for_than_suffice():
    """`min_replies` leaves room for those whose shares a server knows."""
    dies = [(2, STAGES[2]), (3, STAGES[2])]
    grid = SecureGrid(q6_objectives(), dies=dies)
    with pytest.raises(FedConError, match="0 usable replies of 6, and 5 are needed"):
        fedavg(fewest=3, min_replies=5).start(
            grid, num_rounds=1, max_retries=0, secure_aggregation=SECURE
        )


# --- what nodes insist on ------------------------------------------------------------------------


def insisting(**rules):
    return lambda load: client_app(load, policy=Policy(**rules))


def start(made, secure=SECURE, **rules):
    grid = FakeGrid(q6_objectives(), make=insisting(**rules))
    return made.start(grid, num_rounds=1, max_retries=0, secure_aggregation=secure)


@on_grid
def test_a_node_may_insist_on_noise():
    assert start(fedavg(2.0, fewest=4), min_noise=2.0).history["replies"].tolist() == [6]
    with pytest.raises(FedConError, match=r"policy.min-noise = 2.1, not noise of 2 times the clip"):
        start(fedavg(2.0, fewest=4), min_noise=2.1)
    with pytest.raises(FedConError, match=r"policy.min-noise = 2, not an answer without noise"):
        start(FedAvg(client_lr=0.1, local_steps=3), SecAggPlus(8.0), min_noise=2.0)
    with pytest.raises(FedConError, match=r"policy.min-noise = 2, not an answer without noise"):
        start(fedavg(2.0, noise_by="server"), None, min_noise=2.0)


@on_grid
def test_where_noise_is_asked_for_no_step_that_fails_is_told():
    """A node whose rows overflow answers as one without rows, and its count goes on."""
    made, grid = overflowing(GaussianDP(1.0, 2.0, DELTA, noise_by="clients", fewest=4))
    result = made.start(grid, num_rounds=2, evaluate_every=0, secure_aggregation=SECURE)
    assert result.history["replies"].tolist() == [6]
    assert not any("error" in str(reply.content) for _, _, reply in grid.seen)


class Failing:
    """An objective that raises whatever it is asked."""

    def __init__(self, objective):
        self._objective = objective

    def __getattr__(self, name):
        found = getattr(self._objective, name)
        return self._raise if callable(found) else found

    def _raise(self, *_, **__):
        raise ValueError("0.123 is a patient's")

    value = gradient = _raise


@on_grid
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=shown(case), marks=() if case[0] in DAILY else pytest.mark.nightly)
        for case in PRIVATE
    ],
)
def test_no_method_tells_that_a_step_has_failed(case):
    name, settings = case
    first, problem, rule = noisy(name, settings)
    grid = SecureGrid([Failing(problem.objectives[0]), *problem.objectives[1:]])
    build(name, first, **settings, privacy=rule).start(
        grid, problem.start, num_rounds=2, evaluate_every=0, max_retries=0,
        secure_aggregation=SecAggPlus(num_shares=5),
    )  # fmt: skip
    said = [str(reply.content) for _, now, reply in grid.seen if now]
    assert not any("'error'" in one or "'lost'" in one or "0.123" in one for one in said)


@pytest.mark.parametrize("phase", ["evaluate", "prepare", "curves"])
def test_where_noise_is_asked_for_nothing_is_told_without(phase):
    policy = Policy(min_noise=2.0, phases=("train", phase))
    policy.check_phase("train")
    with pytest.raises(RefusedError, match=f"min-noise = 2, and answers to {phase} have none"):
        policy.check_phase(phase)


@on_grid
def test_a_node_counts_the_shares_that_keys_make_sure_of():
    """A server may say that it wants more; it can unmask a sum of as many as the threshold."""
    few = SecAggPlus(num_shares=3, reconstruction_threshold=None)
    made = fedavg(2.0, fewest=4)
    assert start(made, few).history["replies"].tolist() == [6]
    with pytest.raises(FedConError, match=r"min-noise = 2, not noise of 1 times the clip"):
        start(made, few, min_noise=2.0)


class Other(SecureGrid):
    """A server that asks for another protocol than its program's."""

    def __init__(self, *given, setup, **more):
        super().__init__(*given, **more)
        self.setup = setup

    def replies_to(self, message):
        if stage(message) == "setup":
            for key, value in self.setup.items():
                message.content["secaggplus_configs"][key] = value
        return super().replies_to(message)


@on_grid
@pytest.mark.parametrize("made", [fedavg(), None], ids=["noise", "none"])
@pytest.mark.parametrize(
    "setup",
    [{"mod_range": 2}, {"max_weight": 2.0}, {"clipping_range": 0.5}, {"target_range": 2**31}],
    ids=str,
)
def test_a_node_takes_no_other_masks_and_no_other_rounding(made, setup):
    """Of a modulus of 2 all masks are 0; halved vectors would be a sum of rounded halves."""
    grid = Other(q6_objectives(), setup=setup)
    plain = FedAvg(client_lr=0.1, local_steps=3)
    secure = SECURE if made is not None else SecAggPlus(8.0)
    words = f"refused: secure aggregation with {next(iter(setup))} = "
    with pytest.raises(FedConError, match=words):
        (made or plain).start(grid, num_rounds=1, max_retries=0, secure_aggregation=secure)
    assert "collect_masked_vectors" not in [now for _, now in grid.asked_for]


def test_masks_of_a_small_modulus_hide_nothing():
    """What that refusal is for, of Flower 1.41."""
    (mask,) = pseudo_rand_gen(b"\x01\x02\x03\x04" * 8, 2, [(50,)])
    assert not mask.any()


@on_grid
@pytest.mark.parametrize("setup", [{"target_range": 3 * 2**20}, {"threshold": 1}], ids=str)
def test_a_node_s_share_is_for_sums_of_whole_steps(setup):
    with pytest.raises(FedConError, match="levels are a power of 2, and sums of at least 2"):
        fedavg().start(
            Other(q6_objectives(), setup=setup),
            num_rounds=1,
            max_retries=0,
            secure_aggregation=SECURE,
        )


# --- what nodes count ----------------------------------------------------------------------------


@on_grid
def test_a_node_counts_its_sums_itself(tmp_path):
    """Over runs, by what keys make sure of, whatever a server's history says."""

    def make(load):
        return client_app(load, state_dir=str(tmp_path))

    grid = FakeGrid(q6_objectives()[:4], make=make)
    for z, rounds in ((2.0, 2), (4.0, 1)):
        fedavg(z, fewest=2).start(grid, num_rounds=rounds, secure_aggregation=SECURE)
    files = sorted((tmp_path / "noisy-sums").iterdir())
    ledgers = [SumsLedger(path.read_text(), path.name) for path in files]
    assert [ledger.sums for ledger in ledgers] == [{2.0: 2, 4.0: 1}] * 4
    kinds = {NoisySum(z, Sampling("full", 1, 1.0)): n for z, n in ((2.0, 2), (4.0, 1))}
    assert ledgers[0].epsilon(DELTA) == pytest.approx(spent_epsilon(kinds, DELTA), rel=1e-6)
    printed = CliRunner().invoke(app, ["privacy", "spent", str(tmp_path), "--delta", "1e-5"])
    assert printed.exit_code == 0, printed.output
    assert printed.output.count("3 sums") == 4
    assert f"{ledgers[0].epsilon(DELTA):.4g}" in printed.output
    assert not any(path.name in printed.output for path in files)


@pytest.mark.parametrize("text", ["{}", "[]", "7", '{"sums": [[2.0, 0]], "distance": 0}', "\0"])
def test_a_damaged_count_of_sums_is_refused(text):
    with pytest.raises(StorageError, match="does not state in how many noisy sums"):
        SumsLedger(text, "it")


# --- what is refused before round 1 --------------------------------------------------------------


@on_grid
@pytest.mark.parametrize(
    ("made", "secure", "words"),
    [
        (fedavg(), None, r"needs secure aggregation, since each upload has only a share"),
        (fedavg(noise_by="server"), SECURE, r'let the clients do both, GaussianDP\(noise_by="cli'),
        (fedavg(), SecAggPlus(8.0), "clipping_range=8.0 beside GaussianDP"),
        (fedavg(), SecAggPlus(quantization_range=64), "quantization_range=64 beside GaussianDP"),
        (
            fedavg(fewest=4),
            SecAggPlus(reconstruction_threshold=4),
            "reconstruction_threshold=4 lets a server unmask .* give at least 5",
        ),
        (fedavg(rule=Sample(count=3), fewest=3), SECURE, "give fewest at most 2"),
        (FedAvg(client_lr=0.1, local_steps=1), SECURE, "SecAggPlus needs a clipping_range"),
    ],
)
def test_what_contradicts_itself_is_refused(made, secure, words):
    with pytest.raises(ConfigError, match=words):
        made.start(FakeGrid(q6_objectives()), num_rounds=1, secure_aggregation=secure)


@on_grid
def test_weights_are_refused_as_ever():
    with pytest.raises(ConfigError, match="weights by numbers of examples would be revealed"):
        fedavg().start(
            FakeGrid(q6_objectives()), num_rounds=1, weighting="examples", secure_aggregation=SECURE
        )


def test_the_older_interface_refuses():
    with pytest.raises(ConfigError, match="needs secure aggregation"):
        as_legacy_strategy(fedavg(), num_clients=6)


@on_grid
def test_the_log_says_who_suffices(log):
    fedavg(2.0, fewest=4).start(FakeGrid(q6_objectives()), num_rounds=1, secure_aggregation=SECURE)
    assert "that of 4 suffices for z = 2, and with fewer than 5 the round is void" in log.text


@on_grid
def test_the_page_s_blocks(monkeypatch):
    """The app runs on ten nodes that insist on what the node's file says."""
    page, found = "docs/privacy.md", {}
    code = next(b for b in blocks("python", page) if "SecAggPlus" in b)
    exec(compile(code, page, "exec"), found)
    node = next(tomllib.loads(b) for b in blocks("toml", page) if "min-noise" in b)
    rules = Policy.of({f"policy.{key}": value for key, value in node["policy"].items()})
    grid = FakeGrid([q6_objectives()[0]] * 10, make=lambda load: client_app(load, policy=rules))
    context = next(iter(grid.nodes.values()))
    context.run_config = {"num-server-rounds": 1, "evaluate-every": 0}
    seen = []
    monkeypatch.setattr(Grid, "value", lambda grid, k: seen.append(k) or k * grid.step)
    found["app"](grid, context)
    assert len(seen) == 1
