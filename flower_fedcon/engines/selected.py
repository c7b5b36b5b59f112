"""The objective of the client object with which a stacked engine serves all clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from flower_fedcon.core.batches import rows_of_gradients
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.core.rng import BATCH, NOISE, stream
from flower_fedcon.objectives.client_axis import Stack, StepTaker, VertexStep, Which
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.objectives.many import representatives
from flower_fedcon.objectives.noisy import noise_of
from flower_fedcon.solvers.served import ServedClients
from flower_fedcon.validation import Array


class Selected(StepTaker):
    """The joint objective of the clients that are being served."""

    def __init__(self, run: RunInfo, objectives: Sequence[Any] = ()) -> None:
        self._seed, self._objectives = run.seed, objectives
        self._batch_size: int | None = run.rows_each
        self._epoch_rows = run.epoch_rows
        self._rows_found: tuple[Any, Any] | None = None
        self._apart = True  # whether clients differ in rows
        noise = [noise_of(objective) for objective in representatives(objectives)]
        self._noise = np.array(noise) if any(noise) else None  # in each client's gradients

    def select(self, stacked: Stack, which: Which, clients: Array, rounds: int | Array) -> None:
        """Choose the clients to serve, in one round or each in its own."""
        self._stack, self._which, self._clients = stacked, which, clients
        self._rounds = rounds
        self._order: Array | None = None
        if self._apart:
            self._rows_found = None
        self._noises: list[np.random.Generator] = []
        self._asked = 0  # batches drawn in this round

    @property
    def served(self) -> ServedClients:
        """The clients' functions, for local solvers."""
        objectives = [self._objectives[client] for client in self._clients.tolist()]
        return ServedClients(self._stack, objectives, self._which)

    @property
    def gradient_rows(self) -> tuple[Any, Any]:
        """The rows of a client's full gradient, and of a minibatch's.

        Numbers if these are equal for all clients, otherwise arrays of shape (n,).
        """
        if self._rows_found is None:
            full, size = self._rows_of_all, self._batch_size
            self._apart = isinstance(full, np.ndarray)
            if self._apart:
                full = self._of_the_served(full)
            fewer = np.minimum if self._apart else min
            self._rows_found = full, full if size is None else fewer(size, full)
        return self._rows_found

    def rows_alike(self) -> int:
        """Return the rows of each served client, if all have the same number."""
        full = self.gradient_rows[0]
        return int(full[0]) if isinstance(full, np.ndarray) else full  # in one stack

    @cached_property
    def _rows_of_all(self) -> Any:
        """The rows of every client of the run; one number if they are equal."""
        rows = [rows_of_gradients(one, None)[0] for one in representatives(self._objectives)]
        return rows[0] if len({*rows}) == 1 else np.array(rows)

    def _of_the_served(self, numbers: Array) -> Any:
        return numbers[self._clients]

    def packed_objective(self, layout: Any) -> Selected:
        """Return itself, since stacks use packed models."""
        return self

    def value(self, x: Array) -> float:
        """Raise: a step that needs values must serve one client at a time."""
        raise NotImplementedError

    def served_values(self, x: Array) -> Array:
        """Return each client's value at one point, or at its own, shape (clients,)."""
        return self.served.value(x)

    def gradient(self, x: Array) -> Array:
        """Return the gradients: full, or of each client's next minibatch."""
        size, stacked = self._batch_size, self._stack
        if size is None or self._all_rows:
            return self._noised(stacked.gradient(x, self._which))
        self._last_rows = self._next_rows(size)
        return self._noised(stacked.batch_gradient(x, self._which, self._last_rows))

    def again(self, x: Array) -> Array:
        """Return the gradients of the last minibatches."""
        if self._all_rows:
            return self._noised(self._stack.gradient(x, self._which))
        return self._noised(self._stack.batch_gradient(x, self._which, self._last_rows))

    def _streams_of(self, purpose: int) -> list[np.random.Generator]:
        """Return each client's own stream of its round."""
        rounds = np.broadcast_to(self._rounds, len(self._clients)).tolist()
        pairs = zip(rounds, self._clients.tolist(), strict=True)
        return [stream(self._seed, purpose, number, client) for number, client in pairs]

    def _noised(self, gradient: Array, scale: float = 1.0) -> Array:
        """Return gradients plus scale times each client's next noise, from its own stream."""
        if self._noise is None:
            return gradient
        if not self._noises:
            self._noises = self._streams_of(NOISE)
        stds = (scale * self._noise[self._clients]).tolist()
        shape, noises = gradient.shape[1:], zip(stds, self._noises, strict=True)
        noise = np.stack([std * rng.standard_normal(shape) for std, rng in noises])
        noised: Array = gradient + noise.astype(gradient.dtype, copy=False)
        return noised

    def full_gradient(self, x: Array) -> Array:
        """Return the gradients over all rows."""
        return self._noised(self._stack.gradient(x, self._which))

    def add_gradient(self, x: Array, out: Array, scale: float) -> None:
        """Add scale times the full gradients to `out` in place."""
        self._stack.add_gradient(x, out, scale, self._which)
        if self._noise is not None:
            out += self._noised(np.zeros_like(out), scale)

    def pulled_gradient(self, x: Array, scale: float, center: Array, pull: float) -> Array:
        """Return scale times the full gradients plus pull * (x - center)."""
        pulled = self._stack.pulled_gradient(x, scale, center, pull, self._which)
        return self._noised(pulled, scale)

    def vertex_step(self, step: VertexStep) -> tuple[Array, Array] | None:
        """Return the vertices and each client's point after the step; None to use parts."""
        if self._noise is not None:
            return None
        return self._stack.vertex_step(step, self._which)

    def gradient_steps(self, steps: LocalPass, next_rows: Any = None) -> Array | None:
        """Return each client's point after its next gradient steps; None to take single steps."""
        if self._noise is not None or not self._stack.takes(steps, self._all_rows):
            return None
        return self._stack.gradient_steps(steps, self._which, self._rows_of(steps))

    def variate_steps(self, steps: LocalPass, next_rows: Any = None) -> tuple[Array, Array] | None:
        """Return the steps' changes and control variates; None to compute them afterwards."""
        if self._noise is not None or not self._stack.takes(steps, self._all_rows):
            return None
        return self._stack.variate_steps(steps, self._which, self._rows_of(steps))

    @property
    def _all_rows(self) -> bool:
        """Whether every gradient uses all rows."""
        return self._batch_size is None or self._batch_size >= self._stack.num_examples

    def _rows_of(self, steps: LocalPass) -> Array | None:
        """Return each client's rows in each step; None for all rows."""
        size = self._batch_size
        if size is None or self._all_rows:
            return None
        return np.stack([self._next_rows(size) for _ in range(steps.steps)], axis=1)

    def _next_rows(self, size: int) -> Array:
        """Return each client's next rows, from its own stream as in every engine."""
        if self._epoch_rows is not None:
            of, m = self._epoch_rows.of, self._stack.num_examples
            k, self._asked = self._asked, self._asked + 1
            clients, number = self._clients.tolist(), int(self._rounds)  # one for all
            return np.stack([of(client, number, k, m, size) for client in clients])
        if self._order is None:
            self._streams = self._streams_of(BATCH)
            self._order, self._used = np.empty((0, 0), np.intp), 0
        if self._order.shape[1] - self._used < size:
            m = self._stack.num_examples
            self._order = np.stack([rng.permutation(m) for rng in self._streams])
            self._used = 0
        rows = self._order[:, self._used : self._used + size]
        self._used += size
        return rows
