"""Runs that do not wait for their slowest client, stopped and continued, and repeated."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from flows import EACH, METHODS, columns_apart, squares

from flower_fedcon import (
    Buffered,
    Clock,
    FederatedProblem,
    Full,
    LogNormal,
    simulate,
)
from flower_fedcon.errors import ConfigError, FedConError, StorageError
from flower_fedcon.runs import checkpoint
from flower_fedcon.runs.flowing import Flowing
from flower_fedcon.strategies import AREA, FedAvg

# --- stopped and continued, and repeated ----------------------------------------------------------


RULE = Buffered(buffer=3, concurrency=5, max_staleness=6)


class KilledError(Exception):
    pass


def played(name: str, engine: str = "local", steps: int = 20, **options: Any) -> Any:
    make, problem = METHODS[name]
    given = {"seed": 4, "clock": Clock(compute=LogNormal(spread=1.0, per="round"), up=1e4)}
    strategy = make(participation=options.pop("rule", RULE))
    return simulate(strategy, problem, steps, engine=engine, **given | options)


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize(("at", "every"), [(1, 1), (13, 5), (19, 1)])
@EACH
def test_a_run_continues_with_the_work_that_was_under_way(
    name: str, engine: str, at: int, every: int, tmp_path: Any
) -> None:
    """The same bytes and columns; and the log of events has each event once."""

    def stop(record: Any) -> None:
        if record["round"] == at:
            raise KilledError

    whole = played(name, engine, run_dir=tmp_path / "whole")
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": every}
    with pytest.raises(KilledError):
        played(name, engine, callbacks=[stop], **options)
    again = played(name, engine, resume=True, **options)
    assert again.x.tobytes() == whole.x.tobytes()
    assert columns_apart(whole, again) == []
    logs = [(tmp_path / run / "events.jsonl").read_text() for run in ("whole", "run")]
    assert logs[0] == logs[1]


@EACH
def test_a_log_of_events_repeats_a_run(name: str, tmp_path: Any) -> None:
    first = played(name, run_dir=tmp_path / "first")
    log = tmp_path / "first" / "events.jsonl"
    again = played(name, run_dir=tmp_path / "again", clock=Clock(events=log))
    assert again.x.tobytes() == first.x.tobytes()
    assert columns_apart(first, again) == []
    assert log.read_text() == (tmp_path / "again" / "events.jsonl").read_text()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    used = [event for event in events if event.get("outcome") == "used"]
    assert len(used) == 20 * 3


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (None, "cannot read it"),
        ("{]\n", "cannot read it: line 1 is not whole"),
        ("[" * 100_000 + "\n", "cannot read it: line 1: RecursionError"),
        ("[" * 100_000 + '"algorithm"', "cannot read it: RecursionError"),
        (
            '{"seconds": 1' + "0" * 400 + ', "wave": 1, "asked": [0, 1], "step": 0}\n',
            "cannot read it: line 1: OverflowError",
        ),
        (
            '{"seconds": 0.0, "wave": 1, "asked": [0, 1], "step": 0}\n{"seconds": 1.0, "wa',
            "cannot read it: line 2 is not whole",
        ),
        (
            '{"seconds": 0.0, "wave": 1, "asked": [1, 1], "step": 0}\n',
            "cannot read it: line 1: it has no clients below 6",
        ),
        ('{"seconds": 1.0}\n', "cannot read it"),
        ("", r"the log ends in step 1: give num_rounds=0"),
        (
            '{"seconds": 0.0, "wave": 7, "asked": [0, 1], "step": 0}\n',
            "differs from the log's at 0 seconds, wave 7: give it the same strategy",
        ),
        (
            '{"seconds": 2.0, "wave": 1, "client": 3, "outcome": "used", "step": 1}\n',
            "differs from the log's at 2 seconds, wave 1",
        ),
    ],
)
def test_a_log_that_does_not_fit_is_refused(log: str | None, says: str, tmp_path: Any) -> None:
    path = tmp_path / "events.jsonl"
    if log is not None:
        path.write_text(log)
    with pytest.raises(ConfigError, match=says):
        played("FedAvg", clock=Clock(events=path))


class GoneError(BaseException):
    """The process dies here."""


def test_a_run_that_dies_after_its_checkpoint_has_every_event(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are written before the checkpoint counts them."""
    whole = played("FedDR", run_dir=tmp_path / "whole")
    saved, save = [], checkpoint.save

    def die(folder: Any, content: Any) -> None:
        save(folder, content)
        saved.append(folder)
        if len(saved) == 3:
            raise GoneError

    monkeypatch.setattr(checkpoint, "save", die)
    with pytest.raises(GoneError):
        played("FedDR", run_dir=tmp_path / "run", checkpoint_every=3)
    monkeypatch.setattr(checkpoint, "save", save)
    again = played("FedDR", run_dir=tmp_path / "run", checkpoint_every=3, resume=True)
    assert again.x.tobytes() == whole.x.tobytes()
    logs = [(tmp_path / run / "events.jsonl").read_text() for run in ("whole", "run")]
    assert logs[0] == logs[1]


