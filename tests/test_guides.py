"""The pages in docs/ whose blocks run in this process, and what else these pages promise.

`test_deploying.py` has those that start nodes.
"""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from dataclasses import fields
from glob import glob
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from flwr.serverapp.strategy import Strategy
from pages import ROOT, blocks, files
from pasting import bash
from typer.testing import CliRunner

import flower_fedcon
from flower_fedcon import (
    Buffered,
    Patience,
    Plan,
    aggregation,
    optimizers,
    privacy,
    simulate,
    strategies,
)
from flower_fedcon.cli.command import app as fedcon
from flower_fedcon.registry import GROUP
from flower_fedcon.runs.history import History
from flower_fedcon.runs.toml import argument
from flower_fedcon.strategies import FedAvg
from flower_fedcon.validation import parameters


def page(name):
    return f"docs/{name}.md"


def run_page(name):
    """Run a page's Python blocks, each after the other; return the names after each."""
    names: dict = {}
    after = []
    for block in blocks("python", page(name)):
        exec(compile(block, page(name), "exec"), names)
        after.append(dict(names))
    return after


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def folder(empty):
    """A working directory that looks like the clone."""
    return shutil.copytree(ROOT / "sims", empty / "sims").parent


def write(texts):
    for name, text in texts.items():
        Path(name).write_text(text)


def played(block):
    """Run a block of commands here; those of `fedcon` and Python in this process."""
    told = ""
    for line in block.replace("\\\n", "").splitlines():
        kind, *arguments = chain(*(sorted(glob(word)) or [word] for word in shlex.split(line)))
        if kind == "fedcon":
            done = CliRunner().invoke(fedcon, arguments)
            assert done.exit_code == 0, (line, done.output, done.exception)
            told += done.output
        elif kind == "python":
            runpy.run_path(arguments[0])
        else:
            bash(line, Path.cwd())
    return told


# --- first steps ----------------------------------------------------------------------------------


def test_the_install_is_the_readme_s():
    create, install = blocks("bash", page("start"))[0].splitlines()
    first = blocks("bash")[0]
    assert first.startswith(create)
    assert first.split("&&")[1].strip() == install.replace('"flower-fedcon[cli]"', '-e ".[dev]"')


@pytest.mark.usefixtures("empty")
def test_start():
    after = run_page("start")
    residuals = [names["history"]["residual"][-1] for names in after]
    averaging, corrected, sampled, vertices, stacked, own = residuals
    assert 0 < corrected < averaging / 2 < 0.05
    assert corrected < sampled < averaging
    assert 0 < vertices < 10  # of 549 at the start
    assert stacked == pytest.approx(vertices, rel=1e-6)
    assert 0 < own < 1e-2
    sent = [names["history"]["uplink_bytes"][-1] for names in after]
    assert sent[2] < 0.35 * sent[1]
    assert sent[3] == 1000 * 10 * 136


def test_participation():
    names, weighed = run_page("participation")
    assert 0 < names["history"]["residual"][-1] < 0.05 * names["history"]["residual"][0]
    assert weighed["strategy"].participation.cutoff == 50


def test_rounds_without_waiting(capsys):
    """Both blocks give one strategy; the printed residual is that of rounding."""
    run_page("asynchronous")
    assert float(capsys.readouterr().out.split()[3]) < 1e-9
    (block,) = blocks("toml", page("asynchronous"))
    method = tomllib.loads(block)["algorithm"]
    assert argument("participation", method["participation"]) == Buffered(buffer=2, concurrency=4)


def test_a_prox_and_a_projection(capsys):
    run_page("mathematics")
    assert capsys.readouterr().out == "[1.5 0. ]\n[1. 0.]\n"


def test_estimators(capsys):
    run_page("estimators")
    printed = capsys.readouterr().out
    assert 3 < len(re.search(r"selected \[([^]]+)", printed).group(1).split()) < 20
    assert "CrossValidation(5 folds, 25 weights: " in printed
    assert "{'alpha': 0.01} clients [0 1 2 3]" in printed
    assert "of 10 columns in at least 75% of 20 half samples, of 2 in each" in printed


