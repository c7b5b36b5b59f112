"""Single wrong values within a column: slipped decimal points, codes, cells exchanged in a row."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tabular import lines, run

from flower_fedcon.estimators import FederatedElasticNet, FederatedLogisticRegression
from flower_fedcon.lab.report.contents import read_run
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.checks.odd_values import odd_values
from flower_fedcon.tables.checks.slips import codes, exchanged, slips

SCHEMA = "target = 'y'\n[features]\nsbp = 'numeric'\ndbp = 'numeric'\nage = 'numeric'\n"


def patients(seed, n=90):
    """Rows of two blood pressures, an age and an outcome."""
    rng = np.random.default_rng(seed)
    alike = rng.normal(size=n)
    sbp = np.clip(130 + 17 * (0.6 * alike + 0.8 * rng.normal(size=n)), 96, 164).round()
    dbp = (80 + 10 * (0.6 * alike + 0.8 * rng.normal(size=n))).round()
    age = rng.integers(20, 81, n).astype(float)
    return np.column_stack([sbp, dbp, age, (sbp + rng.normal(size=n)).round(2)])


def said_of(folder, run_command, schema=SCHEMA, **sites):
    """What the check finds standing out at sites."""
    for name, rows in sites.items():
        lines(folder, **{name: ["sbp,dbp,age,y", *rows.tolist()]})
    (folder / "s.toml").write_text(schema)
    files = [f"{name}.csv" for name in sites]
    out = run_command("data", "check", *files, "--schema", "s.toml")[1]
    return " ".join(out.partition("What stands out:")[2].split())


FAULTS = {  # cells (row from 0, column: value), and what is said
    "ten times": ({(13, 0): 1380}, "a: column 'sbp': 1380 (row 14) is far from all others (96 to "
                  "164), and a tenth of it, 138, is not: has its decimal point slipped?"),
    "a hundred times": ({(4, 0): 12600, (9, 0): 14100}, "12600, 14100 (rows 5, 10) are far from "
                        "all others (96 to 164), and a hundredth of them, 126, 141, are not: have"),
    "a tenth": ({(7, 2): 4.5}, "column 'age': 4.5 (row 8) is far from all others (21 to 80), and "
                "ten times it, 45, is not"),
    "99": ({(3, 2): 99, (5, 2): 99}, "column 'age': 99 (rows 4, 6), and all others at "
           "this site from 21 to 80"),
    "0": ({(8, 1): 0}, "column 'dbp': 0 (row 9), and all others at this site from"),
    "exchanged": ({(2, 0): 82, (2, 1): 141}, "a: columns 'sbp' and 'dbp' seem exchanged in row 3: "
                  "82 and 141 there"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_value_is_said_with_its_row(fault, tmp_path, run_command):
    """By the check, by a run's report, and by estimators."""
    cells, words = FAULTS[fault]
    a = patients(1)
    for place, value in cells.items():
        a[place] = value
    clean = {"b": patients(2), "c": patients(3)}
    assert words in said_of(tmp_path, run_command, a=a, **clean)
    problem = tables(data=f"{tmp_path}/*.csv", schema=f"{tmp_path}/s.toml")
    assert words in run(problem, 2).report.text
    rows = sorted({row for row, _ in cells})
    with pytest.warns(UserWarning, match="rows from 0") as caught:
        FederatedElasticNet(0).fit(np.concatenate([a[:, :3], patients(2)[:, :3]]),
                                        np.concatenate([a[:, 3], patients(2)[:, 3]]))  # fmt: skip
    where = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))}"
    assert any(where in str(one.message) for one in caught)


def test_nothing_more_is_said_of_a_row_of_totals(tmp_path, run_command):
    a = patients(1)
    sites = {"a": np.concatenate([a, a.sum(axis=0, keepdims=True)]), "b": patients(2)}
    said = said_of(tmp_path, run_command, **sites)
    assert said.startswith("- a: the last row has the sums of all rows above it")
    assert "(row " not in said


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_said_of_clean_patients(seed, tmp_path, run_command):
    sites = {name: patients(10 * seed + k, 40 + 30 * k) for k, name in enumerate("abc")}
    assert said_of(tmp_path, run_command, **sites) == ""


def test_what_only_all_sites_show(tmp_path, run_command):
    """Sites of 15 rows say nothing alone; the row and the site are named, and nothing twice."""
    sites = {name: patients(k, 15) for k, name in enumerate("abcdef")}
    sites["c"][6, 0], sites["d"][2, 2] = 1270, 99
    sites["e"][4, :2] = 80, 142
    said = said_of(tmp_path, run_command, **sites)
    assert "column 'sbp': 1270 (row 7 of c) is far from all others (" in said
    assert "column 'age': 99 (row 3 of d), and all others from 20 to" in said
    assert "columns 'sbp' and 'dbp' seem exchanged in row 5 of e: 80 and 142 there" in said
    report = run(tables(data=f"{tmp_path}/*.csv", schema=f"{tmp_path}/s.toml"), 2).report
    assert report.text.count("1270 (row 7 of c)") == 1
    sites["c"] = np.concatenate([sites["c"], patients(9, 60)])
    said = said_of(tmp_path, run_command, **sites)
    assert "c: column 'sbp': 1270 (row 7) is far" in said
    assert "of c)" not in said


