"""A site's message for the final model: sums over its rows, and nothing about a single row.

The message of the statistic "estimates" holds, for p free parameters (the columns, the intercept,
and any log alpha; in a multinomial model those of all classes except the first):

information : p (p + 1) / 2 numbers
    The upper triangle of the negative log-likelihood's second derivatives, summed over the rows
    (the gamma family's own errors take the expected ones).
score : p numbers
    The sum of the rows' scores. Over all sites it vanishes at the estimate.
meat : p (p + 1) / 2 numbers
    For robust errors the sum of w_i s_i s_i' over rows, with sampling weights of w_i^2 s_i s_i';
    for clustered errors the sum of s_c s_c' over clusters, with s_c a cluster's sum of scores;
    absent for "model".
numbers : 7 numbers, `NUMBERS`
    The sum of the weights, or the number of rows with sampling weights; the log-likelihood; the
    deviance; Pearson's chi^2; the sum of log y for the gamma family, or of the events' weights for
    a Cox model (else 0); the number of clusters; the number of the site's own coefficients (0, or
    1 for its own intercept). A site whose own intercept is infinite sends only zeros.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError, RefusedError, number_of
from flower_fedcon.objectives.base import unscaled
from flower_fedcon.objectives.common_baseline import CommonBaseline
from flower_fedcon.objectives.more_entries import MoreEntries
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.objectives.private_objective import is_private
from flower_fedcon.objectives.profiled import Profiled
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.objectives.softmax import SoftmaxRegression
from flower_fedcon.objectives.survival import CoxRegression
from flower_fedcon.tables.families.base import Family, families, family_of_objective
from flower_fedcon.tables.small_cells import effective_counts, effective_rows
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

NUMBERS = ("n", "loglik", "deviance", "pearson", "log_y", "clusters", "own")
MODEL, ROBUST, CLUSTER, QUASI = METHODS = ("model", "robust", "cluster", "quasi")
KINDS = {name: float(place) for place, name in enumerate(METHODS)} | {QUASI: 0.0}
"""The numbers of the methods on the wire; "quasi" needs the sums of "model"."""
SAMPLED = float(len(METHODS))
"""What is added to a method's number on the wire if the rows have sampling weights."""
_CLUSTERS = 3  # small clusters for each parameter, like rows by the default max-parameters


class Fitted(NamedTuple):
    """A site's loss at a model, without its scale."""

    f: Any  # the objective: a loss of rows, possibly with an offset or alpha
    loss: LinearModel  # the loss of the rows
    x: Array  # the model of f
    at: Array  # the model of the loss
    family: Family
    w: Array  # the rows' weights as given
    own: int = 0  # the number of the site's own coefficients
    told: bool = True  # whether its rows carry information on the others

    @property
    def scores(self) -> Array:
        """The rows' scores, offsets included."""
        return self.loss._scores(self.at, self.loss.rows)

    @property
    def size(self) -> int:
        """The number of free parameters."""
        return free_parameters(self.x.shape)


def free_parameters(shape: tuple[int, ...]) -> int:
    """Return the number of free parameters: with K classes, those of K - 1."""
    return shape[0] * (shape[1] - 1) if len(shape) == 2 else shape[0]


def free_values(x: Array) -> Array:
    """Return the free parameters of a model: with classes, those of each against the first.

    >>> free_values(np.array([[1.0, 3.0], [2.0, 7.0]]))
    array([2., 5.])
    """
    return (x if x.ndim == 1 else x[:, 1:] - x[:, :1]).reshape(-1)


def most_numbers(size: int) -> int:
    """Return the largest size of an array in an answer, by the model's size."""
    return size * (size + 1) // 2


def fitted(objective: Any, x: Array) -> Fitted:
    """Return a site's loss at a model.

    Raises
    ------
    ConfigError
        If the loss has no known likelihood, or includes an l2 term.
    """
    f = unscaled(objective)
    if is_private(f):
        raise RefusedError(
            "refused: this node's examples are private (ExampleDP), and no noise protects the sums "
            "of scores and second derivatives for standard errors"
        )
    own_count, told = 0, True
    if type(f) is Profiled:
        own_count, told, f = f.own_count, f.informative, f.at(x)
    core = f.loss if type(f) is WithOffset else f
    family = family_of_objective(core)
    if family is None:
        names = [one.of.__name__ for one in families()]
        raise ConfigError(
            f"standard errors need a loss with a known likelihood ({', '.join(names)}), got "
            f"{type(core).__name__}"
        )
    at: Array = x
    loss: Any = f
    if isinstance(f, MoreEntries):
        loss, at = f.at(x), x[: f.columns]
    if type(loss) is WithOffset:
        loss, at = loss.loss, loss.full(at)
    if loss.l2:
        raise ConfigError(
            f"standard errors are for unpenalised fits, and the loss has l2 = {loss.l2:g}: leave "
            f"l2 out"
        )
    given = loss.given_weights
    weights = np.ones(loss.num_examples) if given is None else given
    return Fitted(f, loss, x, at, family, weights, own_count, told)


