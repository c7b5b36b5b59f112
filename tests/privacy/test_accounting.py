"""What a private run has spent: the accountant, the budget, what is resumed and what is killed."""

from __future__ import annotations

import itertools
import logging
import math
import shutil

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld, rdp
from nightly import nightly
from scipy import stats

from flower_fedcon import Bernoulli, EarlyStopping, FederatedProblem, Full, Sample, simulate
from flower_fedcon.errors import BudgetError, ConfigError, FedConError, RoundError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.privacy import GaussianDP, accountant
from flower_fedcon.privacy.accountant import NoisySum, Sampling, spent_epsilon
from flower_fedcon.runs import asked_rounds
from flower_fedcon.strategies import FedAvg, Scaffold

Z, DELTA = 1.5, 1e-4
EVENT = dp.GaussianDpEvent(Z)
RULES = (Full(), Bernoulli(0.25), Sample(count=3))


class Failing(Quadratic):
    """Raises in the gradients that `raises` has an error for, by their number."""

    def __init__(self, raises=None):
        super().__init__(np.eye(2), np.ones(2))
        self.raises, self.calls = raises or {}, 0

    resume_key = "failing"

    def gradient(self, x):
        self.calls += 1
        if self.calls in self.raises:
            raise self.raises[self.calls]
        return super().gradient(x)


def problem(n=12, **failing):
    return FederatedProblem([Failing(**failing), *(Failing() for _ in range(n - 1))])


def fedavg(rule=None, **privacy):
    settings = {"clip": 0.5, "noise_multiplier": Z, "target_delta": DELTA} | privacy
    return FedAvg(client_lr=0.1, local_steps=1, participation=rule, privacy=GaussianDP(**settings))


def epsilon(rounds, rule=None):
    """Return what dp-accounting says of rounds with everyone, or with independent draws."""
    if isinstance(rule, Bernoulli):
        accountant = pld.PLDAccountant(value_discretization_interval=2e-3)
        return accountant.compose(dp.PoissonSampledDpEvent(rule.p, EVENT), rounds).get_epsilon(
            DELTA
        )
    return dp.get_epsilon_gaussian(Z / math.sqrt(rounds), DELTA)


def replaced(rounds):
    """Return by Renyi divergences what draws of 3 of 12 cost, whose sum moves by twice the clip."""
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    half = dp.GaussianDpEvent(Z / 2)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(12, 3, half), rounds)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_the_accountant_agrees_with_dp_accounting_by_hand(rule):
    history = simulate(fedavg(rule), problem(), 6)
    found = history["epsilon"].tolist()
    if isinstance(rule, Sample):  # its own form is held to single rounds below
        assert all(0.5 * replaced(k) < e < replaced(k) for k, e in enumerate(found, 1))
    else:
        assert found == pytest.approx([epsilon(k, rule) for k in range(1, 7)], rel=2e-3)


def hockey_stick(first, second, places, epsilon):
    """Return the integral of the positive part of first - exp(epsilon) second."""
    return float(
        np.maximum(first - math.exp(epsilon) * second, 0.0).sum() * (places[1] - places[0])
    )


def test_a_cohort_of_fixed_size_has_the_worst_of_all_three_summands():
    z, q, x = 1.2, 0.3, np.linspace(-25, 25, 50_001)
    stated = accountant._distribution(NoisySum(z, Sampling("fixed", 10, 3.0)), 5e-3)
    for epsilon in (-1.0, -0.2, 0.0, 0.3, 1.0, 2.5):
        worst = 0.0
        for a, b, c in itertools.product((-1.0, 0.0, 1.0), repeat=3):
            first, second = (
                (1 - q) * stats.norm.pdf(x, a, z) + q * stats.norm.pdf(x, own, z) for own in (b, c)
            )
            worst = max(worst, hockey_stick(first, second, x, epsilon))
        delta = stated.get_delta_for_epsilon(epsilon)
        assert worst - 1e-7 <= delta <= worst * (1 + 1e-3)  # met: nothing is given away


