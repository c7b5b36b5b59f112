"""Flower's grid and apps, in memory: what nodes find is what this process finds."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from fake_grid import FakeGrid, Late, on_grid
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from harness import OpenRun
from problems import avg, q6, q6_ball, q6_objectives

from flower_fedcon import FederatedProblem, History, Sample, client_app, server_app, simulate
from flower_fedcon.clients import FedAvgClient
from flower_fedcon.core.gate import COUNTS
from flower_fedcon.core.round import Round
from flower_fedcon.engines import grid as grids
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower import messages
from flower_fedcon.flower.codec import RequestEncoder
from flower_fedcon.objectives import LeastSquares, LogisticRegression, Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.sets import L1Ball
from flower_fedcon.solvers import SGD
from flower_fedcon.strategies import DualFL, FedAvg, FedFW, FedNewton, FedProx, Scaffold

pytestmark = on_grid

HALF = {"participation": Sample(count=3)}
ROWS = (5, 20, 35)


def squares(rows=ROWS, seed=3, columns=4):
    rng = np.random.default_rng(seed)
    return [LeastSquares(rng.normal(size=(m, columns)), rng.normal(size=m)) for m in rows]


def curves():
    rng = np.random.default_rng(0)
    return [
        LogisticRegression(rng.normal(size=(30, 40)), rng.choice([-1, 1], 30), intercept=True)
        for _ in range(3)
    ]


class Layered:
    """||a||^2/2 + ||b||^2/2 - sum b, of layers a (2, 2) and b (3,)."""

    shape = [(2, 2), (3,)]  # noqa: RUF012

    def value(self, x):
        return float(np.vdot(x[0], x[0]) + np.vdot(x[1], x[1])) / 2 - float(x[1].sum())

    def gradient(self, x):
        return [x[0], x[1] - 1]


WEIGHTED = {"weighting": "examples"}
PSI = WithIntercept(L1(0.02))
FW = FedFW(L1Ball(1.0), penalty=1.0)
CASES = {
    "full": (FW, q6_objectives, {}),
    "sampled": (FedFW(L1Ball(1.0), penalty=1.0, **HALF), q6_objectives, {}),
    # Uploads may be larger than the model, by as much as the method says.
    "Hessians": (FedNewton(PSI), curves, {}),
    "sampled Hessians": (FedNewton(PSI, participation=Sample(count=2)), curves, {}),
    "layers": (FedAvg(client_lr=0.5, local_steps=1), lambda: [Layered(), Layered()], {}),
    "solvers": (FedProx(proximal=1.0), lambda: squares((4, 6, 4), 0, 3), {}),
    "batches": (FedProx(proximal=1.0, local_solver=SGD(epochs=2, batch_size=2, lr=0.1)),
                lambda: squares((4, 6, 4), 0, 3), {}),
    "weighted FedFW": (FedFW(L1Ball(9.0), penalty=1.0), squares, WEIGHTED),
    "weighted Scaffold": (Scaffold(client_lr=0.02, local_steps=3), squares, WEIGHTED),
    # The modulus and L of scaled f_j.
    "weighted DualFL": (DualFL(strong_convexity=0.01, regularization=0.01), squares, WEIGHTED),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_grid_finds_the_same_bytes_and_counts_as_this_process(case):
    """Of models, objectives, bytes, work: every column but the seconds and who was refused."""
    strategy, objectives, options = CASES[case]
    weights = {"weights": ROWS} if options else {}
    oracles = {"constraint": strategy.constraint, "regularizer": strategy.regularizer}
    oracles = {name: oracle for name, oracle in oracles.items() if oracle is not None}
    problem = FederatedProblem(objectives(), **oracles, **weights)
    grid = FakeGrid(objectives(), make=client_app) if options else FakeGrid(objectives())
    result = strategy.start(grid, num_rounds=6, seed=3, evaluate_every=1, **options)
    local = simulate(strategy, problem, 6, seed=3)
    layers = [layer.tobytes() for layer in (local.x if case == "layers" else [local.x])]
    assert [layer.tobytes() for layer in messages.from_record(result.arrays)] == layers
    found = result.history.x if case == "layers" else [result.history.x]
    assert [layer.tobytes() for layer in found] == layers
    for row, same in zip(result.history.rows, local.rows, strict=True):
        assert row["objective"] == pytest.approx(same["objective"], rel=1e-14)
        rest = {"seconds": 0, "objective": 0, "refused": 0}
        assert {**row, **rest} == {**same, **rest}
    if case in ("solvers", "batches"):
        assert local["gradients"][-1] > 0


CLIP = GaussianDP(clip=0.5, noise_multiplier=0.0, target_delta=1e-5)


@pytest.mark.parametrize(
    "made",
    [FedAvg(client_lr=0.5, local_steps=1, privacy=CLIP), FedProx(proximal=1.0, privacy=CLIP)],
    ids=lambda made: made.name,
)
def test_nodes_clip_what_they_send_and_tell_no_work(made):
    """In a private run, whose iterates are those of this process."""
    problem = FederatedProblem([Quadratic(np.eye(2), np.full(2, b)) for b in (6.0, 8.0, 0.2)])
    sent = []
    watch = lambda message, reply: sent.append((message, reply)) or [reply]  # noqa: E731
    found = made.start(FakeGrid(problem.objectives, alter=watch), num_rounds=3, seed=0).history
    here = simulate(made, problem, 3)
    assert np.array_equal(found.x, here.x)
    assert not {*COUNTS} & here.rows[-1].keys()
    assert len(sent) == 9
    for message, reply in sent:
        down, *_ = message.content["fitins.parameters"].to_numpy_ndarrays()
        (up,) = reply.content["fitres.parameters"].to_numpy_ndarrays()
        moved = up - down if "v" in reply.content["fitres.metrics"]["names"] else up
        assert np.linalg.norm(moved) <= 0.5
        assert not any("work." in key for key in reply.content["fitres.metrics"])


class Boasting(FakeGrid):
    """The last client claims so many examples."""

    def __init__(self, claims):
        super().__init__(squares())
        self.claims = claims

    def replies_to(self, message):
        found = super().replies_to(message)
        for reply in found:
            config = reply.content.config_records.get("fitres.metrics")
            if message.metadata.dst_node_id == 1000 and config and "num-examples" in config:
                config["num-examples"] = self.claims
        return found


def test_no_client_owns_the_model_by_a_claim_of_examples(log):
    strategy = FedAvg(client_lr=0.1, local_steps=1)
    with pytest.raises(ConfigError, match=r"client .* states 1e\+18 examples, and with weighting="):
        strategy.start(Boasting(10**18), num_rounds=1, **WEIGHTED)
    strategy.start(Boasting(10**9), num_rounds=1, **WEIGHTED)
    assert "of the weight, by the number of examples that it states" in log.text


# --- who is there --------------------------------------------------------------------------------


def test_handshake_waits_for_all_and_sorts_by_number():
    grid = FakeGrid(q6_objectives() * 2, hidden=[1000, 993])
    engine = grids.GridEngine(avg(), grid)
    assert [info.name for info in engine.describe()] == [str(j) for j in range(12)]
    assert grid.looks > 3


def test_a_node_comes_back_under_another_id():
    strategy, grid = FedFW(L1Ball(1.0), penalty=1.0), FakeGrid(q6_objectives())

    def move(record):
        if record["round"] == 3:
            grid.nodes[7] = grid.nodes.pop(998)

    history = strategy.start(grid, num_rounds=6, evaluate_every=1, callbacks=[move]).history
    assert history.x.tobytes() == simulate(strategy, q6_ball(), 6).x.tobytes()
    assert grid.pushed[-1].metadata.dst_node_id in grid.nodes
    assert history.rows[-1]["dropped"] == history.rows[-1]["lost"] == 0


def clients(load):
    return ClientApp(lambda context: FedAvgClient(load(context), context=context).to_client())


def broken(load):
    def fail(context):
        raise ConfigError("no file data.npz")

    return client_app(fail)


@pytest.mark.parametrize(
    ("strategy", "grid", "options", "words"),
    [
        (avg(), {}, {"num_clients": 3, "timeout": 1e-6},
         r"2 of 3 clients are online after 1e-06 s \(0, 1\)"),
        (avg(), None, {"timeout": 1e-6}, r"0 of 1 clients are online .*\(none\)"),
        (FW, {"make": clients}, {"start_timeout": 0.01},
         r"0 of 1 .*; node 999: this client runs 'fedavg', the s"),
        (avg(), {"make": broken}, {"start_timeout": 0.01},
         r"0 of 1 clients .*; node 1000: no file data.npz"),
    ],
    ids=["too few", "none", "another method", "broken"],
)  # fmt: skip
def test_clients_that_are_not_there_or_do_not_fit_are_named(strategy, grid, options, words):
    found = FakeGrid(()) if grid is None else FakeGrid(q6_objectives()[:2], **grid)
    with pytest.raises(FedConError, match=words):
        strategy.start(found, **options)


def test_clients_of_a_client_fn_find_the_same_bytes():
    grid = FakeGrid(q6_objectives()[:2], make=clients)
    same = avg().start(grid, num_rounds=3, evaluate_every=0).history
    two = FederatedProblem(q6_objectives()[:2])
    assert same.x.tobytes() == simulate(avg(), two, 3).x.tobytes()


# --- Flower's own loop, clients and apps ---------------------------------------------------------


def test_flowers_own_loop():
    strategy, grid = avg(), FakeGrid(q6_objectives())
    with pytest.raises(FedConError, match="no run has been started"):
        strategy.configure_train(1, None, None, grid)
    arrays = strategy.start(grid, num_rounds=0).arrays
    for server_round in (1, 2):
        sent = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        arrays, metrics = strategy.aggregate_train(server_round, grid.send_and_receive(sent))
        assert metrics["replies"] == 6
    x = messages.from_record(arrays)[0]
    assert x.tobytes() == simulate(avg(), q6(), 2).x.tobytes()
    sent = strategy.configure_evaluate(2, arrays, ConfigRecord(), grid)
    found = strategy.aggregate_evaluate(2, grid.send_and_receive(sent))
    assert found["objective"] == pytest.approx(q6().objective(x))
    with pytest.raises(FedConError, match="round 5 was asked for after round 2"):
        strategy.configure_train(5, arrays, ConfigRecord(), grid)
    with pytest.raises(ConfigError, match="train_config and evaluate_config are for the app's own"):
        strategy.start(grid, train_config=ConfigRecord({"lr": 0.1}))


def test_a_client_without_an_app():
    """`to_client()` and plain `fit` need no context; the answers are Flower's."""
    client = FedAvgClient(q6_objectives()[0], name="first")
    assert callable(client.to_client().fit)
    arrays, examples, config = client.fit([], {"action": "describe"})
    assert (arrays, examples, config["name"], config["num-examples"]) == ([], 1, "first", 1)
    run = OpenRun(avg(), q6())
    request = Round.begin(run.server).next_request()
    named, config = RequestEncoder(run.server.info).encode(request, 0)
    arrays, _, answer = client.fit(list(named.values()), config)
    assert (answer["names"], answer["round"], answer["client"]) == ("delta", 1, 0)
    here = run.clients[0].handle(request.only([0])).payload["delta"][0]
    assert arrays[0].tobytes() == here.tobytes()
    config = {"layout": run.server.info.layout.to_json(), "client": 0}
    loss, examples, answer = client.evaluate([np.ones(8)], config)
    assert loss == q6_objectives()[0].value(np.ones(8))
    assert (examples, answer) == (1, {"client": 0})


