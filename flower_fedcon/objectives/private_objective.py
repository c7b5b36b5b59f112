"""An objective whose gradients are differentially private for each example; see `ExampleDP`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.base import Scaled
from flower_fedcon.objectives.noisy import Noisy
from flower_fedcon.objectives.row_gradients import clipped_steps, losses_of_rows
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.privacy.noise import Grid, drawn
from flower_fedcon.validation import Array


class PrivateObjective:
    """An objective whose gradients are differentially private for each example.

    Its value is exact and serves the owner of a simulation. Local steps get gradients only, and a
    node does not send the value.

    Parameters
    ----------
    objective : LinearModel
        Least squares, Huber, logistic, softmax or Poisson regression; a `TorchObjective`; or any
        object that defines `clipped_sum(x, clip, rows)`, `value`, `shape` and `num_examples`.
    privacy : ExampleDP
    ledger : Ledger, optional
        By default a new one.
    counting : array of bool, shape (num_examples,), optional
        Which rows count; others have no gradient and no loss. By default all do.

    Raises
    ------
    ConfigError
        If the objective is not a sum over its examples, or weights them.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastSquares
    >>> f = LeastSquares(np.ones((100, 1)), np.zeros(100))
    >>> private = PrivateObjective(f, ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5))
    >>> bool(abs(private.gradient(np.ones(1)) - 1.0) < 0.1), private.ledger.spent  # noise 0.01
    (True, {1.0: 1})
    """

    smoothness = strong_convexity = None  # they would reveal the rows
    resume_key = "private examples"  # all that a node sends about them
    noisy_quality: Callable[[Array], dict[str, Array]] | None = None  # of a table's rows held out

    def __init__(
        self,
        objective: Any,
        privacy: ExampleDP,
        ledger: Ledger | None = None,
        *,
        counting: Array | None = None,
    ) -> None:
        kind, name = type(objective), type(objective).__name__
        linear = isinstance(objective, LinearModel)
        separable = hasattr(kind, "clipped_sum") or hasattr(kind, "row_gradients")
        separable &= not linear or kind.slope is not LinearModel.slope
        if not separable:
            raise ConfigError(
                f"{name} has no gradient of each example (clipped_sum), so its examples cannot be "
                "made private: use LeastSquares, HuberRegression, LogisticRegression, "
                "SoftmaxRegression, PoissonRegression or TorchObjective, or leave ExampleDP out"
            )
        why = getattr(objective, "why_rows_mix", None)
        if why is not None and (reason := why()):
            raise ConfigError(f"{name}: {reason}, or leave ExampleDP out")
        if getattr(objective, "weights", None) is not None:
            raise ConfigError(
                f"{name} has a sample_weight, and every row changes its sum: leave it out, or "
                f"leave ExampleDP out"
            )
        self.objective, self.privacy = objective, privacy
        self.ledger = Ledger(privacy) if ledger is None else ledger
        self.shape, self.num_examples = objective.shape, int(objective.num_examples)
        self._counting = np.ones(self.num_examples, bool) if counting is None else counting
        self.dtype = np.dtype(getattr(objective, "dtype", np.float64))
        if names := getattr(objective, "layer_names", None):
            self.layer_names = names
        layout = Layout.for_objective(objective)
        assert layout is not None  # noqa: S101  (it has a shape)
        self._layout, self._packed = layout, False

    def packed_objective(self, layout: Layout) -> PrivateObjective:
        """Return the same function of the packed vector, for a model that is a list of arrays."""
        packed = copy.copy(self)
        packed.shape, packed._packed = layout.shape, True
        return packed

    @property
    def grid(self) -> Grid:
        """The grid of a sum of rows' gradients."""
        rule = self.privacy
        return Grid(rule.clip, rule.noise_multiplier * rule.clip, self.num_examples)

    def value(self, x: Any) -> float:
        """Return f(x), exactly."""
        return float(self.objective.value(self._layout.unpack(x) if self._packed else x))

    def noisy_value(self, x: Any) -> float:
        """Return the mean of the rows' losses, each clipped to `loss_clip`, with noise; count it.

        l2 is added without noise: it belongs to no row.

        Raises
        ------
        RefusedError
            If the rule has no `loss_clip`, or the budget is spent.
        ConfigError
            If the objective has no `row_losses(x, rows)`.
        """
        rule, m = self.privacy, self.num_examples
        if rule.loss_clip is None:
            raise RefusedError("refused: this node's examples are private, and so is its loss")
        if not hasattr(self.objective, "row_losses"):
            raise ConfigError(
                f"{type(self.objective).__name__} has no row_losses(x, rows), a loss for each row: "
                "define it, or leave privacy.loss-clip out"
            )
        at = self._layout.unpack(x) if self._packed else x
        grid = Grid(rule.loss_clip, rule.noise_multiplier * rule.loss_clip, m)
        self.ledger.spend(1.0, grid.distance(1))
        losses = losses_of_rows(self.objective, at, np.flatnonzero(self._counting))
        total = grid.steps(losses[:, None]).sum(axis=0)
        ridge = getattr(self.objective, "ridge", None)
        return float(grid.release(total)[0]) / m + (0.0 if ridge is None else float(ridge(at)))

    def gradient(self, x: Any) -> Any:
        """Return the noisy gradient over all rows, or over a sample whose size the node sets."""
        return self._noisy(x, self.privacy.batch_size)

    def stochastic_gradient(
        self, x: Any, rng: np.random.Generator, batch_size: int | None = None
    ) -> Any:
        """Return the noisy gradient over `batch_size` rows on average; `rng` is not used."""
        return self._noisy(x, self.privacy.batch_size or batch_size)

    def _noisy(self, x: Any, batch_size: int | None) -> Any:
        m, layout = self.num_examples, self._layout
        rate = min(1.0, (batch_size or m) / m)
        at = layout.unpack(x) if self._packed else x if layout.layered else np.asarray(x)
        grid = self.grid
        self.ledger.spend(rate, grid.distance(layout.size))
        rows = np.arange(m) if rate == 1.0 else drawn(m, rate)
        total = clipped_steps(self.objective, at, grid, rows[self._counting[rows]])
        noisy = (grid.release(total) / (rate * m)).astype(self.dtype)
        gradient = layout.unpack(noisy.reshape(layout.shape))
        if (ridge := getattr(self.objective, "ridged", None)) is not None:
            gradient = ridge(gradient, at)
        return layout.pack(gradient, "a gradient") if self._packed else gradient

    def __repr__(self) -> str:
        return f"PrivateObjective({self.objective!r}, {self.privacy!r})"


