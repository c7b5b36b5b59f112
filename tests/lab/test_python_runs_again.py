"""Runs that Python has started say how to play them again, or why that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from left import rows_of

from flower_fedcon import FederatedProblem, Observer, Sample, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems import digits, quadratics
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDR, FedMiD, Scaffold

OWN = '''
from typing import NamedTuple, Any
import numpy as np
from flower_fedcon import FederatedProblem, Observer, register
from flower_fedcon.clients.fedavg import FedAvgClient
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.problems import stated
from flower_fedcon.strategies import FedAvg


class Signed:
    """weight * sum of |x|, of nonnegative x."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, v):
        return self.weight * v.sum() if (v >= 0).all() else np.inf

    def prox(self, v, step):
        return np.maximum(v - step * self.weight, 0)


class Halved(Signed):
    def __init__(self, weight):
        super().__init__(weight / 2)


class Mine(FedAvg):
    """FedAvg under another name."""

    name = "mine_again"


class MineClient(FedAvgClient):
    algorithm = "mine_again"


register(Mine, MineClient)


class Largest(Observer):
    def measure(self, view):
        return {"largest": float(np.abs(view.x).max())}


@stated
def rows(*, weight: float = 0.1, seed: int = 0, own: bool = True) -> FederatedProblem:
    rng = np.random.default_rng(seed)
    clients = [LeastSquares(rng.normal(size=(8, 3)), rng.normal(size=8)) for _ in range(4)]
    return FederatedProblem(clients, regularizer=Signed(weight) if own else None)
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "again_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("again_own", None)
    import again_own

    yield again_own
    sys.modules.pop("again_own", None)


def _twice(run_command, strategy, problem, rounds=4):
    first = simulate(strategy, problem, rounds, seed=3, evaluate_every=2, run_dir="first")
    code, out, error = run_command("run", "first/config.toml", "--run-dir", "again")
    assert code == 0, (out, error)
    again = rows_of("again")
    assert [row["objective"] for row in again] == first["objective"].tolist()


