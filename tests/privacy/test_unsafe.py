"""What no noise covers is not recorded, shown or asked for in a private run, unless said."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedcon import EarlyStopping, FederatedProblem, Observer, simulate
from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.objectives import LeastSquares, PrivateObjective, Quadratic
from flower_fedcon.privacy import ExampleDP, GaussianDP
from flower_fedcon.strategies import FedAvg, Scaffold

NOISY = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
RAW = {"objective", "residual", "violation", "gap", "spread"}


def problem(*bs):
    made = FederatedProblem(
        [Quadratic(np.eye(2), np.full(2, float(b))) for b in bs or (1, 2, 3)],
        metrics={"gap": lambda x: float(np.abs(x).sum())},
    )
    made.optimum  # noqa: B018  (so that there is a residual)
    return made


def avg(privacy=NOISY, **more):
    return FedAvg(client_lr=0.5, local_steps=1, privacy=privacy, **more)


def test_columns_that_no_noise_covers_are_left_out(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    history = simulate(avg(), problem(), 3, run_dir=tmp_path, audit=True)
    assert not RAW & set(history.columns)
    assert {"epsilon", "round", "seconds"} <= set(history.columns)
    assert not RAW & set((tmp_path / "history.csv").read_text().splitlines()[0].split(","))
    assert "unsafe=True records them" in caplog.text
    with pytest.raises(ConfigError, match="records only what noise protects, unless unsafe=True"):
        history["objective"]
    start = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[0])
    assert start["private"] is False


def test_unsafe_records_them_and_says_so(caplog):
    history = simulate(avg(), problem(), 2, unsafe=True)
    assert {"objective", "residual", "gap"} <= set(history.columns)
    assert "No noise protects the columns objective" in caplog.text
    clip = GaussianDP(clip=1.0, noise_multiplier=0.0, target_delta=1e-5)
    for rule in (None, clip):  # no epsilon is stated of them
        assert "objective" in simulate(avg(rule), problem(), 1).columns
    with pytest.raises(ConfigError, match="unsafe must be True or False, got 1"):
        simulate(avg(), problem(), 1, unsafe=1)


def test_nobody_is_asked_to_evaluate(monkeypatch):
    asked = []
    real = FederatedProblem.evaluate
    monkeypatch.setattr(
        FederatedProblem, "evaluate", lambda self, x, *a: asked.append(x) or real(self, x, *a)
    )
    simulate(avg(), problem(), 3)
    assert not asked
    simulate(avg(), problem(), 3, unsafe=True)
    assert asked


def test_a_callback_sees_the_record_without_them():
    seen = []
    simulate(avg(), problem(), 2, callbacks=[lambda record: seen.append(set(record))])
    assert seen
    assert not any(RAW & names for names in seen)


def test_an_unsafe_callback_alone_sees_all_of_it():
    seen = []
    stop = EarlyStopping(9e9, "objective", unsafe=True)
    plain = lambda record: seen.append(set(record))  # noqa: E731
    history = simulate(avg(), problem(), 5, callbacks=[stop, plain])
    assert history.stopped
    assert len(history) == 1
    assert not any(RAW & names for names in [*seen, set(history.columns)])


def test_private_examples_are_held_to_the_same_rule(caplog, tmp_path):
    """What noise covers are their gradients: an exact objective is recorded only where said."""
    caplog.set_level(logging.INFO, "flwr")
    rule = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    made = [PrivateObjective(LeastSquares(np.eye(2), np.full(2, b)), rule) for b in (1.0, 2.0)]
    rows = FederatedProblem(made, metrics={"gap": lambda x: float(np.abs(x).sum())})
    rows.optimum  # noqa: B018
    seen = []
    history = simulate(
        avg(None), rows, 2, callbacks=[lambda r: seen.append(set(r))], run_dir=tmp_path / "safe"
    )
    assert not RAW & {*history.columns, *set.union(*seen)}
    assert "unsafe=True records them" in caplog.text
    with pytest.raises(ConfigError, match="records only what noise protects, unless unsafe=True"):
        history["objective"]
    with pytest.raises(ConfigError, match="watches 'objective', which no noise protects"):
        simulate(avg(None), rows, 2, callbacks=[EarlyStopping(1.0, "objective")])
    with pytest.raises(RefusedError, match=r"no noise protects.*unsafe = True"):
        simulate(avg(None), rows, 1, callbacks=[Reads("clients")])
    history = simulate(avg(None), rows, 2, unsafe=True, run_dir=tmp_path / "unsafe")
    assert {"objective", "residual", "gap"} <= set(history.columns)
    assert "No noise protects the columns objective" in caplog.text


class Reads(Observer):
    def __init__(self, what):
        self.what = what

    def measure(self, view):
        return {"seen": float(len(getattr(view, self.what)))}


class ReadsAnyway(Reads):
    unsafe = True


@pytest.mark.parametrize("what", ["cohort", "clients"])
def test_an_observer_reads_neither_the_cohort_nor_states(what):
    strategy = Scaffold(client_lr=0.5, local_steps=1, mirror=False, privacy=NOISY)
    with pytest.raises(RefusedError, match=r"no noise protects.*unsafe = True"):
        simulate(strategy, problem(), 1, callbacks=[Reads(what)])
    history = simulate(strategy, problem(), 1, callbacks=[ReadsAnyway(what)])
    assert history["seen"][-1] == 3
    assert simulate(strategy, problem(), 1, callbacks=[Reads("x")])["seen"][-1] == 2


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=4), st.integers(1, 3))
def test_records_of_neighbours_have_the_same_columns_and_no_value_of_the_data(bs, rounds):
    """Beside the time, a record without noise in it is the same whatever the data are."""
    tell = []
    for data in (bs, [*bs[:-1], bs[-1] + 1000.0]):
        history = simulate(avg(), problem(*data), rounds)
        tell.append([{k: v for k, v in row.items() if k != "seconds"} for row in history.rows])
    assert tell[0] == tell[1]