@pytest.mark.parametrize("transform", ["log", "sqrt"])
def test_values_are_judged_before_their_transform(transform, tmp_path, run_command):
    sites = {name: patients(k, 15) for k, name in enumerate("abcdef")}
    sites["c"][6, 0] = 1270
    schema = SCHEMA.replace("sbp = 'numeric'", f"sbp = {{transform = '{transform}'}}")
    assert "1270 (row 7 of c) is far" in said_of(tmp_path, run_command, schema, **sites)


@pytest.mark.parametrize(("repeats", "columns", "said"), [
    (30, 4, "a: 30 of 120 rows have all values of another row, such as rows 1 and 91: are they"),
    (4, 4, ""),  # too few
    (30, 1, ""),  # few values: rows are equal in all other columns, too
])  # fmt: skip
def test_rows_pasted_twice(repeats, columns, said, tmp_path, run_command):
    """Without an identifier; by chance equal rows are more often equal in all columns but one."""
    a = patients(1)
    if columns == 1:
        a = np.random.default_rng(0).integers(0, 4, a.shape).astype(float)
    a = np.concatenate([a, a[:repeats]])
    told = said_of(tmp_path, run_command, a=a, b=patients(2))
    assert said in told
    assert ("have all values of another row" in told) == bool(said)


HONEST = {
    "normal": lambda rng, n: rng.normal(130, 17, n).round(),
    "lognormal": lambda rng, n: rng.lognormal(0, rng.choice([0.3, 0.5, 1.0]), n),
    "gamma": lambda rng, n: rng.gamma(rng.choice([0.5, 2, 9]), 1, n).round(2),
    "counts": lambda rng, n: rng.poisson(rng.choice([1, 3, 10]), n).astype(float),
    "crowded": lambda rng, n: rng.poisson(rng.gamma(0.7, 5, n)).astype(float),
    "t3": lambda rng, n: rng.choice([0, 10, 30]) + rng.standard_t(3, n),
    "uniform": lambda rng, n: rng.integers(20, 81, n).astype(float),
    "incomes": lambda rng, n: rng.lognormal(10, 0.7, n).round(-1),
    "amounts": lambda rng, n: np.where(rng.random(n) < 0.3, 0, rng.lognormal(3, 1, n)).round(1),
    "score": lambda rng, n: np.clip(rng.normal(85, 15, n), 0, 100).round(),
}


def test_honest_columns_are_seldom_remarked_upon():
    """Of fewer than one in 500, over all kinds and numbers of rows."""
    rng, said, whole = np.random.default_rng(0), 0, 0
    for draw in HONEST.values():
        for n in (30, 100, 400):
            for _ in range(100):
                values = draw(rng, n)
                said += bool([*slips(values), *codes(values)])
                whole += 1
    assert said < whole / 500


POWER = [("normal", 10, 0.8), ("normal", 0.1, 0.6), ("normal", 100, 0.85), ("uniform", 10, 0.85)]


@pytest.mark.parametrize(("kind", "factor", "share"), POWER)
def test_most_slips_are_found(kind, factor, share):
    rng, found = np.random.default_rng(1), 0
    for _ in range(100):
        values = HONEST[kind](rng, 100)
        place = rng.integers(100)
        values[place] *= factor
        found += any(place in slip.places for slip in slips(values))
    assert found >= 100 * share


def test_exchanged_rows_are_found_and_seldom_others():
    rng, found, false = np.random.default_rng(2), 0, 0
    for _ in range(60):
        pressure, other = patients(rng.integers(2**31), 150)[:, :2].T
        more = {"weight": rng.normal(75, 14, 150), "days": rng.exponential(100, 150).round(),
                "t3": 100 + 15 * rng.standard_t(3, 150)}  # fmt: skip
        false += len([*exchanged({"sbp": pressure, "dbp": other} | more)])
        rows = rng.choice(150, 3, replace=False)
        pressure[rows], other[rows] = other[rows], pressure[rows]
        found += sum(len(places) for *_, places in exchanged({"sbp": pressure, "dbp": other}))
    assert found >= 0.6 * 180
    assert false <= 1


