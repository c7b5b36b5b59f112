"""The benchmark for benchopt: its optimum is that of this project, and its command runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from flower_fedcon import FederatedProblem
from flower_fedcon.objectives import LeastSquares, LogisticRegression, SoftmaxRegression
from flower_fedcon.regularizers import L1, NuclearNorm
from flower_fedcon.sets import L1Ball

FOLDER = Path(__file__).parents[2] / "benchmarks" / "federated_composite"


@pytest.fixture(scope="module")
def problem_of():
    sys.path.insert(0, str(FOLDER))
    try:
        from benchmark_utils.problem import Problem
    finally:
        sys.path.remove(str(FOLDER))
    return Problem


def clients(loss, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(3):
        A = rng.standard_normal((40, 6))
        scores = A @ rng.standard_normal(6)
        y = {"squared": scores, "logistic": np.sign(scores + rng.standard_normal(40)),
             "multinomial": rng.integers(0, 3, 40).astype(float)}[loss]  # fmt: skip
        found.append((A, y))
    return found


@pytest.mark.parametrize(
    ("loss", "structure"),
    [("squared", "l1"), ("logistic", "l1"), ("multinomial", "nuclear"), ("squared", "l1_ball")],
)
def test_the_optimum_is_that_of_another_solver(problem_of, loss, structure):
    rows = clients(loss)
    own = problem_of(rows, loss, structure, 0.3)
    made = {
        "squared": LeastSquares,
        "logistic": LogisticRegression,
        "multinomial": lambda A, y: SoftmaxRegression(A, y.astype(int), 3),
    }[loss]
    where = {
        "l1": {"regularizer": L1(own.level)},
        "nuclear": {"regularizer": NuclearNorm(own.level)},
        "l1_ball": {"constraint": L1Ball(radius=own.level)},
    }[structure]
    problem = FederatedProblem([made(A, y) for A, y in rows], **where)
    assert own.optimum == pytest.approx(problem.optimum.value, abs=1e-10)
    value, violation = own.value(own.x)
    assert value == pytest.approx(own.optimum, abs=1e-14)
    assert violation <= 1e-12


def test_the_optimum_under_a_constraint_is_feasible_and_stationary(problem_of):
    own = problem_of(clients("logistic"), "logistic", "constraint", 0.5)
    assert own.value(own.x)[1] < 1e-9
    slope, bound = own.smooth(own.x)[1], own.constraint(own.x)[1]
    multiplier = -float(slope @ bound) / float(bound @ bound)
    assert multiplier > 0
    np.testing.assert_allclose(slope, -multiplier * bound, atol=1e-6)


def test_the_views_are_of_costs_that_the_plot_has():
    views = yaml.safe_load((FOLDER / "config.yml").read_text())["plot_configs"]
    plot = (FOLDER / "plots" / "accuracy.py").read_text()
    costs = re.findall(r'^    "(.*)": "', plot, re.MULTILINE)
    assert [view["accuracy_by_cost_cost"] for view in views.values()] == costs
    assert {view["plot_kind"] for view in views.values()} == {"accuracy_by_cost"}
    assert 'name = "Accuracy by cost"' in plot


@pytest.mark.nightly
def test_it_runs_by_benchopt(tmp_path):
    pytest.importorskip("benchopt", reason="needs benchopt (pip install benchopt)")
    command = [
        sys.executable, "-m", "benchopt", "run", str(FOLDER), "-n", "4", "-r", "1", "--no-plot",
        "-d", "simulated[loss=squared,clients=3,rows=12,features=5]", "-s", "fedcon",
        "-s", "FedAvg by hand", "-o", "*[structure=l1]", "--output", str(tmp_path / "found"),
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "error" not in ended.stdout
    assert "CompositeFL" in ended.stdout
