"""A strategy for another problem than the one at hand is refused, or runs with a warning."""

from __future__ import annotations

import logging
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from contract import CONTRACTS, EACH
from harness import ran, refusal
from problems import avg, q6, q6_ball, q6_l1, q6_limited

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems.mismatch import oracles, why_mismatched
from flower_fedcon.problems.reference import Reference
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import L1, Separable, Zero
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import DualFL, FedAvg, FedDualAvg, FedFW, FedProx, FedSGM, Scaffold

SIMS = Path(__file__).parents[2] / "sims"
PROX = {"client_lr": 1 / 40, "local_steps": 2}


def small_ball():
    """Q6 over a ball that binds."""
    return FederatedProblem(q6().objectives, constraint=L1Ball(0.1))


def descent():
    """Gradient descent, which reaches Q6's optimum to rounding."""
    return FedAvg(client_lr=1 / 20, local_steps=1)


BALL = """
[problem]
name = "digits"
l1_radius = 5.0
l2 = 0.1
test_size = 1500
reference = false
[run]
rounds = 3
[algorithm]
name = "DualFL"
local_solver = {type = "GradientDescent", steps = 3}
[[compare]]
name = "Scaffnew"
client_lr = 0.1
communication_probability = 0.5
[[compare]]
name = "FedDualAvg"
client_lr = 0.1
local_steps = 2
"""


@EACH
@pytest.mark.parametrize("build", [q6_ball, q6_l1, q6_limited], ids=lambda build: build.__name__)
def test_each_algorithm_solves_the_problem_or_is_refused(name, build):
    """By what it is given: that a strategy which matches uses it, its own tests show."""
    problem, kind = build(), strategy_class(name)
    settings = {"constraint": L1Ball(9.0)} if CONTRACTS[name].oracle == "constraint" else {}
    if CONTRACTS[name].oracle == "regularizer":
        settings = {"regularizer": Zero()}
    strategy = kind(**{**settings, **CONTRACTS[name].small})
    given = oracles(kind, problem)
    if build is q6_limited and name == "fedsgm":
        assert why_mismatched(strategy, problem) is None
        return
    with pytest.raises(ConfigError, match=r'problem.*: (give|take) .*or say on_mismatch="warn"'):
        simulate(strategy, problem, 1)
    if given:
        strategy = kind(**{**settings, **given, **CONTRACTS[name].small})
        assert why_mismatched(strategy, problem) is None