class Steps:
    """A private objective as local steps see it: gradients only."""

    def __init__(self, objective: PrivateObjective) -> None:
        self.gradient, self.stochastic_gradient = objective.gradient, objective.stochastic_gradient
        self.shape, self.dtype = objective.shape, objective.dtype
        self.num_examples = objective.num_examples

    def value(self, x: Array) -> float:
        """Refuse.

        Raises
        ------
        RefusedError
        """
        raise RefusedError(
            "refused: this client's examples are private (ExampleDP), and the method asks for a "
            "value of its objective: use a method with local gradient steps (FedAvg, Scaffold, "
            "...), or "
            "local_solver=GradientDescent(steps=..., lr=...)"
        )


def for_steps(objective: Any, factor: float, *, constraint: bool = True) -> Any:
    """Return factor times an objective for local steps: only gradients, if it is private.

    `constraint` says whether the factor applies to its own constraint, too.
    """
    objective = _replaced(objective, Steps)
    return objective if factor == 1.0 else Scaled(objective, factor, constraint=constraint)


def private_within(objective: Any) -> PrivateObjective | None:
    """Return the private objective inside weights and simulated noise; None without one."""
    while isinstance(objective, Scaled):
        objective = objective.objective
    return objective if isinstance(objective, PrivateObjective) else None


def is_private(objective: Any) -> bool:
    """Return whether an objective, weighted or not, gives noisy gradients only."""
    return private_within(objective) is not None


def exact(objective: Any) -> Any:
    """Return an objective as its owner sees it: a private one without its noise."""
    return _replaced(objective, lambda private: private.objective)


def _replaced(objective: Any, by: Callable[[PrivateObjective], Any]) -> Any:
    """Return an objective with the private one inside it replaced, if it has one."""
    if isinstance(objective, PrivateObjective):
        return by(objective)
    if not is_private(objective):
        return objective
    copied = copy.copy(objective)
    copied.objective = _replaced(objective.objective, by)
    return copied


def own_content(objective: Any) -> Any:
    """Return what identifies an objective to its owner: for a private one its rows and its noise.

    Others learn neither (`PrivateObjective.resume_key`).
    """
    if isinstance(objective, PrivateObjective):
        return objective.objective, replace(objective.privacy, budget=None)
    if not is_private(objective):
        return objective
    content = objective.factor, own_content(objective.objective)
    return (*content, objective.std) if isinstance(objective, Noisy) else content
