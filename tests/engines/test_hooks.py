"""A hook of a third party: it sees a run from its beginning to its end, and is resumed with it."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.runs import hook_registry
from flower_fedcon.runs.hooks import RunHook
from flower_fedcon.strategies import FedAvg

SEEN: list[str] = []


class Diary(RunHook):
    """Notes what it is told, and how many rounds it has seen over all starts."""

    name = "diary"

    def begin(self, run, known):
        self.rounds = 0 if known is None else known["rounds"]
        SEEN.append(f"begin {self.rounds}")

    def after_round(self, run, raw=None):
        if raw is None:
            self.rounds += 1
            SEEN.append(f"round {run.server.round}")

    def recorded(self, run, row, seen):
        SEEN.append(f"row {row['round']}")
        return row["round"] == self.last

    def snapshot(self):
        return {"rounds": self.rounds}

    def conclude(self, run, *, whole):
        SEEN.append(f"whole {whole}")

    def ended(self, run):
        SEEN.append("ended")

    def doubts(self, run):
        return [f"the diary has {self.rounds} rounds"]

    last = -1


@pytest.fixture
def diary(monkeypatch):
    monkeypatch.setattr(hook_registry, "_own", {})
    SEEN.clear()
    hook_registry.register(Diary)


def problem():
    return FederatedProblem([Quadratic(np.eye(2), np.array([b, 1.0])) for b in (0.0, 2.0)])


def strategy():
    return FedAvg(client_lr=0.5, local_steps=1)


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.usefixtures("diary")
def test_it_sees_a_run_from_its_beginning_to_its_end(engine, caplog):
    simulate(strategy(), problem(), 2, engine=engine)
    assert SEEN == [
        "begin 0", "round 1", "row 1", "round 2", "row 2", "whole True", "ended"
    ]  # fmt: skip
    assert "the diary has 2 rounds" in caplog.text


@pytest.mark.usefixtures("diary")
def test_its_state_is_in_the_checkpoint_and_comes_back(tmp_path):
    simulate(strategy(), problem(), 2, run_dir=tmp_path)
    SEEN.clear()
    resumed = simulate(strategy(), problem(), 3, run_dir=tmp_path, resume=True)
    assert SEEN[:2] == ["begin 2", "round 3"]
    assert resumed.x.tobytes() == simulate(strategy(), problem(), 3).x.tobytes()


@pytest.mark.usefixtures("diary")
def test_it_can_end_a_run(monkeypatch):
    monkeypatch.setattr(Diary, "last", 2)
    history = simulate(strategy(), problem(), 5)
    assert history.stopped
    assert list(history["round"]) == [1, 2]


@pytest.mark.usefixtures("diary")
def test_it_is_told_of_an_error_and_may_still_write(monkeypatch):
    def fails(self, run, raw=None):
        if run.server.round == 2:
            raise OSError("the diary is full")

    monkeypatch.setattr(Diary, "after_round", fails)
    with pytest.raises(OSError, match="the diary is full"):
        simulate(strategy(), problem(), 5)
    assert SEEN == ["begin 0", "row 1", "whole False", "ended"]


def test_a_name_that_is_taken_is_refused():
    class Race(RunHook):
        name = "race"

    with pytest.raises(ConfigError, match="must be a name that no other hook has, got 'race'"):
        hook_registry.register(Race)
