r"""Cox's partial likelihood of all sites' rows, with one baseline hazard: from sums over risk sets.

An event is compared with the rows at risk at all sites. So the likelihood is not a sum of the
sites' functions, but each of its parts is a sum over rows. With the risk r_j = exp(<a_j - c, x> +
offset_j) and the weight w_j, a site sums at each of K shared times t

    S0 = sum w_j r_j,   S1 = sum w_j r_j (a_j - c)        over its rows at risk at t
    T0, T1              the same over its rows with an event at t (for tied events)

From the totals over sites follow value and gradient, and the hazard h(t) of the events at t. Sites
receive the hazards, and sum w_j r_j (sum_t h(t)) (a_j - c)(a_j - c)' for the second derivatives. c
is the columns' mean over all rows, or 0 for columns that are centred already.

Times equal up to rounding are tied, across sites, too. On a grid an event counts at the next time
of the grid; the rows at risk there are those at risk at that time, and those with an event in the
interval before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.equal_times import on_grid, tied_times
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.objectives.risk_sets import RiskSets
from flower_fedcon.objectives.survival import CoxRegression
from flower_fedcon.validation import Array

_FARTHEST = 230.0  # of scores: e^230 and the squares of its sums are numbers that can be sent
Sums = Mapping[str, Array]
Ask = Callable[..., Sums]
"""(question, x, further arrays) -> sums over all sites of what `SiteRisks` answers."""


class SharedTimes(NamedTuple):
    """The times at which sites sum, stratum by stratum, ascending in each."""

    strata: Array  # the number of each time's stratum, shape (K,)
    times: Array  # shape (K,)

    @classmethod
    def union(cls, sites: Sequence[SharedTimes]) -> SharedTimes:
        """Return the times of all sites, those equal up to rounding once."""
        strata = np.concatenate([site.strata for site in sites])
        times = np.concatenate([site.times for site in sites])
        labels = np.unique(strata)
        each = [np.unique(tied_times(times[strata == label])) for label in labels]
        return cls(np.repeat(labels, list(map(len, each))), np.concatenate([np.empty(0), *each]))

    @classmethod
    def on_grid(cls, strata: Array, grid: Array) -> SharedTimes:
        """Return the times of a grid, for each stratum."""
        labels = np.unique(strata)
        return cls(np.repeat(labels, len(grid)), np.tile(grid, len(labels)))

    def stratum(self, label: float) -> Any:
        """Return the places of one stratum's times."""
        start, end = np.searchsorted(self.strata, [label, np.nextafter(label, np.inf)])
        return slice(int(start), int(end))


def event_times(f: CoxRegression) -> SharedTimes:
    """Return a site's own times of events."""
    counted = f.events & (f._w > 0)
    pairs = np.unique(np.stack([f.strata[counted], f.times[counted]], axis=1), axis=0)
    return SharedTimes(pairs[:, 0], pairs[:, 1])


def cox_of(objective: Any) -> Any:
    """Return the loss of a site's rows, which may have an offset."""
    return objective.loss if isinstance(objective, WithOffset) else objective


