"""A small network with a hidden layer: a smooth loss that is not convex."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Model
from flower_fedcon.objectives.base import Objective
from flower_fedcon.validation import Array, count, float_array, nonnegative, plain_array


class TanhNetwork(Objective):
    """Mean cross-entropy of the logits tanh(A W + b) V + c, plus l2/2 times the squared norm of x.

    The model x is the list [W, b, V, c], of shapes (features, hidden), (hidden,), (hidden,
    num_classes) and (num_classes,). f is smooth and not convex; L is unknown.

    Parameters
    ----------
    A : array, shape (m, features)
        A row for each example. The dtype of A is the objective's.
    y : array of int, shape (m,)
        Classes, 0 to num_classes - 1.
    num_classes : int
        >= 2.
    hidden : int
        Units of the hidden layer, >= 1.
    l2 : float
        >= 0.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match y, a value is not finite, or a class is out of range.

    Examples
    --------
    >>> from flower_fedcon.objectives import TanhNetwork
    >>> f = TanhNetwork(np.eye(3), np.array([0, 1, 1]), num_classes=2, hidden=4)
    >>> f.shape
    [(3, 4), (4,), (4, 2), (2,)]
    >>> round(f.value([np.zeros(shape) for shape in f.shape]), 6)  # log 2
    0.693147
    """

    convex = False
    shape: Any
    layer_names = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")

    def __init__(
        self, A: object, y: object, num_classes: int, hidden: int, l2: float = 0.0
    ) -> None:
        name = type(self).__name__
        self.A = float_array(f"{name}(A)", A, ndim=2)
        if 0 in self.A.shape:
            raise ConfigError(f"{name}(A) must have a row and a feature, got shape {self.A.shape}")
        labels = plain_array(f"{name}(y)", y)
        self.num_examples, features = self.A.shape
        classes = count(f"{name}(num_classes)", num_classes, minimum=2)
        if labels.shape != (self.num_examples,) or labels.dtype.kind not in "iu":
            raise ConfigError(
                f"{name}(y) must hold {self.num_examples} integers, one for each row of A, got "
                f"{labels.dtype} of shape {labels.shape}"
            )
        outside = labels[(labels < 0) | (labels >= classes)]
        if outside.size:
            raise ConfigError(f"{name}(y) must be 0 to {classes - 1}, got {outside[0]}")
        self.y = labels.astype(np.intp)
        units = count(f"{name}(hidden)", hidden)
        self.l2 = nonnegative(f"{name}(l2)", l2)
        self.dtype = self.A.dtype
        self.shape = [(features, units), (units,), (units, classes), (classes,)]

    def start(self, rng: np.random.Generator) -> list[Array]:
        """Return a random start: weights from N(0, 1/inputs of the layer), biases 0.

        A network must not start from zeros, where all hidden units stay equal.
        """
        return [
            (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(self.dtype)
            if len(shape) == 2
            else np.zeros(shape, self.dtype)
            for shape in self.shape
        ]

    def logits(self, x: Model, A: Array | None = None) -> Array:
        """Return the logits of rows A, by default the objective's own, shape (rows, classes)."""
        W, b, V, c = self._layers(x)
        logits: Array = np.tanh((self.A if A is None else A) @ W + b) @ V + c
        return logits

    def value(self, x: Model) -> float:
        """Return f(x)."""
        return self._loss(_log_probabilities(self.logits(x)), self.y) + self._ridge(x)

    def gradient(self, x: Model) -> Any:
        """Return the gradient, a list of arrays like x."""
        return self._value_and_gradient(x, self.A, self.y)[1]

    def value_and_gradient(self, x: Model) -> tuple[float, Any]:
        """Return f(x) and the gradient."""
        return self._value_and_gradient(x, self.A, self.y)

    def batch_gradient(self, x: Model, rows: Array) -> Any:
        """Return the gradient of the mean over `rows` (integers), l2 included."""
        return self._value_and_gradient(x, self.A[rows], self.y[rows])[1]

    def _value_and_gradient(self, x: Model, A: Array, y: Array) -> tuple[float, list[Array]]:
        W, b, V, c = self._layers(x)
        units = np.tanh(A @ W + b)
        logs = _log_probabilities(units @ V + c)
        value = self._loss(logs, y) + self._ridge(x)
        slopes = np.exp(logs)  # of the loss in the logits
        slopes[np.arange(len(y)), y] -= 1
        slopes /= len(y)
        inner = (slopes @ V.T) * (1 - units * units)  # in the hidden units' arguments
        gradient = [A.T @ inner, inner.sum(axis=0), units.T @ slopes, slopes.sum(axis=0)]
        if self.l2:
            gradient = [g + self.l2 * layer for g, layer in zip(gradient, x, strict=True)]
        return value, gradient

    @staticmethod
    def _loss(logs: Array, y: Array) -> float:
        return -float(logs[np.arange(len(y)), y].mean())

    def _ridge(self, x: Model) -> float:
        return 0.5 * self.l2 * sum(float(np.vdot(part, part)) for part in x) if self.l2 else 0.0

    def _layers(self, x: Model) -> Model:
        shapes = [np.shape(part) for part in x]
        if shapes != self.shape:
            raise ConfigError(
                f"{type(self).__name__} takes a list of arrays of shapes {self.shape}, got {shapes}"
            )
        return x


def _log_probabilities(logits: Array) -> Array:
    """Return the logarithms of the classes' probabilities, shape (rows, classes)."""
    logits = logits - logits.max(axis=1, keepdims=True)
    logs: Array = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logs
