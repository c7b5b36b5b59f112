"""The benchmarks run; what they measure is no test."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flower_fedcon import simulate
from flower_fedcon.benchmarks import BENCHMARKS, loops
from flower_fedcon.cli import main
from flower_fedcon.problems import lasso
from flower_fedcon.strategies import FedFW


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.ray) if name == "flower" else name
        for name in BENCHMARKS
        if name != "ray"
    ],
)
def test_bench(name, tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert main(["bench", name, "--quick", "--output", str(path)]) == 0
    assert "Yardstick" in capsys.readouterr().out
    content = json.loads(path.read_text())
    assert content["results"]
    for line in content["results"]:
        assert 0 < line["low"] <= line["ratio"] <= line["high"]


@pytest.mark.ray
def test_bench_through_ray(capsys):
    assert main(["bench", "ray", "--quick"]) == 0
    assert "Ray" in capsys.readouterr().out


def test_unknown_benchmarks_are_refused(capsys):
    assert main(["bench", "fedwf"]) == 2
    assert "did you mean 'fedfw'?" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_the_yardstick_is_the_same_algorithm(engine):
    problem = lasso(clients=5, rows=50, columns=30, nonzeros=4)
    A = np.stack([f.A for f in problem.objectives])
    b = np.stack([f.b for f in problem.objectives])
    expected = loops.fedfw_lasso(A, b, problem.constraint.radius, 0.5, 50)
    found = simulate(FedFW(problem.constraint, penalty=0.5), problem, 50, engine=engine).x
    assert found == pytest.approx(expected, abs=1e-12)
