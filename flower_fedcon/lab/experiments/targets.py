"""The costs of runs until they reach a level, over seeds: a table for papers."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.experiments.histories import (
    failed_in,
    histories_of,
    labelled,
    seeds_of,
)
from flower_fedcon.runs.history import Record, row_name, why_not_recorded
from flower_fedcon.runs.paper_tables import tex

SPENT = {
    "rounds": (("round",), 1.0, "rounds"),
    "bytes": (("uplink_bytes", "downlink_bytes"), 1e6, "MB"),
    "uplink": (("uplink_bytes",), 1e6, "MB up"),
    "downlink": (("downlink_bytes",), 1e6, "MB down"),
    "seconds": (("seconds",), 1.0, "seconds"),
    "simulated": (("simulated_seconds",), 1.0, "simulated seconds"),
    "gradients": (("gradients",), 1.0, "gradients"),
    "examples": (("examples_seen",), 1.0, "examples"),
}
"""Costs by a short name: the columns to sum, the divisor, and the title."""
MIDDLES = ("mean", "median")


class Target(NamedTuple):
    """A column of the history, and the level that it must reach from above.

    Without a level (NaN), the target is the column's last value.
    """

    column: str
    level: float = math.nan

    @property
    def at_end(self) -> bool:
        """Whether the target is the last value."""
        return math.isnan(self.level)


class Cell(NamedTuple):
    """The costs of one label's runs until they reached a target.

    Attributes
    ----------
    spent : list of float
        The costs of the runs that reached it.
    total : int
        The number of runs; 0 if the table has no such label.
    seeds : dict
        The runs' costs by their seeds, NaN for those that did not reach it.
    failed : bool
        Whether a study has no finished run of this label.
    """

    spent: list[float]
    total: int
    seeds: Mapping[str, float] = {}
    failed: bool = False

    def numbers(self, middle: str) -> tuple[float, float, float]:
        """Return the middle and both ends of the spread; NaN if no run reached the target.

        They are the mean, and one standard deviation below and above, NaN of one run; or the
        median, least and greatest.

        >>> Cell([1.0, 2.0, 6.0], 4).numbers("median"), Cell([1.0, 3.0], 2).numbers("mean")[0]
        ((2.0, 1.0, 6.0), 2.0)
        """
        if not self.spent:
            return math.nan, math.nan, math.nan
        if middle == "median":
            return statistics.median(self.spent), min(self.spent), max(self.spent)
        mean = statistics.fmean(self.spent)
        spread = statistics.stdev(self.spent) if len(self.spent) > 1 else math.nan
        return mean, mean - spread, mean + spread


class TargetTable(NamedTuple):
    """A table with a row for each label, and a cell for each target and each cost.

    Attributes
    ----------
    heads : list of (Target, str)
    rows : dict
        Row -> the cells: of each head, in each column.
    middle : str
        "mean" or "median".
    failed : dict
        Label -> why a cell of a study has no run; each gets a row.
    counted : str
        What the histories' rows are: "rounds", "steps", or "rounds or steps".
    columns : sequence of str
        What the labels of a column have in common; "" for a table of one label a row.
    row_key, column_key : str
        Which settings make the rows and the columns.
    """

    heads: list[tuple[Target, str]]
    rows: dict[str, list[Cell]]
    middle: str
    failed: Mapping[str, str] = {}
    counted: str = "rounds"
    columns: Sequence[str] = ("",)
    row_key: str = ""
    column_key: str = ""

    @property
    def titles(self) -> list[str]:
        """The titles above the cells."""
        titles = [self.title(to, of) for to, of in self.heads]
        if not self.is_crossed:
            return titles
        if len(titles) == 1:
            return list(self.columns)
        return [f"{column}: {title}" for column in self.columns for title in titles]

    @property
    def stub(self) -> str:
        """The title above the rows' names."""
        names = [key.rpartition(".")[2] for key in self.row_key.split(",") if key]
        text = ", ".join(names).replace("_", " ")
        return text[:1].upper() + text[1:] if text else "Algorithm"

    @property
    def is_crossed(self) -> bool:
        """Whether the columns are settings of runs."""
        return any(self.columns)

    def title(self, to: Target, of: str) -> str:
        """Return what the numbers under a head are."""
        if to.at_end:
            return f"{to.column} at the end"
        return f"{self._head(of)} to {to.column} {to.level:g}"

    def texts(self, label: str) -> list[str]:
        """Return a row's cells as text: "12 ± 3 (4 of 5)", "12 (9 to 16), 4 of 5", "never"."""
        return [self._text(cell) for cell in self.rows[label]]

    def _head(self, of: str) -> str:
        return self.counted if of == "rounds" else _title(of)

    def _text(self, cell: Cell) -> str:
        arrived, total = len(cell.spent), cell.total
        if not total:
            return "failed" if cell.failed else ""
        if not arrived:
            return "never" if total == 1 else f"never (0 of {total})"
        middle, low, high = cell.numbers(self.middle)
        text, few = number(middle), arrived < total
        if arrived == 1:
            return f"{text} (1 of {total})" if few else text
        if self.middle == "mean":
            text = " ± ".join(with_spread(middle, (high - low) / 2))
            return f"{text} ({arrived} of {total})" if few else text
        text += f" ({number(low)} to {number(high)})"
        return f"{text}, {arrived} of {total}" if few else text

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the numbers."""
        cells = [cell for row in self.rows.values() for cell in row]
        notes = []
        if any(len(cell.spent) > 1 for cell in cells):
            said = {"mean": "mean and standard deviation", "median": "median, least and greatest"}
            notes.append(f"{said[self.middle]} over the seeds")
        if any(0 < len(cell.spent) < cell.total for cell in cells):
            notes.append("where not all runs arrived, over those alone that did")
        if any(not to.at_end and _title(of).startswith("MB") for to, of in self.heads):
            notes.append(
                "MB: 10^6 bytes over all clients, up and down unless the head names one, with the "
                "headers of arrays, without those of messages"
            )
        return notes

    def csv(
        self, titles: Sequence[str] = (), more: Mapping[str, Sequence[Sequence[str]]] | None = None
    ) -> str:
        """Return the table as CSV: a line for each cell.

        `more` has each row's cells in further columns with these titles.
        """
        out, none = io.StringIO(newline=""), [""] * len(titles)
        writer = csv.writer(out)
        across = [self.column_key or "label"] if self.is_crossed else []
        writer.writerow([self.row_key or "label", *across, "column", "level", "spent", self.middle,
                         "low", "high", "arrived", "runs", "failed", *titles])  # fmt: skip
        places = [(column, *head) for column in self.columns for head in self.heads]
        for label, cells in self.rows.items():
            further = [none] * len(cells) if more is None else more[label]
            for (column, to, of), cell, end in zip(places, cells, further, strict=True):
                if not cell.total and not cell.failed:
                    continue
                own: list[Any] = [to.column, "" if to.at_end else to.level, _title(of)]
                own += ["" if math.isnan(n) else repr(n) for n in cell.numbers(self.middle)]
                own += [len(cell.spent), cell.total, "failed" if cell.failed else ""]
                writer.writerow([label, *([column] if across else []), *own, *end])
        for label, why in self.failed.items():
            writer.writerow([label, *[""] * (6 + len(across)), 0, 0, why, *none])
        return out.getvalue()

    def latex(self) -> str:
        r"""Return the table as LaTeX with the rules of the package booktabs."""
        body = {label: [self._latex(cell) for cell in cells] for label, cells in self.rows.items()}
        return self.tabular(body, self.notes)

    def tabular(self, rows: Mapping[str, Sequence[str]], notes: Sequence[str]) -> str:
        """Return cells in LaTeX as a table with these heads, and notes below it."""
        width = len(self.heads) * len(self.columns)
        body = [f"{tex(label)} & {' & '.join(cells)} \\\\" for label, cells in rows.items()]
        body += [
            f"{tex(label)} & \\multicolumn{{{width}}}{{l}}{{failed: {tex(why)}}} \\\\"
            for label, why in self.failed.items()
        ]
        lines = [
            "% \\usepackage{booktabs}",
            f"\\begin{{tabular}}{{l{'r' * width}}}",
            "\\toprule",
            *self._latex_heads(),
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
        ]
        if notes:
            note = "; ".join(notes).replace("10^6", "$10^6$")
            lines.append(f"\\par\\smallskip{{\\footnotesize {note[0].upper()}{note[1:]}.\\par}}")
        return "\n".join(lines) + "\n"

    def _latex_heads(self) -> list[str]:
        """Return the lines of the heads: with columns, two levels of them."""
        levels = [
            "at the end" if to.at_end else f"{tex(to.column)} $\\le {_power(to.level)}$"
            for to, _ in self.heads
        ]
        names, many = [tex(self._head(of)) for _, of in self.heads], len(self.columns)
        if not self.is_crossed:
            return [" & ".join(["", *row]) + " \\\\" for row in (names, levels)]
        across, each = [tex(column) for column in self.columns], len(names)
        if each == 1:
            what = levels[0] if self.heads[0][0].at_end else f"to {levels[0]}"
            above, spans, below = [f"{names[0]} {what}"], [(2, many + 1)], [across]
        else:
            spans = [(2 + i * each, 1 + (i + 1) * each) for i in range(many)]
            above, below = across, [names * many, levels * many]
        spanned = [
            f"\\multicolumn{{{last - first + 1}}}{{c}}{{{text}}}"
            for text, (first, last) in zip(above, spans, strict=True)
        ]
        return [
            " & ".join(["", *spanned]) + " \\\\",
            " ".join(f"\\cmidrule(lr){{{first}-{last}}}" for first, last in spans),
            *(" & ".join(["", *row]) + " \\\\" for row in below),
        ]

    def _latex(self, cell: Cell) -> str:
        if not cell.total:
            return "failed" if cell.failed else ""
        share = "" if len(cell.spent) == cell.total else f" ({len(cell.spent)}/{cell.total})"
        if not cell.spent:
            return f"---{share if cell.total > 1 else ''}"
        middle, low, high = cell.numbers(self.middle)
        if len(cell.spent) == 1:
            return f"{_maths(middle)}{share}"
        if self.middle == "mean":
            both = with_spread(middle, (high - low) / 2)
            return f"${scientific(both[0])} \\pm {scientific(both[1])}${share}"
        return f"{_maths(middle)} [{_maths(low)}, {_maths(high)}]{share}"


def parse_target(text: str) -> Target:
    """Return a target such as "residual=1e-3"; "residual" alone means its last value.

    >>> parse_target("residual=1e-3"), parse_target("residual").at_end
    (Target(column='residual', level=0.001), True)
    """
    if text.strip().isidentifier():
        return Target(text.strip())
    return Target(*named_number("to", text, ", or a name alone for its value at the end"))


def named_number(option: str, text: str, also: str = "") -> tuple[str, float]:
    """Return the name and number of "NAME=NUMBER"; `also` names other forms, for the error.

    >>> named_number("until", "kkt=1e-6")
    ('kkt', 1e-06)
    """
    name, _, number = map(str.strip, text.partition("="))
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name or math.isnan(value):
        raise ConfigError(
            f"--{option} {text}: write a name and a number, such as residual=1e-3{also}"
        )
    return name, value


def targets_of(
    folders: Sequence[Path], to: Sequence[Target], of: Sequence[str], middle: str = "mean"
) -> TargetTable:
    """Return the costs of the runs in some folders to reach levels.

    Parameters
    ----------
    folders : sequence of Path
        Folders of runs or comparisons; runs that differ only in their seeds make one row.
    to : sequence of Target
    of : sequence of str
        The costs: keys of `SPENT`, or columns of the histories.
    middle : str
        "mean" (with the standard deviation) or "median" (with least and greatest).

    Raises
    ------
    ConfigError
        If a folder holds no run, or a column was not recorded.
    """
    histories, seeds = histories_of(folders)
    members = labelled(folders)
    heads = [(target, name) for target in to for name in ([target.column] if target.at_end else of)]
    failed = failed_in(folders)
    rows = {
        label: [
            _cell(seeds.get(label, [rows]), seeds_of(members[label]), target, name)
            for target, name in heads
        ]
        for label, rows in histories.items()
        if label not in failed
    }
    counted = row_name((row for own in histories.values() for row in own[-1:]), many=True)
    return TargetTable(heads, rows, middle, failed, counted)


def _cell(runs: Sequence[Sequence[Record]], seeds: Sequence[str], target: Target, of: str) -> Cell:
    costs = []
    for rows in runs:
        header: Mapping[str, float] = {name: 0 for row in rows for name in row}
        if target.column not in header:
            raise ConfigError(
                f"unknown column {target.column!r}: {why_not_recorded(target.column, list(header))}"
            )
        if target.at_end:
            costs.append((True, float(rows[-1].get(target.column, math.nan))))
            continue
        first = next((r for r in rows if r.get(target.column, math.inf) <= target.level), None)
        costs.append((False, math.nan) if first is None else (True, _spent(first, of)))
    by_seed = {seed: cost for seed, (_, cost) in zip(seeds, costs, strict=True)}
    return Cell([cost for arrived, cost in costs if arrived], len(runs), by_seed)


def _spent(row: Record, of: str) -> float:
    columns, unit, _ = SPENT.get(of, ((of,), 1.0, of))
    for column in columns:
        if column not in row:
            raise ConfigError(f"unknown column {of!r}: {nearest(of, {*SPENT, *row})}")
    return sum(float(row[column]) for column in columns) / unit


def _title(of: str) -> str:
    return SPENT[of][2] if of in SPENT else of.replace("_", " ")


def _maths(value: float) -> str:
    """Return a number as mathematics, with the digits of `number`."""
    text = number(value)
    return f"${_power(float(text)) if 'e' in text else text}$"


def scientific(text: str) -> str:
    r"""Return a number's text as mathematics, with its digits.

    >>> scientific("2.50e+07"), scientific("1.180")
    ('2.50 \\cdot 10^{7}', '1.180')
    """
    digits, _, exponent = text.partition("e")
    return f"{digits} \\cdot 10^{{{int(exponent)}}}" if exponent else digits


def with_spread(value: float, spread: float) -> tuple[str, str]:
    """Return a number and its spread, both to the second significant digit of the spread.

    A spread that is only rounding adds no digits to the number.

    >>> with_spread(1.1812, 0.0379), with_spread(12345678.0, 345678.0), with_spread(12.0, 0.0)
    (('1.181', '0.038'), ('1.235e+07', '3.5e+05'), ('12', '0'))
    >>> with_spread(0.0, 2.8e-17), with_spread(1.5, 2.8e-16)
    (('0', '2.8e-17'), ('1.5', '2.8e-16'))
    """
    if not spread or not math.isfinite(spread):
        return number(value), number(spread)
    if spread < _ROUNDING * abs(value):
        return number(value), f"{spread:.1e}"
    last = int(f"{spread:.1e}".partition("e")[2]) - 1  # the place of the last digit, as a power
    if "e" not in number(max(abs(value), spread)):
        return f"{value:.{max(0, -last)}f}", f"{spread:.{max(0, -last)}f}"
    if not round(value, -last):
        return "0", f"{spread:.1e}"
    first = int(f"{value:e}".partition("e")[2])
    return f"{value:.{max(0, first - last)}e}", f"{spread:.1e}"


_ROUNDING = 1e-13
"""A spread below this share of a number is of the last bits of a float."""


def number(value: float) -> str:
    """Return a number with the digits that a table needs.

    >>> number(1234.0), number(12.345), number(12345678.0), number(0.0123)
    ('1234', '12.3', '1.23e+07', '0.0123')
    """
    if value == int(value) and abs(value) < 1e5:
        return f"{value:.0f}"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e5 else f"{value:.3g}"


def _power(level: float) -> str:
    """Return a level as mathematics: 10^{-3}.

    >>> _power(1e-3), _power(0.25)
    ('10^{-3}', '0.25')
    """
    digits, _, exponent = f"{level:.6e}".partition("e")
    mantissa = float(digits)
    if 1e-2 < abs(level) < 1e4:
        return f"{level:g}"
    power = f"10^{{{int(exponent)}}}"
    return power if mantissa == 1 else f"{mantissa:g} \\cdot {power}"
