"""Messy tables that fit their schema: what is said of rows, codes and outcomes, and when not."""

from __future__ import annotations

import numpy as np
import pytest
from tabular import lines, run

from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.read import read_table

ROWS = 120
LOGISTIC = "target = 'y'\npositive = [1]\nnegative = [0]\n[features]\n"


def patients(rng, n=ROWS, turned=False, effect=1.5):
    """Rows of an id, a measurement, an age, a number of visits, and an outcome."""
    x, age = rng.normal(size=n).round(3), rng.integers(20, 90, n)
    y = (rng.random(n) < 1 / (1 + np.exp(1.2 - effect * x))) ^ turned
    return [list(row) for row in zip(range(n), x, age, rng.poisson(1, n), y * 1, strict=True)]


def check(folder, run_command, sites, schema, *more):
    """What the check finds standing out."""
    head = "patient_id,x,age,visits,y"
    for name, rows in sites.items():
        lines(folder, **{name: [head, *rows]})
    (folder / "s.toml").write_text(schema)
    files = [f"{name}.csv" for name in sites]
    _, out, err = run_command("data", "check", *files, "--schema", "s.toml", *more)
    assert not err
    return " ".join(out.partition("What stands out:")[2].split())


PLAIN = LOGISTIC + "x = 'numeric'\nage = 'numeric'\nvisits = 'numeric'\n"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_said_of_clean_tables(seed, tmp_path, run_command):
    rng = np.random.default_rng(seed)
    sites = {name: patients(rng, int(rng.integers(30, 200))) for name in ("a", "b", "c")}
    assert check(tmp_path, run_command, sites, PLAIN) == ""


@pytest.mark.parametrize("sites", [2, 3, 4])
def test_events_coded_the_other_way_round_at_one_site(sites, tmp_path, run_command, caplog):
    rng = np.random.default_rng(sites)
    dealt = {f"s{k}": patients(rng, turned=k == 1) for k in range(sites)}
    said = check(tmp_path, run_command, dealt, PLAIN)
    words = (
        "the other way round at one of them"
        if sites == 2
        else "may be coded the other way round at s1 ("
    )
    assert words in said
    history = run(tables(data=f"{tmp_path}/*.csv", schema=f"{tmp_path}/s.toml"), 5)
    assert words in history.report.text
    dealt = {f"s{k}": patients(rng, effect=1.5 * (-1) ** (k == 1)) for k in range(sites)}
    said = check(tmp_path, run_command, dealt, PLAIN)  # another effect, the same coding of events
    assert said.startswith("- column 'x'")
    assert "opposite" in said
    assert said.count("- ") == 1


def test_held_out_rows_show_the_other_coding_on_nodes(tmp_path):
    rng = np.random.default_rng(5)
    for k in range(4):
        own = patients(rng, 600, turned=k == 2)
        lines(tmp_path, **{f"s{k}": ["patient_id,x,age,visits,y", *own]})
    (tmp_path / "s.toml").write_text("test_fraction = 0.3\n" + PLAIN)
    made = tables(data=f"{tmp_path}/s*.csv", schema=f"{tmp_path}/s.toml")
    (said,) = [line for line in run(made, 6).report.quality.lines if "other way round" in line]
    assert said.startswith("the outcome may be coded the other way round at s2 (7")


