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
from flower_fedcon.errors import ConfigError

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
