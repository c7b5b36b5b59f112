"""What stands out in tables: said before round 1 on any engine, and by `fedcon data check`."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
from harness import refusal
from hypothesis import given
from hypothesis import strategies as st
from tabular import lines, numeric, run

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.strategies import FedAvg
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.checks.collinear import combinations
from flower_fedcon.tables.marks import near_duplicates

RNG = np.random.default_rng(0)
ROWS = 30


def column(kind, site):
    """A column of one of two sites, with what is wrong with it."""
    x = RNG.normal(27, 4, ROWS).round(1)
    if kind == "scale":
        return x * (1000 if site == "b" else 1)
    if kind == "nines":
        return np.where(np.arange(ROWS) < 3, -999, x)
    if kind == "empty":
        return [""] * ROWS if site == "b" else x
    if kind == "number":
        return np.arange(ROWS) + (site == "b") * ROWS
    if kind == "id":
        return [f"{site}{i}" for i in range(ROWS)]
    marks = {"case": "fm" if site == "a" else "FM", "word": ["m", "male", "f"], "gap": ["x", "N/A"],
             "one": ["1", "1.0", "2"], "reference": ["u", "v"]}  # fmt: skip
    return RNG.choice(list(marks[kind]), ROWS)


KINDS = {
    "scale": "column 'scale': values at b are about 1,0",
    "nines": "a: column 'nines': -999 (rows 1, 2, 3): if it stands for a missing value, add it to",
    "empty": "column 'empty': no values from b, so the others' mean is used",
    "number": "b: column 'number' has a different whole number in each row: is it an identifier?",
    "id": "column 'id' has as many categories as rows at a, b: is it an identifier? Leave it out",
    "case": "column 'case': categories that no other client has, and no others: a has f, m; b has ",
    "word": "are 2 categories: do they mean the same?",
    "gap": "column 'gap': 'N/A' (",
    "one": "column 'one': taken as one: '1",
    "reference": "column 'reference': its reference 'z' occurs in no row, so the columns of",
}
NUMERIC = ("scale", "nines", "empty", "number")
IN_SUMS = ("scale", "empty", "id", "case", "word", "gap", "reference")  # nodes tell of these, too


@pytest.fixture
def sites(tmp_path):
    """Two sites with one of each, and a pair of columns that are one."""
    for site in "ab":
        columns = {kind: column(kind, site) for kind in KINDS}
        columns["x"] = RNG.normal(size=ROWS)
        columns["twice"] = 2 * columns["x"] + 3
        columns["y"] = columns["x"] + RNG.normal(size=ROWS)
        lines(tmp_path, **{site: [columns, *zip(*columns.values(), strict=True)]})
    features = {kind: "numeric" if kind in NUMERIC else "categorical" for kind in KINDS}
    features |= {"x": "numeric", "twice": "numeric"}
    del features["reference"]
    stated = [f'{name} = "{kind}"' for name, kind in features.items()]
    reference = 'reference = {type = "categorical", categories = ["z", "u", "v"]}'
    text = "\n".join(['target = "y"', "[features]", *stated, reference])
    (tmp_path / "schema.toml").write_text(text)
    return tmp_path


def test_the_check_looks_across_sites(sites, run_command):
    arguments = ("data", "check", "a.csv", "b.csv", "--schema", "schema.toml")
    code, out, err = run_command(*arguments, "--output", "columns.csv")
    assert (code, err) == (0, "")
    said = out.partition("What stands out:\n")[2]
    assert {kind for kind, words in KINDS.items() if words not in said} == set()
    assert "60 columns" not in said  # 30 categories of an id leave no room for combinations
    with open("columns.csv", newline="") as file:
        told = {(row["column"], row["client"], row["category"]): row
                for row in csv.DictReader(file)}  # fmt: skip
    own = read_table("a.csv", Schema.load("schema.toml"))
    scale = own.numeric[:, 0]
    assert told["scale", "a", ""]["missing"] == "0"
    assert float(told["scale", "a", ""]["least"]) == scale.min()
    assert float(told["scale", "a", ""]["mean"]) == pytest.approx(scale.mean())
    assert float(told["scale", "a", ""]["greatest"]) == scale.max()
    assert told["empty", "b", ""]["missing"] == str(ROWS)
    females = (own.categories[:, 1] == "f").sum()
    assert told["case", "a", "f"]["values"] == str(females)
    assert len([key for key in told if key[:2] == ("id", "b")]) == ROWS + 1


def test_a_reference_that_no_client_has_is_refused(sites, run_command):
    """By the check and by a run: the other categories' columns would sum to 1."""
    text = (sites / "schema.toml").read_text()
    text = text.replace('categories = ["z", "u", "v"]', 'reference = "V"')
    (sites / "schema.toml").write_text(text)
    words = "its reference 'V' is no category of any client: name one that occurs ('u', 'v')"
    code, out, _ = run_command("data", "check", "a.csv", "b.csv", "--schema", "schema.toml")
    assert code == 1
    assert out.count(words) == out.count("its reference") == 1
    with pytest.raises(ConfigError, match="its reference 'V' is no category of any client"):
        tables(data=f"{sites}/*.csv", schema=f"{sites}/schema.toml")


