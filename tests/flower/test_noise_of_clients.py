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
from problems import q6, q6_objectives
from scipy import stats
from secure_nodes import STAGES, STEPS, SecureGrid, asking, overflowing
from secure_nodes import start as start_secure
from test_release import PRIVATE, shown, suited
from typer.testing import CliRunner

from flower_fedcon import FederatedProblem, Policy, as_legacy_strategy, client_app, simulate
from flower_fedcon.cli import app
from flower_fedcon.core.exchange import OF_ROUNDS, phases
from flower_fedcon.errors import BudgetError, ConfigError, FedConError, RefusedError, StorageError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.privacy import GaussianDP, SecAggPlus
from flower_fedcon.privacy.accountant import NoisySum, Sampling, spent_epsilon
from flower_fedcon.privacy.ledger import SumsLedger
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.strategies import FedAvg, FedProx, Scaffold

pytestmark = on_grid

DELTA = 1e-5
DAILY = "fedprox", "feddyn"  # of private methods: with a solver, and with state
SECURE = SecAggPlus()


def rule(z=1.0, clip=10.0, budget=None, **more):
    return GaussianDP(clip, z, DELTA, budget, **{"noise_by": "clients", **more})


def fedavg(z=1.0, clip=10.0, *, cohort=None, min_replies=None, **more):
    own = {"participation": cohort, "min_replies": min_replies, "privacy": rule(z, clip, **more)}
    return FedAvg(client_lr=0.1, local_steps=3, **own)


def start(made, grid=None, rounds=1, *, secure=SECURE, rules=None, **options):
    """Return the history, of nodes with a policy where rules are given."""
    if rules is not None:
        make = lambda load: client_app(load, policy=Policy(**rules))  # noqa: E731
        grid = FakeGrid(q6_objectives(), make=make)
    return start_secure(made, grid, rounds, secure=secure, **options)


def epsilon(rounds, z=1.0):
    return simulate(fedavg(z), q6(), rounds)["epsilon"][-1]


@pytest.fixture
def silent(monkeypatch):
    """No noise at all: what is left is the sum, by which rounding can be told."""
    monkeypatch.setattr(Grid, "noise", lambda grid, size: np.zeros(size, np.int64))


# --- what the server gets ------------------------------------------------------------------------


def test_the_sum_has_the_noise_of_all_who_are_in_it():
    """And each masked vector its own share: a server sees no sum without."""
    d, n, fewest, clip, z = 400, 5, 3, 0.5, 2.0
    grid = FakeGrid([LeastSquares(np.zeros((1, d)), np.zeros(1)) for _ in range(n)])
    history = start(fedavg(z, clip, fewest=fewest), grid)
    noise = history.x * n / (z * clip * math.sqrt(n / fewest))
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    server = simulate(fedavg(z, clip, noise_by="server"), q6(), 1)["epsilon"]
    assert history["epsilon"].tolist() == pytest.approx(server.tolist(), rel=1e-6)


def noisy(case):
    """Return a method, made, its problem, and what its runs are told."""
    name, settings = case
    first = suited(name, settings)
    problem = first.problem()
    if len(problem.objectives) < 4:
        pytest.skip("a cohort of fewer than three")
    made = build(name, first, **settings, privacy=rule(1.0, 1e3, fewest=2))
    options = {"initial_arrays": problem.start, "evaluate_every": 0}
    return made, problem, options | {"secure": SecAggPlus(num_shares=5)}


@pytest.mark.parametrize("case", PRIVATE, ids=shown)
def test_every_private_method_has_its_iterates(case, silent):
    made, problem, options = noisy(case)
    name, settings = case
    plain = build(name, suited(name, settings), **settings)
    expected = simulate(plain, problem, 1, evaluate_every=0).x
    found = start(made, FakeGrid(problem.objectives), **options).x
    assert np.abs(found - expected).max() < 1e-3 * max(1.0, float(np.abs(expected).max()))


def test_no_whole_step_is_lost_on_the_way(silent):
    """The server's sum is that of the whole steps, as a simulation adds them up."""
    made = fedavg(0.5, 100.0, fewest=4)
    assert start(made, rounds=3).x.tobytes() == simulate(made, q6(), 3).x.tobytes()