@pytest.mark.parametrize("count", [1, 6, 11])
@pytest.mark.parametrize("z", [nightly(0.1), 0.7, 3.0])  # little noise has fine grids
def test_no_sampling_is_stated_to_cost_more_than_none(z, count):
    fixed, poisson = (
        NoisySum(z, Sampling(kind, 12, float(count))) for kind in ("fixed", "poisson")
    )
    for rounds in (1, 5):
        full = dp.get_epsilon_gaussian(z / 2 / math.sqrt(rounds), DELTA)
        assert spent_epsilon({fixed: rounds}, DELTA) <= full * (1 + 1e-9)
        alone = dp.get_epsilon_gaussian(z / math.sqrt(rounds), DELTA)
        assert spent_epsilon({poisson: rounds}, DELTA) <= alone * (1 + 1e-9)


@pytest.mark.parametrize("z", [nightly(0.02), nightly(0.03), nightly(0.05), 0.1])
def test_almost_no_noise_has_a_large_epsilon_that_can_be_computed(z):
    sampled = spent_epsilon({NoisySum(z, Sampling("fixed", 4, 2)): 1}, 1e-4)
    assert 1 / (2 * z**2) < sampled < math.inf


def test_the_distance_from_continuous_noise_is_paid_for_and_never_too_far():
    kind = NoisySum(1.0, Sampling("full", 1, 1.0))
    plain = spent_epsilon({kind: 10}, DELTA)
    assert spent_epsilon({kind: 10}, DELTA, 1e-13) == pytest.approx(plain, rel=1e-3)
    coarse = spent_epsilon({kind: 10}, DELTA, 1e-3)  # the discrete Gaussian's own divergences
    account = rdp.RdpAccountant()
    account.compose(dp.GaussianDpEvent(1.0), 10)
    assert plain < coarse == pytest.approx(account.get_epsilon(DELTA))


def test_no_private_run_ends_at_what_its_data_say_unless_it_is_said():
    with pytest.raises(ConfigError, match="early stopping watches 'objective', which no noise"):
        simulate(fedavg(), problem(3), 4, callbacks=[EarlyStopping(0.0, "objective")])
    stop = EarlyStopping(9e9, "objective", unsafe=True)
    assert simulate(fedavg(), problem(3), 4, callbacks=[stop]).stopped
    assert not simulate(fedavg(), problem(3), 4, callbacks=[EarlyStopping(0.0, "epsilon")]).stopped
    quiet = fedavg(noise_multiplier=0)
    assert simulate(quiet, problem(3), 4, callbacks=[EarlyStopping(9e9, "objective")]).stopped


def test_a_distance_of_a_part_of_delta_costs_little():
    """Another bound, which counts no sampling, is taken only where no delta is left."""
    kind = NoisySum(2.0, Sampling("poisson", 1_000, 50))
    plain = spent_epsilon({kind: 10_000}, DELTA)
    assert plain < spent_epsilon({kind: 10_000}, DELTA, 1e-11) < plain + 1.0