def test_remarks_before_round_1_end_the_report_unless_it_is_private(tmp_path, caplog):
    two_sites(tmp_path, np.random.default_rng(6), change_x=lambda x: 12 * x)
    problem = tables(data=f"{tmp_path}/*.csv", schema=SCHEMA)
    (told,) = [r.message.removeprefix("tables: ") for r in caplog.records]
    run(problem, 1, run_dir=tmp_path / "run")
    text = (tmp_path / "run" / "report.txt").read_text()
    assert text.endswith(f"\n\nRemarks\n- {told}\n")
    assert problem.preparation.remarks
    private = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    method = FedAvg(client_lr=0.1, local_steps=1, regularizer=problem.regularizer, privacy=private)
    report = simulate(method, problem, num_rounds=1).report
    assert report.remarks == ()
    assert "Remarks" not in report.text
    two_sites(tmp_path, np.random.default_rng(6))
    plain = tables(data=f"{tmp_path}/*.csv", schema=SCHEMA)
    assert "Remarks" not in run(plain, 1).report.text


def test_a_file_of_all_clients_is_looked_at_client_by_client(sites, run_command):
    head, *rows = (sites / "a.csv").read_text().splitlines()
    more = (sites / "b.csv").read_text().splitlines()[1:]
    lines = [f"{head},site", *(f"{row},a" for row in rows), *(f"{row},b" for row in more)]
    (sites / "all.csv").write_text("\n".join([*lines, f"{rows[0]},B"]))
    arguments = ("data", "check", "all.csv", "--schema", "schema.toml", "--client-column", "site")
    code, out, _ = run_command(*arguments)
    assert code == 0
    assert "all.csv: B fits: 1 row to train on, 0 held out" in out
    assert "- column 'site': 'b' and 'B' are taken as 2 clients" in out
    assert KINDS["nines"] in out
    (sites / "all.csv").write_text("\n".join([*lines, f"{rows[0]},"]))
    code, out, _ = run_command(*arguments)
    assert code == 1
    assert f"all.csv: row {2 * ROWS + 1}, column 'site': found ''" in out


def check_of(folder, run_command, features, rows_by_site, *more, target="positive = ['yes']"):
    """What the check finds standing out in sites' rows of so many features and an outcome."""
    for site, rows in rows_by_site.items():
        lines(folder, **{site: [[*features, "y"], *rows]})
    named = "\n".join(f"{name} = '{kind}'" for name, kind in features.items())
    (folder / "s.toml").write_text(f"target = 'y'\n{target}\n[features]\n{named}\n")
    files = [f"{site}.csv" for site in rows_by_site]
    return run_command("data", "check", *files, "--schema", "s.toml", *more)[1]


