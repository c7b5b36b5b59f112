"""What a run on tables leaves for other rows: `model.json`, `load_model` and `fedcon predict`."""

from __future__ import annotations

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
from tabular import coefficients, deal, kept, numeric, run

from flower_fedcon import load_model
from flower_fedcon.cli import main
from flower_fedcon.errors import ConfigError
from flower_fedcon.tables import DataError
from flower_fedcon.tables.builders import tables

FEATURES = numeric("age", ward="categorical", dose={"type": "numeric", "transform": "log1p"})
LOSSES = {
    "logistic": {"target": "yes", "positive": ["yes"], "negative": ["no"]},
    "multinomial": {"target": "abc", "classes": ["a", "b", "c"]},
    "poisson": {"target": "count", "loss": "poisson"},
    "squared": {"target": "age2"},
    "cox": {"target": "time", "event": "seen"},
}


def rows(n, rng, missing=0.1):
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


class Runs:
    """A run of each loss, and new rows."""

    def __init__(self, folder):
        self.folder, rng = folder, np.random.default_rng(5)
        frames = [rows(60, rng), rows(90, rng)]
        for name, frame in zip(("north", "south"), frames, strict=True):
            frame["age2"] = frame["age"].fillna(50) * 2 + rng.normal(size=len(frame))
            frame.to_csv(folder / f"{name}.csv", index=False)
        for loss, own in LOSSES.items():
            schema = {"features": FEATURES, **own}
            problem = tables(data=f"{folder}/*h.csv", schema=schema, l1=0.02)
            run(problem, 12, run_dir=folder / loss)
        rows(40, rng).drop(columns=["yes", "abc"]).to_csv(folder / "new.csv", index=False)
        self.pooled, self.path = pd.concat(frames), folder / "new.csv"

    @property
    def new(self):
        return pd.read_csv(self.path, float_precision="round_trip")

    def model(self, loss="squared"):
        return load_model(self.folder / loss)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


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
    content, new, model = kept(runs.folder / loss), runs.new, runs.model(loss)
    scores = by_hand(content, new)
    assert (content["format"], content["version"]) == ("flower-fedcon model", 1)
    assert content["covariance"] is None
    assert model.linear_predictor(new) == pytest.approx(scores, rel=1e-10, abs=1e-10)
    assert (model.linear_predictor(runs.path) == model.linear_predictor(new)).all()
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
    table = np.atleast_2d(np.array(content["columns"]["coefficient"]).T)
    ends = [] if loss == "cox" else np.atleast_1d(content["intercept"])[:, None]
    if loss != "cox":
        table = np.concatenate([table, ends], axis=1)
    assert table.ravel().tolist() == coefficients(runs.folder / loss)["per_unit"].tolist()


def of_wards(column):
    ones = pd.get_dummies(column.iloc[:, 0], dtype=float)[["s", "x y"]]
    return ones.where(np.repeat(column.notna().to_numpy(), 2, axis=1))


def test_predictions_are_those_of_a_pipeline_of_scikit_learn_on_pooled_rows(runs):
    new, pooled = runs.new, runs.pooled
    plain = make_pipeline(SimpleImputer(), StandardScaler())
    log = make_pipeline(FunctionTransformer(np.log1p), SimpleImputer(), StandardScaler())
    # Missing categories are what our preparation makes of them: the columns' means.
    one_hot = make_pipeline(
        FunctionTransformer(of_wards),
        SimpleImputer(), StandardScaler(),
    )  # fmt: skip
    fitted = make_pipeline(
        make_column_transformer((log, ["dose"]), (plain, ["age"]), (one_hot, ["ward"])),
        LogisticRegression(penalty="l1", C=1 / (0.02 * len(pooled)), solver="saga", tol=1e-10,
                           max_iter=10**5),
    ).fit(pooled, pooled["yes"])  # fmt: skip
    got = runs.model("logistic").predict_proba(new)
    assert got == pytest.approx(fitted.predict_proba(new), rel=1e-6)


def test_the_command_writes_what_load_model_predicts(runs, tmp_path, capsys):
    out, new, folder = tmp_path / "out.csv", str(runs.path), str(runs.folder / "logistic")
    assert main(["predict", folder, new, "-o", str(out), "--keep", "time"]) == 0
    found, model = pd.read_csv(out), runs.model("logistic")
    assert list(found) == ["row", "prediction", "linear_predictor", "probability", "time"]
    assert found["row"].tolist() == list(range(1, 41))
    assert (found["probability"].to_numpy() == model.predict_proba(new)[:, 1]).all()
    assert (found["time"] == pd.read_csv(new)["time"]).all()
    assert main(["predict", str(runs.folder / "multinomial"), new, "-o", str(out)]) == 0
    marks = [f"probability [{mark}]" for mark in "abc"]
    assert list(pd.read_csv(out)) == ["row", "prediction", *marks]
    assert "predictions for 40 rows" in capsys.readouterr().out
    assert main(["predict", folder, new, "-o", new]) == 2
    assert "is the input file" in capsys.readouterr().err
    assert main(["predict", folder, new, "-o", str(out), "--keep", "prediction"]) == 2
    assert "no column 'prediction'" in capsys.readouterr().err


