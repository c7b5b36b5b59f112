"""Noise for prefix sums: what is released of each round is made for the sum of all rounds so far.

A server whose state is x_0 + sum_t G_t (G_t: the clipped sum of round t) needs the prefix sums
S_t = G_1 + ... + G_t, not the G_t. With a lower triangular encoder C the release is

    y = C G + z,   z discrete Gaussian noise, independent in all entries,

and all else follows from y: with S = A G, A the lower triangle of ones, the estimate is
A G + B z with B = A C^-1, and a round's noisy sum, which the strategy gets, the difference of two
estimates. Noise in y is made for how far one client moves C G over the whole run,

    max over the rounds P in which it may take part of || sum_{t in P} c_t u_t ||,  |u_t| <= clip,

c_t the columns of C. Columns that a client can have part in are orthogonal here, so that this is
sqrt(max_P sum_{t in P} ||c_t||^2) whatever the u_t; with everyone in each round of a tree, C >= 0
makes it ||C 1||. Rounds may depend on the releases before them, since C is lower triangular
(Denisov, McMahan, Rush, Smith, Thakurta, "Improved Differential Privacy for SGD via Optimal
Private Linear Operators on Adaptive Streams", NeurIPS 2022, Theorem 2.1).

C has whole numbers times 2^-bits as entries, G are whole steps, and so are C G and y.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np
from scipy import optimize, signal, special

from flower_fedcon.validation import Array

_BITS = 10  # of the coefficients of a band, behind the point
_LONGEST = 1024  # rounds of a tree in which everyone takes part
Noise = Callable[[int], Array]


class Encoder(ABC):
    """C of a run: what is released of each round's sum and those before.

    Parameters
    ----------
    separation : int
        b: a client that takes part in round t takes part in t + b next, or later.
    """

    bits: ClassVar[int] = 0
    """Entries of C are whole multiples of 2^-bits."""

    def __init__(self, separation: int) -> None:
        self.separation = separation

    @abstractmethod
    def squares(self, rounds: int) -> Array:
        """Return the squared norms of the columns of C after so many rounds."""

    def sensitivity(self, rounds: int) -> float:
        """Return the square of how far one client moves C G in so many rounds, by the clip.

        The most that separate rounds have together, by dynamic programming.
        """
        best = [0.0]
        for t, square in enumerate(self.squares(rounds).tolist(), start=1):
            best.append(max(best[-1], square + best[max(0, t - self.separation)]))
        return best[-1]

    @abstractmethod
    def releases(self, rounds: int) -> int:
        """Return how many rows C has after so many rounds."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """How many rounds' sums one release is the sum of, at most."""

    @abstractmethod
    def begin(self) -> dict[str, Any]:
        """Return what is remembered before the first round, as a checkpoint holds it."""

    @abstractmethod
    def release(
        self, memory: dict[str, Any], total: Array, noise: Noise
    ) -> tuple[Array, dict[str, Any]]:
        """Return a round's noisy sum, in steps of y, and what is remembered then.

        Parameters
        ----------
        memory : dict
            Not changed in place. It holds earlier rounds' sums without noise.
        total : array of int64, shape (d,)
            The round's sum, in steps of G: 2^bits of those of y.
        noise : callable
            Returns discrete Gaussian noise for so many entries, in steps of y.
        """


