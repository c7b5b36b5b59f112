"""`fedcon tune`: grids of settings."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from harness import Command, refusal

from flower_fedcon.errors import ConfigError
from flower_fedcon.experiments.tuning import grid
from flower_fedcon.runs.history import History


def test_grid() -> None:
    assert len(grid(["a=1,2,3", "b=x,y"])) == 6
    assert grid(["p={sample = 3},full", "q=[1, 2],[3]"])[0] == {"p": "{sample = 3}", "q": "[1, 2]"}
    for texts in ([], ["a"], ["a="], ["a=1,,2"], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="grid"):
            grid(texts)


def test_tune_is_resumable_and_writes_the_best(fedcon: Command) -> None:
    command = ["tune", "small.toml", "--algorithm", "FedFWPlus", "--rounds", "10"]
    command += ["--run-dir", "tuned", "--grid", "penalty=0.1,1,10", "--workers", "1"]
    code, out, error = fedcon(*command)
    assert (code, error) == (0, "")
    folders = sorted(path.name for path in Path("tuned").iterdir())
    assert folders == ["best.toml", "penalty=0.1", "penalty=1", "penalty=10"]
    scores = {
        name: History.read_rows(f"tuned/{name}/history.csv")[-1]["residual"] for name in folders[1:]
    }
    best = tomllib.loads(Path("tuned/best.toml").read_text())
    assert best["algorithm"]["name"] == "FedFWPlus"
    assert f"penalty={best['algorithm']['penalty']:g}" == min(scores, key=lambda n: scores[n])
    assert "compare" not in best
    assert "best:      tuned/best.toml" in out

    before = {n: Path("tuned", n, "history.csv").stat().st_mtime_ns for n in folders[1:]}
    code, out, _ = fedcon(*command, "--grid", "schedule=convex")  # another grid: other folders
    assert code == 0
    assert "found" not in out
    code, out, _ = fedcon(*command, "--largest")
    assert out.count(", found") == 3
    assert before == {n: Path("tuned", n, "history.csv").stat().st_mtime_ns for n in folders[1:]}
    best = tomllib.loads(Path("tuned/best.toml").read_text())
    assert f"penalty={best['algorithm']['penalty']:g}" == max(scores, key=lambda n: scores[n])
    assert fedcon("run", "tuned/best.toml", "--run-dir", "again")[0] == 0

    command[command.index("10")] = "11"
    assert "holds a run of other settings" in refusal(fedcon, *command)


def test_tune_with_runs_that_fail(fedcon: Command) -> None:
    text = (
        Path("small.toml")
        .read_text()
        .replace('"FedFW"\npenalty = 5.0', '"FedAvg"\nclient_lr = 1.0\nlocal_steps = 2')
    )
    Path("d.toml").write_text(text)
    code, out, _ = fedcon("tune", "d.toml", "--rounds", "200", "--grid", "client_lr=1e-3,1e3")
    assert code == 0
    assert "failed" in out
    assert (
        tomllib.loads(Path("runs/d-tune/best.toml").read_text())["algorithm"]["client_lr"] == 1e-3
    )
    arguments = ["--rounds", "200", "--grid", "client_lr=1e3", "--run-dir", "bad"]
    assert "every run failed" in refusal(fedcon, "tune", "d.toml", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "penality=1"], "unknown key 'penality'"),
        (["--grid", "penalty=-1,1"], "penalty must be finite and > 0"),
        (["--grid", "penalty"], "write key=v1,v2"),
        (["--grid", "penalty=1", "--algorithm", "FedFWPlu"], "did you mean 'FedFWPlus'"),
        (["--grid", "penalty=1", "--metric", "residua"], "did you mean 'residual'"),
        (["--grid", "penalty=1", "--workers", "0"], "workers must be"),
        ([], "--grid"),
    ],
)
def test_tune_refusals(fedcon: Command, arguments: list[str], words: str) -> None:
    command = ["tune", "small.toml", "--rounds", "2", *arguments]
    assert words in refusal(fedcon, *command)
