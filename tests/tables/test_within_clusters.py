"""What one site's clusters and follow-up show: means for values, multiplied rows, lost events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tabular import numeric

from flower_fedcon.tables import Schema
from flower_fedcon.tables.checks.beside_others import rows_beside_others
from flower_fedcon.tables.checks.intervals import unlike_intervals
from flower_fedcon.tables.checks.unlike_outcomes import no_later_events
from flower_fedcon.tables.site_rows import SiteRows

PEOPLE, VISITS = 30, 4
SCHEMA = {"target": "stop", "event": "died", "entry": "start", "cluster": "who",
          "features": numeric("dose", "height")}  # fmt: skip


def visits(site: int) -> pd.DataFrame:
    """Rows of a year each; some end with the event, which is a person's last row."""
    rng = np.random.default_rng(site)
    who, year = np.repeat(np.arange(PEOPLE), VISITS), np.tile(np.arange(VISITS), PEOPLE)
    rows = pd.DataFrame({
        "who": who, "start": year, "stop": year + rng.uniform(0.5, 1.0, len(who)).round(3),
        "dose": rng.normal(50, 9, len(who)).round(4),
        "height": rng.normal(170, 9, PEOPLE).round(1)[who],
    })  # fmt: skip
    return rows.assign(died=(year == VISITS - 1) & (rng.random(len(who)) < 0.7))


def table(rows: pd.DataFrame) -> SiteRows:
    targets = rows[["stop", "died", "start"]].to_numpy(float)
    targets = np.column_stack([targets, np.zeros(len(rows))])
    return SiteRows("", Schema.load(SCHEMA), targets, None,
                    rows[["dose", "height"]].to_numpy(float), np.empty((len(rows), 0), "U1"),
                    clusters=rows["who"].to_numpy(),
                    cluster_names=[f"p{k}" for k in range(PEOPLE)])  # fmt: skip


MESSES = {  # what site b does to its rows, and what is said
    "as it is": (lambda d: d, ""),
    "means": (lambda d: d.assign(dose=d.groupby("who")["dose"].transform("mean")),
              "column 'dose': it varies within none of 30 clusters of b, and elsewhere within 1"),
    "ages": (lambda d: d.assign(height=d["height"] + d["start"]),
             "column 'height': it varies within 30 of 30 clusters of b, and within none of 60"),
    "first row": (lambda d: d.assign(died=np.roll(d["died"], 1 - VISITS)),
                  "events of b have later rows of their cluster, and none of "),
    "corrected": (lambda d: pd.concat([d, d.assign(height=d["height"] + 1)]),
                  "rows of one cluster have the same 'dose', 'stop' at b, and never elsewhere"),
    "join": (lambda d: d.merge(d[["who", "dose"]], on="who", suffixes=("", "2")),
             "column 'who': clusters of b have 16 rows on average, and elsewhere 4: are rows mult"),
    "cut short": (lambda d: d.assign(who=d["who"] // 6),
                  "the 5 clusters of b have 24 rows (median), and elsewhere 4: are they larger"),
    "step": (lambda d: d.assign(start=d["stop"] - 0.1),
             "column 'start': 100% of the rows of b, also those with events, end 0.1 after it, "),
    "since the first": (lambda d: d.assign(start=0.0),
                        "90 of 90 rows of b begin before the end of the row before of their 'who'"),
}  # fmt: skip


@pytest.mark.parametrize("mess", MESSES)
def test_clusters_and_events_unlike_those_elsewhere(mess):
    change, words = MESSES[mess]
    frames = {name: visits(k) for k, name in enumerate("abc")}
    frames["b"] = change(frames["b"])
    said = list(rows_beside_others([*frames], [*map(table, frames.values())]))
    assert any(words in line for line in said) if words else said == []


@pytest.mark.parametrize(("gap", "said"), [(0.0, False), (0.4, True)])
def test_entries_of_all_sites_that_are_ends_less_a_step(gap, said):
    """Rows of one length that follow each other are honest."""
    sites = [visits(k) for k in range(3)]
    for rows in sites:
        begin = rows["start"] + rows["who"]
        rows["stop"], rows["start"] = begin + 1, begin + gap
    found = [*unlike_intervals("abc", [*map(table, sites)])]
    assert ["is it 'stop' less a fixed step?" in line for line in found] == [True] * said


@pytest.mark.parametrize("entry", ["start", ""])
def test_rows_that_follow_each_other_have_entries(entry):
    """Each event is in its person's last row."""
    without = {key: value for key, value in SCHEMA.items() if key != "entry"}
    schema = Schema.load(SCHEMA if entry else without)
    sites = [replace(table(visits(k)), schema=schema) for k in range(3)]
    said = [line for line in rows_beside_others("abc", sites) if "entry = " in line]
    assert ["are in the row with the latest 'stop'" in line for line in said] == [True] * (
        not entry
    )


@pytest.mark.parametrize(("until", "said"), [(9.0, False), (1.0, True)])
def test_events_that_are_recorded_up_to_a_time_only(until, said):
    sites = [visits(k) for k in range(3)]
    for rows in sites:
        rows["died"] = np.random.default_rng(len(rows)).random(len(rows)) < 0.3
    sites[2]["died"] &= sites[2]["stop"] <= until
    found = [*no_later_events("died", "abc", [*map(table, sites)])]
    assert ["no event of c is after " in line for line in found] == [True] * said
