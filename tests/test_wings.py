"""Each wing can be deleted: the rest is imported, runs README's example and lists the collection.

A wing is a room, or rooms that go together. Its tests need the wing, and are not run here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from pages import ROOT

WINGS = {  # the rooms to delete, and a command that needs them
    "lab": (["lab"], "run sims/digits_l1.toml"),
    "tables": (["tables", "estimators", "paths", "survival"], "predict a b -o c"),
    "torch": (["torch"], None),
    "engines/jax": (["engines/jax"], None),
}
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

assert main(["list"]) == 0
if sys.argv[3:]:
    assert main(sys.argv[3:]) == 2
print(len(names), "modules")
'''


def example() -> str:
    """Return README's example of a simulation, with three rounds."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    short, replaced = re.subn(r"num_rounds=\d+", "num_rounds=3", blocks[0])
    assert replaced == 1
    return short


@pytest.mark.parametrize("wing", WINGS)
def test_the_rest_works_without_a_wing(wing, tmp_path):
    package = tmp_path / "flower_fedcon"
    shutil.copytree(ROOT / "flower_fedcon", package, ignore=shutil.ignore_patterns("__pycache__"))
    rooms, command = WINGS[wing]
    for room in rooms:
        shutil.rmtree(package / room)
    (tmp_path / "example.py").write_text(example())
    (tmp_path / "play.py").write_text(PLAY)
    gone = " ".join(f"flower_fedcon.{room.replace('/', '.')}" for room in rooms)
    done = subprocess.run(
        [sys.executable, tmp_path / "play.py", tmp_path, gone, *(command or "").split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "FedAvg" in done.stdout
    if command:
        assert re.search(r"^error: this command needs flower_fedcon\.\S+, which", done.stderr, re.M)
