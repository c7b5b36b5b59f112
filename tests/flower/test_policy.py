"""A node's policy: what it refuses, what a server can learn of its rows, and what it keeps."""

from __future__ import annotations

import errno
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import Context, RecordDict
from harness import OPEN, OpenRun
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import avg, q6_objectives

from flower_fedcon import FederatedProblem, Policy, client_app, simulate
from flower_fedcon.clients import FedAvgClient, ScaffnewClient
from flower_fedcon.core.exchange import Site, known
from flower_fedcon.core.protocol import CERTIFY, PREPARE, STATISTICS, RunInfo
from flower_fedcon.core.rng import BATCH
from flower_fedcon.core.round import Round
from flower_fedcon.errors import ConfigError, RefusedError, RoundError
from flower_fedcon.flower.codec import RequestEncoder
from flower_fedcon.flower.leftovers import tidy
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import LeastSquares, LogisticRegression
from flower_fedcon.registry import client_class
from flower_fedcon.solvers import AOGM, LBFGS, GradientDescent
from flower_fedcon.strategies import FedAvg, FedProx, Scaffnew, Scaffold

ROWS, DIMENSION = 20, 4


@pytest.fixture(scope="module")
def objective():
    rng = np.random.default_rng(0)
    return LeastSquares(rng.standard_normal((ROWS, DIMENSION)), rng.standard_normal(ROWS))


def node(**config):
    """Return a node's context; `min_rows=3` stands for policy.min-rows."""
    config = {f"policy.{name.replace('_', '-')}": value for name, value in config.items()}
    return Context(1, 1, {"partition-id": 0, **config}, RecordDict(), {})


class Server:
    """Asks one client whatever it likes."""

    def __init__(self, strategy, objective, context, **client):
        self.run = OpenRun(strategy, FederatedProblem([objective]))
        self.info, self.objective, self.context = self.run.server.info, objective, context
        self.client = client

    def ask(self, x, seed=0, server_round=1, phase="train", **settings):
        """Return the arrays that come back, and the configuration of the reply."""
        info = replace(self.info, seed=seed, settings={**self.info.settings, **settings})
        request = Round.begin(self.run.server).next_request()
        request = replace(request, round=server_round, phase=phase)
        for name, value in request.broadcast.items():
            if isinstance(value, np.ndarray):
                request.broadcast[name] = np.asarray(x, float)
        if phase == CERTIFY:
            request = replace(request, broadcast={"x": np.asarray(x, float)})
        arrays, config = RequestEncoder(info).encode(request, 0)
        kind = client_class(info.algorithm)
        client = kind(self.objective, context=self.context, **self.client)
        arrays, _, answer = client.fit(list(arrays.values()), config)
        return arrays, answer

    def error(self, x=None, **asked):
        """Return the reason for a refusal, or nothing."""
        return self.ask(np.zeros(DIMENSION) if x is None else x, **asked)[1].get("error", "")

    def evaluated(self, x):
        """Return the answer to an evaluation, and what it says."""
        config = {"layout": self.info.layout.to_json(), "client": 0}
        client = FedAvgClient(self.objective, context=self.context)
        value, _, said = client.evaluate([x], config)
        return value, said.get("error", "")


def learner(objective, context, size):
    strategy = FedAvg(client_lr=1.0, local_steps=1, batch_size=size)
    return Server(strategy, objective, context)


def solved_rows(server, size, rounds=60):
    """Return every row's gradient at 0, as a server that knows the seed solves for it."""
    means, which = [], []
    for server_round in range(1, rounds + 1):
        (delta,), _ = server.ask(np.zeros(DIMENSION), seed=7, server_round=server_round)
        means.append(-delta)
        rng = stream_of(server.objective, 7, server_round)
        which.append(np.isin(np.arange(ROWS), rng.permutation(ROWS)[:size]) / size)
    return np.linalg.lstsq(np.array(which), np.array(means), rcond=None)[0]


def stream_of(objective, seed, server_round):
    run = RunInfo("fedavg", seed, None, 1)
    client = FedAvgClient(objective)
    client._run, client._round, client._index = run, server_round, 0
    return client.rng(BATCH)


def row_gradients(objective):
    return -objective.rows.reshape(ROWS, -1) * objective.targets[:, None]


def test_without_a_policy_a_server_reads_the_rows(objective):
    """The attack that a policy is against; also with larger batches."""
    for size in (1, 8):
        server = learner(objective, node(), size)
        server.client = {"policy": replace(OPEN)}
        server.context = None
        found = solved_rows(server, size, 192 if size == 1 else 60)
        assert found == pytest.approx(row_gradients(objective), abs=1e-9)


