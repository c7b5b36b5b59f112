"""The fit of a model with random intercepts, and its test, computed from sites' sums.

The intercepts of sites, or of groups of rows within them, have one normal distribution. The server
finds the coefficients and the distribution's standard deviation by Newton's method. Each step takes
one exchange of sums, see `group_sums`. For the squared loss the coefficients and the residual
variance follow from the sums, so that only the ratio of the two deviations takes steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flower_fedcon.errors import ConfigError, number_of
from flower_fedcon.runs.paper_tables import p_equals
from flower_fedcon.tables.families.base import family_of
from flower_fedcon.tables.statistics.estimates import Estimates, estimate, inverted, shapes_of
from flower_fedcon.tables.statistics.group_sums import RATIO_NUMBERS
from flower_fedcon.tables.statistics.site_sums import KINDS, MODEL, most_numbers, unpacked
from flower_fedcon.validation import Array

Ask = Callable[..., Mapping[str, Array]]
"""(statistic, shapes, x, other arguments) -> the sums over all sites."""
RESIDUAL_SD = "(residual sd)"
"""The name of the residual deviation in tables of coefficients."""
_START = 0.5  # the first deviation (for the squared loss relative to the residuals')
_UP = 1.5  # the largest rise of its logarithm in a step
_DOWN = 0.25  # the smallest factor of the deviation in a step
_FLAT = 1e-7  # a remaining gain in log-likelihood at which a deviation counts as 0
_STALLED = 1e-9  # a step of theta that is too short to be told from rounding
_SETTLED = (
    1e-4  # standard errors: a smaller step that gains nothing has met the likelihood's digits
)
_ROUNDING = 1e3  # rounding of a log-likelihood, in machine epsilons


@dataclass(frozen=True)
class RandomFit:
    """A fit with random intercepts.

    Attributes
    ----------
    estimates : Estimates
        The coefficients; the log-likelihood is the marginal one (restricted with reml).
    sd : float
        The standard deviation of the intercepts.
    sd_bse : float
        Its standard error; NaN if sd is 0, at the boundary.
    residual_sd : float
        For the squared loss, else NaN.
    ratio, pvalue : float
        The likelihood ratio against no random intercepts, and its p-value from (chi^2_0 + chi^2_1)
        / 2.
    groups : int
    exchanges : int
        The number of exchanges of sums.
    converged : bool
    group : str
        The name of the groups: "site", or the column of the groups.
    left : float
        The remaining Newton step at the end, in standard errors.
    """

    estimates: Estimates
    sd: float
    sd_bse: float
    residual_sd: float
    ratio: float
    pvalue: float
    groups: int
    exchanges: int
    converged: bool
    group: str = "site"
    left: float = 0.0

    @property
    def unfinished(self) -> str:
        """A remark on the remaining step, if the fit has not converged; else ""."""
        if self.converged:
            return ""
        return (
            f"the fit has not ended in {number_of(self.exchanges, 'exchange')}: the next step "
            f"would move estimates by {self.left:.2g} standard errors"
        )

    @property
    def parts(self) -> list[tuple[str, float, float, float]]:
        """Name, value, standard error and p-value of each deviation; NaN for none."""
        deviations = [(f"({self.group} sd)", self.sd, self.sd_bse, self.pvalue)]
        if not math.isnan(self.residual_sd):
            deviations.append((RESIDUAL_SD, self.residual_sd, math.nan, math.nan))
        return deviations

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Further facts for a summary."""
        facts = [
            ("Groups", str(self.groups)),
            (f"{self.group[:1].upper()}{self.group[1:]} sd", f"{self.sd:.5g}"),
        ]
        if not math.isnan(self.residual_sd):
            facts.append(("Residual sd", f"{self.residual_sd:.5g}"))
        return facts