def test_a_category_of_one_client_beside_common_ones_stands_out(tmp_path, run_command):
    """A level named otherwise, or that occurs at one client: with what that client lacks."""
    kind = {"smoking": "categorical"}
    marks = {site: ["never", {"b": "smokes"}.get(site, "former"), "now"] for site in "abc"}
    rows = {site: [(own[i % 3], ("no", "yes")[i % 2]) for i in range(12)]
            for site, own in marks.items()}  # fmt: skip
    said = check_of(tmp_path, run_command, kind, rows)
    assert "b alone has 'smokes' (4 rows), and lacks 'former': another spelling?" in said
    rows["b"] = rows["a"][1:] + rows["a"][:1]
    assert "alone has" not in check_of(tmp_path, run_command, kind, rows)
    rows["c"][0] = ("past", "yes")
    said = check_of(tmp_path, run_command, kind, rows, "--min-rows", "2")
    assert "not told, since they are in fewer than 2 rows (min-rows): 'past' (1 row at c)" in said


@pytest.mark.parametrize(("outcomes", "target", "told"), [
    (("yes", "no"), "positive = ['yes']", True),
    ((3, 0), "loss = 'poisson'", False),
    ((0, 2), "loss = 'poisson'", True),
])  # fmt: skip
def test_a_category_whose_rows_have_one_outcome_stands_out(
    tmp_path, run_command, outcomes, target, told
):
    """Its coefficient has no end, of counts where they are all 0."""
    rare, other = outcomes
    both = [("uv"[i % 2], outcomes[i // 2 % 2]) for i in range(12)]
    rows = {site: [*both, ("w", rare)] for site in "ab"}
    said = check_of(tmp_path, run_command, {"kind": "categorical"}, rows, target=target)
    assert ("column 'kind': all 2 rows of 'w' have one outcome" in said) == told
    assert "rows of 'u'" not in said
    rows["a"][-1] = ("w", other)
    said = check_of(tmp_path, run_command, {"kind": "categorical"}, rows, target=target)
    assert "have one outcome" not in said


@pytest.mark.parametrize(("values", "told"), [
    ([18 + i % 60 for i in range(90)], True),
    ([f"{50 + i / 7:.1f}" for i in range(40)], True),
    ([f"{i * 1017:05d}" for i in range(40)], False),
    ([i * 1017 for i in range(40)], False),
    (["I20", "J44"] * 30, False),
])  # fmt: skip
def test_measured_numbers_as_categories_stand_out(tmp_path, run_command, values, told):
    rows = {"a": [(value, "yes" if i % 2 else "no") for i, value in enumerate(values)]}
    said = check_of(tmp_path, run_command, {"age": "categorical"}, rows)
    assert ("all numbers, close together" in said) == told


def test_what_to_make_of_dates_rows_and_spreadsheets_is_said(tmp_path, run_command):
    rows = {"a": [("1", "yes"), ("1948-03-02", "yes")]}
    said = check_of(tmp_path, run_command, {"age": "numeric"}, rows)
    assert "a.csv: row 2, column 'age': found '1948-03-02', expected" in said
    assert "a date is no number: write years, or days since some day" in said
    assert "a.csv: row 1 is the first below the header, line 2 of a text" in said
    (tmp_path / "a.xlsx").touch()
    _, out, _ = run_command("data", "check", "a.xlsx", "--schema", "s.toml")
    assert ": save it as CSV UTF-8" in out
    (tmp_path / "s.toml").write_text("target = 'y'\ncomplete_cases = True\n")
    said = refusal(run_command, "data", "check", "a.csv", "--schema", "s.toml")
    assert "line 2, column 18)): write true and false in small letters, and texts in quo" in said


def test_levels_that_are_sorted_as_texts_are_asked_about(tmp_path, run_command):
    rows = {site: [(i, 2 * (i % 6)) for i in range(30)] for site in "ab"}
    levels = "levels = ['0', '10', '2', '4', '6', '8']"
    out = check_of(tmp_path, run_command, {"x": "numeric"}, rows, target=levels)
    assert "- target 'y': its levels are numbers out of order (0, 10, 2, 4, 6, 8): are they" in out


def test_an_outcome_of_one_value_is_said(tmp_path, run_command):
    rows = {site: [(i, 7) for i in range(8)] for site in "ab"}
    out = check_of(tmp_path, run_command, {"x": "numeric"}, rows, target="")
    assert "- target 'y' is 7 in all rows, so there is nothing to fit" in out
    assert "- a, b hold exactly the same rows" in out


@pytest.mark.parametrize(("form", "dated"), [
    ("2021-{}-03", True), ("{}/3/2021", True), ("3.{}.21", True), ("2021/{}/03 12:00", True),
    ("{}-4", False),
])  # fmt: skip
def test_dates_as_categories_stand_out(tmp_path, form, dated):
    texts = [form.format(1 + i % 12) for i in range(24)]
    lines(tmp_path, dates=["y,day", *(f"{0.5 + i},{text}" for i, text in enumerate(texts))])
    schema = Schema("y", {"day": "categorical"})
    said = list(read_table(tmp_path / "dates.csv", schema).notes())
    assert [f"column 'day': {texts[0]!r} is a date" in note for note in said] == [True] * dated


@given(
    st.sampled_from(["poisson", "negative_binomial", "squared", "gamma"]),
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 1.5, 0.25]), min_size=3, max_size=9),
)
def test_counts_that_are_no_whole_numbers_stand_out(tmp_path_factory, loss, values):
    folder = tmp_path_factory.getbasetemp()
    lines(folder, counts=["y,x", *(f"{value},{i}.5" for i, value in enumerate(values))])
    table = read_table(folder / "counts.csv", Schema("y", {"x": "numeric"}, loss=loss))
    said = [note for note in table.notes() if "counts" in note]
    parts = [value for value in values if value % 1]
    assert len(said) == (loss in ("poisson", "negative_binomial") and parts != [])
    if said:
        assert (
            f"{len(parts)} of {len(values)} values, such as {parts[0]:g}, are not whole" in said[0]
        )


