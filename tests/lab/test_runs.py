"""`fedcon run` and `compare`: the folders they leave, resumption, seeds."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from harness import Command, refusal

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.runner import Job, play, play_jobs
from flower_fedcon.lab.experiments.seed_statistics import highest, lowest, mean, parse
from flower_fedcon.runs.history import History
from flower_fedcon.runs.relative import with_relative

SIMS = Path(__file__).parents[2] / "sims"


def without_seconds(path: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in History.read_rows(path)]


def test_run_leaves_a_whole_directory(fedcon: Command) -> None:
    code, out, error = fedcon("run", "small.toml", "--seed", "3", "--set", "clients=3")
    assert (code, error) == (0, "")
    folder = Path("runs/small")
    names = {path.name for path in folder.iterdir()}
    written = {"config.toml", "history.csv", "model.npz", "environment.json", "checkpoint"}
    assert names == written | {"figure.png"}
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["run"] == {"rounds": 20, "seed": 3, "engine": "local", "evaluate_every": 1}
    assert config["problem"]["clients"] == 3
    assert config["algorithm"]["participation"] == {"sample": 2}
    rows = History.read_rows(folder / "history.csv")
    assert [row["round"] for row in rows] == list(range(1, 21))
    assert np.load(folder / "model.npz")["x"].shape == (20,)
    assert json.loads((folder / "environment.json").read_text())["python"]
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")

    assert "reference optimum F* = 0" in out
    assert out.count("round ") >= 10  # a line for each tenth
    header = next(line for line in out.splitlines() if "Objective" in line)
    for column in ("Algorithm", "F - F*", "Total", "MB up", "MB down", "Seconds"):
        assert column in header
    last = next(line for line in out.splitlines() if line.strip().startswith("FedFW "))
    assert f"{rows[-1]['objective']:.6g}" in last
    assert "figure:    runs/small/figure.png" in out
    assert "directory: runs/small" in out


def test_certificates_are_asked_for_in_the_file(fedcon: Command) -> None:
    asked = ["--set", "run.certificates=true", "--set", "problem.reference=false"]
    code, out, error = fedcon("run", "small.toml", *asked, "--run-dir", "a")
    assert (code, error) == (0, "")
    rows = History.read_rows(Path("a/history.csv"))
    assert all(row["fw_gap"] > 0 for row in rows)
    assert "certificates = true" in Path("a/config.toml").read_text()
    assert "FW gap" in out
    assert f"{rows[-1]['fw_gap']:.3g}" in out
    assert fedcon("plot", "a", "--y", "fw_gap", "-o", "gap.svg")[0] == 0


def test_the_written_configuration_repeats_the_run(fedcon: Command) -> None:
    fedcon("run", "small.toml", "--run-dir", "a")
    code, _, error = fedcon("run", "a/config.toml", "--run-dir", "b")
    assert (code, error) == (0, "")
    assert Path("a/model.npz").read_bytes() == Path("b/model.npz").read_bytes()


def test_seeds(fedcon: Command) -> None:
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert fedcon("run", "small.toml", "--seed", seed, "--run-dir", folder)[0] == 0
    models = [Path(folder, "model.npz").read_bytes() for folder in "abc"]
    rows = [without_seconds(Path(folder, "history.csv")) for folder in "abc"]
    assert models[0] == models[1] != models[2]
    assert rows[0] == rows[1] != rows[2]


def test_run_directories(fedcon: Command) -> None:
    for _ in range(3):
        assert fedcon("run", "small.toml", "--rounds", "1")[0] == 0
    assert {p.name for p in Path("runs").iterdir()} == {"small", "small-2", "small-3"}
    message = refusal(fedcon, "run", "small.toml", "--run-dir", "runs/small")
    assert "runs/small already holds a run: continue it with --resume" in message
    Path("file").touch()
    message = refusal(fedcon, "run", "small.toml", "--run-dir", "file/x")
    assert "cannot make the run directory file/x" in message


def test_a_problem_without_reference(fedcon: Command) -> None:
    Path("digits.toml").write_text(
        '[problem]\nname = "digits"\nl1 = 1e-3\nreference = false\n[run]\nrounds = 2\n'
        '[algorithm]\nname = "FedAvg"\nclient_lr = 0.5\nlocal_steps = 1\n'
    )
    code, out, error = fedcon("run", "digits.toml")
    assert (code, error) == (0, "")
    assert "reference" not in out
    assert "F - F*" not in out
    assert "Test accuracy" in out
    assert "Sparsity" in out
    assert "residual" not in History.read_rows("runs/digits/history.csv")[0]


def test_compare(fedcon: Command) -> None:
    code, out, error = fedcon("compare", "small.toml", "--rounds", "5")
    assert (code, error) == (0, "")
    folder = Path("runs/small")
    names = {path.name for path in folder.iterdir()}
    figures = {"figure.png", "figure.pdf"}
    assert names == {"config.toml", *figures, "fedfw", "fedfwplus", "mirror-2-steps"}
    assert (folder / "figure.pdf").read_bytes().startswith(b"%PDF")
    for part in ("fedfw", "fedfwplus", "mirror-2-steps"):
        config = tomllib.loads((folder / part / "config.toml").read_text())
        assert "compare" not in config
        assert len(History.read_rows(folder / part / "history.csv")) == 5
    assert len(tomllib.loads((folder / "config.toml").read_text())["compare"]) == 2
    table = out[out.index("Algorithm") :]
    for label in ("FedFW ", "FedFWPlus ", "Mirror, 2 steps "):
        assert table.count(label) == 1
    assert fedcon("compare", "small.toml", "--rounds", "1")[1].endswith("directory: runs/small-2\n")


def test_a_diverging_run_is_one_error(fedcon: Command) -> None:
    text = Path("small.toml").read_text()
    diverging = text.replace("penalty = 5.0", "client_lr = 10.0\nlocal_steps = 2")
    Path("diverging.toml").write_text(diverging.replace('"FedFW"', '"FedAvg"'))
    options = ["--rounds", "5000", "--set", "algorithm.on_mismatch=warn"]
    message = refusal(fedcon, "run", "diverging.toml", *options)
    rows = History.read_rows("runs/diverging/history.csv")
    assert f"round {len(rows) + 1}: the objective is inf: the run diverges" in message


def test_resume_goes_on_to_the_same_bytes(fedcon: Command) -> None:
    assert fedcon("run", "small.toml", "--run-dir", "whole", "--rounds", "30")[0] == 0
    assert fedcon("run", "small.toml", "--run-dir", "part", "--checkpoint-every", "7")[0] == 0
    more = ["run", "small.toml", "--run-dir", "part", "--resume", "--rounds", "30"]
    assert "there is no folder prat to resume" in refusal(
        fedcon, "run", "small.toml", "--run-dir", "prat", "--resume"
    )
    assert not Path("prat").exists()
    assert "penalty was 5.0, is 6.0" in refusal(fedcon, *more, "--set", "algorithm.penalty=6.0")
    assert fedcon(*more)[0] == 0
    whole, part = (np.load(f"{folder}/model.npz")["x"] for folder in ("whole", "part"))
    assert part.tobytes() == whole.tobytes()
    changed = [*more[:-1], "31", "--set", "algorithm.penalty=6.0", "--allow-change", "penalty"]
    assert fedcon(*changed)[0] == 0
    assert len(History.read_rows("part/history.csv")) == 31


def test_reductions() -> None:
    runs = [
        [{"round": 1, "c": 1.0}, {"round": 2, "c": 2.0, "d": 1.0}],
        [{"round": 1, "c": 3.0}, {"round": 2, "c": 6.0}, {"round": 3, "c": 9.0}],
    ]
    # The first run has ended after round 2, and keeps what it had then.
    expected = [{"round": 1, "c": 2.0}, {"round": 2, "c": 4.0}, {"round": 3, "c": 5.5}]
    assert mean(runs) == expected
    assert [row["c"] for row in lowest(runs)] == [1.0, 2.0, 2.0]
    assert [row["c"] for row in highest(runs)] == [3.0, 6.0, 9.0]
    late = [[{"round": 5, "c": 0.0}, {"round": 7, "c": 4.0}], [{"round": 6, "c": 8.0}]]
    assert mean(late) == [{"round": 6, "c": 4.0}, {"round": 7, "c": 6.0}]
    for text in ("", "a", "0,-1", "1,1"):
        with pytest.raises(ConfigError):
            parse(text)


def test_compare_over_seeds(fedcon: Command) -> None:
    command = ["compare", "small.toml", "--rounds", "6", "--seeds", "0,1,2"]
    code, out, error = fedcon(*command, "--run-dir", "many")
    assert (code, error) == (0, "")
    assert {path.name for path in Path("many").iterdir()} == {
        "config.toml", "figure.png", "figure.pdf", "fedfw", "fedfwplus", "mirror-2-steps"
    }  # fmt: skip
    seeds = [f"many/fedfw/seed-{n}/history.csv" for n in range(3)]
    last = [History.read_rows(path)[-1] for path in seeds]
    residuals = [row["residual"] for row in last]
    assert len(set(residuals)) == 3  # cohorts differ
    table = out[out.index("Algorithm") :]
    assert f"{np.mean(residuals):.3g}" in table
    assert f"{min(residuals):.3g} to {max(residuals):.3g}" in table
    assert Path("many/figure.png").read_bytes().startswith(b"\x89PNG")
    config = tomllib.loads(Path("many/fedfw/seed-2/config.toml").read_text())
    assert config["run"]["seed"] == 2

    assert fedcon("plot", "many", "-o", "all.png", "--x", "rounds,bytes")[0] == 0
    assert "did you mean 'bytes'" in refusal(
        fedcon, "plot", "many", "-o", "all.png", "--x", "rounds,byte"
    )
    assert "already holds a run" in refusal(fedcon, *command, "--run-dir", "many")
    assert fedcon(*command, "--run-dir", "many", "--resume")[0] == 0
    assert "not both" in refusal(fedcon, *command, "--seed", "1")
    assert "--seeds 0,x" in refusal(fedcon, "compare", "small.toml", "--seeds", "0,x")


def test_each_seed_counts_at_its_own_end(fedcon: Command) -> None:
    """Seeds that come to a level at different times are not cut to the shortest of them."""
    level = ["--until", "residual=3.0", "--set", "FedFW.participation.sample=1"]
    command = ["compare", "small.toml", "--rounds", "60", "--seeds", "0,1,2,3", *level]
    code, out, error = fedcon(*command, "--run-dir", "many")
    assert (code, error) == (0, "")
    ends = [History.read_rows(f"many/fedfw/seed-{n}/history.csv")[-1] for n in range(4)]
    assert len({row["round"] for row in ends}) > 1
    rounds, residuals = ([row[name] for row in ends] for name in ("round", "residual"))
    arrived = sum(value <= 3.0 for value in residuals)
    words = " ".join(out[out.index("Algorithm") :].split())
    assert f" {np.mean(residuals):.3g} " in words
    assert f"{min(residuals):.3g} to {max(residuals):.3g}" in words
    assert f"{np.mean(rounds):.4g} " in words
    assert f"{min(rounds):.4g} to {max(rounds):.4g}" in words
    assert f" {arrived} of 4 " in words
    assert fedcon("plot", "many", "-o", "all.png")[0] == 0


@pytest.mark.parametrize("reference", ["true", "false"])
def test_until_relative_in_a_file(fedcon: Command, reference: str) -> None:
    """A run ends at the value that the closing table shows; a reference is found for it."""
    Path("until.toml").write_text(
        f"[problem]\nname = 'counterexample'\nreference = {reference}\n"
        "[run]\nrounds = 400\nuntil = {relative = 1e-2}\n"
        "[algorithm]\nname = 'FedFWPlus'\npenalty = 1.0\n"
    )
    code, out, error = fedcon("run", "until.toml", "--run-dir", "r")
    assert (code, error) == (0, "")
    *_, before, last = with_relative(History.read_rows("r/history.csv"))
    assert last["relative"] <= 1e-2 < before["relative"]
    titles, cells = (
        line.split() for line in out.splitlines() if " 1 of 1" in line or "Arrived" in line
    )
    assert f"{last['relative']:.3g}" in cells
    assert "Relative" in titles


def test_seeds_that_change_nothing_are_said(fedcon: Command) -> None:
    code, out, _ = fedcon("compare", "small.toml", "--rounds", "2", "--seeds", "0,1")
    assert code == 0
    for label in ("FedFWPlus", "Mirror, 2 steps"):
        assert f"{label}: nothing depends on the seed, so its 2 runs count as one" in out
    assert "FedFW: nothing" not in out


def test_seeds_of_the_problem(fedcon: Command) -> None:
    command = ["compare", "small.toml", "--rounds", "3", "--set", "participation=full"]
    for whose, own in (("problem", 0), ("both", 4)):
        folder = Path(whose)
        code, out, error = fedcon(*command, "--seeds", f"{whose}:3,4", "--run-dir", whose)
        assert (code, error) == (0, "")
        assert out.count("reference optimum") == 2
        assert "Relative" not in out  # to which F*?
        config = tomllib.loads((folder / "fedfw/seed-4/config.toml").read_text())
        assert (config["problem"]["seed"], config["run"]["seed"]) == (4, own)
        ends = [History.read_rows(folder / f"fedfw/seed-{n}/history.csv")[-1] for n in (3, 4)]
        assert ends[0]["objective"] != ends[1]["objective"]
        assert f"{np.mean([row['residual'] for row in ends]):.3g}" in out
    assert "did you mean 'problem'" in refusal(fedcon, *command, "--seeds", "problems:1")
    text = Path("small.toml").read_text().replace('"lasso"\nclients = 4', '"heart"\nl1 = 0.1')
    Path("heart.toml").write_text(re.sub("(rows|columns|nonzeros) = .*\n", "", text))
    words = refusal(fedcon, "compare", "heart.toml", "--rounds", "1", "--seeds", "problem:0,1")
    assert "unknown key 'seed'" in words


def test_settings_of_all_algorithms_or_one(fedcon: Command) -> None:
    def participation(*settings: str) -> list[object]:
        options = [word for setting in settings for word in ("--set", setting)]
        code, out, error = fedcon("compare", "small.toml", "--rounds", "1", *options)
        assert (code, error) == (0, "")
        said.append(out)
        folder = Path(out.rpartition("directory: ")[2].strip())
        parts = ("fedfw", "fedfwplus", "mirror-2-steps")
        configs = [tomllib.loads((folder / part / "config.toml").read_text()) for part in parts]
        return [config["algorithm"]["participation"] for config in configs]

    said: list[str] = []
    one, two, three = ({"sample": n} for n in (1, 2, 3))
    assert participation() == [two, "full", "full"]
    assert participation("participation.sample=3") == [three] * 3
    assert participation("participation={sample=3}", "FedFWPlus.participation=full") == [
        three, "full", three
    ]  # fmt: skip
    assert participation("Mirror, 2 steps.participation.sample=1") == [two, "full", one]
    assert "alone" not in "".join(said)
    assert participation("algorithm.participation.sample=3") == [three, "full", "full"]
    assert "changes FedFW alone; --set participation.sample=3 changes all" in said[-1]
    for words in ("sample 3", "full"):  # who takes part stands in the table
        assert words in said[-1][said[-1].index("Participation") :]
    assert "unknown table 'FedFWPlu'" in refusal(
        fedcon, "compare", "small.toml", "--set", "FedFWPlu.penalty=1"
    )


def test_seeds_share_one_problem() -> None:
    first = Experiment.load(SIMS / "digits_l1.toml", ["rounds=1"])
    others = [first.seeded(seed) for seed in (1, 2)]
    assert [other.run_options.seed for other in others] == [1, 2]
    assert others[0].problem() is others[1].problem() is first.problem()
    assert first.run_options.seed == 0
    with pytest.raises(ConfigError, match=r"\[run\]: seed"):
        first.seeded(-1)


# --- playing -------------------------------------------------------------------------------------


def test_a_run_that_cannot_be_stacked_says_so_once(fedcon: Command) -> None:
    settings = ["algorithm.name=FedProxAL", "penalty=1.0", "coupling=1.0"]
    settings += ["algorithm.on_mismatch=warn"]
    text = Path("small.toml").read_text().replace("penalty = 5.0\n", "")
    Path("small.toml").write_text(text.replace("participation = {sample = 2}\n", ""))
    options = [word for setting in settings for word in ("--set", setting)]
    code, out, error = fedcon("run", "small.toml", "--rounds", "2", "--engine", "stacked", *options)
    assert (code, error) == (0, "")
    (line,) = (line for line in out.splitlines() if "running on the local engine" in line)
    assert line.startswith("FedProxAL: ")


def test_jobs_in_processes_are_runs_in_this_one(tmp_path: Path) -> None:
    experiment = Experiment.load(SIMS / "counterexample.toml", ["rounds=5"])
    jobs = [Job("a", experiment.to_toml(), i) for i in (0, 1)]
    jobs += [Job("b", experiment.to_toml(0), folder=tmp_path / "run")]
    expected = [play(experiment, i).rows for i in (0, 1, 0)]
    for workers in (2, 1):
        found = dict(play_jobs(jobs, workers=workers))
        for i, rows in enumerate(expected):
            assert [{**row, "seconds": 0.0} for row in found[i].rows] == [
                {**row, "seconds": 0.0} for row in rows
            ]
        assert found[0].optimum == experiment.problem().optimum.value
        assert [found[i].found for i in range(3)] == [False, False, workers == 1]


def test_what_a_strategy_says_of_its_settings_is_shown(
    fedcon: Command, caplog: pytest.LogCaptureFixture
) -> None:
    problem = '[problem]\nname = "digits"\nl2 = 0.1\ntest_size = 1500\nreference = false\n'
    dual = '[algorithm]\nname = "DualFL"\nmomentum = 0.9\n'
    Path("dual.toml").write_text(f"{problem}[run]\nrounds = 1\n{dual}")
    assert fedcon("run", "dual.toml")[0] == 0
    (said,) = (r.message for r in caplog.records if r.levelname == "WARNING")
    assert said.startswith("DualFL's momentum 0.9 is above nu/L = 0.0")


AUTO = """
[problem]
name = "l1_logistic"
clients = 4
rows = 20
columns = 30

