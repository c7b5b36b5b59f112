"""Linear models over rows of data, which are an array or a sparse matrix."""

from __future__ import annotations

import copy
import sys
from abc import abstractmethod
from typing import Any, Self

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.validation import Array, float_array

_GRAM = 2000  # rows or columns of a sparse matrix, up to which its Gram matrix is made


def is_sparse(A: object) -> bool:
    """Return whether A is one of SciPy's sparse matrices or arrays."""
    scipy_sparse = sys.modules.get("scipy.sparse")  # where nobody has loaded it, nothing is
    return scipy_sparse is not None and bool(scipy_sparse.issparse(A))


class LinearModel(Objective):
    """The mean over rows a_i of w_i loss(<a_i, x>, target_i), plus l2/2 ||x||^2.

    A subclass sets `targets` and defines the private functions of the scores <a_i, x>.

    Parameters
    ----------
    A : array of shape (m, *model shape), or SciPy sparse matrix of shape (m, d)
        A sparse one is kept as CSR.
    sample_weight : array, shape (m,), optional
        Weights >= 0 of the rows, of any positive sum: the mean is the weighted one.
    intercept : bool (default: False)
        Whether the model has one entry more, the last one, that is added to every score and that
        l2 leaves free; then `rows` have a last entry 1.
    """

    rows: Any
    targets: Array
    l2: float = 0.0
    weights: Array | None
    """w_i, with mean 1; None where all are."""

    def __init__(self, A: Any, *, sample_weight: object = None, intercept: bool = False) -> None:
        name = f"{type(self).__name__}(A)"
        if is_sparse(A):
            array = A.tocsr()
            array = array.astype(np.float32 if array.dtype == np.float32 else np.float64)
            float_array(f"{name}.data", array.data)
        else:
            array = float_array(name, A)
        if array.ndim < 2 or 0 in array.shape:
            raise ConfigError(
                f"{name} must have shape (examples, *model shape), all >= 1, got {array.shape}"
            )
        if intercept and array.ndim > 2:
            raise ConfigError(f"{name} must have 2 axes for intercept=True, got {array.shape}")
        self.num_examples = array.shape[0]
        self.intercept = bool(intercept)
        self.dtype = array.dtype
        if intercept:
            array = _with_ones(array)
        self.shape = self._row_shape = array.shape[1:]
        self.rows = array if is_sparse(array) else array.reshape(len(array), -1)
        self.weights, self.total_weight = None, float(self.num_examples)
        if sample_weight is not None:
            self._weigh(sample_weight)

    def subset(self, rows: Array) -> Self:
        """Return the same function of some rows alone (integers): a fold of the data."""
        part = copy.copy(self)
        part.__dict__.pop("_constants", None)
        part.rows, part.targets = self.rows[rows], self.targets[rows]
        part.num_examples = len(part.targets)
        part.weights, part.total_weight = None, float(part.num_examples)
        if self.weights is not None:
            part._weigh(self.weights[rows] * (self.total_weight / self.num_examples))
        return part

    def _weigh(self, sample_weight: object) -> None:
        name = f"{type(self).__name__}(sample_weight)"
        weights = self._match("sample_weight", float_array(name, sample_weight))
        if (weights < 0).any() or not weights.any():
            bad = weights.min()
            raise ConfigError(f"{name} must be >= 0 and not all 0, got a smallest of {bad:g}")
        self.total_weight = float(weights.sum())
        self.weights = (weights * (self.num_examples / self.total_weight)).astype(self.dtype)

    @property
    def sparse(self) -> bool:
        """Whether the data are a sparse matrix."""
        return not isinstance(self.rows, np.ndarray)

    @property
    def A(self) -> Any:  # noqa: N802
        """The data, in the shape in which they were given."""
        rows = self.rows[:, :-1] if self.intercept else self.rows
        if self.sparse or self.intercept:
            return rows
        return rows.reshape((self.num_examples, *self._row_shape))

    def _match(self, name: str, targets: Array) -> Array:
        if targets.shape != (self.num_examples,):
            raise ConfigError(
                f"{type(self).__name__}: A has {self.num_examples} rows, so {name} must have "
                f"shape ({self.num_examples},), got {targets.shape}"
            )
        return targets

    def _loss(self, scores: Array) -> float:
        """Return the mean loss over all rows."""
        return float(self._weighted(self._losses(scores, self.targets)).mean())

    def _losses(self, scores: Array, targets: Array) -> Array:
        """Return each row's loss."""
        raise NotImplementedError

    @abstractmethod
    def _pull_back(self, scores: Array, rows: Any, targets: Array, weights: Array | None) -> Array:
        """Return the gradient of the mean loss in the shape of x; may overwrite `scores`."""

    def _slopes(self, scores: Array, targets: Array) -> Array:
        """Return the derivative of each row's loss in its score, shape of the scores."""
        raise NotImplementedError

    def _curvatures(self, scores: Array) -> Array:
        """Return the second derivative of each row's loss in its score."""
        raise NotImplementedError

    def _scores(self, x: Array, rows: Any) -> Array:
        """Return <a_i, x> for each row in a new array."""
        scores: Array = rows.dot(x.reshape(-1))
        return scores

    def value(self, x: Array) -> float:
        """Return f(x)."""
        self._expect(x)
        return self._loss(self._scores(x, self.rows)) + self._ridge(x)

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x, in the shape of x."""
        return self._gradient(x, self.rows, self.targets, self.weights)

    def batch_gradient(self, x: Array, rows: Array) -> Array:
        """Return the gradient at x of the mean over `rows` (integers), l2 included."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.size == 0 or rows.dtype.kind not in "iu":
            raise ConfigError("rows must be a one-dimensional, non-empty array of integers")
        weights = None if self.weights is None else self.weights[rows]
        if self.sparse:
            data = self.rows[rows]
        else:  # in three quarters of the time of an index
            data = self.rows.take(rows.astype(np.intp, copy=False), 0)
        return self._gradient(x, data, self.targets[rows], weights)

    def clipped_sum(self, x: Array, clip: float, rows: Array) -> Array:
        """Return the sum over `rows` of their losses' gradients, each of norm at most `clip`.

        A row's gradient is its slope times the row, so that its norm needs no gradient. l2 is no
        part of it.

        Parameters
        ----------
        x : array of `shape`
        clip : float
            > 0; a longer gradient is shortened to it.
        rows : array of int
        """
        self._expect(x)
        data = self.rows[rows]
        slopes = self._slopes(self._scores(x, data), self.targets[rows])
        squares = data.multiply(data).sum(axis=1) if self.sparse else np.square(data).sum(axis=1)
        squares = np.asarray(squares).reshape(-1)
        norms = np.sqrt(squares + data.shape[1] * np.finfo(self.dtype).tiny)  # lost by squaring
        norms *= np.sqrt(np.square(slopes).sum(axis=0)) if slopes.ndim > 1 else np.abs(slopes)
        slopes *= clip / np.maximum(norms, clip)
        slopes[..., ~np.isfinite(norms)] = 0.0  # of a row too long for arithmetic nothing is left
        return self._pull(slopes, data)

    def _pull(self, slopes: Array, rows: Any) -> Array:
        """Return the sum of the rows, each times its slope, in the shape of x."""
        return pull(slopes, rows).reshape(self.shape)

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return f(x) and the gradient at x, which share a product with the data."""
        self._expect(x)
        scores = self._scores(x, self.rows)
        value = self._loss(scores) + self._ridge(x)
        gradient = self._pull_back(scores, self.rows, self.targets, self.weights)
        return value, self._add_ridge(gradient, x)

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x, of the flattened model.

        Parameters
        ----------
        x : array of `shape`
        columns : array of int, shape (k,), optional
            Which entries of the flattened model count; all by default.

        Returns
        -------
        array, shape (k, k)
        """
        self._expect(x)
        curvatures = self._curvatures(self._scores(x, self.rows))
        hessian = self._gram(self._weighted(curvatures) / self.num_examples, columns)
        return self._add_l2(hessian, columns)

    def _gram(self, curvatures: Array, columns: Array | None) -> Array:
        """Return the sum over rows of curvature_i a_i a_i'."""
        rows = self.rows if columns is None else self.rows[:, columns]
        gram: Array
        if self.sparse:
            gram = (rows.T @ rows.multiply(curvatures[:, None])).toarray()
        else:
            gram = rows.T @ (curvatures[:, None] * rows)
        return gram

    def _add_l2(self, hessian: Array, columns: Array | None) -> Array:
        if self.l2:
            ridge = np.full(self.shape, self.l2, hessian.dtype)
            if self.intercept:
                ridge[-1] = 0.0
            chosen = ridge.reshape(-1) if columns is None else ridge.reshape(-1)[columns]
            hessian[np.diag_indices_from(hessian)] += chosen
        return hessian

    def _weighted(self, values: Array) -> Array:
        """Return values of the rows times their weights."""
        return values if self.weights is None else values * self.weights

    def _gradient(self, x: Array, rows: Any, targets: Array, weights: Array | None) -> Array:
        self._expect(x)
        return self._add_ridge(self._pull_back(self._scores(x, rows), rows, targets, weights), x)

    def _add_ridge(self, gradient: Array, x: Array) -> Array:
        if self.l2 and self.intercept:
            gradient[:-1] += self.l2 * x[:-1]
        elif self.l2:
            gradient += self.l2 * x
        return gradient

    def _ridge(self, x: Array) -> float:
        if not self.l2:
            return 0.0
        x = x[:-1] if self.intercept else x
        return 0.5 * self.l2 * float(np.vdot(x, x))

    @property
    def _mu(self) -> float:
        """What l2 alone gives as strong convexity."""
        return 0.0 if self.intercept else self.l2

    def _expect(self, x: Array) -> None:
        if x.shape != self.shape:
            raise ConfigError(f"{type(self).__name__} takes x of shape {self.shape}, got {x.shape}")

    def _singular_squares(self) -> tuple[float, float]:
        """Return sigma_max^2 and sigma_min^2 of the rows times the roots of their weights.

        The second is 0 with fewer rows than entries of x, and for a large sparse matrix.
        """
        rows = self.rows.astype(np.float64, copy=False)
        m, d = rows.shape
        if self.weights is not None:
            root = np.sqrt(self.weights.astype(np.float64))[:, None]
            rows = rows.multiply(root).tocsr() if self.sparse else rows * root
        if self.sparse and min(m, d) > _GRAM:
            from scipy.sparse.linalg import norm

            # ||A||_2^2 is at most ||A||_1 ||A||_inf, and at most ||A||_F^2.
            return min(norm(rows, 1) * norm(rows, np.inf), norm(rows) ** 2), 0.0
        gram = rows @ rows.T if m < d else rows.T @ rows
        squares = eigenvalues(gram.toarray() if self.sparse else gram)
        top = max(float(squares[-1]), 0.0)
        # Below the product's rounding errors the smallest one cannot be told from 0.
        known = m >= d and squares[0] > d * np.finfo(np.float64).eps * top
        return top, float(squares[0]) if known else 0.0


def eigenvalues(products: Array) -> Array:
    """Return the eigenvalues of the rows' products, ascending.

    Raises
    ------
    ConfigError
        If these are not finite.
    """
    if not np.isfinite(products).all():
        raise ConfigError(
            "the squares of the data's entries overflow: divide the columns by their largest "
            "entries, say"
        )
    return np.linalg.eigvalsh(products)


def pull(weights: Array, rows: Any) -> Array:
    """Return the sum of the rows, each times its weight."""
    product: Array = weights.dot(rows) if isinstance(rows, np.ndarray) else rows.T.dot(weights)
    return product


def _with_ones(array: Any) -> Any:
    """Return rows with a last entry 1."""
    ones = np.ones((array.shape[0], 1), array.dtype)
    if isinstance(array, np.ndarray):
        return np.concatenate([array, ones], axis=1)
    from scipy.sparse import hstack

    return hstack([array, ones], format="csr")
