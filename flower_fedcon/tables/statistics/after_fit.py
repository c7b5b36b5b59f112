"""What follows a fit, for runs on tables and for estimators: one exchange of sums, or several.

`ask` is the door to the sites: a run's (`runs.final_sums`) or an estimator's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flower_fedcon.tables.families.base import RESIDUAL, family_of
from flower_fedcon.tables.row_weights import FREQUENCY, SAMPLING
from flower_fedcon.tables.statistics.debiased import debiased
from flower_fedcon.tables.statistics.estimates import DEBIASED, Estimates, estimate, shapes_of
from flower_fedcon.tables.statistics.hazards import Proportionality, tested
from flower_fedcon.tables.statistics.intercept_variance import (
    Ask,
    RandomFit,
    fit_marginal,
    fit_squared,
)
from flower_fedcon.tables.statistics.site_sums import (
    KINDS,
    MODEL,
    SAMPLED,
    free_parameters,
    free_values,
)
from flower_fedcon.validation import Array


def estimates_at(
    ask: Ask,
    loss: str,
    method: str,
    names: Sequence[str],
    x: Array,
    weights: str = FREQUENCY,
) -> Estimates:
    """Return the estimates at a model, in the sites' units.

    Parameters
    ----------
    ask : callable
    loss : str
        The loss's name.
    method : {"model", "robust", "cluster", "quasi", "debiased"}
    names : sequence of str
        The free parameters' names.
    x : array
        The model.
    weights : {"frequency", "sampling"}
        What the rows' weights mean.

    Raises
    ------
    ConfigError
        If the sums give no estimates.
    """
    kind = MODEL if method == DEBIASED else method
    number = KINDS[kind] + (SAMPLED if weights == SAMPLING else 0.0)
    sums = ask("estimates", shapes_of(free_parameters(x.shape), kind), x, method=number)
    if method == DEBIASED:
        return debiased(loss, names, x, sums)
    return estimate(loss, method, names, free_values(x), sums, weights)


def random_fit(
    ask: Ask, loss: str, names: Sequence[str], x: Array, *, reml: bool, nodes: int, tol: float,
    most: int,
) -> RandomFit:  # fmt: skip
    """Return the fit with random intercepts: of a linear model exact, of others by quadrature.

    Parameters
    ----------
    ask, loss, names, x : see `estimates_at`
    reml : bool
        Whether variances of a linear model maximise the restricted likelihood.
    nodes, tol, most : see `fit_marginal`

    Raises
    ------
    ConfigError
        If there is only one group, or the fit is not finite.
    """
    if family_of(loss).scale == RESIDUAL:
        return fit_squared(ask, names, x, reml, tol, most)
    return fit_marginal(ask, loss, names, x, nodes, tol, most)


def proportionality_test(
    transform: str, names: Sequence[str], at: Callable[[float], Mapping[str, Array]]
) -> Proportionality:
    """Return the test of proportional hazards along a function of time.

    Parameters
    ----------
    transform : {"log", "rank", "identity"}
    names : sequence of str
        The columns' names.
    at : callable
        Returns the sums over sites of `hazards.sums_in_time`, for a centre of the function of time.
    """
    total, events = at(0.0)["moments"].tolist()
    return tested(transform, names, at(total / max(events, 1.0)))
