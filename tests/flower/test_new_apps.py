"""Apps that `fedcon new` writes, and the examples: they run, and Flower makes bundles of them."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from deployment import Simulation
from fake_grid import on_grid
from flwr.app import Context, RecordDict
from quickstart import AppGrid, run_config
from typer.testing import CliRunner

from flower_fedcon.cli import new_app
from flower_fedcon.cli.command import app as fedcon
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower.strategy import FlowerStrategy

ROOT = Path(__file__).parents[2]
EXAMPLES = ["examples/pytorch/quickstart", "examples/pytorch/fuller", "examples/heart/app", "sims"]
FRAMEWORKS = ["numpy", "sklearn", "tables", "torch"]
CASES = [
    *[(framework, "feddualavg") for framework in FRAMEWORKS],
    *[("numpy", name) for name in new_app._WITH_OBJECTIVES if name != "feddualavg"],
    ("torch", "scaffold"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One app of each framework, by the command."""
    base = tmp_path_factory.mktemp("new")
    for framework in FRAMEWORKS:
        arguments = ["new", str(base / f"my-{framework}"), "--framework", framework]
        told = CliRunner().invoke(fedcon, arguments)
        assert told.exit_code == 0, told.output
        assert f"flwr run {base}" in told.output.replace("\n", "")
    return base


def played(folder, monkeypatch):
    """Run an app's server on nodes in this process; return its strategy's result."""
    results, start = [], FlowerStrategy.start
    monkeypatch.setattr(
        FlowerStrategy, "start", lambda *a, **k: results.append(start(*a, **k)) or results[-1]
    )
    for name in ("client_app", "server_app", "task"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)
    import client_app
    import server_app

    told = run_config(folder) | {"num-server-rounds": 2}
    server_app.app(AppGrid(client_app.app, told), Context(1, 1, {}, RecordDict(), told))
    for name in ("client_app", "server_app", "task"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return results[0]


@on_grid
@pytest.mark.filterwarnings("ignore:FedNewton")
@pytest.mark.parametrize(("framework", "algorithm"), CASES)
def test_an_app_runs(framework, algorithm, tmp_path, monkeypatch):
    for name, text in new_app.files("my-app", algorithm, framework).items():
        (tmp_path / name).write_text(text)
    result = played(tmp_path, monkeypatch)
    first, last = result.history.rows
    assert (last["round"], last["replies"], last["dropped"]) == (2, 3, 0)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    measure = "train_loss" if framework == "torch" else "objective"
    if algorithm == "feddualavg":
        assert last[measure] < first[measure]


def test_flower_makes_bundles(written, tmp_path, monkeypatch):
    """In format 1, with this package among what is installed."""
    from flwr.cli.app import app as flwr

    monkeypatch.chdir(tmp_path)
    for folder in [*(ROOT / name for name in EXAMPLES), *sorted(written.iterdir())]:
        told = CliRunner().invoke(flwr, ["build", "--app", str(folder)])
        assert told.exit_code == 0, (folder, told.output)
        assert "missing" not in told.output
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        assert project["tool"]["flwr"]["app"]["fab-format-version"] == 1
        named = [text.partition("[")[0].partition(">")[0] for text in
                 project["project"]["dependencies"]]  # fmt: skip
        assert named == ["flwr", "flower-fedcon"]
        assert (folder / "LICENSE").read_text() == new_app.LICENSE
    assert len(list(tmp_path.glob("*.fab"))) == len(EXAMPLES) + len(FRAMEWORKS)


def test_what_cannot_be_written_is_said(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'torch'"):
        new_app.files("a", "fedavg", "torhc")
    with pytest.raises(ConfigError, match=r"did you mean 'scaffold'.*fedcon list"):
        new_app.files("a", "scafold", "torch")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for folder, said in (("full", "is not empty"), ("2nd_app", "no name of a Flower app")):
        told = CliRunner().invoke(fedcon, ["new", str(tmp_path / folder)])
        assert isinstance(told.exception, ConfigError)
        assert said in str(told.exception)
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "notes.txt"]


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run(written, tmp_path):
    with Simulation(tmp_path / "flower", 3) as simulation:
        for folder in sorted(written.iterdir()):
            output = simulation.run(folder, {"num-server-rounds": 2}, timeout=240).output
            assert "[ROUND 2/2]" in output