def test_releases_are_clipped_and_absent_clients_have_changed_nothing(silent):
    """Of points, too: one that does not reply counts as if it had sent what it got."""
    far = [LeastSquares(np.eye(2), np.full(2, b)) for b in (30.0, 40.0, 0.2, 0.4, 0.6)]
    grid = SecureGrid(far, dies=[(4, STAGES[2])])
    history = start(FedProx(proximal=0.5, privacy=rule(1.0, 1.0, fewest=2)), grid)
    alone = [simulate(FedProx(proximal=0.5), FederatedProblem([f]), 1).x for f in far[:4]]
    cut = [x * min(1.0, 1.0 / np.linalg.norm(x)) for x in alone]
    np.testing.assert_allclose(history.x, np.sum(cut, axis=0) / 5, atol=1e-5)
    assert history["replies"].tolist() == [4]


def test_what_a_node_sends_is_the_same_whatever_number_it_has():
    """No reply of any stage has an upload's size, or says what the step has cost."""
    grid = SecureGrid()
    start(fedavg(), grid)
    for _, now, reply in grid.seen:
        if now == STAGES[2]:
            assert {*reply.content["fitres.metrics"]} == {"client", "round"}
            assert [len(record) for record in reply.content.array_records.values()] == [0]


# --- void rounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("when", STAGES)
def test_those_who_stay_suffice(when):
    history = start(fedavg(fewest=3), SecureGrid(dies=[(2, when)]), retry=False)
    assert history["replies"].tolist() == [6 if when == "unmask" else 5]
    assert history["epsilon"][0] == pytest.approx(epsilon(1))


def test_a_void_round_shows_no_sum_and_counts_all_the_same():
    """Nobody unmasks too little noise; who asks again may have seen the sum that failed."""
    grid = SecureGrid(dies=[(2, STAGES[2])])
    history = start(fedavg(fewest=5), grid)
    assert history["retries"].tolist() == [1]
    assert history["replies"].tolist() == [6]
    assert len([c for c, now in grid.asked_for if now == "unmask"]) == 6  # of one attempt alone
    assert history["epsilon"][0] == pytest.approx(epsilon(2), rel=1e-6)


def test_a_round_that_is_repeated_for_a_lost_state_counts_again(tmp_path):
    """Who kept a state sends a second masked vector: the server's count is that of the nodes."""
    forgotten = []

    def forget(now, message, grid):
        if now == STAGES[2] and message.content["fitins.config"]["round"] == 2:
            for state in () if forgotten else tmp_path.glob("0/*/*/state"):
                forgotten.append(state)
                state.unlink()

    grid = SecureGrid(asks=forget)
    for j in range(6):
        grid.nodes[1000 - j].node_config["state-dir"] = str(tmp_path / str(j))
    made = Scaffold(client_lr=0.1, local_steps=2, mirror=False, privacy=rule(fewest=3))
    history = start(made, grid, 2)
    assert history["lost"][-1] == 1
    (path,) = (tmp_path / "1" / "noisy-sums").iterdir()
    assert SumsLedger(path.read_text(), path.name).sums == {1.0: 3}
    assert history["epsilon"][-1] == pytest.approx(epsilon(3), rel=1e-6)


def test_a_void_round_may_end_the_budget():
    made = fedavg(fewest=5, budget=epsilon(1) * 1.01)
    with pytest.raises(BudgetError, match="would exceed the privacy budget"):
        start(made, SecureGrid(dies=[(2, STAGES[2])]))


def test_more_may_be_asked_for_than_suffice():
    """`min_replies` leaves room for those whose shares a server knows."""
    grid = SecureGrid(dies=[(2, STAGES[2]), (3, STAGES[2])])
    with pytest.raises(FedConError, match="0 usable replies of 6, and 5 are needed"):
        start(fedavg(fewest=3, min_replies=5), grid, retry=False)


# --- what nodes insist on ------------------------------------------------------------------------

FEW = SecAggPlus(num_shares=3, reconstruction_threshold=None)


