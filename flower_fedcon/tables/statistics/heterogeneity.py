"""Whether effects differ between sites: their own fits beside one another, as a meta-analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array


@dataclass(frozen=True)
class Heterogeneity:
    """Each site's own estimates, and what they say together, parameter by parameter.

    Attributes
    ----------
    names : tuple of str
        Of the p parameters.
    sites : tuple of str
        The N sites that could be fitted alone.
    values, bse : array, shape (N, p)
        Their estimates and model-based standard errors.
    left_out : dict
        Of each other site, why it could not be.
    q, df, pvalues : array, int, array, shape (p,)
        Cochran's Q, its N - 1 degrees of freedom, and the test that all sites are alike.
    i2 : array, shape (p,)
        The share of the estimates' spread that is beyond chance, in [0, 1].
    tau2 : array, shape (p,)
        DerSimonian and Laird's variance of the effect between sites.
    fixed, fixed_bse : array, shape (p,)
        The mean with weights 1 / bse^2.
    random, random_bse : array, shape (p,)
        That with weights 1 / (bse^2 + tau2).
    ratio, ratio_df, ratio_pvalues : array, shape (p,)
        The likelihood ratio of one effect for all sites against one for each, the others being as
        they are fitted.

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

    def to_frame(self) -> Any:
        """Return a data frame of one row for each parameter."""
        import pandas as pd

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
    """Return what sites' own estimates say together.

    Parameters
    ----------
    names, sites : sequence of str
        Of p parameters and N sites.
    values, bse : array, shape (N, p)
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
        why = "; ".join(f"{site}: {reason}" for site, reason in left_out.items())
        raise ConfigError(
            f"heterogeneity needs two sites or more that can be fitted alone, got {len(sites)}"
            + (f" ({why})" if why else "")
        )
    df, w = len(sites) - 1, 1.0 / np.square(bse)
    whole = w.sum(axis=0)
    fixed = (w * values).sum(axis=0) / whole
    q = (w * np.square(values - fixed)).sum(axis=0)
    excess = np.maximum(q - df, 0.0)
    tau2 = excess / (whole - np.square(w).sum(axis=0) / whole)
    own = 1.0 / (np.square(bse) + tau2)
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
        df=df,
        pvalues=np.asarray(chi2.sf(q, df)),
        i2=np.divide(excess, q, out=np.zeros_like(q), where=q > 0),
        tau2=tau2,
        fixed=fixed,
        fixed_bse=np.sqrt(1.0 / whole),
        random=(own * values).sum(axis=0) / own.sum(axis=0),
        random_bse=np.sqrt(1.0 / own.sum(axis=0)),
        ratio=ratio,
        ratio_df=ratio_df,
        ratio_pvalues=np.asarray(chi2.sf(ratio, ratio_df)),
    )
