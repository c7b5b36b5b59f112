"""Losses of rows whose form has parameters of its own, which are fitted with the model."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.validation import Array


class MoreEntries(Objective):
    """(x, form) -> the mean loss of rows at x, for a loss of this form.

    Parameters
    ----------
    loss : a loss of class `takes`, or WithOffset of one
        Its own form is not used.
    more : int
        The number of entries of the form, the last of the model.
    """

    takes: ClassVar[Any]

    def __init__(self, loss: Any, more: int) -> None:
        inner = loss.loss if isinstance(loss, WithOffset) else loss
        if not isinstance(inner, self.takes) or inner.l2:
            raise ConfigError(
                f"{type(self).__name__} takes a {self.takes.__name__} without l2, got {loss!r}"
            )
        self.loss, self.inner, self.more = loss, inner, more
        self.columns = int(loss.shape[0])  # the entries that are not of the form
        self.shape, self.dtype = (loss.shape[0] + more,), inner.dtype
        self.num_examples, self.total_weight = inner.num_examples, inner.total_weight

    @abstractmethod
    def terms(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Return each row's loss and its derivatives in the form.

        Returns
        -------
        tuple of arrays
            The value, shape (m,); the derivatives in the form and the mixed ones in form and score,
            shape (m, more); and the second ones in the form, shape (m, more, more). With one entry
            all may have shape (m,).
        """

    @abstractmethod
    def formed(self, inner: Any, form: Array) -> None:
        """Give a copy of the loss this form."""

    @property
    def targets(self) -> Array:
        """The targets of the rows."""
        targets: Array = self.inner.targets
        return targets

    @property
    def weights(self) -> Array | None:
        """The weights of the rows, with mean 1; None if all are 1."""
        weights: Array | None = self.inner.weights
        return weights

    def scores(self, x: Array) -> Array:
        """Return <a_i, x>, offsets included."""
        at = x[: self.columns]
        if isinstance(self.loss, WithOffset):
            at = self.loss.full(at)
        scores: Array = self.inner._scores(at, self.inner.rows)
        return scores

    def _mean(self, values: Array) -> Any:
        w = self.inner.weights
        return values.mean(axis=0) if w is None else np.tensordot(w, values, 1) / len(w)

    def at(self, x: Array) -> Any:
        """Return the loss of this form."""
        inner = copy.copy(self.inner)
        self.formed(inner, x[self.columns :])
        if not isinstance(self.loss, WithOffset):
            return inner
        whole = copy.copy(self.loss)
        whole.loss = inner
        return whole

    def entry_curvatures(self) -> Array:
        """Return the approximate curvature along each entry."""
        return np.append(self.loss.entry_curvatures(), np.ones(self.more))

    def value(self, x: Array) -> float:
        """Return f(x)."""
        return float(self._mean(self.terms(x)[0]))

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x."""
        own = self.at(x).gradient(x[: self.columns])
        derivatives: Array = np.append(own, self._mean(self.terms(x)[1]))
        return derivatives

    def indefinite_hessian(self, x: Array) -> Array:
        """Return the matrix of second derivatives at x, unchanged: sums over clients need it."""
        d, p = self.shape[0], self.columns
        _, _, cross, curves = self.terms(x)
        matrix = np.empty((d, d), self.dtype)
        matrix[:p, :p] = self.at(x).hessian(x[:p])
        if not self.more:
            return matrix
        w = self.inner.weights
        counts = (cross.T if w is None else w * cross.T) / len(cross)
        pulled = np.stack([self.inner._pull(one, self.inner.rows) for one in np.atleast_2d(counts)])
        kept = self.loss.entries if isinstance(self.loss, WithOffset) else slice(None)
        matrix[p:, :p], matrix[:p, p:] = pulled[:, kept], pulled[:, kept].T
        matrix[p:, p:] = self._mean(curves)
        return matrix

    def subset(self, rows: Array) -> Self:
        """Return the same function on some rows (integers): a fold of the data."""
        part = object.__new__(type(self))
        MoreEntries.__init__(part, self.loss.subset(rows), self.more)
        return part


__all__ = ["MoreEntries"]
