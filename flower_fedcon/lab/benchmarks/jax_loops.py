"""The yardstick of the compiled engine: algorithms written by hand with JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, vmap


def least_squares_gradient(A: Any, b: Any, x: Any) -> Any:
    """Return the gradient of ||A x - b||^2 / (2 rows)."""
    return (A @ x - b) @ A / len(b)


@partial(jax.jit, static_argnames=("steps", "rounds"))
def fedavg(A: Any, b: Any, *, rate: float, steps: int, rounds: int) -> Any:
    """Return w after a number of rounds on the clients' least squares; A has shape (N, rows, d)."""

    def local(A: Any, b: Any, w: Any) -> Any:
        v = w
        for _ in range(steps):
            v = v - rate * least_squares_gradient(A, b, v)
        return v - w

    def one(w: Any, _: None) -> Any:
        deltas = vmap(local, in_axes=(0, 0, None))(A, b, w)
        return w + deltas.mean(axis=0), None

    return lax.scan(one, jnp.zeros(A.shape[-1]), length=rounds)[0]


@partial(jax.jit, static_argnames=("steps", "rounds"))
def scaffold(A: Any, b: Any, *, rate: float, steps: int, rounds: int) -> Any:
    """Return x after a number of rounds of Scaffold, option II."""
    n, _, d = A.shape

    def local(A: Any, b: Any, c_i: Any, x: Any, c: Any) -> Any:
        y = x
        for _ in range(steps):
            y = y - rate * (least_squares_gradient(A, b, y) + (c - c_i))
        delta = y - x
        return delta, -(c + delta / (steps * rate))

    def one(state: Any, _: None) -> Any:
        x, c, variates = state
        deltas, changes = vmap(local, in_axes=(0, 0, 0, None, None))(A, b, variates, x, c)
        return (x + deltas.mean(axis=0), c + changes.sum(axis=0) / n, variates + changes), None

    start = (jnp.zeros(d), jnp.zeros(d), jnp.zeros((n, d)))
    return lax.scan(one, start, length=rounds)[0][0]


def soft(z: Any, level: Any) -> Any:
    """Return the prox of level times the l1 norm."""
    return jnp.sign(z) * jnp.maximum(jnp.abs(z) - level, 0)


@partial(jax.jit, static_argnames=("steps", "rounds"))
def feddualavg(A: Any, b: Any, *, rate: float, l1: float, steps: int, rounds: int) -> Any:
    """Return w after a number of rounds of FedDualAvg with psi = l1 ||w||_1."""

    def local(A: Any, b: Any, start: Any, elapsed: Any) -> Any:
        z = start
        for k in range(steps):
            w = soft(z, l1 * (elapsed + rate * k))
            z = z - rate * least_squares_gradient(A, b, w)
        return z - start

    def one(z: Any, r: Any) -> Any:
        deltas = vmap(local, in_axes=(0, 0, None, None))(A, b, z, rate * steps * r)
        return z + deltas.mean(axis=0), None

    z = lax.scan(one, jnp.zeros(A.shape[-1]), jnp.arange(1.0 * rounds))[0]
    return soft(z, l1 * rate * steps * rounds)


@partial(jax.jit, static_argnames=("steps", "batch", "rounds"))
def feddualavg_softmax(
    A: Any, y: Any, *, rate: float, l1: float, steps: int, batch: int, rounds: int
) -> Any:
    """Return w after a number of rounds on softmax regression, each step on the next rows."""
    n, m, d = A.shape
    shown = jax.nn.one_hot(y, 10, dtype=A.dtype)

    def local(A: Any, shown: Any, start: Any, elapsed: Any, key: Any) -> Any:
        order = jax.random.permutation(key, m)[: steps * batch].reshape(steps, batch)
        z = start
        for k in range(steps):
            rows = A[order[k]]
            w = soft(z, l1 * (elapsed + rate * k))
            errors = jax.nn.softmax(rows @ w) - shown[order[k]]
            z = z - (rate / batch) * (rows.T @ errors)
        return z - start

    def one(z: Any, r: Any) -> Any:
        keys = jax.random.split(jax.random.key(r), n)
        each = vmap(local, in_axes=(0, 0, None, None, 0))
        return z + each(A, shown, z, rate * steps * r, keys).mean(axis=0), None

    z = lax.scan(one, jnp.zeros((d, 10)), jnp.arange(rounds))[0]
    return soft(z, l1 * rate * steps * rounds)


@partial(jax.jit, static_argnames=("rounds",))
def fedfw(A: Any, b: Any, *, radius: float, penalty: float, rounds: int) -> Any:
    """Return x_bar after a number of rounds of FedFW over the l1 ball."""
    n, _, d = A.shape

    def local(A: Any, b: Any, x: Any, x_bar: Any, eta: Any, weight: Any) -> Any:
        g = least_squares_gradient(A, b, x) / n + weight * (x - x_bar)
        j = jnp.abs(g).argmax()
        s = jnp.where(g[j] > 0, -radius, radius)
        return ((1 - eta) * x).at[j].add(eta * s), j, s

    def one(state: Any, t: Any) -> Any:
        x_bar, x = state
        eta, weight = 2 / (t + 1), penalty * (t + 1) ** 0.5
        each = vmap(local, in_axes=(0, 0, 0, None, None, None))
        x, j, s = each(A, b, x, x_bar, eta, weight)
        x_bar = ((1 - eta) * x_bar).at[j].add(eta / n * s)
        return (x_bar, x), None

    start = (jnp.zeros(d), jnp.zeros((n, d)))
    return lax.scan(one, start, jnp.arange(1.0, rounds + 1.0))[0][0]
