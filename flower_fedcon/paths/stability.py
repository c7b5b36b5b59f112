"""Stability selection: the columns that half samples of the rows select consistently.

Each client splits its own rows into two halves, B times, which gives 2 B half samples of all rows.
For each, a path is solved from the largest weight down until q columns have been selected: these
are the columns of the half sample. A column is selected in the end if its share pi of the half
samples is at least a threshold.

Let p be the number of columns. Among the selected columns, the expected number of those that a half
sample selects with probability at most q / p is at most

    q^2 / ((2 threshold - 1) p)

for any data (Shah, Samworth 2013, theorem 1, for complementary pairs). If columns without an effect
are exchangeable and selected no better than by chance, this bounds the expected number of such
columns (Meinshausen, Buhlmann 2010, theorem 1). q follows from the requested bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.paths.folds import SideBySide, deal_all, fold_weights, part_of, row_objective
from flower_fedcon.paths.path import regularization_path
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import Each, WithIntercept, as_regularizer
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.tables.default_method import default_strategy
from flower_fedcon.validation import Array, count, positive

_ABOVE = 1.5  # multiple of the largest weight of all rows: halves may select a column earlier
_BLOCKS = 2**24  # numbers of Hessians that are exchanged at once


@dataclass(frozen=True)
class StabilitySelection:
    """The shares of half samples that select each column.

    Attributes
    ----------
    shares : array, shape (columns,)
        pi, the share of the half samples that select a column among their first q.
    values : array, shape (num,)
        The weights, the largest first.
    paths : array, shape (num, columns)
        The share of the half samples in which a column has been selected down to each weight.
    selected : array of int
        The columns whose share is at least `threshold`.
    threshold : float
    most : int
        q, the largest number of columns that a half sample selects.
    error : float
        The bound that holds, q^2 / ((2 threshold - 1) p).
    samples : int
        The number of half samples, two for each pair.
    """

    shares: Array
    values: Array
    paths: Array
    threshold: float
    most: int
    error: float
    samples: int

    @property
    def selected(self) -> Array:
        """The columns whose share is at least the threshold."""
        return np.flatnonzero(self.shares >= self.threshold - 1e-12)

    def __repr__(self) -> str:
        return (
            f"StabilitySelection({len(self.selected)} of {len(self.shares)} columns in at least "
            f"{self.threshold:.0%} of {self.samples} half samples, of {self.most} in each; at most "
            f"{self.error:.3g} expected that are no better than chance)"
        )


def stability_selection(
    problem: FederatedProblem,
    regularizer: Any = None,
    strategy: FedConStrategy[Any] | None = None,
    *,
    pairs: int = 50,
    threshold: float = 0.75,
    error: float = 1.0,
    num: int = 50,
    min_ratio: float = 0.01,
    seed: int = 0,
    **options: Any,
) -> StabilitySelection:
    """Select the columns that half samples of the clients' rows select consistently.

    Each client splits its own rows, and no row leaves it. The fits run side by side.

    Parameters
    ----------
    problem : FederatedProblem
        Of objectives with rows, such as `LogisticRegression`.
    regularizer, strategy, num, min_ratio
        As for `regularization_path`.
    pairs : int (default: 50)
        B, the number of complementary pairs of halves.
    threshold : float (default: 0.75)
        In (0.5, 1].
    error : float (default: 1.0)
        A bound > 0 of the expected number of columns without an effect among the selected ones; see
        `flower_fedcon.paths.stability` for its meaning. q follows from it.
    seed : int (default: 0)
        The seed of the halves and of the runs.
    **options
        Others of `regularization_path`.

    Returns
    -------
    StabilitySelection

    Raises
    ------
    ConfigError
        If an objective has no rows, an argument is out of range, or the error is so small that a
        half sample could select no column.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastSquares
    >>> from flower_fedcon.regularizers import L1
    >>> rng = np.random.default_rng(0)
    >>> clients = []
    >>> for _ in range(4):
    ...     A = rng.normal(size=(40, 20))
    ...     clients.append(LeastSquares(A, A[:, 0] - A[:, 3] + rng.normal(size=40)))
    >>> found = stability_selection(FederatedProblem(clients), L1(1.0), pairs=10, num=20)
    >>> found.selected, found.most, found.error
    (array([0, 3]), 3, 0.9)
    """
    count("pairs", pairs)
    if not 0.5 < positive("threshold", threshold) <= 1.0:
        raise ConfigError(f"threshold must be in (0.5, 1], got {threshold!r}")
    psi = as_regularizer(problem.regularizer if regularizer is None else regularizer)
    cores = [row_objective(f) for f in problem.objectives]
    shape = cores[0].shape
    columns = shape[0] - isinstance(psi, WithIntercept)
    spread = (2.0 * threshold - 1.0) * columns
    most = min(columns, math.isqrt(int(positive("error", error) * spread + 1e-9)))
    if most < 1:
        raise ConfigError(
            f"error = {error:g} with threshold = {threshold:g} and {columns} columns allows no "
            f"selection in a half sample: give an error of at least {1.0 / spread:.2g}"
        )
    options = {"seed": seed, **options}
    strategy = default_strategy(problem) if strategy is None else strategy
    top = regularization_path(problem, psi, strategy, num=1, **options).values[0]
    values = np.geomspace(_ABOVE * float(top), min_ratio * float(top), num)
    size = math.prod(shape)
    first = np.full((2 * pairs, columns), num)  # for each half sample: the point that selects
    together = max(2, _BLOCKS // size**2 // 2 * 2)
    for start in range(0, 2 * pairs, together):
        halves = [
            half
            for pair in range(start // 2, min(pairs, (start + together) // 2))
            for half in deal_all(cores, 2, seed + pair)
        ]
        selected = _side_by_side(problem, cores, halves, psi, strategy, values, options)
        for place, active in enumerate(selected):
            sample, entry = np.divmod(active, size)
            column = entry // math.prod(shape[1:])
            np.minimum.at(first, (start + sample, column), place)
    shares, paths = np.zeros(columns), np.zeros((num, columns))
    for points in first:
        ever = points[:, None] <= np.arange(num)  # whether selected up to each point
        paths += ever.T
        last = np.flatnonzero(ever.sum(axis=0) <= most)
        shares += ever[:, last[-1]] if last.size else 0.0
    n = 2 * pairs
    bound = most**2 / spread
    return StabilitySelection(shares / n, values, paths / n, float(threshold), most, bound, n)


def _side_by_side(
    problem: FederatedProblem,
    cores: Sequence[Any],
    halves: Sequence[Sequence[tuple[Array, Array]]],
    psi: Any,
    strategy: FedConStrategy[Any],
    values: Array,
    options: dict[str, Any],
) -> Iterator[Array]:
    """Yield the active entries at each weight, for one half sample after the other."""
    parts = [[part_of(core, half[j][0]) for half in halves] for j, core in enumerate(cores)]
    shares = [w / core.total_weight for w, core in zip(problem.weights, cores, strict=True)]
    fit = fold_weights(parts, shares)
    for k in np.flatnonzero(~fit.any(axis=0))[:1].tolist():
        raise ConfigError(
            f"half sample {k} has no rows, or none with a weight above 0: give more rows"
        )
    fit = fit / fit.sum(axis=0)
    fitting = np.flatnonzero(fit.any(axis=1)).tolist()
    whole = FederatedProblem(
        [SideBySide(parts[j], len(fitting) * fit[j]) for j in fitting],
        names=[problem.names[j] for j in fitting],
        x0=np.repeat(problem.start[None], len(halves), axis=0),
    )
    yield from regularization_path(whole, Each(psi), strategy, values=values, **options).active
