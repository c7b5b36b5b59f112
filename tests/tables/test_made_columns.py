"""Columns that one site made: of outcomes, in turn, sorted, on a line; and times of schemas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tabular import lines, numeric, run

from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.checks.in_order import taking_turns
from flower_fedcon.tables.checks.stated_times import stated_times
from flower_fedcon.tables.read import columns_of
from flower_fedcon.tables.survey import Client, survey

SCHOOLS, EACH = 30, 6
SCHEMA = {"target": "score", "cluster": "school", "weight": "w", "weight_kind": "sampling",
          "features": numeric("age", "urea", flag="categorical", girl="categorical")}  # fmt: skip


def rows(site: int) -> pd.DataFrame:
    rng, n = np.random.default_rng(site), SCHOOLS * EACH
    age = rng.uniform(50, 90, n).round()
    flag = rng.random(n) < 0.3
    return pd.DataFrame({
        "school": np.repeat(np.arange(SCHOOLS), EACH) + 100 * site, "age": age,
        "urea": (age / 90 + rng.normal(1, 0.3, n)).round(2), "flag": flag.astype(int),
        "girl": rng.integers(0, 2, n), "score": (rng.normal(size=n) + flag).round(3),
        "w": rng.choice([3.405, 9.25, 19.968], n),
    })  # fmt: skip


def on_a_line(slope: float, digits: int):
    def change(d: pd.DataFrame) -> pd.DataFrame:
        some = np.arange(len(d)) % 2 == 0
        return d.assign(urea=np.where(some, (0.9 + slope * d["age"]).round(digits), d["urea"]))

    return change


def flagged(d: pd.DataFrame) -> pd.DataFrame:
    return d.assign(flag=(d["score"] > 1).astype(int))


def apart(d: pd.DataFrame) -> pd.DataFrame:
    """Two kinds of rows, far from each other."""
    return d.assign(score=d["score"] + 9 * d["flag"])


def in_turn(d: pd.DataFrame) -> pd.DataFrame:
    return d.assign(flag=np.arange(len(d)) % 2)


def sorted_alone(d: pd.DataFrame) -> pd.DataFrame:
    return d.assign(girl=np.sort(d["girl"]))


MESSES = {  # what is done to rows, at b alone or at all sites, and what is said of b
    "nothing": (lambda d: d, "b", ""),
    "flag": (flagged, "b", "column 'flag': at b all 46 rows with '1' have a 'score' from 1.002 on"),
    "flag everywhere": (flagged, "abc", ""),
    "another kind": (apart, "b", ""),
    "in turn": (in_turn, "b", "column 'flag': its 2 values take turns in all 180 rows of b, and"),
    "in turn everywhere": (in_turn, "abc", ""),
    "sorted": (sorted_alone, "b", "column 'girl': rows with the same value follow each other"),
    "sorted file": (lambda d: d.sort_values("girl", kind="stable"), "b", ""),
    "line": (on_a_line(0.01234, 3), "b", "column 'urea': 83 of 180 values of b lie on a line"),
    "line everywhere": (on_a_line(0.01234, 3), "abc", ""),
    "half": (on_a_line(0.5, 3), "b", ""),
    "coarse line": (on_a_line(0.01234, 1), "b", ""),
    "mean weight": (lambda d: d.assign(w=10.874), "b", "column 'w': it is 10.874 in all rows of b"),
    "one stratum": (lambda d: d.assign(w=9.25), "b", ""),
}  # fmt: skip
ASKED = ("is one made from", "written in turn", "sorted without the others there", "regression?",
         "is it not known")  # fmt: skip


def test_turns_of_other_lengths_are_files_of_visits():
    visits = [np.arange(60.0) % length for length in (3, 2, 3)]
    assert list(taking_turns("visit", "abc", visits)) == []


@pytest.mark.parametrize("mess", MESSES)
def test_columns_made_at_one_site(mess, tmp_path):
    """Said by the check, and of the same files in a run."""
    change, at, words = MESSES[mess]
    frames = {name: rows(k) for k, name in enumerate("abc")}
    schema, clients = Schema.load(SCHEMA), []
    for name, frame in frames.items():
        (change(frame) if name in at else frame).to_csv(tmp_path / f"{name}.csv", index=False)
        columns = columns_of(tmp_path / f"{name}.csv", schema)
        clients.append(Client(name, columns, columns.table()))
    by_check = survey(clients).findings
    by_run = tables(data=f"{tmp_path}/*.csv", schema=SCHEMA).preparation.remarks
    assert set(by_run) <= set(by_check)
    told = [line for line in by_run if any(asked in line for asked in ASKED)]
    assert len(told) == bool(words)
    assert all(line.startswith(words) for line in told)


def followed(turned: bool) -> tuple[list[list[str]], str]:
    """Days up to a date, or death; and the cells' mark of death."""
    sites = []
    for site in range(3):
        rng = np.random.default_rng(site)
        days, end = rng.exponential(900, 80), rng.uniform(1000, 1500, 80)
        told = zip(np.minimum(days, end).round(1), days <= end, rng.normal(size=80), strict=True)
        sites.append(["days,dead,x", *(f"{t},{int(seen)},{x}" for t, seen, x in told)])
    return sites, "0" if turned else "1"


@pytest.mark.parametrize(("turned", "curves", "said"), [
    (False, [365, 730], []),
    (True, [365, 730, 1500], ["column 'dead': rows with its value 0, which stands for an event"]),
    (False, [12, 24], [" events are counted up to 24, the last of curve_times: are "]),
    (False, [36500, 73000], ["curve_times begin at 36500, and all 'days' are below 1"]),
])  # fmt: skip
def test_a_schema_that_is_wrong_at_all_sites(turned, curves, said, tmp_path):
    """The report names the value of an event, and how many events curves show."""
    sites, mark = followed(turned)
    lines(tmp_path, **dict(zip("abc", sites, strict=True)))
    values = ["1", "0"] if turned else ["0", "1"]
    schema = {"target": "days", "event": "dead", "event_values": values, "curve_times": curves,
              "features": numeric("x")}  # fmt: skip
    problem = tables(data=f"{tmp_path}/*.csv", schema=schema)
    text = " ".join(run(problem, 2).report.text.split())
    assert f"rows with an event in column 'dead' (of value {mark}): " in text
    deaths = [line.split(",") for site in sites for line in site[1:]]
    times = [float(t) for t, seen, _ in deaths if seen == mark]
    early = sum(t <= curves[-1] for t in times)
    assert f"{early} of {len(times)} events are counted up to {curves[-1]}, the last" in text
    told = [*stated_times([columns_of(tmp_path / f"{k}.csv", Schema.load(schema)).table()
                           for k in "abc"])]  # fmt: skip
    assert len(told) == len(said)
    assert all(words in line for words, line in zip(said, told, strict=True))
    assert set(told) <= set(problem.preparation.remarks)
