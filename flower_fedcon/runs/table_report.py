"""What a run on tables has found: coefficients by name, the certificate, and who took part."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flower_fedcon.regularizers import WithIntercept
from flower_fedcon.runs.history import Record
from flower_fedcon.wire.whole_files import write_text

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server

NAME, COEFFICIENTS = "report.txt", "coefficients.csv"
_RATIOS = {
    "logistic": "odds ratio",
    "multinomial": "odds ratio",
    "poisson": "rate ratio",
    "cox": "hazard ratio",
}
INTERCEPT = "(intercept)"


@dataclass(frozen=True)
class Report:
    """A model of named columns, and how it was found.

    Attributes
    ----------
    rows : list of tuple
        (column, coefficient of the standardised column, coefficient in the column's own unit, its
        exponential). The intercept is last.
    ratio : str
        What the exponential is: the odds ratio of one unit more, say; "" where it is nothing.
    lines : list of str
        Everything else, a line each.
    """

    rows: list[tuple[str, float, float, float]]
    lines: list[str]
    ratio: str = ""

    @classmethod
    def of(cls, server: Server, record: Record) -> Report | None:
        """Return the report of a run after a record; None without tables."""
        preparation, x = server.setup.preparation, np.asarray(server.x, dtype=np.float64)
        if preparation is None:
            return None
        columns = len(preparation.names)
        classes = x.shape[1] if x.ndim == 2 else 1
        table, rows = x.reshape(-1, classes), []
        for k in range(classes):
            mark = f" [{k}]" if classes > 1 else ""
            scaled = table[:columns, k]
            own = scaled / preparation.scales
            for name, value, unit in zip(preparation.names, scaled, own, strict=True):
                rows.append((name + mark, float(value), float(unit), _exp(float(unit))))
            if len(table) > columns:
                at_mean = float(table[columns, k])
                zero = at_mean - math.fsum((own * preparation.centers).tolist())
                rows.append((INTERCEPT + mark, at_mean, zero, _exp(zero)))
        return cls(rows, _lines(server, record), _RATIOS.get(preparation.loss, ""))

    @property
    def text(self) -> str:
        """The report for people; columns that are not used are left out of the table."""
        used = [row for row in self.rows if row[1] or row[0].startswith(INTERCEPT)]
        cells = [["column", "per sd", "per unit", self.ratio]]
        cells += [[name, *(f"{v:.5g}" for v in values)] for name, *values in used]
        cells = [row if self.ratio else row[:3] for row in cells]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        table = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in cells
        ]
        unused = [row[0] for row in self.rows if not row[1]]
        note = [f"coefficient 0: {', '.join(unused)}"] if unused else []
        return "\n".join([*table, *note, *self.lines]) + "\n"

    def write(self, folder: Path) -> None:
        """Write the text, and the coefficients to the last digit, into a run's folder."""
        write_text(folder / NAME, self.text)
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        header = ["column", "coefficient", "per_unit", self.ratio.replace(" ", "_")]
        shown = len(header) if self.ratio else 3
        writer.writerow(header[:shown])
        writer.writerows([name, *map(repr, values)][:shown] for name, *values in self.rows)
        write_text(folder / COEFFICIENTS, out.getvalue())


def _lines(server: Server, record: Record) -> list[str]:
    preparation, setup = server.setup.preparation, server.setup
    assert preparation is not None  # noqa: S101  (the caller's case)
    rule = server.strategy.regularizer
    psi = rule.inner if isinstance(rule, WithIntercept) else rule
    lines = [f"penalty: {psi!r}, not of the intercept" if psi is not rule else f"penalty: {psi!r}"]
    if "objective" in record:
        lines.append(f"objective: {record['objective']:.12g}")
    if "kkt" in record:
        lines.append(f"KKT residual: {record['kkt']:.3g}")
    for name in (name for name in record if name.startswith("test_") and "/" not in name):
        each = f"{name}/"
        own = [f"{k[len(each) :]} {value:.4f}" for k, value in record.items() if k.startswith(each)]
        lines.append(f"{name}: {', '.join(own)}; pooled {record[name]:.4f}")
    up, down = (server.uplink_bytes / 1e6, server.downlink_bytes / 1e6)
    lines.append(f"{server.strategy.title}, {server.round} rounds: {up:.3f} MB up, {down:.3f} down")
    used = server.acknowledgements.rounds.tolist()
    part = [
        f"{client.name} ({client.num_examples} rows{'' if last else ', in no round'})"
        for client, last in zip(setup.clients, used, strict=True)
    ]
    lines.append(f"took part: {', '.join(part)}")
    if preparation.left_out:
        why = ", ".join(f"{name} ({reason})" for name, reason in preparation.left_out.items())
        lines.append(f"left out: {why}")
    return lines


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
