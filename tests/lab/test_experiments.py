"""Experiment files: what they build, what they refuse, what they write."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from problems import MNIST, needs_mnist

from flower_fedcon.core.participation import Bernoulli, Full, Sample
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.problems import counterexample, digits, lasso
from flower_fedcon.regularizers import L1, Indicator, Zero
from flower_fedcon.sets import L1Ball
from flower_fedcon.simulation import simulate
from flower_fedcon.strategies import FedFW, FedFWPlus

SIMS = sorted((Path(__file__).parents[2] / "sims").glob("*.toml"))
FILES = [path for path in SIMS if path.name != "pyproject.toml"]

LASSO = """
title = "Lasso"
[problem]
name = "lasso"
clients = 4
rows = 12
columns = 20
nonzeros = 3
[run]
rounds = 3
[algorithm]
name = "FedFW"
penalty = 5.0
[[compare]]
name = "FedFWPlus"
penalty = 0.5
[[compare]]
name = "fedfw"
penalty = 1
participation = {sample = 2}
"""

L1_DIGITS = """
[problem]
name = "digits"
l1 = 1e-3
[run]
rounds = 3
[algorithm]
name = "FedDualAvg"
client_lr = 0.5
local_steps = 2
"""


def experiment(text, *overrides):
    return Experiment(tomllib.loads(text), "file.toml", overrides)


def refusal(text, *overrides):
    with pytest.raises(ConfigError) as caught:
        experiment(text, *overrides).strategies()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("file.toml: ")
    return message


# --- reading -------------------------------------------------------------------------------------


def test_reads_problem_algorithms_and_run():
    found = experiment(LASSO)
    assert found.title == "Lasso"
    assert found.problem() is found.problem()
    assert found.problem().num_clients == 4
    assert (found.run_options.rounds, found.run_options.engine) == (3, "local")
    assert found.labels == ["FedFW", "FedFWPlus", "FedFW 2"]
    assert isinstance(found.strategy(), FedFW)
    assert isinstance(found.strategy(1), FedFWPlus)
    assert found.strategy().constraint is found.problem().constraint
    assert found.strategy().participation == Full()
    assert found.strategy(2).participation == Sample(count=2)


def test_the_problem_gives_the_regularizer_unless_the_file_does():
    assert experiment(L1_DIGITS).strategy().regularizer == L1(1e-3)
    other = [L1_DIGITS, 'algorithm.regularizer={type = "L1", weight = 0.5}']
    with pytest.raises(ConfigError, match=r"FedDualAvg uses L1\(weight=0\.5\), the problem has L1"):
        experiment(*other).strategy()
    own = experiment(*other, "run.on_mismatch=warn")
    assert own.strategy().regularizer == L1(0.5)
    without = ['regularizer={type = "Zero"}', "algorithm.name=FedAvg"]
    none = experiment(L1_DIGITS, *without, "algorithm.on_mismatch=warn")
    assert none.strategy().regularizer == Zero()
    average = experiment(L1_DIGITS, "algorithm.name=FedAvg")
    assert average.strategy().regularizer == L1(1e-3)


def test_a_constraint_stands_in_for_a_required_regularizer():
    text = L1_DIGITS.replace("l1 = 1e-3", "l1_radius = 5.0")
    assert experiment(text).strategy().regularizer == Indicator(L1Ball(5.0))
    without = experiment(text, "algorithm.name=FedAvg", "algorithm.on_mismatch=warn")
    assert without.strategy().regularizer is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"full"', Full()),
        ("{sample = 3}", Sample(count=3)),
        ("{fraction = 0.5}", Sample(fraction=0.5)),
        ("{bernoulli = 0.5}", Bernoulli(0.5)),
    ],
)
def test_participation(value, expected):
    assert experiment(L1_DIGITS, f"participation={value}").strategy().participation == expected


def test_overrides():
    found = experiment(
        LASSO,
        "rounds=7",
        "problem.clients=3",
        "participation.sample=2",
        "compare.2.label=sampled",
        "engine=ray",
    )
    assert (found.run_options.rounds, found.run_options.engine) == (7, "ray")
    assert found.problem().num_clients == 3
    assert found.strategy().participation == Sample(count=2)
    assert found.labels == ["FedFW", "FedFWPlus", "sampled"]


@pytest.mark.parametrize("text", [LASSO, L1_DIGITS])
def test_what_is_written_reads_back_as_the_same(text):
    found = experiment(text, 'title="a \\"quoted\\" \\\\ ü"', "algorithm.participation.sample=2")
    written = found.to_toml()
    again = experiment(written)
    assert again.to_toml() == written
    assert again.title == 'a "quoted" \\ ü'
    assert again.labels == found.labels
    assert again.run_options == found.run_options
    assert again.strategy().participation == Sample(count=2)
    for a, b in zip(again.problem().objectives, found.problem().objectives, strict=True):
        np.testing.assert_array_equal(a.A, b.A)
    alone = tomllib.loads(found.to_toml(0))
    assert "compare" not in alone
    assert alone["run"] == {"rounds": 3, "seed": 0, "engine": "local", "evaluate_every": 1}
    assert alone["problem"]["reference"] is True


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=needs_mnist if p.stem == "dualfl_mnist" else ()) for p in FILES],
    ids=lambda path: path.stem,
)
def test_bundled_experiments_run(path):
    small = ["test_size=9200", f"data={MNIST}"] if path.stem == "dualfl_mnist" else []
    found = Experiment.load(path, ["run.rounds=2", *small])
    assert found.title
    assert found.paper
    for i, strategy in enumerate(found.strategies().values()):
        options = {"on_mismatch": found.on_mismatch(i), "clock": found.clock}
        history = simulate(strategy, found.problem(), 2, **options)
        assert np.isfinite(history["objective"]).all()


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("title =", "titel =", ["top level", "'titel'", "did you mean 'title'"]),
        ("[run]", "[runs]", ["'runs'", "did you mean 'run'"]),
        ("clients", "client", ["[problem]", "'client'", "did you mean 'clients'"]),
        ("rounds =", "round =", ["[run]", "'round'", "did you mean 'rounds'"]),
        ("penalty = 5", "penality = 5", ["[algorithm]", "did you mean 'penalty'"]),
        ("penalty = 5.0", "lambda_0 = 5.0", ["[algorithm]", "did you mean 'penalty'"]),
        ("penalty = 0.5", "penalti = 0.5", ["[[compare]] 1", "did you mean 'penalty'"]),
        ('"lasso"', '"laso"', ["[problem]", "'laso'", "did you mean 'lasso'"]),
        ('"FedFW"', '"FedWF"', ["[algorithm]", "'FedWF'", "did you mean 'FedFW'"]),
        ('name = "FedFW"', "", ["[algorithm]", "name is missing"]),
        ("rounds = 3", "", ["[run]", "rounds is missing"]),
        ("[run]\nrounds = 3\n", "", ["[run]", "write rounds = 100", "below [run]"]),
        ("rounds = 3", "rounds = -1", ["[run]", "rounds", ">= 0", "-1"]),
        ("rounds = 3", 'rounds = "3"', ["[run]", "rounds must be a whole number", "'3'"]),
        ("rounds = 3", "rounds = true", ["[run]", "rounds must be a whole number", "True"]),
        ("rounds = 3", 'rounds = 3\nengine = "rya"', ["[run]", "'rya'", "'ray'"]),
        ("clients = 4", "clients = 4.5", ["[problem]", "clients must be a whole number", "4.5"]),
        ("clients = 4", "clients = 40", ["[problem]", "clients", "at most rows = 12", "40"]),
        ("penalty = 5.0", 'penalty = "big"', ["[algorithm]", "penalty must be a number", "'big'"]),
        ("penalty = 5.0", "penalty = nan", ["[algorithm]", "penalty", "finite", "nan"]),
        ("{sample = 2}", "{smaple = 2}", ["[[compare]] 2", "did you mean 'sample'"]),
        ("{sample = 2}", "3", ["[[compare]] 2", "participation must be", "got 3"]),
        ("{sample = 2}", "{fraction = 2.0}", ["[[compare]] 2", "(0, 1]", "2.0"]),
    ],
)
def test_refusals_name_the_table_and_the_remedy(old, new, words):
    assert old in LASSO
    message = refusal(LASSO.replace(old, new, 1))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rounds", ["key=value"]),
        ("=3", ["key=value"]),
        ("rond=3", ["did you mean 'rounds'"]),
        ("seed=3", ["problem.seed or run.seed"]),
        ("runs.rounds=3", ["'runs'", "did you mean 'run'"]),
        ("run.rond=3", ["[run]", "did you mean 'rounds'"]),
        ("compare.9.penalty=3", ["'9'", "Valid: 1, 2"]),
        ("compare.penalty=3", ["compare.1.key=value"]),
        ("problem.nonzeros=-1", ["[problem]", "nonzeros", "-1"]),
        ("algorithm.constraint={type = 'L1Bal', radius = 1.0}", ["did you mean 'L1Ball'"]),
        ("algorithm.constraint={type = 'L1Ball', radius = -1}", ["L1Ball(radius)", "> 0", "-1"]),
        ("algorithm.constraint={radius = 1}", ["constraint is a table without type"]),
        ("problem=3", ["[problem] must be a table"]),
        ("compare=3", ["[[compare]]"]),
    ],
)
def test_bad_overrides(override, words):
    message = refusal(LASSO, override)
    for word in words:
        assert word in message


def test_an_algorithm_without_its_oracle():
    text = L1_DIGITS.replace("l1 = 1e-3", "")
    assert "FedDualAvg needs regularizer: the problem has none" in refusal(text)
    text = L1_DIGITS.replace("client_lr = 0.5\nlocal_steps = 2", "penalty = 1")
    assert "FedFW needs constraint" in refusal(text, "algorithm.name=FedFW")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        Experiment.load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        Experiment.load(tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\nrounds = 3")
    with pytest.raises(ConfigError, match=r"not valid TOML: .*line 1"):
        Experiment.load(broken)
    broken.write_bytes(b"title = '\xff'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        Experiment.load(broken)


# --- problems ------------------------------------------------------------------------------------


def test_digits_label_skew():
    problem = digits(l1=1e-3)
    assert [f.num_examples for f in problem.objectives] == [150] * 10
    assert problem.x0.shape == (65, 10)
    assert max(len(np.unique(f.y)) for f in problem.objectives) <= 4
    assert problem.metrics["sparsity"](problem.x0) == 1.0
    assert 0.0 <= problem.metrics["test_accuracy"](problem.x0) <= 0.2
    other = digits(l1=1e-3, seed=1)
    assert not np.array_equal(other.objectives[0].A, problem.objectives[0].A)


def test_digits_even_split_as_shipped():
    from sklearn.datasets import load_digits

    problem = digits(clients=4, split="even", bias=False, l1_radius=5.0, test_size=0)
    images, labels = load_digits(return_X_y=True)
    np.testing.assert_array_equal(np.vstack([f.A for f in problem.objectives]), images / 16)
    np.testing.assert_array_equal(np.concatenate([f.y for f in problem.objectives]), labels)
    assert problem.constraint == L1Ball(5.0)
    assert list(problem.metrics) == ["sparsity"]
    unscaled = digits(clients=4, split="even", bias=False, brightest=16.0, test_size=0)
    np.testing.assert_array_equal(np.vstack([f.A for f in unscaled.objectives]), images)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"l1": 1.0, "l1_radius": 1.0}, "not both"),
        ({"l1_radius": -1}, "l1_radius must be finite and > 0, got -1"),
        ({"l1": -1}, "l1 must be finite and >= 0, got -1"),
        ({"split": "skew"}, "split must be one of"),
        ({"clients": 0}, "clients must be a whole number >= 1"),
        ({"clients": 1000}, "at least 2000 training images"),
        ({"test_size": 1797}, "at most 1796"),
        ({"l2": float("nan")}, "l2"),
        ({"brightest": 0}, "brightest must be finite and > 0, got 0"),
    ],
)
def test_digits_refusals(arguments, words):
    with pytest.raises(ConfigError, match=words):
        digits(**arguments)  # type: ignore[arg-type]


def test_lasso_known_values():
    problem = lasso()
    assert problem.has_optimum
    assert problem.objective(problem.optimum.x) < 1e-24
    history = simulate(FedFW(problem.constraint, penalty=5.0), problem, 100, evaluate_every=10)
    assert history["total"][0] == pytest.approx(4619, abs=1)
    assert history["total"][-1] == pytest.approx(2161, abs=1)
    assert history["residual"][-1] == pytest.approx(216.1, abs=0.1)


def test_counterexample_known_values():
    problem = counterexample()
    assert problem.optimum.x == pytest.approx([1.0])
    history = simulate(FedFW(problem.constraint, penalty=1.0), problem, 1000, evaluate_every=0)
    assert history["x"][-1] == pytest.approx(0.940066, abs=1e-6)
    history = simulate(FedFWPlus(problem.constraint, penalty=1.0), problem, 1000, evaluate_every=0)
    assert history["x"][-1] == pytest.approx(0.999816, abs=1e-6)


@pytest.mark.parametrize("data", ["none*.csv", "no.txt"])
def test_an_error_names_its_file_once(data):
    problem = {"name": "tables", "data": data, "schema": {"target": "y", "features": {}}}
    with pytest.raises(ConfigError) as told:
        Experiment({"problem": problem, "run": {"rounds": 1}}, "study.toml").problem()
    assert str(told.value).startswith("study.toml: [problem]: ")
    assert str(told.value).count("study.toml") == 1