class SiteRisks:
    """A site's rows at risk at shared times, and all that it tells of them.

    Parameters
    ----------
    objective : CoxRegression, or WithOffset of one
    shared : SharedTimes
    centre : array, shape (p,)
        What is subtracted from the columns, the same at all sites.
    strata : array, shape (m,), optional
        The number of each row's stratum among those of `shared`; by default the loss's.
    merged : callable, optional
        (first, end, cell, times) -> the same arrays of one stratum, with times merged until counts
        are large enough to be told.
    """

    def __init__(
        self,
        objective: Any,
        shared: SharedTimes,
        centre: Array,
        strata: Array | None = None,
        merged: Callable[..., tuple[Array, Array, Array]] | None = None,
    ) -> None:
        f = cox_of(objective)
        self.clusters: Array | None = getattr(objective, "clusters", None)
        given = f.given_weights
        self.w = np.ones(f.num_examples) if given is None else given
        dense = np.asarray(f.rows.toarray() if f.sparse else f.rows, dtype=np.float64)
        apart: Array = np.array(f._centre, dtype=np.float64)
        self._full: Callable[[Array], Array] = np.asarray
        columns: Any = slice(None)
        if isinstance(objective, WithOffset):
            self._full, columns = objective.full, objective.entries
        apart[columns] -= centre
        self._whole = dense + apart
        self.rows = self._whole[:, columns]
        self._place(f, shared, f.strata if strata is None else strata, merged)

    def _place(self, f: CoxRegression, shared: SharedTimes, strata: Array, merged: Any) -> None:
        """Find the times at which each row is at risk, and that of its event."""
        m = f.num_examples
        first, end, self.cell = (np.full(m, value) for value in (0, 0, -1))
        for label in np.unique(shared.strata).tolist():
            place, rows = shared.stratum(label), np.flatnonzero((strata == label) & (self.w > 0))
            grid = shared.times[place]
            both = [f.times[rows]] + ([] if f.entries is None else [f.entries[rows]])
            moments, *entries = np.split(on_grid(np.concatenate(both), grid), len(both))
            start = np.searchsorted(grid, entries[0], side="right") if entries else 0 * rows
            cell = np.where(f.events[rows], np.searchsorted(grid, moments), len(grid))
            stop = np.searchsorted(grid, moments, side="right")
            stop = np.where(cell < len(grid), cell + 1, stop)
            if merged is not None:
                start, stop, cell = merged(start, stop, cell, len(grid), rows)
            first[rows], end[rows] = start + place.start, stop + place.start
            self.cell[rows] = np.where(cell < len(grid), cell + place.start, -1)
        self.size = len(shared.times)
        self._sets = RiskSets(first, end, self.size)
        self._events = np.flatnonzero(self.cell >= 0)
        self._at = self.cell[self._events]

    def _risks(self, x: Array) -> Array:
        """Return the risk of one copy of each row."""
        scores = self._whole @ self._full(np.asarray(x, dtype=np.float64))
        risks: Array = np.exp(np.clip(scores, -_FARTHEST, _FARTHEST))
        return risks

    def _at_events(self, values: Array) -> Array:
        """Return the sums of rows' values over the events of each time."""
        sums = np.zeros((self.size, *values.shape[1:]))
        np.add.at(sums, self._at, values[self._events])
        return sums

    def events(self) -> dict[str, Array]:
        """Return the number and the weight of the events at each time, and sums of all rows."""
        offsets = self._whole @ self._full(np.zeros(self.rows.shape[1]))
        scored = float(self.w[self._events] @ offsets[self._events])
        there = self.w > 0
        numbers = [float(self.w.sum()), float(there.sum()), scored]
        return {
            "counts": self._at_events(np.ones(len(self.w))),
            "weights": self._at_events(self.w),
            "numbers": np.array(numbers),
        }

    def event_rows(self, x: Array, factors: Array) -> dict[str, Array]:
        """Return the events' weighted columns, times some functions of time, shape (q, p)."""
        weighted = self.w[self._events, None] * self.rows[self._events]
        return {"rows": factors[:, self._at] @ weighted}

    def risks(self, x: Array) -> dict[str, Array]:
        """Return S0 and S1 in one array, shape (K, 1 + p), and T0 and T1; see the module."""
        risks = self.w * self._risks(x)
        values = risks[:, None] * np.column_stack([np.ones(len(risks)), self.rows])
        return {"at_risk": self._sets.sums(values), "tied": self._at_events(values)}

    def curvature(self, x: Array, hazards: Array, shared: Array) -> dict[str, Array]:
        """Return sums of squares by the hazards that rows meet, shape (q, p, p).

        Parameters
        ----------
        x : array
        hazards, shared : arrays, shape (q, K)
            At each time, and how much less of it the rows meet whose event is then.
        """
        risks, q = self.w * self._risks(x), len(hazards)
        met = self._sets.met(hazards.T)
        met[self._events] -= shared.T[self._at]
        squares = [self.rows.T @ ((risks * met[:, k])[:, None] * self.rows) for k in range(q)]
        return {"squares": np.stack(squares)}

    def residuals(self, x: Array, hazards: Array, shared: Array, means: Array) -> Array:
        """Return each row's part of the score of all sites' likelihood, of one copy of the row.

        Parameters
        ----------
        x : array
        hazards, shared : arrays, shape (K, 1 + p)
            Hazards, and hazards times the means of the risk sets; see `curvature`.
        means : array, shape (K, p)
            Of the risk sets, for the events.
        """
        met = self._sets.met(hazards)
        met[self._events] -= shared[self._at]
        found = -self._risks(x)[:, None] * (met[:, :1] * self.rows - met[:, 1:])
        found[self._events] += self.rows[self._events] - means[self._at]
        counted: Array = np.where((self.w > 0)[:, None], found, 0.0)
        return counted

    def meat(
        self, x: Array, hazards: Array, shared: Array, means: Array, power: float, clustered: float
    ) -> dict[str, Array]:
        """Return the sum of squares of the scores of rows or clusters, and the clusters' number.

        Parameters
        ----------
        x, hazards, shared, means : see `residuals`
        power : float
            Of the weight of a row's square: 1, or 2 for sampling weights.
        clustered : float
            1 for scores of clusters; a site without clusters is one.
        """
        scores = self.residuals(x, hazards, shared, means)
        if not clustered:
            meat = scores.T @ ((self.w**power)[:, None] * scores)
            return {"meat": meat, "clusters": np.zeros(1)}
        codes = np.zeros(len(scores), np.intp) if self.clusters is None else self.clusters
        sums = np.zeros((int(codes.max(initial=-1)) + 1, scores.shape[1]))
        np.add.at(sums, codes, self.w[:, None] * scores)
        return {"meat": sums.T @ sums, "clusters": np.array([float(len(sums))])}


