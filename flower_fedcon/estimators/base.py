"""The base of the estimators: rows divided among clients, and the run that fits the model."""

from __future__ import annotations

import inspect
import math
import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from flower_fedcon.core.docstrings import Entry, complete, with_inherited
from flower_fedcon.core.exchange import Site, known
from flower_fedcon.errors import ConfigError, first_few, number_of, repr_of
from flower_fedcon.estimators.argument_forms import (
    clients_of,
    expect_outcomes,
    folds_of,
    why_not_numbers,
)
from flower_fedcon.estimators.between_sites import stands_out
from flower_fedcon.estimators.random_effects import RandomEffects
from flower_fedcon.estimators.shared_arguments import FitSettings, PathSettings
from flower_fedcon.objectives import Profiled, WithOffset
from flower_fedcon.paths import (
    CrossValidation,
    RegularizationPath,
    StabilitySelection,
    cross_validate,
    stability_selection,
)
from flower_fedcon.paths.path import Walk, regularization_path
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import ElasticNet, Regularizer, WithIntercept
from flower_fedcon.regularizers.rescaled import Entrywise
from flower_fedcon.solvers.quadratic_models import hardly_apart
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.tables.checks.odd_values import odd_pairs, odd_values
from flower_fedcon.tables.columns import LARGEST_NUMBER
from flower_fedcon.tables.default_method import default_strategy
from flower_fedcon.tables.ending.convergence import separated_by, separating
from flower_fedcon.tables.families import family_of
from flower_fedcon.tables.row_weights import (
    FREQUENCY,
    NO_OWN_FITS,
    NO_RANDOM,
    SAMPLING,
    check_sampling,
    in_words,
    kind_in_words,
    kind_of_weights,
    said_of,
)
from flower_fedcon.tables.schema import RANDOM, SITE_EFFECTS
from flower_fedcon.tables.small_cells import effective_rows
from flower_fedcon.tables.statistics import (
    Heterogeneity,
    found_by_sites,
    set_clusters,
)
from flower_fedcon.tables.statistics.estimates import DEBIASED
from flower_fedcon.validation import (
    Array,
    choice,
    expect_no_times,
    expect_unmasked,
    float_array,
    floats_of,
    real,
    total,
)
from flower_fedcon.wire.payloads import Payload

_SMALLEST = (
    1e-100  # of the largest value of a column: its squares are in sums of second derivatives
)
_LARGEST_OFFSET = 700.0  # whose exponential is a float
_FAR = 100.0  # standard deviations: nearer to 0 a column's shift costs at most four digits
_EQUAL = 4.0 * float(np.finfo(float).eps)  # a deviation below this share of a mean is rounding
_LOOKED_AT = 1_000_000  # entries of X: in more, odd values are not searched for
_SAID = 10  # remarks in a warning
_APPROACH = 10  # points on a path to the requested weight, for methods that need a near start


