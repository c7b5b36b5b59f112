"""Every command and code block of the README does what it says.

Length: one page is tested as one, block by block.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.common.config import parse_config_args
from harness import refusal
from pages import ROOT, blocks
from processes import SCRIPTS, environment, free_ports, processes_of, wait_until

from flower_fedcon import Policy, Sample, __version__, server_app, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower.deployment import LocalDeployment, family_of
from flower_fedcon.problems import files, tables
from flower_fedcon.registry import markdown_table
from flower_fedcon.strategies import FedDR, FedFW

README = (ROOT / "README.md").read_text()
DEPLOYMENT = "docs/deployment.md"


def bash(script: str, folder: Path, **env: str) -> str:
    path = os.pathsep.join([str(SCRIPTS), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "120", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    """A folder that looks like the clone."""
    shutil.copytree(ROOT / "sims", tmp_path / "sims")
    return tmp_path


def test_the_diff_is_the_example_s():
    assert blocks("diff") == [(ROOT / "examples" / "pytorch" / "scaffold.diff").read_text()]


def test_first_command(folder):
    """The install is what continuous integration does; the rest runs here."""
    first = blocks("bash")[0]
    create, install, run = (part.strip() for part in first.split("&&"))
    assert create == "python3 -m venv .venv"
    assert install == '.venv/bin/pip install -e ".[dev]"'
    assert '-e ".[dev]"' in (ROOT / ".ci" / "run").read_text()
    output = bash(run.replace(".venv/bin/", ""), folder)
    shown = blocks("text")[0]
    for line in shown.splitlines():  # all but the seconds
        assert " ".join(line.split()[:-1]) in " ".join(output.split())
    assert (folder / "runs" / "digits_l1" / "figure.png").stat().st_size > 10_000


def test_second_command():
    assert blocks("bash")[1].strip() == ".venv/bin/pytest -n 2"
    assert '/bin/pytest" -n 2' in (ROOT / ".ci" / "run").read_text()


def test_python_blocks(capsys):
    """The second goes on where the first ends."""
    names: dict = {}
    exec(compile(blocks("python")[0], "README.md", "exec"), names)
    printed = capsys.readouterr().out
    residual = float(re.search(r"F - F\* (\S+) after", printed).group(1))
    assert 0 < residual < 1e-2
    exec(compile(blocks("python")[1], "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert 3 < len(re.search(r"selected \[([^]]+)", printed).group(1).split()) < 20
    assert "CrossValidation(5 folds, 25 weights: " in printed


def test_shell_block(folder):
    output = bash(blocks("bash")[2], folder)
    for name in ("FedDualAvg", "FedFW", "lambda_0"):
        assert name in output
    for made in ("runs/fedfw/history.csv", "runs/tight/figure.png", "fedfw.png"):
        assert (folder / made).stat().st_size > 0


def test_reproduce_tune_and_seeds(folder):
    """The commands that the README names, on their quickest experiment."""
    output = bash("fedcon reproduce counterexample digits_l1 --quick", folder)
    assert "pass" in output
    rounds = "--rounds 5 --run-dir"
    bash(f"fedcon tune sims/digits_l1.toml --grid client_lr=0.1,0.5 {rounds} tuned", folder)
    assert (folder / "tuned" / "feddualavg" / "best.toml").exists()
    bash(f"fedcon compare sims/digits_l1.toml --seeds 0,1 {rounds} seeds", folder)
    assert (folder / "seeds" / "figure.png").exists()


def test_algorithm_table():
    _, _, rest = README.partition("<!-- made by `fedcon list --markdown` -->\n")
    table = rest.partition("<!-- end -->")[0].strip()
    assert table == markdown_table(), "renew it: fedcon list --into README.md"


def test_links_and_figure_exist():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_citation_states_version_and_licence():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    assert "\nlicense: Apache-2.0\n" in citation


def test_the_workflow_runs_what_a_contributor_runs():
    assert "run: .ci/run\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    checks = (ROOT / ".ci" / "run").read_text()
    for line in ("ruff check .", "ruff format --check .", "mypy"):
        assert f'"$venv/bin/{line.split()[0]}"{line.removeprefix(line.split()[0])}\n' in checks
        assert f"$(BIN)/{line}\n" in (ROOT / "Makefile").read_text()


def consecutive_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for _ in range(50):
        (first,) = free_ports(1)
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for sock in sockets:
                sock.close()
    pytest.skip("no consecutive free ports")


def test_a_node_s_file_sets_its_policy(tmp_path):
    """As `flower-supernode --node-config` reads it."""
    (tmp_path / "node.toml").write_text(blocks("toml")[1])
    config = parse_config_args([str(tmp_path / "node.toml")])
    policy = Policy.of(config)
    assert (policy.algorithms, policy.batches) == (("fedavg", "scaffold"), "private")
    assert (policy.min_rows, policy.min_batch_size, policy.keep_days) == (100, 32, 7)
    assert (policy.max_local_steps, policy.max_seconds) == (50, Policy().max_seconds)


# --- tables ---------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A working directory with the example's files."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without(report: str, start: str) -> list[str]:
    return [line for line in report.splitlines() if not line.startswith(start)]


def test_four_files_become_a_model(clone, capsys):
    exec(compile(blocks("python")[2], "README.md", "exec"), {})
    shown, printed = blocks("text")[1], capsys.readouterr().out
    assert without(shown, "KKT") == without(printed.rstrip(), "KKT")
    (kkt,) = re.findall(r"KKT residual: (\S+)", shown)
    assert float(kkt) < 1e-5


def test_four_files_from_the_shell(clone):
    """A file's owner checks it, and the study runs as an experiment."""
    check, run, _ = re.split(r"\n(?=fedcon)", blocks("bash")[3])
    told = bash(f"{check}\n{run}", clone)
    assert "examples/heart/va.csv fits: 150 rows to train on, 50 held out" in told
    (report,) = [(clone / "runs" / "heart" / "report.txt").read_text()]
    assert without(report, "KKT") == without(blocks("text")[1].rstrip(), "KKT")
    assert report in told


