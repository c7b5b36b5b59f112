"""The profile likelihood of a loss of rows in which each site has some own coefficients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.losses import LeastSquares, LogisticRegression, PoissonRegression
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.validation import Array

_KINDS = (LeastSquares, LogisticRegression, PoissonRegression)
_STEPS = 200
_HALVINGS = 40
_NEAR = 1e-8  # a relative step of scores: after it the next one is rounding
_NOTHING = 1e-20  # the gain of a step in the mean loss that counts as 0
_FAR = 5.0  # the least bound on a step of scores
_ROUNDING = 1e-13  # a share of an entry's curvature that counts as 0
_ALIKE = 1e-12  # an eigenvalue, of scaled columns, that counts as 0


class Profiled(Objective):
    """x -> min over a of f(x, a): each site eliminates its own coefficients a.

    By default a is the intercept. Value, gradient and second derivatives (the Schur complement of
    those of f) are exact: their sum over sites is the profile of the common likelihood, and a stays
    at its site.

    Parameters
    ----------
    loss : LeastSquares, LogisticRegression or PoissonRegression, or WithOffset of one
        f, without l2.
    own : sequence of int (default: the last)
        The entries of f's model that belong to the site.

    Raises
    ------
    ConfigError
        If f is another loss.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastSquares, Profiled
    >>> A, b = np.array([[0.0], [1.0], [2.0]]), np.array([10.0, 12.0, 14.0])
    >>> f = Profiled(LeastSquares(A, b, intercept=True))
    >>> f.shape, f.gradient(np.array([2.0])).round(12), f.hessian(np.array([2.0])).round(12)
    ((1,), array([0.]), array([[0.66666667]]))
    >>> f.coefficients(np.array([2.0])).round(12)  # known here alone
    array([10.])
    """

    def __init__(self, loss: Any, own: Sequence[int] = (-1,)) -> None:
        core = loss.loss if isinstance(loss, WithOffset) else loss
        if type(core) not in _KINDS or len(core.shape) != 1:
            names = ", ".join(kind.__name__ for kind in _KINDS)
            raise ConfigError(
                f"each site's own coefficients are for {names}, with one output a row, got "
                f"{type(core).__name__} of shape {getattr(core, 'shape', None)}"
            )
        if core.l2:
            raise ConfigError(
                f"a site's own coefficients are not penalised, and the loss has l2 = {core.l2:g}: "
                f"leave l2 out, and penalise the others by the method's regularizer"
            )
        self.loss, self._core = loss, core
        places = np.arange(loss.shape[0])
        self.own: Array = np.unique(places[list(own)])
        self.entries: Array = np.delete(places, self.own)
        columns = loss.entries if isinstance(loss, WithOffset) else places
        self._shared, self._mine = columns[self.entries], columns[self.own]
        mine = core.rows[:, self._mine]
        self._rows: Array = mine.toarray() if core.sparse else np.asarray(mine)
        self.shape, self.dtype = (len(self.entries),), core.dtype
        self.num_examples, self.total_weight = core.num_examples, core.total_weight
        self.separable = type(core).separable
        self.clusters: Array | None = None
        self._last: tuple[Array, Array, Array] | None = None

    @property
    def targets(self) -> Array:
        """The targets of the rows."""
        return self._core.targets

    @property
    def weights(self) -> Array | None:
        """The weights of the rows, with mean 1; None if all are 1."""
        return self._core.weights

    @property
    def informative(self) -> bool:
        """Whether the rows carry information on x.

        They carry none if the site's own intercept is infinite: if all outcomes are equal
        (logistic), or all 0 (Poisson).
        """
        if self._constant is None or isinstance(self._core, LeastSquares):
            return True
        y = self.targets if self.weights is None else self.targets[self.weights > 0]
        if isinstance(self._core, PoissonRegression):
            return bool(y.max(initial=0.0) > 0)
        return bool((y != y[0]).any())

    @property
    def own_count(self) -> int:
        """The number of own coefficients that the rows determine; 0 if not `informative`."""
        if not self.informative:
            return 0
        share = np.ones(self.num_examples) if self.weights is None else self.weights
        return pseudo_inverse((self._rows * share[:, None]).T @ self._rows)[1]

    @property
    def _constant(self) -> int | None:
        """The own column that is an intercept, if any."""
        alike = np.flatnonzero((self._rows == 1.0).all(axis=0))
        return int(alike[0]) if alike.size else None

    def coefficients(self, x: Array) -> Array:
        """Return a, the site's own coefficients at x, shape (own,): they stay at the site."""
        return self._solved(x)[0].copy()

    def full(self, x: Array) -> Array:
        """Return the model of the loss: x, with the own coefficients at x."""
        whole = np.empty(self.loss.shape, np.float64)
        whole[self.entries], whole[self.own] = x, self._solved(x)[0]
        return whole

    def value(self, x: Array) -> float:
        """Return f(x)."""
        if not self.informative:
            return 0.0
        return float(self._core._mean(self._solved(x)[1]))

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x."""
        if not self.informative:
            return np.zeros(self.shape, self.dtype)
        counts = self._core.row_weights(self._solved(x)[1])
        derivatives: Array = self._core._pull(counts, self._core.rows)[self._shared]
        return derivatives

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x; see `LogisticRegression.hessian`."""
        kept = self._shared if columns is None else self._shared[columns]
        k = len(kept)
        if not self.informative:
            return np.zeros((k, k), self.dtype)
        both = np.concatenate([kept, self._mine])
        whole = self._core._gram(self._curvatures(self._solved(x)[1]), both)
        matrix: Array = (
            whole[:k, :k] - whole[:k, k:] @ pseudo_inverse(whole[k:, k:])[0] @ whole[k:, :k]
        )
        none = np.diag(matrix) <= _ROUNDING * np.diag(whole)[:k]  # explained by the own columns
        matrix[none] = matrix[:, none] = 0.0
        even: Array = 0.5 * (matrix + matrix.T)
        return even

    def entry_curvatures(self) -> Array:
        """Return the approximate curvature along each entry (centred for an own intercept)."""
        core = self._core
        curves: Array = core.entry_curvatures()[self._shared]
        if self._constant is None:
            return curves
        counts = np.broadcast_to(core.usual_curvatures(), self.num_examples) * (
            core.scale / self.num_examples
        )
        counts = counts if self.weights is None else counts * self.weights
        sums = core._pull(counts.astype(core.dtype), core.rows)[self._shared]
        centred: Array = curves - np.square(sums) / max(float(counts.sum()), np.finfo(float).tiny)
        return np.maximum(centred, 1e-9 * curves, out=centred)

    def at(self, x: Array) -> WithOffset:
        """Return a loss that has the value, the gradient and the second derivatives at x.

        Its columns are those of x minus their projection on the own ones, and its offsets give the
        scores at x. Everything computed from its rows, such as robust standard errors, is therefore
        that of the profile.
        """
        core, (_, scores, _) = self._core, self._solved(x)
        whole = core._gram(self._curvatures(scores), np.concatenate([self._mine, self._shared]))
        k = len(self._mine)
        explained = pseudo_inverse(whole[:k, :k])[0] @ whole[:k, k:]
        rows = core.rows[:, self._shared]
        rows = (rows.toarray() if core.sparse else rows) - self._rows @ explained
        squares = np.diag(whole)[k:]
        left = np.einsum("i,ij,ij->j", self._curvatures(scores), rows, rows)
        rows[:, left <= _ROUNDING * _ROUNDING * squares] = 0.0

        def kind(A: Array) -> LinearModel:
            more = {"scale": core.scale} if isinstance(core, LeastSquares) else {}
            weight = core.given_weights
            made: LinearModel = type(core)(A, core.targets, sample_weight=weight, **more)
            return made

        loss = WithOffset(kind, rows, scores - rows @ x)
        loss.clusters = self.clusters
        return loss

    def _curvatures(self, scores: Array) -> Array:
        core = self._core
        curvatures: Array = core.curvature(scores, core.targets) * (core.scale / self.num_examples)
        return curvatures if core.weights is None else curvatures * core.weights

    def _solved(self, x: Array) -> tuple[Array, Array, Array]:
        """Return the own coefficients at x, the rows' scores, and x."""
        if self._last is None or not np.array_equal(self._last[2], x):
            whole = np.zeros(self._core.shape, np.float64)
            if isinstance(self.loss, WithOffset):
                whole = self.loss.full(np.zeros(self.loss.shape))
            whole[self._shared] = x
            base = self._core._scores(whole, self._core.rows)
            coefficients = self._minimum(base) if self.informative else np.zeros(len(self.own))
            self._last = coefficients, base + self._rows @ coefficients, np.array(x)
        return self._last

    def _minimum(self, base: Array) -> Array:
        """Return the own coefficients for these scores, by Newton's method with halving."""
        core, Z = self._core, self._rows
        a = self._start(base)
        scores = base + Z @ a
        value = float(core._mean(scores))
        far = max(_FAR, float(np.ptp(base)))
        for _ in range(_STEPS):
            slope = core.row_weights(scores) @ Z
            inverse, _ = pseudo_inverse((Z * self._curvatures(scores)[:, None]).T @ Z)
            step = -inverse @ slope
            gain = -float(slope @ step)
            move = Z @ step
            length = float(np.abs(move).max())
            if not length:
                break
            if length > far and not isinstance(core, LeastSquares):
                step, move = step * (far / length), move * (far / length)
            share = 1.0
            for _ in range(_HALVINGS):
                tried = float(core._mean(scores + share * move))
                if tried <= value + 1e-14 * abs(value):
                    break
                share *= 0.5
            a, value = a + share * step, tried
            scores = base + Z @ a
            if length <= _NEAR * (1.0 + float(np.abs(scores).max())) or gain <= _NOTHING:
                break
        return a

    def _start(self, base: Array) -> Array:
        a = np.zeros(len(self.own))
        if (place := self._constant) is None or isinstance(self._core, LeastSquares):
            return a
        w = np.ones(self.num_examples) if self.weights is None else self.weights
        mean = float(w @ self.targets) / float(w.sum())
        if isinstance(self._core, PoissonRegression):  # exact without other own coefficients
            top = float(base[w > 0].max())
            a[place] = math.log(mean) - top - math.log(float(w @ np.exp(base - top)) / w.sum())
        else:
            a[place] = math.log1p(mean) - math.log1p(-mean) - float(w @ base) / float(w.sum())
        return a

    def _curvature(self) -> tuple[float | None, float | None]:
        return self.loss.smoothness if self.informative else 0.0, 0.0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}  # recomputed when needed


def pseudo_inverse(square: Array) -> tuple[Array, int]:
    """Return the pseudo-inverse of a small symmetric matrix, and its rank."""
    diagonal = np.diag(square)
    sizes = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(square / sizes / sizes[:, None])
    kept = values > _ALIKE
    vectors = vectors[:, kept] / sizes[:, None]
    return (vectors / values[kept]) @ vectors.T, int(kept.sum())


__all__ = ["Profiled"]
