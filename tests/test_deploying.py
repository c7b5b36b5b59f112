"""The pages whose commands start nodes: an app on one machine, with TLS, and four tables."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.common.config import parse_config_args
from harness import refusal
from pages import blocks
from pasting import Pasted, consecutive_ports, stop
from processes import SCRIPTS, free_ports, wait_until

from flower_fedcon import Policy, Sample, server_app, simulate
from flower_fedcon.cli.commands import deploy_command
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower import deployment
from flower_fedcon.flower.deployment import LocalDeployment, family_of
from flower_fedcon.problems import files, tables
from flower_fedcon.strategies import FedFW, FedNewton

LISTING = '[tool.flwr.app.config]\nseed = 0\nrun-dir = ""\n'
APP, DEPLOYMENT, TABLES = "docs/flower_app.md", "docs/deployment.md", "docs/tables.md"


def test_a_node_s_file_sets_its_policy(tmp_path):
    """As `flower-supernode --node-config` reads it."""
    (tmp_path / "node.toml").write_text(blocks("toml", "docs/policy.md")[0])
    config = parse_config_args([str(tmp_path / "node.toml")])
    policy = Policy.of(config)
    assert (policy.algorithms, policy.batches) == (("fedavg", "scaffold"), "private")
    assert (policy.min_rows, policy.min_batch_size, policy.keep_days) == (100, 32, 7)
    assert (policy.max_local_steps, policy.max_seconds) == (50, Policy().max_seconds)


@pytest.mark.nightly
@pytest.mark.deployment
def test_four_files_on_four_nodes(clone):
    """By the page's command, three rounds of it: the numbers of this process, bit for bit."""
    home, deployed = clone / "home", clone / "runs" / "app-deployed"
    script = re.split(r"\n(?=fedcon)", blocks("bash", TABLES)[1])[2]
    rounds = 'num-server-rounds=3 evaluate-every=3"'
    script = script.rstrip().removesuffix('"') + " " + rounds
    try:
        pasted = Pasted(script, clone, home)
        assert pasted.status(600) == 0, pasted.log()
    finally:
        stop([home, deployed])
    problem = tables(data="examples/heart/*.csv", schema="examples/heart/app/schema.toml", l1=0.02)
    strategy = FedNewton(problem.regularizer)
    simulate(strategy, problem, 3, certificates=True, run_dir=clone / "here")
    for name in ("coefficients.csv", "report.txt"):
        there = clone / "runs" / "heart-deployed" / name
        assert there.read_bytes() == (clone / "here" / name).read_bytes()
    assert "test_auc: cleveland" in pasted.log()


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_study_on_four_nodes(tmp_path):
    """The page's app on four nodes, by the page's command: the files of the run in one process."""
    study = "docs/study.md"
    for block in [*blocks("python", study)[:1], *blocks("toml", study)]:
        (tmp_path / re.match(r"# (\S+)\n", block).group(1)).write_text(block)
    home, deployed = tmp_path / "home", tmp_path / "runs" / "readmission-deployed"
    run = "fedcon run study.toml --run-dir runs/readmission"
    make = f"{sys.executable} make_sites.py"
    try:
        pasted = Pasted(f"{make}\n{run}\n{blocks('bash', study)[2]}", tmp_path, home)
        assert pasted.status(900) == 0, pasted.log()
    finally:
        stop([home, deployed])
    for name in ("report.txt", "model.json", "heterogeneity.csv"):
        there = (tmp_path / "runs" / "nodes" / name).read_bytes()
        assert there == (tmp_path / "runs" / "readmission" / name).read_bytes(), name


def test_the_app_lists_the_keys_that_a_deployment_needs():
    """Flower refuses any other in --run-config."""
    listed = tomllib.loads(blocks("toml", APP)[0])["tool"]["flwr"]["app"]["config"].keys()
    for script in blocks("bash", DEPLOYMENT):
        (config,) = re.findall(r'--run-config "(.*)"$', script, re.MULTILINE)
        named = set(re.findall(r"([a-z-]+)=", config))
        assert {"num-server-rounds", "resume", "run-dir"} <= named <= listed
    known = set(re.findall(r'"([a-z-]+)"', server_app.__doc__))
    assert listed <= known | {"timeout"}


def write_app(folder):
    """Write the pages' app, and make its nodes' data as it says."""
    (folder / "app").mkdir()
    (data,) = blocks("python", DEPLOYMENT)
    for block in [*blocks("python", APP), blocks("toml", APP)[0]]:
        (folder / "app" / re.match(r"# (\S+)\n", block).group(1)).write_text(block)
    subprocess.run([sys.executable, "-c", data], cwd=folder, check=True)