def test_the_default_policy_takes_no_batches_of_a_few_rows(objective):
    error = learner(objective, node(), 1).error()
    assert error == "refused: this node's policy has policy.min-batch-size = 4, not 1"


def test_with_private_batches_a_server_cannot_read_the_rows(objective):
    private = learner(objective, node(batches="private"), 8)
    error = solved_rows(private, 8) - row_gradients(objective)
    assert np.linalg.norm(error) > 0.5 * np.linalg.norm(row_gradients(objective))


def test_private_batches_are_batches(objective):
    """Of the right size, other ones each time, and right in the mean."""
    server = learner(objective, node(batches="private"), 8)
    found = np.array([server.ask(np.ones(DIMENSION))[0][0] for _ in range(400)])
    assert len(np.unique(found, axis=0)) > 380  # of 125,970 subsets
    spread = found.std(axis=0) / np.sqrt(400)
    assert (np.abs(found.mean(axis=0) + objective.gradient(np.ones(DIMENSION))) < 5 * spread).all()
    seeded = learner(objective, node(), 8)
    assert len({seeded.ask(np.ones(DIMENSION))[0][0].tobytes() for _ in range(5)}) == 1


_NOT_CERTIFY = "phases = train, query, evaluate, scales, prepare, statistics, not certify"
ASKED = {
    "certify": (avg(), {"phase": CERTIFY}, {}, _NOT_CERTIFY),
    "steps": (avg(), {"local_steps": 10**12}, {}, "max-local-steps = 10000, not 1000000000000"),
    "algorithm": (avg(), {}, {"algorithms": "fedprox, scaffold"},
                  "algorithms = fedprox, scaffold, not fedavg"),
    "rows": (avg(), {}, {"min_rows": 21}, "min-rows = 21, and it has 20"),
    "batches": (avg(batch_size=10), {}, {"batches": "none"}, "batches = none, not batch_size=10"),
    "message": (avg(), {}, {"max_message_bytes": 31}, "max-message-bytes = 31, not 32"),
    "AOGM": (FedProx(proximal=1.0, local_solver=AOGM(max_iterations=10**9)), {}, {},
             "max-solver-iterations = 100000, not 1000000000"),
    "LBFGS": (FedProx(proximal=1.0, local_solver=LBFGS()), {}, {"max_solver_iterations": 999},
              "max-solver-iterations = 999, not 1000"),
    "steps of a solver": (FedProx(proximal=1.0, local_solver=GradientDescent(steps=10**6)), {}, {},
                          "max-solver-iterations = 100000, not 1000000"),
    "exact": (FedProx(proximal=1.0), {}, {"max_solver_iterations": 99_999},
              "max-solver-iterations = 99999, not 100000"),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_what_is_refused_is_answered_with_the_reason_and_logged(case, objective, caplog):
    if case == "certify":
        pytest.importorskip("flower_fedcon.tables", reason="the policy names their words")
    strategy, asked, config, words = ASKED[case]
    began = time.monotonic()
    arrays, answer = Server(strategy, objective, node(**config)).ask(np.zeros(DIMENSION), **asked)
    assert (arrays, answer["error"]) == ([], f"refused: this node's policy has policy.{words}")
    assert f"this node answers with an error: {answer['error']}" in caplog.text
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local_steps": -5}, "local_steps must be a whole number >= 1, got -5"),
        ({"local_steps": 2.5}, "local_steps must be a whole number, got 2.5"),
        ({"local_steps": True}, "local_steps must be a whole number, got True"),
        ({"client_lr": float("nan")}, "client_lr must be a finite number, got nan"),
        ({"client_lr": "x"}, "client_lr must be a finite number, got 'x'"),
        ({"batch_size": -1}, "batch_size must be a whole number >= 1, got -1"),
        ({"local_solver": 3}, "local_solver must be a local solver, got 3"),
    ],
)
@pytest.mark.parametrize("policy", [OPEN, None])
def test_settings_that_make_no_sense_are_refused_by_any_node(settings, words, policy, objective):
    made = FedProx(proximal=1.0) if "local_solver" in settings else avg()
    server = Server(made, objective, node(), policy=policy)
    assert server.error(**settings) == words