def test_columns_that_are_combinations_are_named(tmp_path, run_command, caplog):
    """By the check and by a run; and an outcome in another unit by the check."""
    for site, unit in (("a", 1), ("b", 1000)):
        x, z = RNG.normal(50, 9, size=(2, ROWS))
        rows = zip(unit * x, x, z, 3 * x - z, 2 * x + 7, strict=True)
        lines(tmp_path, **{site: ["y,x,z,sum,twice", *rows]})
    features = "\n".join(f'{name} = "numeric"' for name in ("x", "z", "sum", "twice"))
    (tmp_path / "s.toml").write_text(f'target = "y"\nstandardize = false\n[features]\n{features}')
    _, out, _ = run_command("data", "check", "a.csv", "b.csv", "--schema", "s.toml")
    words = ("combination", "collinear", "column 'y'")
    said = [line for line in out.splitlines() if any(word in line for word in words)]
    said = [line for line in said if line.startswith("- ")]
    assert len(said) == 3
    assert any("collinear" in line and "'x'" in line and "'twice'" in line for line in said)
    assert any("'z'" in line and "'sum'" in line for line in said)
    assert "- column 'y': values at b are about 1,0" in out
    tables(data=f"{tmp_path}/*.csv", schema=f"{tmp_path}/s.toml")
    assert {f"- {r.message.removeprefix('tables: ')}" for r in caplog.records} == set(said)


