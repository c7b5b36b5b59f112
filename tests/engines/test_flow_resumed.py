"""Runs that do not wait for their slowest client, stopped and continued, and repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flows import EACH, METHODS, columns_apart

from flower_fedcon import (
    Buffered,
    Clock,
    LogNormal,
    simulate,
)
from flower_fedcon.errors import ConfigError, StorageError
from flower_fedcon.runs import checkpoint

# --- stopped and continued, and repeated ----------------------------------------------------------


class KilledError(Exception):
    pass


def played(name: str, engine: str = "local", steps: int = 20, **options: Any) -> Any:
    make, problem = METHODS[name]
    rule = Buffered(buffer=3, concurrency=5, max_staleness=6)
    clock = options.pop("clock", None) or Clock(compute=LogNormal(spread=1.0, per="round"), up=1e4)
    return simulate(
        make(participation=rule), problem, steps, seed=4, clock=clock, engine=engine, **options
    )


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
        ("{]\n", "cannot read it"),
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
    with pytest.raises(StorageError, match=r"events.jsonl: it has 9 of the \d+ events so far"):
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
    events = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(change(event)) + "\n" for event in events))
    with pytest.raises(ConfigError, match=says):
        played("FedDR", clock=Clock(events=log))
