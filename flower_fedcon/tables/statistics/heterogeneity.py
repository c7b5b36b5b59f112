"""Differences of effects between sites: a meta-analysis of the sites' own fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, first_few, number_of, pandas
from flower_fedcon.objectives.profiled import pseudo_inverse
from flower_fedcon.tables.families.base import RESIDUAL, family_of, names_of
from flower_fedcon.tables.quality import MOST_COUNTS
from flower_fedcon.tables.statistics.estimates import DEBIASED, Estimates, estimate, shapes_of
from flower_fedcon.tables.statistics.site_sums import MODEL, most_numbers, unpacked
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

Ask = Callable[..., tuple[Mapping[str, Payload], Mapping[str, str]]]
"""(statistic, shapes, **arguments) -> the answers by site, and the reasons of sites without one."""
_ROUNDS = 30  # iterations of Newton's method over the sites
_SMALL = 1e-12  # a gain of a step in the deviance that ends the search
_MISSED = 1e-7  # the part of a combination in the null space that is rounding
_NAMED = 0.1  # relative to a direction's largest entry


@dataclass(frozen=True)
class Heterogeneity:
    """Each site's own estimates, and their meta-analysis for each parameter.

    Attributes
    ----------
    names : tuple of str
        The names of the p parameters.
    sites : tuple of str
        The N sites with their own fit.
    values, bse : array, shape (N, p)
        The sites' estimates and model-based standard errors; NaN where a site's rows tell nothing
        of a parameter, as without a row of a category. The site then counts for the others.
    left_out : dict
        For each other site the reason.
    q, df, pvalues : array, int, array, shape (p,)
        Cochran's Q, its N - 1 degrees of freedom, and the p-value of equal effects at all sites.
    dfs : array of int, shape (p,)
        The degrees of freedom of each parameter, fewer than `df` where sites tell nothing of it.
    i2 : array, shape (p,)
        The share of the estimates' variation that is not due to chance, in [0, 1].
    tau2 : array, shape (p,)
        DerSimonian and Laird's variance of the effect between sites.
    fixed, fixed_bse : array, shape (p,)
        The mean with weights 1 / bse^2.
    random, random_bse : array, shape (p,)
        The mean with weights 1 / (bse^2 + tau2).
    ratio, ratio_df, ratio_pvalues : array, shape (p,)
        The likelihood ratio of one effect for all sites against one for each site, with the other
        effects fitted.

    Source: Cochran 1954; DerSimonian, Laird 1986; Higgins, Thompson 2002.
    """

    names: tuple[str, ...]
    sites: tuple[str, ...]
    values: Array
    bse: Array
    left_out: Mapping[str, str]
    q: Array
    df: int
    pvalues: Array
    i2: Array
    tau2: Array
    fixed: Array
    fixed_bse: Array
    random: Array
    random_bse: Array
    ratio: Array
    ratio_df: Array
    ratio_pvalues: Array
    dfs: Array

    def to_frame(self) -> Any:
        """Return a data frame of one row for each parameter."""
        pd = pandas()

        columns = ("fixed", "fixed_bse", "random", "random_bse", "q", "pvalues", "i2", "tau2")
        tests = ("ratio", "ratio_df", "ratio_pvalues")
        return pd.DataFrame(
            {name: getattr(self, name) for name in (*columns, *tests)}, index=pd.Index(self.names)
        )


def heterogeneity_of(
    names: Sequence[str],
    sites: Sequence[str],
    values: Array,
    bse: Array,
    left_out: Mapping[str, str] | None = None,
    ratio: Array | None = None,
    ratio_df: Array | None = None,
) -> Heterogeneity:
    """Return the meta-analysis of sites' own estimates.

    Parameters
    ----------
    names, sites : sequence of str
        The names of p parameters and N sites.
    values, bse : array, shape (N, p)
        NaN where a site has no estimate.
    left_out : dict, optional
    ratio, ratio_df : array, shape (p,), optional
        NaN by default.

    Raises
    ------
    ConfigError
        If there are fewer than two sites.

    Examples
    --------
    >>> found = heterogeneity_of(["dose"], ["a", "b"], np.array([[1.0], [4.0]]), np.ones((2, 1)))
    >>> found.q, found.i2.round(4), found.tau2, found.random
    (array([4.5]), array([0.7778]), array([3.5]), array([2.5]))
    """
    from scipy.stats import chi2

    left_out = {} if left_out is None else dict(left_out)
    if len(sites) < 2:
        sites_of: dict[str, list[str]] = {}
        for site, reason in left_out.items():
            sites_of.setdefault(reason, []).append(site)
        why = "; ".join(f"{first_few(own)}: {reason}" for reason, own in sites_of.items())
        raise ConfigError(
            f"heterogeneity needs at least two sites that can be fitted alone, got {len(sites)}"
            + (f" ({why})" if why else "")
        )
    there = np.isfinite(values) & np.isfinite(bse)
    dfs = there.sum(axis=0) - 1
    w, known = np.where(there, 1.0 / np.square(bse), 0.0), np.where(there, values, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # no site, or one, tells of a parameter
        whole = w.sum(axis=0)
        fixed = (w * known).sum(axis=0) / whole
        q = np.where(dfs > 0, (w * np.square(known - fixed)).sum(axis=0), np.nan)
        excess = np.maximum(q - dfs, 0.0)
        tau2 = excess / (whole - np.square(w).sum(axis=0) / whole)
        own = np.where(there, 1.0 / (np.square(bse) + tau2), 0.0)
        random, random_bse = (own * known).sum(axis=0) / own.sum(axis=0), own.sum(axis=0) ** -0.5
    none = np.full(len(fixed), np.nan)
    ratio = none if ratio is None else ratio
    ratio_df = none if ratio_df is None else ratio_df
    return Heterogeneity(
        names=tuple(names),
        sites=tuple(sites),
        values=values,
        bse=bse,
        left_out=left_out,
        q=q,
        df=len(sites) - 1,
        pvalues=np.asarray(chi2.sf(q, np.maximum(dfs, 1))),
        i2=np.divide(excess, q, out=np.zeros_like(q), where=~(q <= 0)),
        tau2=tau2,
        fixed=fixed,
        fixed_bse=np.where(dfs >= 0, np.maximum(whole, np.finfo(float).tiny) ** -0.5, np.nan),
        random=random,
        random_bse=random_bse,
        ratio=ratio,
        ratio_df=ratio_df,
        ratio_pvalues=np.asarray(chi2.sf(ratio, ratio_df)),
        dfs=dfs,
    )


def check_heterogeneity(name: str) -> None:
    """Raise unless sites' own fits of a loss can be compared.

    Raises
    ------
    ConfigError
    """
    if not family_of(name).profiled:
        names = names_of(lambda family: family.profiled)
        raise ConfigError(
            f"heterogeneity is for {', '.join(names)} losses, and this one is {name}: leave it out"
        )


def found_by_sites(
    ask: Ask,
    pooled: Estimates,
    x: Array,
    units: Array | None = None,
    lacking: Mapping[str, str] | None = None,
) -> Heterogeneity:
    """Test whether effects differ between sites, by their own fits.

    Sites send their own fits ("alone"), and then, a few times, sums at models in which one entry is
    each site's own ("apart"); see `flower_fedcon.tables.statistics.site_fits`.

    Parameters
    ----------
    ask : callable
    pooled : Estimates
        The fit of all sites' rows.
    x : array, shape (p,)
        The model of that fit, in the sites' units.
    units : array, shape (p, p), optional
        The matrix from coefficients in the sites' units to those shown.
    lacking : dict of str, optional
        For sites without a row of some category the reason why a fit to their rows is singular.

    Raises
    ------
    ConfigError
        If the loss is not squared, logistic or Poisson, the fit is a debiased lasso, or fewer than
        two sites can be fitted alone; the error says why.
    """
    name, p = pooled.family.name, len(x)
    if pooled.method == DEBIASED:
        raise ConfigError(
            "heterogeneity compares fits without a penalty, and this one is a debiased lasso: use "
            'inference="model" without a penalty'
        )
    check_heterogeneity(name)
    shapes = {"values": (p,), "step": (p,), **shapes_of(p, MODEL)}
    told, why = ask("alone", shapes)
    left_out, sites, values, errors = dict(why), [], [], []
    for site, sums in told.items():
        try:
            own, own_errors = _alone(pooled, sums, np.eye(p) if units is None else units)
        except ConfigError as error:
            singular = not sums["step"].any()
            left_out[site] = ((lacking or {}).get(site) if singular else None) or str(error)
            continue
        sites.append(site)
        values.append(own)
        errors.append(own_errors)
    both = np.array(values), np.array(errors)
    if len(sites) < 2:
        return heterogeneity_of(pooled.names, sites, *both, left_out)  # raises, with the reasons
    return heterogeneity_of(pooled.names, sites, *both, left_out, *_against_own(ask, pooled, x))


def _alone(pooled: Estimates, told: Payload, units: Array) -> tuple[Array, Array]:
    """Return a site's own estimates and their errors; NaN for those of which its rows tell nothing.

    Raises
    ------
    ConfigError
        If the site has none.
    """
    if told["step"].any():
        lengths = unpacked(told["information"], len(pooled.names)).diagonal()
        far = np.abs(told["step"]) * np.sqrt(np.maximum(lengths, 0.0))
        names = [pooled.names[j] for j in np.flatnonzero(far >= _NAMED * far.max()).tolist()]
        raise ConfigError(
            f"{first_few(names, what='column')} separates the outcome there, so a fit to these "
            f"rows alone diverges"
        )
    name, values = pooled.family.name, told["values"]
    try:
        fit = estimate(name, MODEL, pooled.names, values, told).mapped(units, pooled.names)
        return fit.values, fit.bse
    except ConfigError:
        information = unpacked(told["information"], len(values))
        covariance, rank = pseudo_inverse(information)
        # A combination that is orthogonal to the null space stays itself on its complement.
        missed = np.abs(units - units @ covariance @ information)
        lengths = np.sqrt(np.diag(information))
        size = np.where(lengths > 0, lengths, 1.0)
        known = (missed / size).max(axis=1) <= _MISSED * (np.abs(units) / size).max(axis=1)
        if not known.any():
            raise
    n, _, deviance, *_, own = told["numbers"].tolist()
    left = n - own - rank
    if family_of(name).scale == RESIDUAL:
        if not left > 0:
            raise ConfigError(
                f"{number_of(n, 'row is', 'rows are')} too few for a fit to them alone"
            )
        covariance = covariance * (deviance / left)
    errors = np.sqrt(np.diag(units @ covariance @ units.T))
    return np.where(known, units @ values, np.nan), np.where(known, errors, np.nan)


def _against_own(ask: Ask, pooled: Estimates, x: Array) -> tuple[Array, Array]:
    """Return the likelihood ratio of a common effect against one for each site, and its df.

    It is NaN if a site does not answer, or the search does not converge.
    """
    p = len(x)
    size = p - 1
    ratio, df = np.full(p, np.nan), np.full(p, np.nan)
    together = max(1, MOST_COUNTS // max(1, most_numbers(size)))
    before = pooled.counted - p  # the sites' own intercepts
    for first in range(0, p, together):
        entries = np.arange(first, min(first + together, p))
        K = len(entries)
        shapes = {name: (K, *own) for name, own in shapes_of(size, MODEL).items()}
        at = np.tile(np.asarray(x, dtype=np.float64), (K, 1))
        best, least, done = at.copy(), np.full(K, np.inf), np.zeros(K, dtype=bool)
        for _ in range(_ROUNDS):
            told, why = ask("apart", shapes, entries=entries.astype(np.float64), at=at)
            if why:
                return ratio, df
            sums = {name: np.sum([own[name] for own in told.values()], axis=0) for name in shapes}
            for i in np.flatnonzero(~done).tolist():
                n, loglik, deviance, *_, own = sums["numbers"][i].tolist()
                if not deviance <= least[i] * (1.0 + 1e-13):
                    at[i] = 0.5 * (at[i] + best[i])
                    continue
                least[i], best[i], score = deviance, at[i], sums["score"][i]
                step = pseudo_inverse(unpacked(sums["information"][i], size))[0] @ score
                done[i] = score @ step <= _SMALL * deviance
                if not done[i]:
                    at[i, np.delete(np.arange(p), entries[i])] += step
                    continue
                if pooled.family.scale == RESIDUAL:
                    loglik = -0.5 * n * (math.log(2.0 * math.pi * deviance / n) + 1.0)
                ratio[entries[i]] = max(0.0, 2.0 * (loglik - pooled.loglik))
                df[entries[i]] = own - before - 1
            if done.all():
                break
    return ratio, df
