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
from nightly import nightly
from own_package import install
from pages import ROOT, blocks
from processes import SCRIPTS

AFTER = {
    "flower_fedcon/strategies/__init__.py": [
        "from flower_fedcon.strategies.fedavg import FedAvg as FedAvg"
    ],
    "flower_fedcon/objectives/__init__.py": [
        "from flower_fedcon.objectives.completion import MatrixCompletion as MatrixCompletion"
    ],
    "tests/support/losses.py": ["LOSSES = {"],
    "flower_fedcon/regularizers/__init__.py": [
        "from flower_fedcon.regularizers.group_norms import GroupLasso, L2Norm, SparseGroupLasso",
        '    "GroupLasso",',
    ],
    "tests/math/test_more_regularizers.py": ["REGULARIZERS = {"],
    "flower_fedcon/sets/__init__.py": [
        "from flower_fedcon.sets.polyhedra import Polyhedron", '    "Polyhedron",'
    ],
    "tests/math/set_cases.py": ["VECTORS = {"],
    "flower_fedcon/__init__.py": [
        "    from flower_fedcon.core.weighted import Weighted",
        '    "Sample",',
        '    "Sample": "core.participation",',
    ],
    "docs/participation.md": ["| --- | --- | --- |"],
    "flower_fedcon/tables/wing.py": [
        '    _statistic("in_time", "hazards:in_time", counted=True),', "HOOKS = {"
    ],
}  # fmt: skip
"""After which lines those go that are added to a file, one by one."""
ROW = "docs/participation.md"
REGULARIZER = "flower_fedcon/regularizers/huber.py"
SET = "flower_fedcon/sets/positive_ball.py"
RULE = "flower_fedcon/core/turns.py"
COMMAND = "flower_fedcon/cli/commands/last.py"
WING = "my_package/wing.py"
SUMS = "flower_fedcon/tables/statistics/far_rows.py"
USE = "flower_fedcon/tables/ending/final_far_rows.py"
LOSS = "flower_fedcon/objectives/log_cosh.py"
FAMILY = "flower_fedcon/tables/families/log_cosh_loss.py"
NEW = (LOSS, FAMILY, REGULARIZER, SET, RULE, COMMAND, SUMS, USE)
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


def files():
    """Return the example's Python blocks, by the path in their first line."""
    parts = [block.partition("\n") for block in blocks("python", "CONTRIBUTING.md")]
    (row,) = blocks("markdown", "CONTRIBUTING.md")
    return {first.removeprefix("# "): text for first, _, text in parts} | {ROW: row}


def run(folder, *arguments, path=""):
    """Return what a command writes, and its status."""
    more = {"PYTHONPATH": f"{folder}{os.pathsep}{path}", "COLUMNS": "200"}
    done = subprocess.run(arguments, cwd=folder, env={**os.environ, **more}, capture_output=True,
                          text=True, timeout=900, check=False)  # fmt: skip
    return done.stdout + done.stderr, done.returncode


def checked(folder, *arguments, path=""):
    """Return what pytest says, and its status."""
    words = ("-m", "pytest", "-p", "no:cacheprovider", "-n", "0", *arguments)
    return run(folder, sys.executable, *words, path=path)


def formed(folder, *modules):
    """Check the form of modules."""
    settings = ("--config", str(ROOT / "pyproject.toml"))
    for tool in (("check", *settings), ("format", "--check", *settings)):
        said, code = run(folder, sys.executable, "-m", "ruff", *tool, *modules)
        assert code == 0, said


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clone")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True)
        else:
            shutil.copy(source, folder / name)
    for path, text in files().items():
        if path in AFTER:
            whole = (folder / path).read_text()
            for line, before in zip(text.splitlines(), AFTER[path], strict=True):
                assert whole.count(f"\n{before}\n") >= 1
                whole = whole.replace(f"\n{before}\n", f"\n{before}\n{line}\n", 1)
            (folder / path).write_text(whole)
        elif path != WING:  # a package of its own
            (folder / path).write_text(text)
    return folder


def test_they_are_few_files_and_lines():
    new = {*NEW, *AFTER, WING, f"{CLIENTS}/fedavgm.py", f"{STRATEGIES}/fedavgm.py",
           "tests/algorithms/cases/fedavgm.py"}  # fmt: skip
    assert files().keys() == new
    assert all(files()[path].count("\n") == len(lines) for path, lines in AFTER.items())


HELD = {  # the tests that hold an example, what of them, and how many cases at least
    "loss": ("math/test_losses.py math/test_three_functions.py", "log_cosh", 31),
    "family": ("tables/test_families.py", "log_cosh", 9),
    "regularizer": ("math/test_more_regularizers.py", "optimality or stack or messages", 3),
    "set": ("math/test_set_properties.py", "projection_prop or stack or atoms_are", 3),
    "rule": ("algorithms/test_participation.py", "Turns", 4),
    "statistic": ("tables/test_far_rows.py", "test_far_rows", 2),
    "policy": ("flower/test_policy.py", "counts_as_one", 1),
    "answers": ("tables/nodes/test_private_answers.py", "no_answer_tells", 1),
    "command": ("lab/test_cli_help.py", "last or walked", 3),
}