@pytest.mark.parametrize("known", ["", "cluster = 'patient_id'\n"])
def test_rows_twice_and_patients_that_repeat(known, tmp_path, run_command):
    """By an identifier that the schema need not name."""
    rng = np.random.default_rng(1)
    rows = patients(rng)
    said = check(tmp_path, run_command, {"a": rows + rows[10:15]}, known + PLAIN)
    assert (
        "5 rows have the 'patient_id' and all values of another row, such as rows 11 and 121"
        in said
    )
    again = [[row[0] // 3, *row[1:]] for row in rows]
    said = check(tmp_path, run_command, {"a": again}, known + PLAIN)
    assert ("120 rows have 40 values, each in up to 3 rows" in said) == (not known)
    hours = [[row[0] % 21, *row[1:]] for row in patients(rng, 3 * ROWS)]
    said = check(tmp_path, run_command, {"a": hours}, known + PLAIN)
    assert ("360 rows have 21 values, each in up to 18 rows" in said) == (not known)


@pytest.mark.parametrize(("copied", "said"), [
    ("nothing", []), ("all", ["48 rows have the", "each row occurs 2 times"]),
    ("twelve", ["12 rows have the"]), ("no clusters", ["24 rows have the", "each row occurs 2"]),
    ("to a ward", ["5 rows have the"]),
])  # fmt: skip
def test_clusters_with_all_rows_alike_are_a_design(copied, said, tmp_path, run_command):
    """Pupils are numbered within classes, which get the same tasks."""
    one = [[k, f"{k / 7:.3f}", "yes" if k % 2 else "no"] for k in range(24)]
    two = [[*row, "T1"] for row in one] + [[*row, "T2"] for row in one]
    if copied == "to a ward":  # of patients, whose numbers are of all wards
        two = [[*row, "T1"] for row in one] + [[*row, "T2"] for row in one[:5]]
        two += [[k, f"{k / 7:.3f}", "yes", "T2"] for k in range(30, 40)]
    more = {"all": two, "twelve": two[:12]}.get(copied, [])
    lines(tmp_path, a=["patient_id,x,y,team", *two, *more])
    cluster = "" if copied == "no clusters" else "cluster = 'team'\n"
    (tmp_path / "s.toml").write_text(
        f"target = 'y'\npositive = ['yes']\n{cluster}[features]\nx = 'numeric'\n"
    )
    out = run_command("data", "check", "a.csv", "--schema", "s.toml")[1]
    told = " ".join(out.partition("What stands out:")[2].split())
    words = ["rows have the 'patient_id' and all values", "each row occurs"]
    assert sum(told.count(word) for word in words) == len(said)
    assert all(word in told for word in said)


def test_rows_of_weight_0_count_no_row_twice(tmp_path):
    rows = patients(np.random.default_rng(1))
    twice = [[*row, 1] for row in rows] + [[*row, 0] for row in rows[:9]]
    lines(tmp_path, a=["patient_id,x,age,visits,y,w", *twice])
    schema = {"target": "y", "features": {"x": "numeric"}, "weight": "w"}
    assert read_table(tmp_path / "a.csv", Schema.load(schema)).notes() == [
        "9 rows have the weight 0, and are left out"
    ]


@pytest.mark.parametrize("kind", ["ward", "few", "number"])
def test_identifiers_of_groups_are_no_patients(kind, tmp_path, run_command):
    rng = np.random.default_rng(2)
    ids = {"ward": rng.integers(0, 8, ROWS), "few": np.arange(ROWS) // 2, "number": np.arange(ROWS)}
    rows = [[own, *row[1:]] for own, row in zip(ids[kind], patients(rng), strict=True)]
    rows = rows[:30] if kind == "few" else rows
    assert check(tmp_path, run_command, {"a": rows}, PLAIN) == ""


@pytest.mark.parametrize("code", [-1, -9, -2])
def test_a_negative_value_in_a_column_of_counts(code, tmp_path, run_command):
    rng = np.random.default_rng(3)
    rows = patients(rng)
    for row in rows[::10]:
        row[3] = code
    said = check(tmp_path, run_command, {"a": rows}, PLAIN)
    assert f"a: column 'visits': {code} (rows 1, 11, 21, 31, 41, 51 and 6 more)" in said
    assert "if it stands for a missing value, add it to missing in the schema" in said
    meant = PLAIN.replace("visits = 'numeric'", "visits = {type = 'numeric', range = [-9, 99]}")
    said = check(tmp_path, run_command, {"a": rows}, meant)
    assert ("-9 (rows 1," in said) == bool(said) == (code == -9)  # which fills in elsewhere, too


@pytest.mark.parametrize(("known", "said"), [
    ("", True), ("reference = 'none'", False), ("categories = ['none', 'some']", False),
])  # fmt: skip
def test_a_category_that_the_schema_names_is_no_mark(known, said, tmp_path, run_command):
    rows = patients(np.random.default_rng(3))
    rows = [[*row[:3], ("none", "some")[row[2] % 2], row[4]] for row in rows]
    drug = f"visits = {{type = 'categorical', {known}}}".replace(", }", "}")
    found = check(tmp_path, run_command, {"a": rows}, LOGISTIC + f"x = 'numeric'\n{drug}\n")
    assert ("'none' (" in found) == said


def test_several_negative_codes(tmp_path, run_command):
    rng = np.random.default_rng(3)
    rows = patients(rng)
    rows[3][2], rows[4][2], rows[5][2] = -99, -88, -99
    said = check(tmp_path, run_command, {"a": rows}, PLAIN)
    assert "column 'age': -99 (rows 4, 6)" in said
    assert "column 'age': -88 (row 5)" in said


def test_negative_values_of_a_continued_column_are_no_codes(tmp_path, run_command):
    rng = np.random.default_rng(4)
    for mean in (3, 5, 8):
        rows = [[*row[:3], round(rng.normal(mean, 2.5)), row[4]] for row in patients(rng)]
        assert check(tmp_path, run_command, {"a": rows}, PLAIN) == ""


@pytest.mark.parametrize(
    ("codes", "more", "said"),
    [
        ([1, 2, 3, 4], "", True),
        ([3, 6, 7], "", True),
        ([0, 1], "", False),
        ([1, 2], "", False),
        ([1, 2, 3, 4], ", range = [1, 4]", False),
        (range(1, 12), "", False),
        ([1, 2, 2.5], "", False),
    ],
)
def test_codes_as_numbers_are_said_once(codes, more, said, tmp_path, run_command):
    rng = np.random.default_rng(4)
    sites = {
        name: [[*row[:3], rng.choice(list(codes)), row[4]] for row in patients(rng)]
        for name in ("a", "b")
    }
    schema = PLAIN.replace("visits = 'numeric'", f"visits = {{type = 'numeric'{more}}}")
    out = check(tmp_path, run_command, sites, schema)
    assert out.count("and one slope is fitted to them") == said
    report = run(tables(data=f"{tmp_path}/*.csv", schema=f"{tmp_path}/s.toml"), 3).report
    assert report.text.count("and one slope is fitted to them") == said


def head_and(folder, run_command, frames):
    """What the check says of sites' rows of age, bmi, sex and outcome."""
    for name, rows in frames.items():
        lines(folder, **{name: ["age,bmi,sex,y", *rows]})
    features = "age = 'numeric'\nbmi = 'numeric'\nsex = 'categorical'\n"
    (folder / "s.toml").write_text(LOGISTIC + features)
    files = [f"{name}.csv" for name in frames]
    out = run_command("data", "check", *files, "--schema", "s.toml")[1]
    return " ".join(out.partition("What stands out:")[2].split())


def people(seed, n=80):
    """Rows of age, body mass index, sex and outcome."""
    rng = np.random.default_rng(seed)
    age, bmi = rng.integers(20, 90, n), rng.normal(27, 4, n).round(1)
    y = rng.random(n) < 1 / (1 + np.exp((55 - age) / 15))
    return [list(row) for row in zip(age, bmi, rng.choice(["f", "m"], n), y * 1, strict=True)]


def changed(place, change):
    """What a mess does to a column of rows, given their numbers."""

    def mess(rows):
        for number, row in enumerate(rows):
            row[place] = change(number, row)
        return rows

    return mess


def with_last(combine):
    """What adds a last row of totals."""
    return lambda rows: [
        *rows, [f"{combine([row[place] for row in rows]):.2f}" for place in (0, 1)] + ["m", 1]
    ]  # fmt: skip


MESSES = {
    "sums": (with_last(sum), "the last row has the sums of all rows above it in columns 'age', 'b"),
    "means": (with_last(np.mean), "the last row has the means of all rows above it in columns"),
    "exchanged": (lambda rows: [[b, a, *more] for a, b, *more in rows],
                  "columns 'age' and 'bmi' seem exchanged at a"),
    "dates": (changed(0, lambda k, row: 20240101 + 100 * (k % 12) + k % 28),
              "its numbers are dates, such as 20240101"),
    "one value": (changed(1, lambda k, row: 27.5), "all 80 known values at a are 27.5, and they "),
    "zeros": (changed(1, lambda k, row: 0 if k < 6 else row[1]),
              "column 'bmi': 0 (rows 1, 2, 3, 4, 5, 6), and all others at this site from 1"),
    "one negative": (changed(0, lambda k, row: -1 if k == 3 else row[0]),
                     "column 'age': -1 (row 4) is the only negative value"),
    "tens": (changed(1, lambda k, row: 10 * row[1] if k < 30 else row[1]),
             "30 rows from 204 to 307 (rows 1, 2, 3, 4, 5, 6 and 24 more) are far from all others"),
    "leak": (changed(1, lambda k, row: 20 + 9 * row[3] + k / 100),
             "column 'bmi' alone tells the outcome of all 160 rows"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MESSES)
def test_more_messes_are_said(kind, tmp_path, run_command):
    mess, said = MESSES[kind]
    other = mess(people(2)) if kind == "leak" else people(2)
    assert said in head_and(tmp_path, run_command, {"a": mess(people(1)), "b": other})


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_said_of_people(seed, tmp_path, run_command):
    sites = {name: people(4 * seed + k, 40 + 30 * k) for k, name in enumerate("abc")}
    assert head_and(tmp_path, run_command, sites) == ""


def test_a_column_that_is_the_target_in_another_unit_is_said(tmp_path, run_command):
    rng = np.random.default_rng(0)
    rows = [[y, 2.5 * y + 3, *rng.normal(size=1)] for y in rng.normal(size=40).tolist()]
    lines(tmp_path, a=["y,copy,x", *rows])
    (tmp_path / "s.toml").write_text("target = 'y'\n[features]\ncopy = 'numeric'\nx = 'numeric'")
    out = run_command("data", "check", "a.csv", "--schema", "s.toml")[1]
    assert "column 'copy' alone tells the outcome of all 40 rows" in " ".join(out.split())
    assert "'x' alone" not in out


def test_nothing_stands_out_is_not_said_of_tables_that_do_not_fit(tmp_path, run_command):
    rng = np.random.default_rng(4)
    lines(tmp_path, a=["patient_id,x,age,visits,y", *patients(rng)])
    lines(tmp_path, b=["patient_id,x,age,visits,y", "1,2,old,3,1"])
    (tmp_path / "s.toml").write_text(PLAIN)
    for files in (("a.csv", "b.csv"), ("b.csv",)):
        code, out, _ = run_command("data", "check", *files, "--schema", "s.toml")
        assert code == 1
        assert "Nothing stands out" not in out
    assert "Nothing stands out." in run_command("data", "check", "a.csv", "--schema", "s.toml")[1]


@pytest.mark.parametrize(("codes", "said"), [((1, 2), 1), ((-1, 1), 1), ((0, 1), 0), ((1, 3), 0)])
def test_two_values_that_are_coded_differently_at_one_site(codes, said, tmp_path, run_command):
    rng, sites = np.random.default_rng(2), {}
    for name in "abc":
        own = codes if name == "b" else (0, 1)
        sites[name] = [[*row[:3], own[int(rng.integers(2))], row[4]] for row in patients(rng)]
    out = check(tmp_path, run_command, sites, PLAIN)
    words = f"its two values are {codes[0]} and {codes[1]} at b, and 0 and 1 elsewhere"
    assert out.count(words) == said == out.count("coded differently")
    remarks = tables(data=f"{tmp_path}/*.csv", schema=f"{tmp_path}/s.toml").preparation.remarks
    assert sum(words in line for line in remarks) == said


def test_a_linear_target_of_two_values_is_said(tmp_path, run_command):
    rng = np.random.default_rng(3)
    sites = {name: patients(rng) for name in "ab"}
    linear = PLAIN.replace("positive = [1]\nnegative = [0]\n", "")
    words = "target 'y' has two values, 0 and 1, and a linear model is fitted: positive = [1]"
    assert words in check(tmp_path, run_command, sites, linear)
    assert (
        words in run(tables(data=f"{tmp_path}/*.csv", schema=f"{tmp_path}/s.toml"), 3).report.text
    )


def test_a_copy_of_a_binary_outcome_is_said(tmp_path, run_command):
    rng = np.random.default_rng(4)
    sites = {name: [[*r[:3], 2 * r[4], r[4]] for r in patients(rng)] for name in "ab"}
    out = check(tmp_path, run_command, sites, PLAIN)
    assert "column 'visits' alone tells the outcome of all 240 rows" in out


def test_rows_of_another_site_are_said_with_those_alike_by_chance(tmp_path, run_command):
    rng = np.random.default_rng(5)
    a, b = ([[0, 0, int(v), 0, int(y)] for v, y in rng.integers([900, 2], size=(120, 2))]
            for _ in "ab")  # fmt: skip
    schema = LOGISTIC + "age = 'numeric'\n"
    assert "also held" not in check(tmp_path, run_command, {"a": a, "b": b}, schema)
    b[:90] = a[:90]
    out = check(tmp_path, run_command, {"a": a, "b": b}, schema)
    assert "of the 120 rows of" in out
    assert "by chance): are they counted twice?" in out


@pytest.mark.parametrize(
    ("turned", "follow_up", "said"), [(1, 1, True), (0, 1, False), (1, 0.25, False)]
)
def test_events_of_times_the_other_way_round(turned, follow_up, said, tmp_path, run_command):
    """Are said of a site by its share; not where shorter times explain the share."""
    rng, sites = np.random.default_rng(8), {}
    for name in "abc":
        x, t, seen = rng.normal(size=120), rng.exponential(size=120), rng.random(120) < 0.75
        other = name == "b"
        t = t * follow_up if other else t
        columns = np.arange(120), x, x, t + 0.01, seen ^ (other and turned)
        sites[name] = [[*row[:4], int(row[4])] for row in zip(*columns, strict=True)]
    schema = "target = 'visits'\nevent = 'y'\nloss = 'cox'\n[features]\nx = 'numeric'\n"
    out = check(tmp_path, run_command, sites, schema)
    assert ("are events coded the other way round there?" in out) == said