def test_survival(capsys):
    after = run_page("survival")[-1]
    printed = capsys.readouterr().out
    assert printed.count("KaplanMeier(") == 2
    assert "chi2" in printed
    assert after["model"].concordance_ > 0.6
    assert after["test"].pvalue < 0.01
    hazards = after["model"].coef_  # a row's mean time is exp(0.7 treated - 0.04 age)
    assert np.abs(hazards - [-0.7, 0.04]).max() < 0.2


@pytest.mark.usefixtures("empty")
def test_resume():
    after = run_page("resume")[-1]
    history, rounds = after["history"], after["history"]["round"]
    assert list(rounds[-30:]) == list(range(11, 41))  # the race before has fewer rows than rounds
    alone = simulate(after["strategy"], after["problem"], num_rounds=40)
    assert history.x.tobytes() == alone.x.tobytes()
    assert list(alone["round"]) == list(rounds)


def test_faults(capsys):
    run_page("faults")
    mean, robust = (
        np.array(text.split(), dtype=float)
        for text in re.findall(r"\[(.*?)\]", capsys.readouterr().out)
    )
    assert np.abs(mean - 1).max() > 1e4
    assert np.abs(robust - 1).max() < 1e-6


def test_privacy(folder):
    history = run_page("privacy")[-1]["history"]
    assert history.stopped
    assert 3.5 < history["epsilon"][-1] <= 4.0
    line = blocks("toml", page("privacy"))[0]
    (folder / "mine.toml").write_text(PRIVATE + line)
    assert "epsilon 3." in played("fedcon run mine.toml")


PRIVATE = """
[problem]
name = "l1_logistic"
clients = 200
rows = 20
columns = 30

[run]
rounds = 40
engine = "stacked"

[algorithm]
name = "FedDualAvg"
client_lr = 0.3
local_steps = 5
"""


def test_bounds_on_everybody_s_loss(capsys):
    heart, groups, robust, shared, _ = run_page("fairness")
    first, second, third, last = blocks("text", page("fairness"))
    told = capsys.readouterr().out
    assert told.startswith(first)
    assert told.endswith(last)
    assert second in told
    assert third in told
    assert heart["problem"].constraint_values(heart["history"].x).max() <= 1e-3
    assert groups["problem"].constraint_values(groups["history"].x).max() <= 5e-3
    assert groups["history"]["objective"][-1] - groups["problem"].optimum.value < 0.01
    least = shared["shared"].least_violation
    assert shared["history"]["constraint"][-1] == pytest.approx(least, abs=1e-9)
    x = robust["history"].x
    worst = max(f.value(x) for f in robust["problem"].objectives)
    assert worst == pytest.approx(0.418, abs=1e-3)


def test_pytorch():
    pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
    names = run_page("pytorch")[-1]
    history = names["history"]
    values = np.linalg.svd(history.x[0], compute_uv=False)
    assert values.sum() < 3 + 1e-4
    assert (values > 1e-2).sum() == 3
    assert history["accuracy"][-1] > 0.9


def test_own_oracles(empty, monkeypatch):
    (empty / "contrasts.py").write_text(files(page("own_oracles"))["contrasts.py"])
    monkeypatch.syspath_prepend(empty)
    loss, regularized, _, constrained, _, app = run_page("own_oracles")
    monkeypatch.delitem(sys.modules, "contrasts")
    optimum = loss["problem"].optimum.value
    assert optimum - 1e-12 <= loss["history"]["objective"][-1] < optimum + 1e-9
    assert regularized["history"]["residual"][-1] < 1e-9
    assert (regularized["history"].x >= 0).all()
    assert constrained["history"]["residual"][-1] < 1e-9  # FedDR's, the last
    assert abs(constrained["history"].x.sum()) < 1e-12
    assert type(app["app"]).__name__ == "ClientApp"


# --- experiments ----------------------------------------------------------------------------------