class Banded(Encoder):
    """C with the same b coefficients in each column: c_0 on the diagonal, c_1 below it, and so on.

    Columns b or more apart are orthogonal. Of one coefficient it is independent noise.

    Parameters
    ----------
    separation : int
        At least b.
    coefficients : sequence of int
        c_0 >= 1, c_1, ..., times 2^bits.

    Examples
    --------
    >>> halves = Banded(2, [2**Banded.bits, 2 ** (Banded.bits - 1)])  # C = 1, 1/2 below
    >>> halves.squares(3), halves.sensitivity(3)
    (array([1.25, 1.25, 1.  ]), 2.25)
    """

    bits = _BITS

    def __init__(self, separation: int, coefficients: Any) -> None:
        super().__init__(separation)
        self.coefficients = [int(c) for c in coefficients]
        self._c = np.array(self.coefficients) / 2.0**self.bits
        self._squares = np.cumsum(self._c**2)

    def squares(self, rounds: int) -> Array:
        """Return the squared norms of the columns of C after so many rounds."""
        below = np.minimum(np.arange(rounds, 0, -1), len(self._c)) - 1
        found: Array = self._squares[below]
        return found

    def releases(self, rounds: int) -> int:
        """Return how many rows C has after so many rounds."""
        return rounds

    @property
    def longest(self) -> int:
        """How many rounds' sums one release is the sum of, at most."""
        total: int = sum(map(abs, self.coefficients))
        return (total >> self.bits) + 1

    def begin(self) -> dict[str, Any]:
        """Return what is remembered before the first round."""
        return {"sums": [], "estimates": []}  # of the last rounds, the newest first

    def release(
        self, memory: dict[str, Any], total: Array, noise: Noise
    ) -> tuple[Array, dict[str, Any]]:
        """Return a round's noisy sum: (C^-1 y)_t, from the estimates before."""
        first, *others = self.coefficients
        y = first * total + noise(len(total))
        for c, earlier in zip(others, memory["sums"], strict=False):
            y += c * earlier
        estimate = y.astype(np.float64)
        for c, earlier in zip(self._c[1:].tolist(), memory["estimates"], strict=False):
            estimate -= c * earlier
        estimate /= float(self._c[0])
        kept = len(others)
        return estimate, {
            "sums": [total, *memory["sums"]][:kept],
            "estimates": [estimate, *memory["estimates"]][:kept],
        }


class Tree(Encoder):
    """Binary tree aggregation: one release for each complete subtree of the rounds.

    A tree is of `rounds` rounds; then the next begins (Kairouz, McMahan, Song, Thakkar, Thakurta,
    Xu, "Practical and Private (Deep) Learning without Sampling or Shuffling", ICML 2021). If that
    is no power of two, a tree is completed by rounds of nothing: what is new is its root, one more
    release, which is counted. Of a subtree that is released itself and by its halves, the best
    linear estimate is used (Honaker, "Efficient Use of Differentially Private Binary Trees", 2015).

    Parameters
    ----------
    separation : int
    rounds : int
        At most the separation, unless that is 1: a client is then once in each tree.

    Examples
    --------
    >>> tree = Tree(3, 3)  # leaves 1, 2 and 3, [1, 2], and the root
    >>> tree.squares(2), tree.squares(3), tree.releases(3), tree.sensitivity(6)
    (array([2., 2.]), array([3., 3., 2.]), 5, 6.0)
    """

    def __init__(self, separation: int, rounds: int) -> None:
        super().__init__(separation)
        self.rounds = rounds

    def squares(self, rounds: int) -> Array:
        """Return the squared norms of the columns of C after so many rounds."""
        found: Array = np.concatenate([*map(self._in_one, self._trees(rounds)), np.zeros(0)])
        return found

    def sensitivity(self, rounds: int) -> float:
        """Return the square of how far one client moves C G in so many rounds, by the clip."""
        if self.separation > 1:
            return super().sensitivity(rounds)
        return float(sum(size**2 for t in self._trees(rounds) for size in self._sizes(t)))

    def releases(self, rounds: int) -> int:
        """Return how many rows C has after so many rounds."""
        return sum(len(self._sizes(t)) for t in self._trees(rounds))

    @property
    def longest(self) -> int:
        """How many rounds' sums one release is the sum of, at most."""
        return self.rounds

    def begin(self) -> dict[str, Any]:
        """Return what is remembered before the first round."""
        return {"round": 0, "nodes": [], "prefix": 0.0}

    def release(
        self, memory: dict[str, Any], total: Array, noise: Noise
    ) -> tuple[Array, dict[str, Any]]:
        """Return a round's noisy sum: the difference of two estimates of the tree's sum."""
        t, nodes = memory["round"] + 1, [*memory["nodes"]]
        y = (total + noise(len(total))).astype(np.float64)
        node = {"height": 0, "sum": total, "estimate": y, "variance": 1.0}
        while nodes and nodes[-1]["height"] == node["height"]:
            node = _joined([nodes.pop(), node], noise)
        nodes.append(node)
        if t == self.rounds and len(nodes) > 1:
            nodes = [_joined(nodes, noise)]
        prefix = np.sum([node["estimate"] for node in nodes], axis=0)
        after = {"round": t, "nodes": nodes, "prefix": prefix}
        return prefix - memory["prefix"], self.begin() if t == self.rounds else after

    def _trees(self, rounds: int) -> list[int]:
        """Return how many rounds each tree has."""
        whole, rest = divmod(rounds, self.rounds)
        return [self.rounds] * whole + ([rest] if rest else [])

    def _sizes(self, rounds: int) -> list[int]:
        """Return the sizes of the subtrees that are released in so many rounds of a tree."""
        found = [2**h for h in range(rounds.bit_length()) for _ in range(rounds >> h)]
        return [*found, rounds] if rounds == self.rounds and self._odd else found

    def _in_one(self, rounds: int) -> Array:
        t = np.arange(rounds)
        found = np.zeros(rounds)
        for h in range(rounds.bit_length()):
            found += (t >> h) < (rounds >> h)
        return found + (rounds == self.rounds and self._odd)

    @property
    def _odd(self) -> bool:
        """Whether the root is none of the subtrees."""
        return self.rounds.bit_count() > 1


