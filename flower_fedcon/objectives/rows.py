"""Losses of linear models over rows of data, of one client or of many along a leading axis."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from flower_fedcon.arrays import dot, is_array, times, wide
from flower_fedcon.errors import ConfigError, printable
from flower_fedcon.objectives.base import Objective, places_of_rows
from flower_fedcon.objectives.client_axis import (
    Stackable,
    Which,
    chosen,
    per_client,
    places,
    together,
)
from flower_fedcon.objectives.read_attributes import attributes_read
from flower_fedcon.objectives.set_aside import SetAside, is_ours, owner_of, set_losses_aside
from flower_fedcon.validation import Array, float_array, nonnegative, total

_SQUARED = 2**18  # entries whose squares are kept at a time
_THREE = ("loss", "slope", "curvature")
_FORMER = {"losses": "loss", "slopes": "slope"}
_PROBED = 16  # rows
_GRAM = 2000  # rows or columns of a sparse matrix up to which its Gram matrix is made
_TOP = 0.025  # relative error of the largest eigenvalue of a large Gram matrix
_DATA = ("rows", "targets", "weights")  # arrays with an axis of rows
_NUMBERS = ("scale", "l2")  # of each client
_SAID = {
    *_DATA,
    *_NUMBERS,
    "clusters",
    "total_weight",
    "num_examples",
    "_constants",
    "clients",
    "_bound",
}
_FORM = ("shape", "dtype", "intercept", "_row_shape", "_plain")


def is_sparse(A: object) -> bool:
    """Return whether A is one of SciPy's sparse matrices or arrays."""
    scipy_sparse = sys.modules.get("scipy.sparse")  # without it loaded, nothing is sparse
    return scipy_sparse is not None and bool(scipy_sparse.issparse(A))


