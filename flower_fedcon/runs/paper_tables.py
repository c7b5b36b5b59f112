"""Tables for papers, as CSV, Markdown or LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from flower_fedcon.errors import ConfigError
from flower_fedcon.wire.whole_files import write_text

SUFFIXES = (".csv", ".md", ".tex")


def tex(text: str) -> str:
    r"""Return a text with LaTeX's special characters escaped.

    >>> tex("l1_ratio 50%")
    'l1\\_ratio 50\\%'
    >>> tex("<0.001 | x")
    '\\textless{}0.001 \\textbar{} x'
    """
    special = {c: f"\\{c}" for c in "#$%&_{}"}
    special |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}
    return "".join(special.get(c, c) for c in text)


def p_in_words(p: float) -> str:
    """Return a p-value as papers print it; "" for NaN.

    >>> p_in_words(0.04567), p_in_words(1e-9)
    ('0.046', '<0.001')
    """
    return "" if p != p else "<0.001" if p < 0.001 else f"{p:.3f}"


def p_equals(p: float) -> str:
    """Return a p-value for a sentence: with three digits, or below the least that rounding allows.

    >>> p_equals(0.00342), p_equals(3e-5), p_equals(0.0)
    ('p = 0.00342', 'p = 3e-05', 'p < 1e-16')
    """
    return "p < 1e-16" if p < 1e-16 else f"p = {p:.3g}"


def check_suffixes(files: Sequence[Path]) -> None:
    """Raise unless tables can be written to these files.

    Raises
    ------
    ConfigError
    """
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise ConfigError(
                f"a table is written to a file {', '.join(SUFFIXES)}, got {str(file)!r}"
            )


def write_paper_table(
    file: Path, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> None:
    """Write a table of texts in the form that the file's suffix names; CSV has no notes."""
    suffix = file.suffix.lower()
    if suffix == ".csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([head, *rows])
        write_text(file, out.getvalue())
        return
    if suffix == ".md":
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
        lines = [f"| {' | '.join(row)} |" for row in cells]
        lines.insert(1, f"|{'---|' * len(head)}")
        notes = [part for note in notes for part in ("", note)]
        write_text(file, "\n".join([*lines, *notes]) + "\n")
        return
    body = [" & ".join(map(tex, row)) + " \\\\" for row in (head, *rows)]
    lines = ["% \\usepackage{booktabs}", f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
             "\\toprule", body[0], "\\midrule", *body[1:], "\\bottomrule", "\\end{tabular}",
             *(f"\n\\smallskip\\footnotesize {tex(note)}" for note in notes)]  # fmt: skip
    write_text(file, "\n".join(lines) + "\n")