[run]
rounds = 90
"""


def test_a_file_without_an_algorithm_lets_those_that_fit_race(fedcon: Command) -> None:
    Path("auto.toml").write_text(AUTO)
    code, out, error = fedcon("run", "auto.toml", "--run-dir", "one", "--rounds", "40")
    assert code == 0, error
    code, out, error = fedcon("run", "one/config.toml", "--run-dir", "one", "--resume",
                              "--rounds", "90")  # fmt: skip
    assert code == 0, error
    assert "chosen:" in out
    Path("whole.toml").write_text(AUTO + '[algorithm]\nname = "auto"\nparticipation = "full"\n')
    assert fedcon("run", "whole.toml", "--run-dir", "two")[0] == 0
    one, two = (Path(name, "model.npz").read_bytes() for name in ("one", "two"))
    assert one == two
    assert History.read_rows(Path("two/history.csv"))[-1]["residual"] < 1e-9


def test_auto_stands_in_files_where_a_rule_does(fedcon: Command) -> None:
    Path("auto.toml").write_text(AUTO + '[algorithm]\nname = "FedDR"\nstep_size = "auto"\n')
    code, _, error = fedcon("run", "auto.toml", "--run-dir", "one")
    assert code == 0, error
    assert 'step_size = "auto"' in Path("one/config.toml").read_text()
    Path("auto.toml").write_text(AUTO + '[algorithm]\nname = "FedDR"\nrelaxation = "auto"\n')
    code, _, error = fedcon("run", "auto.toml", "--run-dir", "two")
    assert code
    assert "relaxation must be a number, got 'auto'" in error


def test_a_run_tells_who_was_in_its_race_and_who_was_not_tried(fedcon: Command) -> None:
    Path("auto.toml").write_text(AUTO + '[algorithm]\nname = "FedMiD"\nclient_lr = "auto"\n')
    code, out, error = fedcon("run", "auto.toml", "--run-dir", "one", "--rounds", "20")
    assert code == 0, error
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("client_lr=")]
    assert [row[1:] for row in rows if row[1] == "0"] == [["0", "not", "tried"]]
    reached = [float(row[2]) for row in rows if row[1] != "0"]
    assert len(reached) == len(rows) - 1 > 2
    assert 0 < min(reached) <= max(reached) < 1