def test_a_run_says_before_round_1_what_sums_show(sites, caplog):
    problem = tables(data=f"{sites}/*.csv", schema=f"{sites}/schema.toml")
    assert problem.names == ("a", "b")
    told = [record.message for record in caplog.records]
    for kind in IN_SUMS:
        assert any(KINDS[kind] in line for line in told), kind
    for kind in ("nines", "number"):  # a node logs these, too, where its file is
        words = KINDS[kind].partition(": ")[2]
        assert any(f".csv: {words}" in line for line in told), kind


def test_many_lines_are_cut(tmp_path, caplog):
    names = [f"c{j}" for j in range(15)]
    for site, scale in (("a", 1.0), ("b", 1e4)):
        lines(tmp_path, **{site: [[*names, "y"], *scale * RNG.normal(size=(ROWS, 16))]})
    tables(data=f"{tmp_path}/*.csv", schema={"target": "y", "features": numeric(*names)})
    assert "tables: 5 more remarks: see `fedcon data check`" in caplog.text


# --- rows that are counted twice, units, marks that look alike -----------------------------------

SCHEMA = {"target": "y", "features": {"x": "numeric", "grade": "categorical"}}


def two_sites(folder, rng, change_x=lambda x: x, change_grade=lambda grade: grade, rows=40):
    """Write a.csv, and b.csv, whose columns are changed; return the lines of each."""
    found = {}
    for site in "ab":
        x = rng.normal(40, 9, rows).round(2)
        grades = [str(rng.choice(["1.5", "2", "III"])) for _ in range(rows)]
        if site == "b":
            x, grades = change_x(x), [change_grade(grade) for grade in grades]
        body = [f"{rng.normal():.4f},{a:.6g},{grade}" for a, grade in zip(x, grades, strict=True)]
        found[site] = ["y,x,grade", *body]
    lines(folder, **found)
    return found


def said_by_a_run(folder, caplog):
    caplog.clear()
    tables(data=f"{folder}/*.csv", schema=SCHEMA)
    return [record.message.removeprefix("tables: ") for record in caplog.records]


def test_a_run_says_which_clients_hold_the_same_rows(tmp_path, caplog):
    """In whatever order, and where one holds more than that."""
    known = two_sites(tmp_path, np.random.default_rng(1))
    assert said_by_a_run(tmp_path, caplog) == []
    lines(tmp_path, **{"a (1)": [known["a"][0], *known["a"][:0:-1]]})
    assert said_by_a_run(tmp_path, caplog) == ["a (1), a hold exactly the same rows"]
    (tmp_path / "a (1).csv").unlink()
    for more, words in (
        (known["a"][1:31], "30 of the 40 rows of a are also held by b: are they counted twice?"),
        (known["b"][1:], "each row occurs 2 times at b: are rows counted repeatedly?"),
    ):
        lines(tmp_path, b=[*known["b"], *more])
        assert said_by_a_run(tmp_path, caplog) == [words]


def test_rows_that_are_alike_by_chance_are_not_said(tmp_path, caplog):
    for site in "ab":
        body = [f"{int(RNG.integers(3))},{int(RNG.integers(3))},{grade}"
                for grade in ["1.5", "2", "III"] * 20]  # fmt: skip
        lines(tmp_path, **{site: ["y,x,grade", *body]})
    assert said_by_a_run(tmp_path, caplog) == []


@pytest.mark.parametrize(("change", "words"), [
    (lambda x: 12 * x, "about 12 times"),
    (lambda x: x / 10, "values at a are about 9.8 times"),
    (lambda x: x + 25, ""),
    (lambda x: 40 + 9 * (x - 40), ""),
    (lambda x: 2 * x, ""),
])  # fmt: skip
def test_units_that_differ_by_less_than_a_hundred(change, words, tmp_path, caplog):
    """Are said where mean and spread have the same factor, and not what differs otherwise."""
    two_sites(tmp_path, np.random.default_rng(2), change_x=change)
    said = said_by_a_run(tmp_path, caplog)
    assert [words in line and "another unit?" in line for line in said] == [True] * bool(words)


