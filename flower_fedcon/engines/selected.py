"""The objective that a stacked engine's one client object takes its gradients of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.core.rng import BATCH, stream
from flower_fedcon.objectives.client_axis import Stack, StepTaker, VertexStep, Which
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.solvers.served import ServedClients
from flower_fedcon.validation import Array


class Selected(StepTaker):
    """The objective of the clients that are being served."""

    def __init__(self, run: RunInfo, objectives: Sequence[Any] = ()) -> None:
        self._seed, self._objectives = run.seed, objectives
        self._batch_size: int | None = run.settings.get("batch_size")

    def select(self, stacked: Stack, which: Which, clients: Array, server_round: int) -> None:
        """Choose the clients to serve."""
        self._stack, self._which, self._clients = stacked, which, clients
        self._round = server_round
        self._order: Array | None = None

    @property
    def served(self) -> ServedClients:
        """The clients' functions, as local solvers take them."""
        own = [self._objectives[client] for client in self._clients.tolist()]
        return ServedClients(self._stack, own, self._which)

    def packed_objective(self, layout: Any) -> Selected:
        """Return itself: stacks are of packed models."""
        return self

    def value(self, x: Array) -> float:
        """Raise: a step that needs values serves one client at a time."""
        raise NotImplementedError

    def gradient(self, x: Array) -> Array:
        """Return the gradients: full, or of each client's next minibatch."""
        size, stacked = self._batch_size, self._stack
        if size is None or self._all_rows:
            return stacked.gradient(x, self._which)
        return stacked.batch_gradient(x, self._which, self._next_rows(size))

    def add_gradient(self, x: Array, out: Array, scale: float) -> None:
        """Add scale times the full gradients to `out` in place."""
        self._stack.add_gradient(x, out, scale, self._which)

    def pulled_gradient(self, x: Array, scale: float, center: Array, pull: float) -> Array:
        """Return scale times the full gradients plus pull * (x - center)."""
        return self._stack.pulled_gradient(x, scale, center, pull, self._which)

    def vertex_step(self, step: VertexStep) -> tuple[Array, Array] | None:
        """Return the vertices and where each client's step leads; None to take it in parts."""
        return self._stack.vertex_step(step, self._which)

    def gradient_steps(self, steps: LocalPass, next_rows: Any = None) -> Array | None:
        """Return where each client's next gradient steps lead; None to take them one by one."""
        if not self._stack.takes(steps, self._all_rows):
            return None
        return self._stack.gradient_steps(steps, self._which, self._rows_of(steps))

    def variate_steps(self, steps: LocalPass, next_rows: Any = None) -> tuple[Array, Array] | None:
        """Return how far these lead, and control variates; None to find them after the steps."""
        if not self._stack.takes(steps, self._all_rows):
            return None
        return self._stack.variate_steps(steps, self._which, self._rows_of(steps))

    @property
    def _all_rows(self) -> bool:
        """Whether every gradient is of all rows."""
        return self._batch_size is None or self._batch_size >= self._stack.num_examples

    def _rows_of(self, steps: LocalPass) -> Array | None:
        """Return each client's rows in each step; None where all count."""
        size = self._batch_size
        if size is None or self._all_rows:
            return None
        return np.stack([self._next_rows(size) for _ in range(steps.steps)], axis=1)

    def _next_rows(self, size: int) -> Array:
        """Return each client's next rows, drawn from its own stream as in every engine."""
        if self._order is None:
            clients = self._clients.tolist()
            self._streams = [stream(self._seed, BATCH, self._round, c) for c in clients]
            self._order, self._used = np.empty((0, 0), np.intp), 0
        if self._order.shape[1] - self._used < size:
            m = self._stack.num_examples
            self._order = np.stack([rng.permutation(m) for rng in self._streams])
            self._used = 0
        rows = self._order[:, self._used : self._used + size]
        self._used += size
        return rows
