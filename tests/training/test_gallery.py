"""The gallery in a shortened form; in full each takes about a minute."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from pages import ROOT
from problems import MNIST, needs_mnist

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")


@pytest.fixture(autouse=True)
def _gallery(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "gallery"))
    yield
    for name in ("heads", "lenet"):
        sys.modules.pop(name, None)


def test_heads_are_solved_and_spare_what_they_are_to_spare(tmp_path, monkeypatch):
    import heads

    monkeypatch.setattr(heads.curves, "__defaults__", (2,))  # weights of each psi
    found = heads.main(["--rounds", "100", "--figure", str(tmp_path / "heads.png")])
    for kind, (*_, spared) in heads.KINDS.items():
        strong, weak = found[kind]
        assert strong["kkt"] < 1e-6  # in 400 rounds the weak ones, too
        assert weak["kkt"] < 1e-2
        assert strong[spared] < 0.7 * weak[spared]
        assert weak["accuracy"] > 0.85
    assert (tmp_path / "heads.png").stat().st_size > 10_000


@needs_mnist
def test_a_bounded_layer_stays_in_its_ball():
    import lenet

    history = lenet.main([str(MNIST), "--rounds", "30"])
    assert history["violation"].max() < 1e-4  # of float32
    assert history["nuclear norm"].max() <= lenet.RADIUS * (1 + 1e-5)
    assert history["accuracy"][-1] > 0.7  # 0.95 in 1000 rounds


@needs_mnist
@pytest.mark.parametrize("method", ["feddualavg", "compositefl"])
def test_a_sparse_layer_has_zeros(method):
    import lenet

    history = lenet.main([str(MNIST), "--method", method, "--rounds", "2"])
    assert history["accuracy"][-1] > 0.75  # 0.96 in 25 rounds
    assert np.all(np.diff(history["zeros"]) > 0)
    assert history["zeros"][-1] > 0.03
