"""Train loops on NumPy arrays, or on anything that NumPy converts to arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.training.local_round import LocalTraining, LoopCorrection
from flower_fedcon.validation import Array


class ArrayTraining(LocalTraining):
    """The `method` for a train loop on arrays, in which a model is a list of arrays, its layers.

    Examples
    --------
    The loop of a method that corrects gradients (FedProx, Scaffold, FedDyn, FedAvg), and of one
    that takes its own steps (FedMiD, FedDualAvg, FastFedDA, CompositeFL):

    >>> def proximal(method, model, gradients, lr):
    ...     correction = method.begin(model)
    ...     for gradient in gradients:
    ...         steps = correction.apply_gradients(model, gradient(model))
    ...         model = [x - lr * g for x, g in zip(model, steps)]
    ...     return model
    >>> def dual(method, model, gradients, lr):
    ...     optimizer = method.optimizer(model, lr)
    ...     for gradient in gradients:
    ...         model = optimizer.step(gradient(model))
    ...     return model
    """

    def begin(self, model: Sequence[Array]) -> ArrayCorrection:
        """Return an object that corrects the gradients of a loop.

        Parameters
        ----------
        model : list of arrays
            The model, as sent by the server.

        Raises
        ------
        ConfigError
            If the model is a different one, or the method does not correct gradients.
        """
        self._check(model)
        return ArrayCorrection(self)

    def optimizer(self, model: Sequence[Array], lr: float | None = None) -> ArraySteps:
        """Return an object that takes the method's own steps.

        Parameters
        ----------
        model : list of arrays
            The model, as sent by the server.
        lr : float, optional
            The strategy's `client_lr`.

        Raises
        ------
        ConfigError
            If the model or `lr` differs from these, or the method does not have its own steps.
        """
        self.check_optimizer(lr)
        self._check(model)
        return ArraySteps(self)

    def _check(self, model: Sequence[Array]) -> None:
        start = self.start
        same = len(model) == len(start) and all(map(np.array_equal, model, start))
        if not same:
            raise ConfigError(f"{self.name}: {NOT_LOADED}")


NOT_LOADED = (
    "the train function's model is not the one that the server sent: load the message's arrays "
    "into it before the loop, and begin there"
)


class ArrayCorrection(LoopCorrection):
    """The terms that a method adds to the gradients of a loop on arrays."""

    def __init__(self, training: LocalTraining) -> None:
        super().__init__(training, lambda array, i: array, np.asarray)

    def apply_gradients(self, model: Sequence[Array], gradients: Sequence[Array]) -> list[Array]:
        """Return the gradients at a model with the method's terms added."""
        return self.corrected(gradients, model)


class ArraySteps:
    """The steps of a method, instead of an optimizer's."""

    def __init__(self, training: LocalTraining) -> None:
        self._training = training

    def step(self, gradients: Sequence[Array]) -> list[Array]:
        """Take a step with the gradients at the last model; return the next model."""
        return self._training.advance(gradients)
