"""What somebody who comes from Flower gets wrong first: each is said, with what was meant."""

from __future__ import annotations

import inspect
import tomllib

import numpy as np
import pytest
from fake_grid import FakeGrid, asked, on_grid
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from pages import blocks

from flower_fedcon import EarlyStopping, client_app, server_app, train_step
from flower_fedcon.clients.fedavg import FedAvgClient
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.flower import nodes
from flower_fedcon.flower.apps import _settings
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedAvg, Scaffold

pytestmark = on_grid


def looping(examples=10, shown=True):
    """Return what makes an app of one step each, whose evaluation finds an accuracy."""

    def make(load):
        app = ClientApp()

        @app.train()
        @train_step
        def train(message, context):
            (x,) = message.content["arrays"].to_numpy_ndarrays()
            content = {
                "arrays": ArrayRecord([0.9 * x + context.node_config["partition-id"]]),
                "metrics": MetricRecord({"loss": 1.0, "num-examples": examples}),
            }
            return Message(RecordDict(content), reply_to=message)

        @app.evaluate()
        def evaluate(message, context):
            if not shown:
                raise OSError("no test data")
            metrics = MetricRecord({"accuracy": 0.9, "num-examples": 5})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app

    return make


def play(make=None, alter=None, node=None, **options):
    """Play FedAvg on three nodes, by default to the end of three rounds."""
    grid = FakeGrid([None] * 3, make=make or looping(), alter=alter)
    for j, context in enumerate(grid.nodes.values()):
        context.node_config.update(node(j) if node else {})
    options = {"num_rounds": 3, **options}
    return FedAvg().start(grid, ArrayRecord([np.zeros(2)]), **options).history


def stopping(column):
    return {"callbacks": [EarlyStopping(0.5, column, at_least=True)], "evaluate_every": 1}


# --- a column that is not recorded ----------------------------------------------------------------


def test_a_misspelled_column_is_named_at_the_first_record_and_at_the_end(log):
    history = play(**stopping("acuracy"))
    assert history["round"].tolist() == [1, 2, 3]
    first, last = (m for m in log.messages if "early stopping watche" in m)
    assert first.startswith("early stopping watches 'acuracy', which round 1 has not recorded: did")
    assert "did you mean 'accuracy'? Valid: accuracy, cohort" in first
    assert "accuracy/0" not in first  # one client's
    assert "'acuracy', which was never recorded, so it could not end the run: did you" in last


def test_the_right_column_and_one_that_comes_late_are_not_named(log):
    assert play(**stopping("accuracy"))["round"].tolist() == [1]

    def late(number, x):
        return {"mine": 0.4} if number > 1 else {}

    play(**stopping("mine"), evaluate=late)
    told = [m for m in log.messages if "early stopping" in m]
    assert [m.partition(" has")[0] for m in told] == [
        "early stopping watches 'mine', which round 1"
    ]


def test_an_evaluation_that_fails_everywhere_is_no_misspelling(log):
    play(looping(shown=False), **stopping("accuracy"))
    assert not any("early stopping" in m for m in log.messages)


# --- the error of an app in Flower's simulation ---------------------------------------------------

RAY = (
    "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor.run()"
    "\x1b[39m (pid=18798, ip=192.0.2.2, actor_id=747ea6999135793efca217ca01000000, repr=<flwr."
    "simulation.ray_transport.ray_actor.ClientAppActor object at 0x7f2b540cbf10>)\n"
    "                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
    '  File "/venv/lib/python3.11/site-packages/flwr/clientapp/client_app.py", line 161, in '
    "__call__\n    return self._registered_funcs[full_name](message, context)\n"
    '  File "/home/me/apps/quickstart/quickstart_numpy/client_app.py", line 16, in train\n'
    '    ndarrays = msg.content["arrays"].to_numpy_ndarrays()\n'
    "               ~~~~~~~~~~~^^^^^^^^^^^^^^^^\n"
    '  File "/venv/lib/python3.11/site-packages/flwr/app/message/typeddict.py", line 57, in '
    '__getitem__\n    return cast(dict[K, V], self.__dict__["_data"])[item]\n'
    "           ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~^^^^^^\n"
    "{error}\n\nThe above exception was the direct cause of the following exception:\n\n"
    "\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=18798, ip=192.0.2.2)\n"
    '  File "/venv/lib/python3.11/site-packages/flwr/simulation/ray_transport/ray_actor.py", line '
    "65, in run\n    raise ClientAppException(str(ex)) from ex\n"
    "flwr.clientapp.client_app.ClientAppException: \n"
    "Exception ClientAppException occurred. Message: {message}'>"
)
"""What Ray makes of an error in an app's train function."""


