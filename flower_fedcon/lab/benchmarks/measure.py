"""The lines of benchmarks, and the measurement of their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Work = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes
    ----------
    what : str
    yardstick : str
        The reference that it is compared with.
    ratio : float
        Median over turns of cost divided by the yardstick's cost.
    low, high : float
        Quartiles of the ratios.
    cost : float
        Median, in `unit`.
    unit : str
    target : str
        The target of the ratio, or "".
    axis, at, series : str, float, str
        For a point of a curve: the varied quantity, its value, and the curve's name; otherwise
        empty.
    """

    what: str
    yardstick: str
    ratio: float
    low: float
    high: float
    cost: float
    unit: str
    target: str = ""
    axis: str = ""
    at: float = 0.0
    series: str = ""

    @property
    def judged(self) -> str:
        """The target, and whether the ratio misses it by more than the last digit shown."""
        sign, _, most = self.target.partition(" ")
        shown = float(f"{self.ratio:.3g}")
        missed = sign and (shown > float(most) or (sign == "<" and shown == float(most)))
        return f"{self.target}, missed" if missed else self.target


def in_turn(
    works: Mapping[str, Work], turns: int, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of each task in each turn, after one warm-up turn.

    Each task follows every other about equally often, since the task before affects its time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    orders = _orders(list(works))
    for turn in range(turns + 1):
        for name in orders[(turn - 1) % len(orders)] if turn else works:
            began = clock()
            works[name]()
            if turn:
                seconds[name].append(clock() - began)
    return seconds


def _orders(names: list[str]) -> list[list[str]]:
    """Return a Williams design: orders in which each name follows every other equally often.

    >>> _orders(["a", "b", "c"])[:3]
    [['a', 'c', 'b'], ['b', 'a', 'c'], ['c', 'b', 'a']]
    """
    n = len(names)
    zigzag = [(i // 2 if i % 2 == 0 else -(i + 1) // 2) % n for i in range(n)]
    orders = [[names[(i + turn) % n] for i in zigzag] for turn in range(n)]
    return orders if n % 2 == 0 else orders + [order[::-1] for order in orders]


def ratio(
    what: str,
    yardstick: str,
    costs: list[float],
    base: list[float],
    *,
    steps: float = 1,
    unit: str = "us a client step",
    target: str = "",
) -> Result:
    """Return the ratios of costs to the yardstick's costs, turn by turn, as one line."""
    ratios = [cost / other for cost, other in zip(costs, base, strict=True)]
    low, middle, high = _quartiles(ratios)
    cost = statistics.median(costs) / steps * (1e6 if unit.startswith("us") else 1)
    return Result(what, yardstick, middle, low, high, cost, unit, target)


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
