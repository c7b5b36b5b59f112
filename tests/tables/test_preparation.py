"""Tables prepared without pooling are those that scikit-learn prepares from pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
from heart_files import FOLDER, SCHEMA
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from flower_fedcon import simulate
from flower_fedcon.problems import heart
from flower_fedcon.strategies import FedDR
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import prepare, prepared_problem, tables
from flower_fedcon.tables.heart import HOSPITALS
from flower_fedcon.tables.packed_text import packed_text


@pytest.fixture(scope="module")
def clients():
    return [read_table(FOLDER / f"{name}.csv", SCHEMA) for name in HOSPITALS]


def pooled(clients):
    """Rows of all clients, trained on and held out; categories with NaN where they are missing."""
    import pandas as pd

    parts = []
    for table in clients:
        frame = pd.DataFrame(table.numeric, columns=[f.name for f in SCHEMA.numeric])
        for feature, column in zip(SCHEMA.categorical, table.categories.T, strict=True):
            for category in feature.categories[1:]:
                values = np.where(column == "", np.nan, column == category)
                frame[f"{feature.name}={category}"] = values.astype(float)
        frame["_y"], frame["_train"] = table.targets, False
        frame.loc[table.training_rows, "_train"] = True
        parts.append(frame)
    whole = pd.concat(parts)
    return whole[whole._train], whole[~whole._train]


def test_means_and_scales_are_those_of_pooled_rows(clients):
    found = prepare(clients, HOSPITALS)
    train, _ = pooled(clients)
    columns = train.drop(columns=["_y", "_train"])
    assert found.names == tuple(columns)
    imputer, scaler = SimpleImputer(), StandardScaler()
    A = scaler.fit_transform(imputer.fit_transform(columns))
    np.testing.assert_allclose(found.means, imputer.statistics_, rtol=1e-13)
    np.testing.assert_allclose(found.scales, scaler.scale_, rtol=1e-12)
    ours = [t.matrix(found)[t.training_rows] for t in clients]
    np.testing.assert_allclose(np.concatenate(ours), A, atol=1e-12)
    assert found.rows == (227, 220, 92, 150)


def test_the_model_is_the_pooled_one(clients):
    """That of scikit-learn, on rows that it has prepared itself."""
    problem = heart(l1=0.02)
    train, _ = pooled(clients)
    prepare_ = make_pipeline(SimpleImputer(), StandardScaler())
    A = prepare_.fit_transform(train.drop(columns=["_y", "_train"]))
    rival = LogisticRegression(
        l1_ratio=1, C=1 / (0.02 * len(A)), solver="saga", tol=1e-12, max_iter=100_000
    ).fit(A, train._y)
    x = simulate(FedDR(problem.regularizer, step_size=3.0), problem, 120, evaluate_every=0).x
    np.testing.assert_allclose(x[:-1], rival.coef_[0], atol=1e-6)
    np.testing.assert_allclose(x[-1], rival.intercept_[0], atol=1e-6)


def test_categories_are_agreed_on(tmp_path):
    (tmp_path / "a.csv").write_text("y,c\n1,10\n2,9\n3,10\n4,?\n")
    (tmp_path / "b.csv").write_text("y,c\n1,word\n2,9\n3,9.0\n4,9\n")
    schema = {"target": "y", "features": {"c": "categorical"}, "standardize": False}
    problem = tables(data=str(tmp_path / "*.csv"), schema=schema)
    assert problem.preparation.categories == {"c": ("9", "10", "word")}
    assert problem.preparation.names == ("c=10", "c=word")
    # Of seven observed categories two are 10 and one is a word: what is missing becomes that share.
    np.testing.assert_allclose(problem.preparation.means, [2 / 7, 1 / 7])
    table = read_table(tmp_path / "a.csv", Schema.load(schema))
    np.testing.assert_allclose(
        table.matrix(problem.preparation), [[1, 0], [0, 0], [1, 0], [2 / 7, 1 / 7]]
    )


def test_constant_and_empty_columns_are_left_out(tmp_path, caplog):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("y,same,none,x\n1,0.1,,3\n2,0.1,?,4\n3,0.1,,5.5\n")
    schema = {"target": "y", "features": {"same": "numeric", "none": "numeric", "x": "numeric"}}
    problem = tables(data=str(tmp_path / "*.csv"), schema=schema)
    assert problem.preparation.names == ("x",)
    assert problem.preparation.left_out == {"same": "constant", "none": "empty"}
    assert "are left out: same (constant), none (empty)" in caplog.text


def test_nothing_is_told_that_stands_on_few_rows(clients):
    """Of Hungary's patients three or so have a value of ca."""
    hungary = clients[1]
    rows = hungary.training_rows
    ca = [f.name for f in SCHEMA.numeric].index("ca")
    known = int((~np.isnan(hungary.numeric[rows, ca])).sum())
    assert 0 < known < 5
    told = hungary.answer("summary", {}, least=5)
    assert told["observed"][ca] == told["sums"][ca] == 0
    assert hungary.answer("summary", {}, least=1)["observed"][ca] == known
    names = {f.name: list(f.categories) for f in SCHEMA.categorical}
    down = {"means": np.zeros(6), "categories": packed_text(names)}
    spread = hungary.answer("spread", down, least=5)
    assert spread["squares"][ca] == 0
    assert all(np.isnan(n) or n >= 5 for n in spread["counts"])


