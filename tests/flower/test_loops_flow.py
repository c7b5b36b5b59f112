"""Train loops of PyTorch on nodes that do not wait for their slowest."""

from __future__ import annotations

from typing import Any

import pytest
import quickstart
from fake_grid import on_grid
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from test_node_flow import SlowGrid, _quick, events

from flower_fedcon import Buffered, Clock, FederatedProblem, simulate
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import (
    AREA,
    FedAvg,
    FedDualAvg,
    FedDyn,
    FedMiD,
    FedProx,
    Scaffold,
)

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
from torch import nn  # noqa: E402

from flower_fedcon.torch import TorchObjective, train_step  # noqa: E402

pytestmark = on_grid
quick = _quick  # polls in milliseconds, in each test of this file, too
LR, K, N = 0.1, 3, 3
PSI, LOSS = L1(1e-3), nn.CrossEntropyLoss()
STEPS: dict[str, Any] = {"client_lr": LR, "local_steps": K}
SOLVER: dict[str, Any] = {"local_solver": GradientDescent(steps=K, lr=LR)}
METHODS = {
    "AREA": lambda rule: AREA(**STEPS, participation=rule),
    "AREA, psi": lambda rule: AREA(PSI, **STEPS, participation=rule),
    "FedAvg": lambda rule: FedAvg(**STEPS, participation=rule),
    "FedProx": lambda rule: FedProx(proximal=0.5, **SOLVER, participation=rule),
    "FedDyn": lambda rule: FedDyn(proximal=0.5, **SOLVER, participation=rule),
    "Scaffold": lambda rule: Scaffold(**STEPS, participation=rule),
    "Scaffold, no mirror": lambda rule: Scaffold(**STEPS, mirror=False, participation=rule),
    "FedMiD": lambda rule: FedMiD(PSI, **STEPS, participation=rule),
    "FedDualAvg": lambda rule: FedDualAvg(PSI, **STEPS, participation=rule),
}


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def rows(place: int) -> tuple[Any, Any]:
    rng = torch.Generator().manual_seed(place)
    x = torch.randn(20, 6, generator=rng, dtype=torch.float64)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > place - 1).long()


ROUNDS: list[int] = []  # what the loops are told


def app(load: Any) -> ClientApp:
    """Return an app whose loop takes K steps on all rows."""
    made = ClientApp()

    @made.train()
    @train_step
    def train(message: Message, context: Any, method: Any) -> Message:
        model, (x, y) = network(), rows(context.node_config["partition-id"])
        ROUNDS.append(message.content["config"]["server-round"])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        own = method.name in ("FedMiD", "FedDualAvg")
        taking = method.optimizer(model.parameters()) if own else method.begin(model)
        for _ in range(K):
            model.zero_grad()
            LOSS(model(x), y).backward()
            if own:
                taking.step()
                continue
            taking.apply_gradients(model)
            with torch.no_grad():  # as NumPy rounds it
                for p in model.parameters():
                    p -= LR * p.grad
        about = MetricRecord({"num-examples": len(x), "loss": 1.0})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": about}
        return Message(RecordDict(content), reply_to=message)

    return made


@pytest.mark.parametrize("name", METHODS)
def test_loops_find_the_models_of_the_method(name: str, tmp_path: Any) -> None:
    """The log repeats the run with this package's own steps: the same bytes."""
    ROUNDS.clear()
    rule, log = Buffered(buffer=2), tmp_path / "run" / "events.jsonl"
    grid = SlowGrid([None] * N, make=app)
    given: dict[str, Any] = {"seed": 3, "evaluate_every": 0, "run_dir": tmp_path / "run"}
    first = ArrayRecord(network().state_dict())
    result = METHODS[name](rule).start(grid, first, 25, **given, timeout=20.0, round_deadline=20.0)
    clients = [TorchObjective(network(), LOSS, rows(j)) for j in range(N)]
    problem = FederatedProblem(clients, x0=clients[0].start())
    again = simulate(
        METHODS[name](rule), problem, 25, seed=3, clock=Clock(events=log), evaluate_every=0,
        on_mismatch="warn",
    )  # fmt: skip
    found = result.arrays.to_numpy_ndarrays()
    for one, other in zip(found, again.x, strict=True):
        assert one.tobytes() == other.tobytes()
    used = [event["client"] for event in events(tmp_path / "run") if event.get("outcome") == "used"]
    assert {*used} == {*range(N)}
    assert sorted(ROUNDS) == ROUNDS  # the coming step's number, by which a loop may set its rate
    assert {*ROUNDS} == {*range(1, 26)}
    assert result.history["most_staleness"].max() > 0


def test_an_app_with_its_own_loop_goes_without_rounds_by_two_lines(tmp_path: Any) -> None:
    """Momentum, batch normalisation, shuffled epochs, and weights by examples stay as they are."""
    folder = quickstart.app(tmp_path / "app", "scaffold")
    file = folder / "pytorchexample" / "server_app.py"
    changes = {"import Sample, ": "import Buffered, ", "Sample(fraction=1.0)": "Buffered(buffer=2)"}
    for before, after in changes.items():
        text = file.read_text()
        assert text.count(before) == 1
        file.write_text(text.replace(before, after))
    config = {"num-server-rounds": 6, "learning-rate": 0.01}
    result = quickstart.run_here(folder, tmp_path / "model.pt", **config)
    row = result.history.rows[-1]
    assert (row["replies"], row["dropped"], row["lost"]) == (2, 0, 0)
    first, last = (result.evaluate_metrics_serverapp[number]["loss"] for number in (0, 6))
    assert last < first
