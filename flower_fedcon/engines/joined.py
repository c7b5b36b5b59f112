"""Stacks of objectives that differ in type or rows, joined into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from flower_fedcon.errors import AlgorithmError
from flower_fedcon.objectives.client_axis import Stack, Which
from flower_fedcon.validation import Array


class Joined(Stack):
    """Several stacks as one; every call serves all clients.

    Parameters
    ----------
    stacks : sequence of (Stack, array of int)
        Each stack with the numbers of its clients.
    """

    def __init__(self, stacks: Sequence[tuple[Stack, Array]]) -> None:
        self.stacks = tuple(part for part, _ in stacks)
        self._clients = tuple(clients for _, clients in stacks)
        self.order = np.argsort(np.concatenate(self._clients))
        self.shape = self.stacks[0].shape
        self.num_examples = max(part.num_examples for part in self.stacks)

    @property
    def parts(self) -> list[tuple[Stack, Array]]:
        """The stacks with the numbers of their clients; `order` sorts these."""
        return [*zip(self.stacks, self._clients, strict=True)]

    def gradient(self, x: Array, which: Which) -> Array:
        """Return the gradients of all clients."""
        return self._each(lambda part, clients, own: part.gradient(own, _all(clients)), x)

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows; over all rows of a client that has no others."""

        def gradient(part: Stack, clients: Array, own: Array) -> Array:
            if rows.shape[1] >= part.num_examples:
                return part.gradient(own, _all(clients))
            return part.batch_gradient(own, _all(clients), rows[clients])

        return self._each(gradient, x)

    def values(self, x: Array) -> Array:
        """Return the value of each client at one point."""
        return np.concatenate([part.values(x) for part in self.stacks])[self.order]

    def own_values(self, x: Array) -> Array:
        """Return the value of each client at its own point."""
        return self._each(lambda part, clients, own: part.own_values(own), x)

    def hessian_products(self, x: Array) -> Callable[[Array], Array] | None:
        """Return the map x -> H x of the Hessians, if every stack has one."""
        products: dict[Stack, Any] = {
            part: part.hessian_products(x[clients]) for part, clients in self.parts
        }
        if None in products.values():
            return None
        return lambda v: self._each(lambda part, _, own: products[part](own), v)

    def only(self, which: Which) -> Self:
        """Raise, since every call serves all clients."""
        raise AlgorithmError("stacks that were joined serve all their clients")

    def _each(self, call: Callable[[Stack, Array, Array], Array], x: Array) -> Array:
        """Return results for each stack's clients, at their points, in client order."""
        one = x.ndim == len(self.shape)
        each = [call(part, clients, x if one else x[clients]) for part, clients in self.parts]
        return np.concatenate(each)[self.order]


def _all(clients: Array) -> slice:
    return slice(0, len(clients))
