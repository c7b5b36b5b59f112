"""Load: many nodes and a model of megabytes, against Flower's FedAvg in the same app."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.errors import FedConError
from flower_fedcon.flower.deployment import LocalDeployment, family_of
from flower_fedcon.lab.benchmarks.flower import ClockedFedAvg, flowers_fedavg
from flower_fedcon.lab.benchmarks.measure import Result, ratio

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

Row = dict[str, float]
_MEGABYTES = 10
_HELD = {
    "server": "MB of the server",
    "nodes": "MB of the nodes",
    "files": "open files and threads of the server",
    "nodes' files": "open files and threads of the nodes",
}
_FIRST = 5  # rounds in which caches and pools of memory and threads fill
_APP = {
    "pyproject.toml": """\
[project]
name = "load"
version = "1.0.0"
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "flower-fedcon"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
own = true
nodes = 2
rounds = 2
megabytes = 1.0
notes = ""
folder = ""
""",
    "client_app.py": """\
from flower_fedcon.lab.benchmarks.load import training_app

app = training_app()
""",
    "server_app.py": """\
from flower_fedcon.lab.benchmarks.load import averaging_app

app = averaging_app()
""",
}


def load(quick: bool = False) -> Iterator[Result]:
    """Time rounds of 10 MB on many nodes against Flower's FedAvg; memory, open files, threads.

    It runs 50 rounds each on 20 SuperNodes of this machine, and on 200 nodes of Flower's
    simulation; all results are also shown by thirds of the rounds.
    """
    sizes = (2, 2, 3, 0.1) if quick else (20, 200, 50, _MEGABYTES)
    deployed, virtual, rounds, megabytes = sizes
    for place, play, nodes in (
        ("SuperNodes on loopback", on_loopback, deployed),
        ("virtual nodes on Ray", in_simulation, virtual),
    ):
        rows = {own: play(own, nodes, rounds, megabytes) for own in (False, True)}
        yield from compared(f"{nodes} {place}, {megabytes:g} MB", rows)


def compared(what: str, rows: dict[bool, list[Row]]) -> Iterator[Result]:
    """Yield the lines of both strategies: seconds, and quantities that should not grow."""
    first = min(_FIRST, len(rows[True]) // 2)
    seconds = {
        own: [after["time"] - before["time"] for before, after in pairwise(told)][first - 1 :]
        for own, told in rows.items()
    }
    middle = statistics.median(seconds[False])
    own = seconds[True]
    yield ratio(
        f"a round of FedAvg, {what}",
        "Flower's FedAvg",
        own,
        [middle] * len(own),
        unit="s",
        target="<= 1.15",
    )
    told = rows[True][first:]
    for name, unit in _HELD.items():
        half = len(told) // 2
        early, late = ([row[name] for row in part] for part in (told[:half], told[half:]))
        if not min(early):  # such processes are not visible here
            continue
        base = [statistics.median(early)] * len(late)
        yield ratio(f"{unit}, {what}: later rounds", "earlier ones", late, base, unit="",
                    target="<= 1.05")  # fmt: skip
    yield from by_thirds(what, rows)


def by_thirds(what: str, rows: dict[bool, list[Row]]) -> Iterator[Result]:
    """Yield a line for each quantity and third of the rounds, against Flower's FedAvg."""
    for told in rows.values():
        for before, after in pairwise(told):
            after["seconds"] = after["time"] - before["time"]
    rounds = np.arange(1, min(map(len, rows.values())))  # the first has no seconds
    for name, unit in {"seconds": "s", **_HELD}.items():
        for part in filter(len, np.array_split(rounds, 3)):
            theirs, ours = (
                statistics.median(rows[own][i][name] for i in part) for own in (False, True)
            )
            if min(theirs, ours):
                yield ratio(
                    f"{what}: rounds {part[0] + 1} to {part[-1] + 1}",
                    f"Flower's FedAvg: {theirs:.3g} {unit.split(' of ')[0]}",
                    [ours],
                    [theirs],
                    unit=unit,
                )


