"""Complete cases: rows without some value are left out where they are, and counted by site."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular import lines, run

from flower_fedcon import load_model
from flower_fedcon.cli.command import main
from flower_fedcon.errors import ConfigError
from flower_fedcon.tables import DataError, Schema, read_table
from flower_fedcon.tables.builders import tables

NAMES = ("dose", "sex", "years", "counts")
SCHEMA = {
    "target": "counts", "loss": "poisson", "exposure": "years", "complete_cases": True,
    "missing": ["", "NA", "-9"], "test_fraction": 0.2,
    "features": {"dose": "numeric", "sex": {"type": "categorical", "missing": ["unknown"]}},
}  # fmt: skip
MARKS = {"dose": "-9.0", "sex": "unknown", "years": "NA", "counts": ""}


def rows(seed, count=40):
    rng = np.random.default_rng(seed)
    return [
        [f"{rng.normal():.3f}", rng.choice(["f", "m"]), f"{rng.uniform(1, 3):.2f}",
         str(rng.poisson(2))]
        for _ in range(count)
    ]  # fmt: skip


def write(path, table):
    lines(path.parent, **{path.stem: [NAMES, *table]})
    return path


def pierced(table, holes):
    """Return the rows with marks of missing values at these places, and the rows without one."""
    found = [list(row) for row in table]
    for row, column in holes:
        found[row][column] = MARKS[NAMES[column]]
    lacking = {row for row, _ in holes}
    return found, [row for place, row in enumerate(table) if place not in lacking]


def coefficients(folder, run_dir, **more):
    made = tables(data=f"{folder}/*.csv", schema={**SCHEMA, **more}, inference="robust")
    return run(made, 6, run_dir=run_dir)


HOLES = [(0, 0), (3, 1), (3, 2), (7, 2), (11, 3), (12, 3)]


@pytest.fixture
def folders(tmp_path):
    """Two sites' files with holes, and without these rows."""
    (tmp_path / "holes").mkdir()
    (tmp_path / "whole").mkdir()
    for site, seed, holes in (("north", 0, HOLES), ("south", 1, [])):
        first, second = pierced(rows(seed), holes)
        write(tmp_path / "holes" / f"{site}.csv", first)
        write(tmp_path / "whole" / f"{site}.csv", second)
    return tmp_path


def test_it_is_a_run_on_the_files_without_these_rows(folders):
    found = coefficients(folders / "holes", folders / "run")
    known = coefficients(folders / "whole", folders / "same", complete_cases=False)
    assert found.x.tobytes() == known.x.tobytes()
    files = [(folders / name / "coefficients.csv").read_text() for name in ("run", "same")]
    assert files[0] == files[1]
    assert (
        "rows left out, with a missing value in some column: north 5, south 0" in found.report.text
    )
    assert "filled in" not in found.report.text


@settings(deadline=None, max_examples=20)
@given(holes=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 3)), max_size=30))
def test_any_holes(tmp_path_factory, holes):
    """The table's rows are the complete ones, and bear the numbers that they have in the file."""
    table = rows(2, 15)
    some, whole = pierced(table, holes)
    path = write(tmp_path_factory.mktemp("holes") / "a.csv", some)
    schema = Schema.load(SCHEMA)
    if not whole:
        with pytest.raises(DataError, match="no row has a value in every column"):
            read_table(path, schema)
        return
    found = read_table(path, schema)
    assert found.left_out == len(table) - len(whole)
    assert not found.incomplete.any()
    kept = found.numbers_of(np.arange(len(whole))) - 1
    assert [table[place] for place in kept] == whole
    assert found.targets.tolist() == [float(row[3]) for row in whole]
    known = read_table(write(path.parent / "b.csv", whole), schema)
    assert known.held_out_rows.tolist() == found.held_out_rows.tolist()


