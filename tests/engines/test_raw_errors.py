"""What users write by mistake is answered in a sentence, and never by another library's error."""

from __future__ import annotations

import math
import multiprocessing

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import Quadratic
from flower_fedcon.regularizers import L1, GroupLasso
from flower_fedcon.runs.toml import read_toml
from flower_fedcon.sets import (
    Birkhoff,
    CappedSimplex,
    GroupL2Ball,
    KNormBall,
    L1Ball,
    LpBall,
    Simplex,
)
from flower_fedcon.strategies import FedAvg, FedFW, FedMiD, Scaffold

STRATEGY = FedAvg(client_lr=0.1, local_steps=1)


def problem(**more):
    own = [Quadratic(np.eye(2), np.array([1.0, -float(j)])) for j in range(3)]
    return FederatedProblem(own, **more)


class Half(L1):
    def prox(self, v, t):
        return np.asarray(v) * 0.5

    def subgradient(self, x):
        assert x.ndim == 1
        return np.sign(x) * x.max()


class Ball(L1Ball):
    def project(self, x):
        return super().project(x)

    def lmo(self, g):
        return super().lmo(g)


def test_oracles_without_a_client_axis_serve_one_by_one():
    psi, ball = Half(0.1), Ball(0.5)
    for make in (
        lambda: (FedMiD(psi, client_lr=0.1, local_steps=2), problem(regularizer=psi)),
        lambda: (FedAvg(client_lr=0.1, local_steps=2, regularizer=psi), problem(regularizer=psi)),
        lambda: (FedFW(ball, penalty=1.0), problem(constraint=ball)),
    ):
        runs = [simulate(*make(), 4, engine=engine).x for engine in ("local", "stacked")]
        assert np.abs(runs[0] - runs[1]).max() <= 1e-12


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ([[0], [1, 2]], r"label the entries, \[0, 1, 1\]"),
        ([[2, 0], [1]], r"label the entries, \[0, 1, 0\]"),
        ([[0], "a"], "array of labels"),
        ([[0], [0, 1]], "array of labels"),
    ],
)
def test_groups_as_lists_of_entries(groups, match):
    for make in (lambda: GroupLasso(0.1, groups), lambda: GroupL2Ball(1.0, groups)):
        with pytest.raises(ConfigError, match=match):
            make()


def test_numbers_beyond_what_a_float_can_be():
    bounded = FedAvg(client_lr=0.1, local_steps=1, norm_bound=1e200)
    assert np.isfinite(simulate(bounded, problem(), 2).x).all()
    for huge in (10**400, 10**5000, -(10**400)):
        for make in (
            lambda huge=huge: FedAvg(client_lr=huge, local_steps=1),
            lambda huge=huge: L1(huge),
            lambda huge=huge: L1Ball(huge),
        ):
            with pytest.raises(ConfigError, match=r"must be less than 1.8e308"):
                make()


def test_folders_and_changes_that_are_none(tmp_path):
    for name in ("", "  "):
        with pytest.raises(ConfigError, match="run_dir must name a folder"):
            simulate(STRATEGY, problem(), 1, run_dir=name)
    simulate(STRATEGY, problem(), 1, run_dir=tmp_path / "run")
    again = {"run_dir": tmp_path / "run", "resume": True}
    with pytest.raises(ConfigError, match=r"the unknown name 'nonsense': .*client_lr"):
        simulate(STRATEGY, problem(), 2, allow_changes=["nonsense"], **again)
    longer = FedAvg(client_lr=0.2, local_steps=1)
    assert len(simulate(longer, problem(), 2, allow_changes=["client_lr"], **again)) >= 1


def test_a_run_of_another_algorithm_or_number_of_clients(tmp_path):
    simulate(STRATEGY, problem(), 1, run_dir=tmp_path)
    other = Scaffold(client_lr=0.1, local_steps=1)
    with pytest.raises(FedConError, match=r"algorithm was 'fedavg', is 'scaffold'"):
        simulate(other, problem(), 2, run_dir=tmp_path, resume=True)
    fewer = FederatedProblem([Quadratic(np.eye(2), np.ones(2))] * 2)
    with pytest.raises(FedConError, match=r"of 2 clients .* another number of clients\?"):
        simulate(STRATEGY, fewer, 2, run_dir=tmp_path, resume=True)


@pytest.mark.parametrize("value", ["a", None, 1j, [1.0, 2.0]])
def test_a_value_that_is_no_number_names_the_client(value):
    class Own:
        shape = (2,)

        def value(self, x):
            return value

        def gradient(self, x):
            return np.zeros(2)

    clients = [Quadratic(np.eye(2), np.ones(2)), Own()]
    with pytest.raises(ConfigError, match=r"client Ulm: Own.value\(x\) must return a number"):
        simulate(STRATEGY, FederatedProblem(clients, names=["Bonn", "Ulm"]), 1)


def test_workers_are_not_started_by_a_daemon(monkeypatch):
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    with pytest.raises(ConfigError, match="workers=2: this is itself a worker process"):
        simulate(STRATEGY, problem(), 1, workers=2)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_balls_at_the_end_of_the_numbers(p):
    far = np.array([1e308, 1e308])
    for radius in (1.0, 1e-308):
        with pytest.raises(FedConError, match="overflows: scale the model"):
            LpBall(p, radius).project(far)
    ball = LpBall(p, 1e308)
    assert not ball.contains(far)
    assert ball.contains(ball.project(far))


@pytest.mark.parametrize(
    ("table", "entry", "match"),
    [
        ("problem", {"name": [1]}, r"name must be a text, got \[1\]"),
        ("problem", {"name": 3}, "name must be a text, got 3"),
        ("run", {"until": [1]}, r"until must be a table such as .*got \[1\]"),
        ("run", {"budget": [1]}, r"budget must be a table such as .*got \[1\]"),
    ],
)
def test_entries_of_a_wrong_type(table, entry, match):
    tables = {
        "problem": {"name": "counterexample"},
        "run": {"rounds": 1},
        "algorithm": {"name": "FedFW", "penalty": 1.0},
    }
    tables[table] = tables[table] | entry
    with pytest.raises(ConfigError, match=match):
        Experiment(tables).problem()


def test_a_file_that_begins_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.toml").write_text("[run]\nrounds = 1\n", encoding="utf-8-sig")
    assert read_toml(tmp_path / "a.toml") == {"run": {"rounds": 1}}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_projection_lies_in_its_set(dtype):
    rng = np.random.default_rng(0)
    for D in (Simplex(1e-3), Simplex(1.0), L1Ball(7.0), CappedSimplex(0.4, 1.0), KNormBall(3, 1.0)):
        for scale in (0.1, 1.0, 1e4):
            assert D.contains(D.project((scale * rng.normal(size=60)).astype(dtype))), D
    for size, scale in ((4, 1.0), (4, 1e6), (20, 1e6), (4, 1e12)):
        x = (scale * rng.normal(size=(size, size))).astype(dtype)
        found = Birkhoff(size).project(x)
        assert Birkhoff(size).contains(found)
        best = Birkhoff(size).lmo(-x).dense()
        gain = (
            float(((best - found).astype(float) * x).sum()) / scale
        )  # so far apart, nearly a corner
        assert -1e-6 <= gain <= size / scale * math.sqrt(size)
