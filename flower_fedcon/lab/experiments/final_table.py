"""The table at the end of a run, a comparison or a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from flower_fedcon.lab.experiments.seed_statistics import at_ends
from flower_fedcon.runs.console import over_optimum, table
from flower_fedcon.runs.history import Record, row_name
from flower_fedcon.runs.relative import RELATIVE, TINY, with_relative

if TYPE_CHECKING:
    from rich.table import Table


def results(
    histories: Mapping[str, Sequence[Record]],
    *,
    metrics: Sequence[str],
    optimum: float | None,
    seeds: Mapping[str, Sequence[Sequence[Record]]] | None = None,
    until: Mapping[str, float] | None = None,
    participation: Mapping[str, str] | None = None,
    failed: Mapping[str, str] | None = None,
) -> Table:
    """Return the table at the end of a run.

    Parameters
    ----------
    histories : dict
        Label -> rows; with several seeds their mean.
    metrics : sequence of str
        The problem's metrics.
    optimum : float, optional
        F*, if it is known and the same for all.
    seeds : dict, optional
        Label -> the rows of each seed, whose range is shown, too.
    until : dict, optional
        Column -> the level at which a run ends; the number of runs that reached it is shown.
    participation : dict, optional
        Label -> the participation.
    failed : dict, optional
        Label -> why there is no run; each gets a row.
    """
    last = {label: rows[-1] for label, rows in histories.items()}
    metrics = [name for name in metrics if all(name in row for row in last.values())]
    kept, size = last.values(), abs(optimum or 0.0)
    columns: list[tuple[str, Callable[[Record], str]]] = []  # titles, and the cells of a row

    def column(title: str, name: str, form: str, scale: float = 1.0) -> None:
        columns.append((title, lambda row: format(row.get(name, math.nan) * scale, form)))

    if any("objective" in row for row in kept):  # private runs have no objective
        column("Objective", "objective", ".6g")
    if any("residual" in row for row in kept):
        columns.append(("F - F*", lambda row: f"{over_optimum(row):.3g}"))
        if size > TINY and RELATIVE not in metrics:  # a metric of the problem may have that name
            columns.append(("Relative", lambda row: f"{over_optimum(row) / size:.3g}"))
    for name, title in (("fw_gap", "FW gap"), ("kkt", "KKT"), ("epsilon", "Epsilon")):
        if all(name in row for row in kept):
            column(title, name, ".3g")
    for name in metrics:
        column(name.replace("_", " ").capitalize(), name, ".4g")
    if any(row.get("violation", 0.0) > 1e-9 for row in kept):
        column("Violation", "violation", ".3g")
    if until:
        column(row_name(kept, many=True).capitalize(), "round", ".4g")
    column("MB up", "uplink_bytes", ".4g", 1e-6)
    column("MB down", "downlink_bytes", ".4g", 1e-6)
    column("Seconds", "seconds", ".2f")
    if all("simulated_seconds" in row for row in kept):
        column("Simulated s", "simulated_seconds", ".4g")
    first = ["Algorithm"] if participation is None else ["Algorithm", "Participation"]
    titles = [*first, *(title for title, _ in columns), *(["Arrived"] if until else [])]
    made = table(*titles, right_from=len(first))

    def texts(row: Record) -> list[str]:
        return [cell(row) for _, cell in columns]

    for label, row in last.items():
        runs = seeds[label] if seeds else [histories[label]]
        cells = texts(row)
        if len(runs) > 1:
            ends = zip(*map(texts, at_ends(runs)), strict=True)
            cells = [
                text if low == high else f"{text}\n{low} to {high}" for text, low, high in ends
            ]
        if participation is not None:
            cells.insert(0, participation[label])
        if until:
            closing = [with_relative(rows)[-1] for rows in runs]
            arrived = sum(any(end.get(c, math.nan) <= until[c] for c in until) for end in closing)
            cells.append(f"{arrived} of {len(runs)}")
        made.add_row(label, *cells)
    for label, why in (failed or {}).items():
        before = [] if participation is None else [participation.get(label, "")]
        made.add_row(label, *before, f"failed: {why}")
    return made
