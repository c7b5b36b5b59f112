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
    size : int
        Rows in each batch.
    rng : numpy.random.Generator
    """

    def __init__(self, objective: Any, size: int, rng: np.random.Generator) -> None:
        self._objective, self._size, self._rng = objective, size, rng
        self._order = np.empty(0, dtype=np.intp)

    def gradient(self, v: Array) -> Array:
        """Return the gradient of the next batch at `v`."""
        objective, size = self._objective, self._size
        if not hasattr(objective, "batch_gradient"):
            return objective.stochastic_gradient(v, self._rng, size)  # type: ignore[no-any-return]
        m = int(objective.num_examples)
        if size >= m:
            return objective.gradient(v)  # type: ignore[no-any-return]
        if len(self._order) < size:  # a pass is over: what is left is less than a batch
            self._order = self._rng.permutation(m)
        rows, self._order = self._order[:size], self._order[size:]
        return objective.batch_gradient(v, rows)  # type: ignore[no-any-return]
