"""Apps as people have them: layouts of arrays, frozen and tied weights, metrics of every kind."""

from __future__ import annotations

import gc
import re
import weakref

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, on_grid
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

from flower_fedcon.errors import FedConError
from flower_fedcon.flower import nodes
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedDyn, FedProx, Scaffold
from flower_fedcon.torch import train_step

pytestmark = [on_grid, pytest.mark.filterwarnings("ignore::UserWarning")]


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))))


class Transposed(Small):
    """Its first weights lie in memory column by column, as scikit-learn's do after `fit`."""

    def __init__(self):
        super().__init__()
        self.a.weight = nn.Parameter(torch.randn(4, 8).t())


def with_buffers(**buffers):
    """Return a kind of model with more buffers."""

    class Buffered(Small):
        def __init__(self):
            super().__init__()
            for name, values in buffers.items():
                self.register_buffer(name, torch.as_tensor(values))

    return Buffered


Half = with_buffers(sixteen=torch.ones(2, dtype=torch.float16))
Rotary = with_buffers(phases=torch.ones(2, dtype=torch.complex64))
Masked = with_buffers(mask=[0.0, -torch.inf], nothing=torch.zeros(0), large=2**53 + 1)


class Frozen(Small):
    def __init__(self):
        super().__init__()
        self.a.requires_grad_(False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.second(torch.relu(self.first(x))))


def rows(place):
    rng = torch.Generator().manual_seed(place)
    x = torch.randn(40, 4, generator=rng)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()


def app_of(kind, body=None, trained=lambda loss: {}, evaluated=None, named=""):
    """Return an app that trains such a model by SGD, or by `body(model, method)`."""

    def make(load):
        app = ClientApp()

        def model_of(message):
            model = kind()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            return model

        @app.train()
        @train_step(num_examples=lambda context: len(rows(context.node_config["partition-id"])[0]))
        def train(message, context, method):
            model, (x, y) = model_of(message), rows(context.node_config["partition-id"])
            if body is None:
                correction = method.begin(model)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            else:
                correction, optimizer = body(model, method)
            loss = torch.zeros(())
            for _ in range(3 if len(x) else 0):
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                if correction is not None:
                    correction.apply_gradients(model)
                optimizer.step()
            metrics = MetricRecord({"num-examples": len(x), **trained(float(loss))})
            arrays = {f"{named}{name}": value for name, value in model.state_dict().items()}
            content = {"arrays": ArrayRecord(arrays), "metrics": metrics}
            return Message(RecordDict(content), reply_to=message)

        if evaluated is not None:

            @app.evaluate()
            def evaluate(message, context):
                metrics = {"num-examples": 40, **evaluated(context.node_config["partition-id"])}
                return Message(RecordDict({"m": MetricRecord(metrics)}), reply_to=message)

        return app

    return make


PROX = FedProx(proximal=0.1)


def start(strategy=PROX, kind=Small, rounds=2, **options):
    given = ("body", "trained", "evaluated", "named")
    app = {name: options.pop(name) for name in given if name in options}
    torch.manual_seed(0)
    model = kind()
    grid = FakeGrid([None] * 3, make=app_of(kind, **app))
    first = ArrayRecord(model.state_dict())
    result = strategy.start(grid, first, rounds, **{"round_deadline": 2.0, **options})
    return result, model.state_dict(), result.arrays.to_torch_state_dict()


@pytest.mark.parametrize(
    ("kind", "declared"), [(Small, None), (Transposed, None), (Half, ["sixteen"]), (Tied, None)]
)
def test_models_are_trained(kind, declared):
    result, before, after = start(PROX, kind, buffers=declared)
    assert result.history.rows[-1]["dropped"] == 0
    assert list(after) == list(before)
    for name, value in after.items():
        assert (value.shape, value.dtype) == (before[name].shape, before[name].dtype)
    moved = [name for name in after if not torch.equal(after[name], before[name])]
    assert set(before) - set(moved) == ({"sixteen"} if kind is Half else set())
    if kind is Tied:
        assert torch.equal(after["first.weight"], after["second.weight"])


def own_step(model, method):
    return None, method.optimizer(model.parameters(), 0.05)