class Simulation(FakeGrid):
    """Nodes whose apps fail in the simulation's process for clients."""

    error, message = "KeyError: 'arrays'", "'arrays'"

    def replies_to(self, message):
        reason = RAY.replace("{error}", self.error).replace("{message}", self.message)
        return [Message(Error(2, reason), reply_to=message)]


def test_an_app_without_train_step_in_the_simulation(monkeypatch, log):
    monkeypatch.setattr(nodes, "_HOPELESS", 0.0)
    with pytest.raises(ConfigError, match=r"no node can take part.*write @train_step .* under its"):
        FedAvg().start(Simulation([None] * 3), ArrayRecord([np.zeros(2)]))
    refused = [m for m in log.messages if "write @train_step" in m]
    assert [m[:32] for m in refused] == ["nodes 998, 999, 1000 cannot take"]
    assert not any("no client has answered yet;" in m for m in log.messages)  # said once


def test_another_error_in_the_simulation_has_its_line(monkeypatch):
    monkeypatch.setattr(nodes, "_HOPELESS", 0.0)
    monkeypatch.setattr(Simulation, "error", "OSError: no disk")
    monkeypatch.setattr(Simulation, "message", "no disk")
    said = r"the client failed: OSError: no disk \(client_app.py:16 in train\)$"
    with pytest.raises(ConfigError, match=said):
        FedAvg().start(Simulation([None] * 3), ArrayRecord([np.zeros(2)]))


# --- keys of the run configuration ----------------------------------------------------------------


def keys_told(config, log):
    grid = FakeGrid([Quadratic(np.eye(1), np.array([float(j)])) for j in range(2)], make=client_app)
    server_app(lambda: FedAvg(client_lr=0.1, local_steps=1))(
        grid, Context(1, 1, {}, RecordDict(), {"num-server-rounds": 1, **config})
    )
    return sorted(m.partition("read ")[2].partition("? A")[0] for m in log.messages if "read " in m)


def test_keys_that_are_nearly_those_of_server_app_are_named(log):
    config = {"evaluate_every": 1, "run_dir": "runs", "quarantine-rouns": 3, "min-clients": 2}
    assert keys_told(config, log) == [
        "'evaluate_every': did you mean 'evaluate-every'",
        "'min-clients': did you mean 'min-clients-to-start'",
        "'quarantine-rouns': did you mean 'quarantine-rounds'",
        "'run_dir': did you mean 'run-dir'",
    ]


def test_the_page_s_keys_have_their_defaults():
    (block,) = [b for b in blocks("toml", "docs/deployment.md") if "[tool.flwr.app.config]" in b]
    config = tomllib.loads(block)["tool"]["flwr"]["app"]["config"]
    given, usual = inspect.signature(FedAvg.start).parameters, _settings({})
    found = {key: _settings(config).get(key) for key in (k.replace("-", "_") for k in config)}
    assert found == {key: usual.get(key, given[key].default) for key in found}


def test_keys_that_are_nearly_those_of_a_node_are_named(log):
    """Else a node would keep no state in the folder that it was given."""
    config = {"partition-id": 0, "sate-dir": "kept", "num_partitions": 2, "data": "a.npz"}
    FedAvgClient(Quadratic(np.eye(1), np.ones(1)), context=Context(1, 1, config, RecordDict(), {}))
    for key, meant in (("sate-dir", "state-dir"), ("num_partitions", "num-partitions")):
        assert f"does not read {key!r}: did you mean {meant!r}" in log.text
    assert "'data'" not in log.text