def skewed_sites(folder, rng, factor, sigma, between=1.0):
    """Write four sites of a log-normal lab value, the first in another unit; no other has a limit.

    The sites' own medians differ by up to `between`.
    """
    for site, rows in zip("abcd", (420, 900, 150, 1500), strict=True):
        x = rng.lognormal(2.2 + rng.uniform(0, np.log(between)), sigma, rows)
        x = x * (factor if site == "a" else 1.0)
        body = [f"{rng.normal():.4f},{value:.9g},2" for value in x]
        lines(folder, **{site: ["y,x,grade", *body]})


@pytest.mark.parametrize("transform", ["none", "log"])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("factor", [1 / 38.7, 1 / 18, 0.1, 10, 18])
def test_another_unit_of_a_skewed_value(factor, sigma, transform, tmp_path, caplog):
    """Its standard deviation may exceed its mean."""
    schema = {"target": "y", "features": {"x": {"transform": transform}}}
    skewed_sites(tmp_path, np.random.default_rng(4), factor, sigma)
    tables(data=f"{tmp_path}/*.csv", schema=schema)
    (said,) = [r.message for r in caplog.records if "another unit?" in r.message]
    assert "values at a are about" in said
    if factor == 10:  # but not of sites that are unlike in one unit
        caplog.clear()
        for seed in range(5):
            skewed_sites(tmp_path, np.random.default_rng(seed), 1.0, sigma, between=3.0)
            tables(data=f"{tmp_path}/*.csv", schema=schema)
        assert "another unit?" not in caplog.text


def test_values_that_are_apart_for_their_spread_are_in_another_unit(tmp_path, caplog):
    for site, degrees in (("a", 37.0), ("b", 98.6)):
        body = [f"{RNG.normal()},{degrees + RNG.normal(0, 0.5)},2" for _ in range(40)]
        lines(tmp_path, **{site: ["y,x,grade", *body]})
    (line,) = [line for line in said_by_a_run(tmp_path, caplog) if "'x'" in line]
    assert "values at b are about 2.7 times those of the others" in line


@pytest.mark.parametrize(
    "written", [{"III": "III\u200b"}, {"1.5": '"1,5"'}, {"2": "'2"}, {"2": "\ufeff2"}]
)
def test_categories_that_look_alike_are_said(written, tmp_path, caplog):
    two_sites(tmp_path, np.random.default_rng(3), change_grade=lambda g: written.get(g, g))
    ((mark, other),) = written.items()
    (line,) = [line for line in said_by_a_run(tmp_path, caplog) if "do they mean" in line]
    assert repr(mark) in line
    assert repr(other.strip('"')) in line


def test_a_code_that_counts_as_0_beside_0_and_1_is_said(tmp_path, caplog):
    """1 and 2 at one client, where 2 stands for what 1 means at others."""
    for site, marks in (("a", "01"), ("b", "12")):
        body = [f"{mark},{i + int(mark)}" for i in range(5) for mark in marks]
        lines(tmp_path, **{site: ["y,x", *body]})
    tables(
        data=f"{tmp_path}/*.csv", schema={"target": "y", "features": numeric("x"), "positive": [1]}
    )
    (line,) = [record.message for record in caplog.records if "as 0" in record.message]
    words = "b.csv: column 'y': '2' counts as 0, since the schema names no negative value"
    assert line.endswith(words)


# --- outcomes ------------------------------------------------------------------------------------

LACKING = [  # a schema, what all rows have and what one row has, and what is lacking without it
    ({"positive": ["ill"], "negative": ["well"]}, "well", "ill,0", "a target 'y' of 'ill'"),
    ({"positive": ["ill"]}, "ill", "well,0", "a target 'y' other than 'ill'"),
    ({"event": "e"}, "3", "3,1", "an event in column 'e' (of value 1)"),
    ({"loss": "poisson"}, "0", "2,0", "a target 'y' above 0"),
    ({"classes": ["a", "b"]}, "a", "b,0", "a target 'y' of 'b'"),
]