@pytest.mark.parametrize(
    ("strategy", "more"),
    [(PROX, {}), (FedDualAvg(L1(0.001), client_lr=0.05), {"body": own_step})],
    ids=["begin", "optimizer"],
)
def test_what_is_frozen_never_moves(strategy, more, monkeypatch):
    """Declared beside the statistics of batch normalisation, which stay buffers."""
    monkeypatch.setattr(nodes, "_HOPELESS", 0.0)
    _, before, after = start(strategy, Frozen, buffers=["a.*"], **more)
    assert torch.equal(after["a.weight"], before["a.weight"])
    assert not torch.equal(after["b.weight"], before["b.weight"])
    assert not torch.equal(after["norm.running_mean"], before["norm.running_mean"])
    words = r"frozen in this client's model: 'a.weight', 'a.bias'. Declare .*\['a.weight', 'a.b"
    with pytest.raises(FedConError, match=words):
        start(strategy, Frozen, **more)


def test_buffers_that_all_clients_hold_alike_stay_as_they_are():
    """Also what a mean would not keep: infinite entries, and whole numbers past 2^53."""
    result, before, after = start(PROX, Masked, buffers=["mask", "nothing"])
    assert result.history.rows[-1]["dropped"] == 0
    for name in ("mask", "nothing", "large"):
        assert torch.equal(after[name], before[name])


@pytest.mark.parametrize(
    ("kind", "declared", "words"),
    [
        (Half, None, r"initial_arrays\['sixteen'\] is float16.*buffers=\['sixteen'\]"),
        (Masked, None, r"\['mask'\] holds values that are not finite.*'nothing'\] has no entry.*"
                       r"\['mask', 'noth"),
        (Rotary, None, r"'phases'\] is complex64.*persistent=False"),
        (Rotary, ["phases"], r"'phases'\] is complex64.*persistent=False"),
    ],
)  # fmt: skip
def test_arrays_that_methods_do_not_work_on_are_named_with_what_helps(kind, declared, words):
    with pytest.raises(FedConError, match=words):
        start(PROX, kind, buffers=declared)


def without_begin(model, method):
    return None, torch.optim.SGD(model.parameters(), lr=0.05)


def half_an_optimizer(model, method):
    optimizer = torch.optim.SGD([next(model.parameters())], lr=0.05)
    return method.begin(model, optimizer), optimizer


def with_a_bug(model, method):
    return {}["lr"], None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (without_begin, r"has taken no step with it.* \(test_apps.*:\d+ in train\)"),
        (half_an_optimizer, r"does not move all.* \(test_apps.*, test_apps.*half_an_optimizer\)"),
        (with_a_bug, r"KeyError\('lr'\) \(.*test_apps_as_people_have_them.py:\d+ in with_a_bug\)"),
    ],
)
def test_a_loop_that_all_clients_refuse_ends_the_run_and_says_where_it_is(body, said):
    with pytest.raises(FedConError, match=f"{said}.*after 3 attempts"):
        start(body=body, round_deadline=600.0)


def test_a_metric_that_cannot_be_averaged_costs_that_metric_alone(caplog):
    measured = {"recall": [0.25, 0.75], "gone": float("nan"), "round": 3.0, "huge": 1e300 * 1e10}
    result, _, _ = start(
        FedAvg(),
        trained=lambda loss: {"train_loss": loss, **measured},
        evaluated=lambda place: {"accuracy": float(place), "gone": float("inf")},
        evaluate_every=1,
    )
    row = result.history.rows[-1]
    assert row["dropped"] == 0
    assert (row["recall[0]"], row["recall[1]"], row["accuracy"]) == (0.25, 0.75, 1.0)
    assert row["round"] == 2
    assert not {"gone", "huge"} & row.keys()
    assert caplog.text.count("its metric gone is left out") == 3  # once for each client


def test_clients_that_fail_to_evaluate_are_counted(caplog):
    """The mean is over the others, and the record says how many they are not."""

    def fails_at_the_first(place):
        if place == 0:
            raise ValueError("no test data here")
        return {"accuracy": float(place)}

    result, _, _ = start(FedAvg(), evaluated=fails_at_the_first, evaluate_every=1)
    assert result.history["unheard"].tolist() == [1, 1]
    assert result.history["accuracy"].tolist() == [1.5, 1.5]
    assert "no evaluation from client 0" in caplog.text
    assert "'no test data here'>; look for 'Traceback' in the node's own log" in caplog.text


def test_metrics_of_one_name_are_kept_apart():
    result, _, _ = start(
        FedAvg(),
        trained=lambda loss: {"loss": 7.0},
        evaluated=lambda place: {"loss": float(place), "own": 2.0},
        evaluate_fn=lambda server_round, arrays: MetricRecord({"loss": -1.0 * server_round}),
        evaluate_every=1,
    )
    row = result.history.rows[-1]
    assert (row["train_loss"], row["evaluate_loss"], row["server_loss"]) == (7.0, 1.0, -2.0)
    assert (row["evaluate_loss/2"], row["own"]) == (2.0, 2.0)
    assert "loss" not in row
    assert result.train_metrics_clientapp[2]["loss"] == 7.0
    assert result.evaluate_metrics_clientapp[1]["loss"] == 1.0
    central = result.evaluate_metrics_serverapp
    assert {number: found["loss"] for number, found in central.items()} == {0: 0, 1: -1, 2: -2}


