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
from flower_fedcon.strategies import FedAvg

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


# --- numbers of clients ---------------------------------------------------------------------------


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
