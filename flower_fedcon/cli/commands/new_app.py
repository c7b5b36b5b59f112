"""`fedcon new`: a Flower app with one of the algorithms, to begin from."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from flower_fedcon import __version__
from flower_fedcon.core.wings import bring
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.registry import names
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import say
from flower_fedcon.wire.whole_files import storage, write_text

LICENSE = """\
Licensed under the Apache License, Version 2.0: you may not use these files except in compliance
with it. Its text is at http://www.apache.org/licenses/LICENSE-2.0
"""
_SERIES = ".".join(__version__.split(".")[:2])
_EXTRAS = {"torch": "[torch]", "tables": "[tables]", "sklearn": "[estimators]"}
_PROJECT = Template("""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "0.1.0"
description = "$title with flower-fedcon"
license = { file = "LICENSE" }
dependencies = ["flwr[simulation]>=1.41", "flower-fedcon$extra>=$version"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "me"
fab-format-version = 1
flwr-version-target = "$flwr"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
$config
""")
_CONFIG = """\
num-server-rounds = 5
evaluate-every = 1
weighting = "{weighting}"
run-dir = ""
resume = false"""
_MORE = """
# server_app knows more keys. Flower takes by --run-config only those that stand here:
# timeout = 3600.0
# start-timeout = 0.0
# min-clients-to-start = 0
# round-deadline = 0.0
# checkpoint-every = 0"""
_README = Template("""\
# $name

$title with flower-fedcon. `flwr run . --stream` starts it in Flower's simulation, and
`flwr build` makes a bundle of it. The nodes' data is loaded in `$data`. The method and its
settings stand in `server_app.py`; `fedcon info $algorithm` explains them. Flower installs what
`pyproject.toml` names; with FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 it takes the
environment as it is.
""")
_SERVER = Template('''\
"""The server's side: $title."""

from flower_fedcon import server_app
$imports

app = server_app(lambda: $strategy$schema)
''')
_LOOP_SERVER = Template('''\
"""The server's side: $title."""

import torch
$imports
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from task import Net

app = ServerApp()


@app.main()
def main(grid, context):
    """Train the model on the nodes."""
    torch.manual_seed(0)
    config = context.run_config
    $strategy.start(
        grid,
        ArrayRecord(Net().state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_every=config["evaluate-every"],
        weighting=config["weighting"],
        run_dir=config["run-dir"] or None,
        resume=config["resume"],
    )
''')
_CLIENT = Template('''\
"""A node's side: its data, as the objective that it gives to every algorithm."""

$modules


def load_objective(context):
    """Return this node's objective."""
$body


app = client_app(load_objective)
''')
_NUMPY = (
    "import numpy as np\nfrom flower_fedcon import client_app\n"
    "from flower_fedcon.objectives import LeastSquares",
    """\
    rng = np.random.default_rng(context.node_config["partition-id"])  # your data instead
    A = rng.normal(size=(50, 10))
    return LeastSquares(A, A @ np.arange(10.0) / 10 + 0.1 * rng.normal(size=50))""",
)
_SKLEARN = (
    "from flower_fedcon import client_app\n"
    "from flower_fedcon.objectives import LogisticRegression\n"
    "from sklearn.datasets import load_breast_cancer\nfrom sklearn.preprocessing import scale",
    """\
    X, y = load_breast_cancer(return_X_y=True)  # your data instead
    mine = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    return LogisticRegression(scale(X)[mine], 2.0 * y[mine] - 1.0)""",
)
_TABLES = '''\
"""A node's side: the table that its configuration names, read by the shared schema."""

import csv
import random
import tempfile
from pathlib import Path

from flower_fedcon import client_app
from flower_fedcon.tables import Schema, read_table, table_of_node

SCHEMA = Schema.load(Path(__file__).parent / "schema.toml")


def load_table(context):
    """Return the file that `--node-config 'data="FILE.csv"'` names; without one, made-up rows."""
    if "data" in context.node_config:
        return table_of_node(SCHEMA)(context)
    draw = random.Random(context.node_config["partition-id"])
    rows = [(draw.randint(20, 80), draw.choice("fm"), draw.gauss(25, 4)) for _ in range(200)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["age", "sex", "bmi", "outcome"])
            table.writerows([*r, int(r[0] + 2 * r[2] + draw.gauss(0, 20) > 100)] for r in rows)
        return read_table(path, SCHEMA)


app = client_app(load_table)
'''
_SCHEMA = """\
# What the columns mean. Server and nodes share this file.
target = "outcome"
positive = [1]
negative = [0]

[features]
age = {type = "numeric", range = [0, 120]}
sex = {type = "categorical", categories = ["f", "m"]}
bmi = "numeric"
"""
_LOOP_CLIENT = Template('''\
"""A node's side: its train and evaluate functions."""

import torch
from flower_fedcon.torch import current_method, train_step
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from task import Net, load_data

app = ClientApp()


@app.train()
@train_step(num_examples=lambda context: len(load_data(context)[0].dataset))
def train(message, context):
    """Train the model on this node's data."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(context)
$optimizer
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(loader.dataset)})
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    """Evaluate the model on this node's data."""
    net = Net().eval()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = load_data(context)[1].dataset.tensors
    with torch.no_grad():
        right = (net(images).argmax(1) == labels).float().mean().item()
    metrics = MetricRecord({"accuracy": right, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
''')
_CORRECTED = """\
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    current_method().begin(net, optimizer)"""
_OWN_STEP = "    optimizer = current_method().optimizer(net.parameters())"
_TASK = '''\
"""Model and data."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small network for 8 x 8 images."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        """Return the logits."""
        return self.layers(x)


def load_data(context):
    """Load this node's data: to train on, and to test on."""
    place, count = context.node_config["partition-id"], context.node_config["num-partitions"]
    images, labels = load_digits(return_X_y=True)  # your data instead
    X, y = torch.tensor(images / 16, dtype=torch.float32)[place::count], labels[place::count]
    y, some = torch.tensor(y), len(y) // 5
    order = torch.Generator().manual_seed(place)
    train, held_out = TensorDataset(X[some:], y[some:]), TensorDataset(X[:some], y[:some])
    return DataLoader(train, 32, shuffle=True, generator=order), DataLoader(held_out, 128)
'''
_STEPS = "client_lr=0.1, local_steps=5"
_WITH_OBJECTIVES = {
    "fedavg": f"FedAvg({_STEPS})",
    "fedmid": f"FedMiD($psi, {_STEPS})",
    "feddualavg": f"FedDualAvg($psi, {_STEPS})",
    "compositefl": f"CompositeFL($psi, {_STEPS})",
    "scaffold": f"Scaffold({_STEPS})",
    "fedprox": "FedProx(proximal=1.0)",
    "feddyn": "FedDyn(proximal=1.0)",
    "fedpd": "FedPD(step_size=1.0)",
    "feddr": "FedDR($psi, step_size=1.0)",
    "fednewton": "FedNewton($psi)",
    "fedfw": "FedFW(L1Ball(radius=5.0), penalty=5.0)",
    "fedfwplus": "FedFWPlus(L1Ball(radius=5.0), penalty=5.0)",
    "averagedfw": "AveragedFW(L1Ball(radius=5.0), local_steps=5)",
}
_WITH_LOOPS = {
    "fedavg": "FedAvg()",
    "fedprox": "FedProx(proximal=0.1)",
    "scaffold": "Scaffold()",
    "feddyn": "FedDyn(proximal=0.1)",
    "fedmid": "FedMiD($psi, client_lr=0.2)",
    "feddualavg": "FedDualAvg($psi, client_lr=0.2)",
}
_PSI = {"torch": "L1(1e-4)", "numpy": "L1(0.01)", "sklearn": "L1(0.01)",
        "tables": "WithIntercept(L1(0.01))"}  # fmt: skip


def files(name: str, algorithm: str, framework: str) -> dict[str, str]:
    """Return an app's files, by their names.

    Raises
    ------
    ConfigError
        If there is no such framework, or the algorithm needs a different one.
    """
    from flower_fedcon.training.loop_client import own_loop  # only here: numpy, flwr

    if framework not in _PSI:
        raise ConfigError(f"--framework {framework!r}: {nearest(framework, _PSI)}")
    loops = framework == "torch"
    calls = _WITH_LOOPS if loops else _WITH_OBJECTIVES
    if algorithm.lower() not in calls:
        if loops and algorithm.lower() in names():
            own_loop(algorithm.lower())  # it says why a method does not support train loops
        raise ConfigError(
            f"--algorithm {algorithm!r} with {framework}: {nearest(algorithm, calls)}. For another "
            f"one of `fedcon list` write the strategy into server_app.py"
        )
    text = Template(calls[algorithm.lower()]).substitute(psi=_PSI[framework])
    kind = text.partition("(")[0]
    rooms = {"regularizers": r"\b(L1|WithIntercept)\(", "sets": r"\b(L1Ball)\("}
    imports = [
        f"from flower_fedcon.{room} import {', '.join(sorted(used))}"
        for room, names in rooms.items()
        if (used := set(re.findall(names, text)))
    ]
    imports.append(f"from flower_fedcon.strategies import {kind}")
    words = {
        "name": name,
        "title": kind,
        "algorithm": algorithm.lower(),
        "data": "task.py" if loops else "client_app.py",
        "extra": _EXTRAS.get(framework, ""),
        "version": _SERIES,
        "config": _CONFIG.format(weighting="examples" if loops else "uniform")
        + ("" if loops else _MORE),
        "flwr": metadata.version("flwr"),
        "imports": "\n".join(imports),
        "strategy": text,
        "schema": ', schema=Path(__file__).parent / "schema.toml"' if framework == "tables" else "",
        "optimizer": _OWN_STEP if "client_lr" in text else _CORRECTED,
    }
    contents = {
        "pyproject.toml": _PROJECT.substitute(words),
        "LICENSE": LICENSE,
        "README.md": _README.substitute(words),
    }
    if loops:
        contents["server_app.py"] = _LOOP_SERVER.substitute(words)
        contents["client_app.py"] = _LOOP_CLIENT.substitute(words)
        contents["task.py"] = _TASK
    elif framework == "tables":
        server = _SERVER.substitute(words)
        head = "\n\nfrom flower_fedcon import server_app"
        contents["server_app.py"] = server.replace(head, "\n\nfrom pathlib import Path" + head, 1)
        contents["client_app.py"], contents["schema.toml"] = _TABLES, _SCHEMA
    else:
        modules, body = _NUMPY if framework == "numpy" else _SKLEARN
        contents["server_app.py"] = _SERVER.substitute(words)
        contents["client_app.py"] = _CLIENT.substitute(modules=modules, body=body)
    return contents


def files_of_study(folder: Path, study: Path) -> tuple[dict[str, str], str]:
    """Return the files of a study's app by name, and the command that runs it on this machine.

    Raises
    ------
    ConfigError
        If the study is not on tables, or asks for something that nodes cannot do.
    """
    app = bring("APPS", "study", "--study is for studies on tables")(study)
    words = {
        "name": folder.name,
        "title": "A study on tables",
        "version": _SERIES,
        "extra": app.extra,
        "flwr": metadata.version("flwr"),
        "config": app.config,
    }
    contents = {"pyproject.toml": _PROJECT.substitute(words), "LICENSE": LICENSE}
    return contents | app.files(folder), app.deploy(folder)


def new(
    folder: Annotated[
        Path, typer.Argument(help="The app's folder, which is created.", metavar="DIR")
    ],
    algorithm: Annotated[
        str, typer.Option(help="An algorithm, as `fedcon list` names it.")
    ] = "feddualavg",
    framework: Annotated[
        str,
        typer.Option(
            help="What the clients bring: a training loop (torch), or data (numpy, sklearn, "
            "tables)."
        ),
    ] = "numpy",
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the app of this experiment on tables instead, with its schema, penalty and "
            "inference.",
        ),
    ] = None,
) -> None:
    """Write a Flower app to start from, which `flwr run` and `flwr build` accept.

    With --study the app is that of an experiment on tables, for `fedcon deploy` and for nodes whose
    configuration names their files.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", name):
        raise ConfigError(
            f"{name!r} is not a name for a Flower app: use at most 32 letters, digits and hyphens, "
            f"a letter first"
        )
    command = ""
    if study is None:
        contents = files(name, algorithm, framework)
    else:
        contents, command = files_of_study(folder, study)
    with storage(f"make the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: name a folder that does not exist yet")
    for path, text in contents.items():
        write_text(folder / path, text)
    if command:
        say(f"{folder}: {', '.join(contents)}. Try it on this machine:\n{command}")
        return
    # From a clone there is no index that Flower could install this package from.
    cloned = metadata.distribution("flower-fedcon").read_text("direct_url.json") is not None
    first = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 " if cloned else ""
    say(f"{folder}: {', '.join(contents)}. Try it: {first}flwr run {folder} --stream")


COMMANDS = {
    "new": Command(
        new,
        190,
        "fedcon new my-app --algorithm feddualavg --framework torch",
        "fedcon new readmission --study study.toml",
    )
}
