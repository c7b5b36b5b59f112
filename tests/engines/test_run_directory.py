"""A run directory keeps what a run has reached, whatever happens to it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from agreement import interrupted, untimed
from problems import avg, q6

from flower_fedcon import History, simulate
from flower_fedcon.errors import ConfigError, FedConError, StorageError
from flower_fedcon.wire.whole_files import FolderLock

SUPPORT = Path(__file__).parents[1] / "support"


def stopped(folder: Path) -> None:
    """Leave a run that stopped after round 9, with the checkpoint of round 8."""
    interrupted(avg(), q6(), 9, 12, run_dir=folder, checkpoint_every=4)


def resumed(folder: Path, rounds: int = 12) -> History:
    return simulate(avg(), q6(), rounds, run_dir=folder, resume=True)


def in_a_process(*arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with the modules that this process finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=120
    )


# --- killed, torn, full ---------------------------------------------------------------------------


def test_runs_killed_at_random_moments_end_with_the_same_bytes(tmp_path):
    """Kills during rounds, checkpoints, resumption and while a column is added; torn histories."""
    names = ("fedfw", "scaffold", "dualfl")
    done = in_a_process(SUPPORT / "killed_runs.py", tmp_path, "1", "25", *names)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in done.stdout.splitlines():
        assert line.endswith(" 6 files"), line  # no leftover of a killed writer
    assert len(done.stdout.splitlines()) == 3


TAILS = {
    "torn": b"10,0.3",
    "binary": b"\x00\xff\x80\n\x9d,,\n",
    "text": b"No space left on device\r\n",
    "quote": b'10,"',
    "long": b"9" * 200_000 + b"\r\n",
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("kept", [None, -7])
def test_what_stands_behind_the_checkpoint_is_cut(tail, kept, tmp_path):
    """Behind a whole row, and in place of the end of the last one."""
    stopped(tmp_path)
    history = tmp_path / "history.csv"
    history.write_bytes(history.read_bytes()[:kept] + TAILS[tail])
    whole = resumed(tmp_path)
    assert untimed(whole) == untimed(simulate(avg(), q6(), 12))
    assert History.read_rows(history) == whole.rows


def test_a_refused_resumption_changes_nothing(tmp_path):
    stopped(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FedConError, match=r"seed was 0, is 1"):
        simulate(avg(), q6(), 12, run_dir=tmp_path, resume=True, seed=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    history = tmp_path / "history.csv"
    damaged = before["history.csv"].replace(b"\r\n", b"\r\n\x00", 3)
    history.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"history.csv is damaged in line 2 \(could not convert"):
        resumed(tmp_path)
    assert history.read_bytes() == damaged


FULL = """
import resource, signal, sys
from problems import avg, q6
from flower_fedcon import simulate
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
from flower_fedcon.errors import StorageError
try:
    simulate(avg(), q6(), 100, run_dir=sys.argv[1], checkpoint_every=1)
except StorageError as error:
    print(error)
"""


def test_a_full_disk_is_one_sentence_and_the_run_goes_on(tmp_path):
    """A file may not grow beyond 6,000 bytes, in a process of its own."""
    done = in_a_process("-c", FULL, tmp_path)
    assert done.stdout.startswith(f"cannot write {tmp_path}/history.csv: File too large. "), done
    assert "continue with resume=True" in done.stdout
    assert untimed(resumed(tmp_path, 100)) == untimed(simulate(avg(), q6(), 100))
    assert not list(tmp_path.glob(".*"))


# --- one process at a time ------------------------------------------------------------------------


def test_a_directory_belongs_to_one_run(tmp_path):
    def again(record: dict[str, float]) -> None:
        for options in ({}, {"resume": True}):
            with pytest.raises(StorageError, match="is in use by another process"):
                simulate(avg(), q6(), 3, run_dir=tmp_path, **options)

    simulate(avg(), q6(), 3, run_dir=tmp_path, callbacks=[again])
    assert len(resumed(tmp_path, 4)) == 4  # it is free again


def test_a_lock_waits_and_sweeps(tmp_path):
    (tmp_path / ".x.fedcon-part").write_text("left by a killed writer")
    (tmp_path / ".y.fedcon-part").mkdir()  # by somebody else
    first = FolderLock(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".y.fedcon-part"]
    threading.Timer(0.2, first.release).start()
    with FolderLock(tmp_path, wait=30), pytest.raises(StorageError, match="in use"):
        FolderLock(tmp_path)
    with pytest.raises(StorageError, match=r"cannot open the folder .*: Not a directory"):
        FolderLock(Path(__file__))


# --- what is no file ------------------------------------------------------------------------------


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.with_name("elsewhere").touch()
    path.symlink_to(path.with_name("elsewhere"))


KINDS = [(folder, "a folder"), (link, "a symbolic link"), (os.mkfifo, "a pipe")]


@pytest.mark.parametrize(("make", "kind"), KINDS)
@pytest.mark.parametrize("name", ["checkpoint", "history.csv"])
def test_what_is_no_file(name, make, kind, tmp_path):
    stopped(tmp_path)
    (tmp_path / name).unlink()
    if name == "history.csv":
        with pytest.raises(StorageError, match=r"cannot read .*history.csv: no such file"):
            resumed(tmp_path)
    make(tmp_path / name)
    if (name, make) == ("history.csv", folder):  # beside its checkpoint, and read alone
        for read in (resumed, lambda path: History.read_rows(path / name)):
            with pytest.raises(StorageError, match=r"history.csv is a folder"):
                read(tmp_path)
    if name == "history.csv":
        (tmp_path / "checkpoint").unlink()
    with pytest.raises(StorageError, match=f"{name} is {kind}, expected a file"):
        resumed(tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "null\0byte"])
def test_names_that_no_folder_can_have(name, tmp_path):
    with pytest.raises(StorageError, match=r"File name too long|null byte"):
        simulate(avg(), q6(), 1, run_dir=tmp_path / name)
