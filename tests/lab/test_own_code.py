"""Results know which code of one's own they are of."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import ran, refusal

from flower_fedcon import FederatedProblem, register, simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedAvg
from flower_fedcon.wire.own_code import own_code

HELPER = """
FACTOR = 2.0
def stretched(x):
    return FACTOR * x
"""
OWN = """
import numpy as np
import own_helper
from own_helper import stretched
from flower_fedcon import FederatedProblem
from flower_fedcon.clients.fedavg import FedAvgClient
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedAvg

def make(*, seed: int = 0):
    "Two clients."
    shifts = stretched(np.array([0.0, 1.0]))  # of both
    return FederatedProblem([Quadratic(np.eye(2), np.full(2, s)) for s in shifts])

def by_module():
    return own_helper.stretched(1.0)

class Mine(FedAvg):
    "FedAvg, drawn to 0."
    name = "mine"
    PULL = 0.9
    def aggregate(self, state, uploads):
        return super().aggregate(state, uploads)._replace()
class MineClient(FedAvgClient):
    algorithm = "mine"
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function that writes the two modules with changes, and imports them afresh."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(*changes):
        for name, text in (("own_helper", HELPER), ("own_module", OWN)):
            for old, new in changes:
                text = text.replace(old, new)
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("own_module")

    yield write
    for name in ("own_helper", "own_module"):
        sys.modules.pop(name, None)


def test_code_counts_and_its_layout_does_not(written):
    def codes(*changes):
        module = written(*changes)
        return [own_code(thing) for thing in (module.make, module.by_module, module.Mine)]

    before = codes()
    assert len(set(before)) == 3
    assert "" not in before
    layout = ("  # of both", ""), ("Two clients", "2 clients"), ("def make", "\n\ndef make")
    assert codes(*layout) == before
    for change, moved in (
        (("0.0, 1.0", "0.0, 3.0"), [True, False, False]),
        (("FACTOR * x", "FACTOR * x + 1"), [True, True, False]),
        (("FACTOR = 2.0", "FACTOR = 3.0"), [True, True, False]),
        (("PULL = 0.9", "PULL = 0.8"), [False, False, True]),
        (("_replace()", "_replace(w=0.0)"), [False, False, True]),
    ):
        assert [a != b for a, b in zip(before, codes(change), strict=True)] == moved, change
    assert [own_code(thing) for thing in (FedAvg, np.mean, re.compile)] == ["", "", ""]


@pytest.mark.parametrize("place", ["site-packages", "dist-packages"])
def test_what_another_environment_has_installed_does_not_count(written, tmp_path, place):
    """A user's folder, the system's beneath an environment, or one that PYTHONPATH names."""
    (tmp_path / place).mkdir()
    (tmp_path / place / "own_helper.py").write_text(HELPER)
    sys.path.insert(0, f"{tmp_path / place}")
    module = written()
    assert module.own_helper.__file__.startswith(f"{tmp_path / place}")
    assert own_code(module.own_helper.stretched) == ""
    assert own_code(module.by_module) != ""


def test_what_has_no_source():
    def made(number):
        names: dict[str, Any] = {"__name__": __name__}
        exec(f"def f(x):\n    return x + {number}", names)
        return names["f"]

    assert own_code(made(1)) == own_code(made(1)) != own_code(made(2)) != ""


SMALL = """
[problem]
name = "own_module:make"
[run]
rounds = 3
[algorithm]
name = "FedAvg"
client_lr = 0.5
local_steps = 1
"""


def test_finished_runs_of_other_code_are_not_taken(fedcon, written):
    written()
    Path("own.toml").write_text(SMALL)
    tune = ["tune", "own.toml", "--grid", "client_lr=0.1,0.5", "--workers", "1"]
    ran(fedcon, *tune)
    assert fedcon(*tune)[1].count(", found") == 2
    written(("# of both", "# comment"))
    assert fedcon(*tune)[1].count(", found") == 2
    written(("FACTOR = 2.0", "FACTOR = 4.0"))
    assert "the problem's code is not what it was" in refusal(fedcon, *tune)
    written()
    file = Path("runs/own-tune/fedavg/client_lr=0.1/result.json")
    result = json.loads(file.read_text())
    result["made_of"]["the problem's data are not what they were"] = "another"
    file.write_text(json.dumps(result))
    assert "the problem's data are not what they were" in refusal(fedcon, *tune)


