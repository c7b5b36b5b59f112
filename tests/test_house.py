"""The house: who may import whom, how long files are, how deep a step lies."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import grimp
import numpy as np
import pytest

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.clients.fedfw import FedFWClient
from flower_fedcon.objectives import Quadratic
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedFW

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flower_fedcon"
BASES = ("__init__.py", "base.py")


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def pairs(folder: str) -> dict[str, int]:
    return {p.name: lines(p) for p in sorted((ROOT / folder).glob("*.py")) if p.name not in BASES}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("flower_fedcon", exclude_type_checking_imports=True, cache_dir=None)


def test_higher_rooms_use_lower_ones():
    """The layers of pyproject.toml. In a process of its own: the linter resets all loggers."""
    linter = Path(sys.executable).with_name("lint-imports")
    told = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "1 kept, 0 broken" in told.stdout


def test_no_import_cycles(graph):
    seen: dict[str, int] = {}
    cycles: list[list[str]] = []

    def visit(module: str, path: list[str]) -> None:
        seen[module] = 1
        for other in sorted(graph.find_modules_directly_imported_by(module)):
            if seen.get(other) == 1:
                cycles.append([*path[path.index(other) :], other])
            elif other not in seen:
                visit(other, [*path, other])
        seen[module] = 2

    for module in sorted(graph.modules):
        if module not in seen:
            visit(module, [module])
    assert cycles == []


def test_strategies_import_no_client_and_clients_no_strategy(graph):
    for room, other in (("strategies", "clients"), ("clients", "strategies")):
        for module in graph.find_descendants(f"flower_fedcon.{room}"):
            found = graph.find_modules_directly_imported_by(module)
            wrong = [m for m in found if m.startswith(f"flower_fedcon.{other}")]
            assert wrong == [], (
                f"{module} imports {wrong}: what both need is mathematics (solvers/)"
            )


def test_the_root_is_small():
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_a_long_module_says_why():
    """Its docstring has a paragraph that begins with "Length:"."""
    found = [p for folder in ("flower_fedcon", "strategies", "clients", "tests")
             for p in (ROOT / folder).rglob("*.py") if lines(p) > 350]  # fmt: skip
    silent = [p for p in found if "\nLength: " not in p.read_text(encoding="utf-8")[:3000]]
    assert silent == []


def test_an_algorithm_is_as_short_as_its_paper():
    """What is longer has a part that deserves a name, in families/ or in the mathematics."""
    strategies, clients = pairs("strategies"), pairs("clients")
    assert strategies.keys() == clients.keys()
    assert [name for name, n in strategies.items() if n > 200] == []
    assert [name for name, n in clients.items() if n > 90] == []


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("participation", [None, Sample(count=2)])
def test_a_step_lies_at_most_eight_frames_deep_in_five_files(monkeypatch, engine, participation):
    """From `simulate` to a client's `step`, in every round, the first included."""
    seen: list[list[str]] = []
    real = FedFWClient.step

    def step(self, state, down):
        frame, files = sys._getframe(1), [inspect.getfile(FedFWClient)]  # as if this were `real`
        while frame is not None and frame.f_code.co_name != "simulate":
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        seen.append([*files, frame.f_code.co_filename])
        return real(self, state, down)

    monkeypatch.setattr(FedFWClient, "step", step)
    problem = FederatedProblem(
        [Quadratic(np.eye(2), np.ones(2)) for _ in range(3)], constraint=L1Ball(1.0)
    )
    strategy = FedFW(problem.constraint, penalty=1.0, participation=participation)
    simulate(strategy, problem, 4, engine=engine)
    assert len(seen) >= 4
    for files in seen:
        assert len(files) <= 8
        assert len(set(files)) <= 5