def test_one_file_with_a_column_of_clients(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{a:.3f}", f"{b:.3f}", i % 3) for i, (a, b) in enumerate(rng.normal(size=(30, 2)))]
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "all.csv").write_text("\n".join(["y,x,site", *lines]))
    for site in range(3):
        (tmp_path / f"site-{site}.csv").write_text("\n".join(["y,x,site", *lines[site::3]]))
    schema = {"target": "y", "features": {"x": "numeric"}}
    one = tables(data=str(tmp_path / "all.csv"), schema=schema, client_column="site")
    three = tables(data=str(tmp_path / "site-*.csv"), schema=schema)
    assert one.names == ("0", "1", "2")
    assert one.objective(np.ones(2)) == three.objective(np.ones(2))


def test_dummies_of_a_feature_go_together():
    """With the group lasso, a categorical feature has all of its coefficients or none."""
    problem = heart(l1=0.05, penalty="group")
    x = simulate(FedDR(problem.regularizer, step_size=3.0), problem, 80, evaluate_every=0).x
    groups = np.array(problem.preparation.groups)
    used = [bool(x[:-1][groups == g].any()) for g in np.unique(groups)]
    assert [bool(x[:-1][groups == g].all()) for g in np.unique(groups)] == used
    assert 3 <= sum(used) < len(used)


def test_formats(tmp_path):
    """CSV, Parquet and NPZ of one table are one table."""
    import pandas as pd

    frame = pd.DataFrame({"y": [1.5, 2.5, 0.5], "x": [0.1, np.nan, 3.0], "c": ["a", "b", "a"]})
    schema = Schema.load({"target": "y", "features": {"x": "numeric", "c": "categorical"}})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.csv.gz", index=False)
    frame.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "t.parquet")
    arrays = {"y": frame.y.to_numpy(), "x": frame.x.to_numpy(), "c": frame.c.to_numpy(dtype="U1")}
    np.savez(tmp_path / "t.npz", **arrays)
    found = {p.name: read_table(p, schema) for p in sorted(tmp_path.iterdir())}
    assert len(found) == 5
    assert {table.resume_key for table in found.values()} == {found["t.csv"].resume_key}


def test_svmlight_files_stay_sparse(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:2 3:1\n-1 2:4\n")
    (tmp_path / "b.svm").write_text("-1 200000:1\n1 1:2\n")
    schema = {"target": "y", "features": "all", "positive": [1]}
    problem = tables(data=str(tmp_path / "*.svm"), schema=schema, l1=0.1)
    assert problem.x0.shape == (200_001,)
    assert problem.preparation.scales[[0, 1, 2, 3, 199_999]].tolist() == [
        pytest.approx(np.sqrt(2.0)), 2.0, 0.5, 1.0, 0.5,
    ]  # fmt: skip
    assert problem.objective(problem.x0) == pytest.approx(np.log(2))
    history = simulate(FedDR(problem.regularizer, step_size=1.0), problem, 3)
    assert history["objective"][-1] < np.log(2)


def test_metrics_of_the_rows_held_out(clients):
    problem = heart()
    _, test = pooled(clients)
    assert len(test) == sum(len(t.targets) for t in clients) - 689
    x = simulate(FedDR(problem.regularizer, step_size=3.0), problem, 5).x
    record = problem.evaluate(x)
    from sklearn.metrics import roc_auc_score

    pairs, right, correct = 0, 0.0, 0
    for name, table in zip(HOSPITALS, clients, strict=True):
        held = np.setdiff1d(np.arange(len(table.targets)), table.training_rows)
        scores = table.matrix(problem.preparation)[held] @ x[:-1] + x[-1]
        y = table.targets[held]
        value = roc_auc_score(y, scores)
        assert record[f"test_auc/{name}"] == pytest.approx(value)
        n = int((y > 0).sum()) * int((y < 0).sum())
        pairs, right = pairs + n, right + n * value
        correct += int(((scores > 0) == (y > 0)).sum())
    assert record["test_auc"] == pytest.approx(right / pairs)
    assert record["test_accuracy"] == pytest.approx(correct / len(test))


def test_one_hot_encoder_agrees():
    """The dummies are scikit-learn's, but for the missing values."""
    table = read_table(FOLDER / "cleveland.csv", SCHEMA)
    feature = {"type": "categorical", "categories": [1, 2, 3, 4]}
    raw = Schema("target", {"cp": feature}, positive=[1], standardize=False)
    alone = read_table(FOLDER / "cleveland.csv", raw)
    problem = prepared_problem([alone], ["cleveland"])
    cp = [f.name for f in SCHEMA.categorical].index("cp")
    encoder = ColumnTransformer([("cp", OneHotEncoder(drop="first", sparse_output=False), [0])])
    expected = encoder.fit_transform(table.categories[:, [cp]])
    np.testing.assert_array_equal(alone.matrix(problem.preparation), expected)


def test_the_report_names_coefficients_in_their_own_units(tmp_path):
    """In a linear model there is no ratio; a unit is what the file has, and 0 its origin."""
    rng = np.random.default_rng(0)
    for name in "ab":
        xs, cs = rng.normal(50, 10, size=30).tolist(), rng.integers(0, 2, size=30).tolist()
        rows = [f"{3 * x - 7 + 5 * c},{x},{('no', 'yes')[c]}" for x, c in zip(xs, cs, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,x,c", *rows]))
    schema = {"target": "y", "features": {"x": "numeric", "c": "categorical"}}
    problem = tables(data=str(tmp_path / "*.csv"), schema=schema)
    report = simulate(
        FedDR(problem.regularizer, step_size=3.0), problem, 60, run_dir=tmp_path / "run"
    ).report
    found = {name: unit for name, _, unit, _ in report.rows}
    assert found == {
        "x": pytest.approx(3),
        "c=yes": pytest.approx(5),
        "(intercept)": pytest.approx(-7),
    }
    assert report.text.splitlines()[0].split() == ["column", "per", "sd", "per", "unit"]
    header = (tmp_path / "run" / "coefficients.csv").read_text().splitlines()[0]
    assert header == "column,coefficient,per_unit"