@pytest.fixture(scope="module")
def passed(copy):
    """The cases that pass of all that HELD names, in one process."""
    for path, line in (("tests/math/test_more_regularizers.py", 'KINDS = ("huber",)'),
                       ("tests/math/set_cases.py",
                        'VECTOR, MATRIX, FLAT = ("positive",), (), ()')):  # fmt: skip
        whole, before = (copy / path).read_text(), "@st.composite\n"  # let it try this kind alone
        assert whole.count(before) == 1
        (copy / path).write_text(whole.replace(before, f"{line}\n\n\n{before}"))
    (copy / "tests/tables/test_far_rows.py").write_text(FAR)
    of = [f"({' or '.join(Path(name).stem for name in names.split())}) and ({what})"
          for names, what, _ in HELD.values()]  # fmt: skip
    paths = sorted({f"tests/{name}" for names, _, _ in HELD.values() for name in names.split()})
    said, code = checked(copy, "-rA", "--tb=short", "-k", " or ".join(of), *paths)
    assert code == 0, said[-3000:]
    return re.findall(r"^PASSED tests/(\S+?)::", said, re.MULTILINE)


@pytest.mark.parametrize("example", HELD)
def test_what_is_added_passes_the_tests_of_its_kind(passed, example):
    names, _, least = HELD[example]
    assert sum(passed.count(name) for name in names.split()) >= least


def test_what_is_added_has_the_form_and_examples_that_run(copy):
    formed(copy, *NEW)
    said, code = checked(copy, "--doctest-modules", *NEW)
    assert code == 0, said
    code = """
from flower_fedcon.runs.toml import argument
print(argument("regularizer", {"type": "Huber", "weight": 2.0}))
"""
    assert run(copy, sys.executable, "-c", code)[0] == "Huber(weight=2.0, width=1.0)\n"
    code = "import sys; sys.path.append('docs/_ext'); import interface; print(interface.pages())"
    listed = run(copy, sys.executable, "-c", code)[0].split()
    assert {"Turns", "Huber", "PositiveBall", "LogCoshRegression"} <= {*listed}


def test_the_command_is_found(copy, tmp_path):
    (tmp_path / "history.csv").write_text("round,objective\n1,3.0\n2,2.5\n")
    code = "import sys; from flower_fedcon.cli import main; sys.exit(main(sys.argv[1:]))"
    said = run(copy, sys.executable, "-c", code, "last", str(tmp_path))[0]
    assert said == "round: 2\nobjective: 2.5\n"
    shown = run(copy, sys.executable, "-c", code, "--help")[0]
    assert shown.index("│ plot ") < shown.index("│ last ") < shown.index("│ table ")


NODES = """
import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from problems import avg, q6_objectives

from flower_fedcon import FederatedProblem, Policy, client_app, simulate


def told(caplog):
    lines = [r.getMessage() for r in caplog.records if "steepness of" in r.getMessage()]
    return [line.partition(": ")[2] for line in lines]


def on_nodes(**own):
    grid = FakeGrid(q6_objectives(), make=lambda load: client_app(load, policy=Policy(**own)))
    avg().start(grid, num_rounds=2)


@pytest.fixture
def known(caplog):
    x = simulate(avg(), FederatedProblem(q6_objectives()), 2).x
    caplog.clear()
    return [f"{np.linalg.norm(f.gradient(x)):.6f}" for f in q6_objectives()]


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_it_is_answered_in_this_process(engine, known, caplog):
    simulate(avg(), FederatedProblem(q6_objectives()), 2, engine=engine)
    assert told(caplog) == known


@on_grid
def test_nodes_answer_if_their_policy_lists_it(known, caplog):
    on_nodes(phases="train,evaluate,steepness")
    assert told(caplog) == known


@on_grid
def test_the_default_policy_refuses(caplog):
    on_nodes()
    assert len(told(caplog)) == 6
    assert all("refused" in why and "not steepness" in why for why in told(caplog))
"""


def test_the_question_is_answered_in_every_engine_and_by_nodes(copy, tmp_path):
    _, block = blocks("toml", "CONTRIBUTING.md")
    lines = tomllib.loads(block)["project"]["entry-points"]["flower_fedcon.wings"]
    points = [f"{name} = {place}" for name, place in lines.items()]
    install(tmp_path, "[flower_fedcon.wings]", *points)
    (tmp_path / "my_package").mkdir()
    (tmp_path / WING).write_text(files()[WING])
    test = copy / "tests/flower/test_steepness.py"
    test.write_text(NODES)
    try:
        said, _ = checked(copy, str(test), path=str(tmp_path))
    finally:
        test.unlink()
    assert "4 passed" in said, said[-5000:]
    formed(copy, str(tmp_path / WING))