def fit_marginal(
    ask: Ask, name: str, names: Sequence[str], x: Array, nodes: int, tol: float, most: int
) -> RandomFit:
    """Fit a logistic or Poisson model with random intercepts.

    Parameters
    ----------
    ask : callable
    name : str
        The family's name.
    names : sequence of str
        The coefficients' names.
    x : array, shape (p,)
        The coefficients of the fit without random intercepts.
    nodes : int
        The number of nodes of the quadrature.
    tol : float
        The last step's size, in standard errors.
    most : int
        The largest number of exchanges.

    Raises
    ------
    ConfigError
        If there is only one group, or the fit is not finite.
    """
    p, every = len(names), (*names, "log sd")
    shapes = shapes_of(p + 1, MODEL)
    plain = ask("estimates", shapes_of(p, MODEL), x, method=KINDS[MODEL])
    null = estimate(name, MODEL, names, x, plain)

    def told(theta: Array) -> _Point:
        sums = ask("marginal", shapes, theta, nodes=float(nodes))
        expect_groups(int(sums["numbers"][5]))
        information = unpacked(sums["information"], p + 1)
        return _Point(theta, float(sums["numbers"][1]), sums["score"], information, sums)

    start = np.append(x, math.log(_START))
    family = family_of(name)
    best, exchanges, left = _climb(
        told, start, every, family.far, family.endless, tol, most, settled=_SETTLED
    )
    if best.flat:
        estimates, sd, error = replace(null, counted=p + 1, notes=()), 0.0, math.nan
    else:
        whole = estimate(name, MODEL, every, best.theta, best.sums)
        estimates = whole.mapped(np.eye(p, p + 1), names)
        sd = math.exp(float(best.theta[-1]))
        error = sd * float(whole.bse[-1])
    groups = int(best.sums["numbers"][5])
    notes = [f"without random intercepts {note}" for note in null.notes]
    estimates = replace(
        estimates, deviance=-2.0 * estimates.loglik, pearson=math.nan, clusters=groups,
        notes=(*estimates.notes, *notes),
    )  # fmt: skip
    return _tested(estimates, null.loglik, sd, error, math.nan, 1 + exchanges, left, tol)


def fit_squared(
    ask: Ask, names: Sequence[str], x: Array, reml: bool, tol: float, most: int
) -> RandomFit:
    """Fit a linear model with random intercepts, by maximum or restricted maximum likelihood.

    Parameters
    ----------
    reml : bool
        Whether variances maximise the restricted likelihood.
    ask, names, x, tol, most : see `fit_marginal`

    Raises
    ------
    ConfigError
        If there is only one group, each row is a group, or the fit has no residuals.
    """
    triangle = (most_numbers(len(names) + 1),)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
        ("products", "slopes", "curvatures"), triangle
    )
    shapes["numbers"] = (len(RATIO_NUMBERS),)

    def told(theta: Array) -> _Profile:
        r = math.exp(2.0 * float(theta[0]))
        return _Profile(names, x, ask("variance_ratio", shapes, x, ratio=r), r, reml)

    null = _Profile(names, x, ask("variance_ratio", shapes, x, ratio=0.0), 0.0, reml)
    expect_groups(null.groups, null.n)
    start, family = np.array([math.log(_START)]), family_of("squared")

    def climbed(theta: Array, most: int) -> tuple[_Point, int, float]:
        return _climb(
            lambda theta: told(theta).point(theta), theta, ("log sd",), family.far,
            family.endless, tol, most,
        )  # fmt: skip

    best, exchanges, left = climbed(start, most)
    if left > tol and exchanges < most:
        # Groups far apart have left few digits of the residuals at x: go on from a nearer model.
        x = x + _Profile(names, x, best.sums, math.exp(2.0 * float(best.theta[0])), reml).change
        best, more, left = climbed(best.theta, most - exchanges)
        exchanges += more
    r = math.exp(2.0 * float(best.theta[0]))
    at = null if best.flat else _Profile(names, x, best.sums, r, reml)
    estimates = Estimates(
        family=family,
        method=MODEL,
        names=tuple(names),
        values=x + at.change,
        covariance=at.variance * at.inverse,
        n=at.n,
        loglik=at.loglik,
        deviance=-2.0 * at.loglik,
        pearson=math.nan,
        dispersion=at.variance,
        clusters=at.groups,
        counted=len(names) + 1,
    )
    residual = math.sqrt(at.variance)
    sd = math.sqrt(at.r) * residual
    error = math.nan if best.flat else sd * at.error_of_log_sd()
    return _tested(estimates, null.loglik, sd, error, residual, 1 + exchanges, left, tol)


