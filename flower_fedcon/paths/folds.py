"""Cross-validation whose folds lie within each client."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.core.rng import FOLDS, stream
from flower_fedcon.errors import ConfigError, FedConError, number_of
from flower_fedcon.objectives import Objective, Scaled
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.paths.path import RegularizationPath, regularization_path
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import Each, as_regularizer
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.tables.default_method import default_strategy
from flower_fedcon.validation import Array, count

Splits: TypeAlias = Sequence[Sequence[tuple[Array, Array]]]


@dataclass(frozen=True)
class CrossValidation:
    """Losses of a path's weights on held-out rows.

    Attributes
    ----------
    path : RegularizationPath
        The path of all rows, at the same weights.
    folds : RegularizationPath
        The paths of the rows outside of each fold. The models of all folds are side by side:
        `coefs` has shape (num, folds, *model shape).
    losses : array, shape (folds, num)
        The mean loss over each fold's held-out rows of all clients.
    """

    path: RegularizationPath
    folds: RegularizationPath
    losses: Array

    @property
    def values(self) -> Array:
        """The weights, the largest first."""
        return self.path.values

    @property
    def mean(self) -> Array:
        """The mean loss over the folds, shape (num,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean: Array = self.losses.mean(axis=0)
        return mean

    @property
    def standard_error(self) -> Array:
        """The standard error of that mean, shape (num,); NaN for one fold, which has none."""
        number = len(self.losses)
        if number < 2:
            return np.full(self.losses.shape[1], np.nan)
        with np.errstate(over="ignore", invalid="ignore"):
            error: Array = self.losses.std(axis=0, ddof=1) / np.sqrt(number)
        return error

    @property
    def best(self) -> int:
        """The index of the weight with the least finite mean loss.

        Raises
        ------
        FedConError
            If no mean loss is finite.
        """
        mean = self.mean
        if not np.isfinite(mean).any():
            raise FedConError(
                f"the losses on held-out rows are finite at none of {len(mean)} weights: are rows "
                f"far from the others? Scale the columns, or give larger values=[...]"
            )
        return int(np.where(np.isfinite(mean), mean, np.inf).argmin())

    @property
    def least(self) -> float:
        """The least mean loss."""
        return float(self.mean[self.best])

    @property
    def one_standard_error(self) -> int:
        """The index of the largest weight within one standard error of the least mean loss.

        Raises
        ------
        ConfigError
            If there is only one fold, and thus no standard error.
        """
        if len(self.losses) < 2:
            raise ConfigError("one fold has no standard error: use `best`, or more folds")
        bound = self.least + self.standard_error[self.best]
        return int(np.argmax(self.mean <= bound))

    @property
    def stability(self) -> Array:
        """The share of the folds in which each entry is active, shape (num, entries)."""
        number, size = len(self.losses), int(np.size(self.path.x[0]))
        shares = np.zeros((len(self.path), size))
        for share, active in zip(shares, self.folds.active, strict=True):
            np.add.at(share, active % size, 1 / number)
        return shares

    @property
    def uplink_bytes(self) -> int:
        """The bytes that all clients have sent, for all folds and the path of all rows."""
        return int(self.path.uplink_bytes.sum() + self.folds.uplink_bytes.sum())

    @property
    def downlink_bytes(self) -> int:
        """The bytes that all clients were sent."""
        return int(self.path.downlink_bytes.sum() + self.folds.downlink_bytes.sum())

    @property
    def exchanges(self) -> int:
        """The exchanges with the clients, rounds and gradients."""
        return int(self.path.exchanges.sum() + self.folds.exchanges.sum())

    def __repr__(self) -> str:
        outcome = "no loss is finite"
        if np.isfinite(self.mean).any():
            outcome = (
                f"{self.values[self.best]:.4g} has the least mean loss, {self.least:.4g}, with "
                f"{len(self.path.active[self.best])} active"
            )
            if len(self.losses) > 1:
                sparse = self.one_standard_error
                outcome += (
                    f"; {self.values[sparse]:.4g} is within a standard error, with "
                    f"{len(self.path.active[sparse])}"
                )
        return (
            f"CrossValidation({len(self.losses)} folds, {len(self.path)} weights: {outcome}; "
            f"{number_of(self.exchanges, 'exchange')}, {self.uplink_bytes:,} bytes up, "
            f"{self.downlink_bytes:,} down)"
        )


def cross_validate(
    problem: FederatedProblem,
    regularizer: Any = None,
    strategy: FedConStrategy[Any] | None = None,
    *,
    folds: int | Splits = 5,
    num: int = 100,
    min_ratio: float = 1e-3,
    values: Sequence[float] | Array | None = None,
    seed: int = 0,
    loss: Callable[[Any, Any, Any, Array], float] | None = None,
    **options: Any,
) -> CrossValidation:
    """Compare the weights of a path by the loss on held-out rows.

    Each client assigns its own rows to the folds, so that no row leaves it; its part of a fold's
    loss is one number for each weight. By default the loss is that of the objective.

    Parameters
    ----------
    problem : FederatedProblem
        A problem whose objectives have rows, such as `LogisticRegression`.
    regularizer, strategy, num, min_ratio, values
        As for `regularization_path`. The weights are those of the path of all rows.
    folds : int, or sequence (default: 5)
        The number of folds: >= 2, at most the number of rows of all clients. Or the folds
        themselves: for each fold, and for every client, a pair of arrays with the numbers of the
        rows to fit and of those held out.
    seed : int (default: 0)
        The seed of the folds and of the runs.
    loss : callable, optional
        Returns the mean loss of the rows that a client holds out in a fold. Its four arguments are
        the client's objective of all its rows, that of the rows to fit (None if there are none),
        that of the held-out rows, and the model.
    **options
        Further options of `regularization_path`.

    Returns
    -------
    CrossValidation

    Raises
    ------
    ConfigError
        If an objective has no rows, or there are more folds than rows.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastSquares
    >>> from flower_fedcon.regularizers import L1
    >>> rng = np.random.default_rng(0)
    >>> clients = []
    >>> for _ in range(4):
    ...     A = rng.normal(size=(25, 5))
    ...     clients.append(LeastSquares(A, A[:, 0] + rng.normal(size=25)))
    >>> found = cross_validate(FederatedProblem(clients), L1(1.0), num=10, min_ratio=0.01)
    >>> found.path.active[found.one_standard_error]
    array([0, 3])
    """
    cores = [row_objective(f) for f in problem.objectives]
    splits = deal_all(cores, folds, seed) if isinstance(folds, int) else list(folds)
    if not splits:
        raise ConfigError("folds must be a number >= 2, or at least one fold, got none")
    options = {"seed": seed, **options}
    strategy = default_strategy(problem) if strategy is None else strategy
    path = regularization_path(
        problem, regularizer, strategy, num=num, min_ratio=min_ratio, values=values, **options
    )
    psi = as_regularizer(problem.regularizer if regularizer is None else regularizer)
    train = [[part_of(core, split[j][0]) for split in splits] for j, core in enumerate(cores)]
    test = [[part_of(core, split[j][1]) for split in splits] for j, core in enumerate(cores)]
    shares = [w / core.total_weight for w, core in zip(problem.weights, cores, strict=True)]
    fit, held = fold_weights(train, shares), fold_weights(test, shares)
    for what, weight in (("to fit", fit), ("held out", held)):
        for k in np.flatnonzero(~weight.any(axis=0))[:1].tolist():
            raise ConfigError(
                f"fold {k} of {len(splits)} has no rows {what}, or none with a weight above 0"
            )
    fit, held = fit / fit.sum(axis=0), held / held.sum(axis=0)
    fitting = np.flatnonzero(fit.any(axis=1)).tolist()  # other clients' rows are always held out
    together = FederatedProblem(
        [SideBySide(train[j], len(fitting) * fit[j]) for j in fitting],
        names=[problem.names[j] for j in fitting],
        x0=np.repeat(problem.start[None], len(splits), axis=0),
    )
    fold_paths = regularization_path(together, Each(psi), strategy, values=path.values, **options)
    losses = np.zeros((len(splits), len(path)))
    for core, rest, parts, weights in zip(cores, train, test, held, strict=True):
        for k, (fitted, f) in enumerate(zip(rest, parts, strict=True)):
            if f is not None:
                measured = f.value if loss is None else partial(loss, core, fitted, f)
                losses[k] += [weights[k] * measured(x[k]) for x in fold_paths.coefs]
    return CrossValidation(path, fold_paths, losses)


class SideBySide(Objective):
    """f(X) = sum_k factor_k f_k(X_k): the folds of one client, with models along an axis.

    Parameters
    ----------
    parts : sequence of LinearModel, or WithOffset
        f_k; None for 0.
    factors : array
    """

    def __init__(self, parts: Sequence[LinearModel | WithOffset | None], factors: Array) -> None:
        self.parts, self.factors = list(parts), factors
        first = next(f for f in parts if f is not None)
        self.shape, self.dtype = (len(self.parts), *first.shape), first.dtype
        self.num_examples = max(f.num_examples for f in parts if f is not None)

    def value(self, x: Array) -> float:
        """Return f(X)."""
        pairs = zip(self.parts, self.factors, x, strict=True)
        return math.fsum(c * f.value(model) for f, c, model in pairs if f is not None)

    def gradient(self, x: Array) -> Array:
        """Return the gradient at X, in its shape."""
        gradient = np.zeros_like(x)
        for k, f in enumerate(self.parts):
            if f is not None:
                gradient[k] = self.factors[k] * f.gradient(x[k])
        return gradient

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the Hessian's blocks, one for each fold."""
        size = math.prod(self.shape[1:]) if columns is None else len(columns)
        blocks = np.zeros((len(self.parts), size, size), x.dtype)
        for k, f in enumerate(self.parts):
            if f is not None:
                blocks[k] = self.factors[k] * f.hessian(x[k], columns)
        return blocks

    def entry_curvatures(self) -> Array:
        """Return approximate curvatures of f along the entries of X."""
        curvatures = np.zeros(self.shape)
        for k, f in enumerate(self.parts):
            if f is not None:
                curvatures[k] = self.factors[k] * f.entry_curvatures()
        return curvatures

    def _curvature(self) -> tuple[float | None, float | None]:
        constants = [
            c * f.smoothness if f.smoothness is not None else None
            for f, c in zip(self.parts, self.factors.tolist(), strict=True)
            if f is not None
        ]
        known = [L for L in constants if L is not None]
        return (max(known) if len(known) == len(constants) else None), None


def fold_weights(
    parts: Sequence[Sequence[LinearModel | WithOffset | None]], shares: Sequence[float]
) -> Array:
    """Return the weight of each client in each fold, shape (clients, folds)."""
    return np.array(
        [
            [0.0 if f is None else share * f.total_weight for f in folds]
            for folds, share in zip(parts, shares, strict=True)
        ]
    )


def row_objective(objective: Any) -> LinearModel | WithOffset:
    """Return the objective with rows inside a client's weighted objective."""
    core = objective.objective if isinstance(objective, Scaled) else objective
    if not isinstance(core, LinearModel | WithOffset):
        raise ConfigError(
            "cross-validation and stability selection need objectives with rows, such as "
            f"LogisticRegression, got {core!r}"
        )
    return core


def deal_all(cores: Sequence[LinearModel | WithOffset], folds: int, seed: int) -> Splits:
    """Assign each client's rows to folds, whose sizes differ by at most one."""
    count("folds", folds, minimum=2)
    splits: list[list[tuple[Array, Array]]] = [[] for _ in range(folds)]
    for client, core in enumerate(cores):
        rng = stream(seed, FOLDS, 0, client)
        first = int(rng.integers(folds))  # so that small clients do not all lack the last folds
        dealt = rng.permutation((np.arange(core.num_examples) + first) % folds)
        for fold, split in enumerate(splits):
            split.append((np.flatnonzero(dealt != fold), np.flatnonzero(dealt == fold)))
    return splits


def part_of(core: LinearModel | WithOffset, rows: Array) -> LinearModel | WithOffset | None:
    """Return the objective of some rows; None if their weight is 0."""
    if not rows.size or (core.weights is not None and not core.weights[rows].any()):
        return None
    return core.subset(rows)
