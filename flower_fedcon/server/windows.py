"""Windows of rounds: what the server and each client keep of the one that is under way.

At the end of a window the server amplifies the change of the model since its start. A client's
control variate stays the same within a window, while the mean of its gradients is formed that
replaces it. Both sides compute this mean by the same operations, so their copies are equal bit by
bit. The arrays of several clients may be stacked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.validation import Array


class Window(NamedTuple):
    """The server's note of the window that is under way."""

    start: Array  # the model at its start, shape of x0
    rounds: int  # the rounds of the run so far


class WindowMeans(NamedTuple):
    """What a client keeps in a window.

    Attributes
    ----------
    c : array
        Its control variate.
    mean : array, shape of c
        The mean of its gradients in this window; c before the first.
    seen : array, the model's shape with one entry along each axis
        How many rounds it has taken part in.
    window : array, shape of seen
        The number of the window.

    Examples
    --------
    >>> held = WindowMeans(np.zeros(2), np.zeros(2), np.zeros(1), np.zeros(1))
    >>> for gradient in (np.array([1.0, 2.0]), np.array([3.0, 6.0])):
    ...     held = held.after(held.change(gradient - held.c))
    >>> held.c, held.mean, held.at(1).c
    (array([0., 0.]), array([2., 4.]), array([2., 4.]))
    """

    c: Array
    mean: Array
    seen: Array
    window: Array

    @classmethod
    def of(cls, c: Array, axes: tuple[int, ...], window: Any = 0) -> WindowMeans:
        """Return what clients with this control variate keep before their first round.

        `axes` are those of the model, counted from the last.
        """
        none = np.zeros_like(c).sum(axis=axes, keepdims=True)
        return cls(c, c, none, none + window)

    def at(self, window: Any) -> WindowMeans:
        """Return it in a window: in a new one the mean of the earlier one is the variate."""
        same, none = self.window == window, 0.0 * self.seen
        c, seen = np.where(same, self.c, self.mean), np.where(same, self.seen, none)
        return WindowMeans(c, self.mean, seen, none + window)

    def change(self, dc: Array) -> Array:
        """Return by how much the mean changes with a round's gradient, c + dc."""
        change: Array = (dc + (self.c - self.mean)) / (self.seen + 1.0)
        return change

    def after(self, change: Array) -> WindowMeans:
        """Return it after a round that changes the mean by this."""
        return self._replace(mean=self.mean + change, seen=self.seen + 1.0)
