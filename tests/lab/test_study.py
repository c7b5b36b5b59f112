"""Studies: all combinations of some settings, over seeds and processes."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from left import config_of, rows_of
from pages import blocks

from flower_fedcon import Cyclic, Estimated, Full, Sample, read_runs
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.folders import label_slug
from flower_fedcon.lab.experiments.histories import panels_of
from flower_fedcon.lab.experiments.runner import in_processes
from flower_fedcon.lab.experiments.study import runs_of
from flower_fedcon.runs.toml import write_value

SWEEP = '[sweep]\nparticipation = [{sample = 2}, "full"]\nlocal_steps = [1, 3]\n'
TWO = SWEEP.partition("\n")[2]
SEEDS = '"problem.seed" = [0, 1]\nrun.seed = [0, 5]\n'
PLAY = ["compare", "study.toml", "--workers", "1", "--run-dir", "s"]


def written(more=SWEEP + SEEDS, rounds=6):
    text = Path("small.toml").read_text().replace("rounds = 20", f"rounds = {rounds}")
    Path("study.toml").write_text(text + more)
    return Path("study.toml")


def test_the_runs_of_a_study(fedcon):
    """A setting that a method does not take makes no further runs of it."""
    found = runs_of(Experiment.load(written()))
    labels = dict.fromkeys(run.label for run in found)
    frank_wolfe = [f"{n}, {rule}" for n in ("FedFW", "FedFWPlus") for rule in ("sample 2", "full")]
    mirror = [f"Mirror, 2 steps, {rule}, local_steps {steps}"
              for rule in ("sample 2", "full") for steps in (1, 3)]  # fmt: skip
    assert sorted(labels) == sorted([*frank_wolfe, *mirror])
    assert len(found) == 8 * 4
    assert {run.seed for run in found} == {"0-0", "0-5", "1-0", "1-5"}
    problems = [run.experiment.problem_arguments["seed"] for run in found]
    assert problems == sorted(problems)  # runs on one problem follow one another
    (one,) = [run.experiment for run in found if (run.label, run.seed) == (mirror[1], "1-5")]
    assert one.labels == [mirror[1]]
    assert (one.run_options.seed, one.strategy().local_steps) == (5, 3)
    assert one.who_takes_part() == {mirror[1]: "sample 2"}
    own = '[sweep]\n"FedFW.penalty" = [1.0, 2.0]\n"algorithm.participation" = ["full"]\n'
    first, *rest, last = (run.label for run in runs_of(Experiment.load(written(own))))
    assert (first, last) == ("FedFW, penalty 1.0, full", "FedFW, penalty 2.0, full")
    assert rest == ["FedFWPlus", "Mirror, 2 steps"]


def test_one_method_s_weights_are_estimated_under_every_rule(fedcon):
    """A rule that leaves open whom it is among goes around those of the sweep, or of --set."""
    open_rule = 'participation = {type = "Estimated", cutoff = 9}'
    study = Path("study.toml")
    study.write_text(
        '[problem]\nname = "quadratics"\n[run]\nrounds = 2\n'
        '[algorithm]\nname = "FedAvg"\nclient_lr = 0.01\n'
        f'[[compare]]\nname = "FedAvg"\nlabel = "FedAU"\nclient_lr = 0.01\n{open_rule}\n'
        '[sweep]\nparticipation = [{sample = 2}, {type = "Cyclic", groups = 2}, '
        '{type = "Estimated", cutoff = 7}]\n'
    )
    found = {run.label: run.experiment.participation() for run in runs_of(Experiment.load(study))}
    assert [*found.values()] == [
        Sample(count=2), Estimated(Sample(count=2), cutoff=9), Cyclic(groups=2),
        Estimated(Cyclic(groups=2), cutoff=9), Estimated(cutoff=7), Estimated(cutoff=7),
    ]  # fmt: skip
    assert [*found][:2] == ["FedAvg, sample 2", "FedAU, sample 2"]
    assert Experiment.load(study).participation(1) == Estimated(cutoff=9)
    one = Experiment.load(study, ["participation=full"])
    assert [one.participation(i) for i in (0, 1)] == [Full(), Estimated(Full(), cutoff=9)]


def test_the_seed_of_problem_and_run_in_one(fedcon, undrawn):
    found = runs_of(Experiment.load(written("[sweep]\nlocal_steps = [1, 3]\nboth.seed = [2, 7]\n")))
    assert len(found) == (1 + 1 + 2) * 2
    for run in found:
        seeds = run.experiment.problem_arguments["seed"], run.experiment.run_options.seed
        assert f"{seeds[0]}" == f"{seeds[1]}" == run.seed
    assert {run.seed for run in found} == {"2", "7"}
    problems = [run.experiment.problem_arguments["seed"] for run in found]
    assert problems == sorted(problems)  # runs on one problem follow one another
    ran(fedcon, "run", "small.toml", "--rounds=1", "--set", "both.seed=3", "--run-dir", "r")
    assert Path("r/config.toml").read_text().count("\nseed = 3\n") == 2


def test_a_study_is_played_once(fedcon):
    written(SWEEP + SEEDS.replace("[0, 5]", "[0]"), rounds=4)
    command = ["compare", "study.toml", "--run-dir", "s"]
    out = ran(fedcon, *command, "--workers", "2")
    assert "16/16: " in out
    assert "left" in out
    ends = [rows_of(f"s/fedfw-full/seed-{n}-0")[-1] for n in (0, 1)]
    words = " ".join(out.split())
    assert f"{np.mean([row['residual'] for row in ends]):.3g}" in words
    assert "sample 2" in words
    assert Path("s/figure.pdf").exists()
    assert config_of("s")["sweep"]["local_steps"] == [1, 3]
    assert "already holds a run" in refusal(fedcon, *command)

    first = Path("s/fedfwplus-sample-2/seed-1-0")
    before = (first / "history.csv").read_bytes()
    for name in ("result.json", "checkpoint", "history.csv"):
        (first / name).unlink()  # of a run that was killed before its first checkpoint
    out = ran(fedcon, *command, "--resume", "--workers", "1")
    assert out.count(", found") == 15
    rows = rows_of(first)
    assert [row["objective"] for row in rows] == [
        float(line.split(b",")[1]) for line in before.splitlines()[1:]
    ]
    ran(fedcon, "plot", "s", "-o", "p.png")
    figure = ["plot", "s", "-o", "f.pdf", "--width", "3.3"]
    for key in ("participation", "local_steps", "problem.seed"):
        ran(fedcon, *figure, "--panel", key)
    assert Path("f.pdf").read_bytes().count(b"/FontFile2") >= 1  # its letters are in the file
    assert "did you mean 'local_steps'" in refusal(fedcon, *figure, "--panel", "local_step")
    assert "--width must be" in refusal(fedcon, *figure[:-1], "-1")
    by = panels_of([Path("s")], "participation")
    assert by["FedFW, sample 2"] == ("sample 2", "FedFW")
    assert by["Mirror, 2 steps, full, local_steps 3"] == ("full", "Mirror, 2 steps, local_steps 3")
    assert panels_of([Path("s")], "local_steps")["FedFW, full"] == ("other", "FedFW, full")
    out = ran(fedcon, "table", "s", "--to", "residual=1e9")
    assert "Mirror, 2 steps, full, local_steps 3" in out


def test_a_study_says_once_what_is_mismatched(fedcon, undrawn):
    text = written('[sweep]\n"problem.seed" = [0, 1]\nlocal_steps = [1, 2]\n', rounds=1).read_text()
    own = '"Scaffold"\non_mismatch = "warn"\nclient_lr = 1e-4\nlocal_steps = 1\n[sweep]'
    Path("study.toml").write_text(re.sub('"FedFW".*?\\[sweep\\]', own, text, flags=re.DOTALL))
    out = ran(fedcon, *PLAY)
    assert out.count("Scaffold uses neither a constraint nor a regularizer, the problem has") == 1
    command = ["plot", "s", "-o", "a.png", "--x", "rounds", "--x", "bytes", "--log"]
    ran(fedcon, *command)
    assert "unknown axis 'byte'" in refusal(fedcon, *command, "--x", "byte")
    assert "did you mean 'bytes'" in refusal(fedcon, *command, "--x", "megabytes")


def test_a_cell_that_fails_says_why(fedcon, undrawn):
    other = '[[compare]]\nname = "FedAvg"\nclient_lr = 1.0\nlocal_steps = 2\non_mismatch = "warn"\n'
    written(f'{other}[sweep]\n"FedAvg.client_lr" = [1e-3, 1e3]\n', rounds=200)
    code, out, error = fedcon(*PLAY)
    assert (code, error) == (1, "")
    assert "FedAvg, client_lr 1000.0: failed: " in out
    assert "diverges" in out
    table = out[out.index("Algorithm") :]
    for label in ("FedAvg, client_lr 0.001", "FedFWPlus", "Mirror, 2 steps"):
        assert label in table
    assert any("FedAvg, client_lr 1000" in line and "failed: " in line
               for line in table.partition("figure:")[0].splitlines())  # fmt: skip
    out = ran(fedcon, "table", "s", "--to", "residual=1e9", "-o", "t.csv", "-o", "t.tex")
    assert "failed:" in out
    (line,) = [line for line in Path("t.csv").read_text().splitlines() if ",0,0," in line]
    assert line.startswith('"FedAvg, client_lr 1000.0",')
    assert "diverges" in line
    assert "\\multicolumn{1}{l}{failed: " in Path("t.tex").read_text()


BROKEN = """
import os
import numpy as np
from flower_fedcon import FederatedProblem
from flower_fedcon.objectives import Quadratic

