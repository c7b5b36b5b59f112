"""Cox's proportional hazards: the partial likelihood of one stratum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.equal_times import tied_times
from flower_fedcon.objectives.risk_sets import RiskSets
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.validation import Array, choice, float_array

TIES = ("breslow", "efron")
NOTHING_COMPARED = (
    "no client has two rows at risk together whose columns differ and of which the earlier has an "
    "event. Rows are compared only within a client, which is a stratum, so the likelihood is "
    "constant, and there is nothing to fit. Use larger groups as clients"
)


def check_entries(times: Array, entries: Array) -> None:
    """Raise unless each row enters before it leaves.

    Raises
    ------
    ConfigError
    """
    late = np.flatnonzero(entries >= times)
    if late.size:
        row = int(late[0])
        raise ConfigError(
            f"each row must enter before its time, got entry {entries[row]:g} and time "
            f"{times[row]:g} in row {row} (and {late.size - 1} others): correct such rows, or "
            f"leave them out"
        )


class CoxRegression(LinearModel):
    """The negative log partial likelihood of proportional hazards / sum w_i, plus l2/2 ||x||^2.

    With the risk set R(t) of the rows whose time is at least t, and whose entry is before t, it is
    the sum over rows i with an event of w_i (log sum_{j in R(t_i)} w_j exp(<a_j, x>) - <a_i, x>),
    divided by the sum of the weights. There is no intercept: the baseline hazard contains it. Each
    client is a stratum with its own baseline, so that the stratified likelihood is exactly the sum
    over the clients (for one baseline of all see `flower_fedcon.objectives.common_baseline`).
    `FederatedProblem(..., weights=[f.total_weight for f in objectives])` gives its mean over all
    rows.

    Parameters
    ----------
    A : array of shape (m, features), or sparse matrix
    time : array, shape (m,)
        The time of the event, or the last time at which the row was observed.
    event : array, shape (m,)
        1 or True for an event, 0 or False for a censored row.
    l2 : float
        >= 0.
    ties : {"breslow", "efron"} (default: "breslow")
        The method for tied events. With Breslow's, which scikit-survival uses, a weight equals that
        many copies of a row. Efron's, which lifelines and R use, is nearer to the exact likelihood
        if many events are tied. Without ties both are equal.
    strata : array of int, shape (m,), optional
        The stratum of each row. Each stratum has its own baseline hazard, and rows are compared
        only within it. By default there is one.
    sample_weight : array, shape (m,), optional
        As for `LogisticRegression`. Tied events count with the mean of their weights, as in R.
    entry : array, shape (m,), optional
        The time after which each row is at risk, before its `time`: for rows that enter late (left
        truncation), and for several rows of one person, whose columns change. By default all are
        at risk from the beginning.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match time and event, a value is not finite, or an entry is
        not before the row's time.

    Examples
    --------
    >>> from flower_fedcon.objectives import CoxRegression
    >>> f = CoxRegression(np.array([[1.0], [0.0]]), time=[1.0, 2.0], event=[1, 1])
    >>> f.value(np.zeros(1)).__round__(6), f.gradient(np.zeros(1))  # log(2) / 2
    (0.346574, array([-0.25]))
    """

    target_name = "event"
    separable = True
    stratum_names: Sequence[str] = ("",)
    """Of strata with the numbers 0, 1, ...: what they are called at other sites."""

    def __init__(
        self,
        A: object,
        time: object,
        event: object,
        l2: float = 0.0,
        *,
        ties: str = "breslow",
        strata: object = None,
        sample_weight: object = None,
        entry: object = None,
    ) -> None:
        super().__init__(A, event, l2, sample_weight=sample_weight)
        times = self._match("time", float_array("CoxRegression(time)", time))
        entries: Array | None = None
        if entry is None:
            times = tied_times(times)
        else:
            entries = self._match("entry", float_array("CoxRegression(entry)", entry))
            times, entries = np.split(tied_times(np.concatenate([times, entries])), 2)
            check_entries(times, entries)
        self.ties = choice("CoxRegression(ties)", ties, TIES)
        stratum = np.zeros(len(times))
        if strata is not None:
            stratum = self._match("strata", float_array("CoxRegression(strata)", strata))
        # Stratum by stratum, longest time first: a risk set is then the first rows of a stratum,
        # and a sum over it a running one.
        order = np.lexsort((-times, stratum))
        self.rows = self.rows[order]
        # A shift of a column multiplies all risks of a risk set alike. Columns far from 0, such as
        # years or seconds since 1970, would otherwise leave few digits of their differences.
        self._centre = np.zeros(self.rows.shape[1], self.rows.dtype)
        if not self.sparse:
            self._centre = self.rows.mean(axis=0, dtype=np.float64).astype(self.rows.dtype)
            self.rows = self.rows - self._centre
        self.times, self.events = times[order], self.targets[order] == 1
        self.strata, self.order = stratum[order], order  # the rows' original numbers
        self.entries = None if entries is None else entries[order]
        self.targets = self.events
        self._w = np.ones(self.num_examples, self.dtype)
        if self.weights is not None:
            self._w = self.weights = self.weights[order]
        self._prepare()

    def _checked(self, targets: Any) -> Array:
        if len(self.shape) != 1:
            raise ConfigError(f"CoxRegression(A) must have 2 axes, got {self.A.shape}")
        events = super()._checked(targets)
        other = events[(events != 0) & (events != 1)]
        if other.size:
            raise ConfigError(f"CoxRegression(event) must be 0 or 1, got {other[0]:g}")
        return events

    def stack_key(self) -> None:
        """Return None: the term of an event depends on other rows."""

    def subset(self, rows: Array) -> Self:
        """Return the likelihood of some rows only, by their places in `order`."""
        rows = np.sort(rows)
        part = super().subset(rows)
        part.times, part.events = self.times[rows], self.events[rows]
        part.strata, part.order = self.strata[rows], self.order[rows]
        part.entries = None if self.entries is None else self.entries[rows]
        part._w = np.ones(part.num_examples, part.dtype) if part.weights is None else part.weights
        part._prepare()
        return part

    def _prepare(self) -> None:
        """Compute each event's risk set and its share of the ties, which do not depend on x."""
        m = self.num_examples
        self._starts = np.flatnonzero(np.diff(self.strata, prepend=np.nan))  # of the strata
        new = np.diff(self.times, prepend=np.nan) != 0
        new[self._starts] = True
        group = np.cumsum(new) - 1  # rows of one time, within a stratum
        last = np.searchsorted(group, np.arange(group[-1] + 1), side="right") - 1
        self._group, self._last = group, last
        rows = np.flatnonzero(self.events)
        self._own = group[rows]  # the group of each event
        deaths = np.bincount(self._own, minlength=len(last))
        first = np.searchsorted(self._own, self._own, side="left")
        within = np.arange(len(rows)) - first
        self._share = np.zeros(len(rows)) if self.ties == "breslow" else within / deaths[self._own]
        total = np.bincount(self._own, self._w[rows], minlength=len(last))
        self._term_weights = (total / np.maximum(deaths, 1))[
            self._own
        ]  # the weight of each event's term
        self._size = float(m)
        self._sets = None if self.entries is None else self._with_entries(self.entries)

    def _with_entries(self, entries: Array) -> RiskSets:
        """Return the risk sets of the groups: of later times first, up to those of the entry."""
        times, end = self.times[self._last], np.empty(self.num_examples, np.intp)
        starts = [*self._group[self._starts], len(self._last)]
        for k, first in enumerate(self._starts):
            rows = slice(first, [*self._starts[1:], self.num_examples][k])
            groups = slice(starts[k], starts[k + 1])
            end[rows] = starts[k] + np.searchsorted(-times[groups], -entries[rows])
        return RiskSets(self._group, end, len(self._last))

    def _at_risk(self, values: Array) -> Array:
        """Return the sums of the rows' values over the risk sets of all groups."""
        if self._sets is not None:
            return self._sets.sums(values)
        return self._running(values)[self._last]

    def _met(self, values: Array) -> Array:
        """Return for each row the sum of the groups' values over those in whose risk set it is."""
        if self._sets is not None:
            return self._sets.met(values)
        # A row is at risk at the events of its own time and before: of its group and later groups.
        parts = np.split(values, self._group[self._starts[1:]])
        met: Array = np.concatenate([np.cumsum(part[::-1], axis=0)[::-1] for part in parts])
        of_rows: Array = met[self._group]
        return of_rows

    def _running(self, values: Array) -> Array:
        """Return the running sums over the rows of each stratum."""
        parts = np.split(values, self._starts[1:])
        return np.concatenate([np.cumsum(part, axis=0) for part in parts])

    def _terms(self, scores: Array) -> tuple[Array, Array, Array, Any]:
        """Return the risks r_i, each event's sums over its risk set and its ties, and a shift."""
        shift: Any = float(scores.max())
        top = shift
        if len(self._starts) > 1:  # keeps the digits of a stratum of small risks
            sizes = np.diff(self._starts, append=self.num_examples)
            top = np.repeat(np.maximum.reduceat(scores, self._starts), sizes)
            shift = top[self.events]
        # Not to 0, which would divide a later risk set of small risks.
        least = -60.0 if scores.dtype == np.float32 else -300.0
        risks = self._w * np.exp(np.maximum(scores - top, least))
        tied = np.bincount(self._group, risks * self.events, minlength=len(self._last))
        sums = self._at_risk(risks)[self._own] - self._share * tied[self._own]
        return risks, sums, tied, shift + math.log(self.total_weight / self.num_examples)

    def _mean(self, scores: Array) -> float:
        _, sums, _, shift = self._terms(scores)
        observed = float(self._w[self.events].dot(scores[self.events]))
        tiny = np.finfo(sums.dtype).tiny
        logs = np.log(np.maximum(sums, tiny)) + shift
        return float(self._term_weights.dot(logs) - observed) / self._size

    def _expected(self, risks: Array, sums: Array, terms: Array | None = None) -> Array:
        """Return the expected number of events of each row: r_i times its hazard.

        `terms` replaces the weights of the events.
        """
        terms = self._term_weights if terms is None else terms
        hazards = terms / np.maximum(sums, np.finfo(sums.dtype).tiny)
        groups = len(self._last)
        met = self._met(np.bincount(self._own, hazards, minlength=groups))
        shared = np.bincount(self._own, self._share * hazards, minlength=groups)
        expected: Array = risks * (met - self.events * shared[self._group])
        return expected

    def _row_weights(
        self, scores: Array, targets: Array, weights: Array | None, factor: float = 1.0
    ) -> Array:
        risks, sums, _, _ = self._terms(scores)
        residuals: Array = self._expected(risks, sums) - self._w * self.events
        residuals *= factor / self._size
        return residuals.astype(self.dtype, copy=False)

    def batch_gradient(self, x: Array, rows: Array) -> Array:
        """Raise: a row's term depends on all rows at risk."""
        raise ConfigError(
            "CoxRegression has no minibatches, since each event is compared with all rows at risk: "
            "leave batch_size out"
        )

    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int | None = None
    ) -> Array:
        """Return the gradient; `batch_size` must be None or all rows."""
        return super().stochastic_gradient(x, rng, batch_size)

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x; see `LogisticRegression.hessian`."""
        self._expect(x)
        hessian = self._covariances(x, columns, self._term_weights)[0]
        return self._add_l2(hessian.astype(self.dtype, copy=False), columns)

    def _covariances(self, x: Array, columns: Array | None, terms: Array) -> tuple[Array, Array]:
        """Return the risk sets' covariances, averaged by the events' weights, and their means."""
        risks, sums, _, _ = self._terms(self._scores(x, self.rows))
        covariances = self._gram(self._expected(risks, sums, terms) / self._size, columns)
        rows = self.rows if columns is None else self.rows[:, columns]
        dense = rows.toarray() if self.sparse else rows
        moments = risks[:, None] * dense
        running = self._at_risk(moments)[self._own]
        if self._share.any():
            tied = np.zeros((len(self._last), dense.shape[1]))
            np.add.at(tied, self._group[self.events], moments[self.events])
            running -= self._share[:, None] * tied[self._own]
        means = running / np.maximum(sums, np.finfo(sums.dtype).tiny)[:, None]
        covariances -= (terms[:, None] * means).T @ means / self._size
        return covariances, means

    def sums_in_time(self, x: Array, moments: Array) -> tuple[Array, Array, Array, Array]:
        """Return the sums that a test of proportional hazards adds over sites.

        With V the covariance of a risk set and g a function of time, these are the sums over the
        events of g (row - mean of the risk set), of V, of g V and of g^2 V.

        Parameters
        ----------
        x : array, shape (features,)
        moments : array, shape (m,)
            g at each row's time, in the order of `times`.
        """
        g, unit = moments[self.events], self.total_weight / self._size
        flat = np.ones_like(g)
        powers = [self._covariances(x, None, self._term_weights * f) for f in (flat, g, g * g)]
        rows = self.rows[self.events]
        weights = self._w[self.events] * g
        score = np.asarray(rows.T @ weights).reshape(-1) - (self._term_weights * g) @ powers[0][1]
        first, second, third = (self.total_weight * covariances for covariances, _ in powers)
        return unit * score, first, second, third

    def baseline(self, x: Array) -> dict[float, Array]:
        """Return the baseline cumulative hazard of each stratum, by Breslow's estimator.

        Returns
        -------
        dict of array, shape (times, 2)
            For each stratum, the times of its events, ascending, and the cumulative hazard of a row
            of zeros.
        """
        scores = self._scores(x, self.rows) + float(self._centre @ x)
        sizes = np.diff(self._starts, append=self.num_examples)
        top = np.repeat(np.maximum.reduceat(scores, self._starts), sizes)
        risks = self._at_risk(self._w * np.exp(scores - top))
        groups = len(self._last)
        deaths = np.bincount(self._group, self._w * self.events, minlength=groups)
        with np.errstate(over="ignore"):
            steps = deaths / risks * np.exp(-top[self._last])
        hazards, starts = {}, self._group[self._starts]
        for start, end in zip(starts, [*starts[1:], groups], strict=True):
            own = np.arange(start, end)[::-1]  # the earliest time first
            seen = own[deaths[own] > 0]
            both = [self.times[self._last[seen]], np.cumsum(steps[seen])]
            hazards[float(self.strata[self._last[start]])] = np.stack(both, axis=1)
        return hazards

    def score_residuals(self, x: Array) -> Array:
        """Return each row's part of the score of the log partial likelihood, longest time first.

        The terms of the row's risk sets are included: these are the residuals of R's `survival`.
        Their weighted sum is the score.

        Returns
        -------
        array, shape (m, features)
            The residuals of one copy of each row.
        """
        self._expect(x)
        scores = self._scores(x, self.rows)
        risks, sums, _, _ = self._terms(scores)
        dense = self.rows.toarray() if self.sparse else self.rows
        groups, d = len(self._last), dense.shape[1]
        moments = risks[:, None] * dense
        running = self._at_risk(moments)[self._own]
        if self._share.any():
            tied = np.zeros((groups, d))
            np.add.at(tied, self._group[self.events], moments[self.events])
            running = running - self._share[:, None] * tied[self._own]
        sums = np.maximum(sums, np.finfo(sums.dtype).tiny)
        means, hazards = running / sums[:, None], self._term_weights / sums
        sizes = np.diff(self._starts, append=self.num_examples)
        top = np.repeat(np.maximum.reduceat(scores, self._starts), sizes)
        alone = np.exp(scores - top)  # for one copy

        def summed(values: Array) -> Array:
            result = np.zeros((groups, d))
            np.add.at(result, self._own, values)
            return result

        met = self._met(np.bincount(self._own, hazards, minlength=groups))
        met_means = self._met(summed(hazards[:, None] * means))
        shared = np.bincount(self._own, self._share * hazards, minlength=groups)
        shared_means = summed((self._share * hazards)[:, None] * means)
        events, g = self.events.astype(np.float64)[:, None], self._group
        mean = summed(means) / np.maximum(np.bincount(self._own, minlength=groups), 1)[:, None]
        meets = (met - self.events * shared[g])[:, None]
        expected = meets * dense - (met_means - events * shared_means[g])
        result: Array = events * (dense - mean[g]) - alone[:, None] * expected
        return result

    def usual_curvatures(self) -> float:
        """Return the share of the rows with an event."""
        return float(self._w[self.events].sum()) / self._size

    def entry_curvatures(self) -> Array:
        """Return the columns' variances, times the share of the rows with an event."""
        weights = self._w / float(self._w.sum())
        if self.sparse:
            mean = np.asarray(self.rows.T @ weights).reshape(-1)
            squares = np.asarray(self.rows.multiply(self.rows).T @ weights).reshape(-1)
            variances = np.maximum(squares - mean * mean, 1e-9 * squares)
        else:
            variances = weights @ np.square(self.rows - weights @ self.rows)
        curvatures: Array = self.usual_curvatures() * variances + self.l2
        return curvatures

    def _curvature(self) -> tuple[float, float]:
        bound = np.ones(1) if self._bound is None else self._bound
        most, least = self.l2 * float(bound.max()), self.l2 * float(bound.min())
        at_risk = self._at_risk(self._w > 0)[self._own]
        if not ((at_risk > 1) & (self._term_weights > 0)).any():
            return most, least
        # A covariance over a risk set is at most the largest squared distance from any point.
        rows = self.rows.astype(np.float64)
        mean = np.asarray(rows.mean(axis=0)).reshape(-1)
        if self.sparse:
            squares = np.asarray(rows.multiply(rows).sum(axis=1)).reshape(-1)
            far = float((squares - 2 * rows.dot(mean) + mean.dot(mean)).max())
        else:
            far = float(((rows - mean) ** 2).sum(axis=1).max())
        events = float(self._w[self.events].sum()) / self._size
        return max(events * far, 0.0) + most, least
