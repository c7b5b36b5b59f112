"""Times, entries and counts of one of three sites that are unlike the others', and honest ones."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon.tables import Schema
from flower_fedcon.tables.checks.calendar_ends import calendar_ends
from flower_fedcon.tables.checks.multiples import multiples
from flower_fedcon.tables.checks.spans import unlike_spans
from flower_fedcon.tables.checks.stated_times import dates_as_times
from flower_fedcon.tables.checks.unlike_outcomes import no_later_events
from flower_fedcon.tables.site_rows import SiteRows

ROWS, END = 400, 1995.0
TIMES = {"target": "days", "loss": "cox", "event": "dead", "features": {"year": "numeric"}}


def follow_up(site):
    """Patients of five years, who live for two on average, until one date; a few are lost."""
    rng = np.random.default_rng(site)
    start = END - 5 * rng.random(ROWS)
    life, lost = rng.exponential(2.0, ROWS), rng.exponential(200.0, ROWS)
    until = np.minimum(END - start, lost)
    return start, np.minimum(life, until), life <= until


def exported(start, time, dead):
    return start, np.where(dead, time, time + 2), dead


def known_late(start, time, dead):
    late = dead & (start + time > END - 1)
    return start, np.where(late, END - start, time), dead & ~late


def longer(start, time, dead):
    """The study ended two years later here, events and all."""
    more = ~dead & (start + time > END - 0.01)
    life = np.random.default_rng(9).exponential(2.0, ROWS)
    return start, time + more * np.minimum(life, 2), dead | (more & (life < 2))


DATES = {
    "none": (lambda *rows: rows, ""),
    "longer": (longer, ""),
    "an event a row off": (lambda s, t, d: (s, t, np.roll(d, 1)), "of the "),
    "an export": (exported, "no event of b is after 1994.9"),
    "late events unknown": (known_late, "no event of b is after 1993.9"),
    "years of the last visit": (lambda s, t, d: (s + t, t, d), "of the "),
    "the oldest alive": (lambda s, t, d: (s, np.where(d, t, t * 0.8), d), "of the "),
}


@pytest.mark.parametrize("unit", [365.25, 12.0])
@pytest.mark.parametrize("mess", DATES)
def test_dates_at_which_the_study_ends(mess, unit):
    change, words = DATES[mess]
    tables = []
    for k in range(3):
        start, time, dead = (change if k == 1 else lambda *rows: rows)(*follow_up(k))
        targets = np.column_stack([(unit * time).round(1), dead]).astype(float)
        none = np.empty((ROWS, 0), "U1")
        tables.append(
            SiteRows("", Schema.load(TIMES), targets, None, start.round(2)[:, None], none)
        )
    found = [*calendar_ends("abc", tables)]
    assert [words in line for line in found] == [True] * bool(words)
    assert all(f"columns 'year' plus 'days' / {unit:g}: " in line and " b " in line
               for line in found)  # fmt: skip


def with_entry(site, change=None):
    """Days of entry and end, of the study whose dates the other test has."""
    start, time, dead = follow_up(site)
    entry = (365.25 * (start - 1980)).round()
    end = entry + np.maximum(1.0, (365.25 * time).round())
    rows = np.column_stack([end, dead, entry, np.zeros(ROWS)]).astype(float)
    if change:
        change(rows)
    schema = Schema.load(TIMES | {"entry": "begin"})
    none = np.empty((ROWS, 0), "U1")
    return SiteRows("", schema, rows, None, rows[:, 2:3] * 0 + 50, none)


def the_day_after(rows):
    censored = rows[:, 1] == 0
    rows[censored, 0] = rows[censored, 2] + 1


def known_by_death(rows):
    some = (rows[:, 1] == 1) & (np.arange(ROWS) % 2 == 0)
    rows[some, 2] = rows[some, 0] - 1


def in_years(rows):
    rows[:, 0] = rows[:, 2] + 365 * np.ceil((rows[:, 0] - rows[:, 2]) / 365)


@pytest.mark.parametrize(
    ("change", "words"),
    [(None, ""), (in_years, ""), (the_day_after, " without an event have 1 between both, and "),
     (known_by_death, " with an event have 1 between both, and ")],
)  # fmt: skip
def test_one_span_in_many_rows(change, words):
    found = [*unlike_spans("abc", [with_entry(0), with_entry(1, change), with_entry(2)])]
    assert [words in line for line in found] == [True] * bool(words)


def test_events_are_later_at_the_one_site_that_counts_ends_of_follow_up():
    def alive_as_dead(rows):
        rows[:, 1] = 1

    tables = [with_entry(0), with_entry(1, alive_as_dead), with_entry(2)]
    (found,) = no_later_events("dead", "abc", tables)
    assert "events of b are after " in found
    assert "the last one of the 2 other sites" in found


def test_times_that_are_dates_need_an_entry():
    rows = np.concatenate([with_entry(k).targets for k in range(3)])
    schema = Schema.load(TIMES)
    assert ["are they dates?" in line for line in dates_as_times(schema, rows)] == [True]
    assert [*dates_as_times(schema, rows - [rows[:, 0].min(), 0, 0, 0])] == []


COUNTS = {
    "none": (lambda y, arm: y, ""),
    "all": (lambda y, arm: 2 * y, "values above 0 of b are multiples of 2"),
    "one arm": (lambda y, arm: np.where(arm == "B", 2 * y, y), "of b with 'arm' 'B' are multipl"),
}


@pytest.mark.parametrize("mess", COUNTS)
def test_counts_that_are_multiples(mess):
    change, words = COUNTS[mess]
    schema = Schema.load({"target": "n", "loss": "poisson", "features": {"arm": "categorical"}})
    tables = []
    for k in range(3):
        rng = np.random.default_rng(k)
        y, arm = rng.poisson(2.0, 200).astype(float), rng.choice(["A", "B"], 200)
        y = change(y, arm) if k == 1 else y
        tables.append(SiteRows("", schema, y, None, np.empty((200, 0)), arm[:, None]))
    found = [*multiples("abc", tables)]
    assert [words in line for line in found] == [True] * bool(words)


def test_deaths_of_whole_years():
    def of_years(rows):
        dead = rows[:, 1] == 1
        rows[dead, 0] = 365 * np.floor(rows[dead, 0] / 365)

    tables = [with_entry(k, of_years if k == 1 else None) for k in range(3)]
    found = [line for line in multiples("abc", tables) if "with 'dead' '1'" in line]
    assert ["of b with 'dead' '1' are multiples of 365" in line for line in found] == [True]
