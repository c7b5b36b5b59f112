"""A kit of faults: what can become of a reply between a client and the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from harness import Asked

from flower_fedcon.core.protocol import QUERY, Reply


def dense(reply: Reply) -> tuple[str, np.ndarray]:
    """Return the name of an upload's first value, and the value as an array."""
    name, (value,) = next(iter(reply.payload.items()))
    return name, value if isinstance(value, np.ndarray) else np.asarray(value.dense())


def with_value(reply: Reply, change: Callable[[np.ndarray], np.ndarray]) -> Reply:
    name, value = dense(reply)
    return replace(reply, payload={**reply.payload, name: [change(value)]})


def poke(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a change of one entry."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(float).copy()
        array.flat[array.size // 2] = value
        return array

    return change


CORRUPT: dict[str, Callable[[Reply], Reply]] = {
    "NaN": lambda reply: with_value(reply, poke(np.nan)),
    "infinity": lambda reply: with_value(reply, poke(np.inf)),
    "shape": lambda reply: with_value(reply, lambda a: np.zeros((*a.shape, 1))),
    "one entry": lambda reply: with_value(reply, lambda a: np.zeros(1) if a.size > 1 else a[:0]),
    "huge": lambda reply: with_value(reply, lambda a: np.zeros(a.size * 1000)),
    "dtype": lambda reply: with_value(reply, lambda a: a.astype(np.float16)),
    "extra key": lambda reply: replace(reply, payload={**reply.payload, "more": [dense(reply)[1]]}),
    "missing key": lambda reply: replace(reply, payload={}),
    "weight NaN": lambda reply: replace(reply, num_examples=float("nan")),
    "weight 0": lambda reply: replace(reply, num_examples=0),
    "stale": lambda reply: replace(reply, round=reply.round - 1),
    "future": lambda reply: replace(reply, round=reply.round + 1),
    "error": lambda reply: replace(reply, error="the disk is full", payload={}),
}


class Faults:
    """An `alter` for `OpenRun`: loses, delays, doubles and corrupts replies.

    Attributes
    ----------
    counts : Counter
        What was done: "lost", "late", "twice", and each kind of corruption.
    active : bool
        Whether faults happen.
    """

    def __init__(self, seed: int, lost: float, late: float, twice: float, corrupt: float) -> None:
        self._rng = np.random.default_rng(seed)
        self._shares = np.cumsum([lost, late, twice, corrupt])
        self._late: list[Reply] = []
        self.counts: Counter[str] = Counter()
        self.active = True

    def __call__(self, asked: Asked, reply: Reply) -> list[Reply]:
        arrived = self._late  # after their time, and out of order
        self._late = []
        if not self.active or reply.lost or not reply.payload:
            return [*arrived, reply]
        kind = int(np.searchsorted(self._shares, self._rng.random(), side="right"))
        if kind == 0:
            self.counts["lost"] += 1
            return arrived
        if kind == 1:
            self.counts["late"] += 1
            self._late.append(reply)
            return arrived
        if kind == 2:
            self.counts["twice"] += 1
            return [reply, *arrived, reply]
        if kind == 3 and asked.phase != QUERY:
            fault = list(CORRUPT)[self._rng.integers(len(CORRUPT))]
            self.counts[fault] += 1
            return [CORRUPT[fault](reply), *arrived]
        return [*arrived, reply]