def test_a_problem_of_this_package(run_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    psi = L1(1e-3)
    made = FedMiD(psi, client_lr=0.5, local_steps=2, participation=Sample(count=3))
    rule = {"by": "dirichlet", "clients": 4, "alpha": 1.0}
    _twice(run_command, made, digits(l1=1e-3, partition=rule))


def test_a_problem_a_regularizer_and_an_algorithm_of_ones_own(run_command, own):
    problem = own.rows(weight=0.05)
    _twice(run_command, FedDR(problem.regularizer, step_size=1.0), problem)
    text = Path("first/config.toml").read_text()
    assert 'name = "again_own:rows"' in text
    assert 'regularizer = {type = "again_own:Signed", weight = 0.05}' in text


def test_an_algorithm_of_ones_own(run_command, own):
    _twice(run_command, own.Mine(client_lr=0.1, local_steps=2), own.rows(own=False))
    assert 'name = "again_own:Mine"' in Path("first/config.toml").read_text()
    assert 'name = "again_own:Mine"' in Path("again/config.toml").read_text()
    card, problem = (run_command("info", f"again_own:{name}")[1] for name in ("Mine", "rows"))
    assert ("Hyperparameters" in card, "[problem]" in card) == (True, False)
    assert ("Hyperparameters" in problem, "[problem]" in problem) == (False, True)


def test_what_no_file_can_state_says_why(run_command, own):
    problem = FederatedProblem(own.rows(own=False).objectives, regularizer=own.Halved(0.1))
    made = FedDR(problem.regularizer, step_size=1.0)
    simulate(made, problem, 1, run_dir="first")
    text = Path("first/config.toml").read_text()
    assert "decorated with flower_fedcon.problems.stated" in text
    assert "# regularizer: " in text
    assert "Halved(weight) of its attributes differs from it" in text
    told = refusal(run_command, "run", "first/config.toml")
    assert "name is missing: it says which problem. A run started in Python writes it" in told


def test_names_of_algorithms_that_lead_nowhere(own):
    def tables(name):
        return {
            "problem": {"name": "quadratics"},
            "run": {"rounds": 1},
            "algorithm": {"name": name, "client_lr": 0.1, "local_steps": 1},
        }

    assert Experiment(tables("again_own:Mine")).strategy().name == "mine_again"
    for name, message in (
        ("again_own:Min", "has no 'Min': did you mean 'Mine'"),
        ("again_own:Signed", "not registered: write flower_fedcon.register"),
        ("nowhere:Mine", "cannot import 'nowhere' for the algorithm"),
    ):
        with pytest.raises(ConfigError, match=message):
            Experiment(tables(name))


# --- observers ------------------------------------------------------------------------------------


class _States(Observer):
    """Notes what it is shown."""

    def __init__(self):
        self.seen = []

    def measure(self, view):
        self.seen.append((view.round, view.state, view.clients, view.x, view.cohort))
        return {"own": 2.0 * view.round}


@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
def test_an_observer_sees_server_and_clients(engine):
    if engine == "jax":
        pytest.importorskip("jax")
    problem, watch = quadratics(), _States()
    made = Scaffold(client_lr=1e-3, local_steps=3, participation=Sample(count=4))
    history = simulate(made, problem, 6, engine=engine, evaluate_every=3, callbacks=[watch])
    assert history["own"].tolist() == [6.0, 12.0]
    number, state, clients, x, cohort = watch.seen[-1]
    assert number == 6
    assert len(cohort) == 4
    np.testing.assert_array_equal(x, history.x)
    assert 4 <= len(clients) <= problem.num_clients
    total = sum(client.c for client in clients.values()) / problem.num_clients
    np.testing.assert_allclose(total, state.c, atol=1e-9 * np.abs(state.c).max())
    for array in (x, state.c, next(iter(clients.values())).c):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_workers_show_their_clients_states_too():
    watch, problem = _States(), quadratics()
    simulate(Scaffold(client_lr=1e-3, local_steps=3), problem, 2, workers=2, callbacks=[watch])
    assert list(watch.seen[-1][2]) == list(problem.names)


def test_clients_without_state_show_none():
    watch = _States()
    simulate(FedAvg(client_lr=1e-3, local_steps=3), quadratics(), 1, callbacks=[watch])
    assert watch.seen[0][2] == {}


def test_columns_are_numbers_under_new_names():
    class Wrong(Observer):
        def __init__(self, found):
            self.found = found

        def measure(self, view):
            return self.found

    problem = FederatedProblem([Quadratic(np.eye(1), np.ones(1))])
    made = FedAvg(client_lr=0.5, local_steps=1)
    for found, message in (
        ({"objective": 1.0}, "is a column of the history"),
        ({"gradients": 1.0}, "'gradients', which is already a column"),
        ({"size": "x"}, "metric 'size' is 'x', expected a number"),
        (3.0, "must return numbers by name, or None, got 3.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            simulate(made, problem, 1, callbacks=[Wrong(found)])


def test_observers_in_a_file(run_command, own):
    Path("e.toml").write_text(
        '[problem]\nname = "again_own:rows"\nown = false\n[run]\nrounds = 2\n'
        'observers = ["again_own:Largest"]\n'
        '[algorithm]\nname = "FedAvg"\nclient_lr = 0.1\nlocal_steps = 1\n'
    )
    ran(run_command, "run", "e.toml", "--run-dir", "out")
    rows = rows_of("out")
    with np.load("out/model.npz") as model:
        assert rows[-1]["largest"] == np.abs(model["x"]).max()
    for wrong, message in (
        ("again_own:Signed", "Signed"),
        ("Largest", 'must be texts "module:Class"'),
        ("again_own:Mine", "Mine"),
    ):
        text = Path("e.toml").read_text().replace("again_own:Largest", wrong)
        Path("w.toml").write_text(text)
        assert message in refusal(run_command, "run", "w.toml")