@pytest.mark.parametrize("values", [
    np.repeat([0.0, 1.0], 30), np.repeat([1.0, 2.0, 3.0, 4.0], 10), np.full(40, 7.0),
    np.full(40, np.nan), np.r_[np.arange(50.0), np.nan], -np.arange(1.0, 60.0),
    np.r_[np.zeros(10), np.arange(1.0, 60.0)], 1e300 * np.arange(1.0, 60.0),
])  # fmt: skip
def test_odd_columns_are_no_error_and_not_odd(values):
    assert [*odd_values(values, np.arange(len(values)), "")] == []


def test_codes_of_few_values_are_said():
    """9 beside 0 and 1, and 99 beside counts."""
    rng = np.random.default_rng(0)
    for code, others in ((9.0, rng.integers(0, 2, 60)), (99.0, rng.poisson(2, 60))):
        ((value, places),) = codes(np.r_[others.astype(float), code, code])
        assert (value, places.tolist()) == (code, [60, 61])


def test_a_frame_names_the_columns_that_are_odd_or_separate(caplog):
    pd = pytest.importorskip("pandas")
    rows = patients(1)
    frame = pd.DataFrame(rows[:, :3], columns=["sbp", "dbp", "age"])
    frame.loc[13, "sbp"] = 1380.0
    with pytest.warns(UserWarning, match=r"column 'sbp': 1380 \(row 13\) is far"):
        FederatedElasticNet(0).fit(frame, rows[:, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        FederatedLogisticRegression(C=np.inf).fit(frame[["age"]], frame["age"] > 50)
    assert "the outcome is separated by column age" in caplog.text


def test_a_constant_outcome_is_said_alone(tmp_path, run_command):
    lines(tmp_path, a=["y,g", *["0,u", "0,v"] * 9])
    schema = "target = 'y'\npositive = [1]\nnegative = [0]\n[features]\ng = 'categorical'\n"
    (tmp_path / "s.toml").write_text(schema)
    out = run_command("data", "check", "a.csv", "--schema", "s.toml")[1]
    assert "no row of any client has a target 'y' of '1'" in out
    assert "has no end" not in out
    assert "no row has" not in out.replace("no row of any client has", "")


def test_labels_are_in_all_tables_of_a_report(tmp_path):
    rows = patients(4)
    lines(tmp_path, a=["y,age,smoke", *([r[3], r[2], k % 2] for k, r in enumerate(rows))])
    smoke = {"type": "categorical", "label": "Smoking", "labels": {"0": "no", "1": "yes"}}
    schema = {"target": "y", "features": {"age": {"label": "Age (years)"}, "smoke": smoke}}
    made = tables(data=f"{tmp_path}/*.csv", schema=schema | {"describe_by": "smoke"},
                  inference="model")  # fmt: skip
    text = run(made, 3).report.text
    assert text.count("\nAge (years) ") == 3  # coefficients, estimates, Table 1
    assert text.count("\nSmoking: yes ") == 2
    assert "reference categories: Smoking: no" in text
    assert "columns by Smoking: " in text
    assert "smoke" not in text


def test_clusters_without_a_value_are_asked_for_as_clusters():
    rows = patients(1)
    model = FederatedElasticNet(0, inference="cluster")
    with pytest.raises(
        ValueError, match="clusters has no value for 1 row, the first of them row 4"
    ):
        model.fit(rows[:, :3], rows[:, 3], clusters=[None if k == 4 else k for k in range(90)])
    with pytest.raises(ValueError, match="name the cluster of each row, or drop these rows"):
        model.fit(rows[:, :3], rows[:, 3], clusters=np.where(np.arange(90) == 4, np.nan, 1.0))


def test_the_page_says_labels_and_no_p_is_0(tmp_path):
    """In the legend of curves, and in the tables of coefficients."""
    rng = np.random.default_rng(0)
    arm = rng.integers(0, 2, 600)
    times = np.exp(-6.0 * arm) * rng.exponential(1, 600) * 1000
    rows = zip(times.round(3) + 0.001, rng.integers(0, 4, 600) > 0, arm, strict=True)
    lines(tmp_path, a=["t,died,arm", *([t, int(d), k] for t, d, k in rows)])
    (tmp_path / "s.toml").write_text(
        "target = 't'\nevent = 'died'\ncurve_times = [1, 10, 100]\ncurve_by = 'arm'\n[features]\n"
        "arm = {type = 'categorical', label = 'Arm', labels = {0 = 'usual', 1 = 'new'}}\n"
    )
    made = tables(data=f"{tmp_path}/a.csv", schema=f"{tmp_path}/s.toml", inference="model")
    text = run(made, 8, run_dir=tmp_path / "run").report.text
    assert "p < 1e-16" in text
    assert "p = 0\n" not in text
    found = read_run(tmp_path / "run", "run")
    assert {row["arm"] for row in (*found.survival, *found.at_risk)} == {"Arm = usual", "Arm = new"}
    assert [row["column"] for row in found.estimates] == ["Arm: new"] == [*found.intervals]


def test_a_weight_of_0_is_no_code(tmp_path):
    rows = patients(1)
    weights = np.random.default_rng(0).uniform(0.9, 1.1, 90).round(2)
    weights[:5] = 0
    lines(tmp_path, a=["sbp,dbp,age,y,w", *np.column_stack([rows, weights]).tolist()])
    schema = {"target": "y", "features": {"age": "numeric"}, "weight": "w"}
    said = read_table(tmp_path / "a.csv", Schema.load(schema)).notes()
    assert list(said) == ["5 rows have the weight 0, and are left out"]


UNITS = {  # of the first third of the rows, and of how many of 20 columns it is said
    "glucose": (lambda rng, n: 110 * np.exp(0.25 * rng.normal(size=n)), lambda x: x / 18.016, 15),
    "degrees": (lambda rng, n: 37 + 0.8 * abs(rng.normal(size=n)), lambda x: 1.8 * x + 32, 20),
    "weights": (lambda rng, n: rng.normal(75, 14, n), lambda x: 2.2046 * x, 0),  # they mix
    "one": (lambda rng, n: rng.normal(120, 30, n), lambda x: x, 0),
}


@pytest.mark.parametrize("unit", UNITS)
def test_rows_in_another_unit_are_found_if_a_gap_shows_them(unit):
    draw, other, least = UNITS[unit]
    rng, found = np.random.default_rng(0), 0
    for _ in range(20):
        values = draw(rng, 150).round(1)
        values[:50] = other(values[:50]).round(1)
        said = " ".join(odd_values(values, np.arange(1, 151), ""))
        found += "50 rows from" in said and "(rows 1, 2, 3, 4, 5, 6 and 44 more)" in said
    assert found >= least
    assert found == 0 or least


@pytest.mark.parametrize(
    ("factor", "spread", "asked"), [(3.7, 0.15, 1), (1.9, 0.15, 0), (3.7, 1.0, 0)]
)
def test_a_value_over_twice_all_others_of_all_sites(factor, spread, asked, tmp_path, run_command):
    """A typical income times a factor: of skewed incomes it may well be so far."""
    rng = np.random.default_rng(0)
    income = {site: 14.0 * np.exp(spread * rng.normal(size=60)) for site in "abc"}
    income["b"][7] = factor * max(map(max, income.values())) / 1.5
    for site, values in income.items():
        lines(tmp_path, **{site: ["income,y", *(f"{v:.2f},{rng.normal():.3f}" for v in values)]})
    (tmp_path / "s.toml").write_text("target = 'y'\n[features]\nincome = 'numeric'\n")
    out = run_command("data", "check", "a.csv", "b.csv", "c.csv", "--schema", "s.toml")[1]
    assert out.count("(row 8 of b) is more than twice any other value of all sites") == asked


@pytest.mark.parametrize("grouped", ["", "state", "other"])
def test_a_large_cluster_is_not_in_another_unit(grouped, tmp_path):
    """Seven years of California are far from those of all other states, and of no other unit."""
    rng = np.random.default_rng(0)
    size = np.where(np.arange(70) // 7 == 4, 26e6, 3e5 * (1 + np.arange(70) // 7))
    rows = [f"{v:.0f},{k // 7 if grouped == 'state' else k % 7},{rng.normal():.3f}"
            for k, v in enumerate(size * rng.uniform(1.0, 1.1, 70))]  # fmt: skip
    lines(tmp_path, a=["pop,state,y", *rows])
    schema = {"target": "y", "features": {"pop": "numeric"}}
    schema |= {"cluster": "state"} if grouped else {}
    said = " ".join(read_table(tmp_path / "a.csv", Schema.load(schema)).notes())
    assert ("7 rows from 2." in said) == (grouped != "state")


@pytest.mark.parametrize(("code", "rows", "found"), [
    (88.8, 4, True), (77.0, 4, False), (77.0, 35, True), (66.6, 35, True), (120.0, 35, False),
])  # fmt: skip
def test_codes_of_one_digit_stand_alone_or_are_very_frequent(code, rows, found):
    """Beyond others of about 30, or among others from 60 to 180."""
    rng = np.random.default_rng(3)
    values = rng.normal(31, 7, 150).round(1) if code == 88.8 else rng.normal(120, 30, 150).round()
    values[values == code] += 1
    values[10 : 10 + rows] = code
    assert [(value, len(places)) for value, places in codes(values)] == [(code, rows)] * found
    said = " ".join(odd_values(values, np.arange(1, 151), "leave it out"))
    assert ("is far more frequent than any other value at this site" in said) == (
        rows > 4 and found
    )