@pytest.mark.parametrize(("column", "cell", "said"), [
    ("age", "old", "row 3, column 'age': found 'old', expected a finite number"),
    ("dose", "-2", "row 3, column 'dose': found '-2', expected a number > -1"),
    ("ward", "w", "row 3, column 'ward': found 'w', expected one of n, s, x y, with which"),
    ("dose", None, "no column 'dose'"),
])  # fmt: skip
def test_what_does_not_fit_is_named(runs, tmp_path, column, cell, said, capsys):
    """Whoever predicts has no schema to correct."""
    new, path = pd.read_csv(runs.path, dtype=str), tmp_path / "wrong.csv"
    if cell is None:
        new = new.drop(columns=column)
    else:
        new.loc[2, column] = cell
    new.to_csv(path, index=False)
    with pytest.raises(DataError, match=f"^rows: {said}"):
        runs.model().predict(new)
    folder = str(runs.folder / "squared")
    assert main(["predict", folder, str(path), "-o", str(tmp_path / "o.csv")]) == 2
    told = capsys.readouterr().err
    assert f"{path}: {said}" in told
    if cell is None:
        assert "The model needs it: add it, or correct the header" in told
        assert "schema" not in told


def test_an_unknown_category_is_missing_where_that_is_asked_for(runs):
    new, model = runs.new, runs.model()
    new.loc[[0, 1], "ward"] = ["w", None]
    found = model.predict(new, unknown="missing")
    new.loc[0, "ward"] = None
    assert (found == model.predict(new)).all()


def test_rows_come_as_frames_of_any_kind(runs):
    new, model = runs.new, runs.model()
    expected = model.predict(new)
    for source in (
        new.convert_dtypes(), new.astype({"ward": "category"}), new[list(new)[::-1]],
        {name: new[name].to_numpy() for name in FEATURES},
        {name: new[name].tolist() for name in FEATURES},
        new.set_index("time"),
    ):  # fmt: skip
        assert (model.predict(source) == expected).all()


@pytest.mark.parametrize(("ask", "error", "words"), [
    (lambda model, new: model.predict(pd.concat([new, new[["age"]]], axis=1)), DataError,
     "2 columns have the name 'age'"),
    (lambda model, new: model.predict(new.drop(columns="age")), DataError,
     r"no column 'age': it has dose"),
    (lambda model, new: model.predict(new.iloc[:0]), DataError, "found no rows"),
    (lambda model, new: model.predict([[1.0]]), ConfigError,
     "a file, a data frame or a dict of arrays, got list"),
    (lambda model, new: model.predict({"dose": [1.0], "age": [1.0, 2.0], "ward": ["n"]}),
     ConfigError, "must have one length"),
    (lambda model, new: model.predict(new, unknown="zero"), ConfigError,
     "unknown must be one of"),
])  # fmt: skip
def test_rows_that_cannot_be_used_are_refused(runs, ask, error, words):
    with pytest.raises(error, match=words):
        ask(runs.model(), runs.new)


@pytest.mark.parametrize(("change", "said"), [
    ({"version": 3}, "has version 3, and this flower-fedcon reads versions 1 and 2"),
    ({"format": "onnx"}, "does not hold a model of flower-fedcon"),
    ({"x": None}, "the run has diverged"),
    ({"x": [1.0]}, "is damaged"),
    ({"schema": {"target": "y"}}, "is damaged"),
    ({"columns": 3}, "is damaged"),
    (None, "is damaged"),
])  # fmt: skip
def test_files_that_cannot_be_used_are_named(runs, tmp_path, change, said):
    with pytest.raises(ConfigError, match=r"cannot read .*model\.json.*A run on tables writes"):
        load_model(tmp_path)
    text = "{" if change is None else json.dumps(kept(runs.folder / "squared") | change)
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_model(tmp_path)


def test_a_model_that_is_no_number_says_so(runs, tmp_path):
    model = runs.model()
    model.x[0] = math.inf
    model.write(tmp_path)
    json.loads((tmp_path / "model.json").read_text(), parse_constant=pytest.fail)
    with pytest.raises(ConfigError, match="the run has diverged"):
        load_model(tmp_path)


def test_wide_categories_and_svmlight_files(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"zip": [f"z{j // 2}" for j in range(520)]})
    frame["x"], frame["y"] = rng.normal(size=(2, 520))
    schema = {"target": "y", "features": numeric("x", zip="categorical")}
    problem = tables(data=deal(tmp_path, frame, 2), schema=schema, l1=0.001)
    run(problem, 3, run_dir=tmp_path / "run")
    model = load_model(tmp_path / "run")
    first = model.predict({"x": [0.0, 0.0, 0.0], "zip": ["z7", "never", None]})
    assert first[1] == first[2] != first[0]  # both are among the others
    A = rng.normal(size=(30, 3))
    for name in ("c", "d"):
        own = [f"{row.sum()} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) for row in A]
        (tmp_path / f"{name}.svm").write_text("\n".join(own))
    problem = tables(data=f"{tmp_path}/*.svm", schema={"target": "y", "features": "all"})
    run(problem, 3, run_dir=tmp_path / "svm")
    assert load_model(tmp_path / "svm").predict(tmp_path / "c.svm") == pytest.approx(A.sum(axis=1))
    (tmp_path / "e.svm").write_text("1 4:2\n")
    with pytest.raises(DataError, match="it has 4 columns, and the model 3"):
        load_model(tmp_path / "svm").predict(tmp_path / "e.svm")
