"""A site's message for a model with random intercepts: sums over its groups and rows.

The server asks several times; see `intercept_variance`. "marginal", for logistic and Poisson
losses, holds the arrays of "estimates" (see `site_sums`) for the likelihood with the intercepts
integrated out: information and score in (x, log sd), -2 l as deviance, no Pearson's chi^2, and the
groups as clusters.

"variance_ratio" is for the squared loss. Let r be the variance of intercepts relative to that of
residuals, n_c the rows of group c, and t_c the sum of its rows of Z, which holds the columns, the
intercept, and the residuals at x:

products, slopes, curvatures : (p + 1) (p + 2) / 2 numbers each
    Z'Z - sum_c r / (1 + n_c r) t_c t_c', and its derivatives in r: - sum_c t_c t_c' / (1 + n_c r)^2
    and sum_c 2 n_c t_c t_c' / (1 + n_c r)^3.
numbers : 5 numbers, `RATIO_NUMBERS`
    The sum of the weights; the number of groups; the sums over c of log(1 + n_c r), of n_c / (1 +
    n_c r), and of its square.

For "effects" the site predicts its groups' intercepts and writes them into its own file; it sends
only their number.

Nothing is sent if all groups of one size together have fewer rows than the node's threshold for
sums.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import RefusedError, number_of
from flower_fedcon.objectives.random_intercepts import RandomIntercepts, group_sums
from flower_fedcon.tables.families.base import RESIDUAL
from flower_fedcon.tables.small_cells import effective_counts
from flower_fedcon.tables.statistics.site_sums import (
    Fitted,
    RowScores,
    clusters_of,
    fitted,
    kept_columns,
    packed,
)
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

RATIO_NUMBERS = ("n", "groups", "logs", "shares", "squares")


def marginal(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return the sums of a likelihood with the random intercepts integrated out."""
    x = down["x"]
    at = fitted(objective, x[:-1])
    f = RandomIntercepts(at.f, clusters_of(at.f), int(down["nodes"]))
    _expect_sizes(at, f.group_weights, least)
    score, curvatures = f.derivatives(x)
    loglik = float(f.logliks(x).sum())
    numbers = [
        f.total_weight,
        loglik,
        -2.0 * loglik,
        0.0,
        0.0,
        float((f.group_weights > 0).sum()),
        0.0,
    ]
    return {"information": packed(-curvatures), "score": score, "numbers": np.array(numbers)}


def _expect_sizes(at: Fitted, weights: Array, least: int) -> None:
    """Raise if all groups of one weight together have fewer rows than `least`.

    Answers for several ratios give the sums over the groups of each weight.
    """
    sizes, place, counts = np.unique(weights[weights > 0], return_inverse=True, return_counts=True)
    of_group = np.full(len(weights), -1)
    of_group[weights > 0] = place
    of_row = of_group[_groups(at)]
    few = effective_counts(of_row[of_row >= 0], len(sizes), at.w[of_row >= 0]) < least
    if least > 1 and few.any():
        raise RefusedError(
            f"refused: sums over groups reveal those of each size, and fewer than {least} rows "
            f"here (policy.min-rows and min-cell) are in the {number_of(counts[few][0], 'group')} "
            f"of one size: use larger groups, or the site as one"
        )


def random_intercepts(objective: Any, x: Array, nodes: int) -> RandomIntercepts:
    """Return a site's likelihood at (x, log sd), with its clusters as groups."""
    at = fitted(objective, x[:-1])
    return RandomIntercepts(at.f, clusters_of(at.f), nodes)


def variance_ratio(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return the sums of a linear model whose intercepts have r times the residuals' variance."""
    at = fitted(objective, down["x"])
    rows = grouped(at)
    r, t, n = float(down["ratio"]), rows.sums, rows.counts
    _expect_sizes(at, n, least)
    shrunk = 1.0 / (1.0 + n * r)
    means = t / np.where(n > 0, n, 1.0)[:, None]

    def outer(counts: Array) -> Array:
        return packed((t * counts[:, None]).T @ t)

    shares = n * shrunk
    numbers = [n.sum(), (n > 0).sum(), np.log1p(n * r).sum(), shares.sum(), shares @ shares]
    return {
        # Z'Z - sum r / (1 + n r) t t', without the digits that groups far apart would cost.
        "products": packed(rows.within + (means * (n * shrunk)[:, None]).T @ means),
        "slopes": -outer(np.square(shrunk)),
        "curvatures": outer(2.0 * n * shrunk**3),
        "numbers": np.array(numbers, np.float64),
    }


def predicted_effects(objective: Any, x: Array, sd: float, residual_sd: float, nodes: int) -> Array:
    """Return the predicted intercept minus the mean, for each group of a site; they stay there.

    They are the conditional modes given the rows; in a linear model, the best linear predictions.

    Parameters
    ----------
    objective : object
        The site's objective.
    x : array, shape (p,)
        The coefficients.
    sd, residual_sd : float
        The deviations of the intercepts, and of a linear model's residuals.
    nodes : int

    Returns
    -------
    array, shape (groups,)
    """
    at = fitted(objective, x)
    if at.family.scale == RESIDUAL:
        rows, r = grouped(at), (sd / residual_sd) ** 2
        predicted: Array = rows.sums[:, -1] * r / (1.0 + rows.counts * r)
        return predicted
    theta = np.append(x, math.log(sd or 1.0))
    modes = random_intercepts(objective, theta, nodes).effects(theta)
    return modes if sd else np.zeros_like(modes)


def effects_of(objective: Any, down: Payload) -> Array:
    """Return the effects of a request for the statistic "effects", which stay at the site."""
    deviations = float(down["sd"]), float(down["residual_sd"])
    return predicted_effects(objective, down["x"], *deviations, int(down["nodes"]))


def effects(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return the number of groups whose intercepts a site has predicted; these stay there."""
    return {"groups": np.array([float(len(effects_of(objective, down)))])}


class Grouped(NamedTuple):
    """The rows Z of a linear model, with the residuals as their last column, by group."""

    within: Array  # the products of rows minus their group's mean, by weight
    sums: Array  # by group, shape (groups, p + 1)
    counts: Array  # the sum of each group's weights


def grouped(at: Fitted) -> Grouped:
    """Return the sums over groups (the clusters) of a linear model's rows at x."""
    codes = _groups(at)
    rows = at.loss.rows[:, kept_columns(at)]
    left = at.loss.targets - at.scores
    by = group_sums(codes, at.w)
    sums, counts = by @ rows, by @ np.ones(len(at.w))
    sums = np.column_stack([sums if isinstance(sums, np.ndarray) else sums.toarray(), by @ left])
    means = sums / np.where(counts > 0, counts, 1.0)[:, None]
    left = left - means[codes, -1]
    if isinstance(rows, np.ndarray):
        rows, between = rows - means[codes, :-1], 0.0
    else:
        between = (means[:, :-1] * counts[:, None]).T @ means[:, :-1]
    squares = RowScores(at.w, np.ones(len(at.w)), rows).squares() - between
    across = np.asarray(rows.T @ (at.w * left)).reshape(-1, 1)
    within = np.block([[squares, across], [across.T, np.array([[at.w @ left**2]])]])
    return Grouped(within, sums, counts)


def _groups(at: Fitted) -> Array:
    """Return the group of each row: its cluster, or one for all."""
    codes = clusters_of(at.f)
    return np.zeros(len(at.w), np.intp) if codes is None else codes
