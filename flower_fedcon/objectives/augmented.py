"""The augmented Lagrangian of one client's objective and its own constraint."""

from __future__ import annotations

from typing import Any, NamedTuple

from flower_fedcon.validation import Array


class AugmentedLagrangian(NamedTuple):
    """P(w) = s f(w) + ([mu + beta c(w)]_+^2 - mu^2)/(2 beta) + (kappa/2) ||w - a||^2.

    P is convex and differentiable if f and c are. c is `constraint_value`; without one, c = mu = 0.

    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic([[2.0]], [0.0])
    >>> AugmentedLagrangian(f, 0.5, 0.0, 10.0, 1.0, f.b).gradient(f.b + 2)
    array([4.])
    """

    objective: Any  # f, and c
    scale: float  # s
    multiplier: float  # mu >= 0
    penalty: float  # beta > 0
    pull: float  # kappa >= 0
    anchor: Array  # a, shape of w

    def constraint(self, w: Array) -> float:
        """Return c(w)."""
        value = getattr(self.objective, "constraint_value", None)
        return 0.0 if value is None else float(value(w))

    def moved(self, w: Array) -> float:
        """Return [mu + beta c(w)]_+, the multiplier after a step from w."""
        return max(0.0, self.multiplier + self.penalty * self.constraint(w))

    def value(self, w: Array) -> float:
        """Return P(w)."""
        away = (w - self.anchor).reshape(-1)
        grown = (self.moved(w) ** 2 - self.multiplier**2) / (2 * self.penalty)
        return float(self.scale * self.objective.value(w) + grown + self.pull / 2 * (away @ away))

    def gradient(self, w: Array) -> Array:
        """Return the gradient of P at w."""
        g: Array = self.scale * self.objective.gradient(w) + self.pull * (w - self.anchor)
        moved = self.moved(w)
        return g + moved * self.objective.constraint_gradient(w) if moved else g
