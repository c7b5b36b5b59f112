"""The command line, in process and as a subprocess."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Command, refusal

from flower_fedcon.errors import ConfigError
from flower_fedcon.experiments.figures import _is_long, plot_histories
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems import BUILDERS
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.registry import CLASSES
from flower_fedcon.runs.history import History

SIMS = Path(__file__).parents[2] / "sims"
FILE = """
title = "Small lasso"
[problem]
name = "lasso"
clients = 4
rows = 12
columns = 20
nonzeros = 3
[run]
rounds = 20
[algorithm]
name = "FedFW"
penalty = 5.0
participation = {sample = 2}
[[compare]]
name = "FedFWPlus"
penalty = 0.5
[[compare]]
name = "FedMiD"
label = "Mirror, 2 steps"
client_lr = 0.001
local_steps = 2
"""


@pytest.fixture
def fedcon(run_command: Command) -> Command:
    """Run the command in a folder that holds `small.toml`."""
    Path("small.toml").write_text(FILE)
    return run_command


def without_seconds(path: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in History.read_rows(path)]


# --- the collection ------------------------------------------------------------------------------


def test_list(fedcon: Command) -> None:
    code, out, error = fedcon("list")
    assert (code, error) == (0, "")
    for name in CLASSES.values():
        assert f" {name} " in out
    for header in ("Problem", "Participation", "State", "Wire", "Paper"):
        assert header in out


@pytest.mark.parametrize("name", CLASSES.values())
def test_info(fedcon: Command, name: str) -> None:
    code, out, error = fedcon("info", name.lower())
    assert (code, error) == (0, "")
    for words in ("update", "lost state", "uplink", "Hyperparameters", "participation", "Default"):
        assert words in out


def test_info_defaults_and_meanings(fedcon: Command) -> None:
    out = fedcon("info", "FedAvg")[1]
    row = next(line for line in out.splitlines() if line.strip().startswith("server_lr"))
    assert row.split() == ["server_lr", "1.0", "eta_s", ">", "0."]
    assert "did you mean 'FedFW'" in refusal(fedcon, "info", "FedWF")


def test_help_is_quick_and_light() -> None:
    code = (
        "import sys\n"
        "from flower_fedcon.cli.command import main\n"
        "main(['--help'])\n"
        "heavy = {'flwr', 'numpy', 'matplotlib', 'sklearn', 'ray', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    for command in ("list", "info", "run", "compare", "plot"):
        assert command in found.stdout


# --- runs ----------------------------------------------------------------------------------------


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
    assert "runs/small holds a run already" in message
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
        (["small.toml", "--set", "participation.sample=9"], "the 4 there are"),
        (["small.toml", "--engine", "rya"], "engine must be one of"),
        (["small.toml", "--rounds", "-3"], "rounds must be a whole number >= 0, got -3"),
        (["small.toml", "--rounds", "three"], "--rounds"),
        (["small.toml", "--seed", "-1"], "-1"),
        (["small.toml", "--frobnicate"], "--frobnicate"),
        ([], "FILE"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_errors_are_one_line(
    fedcon: Command, command: str, arguments: list[str], words: str
) -> None:
    assert words in refusal(fedcon, command, *arguments)


def test_other_errors_are_one_line_too(fedcon: Command) -> None:
    digits = str(SIMS / "digits_l1.toml")
    message = refusal(fedcon, "run", digits, "--set", "problem.l1_radius=-1")
    assert "l1_radius must be finite and > 0, got -1" in message
    Path("broken.toml").write_text("[run\n")
    assert "broken.toml is not valid TOML" in refusal(fedcon, "run", "broken.toml")
    assert "frob" in refusal(fedcon, "frob")


def test_bad_data_are_refused(fedcon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def mismatched() -> FederatedProblem:
        return FederatedProblem([Quadratic(np.eye(n), np.ones(n)) for n in (2, 3)])

    def not_finite() -> FederatedProblem:
        return FederatedProblem([Quadratic(np.eye(2), np.array([1.0, np.nan]))])

    monkeypatch.setitem(BUILDERS, "mismatched", mismatched)
    monkeypatch.setitem(BUILDERS, "not_finite", not_finite)
    for name, words in (
        ("mismatched", "client 1 has a model of shape (3,), client 0 (2,)"),
        ("not_finite", "Quadratic(b) holds a value that is not finite (nan) at (1,)"),
    ):
        Path("bad.toml").write_text(
            f'[problem]\nname = "{name}"\n[run]\nrounds = 2\n'
            '[algorithm]\nname = "FedAvg"\nclient_lr = 0.5\nlocal_steps = 1\n'
        )
        assert words in refusal(fedcon, "run", "bad.toml")


def test_a_diverging_run_is_one_error(fedcon: Command) -> None:
    diverging = FILE.replace("penalty = 5.0", "client_lr = 10.0\nlocal_steps = 2")
    Path("diverging.toml").write_text(diverging.replace('"FedFW"', '"FedAvg"'))
    message = refusal(fedcon, "run", "diverging.toml", "--rounds", "5000")
    rows = History.read_rows("runs/diverging/history.csv")
    assert f"round {len(rows) + 1}: the objective is inf: the run diverges" in message


def test_resume_goes_on_to_the_same_bytes(fedcon: Command) -> None:
    assert fedcon("run", "small.toml", "--run-dir", "whole", "--rounds", "30")[0] == 0
    assert fedcon("run", "small.toml", "--run-dir", "part", "--checkpoint-every", "7")[0] == 0
    more = ["run", "small.toml", "--run-dir", "part", "--resume", "--rounds", "30"]
    assert "penalty was 5.0, is 6.0" in refusal(fedcon, *more, "--set", "algorithm.penalty=6.0")
    assert fedcon(*more)[0] == 0
    whole, part = (np.load(f"{folder}/model.npz")["x"] for folder in ("whole", "part"))
    assert part.tobytes() == whole.tobytes()
    changed = [*more[:-1], "31", "--set", "algorithm.penalty=6.0", "--allow-change", "penalty"]
    assert fedcon(*changed)[0] == 0
    assert len(History.read_rows("part/history.csv")) == 31


def test_info_states_the_bytes_of_a_round(fedcon: Command) -> None:
    out = " ".join(fedcon("info", "FedFW", "--size", "943x1682")[1].split())
    assert f"1 vector {943 * 1682 * 8 + 128:,}" in out
    assert "1 atom of an l1 ball 136" in out
    assert f"1 atom of a nuclear-norm ball {(943 + 1682) * 8 + 256:,}" in out
    assert "got '9y9'" in refusal(fedcon, "info", "FedFW", "--size", "9y9")


def test_list_on_a_narrow_terminal(fedcon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = fedcon("list")[1]
    assert "Participation: any" in out
    for name in CLASSES.values():
        assert name in out


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_keeps_the_history(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from flower_fedcon.cli.command import main; sys.exit(main())",
    ]
    process = subprocess.Popen(
        [*command, "run", str(SIMS / "counterexample.toml"), "--rounds", "10000000"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
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


# --- figures -------------------------------------------------------------------------------------


def test_plot(fedcon: Command) -> None:
    fedcon("compare", "small.toml", "--rounds", "3")
    fedcon("run", "small.toml", "--rounds", "3", "--run-dir", "one")
    code, out, error = fedcon("plot", "one", "runs/small", "-o", "new/figure.pdf")
    assert (code, out, error) == (0, "figure: new/figure.pdf\n", "")
    assert Path("new/figure.pdf").read_bytes().startswith(b"%PDF")
    command = ("plot", "one", "-o", "one.png", "-o", "one.pdf", "--x", "bytes", "--y", "total")
    assert fedcon(*command) == (0, "figure: one.png\nfigure: one.pdf\n", "")
    assert Path("one.png").read_bytes().startswith(b"\x89PNG")
    before = Path("one.pdf").read_bytes()
    assert b"/FontType 42" in before or b"/CIDFontType2" in before  # TrueType, not outlines
    fedcon(*command)
    assert Path("one.pdf").read_bytes() == before
    assert "did you mean 'total'" in refusal(fedcon, "plot", "one", "-o", "a.png", "--y", "totl")
    assert "did you mean 'rounds'" in refusal(fedcon, "plot", "one", "-o", "a.png", "--x", "round")
    assert ".png, .pdf, .svg" in refusal(fedcon, "plot", "one", "-o", "a.gif")
    assert "new holds no run" in refusal(fedcon, "plot", "new", "-o", "a.png")
    Path("one/history.csv").write_text("round,objective\n1,x\n")
    assert "cannot read one/history.csv" in refusal(fedcon, "plot", "one", "-o", "a.png")


def test_plot_labels_runs_of_one_algorithm_apart(
    fedcon: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []

    def draw(histories: dict[str, object], paths: list[Path], **_: object) -> Path:
        drawn.append(list(histories))
        return paths[0]

    for folder in ("a", "b"):
        fedcon("run", "small.toml", "--rounds", "1", "--run-dir", folder)
    monkeypatch.setattr("flower_fedcon.experiments.figures.plot_histories", draw)
    fedcon("plot", "a", "b", "b", "-o", "x.png")
    assert drawn == [["FedFW", "FedFW (b)", "FedFW (b) 2"]]


def test_plot_takes_the_seeds_of_a_comparison_together(
    fedcon: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def draw(
        histories: dict[str, Any], paths: list[Path], seeds: dict[str, Any], **_: object
    ) -> Path:
        drawn.append((histories, seeds))
        return paths[0]

    fedcon("compare", "small.toml", "--rounds", "2", "--seeds", "0,1,2", "--run-dir", "many")
    fedcon("run", "small.toml", "--rounds", "2", "--run-dir", "one")
    monkeypatch.setattr("flower_fedcon.experiments.figures.plot_histories", draw)
    fedcon("plot", "many", "one", "many/fedfw/seed-1", "-o", "x.png")
    histories, seeds = drawn[0]
    labels = ["FedFW", "FedFWPlus", "Mirror, 2 steps"]  # in the order of the file
    assert list(histories) == [*labels, "FedFW (one)", "FedFW (many/fedfw/seed-1)"]
    assert list(seeds) == list(histories)[:3]
    each = [rows[-1]["residual"] for rows in seeds["FedFW"]]
    assert len(each) == 3
    assert histories["FedFW"][-1]["residual"] == pytest.approx(np.mean(each))


def test_runs_that_are_over_early_are_not_squeezed() -> None:
    short, long = np.array([0.0, 1.0, 2.0]), np.array([0.0, 10.0, 17.0])
    assert _is_long([short, long], "bytes")
    assert not _is_long([short, long], "rounds")  # round 0: no logarithm
    assert not _is_long([short, long[:2]], "seconds")
    assert _is_long([short + 1, np.array([1.0, 101.0])], "rounds")
    assert not _is_long([np.zeros(3), long], "seconds")  # a clock that stood still


def test_figures_of_awkward_histories(tmp_path: Path) -> None:
    def row(number: int, **values: float) -> dict[str, float]:
        traffic = {"uplink_bytes": 8.0, "downlink_bytes": 8.0, "seconds": 0.0}
        return {"round": number, **traffic, **values}

    converged = [row(n, objective=1.0, residual=r) for n, r in ((1, 1.0), (2, 0.0), (3, -1e-16))]
    all_negative = [row(1, objective=-1.0, residual=-1e-16)]
    unknown = [row(n, objective=-float(n)) for n in range(1, 30)]
    for rows in (converged, all_negative, unknown):
        path = plot_histories({"a": rows, "b": rows}, tmp_path / "figure.png", title="t")
        assert path.stat().st_size > 1000
    plot_histories({"a": converged, "b": unknown}, tmp_path / "mixed.svg", x="rounds")
    with pytest.raises(ConfigError, match="no recorded rounds"):
        plot_histories({"a": []}, tmp_path / "figure.png")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        plot_histories({"a": converged}, tmp_path / "file" / "figure.png")
