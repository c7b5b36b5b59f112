"""Neyman-Pearson classification: the loss of one class, with that of the other as constraint."""

from __future__ import annotations

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.losses import LogisticRegression
from flower_fedcon.validation import Array, float_array


class NeymanPearson(LogisticRegression):
    """f(x) = mean log(1 + exp(-<a_i, x>)) over A0, g(x) = mean log(1 + exp(<a_i, x>)) over A1.

    Minimising f subject to g(x) <= tolerance bounds the loss of one class and minimises that of the
    other. `value`, `gradient`, the minibatches, `num_examples` and the constants are those of f.

    Parameters
    ----------
    A0 : array, shape (m0, *model shape)
        Rows that should score positive. The dtype of A0 is the objective's.
    A1 : array, shape (m1, *model shape)
        Rows that should score negative.

    Raises
    ------
    ConfigError
        If A0 or A1 is empty, a value is not finite, or their rows differ in shape.

    Examples
    --------
    >>> from flower_fedcon.objectives import NeymanPearson
    >>> f = NeymanPearson(np.array([[1.0], [3.0]]), np.array([[2.0]]))
    >>> f.gradient(np.zeros(1)), f.constraint_gradient(np.zeros(1))
    (array([-1.]), array([1.]))
    >>> round(f.constraint_value(np.zeros(1)), 6)
    0.693147
    """

    def __init__(self, A0: object, A1: object) -> None:
        A0, A1 = float_array("NeymanPearson(A0)", A0), float_array("NeymanPearson(A1)", A1)
        if A0.size == 0 or A1.size == 0 or A0.ndim < 2 or A0.shape[1:] != A1.shape[1:]:
            raise ConfigError(
                "NeymanPearson needs A0 of shape (m0, *model shape) and A1 of shape (m1, *model "
                f"shape), all >= 1, got {A0.shape}, {A1.shape}"
            )
        super().__init__(A0, np.ones(len(A0)))
        self._constraint = LogisticRegression(A1.astype(A0.dtype), -np.ones(len(A1)))

    @property
    def A0(self) -> Array:  # noqa: N802
        """The rows of f."""
        rows: Array = self.A
        return rows

    @property
    def A1(self) -> Array:  # noqa: N802
        """The rows of g."""
        rows: Array = self._constraint.A
        return rows

    def constraint_value(self, x: Array) -> float:
        """Return g(x)."""
        return float(self._constraint.value(x))

    def constraint_gradient(self, x: Array) -> Array:
        """Return the gradient of g at x, in the shape of x."""
        return self._constraint.gradient(x)

    @property
    def constraint_smoothness(self) -> float | None:
        """The Lipschitz constant of the gradient of g."""
        return self._constraint.smoothness