@dataclass(frozen=True)
class _Point:
    """A log-likelihood at theta, whose last entry is the logarithm of a deviation."""

    theta: Array
    loglik: float
    score: Array
    information: Array
    sums: Mapping[str, Array]
    flat: bool = False  # whether the deviation is 0


class _Profile:
    """Results from the sums of a linear model, at a ratio r of variances."""

    def __init__(
        self, names: Sequence[str], x: Array, sums: Mapping[str, Array], r: float, reml: bool
    ) -> None:
        p = len(names)
        M, M1, M2 = (unpacked(sums[key], p + 1) for key in ("products", "slopes", "curvatures"))
        n, groups, logs, shares, squares = sums["numbers"].tolist()
        self.sums, self.r, self.n, self.groups = sums, r, n, int(groups)
        self.inverse = inverse = inverted(M[:p, :p], names)
        self.change: Array = inverse @ M[:p, p]
        b = np.append(-self.change, 1.0)
        left = n - p if reml else n
        rss, slope = float(b @ M @ b), M1 @ b
        digit = _ROUNDING * float(np.finfo(float).eps)  # of the scores, whose squares' sum this is:
        exact = left > 0 and not rss > digit * digit * float(x @ M[:p, :p] @ x)
        if exact and n > p + groups:
            raise ConfigError(
                "the columns and intercepts fit all outcomes exactly, so nothing is left of which "
                "a residual variance follows: check the target, which may be constant or computed "
                "from the columns"
            )
        if exact or not left > 0:
            raise ConfigError(
                f"{number_of(n, 'row is', 'rows are')} too few for {number_of(p, 'coefficient')} "
                "and a residual variance: leave columns out"
            )
        first = float(b @ slope)
        second = float(b @ M2 @ b) - 2.0 * float(slope[:p] @ inverse @ slope[:p])
        self.variance = rss / left
        more = np.zeros(3)
        if reml:
            A, B = inverse @ M1[:p, :p], inverse @ M2[:p, :p]
            more[:] = np.linalg.slogdet(M[:p, :p])[1], np.trace(A), np.trace(B) - np.sum(A * A.T)
        self.loglik = -0.5 * float(
            left * (math.log(2.0 * math.pi * self.variance) + 1.0) + logs + more[0]
        )
        along = -0.5 * float(first / self.variance + shares + more[1])  # in r
        curve = -0.5 * float(second / self.variance - squares + more[2])
        self.score = 2.0 * r * along  # in log sqrt(r)
        self._own = -4.0 * r * (along + r * curve)  # information, besides that of log residual sd
        self._cross, self._last = -2.0 * r * first / self.variance, 2.0 * left

    def point(self, theta: Array) -> _Point:
        """Return the profile likelihood in log sqrt(r)."""
        information = self._own - self._cross**2 / self._last
        return _Point(
            theta, self.loglik, np.array([self.score]), np.array([[information]]), self.sums
        )

    def error_of_log_sd(self) -> float:
        """Return the standard error of the logarithm of the intercepts' deviation."""
        J = np.array([[self._own, self._cross], [self._cross, self._last]])
        return math.sqrt(float(np.linalg.inv(J).sum()))  # of log sqrt(r) + log residual sd