def test_what_clients_measure_in_training_is_recorded_in_each_round(caplog):
    """Evaluated or not: it came with the uploads."""
    caplog.set_level("INFO", logger="flwr")
    losses = iter(range(9))
    result, _, _ = start(
        FedAvg(), Small, rounds=3, trained=lambda loss: {"loss": next(losses)}, evaluate_every=0
    )
    found = result.train_metrics_clientapp
    assert {number: measured["loss"] for number, measured in found.items()} == {1: 1, 2: 4, 3: 7}
    assert [*found[1]] == ["loss"]  # the clients' own in recorded rounds
    assert found[3]["loss/1"] == 7.0
    assert result.history["round"].tolist() == [3]
    assert "[ROUND 2/3] 3 of 3 replies; loss 4; " in caplog.text


def test_the_log_has_means_and_no_single_client_s_values(caplog):
    """They are in the history and the result."""
    caplog.set_level("INFO", logger="flwr")
    measured = {"trained": lambda loss: {"loss": 1.0}, "evaluated": lambda place: {"loss": 2.0}}
    result, _, _ = start(**measured)
    assert {"train_loss/0", "evaluate_loss/2"} <= {*result.history.columns}
    assert "loss/2" in result.evaluate_metrics_clientapp[2]
    assert "train_loss 1, evaluate_loss 2, " in caplog.text
    assert "loss/" not in caplog.text
    assert re.search(r"\[ROUND 1/2\] .* s so far, about .* left", caplog.text)
    assert re.search(r"\[ROUND 2/2\] 3 of 3 replies.* s so far$", caplog.text, re.MULTILINE)


@pytest.mark.parametrize(
    ("hook", "more"),
    [("configure_train", r'.*message.content\["config"\]\["server-round"\]'),
     ("aggregate_train", ""), ("aggregate_evaluate", "")],
)  # fmt: skip
def test_hooks_that_would_not_be_called_are_refused(hook, more):
    """And where the round of a message is."""
    own = type("Mine", (FedProx,), {hook: lambda *_: None})
    with pytest.raises(
        FedConError, match=f"Mine defines {hook}, which start.. does not call{more}"
    ):
        start(own(proximal=0.1))


def test_a_run_is_not_resumed_with_another_train_config_or_weighting(tmp_path, caplog):
    """Unless it is allowed."""
    then = {"run_dir": tmp_path / "run", "train_config": ConfigRecord({"lr": 0.05})}
    caplog.set_level("INFO", logger="flwr")
    start(weighting="examples", **then)
    assert f"Run directory: {(tmp_path / 'run').resolve()}" in caplog.text
    now = {**then, "rounds": 3, "resume": True, "weighting": "examples"}
    other = {"train_config": ConfigRecord({"lr": 0.01})}
    with pytest.raises(FedConError, match=r"train_config was .*0\.05.*, is .*0\.01"):
        start(**(now | other))
    with pytest.raises(FedConError, match=r"weighting was 'examples', is"):
        start(**(now | {"weighting": "uniform"}))
    start(**(now | other), allow_changes=["train_config"])


def test_the_log_has_round_0_and_no_violation_without_a_constraint(caplog):
    caplog.set_level("INFO", logger="flwr")
    measured = {"evaluate_fn": lambda server_round, arrays: MetricRecord({"loss": 2.5})}
    start(evaluated=lambda place: {"accuracy": 1.0}, **measured)
    assert "[ROUND 0/2] evaluate_fn: {'loss': 2.5}" in caplog.text
    assert "accuracy 1" in caplog.text
    assert "violation" not in caplog.text