def test_steps_of_a_coin_are_counted(objective):
    client = ScaffnewClient(objective)
    assert client.steps_asked(None, {"steps": 77.0}) == 77
    strategy = Scaffnew(client_lr=1e-9, communication_probability=1e-6)
    error = Server(strategy, objective, node()).error()
    assert error.startswith("refused: this node's policy has policy.max-local-steps = 1")


def test_a_step_ends_when_its_time_is_up(objective):
    strategy = FedAvg(client_lr=1e-9, local_steps=10**9)
    began = time.monotonic()
    server = Server(strategy, objective, node(max_seconds=0.3, max_local_steps=10**10))
    assert server.error().endswith("policy.max-seconds = 0.3, and the answer takes longer")
    assert time.monotonic() - began < 5
    assert not server.error(local_steps=5)
    time.sleep(0.4)  # nothing is left of the timer


@on_grid
def test_a_run_names_the_node_that_refuses(objective, caplog):
    """An evaluation that is refused costs the objective, a step the round."""
    objectives = [objective] * 3

    def make(**config):
        def app(load):
            inner = client_app(load)

            def call(message, context):
                if context.node_config["partition-id"] == 1:
                    context.node_config.update(config)
                return inner(message, context)

            return call

        return app

    fit = avg(min_replies=3)
    grid = FakeGrid(objectives, make=make(**{"policy.phases": "train"}))
    history = fit.start(grid, num_rounds=2).history
    assert "objective" not in history
    assert "client 1 (refused: this node's policy has policy.phases = train, not eva" in caplog.text
    grid = FakeGrid(objectives, make=make(**{"policy.max-local-steps": 1}))
    words = r"client 1: refused: .* policy.max-local-steps = 1, not 2"
    with pytest.raises(RoundError, match=words):
        fit.start(grid, num_rounds=2, max_retries=3)
    plain = simulate(avg(), FederatedProblem(objectives), 2)
    found = fit.start(FakeGrid(objectives, make=make()), num_rounds=2).history
    assert found.x.tobytes() == plain.x.tobytes()


@on_grid
def test_an_app_may_choose_its_policy_by_the_node(objective):
    def choose(context):
        return None if context.node_config["partition-id"] == 2 else Policy.open()

    grid = FakeGrid([objective] * 3, make=lambda load: client_app(load, policy=choose))
    with pytest.raises(RoundError, match=r"client 2: refused: .* policy.min-batch-size = 4, not 2"):
        avg(min_replies=3, batch_size=2).start(grid, num_rounds=1, max_retries=0)


def test_an_app_s_policy_gives_way_to_the_node_s():
    given = Policy(min_rows=5, phases="train,certify")
    assert Policy.of({}, given) == given
    assert Policy.of({"policy.min-rows": 7, "other": 1}, given) == replace(given, min_rows=7)
    assert given.phases == ("train", "certify")
    assert Policy.of({"policy.algorithms": "FedAvg, scaffold"}).algorithms == ("fedavg", "scaffold")
    assert FedAvgClient(q6_objectives()[0]).policy == OPEN


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"policy.min-rws": 7},
            r"unknown key 'policy.min-rws' of this node: did you mean 'policy.m",
        ),
        ({"policy.min-rows": 0}, r"policy.min-rows must be a whole number >= 1, got 0"),
        ({"policy.min-rows": "7"}, r"policy.min-rows must be a whole number >= 1, got '7'"),
        ({"policy.max-seconds": 0}, r"policy.max-seconds must be finite and > 0, got 0"),
        ({"policy.batches": "all"}, r"policy.batches must be one of 'seeded', 'private', 'none'"),
        ({"policy.phases": "train,fit"}, r"policy.phases must be one of 'train', .* got 'fit'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        Policy.of(config)


# --- what is kept -----------------------------------------------------------------------------


def leave(folder, run_id, days, size=100):
    """Write the state of a run that was used so many days ago."""
    path = folder / run_id / "0-abc" / "state"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * size)
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def runs(folder):
    return sorted(path.name[0] for path in folder.iterdir())