def check_run(folder, rounds):
    """Compare what a deployment of the page's app left with a run in this process."""
    problem = files(data=[str(folder / f"client-{i}.npz") for i in range(3)], l1_radius=5.0)
    strategy = FedFW(problem.constraint, participation=Sample(count=2))
    with np.load(folder / "run" / "model.npz") as model:
        assert model["x"].tobytes() == simulate(strategy, problem, rounds).x.tobytes()


@pytest.mark.nightly
@pytest.mark.deployment
def test_app_and_deployment(tmp_path):
    """The page's app by the page's command; ended by Ctrl-C, and the same command again."""
    write_app(tmp_path)
    home, deployed = tmp_path / "home", tmp_path / "runs" / "app-deployed"
    script, _ = blocks("bash", DEPLOYMENT)
    script = script.replace("resume=true", "resume=true checkpoint-every=1")  # not ten seconds
    try:
        first = Pasted(script, tmp_path, home)
        assert wait_until(lambda: "[ROUND 2/5]" in first.log(), 180), first.log()
        with pytest.raises(ConfigError, match=r"a deployment already runs in"):
            LocalDeployment(deployed, 3).__enter__()
        os.killpg(first.process.pid, signal.SIGINT)
        assert first.status(60) != 0
        assert not family_of(deployed)
        second = Pasted(script, tmp_path, home)
        assert second.status() == 0, second.log()
        assert "[ROUND 1/5]" not in second.log()
        assert not family_of(deployed)
    finally:
        stop([home, deployed])
    check_run(tmp_path, 5)


@pytest.mark.nightly
@pytest.mark.deployment
def test_tls_and_keys_pasted_twice(tmp_path):
    """The deployment page's commands, ports apart."""
    write_app(tmp_path)
    home = tmp_path / "home"
    _, script = blocks("bash", DEPLOYMENT)
    assert script.count("9093") == 5
    script = script.replace("9093", str(free_ports(1)[0]))
    script = script.replace("9100", str(consecutive_ports(3)))
    try:
        for _ in range(2):
            pasted = Pasted(script, tmp_path, home)
            assert pasted.status() == 0, pasted.log()
        for i in range(3):  # started once
            assert (tmp_path / f"node-{i}.log").read_text().count("Starting Flower SuperNode") == 1
        for pid in family_of(tmp_path / "node-0"):  # its key is refused for a minute
            os.kill(pid, signal.SIGKILL)
        again = Pasted(script.replace("num-server-rounds=3", "num-server-rounds=5"), tmp_path, home)
        assert again.status() == 0, again.log()
        assert "[code: 2004]" in (tmp_path / "node-0.log").read_text()
    finally:
        stop([home, tmp_path / "flwr", *(tmp_path / f"node-{i}" for i in range(3))])
    check_run(tmp_path, 5)


def test_the_unit_states_options_that_there_are(tmp_path):
    (unit,) = blocks("ini", DEPLOYMENT)
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(unit)
    service = parser["Service"]
    assert (service["Restart"], service["KillMode"]) == ("always", "control-group")
    assert of_a_node(service["ExecStart"])["state-dir"] == "/var/lib/flower/state"


def of_a_node(line):
    """Check a command's options; return a node's configuration, or None."""
    command, *options = shlex.split(line)
    words = [SCRIPTS / Path(command).name, *(options[:1] if command == "flwr" else ()), "--help"]
    shown = subprocess.run(
        words, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}
    ).stdout
    for option in [word for word in options if word.startswith("--")]:
        assert option in shown
    if "--node-config" in options:
        return parse_config_args([options[options.index("--node-config") + 1]])
    return None


def test_flower_s_own_commands_have_these_options():
    (lines,) = blocks("text", DEPLOYMENT)
    _, node, _ = map(of_a_node, lines.splitlines())
    assert node == {"partition-id": 0, "num-partitions": 3, "data": "client-0.npz"}
    config, _ = map(tomllib.loads, blocks("toml", DEPLOYMENT))
    assert config == {"superlink": {"nodes": {"address": "127.0.0.1:9093", "insecure": True}}}


@pytest.fixture
def app(tmp_path, monkeypatch):
    """An app in this folder; this process's signals stay as they are."""
    monkeypatch.setattr(deploy_command, "_ENDS", ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text(LISTING)
    return tmp_path / "app" / "pyproject.toml"


def test_the_run_s_folder_and_the_nodes_files_reach_flower(run_command, app, tmp_path, monkeypatch):
    """As run-dir of the run configuration, and data and name of each node's, from the root on."""
    seen = []

    class Fake:
        def __init__(self, *given, **_):
            seen.append(given)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, *given):
            seen.append(given)
            return True

    monkeypatch.setattr(deployment, "LocalDeployment", Fake)
    for name in ("north.csv", "south.csv"):
        (tmp_path / name).touch()
    files = ["--data", "north.csv", "--data", "south.csv"]
    run_command("deploy", "app", "--local", *files, "--run-dir", "runs/x", "--run-config", "seed=3")
    (_, nodes, configs), (folder, config) = seen
    assert (nodes, str(folder)) == (2, "app")
    assert parse_config_args([config]) == {"seed": 3, "run-dir": str(tmp_path / "runs" / "x")}
    for name, text in zip(("north", "south"), configs, strict=True):
        assert parse_config_args([text]) == {"data": str(tmp_path / f"{name}.csv"), "name": name}


