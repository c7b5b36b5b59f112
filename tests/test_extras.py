"""The core does without its extras; where one is needed, its absence is told with the remedy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from harness import ran
from pages import ROOT

import flower_fedcon
from flower_fedcon.errors import MissingExtraError, needing

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {  # what is imported of an extra
    "cli": "typer rich matplotlib packaging",
    "datasets": "flwr_datasets",
    "estimators": "sklearn",
    "fast": "numba",
    "fmri": "nilearn",
    "formula": "formulaic",
    "jax": "jax",
    "privacy": "dp_accounting",
    "report": "plotly",
    "simulation": "ray",
    "tables": "pandas pyarrow",
    "tensorboard": "tensorboardX",
    "torch": "torch",
    "wandb": "wandb",
}
NEEDS = [  # what needs which extra
    ("cli", "from flower_fedcon.cli import app"),
    ("cli", "from flower_fedcon.lab.experiments import figures; figures.check_figure('a.png')"),
    ("datasets", "problems.cifar10()"),
    ("estimators", "import flower_fedcon.estimators"),
    ("estimators", "problems.digits()"),
    ("estimators", "problems.neyman_pearson()"),
    ("estimators", "read_table('a.svm', Schema('y', 'all'))"),
    ("fmri", "problems.fmri(data='nowhere')"),
    ("formula", "Schema('y', ONE, formula='x')"),
    ("jax", "simulate(FedAvg(client_lr=0.5, local_steps=1), problem, 2, engine='jax')"),
    ("privacy", "from flower_fedcon.privacy.accountant import library; library()"),
    ("report", "from flower_fedcon.lab.report.page import _plotly; _plotly()"),
    ("simulation", "simulate(FedAvg(client_lr=0.5, local_steps=1), problem, 2, engine='ray')"),
    ("tables", "history.to_frame()"),
    ("tables", "read_table('a.parquet', Schema('y', ONE))"),
    ("tensorboard", "from flower_fedcon.runs.trackers import TensorBoard; TensorBoard('a')"),
    ("torch", "import flower_fedcon.torch"),
    ("wandb", "from flower_fedcon.runs.trackers import WeightsAndBiases; WeightsAndBiases()"),
]
WITHOUT = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

needs, absent, later = json.loads(sys.argv[1])
sys.meta_path.insert(0, Absent())

import flwr
from flower_fedcon import FederatedProblem, client_app, problems, server_app, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedAvg
from flower_fedcon.tables import Schema, read_table

import flower_fedcon.privacy, flower_fedcon.testing

problem = FederatedProblem([Quadratic([[1.0]], [b]) for b in (1.0, 3.0)])
for engine in ("local", "stacked"):
    history = simulate(FedAvg(client_lr=0.5, local_steps=1), problem, 20, engine=engine)
client_app(lambda context: None), server_app(lambda: FedAvg(client_lr=0.5, local_steps=1))
ONE, found = {"x": "numeric"}, {}

def note(needs):
    for need in needs:
        try:
            exec(need, globals())
        except Exception as error:
            found[need] = [type(error).__name__, str(error)]

note(needs[1:])
absent += later
for name in [name for name in sys.modules if name.partition(".")[0] in later]:
    del sys.modules[name]
note(needs[:1])
from flower_fedcon.cli import main
print(json.dumps([float(history.x[0]), found, main(["list"])]))
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """What a process says in which no extra is installed, as far as imports can tell."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "a.svm").write_text("1 1:2.0\n")
    (folder / "a.parquet").write_bytes(b"")
    later = ["typer", "rich", "packaging"]  # Flower does not load without them
    absent = [name for name in " ".join(PACKAGES.values()).split() if name not in later]
    needs = [need for _, need in NEEDS]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps([needs, absent, later])],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [*json.loads(done.stdout.splitlines()[-1]), done.stderr]


def test_every_extra_is_named_here():
    assert PACKAGES.keys() == PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
    assert {extra for extra, _ in NEEDS} == PACKAGES.keys() - {"fast"}  # NumPy does without


def test_a_node_needs_little():
    names = [re.match(r"[\w-]+(\[\w+\])?", text)[0] for text in PROJECT["dependencies"]]
    assert sorted(names) == ["flwr", "joblib", "numpy", "pyyaml", "scipy", "threadpoolctl"]


@pytest.mark.parametrize(("extra", "need"), NEEDS, ids=[f"{a}-{b[:40]}" for a, b in NEEDS])
def test_what_is_missing_is_named_with_the_command_that_adds_it(without, extra, need):
    kind, text = without[1][need]
    assert kind in ("MissingExtraError", "DataError"), text
    assert f", which is not installed: pip install 'flower-fedcon[{extra}]'" in text


def test_the_core_runs_without_any(without):
    assert without[0] == pytest.approx(2.0, abs=1e-5)


def test_the_command_without_its_packages_is_an_error_of_one_line(without):
    code, told = without[2:]
    assert code == 2
    (line,) = told.splitlines()
    assert line.startswith("error: the command fedcon needs typer, rich and packaging, which is")
    assert line.endswith("pip install 'flower-fedcon[cli]'")


def test_a_package_that_is_there_and_broken_is_told_apart():
    with pytest.raises(ImportError, match=r"cannot be loaded \(no libcuda\): pip install"):  # noqa: SIM117
        with needing("a test needs a library", "torch", "do without"):
            raise ImportError("no libcuda", name="torch")
    assert issubclass(MissingExtraError, flower_fedcon.FedConError)


def test_a_finished_comparison_without_matplotlib_says_so(run_command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    sims = ROOT / "sims" / "counterexample.toml"
    out = ran(run_command, "run", str(sims), "--rounds", "2", "--run-dir", "run")
    assert "none, figures are drawn by matplotlib, which is not installed: pip install" in out
    assert {path.name for path in Path("run").iterdir()} >= {"history.csv", "model.npz"}


# --- the version ----------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere():
    version = flower_fedcon.__version__
    series = ".".join(version.split(".")[:2])
    assert "version" in PROJECT["dynamic"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert "\nlicense: Apache-2.0\n" in (ROOT / "CITATION.cff").read_text()
    for app in (ROOT / "sims", ROOT / "examples" / "heart" / "app"):
        own = tomllib.loads((app / "pyproject.toml").read_text())["project"]
        assert own["version"] == version, app
    texts = [p for p in ROOT.glob("*/**/*") if p.name == "pyproject.toml" or p.suffix == ".md"]
    for path in texts:
        for least in re.findall(r"flower-fedcon(?:\[\w+\])?>=([\d.]+)", path.read_text("utf-8")):
            assert least == series, path
