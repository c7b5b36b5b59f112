"""Noise for prefix sums: each round's release is designed for the sum of all rounds so far.

A server whose state is x_0 + sum_t G_t (G_t: the clipped sum of round t) needs the prefix sums
S_t = G_1 + ... + G_t, not the G_t. With a lower triangular encoder C the release is

    y = C G + z,   z discrete Gaussian noise, independent in all entries,

and everything else follows from y. With S = A G, where A is the lower triangle of ones, the
estimate is A G + B z with B = A C^-1, and a round's noisy sum, which the strategy gets, is the
difference of two estimates. The noise in y is scaled to the largest change of C G by one client
over the whole run,

    max over the sets P of its possible rounds of || sum_{t in P} c_t u_t ||,  |u_t| <= clip,

with c_t the columns of C. The columns of the rounds in which one client can take part are
orthogonal here, so this is sqrt(max_P sum_{t in P} ||c_t||^2) for any u_t. If everyone takes part
in each round of a tree, it is ||C 1||, since C >= 0. Rounds may depend on earlier releases, since C
is lower triangular (Denisov, McMahan, Rush, Smith, Thakurta, "Improved Differential Privacy for SGD
via Optimal Private Linear Operators on Adaptive Streams", NeurIPS 2022, Theorem 2.1).

The entries of C are whole multiples of 2^-bits. G is in whole steps, and so are C G and y.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np

from flower_fedcon.validation import Array

_BITS = 10  # of a band's coefficients, after the binary point
_LONGEST = 1024  # rounds of a tree if everyone takes part
Noise = Callable[[int], Array]


class Encoder(ABC):
    """C of a run: each release is a combination of the sums of rounds so far.

    Parameters
    ----------
    separation : int
        b: a client that takes part in round t takes part again in t + b at the earliest.
    """

    bits: ClassVar[int] = 0
    """Entries of C are whole multiples of 2^-bits."""

    def __init__(self, separation: int) -> None:
        self.separation = separation

    @abstractmethod
    def squares(self, rounds: int) -> Array:
        """Return the squared norms of the columns of C after so many rounds."""

    def sensitivity(self, rounds: int) -> float:
        """Return the squared largest change of C G by one client, divided by the clip's square.

        It is the largest sum of squares over rounds that are b apart, by dynamic programming.
        """
        best = [0.0]
        for t, square in enumerate(self.squares(rounds).tolist(), start=1):
            best.append(max(best[-1], square + best[max(0, t - self.separation)]))
        return best[-1]

    @abstractmethod
    def releases(self, rounds: int) -> int:
        """Return the number of rows of C after so many rounds."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """The largest number of rounds in one release."""

    @abstractmethod
    def begin(self) -> dict[str, Any]:
        """Return the memory before the first round, in the form of a checkpoint."""

    @abstractmethod
    def release(
        self, memory: dict[str, Any], total: Array, noise: Noise
    ) -> tuple[Array, dict[str, Any]]:
        """Return a round's noisy sum, in steps of y, and the new memory.

        Parameters
        ----------
        memory : dict
            The memory, which is not changed in place. It holds earlier rounds' sums without noise.
        total : array of int64, shape (d,)
            The round's sum, in steps of G, which are 2^bits steps of y.
        noise : callable
            Returns discrete Gaussian noise for a number of entries, in steps of y.
        """


class Banded(Encoder):
    """C with the same b coefficients in each column: c_0 on the diagonal, c_1 below it, and so on.

    Columns b or more apart are orthogonal. With one coefficient the noise is independent.

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
        norms: Array = self._squares[below]
        return norms

    def releases(self, rounds: int) -> int:
        """Return the number of rows of C after so many rounds."""
        return rounds

    @property
    def longest(self) -> int:
        """The largest number of rounds in one release."""
        total: int = sum(map(abs, self.coefficients))
        return (total >> self.bits) + 1

    def begin(self) -> dict[str, Any]:
        """Return the memory before the first round."""
        return {"sums": [], "estimates": []}  # for the last rounds, newest first

    def release(
        self, memory: dict[str, Any], total: Array, noise: Noise
    ) -> tuple[Array, dict[str, Any]]:
        """Return a round's noisy sum (C^-1 y)_t, from the earlier estimates."""
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

    A tree has `rounds` rounds; then the next one begins (Kairouz, McMahan, Song, Thakkar, Thakurta,
    Xu, "Practical and Private (Deep) Learning without Sampling or Shuffling", ICML 2021). If this
    is not a power of two, a tree is completed by empty rounds; its root is then one more release,
    which is counted. If a subtree is released both as a whole and by its halves, the best linear
    estimate is used (Honaker, "Efficient Use of Differentially Private Binary Trees", 2015).

    Parameters
    ----------
    separation : int
    rounds : int
        At most the separation, so that a client is in each tree at most once; any number if the
        separation is 1.

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
        norms: Array = np.concatenate([*map(self._in_one, self._trees(rounds)), np.zeros(0)])
        return norms

    def sensitivity(self, rounds: int) -> float:
        """Return the squared largest change of C G by one client, divided by the clip's square."""
        if self.separation > 1:
            return super().sensitivity(rounds)
        return float(sum(size**2 for t in self._trees(rounds) for size in self._sizes(t)))

    def releases(self, rounds: int) -> int:
        """Return the number of rows of C after so many rounds."""
        return sum(len(self._sizes(t)) for t in self._trees(rounds))

    @property
    def longest(self) -> int:
        """The largest number of rounds in one release."""
        return self.rounds

    def begin(self) -> dict[str, Any]:
        """Return the memory before the first round."""
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
        """Return the number of rounds in each tree."""
        whole, rest = divmod(rounds, self.rounds)
        return [self.rounds] * whole + ([rest] if rest else [])

    def _sizes(self, rounds: int) -> list[int]:
        """Return the sizes of the subtrees that are released in a tree's first rounds."""
        sizes = [2**h for h in range(rounds.bit_length()) for _ in range(rounds >> h)]
        return [*sizes, rounds] if rounds == self.rounds and self._odd else sizes

    def _in_one(self, rounds: int) -> Array:
        t = np.arange(rounds)
        counts = np.zeros(rounds)
        for h in range(rounds.bit_length()):
            counts += (t >> h) < (rounds >> h)
        return counts + (rounds == self.rounds and self._odd)

    @property
    def _odd(self) -> bool:
        """Whether the root is not one of the subtrees."""
        return self.rounds.bit_count() > 1