@pytest.mark.parametrize(
    ("made", "secure", "least", "words"),
    [
        (fedavg(2.0, fewest=4), SECURE, 2.0, None),
        (fedavg(2.0, fewest=4), SECURE, 2.1,
         r"policy.min-noise = 2.1, not noise of 2 times the clip"),
        (STEPS, SecAggPlus(8.0), 2.0, r"policy.min-noise = 2, not an answer without noise"),
        (fedavg(2.0, noise_by="server"), None, 2.0,
         r"policy.min-noise = 2, not an answer without noise"),
        # A server may say that it wants more: it can unmask a sum of as many as the threshold.
        (fedavg(2.0, fewest=4), FEW, None, None),
        (fedavg(2.0, fewest=4), FEW, 2.0, r"min-noise = 2, not noise of 1 times the clip"),
    ],
)  # fmt: skip
def test_a_node_may_insist_on_noise(made, secure, least, words):
    given = {"secure": secure, "rules": {} if least is None else {"min_noise": least}}
    if words is None:
        assert start(made, retry=False, **given)["replies"].tolist() == [6]
        return
    with pytest.raises(FedConError, match=words):
        start(made, retry=False, **given)


def test_where_noise_is_asked_for_no_step_that_fails_is_told():
    """A node whose rows overflow answers as one without rows, and its count goes on."""
    made, grid = overflowing(rule(2.0, 1.0, fewest=4))
    assert start(made, grid, 2, evaluate_every=0)["replies"].tolist() == [6]
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


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=shown(case), marks=() if case[0] in DAILY else pytest.mark.nightly)
     for case in PRIVATE],
)  # fmt: skip
def test_no_method_tells_that_a_step_has_failed(case):
    made, problem, options = noisy(case)
    grid = SecureGrid([Failing(problem.objectives[0]), *problem.objectives[1:]])
    start(made, grid, 2, retry=False, **options)
    said = [str(reply.content) for _, now, reply in grid.seen if now]
    assert not any("'error'" in one or "'lost'" in one or "0.123" in one for one in said)


@pytest.mark.parametrize("phase", sorted({*phases()} - {*OF_ROUNDS}))
def test_where_noise_is_asked_for_nothing_is_told_without(phase):
    policy = Policy(min_noise=2.0, phases=("train", phase))
    policy.check_phase("train")
    with pytest.raises(RefusedError, match=f"min-noise = 2, and answers to {phase} have none"):
        policy.check_phase(phase)


MASKS = "refused: secure aggregation with {} = "
WHOLE = "levels are a power of 2, and sums of at least 2"  # for a node's share of the noise
OTHER = {"mod_range": 2}, {"max_weight": 2.0}, {"clipping_range": 0.5}, {"target_range": 2**31}


@pytest.mark.parametrize(
    ("made", "setup", "words"),
    [
        *((made, setup, MASKS) for made in (fedavg(), STEPS) for setup in OTHER),
        (fedavg(), {"target_range": 3 * 2**20}, WHOLE),
        (fedavg(), {"threshold": 1}, WHOLE),
    ],
)
def test_a_node_takes_no_other_masks_and_no_other_rounding(made, setup, words):
    """Of a modulus of 2 all masks are 0; halved vectors would be a sum of rounded halves."""
    grid, secure = SecureGrid(asks=asking("setup", **setup)), SecAggPlus(8.0)
    with pytest.raises(FedConError, match=words.format(next(iter(setup)))):
        start(made, grid, secure=secure if made is STEPS else SECURE, retry=False)
    assert STAGES[2] not in [now for _, now in grid.asked_for] or words is WHOLE


def test_masks_of_a_small_modulus_hide_nothing():
    """What that refusal is for, of Flower 1.41."""
    (mask,) = pseudo_rand_gen(b"\x01\x02\x03\x04" * 8, 2, [(50,)])
    assert not mask.any()


# --- what nodes count ----------------------------------------------------------------------------


def test_a_node_counts_its_sums_itself(tmp_path):
    """Over runs, by what keys make sure of, whatever a server's history says."""
    make = lambda load: client_app(load, state_dir=str(tmp_path))  # noqa: E731
    grid = FakeGrid(q6_objectives()[:4], make=make)
    for z, rounds in ((2.0, 2), (4.0, 1)):
        start(fedavg(z, fewest=2), grid, rounds)
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


# --- pages and logs ------------------------------------------------------------------------------


def test_the_older_interface_refuses():
    with pytest.raises(ConfigError, match="needs secure aggregation"):
        as_legacy_strategy(fedavg(), num_clients=6)


def test_the_log_says_who_suffices(log):
    start(fedavg(2.0, fewest=4))
    assert "that of 4 suffices for z = 2, and with fewer than 5 the round is void" in log.text


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