def _climb(
    told: Callable[[Array], _Point],
    theta: Array,
    names: Sequence[str],
    far: float,
    endless: str,
    tol: float,
    most: int,
    settled: float = 0.0,
) -> tuple[_Point, int, float]:
    """Return the maximum of the likelihood, the number of exchanges, and the remaining step.

    The step is in standard errors.

    A step that does not increase the likelihood is halved; below `settled` it is the last. The last
    entry, log sd, moves by Newton's method: in sd if it falls, since the likelihood is even in sd,
    and in log sd if it rises. The sign of a negative curvature is reversed.
    """
    best: _Point | None = None
    left = math.inf
    without_end = (
        f"the variance of random intercepts has no finite estimate: {endless}. Use other columns, "
        f'larger groups, or site_effects="common"'
    )
    for done in range(1, most + 1):
        point = told(theta)
        if best is not None:
            digit = _ROUNDING * float(np.finfo(float).eps) * abs(best.loglik)
            if not point.loglik >= best.loglik - digit:
                if left < settled:
                    return best, done, 0.0
                if float(np.abs(theta - best.theta).max()) < _STALLED:
                    return best, done, left
                theta = 0.5 * (theta + best.theta)
                continue
        best, g, J = point, point.score, point.information
        try:
            inverse = inverted(J[:-1, :-1], names[:-1]) if len(g) > 1 else np.empty((0, 0))
        except ConfigError:
            if theta[-1] > math.log(_START) + 2.0 * _UP:  # the rows then carry no information on x
                raise ConfigError(without_end) from None
            raise
        explained = inverse @ J[:-1, -1]
        slope = float(g[-1] - explained @ g[:-1])
        curvature = float(J[-1, -1] - explained @ J[:-1, -1])
        if abs(slope) < _FLAT and abs(curvature) < _FLAT:
            return replace(point, flat=True), done, 0.0
        gain = float(g[:-1] @ inverse @ g[:-1])
        gain += slope * slope / abs(curvature) if curvature else math.inf
        left = math.sqrt(gain)
        if curvature > 0 and left <= tol:
            return point, done, left
        left = max(left, 2.0 * tol)  # without positive curvature no step is the last
        move = _move(slope, curvature)
        theta = theta + np.append(inverse @ g[:-1] - explained * move, move)
        if theta[-1] > math.log(far):
            raise ConfigError(without_end)
    assert best is not None  # noqa: S101  (most >= 1)
    return best, most, left


def _move(slope: float, curvature: float) -> float:
    """Return the change of log sd, from the likelihood's slope and curvature along it."""
    if slope >= 0:
        return min(slope / abs(curvature), _UP) if curvature else _UP
    in_sd = curvature + slope  # in sd itself, relative to sd
    share = 1.0 + (slope / in_sd if in_sd > 0 else -1.0)
    return math.log(max(share, _DOWN))


def expect_groups(groups: int, rows: float = math.inf) -> None:
    """Raise if there is only one group, or each row of a linear model is a group.

    Raises
    ------
    ConfigError
    """
    if groups < 2:
        raise ConfigError(
            "random intercepts need at least two groups, and there is one: give more sites, or "
            "labels of groups within sites (`clusters` of fit, `cluster` of a schema), or use "
            'site_effects="common"'
        )
    if groups >= rows:
        raise ConfigError(
            f"{groups} groups for {rows:g} rows: with one row in each the variances of intercepts "
            f'and residuals cannot be told apart. Use larger groups, or site_effects="common"'
        )


def _tested(
    found: Estimates,
    null: float,
    sd: float,
    error: float,
    residual: float,
    done: int,
    left: float,
    tol: float,
) -> RandomFit:
    """Return a fit with the test of its deviation, and a note on it."""
    from scipy.stats import chi2

    ratio = max(0.0, 2.0 * (found.loglik - null)) if sd else 0.0
    pvalue = 0.5 * float(chi2.sf(ratio, 1)) if ratio else 1.0
    note = (
        f"random intercepts of {number_of(found.clusters, 'group')}; likelihood ratio against none "
        f"{ratio:.5g}, {p_equals(pvalue)} by (chi^2_0 + chi^2_1) / 2"
    )
    if not sd:
        note += ". Their standard deviation is 0, at the boundary, so it has no standard error"
    found = replace(found, notes=(*found.notes, note))
    groups, ended = found.clusters, left <= tol
    return RandomFit(found, sd, error, residual, ratio, pvalue, groups, done, ended, left=left)
