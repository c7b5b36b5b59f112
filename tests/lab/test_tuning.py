"""`fedcon tune`: grids of settings."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from left import rows_of

from flower_fedcon import FederatedProblem
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.advice.trial import try_out
from flower_fedcon.lab.experiments.run_tables import TuningOptions
from flower_fedcon.lab.experiments.runner import Played
from flower_fedcon.lab.experiments.tuning import Point, Score, _score, best, grid, refuse_private
from flower_fedcon.objectives import LeastSquares, PrivateObjective
from flower_fedcon.privacy import ExampleDP


def best_of(folder):
    """Return the table of the algorithm that a grid has found the best."""
    best = tomllib.loads(Path(folder, "best.toml").read_text())
    assert "compare" not in best
    return best["algorithm"]


def test_grid():
    assert len(grid(["a=1,2,3", "b=x,y"])) == 6
    assert grid(["p={sample = 3},full", "q=[1, 2],[3]"])[0] == {"p": "{sample = 3}", "q": "[1, 2]"}
    for texts in ([], ["a"], ["a="], ["a=1,,2"], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="grid"):
            grid(texts)


def test_tune_is_resumable_and_writes_the_best(fedcon):
    command = ["tune", "small.toml", "--algorithm", "FedFWPlus", "--rounds", "10"]
    command += ["--run-dir", "tuned", "--grid", "penalty=0.1,1,10", "--workers", "1"]
    out = ran(fedcon, *command)
    assert [path.name for path in Path("tuned").iterdir()] == ["fedfwplus"]
    folders = sorted(path.name for path in Path("tuned/fedfwplus").iterdir())
    assert folders == ["best.toml", "penalty=0.1", "penalty=1", "penalty=10"]
    scores = {name: rows_of(f"tuned/fedfwplus/{name}")[-1]["residual"] for name in folders[1:]}
    best = best_of("tuned/fedfwplus")
    assert best["name"] == "FedFWPlus"
    assert f"penalty={best['penalty']:g}" == min(scores, key=lambda n: scores[n])
    assert "best:      tuned/fedfwplus/best.toml" in out

    def written():
        paths = (Path("tuned/fedfwplus", name, "history.csv") for name in folders[1:])
        return [path.stat().st_mtime_ns for path in paths]

    before = written()
    other = ran(fedcon, *command, "--grid", "schedule=convex")  # another grid: other folders
    assert "found" not in other
    assert ran(fedcon, *command, "--largest").count(", found") == 3
    assert written() == before
    largest = max(scores, key=lambda n: scores[n])
    assert f"penalty={best_of('tuned/fedfwplus')['penalty']:g}" == largest
    ran(fedcon, "run", "tuned/fedfwplus/best.toml", "--run-dir", "again")

    command[command.index("10")] = "11"
    assert "holds a run with other settings" in refusal(fedcon, *command)


def test_tune_with_runs_that_fail(fedcon):
    text, own = Path("small.toml").read_text(), '"FedAvg"\nclient_lr = 1.0\nlocal_steps = 2'
    Path("d.toml").write_text(text.replace('"FedFW"\npenalty = 5.0', own))
    warn = ["--set", "algorithm.on_mismatch=warn"]
    many = ["tune", "d.toml", "--rounds", "200", *warn]
    assert "failed" in ran(fedcon, *many, "--grid", "client_lr=1e-3,1e3")
    assert best_of("runs/d-tune/fedavg")["client_lr"] == 1e-3
    bad = ["--grid", "client_lr=1e3", "--run-dir", "bad"]
    assert "every run failed" in refusal(fedcon, *many, *bad)


def test_tune_over_seeds_for_several_algorithms(fedcon):
    command = ["tune", "small.toml", "--rounds", "5", "--workers", "1", "--seeds", "0,3"]
    command += ["--algorithm", "FedFW", "--algorithm", "FedFWPlus", "--grid", "penalty=1,10"]
    out = ran(fedcon, *command, "--run-dir", "t")
    for label, slug in (("FedFW", "fedfw"), ("FedFWPlus", "fedfwplus")):
        means = {}
        for penalty in ("1", "10"):
            folder = f"t/{slug}/penalty={penalty}"
            ends = [rows_of(f"{folder}/seed-{seed}")[-1]["residual"] for seed in (0, 3)]
            means[penalty] = sum(ends) / 2
            shown = f"{means[penalty]:.4g}"
            if ends[0] != ends[1]:
                shown += f" ({min(ends):.4g} to {max(ends):.4g})"
            assert " ".join(f"{penalty} {shown}".split()) in " ".join(out.split())
        best = best_of(f"t/{slug}")
        assert best["label"] == label
        assert f"{best['penalty']:g}" == min(means, key=lambda p: means[p])
    assert "4/4: penalty=10, seed 3: residual" in out
    assert fedcon(*command, "--run-dir", "t")[1].count(", found") == 8
    assert "not both" in refusal(fedcon, *command, "--seed", "1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "penality=1"], "unknown key 'penality'"),
        (["--grid", "penalty=-1,1"], "penalty must be finite and > 0"),
        (["--grid", "penalty"], "write key=v1,v2"),
        (["--grid", "penalty=1", "--algorithm", "FedFWPlu"], "did you mean 'FedFWPlus'"),
        (["--grid", "penalty=1", "--metric", "residua"], "did you mean 'residual'"),
        (["--grid", "penalty=1", "--workers", "0"], "workers must be"),
        ([], "FedFW has no grid: write --grid"),
    ],
)
def test_tune_refusals(fedcon, arguments, words):
    command = ["tune", "small.toml", "--rounds", "2", *arguments]
    assert words in refusal(fedcon, *command)


TUNE = ("tune", "grid.toml", "--workers", "1")
GRID = """grid = {penalty = [0.005, 0.05, 0.5, 50.0]}
[tuning]
rounds = 20
"""


def with_grid(grid=GRID):
    """Return the small experiment, shorter, with a grid for its first algorithm."""
    line, _, table = grid.partition("\n")
    text = Path("small.toml").read_text().replace("rounds = 20", "rounds = 5")
    return text.replace("penalty = 5.0\n", f"penalty = 0.05\n{line}\n") + table


def test_the_grids_of_a_file(fedcon):
    text = with_grid()
    Path("grid.toml").write_text(text)
    code, out, _ = fedcon(*TUNE)
    scores = {
        name: rows_of(f"runs/grid-tune/fedfw/penalty={name}")[-1]
        for name in ("0.005", "0.05", "0.5", "50.0")
    }
    assert {row["round"] for row in scores.values()} == {20}
    best = min(scores, key=lambda name: scores[name]["residual"])
    assert (code, best) == (0, "0.05")

    Path("grid.toml").write_text(text.replace("penalty = 0.05\n", "penalty = 0.5\n"))
    code, out, _ = fedcon(*TUNE)
    assert code == 1
    assert out.count(", found") == 4  # nothing is repeated
    assert "penalty=0.5 is not the best of the grid: penalty=0.05 is" in out

    Path("grid.toml").write_text(text.replace("[0.005, ", "["))
    code, out, _ = fedcon(*TUNE)
    assert code == 1
    assert "penalty = 0.05 is an end of its grid [0.05, 0.5, 50.0]" in out
    claim = 'source = "ours"\nbound = "measured"\n[[claim]]\nwhat = "x"\nmeasure = "value"\n'
    claim += 'algorithm = "FedFW"\ncolumn = "objective"\nabove = 0.0\n'
    Path("sims/claims").mkdir(parents=True)
    Path("sims/claims/grid.toml").write_text(claim)
    Path("sims/grid.toml").write_text(text)
    ran(fedcon, "reproduce")
    Path("sims/grid.toml").write_text(text.replace("[0.005, ", "["))
    assert "is an end of its grid" in refusal(fedcon, "reproduce")


def test_the_first_to_a_level_is_best():
    options = TuningOptions(level=1.0)
    a, b, c = (
        _score(Played([{"round": i, "residual": v} for i, v in enumerate(values, 1)]), options)
        for values in ([3.0, 0.9, 0.8], [1.0, 2.0, 3.0], [9.0, 8.0, 7.0])
    )
    assert (a.value, b.value) == (2.0, 1.0)
    assert (c.arrived, c.missed) == (False, 7.0)


def test_the_least_spent_to_a_level_is_best(fedcon):
    small = [{"round": t, "residual": 4.0 - t, "uplink_bytes": 10 * t} for t in range(1, 5)]
    large = [{"round": 1, "residual": 0.5, "uplink_bytes": 90}]
    never = [{"round": 4, "residual": 2.0, "uplink_bytes": 4}]
    options = TuningOptions(level=1.0, of="uplink_bytes")
    assert [_score(Played(rows), options).value for rows in (small, large)] == [30, 90]
    assert str(_score(Played(never), options)) == "never"
    in_rounds = TuningOptions(level=1.0)
    assert [_score(Played(rows), in_rounds).value for rows in (small, large)] == [3, 1]

    Path("grid.toml").write_text(with_grid(f'{GRID}level = 6.0\nof = "uplink_bytes"\n'))
    _, out, _ = fedcon(*TUNE)
    assert "uplink_bytes with residual at most 6" in out
    best = rows_of("runs/grid-tune/fedfw/penalty=0.05")[-1]
    assert f"{best['uplink_bytes']:.4g}" in out
    unreached = with_grid(f'{GRID}level = 1e-9\nof = "uplink_bytes"\n')
    Path("grid.toml").write_text(unreached)
    code, out, error = fedcon(*TUNE, "--run-dir", "other")
    assert (code, error) == (1, "")
    assert out.count("never") == 8  # a line and a cell for each value
    assert "no run brought residual down to 1e-09; the nearest was penalty=0.05" in out
    assert not Path("other/fedfw/best.toml").exists()
    Path("grid.toml").write_text(unreached.replace("uplink_bytes", "uplink_byte"))
    words = refusal(fedcon, *TUNE, "--run-dir", "other")
    assert "unknown metric 'uplink_byte': did you mean 'uplink_bytes'" in words


def test_a_level_that_some_seeds_reach():
    """What was not reached is no round, and a mean over fewer seeds never wins."""
    options = TuningOptions(level=1.0)
    some = Point({"penalty": "1"}, [Score(4.0, 0.9), Score(math.nan, 3.0)], "")
    all_ = Point({"penalty": "2"}, [Score(40.0, 0.9), Score(60.0, 1.0)], "")
    none = Point({"penalty": "3"}, [Score(math.nan, 2.0), Score(math.nan, 4.0)], "")
    worse = Point({"penalty": "4"}, [Score(math.nan, 9.0), Score(math.nan, 4.0)], "")
    texts = [str(point) for point in (some, all_, none)]
    assert texts == ["4, 1 of 2", "50 (40 to 60)", "never (0 of 2)"]
    assert best([worse, none, some, all_], options) == [all_]
    assert best([worse, none, some], options) == [some]
    assert best([worse, none], options) == [none]


def test_a_run_stops_at_the_level(fedcon):
    Path("grid.toml").write_text(with_grid(f"{GRID}level = 6.0\n"))
    fedcon(*TUNE)
    rows = rows_of("runs/grid-tune/fedfw/penalty=0.05")
    assert len(rows) < 20
    assert [row["residual"] <= 6.0 for row in rows] == [False] * (len(rows) - 1) + [True]

    Path("grid.toml").write_text(with_grid())
    _, out, _ = fedcon(*TUNE)
    assert "found" not in out
    whole = rows_of("runs/grid-tune/fedfw/penalty=0.05")
    assert len(whole) == 20
    assert [row["residual"] for row in whole[: len(rows)]] == [row["residual"] for row in rows]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[0.005, 0.05", "[0.05, 0.005", "at least three increasing numbers"),
        ("[0.005, 0.05, 0.5, 50.0]", "[0.5, 5.0]", "at least three increasing numbers"),
        ("grid = {penalty", "grid = {penality", "unknown key 'penality'"),
        ("rounds = 20", "round = 10", "[tuning]: unknown key 'round'"),
        ("rounds = 20", "rounds = 0", "rounds must be a whole number >= 1"),
        ("rounds = 20", "level = 1\nlargest = true", "give either level or largest"),
        ("rounds = 20", 'of = "seconds"', "of = 'seconds' is what is spent to reach a level"),
    ],
)
def test_grids_in_files_are_checked(fedcon, old, new, words):
    assert old in GRID
    Path("grid.toml").write_text(with_grid(GRID.replace(old, new)))
    assert words in refusal(fedcon, "tune", "grid.toml")


def test_nothing_is_chosen_by_what_private_examples_say():
    rule = ExampleDP(clip=1.0, noise_multiplier=2.0, target_delta=1e-5)
    private = [PrivateObjective(LeastSquares(np.eye(3), np.ones(3)), rule) for _ in range(2)]
    problem = FederatedProblem(private)
    for choose in (lambda: refuse_private(problem, "fedcon tune"), lambda: try_out(problem, [], 5)):
        with pytest.raises(ConfigError, match="compares objectives, which no noise protects"):
            choose()
    refuse_private(FederatedProblem([LeastSquares(np.eye(3), np.ones(3))]), "fedcon tune")