def test_shell_block(folder):
    output = played(blocks("bash", page("experiments"))[0].replace("500", "20"))
    for name in ("FedDualAvg", "FedFW", "lambda_0"):
        assert name in output
    for made in ("runs/fedfw/history.csv", "runs/tight/figure.png", "fedfw.png"):
        assert (folder / made).stat().st_size > 0


def test_many_clients_in_one_array(empty):
    names = run_page("many_clients")[-1]
    residual = names["history"]["residual"]
    assert residual[-1] < 1e-7 < 1e-6 < residual[0]
    objectives = [names[problem].objective(np.ones(16)) for problem in ("problem", "on_disk")]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-13)
    (empty / "many.toml").write_text(blocks("toml", page("many_clients"))[0])
    smaller = "--set problem.clients=6000 --rounds 20"
    played(f"fedcon run many.toml {smaller} --run-dir run")
    last = History.read_rows(empty / "run" / "history.csv")[-1]
    assert last["error"] < 1.0  # from 2.8


def test_an_experiment_of_one_s_own(folder):
    (folder / "mine.toml").write_text(blocks("toml", page("experiments"))[0])
    output = played("fedcon compare mine.toml --rounds 5")
    assert "FedDualAvg" in output
    assert "CompositeFL" in output


def test_arrays_of_one_s_own_become_a_table_a_figure_and_citations(empty):
    (empty / "mydata.py").write_text(blocks("python", page("experiments"))[0])
    (empty / "paper.toml").write_text(blocks("toml", page("experiments"))[1])
    output = bash(blocks("bash", page("experiments"))[1], empty)
    assert "@inproceedings{yuan2021federated" in output
    assert (empty / "figure.pdf").is_file()
    table = (empty / "table.tex").read_text()
    reached = [line.count("pm") for line in table.splitlines() if line.startswith("Fed")]
    assert reached == [3, 3, 1]  # the last one does not reach the level in 100 rounds
    differences = (empty / "differences.tex").read_text()
    assert "Mean difference to FedMiD over the same seeds" in differences
    assert differences.count("$p ") == 2


def test_a_problem_of_one_s_own(folder):
    (folder / "my_sites.py").write_text(blocks("python", page("experiments"))[1])
    (folder / "sites.toml").write_text(blocks("toml", page("experiments"))[2])
    played("fedcon run sites.toml --run-dir run")
    last = History.read_rows(folder / "run" / "history.csv")[-1]
    assert last["constraint"] <= 1e-3
    assert 0 <= last["residual"] < 1e-2
    assert "bound" in played("fedcon info my_sites:sites")


# --- an algorithm of one's own --------------------------------------------------------------------


def test_an_algorithm_of_one_s_own(empty):
    """The page's three files; with Ray and on nodes one of its kind is in test_engines.py."""
    texts = files(page("own_algorithm"))
    assert list(texts) == ["momentum.py", "check.py", "study.py"]
    assert ', {"engine": "ray"}' in texts["study.py"]
    write({name: text.replace(', {"engine": "ray"}', "") for name, text in texts.items()})
    assert bash(f"{sys.executable} check.py", empty) == ""
    differences = re.findall(r"difference (\S+)", bash(f"{sys.executable} study.py", empty))
    assert len(differences) == 2
    assert max(map(float, differences)) < 1e-12


def test_the_entry_point_of_one_s_own():
    (block,) = blocks("toml", page("own_algorithm"))
    (points,) = tomllib.loads(block)["project"]["entry-points"].items()
    assert points == (GROUP, {"momentum": "my_package.momentum:PAIR"})


