"""The log-rank test, from sums over sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from flower_fedcon.errors import ConfigError, pandas
from flower_fedcon.validation import Array

_ROUNDING = 1e-10  # of a sum over the intervals, relative


@dataclass(frozen=True, eq=False)
class LogRank:
    """A log-rank test that arms have the same hazard.

    Attributes
    ----------
    statistic : float
        Chi-squared with `degrees` degrees of freedom if the hazards are equal.
    degrees : int
    pvalue : float
    arms : array, shape (arms,)
    observed, expected : arrays, shape (arms,)
        Events, and their expected number if the hazards are equal.
    covariance : array, shape (arms, arms)
        The covariance of observed - expected.
    stratified : bool
        Whether rows are compared only within a site.

    Examples
    --------
    >>> from flower_fedcon.survival import logrank
    >>> test = logrank([1.0, 2, 3, 4], [1, 1, 1, 1], by=["a", "a", "b", "b"])
    >>> test.observed, test.expected.round(3), round(test.pvalue, 4)
    (array([2, 2]), array([0.833, 3.167]), 0.0896)
    """

    statistic: float
    degrees: int
    pvalue: float
    arms: Array
    observed: Array
    expected: Array
    covariance: Array
    stratified: bool

    @classmethod
    def of_counts(
        cls, at_risk: Array, events: Array, arms: Array, stratified: bool = False
    ) -> LogRank:
        """Return the test from the sites' counts.

        Parameters
        ----------
        at_risk, events : arrays, shape (sites, intervals, arms)
            The counts of each site; see `flower_fedcon.tables.risk_counts`.
        arms : array, shape (arms,)
        stratified : bool
            Whether each site is a stratum.

        Raises
        ------
        ConfigError
            If rows of two arms are at risk at no event.
        """
        if not stratified:
            at_risk, events = at_risk.sum(axis=0)[None], events.sum(axis=0)[None]
        n, d = at_risk.sum(axis=2), events.sum(axis=2)
        rows = np.maximum(n, 1).astype(float)
        shares = at_risk / rows[:, :, None]
        expected = np.einsum("jk,jka->a", d, shares)
        # Hypergeometric: one row at risk has no variance.
        factor = d * (rows - d) / np.maximum(rows - 1.0, 1.0)
        between = np.einsum("jk,jka,jkb->ab", factor, shares, shares)
        covariance = np.diag(np.einsum("jk,jka->a", factor, shares)) - between
        observed = events.sum(axis=(0, 1))
        # The differences sum to 0 up to rounding, over all arms or over those compared with each
        # other.
        least = _ROUNDING * float(np.trace(covariance))
        degrees = int(np.linalg.matrix_rank(covariance, tol=least, hermitian=True))
        if not degrees:
            raise ConfigError(
                "no event comes where rows of two arms are at risk"
                + (" at one site: compare across sites with stratified=False" if stratified else "")
                + ", so there is nothing to test"
            )
        difference = observed - expected
        inverse = np.linalg.pinv(covariance, rcond=_ROUNDING, hermitian=True)
        statistic = float(difference @ inverse @ difference)
        pvalue = float(chi2.sf(statistic, degrees))
        return cls(
            statistic, degrees, pvalue, arms, observed, expected, covariance, bool(stratified)
        )

    def to_frame(self) -> Any:
        """Return a pandas table with a row for each arm."""
        pd = pandas()

        index = pd.Index(self.arms, name="arm")
        return pd.DataFrame({"observed": self.observed, "expected": self.expected}, index=index)

    def __repr__(self) -> str:
        kind = "stratified, " if self.stratified else ""
        numbers = f"chi2 {self.statistic:.4g}, p = {self.pvalue:.3g}"
        return f"LogRank({kind}{len(self.arms)} arms: {numbers})"