def test_a_log_without_some_events_is_no_log_to_go_on_with(tmp_path: Any) -> None:
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": 5}
    played("FedDR", steps=10, **options)
    log = tmp_path / "run" / "events.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:9]))
    with pytest.raises(StorageError, match=r"events.jsonl: it has 9 of the \d+ lines so far"):
        played("FedDR", resume=True, **options)


def _lines(change: Any) -> Any:
    return lambda text: b"".join(change(text.splitlines(keepends=True)))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[:-1], r"it has \d+ of the \d+ lines"),
        (lambda text: text[:-40] + b"\0" * 39 + b"\n", r"is damaged: line \d+ is not whole"),
        (_lines(lambda own: [*own[:3], own[2], *own[3:]]), "line 4: client . was not asked for it"),
        (_lines(lambda own: [*own[:2], own[3], own[2], *own[4:]]), "damaged: line 4: .* seconds "),
        (lambda text: b"\n\n" + text, "is damaged: line 1 is not whole"),
        (lambda text: b"\0" * len(text), "it has 0 of"),
        (lambda text: text.replace(b'"client": ', b'"client": 1'), "it has no clients below 6"),
    ],
)
def test_a_damaged_log_is_no_log_to_go_on_with(damage: Any, says: str, tmp_path: Any) -> None:
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": 5}
    played("FedDR", steps=10, **options)
    log = tmp_path / "run" / "events.jsonl"
    whole = log.read_bytes()
    log.write_bytes(damage(whole))
    with pytest.raises(StorageError, match=rf"events.jsonl: .*{says}"):
        played("FedDR", resume=True, **options)
    log.write_bytes(whole + b'{"seconds": 1')  # written after the checkpoint: cut off
    assert len(played("FedDR", resume=True, **options)) == 20


def test_events_are_on_the_disk_before_a_checkpoint_counts_them(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, fsync, save = [], os.fsync, checkpoint.save

    def note(descriptor: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def saved(folder: Any, content: Any) -> None:
        assert "events.jsonl" in done
        assert (
            len((folder / "events.jsonl").read_text().splitlines())
            == content["hooks"]["flow"]["events"]
        )
        done.clear()
        save(folder, content)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(checkpoint, "save", saved)
    played("FedDR", steps=3, run_dir=tmp_path / "run", checkpoint_every=1)


def test_a_repeated_run_does_not_go_on_by_a_clock(tmp_path: Any) -> None:
    """Nobody knows when the work under way would end."""
    played("FedDR", run_dir=tmp_path / "whole")
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "allow_changes": ["clock"]}
    played("FedDR", steps=8, clock=Clock(events=tmp_path / "whole" / "events.jsonl"), **options)
    with pytest.raises(ConfigError, match="repeats the log of another so far, and no other clock"):
        played("FedDR", resume=True, **options)


OTHERS = [
    (lambda event: event | {"step": event["step"] + 1}, "differs from the log's"),
    (lambda event: event | {"seconds": float("nan")}, "cannot read it"),
    (lambda event: event | {"wave": "1"}, "cannot read it"),
    (lambda event: {**event, "asked": [0, 99]} if "asked" in event else event, "cannot read it"),
]


@pytest.mark.parametrize(("change", "says"), OTHERS)
def test_a_log_of_another_run_is_refused(change: Any, says: str, tmp_path: Any) -> None:
    played("FedDR", run_dir=tmp_path / "first")
    log = tmp_path / "first" / "events.jsonl"
    head, *events = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(e) + "\n" for e in (head, *map(change, events))))
    with pytest.raises(ConfigError, match=says):
        played("FedDR", clock=Clock(events=log))


