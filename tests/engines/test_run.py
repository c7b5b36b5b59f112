"""A run from start to end: history, folder and coordinator."""

from __future__ import annotations

import json
import logging
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import squares
from harness import OpenRun
from problems import avg, q6, q6_ball, q6_limited, q6_objectives

from flower_fedcon import EarlyStopping, FederatedProblem, History, Sample, simulate
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.round import Round
from flower_fedcon.errors import ConfigError, FedConError, RoundError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems.reference import Reference
from flower_fedcon.runs.limits import Budget
from flower_fedcon.strategies import FedAvg, FedFW, FedFWPlus, FedSGM
from flower_fedcon.wire.whole_files import atomic, write_text

HALF = {"participation": Sample(count=3)}

# --- history --------------------------------------------------------------------------------------


def test_history_columns():
    history = History(np.zeros(2), [{"round": 2, "objective": 0.5}, {"round": 4, "residual": 1.0}])
    assert history.columns == ["round", "objective", "residual"]
    assert history["round"].tolist() == [2, 4]
    assert math.isnan(history["objective"][1])
    assert "residual" in history
    assert "violation" not in history
    with pytest.raises(ConfigError, match="no column 'residuals': did you mean 'residual'"):
        history["residuals"]


BITS = [0.1, 1e-323, -0.0, 1 / 3, math.inf, math.pi * 1e300, 2**53]
NUMPY = Reference(np.ones(8), np.float64(-1), 0, "")
TABLES = {
    "every bit": lambda: [{"round": i, "value": v} for i, v in enumerate(BITS)],
    "a column that comes later": lambda: [{"round": 1}, {"round": 2, "objective": 3.0}],
    "a run": lambda: simulate(avg(), q6(), 5).rows,
    "NumPy's numbers": lambda: (
        simulate(avg(), FederatedProblem(q6_objectives(), optimum=NUMPY), 1).rows
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_csv_keeps_it(name, tmp_path):
    rows = TABLES[name]()
    History(np.zeros(1), rows).to_csv(tmp_path / "h.csv")
    back = History.read_rows(tmp_path / "h.csv")
    assert back == rows
    assert [float(v).hex() for r in back for v in r.values()] == [
        float(v).hex() for r in rows for v in r.values()
    ]


@pytest.mark.parametrize(
    ("every", "rounds"), [(0, [10]), (3, [3, 6, 9, 10]), (7, [7, 10]), (10, [10]), (99, [10])]
)
def test_recorded_rounds_and_nothing_else_depend_on_evaluate_every(every, rounds):
    full = simulate(avg(**HALF), q6(), 10, seed=4)
    some = simulate(avg(**HALF), q6(), 10, seed=4, evaluate_every=every)
    assert some.x.tobytes() == full.x.tobytes()
    assert some["round"].tolist() == rounds
    for row in some.rows:
        same = full.rows[row["round"] - 1]
        assert {**row, "seconds": 0} == {**same, "seconds": 0}


def test_callbacks_all_see_each_record_and_one_can_stop():
    seen = [], []
    stop = [lambda r: seen[0].append(r["round"]) or r["round"] == 3, lambda r: seen[1].append(r)]
    history = simulate(avg(), q6(), 9, callbacks=stop)
    assert history.stopped
    assert seen[0] == [1, 2, 3]
    assert seen[1] == history.rows
    assert history.x.tobytes() == simulate(avg(), q6(), 3).x.tobytes()
    assert not simulate(avg(), q6(), 3, callbacks=stop).stopped  # it was over anyway


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_what_evaluates_a_model_cannot_change_it(engine):
    def changing(*given: Any) -> dict[str, float]:
        found = float(given[-1].sum())
        given[-1].fill(0.0)
        return {"total": found}

    plain = simulate(avg(), q6(), 4, engine=engine)
    history = simulate(avg(), q6(), 4, engine=engine, evaluate=changing)
    assert history.x.tobytes() == plain.x.tobytes()
    assert history["total"][-1] == float(plain.x.sum())


def test_early_stopping():
    problem = q6()
    plain = simulate(avg(), problem, 5)
    with pytest.raises(ConfigError, match=r"no column 'residual': .* compute problem\.optimum"):
        plain["residual"]
    with pytest.raises(ConfigError, match=r"watches 'residual', which is not .* problem\.optimum"):
        EarlyStopping(0.1)(plain.rows[0])
    assert not problem.has_optimum
    for tolerance, what in ((0.1, "residual"), (0.05, "relative")):
        history = simulate(avg(), problem, 500, callbacks=[EarlyStopping(tolerance, what)])
        assert problem.has_optimum
        assert history.stopped
        scale = abs(problem.optimum.value) if what == "relative" else 1.0
        found = history["residual"] / scale
        assert found[-1] <= tolerance < found[-2]
    assert not EarlyStopping(0.1)({"residual": math.nan})
    stop = EarlyStopping(1e-3, "relative")
    assert stop({"objective": 0.5, "residual": 0.5, "relative": 0.0})  # a metric of this name
    assert not stop({"round": 2})  # an evaluation has failed


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_the_log_says_why_a_run_stops(engine, caplog):
    """Once, and nothing where the last round stops it, too."""
    caplog.set_level(logging.INFO, "flwr")

    def enough(record):
        return record["round"] == 6

    value = lambda number, x: {"accuracy": number / 10}  # noqa: E731
    for rounds, callback, told in (
        (9, EarlyStopping(9.0, "objective"), "round 1: objective .* is at most 9"),
        (9, EarlyStopping(0.4, "accuracy", at_least=True), "round 4: accuracy 0.4 is at least 0.4"),
        (9, Budget(megabytes=1e-9), "round 1: .* of 1e-09 megabytes are spent"),
        (9, enough, "round 6: the callback enough returned True"),
        (6, enough, None),
    ):
        caplog.clear()
        simulate(avg(), q6(), rounds, engine=engine, callbacks=[callback], evaluate=value)
        found = [m for m in caplog.messages if "stopped at" in m]
        assert len(found) == (told is not None)
        assert told is None or re.fullmatch(f"stopped at {told}", found[0])


class Measured(Quadratic):
    """A quadratic with metrics of its own."""

    def metrics(self, x):
        return {"first": float(x[0]), "curvature": float(self.Q[0, 0])}


def test_metrics_of_the_objectives_are_averaged():
    """As those of nodes are."""
    problem = FederatedProblem([Measured(f.Q, f.b) for f in q6_objectives()])
    history = simulate(avg(), problem, 3)
    assert history["first"][-1] == pytest.approx(history.x[0])
    mean = np.mean([f.Q[0, 0] for f in q6_objectives()])
    assert history["curvature"] == pytest.approx([mean] * 3)


def test_no_rounds(tmp_path):
    history = simulate(avg(), q6(), 0, run_dir=tmp_path / "run")
    assert (len(history), history.stopped) == (0, False)
    assert history.x.tolist() == [0] * 8
    assert History.read_rows(tmp_path / "run" / "history.csv") == []


def play(**options):
    return simulate(**{"strategy": avg(), "problem": q6(), "num_rounds": 1, **options})


RELATIVE = EarlyStopping(1e-3, "relative")
REFUSED = [
    (lambda: play(engine="cloud"), "'stacked', 'jax', 'ray', got 'cloud'"),
    (lambda: play(resume=True), "resume=True needs the run_dir"),
    (lambda: play(strategy=FedAvg), "strategy must be one of flower_fedcon.strategies"),
    (lambda: play(problem=[1]), r"problem must be a FederatedProblem, got \[1\]"),
    (lambda: play(num_rounds=-1), "num_rounds must be a whole number >= 0"),
    (lambda: play(evaluate_every=1.5), "evaluate_every must be a whole number >= 0"),
    (lambda: play(seed=-1), "seed must be a whole number"),
    (lambda: play(callbacks=[3]), "a callback must be callable, got 3"),
    (lambda: EarlyStopping(-1), "tolerance must be finite and >= 0"),
    (lambda: RELATIVE({"objective": 1.0}), r"'relative', which is not .* problem\.optimum"),
    (lambda: RELATIVE({"objective": 0.5, "residual": 0.5}),
     r"F\* is 0 here, and nothing is relative to it: take residual"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_what_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# --- the run's folder -----------------------------------------------------------------------------


def test_resuming_says_what_is_not_as_asked(tmp_path, log):
    simulate(avg(), q6(), 4, run_dir=tmp_path / "run")
    for folder, rounds, said in (
        ("run", 4, "run holds 4 rounds, more than the requested 2"),
        ("typo", 2, f"there is no folder {tmp_path / 'typo'} to resume: starting from round 1"),
    ):
        history = simulate(avg(), q6(), 2, run_dir=tmp_path / folder, resume=True)
        assert history["round"][-1] == rounds
        assert said in log.text
    with pytest.raises(ConfigError, match=r"continue it with resume=True \(`fedcon --r"):
        simulate(avg(), q6(), 4, run_dir=tmp_path / "run")


def test_batches_of_more_rows_than_clients_have_are_said_once(log):
    def play(size):
        log.clear()
        simulate(FedAvg(client_lr=0.1, local_steps=2, batch_size=size), squares((2, 3, 4)), 3)
        return log.text

    assert "batch_size" not in play(2)
    assert "rows of 1 of 3 clients (the first, client 0 has 2)" in play(3)
    assert play(4).count("batch_size=4 is more than the rows of 2 of 3 clients") == 1


def test_run_directory(tmp_path):
    folder = tmp_path / "a" / "run"
    history = simulate(avg(), q6(), 4, run_dir=folder, seed=5, evaluate_every=2)
    files = ["checkpoint", "cohorts.jsonl", "config.toml", "environment.json", "history.csv"]
    files += ["model.npz"]
    assert sorted(p.name for p in folder.iterdir()) == files
    assert History.read_rows(folder / "history.csv") == history.rows
    with np.load(folder / "model.npz") as model:
        assert model["x"].tobytes() == history.x.tobytes()
    text = (folder / "config.toml").read_text()
    assert "\n# 6 clients, made in Python" in text
    assert "rounds = 4\nseed = 5\n" in text
    assert 'name = "FedAvg"\n' in text
    assert "client_lr = 0.025\n" in text
    assert {"flwr", "numpy"} <= json.loads((folder / "environment.json").read_text())[
        "packages"
    ].keys()
    with pytest.raises(ConfigError, match="already holds a run"):
        simulate(avg(), q6(), 4, run_dir=folder)
    with pytest.raises(FedConError, match="cannot make the run directory"):
        simulate(avg(), q6(), 4, run_dir=folder / "config.toml")


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_was_reached_is_written_after_an_error(tmp_path, error):
    def fail(record):
        if record["round"] == 3:
            raise error

    with pytest.raises(error):
        simulate(avg(), q6(), 9, run_dir=tmp_path, callbacks=[fail])
    assert [row["round"] for row in History.read_rows(tmp_path / "history.csv")] == [1, 2, 3]
    with np.load(tmp_path / "model.npz") as model:
        assert model["x"].tobytes() == simulate(avg(), q6(), 3).x.tobytes()


def test_files_are_written_in_one_step(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")

    def half():
        with atomic(path) as temporary:
            temporary.write_text("half")
            assert path.read_text() == "old"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


# --- bytes and the coordinator --------------------------------------------------------------------


def test_bytes_by_hand():
    """A vector of 8 numbers is 128 + 64 bytes, a number 8, an index of the l1 ball 128 + 8."""
    problem = q6_ball()
    fedfw = FedFW(problem.constraint, penalty=1.0)
    for made, given, up, down in ((avg(), q6(), 192, 192), (fedfw, problem, 136, 208)):
        history = simulate(made, given, 2)
        assert history["uplink_bytes"].tolist() == [6 * up, 2 * 6 * up]
        assert history["downlink_bytes"].tolist() == [6 * down, 2 * 6 * down]
    history = simulate(FedFW(problem.constraint, penalty=1.0, **HALF), problem, 30)
    # Each client's first message after round 1 brings x0 along.
    assert history["downlink_bytes"][-1] == 30 * 3 * 208 + 3 * 192


def test_replies_nobody_asked_for_and_error_replies():
    def alter(request, reply):
        if request.round == 2 and request.client == min(run.server.cohort):
            outside = min(set(range(6)) - set(run.server.cohort))
            return [replace(reply, clients=[outside]), replace(reply, clients=[77]), reply]
        if request.round == 3 and request.client == min(run.server.cohort) and not failed:
            failed.append(1)
            return [Reply([request.client], 3, error="out of memory")]
        return [reply]

    failed = []
    run = OpenRun(avg(**HALF, min_replies=3), q6(), alter=alter)
    run.play(4)
    assert run.server.counts == {"dropped": 3, "retries": 1}
    assert run.x.tobytes() == OpenRun(avg(**HALF), q6()).play(4).x.tobytes()


def test_errors_of_clients_end_the_run_by_name():
    run = OpenRun(avg(), q6(), alter=lambda q, r: [Reply([q.client], q.round, error="no disk")])
    with pytest.raises(
        RoundError, match=r"after 4 attempts \(clients 0, 1, 2, 3, 4 and 1 more: no disk\)"
    ):
        run.play()


def test_a_restored_client_is_asked_again_within_the_attempt():
    problem = q6_ball()
    run = OpenRun(FedFW(problem.constraint, penalty=1.0), problem)
    run.server.max_retries = 0
    run.play(3)
    run.clients[2] = run.new_client(2)
    run.play(2)
    assert run.server.counts == {"lost": 1}

    def forgets(request, reply):
        return [replace(reply, payload={}, lost=True)] if request.client == 2 else [reply]

    run.alter = forgets
    with pytest.raises(RoundError, match="client 2: it reports again that its state is lost"):
        run.play()


def test_a_late_word_of_a_lost_state_changes_nothing():
    """News of an earlier round: the client has answered since, or will be asked again."""

    def alter(asked, reply):
        if asked.round == 3 and asked.client == 2 and not told:
            told.append(1)
            return [replace(reply, payload={}, round=2, lost=True)]
        return [reply]

    told, problem = [], q6_ball()
    strategy = FedFWPlus(problem.constraint, penalty=1.0)
    run = OpenRun(strategy, problem, alter=alter).play(5)
    assert run.server.counts == {"dropped": 1, "retries": 1}
    assert run.state.resets == 0
    assert run.x.tobytes() == OpenRun(strategy, problem).play(5).x.tobytes()


def test_a_part_of_a_request_holds_what_is_its_clients_alone():
    problem = q6_ball()
    run = OpenRun(FedFW(problem.constraint, penalty=1.0, **HALF), problem).play(2)
    request = Round.begin(run.server).next_request()
    assert request.restore
    for place, client in enumerate(request.clients):
        part = request.only([place])
        assert part.clients == [client]
        assert part.acknowledged.tolist() == [request.acknowledged[place]]
        assert part.restore.keys() == request.restore.keys() & {client}


def test_the_step_after_a_query_is_a_first_attempt():
    run = OpenRun(FedSGM(client_lr=0.1, local_steps=1, tolerance=0.1), q6_limited())
    round_ = Round.begin(run.server)
    query = round_.next_request()
    round_.take(run.answer(query))
    step = round_.next_request()
    assert (query.phase, query.attempt, step.phase, step.attempt) == ("query", 1, "train", 1)
    assert round_.next_request().attempt == 2  # nobody has answered


def test_a_collective_restart_drops_the_other_replies():
    problem, asked = q6_ball(), []

    def alter(request, reply):
        asked.append((request.round, request.client, request.down["resets"]))
        return [reply]

    run = OpenRun(FedFWPlus(problem.constraint, penalty=1.0), problem, alter=alter).play(2)
    run.clients[2] = run.new_client(2)
    up = run.server.uplink_bytes
    run.play(1)
    assert [a for a in asked if a[0] == 3] == [(3, j, r) for r in (0, 1) for j in range(6)]
    assert run.server.counts == {"lost": 1}
    assert run.server.replies == 6
    assert run.server.uplink_bytes == up + (2 + 6) * 136  # two came before the news
