"""Kaplan-Meier curves from sums over sites."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from flower_fedcon.errors import ConfigError, number_of, pandas
from flower_fedcon.validation import Array, floats_of, real


@dataclass(frozen=True, eq=False)
class KaplanMeier:
    """A Kaplan-Meier curve: the share of rows without an event after each time.

    Attributes
    ----------
    time : array, shape (intervals,)
        The right ends of the grid's intervals, in the units of the rows' times.
    at_risk, events : arrays of int, shape (intervals,)
        Sums over the sites. If the grid holds every event's time and `min_rows` is 1, `at_risk` is
        the number of rows at risk at each time. Otherwise it is an adjusted count for each
        interval, rows at its start minus some of those censored in it, chosen to give each site's
        own curve. Do not print it as a number at risk below a figure. Intervals that a site merges
        count in the next one.
    survival : array, shape (intervals,)
        The estimate after each time; NaN once no site sends rows at risk.
    std_error : array, shape (intervals,)
        Greenwood's standard error; NaN where the estimate is 0.
    lower, upper : arrays, shape (intervals,)
        The interval by log(-log survival); 1 before the first event, NaN where the estimate is 0.
    alpha : float
        The intervals have coverage 1 - alpha.
    groups : array
        The sites.
    left_out : array
        The sites that send nothing because their counts are below `min_rows`.

    Examples
    --------
    >>> from flower_fedcon.survival import kaplan_meier
    >>> curve = kaplan_meier([1.0, 2, 2, 3, 4], [1, 1, 0, 1, 0], groups=list("aabba"))
    >>> curve.survival.round(3), curve.median
    (array([0.8, 0.6, 0.3]), 3.0)
    >>> curve.at([0.5, 2.9]).round(3)
    array([1. , 0.6])
    """

    time: Array
    at_risk: Array
    events: Array
    survival: Array
    std_error: Array
    lower: Array
    upper: Array
    alpha: float
    groups: Array
    left_out: Array

    @classmethod
    def of_counts(
        cls, time: Array, at_risk: Array, events: Array, groups: Array, alpha: float = 0.05
    ) -> KaplanMeier:
        """Return the curve from the sites' counts.

        Parameters
        ----------
        time : array, shape (intervals,)
        at_risk, events : arrays, shape (sites, intervals)
            The counts of each site; see `flower_fedcon.tables.risk_counts`.
        groups : array, shape (sites,)
        alpha : float

        Raises
        ------
        ConfigError
            If alpha is not between 0 and 1.
        """
        if not 0 < real("alpha", alpha) < 1:
            raise ConfigError(f"alpha must be in (0, 1), got {alpha!r}")
        n, d = at_risk.sum(axis=0), events.sum(axis=0)
        rows = np.maximum(n, 1)
        survival = np.cumprod(1.0 - d / rows)
        # Without rows at risk the estimate is unknown, then and later.
        survival[~np.logical_and.accumulate(n > 0) & (survival > 0)] = np.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.sqrt(np.cumsum(np.where(d > 0, d / (rows * (n - d)), 0.0)))
            std_error = np.where(survival > 0, survival * spread, np.nan)
            logs = np.log(survival)
            wide = float(norm.isf(alpha / 2)) * spread / np.abs(logs)
            ends = [np.exp(logs * np.exp(sign * wide)) for sign in (1.0, -1.0)]
        lower, upper = (
            np.where(survival == 1, 1.0, np.where(survival > 0, end, np.nan)) for end in ends
        )
        told = at_risk.reshape(len(groups), -1).any(axis=1)
        return cls(
            time, n, d, survival, std_error, lower, upper, float(alpha), groups, groups[~told]
        )

    def at(self, times: Any) -> Array:
        """Return the estimate at any times, in their shape.

        It is 1 before the grid's first point, and changes only at the grid's points.

        Raises
        ------
        ConfigError
            If a time is missing, or no number.
        """
        wanted = floats_of("times", times)
        if np.isnan(wanted).any():
            raise ConfigError("times has NaN, at which a curve has no value: leave it out")
        after = np.concatenate([[1.0], self.survival])
        estimate: Array = after[np.searchsorted(self.time, wanted, side="right")]
        return estimate

    def quantile(self, share: float) -> float:
        """Return the first time after which at most 1 - share are without an event.

        It is infinite if the curve does not fall so far.

        Raises
        ------
        ConfigError
            If share is not between 0 and 1.
        """
        if not 0 < real("share", share) < 1:
            raise ConfigError(f"share must be in (0, 1), got {share!r}")
        below = np.flatnonzero(self.survival <= 1.0 - share + 1e-12)
        return float(self.time[below[0]]) if below.size else math.inf

    @property
    def median(self) -> float:
        """The median time to the event."""
        return self.quantile(0.5)

    def to_frame(self) -> Any:
        """Return a pandas table with a row for each time."""
        pd = pandas()

        columns = ("at_risk", "events", "survival", "std_error", "lower", "upper")
        index = pd.Index(self.time, name="time")
        return pd.DataFrame({name: getattr(self, name) for name in columns}, index=index)

    def __repr__(self) -> str:
        told = len(self.groups) - len(self.left_out)
        return (
            f"KaplanMeier({number_of(told, 'site')}, {number_of(int(self.events.sum()), 'event')}, "
            f"{number_of(len(self.time), 'time')}: median {self.median:g})"
        )