TRACED = (
    SMALL
    + """
participation = { type = "Available", trace = "trace.csv" }
[[compare]]
name = "FedAvg"
label = "shorter"
client_lr = 0.1
local_steps = 1
participation = { type = "Available", trace = "trace.csv" }
"""
)
TRACE = ["1,0\n", "0,1\n", "1,1\n"]


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_repeated_run_says_which_inputs_have_changed(fedcon, written, command):
    written()
    Path("trace.csv").write_text("".join(TRACE))
    Path("own.toml").write_text(TRACED)
    ran(fedcon, command, "own.toml", "--run-dir", "first")
    first = {"run": "first", "compare": "first/fedavg"}[command]
    environment = json.loads(Path(first, "environment.json").read_text())
    assert environment["inputs"].keys() == {"data", "problem", "participation"}
    again = [command, "first/config.toml", "--run-dir"]
    assert "not with the inputs" not in ran(fedcon, *again, "same")
    Path("trace.csv").write_text("".join(reversed(TRACE)))
    words = f"FedAvg: not with the inputs of {first}: participation is .* but its content has cha"
    said = ran(fedcon, *again, "reversed")
    assert re.search(words, said)
    assert "resume_key" not in said  # the rule is not one's own
    other = ran(fedcon, *again, "other", "--set", "participation.count=1")
    assert "not with the inputs" not in other  # as the command says
    Path("trace.csv").write_text("".join(TRACE))
    written(("[0.0, 1.0]", "[0.0, 1.5]"))
    said = ran(fedcon, *again, "edited")
    assert "data has changed: that of 1 of 2 clients differs, the first is client 1" in said
    assert said.count("not with the inputs") == (2 if command == "compare" else 1)


@pytest.mark.parametrize("tuned", [False, True])
def test_a_repeated_study_says_which_inputs_have_changed(fedcon, undrawn, written, tuned):
    written()
    Path("trace.csv").write_text("".join(TRACE))
    grid = "client_lr = 0.5\ngrid = {client_lr = [0.05, 0.1, 0.2]}"
    text = TRACED.replace("client_lr = 0.5", grid, 1) if tuned else TRACED
    sweep = f"[sweep]\nlocal_steps = [1, 2]\nrun.seed = [0, 1]\ntune = {str(tuned).lower()}\n"
    Path("own.toml").write_text(text + sweep)
    ran(fedcon, "compare", "own.toml", "--workers", "1", "--run-dir", "first")
    again = ["compare", "first/config.toml", "--workers", "1", "--run-dir"]
    assert "not with the inputs" not in ran(fedcon, *again, "same")
    Path("trace.csv").write_text("".join(reversed(TRACE)))
    said = ran(fedcon, *again, "reversed")
    words = "not with the inputs of 8 of the 8 runs in first: participation is .* but its content"
    assert re.search(words, said)
    assert said.count("not with the inputs") == 1
    other = ran(fedcon, *again, "other", "--set", "shorter.participation.count=1")
    assert "not with the inputs of 4 of the 8 runs in first: participation" in other
    Path("trace.csv").write_text("".join(TRACE))
    written(("[0.0, 1.0]", "[0.0, 1.5]"))
    said = ran(fedcon, *again, "edited")
    words = "of the 8 runs in first: data has changed: that of 1 of 2 clients differs"
    assert f"not with the inputs of 8 {words}" in said
    assert said.count("not with the inputs") == 1


def test_a_trace_that_is_shorter_than_the_run_is_said(fedcon, undrawn, written):
    written()
    Path("trace.csv").write_text("".join(["0,0\n", *TRACE]))
    Path("own.toml").write_text(TRACED)
    assert "is repeated" not in ran(fedcon, "compare", "own.toml", "--run-dir", "enough")
    words = ("participation: trace.csv has 3 rows with available clients, and the run 5 rounds: "
             "from round 4 on the trace is repeated")  # fmt: skip
    said = ran(fedcon, "run", "own.toml", "--rounds", "5", "--run-dir", "short")
    assert f"FedAvg: {words}" in said
    assert said.count("is repeated") == 1
    Path("own.toml").write_text(f"{TRACED}[sweep]\nlocal_steps = [1, 2]\n")
    said = ran(fedcon, "compare", "own.toml", "--rounds", "5", "--workers", "1", "--run-dir", "s")
    assert words in said
    assert said.count("is repeated") == 1


def test_finished_runs_of_another_trace_are_not_taken(fedcon, written):
    written()
    Path("trace.csv").write_text("".join(TRACE))
    Path("own.toml").write_text(TRACED)
    tune = ["tune", "own.toml", "--grid", "client_lr=0.1,0.5", "--workers", "1"]
    ran(fedcon, *tune)
    Path("trace.csv").write_text("".join(reversed(TRACE)))
    assert "a file that its settings name is not what it was" in refusal(fedcon, *tune)


def test_a_run_does_not_go_on_with_other_code(written, tmp_path):
    problem = FederatedProblem([Quadratic(np.eye(2), np.full(2, s)) for s in (0.0, 1.0)])

    def run(rounds, *changes, **options):
        module = written(*changes)
        register(module.Mine, module.MineClient)
        strategy = module.Mine(client_lr=0.5, local_steps=1)
        simulate(strategy, problem, rounds, run_dir=tmp_path / "run", **options)

    run(2)
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert list(environment["own code"]) == ["own_module:Mine", "own_module:MineClient"]
    assert len(environment["configuration"]) == 64
    assert environment["packages"].keys() >= {"torch", "jax"}
    run(3, ("drawn to 0", "pulled to 0"), resume=True)
    other = ("PULL = 0.9", "PULL = 0.8")
    words = "the algorithm's code has changed.*--allow-change code"
    with pytest.raises(FedConError, match=words):
        run(4, other, resume=True)
    run(4, other, resume=True, allow_changes=["code"])
