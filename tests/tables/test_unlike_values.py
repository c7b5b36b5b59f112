"""Columns that a site gives in another form, or in other rows: what is said, and of whom."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tabular import lines, run
from test_slips import SCHEMA, patients, said_of

from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.checks.conspicuous import in_another_unit, scales
from flower_fedcon.tables.checks.odd_values import odd_values
from flower_fedcon.tables.checks.spikes import spikes
from flower_fedcon.tables.checks.unlike_relations import PREDICTED
from flower_fedcon.tables.checks.unlike_values import carried, unlike_values
from flower_fedcon.tables.schema import Feature
from flower_fedcon.tables.site_rows import SiteRows

AGES = [np.random.default_rng(k).normal(55, 12, 80).round() for k in range(3)]
FORMS = {  # what a site gives for ages, and the end of what is said of it
    "years of birth": (lambda x: 1990 - x, "another unit?"),
    "years": (lambda x: x + 1900, "another unit?"),  # features alone have years of two digits
    "in days": (lambda x: 365 * x, "another unit?"),
    "z": (lambda x: (x - x.mean()) / x.std(), "are they standardised there?"),
    "z of a sample": (lambda x: ((x - 52) / 11).round(2), "are they standardised there?"),
    "ln": (np.log, "are they logarithms there?"),
    "log10": (np.log10, "are they logarithms there?"),
    "a share": (lambda x: x / 100, "another unit?"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_column_is_named(form):
    made, asked = FORMS[form]
    a, b, c = AGES
    (said,) = in_another_unit("age", ["a", "b", "c"], [a, made(b), c])
    assert said.startswith("column 'age': values at b ")
    assert said.endswith(asked)
    assert "e-1" not in said  # a mean of 0, not of rounding


@pytest.mark.parametrize("factor", [20, 100, 1000])
def test_of_logarithms_the_ratio_of_values_is_said(factor):
    """Of 1 + value it is less, 14 for 20 and 67 for 100."""
    each = [np.log1p(np.random.default_rng(k).lognormal(1, 0.5, 300) * by)
            for k, by in enumerate([1, factor, 1])]  # fmt: skip
    n, mean = np.full(3, 300.0), float(np.mean(each))
    about = np.sum((np.array(each) - mean) ** 2, axis=1)
    feature = Feature("dose", transform="log1p")
    (said,) = scales(feature, "abc", n, np.sum(each, axis=1), about, mean)
    shown = float(said.partition("about ")[2].partition(" times")[0])
    assert shown == pytest.approx(factor, rel=0.15)


def test_values_carried_forward_in_thousands_of_clusters():
    clusters, values = np.repeat(np.arange(3000), 5), np.random.default_rng(0).normal(size=15_000)
    held = values.reshape(-1, 5).copy()
    held[::4, 3:] = held[::4, 2:3]
    (said,) = carried("ab", [values, held.ravel()], [clusters, clusters])
    assert said.startswith("750 of the 3000 clusters of b end with 3 rows or more of one value")


@pytest.mark.parametrize(("filled", "said"), [
    ([], 0), ([12.0, 13.5], 1), ([12.0], 1), ([10.0, 11.0, 12.0, 13.0, 14.0, 15.0], 0),
])  # fmt: skip
def test_limits_for_missing_values_are_said_and_heaping_is_not(filled, said):
    """Of haemoglobin by sex; 30 rows each."""
    sites = [np.random.default_rng(k).normal(13, 2, 240).round(1) for k in range(3)]
    rows = np.random.default_rng(9).permutation(240)[: 30 * len(filled)]
    sites[1][rows] = np.repeat(filled, 30)
    assert len([*spikes("abc", sites)]) == said


@pytest.mark.parametrize("known", [False, True])
def test_rows_of_one_patient_count_once(known):
    """The youngest of 30 patients has 40 rows, and each other one has 5."""
    clusters = np.repeat(np.arange(30), np.append(40, np.full(29, 5)))
    sites = []
    for k in range(2):
        x = np.arange(20.0 - 12 * k, 50.0 - 12 * k)[clusters]
        sites.append(
            SiteRows(
                "",
                Schema("y", {"age": "numeric"}, loss="squared"),
                np.random.default_rng(k).normal(size=len(x)),
                None,
                x[:, None],
                np.empty((len(x), 0), "U1"),
                clusters=clusters if known else None,
            )
        )
    assert bool([*unlike_values("ab", sites)]) == (not known)


@pytest.mark.parametrize(("form", "asked"), [
    (np.log1p, "are they logarithms there?"), (lambda x: x, None), (lambda x: x / 7, "unit?"),
    (lambda x: np.digitize(x, [20, 40, 80]) + 2.0, "are they codes there, or in another unit?"),
])  # fmt: skip
def test_the_form_of_skewed_numbers_is_named(form, asked):
    a, b, c = (np.random.default_rng(k).lognormal(3.5, 1.3, 200).round() for k in range(3))
    said = in_another_unit("pgr", ["a", "b", "c"], [a, form(b), c])
    assert [line.endswith(asked) for line in said] == [True] if asked else said == []


@pytest.mark.parametrize(("form", "said"), [
    (lambda x: 10 * x, r"about (6|7|8|9|1\d) .*another unit\?$"),
    (lambda x: x / 10, r"about 1/(8|9|1\d)(\.\d)? .*another unit\?$"),
    (lambda x: x / 1000, r"about 1/\d,?\d{3} .*another unit\?$"),
    (np.log1p, "are they logarithms already there"), (lambda x: x, None),
    (lambda x: np.where(np.arange(len(x)) % 10 < 7, 0, x), None),  # more zeros
])  # fmt: skip
def test_the_form_of_numbers_whose_log1p_is_used_is_named(form, said):
    rngs = [np.random.default_rng(k) for k in range(3)]
    a, b, c = (np.where(r.random(200) < 0.1, 0, r.lognormal(3.8, 1.6, 200).round()) for r in rngs)
    each = [np.log1p(a), np.log1p(form(b)), np.log1p(c)]
    n, sums = np.full(3, 200.0), np.array([own.sum() for own in each])
    squares = np.array([((own - sums.sum() / 600) ** 2).sum() for own in each])
    feature = Feature("pgr", transform="log1p")
    told = scales(feature, ["a", "b", "c"], n, sums, squares, sums.sum() / 600)
    assert [line for line in told if not (said and "at b" in line and re.search(said, line))] == []
    assert len(told) == bool(said)


def test_sizes_of_which_mean_and_spread_are_smaller_unlike_are_in_another_unit():
    a, b, c = (np.random.default_rng(k).normal(400, 60, 80) for k in range(3))
    (said,) = in_another_unit("size", ["a", "b", "c"], [a, 30 + (b - 400) / 300, c])
    assert "values at b" in said
    assert said.endswith("another unit?")


def test_points_between_thousands_and_hundreds_are_asked_about():
    days = np.random.default_rng(0).integers(8, 2660, 200).astype(float)
    (said,) = odd_values(np.where(days < 1000, days, days / 1000), np.arange(1, 201), "")
    assert "does the point stand between thousands and hundreds?" in said
    assert not [*odd_values(days, np.arange(1, 201), "")]
    assert not [*odd_values(days / 1000, np.arange(1, 201), "")]


@pytest.mark.parametrize(("born", "said"), [
    (lambda x: 1960 - x, "another unit?"), (lambda x: 1990 - x, "two digits, or ages, at a, c"),
])  # fmt: skip
def test_years_of_birth_beside_ages_are_no_years_of_two_digits(born, said, tmp_path, run_command):
    sites = {name: patients(k) for k, name in enumerate("abc")}
    sites["b"][:, 2] = born(sites["b"][:, 2])
    told = said_of(tmp_path, run_command, **sites)
    assert said in told
    assert ("two digits" in told) != ("another unit" in told)


def test_of_a_column_in_another_unit_no_cells_seem_exchanged(tmp_path, run_command):
    """Ages in decades are like numbers of pregnancies elsewhere."""
    rng = np.random.default_rng(0)
    sites = {}
    for name in "abcd":
        npreg, age = rng.poisson(rng.gamma(1.3, 2.7, 140)), rng.integers(21, 60, 140)
        sites[name] = np.column_stack([npreg, age, npreg * 0, age + rng.normal(size=140).round(2)])
    sites["b"][:, 1] //= 10
    told = said_of(tmp_path, run_command, **sites)
    assert "another unit?" in told
    assert "exchanged" not in told


WARDS = "target = 'y'\ncluster = 'ward'\n[features]\nsbp = 'numeric'\n"
GROUPED = {  # what a site writes for wards, row by row, and what is said
    "as elsewhere": (lambda ward, row: ward, ""),
    "row": (lambda ward, row: f"{row}", "each of the 90 rows of b is a cluster of its own, and"),
    "one": (lambda ward, row: "hospital", "all 90 rows of b are one cluster, and elsewhere the"),
    "case": (lambda ward, row: ward.lower() if row % 2 else ward, "b: column 'ward': 'W02' ("),
    "word": (lambda ward, row: ward.replace("W", "ward ") if row % 2 else ward, "and 'ward 02' ("),
    "zero": (lambda ward, row: ward.replace("0", "") if row % 2 else ward, "and 'W2' ("),
    "sign": (lambda ward, row: ward.replace("W", "W-") if row % 2 else ward, "and 'W02' ("),
}  # fmt: skip


@pytest.mark.parametrize("written", GROUPED)
def test_clusters_that_group_no_rows_or_are_written_twice(written, tmp_path, run_command):
    write, words = GROUPED[written]
    for k, name in enumerate("abc"):
        rows = patients(k)
        wards = [f"W{j:02d}" for j in np.random.default_rng(k).integers(2, 12, len(rows))]
        wards = [write(ward, j) if name == "b" else ward for j, ward in enumerate(wards)]
        lines(tmp_path, **{name: ["sbp,y,ward", *map(list, zip(rows[:, 0], rows[:, 3], wards,
                                                               strict=True))]})  # fmt: skip
    (tmp_path / "s.toml").write_text(WARDS)
    out = run_command("data", "check", *(f"{k}.csv" for k in "abc"), "--schema", "s.toml")[1]
    told = " ".join(out.partition("What stands out:")[2].split())
    assert words in told
    assert bool(told) == bool(words)


PLACED = {  # what site c does to its y, with k its cluster, and the end of what is said
    "as it is": (lambda y, k: y, ""),
    "shifted": (lambda y, k: np.roll(y, 1), "fit it only if it is moved up by a row (correlation"),
    "shifted up": (lambda y, k: np.roll(y, -1), "fit it only if it is moved down by a row"),
    "sorted": (lambda y, k: np.sort(y), "its values ascend from row to row at c, where the other"),
    "descending": (lambda y, k: -np.sort(-y), "its values descend from row to row at c"),
    "cut off": (lambda y, k: np.minimum(y, 140), "140 is the greatest value in"),
    "a limit": (lambda y, k: np.maximum(y, 122.5), "122.5 is the least value in"),
    "rounded": (lambda y, k: 10 * np.round(y / 10), "all values at c are multiples of 10, and"),
    "groups": (lambda y, k: 5 + 10 * (y // 10), "all values at c are 5 and multiples of 10 more"),
    "little rounded": (lambda y, k: 2 * np.round(y / 2), ""),
    "filled in": (lambda y, k: np.where(np.arange(len(y)) % 3, y, 131.07), "131.07 is in 33% of"),
    "mostly 0": (lambda y, k: np.where(np.arange(len(y)) % 4, 0, y), "0 is in 67 rows of c and in"),
    "codes": (lambda y, k: 125 + y // 30, "are whole numbers from 128 to 130, and 96% of the oth"),
    "carried": (lambda y, k: np.where(np.arange(len(y)) % 9 > 5, y[k * 9 + 5], y),
                "10 of the 10 clusters of c end with 3 rows or more of one value, and 0 of 20"),
    "filled down": (lambda y, k: np.where(np.arange(90) // 20 == 2, np.sort(y)[44], y),
                    "rows 41 to 60 all have "),
    "whole rows sorted": (None, ""),
}  # fmt: skip


@pytest.mark.parametrize("made", PLACED)
def test_values_that_are_not_those_of_their_rows(made, tmp_path, run_command):
    """In the check, and in the report of a run in this process."""
    change, words = PLACED[made]
    head = "sbp,dbp,age,y,unit"
    for k, name in enumerate("abc"):
        rows, cluster = patients(k), np.arange(90) // 9
        if name == "c" and change is None:
            rows = rows[np.argsort(rows[:, 3])]
        elif name == "c":
            rows[:, 3] = change(rows[:, 3], cluster)
        lines(tmp_path, **{name: [head, *np.column_stack([rows, cluster]).tolist()]})
    (tmp_path / "s.toml").write_text("cluster = 'unit'\n" + SCHEMA)
    out = run_command("data", "check", *(f"{k}.csv" for k in "abc"), "--schema", "s.toml")[1]
    lines_told = out.partition("What stands out:")[2].split("\n- ")
    told = [" ".join(line.split()) for line in lines_told if line.strip()]
    if made == "mostly 0":  # which the other columns do not fit, either
        told = [line for line in told if PREDICTED not in line]
    assert all("column 'y':" in line for line in told)
    assert sum(words in line for line in told) == len(told[:1]) == bool(words)
    report = run(tables(data=f"{tmp_path}/*.csv", schema=f"{tmp_path}/s.toml"), 2).report.text
    assert words in " ".join(report.split())


def test_times_of_follow_up_may_end_on_one_day():
    """At one site follow-up ends at 50; that events do so there is said."""
    rng, schema = np.random.default_rng(0), {"target": "t", "event": "died", "features": {"x": {}}}
    sites = []
    for site in range(3):
        times, events = rng.exponential(60, 120).round(1) + 0.1, rng.random(120) < 0.8
        if site == 1:
            events, times = events & (times < 50), np.minimum(times, 50)
        targets = np.column_stack([times, events]).astype(float)
        sites.append(SiteRows("", Schema.load(schema), targets, None, rng.normal(size=(120, 1)),
                              np.empty((120, 0), "U1")))  # fmt: skip
    assert list(unlike_values("abc", sites)) == []
    sites[1].targets[:, 1] = 1
    (said,) = unlike_values("abc", sites)
    assert said.startswith("column 't': 50 is the greatest value in ")


@pytest.mark.parametrize(("copied", "columns", "said"), [
    (60, [2], "60 rows of b have all values of rows of a but that of 'age', such as row 1 of b and "
     "row 5 of a: are they the same patients?"),
    (9, [2], ""), (60, [1, 2], "24 of 90 rows of a are nearly like one of b in all columns of num"),
])  # fmt: skip
def test_rows_of_another_site_that_differ_in_one_column(
    copied, columns, said, tmp_path, run_command
):
    """A year later, say; few are not sought, and those that differ in two columns are near."""
    sites = {name: patients(k) for k, name in enumerate("abc")}
    sites["b"][:copied] = sites["a"][4 : 4 + copied]
    sites["b"][:copied, columns] += 1
    told = said_of(tmp_path, run_command, **sites)
    assert said in told
    assert bool(told) == bool(said)