class FederatedEstimator(RandomEffects, BaseEstimator, FitSettings):  # type: ignore[misc]
    """An estimator that is fitted over the clients that hold the rows.

    A subclass defines one client's objective in `_objective`, and the regularizer in `_penalty`.

    Attributes
    ----------
    history_ : RegularizationPath
        The fit's rounds, bytes and KKT residual, at its last point.
    n_iter_ : int
        Rounds of the method.
    groups_ : array
        The clients.
    left_out_ : list of str
        The clients that carry no information besides their own intercept.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    __metadata_request__fit: ClassVar = {"groups": True}  # as of scikit-learn's group splitters
    history_: RegularizationPath
    coef_: Array
    left_out_: list[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        complete(cls)

    @classmethod
    def described(cls, own: list[Entry]) -> list[Entry]:
        """Return a docstring's lines on each argument, of which some are its own."""
        return with_inherited(cls, own, [*inspect.signature(cls).parameters])

    @abstractmethod
    def _check(self, X: Any, y: Any) -> tuple[Any, Array]:
        """Return X and y in the form used."""

    @abstractmethod
    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        """Return one client's objective."""

    @abstractmethod
    def _take(self, x: Array) -> None:
        """Set the coefficients from a model."""

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Array]:
        expect_unmasked("X", X)
        expect_unmasked("y", y)
        expect_outcomes(y)
        arrays: tuple[Any, Array] = self._numbers(X, y, **checks)
        if checks.get("y_numeric") and arrays[1].dtype.kind in "US":
            raise ValueError(
                f"y must hold numbers, got the text {str(arrays[1].flat[0])!r}: convert it "
                f"(`y.astype(float)`), or use FederatedLogisticRegression for classes"
            )
        if checks.get("y_numeric"):
            _expect_in_reach("y", float(np.abs(arrays[1]).max()))
        largest = np.ravel(abs(arrays[0]).max(axis=0).toarray() if issparse(arrays[0]) else
                           np.abs(arrays[0]).max(axis=0))  # fmt: skip
        for name, size in zip(self._feature_names, largest.tolist(), strict=True):
            _expect_in_reach(f"column {name!r} of X", size, _SMALLEST)
        return arrays

    def _numbers(self, X: Any, *y: Any, **checks: Any) -> Any:
        """Return X, or X and y, as scikit-learn's `validate_data` does."""
        if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
            expect_no_times("X", X)
        try:
            return validate_data(self, X, *y, accept_sparse="csr", dtype=np.float64, **checks)
        except (TypeError, ValueError):
            if why := why_not_numbers(X):
                raise ValueError(why) from None
            raise

    def _products(self, X: Any) -> Array:
        """Return the products of new rows with the coefficients, before any intercept."""
        check_is_fitted(self)
        if self.site_effects == "own":
            raise ConfigError(
                "own intercepts stay at their sites, so predictions are not possible elsewhere: "
                'use X @ coef_ to compare rows of one site, or fit with site_effects="common"'
            )
        expect_unmasked("X", X)
        X = self._numbers(X, reset=False)
        products: Array = safe_sparse_dot(X, self.coef_.T)
        return products

    def _problem(
        self,
        X: Any,
        y: Array,
        groups: Any,
        sample_weight: Any,
        offset: Any = None,
        exposure: Any = None,
        clusters: Any = None,
    ) -> FederatedProblem:
        """Return the problem of the clients that the groups name."""
        n = X.shape[0]
        self._check_site_effects()
        expect_unmasked("sample_weight", sample_weight)
        expect_no_times("sample_weight", sample_weight)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        if weight is not None and (weight < 0).any():
            raise ValueError(f"sample_weight must be >= 0, got {weight.min():g}")
        if weight is not None:
            _expect_in_reach("sample_weight", float(weight.max()))
        if groups is None and _in_a_search():
            warnings.warn(
                f"{type(self).__name__} was fitted without groups, so all rows belong to one "
                f"client. A search or cross-validation passes groups only to its splitter: call "
                f"sklearn.set_config(enable_metadata_routing=True) first",
                UserWarning,
                stacklevel=4,
            )
        self.groups_, self._place = clients_of(groups, n)
        counted = np.ones(n, dtype=bool) if weight is None else weight > 0
        if not counted.any():
            raise ValueError("sample_weight is 0 for every row: nothing to fit")
        if not counted.all():  # rows of weight 0 count nowhere
            there = np.unique(self._place[counted])
            self.groups_ = self.groups_[there]
            self._place = np.where(counted, np.searchsorted(there, self._place), 0)
        self._kind = self._kind_of(weight)
        self._said, self._weighing = (), ""
        if weight is not None:
            many, whole = int((weight > 0).sum()), float(weight.sum())
            self._said = said_of(self.weight_kind, many, whole)
            effective = effective_rows(weight, counted) if self._kind == SAMPLING else math.nan
            self._weighing = in_words(kind_in_words(self.weight_kind), many, whole, effective)
        codes = self._clusters(clusters, n)
        self._say_odd(X, y, codes)
        X = self._about_means(X, counted, weight)
        offsets = self._offset(offset, exposure, n)
        clients, names, self._rows = [], [], []
        self.left_out_ = []
        for k, name in enumerate(self.groups_):
            rows = np.flatnonzero((self._place == k) & counted)
            of_rows = None if weight is None else weight[rows]
            part, targets = X[rows], y[rows]
            if offsets is None:
                made = self._objective(part, targets, of_rows)
            else:
                made = WithOffset(
                    lambda A, y=targets, w=of_rows: self._objective(A, y, w), part, offsets[rows]
                )
            made = self._completed(made)
            if not getattr(made, "informative", True):
                self.left_out_.append(str(name))
                continue
            if codes is not None:
                set_clusters(made, codes[rows])
            clients.append(made)
            names.append(str(name))
            self._rows.append(rows)
        if self.left_out_:
            self._say_left_out(bool(clients))
        random = self.site_effects == RANDOM
        if random:
            self._labelled(names, self._rows, codes)
        if self.inference is not None and not random:
            self._held = dict(zip(names, clients, strict=True))
        about = stands_out(
            family_of(self.family), names, self._rows, X, y, weight=weight,
            kind=self.weight_kind or "", given={"offset": offset, "exposure": exposure},
            offset=offsets, levels=self._ordered,
        )  # fmt: skip
        for said in about:
            warnings.warn(said, UserWarning, stacklevel=4)
        weights = [f.total_weight for f in clients]
        self._total = total("sample_weight", np.array(weights))
        start = self._start(clients)
        problem = FederatedProblem(clients, weights=weights, names=names, x0=start)
        problem.column_names = self._feature_names
        problem.scale_free = family_of(self.family).scale_free(self._common_intercept)
        return problem

    def _say_odd(self, X: Any, y: Array, clusters: Array | None) -> None:
        """Warn of values that may be wrong, as `fedcon data check` does."""
        if not isinstance(X, np.ndarray) or X.size > _LOOKED_AT:
            return
        named = [*zip(self._feature_names, X.T, strict=True)]
        rows, remedy = np.arange(len(X)), "drop these rows, or fill the value in"
        outcome = [] if family_of(self.family).labelled else [("y", y.reshape(len(y), -1)[:, 0])]
        said = [
            f"column {name!r}: {line}"
            for name, values in (*named, *outcome)
            for line in odd_values(values, rows, remedy, clusters)
        ]
        said += odd_pairs(dict(named), rows)
        if said:
            more = f"; and {len(said) - _SAID} more" if len(said) > _SAID else ""
            warnings.warn(
                f"{type(self).__name__} (rows from 0): {'; '.join(said[:_SAID])}{more}",
                UserWarning,
                stacklevel=4,
            )

    def _about_means(self, X: Any, counted: Array, weight: Array | None) -> Any:
        """Return X with columns far from 0 less their means over all clients.

        With an intercept the model is the same for any shift of a column, and a column such as
        seconds since 1970 keeps the digits of its differences. The means follow from sums that each
        client could send. Sparse columns, and constant ones, stay as they are.
        """
        self._centre = None
        if not self.fit_intercept or not isinstance(X, np.ndarray):
            return X
        rows, w = (X, weight) if counted.all() else (X[counted], weight[counted])  # type: ignore[index]
        with np.errstate(over="ignore", invalid="ignore"):
            means, spread = np.average(rows, axis=0, weights=w), rows.std(axis=0)
            far = (np.abs(means) > _FAR * spread) & (spread > _EQUAL * np.abs(means))
        if not far.any():
            return X
        self._centre = np.where(far, means, 0.0)
        return X - self._centre

    def _as_given(self, x: Array) -> Array:
        """Return a model for the columns as they were given."""
        if self._centre is None or not self._common_intercept:
            return x
        model = np.array(x, dtype=np.float64)
        model[self.n_features_in_] -= self._centre @ model[: self.n_features_in_]
        return model

    def _kind_of(self, weight: Array | None) -> str:
        """Return the kind of the weights, if anything depends on it."""
        random = self.site_effects == RANDOM
        if weight is None or (self.inference is None and not random):
            return FREQUENCY
        split = weight[weight != np.rint(weight)]
        doubt = (
            f"sample_weight has {split[0]:.10g}, which is no number of rows" if split.size else ""
        )
        kind = kind_of_weights(self.weight_kind, "random intercepts" if random else "errors", doubt)
        if kind == SAMPLING:
            if random:
                raise ConfigError(NO_RANDOM)
            check_sampling(self.inference)
        return kind

    def _completed(self, objective: Any) -> Any:
        """Return a client's objective, built from its loss."""
        return Profiled(objective) if self.site_effects == "own" else objective

    def _check_site_effects(self) -> None:
        self._check_random()
        if choice("site_effects", self.site_effects, SITE_EFFECTS) == "common":
            return
        if not family_of(self.family).profiled:
            raise ConfigError(
                f"site_effects={self.site_effects!r} is for squared, logistic and Poisson losses, "
                f"and {type(self).__name__} has a {family_of(self.family).name} loss here: use "
                f'site_effects="common", with a column for each site'
            )
        if not self.fit_intercept and self.site_effects == "own":
            raise ConfigError(
                f"site_effects={self.site_effects!r} gives intercepts to sites, and fit_intercept "
                f"is False: leave fit_intercept out"
            )

    def _say_left_out(self, some: bool) -> None:
        said = (
            f"outcomes are {family_of(self.family).alike} at "
            f"{first_few(self.left_out_, what='client')}: its own intercept is infinite, so its "
            f"rows carry no information on the columns"
        )
        if not some:
            raise ConfigError(f'{said}. No client is left: use site_effects="common"')
        warnings.warn(f"{said}. Such clients are left out (left_out_)", UserWarning, stacklevel=5)

    @property
    def _ordered(self) -> int:
        """The number of ordered outcomes, which may be turned round at a client; 0 for others."""
        family = family_of(self.family)
        return 2 if family.binary or family.compares else 0

    @property
    def _no_intercept(self) -> float:
        """The value of `intercept_` without a common intercept: NaN if sites have their own."""
        return math.nan if self.site_effects == "own" else 0.0

    def _offset(self, offset: Any, exposure: Any, n: int) -> Array | None:
        """Return the offset of each row's score; None without any."""
        total: Array | None = None
        for name, given in (("offset", offset), ("exposure", exposure)):
            if given is None:
                continue
            column = floats_of(name, given).reshape(-1)
            if column.shape != (n,):
                raise ValueError(
                    f"{name} must have one finite value for each of {n} rows, got shape "
                    f"{np.shape(given)}"
                )
            if (wrong := np.flatnonzero(~np.isfinite(column))).size:
                raise ValueError(
                    f"{name} must be finite, got {column[wrong[0]]:g} in row {wrong[0]} (and "
                    f"{number_of(len(wrong) - 1, 'other')}): leave such rows out"
                )
            if name == "exposure":
                if not family_of(self.family).log_link:
                    raise ConfigError(
                        f"exposure is for models with a log link, and {type(self).__name__} has "
                        "none: give offset, which is added to the scores"
                    )
                if column.min() <= 0:
                    raise ValueError(
                        f"exposure must be > 0, got {column.min():g}: leave rows without exposure "
                        f"out"
                    )
                column = np.log(column)
            total = column if total is None else total + column
        if total is not None and family_of(self.family).log_link:
            far = int(np.abs(total).argmax())
            if abs(total[far]) > _LARGEST_OFFSET:
                raise ValueError(
                    f"offset must be from -{_LARGEST_OFFSET:g} to {_LARGEST_OFFSET:g} with a log "
                    f"link, since the mean is proportional to its exponential, got "
                    f"{total[far]:g} in row {far}: give the logarithm of an exposure"
                )
        return total

    def _clusters(self, clusters: Any, n: int) -> Array | None:
        """Return the cluster of each row, by number; None if each client is one cluster."""
        if clusters is None:
            return None
        if self.inference != "cluster" and self.site_effects != RANDOM:
            raise ConfigError(
                f'clusters need inference="cluster" or site_effects="random", got '
                f"inference={self.inference!r}, site_effects={self.site_effects!r}"
            )
        self._cluster_labels, codes = clients_of(clusters, n, "clusters")
        return codes

    def _start(self, clients: list[Any]) -> Array | None:
        """Return a start if zeros are far from the solution, from sums that clients could send."""
        return None

    def _strategy(self, problem: FederatedProblem) -> FedConStrategy[Any]:
        if self.algorithm is None:
            return default_strategy(problem, self.participation)
        common = {} if self.participation is None else {"participation": self.participation}
        if isinstance(self.algorithm, FedConStrategy):
            if common:
                raise ConfigError(
                    "participation and a strategy as algorithm contradict: give participation to "
                    'the strategy, or name the algorithm: algorithm="FedNewton"'
                )
            return self.algorithm
        kind: Any = strategy_class(self.algorithm)
        takes = inspect.signature(kind).parameters
        if "regularizer" not in takes:
            raise ConfigError(
                f"{kind.__name__} takes no regularizer, and the estimator needs one: "
                f'choose another algorithm, such as "FedNewton"'
            )
        try:
            made: FedConStrategy[Any] = kind(regularizer=None, **common)
            return made
        except (TypeError, ConfigError) as error:
            raise ConfigError(
                f"{kind.__name__} needs settings ({error}): give algorithm={kind.__name__}(None, "
                f"...)"
            ) from None

    def _options(self) -> dict[str, Any]:
        return {"tolerance": self.tol, "max_rounds": self.max_iter, "seed": self.random_state or 0}

    def _psi(self, l1_ratio: float) -> Regularizer:
        """Return the regularizer whose weight is chosen or given."""
        share = real("l1_ratio", l1_ratio)
        if not 0 <= share <= 1:
            raise ConfigError(f"l1_ratio must be in [0, 1], got {l1_ratio!r}")
        psi: Regularizer = ElasticNet(share, 1.0 - share)
        if self.penalty_factor is not None:
            factors = self._factors()
            psi = Entrywise(share * factors, (1.0 - share) * factors)
        return WithIntercept(psi) if self._common_intercept else psi

    def _factors(self) -> Array:
        """Return the factors of the penalty, shape of the coefficients without an intercept."""
        given = float_array("penalty_factor", self.penalty_factor, ndim=1)
        if given.shape != (self.n_features_in_,) or given.min() < 0:
            raise ConfigError(
                f"penalty_factor must be a number >= 0 for each of {self.n_features_in_} columns, "
                f"got {repr_of(self.penalty_factor)}"
            )
        classes = len(getattr(self, "classes_", ()))
        return given if classes < 3 else np.repeat(given[:, None], classes, axis=1)

    def _fit_at(self, problem: FederatedProblem, l1_ratio: float, alpha: float) -> Self:
        """Fit for one weight."""
        method, random = self._wanted(alpha, l1_ratio), self.site_effects == RANDOM
        if random:
            self._expect_random(method, alpha)
        psi, strategy = self._psi(l1_ratio), self._strategy(problem)
        options = self._options()
        grid = [float(alpha)]
        if not strategy.participation.is_full(problem.num_clients) and l1_ratio and alpha:
            # With partial participation nothing corrects too long a step: start at the null model.
            short = regularization_path(problem, psi, strategy, num=1, **options)
            top = float(short.values[0])
            if top > alpha:
                grid = np.geomspace(top, alpha, _APPROACH).tolist()
        if method is None and not random:
            self._finish(regularization_path(problem, psi, strategy, values=grid, **options), -1)
            return self
        walk = Walk(problem, psi, strategy, self.tol, self.max_iter, "local", options["seed"])
        try:
            path = walk.along(np.array(grid))
            self._finish(path, -1)
            x, separated = np.asarray(path.x[-1]), self._separating(path, -1)
            if random:
                self._fit_random(walk, problem, x, method, separated)
            elif method is not None:
                self._infer(walk, x, method, separated)
        finally:
            walk.close()
        return self

    def stability_selection(
        self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None, **settings: Any
    ) -> StabilitySelection:
        """Return the columns that half samples of the clients' rows select most often.

        The form of the penalty and the method are this estimator's. The penalty's weight does not
        matter, and the estimator need not be fitted.

        Parameters
        ----------
        X, y, groups, sample_weight
            As for `fit`.
        **settings
            `pairs`, `threshold`, `error`, `num`, `min_ratio` of
            `flower_fedcon.stability_selection`.

        Raises
        ------
        ConfigError
            If the loss has no rows that can be halved, or sites have their own intercepts.
        """
        X, y = self._check(X, y)
        return self._selected(self._problem(X, y, groups, sample_weight), settings)

    def _selected(self, problem: FederatedProblem, settings: dict[str, Any]) -> StabilitySelection:
        psi, strategy = self._psi(getattr(self, "l1_ratio", 1.0)), self._strategy(problem)
        return stability_selection(problem, psi, strategy, **self._options(), **settings)

    def heterogeneity(self) -> Heterogeneity:
        """Test whether effects differ between clients, by fits of each client alone.

        Each client fits the model to its own rows, with its own intercept, and sends estimates and
        their covariance.

        Raises
        ------
        ConfigError
            If the fit was without inference (or has been pickled, which drops the rows), the loss
            is not squared, logistic or Poisson, or fewer than two clients can be fitted alone; the
            error says why.
        """
        estimates = self._inferred()
        if self.site_effects == RANDOM:
            raise ConfigError(
                "heterogeneity compares clients with their own intercepts, and here they are "
                'random: fit with site_effects="own"'
            )
        if estimates.weights == SAMPLING:
            raise ConfigError(NO_OWN_FITS)
        units = None if estimates.method == DEBIASED else self._as_given(np.eye(len(self._at)))
        return found_by_sites(self._asked, self.estimates_, self._at, units)

    def _asked(
        self, statistic: str, shapes: Any, **more: Array
    ) -> tuple[dict[str, Payload], dict[str, str]]:
        """Return the clients' answers at the fit, and the reasons of those that gave none."""
        if self.inference != DEBIASED and not hasattr(self, "_held"):
            raise ConfigError("the estimator was pickled, which leaves rows out: fit it again")
        down: Payload = {"x": self._at, **more}
        told: dict[str, Payload] = {}
        why: dict[str, str] = {}
        for site, f in self._held.items():
            try:
                told[site] = known()[statistic].tell(Site(f), down)
            except ConfigError as error:
                why[site] = str(error)
        return told, why

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_held", None)
        return state

    def _finish(self, path: RegularizationPath, place: int) -> None:
        alike = self._separated(path, place) or self._alike(path, place)
        if not path.converged[place]:
            ended = path.rounds[place] < self.max_iter
            warnings.warn(
                f"{type(self).__name__} did not reach its tolerance in "
                f"{number_of(path.rounds[place], 'round')} (KKT residual {path.kkt[place]:.3g}): "
                + (alike or ("rounding is the limit: give a larger tol" if ended else
                             f"allow more than max_iter={self.max_iter} rounds")),
                ConvergenceWarning,
                stacklevel=4,
            )  # fmt: skip
        elif alike:
            warnings.warn(f"{type(self).__name__}: {alike}", ConvergenceWarning, stacklevel=4)
        self.history_ = replace(path, x=[self._as_given(np.asarray(x)) for x in path.x])
        self.n_iter_ = max(1, int(path.rounds.sum()))
        self._take(np.asarray(self.history_.x[place]))

    @property
    def _feature_names(self) -> list[str]:
        return [*map(str, getattr(self, "feature_names_in_", range(self.n_features_in_)))]

    def _separated(self, path: RegularizationPath, place: int) -> str:
        """Return a text with the columns that separate the outcome; "" for none."""
        columns, held = self._separating(path, place), bool(path.values[place])
        return columns and separated_by(columns, "take a penalty", held=held)

    def _separating(self, path: RegularizationPath, place: int) -> str:
        """Return the columns that separate the outcome; "" for none."""
        if place not in (-1, len(path) - 1):
            return ""
        return separating(path.runaway, np.shape(path.x[place]), self._feature_names)

    def _alike(self, path: RegularizationPath, place: int) -> str:
        """Return a text with the columns that rounding can hardly tell apart; "" without any."""
        x = np.asarray(path.x[place])
        if x.ndim > 1 and not path.values[place]:
            return ""  # without a penalty classes are defined up to a common number
        if path.apart is None or path.apart.size != x.size:
            return ""
        used = np.where(x.reshape(-1) != 0, path.apart, 1.0)
        used = used.reshape(len(x), -1).min(axis=1)[: self.n_features_in_]  # of each column
        if x.ndim > 1 and self.penalty_factor is not None:  # for free columns as without a penalty
            used = np.where(np.asarray(self.penalty_factor) == 0, 1.0, used)
        return hardly_apart(used, [f"column {name!r}" for name in self._feature_names])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class Tuned(FederatedEstimator, PathSettings):
    """An estimator whose weight is chosen by cross-validation within the clients.

    Attributes
    ----------
    cv_ : CrossValidation
        Losses of all weights, and the cost; `cv_.stability` says how often each coefficient was
        selected.
    l1_ratio_ : float
        The one used by the fit: of several, that with the least mean loss.
    """

    cv_: CrossValidation
    l1_ratio_: float
    _held_out_loss: ClassVar[Any] = None
    """As `loss` of `flower_fedcon.cross_validate`."""

    def _splits(self, X: Any, y: Array, groups: Any) -> Any:
        """Return the folds: their number, or each client's rows in each given fold."""
        folds = folds_of(self.cv, X, y, None if groups is None else self._place)
        if isinstance(folds, int):
            return folds
        return [
            [tuple(_places(rows, part) for part in pair) for rows in self._rows] for pair in folds
        ]

    def _fit_cv(
        self, problem: FederatedProblem, l1_ratio: Any, folds: Any, values: Any = None
    ) -> float:
        """Fit for the weight that cross-validation chooses, and return it."""
        choice("rule", self.rule, ("min", "1se"))
        if self.inference is not None:
            choice("inference", self.inference, (DEBIASED,))
            self._expect_lasso(1.0, l1_ratio)
        if self.rule == "1se" and not isinstance(folds, int) and len(folds) < 2:
            raise ConfigError(
                'rule="1se" needs at least two folds, for a standard error, and cv gives one: use '
                'rule="min", or more folds'
            )
        several = isinstance(l1_ratio, list | tuple | np.ndarray)
        ratios = list(l1_ratio) if several else [l1_ratio]
        shares = [real("l1_ratio", ratio) for ratio in ratios]
        if not shares or min(shares) <= 0:
            raise ConfigError(
                f"cross-validation needs l1_ratio > 0, since a path begins where all coefficients "
                f"are 0; got {repr_of(l1_ratio)}"
            )
        tried = [
            cross_validate(
                problem,
                self._psi(share),
                self._strategy(problem),
                folds=folds,
                num=self.num,
                min_ratio=self.min_ratio,
                values=values,
                loss=type(self)._held_out_loss,
                **self._options(),
            )
            for share in shares
        ]
        best = min(range(len(tried)), key=lambda k: tried[k].least)
        chosen, self.l1_ratio_ = tried[best], shares[best]
        place = chosen.best if self.rule == "min" else chosen.one_standard_error
        self._finish(chosen.path, place)
        self.cv_ = replace(chosen, path=self.history_)
        if self.inference is not None:
            strategy, options = self._strategy(problem), self._options()
            walk = Walk(
                problem, self._psi(1.0), strategy, self.tol, self.max_iter, "local", options["seed"]
            )
            try:
                self._infer(walk, np.asarray(chosen.path.x[place]), DEBIASED, "")
            finally:
                walk.close()
        return float(chosen.values[place])


def _expect_in_reach(name: str, largest: float, least: float = 1.0 / LARGEST_NUMBER) -> None:
    """Raise if squares of these numbers may not be added up; 0 alone has no unit."""
    if largest and not least <= largest <= LARGEST_NUMBER:
        raise ValueError(
            f"{name} has values of {largest:.3g}, whose squares leave the range of floating point: "
            f"write it in another unit, so that its largest is from {least:g} to {LARGEST_NUMBER:g}"
        )


def _places(own: Array, rows: Array) -> Array:
    """Return the places of these rows among a client's ascending rows, with repetitions."""
    place = np.searchsorted(own, rows)
    mine = (place < len(own)) & (own[np.minimum(place, len(own) - 1)] == rows)
    places: Array = place[mine]
    return places


def _in_a_search() -> bool:
    """Return whether scikit-learn's model selection runs this fit."""
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("sklearn.model_selection"):
            return True
        frame = frame.f_back
    return False