@pytest.mark.deployment
@pytest.mark.usefixtures("one_thread")
def test_four_files_on_four_nodes(clone):
    """By the README's command, three rounds of it: the numbers of this process, bit for bit."""
    home, deployed = clone / "home", clone / "runs" / "app-deployed"
    script = re.split(r"\n(?=fedcon)", blocks("bash")[3])[2]
    rounds = 'num-server-rounds=3 evaluate-every=3"'
    script = script.rstrip().removesuffix('"') + " " + rounds
    try:
        pasted = Pasted(script, clone, home)
        assert pasted.status(600) == 0, pasted.log()
    finally:
        stop([home, deployed])
    problem = tables(data="examples/heart/*.csv", schema="examples/heart/app/schema.toml", l1=0.02)
    strategy = FedDR(problem.regularizer, step_size=3.0)
    simulate(strategy, problem, 3, certificates=True, run_dir=clone / "here")
    for name in ("coefficients.csv", "report.txt"):
        there = clone / "runs" / "heart-deployed" / name
        assert there.read_bytes() == (clone / "here" / name).read_bytes()
    assert "test_auc: cleveland" in pasted.log()


def test_the_app_lists_the_keys_that_a_deployment_needs():
    """Flower refuses any other in --run-config."""
    listed = tomllib.loads(blocks("toml")[0])["tool"]["flwr"]["app"]["config"].keys()
    for script in (blocks("bash")[4], blocks("bash", DEPLOYMENT)[0]):
        (config,) = re.findall(r'--run-config "(.*)"$', script, re.MULTILINE)
        named = set(re.findall(r"([a-z-]+)=", config))
        assert {"num-server-rounds", "resume", "run-dir"} <= named <= listed
    known = set(re.findall(r'"([a-z-]+)"', server_app.__doc__))
    assert listed <= known | {"timeout"}


def write_app(folder: Path) -> None:
    """Write the README's app, and make its nodes' data as it says."""
    (folder / "app").mkdir()
    *_, data = pages = blocks("python")[3:]
    for block in [*pages[:-1], blocks("toml")[0]]:
        (folder / "app" / re.match(r"# (\S+)\n", block).group(1)).write_text(block)
    subprocess.run([sys.executable, "-c", data], cwd=folder, check=True)