class LinearModel(Objective, Stackable):
    """scale times the mean over rows a_i of w_i loss(<a_i, x>, target_i), plus l2/2 ||x||^2.

    A subclass defines three functions of scores <a_i, x> and targets, entry by entry: `loss`,
    `slope` and `curvature`. They serve one client, many clients along a leading axis, and compiled
    rounds, and must change no array in place. They may also use numbers of the object, which must
    be equal for all clients.

    Many clients form one such object (see `along_axis`) whose arrays have a leading axis. x is then
    one point for all, or has that axis, too; values have shape (clients,).

    Parameters
    ----------
    A : array of shape (m, *model shape), or SciPy sparse matrix of shape (m, d)
        A sparse one is kept as CSR. The data are copied unless they are read-only: an array with
        ``A.flags.writeable = False``, or a file opened by ``np.load(name, mmap_mode="r")``.
    targets : array, shape (m,)
    l2 : float
        >= 0.
    sample_weight : array, shape (m,), optional
        Weights >= 0 of the rows, of any positive sum: the mean is the weighted one.
    intercept : bool (default: False)
        Whether the model has one more entry, the last, which is added to every score and which l2
        leaves free. `rows` then have a last entry 1.
    """

    target_name: ClassVar[str] = "targets"
    curvatures: ClassVar[tuple[float, float | None]] = (0.0, None)
    """Bounds of `curvature`; None without a bound: `smoothness` is then unknown."""
    separable: ClassVar[bool] = False
    """Whether the loss can decrease forever on some data: see `flower_fedcon.solvers.runaway`."""
    clusters: Array | None = None
    """The cluster of each row, from 0, for standard errors by cluster."""
    clients: int | None = None
    """The number of clients, if arrays have an axis for them."""
    rows: Any
    targets: Array
    l2: Any = 0.0
    scale: Any = 1.0
    weights: Array | None
    """w_i, with mean 1; None if all are 1."""
    _plain: bool  # whether one client's scores are the product of its rows and a vector
    _several = False  # whether a row has one score for each column of the model: a matrix
    _bound: Array | None = None  # with an intercept: 0 for it, 1 for entries under l2

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _expect_new_names(cls)
        set_losses_aside(cls, LinearModel)

    def __init__(
        self,
        A: Any,
        targets: Any,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        name = f"{type(self).__name__}(A)"
        if is_sparse(A):
            array = A.tocsr(copy=True)  # as a writable array is
            array.sum_duplicates()  # an entry that occurs twice counts as the sum
            single = array.dtype == np.float32
            array = array.astype(np.float32 if single else np.float64, copy=False)
            float_array(f"{name}.data", array.data, keep=False)
        else:
            array = float_array(name, A, keep=not intercept)
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
        if intercept:
            self._bound = np.ones(self.shape, self.dtype)
            self._bound[-1] = 0.0
        self.rows = array if array.ndim == 2 else array.reshape(len(array), -1)
        self._plain = array.ndim == 2 and not is_sparse(array)
        self.targets = self._checked(targets)
        self.l2 = nonnegative(f"{type(self).__name__}(l2)", l2)
        self.weights, self.total_weight = None, float(self.num_examples)
        if sample_weight is not None:
            self._weigh(sample_weight)

    # --- the three functions ---------------------------------------------------------------------

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return each row's loss."""
        raise NotImplementedError

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return the derivative of each row's loss in its score, in a new array."""
        raise NotImplementedError

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return the second derivative of each row's loss in its score."""
        raise NotImplementedError

    # --- data ------------------------------------------------------------------------------------

    def _give_columns(self, number: int) -> None:
        """Make the model a matrix, which gives each row as many scores as it has columns.

        Scores then have shape (..., columns, rows), so that sums over columns read memory in order.
        """
        self.shape, self._plain = (self.shape[0], number), False
        if self._bound is not None:
            self._bound = self._bound[:, None]

    def _checked(self, targets: Any) -> Array:
        """Return the targets as an array, of the type of A."""
        name = self.target_name
        array = float_array(f"{type(self).__name__}({name})", targets)
        return self._match(name, array).astype(self.dtype, copy=False)

    def _match(self, name: str, targets: Array) -> Array:
        if targets.shape != (self.num_examples,):
            raise ConfigError(
                f"{type(self).__name__}: A has {self.num_examples} rows, so {name} must have "
                f"shape ({self.num_examples},), got {targets.shape}"
            )
        return targets

    def _weigh(self, sample_weight: object) -> None:
        name = f"{type(self).__name__}(sample_weight)"
        weights = self._match("sample_weight", float_array(name, sample_weight, keep=False))
        self.total_weight = total(name, weights)
        self.weights = (weights * (self.num_examples / self.total_weight)).astype(self.dtype)

    @property
    def given_weights(self) -> Array | None:
        """The weights of the rows as given, which count rows; None if all are 1."""
        if self.weights is None:
            return None
        weights = np.asarray(self.weights, np.float64)
        given: Array = weights * (self.total_weight / self.num_examples)
        return given

    @property
    def sparse(self) -> bool:
        """Whether the data are a sparse matrix."""
        return not is_array(self.rows)

    @property
    def one_score(self) -> bool:
        """Whether steps can be taken on scores: one score for each row of an array, and one l2."""
        l2 = self.l2
        held = self._bound is None or (l2.__class__ is float and not l2)
        return held and not self.sparse and not self._several

    @property
    def why_not_traced(self) -> str | None:  # type: ignore[override]
        """Why rounds with this loss cannot be compiled; None if they can."""
        return "has sparse rows, which JAX does not take" if self.sparse else None

    @property
    def A(self) -> Any:  # noqa: N802
        """The data, in the shape given."""
        rows = self.rows[:, :-1] if self.intercept else self.rows
        if self.sparse or self.intercept:
            return rows
        return rows.reshape((self.num_examples, *self._row_shape))

    def subset(self, rows: Array) -> Self:
        """Return the same function on some rows (integers): a fold of the data."""
        part = copy.copy(self)
        part.__dict__.pop("_constants", None)
        part.rows, part.targets = self.rows[rows], self.targets[rows]
        part.num_examples = len(part.targets)
        part.clusters = None if self.clusters is None else self.clusters[rows]
        part.weights, part.total_weight = None, float(part.num_examples)
        if (weights := self.given_weights) is not None:
            part._weigh(weights[rows])
        return part

    # --- units -----------------------------------------------------------------------------------

    def usual_curvatures(self) -> Any:
        """Return a bound on `curvature`, or its usual size: a number, or one for each row."""
        most = self.curvatures[1]
        if most is not None:
            return most
        try:
            return self.curvature(np.zeros_like(self.targets), self.targets)
        except NotImplementedError:  # a user's own loss, for methods that need gradients only
            return 1.0

    def entry_curvatures(self) -> Array:
        """Return the columns' mean squares times the loss's curvature, in x's shape."""
        m, d = self.rows.shape
        weights = np.broadcast_to(self.usual_curvatures(), m) * (self.scale / m)
        if self.weights is not None:
            weights = weights * self.weights
        weights = weights.astype(np.float64, copy=False)
        if self.sparse:
            sums = np.asarray(self.rows.multiply(self.rows).T @ weights).reshape(-1)
        else:
            sums, at_once = np.zeros(d), max(1, _SQUARED // d)
            for start in range(0, m, at_once):
                some = slice(start, start + at_once)
                sums += weights[some] @ np.square(self.rows[some], dtype=np.float64)
        wide = sums.reshape(self._row_shape + (1,) * (len(self.shape) - len(self._row_shape)))
        bound = 1.0 if self._bound is None else self._bound
        curvatures: Array = np.broadcast_to(wide, self.shape) + self.l2 * bound
        return curvatures

    def usual_sizes(self) -> tuple[Any, Any]:
        """Return the sizes of gradients at 0 and of curvatures that the data allow.

        With a client axis, there is one pair for each client. The first is the rows' mean norm
        times the mean size of their weights in the gradient; the gradient itself, their sum, may
        cancel.
        """
        if is_array(self.rows):
            squares = np.square(self.rows, dtype=np.float64).sum(axis=-1)
        elif self.clients is None:
            squares = np.asarray(self.rows.multiply(self.rows).sum(axis=1)).reshape(-1)
        else:
            each = (rows.multiply(rows).sum(axis=1) for rows in self.rows.each)
            squares = np.stack([np.asarray(one).reshape(-1) for one in each])
        if self.weights is not None:
            squares = squares * self.weights
        scale = self.scale
        counts = self.row_weights(self._scores(np.zeros(self.shape, self.dtype), self.rows))
        lengths = np.square(counts, dtype=np.float64).sum(axis=-1)
        if lengths.ndim > squares.ndim - 1:  # one for each class
            lengths = lengths.sum(axis=-1)
        curvatures = (self.usual_curvatures() * squares).mean(axis=-1)
        return np.sqrt(counts.shape[-1] * lengths * squares.mean(axis=-1)), scale * curvatures

    def bears(self, sizes: Array) -> bool:
        """Return whether `in_units` takes these sizes: one for each column."""
        columns = sizes.reshape(*self._row_shape, -1)
        alike = sizes.shape == self.shape and bool((columns == columns[..., :1]).all())
        return alike and _is_three_functions(type(self))

    def in_units(self, sizes: Array) -> Self:
        """Return z -> f(sizes * z), of the same type.

        Parameters
        ----------
        sizes : array of `shape`
            > 0, one for each column.
        """
        flat = sizes.reshape(self.rows.shape[-1], -1)[:, 0]
        rows = self.rows.multiply(flat).tocsr() if self.sparse else self.rows * flat
        other = self._with_rows(rows, self.targets, self.weights)
        bound = 1.0 if self._bound is None else self._bound
        other._bound = np.broadcast_to(bound * sizes * sizes, self.shape).astype(self.dtype)
        return other

    # --- many clients ----------------------------------------------------------------------------

    def stack_key(self) -> Hashable | None:
        """Return what clients must share to form one stack; None for a class with other methods.

        A user's class may define the three functions, but must not override the methods built on
        them. Attributes that the functions read must be equal. Objects with arrays of their own,
        which may belong to their rows, are not stacked. Other attributes do not matter.
        """
        shared = self._shared()
        return None if shared is None else (self.rows.shape, self.weights is None, *shared)

    def padded_key(self) -> Hashable | None:
        """Return what clients must share to form one stack after padding with rows of weight 0."""
        shared = self._shared()
        return None if shared is None or self.sparse else (self.rows.shape[1:], *shared)

    def padded(self, count: int) -> Self:
        """Return the same function with `count` rows; the added ones have weight 0."""
        more = count - self.num_examples
        weights = np.ones(self.num_examples, self.dtype) if self.weights is None else self.weights
        share = self.dtype.type(count / self.num_examples)  # weights have mean 1
        other = self._with_rows(
            np.concatenate([self.rows, np.zeros((more, self.rows.shape[1]), self.rows.dtype)]),
            np.concatenate([self.targets, np.repeat(self.targets[:1], more, axis=0)]),
            np.concatenate([weights * share, np.zeros(more, self.dtype)]),
        )
        other.num_examples = count
        return other

    def _shared(self) -> tuple[Any, ...] | None:
        """Return what clients of one stack share, besides the number of rows."""
        kind = type(self)
        if not _is_three_functions(kind) or hasattr(self, "constraint_value"):
            return None
        if not all(isinstance(getattr(self, n), int | float | np.number) for n in _NUMBERS):
            return None
        read = attributes_read(kind, _THREE)
        kept = {
            name: value
            for name, value in vars(self).items()
            if name in _FORM
            or (name not in _SAID and (read is None or name in read or is_array(value)))
        }
        try:
            hash(tuple(kept.values()))
        except TypeError:
            return None
        return (self.rows.dtype, self.targets.dtype, self.sparse, *sorted(kept.items(), key=_name))

    @classmethod
    def why_not_stacked(cls, objectives: Sequence[Any]) -> str | None:
        """Return which of a class's functions does not work along an axis; None if all do.

        Each is called with a few targets of two clients, together and separately.
        """
        owners = [(name, owner_of(cls, name)) for name in _THREE]
        names = [name for name, owner in owners if owner is not None and not is_ours(owner)]
        if not names:
            return None
        first, last = objectives[0], objectives[-1]
        few = min(first.num_examples, last.num_examples, _PROBED)
        targets = np.stack([first.targets[:few], last.targets[-few:]])
        one_row = first._scores(np.zeros(first.shape, first.dtype), first.rows[:1])
        shape = (2, *one_row.shape[:-1], few)  # an axis of classes may lie between the two
        scores = np.linspace(-2.0, 2.0, math.prod(shape)).reshape(shape).astype(first.dtype)
        for name in names:
            function = getattr(first, name)
            each = [_tried(function, s, t) for s, t in zip(scores, targets, strict=True)]
            alone = [one for one in each if not isinstance(one, str)]
            joint = _tried(function, scores, targets)
            if len(alone) < len(each):
                continue  # a failure in any case is reported when a client meets it
            if isinstance(joint, str):
                wrong = joint
            elif joint.shape != (2, *alone[0].shape):
                wrong = f"has shape {joint.shape}"
            elif not np.allclose(joint, np.stack(alone), equal_nan=True):
                wrong = "has other values"
            else:
                continue
            return (
                f"{cls.__name__}.{name} of scores of shape {shape}, with a leading axis for "
                f"clients, {wrong}, and is not what it is of each client's: write it entry by "
                "entry, in NumPy"
            )
        return None

    @classmethod
    def along_axis(cls, objectives: Sequence[Any], factors: Sequence[float]) -> Self:
        """Return objectives with the same `stack_key`, each times its factor, as one object."""
        first: Self = objectives[0]
        whole = first._with_rows(
            _all_rows([f.rows for f in objectives]),
            together([f.targets for f in objectives]),
            None if first.weights is None else together([f.weights for f in objectives]),
        )
        whole.clients = len(objectives)
        for name in _NUMBERS:
            values = [getattr(f, name) for f in objectives]
            setattr(whole, name, per_client(values, first.dtype, 0))
        ones = all(factor == 1.0 for factor in factors)
        return whole if ones else whole.scaled_by(np.array(factors))

    def _with_rows(self, rows: Any, targets: Array, weights: Array | None) -> Self:
        """Return this loss on other rows."""
        other = copy.copy(self)
        other.__dict__.pop("_constants", None)
        other.rows, other.targets, other.weights = rows, targets, weights
        return other

    def scaled_by(self, factors: Array) -> Self:
        """Return the objectives of all clients, each times its factor."""
        product = copy.copy(self)
        for name in _NUMBERS:
            values = factors * getattr(self, name)
            setattr(product, name, per_client(values.tolist(), self.dtype, 0))
        return product

    def divided(self, count: int) -> Self:
        """Return the objectives of `count` clients that share the rows in equal parts."""
        m, d = self.rows.shape
        targets = self.targets.reshape(count, m // count, *self.targets.shape[1:])
        whole = self._with_rows(self.rows.reshape(count, m // count, d), targets, None)
        whole.clients, whole.num_examples = count, m // count
        whole.total_weight = float(whole.num_examples)
        return whole

    def joined(self) -> Self:
        """Return the mean of the objectives of clients that differ only in their rows."""
        rows = self.rows
        targets = self.targets.reshape(-1, *self.targets.shape[2:])
        mean = self._with_rows(rows.reshape(-1, rows.shape[-1]), targets, None)
        mean.clients, mean.num_examples = None, len(targets)
        mean.total_weight = float(mean.num_examples)
        return mean

    def one(self, place: int) -> Self:
        """Return the objective of one client, without the axis."""
        single = self._with_rows(
            self.rows[place],
            self.targets[place],
            None if self.weights is None else self.weights[place],
        )
        single.clients = None
        single.scale, single.l2 = (float(np.broadcast_to(v, len(self.targets))[place]) for v in
                             (self.scale, self.l2))  # fmt: skip
        return single

    def part(self, which: Which, rows: Array | None = None) -> Self:
        """Return some of the clients, with all rows or with `rows`, shape (clients, batch)."""
        part = copy.copy(self)
        index: Any = which if rows is None else (places(which)[:, None], rows)
        part.rows, part.targets = self.rows[index], self.targets[index]
        if self.weights is not None:
            part.weights = self.weights[index]
        part.scale, part.l2 = chosen(self.scale, which), chosen(self.l2, which)
        part.clients = len(part.targets)
        return part

    @property
    def numbers_each(self) -> int:
        """The number of entries in one client's rows."""
        rows = self.rows
        return int(rows.shape[-1] * rows.shape[-2]) if is_array(rows) else int(rows.nnz)

    # --- values and gradients --------------------------------------------------------------------

    def _scores(self, x: Array, rows: Any) -> Array:
        """Return <a_i, x> for each row in a new array."""
        if self._several:
            return self._column_scores(x, rows)
        if rows.ndim == 2:
            scores: Array = rows.dot(x if x.ndim == 1 else x.reshape(-1))
        elif is_array(rows):
            several = x.ndim > len(self.shape)
            scores = times(rows, x.reshape(len(x), -1) if several else x.reshape(-1))
        else:
            scores = rows.scores(x.reshape(-1, rows.shape[-1]))
        return scores

    def _pull(self, weights: Array, rows: Any) -> Array:
        """Return the sum of the rows, each times its weight, in the shape of x."""
        if self._several:
            return self._column_pull(weights, rows)
        if rows.ndim == 2:
            dense = rows.__class__ is np.ndarray
            sums: Array = weights.dot(rows) if dense else rows.T.dot(weights)
            return sums if sums.shape == self.shape else sums.reshape(self.shape)
        sums = rows.pull(weights) if self.sparse else np.matmul(weights[:, None, :], rows)
        return sums.reshape(len(rows), *self.shape)

    def _column_scores(self, x: Array, rows: Any) -> Array:
        """Return the scores for each column of x, shape (..., columns, rows)."""
        if rows.ndim == 2:
            scores: Array = rows.dot(x).T if self.sparse else x.T.dot(rows.T)
        elif not self.sparse:
            scores = np.matmul(x.swapaxes(-1, -2), rows.swapaxes(-1, -2))
        else:
            scores = rows.scores(x.reshape(-1, *self.shape)).swapaxes(-1, -2)
        return scores

    def _column_pull(self, weights: Array, rows: Any) -> Array:
        """Return the sums of the rows for each column of x, from weights in the form of scores."""
        turned = weights.swapaxes(-1, -2)
        if rows.ndim == 2:
            sums: Array = rows.T.dot(turned)
        else:
            sums = rows.pull(turned) if self.sparse else np.matmul(rows.swapaxes(1, 2), turned)
        return sums

    def _mean(self, scores: Array) -> Any:
        """Return scale times the mean loss, from the scores of all rows."""
        losses = self.loss(scores, self.targets)
        if self.weights is not None:
            losses = losses * self.weights
        mean = np.add.reduce(losses, axis=-1) / losses.shape[-1]
        return self.scale * mean if self.clients else self.scale * float(mean)

    def _row_weights(
        self, scores: Array, targets: Array, weights: Array | None, factor: float = 1.0
    ) -> Array:
        """Return each row's weight in factor times the gradient, without l2."""
        slopes = self.slope(scores, targets)
        share = factor * self.scale / scores.shape[-1]
        counts: Array = slopes * (share if self.clients is None else wide(share, slopes))
        if weights is not None:
            counts = counts * (weights if weights.ndim == slopes.ndim else weights[..., None, :])
        return counts

    def row_weights(self, scores: Array) -> Array:
        """Return each row's weight in the gradient, without l2, from all rows' scores."""
        return self._row_weights(scores, self.targets, self.weights)

    def _gradient(
        self, x: Array, rows: Any, targets: Array, weights: Array | None, factor: float = 1.0
    ) -> Array:
        if x.shape != self.shape:
            self._expect(x)
        # One client's vector in few calls: with small data they cost as much as arithmetic.
        plain = self._plain and self.clients is None
        scores = rows.dot(x) if plain else self._scores(x, rows)
        counts = self._row_weights(scores, targets, weights, factor)
        gradient: Array = counts.dot(rows) if plain else self._pull(counts, rows)
        l2 = self.l2
        return gradient if l2.__class__ is float and not l2 else self.ridged(gradient, x, factor)

    def value(self, x: Array) -> Any:
        """Return f(x)."""
        if x.shape != self.shape:
            self._expect(x)
        value, l2 = self._mean(self._scores(x, self.rows)), self.l2
        return value if l2.__class__ is float and not l2 else value + self.ridge(x)

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x, in the shape of x."""
        return self._gradient(x, self.rows, self.targets, self.weights)

    def value_and_gradient(self, x: Array) -> tuple[Any, Array]:
        """Return f(x) and the gradient at x, from one product with the data."""
        if x.shape != self.shape:
            self._expect(x)
        scores = self._scores(x, self.rows)
        value = self._mean(scores)
        counts = self._row_weights(scores, self.targets, self.weights)
        gradient, l2 = self._pull(counts, self.rows), self.l2
        if l2.__class__ is float and not l2:
            return value, gradient
        return value + self.ridge(x), self.ridged(gradient, x)

    def batch_gradient(self, x: Array, rows: Array) -> Array:
        """Return the gradient at x of the mean over `rows` (integers), l2 included."""
        rows = places_of_rows(rows)
        weights = None if self.weights is None else self.weights[rows]
        if self.sparse:
            data = self.rows[rows]
        else:  # takes three quarters of the time of an index
            data = self.rows.take(rows.astype(np.intp, copy=False), 0)
        return self._gradient(x, data, self.targets[rows], weights)

    def add_gradient(self, x: Array, out: Array, scale: float) -> None:
        """Add scale times the gradient at x to `out` in place; the factor adds no pass."""
        out += self._gradient(x, self.rows, self.targets, self.weights, scale)

    def pulled_gradient(self, x: Array, scale: float, center: Array, pull: float) -> Array:
        """Return scale times the gradient at x, plus pull (x - center)."""
        g: Array = x - center
        g *= pull
        g += self._gradient(x, self.rows, self.targets, self.weights, scale)
        return g

    def clipped_sum(self, x: Array, clip: float, rows: Array) -> Array:
        """Return the sum over `rows` of their losses' gradients, each of norm at most `clip`.

        A row's gradient is its slope times the row, so that the norm needs no gradient. l2 is not
        included.

        Parameters
        ----------
        x : array of `shape`
        clip : float
            > 0; a longer gradient is shortened to it.
        rows : array of int
        """
        slopes, data = self.slopes_and_rows(x, rows)
        slopes = slopes.astype(self.dtype)
        squares = data.multiply(data).sum(axis=1) if self.sparse else np.square(data).sum(axis=1)
        squares = np.asarray(squares).reshape(-1)
        norms = np.sqrt(squares + data.shape[1] * np.finfo(self.dtype).tiny)  # if squares underflow
        norms *= np.sqrt(np.square(slopes).sum(axis=0)) if slopes.ndim > 1 else np.abs(slopes)
        slopes *= clip / np.maximum(norms, clip)
        slopes[..., ~np.isfinite(norms)] = 0.0  # a row whose norm overflows counts as 0
        return self._pull(slopes, data)

    def slopes_and_rows(self, x: Array, rows: Array) -> tuple[Array, Any]:
        """Return the slopes of some rows, each row's factor in its own gradient, and these rows.

        A slope depends on its row alone: scores are summed in a fixed order, while the rounding of
        a product with all rows may depend on the other rows.

        Parameters
        ----------
        x : array of `shape`
        rows : array of int

        Returns
        -------
        slopes : array of float64, shape (rows,) or (scores of a row, rows)
        data : array or sparse matrix, shape (rows, columns)
        """
        scores, data, targets = self._apart(x, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            slopes: Array = self.scale * self.slope(scores, targets)
        return slopes[..., : len(rows)], data[: len(rows)]

    def row_losses(self, x: Array, rows: Array) -> Array:
        """Return the loss of each of some rows, without l2, computed from that row alone.

        Parameters
        ----------
        x : array of `shape`
        rows : array of int

        Returns
        -------
        array of float64, shape (rows,)
        """
        scores, _, targets = self._apart(x, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            losses: Array = self.scale * self.loss(scores, targets)
        return losses[: len(rows)]

    def _apart(self, x: Array, rows: Array) -> tuple[Array, Any, Array]:
        """Return the scores of some rows (at least two), with the rows and their targets."""
        self._expect(x)
        taken = np.resize(rows, max(2, len(rows)))  # a single row would change the order of axes
        data, targets = self.rows[taken], self.targets[taken]
        at = x.reshape(data.shape[1], -1).astype(np.float64, copy=False)
        owner = owner_of(type(self), "_scores")
        with np.errstate(over="ignore", invalid="ignore"):
            if owner is not None and not is_ours(owner):
                parts = [self._scores(x, data[i : i + 1]) for i in range(len(taken))]
                return np.concatenate(parts, axis=-1), data, targets
            columns = at.T.copy()
            scores = np.stack(
                [data @ c for c in columns]
                if self.sparse
                else [(data * c).sum(axis=1) for c in columns]
            )
        return scores if len(self.shape) > len(self._row_shape) else scores[0], data, targets

    # --- second derivatives ----------------------------------------------------------------------

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x, of the flattened model of one client.

        Parameters
        ----------
        x : array of `shape`
        columns : array of int, shape (k,), optional
            The entries of the flattened model to return; all by default.

        Returns
        -------
        array, shape (k, k)
        """
        self._expect(x)
        curvatures = self.row_curvatures(x)
        if not self._several:
            return self._add_l2(self._gram(curvatures, columns), columns)
        d, number = self.shape
        blocks = np.zeros((d, number, d, number), self.dtype)
        for k in range(number):
            blocks[:, k, :, k] = self._gram(curvatures[k], None)
        hessian = blocks.reshape(d * number, -1)
        return self._add_l2(
            hessian if columns is None else hessian[np.ix_(columns, columns)], columns
        )

    def second_derivatives(self, x: Array) -> Callable[[Array], Array]:
        """Return the map v -> H v at x, for v in the shape of x.

        A loss for which Newton's method pays offers it as `hessian_products`.
        """
        if x.shape != self.shape:
            self._expect(x)
        curvatures = self.row_curvatures(x)

        def product(v: Array) -> Array:
            changes = self._scores(v, self.rows) * curvatures
            return self.ridged(self._pull(changes, self.rows), v)

        return product

    def row_curvatures(self, x: Array) -> Array:
        """Return each row's weight in the second derivatives at x, without l2."""
        scores = self._scores(x, self.rows)
        curvatures = self.curvature(scores, self.targets)
        share = self.scale / scores.shape[-1]
        counts: Array = curvatures * (wide(share, curvatures) if self.clients else share)
        if (weights := self.weights) is None:
            return counts
        return counts * (weights if weights.ndim == counts.ndim else weights[..., None, :])

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
            bound = 1.0 if self._bound is None else self._bound
            ridge = np.broadcast_to(self.l2 * bound, self.shape).reshape(-1)
            hessian[np.diag_indices_from(hessian)] += ridge if columns is None else ridge[columns]
        return hessian

    # --- l2 --------------------------------------------------------------------------------------

    def ridged(
        self, gradient: Array, x: Array, factor: float = 1.0, which: Which | None = None
    ) -> Array:
        """Return a gradient plus factor times that of l2/2 ||x||^2, for some clients."""
        l2 = self.l2
        if l2.__class__ is float and self._bound is None:
            return gradient + factor * l2 * x if l2 else gradient
        held = self._held(x, l2 if which is None else chosen(l2, which))
        return gradient + (held if factor == 1.0 else factor * held)

    def ridge(self, x: Array) -> Any:
        """Return l2/2 ||x||^2, without the intercept."""
        l2 = self.l2
        if type(l2) is float and not l2:
            return 0.0
        if self.clients is None:
            return 0.5 * l2 * float(np.vdot(x if self._bound is None else self._bound * x, x))
        held = self._held(x, l2)  # first, since the square of a dropped entry might overflow
        with np.errstate(over="ignore"):  # as for one client
            return 0.5 * dot(held, x, len(self.shape))

    def _held(self, x: Array, l2: Any) -> Array:
        """Return the gradient of l2/2 ||x||^2, without the intercept."""
        if is_array(l2):
            l2 = l2.reshape(-1, *[1] * len(self.shape))
        held: Array = l2 * x if self._bound is None else l2 * (self._bound * x)
        return held

    # --- constants -------------------------------------------------------------------------------

    def _expect(self, x: Array) -> None:
        shape = x.shape[1:] if self.clients and x.ndim > len(self.shape) else x.shape
        if shape != self.shape:
            raise ConfigError(f"{type(self).__name__} takes x of shape {self.shape}, got {x.shape}")

    def _curvature(self) -> tuple[Any, Any]:
        least, most = self.curvatures
        l2 = self.l2 if self._bound is None else self.l2 * float(self._bound.max())
        mu: Any = self.l2 if self._bound is None else self.l2 * float(self._bound.min())
        if most is None:
            return None, mu
        share = self.scale / self.num_examples
        top, bottom = self._singular_squares()
        return share * most * top + l2, share * least * bottom + mu

    def _singular_squares(self) -> tuple[Any, Any]:
        """Return sigma_max^2 and sigma_min^2 of the rows, weighted by the roots of their weights.

        The second is 0 with fewer rows than entries of x, and for a large sparse matrix. For such a
        matrix Lanczos' method finds the first to a twentieth, rounded up.
        """
        rows = self.rows.astype(np.float64, copy=False)
        m, d = rows.shape[-2:]
        if self.weights is not None:
            root = np.sqrt(self.weights.astype(np.float64))[..., None]
            rows = rows.multiply(root).tocsr() if self.sparse else rows * root
        if self.sparse and min(m, d) > _GRAM:
            from scipy.sparse.linalg import norm

            # ||A||_2^2 is at most ||A||_1 ||A||_inf, and at most ||A||_F^2.
            sizes = abs(rows)  # SciPy's norm takes no sparse arrays before 1.13
            most = sizes.sum(axis=0).max() * sizes.sum(axis=1).max()
            bound = float(min(most, norm(rows) ** 2))
            return min(bound, _largest_square(rows, bound)), 0.0
        turned = rows.T if self.sparse else rows.swapaxes(-1, -2)
        gram = rows @ turned if m < d else turned @ rows
        squares = eigenvalues(gram.toarray() if self.sparse else gram)
        top = np.maximum(squares[..., -1], 0.0)
        # Below the product's rounding errors the smallest one counts as 0.
        full_rank = (m >= d) & (squares[..., 0] > d * np.finfo(np.float64).eps * top)
        bottom = np.where(full_rank, squares[..., 0], 0.0)
        return (top, bottom) if self.clients else (float(top), float(bottom))


def _largest_square(rows: Any, bound: float) -> float:
    """Return sigma_max^2 of a large sparse matrix, at most a twentieth too large."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    if not 0 < bound < np.inf:
        return bound
    start = np.random.default_rng(0).normal(size=min(rows.shape))  # the same at each call
    turned = rows.T
    tall = rows.shape[0] > rows.shape[1]

    def product(v: Array) -> Array:
        image: Array = turned @ (rows @ v) if tall else rows @ (turned @ v)
        return image

    gram = LinearOperator((len(start),) * 2, matvec=product, dtype=np.float64)
    try:
        return float(eigsh(gram, k=1, v0=start, tol=_TOP, return_eigenvectors=False)[0]) * (
            1 + _TOP
        )
    except ArpackError:
        return bound


_MADE = (
    *("value", "gradient", "value_and_gradient", "batch_gradient", "stochastic_gradient"),
    *("add_gradient", "pulled_gradient", "hessian", "hessian_products", "second_derivatives"),
    *("_scores", "_pull", "_mean", "_row_weights", "row_weights", "row_curvatures", "_gradient"),
    *("ridged", "ridge", "_held", "subset", "part", "along_axis"),
)
"""Methods that this package builds from the three functions."""


def _expect_new_names(kind: type[LinearModel]) -> None:
    """Raise if a subclass of a loss defines functions by their former names."""
    for old, new in _FORMER.items():
        owner = owner_of(kind, new)
        if owner is None or owner is LinearModel or old not in vars(kind):
            continue
        if is_ours(owner):
            raise ConfigError(
                f"{kind.__name__}.{old} would be ignored, and {owner.__name__}.{new} used: call it "
                f"{new}, and define loss, slope and curvature together"
            )


def _is_three_functions(kind: type[LinearModel]) -> bool:
    """Return whether a user's class defines nothing but the three functions."""
    members = [vars(one) for one in kind.__mro__[:-1] if not is_ours(one)]
    made = vars(LinearModel)
    defined = [(name, names[name]) for names in members for name in _MADE if name in names]
    expected = all(isinstance(it, SetAside) or it is made.get(name) for name, it in defined)
    return expected and hasattr(kind, "curvature")


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def _tried(function: Callable[..., Any], *arrays: Array) -> Array | str:
    """Return a function's result for copies of arrays, or its error as text."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(function(*(array.copy() for array in arrays)))
    except Exception as error:
        return f"raises {type(error).__name__}: {printable(str(error), 100)}"


def _all_rows(each: Sequence[Any]) -> Any:
    """Return the rows of many clients as one."""
    if isinstance(each[0], np.ndarray):
        return together(each)
    from flower_fedcon.objectives.sparse_rows import SparseRows

    return SparseRows(each)


def eigenvalues(products: Array) -> Array:
    """Return the eigenvalues of the rows' products, ascending.

    Raises
    ------
    ConfigError
        If these are not finite.
    """
    if not np.isfinite(products).all():
        raise ConfigError(
            "the squares of the data's entries overflow: rescale the columns, for example by their "
            "largest entries"
        )
    return np.linalg.eigvalsh(products)


def _with_ones(array: Any) -> Any:
    """Return rows with a last entry 1."""
    ones = np.ones((array.shape[0], 1), array.dtype)
    if isinstance(array, np.ndarray):
        return np.concatenate([array, ones], axis=1)
    from scipy.sparse import hstack

    return hstack([array, ones], format="csr")