def test_a_deployment_that_cannot_start_is_refused(run_command, tmp_path):
    assert "--local is missing" in refusal(run_command, "deploy", "app")
    assert "app is not a Flower app" in refusal(run_command, "deploy", "app", "--local")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").touch()
    assert "nodes must be" in refusal(run_command, "deploy", "app", "--local", "--nodes", "0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--run-config", "sead=3 run-dir='x'"], "lists no key 'sead' .*: did you mean 'seed'"),
        (["--run-config", "own.toml"], "no key 'a.b'"),
        (["--run-dir", "runs/x", "--run-config", "a.b=1"], "no key 'a.b'"),
    ],
)
def test_a_key_that_the_app_does_not_list_is_named_before_nodes_start(
    run_command, app, monkeypatch, options, said
):
    monkeypatch.setattr(deployment.LocalDeployment, "_start", lambda _: pytest.fail("started"))
    Path("own.toml").write_text("seed = 1\n[a]\nb = 2\n")
    assert re.search(said, refusal(run_command, "deploy", "app", "--local", *options))
    app.write_text("[project]\n")
    unlisted = refusal(run_command, "deploy", "app", "--local", "--run-dir", "runs/x")
    assert "--run-dir: app/pyproject.toml lists no key 'run-dir'" in unlisted


STUDY = {
    "north.csv": "dose,ill\n1.5,yes\n2,no\n",
    "south.csv": "dose,ill\n1.5,yes\nhigh,no\n",
    "schema.toml": 'target = "ill"\npositive = ["yes"]\n[features]\ndose = "numeric"\n',
    "study.toml": '[problem]\nname = "tables"\ndata = "*.csv"\nschema = "schema.toml"\n'
    'inference = "model"\nheterogeneity = true\n[run]\nrounds = 3\n',
}


def test_what_a_deployment_would_end_at_is_said_before_it_starts(
    run_command, tmp_path, monkeypatch, capsys
):
    """A folder with a run, a misfit, a policy that is none; and what nodes will refuse."""
    monkeypatch.setattr(deploy_command, "_ENDS", ())
    monkeypatch.setattr(deployment, "LocalDeployment", None)  # what starts one fails
    for name, text in STUDY.items():
        (tmp_path / name).write_text(text)
    assert "--run-dir runs/study-nodes" in run_command("new", "study", "--study", "study.toml")[1]
    both = ("deploy", "study", "--local", "--data", "north.csv", "--data", "south.csv")
    assert "south.csv: row 2, column 'dose': found 'high'" in refusal(run_command, *both)
    one = (*both[:5], "--node-config")
    text = refusal(run_command, *one, 'policy.phases="train,alones"')
    assert "policy.phases must be one of" in text
    assert "'alones'" in text
    assert "no list of pairs" in refusal(run_command, *one, "seed=three")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.csv").touch()
    said = refusal(run_command, *one, "", "--run-dir", "run")
    assert "run holds a run already: choose another --run-dir" in said
    within = f'run-dir="{tmp_path / "run"}"'
    assert "holds a run already" in refusal(run_command, *one, "", "--run-config", within)
    for more, named in (("", "alone and certify"), ('policy.phases="train,certify"', "alone")):
        with pytest.raises(TypeError, match="not callable"):
            run_command(*one, more, "--run-dir", "run", "--run-config", "resume=true")
        assert f"nodes will refuse {named}, which" in capsys.readouterr().out


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Where Flower's programs are looked for; put some there by name."""
    places = {"beside": tmp_path / "beside", "on PATH": tmp_path / "elsewhere"}
    monkeypatch.setattr(deployment.sysconfig, "get_path", lambda _: str(places["beside"]))
    monkeypatch.setenv("PATH", str(places["on PATH"]))

    def put(place, *names):
        for name in names:
            path = places[place] / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        return places[place]

    return put


def test_flower_s_programs_are_found_beside_python_or_on_path(programs):
    """Beside it first: there they are of the same environment."""
    for place in ("on PATH", "beside"):
        there = programs(place, "flwr") / "flwr"
        assert deployment.program("flwr") == str(there)


def test_a_program_that_is_nowhere_is_named_with_both_places(run_command, app, programs):
    """Before anything is started or written."""
    elsewhere = programs("on PATH", "flower-superlink")
    said = refusal(run_command, "deploy", "app", "--local")
    assert "there is no program flower-supernode beside this Python" in said
    assert f"in {programs('beside')}, nor on PATH, {elsewhere}: install Flower" in said
    assert not Path("runs").exists()
