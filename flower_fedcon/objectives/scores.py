"""Gradient steps on scores, for losses with one score <a, x> a row and few rows.

Without a prox, K full steps from z stay in the span of z, of the rows, and of the drift h, the part
added to the gradients that does not depend on x. With the scores s = A z and t = A h, the inner
products of rows G = A A', and the weights r of the rows in the gradient A' r, which depend on s,

    s := q s - step (G r + t),   c := q c + r,   e := q e + 1,   q = 1 - step (ridge + shift)
    z := q^K z - step (A' c + e h)

so that K steps read the rows twice. G is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.validation import Array

_SCARCE = 4  # entries of a row, for each row, from which on G is kept: a fourth more memory


def products_pay(tables: Array) -> bool:
    """Return whether the rows have few inner products compared with their entries.

    >>> products_pay(np.ones((3, 2, 8))), products_pay(np.ones((3, 2, 7)))
    (True, False)
    """
    _, rows, entries = tables.shape
    return bool(_SCARCE * rows <= entries)


def row_products(tables: Array) -> Array:
    """Return G of all clients, shape (clients, rows, rows).

    >>> row_products(np.array([[[3.0, 4.0]]]))
    array([[[25.]]])
    """
    products: Array = np.matmul(tables, tables.swapaxes(1, 2))
    return products


def steps_on_scores(
    steps: LocalPass, tables: Array, products: Array, ridge: Any, weigh: Callable[[Array], Array]
) -> Array:
    """Return the end of plain steps, shape (clients, d).

    Parameters
    ----------
    steps : LocalPass
    tables : array, shape (clients, rows, d)
        The rows of the clients that take the steps.
    products : array, shape (clients, rows, rows)
    ridge : float, or array of shape (clients, 1)
    weigh : function
        Returns the weights of the rows in the gradients without ridge, from the scores of shape
        (clients, rows).

    >>> A, b = np.array([[[1.0, 0.0, 0.0, 0.0]]]), np.array([[2.0]])
    >>> steps = LocalPass(np.ones(4), steps=2, rate=0.5)
    >>> steps_on_scores(steps, A, row_products(A), 0.0, lambda scores: scores - b)
    array([[1.75, 1.  , 1.  , 1.  ]])
    """
    d, step = tables.shape[2], steps.rate
    z, drift = steps.start.reshape(-1, d), _drift(steps, d)
    kept = 1.0 - step * (ridge + steps.shift)
    scores = _scores(tables, z)
    drifts = 0.0 if drift is None else _scores(tables, drift)
    weights = total = weigh(scores)
    power, elapsed = kept, 1.0
    for _ in range(steps.steps - 1):
        scores = kept * scores - step * (_sums(weights, products) + drifts)
        weights = weigh(scores)
        total = kept * total + weights
        power, elapsed = kept * power, kept * elapsed + 1.0
    change = _sums(total, tables)
    if drift is not None:
        change = change + elapsed * drift
    end: Array = power * z - step * change
    return end.astype(steps.start.dtype, copy=False)


def _drift(steps: LocalPass, d: int) -> Array | None:
    """Return the part added to each gradient that does not depend on x; None without it."""
    drift = steps.linear
    if drift is not None and steps.less is not None:
        drift = drift - steps.less
    if steps.shift and steps.center is not None:
        pull = steps.shift * steps.center
        drift = -pull if drift is None else drift - pull
    return None if drift is None else drift.reshape(-1, d)


def _scores(tables: Array, x: Array) -> Array:
    """Return <a, x> of each row, for models of shape (clients, d), or (1, d) for all clients."""
    if len(x) == 1:
        return np.matmul(tables, x[0])  # type: ignore[no-any-return]
    return np.matmul(tables, x[:, :, None])[:, :, 0]  # type: ignore[no-any-return]


def _sums(weights: Array, rows: Array) -> Array:
    """Return the sum of each client's rows, each times its weight."""
    return np.matmul(weights[:, None, :], rows)[:, 0]  # type: ignore[no-any-return]