def test_a_composite_method_worked_out(empty):
    """The page's files; by Python, by the folder that leaves, and by the file by hand."""
    write(files(page("own_composite")))
    told = bash(f"{sys.executable} run_composite.py", empty)
    residual, free = re.search(r"F - F\* (\S+) free (\S+)", told).groups()
    assert abs(float(residual)) < 1e-12
    assert float(free) == 4
    played("fedcon run run/config.toml --run-dir again")
    played("fedcon run composite.toml --run-dir by_hand")
    ran, again, by_hand = (
        History.read_rows(empty / name / "history.csv") for name in ("run", "again", "by_hand")
    )
    objectives = [[row["objective"] for row in rows] for rows in (ran, again, by_hand)]
    assert objectives[0] == objectives[1] == objectives[2]
    assert [row["speed"] for row in by_hand] == [row["speed"] for row in ran]


def test_a_distance_of_one_s_own(empty):
    write(files(page("own_composite")))
    (residual,) = re.findall(r"F - F\* (\S+)", bash(f"{sys.executable} burg.py", empty))
    assert abs(float(residual)) < 1e-12


def test_methods_with_memory(empty):
    """The page's files: three places of a memory, one loop of NumPy, and the optimum."""
    write(files(page("own_memory")))
    assert bash(f"{sys.executable} check.py", empty) == ""
    told = bash(f"{sys.executable} study.py", empty)
    for words in (r"(\w+) difference (\S+)", r"(\w+) F - F\* (\S+)"):
        found = re.findall(words, told)
        assert [name for name, _ in found] == ["MIFA", "LastUpdates", "Sent", "Kept"]
        assert max(abs(float(number)) for _, number in found) < 1e-12


@pytest.mark.nightly
@pytest.mark.ray
def test_the_simulation_of_flower(capsys):
    run_page("ray")
    assert capsys.readouterr().out.strip().endswith("True")


# --- tables ---------------------------------------------------------------------------------------


def test_csv_files_become_a_model(tmp_path, monkeypatch, capsys):
    """The page's files, by the page's commands."""
    tables = page("tables")
    for block in [blocks("python", tables)[0], *blocks("toml", tables)[:2]]:
        (tmp_path / re.match(r"# (\S+)\n", block).group(1)).write_text(block)
    told = bash(blocks("bash", tables)[0].replace("python ", f"{sys.executable} "), tmp_path)
    assert "south.csv fits: 75 rows to train on, 25 held out" in told
    assert blocks("text", tables)[0] in told
    assert "predictions for 100 rows: run/predictions.csv" in told
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python", tables)[3], tables, "exec"), {})
    first, second = map(float, capsys.readouterr().out.strip("[] \n").split())
    assert first == pytest.approx(3, abs=0.2)  # 2 dose, and 1 where sex is m
    assert second == pytest.approx(1, abs=0.2)


def test_a_study_from_start_to_end(empty, capsys):
    """From four files to the paragraph, whose numbers are statsmodels' of the pooled rows."""
    study = page("study")
    write(files(study))
    fit, compare, nodes, predict = blocks("bash", study)
    told = played(fit)
    shown, compared, paragraph = blocks("text", study)
    assert "28 left out, without a value of crp 28" in told
    report = (empty / "runs" / "readmission" / "report.txt").read_text()
    assert without(shown.rstrip(), "KKT") == without(report.rstrip(), "KKT")
    assert played(compare).endswith(compared)
    assert "predictions for 45 rows" in played(predict)
    new, deploy, _ = nodes.replace("\\\n", "").splitlines()
    command = shlex.split(played(new).split("\n", 1)[1])
    phases = [words[words.index("--node-config") + 1] for words in (shlex.split(deploy), command)]
    listed = [{*own.split('"')[1].split(",")} for own in phases]
    assert listed[0] <= listed[1]  # what the command shows also lists the default's "query"
    capsys.readouterr()
    runpy.run_path("results.py")
    assert capsys.readouterr().out == paragraph
    found = pd.read_csv("runs/readmission/coefficients.csv", index_col="column")
    sites = {path.stem: pd.read_csv(path) for path in sorted(empty.glob("*.csv"))}
    rows = pd.concat(sites, names=["site"]).reset_index("site").dropna().reset_index(drop=True)
    X = pd.get_dummies(rows[["age", "crp"]].assign(
        male=rows["sex"] == "m", early=rows["treatment"] == "early",
        current=rows["smoking"] == "current", former=rows["smoking"] == "former",
    ).astype(float).join(pd.get_dummies(rows["site"]).astype(float)))  # fmt: skip
    known = sm.Logit(rows["readmitted"] == "yes", X).fit(disp=0, tol=1e-12, cov_type="HC0")
    factor = np.sqrt(len(X) / (len(X) - X.shape[1]))
    names = {"age": "age", "crp": "crp", "male": "sex=m", "early": "treatment=early",
             "current": "smoking=current", "former": "smoking=former"}  # fmt: skip
    for name, own in names.items():
        assert found.loc[own, "per_unit"] == pytest.approx(known.params[name], rel=1e-6)
        assert found.loc[own, "std_error"] == pytest.approx(factor * known.bse[name], rel=1e-6)