def on_loopback(own: bool, nodes: int, rounds: int, megabytes: float) -> list[Row]:
    """Return the notes on each round on SuperNodes of this machine.

    Raises
    ------
    FedConError
        If the run does not complete.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        app, notes = root / "app", root / "notes.json"
        app.mkdir()
        for name, text in _APP.items():
            (app / name).write_text(text)
        told: list[str] = []
        with LocalDeployment(root / "flower", nodes, say=told.append) as deployment:
            given = f'own={str(own).lower()} nodes={nodes} rounds={rounds} notes="{notes}" '
            given += f'megabytes={float(megabytes)} folder="{root / "flower"}"'
            if not deployment.run(app, given):
                raise FedConError("the benchmark's run has failed:\n" + "\n".join(told[-20:]))
        rows: list[Row] = json.loads(notes.read_text())
        return rows


def in_simulation(own: bool, nodes: int, rounds: int, megabytes: float) -> list[Row]:
    """Return the notes on each round in Flower's simulation on Ray."""
    from flower_fedcon.flower.virtual_nodes import run_on_virtual_nodes

    rows: list[Row] = []
    setting = {"own": own, "nodes": nodes, "rounds": rounds, "megabytes": megabytes}
    run_on_virtual_nodes(averaging_app(setting, rows), training_app(own), nodes)
    if not rows:
        raise FedConError("Flower's simulation ended without a result: see its log above")
    return rows


class Notes(list[float]):
    """The end times of rounds, with memory, open files and threads."""

    def __init__(self, processes: Callable[[], set[int]]) -> None:
        super().__init__()
        self._processes, self.rows = processes, list[Row]()

    def append(self, moment: float) -> None:
        """Note a round's end."""
        super().append(moment)
        row = {"time": moment, "server": 0.0, "nodes": 0.0, "files": 0.0, "nodes' files": 0.0}
        for whose, files, processes in (
            ("server", "files", {os.getpid()}),
            ("nodes", "nodes' files", self._processes()),
        ):
            row[whose] = sum(map(megabytes_of, processes))
            row[files] = float(sum(map(handles_of, processes)))
        self.rows.append(row)


def megabytes_of(pid: int) -> float:
    """Return the private memory of a process; 0 if it has ended.

    Shared memory, such as objects in Ray's store, is not counted.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith("RssAnon:")] or ["0"]
    return int(kilobytes) / 1e3


def handles_of(pid: int) -> int:
    """Return the numbers of open files and threads of a process; 0 if it has ended."""
    try:
        return sum(len(os.listdir(f"/proc/{pid}/{part}")) for part in ("fd", "task"))
    except OSError:
        return 0


def long_lived(folder: str) -> set[int]:
    """Return the long-lived processes of a deployment, or Ray's workers."""
    if folder:
        return {pid for pid in family_of(Path(folder)) if b"flower-super" in _command(pid)}
    processes = {int(path.name) for path in Path("/proc").glob("[0-9]*")}
    return {pid for pid in processes if _command(pid).startswith(b"ray::ClientAppActor")}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# --- the app -------------------------------------------------------------------------------------


def training_app(own: bool | None = None) -> ClientApp:
    """Return an app whose clients take one step, for the strategy in the run's configuration."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from flower_fedcon import train_step

    app = ClientApp()

    def train(message: Message, context: Context, method: Any = None) -> Message:
        (x,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        if method is not None:
            method.begin([x])
        x = x - np.float32(1e-3) * x
        content = RecordDict()
        content["arrays"] = ArrayRecord([x])
        content["metrics"] = MetricRecord({"num-examples": 1})
        return Message(content, reply_to=message)

    served = train_step(train)

    @app.train()
    def serve(message: Message, context: Context) -> Message:
        ours = bool(context.run_config["own"]) if own is None else own
        answer: Message = served(message, context) if ours else train(message, context)
        return answer

    return app


def averaging_app(
    setting: dict[str, Any] | None = None, found: list[Row] | None = None
) -> ServerApp:
    """Return an app that averages and notes each round; by default by the run's configuration."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        given = dict(context.run_config) if setting is None else setting
        notes = Notes(lambda: long_lived(str(given.get("folder", ""))))
        start = ArrayRecord([np.ones(int(float(given["megabytes"]) * 250_000), np.float32)])
        _play(grid, bool(given["own"]), int(given["nodes"]), int(given["rounds"]), start, notes)
        if found is not None:
            found.extend(notes.rows)
        if given.get("notes"):
            Path(str(given["notes"])).write_text(json.dumps(notes.rows))

    return app


def _play(grid: Grid, own: bool, nodes: int, rounds: int, start: Any, notes: Notes) -> None:
    if own:
        ours = ClockedFedAvg()
        ours.ends = notes
        ours.start(grid, start, num_rounds=rounds, num_clients=nodes, evaluate_every=0)
    else:
        theirs = flowers_fedavg(nodes)
        theirs.ends = notes
        theirs.start(grid, start, num_rounds=rounds)