@pytest.mark.parametrize("key", ["num-sever-rounds", "num_server_rounds", "num-rounds"])
def test_a_misspelled_number_of_rounds_is_named(key, log):
    grid = FakeGrid([Quadratic(np.eye(1), np.zeros(1))] * 2, make=client_app)
    context = Context(1, 1, {}, RecordDict(), {key: 5})
    server_app(lambda: FedAvg(client_lr=0.1, local_steps=1))(grid, context)
    assert f"does not read {key!r}: did you mean 'num-server-rounds'" in log.text


def test_keys_of_an_app_s_own_are_left_alone(log):
    own = ["num-classes", "local-epochs", "learning-rate", "batch-size"]
    own += [
        "final-model",
        "fraction-evaluate",
        "experiment",
        "algorithm",
        "arguments",
        "l1",
        "penalty",
        "data",
        "rounds",
        "server-lr",
    ]
    assert keys_told(dict.fromkeys(own, 1), log) == []


@pytest.mark.parametrize("key", ["num-clients", "checkpoint-every", "start-timeout"])
def test_a_number_below_0_is_refused_with_the_range_of_its_key(key):
    with pytest.raises(ConfigError, match=f"{key} must be >= 0, where 0 .* default, got -2"):
        _settings({key: -2})


# --- what a train or evaluate function replies ----------------------------------------------------


def stepping(given, replied=lambda x: x, gradient=1.0, measured=lambda place: 1.0):
    """Return what makes an app of two corrected steps, which replies `replied` of their end."""

    def make(load):
        app = ClientApp()

        @app.train()
        @train_step
        def train(message, context, method):
            (start,) = (x,) = message.content["arrays"].to_numpy_ndarrays()
            correction = method.begin([x])
            for _ in range(2):
                (g,) = correction.apply_gradients([x], [gradient * np.ones_like(x)])
                x = x - 0.3 * g
            end = start if given == "sent" else replied(x)
            loss = MetricRecord({"train_loss": measured(context.node_id), "num-examples": 1})
            content = {"arrays": ArrayRecord([end]), "metrics": loss}
            return Message(RecordDict(content), reply_to=message)

        @app.evaluate()
        def evaluate(message, context):
            metrics = MetricRecord({"eval_loss": measured(context.node_id), "num-examples": 1})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app

    return make


def stepped(strategy=None, start=None, rounds=3, **app):
    grid = FakeGrid([None] * 3, make=stepping(app.pop("given", ""), **app))
    first = ArrayRecord([np.zeros(2) if start is None else start])
    return (strategy or FedAvg()).start(grid, first, rounds, evaluate_every=1).history


@pytest.mark.parametrize("strategy", [FedAvg(), Scaffold()], ids=lambda s: s.name)
@pytest.mark.parametrize("kind", [int, bool])
def test_a_reply_without_fractions_is_refused(strategy, kind):
    said = (
        rf"replied array 0 as {np.dtype(kind)}, and the model is float64: reply .*py:\d+ in train"
    )
    with pytest.raises(RoundError, match=said):
        stepped(strategy, replied=lambda x: x.astype(kind))


@pytest.mark.parametrize(("kind", "start"), [("float16", "float64"), ("float32", "float64"),
                                             ("float16", "float32"), ("float64", "float32"),
                                             ("float32", "float32")])  # fmt: skip
def test_a_reply_of_fewer_digits_is_said_once(kind, start, log):
    stepped(start=np.zeros(2, start), replied=lambda x: x.astype(kind))
    told = [m for m in log.messages if "its train function replies array 0" in m]
    assert len(told) == (np.dtype(kind).itemsize < np.dtype(start).itemsize)
    assert all(f"as {kind}, and the model is {start}" in m for m in told)


@pytest.mark.parametrize(("given", "gradient"), [("sent", 1.0), ("sent", 0.0), ("end", 1.0)])
def test_steps_that_are_not_replied_are_said_once(given, gradient, log):
    stepped(given=given, gradient=gradient)
    told = [m for m in log.messages if "replied the model that it was sent" in m]
    assert len(told) == (given == "sent" and gradient > 0)
    assert all("took 2 steps with nonzero gradients" in m for m in told)