def check_run(folder: Path, rounds: int) -> None:
    """Compare what a deployment of the README's app left with a run in this process."""
    problem = files(data=[str(folder / f"client-{i}.npz") for i in range(3)], l1_radius=5.0)
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(count=2))
    with np.load(folder / "run" / "model.npz") as model:
        assert model["x"].tobytes() == simulate(strategy, problem, rounds).x.tobytes()


class Pasted:
    """A block that was pasted into a shell."""

    def __init__(self, script: str, folder: Path, home: Path) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                ["bash", "-euc", script],
                cwd=folder,
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def status(self, seconds: float = 240) -> int:
        assert wait_until(lambda: self.process.poll() is not None, seconds), self.log()
        return self.process.returncode


@pytest.mark.deployment
@pytest.mark.usefixtures("one_thread")
def test_app_and_deployment(tmp_path):
    """The README's app by the README's command; ended by Ctrl-C, and the same command again."""
    write_app(tmp_path)
    home, deployed = tmp_path / "home", tmp_path / "runs" / "app-deployed"
    (script,) = blocks("bash")[4:]
    script = script.replace("resume=true", "resume=true checkpoint-every=1")  # not ten seconds
    try:
        first = Pasted(script, tmp_path, home)
        assert wait_until(lambda: "[ROUND 2/5]" in first.log(), 180), first.log()
        with pytest.raises(ConfigError, match=r"a deployment runs in .* already"):
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


@pytest.mark.deployment
@pytest.mark.usefixtures("one_thread")
def test_tls_and_keys_pasted_twice(tmp_path):
    """The deployment page's commands, ports apart."""
    write_app(tmp_path)
    home = tmp_path / "home"
    (script,) = blocks("bash", DEPLOYMENT)
    assert script.count("9093") == 5
    script = script.replace("9093", str(free_ports(1)[0]))
    script = script.replace("9100", str(consecutive_ports(3)))
    try:
        for _ in range(2):
            pasted = Pasted(script, tmp_path, home)
            assert pasted.status() == 0, pasted.log()
        for i in range(3):  # started once
            assert (tmp_path / f"node-{i}.log").read_text().count("Starting Flower SuperNode") == 1
    finally:
        stop([home, tmp_path / "flwr", *(tmp_path / f"node-{i}" for i in range(3))])
    check_run(tmp_path, 3)


def test_the_unit_states_options_that_there_are(tmp_path):
    (unit,) = blocks("ini", DEPLOYMENT)
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(unit)
    service = parser["Service"]
    assert (service["Restart"], service["KillMode"]) == ("always", "control-group")
    command, *options = shlex.split(service["ExecStart"])
    shown = subprocess.run(
        [SCRIPTS / Path(command).name, "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in [word for word in options if word.startswith("--")]:
        assert option in shown
    config = parse_config_args([options[options.index("--node-config") + 1]])
    assert config["state-dir"] == "/var/lib/flower/state"


def test_a_deployment_that_cannot_start_is_refused(run_command, tmp_path):
    assert "write --local" in refusal(run_command, "deploy", "app")
    assert "app is no Flower app" in refusal(run_command, "deploy", "app", "--local")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").touch()
    assert "nodes must be" in refusal(run_command, "deploy", "app", "--local", "--nodes", "0")


def stop(homes: list[Path]) -> None:
    """Kill every process that was started with one of these homes."""

    def gone() -> bool:
        alive = {pid for home in homes for pid in processes_of(home)}
        for pid in alive:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        return not alive

    assert wait_until(gone, 20)


def test_runs_from_a_wheel_too(tmp_path):
    """The links are followed: a wheel holds strategies and clients once, under the package."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("flower_fedcon", "strategies", "clients"):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    pytest.importorskip("setuptools")
    code = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    names = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(source / done.stdout.split()[-1])],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for module in ("strategies/fedfw.py", "clients/fedfw.py", "py.typed", "engines/grid.py"):
        assert f"flower_fedcon/{module}" in names
    assert not re.search(r"^(strategies|clients)/", names, re.MULTILINE)


def test_every_promise_names_its_tests():
    """A link's text is the test's name."""
    promises = README.partition("## What is promised")[2].partition("\n## ")[0]
    links = re.findall(r"\[([^]]+)\]\((tests/[^)]+)\)", promises)
    assert len(links) > 30
    for words, path in links:
        name = "test_" + words.replace(" ", "_")
        assert f"def {name}(" in (ROOT / path).read_text(), (name, path)
