"""Noise in clients' gradients: by hand, the same in every engine, and exact everywhere else."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.core.rng import NOISE, stream
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import LeastSquares, Noisy, Scaled
from flower_fedcon.objectives.noisy import noise_of
from flower_fedcon.problems import quadratics
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.solvers import SGD, GradientDescent
from flower_fedcon.strategies import FedAvg, FedFW, FedLin, FedMiD, FedNewton, FedProx, Scaffold


def _losses(n=4, m=6):
    rng = np.random.default_rng(2)
    return [LeastSquares(rng.normal(size=(m, 3)), rng.normal(size=m)) for _ in range(n)]


def _problem(std=0.3, **parts):
    return FederatedProblem([Noisy(f, std) for f in _losses()], **parts)


def test_noise_by_hand():
    x = simulate(FedAvg(client_lr=0.1, local_steps=2), _problem(), 2, seed=7).x
    w = np.zeros(3)
    for server_round in (1, 2):
        ends = []
        for j, f in enumerate(_losses()):
            rng, v = stream(7, NOISE, server_round, j), w
            for _ in range(2):
                v = v - 0.1 * (f.gradient(v) + 0.3 * rng.standard_normal(3))
            ends.append(v)
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(x, w, rtol=1e-12)


EPOCHS = SGD(epochs=2, batch_size=2, lr=0.1)
RUNS = {
    "fedavg": (FedAvg(client_lr=0.1, local_steps=3), {}),
    "batches": (FedAvg(client_lr=0.1, local_steps=3, batch_size=2), {}),
    "scaffold": (Scaffold(client_lr=0.1, local_steps=2, participation=Sample(count=2)), {}),
    "fedmid": (FedMiD(L1(0.1), client_lr=0.1, local_steps=2), {"regularizer": L1(0.1)}),
    "fedfw": (FedFW(L1Ball(1.0), penalty=1.0), {"constraint": L1Ball(1.0)}),
    "epochs": (FedProx(proximal=1.0, local_solver=EPOCHS), {}),
    "weights": (FedAvg(client_lr=0.1, local_steps=3), {"weights": [1.0, 2.0, 3.0, 2.0]}),
    "fedlin": (FedLin(client_lr=0.1, local_steps=3), {}),
    "descent": (FedProx(proximal=1.0, local_solver=GradientDescent(steps=4, lr=0.1)), {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_engines_draw_the_same_noise(name):
    made, parts = RUNS[name]
    here = simulate(made, _problem(**parts), 4, seed=1)
    there = simulate(made, _problem(**parts), 4, seed=1, engine="stacked")
    np.testing.assert_allclose(there.x, here.x, rtol=1e-9, atol=1e-12)
    plain = simulate(made, _problem(0.0, **parts), 4, seed=1)
    exact = FederatedProblem(_losses(), **parts)
    np.testing.assert_array_equal(plain.x, simulate(made, exact, 4, seed=1).x)
    if name != "fedfw":  # vertices may be the same
        assert not np.array_equal(plain.x, here.x)


def test_compiled_rounds_say_that_they_take_none(caplog):
    pytest.importorskip("jax")
    made = FedAvg(client_lr=0.1, local_steps=2)
    there = simulate(made, _problem(), 3, seed=1, engine="jax")
    assert "their noise comes from each client's own stream" in caplog.text
    np.testing.assert_allclose(there.x, simulate(made, _problem(), 3, seed=1).x, rtol=1e-12)


def test_resumed_runs_draw_on(tmp_path):
    made = FedAvg(client_lr=0.1, local_steps=2)
    simulate(made, _problem(), 2, run_dir=tmp_path / "run")
    resumed = simulate(made, _problem(), 4, run_dir=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.x, simulate(made, _problem(), 4).x)


def test_what_is_measured_is_exact():
    problem, exact = _problem(), FederatedProblem(_losses())
    np.testing.assert_allclose(problem.optimum.x, exact.optimum.x, rtol=1e-9)
    still = FedAvg(client_lr=1e-200, local_steps=1)
    for engine in ("local", "stacked"):
        rows = [
            simulate(still, each, 1, certificates=True, engine=engine).rows[-1]
            for each in (problem, exact)
        ]
        assert rows[0]["kkt"] == pytest.approx(rows[1]["kkt"], rel=1e-12)
        assert rows[0]["objective"] == pytest.approx(exact.objective(np.zeros(3)), rel=1e-12)


def test_the_noise_is_of_its_size():
    f = _losses(1)[0]
    ends = [
        simulate(
            FedAvg(client_lr=1.0, local_steps=1), FederatedProblem([Noisy(f, 0.5)]), 1, seed=s
        ).x
        for s in range(60)
    ]
    noise = np.array(ends) + f.gradient(np.zeros(3))
    assert abs(noise.mean()) < 4 * 0.5 / np.sqrt(noise.size)
    assert 0.4 < noise.std() < 0.6
    assert noise_of(Scaled(Noisy(Noisy(f, 3.0), 4.0), 2.0)) == pytest.approx(10.0)


def test_a_problem_with_noise_in_python_and_in_a_file(tmp_path):
    plain = FederatedProblem(_losses(), weights=[1.0, 2.0, 3.0, 2.0])
    noisy = plain.with_noise(0.2)
    assert [noise_of(f) for f in noisy.objectives] == pytest.approx([0.1, 0.2, 0.3, 0.2])
    assert [noise_of(f) for f in plain.objectives] == [0.0] * 4
    assert noisy.optimum.value == plain.optimum.value
    made = FedAvg(client_lr=0.1, local_steps=2)
    x = simulate(made, quadratics().with_noise(0.2), 3, run_dir=tmp_path / "run").x
    found = Experiment.load(tmp_path / "run" / "config.toml")
    again = simulate(found.strategy(), found.problem(), 3)
    np.testing.assert_array_equal(again.x, x)
    assert "gradient_noise = 0.2" in found.to_toml()
    with pytest.raises(ConfigError, match=r"gradient_noise must be .* got -1"):
        Experiment.load(tmp_path / "run" / "config.toml", ["problem.gradient_noise=-1"]).problem()


def test_solvers_with_a_tolerance_are_refused():
    with pytest.raises(ConfigError, match=r"Noisy objectives local_solver=Exact\(\).*use SGD"):
        simulate(FedProx(proximal=1.0), _problem(), 1)
    with pytest.raises(ConfigError, match=r"FedNewton needs exact .*Noisy.*CompositeFL"):
        simulate(FedNewton(), _problem(), 1)
    with pytest.raises(ConfigError, match=r"Noisy\(std\) must be .*got -1"):
        Noisy(_losses(1)[0], -1.0)
