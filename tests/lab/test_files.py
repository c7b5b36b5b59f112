"""A user's own files, from the command line."""

from __future__ import annotations

import numpy as np
import pytest
from harness import refusal
from left import rows_of
from problems import l1ls, l1ls_data

from flower_fedcon.cli import main
from flower_fedcon.problems import files

EXPERIMENT = """
[problem]
name = "files"
data = "client-*.npz"
l1_radius = 5.0

[run]
rounds = 50

[algorithm]
name = "FedFW"
penalty = 0.1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Eleven clients' files and an experiment that reads them."""
    monkeypatch.chdir(tmp_path)
    for i, data in enumerate(l1ls_data(11)):
        np.savez(f"client-{i}.npz", **data)
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    return tmp_path


def test_files_are_clients_in_numbered_order(folder):
    problem = files(data="client-*.npz", l1_radius=5.0)
    assert problem.names[:3] == ("client-0.npz", "client-1.npz", "client-2.npz")
    x = np.linspace(-1, 1, 50)
    expected = l1ls(11)
    assert [f.value(x) for f in problem.objectives] == [f.value(x) for f in expected.objectives]
    assert main(["run", "mine.toml", "--run-dir", "out"]) == 0
    rows = rows_of(folder / "out")
    assert rows[-1]["round"] == 50
    assert 0 < rows[-1]["residual"] < rows[0]["residual"]


@pytest.mark.usefixtures("folder")
def test_labels():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(8, 3))
    np.savez("binary.npz", A=A, y=np.sign(A[:, 0]))
    np.savez("classes.npz", A=A, y=np.arange(8) % 4)
    assert files(data=["binary.npz"], l2=0.1).x0.shape == (3,)
    assert files(data=["classes.npz"], num_classes=4).x0.shape == (3, 4)


def test_data_that_cannot_be_used(folder, run_command):
    data = l1ls_data(11)[0]
    np.savez("client-4.npz", A=data["A"][:, :49], b=data["b"])
    text = refusal(run_command, "run", "mine.toml")
    assert "client client-4.npz has a model of shape (49,), client client-0.npz (50,)" in text
    np.savez("client-4.npz", A=np.where(data["A"] > 1, np.nan, data["A"]), b=data["b"])
    text = refusal(run_command, "run", "mine.toml")
    assert "client-4.npz: LeastSquares(A) has a value that is not finite (nan) at (0, " in text
    np.savez("client-4.npz", A=data["A"])
    assert "holds ['A'], expected A, and b or y" in refusal(run_command, "run", "mine.toml")
    np.savez("client-4.npz", A=np.array([{}]), b=data["b"])
    objects = (folder / "client-4.npz").read_bytes()
    for content in (objects, b"no archive", objects[:100], b""):  # NumPy advises allow_pickle
        (folder / "client-4.npz").write_bytes(content)
        text = refusal(run_command, "run", "mine.toml")
        assert "cannot read client-4.npz as a .npz file of numeric arrays: write it by" in text
        assert "pickle" not in text
    (folder / "client-4.npz").unlink()
    (folder / "client-4.npz").mkdir()
    assert "cannot read client-4.npz: Is a directory" in refusal(run_command, "run", "mine.toml")
    (folder / "client-4.npz").rmdir()
    text = refusal(run_command, "run", "mine.toml", "--set", "problem.data=other-*.npz")
    assert "no file matches 'other-*.npz'" in text
    text = refusal(run_command, "run", "mine.toml", "--set", "problem.l1_radius=-1")
    assert "l1_radius must be finite and > 0, got -1" in text
    assert not (folder / "runs").exists()
