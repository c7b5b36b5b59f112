"""Tests of a model's assumption for each column, in a report and as a file of a run's folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from flower_fedcon.errors import number_of
from flower_fedcon.runs.paper_tables import p_equals
from flower_fedcon.tables import own_files
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.statistics.score_tests import ScoreTest
from flower_fedcon.wire.whole_files import write_text

PROPORTIONALITY = "proportionality.csv"
_SHOWN = 5  # the report has a line for so many columns: those that are least proportional


def terms_of(prepared: Preparation) -> dict[str, list[int]]:
    """Return the places of the columns of each feature or term with several, unless it has all."""
    if prepared.stated is None:
        return {}
    places: dict[str, list[int]] = {}
    for place, group in enumerate(prepared.groups):
        places.setdefault(prepared.stated.groups[group], []).append(place)
    return {name: own for name, own in places.items() if 1 < len(own) < len(prepared.names)}


def lines_of_test(
    what: str, test: ScoreTest | str, terms: Mapping[str, Sequence[int]]
) -> Iterator[str]:
    """Yield the lines of a report: all columns, each term with several, and the worst columns.

    Parameters
    ----------
    what : str
        What is tested.
    test : ScoreTest or str
        The test, or why there is none.
    terms : dict
        By feature or term with several columns: their places in the test.
    """
    if isinstance(test, str):
        yield f"{what}: {test}"
        return
    every = test.global_statistic, test.degrees, test.global_pvalue
    yield f"{what} ({PROPORTIONALITY}): {_in_words(*every)}"
    joint = {name: test.joint_test(places) for name, places in terms.items()}
    for name in sorted(joint, key=lambda name: joint[name][2])[:_SHOWN]:
        yield f"  all columns of {name}: {_in_words(*joint[name])}"
    for k in np.argsort(test.pvalue, kind="stable")[:_SHOWN].tolist():
        freedom = int(test.each_degrees[k])
        own = f"chi2 {test.statistic[k]:.4g}, {p_equals(test.pvalue[k])}"
        words = own if freedom < 2 else _in_words(test.statistic[k], freedom, test.pvalue[k])
        yield f"  {test.names[k]}: {words}"
    if (more := len(test.names) - _SHOWN) > 0:
        yield f"  and {number_of(more, 'column')} more ({PROPORTIONALITY} has all)"


def write_test(folder: Path, test: ScoreTest, terms: Mapping[str, Sequence[int]]) -> None:
    """Write the test of each column, of each term with several, and of all into a folder."""
    each = zip(test.names, test.statistic.tolist(), test.each_degrees.tolist(),
               test.pvalue.tolist(), strict=True)  # fmt: skip
    joint = ((name, *test.joint_test(places)) for name, places in terms.items())
    every = ("GLOBAL", test.global_statistic, test.degrees, test.global_pvalue)
    write_rows(folder / PROPORTIONALITY, own_files.PROPORTIONALITY, [*each, *joint, every])


def write_rows(path: Path, header: tuple[str, ...], rows: Sequence[Sequence[object]]) -> None:
    """Write a table with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, out.getvalue())


def _in_words(statistic: float, degrees: int, p: float) -> str:
    freedom = number_of(degrees, "degree")
    return f"chi2 {statistic:.4g} with {freedom} of freedom, {p_equals(p)}"