def _joined(parts: list[dict[str, Any]], noise: Noise) -> dict[str, Any]:
    """Return the release of two joined parts, and the best estimate from it and them."""
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
        The number of rounds for which a band's coefficients are optimal.
    bands, restart : int, optional
        By default the separation; 1,024 for a tree with everyone in each round.
    """
    if mechanism == "tree":
        return Tree(separation, restart or (separation if separation > 1 else _LONGEST))
    b = 1 if mechanism == "independent" else min(bands or separation, rounds)
    return Banded(separation, _best(b, separation, max(rounds, 1)))


@cache
def _best(bands: int, separation: int, rounds: int) -> tuple[int, ...]:
    """Return the coefficients with the least mean squared error of the prefix sums.

    Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu, "(Amplified) Banded Matrix
    Factorization: A unified approach to private training", NeurIPS 2023, with equal columns
    (McMahan, Xiao, Thakurta, "A Hassle-free Algorithm for Private Learning in Practice", 2024):
    B = A C^-1 has the coefficients of 1/((1 - x) c(x)), and C those of c(x). The search starts at
    the optimum without a band, c(x) = 1/sqrt(1 - x), truncated.
    """
    from scipy import optimize, signal, special  # which every import of a strategy would pay for

    left = np.arange(rounds, 0, -1)  # the number of prefix sums with a round's noise
    # How often each coefficient occurs in a client's columns: the last columns are cut off.
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
        optimum = optimize.minimize(loss, start, jac=True, method="L-BFGS-B")
        c = np.concatenate([[1.0], optimum.x])
    whole = np.rint(c / np.linalg.norm(c) * 2.0**_BITS).astype(int)
    return tuple(whole.tolist())
