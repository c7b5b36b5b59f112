"""The house: who may import whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

import flower_fedcon
from flower_fedcon import problems

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flower_fedcon"


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("flower_fedcon", exclude_type_checking_imports=True, cache_dir=None)


def test_higher_rooms_use_lower_ones():
    """The layers of pyproject.toml. In a process of its own: the linter resets all loggers."""
    linter = Path(sys.executable).with_name("lint-imports")
    told = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "2 kept, 0 broken" in told.stdout


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


def imported_files() -> dict[str, set[str]]:
    """Return the files that each file imports: also for hints, and within functions.

    The package's own `__init__.py` counts as one that imports nothing: it loads names when asked.
    """
    places = {path.relative_to(ROOT).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    files = {".".join(place.parts).removesuffix(".__init__"): places[place] for place in places}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        names: list[str] = []
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if name != PACKAGE.name else ():
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name} has a relative import"
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                names += [one if one in files else str(node.module) for one in inside]
        found[name] = {one for one in names if one in files} - {name}
    return found


def shortest_circle(edges: dict[str, set[str]]) -> list[str]:
    """Return the shortest way from a file back to itself; empty if there is none."""
    shortest: list[str] = []
    for first in sorted(edges):
        ways = [[first]]  # breadth first: the first way back is the shortest
        seen = set()
        while ways:
            way = ways.pop(0)
            if first in edges[way[-1]]:
                if not shortest or len(way) < len(shortest) - 1:
                    shortest = [*way, first]
                break
            new = sorted(edges[way[-1]] - seen)
            seen.update(new)
            ways += [[*way, one] for one in new]
    return shortest


def test_no_circle_of_files():
    edges = imported_files()
    left = {name: set(those) for name, those in edges.items()}
    while done := {name for name, those in left.items() if not those & left.keys()}:
        left = {name: those for name, those in left.items() if name not in done}
    # What is left imports, or is imported through, a circle.
    left = {name: those & left.keys() for name, those in left.items()}
    assert not left, f"{len(left)} files, a circle: {' -> '.join(shortest_circle(left))}"


def test_a_circle_of_files_is_found():
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e", "a"}, "e": {"d"}}
    assert shortest_circle(edges) == ["d", "e", "d"]
    assert shortest_circle({"a": {"b"}, "b": set()}) == []


def test_strategies_import_no_client_and_clients_no_strategy(graph):
    for room, other in (("strategies", "clients"), ("clients", "strategies")):
        for module in graph.find_descendants(f"flower_fedcon.{room}"):
            found = graph.find_modules_directly_imported_by(module)
            wrong = [m for m in found if m.startswith(f"flower_fedcon.{other}")]
            assert wrong == [], (
                f"{module} imports {wrong}: what both need is mathematics (solvers/)"
            )


def test_a_pair_has_two_files_of_one_name():
    strategies, clients = (
        {path.name for path in (PACKAGE / folder).glob("*.py")} - {"base.py"}
        for folder in ("strategies", "clients")
    )
    assert strategies == clients


def test_the_root_is_small():
    """Rooms, modules, and three names by which users know the modules of `server/`."""
    assert len(list(PACKAGE.glob("*/__init__.py"))) <= 25
    modules = {path.name for path in PACKAGE.glob("*.py")}
    assert len(modules - {path.name for path in (PACKAGE / "server").glob("[a-z]*.py")}) <= 8


def test_names_stand_once():
    """But for `base.py`, what the others of a room derive from; for an algorithm's two files, and
    the families of both; and for the names by which users know the modules of `server/`."""
    on_purpose = {"__init__.py", "base.py"} | {p.name for p in (PACKAGE / "server").glob("*.py")}
    names = Counter(path.name for path in PACKAGE.rglob("*.py"))
    for folder in ("", "families/"):
        both = [
            {path.name for path in (ROOT / room / folder).glob("*.py")}
            for room in ("strategies", "clients")
        ]
        names.subtract(set.intersection(*both))
    assert {name for name, times in names.items() if times > 1} <= on_purpose


def test_the_map_has_every_room():
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    text = page.partition("## Where things live\n")[2].partition("\n## ")[0]
    rows = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    rooms = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert sorted(re.findall(r"`(.*?)`", rows)) == sorted(rooms | modules)


def test_only_the_command_imports_the_laboratory(graph):
    for module in graph.modules:
        if not module.startswith(("flower_fedcon.lab", "flower_fedcon.cli")):
            found = graph.find_modules_directly_imported_by(module)
            assert [m for m in found if m.startswith("flower_fedcon.lab")] == [], module


def test_one_room_imports_jax():
    """But for the benchmarks, which are written with it by hand, too."""
    found = [
        p for p in PACKAGE.rglob("*.py") if re.search(r"^ *(import|from) jax\b", p.read_text())
    ]
    rooms = ("engines/jax/", "lab/benchmarks/")
    assert [p for p in found if not str(p.relative_to(PACKAGE)).startswith(rooms)] == []


PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
OLDER = {  # what Flower keeps for older apps, or calls deprecated: the end of each costs its file
    "flwr.client": "client.py",
    "flwr.client.mod": "secagg_node.py",
    "flwr.common": "legacy.py secagg.py",
    "flwr.server": "secagg.py",
    "flwr.server.client_manager": "legacy.py",
    "flwr.server.client_proxy": "legacy.py",
    "flwr.server.strategy": "legacy.py",
    "flwr.server.superlink.fleet.vce.backend": "lasting_workers.py",
    "flwr.server.workflow": "secagg.py",
    "flwr.simulation": "virtual_nodes.py",
}


def test_of_flower_public_modules_are_used_and_older_ones_each_in_its_file():
    imported = re.compile(r"^ *(?:from|import) (flwr(?:\.\w+)*)\b", re.MULTILINE)
    found: dict[str, set[str]] = {}
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "sims").glob("*.py")]:
        for module in set(imported.findall(path.read_text())) - PUBLIC:
            found.setdefault(module, set()).add(path.name)
    assert {module: " ".join(sorted(files)) for module, files in found.items()} == OLDER


@pytest.mark.parametrize(
    "code",
    [
        "import flower_fedcon.problems",
        "from flower_fedcon import client_app; client_app(lambda context: None)",
        "from flower_fedcon import server_app; server_app(lambda context: None)",
        "from flower_fedcon import FederatedProblem, simulate\n"
        "from flower_fedcon.objectives import Quadratic\n"
        "from flower_fedcon.strategies import FedAvg\n"
        "problem = FederatedProblem([Quadratic([[1.0]], [b]) for b in (1.0, 3.0)])\n"
        "for engine in ('local', 'stacked'):\n"
        "    simulate(FedAvg(client_lr=0.5, local_steps=1), problem, 2, engine=engine)",
    ],
    ids=["problems", "client_app", "server_app", "simulate"],
)
def test_a_node_and_a_simulation_load_nothing_of_the_laboratory(code):
    told = "import sys; print([m for m in sys.modules if m.startswith('flower_fedcon.lab')])"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{told}"], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_nearest_public_name_is_suggested():
    there = "did you mean FedFW? Write `from flower_fedcon.strategies import FedFW`"
    with pytest.raises(ImportError, match=re.escape(there)):
        from flower_fedcon import FedFWW  # noqa: F401
    with pytest.raises(AttributeError, match=re.escape(there)):
        flower_fedcon.FedFWW  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'zebra'$"):
        flower_fedcon.zebra  # noqa: B018


def test_every_builder_is_public():
    assert problems.BUILDERS.keys() <= set(problems.__all__)
    others = {"BUILDERS", "Builder", "builder", "mnist_images", "partition", "stated"}
    assert set(problems.__all__) - problems.BUILDERS.keys() == others


def test_the_papers_problems_are_found_beside_the_others():
    assert problems.movielens is problems.BUILDERS["movielens"]
    with pytest.raises(AttributeError, match="no attribute 'movielenz'"):
        problems.movielenz  # noqa: B018