def test_a_log_says_whose_it_is(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without this first line, of an earlier version, is repeated and continued as it is."""
    first = played("FedDR", run_dir=tmp_path / "first")
    log = tmp_path / "first" / "events.jsonl"
    head, *events = log.read_text().splitlines(keepends=True)
    assert json.loads(head) == {
        "algorithm": "feddr",
        "seed": 4,
        "rule": repr(RULE),
        "clients": [str(j) for j in range(6)],
        "async_bias": "",
    }
    log.write_text("".join(events))
    again = played("FedDR", run_dir=tmp_path / "again", clock=Clock(events=log))
    assert again.x.tobytes() == first.x.tobytes()
    assert (tmp_path / "again" / "events.jsonl").read_text() == "".join([head, *events])

    def headless(self: Any, write: Any = Flowing._write) -> None:
        self._lines = [line for line in self._lines if "algorithm" not in line]
        write(self)

    monkeypatch.setattr(Flowing, "_write", headless)
    played("FedDR", steps=10, run_dir=tmp_path / "old")
    monkeypatch.undo()
    played("FedDR", resume=True, run_dir=tmp_path / "old")
    assert (tmp_path / "old" / "events.jsonl").read_text() == "".join(events)


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("AREA", {}, r"is of another run \(algorithm feddr, not area\): repeat it with what it"),
        ("FedDR", {"seed": 5}, r"\(seed 4, not 5\)"),
        ("FedDR", {"rule": Buffered(buffer=2)}, r"rule Buffered\(.*, not Buffered\(buffer=2\)"),
    ],
)
def test_a_log_of_another_seed_or_method_is_refused(
    name: str, more: dict[str, Any], says: str, tmp_path: Any
) -> None:
    """Also if its events would fit."""
    played("FedDR", run_dir=tmp_path / "first")
    with pytest.raises(ConfigError, match=says):
        played(name, clock=Clock(events=tmp_path / "first" / "events.jsonl"), **more)


@pytest.mark.parametrize("before", [Full(), Buffered(buffer=1, max_staleness=0)])
def test_rounds_and_steps_do_not_go_on_from_one_another(before: Any, tmp_path: Any) -> None:
    """A round and a wave of one number would stand for different states of a client."""
    after = Buffered(buffer=2) if isinstance(before, Full) else Full()
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": 1}
    played("AREA", steps=5, rule=before, **options)
    for allowed in ((), ("participation",)):
        with pytest.raises(FedConError, match=r"participation.* is .*\. Set it back, or use ano"):
            played("AREA", rule=after, resume=True, allow_changes=allowed, **options)
    assert len(played("AREA", rule=before, resume=True, **options)) == 20


class Steep:
    """Flat where its smoothness is estimated, and steep farther out."""

    def __init__(self, b: float) -> None:
        self.b = np.full(3, b)

    def value(self, x: Any) -> float:
        over = np.maximum(np.abs(x) - 20, 0)
        steep = np.where(over < 10, 5e2 * over**2, 1e4 * over - 5e4)
        return float(0.05 * np.minimum(x * x, 1e4).sum() + steep.sum() - self.b @ x)

    def gradient(self, x: Any) -> Any:
        over = np.maximum(np.abs(x) - 20, 0)
        return 0.1 * np.clip(x, -100, 100) + np.sign(x) * np.minimum(1e3 * over, 1e4) - self.b


@pytest.mark.parametrize("method", [FedAvg, AREA])
def test_a_run_that_starts_again_is_repeated_and_continued(method: Any, tmp_path: Any) -> None:
    """Its log ends the work of the start that was given up, and so does a checkpoint."""
    problem = FederatedProblem([Steep(b) for b in (2, 2.5, 3, 4)], x0=np.zeros(3))

    def go(name: str, clock: Any = None, steps: int = 40, **options: Any) -> Any:
        clock = clock or Clock(compute=[1, 2, 3, 5.0])
        strategy, folder = method(participation=Buffered(buffer=2)), tmp_path / name
        given = {"checkpoint_every": 1, **options}
        return simulate(strategy, problem, steps, clock=clock, run_dir=folder, **given)

    whole, log = go("whole"), tmp_path / "whole" / "events.jsonl"
    events, work = [json.loads(line) for line in log.read_text().splitlines()[1:]], {}
    for event in events:
        for client in event.get("asked", []):
            assert client not in work
            work[client] = event["wave"]
        if "client" in event:
            assert work.pop(event["client"]) == event["wave"]
    assert any(event.get("outcome") == "silent" for event in events)  # it has started again
    again = go("again", Clock(events=log))
    for at in (1, 2, 4):
        go(f"at {at}", steps=at)
        then = go(f"at {at}", resume=True)
        assert then.x.tobytes() == whole.x.tobytes()
        assert (tmp_path / f"at {at}" / "events.jsonl").read_bytes() == log.read_bytes()
    assert again.x.tobytes() == whole.x.tobytes()
    assert (tmp_path / "again" / "events.jsonl").read_bytes() == log.read_bytes()


class Broken:
    smoothness = 1.0

    def value(self, x: Any) -> float:
        return 0.0

    def gradient(self, x: Any) -> Any:
        raise RuntimeError("no data")


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.3])
def test_clients_that_fail_at_once_do_not_end_a_run_of_others(seconds: float) -> None:
    """They rest until another client's reply has come."""
    objectives = [*squares(5, 0.0).objectives, Broken(), Broken()]
    problem = FederatedProblem(objectives, x0=np.zeros(5))
    strategy = FedAvg(client_lr=0.02, local_steps=1, participation=Buffered(buffer=2))
    clock = Clock(compute=[1.0] * 5 + [seconds] * 2)
    assert len(simulate(strategy, problem, 20, clock=clock, evaluate_every=0)) == 1


def test_steps_go_on_with_another_buffer(tmp_path: Any) -> None:
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": 1}
    played("AREA", steps=5, **options)
    given = options | {"resume": True, "allow_changes": ["participation"]}
    assert len(played("AREA", rule=Buffered(buffer=1), **given)) == 20


def test_a_folder_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Any) -> None:
    with pytest.raises(StorageError, match=r"^cannot make the run directory /proc/fedcon: "):
        played("FedDR", run_dir="/proc/fedcon")
    (tmp_path / "run" / "events.jsonl").mkdir(parents=True)
    with pytest.raises(
        StorageError, match=r"^cannot write .*events.jsonl: it is not a file of its"
    ):
        played("FedDR", run_dir=tmp_path / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="everything can be written by root")
def test_a_run_whose_folder_has_become_read_only_does_not_go_on(tmp_path: Any) -> None:
    folder = tmp_path / "run"
    played("FedDR", steps=10, run_dir=folder)
    for path, says in ((folder / "events.jsonl", "events.jsonl"), (folder, "checkpoint")):
        mode = path.stat().st_mode
        path.chmod(mode & 0o555)
        with pytest.raises(StorageError, match=rf"^cannot write .*{says}: Permission denied"):
            played("FedDR", run_dir=folder, resume=True)
        path.chmod(mode)
    assert len(played("FedDR", run_dir=folder, resume=True)) == 20