FAR = """
import numpy as np
import pandas as pd
import pytest
from sites import problem, run, written

from flower_fedcon import Policy
from flower_fedcon.core.exchange import Site, known
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.tables.ending.final_far_rows import FarRows


def told(far, **bounds):
    y = np.tile([1.0, -1.0], 50)
    y[:far] *= 10.0
    loss = LeastSquares(np.ones((100, 1)), y)
    site = Site(loss, rows=100, bounds=Policy(**bounds))
    return known()["far_rows"].tell(site, {"x": np.zeros(1)})["numbers"].tolist()


def test_far_rows_are_counted_unless_they_are_few():
    assert told(0) == [100, 0]
    assert told(3) == [100, 3]
    assert told(2) == [0, 0]  # policy.min-cell = 3
    assert told(2, min_cell=1) == [100, 2]
    assert told(3, min_rows=4) == [0, 0]


def test_a_run_on_tables_asks(tmp_path, monkeypatch):
    counts = []
    keep = lambda hook, run: counts.append((hook.rows, hook.far)) or ()
    monkeypatch.setattr(FarRows, "doubts", keep)
    run(problem(written(tmp_path), "squared", site_effects="common"))
    run(problem(tmp_path, "poisson", site_effects="common"))
    ((rows, far),) = counts  # of the linear model alone
    assert rows == len(pd.read_csv(tmp_path / "all.txt"))
    assert 0 < far < 0.1 * rows
"""


@pytest.mark.nightly
def test_the_modules_are_typed(copy):
    said, code = run(copy, sys.executable, "-m", "mypy", "--strict", *NEW)
    assert code == 0, said[-3000:]


SELECTED = [  # of what `make algorithm` selects of all tests: a minute of reading files
    "tests/algorithms/test_contract.py", "tests/algorithms/test_server_steps.py",
    "tests/test_readme.py", "tests/test_docstrings.py",
]  # fmt: skip


@pytest.mark.parametrize("tests", [SELECTED, nightly(["tests"])], ids=["some", "all"])
def test_the_example_passes_the_contract(copy, tests):
    (script,) = blocks("bash", "CONTRIBUTING.md")
    table, algorithm = (f"make BIN={SCRIPTS} {line[5:]}" for line in script.splitlines())
    said, code = run(copy, "bash", "-euc", table)
    assert code == 0, said
    row = "| [FedAvgM](flower_fedcon/strategies/fedavgm.py) | min_w (1/N) sum_i f_i(w) | FedAvg wi"
    assert row in (copy / "README.md").read_text()
    said, _ = run(copy, "bash", "-euc", f"{algorithm} --dry-run")
    assert '/pytest tests -k "fedavgm or table or test_house"' in said
    which = "fedavgm or (table and (test_readme or test_server_steps))"  # not the other tables
    said, code = checked(copy, "-k", which, "-m", "not ray", *tests)
    assert code == 0, said[-3000:]
    assert int(re.search(r"(\d+) passed", said)[1]) > 20


def test_an_entry_point_is_all_it_takes(tmp_path):
    """The lines of a package's pyproject.toml, as `pip install` leaves them."""
    block, _ = blocks("toml", "CONTRIBUTING.md")
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
    told, _ = run(tmp_path, sys.executable, "-c", code)
    assert told.startswith("FedMine FedMineClient\n"), told
    assert "(my_package" in told  # the column is narrow


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        (f"{STRATEGIES}/__init__.py", "import FedAvgM as FedAvgM", None, "has no strategy"),
        (f"{CLIENTS}/fedavgm.py", '{"delta": ', '{"dleta": ', "uploads ['dleta'], and FedAvgM"),
        nightly("tests/algorithms/cases/fedavgm.py", None, None, "algorithms/cases/fedavgm.py"),
        nightly(f"{STRATEGIES}/fedavgm.py", 'name = "fedavgm"', 'name = "m"', 'name = "fedavgm"'),
        nightly(f"{CLIENTS}/fedavgm.py", '"fedavgm"', '"avgm"', 'algorithm = "fedavgm"'),
        nightly(f"{CLIENTS}/fedavgm.py", "client_lr:", "client_rl:", "'client_rl', which is no"),
        nightly(f"{STRATEGIES}/fedavgm.py", "\nWire: ", "\nCost: ", "has no Wire"),
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
        told, code = checked(copy, "-x", "-k", "fedavgm", "tests/algorithms/test_contract.py")
        assert code != 0
        assert said in told
    finally:
        file.write_text(whole)
