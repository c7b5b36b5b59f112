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
    (row,) = blocks("markdown", "CONTRIBUTING.md")
    return {first.removeprefix("# "): text for first, _, text in parts} | {ROW: row}


def run(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": f"{folder}{os.pathsep}{path}", "COLUMNS": "200"}
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
            whole = (folder / path).read_text()
            for line, before in zip(text.splitlines(), AFTER[path], strict=True):
                assert whole.count(f"\n{before}\n") >= 1
                whole = whole.replace(f"\n{before}\n", f"\n{before}\n{line}\n", 1)
            (folder / path).write_text(whole)
        elif path != WING:  # a package of its own
            (folder / path).write_text(text)
    return folder


def test_they_are_few_files_and_lines():
    assert sorted(files()) == [
        ROW,
        "flower_fedcon/__init__.py",
        COMMAND,
        "flower_fedcon/clients/fedavgm.py",
        RULE,
        "flower_fedcon/objectives/__init__.py",
        LOSS,
        "flower_fedcon/regularizers/__init__.py",
        REGULARIZER,
        "flower_fedcon/sets/__init__.py",
        SET,
        "flower_fedcon/strategies/__init__.py",
        "flower_fedcon/strategies/fedavgm.py",
        USE,
        FAMILY,
        SUMS,
        "flower_fedcon/tables/wing.py",
        WING,
        "tests/algorithms/cases/fedavgm.py",
        "tests/math/set_cases.py",
        "tests/math/test_more_regularizers.py",
        "tests/support/losses.py",
    ]
    assert all(files()[path].count("\n") == len(lines) for path, lines in AFTER.items())


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


def hold(copy: Path, least: int, module: str, *tests: str) -> None:
    """Run tests in the copy, of which so many must pass, and check the form of a new module."""
    quick = ("-p", "no:cacheprovider", "-n", "0")
    done = run(copy, sys.executable, "-m", "pytest", *quick, *tests)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) >= least
    for tool in (("ruff", "check"), ("ruff", "format", "--check")):
        done = run(copy, sys.executable, "-m", *tool, module)
        assert done.returncode == 0, done.stdout[-3000:]
    done = run(copy, sys.executable, "-m", "pytest", *quick, "--doctest-modules", module)
    assert done.returncode in (0, 5), done.stdout[-3000:]  # 5: it has no example


def narrow(copy: Path, path: str, line: str) -> None:
    """Let the copy's tests try one kind alone."""
    whole, before = (copy / path).read_text(), "@st.composite\n"
    assert whole.count(before) == 1
    (copy / path).write_text(whole.replace(before, f"{line}\n\n\n{before}"))


def test_the_regularizer_passes_the_tests_of_regularizers(copy):
    tests = "tests/math/test_more_regularizers.py"
    narrow(copy, tests, 'KINDS = ("huber",)')
    hold(copy, 3, REGULARIZER, tests, "-k", "optimality or stack or messages")
    code = """
from flower_fedcon.runs.toml import argument
print(argument("regularizer", {"type": "Huber", "weight": 2.0}))
"""
    assert run(copy, sys.executable, "-c", code).stdout == "Huber(weight=2.0, width=1.0)\n"


def test_the_set_passes_the_tests_of_sets(copy):
    narrow(copy, "tests/math/set_cases.py", 'VECTOR, MATRIX, FLAT = ("positive",), (), ()')
    tests = "tests/math/test_set_properties.py"
    hold(copy, 3, SET, tests, "-k", "projection_prop or stack or atoms_are")


def test_the_rule_passes_the_tests_of_rules(copy):
    hold(copy, 4, RULE, "tests/algorithms/test_participation.py", "-k", "Turns")
    code = "import sys; sys.path.append('docs/_ext'); import interface; print(interface.pages())"
    listed = run(copy, sys.executable, "-c", code).stdout.split()
    assert {"Turns", "Huber", "PositiveBall", "LogCoshRegression"} <= {*listed}


def test_the_command_is_found(copy, tmp_path):
    hold(copy, 3, COMMAND, "tests/lab/test_cli_help.py", "-k", "last or walked")
    (tmp_path / "history.csv").write_text("round,objective\n1,3.0\n2,2.5\n")
    code = "import sys; from flower_fedcon.cli import main; sys.exit(main(sys.argv[1:]))"
    done = run(copy, sys.executable, "-c", code, "last", str(tmp_path))
    assert done.stdout == "round: 2\nobjective: 2.5\n", done.stderr
    shown = run(copy, sys.executable, "-c", code, "--help").stdout
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
        quick = ("-p", "no:cacheprovider", "-n", "0")
        path = str(tmp_path)
        done = run(copy, sys.executable, "-m", "pytest", *quick, str(test), path=path)
    finally:
        test.unlink()
    assert done.returncode == 0, done.stdout[-5000:]
    assert "4 passed" in done.stdout
    settings = ("--config", str(ROOT / "pyproject.toml"))
    for tool in (("check", *settings), ("format", "--check", *settings)):
        done = run(copy, sys.executable, "-m", "ruff", *tool, str(tmp_path / WING))
        assert done.returncode == 0, done.stdout[-3000:]


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


def test_the_statistic_counts_no_few_rows(copy):
    test = copy / "tests/tables/test_far_rows.py"
    test.write_text(FAR)
    hold(copy, 2, SUMS, str(test))
    hold(copy, 1, USE, "tests/flower/test_policy.py", "-k", "counts_as_one")
    hold(copy, 1, USE, "tests/tables/nodes/test_private_answers.py", "-k", "no_answer_tells")


@pytest.mark.nightly
def test_the_modules_are_typed(copy):
    new = (LOSS, FAMILY, REGULARIZER, SET, RULE, COMMAND, SUMS, USE)
    done = run(copy, sys.executable, "-m", "mypy", "--strict", *new)
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
