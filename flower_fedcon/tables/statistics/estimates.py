"""Covariances, tests and intervals, computed from the sums of an unpenalised fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, first_few, number_of
from flower_fedcon.runs.paper_tables import p_equals
from flower_fedcon.tables.families.base import (
    DISPERSION,
    GAP,
    INTERCEPT,
    KNOWN,
    NONE,
    PEARSON,
    RESIDUAL,
    Family,
    family_of,
)
from flower_fedcon.tables.row_weights import FREQUENCY, SAMPLING
from flower_fedcon.tables.row_weights import NO_LIKELIHOOD as NO_LIKELIHOOD_OF_SAMPLES
from flower_fedcon.tables.statistics.site_sums import (
    CLUSTER,
    METHODS,
    MODEL,
    NUMBERS,
    QUASI,
    ROBUST,
    most_numbers,
    unpacked,
)
from flower_fedcon.validation import Array, choice

PENALISED = (
    "standard errors of a penalised fit are not valid: a penalty biases coefficients towards 0, "
    "and an interval after selection ignores that the same rows selected the columns. Fit without "
    "a penalty ({how}), or leave inference out. For linear, logistic and Poisson models with an "
    'l1 norm use inference="debiased"'
)
DEBIASED = "debiased"
"""The method of estimators with a penalty."""
_FEW_CLUSTERS, _FEW_SAID = 30, "clusters are few, so errors are rough"
_SINGULAR = 1e3  # machine epsilons, times parameters: an eigenvalue that counts as 0
_NAMED = 0.1  # relative to a direction's largest entry
_STOPPED = 1e-4  # Newton's decrement, in squared standard errors, from which a fit has not ended
_LARGE_SHAPE = 1e-5  # of the right side below which the start, an expansion, is exact enough
_EXACT = 1e-20  # the residuals' sum of squares, relative to that of the fit: rounding alone
_EXACT_STEPS = 1e-14  # the same for a fit that ends within a tolerance, not in one step
NO_ERRORS = (
    "the model fits all outcomes exactly, as a constant outcome, or one that is computed from the "
    "columns: what is left is rounding, so there are no standard errors, tests or likelihood"
)
_JOINT = (
    "errors are from the observed information of all parameters, log alpha included, as in "
    "statsmodels (R's glm.nb treats alpha as known, and uses the expected information)"
)
_SPREAD_OUT = (
    "Pearson's chi2 over its degrees of freedom is {ratio:.3g}: counts vary more than Poisson's, "
    'for which it is about 1, so these errors are too small. Use inference="quasi", "robust" or '
    '"cluster", or loss = "negative_binomial"'
)
_TOO_MUCH, _ERRORS = 1.5, 3.0  # the ratio that is said, and its standard errors above 1
_NO_LIKELIHOOD = (
    'inference="model" needs a likelihood, and a {name} loss is none, since its scale is given and '
    'not estimated. Use inference="robust" or "cluster"'
)


def check_method(name: str, method: Any) -> str:
    """Return a method of inference that a family offers.

    Parameters
    ----------
    name : str
        The loss's name in schemas.
    method : {"model", "robust", "cluster", "quasi"}

    Raises
    ------
    ConfigError
    """
    wanted = choice("inference", method, METHODS)
    if wanted == MODEL and family_of(name).scale == NONE:
        raise ConfigError(_NO_LIKELIHOOD.format(name=name))
    if wanted == QUASI and not family_of(name).quasi:
        raise ConfigError(
            f'inference="quasi" is for Poisson losses, whose variance is then phi times the mean, '
            f'got a {name} loss: use inference="model", "robust" or "cluster"'
        )
    return wanted


def shapes_of(size: int, method: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array in a site's answer, by the number of free parameters."""
    shapes: dict[str, tuple[int, ...]] = {"information": (most_numbers(size),), "score": (size,)}
    if method in (ROBUST, CLUSTER):
        shapes["meat"] = (most_numbers(size),)
    return {**shapes, "numbers": (len(NUMBERS),)}


