"""The yardstick: algorithms as one would write them in a notebook, without a framework."""

from __future__ import annotations

import numpy as np

from flower_fedcon.validation import Array


def fedfw_lasso(A: Array, b: Array, radius: float, penalty: float, rounds: int) -> Array:
    """Return x_bar after a number of rounds of FedFW on ||A_i x - b_i||^2 over the l1 ball.

    A has shape (N, rows, d), b (N, rows); client by client, as the paper states the algorithm.
    """
    n, _, d = A.shape
    x_bar = np.zeros(d)
    x = [np.zeros(d) for _ in range(n)]
    for t in range(1, rounds + 1):
        eta, lam = 2 / (t + 1), penalty * (t + 1) ** 0.5
        atoms = np.zeros(d)
        for i in range(n):
            gradient = 2 * (A[i].T @ (A[i] @ x[i] - b[i]))
            g = gradient / n + lam * (x[i] - x_bar)
            j = np.abs(g).argmax()
            s = -radius if g[j] > 0 else radius
            x[i] = (1 - eta) * x[i]
            x[i][j] += eta * s
            atoms[j] += s
        x_bar = (1 - eta) * x_bar + (eta / n) * atoms
    return x_bar


def fedavg_least_squares(A: Array, b: Array, rate: float, steps: int, rounds: int) -> Array:
    """Return w after a number of rounds of FedAvg on ||A_i w - b_i||^2 / (2 rows), all rows a step.

    A has shape (N, rows, d), b (N, rows).
    """
    n, rows, d = A.shape
    w = np.zeros(d)
    for _ in range(rounds):
        moved = np.zeros(d)
        for i in range(n):
            v = w
            for _ in range(steps):
                v = v - rate * (A[i].T @ (A[i] @ v - b[i])) / rows
            moved += v - w
        w = w + moved / n
    return w


def fastfedda_sparse(
    A: Array,
    y: Array,
    w: Array,
    *,
    l1: float,
    mu: float,
    gamma: float,
    steps: int,
    batch: int,
    sampled: int,
    rounds: int,
    seed: int = 0,
) -> Array:
    """Return w after a number of rounds of FastFedDA with psi = l1 ||w||_1.

    Each round samples clients; each of their steps takes the next `batch` rows of a permutation.
    """
    n, m, _ = A.shape
    rng = np.random.default_rng(seed)

    def minimizer(z: Array, t: int) -> Array:
        c = gamma + mu / 2 * t
        center, level = z / c, l1 * t / c
        return np.sign(center) * np.maximum(np.abs(center) - level, 0)

    z = gamma * w
    for r in range(rounds):
        total = np.zeros_like(z)
        for i in rng.choice(n, sampled, replace=False):
            z_i, v, order = z, w, rng.permutation(m)
            for k in range(1, steps + 1):
                if len(order) < batch:
                    order = rng.permutation(m)
                rows, order = order[:batch], order[batch:]
                a = A[i][rows]
                gradient = a.T @ (a @ v - y[i][rows]) / batch
                z_i = z_i - gradient + mu / 2 * v
                if k < steps:
                    v = minimizer(z_i, r * steps + k)
            total += z_i
        z = total / sampled
        w = minimizer(z, (r + 1) * steps)
    return w