class Broken(Quadratic):
    def value(self, x):
        if os.path.exists("broken"):
            raise KeyError("age")
        return super().value(x)

def sites(*, seed: int = 0):
    kind = Broken if seed else Quadratic
    return FederatedProblem([kind(np.eye(1), np.array([b])) for b in (1.0, 3.0)])
"""


def test_an_error_of_one_s_own_code_is_a_line_and_the_others_go_on(fedcon, undrawn, monkeypatch):
    monkeypatch.syspath_prepend(".")
    Path("broken_sites.py").write_text(BROKEN)
    Path("broken").touch()
    Path("study.toml").write_text(
        "[problem]\nname = 'broken_sites:sites'\nreference = false\n[run]\nrounds = 2\n"
        "[algorithm]\nname = 'FedAvg'\nclient_lr = 0.1\nlocal_steps = 1\n"
        "[sweep]\nproblem.seed = [0, 1]\n"
    )
    code, out, error = fedcon(*PLAY)
    assert (code, error) == (1, "")
    (line,) = (line for line in out.splitlines() if line.startswith("FedAvg, seed 1: failed: "))
    said, _, remedy = line.partition("; ")
    assert "KeyError: 'age'" in said
    assert "(broken_sites.py, line 10, in value)" in said
    assert Path(remedy.split("`")[1].removeprefix("fedcon run ")).is_file()
    assert len(rows_of("s/fedavg/seed-0")) == 2
    Path("broken").unlink()
    assert "seed 0: " in ran(fedcon, *PLAY, "--resume")
    assert len(rows_of("s/fedavg/seed-1")) == 2


def test_a_process_that_dies_is_an_error_of_one_line():
    with pytest.raises(FedConError, match=r"a worker process ended unexpectedly.*fewer --workers"):
        list(in_processes(os._exit, [(3,), (3,)], workers=2))


def test_names_of_values(fedcon, undrawn):
    """They stand in labels, and in the panels of a figure."""
    names = 'names.participation = ["two", "all"]\nnames.local_steps = ["one step", "three"]\n'
    study = written(f"{SWEEP}{names}", rounds=1)
    found = list(dict.fromkeys(run.label for run in runs_of(Experiment.load(study))))
    assert "Mirror, 2 steps, two, one step" in found
    assert "FedFW, all" in found
    assert "Mirror, 2 steps, all, three" in ran(fedcon, *PLAY)
    panels = panels_of([Path("s")], "participation")
    assert {panel for panel, _ in panels.values()} == {"two", "all"}
    assert panels["Mirror, 2 steps, all, three"] == ("all", "Mirror, 2 steps, three")


def with_grid(more):
    """Write a study whose first algorithm has a grid."""
    written(more)
    grid = "penalty = 0.05\ngrid = {penalty = [0.005, 0.05, 0.5]}\n"
    text = Path("study.toml").read_text()
    Path("study.toml").write_text(text.replace("penalty = 5.0\n", grid))


def test_cells_are_tuned(fedcon, undrawn):
    with_grid(
        '[tuning]\nrounds = 4\n[sweep]\ntune = true\nparticipation = [{sample = 1}, "full"]\n'
    )
    out = ran(fedcon, *PLAY)
    for slug in ("fedfw-sample-1", "fedfw-full"):
        tried = {
            name: rows_of(f"s/tuning/{slug}/penalty={name}")[-1]["residual"]
            for name in ("0.005", "0.05", "0.5")
        }
        chosen = config_of(f"s/{slug}")["algorithm"]["penalty"]
        assert f"{chosen:g}" == min(tried, key=lambda name: tried[name])
        assert len(rows_of(f"s/{slug}")) == 6
    assert not Path("s/tuning/fedfwplus-full").exists()
    cells = json.loads(Path("s/cells.json").read_text())
    assert cells[0] == "FedFW, sample 1"  # as in the file, and not by the alphabet
    assert list(panels_of([Path("s")], "participation")) == cells
    shutil.rmtree("s/fedfw-full")
    again = ran(fedcon, *PLAY, "--resume")
    found = again.partition("\n1/6: ")[2].partition("FedFW, full: F")[0]
    assert (found.count(", found\n"), found.count(" left\n")) == (3, 0)  # of no run yet played
    assert "FedFW, full: tuning, cell 2 of 2" in out
    assert "FedFW, full: takes penalty=" in out
    frame = read_runs("s")  # the study's own runs, each once
    assert len(frame) == frame.groupby(["label", "seed", "round"]).ngroups == 6 * 6
    chosen = read_runs("s", settings=["penalty", "participation.sample"])
    own = chosen[chosen["label"] == "FedFW, full"]
    config = config_of("s/fedfw-full")
    assert own["penalty"].unique() == [config["algorithm"]["penalty"]]
    assert own["participation.sample"].isna().all()
    assert set(chosen["participation.sample"].dropna()) == {1}
    with pytest.raises(ConfigError, match="no run has the setting 'penlty'"):
        read_runs("s", settings=["penlty"])
    with pytest.raises(ConfigError, match="must be a list of keys"):
        read_runs("s", settings="penalty")
    assert len(read_runs("s/tuning")) == 2 * 3 * 4
    assert len(read_runs("s/tuning/fedfw-full")) == 3 * 4


def test_a_tuned_study_is_repeated_from_its_folder(fedcon, undrawn):
    """Its file keeps the grids and what is best, so that the same settings are chosen."""
    with_grid("[tuning]\nrounds = 4\nlargest = true\n[sweep]\ntune = true\nrun.seed = [0, 1]\n")
    first = ran(fedcon, *PLAY)
    kept = config_of("s")
    assert kept["algorithm"]["grid"] == {"penalty": [0.005, 0.05, 0.5]}
    assert kept["tuning"] == {"rounds": 4, "largest": True}
    assert "grid" not in kept["compare"][0]
    again = ran(fedcon, "compare", "s/config.toml", "--workers", "1", "--run-dir", "other")
    (takes,) = re.findall("FedFW: takes penalty=.*", first)
    assert takes in again
    assert Path("other/config.toml").read_text() == Path("s/config.toml").read_text()
    for home in ("fedfw/seed-0", "fedfwplus/seed-1"):
        assert config_of(f"s/{home}") == config_of(f"other/{home}")
        assert "grid" not in config_of(f"s/{home}")["algorithm"]
        first, again = (rows_of(f"{folder}/{home}") for folder in ("s", "other"))
        assert [row["residual"] for row in first] == [row["residual"] for row in again]


def test_nothing_to_tune_is_refused(fedcon):
    written(f"{SWEEP}tune = true\n")
    words = "study.toml: [sweep] has tune = true, but no algorithm has a grid to choose from"
    assert words in refusal(fedcon, *PLAY)
    assert not Path("s").exists()


def test_a_swept_setting_is_not_tuned(fedcon, undrawn):
    """A cell is called by the value that it plays, whatever grid the file has for that key."""
    with_grid('[sweep]\ntune = true\n"FedFW.penalty" = [0.05, 0.7]\nrun.seed = [0, 1]\n')
    assert "tuning" not in ran(fedcon, *PLAY)
    for value in (0.05, 0.7):
        folder = f"s/fedfw-penalty-{value}/seed-1".replace(".", "-")
        assert config_of(folder)["algorithm"]["penalty"] == value


def test_a_cell_that_cannot_be_tuned_says_why(fedcon, undrawn):
    with_grid('[sweep]\ntune = true\nlocal_steps = [1, 2]\n"FedFW.min_replies" = [99]\n')
    code, out, error = fedcon(*PLAY)
    assert (code, error) == (1, "")
    words = "failed: every run failed; the first: min_replies must be at most 4"
    assert f"FedFW, min_replies 99: {words}" in out
    table = out[out.index("Algorithm") :]
    assert "Mirror, 2 steps, local_steps 1" in table
    assert "FedFW, min_replies 99" in table.partition("figure:")[0]
    assert not Path("s/fedfw-min-replies-99").exists()


def test_a_number_for_each_client_is_a_setting_like_others(fedcon, undrawn):
    rules = [{"type": "Markov", "stay": 0.5, "back": list(back)}
             for back in ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1))]  # fmt: skip
    written(f"[sweep]\nparticipation = {write_value(rules)}\n", rounds=2)
    ran(fedcon, *PLAY)
    by = panels_of([Path("s")], "participation")
    assert {name for _, name in by.values()} == {"FedFW", "FedFWPlus", "Mirror, 2 steps"}
    assert len({panel for panel, _ in by.values()}) == 2
    names = [f"FedFW, Weighted weights {[n / 1000 for n in range(200)] + [end]}" for end in (1, 2)]
    slugs = [label_slug(name, names) for name in names]
    for slug in slugs:
        Path(slug).mkdir()  # different ones, that a file system takes


def test_the_page_s_block(fedcon):
    (block,) = (text for text in blocks("toml", "docs/experiments.md") if "[sweep]" in text)
    found = runs_of(Experiment.load(written(block)))
    assert len({run.label for run in found}) == 2 * 3 + 3 * 2
    assert {run.seed for run in found} == {f"{p}-{r}" for p in (0, 1) for r in (0, 1, 2)}


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("participation = 3", "participation must be a list of values"),
        ("local_steps = []", "local_steps must be a list of values"),
        ("local_steps = [1, 1]", "local_steps must have different values"),
        ("local_step = [1, 2]", "unknown key 'local_step'"),
        ("local_steps = [0]", "local_steps must be"),
        ("run.seed = [-1]", "seed must be"),
        ("participation = [{smple = 2}]", "did you mean 'sample'"),
        ("both.seed = [0, 1]\nrun.seed = [2]", "also sets run.seed: write only both.seed"),
        ("both.seeds = [0, 1]", "unknown table 'both'"),
        (f'{TWO}names.participation = ["two"]', "names.participation must be 2 texts"),
        (f"{TWO}names.local_steps = [1, 2]", "names.local_steps must be 2 texts"),
        (f'{TWO}names.client_lr = ["a"]', "names.client_lr names no key of [sweep]"),
    ],
)
def test_refusals(fedcon, sweep, words):
    written(f"[sweep]\n{sweep}\n")
    assert words in refusal(fedcon, "compare", "study.toml")


def test_options_that_are_of_single_runs(fedcon):
    written()
    assert "has its seeds in its file" in refusal(fedcon, "compare", "study.toml", "--seeds", "0,1")
    words = refusal(fedcon, "compare", "study.toml", "--log-json", "a.json")
    assert "--log-json is for single runs" in words
    with pytest.raises(ConfigError, match="unknown key"):
        Experiment.load("study.toml", ["sweeps=1"])
