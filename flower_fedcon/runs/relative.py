"""The column "relative": F - F* in units of |F*|, of histories that have F and F - F*."""

from __future__ import annotations

from collections.abc import Sequence

from flower_fedcon.core.evaluation import Record

RELATIVE = "relative"
ROUNDING = 1e-9
"""How far rounding may put an objective below the optimum, relative to the larger of the two."""
TINY = 1e-12
"""Optimal values up to this size give no "relative" column."""


def with_relative(rows: Sequence[Record]) -> list[Record]:
    """Return a run's rows with the column "relative", (F - F*)/|F*|.

    F* is the objective minus the residual, in the row with the smallest residual. The column is
    left out if one of the two was not recorded, or if |F*| is at most 1e-12. A metric of the
    problem with this name is kept.

    >>> with_relative([{"objective": 3.0, "residual": 1.0}, {"round": 2.0}])
    [{'objective': 3.0, 'residual': 1.0, 'relative': 0.5}, {'round': 2.0}]
    """
    complete = [row for row in rows if "objective" in row and "residual" in row]
    if not complete or any(RELATIVE in row for row in rows):
        return list(rows)
    nearest = min(complete, key=lambda row: abs(row["residual"]))
    size = abs(nearest["objective"] - nearest["residual"])
    if not size > TINY:
        return list(rows)
    return [{**row, RELATIVE: row["residual"] / size} if "residual" in row else row for row in rows]
