"""Claims about how a number grows with a parameter of the problem, the run or an algorithm.

A claims file's table ``[sweep]`` varies one parameter, or several together:

    [sweep]
    "problem.condition" = [10, 100, 1000]     # the first one is what slopes refer to
    "run.rounds" = [100, 300, 1000]           # goes along with it

and every algorithm is run at each of its places. A claim with the measure "scaling" fits a power to
its measurements there; any other claim is judged at every place, or at those in ``at = [10, 100]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.toml import write_value
from flower_fedcon.runs.toml_schema import Table, check_type
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from collections.abc import Iterator

Reader: TypeAlias = Callable[[str], Sequence[Record]]
"""Label -> rows."""
Places: TypeAlias = Sequence[tuple[float, Reader]]
"""The values of a sweep, each with the runs there."""


class Sweep(NamedTuple):
    """A checked table ``[sweep]``.

    >>> sweep = Sweep.of({"problem.clients": [2, 4], "run.rounds": [10, 20]})
    >>> sweep.values, sweep.overrides(1)
    ([2.0, 4.0], ['problem.clients=4', 'run.rounds=20'])
    """

    name: str
    table: Table

    @classmethod
    def of(cls, table: Table) -> Sweep:
        """Check a table; `{}` means no sweep, with one place.

        Raises
        ------
        ConfigError
            If the lists differ in length, or the first list is not of increasing numbers.
        """
        lists = list(table.values())
        for key, values in table.items():
            check_type(key, values, list)
            if len(values) != len(lists[0]) or not values:
                raise ConfigError(
                    f"{key} has {len(values)} values and {next(iter(table))} {len(lists[0])}: keys "
                    f"that vary together need as many values"
                )
        if table:
            for value in lists[0]:
                check_type(next(iter(table)), value, float)
            if sorted(set(lists[0])) != lists[0]:
                raise ConfigError(f"{next(iter(table))} must hold increasing numbers")
        return cls(next(iter(table), ""), table)

    @property
    def values(self) -> list[float]:
        """Return the values of the first parameter."""
        return [float(value) for value in self.table.get(self.name, [])]

    def overrides(self, place: int) -> list[str]:
        """Return the overrides that set the parameters."""
        return [f"{key}={write_value(values[place])}" for key, values in self.table.items()]

    def places(self, seed: int, chosen: Sequence[float] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rest of each run's key after its label: the seed and the value in a sweep."""
        if not self.table:
            yield (seed,)
        for value in self.values:
            if not chosen or value in chosen:
                yield (seed, value)


class Scaling(NamedTuple):
    """The data of a fit for a claim with the measure "scaling"."""

    label: str  # the algorithm's
    abscissa: str
    ordinate: str
    x: Array  # shape (places,)
    y: list[Array]  # for each seed, shape (places,)
    of_mean: bool  # whether the fit uses the mean over the seeds

    @classmethod
    def of(cls, claim: Table, sweep: Sweep, x: Array, y: list[Array]) -> Scaling:
        """Name the axes of a claim."""
        power, column = claim.get("power", 1.0), claim["column"].replace("_", " ")
        abscissa = sweep.name.rpartition(".")[-1].replace("_", " ")
        if power != 1:
            abscissa = f"sqrt({abscissa})" if power == 0.5 else f"{abscissa}^{power:g}"
        if "level" in claim:
            level = as_list(claim["level"])
            ordinate = f"rounds to {column} {level[0]:g}" + (" ..." if len(level) > 1 else "")
        else:
            ordinate = f"least {column}" if claim.get("take") == "least" else column
        return cls(claim["algorithm"], abscissa, ordinate, x, y, bool(claim.get("of_mean")))


def as_list(value: Any) -> list[Any]:
    """Return one value, or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def quantities(claim: Table, places: Places, column: Callable[..., Any]) -> tuple[Array, Array]:
    """Return abscissas and the measurements of a claim with the measure "scaling".

    Keys: `column`; `level`, for the first round in which it is at or below that (one number, or one
    for each place; inf if it never is); `take`, "last"
    (the default) or "least" of the recorded values; `power`, of the abscissa. With `of_mean` the
    fit uses the mean over the seeds, otherwise each seed has a fit.

    Raises
    ------
    ConfigError
        If there are fewer than two places, or `level` does not have one number for each.
    """
    measured = []
    levels = as_list(claim.get("level", 0.0))
    levels = levels * len(places) if len(levels) == 1 else levels
    if len(levels) != len(places):
        raise ConfigError(f"level has {len(levels)} numbers for {len(places)} places of the sweep")
    for (_, rows), level in zip(places, levels, strict=True):
        history = rows(claim["algorithm"])
        series = column(history, claim["column"])
        if "level" in claim:
            reached = np.flatnonzero(series <= level)
            measured.append(float(history[reached[0]]["round"]) if reached.size else math.inf)
        else:
            measured.append(float(series.min() if claim.get("take") == "least" else series[-1]))
    if len(measured) < 2:
        raise ConfigError("a scaling needs a table [sweep] with at least two places")
    return np.array([value for value, _ in places]) ** claim.get("power", 1.0), np.array(measured)


def exponent(x: Array, y: Array) -> float:
    """Return the power of x that fits y best, by least squares of the logarithms.

    >>> round(exponent(np.array([1.0, 10.0, 100.0]), np.array([2.0, 20.0, 200.0])), 12)
    1.0
    """
    if not (y > 0).all():
        raise ConfigError("a scaling is fitted to values above 0")
    if not np.isfinite(y).all():
        return math.nan  # passes no claim
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