def test_a_loss_that_is_no_number_is_counted_in_each_round_and_named_at_the_end(log):
    history = stepped(measured=lambda node: np.nan if node == 999 else float(node))
    assert history["unheard"].tolist() == [1, 1, 1]
    assert history["eval_loss"].tolist() == [999.0] * 3  # (1000 + 998) / 2
    assert "eval_loss/1" not in history
    for name in ("eval_loss", "train_loss"):
        assert sum(f"; {name} over 2 of 3 clients" in m for m in log.messages) == 3
        assert f"{name} of client 1 in 3 rounds (1 to 3)" in log.text


@pytest.mark.parametrize("end", [1.6e22, 2.0])
def test_a_loss_that_ends_far_above_its_first_value_is_said_once(end, log):
    values = iter([1.95] * 3 + [1.0] * 3 + [end] * 99)
    stepped(measured=lambda node: next(values))
    told = [m for m in log.messages if "the run diverges" in m]
    assert len(told) == 2 * (end > 20)  # of training, and of evaluations
    assert all("in round 1 and 1.6e+22 in round 3" in m for m in told)


# --- numbers of clients ---------------------------------------------------------------------------


def test_a_client_beyond_num_clients_is_told_so(log):
    class Later(FakeGrid):
        def get_node_ids(self):
            return super().get_node_ids()[: 2 if self.looks < 9 else 3]

    grid = Later([None] * 3, make=looping())
    history = FedAvg().start(grid, ArrayRecord([np.zeros(2)]), 9, num_clients=2).history
    assert history["replies"].tolist() == [2]
    assert "the run takes 2 clients (num_clients=2), and client 2 is one too many" in log.text
    assert "joined after" not in log.text


def test_a_number_of_clients_that_no_node_states_is_said(log):
    grid = FakeGrid([None] * 3, make=looping())
    for context in grid.nodes.values():
        del context.node_config["num-partitions"]
    FedAvg().start(grid, ArrayRecord([np.zeros(2)]), 1)
    told = [m for m in log.messages if "no node states num-partitions" in m]
    assert [m[:80] for m in told] == [
        "no node states num-partitions, so the run takes the 3 clients that are there: to"
    ]


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ((2, 2, 2), "the run has 3 clients, and the nodes state num-partitions = 2 on nodes 998"),
        ((3, 4, 3), "num-partitions = 3 on nodes 998, 1000; 4 on node 999"),
    ],
)
def test_numbers_of_partitions_that_do_not_fit_are_said_once(stated, said, log):
    assert play(node=lambda j: {"num-partitions": stated[j]})["replies"].tolist() == [3]
    (told,) = [m for m in log.messages if "num-partitions" in m]
    assert said in told


def test_fewer_clients_than_partitions_may_be_chosen(log):
    play(node=lambda j: {"num-partitions": 5}, num_clients=3)
    assert "num-partitions" not in log.text


def test_more_clients_to_start_with_than_there_can_be_are_said(log):
    play(min_clients_to_start=7)
    assert "min_clients_to_start is 7, and the nodes state 3 clients" in log.text


# --- rounds ---------------------------------------------------------------------------------------


def test_a_run_of_no_rounds_is_named(log):
    play(num_rounds=0)
    assert "num_rounds is 0 (num-server-rounds in a run configuration): no round is" in log.text
    assert "In round 1" not in log.text


def test_replies_without_examples_end_the_run_at_the_second_attempt():
    said = r"after 2 attempts \(clients 0, 1, 2: refused: FedAvg: this client has no "
    with pytest.raises(RoundError, match=said):
        play(looping(examples=0), weighting="examples")


def test_a_reply_that_grace_did_not_wait_for_says_so(log):
    class Silent(FakeGrid):
        def replies_to(self, message):
            here = message.metadata.dst_node_id != 999 or asked(message)["action"] != "train"
            return super().replies_to(message) if here else []

    grid = Silent([None] * 3, make=looping())
    FedAvg(min_replies=2).start(grid, ArrayRecord([np.zeros(2)]), num_rounds=1, grace=0.01)
    assert "s: grace=0.01 after 2 replies)" in log.text


@pytest.mark.parametrize(
    ("weighting", "said"),
    [("uniform", "min_w (1/N) sum_i f_i(w)"), ("examples", "min_w sum_i (n_i/n) f_i(w)")],
)
def test_the_problem_is_the_weighted_one(weighting, said, log):
    play(weighting=weighting)
    assert f"Problem: {said}" in log.text
