"""Each wing can be deleted: the rest is imported, runs README's example and lists the collection.

Its commands are then not offered. At night the rest passes its tests, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT
from problems import avg, q6_objectives
from wings import WINGS

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError

PARTS = ("paths", "estimators", "survival")  # of the wing of tables
COPIED = ("CITATION.cff", "CONTRIBUTING.md", "README.md", "benchmarks", "docs", "examples",
          "paper.bib", "paper.md", "pyproject.toml", "sims", "tests")  # fmt: skip
WALK = """
import typer
from flower_fedcon.cli import app


def walk(group, before=""):
    for name, command in group.commands.items():
        yield before + name
        if hasattr(command, "commands"):
            yield from walk(command, f"{before}{name}/")


commands = [*walk(typer.main.get_command(app))]
"""
PLAY = '''
import importlib.abc, pathlib, pkgutil, re, sys

here, gone = pathlib.Path(sys.argv[1]), sys.argv[2].split()


class Gone(importlib.abc.MetaPathFinder):
    """Refuse the modules of the wing, which an editable installation would find elsewhere."""

    def find_spec(self, name, path=None, target=None):
        if any(name == room or name.startswith(f"{room}.") for room in gone):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Gone())
import flower_fedcon

assert pathlib.Path(flower_fedcon.__file__).parents[1] == here, flower_fedcon.__file__
names = [m.name for m in pkgutil.walk_packages(flower_fedcon.__path__, "flower_fedcon.")]
for name in names:
    importlib.import_module(name)
exec((here / "example.py").read_text(), {"__name__": "example"})
from flower_fedcon.cli import main

assert main(sys.argv[3:]) == 0
'''


def example() -> str:
    """Return README's example of a simulation, with three rounds."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    short, replaced = re.subn(r"num_rounds=\d+", "num_rounds=3", blocks[0])
    assert replaced == 1
    return short


def without(wing: str, folder: Path, *more: str) -> dict[str, str]:
    """Copy the package and more into a folder, without a wing; return an environment for it."""
    for name in ("flower_fedcon", *more):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    for room in WINGS[wing].rooms:
        shutil.rmtree(folder / "flower_fedcon" / room)
    return {**os.environ, "PYTHONPATH": str(folder)}


def play(wing: str, folder: Path, environment: dict[str, str], *command: str) -> str:
    """Play README's example and a command in the copy, and return what was printed."""
    (folder / "example.py").write_text(example())
    (folder / "play.py").write_text(f"{PLAY}{WALK}print('commands:', *commands)\n")
    gone = " ".join(f"flower_fedcon.{room.replace('/', '.')}" for room in WINGS[wing].rooms)
    done = subprocess.run(
        [sys.executable, folder / "play.py", folder, gone, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "wing", [pytest.param(w, marks=[pytest.mark.nightly] * (w in PARTS)) for w in WINGS]
)
def test_the_rest_works_without_a_wing(wing, tmp_path):
    said = play(wing, tmp_path, without(wing, tmp_path), "list")
    assert "FedAvg" in said
    _, *left = said.splitlines()[-1].split()
    here: dict[str, list[str]] = {}
    exec(WALK, here)
    assert set(here["commands"]) - set(left) == set(WINGS[wing].commands.split())


def test_an_engine_that_is_not_here_is_refused_by_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "flower_fedcon.engines.jax", None)
    with pytest.raises(ConfigError, match=r'engine="jax" needs flower_fedcon\.engines\.jax, w'):
        simulate(avg(), FederatedProblem(q6_objectives()), 2, engine="jax")


@pytest.mark.nightly
@pytest.mark.parametrize("wing", WINGS)
def test_the_rest_passes_its_tests_without_a_wing(wing, tmp_path):
    """The fast ones, but for those that ask for the wing themselves; and README's job."""
    environment = without(wing, tmp_path, *COPIED)
    if wing != "lab":
        play(wing, tmp_path, environment, "compare", "sims/digits_l1.toml", "--rounds", "2")
    rooms = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    left = [f"tests/{room}" for room in sorted(rooms - {*WINGS[wing].tests})]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", *left],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
