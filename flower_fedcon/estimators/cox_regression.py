"""Cox regression over clients: each client as a stratum, or one baseline hazard for all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.stats import rankdata
from sklearn.utils.validation import check_is_fitted

from flower_fedcon.errors import ConfigError, number_of, repr_of
from flower_fedcon.estimators.argument_forms import clients_of
from flower_fedcon.estimators.base import FederatedEstimator, Tuned
from flower_fedcon.estimators.shared_arguments import Penalty
from flower_fedcon.objectives import CoxRegression, Scaled
from flower_fedcon.objectives.common_baseline import CommonBaseline
from flower_fedcon.objectives.equal_times import on_grid, tied_times
from flower_fedcon.objectives.survival import NOTHING_COMPARED
from flower_fedcon.paths import StabilitySelection
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.tables.pairs import concordant
from flower_fedcon.tables.row_weights import NO_SCORE_TESTS, SAMPLING
from flower_fedcon.tables.statistics import Estimates
from flower_fedcon.tables.statistics.after_fit import proportionality_test
from flower_fedcon.tables.statistics.hazards import (
    Proportionality,
    log_times,
    logarithms,
    of_stratum,
    sums_in_time,
    sums_of_all_sites,
    survival,
)
from flower_fedcon.validation import (
    Array,
    choice,
    expect_no_times,
    float_array,
    floats_of,
    nonnegative,
)

_TRANSFORMS = ("log", "rank", "identity")
_ALL = "all"
_NOTHING_AT_ALL = (
    "no two rows of a stratum are at risk together whose columns differ and of which the earlier "
    "has an event: there is nothing to fit"
)


@dataclass(eq=False, repr=False, kw_only=True)
class _Strata:
    """How the rows of proportional hazards are compared.

    Parameters
    ----------
    ties : {"breslow", "efron"} (default: "breslow")
        See `flower_fedcon.objectives.CoxRegression`.
    stratified : bool (default: True)
        Whether each client is a stratum, with its own baseline hazard. If not, rows are compared
        with those of all clients, as in a fit of the pooled rows. Clients then send sums over their
        rows at risk at the time of each event, which reveal single rows to the server; see
        `flower_fedcon.objectives.common_baseline`.
    baseline_times : array, optional
        With stratified=False: ascending times at which clients send these sums, such as months; by
        default the times of all events. An event counts at the next of these times.
    """

    ties: str = "breslow"
    stratified: bool = True
    baseline_times: Any = None


class _Stratified(FederatedEstimator, _Strata):
    """The base of the estimators of proportional hazards."""

    family = "cox"
    __metadata_request__score: ClassVar = {"groups": True}
    _sites: list[Any]
    _strata: Array | None
    _common: CommonBaseline | None

    def _strata_problem(
        self,
        X: Any,
        y: Any,
        groups: Any,
        sample_weight: Any,
        strata: Any,
        clusters: Any = None,
        entry: Any = None,
    ) -> FederatedProblem:
        """Return the problem of clients whose rows are in strata."""
        if self.stratified not in (True, False):
            raise ConfigError(f"stratified must be True or False, got {self.stratified!r}")
        grid = self._grid()
        labels, stratum = clients_of(strata, len(y), "strata")
        self._strata = None if strata is None else labels
        y = np.c_[y, stratum] if entry is None else np.c_[y, stratum, _entries(entry, y)]
        problem = self._problem(X, y, groups, sample_weight, clusters=clusters)
        self._sites = [f.objective if isinstance(f, Scaled) else f for f in problem.objectives]
        self._common = None
        said = NOTHING_COMPARED
        if not self.stratified:
            self._common, said = CommonBaseline.of_sites(self._sites, grid), _NOTHING_AT_ALL
            problem = FederatedProblem([self._common], names=[_ALL])
            problem.column_names, problem.scale_free = self._feature_names, True
        if all(f.smoothness == 0 for f in problem.clients):
            raise ValueError(f"n_samples={X.shape[0]}: {said}")
        return problem

    def _grid(self) -> Array | None:
        """Return the times at which clients sum, if they are given."""
        if self.baseline_times is None:
            return None
        grid = float_array("baseline_times", self.baseline_times, ndim=1)
        if not grid.size or grid[0] < 0 or (np.diff(grid) <= 0).any():
            raise ConfigError(
                f"baseline_times must be times >= 0, each later than the one before, got "
                f"{repr_of(self.baseline_times)}"
            )
        if self.stratified:
            raise ConfigError(
                "baseline_times is for one baseline hazard of all clients: give stratified=False, "
                "too, or leave it out"
            )
        return grid

    def _check(self, X: Any, y: Any) -> tuple[Any, Array]:
        X, y = self._validated(X, _columns(y), y_numeric=True, multi_output=True)
        y = _times(y)
        if not y[:, 1].any():
            raise ValueError("y has no event in any row: there is nothing to fit")
        return X, y

    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        time, event, stratum, *entry = y.T
        more = {"entry": entry[0]} if entry else {}
        return CoxRegression(
            X, time, event, ties=self.ties, strata=stratum, sample_weight=weight, **more
        )

    def _show(self, found: Estimates, shape: tuple[int, ...]) -> None:
        super()._show(replace(found, common=self._common is not None), shape)

    def _take(self, x: Array) -> None:
        self.coef_ = x.copy()

    def _expect_stratified(self, what: str) -> None:
        """Raise if all clients have one baseline hazard, for what divides each client's rows."""
        if self.stratified is not True:
            raise ConfigError(
                f"{what} divides each client's rows, and with one baseline hazard for all "
                "their sums are not a sum over clients: use FederatedCoxRegression(alpha, "
                "stratified=False), or stratified=True"
            )

    def stability_selection(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
        strata: Any = None,
        *,
        entry: Any = None,
        **settings: Any,
    ) -> StabilitySelection:
        """Return the columns that half samples of the clients' rows select most often.

        The form of the penalty and the method are this estimator's. The penalty's weight does not
        matter, and the estimator need not be fitted.

        Parameters
        ----------
        X, y, groups, sample_weight, strata, entry
            As for `FederatedCoxRegression.fit`.
        **settings
            `pairs`, `threshold`, `error`, `num`, `min_ratio` of
            `flower_fedcon.stability_selection`.

        Raises
        ------
        ConfigError
            With `stratified=False`, or if an argument is out of range.
        """
        X, y = self._check(X, y)
        self._expect_stratified("stability selection")
        problem = self._strata_problem(X, y, groups, sample_weight, strata, entry=entry)
        return self._selected(problem, settings)

    def predict(self, X: Any) -> Array:
        """Return the log hazard ratios to a row of zeros, shape (rows,)."""
        return self._products(X)

    def score(self, X: Any, y: Any, groups: Any = None, *, entry: Any = None) -> float:
        """Return Harrell's concordance, (C + T/2) / (C + D + T), as lifelines does.

        Parameters
        ----------
        X, y, entry : see `fit`
        groups : array, shape (rows,), optional
            Rows are compared within a group; all of them by default.

        Raises
        ------
        ValueError
            If no two rows can be compared.
        """
        scores = self.predict(X)
        checks = {"y_numeric": True, "multi_output": True, "reset": False}
        y = _times(self._validated(X, _columns(y), **checks)[1])
        _, place = clients_of(groups, len(y))
        late = None if entry is None else _entries(entry, y)
        total, pairs = concordant(place, scores, y[:, 0], y[:, 1], entry=late)
        if not pairs:
            raise ValueError(
                "no two rows can be compared: no row has an event while another"
                + (" of its group" if groups is not None else "")
                + " is at risk for longer"
            )
        return total / pairs

    @property
    def site_concordance_(self) -> Array:
        """Each site's share of concordant pairs, in the order of `groups_`; NaN without a pair."""
        shares = np.full(len(self.groups_), math.nan)
        for (right, pairs), rows in zip(self._concordant(), self._rows, strict=True):
            if pairs:
                shares[self._place[rows[0]]] = right / pairs
        return shares

    @property
    def concordance_(self) -> float:
        """The share of concordant pairs among those that the sites can compare."""
        right, pairs = np.sum(self._concordant(), axis=0)
        return float(right / pairs) if pairs else math.nan

    def _concordant(self) -> list[tuple[float, float]]:
        return [
            concordant(
                f.strata,
                f.rows @ self.coef_,
                f.times,
                f.events.astype(float),
                f.given_weights,
                f.entries,
            )
            for f in self._sites
        ]