@dataclass(frozen=True)
class Estimates:
    """Estimates with their covariance, and the model's fit.

    Attributes
    ----------
    family : Family
    method : {"model", "robust", "cluster", "debiased"}
    names : tuple of str
        The parameters' names.
    values : array, shape (p,)
    covariance : array, shape (p, p)
    n : float
        The sum of the rows' weights; the number of rows with sampling weights.
    loglik, deviance, pearson : float
        NaN without a likelihood.
    dispersion : float
        phi, by which the model's own covariance is multiplied.
    shape : float
        The shape of gamma distributions, by maximum likelihood; else NaN.
    clusters : int
        The number of clusters; 0 if errors are not by cluster.
    df : float
        Degrees of freedom of t; inf for the normal distribution.
    more : int
        Further parameters that AIC and BIC count.
    counted : int
        The number of parameters of the fit.
    events : float
        The weighted number of events of a Cox model; else NaN.
    notes : tuple of str
    weights : {"frequency", "sampling"}
        What the rows' weights mean.
    weighing : str
        What they are and add up to, in words; "" without weights.
    common : bool
        Whether a Cox model has one baseline hazard for all sites.
    """

    family: Family
    method: str
    names: tuple[str, ...]
    values: Array
    covariance: Array
    n: float
    loglik: float
    deviance: float
    pearson: float
    dispersion: float
    shape: float = math.nan
    clusters: int = 0
    df: float = math.inf
    more: int = 0
    counted: int = 0
    events: float = math.nan
    notes: tuple[str, ...] = ()
    weights: str = FREQUENCY
    weighing: str = ""
    common: bool = False

    @property
    def doubts(self) -> list[str]:
        """Those of `notes` that say why errors are rough, or missing."""
        return [note for note in self.notes if note == NO_ERRORS or _FEW_SAID in note]

    @property
    def pearson_ratio(self) -> float:
        """Pearson's chi^2 over its degrees of freedom, for counts of a fixed dispersion; else NaN.

        Of Poisson's counts it is about 1; of those that vary more it is greater.
        """
        measured = self.family.quasi and self.method != DEBIASED and self.n > self.counted
        return self.pearson / (self.n - self.counted) if measured else math.nan

    @property
    def fixed(self) -> bool:
        """Whether `dispersion` is 1 by the model, not estimated."""
        return self.family.scale == KNOWN and self.method != QUASI and self.dispersion == 1.0

    @property
    def bse(self) -> Array:
        """The standard errors, shape (p,)."""
        errors: Array = np.sqrt(np.diag(self.covariance))
        return errors

    @property
    def statistics(self) -> Array:
        """The estimates over their standard errors, shape (p,): z, or t if `df` is finite.

        NaN for log alpha and for logarithms of gaps, whose z would test that alpha, or a gap, is 1.
        """
        asked = np.array(
            [name != DISPERSION and not name.startswith(GAP) for name in self.names], dtype=bool
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios: Array = np.where(asked, self.values / self.bse, np.nan)
        return ratios

    @property
    def letter(self) -> str:
        """The name of `statistics`: "z", or "t"."""
        return "z" if math.isinf(self.df) else "t"

    @property
    def pvalues(self) -> Array:
        """The p-values of the two-sided tests that a parameter is 0, shape (p,)."""
        probabilities: Array = 2.0 * self._distribution.sf(np.abs(self.statistics))
        return probabilities

    def conf_int(self, alpha: float = 0.05) -> Array:
        """Return Wald intervals with coverage 1 - alpha, shape (p, 2).

        Raises
        ------
        ConfigError
            If alpha is not in (0, 1).
        """
        if not 0 < alpha < 1:
            raise ConfigError(f"alpha must be in (0, 1), 0.05 for 95 %, got {alpha!r}")
        reach = float(self._distribution.ppf(1.0 - alpha / 2.0)) * self.bse
        return np.stack([self.values - reach, self.values + reach], axis=1)

    @property
    def _distribution(self) -> Any:
        from scipy.stats import norm, t

        return norm if math.isinf(self.df) else t(self.df)

    @property
    def aic(self) -> float:
        """The criterion 2 p - 2 l."""
        return 2.0 * (self.counted + self.more) - 2.0 * self.loglik

    @property
    def bic(self) -> float:
        """The criterion p log n - 2 l, for n the sum of the weights of rows.

        In a Cox model n is that of the events: a censored row adds no factor to a partial
        likelihood (Volinsky, Raftery 2000).
        """
        n = self.n if math.isnan(self.events) else self.events
        return (self.counted + self.more) * math.log(n) - 2.0 * self.loglik

    def mapped(self, matrix: Array, names: Sequence[str]) -> Estimates:
        """Return the estimates of linear combinations, given by the rows of a matrix."""
        V, values = matrix @ self.covariance @ matrix.T, matrix @ self.values
        return replace(self, values=values, covariance=V, names=tuple(names))

    def in_units(self, matrix: Array) -> Estimates:
        """Return the estimates in the columns' own units, with the family's notes."""
        found = self.mapped(matrix, self.names)
        told = self.family.told(found.names, found.values, found.covariance)
        return replace(found, notes=(*found.notes, *told))

    def by_class(self, shape: tuple[int, ...]) -> Estimates:
        """Return multinomial estimates of all classes, which sum to 0; other estimates unchanged.

        Parameters
        ----------
        shape : tuple of int
            The model's shape: (rows, classes), or one axis.
        """
        if len(shape) == 1:
            return self
        rows, classes = shape
        centring = np.eye(classes)[:, 1:] - 1.0 / classes
        return self.mapped(np.kron(np.eye(rows), centring), [""] * (rows * classes))

    def joint_test(self, places: Sequence[int]) -> tuple[float, float]:
        """Return Wald's test that several parameters are all 0: its statistic, and the p-value.

        With k parameters the statistic is chi^2 with k degrees of freedom or, if `df` is finite, F
        = chi^2 / k with k and `df`.

        Parameters
        ----------
        places : sequence of int
            The parameters' places among `names`.

        Raises
        ------
        ConfigError
            If clusters are no more than parameters, so that the covariance has no inverse.
        """
        from scipy.stats import chi2, f

        chosen, q = list(places), len(places)
        if self.method == CLUSTER and self.clusters <= q:
            raise ConfigError(
                f"a joint test of {number_of(q, 'parameter')} needs more than "
                f"{number_of(q, 'cluster')}, got {self.clusters}"
            )
        values, unit = self.values[chosen], self.bse[chosen]
        scaled = self.covariance[np.ix_(chosen, chosen)] / np.outer(unit, unit)
        statistic = float(values / unit @ np.linalg.solve(scaled, values / unit))
        if math.isinf(self.df):
            return statistic, float(chi2.sf(statistic, q))
        return statistic / q, float(f.sf(statistic / q, q, self.df))

    def joint_in_words(self, places: Sequence[int]) -> str:
        """Return the text of a report on `joint_test`, or why it has none."""
        try:
            statistic, p = self.joint_test(places)
        except ConfigError as error:
            return str(error)
        q = len(places)
        if math.isinf(self.df):
            return f"chi2 {statistic:.5g}, degrees of freedom {q}, {p_equals(p)}"
        return f"F {statistic:.5g}, degrees of freedom {q} and {self.df:.0f}, {p_equals(p)}"

    def likelihood_ratio(self, smaller: Estimates) -> tuple[float, int, float]:
        """Return the test of this model against one without some of its columns.

        Parameters
        ----------
        smaller : Estimates
            The estimates of the fit without them on the same rows.

        Returns
        -------
        tuple
            Chi^2, its degrees of freedom, and the p-value.

        Raises
        ------
        ConfigError
            If the two fits cannot be compared.
        """
        from scipy.stats import chi2

        df = self.counted - smaller.counted
        if smaller.family.name != self.family.name or df < 1 or smaller.n != self.n:
            raise ConfigError(
                "a likelihood ratio compares two fits of one loss to the same rows, the second "
                f"with fewer columns, got {self.family.name} with "
                f"{number_of(self.counted, 'parameter')} and {number_of(self.n, 'row')}, and "
                f"{smaller.family.name} with {smaller.counted} and {smaller.n:g}"
            )
        if SAMPLING in (self.weights, smaller.weights):
            raise ConfigError(NO_LIKELIHOOD_OF_SAMPLES)
        if math.isnan(self.loglik):
            raise ConfigError(
                f"a {self.family.name} loss is not a likelihood, so there is no "
                f"likelihood-ratio test: use joint_test"
            )
        ratio = max(0.0, 2.0 * (self.loglik - smaller.loglik))
        return ratio, df, float(chi2.sf(ratio, df))


def estimate(
    name: str,
    method: str,
    names: Sequence[str],
    values: Array,
    sums: Mapping[str, Array],
    weights: str = FREQUENCY,
) -> Estimates:
    """Return the estimates that follow from all sites' sums.

    Parameters
    ----------
    name : str
        The loss's name in schemas.
    method : {"model", "robust", "cluster", "quasi"}
    names : sequence of str
        The names of the free parameters.
    values : array, shape (p,)
    sums : dict
        The sums over sites of `site_sums.estimates`.
    weights : {"frequency", "sampling"}
        What the rows' weights mean.

    Raises
    ------
    ConfigError
        If columns are collinear, rows are no more than parameters, or there is only one cluster.
    """
    family, p, names = family_of(name), len(names), tuple(names)
    n, loglik, deviance, pearson, last, clusters, intercepts = sums["numbers"].tolist()
    information = unpacked(sums["information"], p)
    inverse = inverted(information, names)
    notes = list(_unfinished(inverse, sums["score"]))
    if intercepts:
        notes.append(
            f"each of {number_of(intercepts, 'site')} has its own intercept, which stays there"
        )
    if family.dispersed and method == MODEL:
        notes.append(_JOINT)
    counted = p + int(intercepts)
    left = n - counted
    if weights == SAMPLING:
        notes.append("weights are of sampling: errors take each row once, and have no likelihood")
    if left <= 0 and (family.scale in (RESIDUAL, PEARSON) or method != MODEL):
        raise ConfigError(
            f"{number_of(n, 'row is', 'rows are')} too few to estimate a variance beside "
            f"{number_of(counted, 'parameter')}: leave "
            f'columns out, or use inference="model" if phi is known'
        )
    phi, shape, more = 1.0, math.nan, 0
    exact = fits_exactly(family, method, names, values, sums)
    if exact:
        notes.append(NO_ERRORS)
        phi = loglik = math.nan
        more = int(family.scale == PEARSON)
    elif family.scale == RESIDUAL:
        phi = deviance / left
        loglik = -0.5 * n * (math.log(2.0 * math.pi * deviance / n) + 1.0)
    elif family.scale == PEARSON:
        phi, more = pearson / left, 1
        shape, loglik = gamma_shape(n, deviance, last)
    elif family.scale == NONE:
        phi = loglik = deviance = pearson = math.nan
    elif method == QUASI:
        phi, loglik = pearson / left, math.nan
    if weights == SAMPLING:
        phi = shape = loglik = deviance = pearson = math.nan
    df = math.inf
    if method in (MODEL, QUASI):
        V = phi * inverse
        df = left if family.scale == RESIDUAL else math.inf
    else:
        V = inverse @ unpacked(sums["meat"], p) @ inverse
        if method == ROBUST:
            V *= 1.0 if family.compares else n / left
            if family.scale == RESIDUAL:
                notes.append(
                    f"robust tests are by the normal distribution (z), as statsmodels' are; R's "
                    f"coeftest takes t with {number_of(left, 'degree')} of freedom"
                )
    if exact:
        V = np.full((p, p), math.nan)
    if method == CLUSTER:
        if clusters < 2:
            raise ConfigError(
                'inference="cluster" needs at least two clusters, and there is one: give a column '
                'of clusters, more sites, or use inference="robust"'
            )
        notes.append("clusters are within sites: one label at two sites means two clusters")
        if not family.compares:
            V *= clusters / (clusters - 1.0) * (n - 1.0) / left
        if clusters < _FEW_CLUSTERS:
            df = clusters - 1.0
            notes.append(
                f"{clusters:.0f} {_FEW_SAID}; tests use t with {number_of(df, 'degree')} of freedom"
            )
        if clusters <= p:
            notes.append(
                f"{clusters:.0f} clusters are not more than the {p} parameters, so errors by "
                f"cluster may be far too small, and all parameters cannot be tested together. Use "
                f'smaller clusters, or inference="robust"'
            )
    found = Estimates(
        family=family,
        method=method,
        names=names,
        values=np.asarray(values, dtype=np.float64),
        covariance=0.5 * (V + V.T),
        n=n,
        loglik=loglik,
        deviance=deviance,
        pearson=pearson,
        dispersion=phi,
        shape=shape,
        clusters=int(clusters),
        df=df,
        more=more,
        counted=counted,
        events=last if family.compares else math.nan,
        notes=tuple(notes),
        weights=weights,
    )
    by_chance = 1.0 + _ERRORS * math.sqrt(2.0 / max(left, 1.0))
    if method == MODEL and found.pearson_ratio > max(_TOO_MUCH, by_chance):
        spread_out = _SPREAD_OUT.format(ratio=found.pearson_ratio)
        found = replace(found, notes=(*found.notes, spread_out))
    return found


def fits_exactly(
    family: Family, method: str, names: Sequence[str], values: Array, sums: Mapping[str, Array]
) -> bool:
    """Return whether residuals are rounding alone, and errors would be computed from them."""
    information = unpacked(sums["information"], len(names))
    n, _, deviance, pearson, last = sums["numbers"][:5].tolist()
    if family.scale == RESIDUAL:
        return bool(deviance <= _EXACT * float(values @ information @ values))
    known = family.scale != PEARSON and method in (MODEL, DEBIASED)
    if family.scale == NONE or known:
        return False
    if family.compares:  # scores of 0, as at times that are all tied; squares are of weights, too
        scores = np.diag(unpacked(sums["meat"], len(names))) / np.diag(information)
        return bool(scores.max() <= _EXACT * last / n)
    # The unit of weights, and of outcomes whose variance is their mean, is that of the intercept's.
    if INTERCEPT not in names:
        return bool(pearson <= _EXACT * n)
    k = names.index(INTERCEPT)
    return bool(pearson <= _EXACT_STEPS * float(information[k, k]))


def inverted(information: Array, names: Sequence[str]) -> Array:
    """Return the inverse of an information matrix, computed in units in which its diagonal is 1.

    Raises
    ------
    ConfigError
        If it is singular; the error names the collinear columns.
    """
    diagonal = np.diag(information)
    empty = [names[j] for j in np.flatnonzero(~(diagonal > 0)).tolist()]
    if empty:
        raise ConfigError(
            f"the rows carry no information on {first_few(empty, what='parameter')}, as for a "
            "column that is 0 in all rows, or constant at every site with its own intercept. "
            "Leave it out, or merge an absent category with another"
        )
    sizes = np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(information / sizes / sizes[:, None])
    least = _SINGULAR * len(sizes) * float(np.finfo(np.float64).eps)
    if values[0] < least:
        weights = np.abs(vectors[:, 0])
        alike = [names[j] for j in np.flatnonzero(weights > _NAMED * weights.max()).tolist()]
        what = "not positive" if values[0] < -least else "singular"
        raise ConfigError(
            f"the information matrix is {what}: {first_few(alike, what='parameter')} cannot be "
            f"told apart, as with a constant column beside an intercept, all levels of a category, "
            f"or more columns than rows. Leave one out"
        )
    inverse: Array = (vectors / values) @ vectors.T / sizes / sizes[:, None]
    return inverse


def _unfinished(inverse: Array, score: Array) -> list[str]:
    """Return a note that the sum of the scores is not 0, if it is not."""
    decrement = float(score @ inverse @ score)
    if decrement <= _STOPPED:
        return []
    return [
        f"the fit has not converged: the remaining score moves estimates by  {decrement**0.5:.2g} "
        "standard errors. Allow more rounds, or a smaller tolerance"
    ]


def gamma_shape(n: float, deviance: float, log_y: float) -> tuple[float, float]:
    """Return the shape of gamma distributions by maximum likelihood, and the log-likelihood.

    It solves log k - digamma(k) = deviance / (2 n).

    >>> shape, loglik = gamma_shape(10.0, 2.0, 0.0)
    >>> round(shape, 6), round(loglik, 6)
    (5.160876, -6.306001)
    """
    from scipy.special import digamma, gammaln, polygamma

    half = 0.5 * deviance
    if not half > 0:
        return math.inf, math.inf
    target = half / n
    k = (3.0 - target + math.sqrt((target - 3.0) ** 2 + 24.0 * target)) / (12.0 * target)
    k = max(k, 0.5 / target)  # where rounding leaves no digit of a small shape
    for _ in range(50 if target > _LARGE_SHAPE else 0):
        step = (math.log(k) - float(digamma(k)) - target) / (1.0 / k - float(polygamma(1, k)))
        k, before = max(k - step, 0.1 * k), k
        if abs(k - before) <= 1e-14 * k:
            break
    loglik = n * (k * math.log(k) - float(gammaln(k)) - k) - k * half - log_y
    return k, loglik
