"""Methods whose server holds a second-order model of the objective: FedNewton."""

from __future__ import annotations

import math
from typing import Protocol, TypeVar

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Layout
from flower_fedcon.regularizers import Each, Regularizer
from flower_fedcon.solvers.quadratic_models import (
    QuadraticModel,
    apart,
    convex,
    packed_size,
    taylor,
    unpack,
)
from flower_fedcon.solvers.runaway import runaway
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import Array

_LOOKED_AT = 1000  # entries up to which collinearity is checked
_LARGEST = 2000  # entries of a model: 16 megabytes for each client's upload


class HasModels(Protocol):
    """A state with the mean of the clients' models."""

    @property
    def x(self) -> Array:
        """The global model."""

    @property
    def w(self) -> Array:
        """The last accepted point."""

    @property
    def m(self) -> Array:
        """The mean of the clients' models, packed."""

    @property
    def t(self) -> int:
        """The coming round, from 1."""

    @property
    def first(self) -> Array | None:
        """The m of round 1, if it is kept."""


State = TypeVar("State", bound=HasModels)


class SecondOrder(FedConStrategy[State]):
    """Packed models of the objective as uploads, and what their mean tells about the problem.

    With `Each` the model holds several independent models side by side, and Hessians are block
    diagonal.
    """

    def derive(self) -> None:
        """Refuse models whose Hessians do not fit."""
        shape = self.setup.layout.shape
        size = math.prod(shape[1:] if isinstance(self.regularizer, Each) else shape)
        if size > _LARGEST:
            raise ConfigError(
                f"{self.title} sends Hessians, for models of at most {_LARGEST} entries, got "
                f"{size}: use FedMiD with server_optimizer=Momentum(0.9), server_lr=10, "
                "local_steps=1, server_prox_only=True and client_lr=1/L, the default of an "
                "experiment on tables without [algorithm]; or, for cohorts, CompositeFL"
            )

    def upload_shape(self, name: str, layout: Layout) -> tuple[int, ...]:
        """Return the shape of a packed m_i."""
        return (self.packed_size(layout.shape),)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return the number of entries of a packed m_i."""
        blocks = shape[0] if isinstance(self.regularizer, Each) else 1
        return blocks * packed_size(math.prod(shape) // blocks)

    def apart(self, state: State) -> Array | None:
        """Return the share of each entry that is not a combination of other active entries.

        See `flower_fedcon.solvers.quadratic_models.apart`. None before round 1, for models side by
        side, and above 1000 entries.
        """
        weights, H = self.regularizer.entrywise(state.x.shape), self._hessian(state, state.m)
        return None if H is None or weights is None else apart(H, weights, state.x)

    def runaway(self, state: State, **more: float) -> Array:
        """Return the entries along which the clients' mean objective decreases forever.

        They show that an outcome is separated: see `flower_fedcon.solvers.runaway`. None are found
        under sampling, for models side by side, and above 1000 entries.
        """
        H = self._hessian(state, state.first)
        if H is None:
            return np.empty(0, dtype=np.int64)
        return runaway(H, unpack(state.m, state.x.size), state.w, **more)

    def hessian(self, state: State) -> Array | None:
        """Return the mean of the clients' Hessians at the start, or with cohorts their last ones.

        None before round 1, for models side by side, and above 1000 entries.
        """
        return self._hessian(state, state.m if state.first is None else state.first)

    def _hessian(self, state: State, packed: Array | None) -> Array | None:
        """Return the Hessian of a model that is looked at, if there is one."""
        many = isinstance(self.regularizer, Each) or state.x.size > _LOOKED_AT
        return None if packed is None or state.t == 1 or many else unpack(packed, state.x.size).H

    def convex(self, m: Array, x: Array) -> Array:
        """Return m, with the same value and slope at x, without negative curvature."""
        if isinstance(self.regularizer, Each):
            return m
        model = unpack(m, x.size)
        H = convex(model.H)
        if H is model.H:
            return m
        z = x.reshape(-1).astype(np.float64)
        return taylor(z, model.value(z), model.H @ z - model.b, H).astype(m.dtype, copy=False)

    def blocks(self, m: Array, x: Array) -> list[tuple[QuadraticModel, Regularizer, Array]]:
        """Return m, psi and x, for each of several models side by side."""
        psi = self.regularizer
        if not isinstance(psi, Each):
            return [(unpack(m, x.size), psi, x)]
        parts = zip(m.reshape(len(x), -1), x, strict=True)
        return [(unpack(part, row.size), psi.inner, row) for part, row in parts]