def test_two_counts_of_a_clients_examples_are_told_once(caplog):
    for weighting, told in (("examples", 1), ("uniform", 0)):
        caplog.clear()
        trained = {"trained": lambda loss: {"num-examples": 80}}
        start(Scaffold(), Small, weighting=weighting, **trained)
        words = 'num_examples of train_step is 40, but its reply has "num-examples" 80'
        assert caplog.text.count(words) == told


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (FedDyn(), r"give proximal, from sqrt\(mu L\) to L\. For a train loop .* proximal=0\.1$"),
        (FedProx(), r"give proximal, from L/10 to L\. For a train loop begin with proximal=0\.1$"),
        (FedDualAvg(L1(1e-4)), r"give client_lr, at most 1/L\. For a train loop .* client_lr=0"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_a_train_loop_needs_is_told_with_a_number_to_begin_with(strategy, said):
    with pytest.raises(FedConError, match=said):
        start(strategy, Small)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("strategy", [FedProx(proximal=0.1), Scaffold()], ids=lambda s: s.name)
def test_an_empty_loader_is_an_empty_client(strategy, weighting, caplog, monkeypatch):
    """It counts for nothing, in training and evaluation, and ends nothing."""
    whole = rows
    none = lambda place: tuple(a[:0] for a in whole(1)) if place == 1 else whole(place)  # noqa: E731
    monkeypatch.setitem(globals(), "rows", none)
    result, _, after = start(
        strategy,
        evaluated=lambda place: {"accuracy": 1.0, "num-examples": 40 * (place != 1)},
        evaluate_every=1,
        weighting=weighting,
    )
    row = result.history.rows[-1]
    assert row["replies"] == 2
    assert row["accuracy"] == 1.0
    assert "accuracy/1" not in row
    assert all(np.isfinite(value).all() for value in after.values())
    assert f"{strategy.title}: this client has no examples, so it does not count" in caplog.text


def test_a_run_directory_has_the_model_by_its_layers_names(tmp_path):
    _, before, after = start(run_dir=str(tmp_path / "run"))
    with np.load(tmp_path / "run" / "model.npz") as saved:
        assert set(saved) == set(before)
        for name in before:
            np.testing.assert_array_equal(saved[name], after[name].numpy())


def test_what_a_message_has_brought_is_free_when_it_is_answered():
    """Without the collector, which may come many messages of a large model later."""
    seen = []

    def body(model, method):
        seen.append(weakref.ref(method))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if len(seen) % 2:
            return method.begin(model), optimizer
        method.begin(model, optimizer)
        return None, optimizer

    start(rounds=1, body=body)  # PyTorch's own first steps keep some
    seen.clear()
    gc.disable()
    try:
        start(body=body)
        assert [found() for found in seen] == [None] * 6
    finally:
        gc.enable()


def test_wrapped_models_reply_as_they_are():
    """The names of a compiled model, or of one in DistributedDataParallel, are the server's."""

    def body(model, method):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        method.begin(nn.DataParallel(model), optimizer)
        return None, optimizer

    plain, _, _ = start(body=body)
    _, before, after = start(body=body, named="module._orig_mod.")
    assert list(after) == list(before)
    for name, array in plain.arrays.to_torch_state_dict().items():
        assert torch.equal(array, after[name])


def test_the_log_is_in_the_form_of_flower_s(caplog):
    caplog.set_level("INFO", logger="flwr")
    strategy = FedProx(proximal=0.25, min_replies=2)
    start(strategy, Small, train_config={"lr": 0.5}, trained=lambda loss: {"loss": 0.5})
    lines = caplog.messages
    buffers = [name for name, _ in Small().named_buffers()]
    (begins,) = [i for i, line in enumerate(lines) if line == "Starting FedProx strategy:"]
    assert lines[begins + 1 : begins + 11] == [
        "\t├── Number of rounds: 2",
        "\t├── Clients: 3, weighting: uniform",
        "\t├── ArrayRecord (0.00 MB)",
        f"\t├── Averaged, not trained: {', '.join(buffers)}",
        "\t├── ConfigRecord (train): {'lr': 0.5}",
        "\t├── ConfigRecord (evaluate): (empty!)",
        "\t├──> Sampling:",
        "\t│\t├── participation: Full()",
        "\t│\t└── min_replies: 2",
        "\t├──> FedProx:",
    ]
    assert "\t│\t└── proximal: 0.25" in lines
    assert "\tClientApp-side train metrics, round 2: {'loss': 0.5" in caplog.text


def test_a_model_that_is_not_finite_has_advice_that_fits_a_train_loop():
    """It is no table, whose rows one could impute."""

    def body(model, method):
        correction = method.begin(model)
        return correction, torch.optim.SGD(model.parameters(), lr=1e30)

    words = r"the (model|gradient) of the train loop is not finite \(.*lower learning rate"
    with pytest.raises(FedConError, match=words):
        start(body=body, max_retries=1)


@pytest.mark.parametrize(
    ("strategy", "sent"), [(Scaffold(), 's "delta" and "dc"'), (FedAvg(), ' "delta"')]
)
def test_the_log_says_what_a_client_uploads_in_this_run(strategy, sent, log):
    """Scaffold's variates too: a server cannot derive them where it does not know the steps."""
    start(strategy, Small)
    assert f"In round 1 each client uploads the array{sent}" in log.messages
