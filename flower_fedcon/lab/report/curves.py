"""The curves of a page by column, thinned so that a long run needs little space."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flower_fedcon.core.gate import COUNTS
from flower_fedcon.lab.experiments.figures import (
    LABELS,
    abscissa_of,
    axes_of,
    lower_end,
    spans,
    values_of,
)
from flower_fedcon.lab.report.contents import Curves
from flower_fedcon.runs.history import Record
from flower_fedcon.validation import Array

POINTS = 60_000
"""The largest number of points in all curves together."""
_EACH = 30  # number of clients up to which their own metrics are drawn
_FIRST = ("residual", "objective", "kkt", "fw_gap", "violation", "constraint", "consensus")
_TAKING_PART = (
    "cohort", "replies", "dropped", "retries", "lost", "refused", "unheard",
    "staleness", "most_staleness", "stale", "waves",
)  # fmt: skip
_TRAFFIC = ("uplink_bytes", "downlink_bytes", "seconds", "simulated_seconds", *COUNTS)
TITLES = {
    "progress": "Progress",
    "clients": "Each client's metrics",
    "part": "Taking part, round by round",
    "work": "Local work and traffic",
    "privacy": "Privacy",
}


def charts(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    """Return the charts of a page, in the form that its script reads.

    A chart has `title`, and `columns`: each with `title`, `log` (whether it spans decades), `least`
    (where a logarithmic axis ends below, 0 for no end), and `lines` with `name`, `colour` (a
    number) and, as lists, `x` by abscissa, `y` and, over seeds, `low` and `high`.
    """
    names = list(dict.fromkeys(name for each in curves for row in each.rows for name in row))
    plain = [name for name in names if "/" not in name and name != "round"]
    drawn = len(curves) * len(plain) + len(names) - len(plain)
    points = max(60, min(2000, POINTS // max(1, drawn)))
    groups: dict[str, list[str]] = {key: [] for key in TITLES}
    for name in plain:
        groups[_group(name)].append(name)
    groups["progress"].sort(key=lambda n: _FIRST.index(n) if n in _FIRST else len(_FIRST))
    made = {key: [_column(curves, name, points) for name in groups[key]] for key in groups}
    made["clients"] = _of_clients(curves, names, points)
    progress = made["progress"]  # a residual that is only rounding is not shown first
    if len(progress) > 1 and progress[0]["key"] == "residual" and not _positive(progress[0]):
        progress.append(progress.pop(0))
    return [{"title": TITLES[key], "columns": columns} for key, columns in made.items() if columns]


def _group(name: str) -> str:
    if name in _TAKING_PART:
        return "part"
    if name in _TRAFFIC or name.startswith("local_"):
        return "work"
    return "privacy" if name.startswith("epsilon") else "progress"


def _column(curves: Sequence[Curves], name: str, points: int) -> dict[str, Any]:
    lines = [
        _line(each.label, i, each.rows, name, points, each.low, each.high)
        for i, each in enumerate(curves)
        if any(name in row for row in each.rows)
    ]
    histories = {each.label: each.rows for each in curves}
    return {
        "key": name,
        "title": LABELS.get(name, name.replace("_", " ")),
        "log": name == "residual" or spans(histories, name),
        "least": lower_end([rows for each in curves for rows in (each.rows, each.low)], name),
        "lines": lines,
    }


def _of_clients(
    curves: Sequence[Curves], names: Iterable[str], points: int
) -> list[dict[str, Any]]:
    """Return the metrics recorded by client, with a line for each client."""
    families: dict[str, list[str]] = {}
    for name in names:
        metric, slash, _ = name.partition("/")
        if slash:
            families.setdefault(metric, []).append(name)
    columns = []
    for metric, members in families.items():
        lines = [
            _line(
                member.partition("/")[2] + (f" ({each.label})" if len(curves) > 1 else ""),
                j, each.rows, member, points,
            )
            for each in curves
            for j, member in enumerate(members)
            if any(member in row for row in each.rows)
        ]  # fmt: skip
        title = metric.replace("_", " ")
        if len(lines) > _EACH:
            title += f" (the first {_EACH} of {len(lines)})"
        columns.append(
            {"key": metric, "title": title, "log": False, "least": 0.0, "lines": lines[:_EACH]}
        )
    return columns


def _line(
    label: str,
    colour: int,
    rows: Sequence[Record],
    name: str,
    points: int,
    low: Sequence[Record] = (),
    high: Sequence[Record] = (),
) -> dict[str, Any]:
    y = values_of(rows, name)
    places = thinned(y, points)
    line = {
        "name": label,
        "colour": colour,
        "x": {axis: _numbers(abscissa_of(rows, axis)[places]) for axis in axes_of([rows])},
        "y": _numbers(y[places]),
    }
    if low and high:
        line["low"] = _numbers(values_of(low, name)[places])
        line["high"] = _numbers(values_of(high, name)[places])
    return line


def thinned(y: Array, most: int) -> Array:
    """Return the positions of at most `most` points that show a curve on either scale.

    They are the smallest and largest values in groups of neighbours, so that no spike is lost. Half
    of the groups are evenly spaced, and half geometrically.

    >>> y = np.zeros(10_000)
    >>> y[1234] = 7.0
    >>> places = thinned(y, 100)
    >>> len(places) <= 100, 1234 in places, int(places[0]), int(places[-1])
    (True, True, 0, 9999)
    """
    n = len(y)
    if n <= most:
        return np.arange(n)
    groups = max(1, most // 4 - 1)
    edges = np.concatenate([np.linspace(0, n, groups + 1), np.geomspace(1, n, groups + 1)])
    chosen = {0, n - 1}
    for first, end in pairwise(np.unique(edges.astype(int)).tolist()):
        part = y[first:end]
        if np.isnan(part).all():
            chosen.add(first)
        else:
            chosen |= {first + int(np.nanargmin(part)), first + int(np.nanargmax(part))}
    return np.array(sorted(chosen))


def _numbers(values: Array) -> list[float | None]:
    """Return numbers for JSON, to seven digits; None for those that are not finite."""
    return [float(f"{v:.7g}") if math.isfinite(v) else None for v in values.tolist()]


def _positive(chart_column: dict[str, Any]) -> bool:
    return any(y is not None and y > 0 for line in chart_column["lines"] for y in line["y"])
