"""A table for papers of the estimates that runs on tables have left: estimate (interval), p."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.paper_tables import p_in_words
from flower_fedcon.tables.ending.table_report import AGAINST_FIRST, COEFFICIENTS
from flower_fedcon.tables.fitted import load_model
from flower_fedcon.wire.whole_files import read_bytes

Lines = dict[str, tuple[str, str]]


def runs_below(folders: Sequence[Path]) -> list[Path]:
    """Return the absolute paths of folders of runs with coefficients: these, or those in them.

    Each is there once.

    Raises
    ------
    ConfigError
        If a folder has none.
    """
    found: list[Path] = []
    for folder in map(Path, map(os.path.abspath, folders)):
        inside = sorted(file.parent for file in folder.glob(f"*/{COEFFICIENTS}"))
        own = [folder] if (folder / COEFFICIENTS).is_file() else inside
        if not own:
            raise ConfigError(
                f"{folder} has no {COEFFICIENTS}, and neither have its folders: name the folder of "
                f"a run on tables; a table of rounds is made by `fedcon table`"
            )
        found += own
    return list(dict.fromkeys(found))


def _names(runs: Sequence[Path]) -> list[str]:
    """Return the names of folders, each with as many of those above it as tell it apart.

    >>> _names([Path("/a/run"), Path("/b/run"), Path("/b/crude")])
    ['a/run', 'b/run', 'crude']
    """
    tails = [[Path(*run.parts[-k:]) for k in range(1, len(run.parts) + 1)] for run in runs]
    times = Counter(tail for own in tails for tail in own)
    return [next(tail.as_posix() for tail in own if times[tail] == 1) for own in tails]


def paper_estimates(folders: Sequence[Path]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of a table with two columns for each run.

    Raises
    ------
    ConfigError
        If a run has no standard errors.
    """
    runs = runs_below(folders)
    several = len(runs) > 1
    head, each = [""], []
    for run, name in zip(runs, _names(runs), strict=True):
        what, lines = _of_run(run)
        head += [f"{name}: {what}" if several else what, "p"]
        each.append(lines)
    names = list(dict.fromkeys(name for lines in each for name in lines))
    rows = [[name, *(cell for lines in each for cell in lines.get(name, ("", "")))]
            for name in names]  # fmt: skip
    return head, rows


def _of_run(run: Path) -> tuple[str, Lines]:
    """Return what a run's estimates are, and its lines."""
    model = load_model(run)
    several = (run / AGAINST_FIRST).is_file()
    file = run / (AGAINST_FIRST if several else COEFFICIENTS)
    rows = list(csv.DictReader(io.StringIO(read_bytes(file, follow=True).decode())))
    if not rows or "std_error" not in rows[0]:
        raise ConfigError(
            f'{run} has no standard errors: repeat the run with inference = "model" or "robust"'
        )
    names = list(rows[0])
    value = next(name for name in ("debiased", "per_unit_against_first", "per_unit")
                 if name in names)  # fmt: skip
    ratio = next((name[:-6] for name in names if name.endswith("_ratio_lower")), "")
    lines: Lines = {}
    for row in rows:
        plain = not (ratio and row[ratio])
        prefix, middle = ("", value) if plain else (f"{ratio}_", ratio)
        ends = [row[f"{prefix}{end}"] for end in ("lower", "upper")]
        shown = _digits(row[middle])
        if all(ends):
            shown += f" ({_digits(ends[0])}, {_digits(ends[1])})"
        name = model.schema.in_words(row["column"]) + ", coefficient" * bool(ratio and plain)
        lines[name] = shown, p_in_words(float(row["p_value"] or "nan"))
    what = f"{ratio.replace('_', ' ') or 'coefficient'} (95 % interval)"
    return what, lines


def _digits(text: str) -> str:
    """Return a number with three digits or more.

    >>> _digits("1.23456"), _digits("12345.6"), _digits("1.2e-7"), _digits("2")
    ('1.23', '12346', '1.2e-07', '2.00')
    """
    value = float(text)
    if abs(value) >= 1000 or not value:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".") if abs(value) >= 1e-4 else f"{value:.3g}"
