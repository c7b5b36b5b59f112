"""Watching: time left and what ends a run, `fedcon watch`, trackers, and the log for machines."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from pages import ROOT, blocks

from flower_fedcon import EarlyStopping, FederatedProblem, simulate
from flower_fedcon.errors import ConfigError, StorageError
from flower_fedcon.lab.experiments.run_tables import RunOptions
from flower_fedcon.lab.report.watch import Tail, Watched, watch
from flower_fedcon.objectives import Quadratic
from flower_fedcon.runs.console import left, progress, quiet
from flower_fedcon.runs.json_log import JsonLog
from flower_fedcon.runs.limits import Budget, Forecast
from flower_fedcon.runs.trackers import TensorBoard, WeightsAndBiases
from flower_fedcon.strategies import FedAvg
from flower_fedcon.wire.whole_files import FolderLock

RUN = "[run]\nrounds = 10\n[algorithm]\nname = 'FedAvg'\nlabel = 'mine'\n"


def problem():
    return FederatedProblem([Quadratic(np.eye(2), np.array([b, 1.0])) for b in (0.0, 1.0)])


def strategy():
    return FedAvg(client_lr=0.5, local_steps=1)


def row(number, **more):
    costs = {"uplink_bytes": 4e5 * number, "downlink_bytes": 1e5 * number, "seconds": float(number)}
    return {"round": number, "objective": 1.0, **costs, **more}


# --- what ends a run -----------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_first_end_by_the_pace_so_far():
    clock = Clock()
    stops = [EarlyStopping(1e-6, "kkt"), Budget(megabytes=10.0)]
    forecast = Forecast(100, stops, clock)
    clock.now = 1.0
    first = forecast(row(1, kkt=1.0))  # half a megabyte a round
    assert (round(first.seconds, 9), first.what) == (19.0, "10 megabytes")
    clock.now = 4.0
    half = forecast(row(4, kkt=1e-3))  # of the decades
    assert (round(half.seconds, 9), half.what, half.reached) == (3.0, "kkt at most 1e-06", False)
    assert left(forecast(row(4, kkt=1e-3))) == ", 0:03 left until kkt at most 1e-06"
    clock.now = 5.0
    assert forecast(row(5, kkt=1e-7)) == (0.0, "kkt at most 1e-06", True)
    assert Forecast(4, (), clock)(row(4)).reached


def test_a_column_that_rises_ends_a_run():
    clock = Clock()
    forecast = Forecast(100, [EarlyStopping(0.9, "accuracy", at_least=True)], clock)
    forecast(row(1, accuracy=0.1))
    clock.now = 4.0
    half = forecast(row(5, accuracy=0.5))
    assert (half.seconds, half.what) == (pytest.approx(4.0), "accuracy at least 0.9")
    assert forecast(row(6, accuracy=0.05)).what == "round 100"
    assert forecast(row(7, accuracy=0.95)) == (0.0, "accuracy at least 0.9", True)


def test_a_resumed_run_is_as_fast_as_since_then():
    clock = Clock()
    forecast = Forecast(100, (), clock)
    clock.now = 50.0  # to start took long
    assert forecast(row(91)).seconds == pytest.approx(9.0)  # a second a round, before
    clock.now = 52.0
    assert forecast(row(92)).seconds == pytest.approx(16.0)


def test_rounds_between_two_records_count():
    clock = Clock()
    forecast = Forecast(300, (), clock)
    clock.now = 99.0
    assert forecast(row(100)).seconds == pytest.approx(200.0)
    clock.now += 50.0
    assert forecast(row(200)).seconds == pytest.approx(50.0)


def test_a_budget_ends_a_run():
    history = simulate(strategy(), problem(), 50, callbacks=[Budget(megabytes=0.004)])
    total = history["uplink_bytes"] + history["downlink_bytes"]
    assert history.stopped
    assert total[-2] < 4000 <= total[-1]
    with pytest.raises(ConfigError, match="cannot be of 'hours'"):
        Budget(hours=2)
    with pytest.raises(ConfigError, match="seconds must be"):
        Budget(seconds=0)


def test_limits_in_a_file_and_their_certificates():
    options = RunOptions(rounds=9, until={"kkt": 1e-3}, budget={"seconds": 5})
    plan = options.plan(callbacks=[print])
    assert plan.certificates
    assert [type(c) for c in plan.callbacks[:2]] == [EarlyStopping, Budget]
    assert plan.callbacks[2] is print
    with pytest.raises(ConfigError, match="cannot be of 'hours'"):
        RunOptions(rounds=9, budget={"hours": 1})


def test_lines_of_progress(capsys):
    with progress("mine", 100, [EarlyStopping(0.5, "kkt")]) as show:
        for number in (1, 10, 11):
            show(row(number, kkt=4.0 - 0.2 * number))
        show(row(12, kkt=0.5))
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2
    assert told[0].startswith("mine: round 10/100, F 1, ")
    assert "left until kkt at most 0.5" in told[0]
    assert told[1].endswith("ended by kkt at most 0.5")


# --- from elsewhere ------------------------------------------------------------------------------


def replaced(path, text):
    new = path.with_name("new")
    new.write_text(text)
    new.replace(path)


def test_a_tail_waits_for_whole_lines_and_notices_another_file(tmp_path):
    path = tmp_path / "history.csv"
    tail = Tail(path)
    assert list(tail.lines()) == []
    path.write_bytes(b"a\r\n1\r\n2")
    assert list(tail.lines()) == [(True, "a"), (False, "1")]
    path.write_bytes(b"a\r\n1\r\n23\r\n4")
    assert list(tail.lines()) == [(False, "23")]
    replaced(path, "a,b\n1,\n23,\n45,6\n")  # as a history does that gets a column
    assert [line for _, line in tail.lines()] == ["a,b", "1,", "23,", "45,6"]


def test_a_run_is_followed_to_its_end(tmp_path, monkeypatch):
    """Its news, round by round, as another process writes them; the run is then over."""
    history, told = tmp_path / "history.csv", []
    (tmp_path / "config.toml").write_text(RUN)
    history.write_text("round,objective\n")
    log = tmp_path / "audit.jsonl"
    lock = FolderLock(tmp_path)
    steps = [
        lambda: history.open("a").write("1,4.5\n2,4.2"),  # torn
        lambda: history.open("a").write("5\n3,4\n"),
        lambda: log.write_text('{"event": "exchange", "round": 4, "dropped": {"b": "nan"}, '
                               '"silent": {}}\n{"event": "exch'),
        lambda: replaced(history, "round,objective,kkt\n1,4.5,\n2,4.25,\n3,4,\n10,2.5,1\n"),
        lock.release,
    ]  # fmt: skip

    pause = iter(steps)
    monkeypatch.setattr("time.sleep", lambda _: next(pause, lambda: None)())
    assert watch(tmp_path, every=0.0, say=told.append)
    assert [line.partition(" left")[0].rpartition(", 0:")[0] or line for line in told] == [
        "mine: round 1/10, F 4.5", "mine: round 3/10, F 4",
        "mine: round 4, b dropped: nan", "mine: round 10/10, F 2.5", "mine: finished",
    ]  # fmt: skip


def test_shares_are_told_with_each_record(tmp_path, monkeypatch):
    """Of a run without rounds, with who is at work; at the end with whom the model favours."""
    (tmp_path / "config.toml").write_text(RUN)
    (tmp_path / "history.csv").write_text("round,objective\n")
    head = {"algorithm": "fedavg", "seed": 0, "rule": "Buffered()", "clients": ["a", "b"],
            "async_bias": "fast clients count more"}  # fmt: skip
    log, told, lock = tmp_path / "events.jsonl", [], FolderLock(tmp_path)
    log.write_text(json.dumps(head) + "\n")

    def step(number, seconds, client, age, asked):
        reply = {"seconds": seconds, "wave": number, "client": client, "outcome": "used",
                 "staleness": age, "step": number}  # fmt: skip
        events = [reply, {"seconds": seconds, "wave": number + 1, "asked": asked, "step": number}]
        with log.open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)
        (tmp_path / "history.csv").open("a").write(f"{number},{5 - number}\n")

    def first():
        with log.open("a") as file:
            file.write('{"seconds": 0.0, "wave": 1, "asked": [0, 1], "step": 0}\n')
        step(1, 2.0, 0, 0, [0])

    steps = [first, lambda: step(2, 4.0, 0, 0, [0]), lambda: step(3, 5.0, 1, 2, [1]), lock.release]
    pause = iter(steps)
    monkeypatch.setattr("time.sleep", lambda _: next(pause, lambda: None)())
    assert not watch(tmp_path, every=0.0, say=told.append)
    assert [line for line in told if "round" not in line] == [
        "mine: 1 uploads (steps old): a 100.0% (0), b 0.0% (0); 0.5 steps a second; 2 at work, "
        "b since second 0 of 2",
        "mine: 2 uploads (steps old): a 100.0% (0), b 0.0% (0); 0.5 steps a second; 2 at work, "
        "b since second 0 of 4",
        "mine: 3 uploads (steps old): a 66.7% (0), b 33.3% (2); 0.6 steps a second; 2 at work, "
        "a since second 4 of 5",
        "mine: fast clients count more: client a gave 66.7% of the uploads, client b 33.3%, where "
        "50.0% would be equal. The model favours the former; AREA, FedDR, FedDyn, Scaffold and "
        "FedNewton do not",
        "mine: stopped at 3 of 10",
    ]


def test_watching_a_run_of_another_process(tmp_path):
    """The real thing: this process watches while that one runs, and nothing is refused to it."""
    code = (
        "import sys, time; sys.path[:0] = sys.argv[2:]\n"
        "from test_watch import problem, strategy\n"
        "from flower_fedcon import simulate\n"
        "simulate(strategy(), problem(), 30, run_dir=sys.argv[1],\n"
        "         callbacks=[lambda row: time.sleep(0.01)])\n"
    )
    folder = tmp_path / "run"
    paths = [str(Path(__file__).parent), str(ROOT / "tests" / "support")]
    process = subprocess.Popen([sys.executable, "-c", code, str(folder), *paths])
    while process.poll() is None and not (folder / "history.csv").exists():
        time.sleep(0.02)
    assert (folder / "history.csv").exists()
    told: list[str] = []
    assert watch(folder, every=0.05, say=told.append)
    assert process.wait() == 0
    assert told[-1] == "FedAvg: finished"
    assert "FedAvg: round 30/30" in told[-2]


def test_how_far_a_run_is_and_what_is_refused(run_command, tmp_path):
    (tmp_path / "run").mkdir()
    assert "run holds no run" in refusal(run_command, "watch", "run")
    assert "holds no run: no such folder" in refusal(run_command, "watch", "nowhere")
    assert "every must be" in refusal(run_command, "watch", "run", "--every", "0")
    (tmp_path / "run" / "config.toml").write_text(RUN)
    (tmp_path / "run" / "history.csv").write_text("round,objective\n4,1.5\n")
    out = ran(run_command, "watch", "run", "--once")
    assert out.endswith("mine: stopped at 4 of 10\n")
    assert run_command("watch", "run", "--every", "0.01")[0] == 1
    (tmp_path / "run" / "history.csv").write_text("round,objective\n4,x\n")
    assert "is damaged: 4,x" in refusal(run_command, "watch", "run")


def test_many_failures_are_a_few_lines(tmp_path):
    line = {"event": "exchange", "round": 1, "silent": {str(j): "" for j in range(9)}}
    (tmp_path / "audit.jsonl").write_text(json.dumps({**line, "dropped": {}}) + "\n[]\n")
    told = Watched(tmp_path).news()
    assert len(told) == 6
    assert told[-1].endswith("and 5 more, see audit.jsonl")
    assert told[-2].endswith("a line of its audit log cannot be read")


# --- trackers ------------------------------------------------------------------------------------


def test_tensorboard_gets_every_column(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    with TensorBoard(tmp_path / "board") as board:
        history = simulate(strategy(), problem(), 3, callbacks=[board])
    (file,) = (tmp_path / "board").iterdir()
    data, found = file.read_bytes(), {}
    while data:  # length, its checksum, the event, its checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    for number in (1, 3):
        assert found["objective", number] == pytest.approx(history["objective"][number - 1])
    assert {name for name, _ in found} == set(history.columns) - {"round"}


def stand_in(monkeypatch):
    """Put a module in the place of wandb that notes what it is told, by wandb's own signatures."""
    told: list = []

    class Run:
        def log(self, data, step=None):
            told.append((step, data))

        def finish(self):
            told.append("finished")

    def init(*, project=None, name=None, config=None, dir=None, mode=None):
        told.append({"project": project, "name": name, "config": config, "dir": dir})
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    return told