def test_a_server_app_reads_its_run_configuration(tmp_path):
    config = {"num-server-rounds": 4, "seed": 9, "evaluate-every": 3, "run-dir": str(tmp_path)}
    config |= {"min-clients-to-start": 6, "start-timeout": 0, "max-retries": 0, "grace": 5.0}
    seen = []
    app = server_app(lambda: avg(**HALF), x0=np.ones(8), callbacks=[seen.append])
    app(FakeGrid(q6_objectives()), Context(1, 1, {}, RecordDict(), config))
    problem = FederatedProblem(q6_objectives(), x0=np.ones(8))
    with np.load(tmp_path / "model.npz") as model:
        assert model["x"].tobytes() == simulate(avg(**HALF), problem, 4, seed=9).x.tobytes()
    assert [record["round"] for record in seen] == [3, 4]
    assert [row["round"] for row in History.read_rows(tmp_path / "history.csv")] == [3, 4]


def called(make, **config):
    server_app(make)(FakeGrid(()), Context(1, 1, {}, RecordDict(), config))


WRONG = r"run configuration: {} must be {}, got {!r}"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: client_app(3), "load_objective must be a function, got 3"),
        (lambda: server_app(avg()), "make_strategy must be a function"),
        (lambda: called(lambda: "fedavg"), "returned 'fedavg', which is not a strategy"),
        (lambda: called(avg, **{"round-deadline": -1}),
         "round_deadline must be finite and > 0, got -1"),
        *((lambda key=key, value=value: called(avg, **{key: value}),
           WRONG.format(key, wanted, value)) for key, value, wanted in (
            ("num-server-rounds", "three", "a whole number"),
            ("num-server-rounds", float("inf"), "a whole number"),
            ("checkpoint-every", 2.5, "a whole number"),
            ("timeout", "an hour", "a number"),
            ("resume", "false", "true or false"),
            ("run-dir", 3, "text"))),
    ],
)  # fmt: skip
def test_app_refusals(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


# --- patience and memory -------------------------------------------------------------------------


@pytest.mark.parametrize("grace", [0.0, None])
def test_a_round_waits_for_the_rest_as_long_as_it_is_told(grace):
    """One client answers at the third look only: with no grace the round goes on without it."""
    strategy, options = avg(min_replies=5), {"num_rounds": 2, "evaluate_every": 1}
    history = strategy.start(Late(q6_objectives()), grace=grace, **options).history
    assert history["replies"].tolist() == ([6, 6] if grace is None else [5, 5])


def test_a_certificate_waits_for_everyone_whatever_the_grace():
    """The grace is that of a round; a mean of some gradients is no certificate."""
    grid = Late(q6_objectives())
    grid.action = "certify"
    options = {"grace": 0.0, "certificates": True, "evaluate_every": 1}
    history = avg(min_replies=5).start(grid, num_rounds=2, **options).history
    assert len(history["kkt"]) == 2


def test_a_run_holds_no_messages_that_are_answered():
    """A thousand models of one megabyte would be one gigabyte."""
    alive = []

    class Grid(FakeGrid):
        def push_messages(self, messages):
            sent = super().push_messages(messages)
            alive.extend(map(weakref.ref, messages))
            self.pushed = [None] * len(self.pushed)
            return sent

    def look(record):
        gc.collect()
        assert sum(message() is not None for message in alive) == 0

    avg().start(Grid(q6_objectives()), num_rounds=3, evaluate_every=1, callbacks=[look])
    assert len(alive) > 36
