"""The audit log: who was asked, and what became of the answer."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from fake_grid import FakeGrid
from problems import avg, l1ls, q6, q6_limited, q6_objectives

from flower_fedcon import Buffered, Clock, Sample, __version__, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.runs import audit_log
from flower_fedcon.runs.audit_log import NAME
from flower_fedcon.strategies import FedFW, FedSGM
from flower_fedcon.wire.digests import digest


def lines(folder):
    return [json.loads(line) for line in (folder / NAME).read_text().splitlines()]


def about(j):
    data = digest(q6_objectives()[j])
    return {"examples": 1, "weight": 1 / 6, "data": data, "version": __version__}


VECTOR = 192  # bytes of an array of eight doubles


def test_each_exchange_is_a_line(tmp_path):
    history = simulate(avg(participation=Sample(count=2)), q6(), 3, run_dir=tmp_path, audit=True)
    start, *rounds, end = lines(tmp_path)
    assert start["event"] == "start"
    assert (start["algorithm"], start["incarnation"], start["round"]) == ("fedavg", 1, 0)
    assert len(start["run"]) == 32
    assert start["clients"]["4"] == about(4)
    assert [line["event"] for line in rounds] == ["exchange", "applied"] * 3
    for asked, applied in zip(rounds[::2], rounds[1::2], strict=True):
        assert (asked["phase"], asked["attempt"]) == ("train", 1)
        assert asked["round"] == applied["round"]
        assert asked["used"] == dict.fromkeys(asked["asked"], VECTOR)
        assert (asked["dropped"], asked["lost"], asked["silent"]) == ({}, [], {})
        assert applied["used"] == asked["asked"]
        assert len(applied["used"]) == 2
    assert applied["uplink_bytes"] == history["uplink_bytes"][-1] == 6 * VECTOR
    assert (end["event"], end["round"], end["error"]) == ("end", 3, "")
    assert all(line["time"].endswith("+00:00") for line in lines(tmp_path))


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_bytes_are_those_that_are_counted(engine, tmp_path):
    problem = l1ls(5)
    strategy = FedFW(problem.constraint, penalty=0.1)
    simulate(strategy, problem, 4, engine=engine, run_dir=tmp_path, audit=True)
    found = lines(tmp_path)
    total = sum(sum(line["used"].values()) for line in found if line["event"] == "exchange")
    assert total == found[-2]["uplink_bytes"]


def test_queries_and_certificates_are_exchanges(tmp_path):
    strategy = FedSGM(client_lr=0.01, local_steps=1, tolerance=0.1)
    simulate(strategy, q6_limited(), 1, run_dir=tmp_path, audit=True, certificates=True)
    asked = [(line["phase"], line["used"]["0"]) for line in lines(tmp_path) if "phase" in line]
    assert asked == [("query", 8), ("train", VECTOR), ("certify", VECTOR)]


def test_waves_are_lines_of_their_own(tmp_path):
    """Each client is in the line of its wave, and one that is at work is not silent."""
    rule = Buffered(buffer=2, max_staleness=3)
    clock = Clock(compute=[1.0, 1.0, 2.0, 2.0, 3.0, 9.0])
    strategy = avg(participation=rule)
    for steps in (7, 40):  # the second goes on with the waves under way
        options = {"run_dir": tmp_path, "audit": True, "certificates": True, "resume": steps > 7}
        history = simulate(strategy, q6(), steps, clock=clock, **options)
    used, outcomes = Counter(), Counter()
    for line in lines(tmp_path):
        if line["event"] != "exchange" or line["phase"] != "train":
            continue
        asked = Counter(line["asked"])
        heard = Counter([*line["used"], *line["dropped"], *line["lost"], *line["silent"]])
        assert heard <= asked
        assert (line["lost"], line["silent"]) == ([], {})
        used.update(line["used"].keys())
        outcomes.update(line["dropped"].values())
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert used == Counter(str(e["client"]) for e in events if e.get("outcome") == "used")
    assert outcomes.total() == history["stale"][-1] > 0
    assert all(re.fullmatch(r"its reply is \d+ steps old", reason) for reason in outcomes)


@pytest.mark.usefixtures("identity")
def test_what_is_not_used_says_why(tmp_path):
    """On nodes the log is on without being asked for."""

    def alter(message, reply):
        sent = message.content["fitins.config"]
        if sent["client"] == 3 and sent["round"] == 2 and not done:
            done.append(1)
            reply.content["fitres.metrics"]["error"] = "disk full\n" * 1000
        return [] if sent["client"] == 5 else [reply]

    done = []
    strategy = avg(min_replies=5)
    strategy.start(FakeGrid(q6_objectives(), alter=alter), num_rounds=2, run_dir=tmp_path,
                   timeout=0.2)  # fmt: skip
    start, *rounds, _ = lines(tmp_path)
    assert start["clients"]["3"] == about(3)
    first, _, second, again, _ = rounds
    assert first["silent"].keys() == {"5"}
    assert "no reply" in first["silent"]["5"]
    assert second["dropped"].keys() == {"3"}
    assert second["dropped"]["3"].startswith("disk full")
    assert len(second["dropped"]["3"]) < 1500
    assert second["used"].keys() == {"0", "1", "2", "4"}
    assert (again["attempt"], again["asked"], [*again["used"]]) == (2, ["3", "5"], ["3"])
    strategy.start(FakeGrid(q6_objectives()), num_rounds=1, run_dir=tmp_path / "off", audit=False)
    assert not (tmp_path / "off" / NAME).exists()


def test_a_run_that_is_resumed_goes_on_in_the_file(tmp_path):
    """What a killed process has left of a line stays, on a line of its own."""
    simulate(avg(), q6(), 2, run_dir=tmp_path, audit=True)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"event": "exch')
    simulate(avg(), q6(), 3, run_dir=tmp_path, audit=True, resume=True)
    whole = (tmp_path / NAME).read_text().splitlines()
    assert whole.pop(6) == '{"event": "exch'
    found = [json.loads(line) for line in whole]
    assert [line["event"] for line in found[6:]] == ["start", "exchange", "applied", "end"]
    assert (found[6]["incarnation"], found[6]["round"]) == (2, 2)
    assert found[6]["run"] == found[0]["run"]


def test_an_error_is_the_last_line(tmp_path):
    def fail(record):
        raise FedConError("no more")

    with pytest.raises(FedConError):
        simulate(avg(), q6(), 2, run_dir=tmp_path, audit=True, callbacks=[fail])
    assert lines(tmp_path)[-1]["error"] == "no more"


def test_it_is_off_in_process_and_changes_no_iterate(tmp_path):
    plain = simulate(avg(), q6(), 3).x
    assert simulate(avg(), q6(), 3, run_dir=tmp_path, audit=True).x.tobytes() == plain.tobytes()
    simulate(avg(), q6(), 3, run_dir=tmp_path / "quiet")
    assert not (tmp_path / "quiet" / NAME).exists()  # in process it is off
    with pytest.raises(ConfigError, match="audit=True needs a run_dir"):
        simulate(avg(), q6(), 3, audit=True)


def test_an_experiment_file_asks_for_it(tmp_path):
    tables = {
        "problem": {"name": "counterexample"},
        "run": {"rounds": 1, "audit": True},
        "algorithm": {"name": "FedAvg", "client_lr": 0.1, "local_steps": 1},
    }
    options = Experiment(tables).run_options
    assert options.plan(run_dir=tmp_path).audit is True
    assert options.plan().audit is None


def test_a_log_that_grows_is_cut_into_files(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "_LARGEST", 2000)
    monkeypatch.setattr(audit_log, "EARLIER", 3)
    options = {"run_dir": tmp_path, "audit": True, "evaluate_every": 0}
    simulate(avg(), q6(), 9, **options)
    simulate(avg(), q6(), 40, resume=True, **options)
    names = ["audit.3.jsonl", "audit.2.jsonl", "audit.1.jsonl", "audit.jsonl"]
    assert sorted(path.name for path in tmp_path.glob("audit*")) == sorted(names)
    lines = [line for name in names for line in (tmp_path / name).read_bytes().splitlines()]
    rounds = [told["round"] for told in map(json.loads, lines) if told["event"] == "applied"]
    assert rounds == list(range(rounds[0], 41))
    assert 1 < rounds[0] < 35
    assert all((tmp_path / name).stat().st_size < 3000 for name in names)
    assert json.loads(lines[-1])["event"] == "end"