def test_weights_and_biases_by_a_stand_in(monkeypatch, run_command, tmp_path):
    told = stand_in(monkeypatch)
    with WeightsAndBiases(project="p", mode="offline") as tracker:
        history = simulate(strategy(), problem(), 2, callbacks=[tracker])
    assert [entry[0] for entry in told[1:3]] == [1, 2]
    assert told[2][1]["objective"] == history["objective"][-1]
    assert told[-1] == "finished"
    told.clear()
    sims = str(ROOT / "sims" / "counterexample.toml")
    ran(run_command, "run", sims, "--rounds", "2", "--log-to", "wandb")
    assert told[0]["name"] == "FedFW"
    assert told[0]["config"]["algorithm"]["name"] == "FedFW"
    assert Path(told[0]["dir"]).is_dir()
    assert (len(told), told[-1]) == (4, "finished")


def test_a_tracker_that_is_not_there(run_command, monkeypatch, tmp_path):
    sims = str(ROOT / "sims" / "counterexample.toml")
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    for tracker, extra in (("wandb", "wandb"), ("tensorboard", "tensorboard")):
        told = refusal(run_command, "run", sims, "--log-to", tracker)
        assert f"pip install 'flower-fedcon[{extra}]'" in told
    assert "log-to must be one of" in refusal(run_command, "run", sims, "--log-to", "mlflow")
    assert "write a name and a number" in refusal(run_command, "run", sims, "--until", "kkt")
    assert "cannot be of 'money'" in refusal(run_command, "run", sims, "--budget", "money=3")


