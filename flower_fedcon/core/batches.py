"""The minibatches of one local pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.validation import Array


class Batches:
    """Gradients of a client's next rows: a pass over all of them, then another, in new orders.

    Parameters
    ----------
    objective : object
        With `batch_gradient(x, rows)`, or else with `stochastic_gradient(x, rng, batch_size)`.
    size : int or None
        Rows in each batch; all, if None.
    rng : numpy.random.Generator
    """

    def __init__(self, objective: Any, size: int | None, rng: np.random.Generator) -> None:
        self._objective, self._size, self._rng = objective, size, rng
        self._order = np.empty(0, dtype=np.intp)

    def gradient(self, v: Array) -> Array:
        """Return the gradient of the next batch at `v`."""
        objective = self._objective
        if not hasattr(objective, "batch_gradient"):
            return objective.stochastic_gradient(v, self._rng, self._size)  # type: ignore[no-any-return]
        rows = self.next_rows()
        if rows is None:
            return objective.gradient(v)  # type: ignore[no-any-return]
        return objective.batch_gradient(v, rows)  # type: ignore[no-any-return]

    def next_rows(self) -> Array | None:
        """Return the rows of the next batch; None for all."""
        m, size = int(self._objective.num_examples), self._size
        if size is None or size >= m:
            return None
        if len(self._order) < size:  # a pass is over: what is left is less than a batch
            self._order = self._rng.permutation(m)
        rows, self._order = self._order[:size], self._order[size:]
        return rows