def test_a_private_run_says_which_columns_no_noise_covers(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level("INFO", "flwr"):
        simulate(fedavg(), problem(3), 1, unsafe=True)
    assert "epsilon bounds what the models reveal. No noise protects the columns obj" in caplog.text


def test_without_noise_epsilon_is_infinite():
    assert simulate(fedavg(noise_multiplier=0), problem(2), 1)["epsilon"] == [math.inf]


def test_a_budget_stops_the_run_before_it_is_exceeded():
    budget = epsilon(4) * 1.001
    history = simulate(fedavg(budget=budget), problem(3), 50, evaluate_every=3)
    assert history["round"].tolist() == [3, 4]
    assert history.stopped
    assert history["epsilon"][-1] <= budget < epsilon(5)
    with pytest.raises(BudgetError, match="one more round would exceed the privacy budget"):
        simulate(fedavg(budget=0.01), problem(3), 50)


def test_a_resumed_run_neither_replays_noise_nor_loses_count(tmp_path):
    simulate(fedavg(), problem(3), 4, run_dir=tmp_path / "a", checkpoint_every=4)
    for name in ("b", "c"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
    found = [
        simulate(fedavg(), problem(3), 7, run_dir=tmp_path / name, resume=True)
        for name in ("b", "c")
    ]
    for history in found:
        assert history["epsilon"].tolist() == pytest.approx([epsilon(k) for k in range(1, 8)])
    assert not np.array_equal(found[0].x, found[1].x)
    one, other = (simulate(fedavg(), problem(3), 3, seed=7).x for _ in range(2))
    assert not np.array_equal(one, other)


def test_the_round_of_a_killed_server_counts(tmp_path):
    killed = problem(3, raises={6: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        simulate(fedavg(), killed, 9, run_dir=tmp_path, checkpoint_every=3)
    history = simulate(fedavg(), problem(3), 4, run_dir=tmp_path, resume=True, seed=0)
    # 3 in the checkpoint, the 6th under way: 4 and 5 are played again, 6 may have been released
    assert history["round"].tolist() == [1, 2, 3, 4]
    assert history["epsilon"][-1] == pytest.approx(epsilon(7))


def test_before_a_first_checkpoint_too(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate(fedavg(), problem(3, raises={1: KeyboardInterrupt()}), 9, run_dir=tmp_path)
    (tmp_path / "checkpoint").unlink()
    history = simulate(fedavg(), problem(3), 1, run_dir=tmp_path, resume=True)
    assert history["epsilon"][-1] == pytest.approx(epsilon(2))


def test_a_damaged_count_is_not_taken_for_none(tmp_path):
    simulate(fedavg(), problem(3), 2, run_dir=tmp_path)
    (tmp_path / asked_rounds.NAME).write_bytes(b"nothing")
    with pytest.raises(FedConError, match="not known what this run has spent"):
        simulate(fedavg(), problem(3), 3, run_dir=tmp_path, resume=True)


def test_the_noise_cannot_be_changed_on_the_way(tmp_path):
    simulate(fedavg(), problem(3), 2, run_dir=tmp_path)
    with pytest.raises(FedConError, match="privacy was "):
        simulate(fedavg(noise_multiplier=9.0), problem(3), 3, run_dir=tmp_path, resume=True,
                 allow_changes=["privacy"])  # fmt: skip


def test_a_round_that_is_asked_again_counts_once_and_one_that_fails_counts(tmp_path):
    error = FedConError("not today")
    history = simulate(fedavg(), problem(3, raises={1: error}), 2)  # one reply is missing
    assert history["replies"].tolist() == [2, 3]
    assert history["epsilon"].tolist() == pytest.approx([epsilon(1), epsilon(2)])
    strict = fedavg()
    strict.min_replies = 3
    again = simulate(strict, problem(3, raises={1: error}), 2)
    assert again["retries"].tolist() == [1, 1]
    assert again["epsilon"].tolist() == pytest.approx([epsilon(1), epsilon(2)])
    with pytest.raises(RoundError):
        simulate(strict, problem(3, raises=dict.fromkeys(range(3, 99), error)), 9, run_dir=tmp_path,
                 checkpoint_every=1)  # fmt: skip
    third = simulate(strict, problem(3), 3, run_dir=tmp_path, resume=True)
    assert third["epsilon"][-1] == pytest.approx(epsilon(4))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clip": 0.0}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"target_delta": 1.0}, "target_delta"),
        ({"budget": 0.0}, "budget"),
        ({"budget": 1.0, "noise_multiplier": 0.0}, "budget.* needs noise"),
        ({"quantile": 1.0}, "quantile"),
        ({"quantile": 0.5, "count_noise": 0.5}, "more than half the noise_multiplier"),
    ],
)
def test_arguments_out_of_range_are_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        fedavg(**wrong)
    with pytest.raises(ConfigError, match="privacy must be flower_fedcon"):
        FedAvg(client_lr=0.1, local_steps=1, privacy=1.0)


def test_states_that_tell_of_earlier_cohorts_leave_no_amplification():
    privacy = GaussianDP(0.5, Z, DELTA)
    rule = Sample(count=3)
    kept = Scaffold(client_lr=0.1, local_steps=1, mirror=False, participation=rule, privacy=privacy)
    assert simulate(kept, problem(), 4)["epsilon"][-1] == pytest.approx(epsilon(4, Full()))


def test_another_participation_does_not_price_what_is_spent(tmp_path):
    simulate(fedavg(Full()), problem(), 2, run_dir=tmp_path)
    with pytest.raises(FedConError, match=r"cannot resume .*participation"):
        simulate(fedavg(Bernoulli(0.25)), problem(), 4, run_dir=tmp_path, resume=True,
                 allow_changes=["participation"])  # fmt: skip