# --- the log for machines ------------------------------------------------------------------------


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_for_machines_has_records_warnings_and_the_end(tmp_path, capsys):
    path = tmp_path / "logs" / "run.jsonl"
    with JsonLog(path, "mine").attached(site="a") as log, quiet(active=True):
        history = simulate(strategy(), problem(), 2, callbacks=[log])
        logging.getLogger("flwr").warning("a reply of %s\n was dropped", "b")
        logging.getLogger("flwr.strategies").warning("a small step")
    start, first, second, warned, also, end = lines(path)
    assert (start["event"], start["site"]) == ("start", "a")
    assert [first["round"], second["round"]] == [1, 2]
    assert second["objective"] == history["objective"][-1]
    assert warned["level"] == "WARNING"
    assert warned["message"] == r"a reply of b\n was dropped"
    assert also["logger"] == "flwr.strategies"
    assert (end["event"], end["error"]) == ("end", "")
    assert all(line["run"] == "mine" and line["time"].endswith("+00:00") for line in lines(path))
    assert "dropped" not in capsys.readouterr().err  # quiet on the terminal

    other = JsonLog(path, "other")
    with pytest.raises(RuntimeError), other.attached():
        raise RuntimeError("it broke")
    assert (lines(path)[-1]["level"], lines(path)[-1]["error"]) == ("ERROR", "it broke")
    assert not [h for h in logging.getLogger("flwr").handlers if isinstance(h, JsonLog)]
    with pytest.raises(StorageError, match="cannot write"):
        JsonLog(tmp_path, "mine")


