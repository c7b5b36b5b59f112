"""Tests that coefficients which a model has once are the same everywhere, by their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flower_fedcon.errors import pandas
from flower_fedcon.validation import Array

_ROUNDING = 1e-10  # of a covariance that counts as 0, relative


@dataclass(frozen=True, eq=False)
class ScoreTest:
    """A score test against further coefficients of each column, which are 0 in the fitted model.

    Attributes
    ----------
    names : list of str
        The columns' names.
    score : array, shape (entries,)
        The derivatives of the log-likelihood in the further coefficients.
    covariance : array, shape (entries, entries)
        The score's, if the model is right: 0 for an entry without information.
    columns : array of int, shape (entries,)
        Of each entry its column's place among `names`.

    Examples
    --------
    >>> test = ScoreTest(["age", "dose"], np.array([2.0, 3.0]), np.eye(2), np.array([0, 1]))
    >>> test.statistic, test.global_statistic, test.degrees
    (array([4., 9.]), 13.0, 2)
    """

    names: list[str]
    score: Array
    covariance: Array
    columns: Array

    @cached_property
    def _each(self) -> Array:
        tests = [self.joint_test([place]) for place in range(len(self.names))]
        each: Array = np.array(tests).reshape(-1, 3)
        return np.where(each[:, 1:2] > 0, each, [np.nan, 0.0, np.nan])

    @cached_property
    def _all(self) -> tuple[float, int, float]:
        return _joint(self.score, self.covariance)

    @property
    def statistic(self) -> Array:
        """Chi-squared of each column's entries; NaN without information."""
        return self._each[:, 0]

    @property
    def each_degrees(self) -> Array:
        """The degrees of freedom of each column's statistic."""
        return self._each[:, 1].astype(int)

    @property
    def pvalue(self) -> Array:
        """The p-value of each column's statistic."""
        return self._each[:, 2]

    @property
    def global_statistic(self) -> float:
        """Chi-squared of all entries together."""
        return self._all[0]

    @property
    def degrees(self) -> int:
        """The degrees of freedom of `global_statistic`: the rank of `covariance`."""
        return self._all[1]

    @property
    def global_pvalue(self) -> float:
        """The p-value of `global_statistic`."""
        return self._all[2]

    def joint_test(self, places: Sequence[int]) -> tuple[float, int, float]:
        """Return the test of several columns, such as those of a category.

        Parameters
        ----------
        places : sequence of int
            The columns' places among `names`.

        Returns
        -------
        tuple
            Chi^2, its degrees of freedom, and the p-value.
        """
        own = np.flatnonzero(np.isin(self.columns, list(places)))
        return _joint(self.score[own], self.covariance[np.ix_(own, own)])

    def to_frame(self) -> Any:
        """Return a pandas table with a row for each column, and a last row for all."""
        pd = pandas()

        columns = {
            "statistic": [*self.statistic, self.global_statistic],
            "degrees": [*self.each_degrees, self.degrees],
            "pvalue": [*self.pvalue, self.global_pvalue],
        }
        return pd.DataFrame(columns, index=[*self.names, "GLOBAL"])


def given_nuisance(score: Array, information: Array, tested: Array) -> tuple[Array, Array]:
    """Return the score of some parameters and its covariance, given estimates of all others.

    Parameters
    ----------
    score : array, shape (p,)
    information : array, shape (p, p)
    tested : array of bool, shape (p,)
        Which parameters are tested, and not estimated.

    Returns
    -------
    tuple of array
        Entries that are known from the estimates up to rounding have covariance 0.

    Examples
    --------
    >>> information = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> given_nuisance(np.array([0.0, 3.0]), information, np.array([False, True]))
    (array([3.]), array([[1.5]]))
    """
    own = information[np.ix_(tested, tested)]
    inverted = inverse(information[np.ix_(~tested, ~tested)])[0]
    across = information[np.ix_(tested, ~tested)] @ inverted
    covariance = own - across @ information[np.ix_(~tested, tested)]
    known = np.diag(covariance) <= _ROUNDING * np.diag(own)
    covariance[known] = covariance[:, known] = 0.0
    return score[tested] - across @ score[~tested], covariance


def inverse(matrix: Array) -> tuple[Array, int]:
    """Return the (pseudo-)inverse of a covariance in any units, and its rank."""
    sizes = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    unit = np.where(sizes > 0, sizes, 1.0)
    same = matrix / unit / unit[:, None]
    found: Array = np.linalg.pinv(same, rcond=_ROUNDING, hermitian=True) / unit / unit[:, None]
    return found, int(np.linalg.matrix_rank(same, tol=_ROUNDING, hermitian=True))


def _joint(score: Array, covariance: Array) -> tuple[float, int, float]:
    """Return the test that a score's expectation is 0: chi^2, degrees of freedom, and p."""
    from scipy.stats import chi2

    inverted, degrees = inverse(covariance)
    statistic = float(score @ inverted @ score)
    return statistic, degrees, float(chi2.sf(statistic, degrees))
