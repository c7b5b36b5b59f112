"""A paper's tables: Table 1 from files, estimates from runs, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from harness import refusal
from tabular import coefficients, deal, run

from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables

SCHEMA = """target = "y"
positive = ["yes"]
[features]
age = {type = "numeric", label = "Age (years)"}
sex = {type = "categorical", label = "Sex", labels = {1 = "male", 2 = "female & other"}}
arm = "categorical"
"""


@pytest.fixture
def files(tmp_path):
    """Two sites' rows of a trial."""
    rng = np.random.default_rng(0)
    age = rng.normal(60, 9, 200).round(1)
    frame = pd.DataFrame({
        "age": age, "sex": rng.choice(["1", "2"], 200), "arm": rng.choice(["new", "usual"], 200),
        "y": np.where(rng.random(200) < 1 / (1 + np.exp((60 - age) / 9)), "yes", "no"),
    })  # fmt: skip
    deal(tmp_path, frame, 2)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def lines_of(file):
    """The lines of a CSV file."""
    return list(csv.reader(io.StringIO(Path(file).read_text())))


def fitted(folder, name="crude", schema=SCHEMA, inference="model"):
    """The folder of a run."""
    (folder / f"{name}.toml").write_text(schema)
    made = tables(data=f"{folder}/site*.csv", schema=f"{folder}/{name}.toml", inference=inference)
    run(made, 8, run_dir=folder / "runs" / name)
    return folder / "runs" / name


def test_estimates_of_one_run_and_of_several(files, run_command):
    crude = fitted(files)
    fitted(files, "adjusted", 'terms = ["age"]\n' + SCHEMA)
    code, out, err = run_command(
        "estimates", str(crude), "-o", "t.csv", "-o", "t.tex", "-o", "t.md"
    )
    assert (code, err) == (0, "")
    head, *rows = lines_of("t.csv")
    assert head == ["", "odds ratio (95 % interval)", "p"]
    known = coefficients(crude)
    assert [row[0] for row in rows] == [
        "Age (years)", "Sex: female & other", "arm=usual", "(intercept), coefficient",
    ]  # fmt: skip
    own = known.loc["age"]
    ends = (own[f"odds_ratio{end}"] for end in ("", "_lower", "_upper"))
    assert rows[0][1] == "{:#.3g} ({:#.3g}, {:#.3g})".format(*ends)
    assert rows[0][2] == "<0.001"
    assert float(rows[3][1].split()[0]) == pytest.approx(
        known.loc["(intercept)", "per_unit"], rel=1e-2
    )
    assert "Sex: female \\& other & " in Path("t.tex").read_text()
    assert "\\textless{}0.001" in Path("t.tex").read_text()
    assert "| Sex: female & other | " in Path("t.md").read_text()
    assert "(intercept), coefficient" in out
    assert run_command("estimates", str(files / "runs"), "-o", "both.csv")[0] == 0
    head, *rows = lines_of("both.csv")
    assert head[1::2] == [f"{name}: odds ratio (95 % interval)" for name in ("adjusted", "crude")]
    assert {row[0]: row[1:] for row in rows}["arm=usual"][:2] == ["", ""]
    copied = shutil.copytree(crude, files / "later" / "crude")
    asked = (str(crude), str(copied), str(files / "runs" / "adjusted"), f"{crude}/")
    assert run_command("estimates", *asked, "-o", "both.csv")[0] == 0
    head = [name.partition(":")[0] for name in lines_of("both.csv")[0][1::2]]
    assert head == ["runs/crude", "later/crude", "adjusted"]


def test_what_no_table_of_estimates_can_be_made_of(files, run_command):
    plain = fitted(files, inference=None)
    assert "has no standard errors" in refusal(run_command, "estimates", str(plain))
    assert "`fedcon table`" in refusal(run_command, "estimates", str(files))
    told = refusal(run_command, "estimates", str(plain), "-o", "t.doc")
    assert "a table is written to a file .csv, .md, .tex" in told


def test_classes_against_the_first(files, run_command):
    text = SCHEMA.replace('positive = ["yes"]', 'classes = ["no", "yes"]')
    folder = fitted(files, "classes", text)
    assert run_command("estimates", str(folder), "-o", "t.csv")[0] == 0
    names = [row[0] for row in lines_of("t.csv")]
    assert "Age (years) [yes]" in names[1]


def test_table_1_from_files(files, run_command):
    code, _, err = run_command(
        "data", "describe", f"{files}/site0.csv", f"{files}/site1.csv", "--schema",
        f"{files}/schema.toml", "--by", "sex", "-o", "t.csv",
    )  # fmt: skip
    assert (code, err) == (0, "")
    head, *rows = lines_of("t.csv")
    frame = pd.concat([pd.read_csv(f"{files}/site{k}.csv") for k in (0, 1)])
    own = frame[frame["sex"] == 1]
    assert head[0] == "Sex"
    assert head[1] == f"male (n = {len(own)})"
    shown = {row[0]: row[1:] for row in rows}
    n = int((own["arm"] == "new").sum())
    assert shown["arm: new"][0] == f"{n} ({100 * n / len(own):.1f} %)"
    assert shown["Age (years)"][0] == f"{own['age'].mean():.4g} ({own['age'].std():.3g})"
    told = refusal(run_command, "data", "describe", f"{files}/site0.csv", "--schema",
                   f"{files}/schema.toml")  # fmt: skip
    assert "say by which column" in told


def test_labels_are_texts_that_nodes_need_not_share(files):
    features = {"age": {"label": "Age"}, "sex": {"type": "categorical", "labels": {1: "male"}}}
    labelled = Schema.load({"target": "y", "features": features})
    plain = Schema.load({"target": "y", "features": {"age": "numeric", "sex": "categorical"}})
    assert labelled.digest == plain.digest
    again = Schema.load(labelled.stated)
    assert again == labelled
    assert again.in_words("sex=1") == "sex: male"
    for wrong in ({"labels": ["male"]}, {"label": 3}):
        with pytest.raises(Exception, match="label must be a text, and labels a table"):
            Schema.load({"target": "y", "features": {"sex": {"type": "categorical", **wrong}}})
    for alike in (
        {"age": {"label": "Dose"}, "mg": {"label": "Dose"}},
        {"age": {"label": "Dose"}, "Dose": {}},
        {"age": {"label": "mg"}, "mg": {"label": "age"}},
        {"sex": {"type": "categorical", "labels": {1: "known", 2: "known"}}},
    ):
        with pytest.raises(Exception, match="another label"):
            Schema.load({"target": "y", "features": alike})
    with pytest.raises(Exception, match="labels is not for a numeric column"):
        Schema.load({"target": "y", "features": {"age": {"labels": {"1": "one"}}}})
