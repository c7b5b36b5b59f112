"""What a run on tables leaves for other rows: `model.json`, `load_model` and `fedcon predict`."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from flower_fedcon import load_model, simulate
from flower_fedcon.cli import main
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables import DataError
from flower_fedcon.tables.builders import tables

RNG = np.random.default_rng(5)
FEATURES = {"dose": {"type": "numeric", "transform": "log1p"}, "age": "numeric",
            "ward": "categorical"}  # fmt: skip
LOSSES = {
    "logistic": {"positive": ["yes"], "negative": ["no"]},
    "multinomial": {"classes": ["a", "b", "c"]},
    "poisson": {"loss": "poisson"},
    "squared": {},
    "cox": {"event": "seen"},
}


def rows(n, rng=RNG, missing=0.1):
    frame = pd.DataFrame(
        {
            "dose": rng.exponential(size=n),
            "age": rng.normal(50, 9, size=n),
            "ward": rng.choice(["n", "s", "x y"], size=n),
            "yes": rng.choice(["yes", "no"], size=n),
            "abc": rng.choice(["a", "b", "c"], size=n),
            "count": rng.poisson(2.0, size=n),
            "time": rng.exponential(size=n).round(2),
            "seen": rng.integers(0, 2, size=n),
        }
    )
    for name in ("dose", "age", "ward"):
        frame.loc[rng.random(n) < missing, name] = None
    return frame


def schema_of(loss):
    target = {"logistic": "yes", "multinomial": "abc", "poisson": "count", "cox": "time"}
    return {"target": target.get(loss, "age2"), "features": FEATURES, **LOSSES[loss]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each loss, and new rows."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(5)
    frames = [rows(60, rng), rows(90, rng)]
    for name, frame in zip(("north", "south"), frames, strict=True):
        frame["age2"] = frame["age"].fillna(50) * 2 + rng.normal(size=len(frame))
        frame.to_csv(folder / f"{name}.csv", index=False)
    for loss in LOSSES:
        problem = tables(data=f"{folder}/*h.csv", schema=schema_of(loss), l1=0.02)
        simulate(FedNewton(problem.regularizer), problem, num_rounds=12, run_dir=folder / loss)
    rows(40, rng).drop(columns=["yes", "abc"]).to_csv(folder / "new.csv", index=False)
    return folder, pd.concat(frames)


def by_hand(content, frame):
    """The linear predictors as the documentation of the format says, without the package."""
    columns, found = content["columns"], []
    transforms = {"none": lambda v: v, "log1p": math.log1p}
    for _, row in frame.iterrows():
        total = np.array(content["intercept"] or 0.0)
        for j, feature in enumerate(columns["feature"]):
            cell, category = row[feature], columns["category"][j]
            if pd.isna(cell):
                value = columns["missing"][j]
            elif category is None:
                value = transforms[columns["transform"][j]](cell)
            else:
                value = float(cell == category)
            total = total + value * np.array(columns["coefficient"][j])
        found.append(total)
    return np.array(found)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_file_says_what_is_predicted(runs, loss):
    """Read with json alone, the numbers in it give what `load_model` gives."""
    folder, _ = runs
    content = json.loads((folder / loss / "model.json").read_text(encoding="utf-8"))
    new, model = (
        new_rows(folder),
        load_model(folder / loss),
    )
    scores = by_hand(content, new)
    assert (content["format"], content["version"]) == ("flower-fedcon model", 1)
    assert content["covariance"] is None
    assert model.linear_predictor(new) == pytest.approx(scores, rel=1e-10, abs=1e-10)
    assert (model.linear_predictor(folder / "new.csv") == model.linear_predictor(new)).all()
    if loss == "multinomial":
        odds = np.exp(scores - scores.max(axis=1)[:, None])
        assert model.predict_proba(new) == pytest.approx(odds / odds.sum(axis=1)[:, None])
        assert model.predict(new).tolist() == [list("abc")[k] for k in scores.argmax(axis=1)]
    elif loss == "logistic":
        assert model.predict_proba(new)[:, 1] == pytest.approx(1 / (1 + np.exp(-scores)))
        assert model.predict(new).tolist() == (scores > 0).astype(int).tolist()
    else:
        expected = np.exp(scores) if loss == "poisson" else scores
        assert model.predict(new) == pytest.approx(expected)
        with pytest.raises(ConfigError, match="no classes, so it has no probabilities"):
            model.predict_proba(new)
    with (folder / loss / "coefficients.csv").open() as lines:
        report = [float(row["per_unit"]) for row in csv.DictReader(lines)]
    table = np.atleast_2d(np.array(content["columns"]["coefficient"]).T)
    ends = [] if loss == "cox" else np.atleast_1d(content["intercept"])[:, None]
    if loss != "cox":
        table = np.concatenate([table, ends], axis=1)
    assert table.ravel().tolist() == report


def of_wards(column):
    ones = pd.get_dummies(column.iloc[:, 0], dtype=float)[["s", "x y"]]
    return ones.where(np.repeat(column.notna().to_numpy(), 2, axis=1))


def new_rows(folder):
    return pd.read_csv(folder / "new.csv", float_precision="round_trip")


def test_predictions_are_those_of_a_pipeline_of_scikit_learn_on_pooled_rows(runs):
    folder, pooled = runs
    new = new_rows(folder)
    numeric = make_pipeline(SimpleImputer(), StandardScaler())
    log = make_pipeline(FunctionTransformer(np.log1p), SimpleImputer(), StandardScaler())
    # Missing categories are what our preparation makes of them: the columns' means.
    one_hot = make_pipeline(
        FunctionTransformer(of_wards),
        SimpleImputer(), StandardScaler(),
    )  # fmt: skip
    fitted = make_pipeline(
        make_column_transformer((log, ["dose"]), (numeric, ["age"]), (one_hot, ["ward"])),
        LogisticRegression(penalty="l1", C=1 / (0.02 * len(pooled)), solver="saga", tol=1e-10,
                           max_iter=10**5),
    ).fit(pooled, pooled["yes"])  # fmt: skip
    got = load_model(folder / "logistic").predict_proba(new)
    assert got == pytest.approx(fitted.predict_proba(new), rel=1e-6)


def test_the_command_writes_what_load_model_predicts(runs, tmp_path, capsys):
    folder, _ = runs
    out = tmp_path / "out.csv"
    new = folder / "new.csv"
    run = str(folder / "logistic")
    assert main(["predict", run, str(new), "-o", str(out), "--keep", "time"]) == 0
    found, model = pd.read_csv(out), load_model(run)
    assert list(found) == ["row", "prediction", "linear_predictor", "probability", "time"]
    assert found["row"].tolist() == list(range(1, 41))
    assert (found["probability"].to_numpy() == model.predict_proba(new)[:, 1]).all()
    assert (found["time"] == pd.read_csv(new)["time"]).all()
    assert main(["predict", str(folder / "multinomial"), str(new), "-o", str(out)]) == 0
    marks = [f"probability [{mark}]" for mark in "abc"]
    assert list(pd.read_csv(out)) == ["row", "prediction", *marks]
    assert "predictions for 40 rows" in capsys.readouterr().out
    assert main(["predict", run, str(new), "-o", str(new)]) == 2
    assert "is the input file" in capsys.readouterr().err
    assert main(["predict", run, str(new), "-o", str(out), "--keep", "prediction"]) == 2
    assert "no column 'prediction'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("age", "old", "row 3, column 'age': found 'old', expected a finite number"),
        ("dose", "-2", "row 3, column 'dose': found '-2', expected a number > -1"),
        ("ward", "w", "row 3, column 'ward': found 'w', expected one of n, s, x y, with which"),
    ],
)
def test_cells_that_do_not_fit_are_named(runs, tmp_path, column, cell, said, capsys):
    folder, _ = runs
    new = pd.read_csv(folder / "new.csv", dtype=str)
    new.loc[2, column] = cell
    path = tmp_path / "wrong.csv"
    new.to_csv(path, index=False)
    with pytest.raises(DataError, match=f"^rows: {said}"):
        load_model(folder / "squared").predict(new)
    assert main(["predict", str(folder / "squared"), str(path), "-o", str(tmp_path / "o.csv")]) == 2
    assert f"{path}: {said}" in capsys.readouterr().err


def test_a_column_that_the_model_needs_is_named(runs, tmp_path, capsys):
    """Whoever predicts has no schema to correct."""
    folder, _ = runs
    path = tmp_path / "short.csv"
    pd.read_csv(folder / "new.csv").drop(columns="dose").to_csv(path, index=False)
    assert main(["predict", str(folder / "squared"), str(path), "-o", str(tmp_path / "o.csv")]) == 2
    said = capsys.readouterr().err
    assert "no column 'dose'" in said
    assert "The model needs it: add it, or correct the header" in said
    assert "schema" not in said


def test_an_unknown_category_is_missing_where_that_is_asked_for(runs):
    folder, _ = runs
    new = new_rows(folder)
    model = load_model(folder / "squared")
    new.loc[[0, 1], "ward"] = ["w", None]
    found = model.predict(new, unknown="missing")
    new.loc[0, "ward"] = None
    assert (found == model.predict(new)).all()
    with pytest.raises(ConfigError, match="unknown must be one of"):
        model.predict(new, unknown="zero")


def test_rows_come_as_frames_of_any_kind(runs):
    folder, _ = runs
    new, model = (
        new_rows(folder),
        load_model(folder / "squared"),
    )
    expected = model.predict(new)
    as_they_come = [
        new.convert_dtypes(),
        new.astype({"ward": "category"}),
        new[list(new)[::-1]],
        {name: new[name].to_numpy() for name in FEATURES},
        {name: new[name].tolist() for name in FEATURES},
        new.set_index("time"),
    ]
    for source in as_they_come:
        assert (model.predict(source) == expected).all()
    twice = pd.concat([new, new[["age"]]], axis=1)
    with pytest.raises(DataError, match="2 columns have the name 'age'"):
        model.predict(twice)
    with pytest.raises(DataError, match=r"no column 'age': it has dose"):
        model.predict(new.drop(columns="age"))
    with pytest.raises(ConfigError, match="a file, a data frame or a dict of arrays, got list"):
        model.predict([[1.0]])
    with pytest.raises(ConfigError, match="must have one length"):
        model.predict({"dose": [1.0], "age": [1.0, 2.0], "ward": ["n"]})
    with pytest.raises(DataError, match="found no rows"):
        model.predict(new.iloc[:0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 3}, "has version 3, and this flower-fedcon reads versions 1 and 2"),
        ({"format": "onnx"}, "does not hold a model of flower-fedcon"),
        ({"x": None}, "the run has diverged"),
        ({"x": [1.0]}, "is damaged"),
        ({"schema": {"target": "y"}}, "is damaged"),
        ({"columns": 3}, "is damaged"),
    ],
)
def test_files_that_cannot_be_used_are_named(runs, tmp_path, change, said):
    folder, _ = runs
    content = json.loads((folder / "squared" / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(content | change))
    with pytest.raises(ConfigError, match=said):
        load_model(tmp_path)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*model\.json.*A run on tables writes"):
        load_model(tmp_path)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        load_model(tmp_path)


def test_a_model_that_is_no_number_says_so(runs, tmp_path):
    folder, _ = runs
    model = load_model(folder / "squared")
    model.x[0] = math.inf
    model.write(tmp_path)
    json.loads((tmp_path / "model.json").read_text(), parse_constant=pytest.fail)
    with pytest.raises(ConfigError, match="the run has diverged"):
        load_model(tmp_path)


def test_wide_categories_and_svmlight_files(tmp_path):
    rng = np.random.default_rng(0)
    for site in ("a", "b"):
        codes = [f"z{j}" for j in range(260)]
        frame = pd.DataFrame({"zip": codes, "x": rng.normal(size=260), "y": rng.normal(size=260)})
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    schema = {"target": "y", "features": {"x": "numeric", "zip": "categorical"}}
    problem = tables(data=f"{tmp_path}/*.csv", schema=schema, l1=0.001)
    simulate(FedNewton(problem.regularizer), problem, num_rounds=3, run_dir=tmp_path / "run")
    model = load_model(tmp_path / "run")
    first = model.predict({"x": [0.0, 0.0, 0.0], "zip": ["z7", "never", None]})
    assert first[1] == first[2] != first[0]  # both are among the others
    A = rng.normal(size=(30, 3))
    for name in ("c", "d"):
        lines = [f"{row.sum()} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) for row in A]
        (tmp_path / f"{name}.svm").write_text("\n".join(lines))
    problem = tables(data=f"{tmp_path}/*.svm", schema={"target": "y", "features": "all"})
    simulate(FedNewton(), problem, num_rounds=3, run_dir=tmp_path / "svm")
    assert load_model(tmp_path / "svm").predict(tmp_path / "c.svm") == pytest.approx(A.sum(axis=1))
    (tmp_path / "e.svm").write_text("1 4:2\n")
    with pytest.raises(DataError, match="it has 4 columns, and the model 3"):
        load_model(tmp_path / "svm").predict(tmp_path / "e.svm")