class _Terms(NamedTuple):
    """The terms of events: with Breslow's ties one for each time, with Efron's one for each event.

    Of each its time, its weight, its share of the tied events that are no longer at risk, its sum
    over the risk set, and the mean of the risk set.
    """

    own: Array
    weights: Array
    shares: Array
    sums: Array
    means: Array


class CommonBaseline(Objective):
    """The negative log partial likelihood of all sites' rows / sum w_i; see the module.

    The function is that of the server: it asks the sites for sums.

    Parameters
    ----------
    ask : callable
        (question, x, further arrays) -> the sums over sites; see `SiteRisks`.
    shared : SharedTimes
    centre : array, shape (p,)
    ties : {"breslow", "efron"}
    far : float, optional
        The largest squared length of a row, for a bound on the curvature.

    Examples
    --------
    >>> from flower_fedcon.objectives import CoxRegression
    >>> from flower_fedcon.objectives.common_baseline import CommonBaseline
    >>> north = CoxRegression([[1.0], [0.0]], time=[1.0, 4.0], event=[1, 1])
    >>> south = CoxRegression([[2.0], [0.0]], time=[2.0, 3.0], event=[1, 0])
    >>> together = CoxRegression(
    ...     [[1.0], [0.0], [2.0], [0.0]], time=[1.0, 4.0, 2.0, 3.0], event=[1, 1, 1, 0]
    ... )
    >>> x, f = np.array([0.3]), CommonBaseline.of_sites([north, south])
    >>> f.value(x).__round__(12) == together.value(x).__round__(12)
    True
    """

    separable = True

    def __init__(
        self, ask: Ask, shared: SharedTimes, centre: Array, ties: str, far: float | None = None
    ) -> None:
        self._ask, self.shared, self.ties, self._far = ask, shared, ties, far
        self.centre = np.asarray(centre, dtype=np.float64)
        self.shape = self.centre.shape
        told = ask("events", np.zeros(self.shape))
        self.counts, self.event_weights = told["counts"], told["weights"]
        self.total_weight, rows, self._offsets = told["numbers"].tolist()
        self.num_examples = round(rows)
        self._observed = self._event_rows(np.ones((1, len(self.counts))))[0]
        self._last: tuple[Array, _Terms] | None = None

    @classmethod
    def of_sites(
        cls, objectives: Sequence[Any], grid: Array | None = None, centred: bool = False
    ) -> CommonBaseline:
        """Return the function of sites in this process.

        Parameters
        ----------
        objectives : sequence of CoxRegression, or of WithOffset of them
            Strata have the same numbers at all sites.
        grid : array, optional
            Times at which sites sum; by default those of all events.
        centred : bool
            Whether columns are centred already.
        """
        losses = [cox_of(f) for f in objectives]
        if grid is None:
            shared = SharedTimes.union([event_times(f) for f in losses])
        else:
            shared = SharedTimes.on_grid(np.concatenate([f.strata for f in losses]), grid)
        columns = [f.entries if isinstance(f, WithOffset) else slice(None) for f in objectives]
        means = [f._centre[own] for f, own in zip(losses, columns, strict=True)]
        rows = [f.num_examples for f in losses]
        centre = np.zeros_like(means[0]) if centred else np.average(means, axis=0, weights=rows)
        sites = [SiteRisks(f, shared, centre) for f in objectives]
        far = max(float(np.square(site.rows).sum(axis=1).max(initial=0.0)) for site in sites)
        found = cls(InProcess(sites), shared, centre, losses[0].ties, far)
        found.sites = objectives
        return found

    sites: Sequence[Any] = ()
    """The objectives, where they are in this process."""

    def _event_rows(self, factors: Array) -> Array:
        return self._ask("event_rows", np.zeros(self.shape), factors=factors)["rows"]

    def _terms(self, x: Array) -> _Terms:
        if self._last is None or not np.array_equal(self._last[0], x):
            told = self._ask("risks", x)
            deaths = np.rint(self.counts).astype(np.intp)
            if self.ties == "breslow":
                own = np.flatnonzero(deaths)
                shares, weights = np.zeros(len(own)), self.event_weights[own]
            else:
                own = np.repeat(np.arange(len(deaths)), deaths)
                first = np.cumsum(deaths) - deaths
                shares = (np.arange(len(own)) - first[own]) / deaths[own]
                weights = self.event_weights[own] / deaths[own]
            both = told["at_risk"][own] - shares[:, None] * told["tied"][own]
            sums = np.maximum(both[:, 0], np.finfo(np.float64).tiny)
            terms = _Terms(own, weights, shares, sums, both[:, 1:] / sums[:, None])
            self._last = np.array(x, dtype=np.float64), terms
        return self._last[1]

    def _summed(self, terms: _Terms, values: Array) -> Array:
        """Return the sums of terms' values by time."""
        sums = np.zeros((len(self.counts), *values.shape[1:]))
        np.add.at(sums, terms.own, values)
        return sums

    def value(self, x: Array) -> float:
        """Return f(x)."""
        t = self._terms(x)
        observed = float(self._observed @ x) + self._offsets
        return float(t.weights @ np.log(t.sums) - observed) / float(self.total_weight)

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x."""
        t = self._terms(x)
        gradient: Array = (t.weights @ t.means - self._observed) / self.total_weight
        return gradient

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x."""
        ones = np.ones((1, len(self.counts)))
        hessian: Array = self._covariances(x, ones)[0] / self.total_weight
        return hessian if columns is None else hessian[np.ix_(columns, columns)]

    def _covariances(self, x: Array, factors: Array) -> Array:
        """Return sums over events of the risk sets' covariances times functions of time."""
        t = self._terms(x)
        each = factors[:, t.own] * t.weights  # (q, terms)
        hazards = (each / t.sums).T
        down = {
            "hazards": self._summed(t, hazards).T,
            "shared": self._summed(t, t.shares[:, None] * hazards).T,
        }
        squares = self._ask("curvature", x, **down)["squares"]
        centres = np.stack([(one[:, None] * t.means).T @ t.means for one in each])
        covariances: Array = squares - centres
        return covariances

    def meat(self, x: Array, power: float, clustered: bool) -> Sums:
        """Return the sums of squared scores over all sites; see `SiteRisks.meat`."""
        t = self._terms(x)
        hazards = (t.weights / t.sums)[:, None] * np.column_stack([np.ones(len(t.own)), t.means])
        number = np.maximum(np.bincount(t.own, minlength=len(self.counts)), 1)
        return self._ask(
            "meat",
            x,
            hazards=self._summed(t, hazards),
            shared=self._summed(t, t.shares[:, None] * hazards),
            means=self._summed(t, t.means) / number[:, None],
            power=power,
            clustered=float(clustered),
        )

    def sums_in_time(self, x: Array, moments: Array) -> tuple[Array, Array, Array, Array]:
        """Return the sums for a test of proportional hazards; see `CoxRegression.sums_in_time`.

        Parameters
        ----------
        x : array
        moments : array, shape (K,)
            The function of time at each shared time.
        """
        t, one = self._terms(x), np.ones_like(moments)
        expected = (t.weights * moments[t.own]) @ t.means
        score = self._event_rows(moments[None])[0] - expected
        first, second, third = self._covariances(x, np.stack([one, moments, moments * moments]))
        return score, first, second, third

    def baseline(self, x: Array) -> dict[float, Array]:
        """Return the baseline cumulative hazard of each stratum; see `CoxRegression.baseline`."""
        at_risk = self._ask("risks", x)["at_risk"][:, 0]
        seen = self.event_weights > 0
        with np.errstate(over="ignore"):
            steps = self.event_weights[seen] / at_risk[seen] * np.exp(-float(self.centre @ x))
        strata, times = self.shared.strata[seen], self.shared.times[seen]
        hazards = {}
        for label in np.unique(self.shared.strata).tolist():
            own = strata == label
            hazards[label] = np.stack([times[own], np.cumsum(steps[own])], axis=1)
        return hazards

    @cached_property
    def _variances(self) -> Array:
        variances: Array = np.maximum(np.diag(self.hessian(np.zeros(self.shape))), 0.0)
        return variances

    def entry_curvatures(self) -> Array:
        """Return the curvatures at 0."""
        return self._variances

    def _curvature(self) -> tuple[float | None, float]:
        if self._far is None:
            return None, 0.0
        if not self._variances.any():
            return 0.0, 0.0
        return self._far * float(self.event_weights.sum()) / self.total_weight, 0.0


