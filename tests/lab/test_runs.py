"""`fedcon run` and `compare`: the folders they leave, resumption, seeds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from left import PDF, PNG, begins, config_of, model_of, names_in, rows_of

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.runner import Job, play, play_jobs
from flower_fedcon.lab.experiments.seed_statistics import highest, lowest, mean, parse
from flower_fedcon.runs.relative import with_relative

SIMS = Path(__file__).parents[2] / "sims"
PARTS = ("fedfw", "fedfwplus", "mirror-2-steps")


def without_seconds(rows):
    return [{**row, "seconds": 0.0} for row in rows]


def test_run_leaves_a_whole_directory(fedcon):
    out = ran(fedcon, "run", "small.toml", "--seed", "3", "--set", "clients=3")
    folder = Path("runs/small")
    written = {"config.toml", "history.csv", "model.npz", "environment.json", "checkpoint"}
    assert names_in(folder) == written | {"figure.png", "cohorts.jsonl"}
    config = config_of(folder)
    assert config["run"] == {"rounds": 20, "seed": 3, "engine": "local", "evaluate_every": 1}
    assert config["problem"]["clients"] == 3
    assert config["algorithm"]["participation"] == {"sample": 2}
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == list(range(1, 21))
    assert model_of(folder).shape == (20,)
    assert json.loads((folder / "environment.json").read_text())["python"]
    assert begins(folder / "figure.png", PNG)

    assert "reference optimum F* = 0" in out
    assert out.count("round ") >= 10  # a line for each tenth
    header = next(line for line in out.splitlines() if "Objective" in line)
    for column in ("Algorithm", "F - F*", "Total", "MB up", "MB down", "Seconds"):
        assert column in header
    last = next(line for line in out.splitlines() if line.strip().startswith("FedFW "))
    assert f"{rows[-1]['objective']:.6g}" in last
    assert "figure:    runs/small/figure.png" in out
    assert "directory: runs/small" in out


def test_certificates_are_asked_for_in_the_file(fedcon):
    asked = ["--set", "run.certificates=true", "--set", "problem.reference=false"]
    out = ran(fedcon, "run", "small.toml", *asked, "--run-dir", "a")
    rows = rows_of("a")
    assert all(row["fw_gap"] > 0 for row in rows)
    assert config_of("a")["run"]["certificates"] is True
    assert "FW gap" in out
    assert f"{rows[-1]['fw_gap']:.3g}" in out
    ran(fedcon, "plot", "a", "--y", "fw_gap", "-o", "gap.svg")


def test_a_seed_fixes_a_run_which_its_configuration_repeats(fedcon, undrawn):
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        ran(fedcon, "run", "small.toml", "--seed", seed, "--run-dir", folder)
    ran(fedcon, "run", "a/config.toml", "--run-dir", "again")
    a, b, c, again = (
        (Path(folder, "model.npz").read_bytes(), without_seconds(rows_of(folder)))
        for folder in ("a", "b", "c", "again")
    )
    assert a == b == again
    assert a[0] != c[0]
    assert a[1] != c[1]


def test_run_directories(fedcon, undrawn):
    for _ in range(3):
        ran(fedcon, "run", "small.toml", "--rounds", "1")
    assert names_in("runs") == {"small", "small-2", "small-3"}
    Path("file").touch()
    for folder, words in (
        ("runs/small", "runs/small already holds a run: continue it with --resume"),
        ("file/x", "cannot make the run directory file/x"),
    ):
        assert words in refusal(fedcon, "run", "small.toml", "--run-dir", folder)


def test_a_problem_without_reference(fedcon, undrawn):
    Path("digits.toml").write_text(
        '[problem]\nname = "digits"\nl1 = 1e-3\nreference = false\n[run]\nrounds = 2\n'
        '[algorithm]\nname = "FedAvg"\nclient_lr = 0.5\nlocal_steps = 1\n'
    )
    out = ran(fedcon, "run", "digits.toml")
    assert ("reference" in out, "F - F*" in out) == (False, False)
    assert ("Test accuracy" in out, "Sparsity" in out) == (True, True)
    assert "residual" not in rows_of("runs/digits")[0]


def test_compare(fedcon):
    out = ran(fedcon, "compare", "small.toml", "--rounds", "5")
    folder = Path("runs/small")
    assert names_in(folder) == {"config.toml", "figure.png", "figure.pdf", *PARTS}
    assert begins(folder / "figure.pdf", PDF)
    for part in PARTS:
        assert "compare" not in config_of(folder / part)
        assert len(rows_of(folder / part)) == 5
    assert len(config_of(folder)["compare"]) == 2
    table = out[out.index("Algorithm") :]
    for label in ("FedFW ", "FedFWPlus ", "Mirror, 2 steps "):
        assert table.count(label) == 1
    assert fedcon("compare", "small.toml", "--rounds", "1")[1].endswith("directory: runs/small-2\n")


def test_a_diverging_run_is_one_error(fedcon):
    text = Path("small.toml").read_text()
    diverging = text.replace("penalty = 5.0", "client_lr = 10.0\nlocal_steps = 2")
    Path("diverging.toml").write_text(diverging.replace('"FedFW"', '"FedAvg"'))
    options = ["--rounds", "5000", "--set", "algorithm.on_mismatch=warn"]
    message = refusal(fedcon, "run", "diverging.toml", *options)
    ended = len(rows_of("runs/diverging")) + 1
    assert f"round {ended}: the objective is inf: the run diverges" in message


def test_resume_goes_on_to_the_same_bytes(fedcon, undrawn):
    ran(fedcon, "run", "small.toml", "--run-dir", "whole", "--rounds", "30")
    ran(fedcon, "run", "small.toml", "--run-dir", "part", "--checkpoint-every", "7")
    more = ["run", "small.toml", "--run-dir", "part", "--resume", "--rounds", "30"]
    lost = refusal(fedcon, "run", "small.toml", "--run-dir", "prat", "--resume")
    assert "there is no folder prat to resume" in lost
    assert not Path("prat").exists()
    assert "penalty was 5.0, is 6.0" in refusal(fedcon, *more, "--set", "algorithm.penalty=6.0")
    ran(fedcon, *more)
    assert model_of("part").tobytes() == model_of("whole").tobytes()
    ran(fedcon, *more[:-1], "31", "--set", "algorithm.penalty=6.0", "--allow-change", "penalty")
    assert len(rows_of("part")) == 31


# --- seeds ---------------------------------------------------------------------------------------


def test_reductions():
    runs = [
        [{"round": 1, "c": 1.0}, {"round": 2, "c": 2.0, "d": 1.0}],
        [{"round": 1, "c": 3.0}, {"round": 2, "c": 6.0}, {"round": 3, "c": 9.0}],
    ]
    # The first run has ended after round 2, and keeps what it had then.
    assert mean(runs) == [{"round": n, "c": c} for n, c in ((1, 2.0), (2, 4.0), (3, 5.5))]
    assert [row["c"] for row in lowest(runs)] == [1.0, 2.0, 2.0]
    assert [row["c"] for row in highest(runs)] == [3.0, 6.0, 9.0]
    late = [[{"round": 5, "c": 0.0}, {"round": 7, "c": 4.0}], [{"round": 6, "c": 8.0}]]
    assert mean(late) == [{"round": 6, "c": 4.0}, {"round": 7, "c": 6.0}]
    for text in ("", "a", "0,-1", "1,1"):
        with pytest.raises(ConfigError):
            parse(text)


def spread(values):
    return f"{min(values):.3g} to {max(values):.3g}"


def test_compare_over_seeds(fedcon):
    command = ["compare", "small.toml", "--rounds", "6", "--seeds", "0,1,2"]
    out = ran(fedcon, *command, "--run-dir", "many")
    assert names_in("many") == {"config.toml", "figure.png", "figure.pdf", *PARTS}
    residuals = [rows_of(f"many/fedfw/seed-{n}")[-1]["residual"] for n in range(3)]
    assert len(set(residuals)) == 3  # cohorts differ
    table = out[out.index("Algorithm") :]
    assert f"{np.mean(residuals):.3g}" in table
    assert spread(residuals) in table
    assert begins("many/figure.png", PNG)
    assert config_of("many/fedfw/seed-2")["run"]["seed"] == 2

    plot = ["plot", "many", "-o", "all.png", "--x"]
    ran(fedcon, *plot, "rounds,bytes")
    ran(fedcon, *command, "--run-dir", "many", "--resume")
    for wrong, words in (
        ([*plot, "rounds,byte"], "did you mean 'bytes'"),
        ([*command, "--run-dir", "many"], "already holds a run"),
        ([*command, "--seed", "1"], "not both"),
        (["compare", "small.toml", "--seeds", "0,x"], "--seeds 0,x"),
    ):
        assert words in refusal(fedcon, *wrong)


def test_each_seed_counts_at_its_own_end(fedcon, undrawn):
    """Seeds that come to a level at different times are not cut to the shortest of them."""
    level = ["--until", "residual=3.0", "--set", "FedFW.participation.sample=1"]
    command = ["compare", "small.toml", "--rounds", "60", "--seeds", "0,1,2,3", *level]
    out = ran(fedcon, *command, "--run-dir", "many")
    ends = [rows_of(f"many/fedfw/seed-{n}")[-1] for n in range(4)]
    rounds, residuals = ([row[name] for row in ends] for name in ("round", "residual"))
    assert len(set(rounds)) > 1
    words = " ".join(out[out.index("Algorithm") :].split())
    for shown in (f" {np.mean(residuals):.3g} ", spread(residuals), f"{np.mean(rounds):.4g} ",
                  f"{min(rounds):.4g} to {max(rounds):.4g}",
                  f" {sum(value <= 3.0 for value in residuals)} of 4 "):  # fmt: skip
        assert shown in words
    ran(fedcon, "plot", "many", "-o", "all.png")


@pytest.mark.parametrize("reference", ["true", "false"])
def test_until_relative_in_a_file(fedcon, undrawn, reference):
    """A run ends at the value that the closing table shows; a reference is found for it."""
    Path("until.toml").write_text(
        f"[problem]\nname = 'counterexample'\nreference = {reference}\n"
        "[run]\nrounds = 400\nuntil = {relative = 1e-2}\n"
        "[algorithm]\nname = 'FedFWPlus'\npenalty = 1.0\n"
    )
    out = ran(fedcon, "run", "until.toml", "--run-dir", "r")
    *_, before, last = with_relative(rows_of("r"))
    assert last["relative"] <= 1e-2 < before["relative"]
    titles, cells = (
        line.split() for line in out.splitlines() if " 1 of 1" in line or "Arrived" in line
    )
    assert f"{last['relative']:.3g}" in cells
    assert "Relative" in titles


def test_seeds_that_change_nothing_are_said(fedcon, undrawn):
    out = ran(fedcon, "compare", "small.toml", "--rounds", "2", "--seeds", "0,1")
    for label in ("FedFWPlus", "Mirror, 2 steps"):
        assert f"{label}: nothing depends on the seed, so its 2 runs count as one" in out
    assert "FedFW: nothing" not in out


def test_seeds_of_the_problem(fedcon, undrawn):
    command = ["compare", "small.toml", "--rounds", "3", "--set", "participation=full"]
    for whose, own in (("problem", 0), ("both", 4)):
        out = ran(fedcon, *command, "--seeds", f"{whose}:3,4", "--run-dir", whose)
        assert out.count("reference optimum") == 2
        assert "Relative" not in out  # to which F*?
        config = config_of(f"{whose}/fedfw/seed-4")
        assert (config["problem"]["seed"], config["run"]["seed"]) == (4, own)
        ends = [rows_of(f"{whose}/fedfw/seed-{n}")[-1] for n in (3, 4)]
        assert ends[0]["objective"] != ends[1]["objective"]
        assert f"{np.mean([row['residual'] for row in ends]):.3g}" in out
    assert "did you mean 'problem'" in refusal(fedcon, *command, "--seeds", "problems:1")
    text = Path("small.toml").read_text().replace('"lasso"\nclients = 4', '"heart"\nl1 = 0.1')
    Path("heart.toml").write_text(re.sub("(rows|columns|nonzeros) = .*\n", "", text))
    words = refusal(fedcon, "compare", "heart.toml", "--rounds", "1", "--seeds", "problem:0,1")
    assert "unknown key 'seed'" in words


def test_settings_of_all_algorithms_or_one(fedcon, undrawn):
    said = []

    def participation(*settings):
        options = [word for setting in settings for word in ("--set", setting)]
        said.append(ran(fedcon, "compare", "small.toml", "--rounds", "1", *options))
        folder = Path(said[-1].rpartition("directory: ")[2].strip())
        return [config_of(folder / part)["algorithm"]["participation"] for part in PARTS]

    one, two, three = ({"sample": n} for n in (1, 2, 3))
    assert participation() == [two, "full", "full"]
    assert participation("participation.sample=3") == [three] * 3
    for_one = participation("participation={sample=3}", "FedFWPlus.participation=full")
    assert for_one == [three, "full", three]
    assert participation("Mirror, 2 steps.participation.sample=1") == [two, "full", one]
    assert "alone" not in "".join(said)
    assert participation("algorithm.participation.sample=3") == [three, "full", "full"]
    assert "changes FedFW alone; --set participation.sample=3 changes all" in said[-1]
    for words in ("sample 3", "full"):  # who takes part stands in the table
        assert words in said[-1][said[-1].index("Participation") :]
    wrong = refusal(fedcon, "compare", "small.toml", "--set", "FedFWPlu.penalty=1")
    assert "unknown table 'FedFWPlu'" in wrong


def test_seeds_share_one_problem():
    first = Experiment.load(SIMS / "digits_l1.toml", ["rounds=1"])
    others = [first.seeded(seed) for seed in (1, 2)]
    assert [other.run_options.seed for other in others] == [1, 2]
    assert others[0].problem() is others[1].problem() is first.problem()
    assert first.run_options.seed == 0
    with pytest.raises(ConfigError, match=r"\[run\]: seed"):
        first.seeded(-1)


# --- playing -------------------------------------------------------------------------------------


def test_a_run_that_cannot_be_stacked_says_so_once(fedcon, undrawn):
    text = Path("small.toml").read_text().replace("penalty = 5.0\n", "")
    Path("small.toml").write_text(text.replace("participation = {sample = 2}\n", ""))
    options = [word for setting in ("algorithm.name=FedProxAL", "penalty=1.0", "coupling=1.0",
               "algorithm.on_mismatch=warn") for word in ("--set", setting)]  # fmt: skip
    out = ran(fedcon, "run", "small.toml", "--rounds", "2", "--engine", "stacked", *options)
    (line,) = (line for line in out.splitlines() if "running on the local engine" in line)
    assert line.startswith("FedProxAL: ")


def test_jobs_in_processes_are_runs_in_this_one(tmp_path):
    experiment = Experiment.load(SIMS / "counterexample.toml", ["rounds=5"])
    jobs = [Job("a", experiment.to_toml(), i) for i in (0, 1)]
    jobs += [Job("b", experiment.to_toml(0), folder=tmp_path / "run")]
    expected = [play(experiment, i).rows for i in (0, 1, 0)]
    for workers in (2, 1):
        found = dict(play_jobs(jobs, workers=workers))
        for i, rows in enumerate(expected):
            assert without_seconds(found[i].rows) == without_seconds(rows)
        assert found[0].optimum == experiment.problem().optimum.value
        assert [found[i].found for i in range(3)] == [False, False, workers == 1]


def test_what_a_strategy_says_of_its_settings_is_shown(fedcon, caplog):
    problem = '[problem]\nname = "digits"\nl2 = 0.1\ntest_size = 1500\nreference = false\n'
    dual = '[algorithm]\nname = "DualFL"\nmomentum = 0.9\n'
    Path("dual.toml").write_text(f"{problem}[run]\nrounds = 1\n{dual}")
    ran(fedcon, "run", "dual.toml")
    (said,) = (r.message for r in caplog.records if r.levelname == "WARNING")
    assert said.startswith("DualFL's momentum 0.9 is above nu/L = 0.0")


AUTO = '[problem]\nname = "l1_logistic"\nclients = 4\nrows = 20\ncolumns = 30\n[run]\nrounds = 90\n'


def automatic(run_command, folder, own="", *options):
    """Run a file with these lines on its algorithm; what is printed."""
    Path("auto.toml").write_text(AUTO + own)
    code, out, error = run_command("run", "auto.toml", "--run-dir", folder, *options)
    assert code == 0, error
    return out


def test_a_file_without_an_algorithm_lets_those_that_fit_race(fedcon, undrawn):
    automatic(fedcon, "one", "", "--rounds", "40")
    more = ["--run-dir", "one", "--resume", "--rounds", "90"]
    code, out, error = fedcon("run", "one/config.toml", *more)
    assert (code, "chosen:" in out) == (0, True), error
    automatic(fedcon, "two", '[algorithm]\nname = "auto"\nparticipation = "full"\n')
    one, two = (Path(name, "model.npz").read_bytes() for name in ("one", "two"))
    assert one == two
    assert rows_of("two")[-1]["residual"] < 1e-9


def test_auto_stands_in_files_where_a_rule_does(fedcon, undrawn):
    own = '[algorithm]\nname = "FedDR"\n'
    automatic(fedcon, "one", f'{own}step_size = "auto"\n')
    assert config_of("one")["algorithm"]["step_size"] == "auto"
    Path("auto.toml").write_text(f'{AUTO}{own}relaxation = "auto"\n')
    words = refusal(fedcon, "run", "auto.toml", "--run-dir", "two")
    assert "relaxation must be a number, got 'auto'" in words


def test_a_run_tells_who_was_in_its_race_and_who_was_not_tried(fedcon, undrawn):
    own = '[algorithm]\nname = "FedMiD"\nclient_lr = "auto"\n'
    out = automatic(fedcon, "one", own, "--rounds", "20")
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("client_lr=")]
    assert [row[1:] for row in rows if row[1] == "0"] == [["0", "not", "tried"]]
    reached = [float(row[2]) for row in rows if row[1] != "0"]
    assert len(reached) == len(rows) - 1 > 2
    assert 0 < min(reached) <= max(reached) < 1