@pytest.mark.parametrize(("more", "mark", "other", "words"), LACKING)
def test_a_class_that_nobody_has_is_refused_before_round_1(
    more, mark, other, words, tmp_path, run_command, caplog
):
    """And said of a site, where others have it."""
    body = ["y,e,x", *(f"{mark},0,{i}" for i in range(8))]
    lines(tmp_path, a=body, b=body)
    schema = {"target": "y", "features": {"x": "numeric"}, **more}
    none = re.escape(f"no row of any client has {words}, so no model can be")
    with pytest.raises(ConfigError, match=none):
        tables(data=f"{tmp_path}/*.csv", schema=schema)
    stated = [f"{key} = {value!r}" for key, value in schema.items() if key != "features"]
    (tmp_path / "s.toml").write_text("\n".join([*stated, '[features]\nx = "numeric"']))
    arguments = ("data", "check", "a.csv", "b.csv", "--schema", "s.toml")
    code, out, _ = run_command(*arguments)
    assert (code, f"No model can be fitted: no row of any client has {words}" in out) == (1, True)
    lines(tmp_path, a=[*body, f"{other},9"])
    assert tables(data=f"{tmp_path}/*.csv", schema=schema).names == ("a", "b")
    assert f"no row has {words} at b" in caplog.text
    code, out, _ = run_command(*arguments)
    assert (code, f"- no row has {words} at b" in out) == (0, True)


def test_few_rows_of_a_class_are_not_told(tmp_path):
    """Nor whether there are any: no number of the outcome leaves a node then."""
    lines(tmp_path, a=["y,x", *["0,1"] * 5, *["0,2"] * 4, *["1,2"] * 3])
    known = {"target": "y", "features": {"x": "numeric"}, "positive": [1]}
    table = read_table(tmp_path / "a.csv", Schema.load(known))
    assert table.answer("summary", {}, 3)["outcomes"].tolist() == [9, 3]
    assert np.isnan(table.answer("summary", {}, 4)["outcomes"]).all()
    assert tables(data=[f"{tmp_path}/a.csv"], schema=known, min_rows=4).names == ("a",)


# --- what is near, what is a combination ---------------------------------------------------------

WORDS = st.text("abcdefgh", min_size=4, max_size=8)


@pytest.mark.fuzz
@given(st.lists(WORDS, min_size=2, max_size=6, unique_by=lambda word: word[0]), st.data())
def test_near_duplicates_are_found_and_words_are_not_taken_for_them(words, data):
    assert near_duplicates(words) == []
    word = data.draw(st.sampled_from(words))
    change = st.sampled_from([str.upper, str.title, lambda w: f"{w[:2]} {w[2:]}", lambda w: w[0],
                              lambda w: f"{w[:2]}-{w[2:]}", lambda w: f"{w}."])  # fmt: skip
    other = data.draw(change)(word)
    assert [sorted(group) for group in near_duplicates([*words, other])] == [sorted([word, other])]


@pytest.mark.fuzz
@given(st.integers(2, 8), st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_combinations_are_found_in_any_units(columns, seed, dependent):
    """As many as there are, and none where columns only nearly are combinations."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(40, columns))
    extra = A @ rng.normal(size=(columns, dependent))
    whole = np.hstack([A, extra]) * 10.0 ** rng.uniform(-9, 9, columns + dependent)
    names = [str(j) for j in range(whole.shape[1])]
    found = list(combinations(names, whole))
    assert len(found) == dependent
    assert all(others for _, others in found)
    near = np.hstack([A, A[:, :1] + 1e-6 * rng.normal(size=(40, 1))])
    assert list(combinations([*names[:columns], "near"], near)) == []
