"""Tables prepared without pooling are those that scikit-learn prepares from pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
from heart_files import FOLDER, SCHEMA
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler
from tabular import lines, numeric

from flower_fedcon import simulate
from flower_fedcon.core.protocol import Reply
from flower_fedcon.errors import RoundError
from flower_fedcon.problems import heart
from flower_fedcon.strategies import FedDR
from flower_fedcon.tables import Schema, Table, read_table
from flower_fedcon.tables.agreeing import STAGES, Preparing
from flower_fedcon.tables.builders import prepare, tables
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


def test_categories_are_agreed_on(tmp_path):
    lines(
        tmp_path,
        a=["y,c", "1,10", "2,9", "3,10", "4,?"],
        b=["y,c", "1,word", "2,9", "3,9.0", "4,9"],
    )
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
    rows = ["y,same,none,x", "1,0.1,,3", "2,0.1,?,4", "3,0.1,,5.5"]
    schema = {"target": "y", "features": numeric("same", "none", "x")}
    problem = tables(data=lines(tmp_path, a=rows, b=rows), schema=schema)
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


def test_the_report_names_coefficients_in_their_own_units(tmp_path):
    """In a linear model there is no ratio; a unit is what the file has, and 0 its origin."""
    rng = np.random.default_rng(0)
    xs, cs = rng.normal(50, 10, size=60).tolist(), rng.integers(0, 2, size=60).tolist()
    rows = [f"{3 * x - 7 + 5 * c},{x},{('no', 'yes')[c]}" for x, c in zip(xs, cs, strict=True)]
    data = lines(tmp_path, a=["y,x,c", *rows[::2]], b=["y,x,c", *rows[1::2]])
    problem = tables(data=data, schema={"target": "y", "features": numeric("x", c="categorical")})
    method = FedDR(problem.regularizer, step_size=3.0)
    report = simulate(method, problem, 60, run_dir=tmp_path / "run").report
    assert {name: unit for name, _, unit, _ in report.rows} == pytest.approx(
        {"x": 3, "c=yes": 5, "(intercept)": -7}
    )
    assert report.text.splitlines()[0].split() == ["column", "per", "sd", "per", "unit"]
    header = (tmp_path / "run" / "coefficients.csv").read_text().splitlines()[0]
    assert header == "column,coefficient,per_unit"


# --- exchanges with clients that answer anything, or nothing -------------------------------------


SMALL = Schema("y", {"x": "numeric", "c": "categorical"})


def of_two(seed):
    rng = np.random.default_rng(seed)
    marks = np.array(["a", "b", ""])[rng.integers(0, 3, size=(9, 1))]
    return Table("t", SMALL, rng.normal(size=9), None, rng.normal(size=(9, 1)), marks)


TWO = [of_two(0), of_two(1)]


def preparing(alter, first, retries=1):
    """Two clients, of which the second one's answers are altered at first."""
    asked = []

    def answer(request):
        asked.append((request.round, tuple(request.clients)))
        replies = []
        for c in request.clients:
            told = TWO[c].answer(STAGES[request.round - 1], request.broadcast)
            reply = Reply([c], request.round, {k: [v] for k, v in told.items()}, remote=True)
            if c == 1 and len(asked) == first:
                if isinstance(alter, dict):
                    reply.payload.update({name: [value] for name, value in alter.items()})
                else:
                    reply = alter(reply)
            replies.append(reply)
        return [reply for reply in replies if reply is not None]

    return Preparing(SMALL, ["0", "1"], answer, max_retries=retries), asked


FAULTS = [
    {"sums": np.array([np.nan])},
    {"sums": np.array([1e101])},
    {"sums": np.zeros(2)},
    {"observed": np.zeros(1, dtype=np.int64)},
    {"observed": np.array([1.5])},  # half a row
    {"rows": -1.0},
    {"rows": np.zeros(1, dtype=np.uint8)},  # a word
    {"categories": np.frombuffer(b"{", dtype=np.uint8)},
    {"categories": np.frombuffer(b"[" * 10**5, dtype=np.uint8)},
    {"categories": packed_text({"c": [1]})},
    {"categories": packed_text({"secret": ["a"]})},
    {"more": np.zeros(1)},
    lambda r: Reply(r.clients, 2, r.payload),  # another exchange
    lambda r: Reply(r.clients, r.round, error="disk full"),
    lambda r: None,
    {"squares": np.array([-1.0])},  # of the second exchange
    {"counts": np.array([-1.0, 3.0])},
]


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_an_answer_that_cannot_be_used_is_asked_for_again(fault):
    first = 1 if fault < len(FAULTS) - 2 else 2
    exchanges, asked = preparing(FAULTS[fault], first)
    found = exchanges.agree()
    assert asked.count((first, (1,))) == 1  # of that client alone
    right = prepare(TWO, ["0", "1"])
    assert found.means.tobytes() == right.means.tobytes()
    assert found.scales.tobytes() == right.scales.tobytes()
    assert found.uplink_bytes == right.uplink_bytes
    exchanges, _ = preparing(FAULTS[fault], first, retries=0)
    with pytest.raises(RoundError, match=r"needs every client's answer \(client 1: "):
        exchanges.agree()
