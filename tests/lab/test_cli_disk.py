"""The command on full disks, on what is no file, and on sizes beyond this machine: one sentence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ran, refusal

from flower_fedcon.cli.commands.deploy_command import interrupt_once

resource = pytest.importorskip("resource")  # of POSIX
LONG = "x" * 300
SIZES = ("3000000x3000000", "9" * 30, "9" * 5000, "²", "x".join("2" * 70), "0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "small.toml", "--run-dir", LONG), "File name too long"),
        (("run", LONG), "cannot read xxx"),
        (("plot", LONG, "-o", "x.png"), "File name too long"),
        (("tune", "small.toml", "--grid", "penalty=1", "--run-dir", LONG), "File name too long"),
        (("run", "small.toml", "--set", "columns=10000000000000"), "Unable to allocate 72.8 TiB"),
        (("run", "small.toml", "--set", f"penalty={'[' * 10**5}"), "penalty must be a number"),
        (("run", "small.toml", "--set", f"penalty={'9' * 5000}"), "penalty must be a number"),
        (("run", "."), "cannot read .: Is a directory"),
        *((("info", "fedfw", "--size", size), "") for size in SIZES),
    ],
)
def test_one_sentence(fedcon, arguments, words):
    assert words in refusal(fedcon, *arguments)


@pytest.mark.parametrize("deep", [15, 200, 10**5])
def test_deep_files(fedcon, deep):
    text = Path("small.toml").read_text()
    Path("deep.toml").write_text(text.replace("5.0", "[" * deep + "]" * deep))
    assert refusal(fedcon, "run", "deep.toml").startswith(
        "error: deep.toml is nested too deeply" if deep > 20 else "error: deep.toml: [algorithm]"
    )


@pytest.mark.parametrize(
    "name", ["checkpoint", "history.csv", "config.toml", "model.npz", "environment.json"]
)
def test_folders_in_the_place_of_files(fedcon, name):
    Path("run", name).mkdir(parents=True)
    for more in ((), ("--resume",)):
        text = refusal(fedcon, "run", "small.toml", "--run-dir", "run", *more)
        assert "run already holds a run" in text or (
            f"run/{name}" in text and ("Is a directory" in text or "is a folder" in text)
        )
    Path("run", name).rmdir()
    ran(fedcon, "run", "small.toml", "--run-dir", "run", "--resume")


def test_full_disks(fedcon):
    """No file may grow beyond a limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ran(fedcon, "run", "small.toml", "--run-dir", "whole")
    try:
        for limit in (300, 5000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            folder = f"full-{limit}"
            for more in ((), ("--resume",)):
                text = refusal(fedcon, "run", "small.toml", "--run-dir", folder, *more)
                assert "cannot write" in text
                assert "File too large" in text
            assert "too large" in refusal(fedcon, "plot", "whole", "-o", "x.png")
            job = ("tune", "small.toml", "--grid", "penalty=1", "--run-dir", f"{folder}-tune")
            assert "too large" in refusal(fedcon, *job, "--workers", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    for limit in (300, 5000):  # there is room again: nothing stands in the way
        ran(fedcon, "run", "small.toml", "--run-dir", f"full-{limit}", "--resume")
        job = ("tune", "small.toml", "--grid", "penalty=1", "--run-dir", f"full-{limit}-tune")
        ran(fedcon, *job, "--workers", "1")
        models = [Path(f, "model.npz").read_bytes() for f in (f"full-{limit}", "whole")]
        assert models[0] == models[1]
    assert not [path for path in Path().rglob(".*") if path.suffix == ".fedcon-part"]


def test_a_reader_that_has_seen_enough():
    command = f"{sys.executable} -c 'import flower_fedcon.cli as c; c.main([\"list\"])' | head -1"
    found = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert found.stderr == ""


def test_a_second_signal_does_not_end_the_stopping_of_a_deployment():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stopped = False
    try:
        for number in before:
            signal.signal(number, interrupt_once)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for number in before:
            signal.raise_signal(number)
        stopped = True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stopped
