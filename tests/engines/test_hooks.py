"""A hook of a third party takes part in a run, and goes on with it when the run is resumed."""

from __future__ import annotations

import numpy as np
import pytest
from problems import avg, q6

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError, DivergedError, StorageError
from flower_fedcon.runs import hook_registry
from flower_fedcon.runs.hooks import RunHook


class Diary(RunHook):
    """Notes what it sees, and how many rounds it has seen in all starts of the run."""

    name = "diary"
    fault: Exception | None = None

    def __init__(self):
        self.seen, self.rounds = [], 0
        made.append(self)

    def begin(self, run, known):
        self.rounds = 0 if known is None else known["rounds"]
        self.seen.append(f"begin {run.server.round}")

    def after_round(self, run, raw=None):
        if raw is None:
            self.rounds += 1
            if self.fault is not None and run.server.round == 4:
                raise self.fault

    def recorded(self, run, row, seen):
        self.seen.append(f"row {row['round']}")
        return row["round"] == 5

    def snapshot(self):
        return {"rounds": self.rounds}

    def conclude(self, run, *, whole):
        self.seen.append("whole" if whole else "not whole")

    def ended(self, run):
        self.seen.append(f"ended {run.server.round}")

    def doubts(self, run):
        return [f"{self.rounds} rounds are few"]


made: list[Diary] = []


@pytest.fixture(autouse=True)
def diary(monkeypatch):
    monkeypatch.setattr(hook_registry, "_own", {})
    made.clear()
    hook_registry.register(Diary)


def test_it_sees_begin_rounds_and_end_and_may_stop_the_run(caplog):
    simulate(avg(), q6(), 5, evaluate_every=2)
    assert made[0].seen == ["begin 0", "row 2", "row 4", "row 5", "whole", "ended 5"]
    assert made[0].rounds == 5
    assert "5 rounds are few" in caplog.text
    assert simulate(avg(), q6(), 9).stopped
    assert made[1].rounds == 5


def test_its_state_comes_back_with_the_checkpoint(tmp_path):
    simulate(avg(), q6(), 3, run_dir=tmp_path)
    whole = simulate(avg(), q6(), 4, run_dir=tmp_path, resume=True)
    assert made[1].seen == ["begin 3", "row 4", "whole", "ended 4"]
    assert [one.rounds for one in made] == [3, 4]
    assert whole.x.tobytes() == simulate(avg(), q6(), 4).x.tobytes()


@pytest.mark.parametrize("kind", [DivergedError, ValueError])
def test_a_run_that_it_ends_is_not_whole(kind, tmp_path, monkeypatch):
    with monkeypatch.context() as faulty:
        faulty.setattr(Diary, "fault", kind("enough"))
        with pytest.raises(kind, match="enough"):
            simulate(avg(), q6(), 6, run_dir=tmp_path, checkpoint_every=1)
    assert made[0].seen[-2:] == ["not whole", "ended 4"]
    simulate(avg(), q6(), 5, run_dir=tmp_path, resume=True)
    assert made[-1].rounds == 5  # of the round that failed nothing is kept


@pytest.mark.parametrize("kind", [StorageError, ValueError])
@pytest.mark.parametrize("at", ["conclude", "ended"])
def test_a_run_whose_end_it_spoils_has_its_model_and_is_resumed(at, kind, tmp_path, monkeypatch):
    def spoil(self, run, **more):
        raise kind("the disk is full")

    with monkeypatch.context() as faulty:
        faulty.setattr(Diary, at, spoil)
        with pytest.raises(kind, match="the disk is full") as told:
            simulate(avg(), q6(), 3, run_dir=tmp_path)
        said = "\n".join([str(told.value), *getattr(told.value, "__notes__", ())])
        assert "continue with resume=True (`fedcon --resume`, `flwr run --run-config" in said
        with pytest.raises(kind, match=r"the disk is full$"):  # without a folder
            simulate(avg(), q6(), 3)
    with np.load(tmp_path / "model.npz") as model:
        saved = model["x"]
    whole = simulate(avg(), q6(), 3, run_dir=tmp_path, resume=True)
    assert made[-1].seen == ["begin 3", "whole", "ended 3"]
    assert saved.tobytes() == whole.x.tobytes()


def test_a_run_without_it_is_resumed_with_it_and_the_reverse(tmp_path, monkeypatch):
    def without(rounds, **options):
        with monkeypatch.context() as patch:
            patch.setattr(hook_registry, "_own", {})
            return simulate(avg(), q6(), rounds, run_dir=tmp_path, **options)

    without(2)
    simulate(avg(), q6(), 3, run_dir=tmp_path, resume=True)
    assert made[0].rounds == 1
    assert len(without(4, resume=True)) == 4


@pytest.mark.parametrize("name", ["", "race", "ledgers", "tables"])
def test_its_name_is_its_own(name):
    if name == "tables":
        pytest.importorskip("flower_fedcon.tables", reason="their hook")
    with pytest.raises(ConfigError, match="a name that no other hook has"):
        hook_registry.register(type("Other", (RunHook,), {"name": name}))


def test_arguments_of_what_is_not_installed_are_refused(monkeypatch):
    monkeypatch.setattr(hook_registry, "_of_wings", tuple)
    assert len(simulate(avg(), q6(), 2)) == 2
    with pytest.raises(ConfigError, match="inference: what answers it is not installed"):
        simulate(avg(), q6(), 2, inference="model")