class InProcess:
    """The door to sites in this process."""

    def __init__(self, sites: Sequence[SiteRisks]) -> None:
        self._sites = sites

    def __call__(self, question: str, x: Array, **more: Any) -> Sums:
        """Return the sums over sites."""
        told = [ANSWERS[question](site, x, **more) for site in self._sites]
        return {name: np.sum([one[name] for one in told], axis=0) for name in told[0]}


ANSWERS: dict[str, Callable[..., dict[str, Array]]] = {
    "events": lambda site, x: site.events(),
    "event_rows": SiteRisks.event_rows,
    "risks": SiteRisks.risks,
    "curvature": SiteRisks.curvature,
    "meat": SiteRisks.meat,
}
"""What a site tells, by question."""


def shapes_of(question: str, times: int, columns: int, functions: int = 1) -> dict[str, Any]:
    """Return the shape of each array of an answer.

    Parameters
    ----------
    question : str
    times, columns : int
        K and p.
    functions : int
        q.
    """
    each = (times, 1 + columns)
    shapes: dict[str, dict[str, Any]] = {
        "events": {"counts": (times,), "weights": (times,), "numbers": (3,)},
        "event_rows": {"rows": (functions, columns)},
        "risks": {"at_risk": each, "tied": each},
        "curvature": {"squares": (functions, columns, columns)},
        "meat": {"meat": (columns, columns), "clusters": (1,)},
    }
    return shapes[question]
