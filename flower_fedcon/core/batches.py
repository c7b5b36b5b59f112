"""The minibatches of one local pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.core.rng import EPOCH, stream
from flower_fedcon.solvers.stochastic import SGD
from flower_fedcon.validation import Array

ORDER, ORDERS = "batch_order", ("round", "epoch")


def minibatch(batch_size: int | None, local_solver: object) -> int | None:
    """Return the rows in a method's minibatches, by either argument; None for all rows.

    >>> minibatch(None, SGD(epochs=1, batch_size=8, lr=0.1)), minibatch(None, None)
    (8, None)
    """
    return local_solver.batch_size if isinstance(local_solver, SGD) else batch_size


def rows_of_gradients(objective: Any, size: int | None) -> tuple[int, int]:
    """Return how many rows a full gradient and a minibatch's gradient use.

    >>> from flower_fedcon.objectives import LeastSquares
    >>> rows_of_gradients(LeastSquares(np.ones((5, 1)), np.ones(5)), 2)
    (5, 2)
    """
    full = int(getattr(objective, "num_examples", 1))
    return full, full if size is None else min(size, full)


class EpochRows:
    """The rows of minibatches whose epochs continue over rounds, each in a new order.

    Round t takes batches (t - 1) K, (t - 1) K + 1, ... of a client's sequence, where an epoch has
    floor(m / size) batches. A client that takes part in every round uses each row once in an epoch,
    except the m mod size rows that are left over at the end of its order.

    Parameters
    ----------
    seed : int
        The run's.
    each : int
        K, the batches of a round.

    >>> rows = EpochRows(seed=0, each=2)
    >>> first = [rows.of(0, server_round, k, 8, 2) for server_round in (1, 2) for k in (0, 1)]
    >>> sorted(np.concatenate(first).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(self, seed: int, each: int) -> None:
        self._seed, self._each = seed, each
        self._known: dict[int, tuple[int, Array]] = {}  # the order of an epoch, for each client

    def of(self, client: int, server_round: int, k: int, rows: int, size: int) -> Array:
        """Return the rows of a client's batch k, from 0, in a round."""
        number = (server_round - 1) * self._each + k
        epoch, place = divmod(number, rows // size)
        last, order = self._known.get(client, (-1, np.empty(0, np.intp)))
        if last != epoch:
            order = stream(self._seed, EPOCH, epoch, client).permutation(rows)
            self._known[client] = epoch, order
        return order[place * size : (place + 1) * size]


class Batches:
    """Gradients on a client's next rows: each pass goes over all rows in a new order.

    Parameters
    ----------
    objective : object
        With `batch_gradient(x, rows)`, or else with `stochastic_gradient(x, rng, batch_size)`.
    size : int or None
        Rows in each batch; all, if None.
    rng : numpy.random.Generator
    rows : callable, optional
        Returns the rows of batch k, from 0; then no orders are drawn.
    """

    def __init__(
        self,
        objective: Any,
        size: int | None,
        rng: np.random.Generator,
        rows: Callable[[int, int, int], Array] | None = None,
    ) -> None:
        self._objective, self._size, self._rng = objective, size, rng
        self._rows, self._asked = rows, 0
        self._order = np.empty(0, dtype=np.intp)
        self._last: Array | None = None

    def gradient(self, v: Array) -> Array:
        """Return the gradient of the next batch at `v`."""
        objective = self._objective
        if not hasattr(objective, "batch_gradient"):
            return objective.stochastic_gradient(v, self._rng, self._size)  # type: ignore[no-any-return]
        self._last = self.next_rows()
        return self.again(v)

    def again(self, v: Array) -> Array:
        """Return the last batch's gradient at `v`; the objective must have `batch_gradient`."""
        if self._last is None:
            return self._objective.gradient(v)  # type: ignore[no-any-return]
        return self._objective.batch_gradient(v, self._last)  # type: ignore[no-any-return]

    def next_rows(self) -> Array | None:
        """Return the rows of the next batch; None for all."""
        m, size = int(self._objective.num_examples), self._size
        if size is None or size >= m:
            return None
        if self._rows is not None:
            self._asked += 1
            return self._rows(self._asked - 1, m, size)
        if len(self._order) < size:  # the pass is over: fewer rows than a batch are left
            self._order = self._rng.permutation(m)
        rows, self._order = self._order[:size], self._order[size:]
        return rows
