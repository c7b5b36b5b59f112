"""CONTRIBUTING.md's worked examples, followed to the letter in a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from own_package import install
from pages import ROOT, blocks
from processes import SCRIPTS

AFTER = {
    "flower_fedcon/strategies/__init__.py": "from flower_fedcon.strategies.fedavg import "
    "FedAvg as FedAvg\n",
    "flower_fedcon/objectives/__init__.py": "from flower_fedcon.objectives.completion import "
    "MatrixCompletion as MatrixCompletion\n",
    "tests/support/losses.py": "LOSSES = {\n",
}
"""Where lines that are added to a file go."""
LOSS = "flower_fedcon/objectives/log_cosh.py"
FAMILY = "flower_fedcon/tables/families/log_cosh_loss.py"
STRATEGIES, CLIENTS = "flower_fedcon/strategies", "flower_fedcon/clients"
COPIED = ("CITATION.cff", "flower_fedcon", "tests", "sims", "docs", "examples",
          "README.md", "pyproject.toml", "Makefile", "CONTRIBUTING.md")  # fmt: skip

FEDMINE = """
from own_algorithm import Own, OwnClient

class FedMineClient(OwnClient):
    algorithm = "fedmine"

class FedMine(Own):
    name = "fedmine"

PAIR = FedMine, FedMineClient
"""


def files() -> dict[str, str]:
    """Return the example's Python blocks, by the path in their first line."""
    parts = [block.partition("\n") for block in blocks("python", "CONTRIBUTING.md")]
    return {first.removeprefix("# "): text for first, _, text in parts}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def contract_of(folder: Path, *which: str) -> subprocess.CompletedProcess[str]:
    quick = ("-m", "not ray", "-p", "no:cacheprovider")
    return run(folder, sys.executable, "-m", "pytest", "-k", "fedavgm", *quick, *which)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clone")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        else:
            shutil.copy(source, folder / name)
    for path, text in files().items():
        if path in AFTER:
            there, before = (folder / path).read_text(), AFTER[path]
            assert before in there
            (folder / path).write_text(there.replace(before, before + text))
        else:
            (folder / path).write_text(text)
    return folder


def test_they_are_few_files_and_lines():
    assert sorted(files()) == [
        "flower_fedcon/clients/fedavgm.py",
        "flower_fedcon/objectives/__init__.py",
        LOSS,
        "flower_fedcon/strategies/__init__.py",
        "flower_fedcon/strategies/fedavgm.py",
        FAMILY,
        "tests/algorithms/cases/fedavgm.py",
        "tests/support/losses.py",
    ]
    assert all(files()[path].count("\n") == 1 for path in AFTER)


def test_the_loss_passes_the_tests_of_losses(copy):
    tests = ("tests/math/test_losses.py", "tests/math/test_three_functions.py")
    quick = ("-p", "no:cacheprovider", "-n", "0")
    done = run(copy, sys.executable, "-m", "pytest", "-k", "log_cosh", *quick, *tests)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) > 30
    for tool in (("ruff", "check"), ("ruff", "format", "--check")):
        done = run(copy, sys.executable, "-m", *tool, LOSS)
        assert done.returncode == 0, done.stdout[-3000:]
    done = run(copy, sys.executable, "-m", "pytest", *quick, "--doctest-modules", LOSS)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_loss_for_tables_passes_the_contract_of_families(copy):
    quick = ("-p", "no:cacheprovider", "-n", "0")
    tests = "tests/tables/test_families.py"
    done = run(copy, sys.executable, "-m", "pytest", "-k", "log_cosh", *quick, tests)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) >= 9
    for tool in (("ruff", "check"), ("ruff", "format", "--check")):
        done = run(copy, sys.executable, "-m", *tool, FAMILY)
        assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.nightly