def test_predictions(folders):
    """Incomplete rows have none, and rows that were held out have their numbers in the file."""
    coefficients(folders / "holes", folders / "run")
    file, out = folders / "holes" / "north.csv", folders / "out.txt"
    new = str(write(folders / "new.csv", rows(3, 3)))
    assert main(["predict", str(folders / "run"), new, "-o", str(out)]) == 0
    model = load_model(folders / "run")
    some = {"dose": [1.0, None, 2.0], "sex": ["f", "f", ""], "years": [1, 1, 1]}
    assert np.isnan(model.predict(some)).tolist() == [False, True, True]
    arguments = ["predict", str(folders / "run"), str(file), "-o", str(out), "--held-out"]
    assert main([*arguments, "--keep", "counts"]) == 0
    found, own = pd.read_csv(out), read_table(file, Schema.load(SCHEMA))
    assert found["row"].tolist() == own.numbers_of(own.held_out_rows).tolist()
    assert found["counts"].tolist() == own.targets[own.held_out_rows].tolist()


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
def test_no_class_is_predicted_for_an_incomplete_row(loss, tmp_path, capsys):
    lines(tmp_path, a=["x,y", *[f"{k % 7},{'ab'[k % 3 == 0]}" for k in range(40)]])
    own = {"positive": ["a"]} if loss == "logistic" else {"classes": ["a", "b"]}
    schema = {"target": "y", "features": {"x": "numeric"}, "complete_cases": True, **own}
    made = tables(data=f"{tmp_path}/a.csv", schema=schema)
    run(made, 5, run_dir=tmp_path / "run")
    found = load_model(tmp_path / "run").predict({"x": [1.0, None]}).tolist()
    assert found[0] in (0, 1, "a", "b")
    assert found[1] is None
    (tmp_path / "new.csv").write_text("x,y\n1,a\n,a\n2,b\n")
    run_dir, new, out = (str(tmp_path / name) for name in ("run", "new.csv", "out.csv"))
    assert main(["predict", run_dir, new, "-o", out]) == 0
    assert "predictions for 2 of 3 rows" in capsys.readouterr().out


def test_which_rows_were_held_out_is_known_of_a_run_s_own_files_alone(folders):
    coefficients(folders / "holes", folders / "run")
    model = load_model(folders / "run")
    with pytest.raises(DataError, match=r"no client of the run has as many \(28, 32\)"):
        model.rows(write(folders / "other.csv", rows(4, 9)), held_out=True)
    coefficients(folders / "holes", folders / "all", test_fraction=0.0)
    with pytest.raises(ConfigError, match="no rows were held out"):
        load_model(folders / "all").rows(folders / "holes" / "south.csv", held_out=True)


def test_few_rows_are_not_counted_for_a_server(folders):
    """A node with a least number of rows says that there are fewer, and no number."""
    path, schema = folders / "holes" / "north.csv", Schema.load(SCHEMA)
    told = [read_table(path, schema).answer("summary", {}, least)["left_out"] for least in (5, 6)]
    assert told[0] == 5
    assert np.isnan(told[1])
    made = tables(data=f"{folders}/holes/*.csv", schema=SCHEMA, min_rows=6)
    found = run(made, 4).report.text
    assert "north fewer than its min_rows, south 0" in found


def test_rows_of_a_category_that_is_too_rare_are_no_rows_without_a_value(tmp_path):
    """They have one, which no client tells: complete cases are left as they are."""
    for site in "ab":
        kinds = ["rstu"[k // 2] if k < 6 else "uv"[k % 2] for k in range(40)]
        own = [f"{k % 5},{kind},{'yn'[k % 3 == 0]}" for k, kind in enumerate(kinds)]
        lines(tmp_path, **{site: ["x,kind,y", *own]})
    schema = {"target": "y", "positive": ["y"], "complete_cases": True,
              "features": {"x": "numeric", "kind": "categorical"}}  # fmt: skip
    made = tables(data=f"{tmp_path}/*.csv", schema=schema, min_rows=3)
    text = run(made, 2).report.text
    assert "with a category that no client tells (policy.min-rows), filled in: kind 12" in text


def test_what_the_check_says(folders, capsys):
    schema = folders / "schema.toml"
    stated = [f"{key} = {json.dumps(SCHEMA[key])}" for key in SCHEMA if key != "features"]
    schema.write_text(
        "\n".join([*stated, '[features]\ndose = "numeric"',
                   'sex = {type = "categorical", missing = ["unknown"]}'])
    )  # fmt: skip
    file = str(folders / "holes" / "north.csv")
    main(["data", "check", file, "--schema", str(schema)])
    said = " ".join(capsys.readouterr().out.split())
    assert "5 left out, without a value of counts 2, years 2, dose 1, sex 1" in said
