"""Rows whose privacy is kept one by one, and a look at their noisy sums without the noise."""

from __future__ import annotations

import numpy as np

from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.privacy.noise import Grid

DELTA = 1e-5
LOUD = ExampleDP(clip=0.5, noise_multiplier=2.0, target_delta=DELTA)


def regression(m=50, d=4, seed=0, **more):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, d))
    return LogisticRegression(A, np.where(A @ np.arange(1, d + 1) > 0, 1.0, -1.0), **more)


def silent(monkeypatch):
    """Let noise be zeros."""
    monkeypatch.setattr(Grid, "noise", lambda grid, size: np.zeros(size, np.int64))


def sums_without_noise(monkeypatch):
    """Let noise be zeros; return the list to which each sum adds its grid and its whole steps."""
    seen = []
    silent(monkeypatch)
    monkeypatch.setattr(Grid, "value", lambda grid, k: seen.append((grid, k)) or k * grid.step)
    return seen