@pytest.mark.parametrize(
    ("strategy", "problem", "words"),
    [
        (FedFW(L1Ball(1.0), penalty=1.0), FederatedProblem([Quadratic(np.eye(2), np.ones(2))],
         constraint=L1Ball(0.1)), "FedFW uses L1Ball(radius=1.0), the problem has "
         "L1Ball(radius=0.1): give FedFW constraint=L1Ball(radius=0.1) (problem.constraint)"),
        (FedProx(proximal=1.0), q6_ball(), "FedProx uses neither a constraint nor a regularizer, "
         "the problem has L1Ball(radius=1.0): take an algorithm that works with such constraints"),
        (Scaffold(**PROX), q6_l1(), "Scaffold uses neither a constraint nor a regularizer, the "
         "problem has L1(weight=0.6): take an algorithm that works with such regularizers"),
        (DualFL(), q6_ball(), "give DualFL regularizer=L1Ball(radius=1.0) (problem.constraint)"),
        (FedDualAvg(L1(0.5), **PROX), q6_l1(), "FedDualAvg uses L1(weight=0.5), the problem has "
         "L1(weight=0.6): give FedDualAvg regularizer=L1(weight=0.6) (problem.regularizer)"),
        (FedDualAvg(L1(0.5), **PROX), q6(), "give the problem L1(weight=0.5) too"),
        (FedSGM(client_lr=0.1, local_steps=1, tolerance=0.1), q6_ball(), "take an algorithm"),
        (avg(), q6_limited(), "g(x) <= 0 of the problem's objectives (constraint_value): take "
         "FedSGM"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ["local", "stacked", "ray"])
def test_both_are_named_and_the_remedy(strategy, problem, words, engine):
    with pytest.raises(ConfigError) as caught:
        simulate(strategy, problem, 1, engine=engine)
    assert words in str(caught.value)


def test_a_deliberate_mismatch_runs_after_a_warning(caplog):
    problem = small_ball()
    assert problem.optimum.value < 0
    with caplog.at_level(logging.WARNING, "flwr"):
        history = simulate(avg(), problem, 200, on_mismatch="warn")
    assert "uses neither a constraint nor a regularizer, the problem has" in caplog.text
    assert history["residual"][-1] < -0.1  # outside of D: no error in the arithmetic
    assert history["violation"][-1] > 0.1
    with pytest.raises(ConfigError, match="on_mismatch must be one of 'error', 'warn'"):
        simulate(avg(), problem, 1, on_mismatch="ignore")


def test_what_is_equal_or_zero_is_no_mismatch():
    def operator(x):
        return float(np.abs(x).sum())

    class Operator:
        __call__ = staticmethod(operator)

        def prox(self, v, step):
            return v

    own = Operator()
    objectives = q6().objectives
    cases = [
        (FedDualAvg(None, **PROX), {}),
        (FedDualAvg(L1(0.0), **PROX), {}),
        (avg(), {"regularizer": L1(0.0)}),
        (FedDualAvg(L1Ball(1.0), **PROX), {"constraint": L1Ball(1.0)}),
        (FedDualAvg(L1(np.full(8, 0.2)), **PROX), {"regularizer": L1(np.full(8, 0.2))}),
        (FedDualAvg(own, **PROX), {"regularizer": own}),
        (FedDualAvg(Separable([(own, (8,))]), **PROX), {"regularizer": Separable([(own, (8,))])}),
    ]
    for strategy, psi in cases:
        assert why_mismatched(strategy, FederatedProblem(objectives, **psi)) is None
    other = FederatedProblem(objectives, regularizer=L1(np.full(8, 0.3)))
    assert why_mismatched(cases[4][0], other) is not None


# --- experiment files -----------------------------------------------------------------------------


def test_a_file_passes_the_constraint_on_wherever_it_is_taken():
    found = Experiment(tomllib.loads(BALL))
    problem = found.problem()
    for strategy in found.strategies().values():
        assert strategy.regularizer.constraint == L1Ball(5.0)
        assert simulate(strategy, problem, 3)["violation"].max() < 1e-9


AVG = """
[problem]
name = "counterexample"
[run]
rounds = 2
[algorithm]
name = "FedAvg"
client_lr = 0.1
local_steps = 1
"""


def test_a_file_refuses_and_allows(fedcon):
    Path("a.toml").write_text(AVG)
    told = refusal(fedcon, "run", "a.toml")
    assert "a.toml: [algorithm]: FedAvg (subgradient) uses neither" in told
    assert "Box(lower=-1.0, upper=1.0)" in told
    assert 'say on_mismatch="warn"' in told
    assert not Path("runs").exists()
    for key in ("algorithm.on_mismatch", "run.on_mismatch"):
        out = ran(fedcon, "run", "a.toml", "--set", f"{key}=warn", "--run-dir", key)
        assert "FedAvg: FedAvg (subgradient) uses neither a constraint nor a regularizer" in out
        again = Experiment.load(f"{key}/config.toml")
        assert again.on_mismatch() == "warn"
    wrong = refusal(fedcon, "run", "a.toml", "--set", "algorithm.on_mismatch=ignore")
    assert "on_mismatch must be one of" in wrong


def test_the_app_of_the_experiments_refuses_too(tmp_path):
    (tmp_path / "a.toml").write_text(AVG)
    make = runpy.run_path(str(SIMS / "server_app.py"))["make_strategy"]
    with pytest.raises(ConfigError, match="uses neither a constraint nor a regularizer"):
        make(SimpleNamespace(run_config={"experiment": str(tmp_path / "a.toml")}))


# --- below the optimum ----------------------------------------------------------------------------


def test_a_value_below_the_optimum_ends_the_run():
    objectives = q6().objectives
    best = q6().optimum
    above = Reference(best.x, best.value + 1e-8, 0.0, "given")
    with pytest.raises(FedConError, match=r"below the optimum F\* = .* \(given\) by 1e-08"):
        simulate(descent(), FederatedProblem(objectives, optimum=above), 3000, evaluate_every=0)
    close = Reference(best.x, best.value + 1e-10, 0.0, "given")
    simulate(descent(), FederatedProblem(objectives, optimum=close), 3000, evaluate_every=0)


def test_what_is_below_the_optimum_for_a_reason_is_recorded():
    """Single precision, an optimum found to a tolerance, or a point outside of the set."""
    objectives, best = q6().objectives, q6().optimum
    rough = Reference(best.x + 1e-3, best.value + 1e-8, 1e-2, "rough")
    simulate(descent(), FederatedProblem(objectives, optimum=rough), 3000, evaluate_every=0)
    ball = small_ball()
    inside = ball.optimum.x
    gradient = ball.gradient(inside)
    record = ball.evaluate(inside - 1e-6 * gradient)
    assert record["residual"] < -1e-6
    wrong = FederatedProblem(
        objectives, constraint=ball.constraint,
        optimum=Reference(inside, ball.optimum.value + 1e-3, 0.0, "given"),
    )  # fmt: skip
    with pytest.raises(FedConError, match="below the optimum"):
        wrong.evaluate(inside - 1e-6 * gradient)
    single = FederatedProblem(
        [Quadratic(f.Q.astype(np.float32), f.b.astype(np.float32)) for f in objectives],
        optimum=Reference(best.x, best.value + 1e-6, 0.0, "given"),
    )
    simulate(descent(), single, 3000, evaluate_every=0)
