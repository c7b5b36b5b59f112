"""The command line: the collection, help, and one line for every error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal

from flower_fedcon import registry
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems import BUILDERS, builder
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.registry import algorithms, client_class
from flower_fedcon.runs.history import History
from flower_fedcon.validation import parameters

SIMS = Path(__file__).parents[2] / "sims"
DIGITS = str(SIMS / "digits_l1.toml")
FEDCON = [sys.executable, "-c", "from flower_fedcon.cli import main; raise SystemExit(main())"]


def test_list(fedcon):
    out = ran(fedcon, "list")
    for name in [kind.__name__ for kind in algorithms().values()]:
        assert f" {name} " in out
    for header in ("Problem", "Participation", "State", "Wire", "Paper", "Stated"):
        assert header in out
    assert ", ".join(BUILDERS) in " ".join(out.split())
    stated = {kind.__name__: kind.card().stated for kind in algorithms().values()}
    assert stated["FedAvg"] == "as in its paper"
    for name in ("FastFedDA", "CFedDA", "MCFedDA", "APDAInexact", "FiveGCS", "CompositeFL",
                 "FedFW", "DualFL"):  # fmt: skip
        assert "reconstructed" in stated[name]


def test_list_on_a_narrow_terminal(fedcon, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = fedcon("list")[1]
    assert "Participation: any" in out
    for name in [kind.__name__ for kind in algorithms().values()]:
        assert name in out


def test_a_pipe_is_as_wide_as_asked(fedcon, monkeypatch):
    for columns, widest in (("80", 80), (None, 160)):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        assert max(map(len, fedcon("list")[1].splitlines())) == widest


@pytest.mark.parametrize("name", [kind.__name__ for kind in algorithms().values()])
def test_info(fedcon, name):
    out = ran(fedcon, "info", name.lower())
    assert (" batch_size " in out) == ("batch_size" in client_class(name.lower()).fields)
    for words in ("update", "lost state", "uplink", "Hyperparameters", "participation", "Default"):
        assert words in out


def test_info_defaults_and_meanings(fedcon):
    out = fedcon("info", "FedAvg")[1]
    row = next(line for line in out.splitlines() if line.strip().startswith("server_lr"))
    assert row.split() == ["server_lr", "1.0", "eta_s", ">", "0."]
    assert "did you mean 'FedFW'" in refusal(fedcon, "info", "FedWF")


@pytest.mark.parametrize("name", [*BUILDERS, "flower_fedcon.problems.files:files"])
def test_info_of_a_problem(fedcon, name):
    out = ran(fedcon, "info", name)
    assert f'[problem]\nname = "{name}"\n' in out
    for key in parameters(builder(name)):
        assert f"\n {key} " in out
    assert "Raises" not in out
    table = out.rpartition("In an experiment file\n")[2]
    assert tomllib.loads(table)["problem"]["name"] == name


def test_info_of_data_files_says_how_to_write_and_name_them(fedcon):
    out = fedcon("info", "files")[1]
    assert 'np.savez(f"{folder}/client-{i}.npz", A=' in out
    assert 'data = "clients/*.npz"' in out
    assert "num_classes" in out
    assert "did you mean 'digits'" in refusal(fedcon, "info", "digts")
    assert "--size counts the bytes of an algorithm's" in refusal(
        fedcon, "info", "digits", "--size", "5"
    )


def test_info_states_the_bytes_of_a_round(fedcon):
    out = " ".join(fedcon("info", "FedFW", "--size", "943x1682")[1].split())
    assert f"1 vector {943 * 1682 * 8 + 128:,}" in out
    assert "1 atom of an l1 ball 136" in out
    assert f"1 atom of a nuclear-norm ball {(943 + 1682) * 8 + 256:,}" in out
    assert "got '9y9'" in refusal(fedcon, "info", "FedFW", "--size", "9y9")


def test_a_hint_stands_once_and_beside_no_long_list(fedcon):
    assert refusal(fedcon, "nwe").count("'new'") == 1
    assert "frob" in refusal(fedcon, "frob")
    assert "Adam" not in refusal(fedcon, "info", "L1ball")
    assert "Adam" in refusal(fedcon, "info", "xyzzy")


def test_help_is_quick_and_light():
    code = (
        "import sys\n"
        "from flower_fedcon.cli import main\n"
        "main(['--help'])\n"
        "heavy = {'flwr', 'numpy', 'matplotlib', 'sklearn', 'ray', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    for command in ("list", "info", "run", "compare", "plot"):
        assert command in found.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.toml"], "cannot read none.toml: No such file"),
        (["small.toml", "--set", "problem.l1_radius=-1"], "[problem]: unknown key 'l1_radius'"),
        (["small.toml", "--set", "rund=1"], "did you mean 'rounds'"),
        (["small.toml", "--set", "rounds"], "write key=value"),
        (["small.toml", "--set", "algorithm.name=FedWF"], "did you mean 'FedFW'"),
        (["small.toml", "--set", "algorithm.penalty=-1"], "penalty must be finite and > 0, got -1"),
        (["small.toml", "--set", "algorithm.penality=1"], "did you mean 'penalty'"),
        (["small.toml", "--set", "participation.sample=9"], "more than the 4 clients"),
        (["small.toml", "--engine", "rya"], "engine must be one of"),
        (["small.toml", "--rounds", "-3"], "rounds must be a whole number >= 0, got -3"),
        (["small.toml", "--rounds", "three"], "--rounds"),
        (["small.toml", "--seed", "-1"], "-1"),
        (["small.toml", "--frobnicate"], "--frobnicate"),
        ([], "FILE"),
        (["broken.toml"], "broken.toml is not valid TOML"),
        (["other.toml", "--rounds", "2"], "other.toml: [algorithm]: unknown algorithm 'FedFWW'"),
        ([DIGITS, "--set", "problem.l1_radius=-1"], "l1_radius must be finite and > 0, got -1"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_errors_are_one_line(fedcon, command, arguments, words):
    Path("broken.toml").write_text("[run\n")
    Path("other.toml").write_text(Path("small.toml").read_text().replace("FedFW", "FedFWW", 1))
    told = refusal(fedcon, command, *arguments)
    assert words in told
    assert "other.toml" not in told or "--set" not in told  # no option is blamed for the file


@pytest.mark.parametrize("command", ["run", "compare"])
def test_jax_is_missed_before_the_optimum_is_sought(fedcon, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setattr(FederatedProblem, "optimum", property(lambda _: pytest.fail("sought")))
    assert "needs JAX" in refusal(fedcon, command, "small.toml", "--engine", "jax")


def test_a_path_that_a_terminal_cannot_show(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    options = ["--rounds", "1", "--run-dir", "ночь"]
    done = subprocess.run(
        [*FEDCON, "run", str(SIMS / "counterexample.toml"), *options],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert r"directory: \u043d\u043e\u0447\u044c" in done.stdout
    assert (tmp_path / "ночь" / "model.npz").exists()


def quadratics_of(vectors):
    return lambda: FederatedProblem([Quadratic(np.eye(len(b)), np.array(b)) for b in vectors])


def test_bad_data_are_refused(fedcon, monkeypatch):
    Path("bad.toml").write_text(
        '[problem]\nname = "bad"\n[run]\nrounds = 2\n'
        '[algorithm]\nname = "FedAvg"\nclient_lr = 0.5\nlocal_steps = 1\n'
    )
    for vectors, words in (
        ([[1.0, 1.0], [1.0] * 3], "client 1 has a model of shape (3,), client 0 (2,)"),
        ([[1.0, np.nan]], "Quadratic(b) has a value that is not finite (nan) at (1,)"),
    ):
        monkeypatch.setitem(BUILDERS, "bad", quadratics_of(vectors))
        assert words in refusal(fedcon, "run", "bad.toml")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_termination_ends_the_command_as_ctrl_c_does(fedcon, monkeypatch):
    """A study's processes, too, which a signal that kills would leave, with joblib's warnings."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        monkeypatch.setattr(registry, "algorithms", lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert fedcon("list") == (130, "", "interrupted\n")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_keeps_the_history(tmp_path):
    process = subprocess.Popen(
        [*FEDCON, "run", str(SIMS / "counterexample.toml"), "--rounds", "10000000"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    history = tmp_path / "runs" / "counterexample" / "history.csv"
    deadline = time.monotonic() + 60
    while not (history.exists() and history.stat().st_size > 2000):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error.count("\n") == 1
    assert error.startswith("interrupted: FedFW is recorded up to round ")
    rows = History.read_rows(history)
    assert f"up to round {rows[-1]['round']:g} of" in error
    assert np.load(history.with_name("model.npz"))["x"].shape == (1,)
