"""What users write by mistake is answered in a sentence, and never by another library's error."""

from __future__ import annotations

import math
import multiprocessing

import numpy as np
import pytest
from agreement import near

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
from flower_fedcon.strategies import FedAvg, FedFW, FedMiD

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


ORACLES = {
    "mirror": lambda psi, ball: (FedMiD(psi, client_lr=0.1, local_steps=2), {"regularizer": psi}),
    "average": lambda psi, ball: (
        FedAvg(client_lr=0.1, local_steps=2, regularizer=psi), {"regularizer": psi}),
    "vertices": lambda psi, ball: (FedFW(ball, penalty=1.0), {"constraint": ball}),
}  # fmt: skip


@pytest.mark.parametrize("name", ORACLES)
def test_oracles_without_a_client_axis_serve_one_by_one(name):
    made, terms = ORACLES[name](Half(0.1), Ball(0.5))
    local, stacked = (
        simulate(made, problem(**terms), 4, engine=engine).x for engine in ("local", "stacked")
    )
    near(stacked, local, 1e-12)


HUGE = [
    lambda huge: FedAvg(client_lr=huge, local_steps=1),
    L1,
    L1Ball,
]
FAR = np.array([1e308, 1e308])


def experiment(table, **entry):
    """Make a problem from tables of which one has a wrong entry."""
    tables = {
        "problem": {"name": "counterexample"},
        "run": {"rounds": 1},
        "algorithm": {"name": "FedFW", "penalty": 1.0},
    }
    return Experiment({**tables, table: tables[table] | entry}).problem()


def groups(labels, says):
    return [
        (lambda: GroupLasso(0.1, labels), says),
        (lambda: GroupL2Ball(1.0, labels), says),
    ]


REFUSED = [
    *groups([[0], [1, 2]], r"label the entries, \[0, 1, 1\]"),
    *groups([[2, 0], [1]], r"label the entries, \[0, 1, 0\]"),
    *groups([[0], "a"], "array of labels"),
    *groups([[0], [0, 1]], "array of labels"),
    *((lambda make=make, huge=huge: make(huge), r"must be less than 1.8e308")
      for make in HUGE for huge in (10**400, 10**5000, -(10**400))),
    *((lambda name=name: simulate(STRATEGY, problem(), 1, run_dir=name),
       "run_dir must name a folder") for name in ("", "  ")),
    *((lambda p=p, radius=radius: LpBall(p, radius).project(FAR), "overflows: scale the model")
      for p in (1.5, 3.0) for radius in (1.0, 1e-308)),
    (lambda: experiment("problem", name=[1]), r"name must be a text, got \[1\]"),
    (lambda: experiment("problem", name=3), "name must be a text, got 3"),
    (lambda: experiment("run", until=[1]), r"until must be a table such as .*got \[1\]"),
    (lambda: experiment("run", budget=[1]), r"budget must be a table such as .*got \[1\]"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_what_is_refused_in_a_sentence(make, says):
    error = FedConError if says.startswith("overflows") else ConfigError
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_balls_at_the_end_of_the_numbers(p):
    ball = LpBall(p, 1e308)
    assert not ball.contains(FAR)
    assert ball.contains(ball.project(FAR))


def test_a_bound_whose_square_is_no_number():
    bounded = FedAvg(client_lr=0.1, local_steps=1, norm_bound=1e200)
    assert np.isfinite(simulate(bounded, problem(), 2).x).all()


def test_workers_are_not_started_by_a_daemon(monkeypatch):
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    with pytest.raises(ConfigError, match="workers=2: this is itself a worker process"):
        simulate(STRATEGY, problem(), 1, workers=2)


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
