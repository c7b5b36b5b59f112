"""Every command and code block of the README does what it says."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.common.config import parse_config_args
from problems import l1ls, l1ls_data
from processes import SCRIPTS, environment, free_ports, processes_of, wait_until

from flower_fedcon import Policy, Sample, __version__, simulate
from flower_fedcon.registry import markdown_table
from flower_fedcon.strategies import FedFW

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


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


def test_all_blocks_are_known():
    assert [len(blocks(kind)) for kind in ("bash", "python", "toml", "text")] == [4, 3, 2, 1]
    assert README.count("```") == 2 * 11
    assert blocks("diff") == [(ROOT / "examples" / "pytorch" / "scaffold.diff").read_text()]


def test_first_command(folder):
    """The install is what continuous integration does; the rest runs here."""
    first = blocks("bash")[0]
    create, install, run = (part.strip() for part in first.split("&&"))
    assert create == "python3 -m venv .venv"
    assert install == '.venv/bin/pip install -e ".[dev]"'
    assert '-e ".[dev]"' in (ROOT / ".ci" / "run").read_text()
    output = bash(run.replace(".venv/bin/", ""), folder)
    (shown,) = blocks("text")
    for line in shown.splitlines():  # all but the seconds
        assert " ".join(line.split()[:-1]) in " ".join(output.split())
    assert (folder / "runs" / "digits_l1" / "figure.png").stat().st_size > 10_000


def test_second_command():
    assert blocks("bash")[1].strip() == ".venv/bin/pytest"
    assert "/bin/pytest" in (ROOT / ".ci" / "run").read_text()


def test_python_block(capsys):
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    residual = float(re.search(r"F - F\* (\S+) after", printed).group(1))
    assert 0 < residual < 1e-2


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
    assert (policy.algorithms, policy.batches) == (("fedavg", "scaffold"), "seeded")
    assert (policy.min_rows, policy.min_batch_size, policy.keep_days) == (100, 32, 7)
    assert (policy.max_local_steps, policy.max_seconds) == (50, Policy().max_seconds)


@pytest.mark.deployment
@pytest.mark.usefixtures("one_thread")
def test_app_and_deployment(tmp_path):
    """The README's app on the README's SuperLink and nodes, ports apart."""
    app = tmp_path / "app"
    app.mkdir()
    for block in [*blocks("python")[1:], blocks("toml")[0]]:
        name = re.match(r"# (\S+)\n", block).group(1)
        (app / name).write_text(block)
    for i, data in enumerate(l1ls_data(3)):
        np.savez(tmp_path / f"client-{i}.npz", **data)
    script = blocks("bash")[3]
    assert "9093" in script
    assert "9100" in script
    script = script.replace("9093", str(free_ports(1)[0])).replace(
        "9100", str(consecutive_ports(3))
    )
    home = tmp_path / "home"
    log = tmp_path / "log"
    homes = [home, *(tmp_path / f"node-{i}" for i in range(3))]
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-euc", script],
                cwd=tmp_path,
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            assert wait_until(lambda: process.poll() is not None, 180), log.read_text()
        assert process.returncode == 0, log.read_text()
        assert (tmp_path / "run" / "model.npz").exists(), log.read_text()
    finally:
        stop(homes)
    problem = l1ls(3)
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(count=2))
    expected = simulate(strategy, problem, 5).x
    with np.load(tmp_path / "run" / "model.npz") as model:
        assert model["x"].tobytes() == expected.tobytes()


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