def _columns(y: Any) -> Any:
    """Return scikit-survival's records of (event, time) as two columns; other arrays unchanged."""
    names = np.asarray(y).dtype.names
    if names is not None:
        expect_no_times("y", np.asarray(y))
        event, time = (np.asarray(y)[name] for name in names)
        y = np.stack([time, event], axis=1).astype(float)
    return y


def _entries(entry: Any, y: Array) -> Array:
    """Return the times at which rows enter, one for each row.

    Raises
    ------
    ValueError
        If there is not one for each row, before its time.
    """
    late = floats_of("entry", entry).reshape(-1)
    if late.shape != (len(y),) or not np.isfinite(late).all():
        raise ValueError(
            f"entry must have one finite time for each of {len(y)} rows, got shape "
            f"{np.shape(entry)} with {int((~np.isfinite(late)).sum())} values that are not finite"
        )
    wrong = np.flatnonzero(late >= y[:, 0])
    if wrong.size:
        row = int(wrong[0])
        raise ValueError(
            f"each row must enter before its time, got entry {late[row]:g} and time {y[row, 0]:g} "
            f"in row {row} (and {number_of(len(wrong) - 1, 'other')}): correct such rows, or leave "
            "them out"
        )
    return late


def _times(y: Array) -> Array:
    """Return y as two columns, time and event."""
    if y.ndim == 1:
        y = np.stack([np.abs(y), y >= 0], axis=1).astype(float)
    elif y.shape[1] != 2:
        raise ValueError(f"y must be times, or the columns time and event, got {y.shape}")
    time, event = y.T
    if (time < 0).any():
        row = int(np.argmax(time < 0))
        raise ValueError(
            f"times must be >= 0, got {time[row]:g} in row {row}: with a column of events the sign "
            f"of a time has no meaning, so correct it or drop the row"
        )
    other = event[(event != 0) & (event != 1)]
    if other.size:
        raise ValueError(
            f"the second column of y must be 1 for an event and 0 for none, got {other[0]:g}: if 2 "
            f"stands for an event, give y[:, 1] == 2"
        )
    return y


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedCoxRegression(_Stratified, Penalty):
    """Cox's proportional hazards over clients.

    By default each client is a stratum with its own baseline hazard; with `stratified=False` all
    have one, and the fit is that of the pooled rows. Minimises the negative log partial likelihood
    (stratified: summed over the clients) / n, plus
    alpha l1_ratio ||w||_1 + alpha (1 - l1_ratio) ||w||^2 / 2.

    Parameters
    ----------
    alpha : float (default: 0.01)
        >= 0. With 0 there may be no minimiser: coefficients that order all events diverge.
    l1_ratio : float (default: 1.0)
        In [0, 1].
    share_baseline : bool (default: False)
        Whether clients send their baseline hazards, which reveal the times of their events. A
        baseline hazard of all clients is known in any case.

    Attributes
    ----------
    coef_ : array, shape (features,)
        Log hazard ratios.
    concordance_ : float
        Harrell's share of concordant pairs, (C + T/2) / (C + D + T), over pairs within a stratum,
        summed over the clients; pairs are of one client, whatever the baseline.
    site_concordance_ : array, shape (clients,)
        Each client's concordance; NaN without a pair that can be compared.
    baseline_cumulative_hazard_ : dict
        With `share_baseline`: for each client (for each client and stratum, if `fit` gets strata)
        an array of shape (times, 2), the times of events and Breslow's cumulative hazard of a row
        of zeros up to them. With `stratified=False`: by stratum, or of "all" without strata.
    history_, n_iter_, n_features_in_, feature_names_in_, groups_ : see `FederatedLasso`

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedCoxRegression
    >>> X = np.array([[1.0], [0.0], [1.0], [0.0], [1.0]])
    >>> y = np.array([[1, 1], [2, 1], [2, 1], [3, 1], [3, 0]])  # time, event
    >>> FederatedCoxRegression(0.0, ties="efron").fit(X, y, groups=[0, 0, 1, 1, 1]).coef_.round(3)
    array([0.481])

    One baseline hazard for all clients, as in a fit of the pooled rows, and rows that enter late:

    >>> model = FederatedCoxRegression(0.0, ties="efron", stratified=False, inference="model")
    >>> model.fit(X, y, groups=[0, 0, 1, 1, 1], entry=[0, 0, 1, 1, 0]).coef_.round(3)
    array([-0.171])
    >>> model.bse_.round(3), model.baseline_cumulative_hazard_["all"].round(3).tolist()
    (array([1.011]), [[1.0, 0.372], [2.0, 0.915], [3.0, 1.457]])
    >>> model.predict_survival([[1.0], [0.0]], [2.5]).round(3)
    array([[0.462],
           [0.401]])
    """

    alpha: float = field(default=0.01, kw_only=False)
    l1_ratio: float = 1.0
    share_baseline: bool = False
    fit_intercept: bool = field(default=False, init=False)

    def fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
        strata: Any = None,
        *,
        clusters: Any = None,
        entry: Any = None,
    ) -> Self:
        """Fit the model of all clients' rows.

        Parameters
        ----------
        X : array or sparse matrix, shape (rows, features)
        y : array
            Two columns, time and event (1 or 0); or one column of times, negative for censored
            rows, as in XGBoost; or scikit-survival's array of (event, time).
        groups : array, shape (rows,), optional
            The client of each row, which is its stratum if `stratified`; one client by default.
        sample_weight : array, shape (rows,), optional
            Weights >= 0; see `weight_kind`.
        strata : array, shape (rows,), optional
            The stratum of each row (within its client, if `stratified`), such as the sex, each with
            its own baseline hazard.
        clusters : array, shape (rows,), optional
            Labels, for inference="cluster". A cluster is a label within a client; by default each
            client is one cluster.
        entry : array, shape (rows,), optional
            The time after which each row is at risk: of rows that enter late (left truncation), and
            of several rows of one person, each for the time during which its columns are so. By
            default rows are at risk from the beginning.

        Raises
        ------
        ConfigError
            If `alpha` is negative, or inference is not possible: with a penalty, with columns that
            order all events, or with collinear columns.
        ValueError
            If X, y or entry cannot be used, or no two rows can be compared.
        """
        X, y = self._check(X, y)
        problem = self._strata_problem(X, y, groups, sample_weight, strata, clusters, entry)
        return self._fit_at(problem, self.l1_ratio, nonnegative("alpha", self.alpha))

    @property
    def baseline_cumulative_hazard_(self) -> dict[Any, Array]:
        """Breslow's cumulative baseline hazard by client and stratum, or of all clients."""
        if self._common is not None:
            labels = [_ALL] if self._strata is None else self._strata
            found = self._common.baseline(self.coef_)
            return {labels[int(stratum)]: hazard for stratum, hazard in found.items()}
        if not self.share_baseline:
            raise AttributeError(
                "baseline hazards stay at the clients, since they reveal the times of events: give "
                "share_baseline=True to have them sent"
            )
        hazards = {}
        for f, rows in zip(self._sites, self._rows, strict=True):
            client = self.groups_[self._place[rows[0]]]
            for stratum, hazard in f.baseline(self.coef_).items():
                label = None if self._strata is None else self._strata[int(stratum)]
                hazards[client if label is None else (client, label)] = hazard
        return hazards

    def predict_survival(self, X: Any, times: Any, stratum: Any = None) -> Array:
        """Return the probabilities that rows have no event up to some times, shape (rows, times).

        Parameters
        ----------
        X : array or sparse matrix, shape (rows, features)
        times : array, shape (times,)
            After the last time of an event in the fit, it is that time's probability.
        stratum : optional
            The key of the baseline in `baseline_cumulative_hazard_`; needed if there are several.

        Raises
        ------
        ConfigError
            If there are several baselines and none is named, or it is not one of them.
        """
        hazard = of_stratum(self.baseline_cumulative_hazard_, stratum)
        return survival(hazard, self.predict(X), times)

    def proportionality(self, transform: str = "log") -> Proportionality:
        """Test whether hazards are proportional: R's cox.zph, of sums over the clients.

        It is the score test against coefficients that change linearly with a function of time. A
        client sends sums over its events: one number for each column, and two square matrices with
        a row for each column. "rank" also needs the ranks of its times among those of all clients.

        Parameters
        ----------
        transform : {"log", "rank", "identity"} (default: "log")
            The function of time: its logarithm, its rank among all rows' times, or itself.

        Returns
        -------
        Proportionality

        Raises
        ------
        ConfigError
            If the fit has a penalty, or "log" meets an event at time 0.
        """
        choice("transform", transform, _TRANSFORMS)
        check_is_fitted(self)
        if self.alpha:
            raise ConfigError(
                f"the test of proportionality needs a fit without a penalty, got "
                f"alpha={self.alpha!r}: fit with alpha=0"
            )
        if self._kind == SAMPLING:
            raise ConfigError(f"{NO_SCORE_TESTS}: fit without the weights for this test")
        times = [f.times for f in self._sites]
        if self._common is not None:
            common, moments = self._common, self._moments(transform, np.concatenate(times))
            return proportionality_test(
                transform,
                self._feature_names,
                lambda center: sums_of_all_sites(common, self.coef_, moments, center),
            )
        if transform == "rank":
            ranks = rankdata(np.concatenate(times))
            times = np.split(ranks, np.cumsum([len(one) for one in times])[:-1])
        elif transform == "log":
            times = [log_times(f) for f in self._sites]

        def at(center: float) -> dict[str, Array]:
            sums = [
                sums_in_time(f, self.coef_, one, center)
                for f, one in zip(self._sites, times, strict=True)
            ]
            return {name: np.sum([one[name] for one in sums], axis=0) for name in sums[0]}

        return proportionality_test(transform, self._feature_names, at)

    def _moments(self, transform: str, times: Array) -> Array:
        """Return a function of time at the times of the common baseline."""
        assert self._common is not None  # noqa: S101  (the caller's case)
        shared = self._common.shared.times
        if transform == "rank":
            all_times = tied_times(np.sort(times))
            at = np.searchsorted(all_times, on_grid(shared, np.unique(all_times)))
            ranks: Array = rankdata(all_times)[np.minimum(at, len(all_times) - 1)]
            return ranks
        return logarithms(shared, self._common.counts > 0) if transform == "log" else shared


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedCoxRegressionCV(_Stratified, Tuned):
    """`FederatedCoxRegression` with alpha by cross-validation within the clients.

    The loss of a fold is the loss of all rows minus that of the rows outside the fold, per event of
    the fold. Held-out rows are thus compared with all rows at risk (glmnet's grouped folds).

    Attributes
    ----------
    alpha_, l1_ratio_ : float
    cv_ : CrossValidation
        The path of all rows, negative log partial likelihoods of held-out rows, and how often each
        coefficient was selected.
    coef_, concordance_, site_concordance_ : see `FederatedCoxRegression`
    history_, n_iter_, n_features_in_, feature_names_in_, groups_ : see `FederatedLasso`

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedCoxRegressionCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(150, 4))
    >>> y = np.c_[rng.exponential(np.exp(-X[:, 0])), np.ones(150)]
    >>> model = FederatedCoxRegressionCV(rule="1se").fit(X, y, groups=np.arange(150) % 3)
    >>> np.flatnonzero(model.coef_)
    array([0])
    """

    fit_intercept: bool = field(default=False, init=False)
    inference: str | None = field(default=None, init=False)

    def fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
        strata: Any = None,
        *,
        entry: Any = None,
    ) -> Self:
        """Choose alpha and fit; see `FederatedCoxRegression.fit`."""
        X, y = self._check(X, y)
        self._expect_stratified("cross-validation")
        problem = self._strata_problem(X, y, groups, sample_weight, strata, entry=entry)
        self.alpha_ = self._fit_cv(problem, self.l1_ratio, self._splits(X, y, groups))
        return self

    def _splits(self, X: Any, y: Array, groups: Any) -> Any:
        folds = super()._splits(X, y, groups)
        if isinstance(folds, int):
            return folds
        places = [np.argsort(f.order) for f in self._sites]  # in the order of the given rows
        return [
            [tuple(place[part] for part in pair) for place, pair in zip(places, fold, strict=True)]
            for fold in folds
        ]

    @staticmethod
    def _held_out_loss(whole: Any, fitted: Any, held: Any, x: Array) -> float:
        """Return the weighted negative log partial likelihood that the held-out rows add."""
        rest = 0.0 if fitted is None else fitted.total_weight * fitted.value(x)
        return float((whole.total_weight * whole.value(x) - rest) / held.total_weight)
