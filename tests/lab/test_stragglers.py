"""Stragglers in an experiment file, and runs whose rows are steps."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from harness import ran

from flower_fedcon import History
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments import figures
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.runner import play
from flower_fedcon.lab.experiments.stragglers import Stragglers
from flower_fedcon.runs.toml import parse_toml

FILE = """
[problem]
name = "quadratics"
clients = 4
columns = 3
condition = 4.0
[run]
rounds = 8
until = {residual = 1e-30}
[clock]
compute = {type = "Stragglers", count = 1, times = 20.0, tasks = 0.25}
[algorithm]
name = "AREA"
participation = {type = "Buffered", buffer = 2}
"""
IN_ROUNDS = '[[compare]]\nname = "AREA"\nlabel = "in rounds"\n'


def seconds(experiment):
    return play(experiment)["simulated_seconds"].tolist()


def test_the_first_clients_are_slow():
    usual = Stragglers(count=0, spread=1.0, tasks=0.5).rows(5, seed=3)
    slow = Stragglers(count=2, times=20.0, spread=1.0, tasks=0.5).rows(5, seed=3)
    np.testing.assert_allclose(slow[:, :2], 20 * usual[:, :2])
    assert np.array_equal(slow[:, 2:], usual[:, 2:])
    assert np.std(np.log(usual), axis=0) == pytest.approx([0.5] * 5, abs=0.05)
    drawn = np.log(Stragglers(count=0, median=2.0, spread=0.7).rows(4000, seed=0)[0])
    assert (drawn.mean(), drawn.std()) == pytest.approx((np.log(2.0), 0.7), abs=0.04)


def test_an_experiment_has_stragglers_of_its_seed():
    experiment = Experiment(parse_toml(FILE))
    first = seconds(experiment)
    assert seconds(Experiment(parse_toml(experiment.to_toml()))) == first
    assert seconds(experiment.seeded(1)) != first
    slower = seconds(experiment.changed(["clock.compute.count=4"]))
    assert slower[-1] > 5 * first[-1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"compute": {"type": "Stragglers", "counts": 2}}, "counts"),
        ({"compute": {"type": "Stragglers", "times": "slow"}}, "compute: times"),
        ({"compute": {"type": "Stragglers", "times": 0.0}}, "times must be"),
        ({"compute": {"type": "Stragglers"}, "latency": -1.0}, "Clock\\(latency\\)"),
        ({"latency": {"type": "Stragglers"}}, "latency: unknown distribution 'Stragglers'"),
    ],
)
def test_refused(changed, words):
    tables = copy.deepcopy(parse_toml(FILE))
    tables["clock"] = changed
    with pytest.raises(ConfigError, match=words):
        Experiment(tables)


def test_rows_of_steps_are_called_steps(run_command, monkeypatch):
    """In progress lines, tables and figures; beside rounds both are named."""
    axes = []
    kept = figures.save_figure

    def save(figure, targets):
        axes.append([axis.get_xlabel() for axis in figure.axes])
        kept(figure, targets)

    monkeypatch.setattr(figures, "save_figure", save)
    Path("steps.toml").write_text(FILE)
    out = ran(run_command, "compare", "steps.toml", "--run-dir", "runs/steps")
    assert "AREA: step 8/8, F " in out
    assert "round" not in out
    assert " Steps " in out
    Path("both.toml").write_text(FILE + IN_ROUNDS)
    out = ran(run_command, "compare", "both.toml", "--run-dir", "runs/both")
    assert "AREA: step 8/8, F " in out
    assert "in rounds: round 8/8, F " in out
    assert "Rounds or steps" in out
    assert [names[0] for names in axes] == ["step", "round or step"]
    assert all(names[-1] == "simulated seconds" for names in axes)
    for folder, words in (("steps", "steps to"), ("both", "rounds or steps to")):
        out = ran(run_command, "table", f"runs/{folder}", "--to", "residual=100", "--of", "rounds")
        assert words in " ".join(out.split())
    ran(run_command, "plot", "runs/both", "-o", "time.png", "--x", "simulated,rounds")
    assert axes[-1] == ["simulated seconds", "round or step"]
    assert "waves" in History.read_rows(Path("runs/steps/area/history.csv"))[-1]