def test_states_of_old_runs_are_removed(tmp_path):
    for name, days in (("a", 40), ("b", 20), ("c", 0.01), ("d", 40)):
        leave(tmp_path, name * 32, days)
    (tmp_path / "notes").mkdir()
    (tmp_path / ("e" * 32)).symlink_to(tmp_path / "notes")
    os.utime(tmp_path / "notes", (0, 0))
    tidy(tmp_path, "d" * 32, Policy(keep_days=30))
    assert runs(tmp_path) == ["b", "c", "d", "e", "n"]  # d is the run that goes on
    tidy(tmp_path, "d" * 32, Policy.open())
    assert runs(tmp_path) == ["b", "c", "d", "e", "n"]
    tidy(tmp_path, "d" * 32, Policy(max_state_bytes=199))
    assert runs(tmp_path) == ["c", "d", "e", "n"]  # the oldest, until there is room
    words = "states of other runs take 100 bytes on this node, and its policy has policy.max-st"
    with pytest.raises(RefusedError, match=words):  # c is in use: a run that begins cannot end it
        tidy(tmp_path, "d" * 32, Policy(max_state_bytes=99))
    assert runs(tmp_path) == ["c", "d", "e", "n"]


def test_what_other_processes_remove_meanwhile_is_not_missed(tmp_path, monkeypatch):
    """A client that writes its state beside; a node that tidies the same folder."""
    for name in ("a", "b"):
        leave(tmp_path, name * 32, 1)
    there = Path.lstat

    def gone(path):
        if path.name == "state" or path.name[0] == "b":
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        return there(path)

    monkeypatch.setattr(Path, "lstat", gone)
    tidy(tmp_path, "d" * 32, Policy())
    assert runs(tmp_path) == ["a", "b"]


def test_a_node_tidies_its_folder_when_it_meets_a_new_run(tmp_path, objective):
    leave(tmp_path, "a" * 32, 40)
    context = node()
    context.node_config["state-dir"] = str(tmp_path)
    strategy = Scaffold(client_lr=0.1, local_steps=1)
    server = Server(strategy, objective, context)
    assert not server.error()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {server.info.run_id, "requests"}  # the count is of all runs
    context.node_config["policy.max-state-bytes"] = 1
    other = Server(strategy, objective, context)
    assert "states of other runs take" in other.error()
    assert not server.error(server_round=2)  # this one goes on


def test_rows_are_not_read_at_huge_models_under_the_default_policy(objective):
    """The first request of an attack that has each row of a loss switch between 0 and 1."""
    rng = np.random.default_rng(0)
    secret = LogisticRegression(objective.rows, np.sign(objective.targets))
    x = rng.standard_normal(DIMENSION)
    for context, refused in ((node(), True), (node(max_model=1e30), False)):
        server = Server(FedAvg(client_lr=1e12, local_steps=1), secret, context)
        error = server.error(1e12 * (x + 1e6 * x))
        assert ("policy.max-model = 1e+12, not entries of" in error) == refused
        assert not server.error(x)
        value, error = server.evaluated(1e13 * x)
        assert np.isnan(value) == ("policy.max-model" in error) == refused


def test_an_entry_that_is_no_number_is_refused_like_a_large_one():
    for bad in (np.nan, np.inf, -1e13, 10**13, -(2**63), 1e13j, np.float16(np.inf)):
        with pytest.raises(RefusedError, match=r"policy.max-model = 1e\+12, not entries of"):
            Policy().check_model([np.zeros(3), np.array([bad, bad])])
    Policy().check_model([np.array([1e12]), np.array([10**12]), 1e300])  # a number is no model


def test_a_phase_that_is_no_step_gets_none(objective):
    """Or a server would write an allowed phase into a message for the step that is not."""
    server = learner(objective, node(phases="evaluate"), None)
    for phase, words in (("train", "policy.phases = evaluate, not train"), ("evaluate", "action")):
        arrays, answer = server.ask(np.zeros(DIMENSION), phase=phase)
        assert not arrays
        assert words in answer["error"]


@pytest.mark.parametrize("durable", [True, False])
def test_requests_on_a_node_s_rows_are_counted_over_runs(objective, tmp_path, durable):
    def context():
        found = node(max_requests=5)
        if durable:
            found.node_config["state-dir"] = str(tmp_path)
        return found

    strategy, now = FedAvg(client_lr=0.1, local_steps=1), context()
    refused = []
    for run in range(2):  # of other names
        now = context() if run else now
        now.node_config["name"] = f"north {run}"
        server = Server(strategy, objective, now)
        for k in range(4):
            error = server.evaluated(np.zeros(DIMENSION))[1] if k == 1 else server.error()
            refused.append("policy.max-requests = 5" in error)
    assert refused == [False] * 5 + [durable] * 3
    other = LeastSquares(objective.rows + 1.0, objective.targets)  # rows of another digest
    assert not Server(strategy, other, now).error()