def _joined(parts: list[dict[str, Any]], noise: Noise) -> dict[str, Any]:
    """Return the release of what parts are together, and the best estimate of it and them."""
    total = np.sum([part["sum"] for part in parts], axis=0)
    y = (total + noise(len(total))).astype(np.float64)
    below = sum(part["variance"] for part in parts)
    estimate = np.sum([part["estimate"] for part in parts], axis=0)
    return {
        "height": parts[0]["height"] + 1,
        "sum": total,
        "estimate": (below * y + estimate) / (below + 1.0),
        "variance": below / (below + 1.0),
    }


def encoder(
    mechanism: str, separation: int, rounds: int, bands: int | None, restart: int | None
) -> Encoder:
    """Return C of a mechanism.

    Parameters
    ----------
    mechanism : {"independent", "tree", "banded"}
    separation : int
    rounds : int
        For how many the coefficients of a band are best.
    bands, restart : int, optional
        By default the separation; of a tree with everyone in each round 1,024.
    """
    if mechanism == "tree":
        return Tree(separation, restart or (separation if separation > 1 else _LONGEST))
    b = 1 if mechanism == "independent" else min(bands or separation, rounds)
    return Banded(separation, _best(b, separation, max(rounds, 1)))


@cache
def _best(bands: int, separation: int, rounds: int) -> tuple[int, ...]:
    """Return coefficients by which the prefix sums have the least mean squared error.

    Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu, "(Amplified) Banded Matrix
    Factorization: A unified approach to private training", NeurIPS 2023, with equal columns
    (McMahan, Xiao, Thakurta, "A Hassle-free Algorithm for Private Learning in Practice", 2024):
    B = A C^-1 has the coefficients of 1/((1 - x) c(x)), and C those of c(x). The start is the best
    without a band, c(x) = 1/sqrt(1 - x), cut off.
    """
    left = np.arange(rounds, 0, -1)  # in how many prefix sums the noise of a round is
    # How often a client's columns have a coefficient at all: the last ones are cut off.
    starts = np.arange(0, rounds, separation)
    counted = (rounds - starts[:, None] > np.arange(bands)).sum(axis=0)
    step = np.zeros(rounds)
    step[0] = 1.0

    def loss(free: Array) -> tuple[float, Array]:
        c = np.concatenate([[1.0], free])
        series = signal.lfilter([1.0], c, step)
        beta = np.cumsum(series)
        weighed = left * beta
        error, cost = float(weighed @ beta), float(counted @ c**2)
        gamma = signal.lfilter([1.0], c, beta)
        down = np.array([weighed[j:] @ gamma[: rounds - j] for j in range(1, bands)])
        slope = 2 * counted[1:] * free / cost - 2 * down / error
        return math.log(error) + math.log(cost), slope

    c = np.ones(1)
    if bands > 1:
        j = np.arange(1, bands)
        start = np.exp(special.gammaln(j + 0.5) - special.gammaln(j + 1)) / math.sqrt(math.pi)
        found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B")
        c = np.concatenate([[1.0], found.x])
    whole = np.rint(c / np.linalg.norm(c) * 2.0**_BITS).astype(int)
    return tuple(whole.tolist())
