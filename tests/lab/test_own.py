"""Problems of one's own in experiment files, and files of runs that Python made."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from contract import FIRST
from contract import strategy as strategy_of
from harness import ran, refusal
from joblib.externals.loky import get_reusable_executor
from left import config_of, model_of

from flower_fedcon.core.participation import Bernoulli
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.problems import BUILDERS, counterexample
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.simulation import simulate
from flower_fedcon.strategies import FedMiD

OWN = """
import numpy as np
from flower_fedcon import FederatedProblem
from flower_fedcon.objectives import Quadratic

def make_problem(*, size: int = 2, shift: float = 1.0):
    return FederatedProblem([Quadratic(np.eye(size), np.full(size, s)) for s in (0.0, shift)])

def forgets(): ...
"""


NAMED = """
import numpy as np
from flower_fedcon import FederatedProblem
from flower_fedcon.objectives import Quadratic

def make_problem(*, seed: int = 0):
    clients = [Quadratic(np.eye(2), np.full(2, 1.0 + seed + s)) for s in (0.0, 2.0)]
    names = ("relative", "up", "algorithm", "top-1.5")
    return FederatedProblem(
        clients, metrics={name: lambda x, k=k: 7.0 + k for k, name in enumerate(names)}
    )

"""


def test_a_metric_may_bear_a_name_that_the_closing_table_has(fedcon, monkeypatch):
    """The metric's numbers are shown, and not F - F* or the megabytes beside which it stands."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("named_problems.py").write_text(NAMED)
    get_reusable_executor().shutdown(wait=True)  # of other tests, in other folders
    run = '[run]\nrounds = 1\n[algorithm]\nname = "FedAvg"\nclient_lr = 0.5\nlocal_steps = 1\n'
    text = f'[problem]\nname = "named_problems:make_problem"\n{run}'
    for name, sweep in (("one", ""), ("two", '[sweep]\n"problem.seed" = [0, 1]\n')):
        Path(f"{name}.toml").write_text(text + sweep)
        out = ran(fedcon, "compare", f"{name}.toml", "--workers", "1")
        lines = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
        titles = next(line for line in lines if line[0] == "Algorithm")
        cells = next(line for line in lines if line[0] == "FedAvg")
        assert titles.count("Relative") == 1
        shown = dict(zip(titles[1:], cells[1:], strict=True))
        assert [shown[title] for title in ("Relative", "Up", "Top-1.5")] == ["7", "8", "10"]
        assert titles[titles.index("Up") + 1] == "Algorithm"
        assert 0 < float(shown["MB up"]) < 0.01


def test_a_problem_of_ones_own(fedcon, tmp_path, monkeypatch):
    """Beside the command, and on every process of a pool."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_problems.py").write_text(OWN)
    (tmp_path / "broken_problems.py").write_text("1 / 0")
    run = '[run]\nrounds = 3\n[algorithm]\nname = "FedAvg"\nclient_lr = 0.5\nlocal_steps = 1\n'
    text = f'[problem]\nname = "own_problems:make_problem"\nsize = 3\n{run}'
    Path("own.toml").write_text(text)
    ran(fedcon, "run", "own.toml", "--set", "shift=4.0")
    config = config_of("runs/own")
    assert config["problem"]["name"] == "own_problems:make_problem"
    assert model_of("runs/own") == pytest.approx([1.75] * 3)  # towards 2
    assert "size" in fedcon("info", "own_problems:make_problem")[1]
    get_reusable_executor().shutdown(wait=True)  # of other tests, in other folders
    tune = ["tune", "own.toml", "--grid", "client_lr=0.1,0.5", "--workers", "2"]
    ran(fedcon, *tune)
    for name, words in (
        ("own_problems:make_problm", "did you mean 'make_problem'"),
        ("no_such_module:make", "a module that is installed or lies in"),
        ("broken_problems:make", "division by zero"),
        ("own_problems:forgets", "returned None, expected a FederatedProblem"),
    ):
        Path("own.toml").write_text(f'[problem]\nname = "{name}"\n{run}')
        assert words in (told := refusal(fedcon, "run", "own.toml"))
        assert "[problem]" in told
    Path("own.toml").write_text(text.replace("size", "sizes"))
    assert "did you mean 'size'" in refusal(fedcon, "run", "own.toml")


# --- runs from Python -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIRST)
def test_the_configuration_of_a_run_from_python_reads_back(name, tmp_path, monkeypatch):
    case = FIRST[name]
    made, problem = strategy_of(name, case, min_replies=1), case.problem()
    simulate(made, problem, 3, seed=2, run_dir=tmp_path / "run")
    monkeypatch.setitem(BUILDERS, "mine", lambda: problem)
    found = Experiment.load(tmp_path / "run" / "config.toml", ["problem.name=mine"])
    assert (found.run_options.rounds, found.run_options.seed) == (3, 2)
    again = found.strategy()
    assert type(again) is type(made)
    read, written = again.arguments(), made.arguments()
    assert read.keys() == written.keys()
    for key, value in written.items():  # what was left to a rule reads back as what it has found
        assert value is None or repr(read[key]) == repr(value)
    with pytest.raises(ConfigError, match="name is missing: it says which problem"):
        Experiment.load(tmp_path / "run" / "config.toml")


def test_what_a_file_cannot_state_is_named_in_it(tmp_path):
    class Own:
        def __call__(self, x):
            return 0.0

        def prox(self, v, step):
            return v

    problem = counterexample()
    free = FederatedProblem(problem.objectives, regularizer=Own())
    made = FedMiD(free.regularizer, client_lr=0.1, local_steps=1, participation=Bernoulli(0.5))
    simulate(made, free, 1, run_dir=tmp_path, on_mismatch="warn")
    text = (tmp_path / "config.toml").read_text()
    assert "\n# regularizer: <" in text
    assert "a file cannot state it: define Own at the top level of a module\n" in text
    assert tomllib.loads(text)["algorithm"]["participation"] == {"bernoulli": 0.5}