def test_the_loss_is_typed(copy):
    done = run(copy, sys.executable, "-m", "mypy", "--strict", LOSS, FAMILY)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_example_passes_the_contract(copy):
    (script,) = blocks("bash", "CONTRIBUTING.md")
    table, algorithm = (f"make BIN={SCRIPTS} {line[5:]}" for line in script.splitlines())
    done = run(copy, "bash", "-euc", table)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "| [FedAvgM](flower_fedcon/strategies/fedavgm.py) | min_w (1/N) sum_i f_i(w) | FedAvg with "
        in (copy / "README.md").read_text()
    )
    said = run(copy, "bash", "-euc", f"{algorithm} --dry-run").stdout
    assert '/pytest tests -k "fedavgm or table or test_house"' in said
    page = copy / "docs/server_steps.md"
    row = re.search(r"`(\| FedAvgM .*\|)`", (copy / "CONTRIBUTING.md").read_text())
    assert row is not None
    page.write_text(page.read_text().replace("| FedAvg |", f"{row[1]}\n| FedAvg |"))
    steps = copy / "tests/algorithms/test_server_steps.py"
    done = run(copy, sys.executable, "-m", "pytest", "-k", "table", str(steps), "-n", "0")
    assert done.returncode == 0, done.stdout[-3000:]
    done = contract_of(copy, "tests")  # what that selects, without the other tables' tests
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) > 20
    readme = run(copy, sys.executable, "-m", "pytest", "tests/test_readme.py", "-k", "table")
    assert readme.returncode == 0, readme.stdout[-3000:]


def test_an_entry_point_is_all_it_takes(tmp_path):
    """The lines of a package's pyproject.toml, as `pip install` leaves them."""
    (block,) = blocks("toml", "CONTRIBUTING.md")
    lines = tomllib.loads(block)["project"]["entry-points"]["flower_fedcon.algorithms"]
    path = install(tmp_path, *(f"{name} = {pair}" for name, pair in lines.items()))
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "fedmine.py").write_text(FEDMINE)
    code = f"""
import sys; sys.path[:0] = {path!r}
from flower_fedcon.cli import main
from flower_fedcon.registry import client_class, strategy_class
print(strategy_class("fedmine").__name__, client_class("fedmine").__name__)
main(["list"])
"""
    told = run(tmp_path, sys.executable, "-c", code)
    assert told.stdout.startswith("FedMine FedMineClient\n"), told.stderr
    assert "(my_package" in told.stdout  # the column is narrow


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        (f"{STRATEGIES}/__init__.py", "import FedAvgM as FedAvgM", None, "has no strategy"),
        (f"{CLIENTS}/fedavgm.py", '{"delta": ', '{"dleta": ', "uploads ['dleta'], and FedAvgM"),
        *(
            pytest.param(*slip, marks=pytest.mark.nightly)
            for slip in [
                ("tests/algorithms/cases/fedavgm.py", None, None, "algorithms/cases/fedavgm.py"),
                (f"{STRATEGIES}/fedavgm.py", 'name = "fedavgm"', 'name = "m"', 'name = "fedavgm"'),
                (f"{CLIENTS}/fedavgm.py", '"fedavgm"', '"avgm"', 'algorithm = "fedavgm"'),
                (f"{CLIENTS}/fedavgm.py", "client_lr:", "client_rl:", "'client_rl', which is no"),
                (f"{STRATEGIES}/fedavgm.py", "\nWire: ", "\nCost: ", "has no Wire"),
            ]
        ),
    ],
    ids=["no line", "misspelt upload", "no case", "another name", "another algorithm",
         "no such field", "no wire"],
)  # fmt: skip
def test_what_is_forgotten_is_named(copy, path, old, new, said):
    """Each slip on the way ends in a text that says what to do."""
    file = copy / path
    whole = file.read_text()
    try:
        if old is None:
            file.unlink()
        elif new is None:
            file.write_text("".join(x for x in whole.splitlines(True) if old not in x))
        else:
            assert old in whole
            file.write_text(whole.replace(old, new))
        done = contract_of(copy, "-x", "tests/algorithms/test_contract.py")
        assert done.returncode != 0
        assert said in done.stdout + done.stderr
    finally:
        file.write_text(whole)
