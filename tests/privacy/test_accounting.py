"""What a private run has spent: the accountant, the budget, what is resumed and what is killed."""

from __future__ import annotations

import math
import shutil

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import rdp

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate
from flower_fedcon.errors import BudgetError, ConfigError, FedConError, RoundError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.runs import asked_rounds
from flower_fedcon.strategies import FedAvg, Scaffold

Z, DELTA = 1.5, 1e-4
EVENT = dp.GaussianDpEvent(Z)
BY_HAND = {
    Full(): (dp.NeighboringRelation.ADD_OR_REMOVE_ONE, EVENT),
    Bernoulli(0.25): (
        dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.PoissonSampledDpEvent(0.25, EVENT),
    ),
    Sample(count=3): (
        dp.NeighboringRelation.REPLACE_ONE,  # the sum moves by twice the clip
        dp.SampledWithoutReplacementDpEvent(12, 3, dp.GaussianDpEvent(Z / 2)),
    ),
}  # fmt: skip


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
    relation, event = BY_HAND[rule or Full()]
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    for _ in range(rounds):
        accountant.compose(event)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize("rule", BY_HAND, ids=lambda rule: type(rule).__name__)
def test_the_accountant_agrees_with_dp_accounting_by_hand(rule):
    history = simulate(fedavg(rule), problem(), 6)
    assert history["epsilon"].tolist() == pytest.approx([epsilon(k, rule) for k in range(1, 7)])


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
    with pytest.raises(FedConError, match="what this run has spent is not known"):
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