def estimates(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return the sums for standard errors; see the module."""
    sampled, place = divmod(int(down["method"]), len(METHODS))
    method = METHODS[place]
    if isinstance(f := unscaled(objective), CommonBaseline):
        return _of_all_sites(f, down["x"], method, sampled=bool(sampled))
    at = fitted(objective, down["x"])
    scores, total = row_scores(at), 0.0
    answer: Payload = {}
    information = _information(at, expected=at.family.expected and method == MODEL)
    answer["information"] = packed(information)
    answer["score"] = scores.total()
    if method == ROBUST:
        answer["meat"] = packed(scores.squares(power=2 if sampled else 1))
    if method == CLUSTER:
        codes = clusters_of(at.f)
        if codes is not None:
            expect_clusters(codes, at.w, at.size, least)
        sums = answer["score"][None] if codes is None else scores.by(codes)
        total = float(len(sums))
        answer["meat"] = packed(sums.T @ sums)
    answer["numbers"] = np.array([*_fit(at), total, float(at.own)])
    if sampled:
        answer["numbers"][0] = float(np.count_nonzero(at.w))
    return answer if at.told else {name: np.zeros_like(value) for name, value in answer.items()}


def _of_all_sites(f: CommonBaseline, x: Array, method: str, *, sampled: bool) -> Payload:
    """Return the sums of a Cox model with one baseline hazard for all sites."""
    n, loglik = f.total_weight, -f.total_weight * f.value(x)
    answer: Payload = {"information": packed(n * f.hessian(x)), "score": -n * f.gradient(x)}
    clusters = 0.0
    if method in (ROBUST, CLUSTER):
        told = f.meat(x, 2.0 if sampled else 1.0, method == CLUSTER)
        answer["meat"], clusters = packed(told["meat"]), float(told["clusters"][0])
    rows = float(f.num_examples) if sampled else n
    events = float(f.event_weights.sum())
    answer["numbers"] = np.array([rows, loglik, -2.0 * loglik, 0.0, events, clusters, 0.0])
    return answer


def expect_clusters(codes: Array, w: Array, size: int, least: int) -> None:
    """Raise if the sums of a few clusters would reveal one with fewer rows than `least`.

    With two clusters the sum of their scores and the sum of squares give each one's score, and a
    row's score reveals the row. Small clusters are therefore limited like rows: three for each
    parameter.

    Raises
    ------
    RefusedError
    """
    cells = int(codes.max(initial=-1)) + 1
    sums, rows = np.bincount(codes, w, cells), np.bincount(codes, minlength=cells)
    there = np.flatnonzero(sums > 0)  # others add nothing
    smallest = effective_counts(codes, cells, w)[there].min(initial=np.inf)
    heavy = effective_rows(sums / np.maximum(rows, 1), there)  # light clusters hide no other
    if len(there) > 1 and smallest < least and heavy < _CLUSTERS * size:
        raise RefusedError(
            f"refused: of {len(there)} clusters here the smallest has fewer than {least} rows "
            f"(policy.min-rows and min-cell), and with {number_of(size, 'parameter')} their sums "
            f"could reveal it: use larger clusters, {_CLUSTERS * size} of them or more, or the "
            "site as one"
        )


def clusters_of(f: Any) -> Array | None:
    """Return each row's cluster, from 0, in the loss's order; None if the site is one cluster."""
    codes: Array | None = getattr(f, "clusters", None)
    return codes


def set_clusters(objective: Any, codes: Array) -> None:
    """Set each row's cluster, in the order of the given rows."""
    loss = objective
    while isinstance(loss, WithOffset | MoreEntries):
        loss = loss.loss
    order = loss.order if isinstance(loss, CoxRegression) else slice(None)
    objective.clusters = np.unique(codes, return_inverse=True)[1][order]


def packed(square: Array) -> Array:
    """Return the upper triangle of a symmetric matrix, row after row."""
    triangle: Array = square[np.triu_indices(len(square))].astype(np.float64)
    return triangle


def unpacked(triangle: Array, size: int) -> Array:
    """Return the symmetric matrix of an upper triangle.

    >>> unpacked(np.array([1.0, 2.0, 3.0]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    square = np.zeros((size, size))
    square[np.triu_indices(size)] = triangle
    square += np.triu(square, 1).T
    return square


class RowScores(NamedTuple):
    """The scores of all rows: as rows times slopes, or as a matrix."""

    w: Array  # the rows' weights
    slopes: Array | None  # each row's slope, if its score is -slope times the row
    rows: Any  # the rows, or the scores themselves without slopes

    @property
    def _shares(self) -> Array:
        """The factor of each row in a sum of scores."""
        return self.w if self.slopes is None else -self.w * self.slopes

    def total(self) -> Array:
        """Return the weighted sum of the scores."""
        return np.asarray(self.rows.T @ self._shares, dtype=np.float64).reshape(-1)

    def squares(self, power: int = 1) -> Array:
        """Return the sum of w s s', or of another power of w."""
        w = self.w**power
        each = w if self.slopes is None else w * np.square(self.slopes)
        if not isinstance(self.rows, np.ndarray):
            total: Array = (self.rows.T @ self.rows.multiply(each[:, None])).toarray()
            return total
        return np.asarray(self.rows.T @ (each[:, None] * self.rows))

    def by(self, codes: Array) -> Array:
        """Return the sums by group, shape (groups, p)."""
        from scipy import sparse

        member = sparse.csr_array((self._shares, (codes, np.arange(len(codes)))))
        sums = member @ self.rows
        return sums if isinstance(sums, np.ndarray) else sums.toarray()


def row_scores(at: Fitted) -> RowScores:
    """Return the rows' scores: the log-likelihood's derivatives in the free parameters."""
    loss = at.loss
    if isinstance(loss, CoxRegression):
        whole = loss.score_residuals(at.at)
        return RowScores(at.w, None, whole[:, kept_columns(at)])
    scores = at.scores
    slopes = np.asarray(loss.slope(scores, loss.targets), dtype=np.float64)
    if isinstance(loss, SoftmaxRegression):
        rows = loss.rows.toarray() if loss.sparse else loss.rows
        each = -rows[:, :, None] * slopes[1:].T[:, None, :]
        return RowScores(at.w, None, each.reshape(len(rows), -1))
    rows = loss.rows[:, kept_columns(at)]
    if isinstance(at.f, MoreEntries):
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        more = -at.f.terms(at.x)[1].reshape(len(dense), at.f.more)
        return RowScores(at.w, None, np.concatenate([-slopes[:, None] * dense, more], 1))
    return RowScores(at.w, slopes, rows)


def kept_columns(at: Fitted) -> Any:
    """Return the columns of the loss's rows that are parameters: all except an offset."""
    f = at.f.loss if isinstance(at.f, MoreEntries) else at.f
    return f.entries if isinstance(f, WithOffset) else slice(None)


def _information(at: Fitted, *, expected: bool) -> Array:
    """Return the negative second derivatives of the log-likelihood, or their expectation."""
    if expected:
        information: Array = at.loss._gram(at.w, None)[kept_columns(at)][:, kept_columns(at)]
        return information
    total, x = at.loss.total_weight / at.loss.scale, at.x
    if isinstance(at.loss, SoftmaxRegression):
        free = np.arange(x.size).reshape(x.shape)[:, 1:].reshape(-1)
        information = at.loss.hessian(x)[np.ix_(free, free)]
    elif isinstance(at.f, MoreEntries):
        information = at.f.indefinite_hessian(x)
    else:
        information = at.f.hessian(x)
    return np.asarray(total * information)


def _fit(at: Fitted) -> list[float]:
    """Return the numbers of the model's fit, except the number of clusters."""
    n = at.loss.total_weight
    if at.family.compares:
        loglik = -n * float(at.loss.value(at.at))
        return [n, loglik, -2.0 * loglik, 0.0, float(at.w @ at.loss.targets)]
    parts = at.family.summed(at.loss, at.scores, at.loss.targets)
    return [n, *(float(at.w @ part) for part in parts)]
