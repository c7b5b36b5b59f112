"""The help of every command, completion, and what `fedcon doctor` looks at."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time

import pytest
import typer
from harness import ran
from pages import ROOT, blocks
from rich.text import Text

from flower_fedcon import __version__
from flower_fedcon.cli import app
from flower_fedcon.cli.command import EXIT_CODES
from flower_fedcon.cli.commands import doctor
from flower_fedcon.registry import accepted


def commands(group, path=("fedcon",)):
    """Yield every command with the words that call it; groups too."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


EVERY = {" ".join(path): command for path, command in commands(typer.main.get_command(app))}
LEAVES = {path: command for path, command in EVERY.items() if not hasattr(command, "commands")}


def test_every_command_is_walked():
    for wing in ("tables", "lab.report"):
        pytest.importorskip(f"flower_fedcon.{wing}", reason="it walks to their commands")
    assert {"fedcon run", "fedcon data check", "fedcon report", "fedcon doctor"} <= LEAVES.keys()


@pytest.mark.parametrize("path", LEAVES)
def test_help_ends_in_examples_that_parse(path):
    """Each example is a command line of this very command, of files that the repository has."""
    title, *lines = LEAVES[path].epilog.split("\n\n")
    assert title == "Examples:"
    assert lines
    for line in lines:
        assert line.startswith(path)
        words = shlex.split(line.removeprefix(path))
        LEAVES[path].make_context(path, words)  # raises
        for file in (word for word in words if re.match(r"(sims|examples)/", word)):
            assert (ROOT / file).exists()
        assert len(line) < 120


@pytest.mark.parametrize("path", EVERY)
def test_every_option_and_command_says_what_it_is(path):
    said = (EVERY[path].help or "").strip()
    assert said
    assert Text.from_markup(said).plain == said, "what stands in square brackets would be lost"
    for parameter in EVERY[path].params:
        shown = parameter.get_help_record(typer.Context(EVERY[path]))
        assert shown is None or shown[1] or parameter.human_readable_name.isupper()


def test_help_shows_examples_and_exit_codes(run_command):
    out = run_command("run", "--help")[1]
    assert "Examples:" in out
    assert "fedcon run sims/fedfw_lasso.toml --rounds 200" in out
    out = " ".join(run_command("--help")[1].split())
    documented = (ROOT / "docs" / "commands.md").read_text()
    for code in EXIT_CODES:
        assert f" {code} " in out
        assert f"| {code} |" in documented


def test_the_version(run_command):
    assert run_command("--version") == (0, f"fedcon {__version__}\n", "")


def completed(words):
    code = "import sys; from flower_fedcon.cli import main; sys.exit(main())"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, **asked, "_FEDCON_COMPLETE": "complete_bash"},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_of_commands_options_and_algorithms():
    assert {"report", "reproduce"} <= set(completed("fedcon re"))
    assert "--run-dir" in completed("fedcon run --ru")
    found = completed("fedcon info feds")
    assert found == [name for name in accepted() if name.startswith("feds")] != []


# --- doctor --------------------------------------------------------------------------------------


def state(what):
    return next(f"{f.state}: {f.text}" for f in doctor.findings() if f.what == what)


def test_doctor_on_this_machine(run_command):
    (version, check) = blocks("bash", "docs/commands.md")[0].splitlines()
    ran(run_command, *version.split()[1:])
    out = ran(run_command, *check.split()[1:])
    for what in ("Python", "flwr", "ray", "numba", "port 9092", "FLWR_HOME", "clock", "locks"):
        assert f"\n {what} " in out
    assert "all is well" in out


def test_doctor_says_what_fails(run_command, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "file"))
    code, out, _ = run_command("doctor")
    assert code == 1
    assert "FAILS" in out
    assert "1 of" in out
    assert state("FLWR_HOME").startswith("FAILS: ")
    assert "set FLWR_HOME" in state("FLWR_HOME")


def test_doctor_compares_versions(monkeypatch):
    known = doctor.metadata.version

    def version(name):
        if name in ("plotly", "scipy"):
            raise doctor.metadata.PackageNotFoundError(name)
        return "1.40.0" if name == "flwr" else known(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    assert "FAILS: 1.40.0, wanted <2,>=1.41: pip install 'flwr" in state("flwr")
    assert state("scipy").startswith("FAILS: not installed: pip install 'scipy>=1")
    assert state("plotly") == "note: not installed: pip install 'flower-fedcon[report]'"


def test_doctor_looks_at_ports_and_the_clock(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(doctor, "_PORTS", {taken.getsockname()[1]: "a test"})
        (port,) = [f for f in doctor.findings() if f.what.startswith("port")]
    assert (port.state, "Flower's default for a test" in port.text) == ("note", True)
    real = time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() + 60)
    assert "note: " in state("clock")
    assert "-60 s off" in state("clock")
    monkeypatch.setattr(doctor.time, "time", lambda: 1e9)
    assert "FAILS: 2001-09-09" in state("clock")


def test_completion_is_installed_as_the_page_says():
    (command,) = blocks("bash", "docs/commands.md")[2].split("\n")[:-1]
    options = {name for p in EVERY["fedcon"].params for name in p.opts}
    assert command.split()[1] in options