def test_numbers_that_are_not_finite_are_null(tmp_path):
    with JsonLog(tmp_path / "log", "mine").attached() as log:
        log({"round": 1, "kkt": math.nan, "count": np.int64(3)})
    assert (lines(tmp_path / "log")[1]["kkt"], lines(tmp_path / "log")[1]["count"]) == (None, 3)


# --- the page ------------------------------------------------------------------------------------


def test_the_page_s_blocks(run_command, tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    page = "docs/watching.md"
    (tmp_path / "sims").symlink_to(ROOT / "sims")
    outputs = [run_command(*c.split()[1:]) for c in blocks("bash", page)[0].splitlines()]
    assert [code for code, _, _ in outputs] == [0, 0]
    assert outputs[1][1] == blocks("text", page)[0]
    assert lines(tmp_path / "log.jsonl")[-1]["event"] == "end"
    table = blocks("toml", page)[0].partition("[run]\n")[2]
    assert "until" in table
    sims = (ROOT / "sims" / "counterexample.toml").read_text()
    before, _, after = sims.partition("[run]\n")
    Path("own.toml").write_text(before + "[run]\n" + table + after.partition("\n\n")[2])
    assert "ended by residual at most 0.05" in run_command("run", "own.toml")[1]
    names: dict = {}
    for block in blocks("python", page):
        exec(block, names)
    assert len(lines(tmp_path / "runs" / "log.jsonl")) == 22
    assert list((tmp_path / "runs" / "board").iterdir())