def _asked(server, phase=STATISTICS, **broadcast):
    request = Round.begin(server.run.server).next_request()
    request = replace(request, phase=phase, broadcast=broadcast)
    arrays, config = RequestEncoder(server.info).encode(request, 0)
    client = client_class(server.info.algorithm)(server.objective, context=server.context)
    return client.fit(list(arrays.values()), config)[2].get("error", "")


@given(st.lists(st.integers(1, DIMENSION), min_size=1, max_size=6))
@settings(max_examples=10, deadline=None)
def test_a_request_counts_once_for_each_of_its_models(objective, sizes):
    """Or one request of many models would be an attack that max-requests counts as nothing."""
    pytest.importorskip("flower_fedcon.tables", reason="it asks for their statistics")
    most, answered = 9, 0
    server = Server(FedAvg(client_lr=0.1, local_steps=1), objective, node(max_requests=most))
    x = np.zeros(DIMENSION)
    for models in sizes:
        own = {"entries": np.arange(float(models)), "at": np.zeros((models, DIMENSION))}
        error = _asked(server, x=x, **{"asks.apart": 1.0}, **own)
        if answered + models > most:
            assert "policy.max-requests = 9, and it has answered" in error
            assert models == 1 or f"this request counts as {models}" in error
        else:
            assert not error
            answered += models
    while answered < most:  # what is left is the number of single ones
        assert not _asked(server, x=x, **{"asks.estimates": 1.0}, method=0.0)
        answered += 1
    assert "has answered so many" in _asked(server, x=x, **{"asks.estimates": 1.0}, method=0.0)


def test_a_malformed_request_counts_and_one_for_a_table_that_is_not_there_does_not(objective):
    pytest.importorskip("flower_fedcon.tables", reason="their exchanges")
    server = Server(FedAvg(client_lr=0.1, local_steps=1), objective, node(max_requests=3))
    for _ in range(4):
        assert "an objective instead of a table" in _asked(server, PREPARE, stage=1.0)
    x, two = np.zeros(DIMENSION), {"asks.estimates": 1.0, "asks.quality": 1.0}
    for malformed in ({}, {"asks.no_such": 1.0}, two):
        assert "asks for the statistics [" in _asked(server, x=x, **malformed)
    assert "has answered so many" in _asked(server, x=x, **{"asks.estimates": 1.0}, method=0.0)
    silent = Server(FedAvg(client_lr=0.1, local_steps=1), objective, node(phases="train"))
    assert "policy.phases = train, not statistics" in _asked(silent, x=x)


MODEL = np.zeros(DIMENSION)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"x": MODEL}, "asks for 'scales' without 'steps'"),
        ({"steps": 1.0}, "asks for 'scales' without 'x'"),
        ({"x": MODEL, "steps": np.nan}, "steps must be a number from 0 to 3, got nan"),
        ({"x": MODEL, "steps": 1e9}, "steps must be a number from 0 to 3"),
        ({"x": MODEL, "steps": np.ones(2)}, "steps must be a number from 0 to 3"),
        ({"x": 0.0, "steps": 1.0}, "a model must be an array of floats of shape (4,), got float"),
        ({"x": np.zeros(2), "steps": 1.0}, "a model must be an array of floats of shape (4,)"),
        ({"x": np.zeros(DIMENSION, int), "steps": 1.0}, "got int64 (4,)"),
    ],
)
def test_a_request_for_scales_that_is_none_is_refused_in_a_sentence(asked, words, objective):
    site = Site(objective, seen=objective, run=RunInfo("fedavg", 0, Layout.of(MODEL), 1))
    with pytest.raises(ConfigError, match=re.escape(words)):
        known()["scales"].tell(site, asked)


def test_what_no_statistic_counts_as_one_is_named():
    """A statistic that is told several models or points must say how many; else it is one."""
    several = {"apart": 5, "calibration": 2, "scales": 2}
    down = {"x": np.zeros(3), "at": np.zeros((5, 3)), "entries": np.zeros(5)}
    for name, exchange in known().items():
        assert exchange.counts(down) == several.get(name, 1)


def test_a_damaged_count_is_not_begun_anew(objective, tmp_path):
    context = node()
    context.node_config["state-dir"] = str(tmp_path)
    server = Server(FedAvg(client_lr=0.1, local_steps=1), objective, context)
    assert not server.error()
    (count,) = (tmp_path / "requests").glob("[0-9a-f]*")
    assert count.read_text() == "1"
    count.write_text("many")
    error = server.error()
    assert "damaged" in error
    assert count.name not in error  # the server learns no digest of the rows