def without(report, start):
    return [line for line in report.splitlines() if not line.startswith(start)]


def test_four_files_become_a_model(clone, capsys):
    exec(compile(blocks("python", page("tables"))[2], page("tables"), "exec"), {})
    shown, printed = blocks("text", page("tables"))[1], capsys.readouterr().out
    assert without(shown, "KKT") == without(printed.rstrip(), "KKT")
    for text in (shown, printed):
        (kkt,) = re.findall(r"KKT residual: (\S+): converged ", text)
        assert float(kkt) < 1e-12


def test_four_files_from_the_shell(clone):
    """A file's owner checks it, and the study runs as an experiment."""
    check, run, _ = re.split(r"\n(?=fedcon)", blocks("bash", page("tables"))[1])
    told = played(f"{check}\n{run}")
    assert "examples/heart/va.csv fits: 150 rows to train on, 50 held out" in told
    (report,) = [(clone / "runs" / "heart" / "report.txt").read_text()]
    assert without(report, "KKT") == without(blocks("text", page("tables"))[1].rstrip(), "KKT")
    assert report in told


# --- what is said ------------------------------------------------------------------------------


def test_the_diff_is_the_example_s():
    assert blocks("diff", page("training_loops")) == [
        (ROOT / "examples" / "pytorch" / "scaffold.diff").read_text()
    ]


def test_a_strategy_in_place_of_flower_s():
    names, _ = run_page("coming_from_fedavg")
    assert isinstance(names["strategy"], Strategy)


def test_what_is_to_be_written_in_place_of_flower_s_arguments_is_there():
    """Every call in the tables names a function of this package, and arguments that it takes."""
    text = (ROOT / page("coming_from_fedavg")).read_text()
    words = re.findall(r"`([^`]+)`", text.rpartition("```")[2])  # below the block
    others = {"FedAdam", "FedTrimmedAvg", "FedMedian", "mine"}
    others |= {"DifferentialPrivacyServerSideFixedClipping", "record_result"}
    known = {
        name: getattr(module, name)
        for module in (flower_fedcon, strategies, privacy, optimizers, aggregation)
        for name in {*dir(module), *getattr(module, "__all__", ())}
    }
    starts = {field.name for kind in (Plan, Patience) for field in fields(kind)}
    starts |= {*inspect.signature(FedAvg.start).parameters}
    checked = 0
    for text in words:
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:  # a command, or the name of an argument alone
            continue
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
            if name in others or text.startswith("strategy."):
                continue
            checked += 1
            takes = starts if name == "start" else {*parameters(known[name])}
            assert {k.arg for k in call.keywords} <= takes, text
    assert checked > 15


def test_every_promise_names_its_tests():
    """A link's text is the test's name."""
    promises = (ROOT / page("promises")).read_text()
    links = re.findall(r"\[([^]]+)\]\(\.\./(tests/[^)]+)\)", promises)
    assert len(links) > 30
    for words, path in links:
        name = "test_" + words.replace(" ", "_")
        assert f"def {name}(" in (ROOT / path).read_text(), (name, path)


def test_links_exist():
    """Also those that the site does not follow: a page is read on a forge, too."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), (path, target)
