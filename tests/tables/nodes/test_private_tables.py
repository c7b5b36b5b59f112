"""Tables whose rows are private from the first number on: sums before round 1, then gradients."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_grid import on_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import blocks
from private_rows import silent, sums_without_noise
from scipy.stats import kstest
from sklearn.metrics import roc_auc_score
from table_nodes import start, write_rows

from flower_fedcon import Policy, simulate
from flower_fedcon.errors import ConfigError, FedConError, RefusedError
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.strategies import FedAvg, FedDualAvg
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import prepare, prepared_problem
from flower_fedcon.tables.misfits import DataError
from flower_fedcon.tables.noisy_quality import NOISY_BINS, as_binned, bins_of, told_noisily
from flower_fedcon.tables.noisy_sums import PrivateTable, bounds, check_public
from flower_fedcon.tables.packed_text import packed_text
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.quality import BINS, Quality, pooled_auc
from flower_fedcon.tables.read import cells_cut, log_notes
from flower_fedcon.tables.schema import Feature
from flower_fedcon.tables.table import Table
from flower_fedcon.wire.ledgers import rows_on_node

FEATURES = {
    "age": {"range": [0, 120]},
    "dose": {"range": [1, 100], "transform": "log"},
    "sex": {"type": "categorical", "categories": ["f", "m"]},
    "dx": {"type": "categorical", "categories": ["a", "b", "c"]},
}
RULE = ExampleDP(clip=1.0, noise_multiplier=2.0, target_delta=1e-5)
QUIET = replace(RULE, clip=50.0, noise_multiplier=1e-9)
PSI = WithIntercept(L1(0.01))
STEPS = FedDualAvg(PSI, client_lr=0.3, local_steps=3)
STEP = FedDualAvg(PSI, client_lr=1.0, local_steps=1)
PRIVACY = {"privacy.clip": 1.0, "privacy.noise-multiplier": 2.0, "privacy.target-delta": 1e-5}
CATEGORIES = {"sex": ["f", "m"], "dx": ["a", "b", "c"]}


def stated(**more):
    return Schema.load({"target": "ill", "positive": ["yes"], "features": FEATURES} | more)


SCHEMA = stated()


def written(folder, name="a", rows=400, seed=0):
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        age = "" if rng.random() < 0.1 else f"{rng.integers(20, 90)}"
        dose, sex, dx = rng.uniform(1, 100), "fm"[rng.integers(2)], "abc"[rng.integers(3)]
        ill = "yes" if rng.random() < 0.3 + 0.4 * (sex == "m") else "no"
        lines.append(f"{age},{dose:.2f},{sex},{dx},{ill}")
    return write_rows(folder / f"{name}.csv", "age,dose,sex,dx,ill", lines)


def private(table, rule=RULE):
    return PrivateTable.of(table, rule, Ledger(rule))


def test_next_to_no_noise_finds_what_is_found_without(tmp_path):
    clients = [read_table(written(tmp_path, n, seed=j), SCHEMA) for j, n in enumerate("ab")]
    plain = prepared_problem(clients, ["a", "b"], l1=0.01)
    quiet = prepared_problem(clients, ["a", "b"], l1=0.01, privacy=QUIET)
    assert quiet.preparation.names == plain.preparation.names
    np.testing.assert_allclose(quiet.preparation.means, plain.preparation.means, rtol=1e-5)
    np.testing.assert_allclose(quiet.preparation.scales, plain.preparation.scales, rtol=1e-5)
    found = [simulate(STEPS, problem, 5).x for problem in (plain, quiet)]
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_one_epsilon_from_the_first_number_to_the_last(tmp_path):
    clients = [read_table(written(tmp_path), SCHEMA)]
    problem = prepared_problem(clients, ["a"], l1=0.01, privacy=RULE)
    ledger = problem.objectives[0].ledger
    assert ledger.spent == {1.0: 2}  # two exchanges
    simulate(STEPS, problem, 5)
    assert ledger.spent == {1.0: 17}
    assert ledger.epsilon == pytest.approx(RULE.epsilon({1.0: 17}), rel=1e-9)


def test_the_noise_is_that_of_the_clip_that_the_schema_gives(tmp_path):
    table = read_table(written(tmp_path, rows=50), SCHEMA)
    found = []
    for _ in range(400):
        answer = private(table).answer("summary", {})
        found.append(answer["sums"][0] - answer["observed"][0] * 60.0)  # about the middle
    mean = float(np.nansum(table.numeric[:, 0] - 60.0))
    deviation = 2.0 * np.sqrt(2 * 2 + 1) * 60.0  # z times the clip, times half the range
    assert np.std(found) == pytest.approx(deviation, rel=0.2)
    assert np.mean(found) == pytest.approx(mean, abs=4 * deviation / 20)


def hold_neighbours(folder, rng, patch):
    """Leave out what one row adds, or put in any other row: the sum moves by at most the clip."""
    rule = replace(RULE, noise_multiplier=10.0 ** rng.uniform(-1, 2))
    path = written(folder, rows=int(rng.integers(3, 40)), seed=int(rng.integers(1e6)))
    forgetful = {"note": lambda question: "", "keep": lambda question, answer: None}
    table = PrivateTable.of(read_table(path, SCHEMA), rule, Ledger(rule), **forgetful)
    seen = sums_without_noise(patch)
    means = np.array([rng.uniform(-1e6, 1e6), rng.uniform(-9, 9)])
    down = {"means": means, "categories": packed_text(CATEGORIES)}
    m, out = len(table.targets), int(rng.integers(len(table.targets)))
    for answer in (lambda rows: table._summary(rows, 1), lambda rows: table._spread(rows, down, 1)):
        answer(np.arange(m))
        answer(np.delete(np.arange(m), out))
        (grid, whole), (_, less) = seen[-2:]
        most = (grid.clip / grid.step) ** 2 * (1 + 1e-12)
        assert sum(int(k) ** 2 for k in whole - less) <= most


@pytest.mark.parametrize("seed", range(8))
def test_a_row_moves_the_sums_by_at_most_the_clip(tmp_path, monkeypatch, seed):
    hold_neighbours(tmp_path, np.random.default_rng(seed), monkeypatch)


@pytest.mark.nightly
def test_a_row_never_moves_the_sums_by_more_in_many_cases(tmp_path, monkeypatch):
    rng = np.random.default_rng()
    for _ in range(5_000):
        hold_neighbours(tmp_path, rng, monkeypatch)


@given(
    st.sampled_from(["none", "log", "log1p", "sqrt", "square"]),
    st.floats(0.01, 50), st.floats(0.01, 50), st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=60)
def test_bounds_hold_every_value_in_the_range(transform, low, width, at):
    for least in (low, *([-low] if transform in ("none", "square") else [])):
        feature = Feature("x", range=(least, least + width), transform=transform)
        value = least + at * width
        moved = value**2 if transform == "square" else (
            value if transform == "none" else float(getattr(np, transform)(value)))  # fmt: skip
        lower, upper = bounds(feature)
        assert lower - 1e-9 <= moved <= upper + 1e-9


def test_the_same_question_is_answered_alike_and_costs_nothing(tmp_path):
    table = private(read_table(written(tmp_path), SCHEMA))
    first, again = (table.answer("summary", {}) for _ in range(2))
    for name in ("observed", "sums", "outcomes"):
        np.testing.assert_array_equal(first[name], again[name])
    assert table.ledger.spent == {1.0: 1}
    assert table.answer("summary", {})["categories"].tobytes() == b"{}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": {**FEATURES, "age": "numeric"}}, r"range of 'age' is not public: write"),
        ({"features": {**FEATURES, "dx": "categorical"}}, r"categories of 'dx' are not public"),
        ({"weight": "w"}, "leave weight out"),
        ({"features": "all"}, "name them in"),
        ({"terms": ["age", "rcs(age, [30, 50, 70])"]}, "no noise protects what nodes agree on for"),
        ({"exposure": "w", "loss": "poisson", "positive": []}, "leave offset and exposure out"),
        ({"features": {**FEATURES, "dose": {"range": [0, 9], "transform": "log"}}}, "is infinite"),
    ],
    ids=["range", "categories", "weight", "all", "terms", "exposure", "log of 0"],
)
def test_what_a_schema_leaves_open_is_refused_with_what_to_write(change, words):
    with pytest.raises(ConfigError, match=words):
        check_public(stated(**change))


def test_a_cox_model_is_refused_and_the_page_s_schema_is_public():
    schema = {"target": "t", "event": "e", "features": {"age": {"range": [0, 120]}}}
    with pytest.raises(ConfigError, match="compares rows with each other"):
        check_public(Schema.load(schema))
    _, schema = map(tomllib.loads, blocks("toml", "docs/private_examples.md"))
    check_public(Schema.load(schema))


# --- on nodes ------------------------------------------------------------------------------------


def on_nodes(files, folder, rounds, made=STEPS, schema=SCHEMA, privacy=None, **options):
    """Return the history of nodes that keep their ledgers in a folder."""
    own = {"state-dir": str(folder / "state"), **PRIVACY, **(privacy or {})}
    node = {"policy": Policy(), "node": own, "weighting": "uniform"}
    return start(files, schema, rounds, made=made, **node, **options)


def counted(folder):
    """Return how many gradients each ledger counts."""
    kept = sorted((folder / "state" / "privacy").glob("*/spent.json"))
    return [sum(n for *_, n in json.loads(path.read_text())["gradients"]) for path in kept]


@on_grid
def test_nodes_spend_one_ledger_from_the_first_exchange(tmp_path):
    files = [written(tmp_path, name, seed=j) for j, name in enumerate("ab")]
    first, second = (on_nodes(files, tmp_path, 2, seed=k) for k in range(2))
    assert counted(tmp_path) == [2 + 2 * 6] * 2  # the second run asks what the first has asked
    assert "objective" not in first.columns
    assert not np.array_equal(first.x, second.x)


@on_grid
def test_a_budget_holds_before_round_1(tmp_path):
    budget = {"privacy.budget": 1.1 * RULE.epsilon({1.0: 1})}
    with pytest.raises(FedConError, match=r"one more gradient would exceed it"):
        on_nodes([written(tmp_path)], tmp_path, 2, privacy=budget, max_retries=0)


def test_a_server_that_asks_about_other_categories_learns_nothing(tmp_path):
    table = private(read_table(written(tmp_path), SCHEMA))
    down = {"means": np.zeros(2), "categories": packed_text({"sex": ["f"], "dx": ["a", "b", "c"]})}
    with pytest.raises(ConfigError, match="other categories of 'sex'"):
        table.answer("spread", down)
    assert not table.ledger.spent
    rule = replace(RULE, budget=1e-3)
    with pytest.raises(RefusedError, match="one more gradient would exceed it"):
        private(table, rule).answer("summary", {})


def test_preparing_in_this_process_is_noisy(tmp_path):
    table = read_table(written(tmp_path), SCHEMA)
    assert not np.array_equal(*(prepare([private(table)], ["a"]).means for _ in range(2)))


@given(
    st.floats(0, exclude_min=True, allow_infinity=False), st.floats(-1e300, 1e300),
    st.integers(20, 90), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_whether_a_server_s_units_are_taken_tells_nothing_of_the_rows(scale, mean, age, there):
    schema, common = SCHEMA, np.array([[age, 1.0], [mean, 2.0]])
    about = packed_text({"schema": schema.digest, "categories": CATEGORIES})
    said = set()
    for own in (0.0, 120.0, np.nan, float(age)):
        numeric = np.vstack([common, [[own, 3.0]]])
        numeric[1, 0] = np.clip(mean, 0, 120)
        marks = np.array([["f", "a"], ["m", "b"], ["m" if there else "", "c"]])
        table = private(Table("t", schema, np.array([-1.0, 1.0, 1.0]), None, numeric, marks))
        sent = {
            "means": np.full(4, mean), "scales": np.full(4, scale), "kept": np.arange(4),
            "about": about,
        }  # fmt: skip
        try:
            f = table.objective(Preparation.from_payload(sent))
            assert np.isfinite(f.gradient(np.full(f.shape, 1e12))).all()
            said.add("")
        except ConfigError as error:
            said.add(error.told)
    assert len(said) == 1


# --- how good the model is, with noise -----------------------------------------------------------

HELD = stated(test_fraction=0.5)
TELLS = replace(RULE, quality=True)


def held_out(table, x, preparation):
    """Return scores and outcomes of a table's rows held out."""
    rows = table.held_out_rows
    return table.matrix(preparation)[rows] @ x[:-1], table.targets[rows] > 0


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_row_held_out_moves_one_count_by_at_most_one(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 30))
    A, scale = rng.standard_normal((m, 3)), 10.0 ** rng.uniform(-3, 25)
    y, x, out = rng.choice([-1.0, 1.0], m), scale * rng.standard_normal(3), int(rng.integers(m))
    places = bins_of(LogisticRegression(A, y), x)
    less = bins_of(LogisticRegression(np.delete(A, out, 0), np.delete(y, out)), x)
    np.testing.assert_array_equal(np.delete(places, out), less)  # to the last bit of a score
    assert ((places >= NOISY_BINS) == (y > 0)).all()
    assert places.min() >= 0
    assert places.max() < 2 * NOISY_BINS
    grid = Grid(1.0, 10.0 ** rng.uniform(-1, 2), m)
    assert int(grid.steps(np.ones((1, 1)))[0, 0]) * grid.step <= 1.0


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_row_held_out_is_in_a_bin_at_any_model(seed):
    rng = np.random.default_rng(seed)
    A, y = rng.standard_normal((5, 3)) * 10.0 ** rng.uniform(0, 200, (5, 1)), np.ones(5)
    x = rng.choice([0.0, 1.0, -1e200, 1e300], 3)
    places = bins_of(LogisticRegression(A, y), x)
    for j, place in enumerate(places.tolist()):  # from that row alone, with no error
        assert NOISY_BINS <= place < 2 * NOISY_BINS
        assert bins_of(LogisticRegression(A[[j, j]], y[:2]), x).tolist() == [place] * 2


def test_counts_have_the_noise_of_the_rule(tmp_path):
    table = read_table(written(tmp_path), HELD)
    problem = prepared_problem([table], ["a"], privacy=replace(QUIET, quality=True))
    x = np.random.default_rng(1).standard_normal(problem.objectives[0].shape)
    exact = told_noisily(problem.objectives[0], {"x": x})["noisy"].round()
    scores, ill = held_out(table, x, problem.preparation)
    place = np.minimum((20 / (1 + np.exp(-scores - x[-1]))).astype(int), 19)
    np.testing.assert_array_equal(exact[1], np.bincount(place[ill], minlength=20))
    np.testing.assert_array_equal(exact[0], np.bincount(place[~ill], minlength=20))
    noise = []
    for _ in range(40):
        loud = PrivateTable.of(table, TELLS, Ledger(TELLS)).objective(problem.preparation)
        noise.append(told_noisily(loud, {"x": x})["noisy"] - exact)
        assert loud.ledger.spent == {1.0: 1}
        first, again = (told_noisily(loud, {"x": x})["noisy"] for _ in range(2))
        np.testing.assert_array_equal(first, again)  # which costs nothing
        assert loud.ledger.spent == {1.0: 1}
    assert kstest(np.ravel(noise) / 2.0, "norm").pvalue > 1e-6


def test_the_error_of_an_area_is_that_of_its_noise():
    rng = np.random.default_rng(0)
    p = rng.random((2, 20_000)) ** np.array([[1.5], [1.0]])
    exact = np.stack([np.histogram(own, NOISY_BINS, (0, 1))[0] for own in p]).astype(float)
    known, found, said = np.array([40_000.0, 200.0]), [], []
    for _ in range(300):
        told = {"noisy": exact + 200.0 * rng.standard_normal(exact.shape), "known": known}
        quality = Quality.of("logistic", {}, lambda at: None, noisy={"a": told})
        found.append(quality.pooled["auc"])
        said.append(quality.pooled["auc_bse"])
    area, _ = pooled_auc([as_binned({"noisy": exact, "known": known}, BINS)])
    assert np.mean(found) == pytest.approx(area, abs=4 * np.std(found) / np.sqrt(300))
    assert np.std(found) == pytest.approx(np.mean(said), rel=0.15)
    drowned = {"noisy": -exact, "known": known}
    quality = Quality.of("logistic", {}, lambda at: None, noisy={"a": drowned})
    assert "auc" not in quality.pooled
    assert "the noise exceeds" in quality.absent["pooled: auc"]


def test_a_run_s_last_exchange_is_counted_and_kept(tmp_path):
    clients = [read_table(written(tmp_path, n, 3000, seed=j), HELD) for j, n in enumerate("ab")]
    problem = prepared_problem(clients, ["a", "b"], l1=0.01, privacy=TELLS)
    history = simulate(STEP, problem, 4, run_dir=tmp_path / "run")
    told = json.loads((tmp_path / "run" / "quality.json").read_text())
    scores, ill = zip(*(held_out(t, history.x, problem.preparation) for t in clients), strict=True)
    exact = roc_auc_score(np.concatenate(ill), np.concatenate(scores))
    pooled = told["pooled"]
    assert abs(pooled["auc"] - exact) < 5 * pooled["auc_bse"] + pooled["auc_error"]
    assert 0 < pooled["auc_bse"] < 0.05
    assert "brier" not in pooled
    assert "noise protects only the counts" in told["absent"]["a: all but the AUC"]
    kept = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert [sum(n for *_, n in own["gradients"]) for own in kept.values()] == [2 + 4 + 1] * 2


@on_grid
@pytest.mark.parametrize("tells", [True, False])
def test_nodes_tell_noisy_counts_where_they_say_so(tmp_path, tells):
    files = [written(tmp_path, name, 1500, seed=j) for j, name in enumerate("ab")]
    report = on_nodes(files, tmp_path, 2, STEP, HELD, {"privacy.quality": tells}).report
    assert counted(tmp_path) == [2 + 2 + tells] * 2
    assert ("auc" in report.quality.pooled) == tells
    if not tells:
        assert all("privacy.quality = true" in why for why in report.quality.absent.values())


@on_grid
def test_studies_of_other_schemas_on_the_same_rows_share_a_ledger(tmp_path):
    """Another range, split or choice of columns had a budget of its own before."""
    file = written(tmp_path, rows=60)
    fewer = {name: FEATURES[name] for name in ("age", "sex")}
    wider = FEATURES | {"age": {"range": [0, 121]}}
    for more in ({}, {"features": fewer}, {"features": wider}, {"test_fraction": 0.2}):
        on_nodes([file], tmp_path, 1, STEP, stated(**more))
    assert counted(tmp_path) == [4 * (2 + 1)]
    (noted,) = (tmp_path / "state").rglob("requests/*")
    assert int(noted.read_text()) >= 4 * 4
    with pytest.raises(FedConError, match=r"budget = 1"):
        on_nodes([file], tmp_path, 1, STEP, privacy={"privacy.budget": 1.0}, max_retries=0)


# --- rows that do not fit ------------------------------------------------------------------------

ODD = {
    "above its range": ("130,10,f,a,yes", "120,10,f,a,yes"),
    "outside of a transform": ("40,-3,f,a,yes", "40,1,f,a,yes"),
    "no number": ("forty,10,f,a,yes", ",10,f,a,yes"),
    "infinite": ("inf,10,f,a,yes", ",10,f,a,yes"),
    "of many digits": (f"{'0' * 5000}99999999999999999,10,f,a,yes", "120,10,f,a,yes"),
    "beyond all floats": (f"{'9' * 5000},10,f,a,yes", ",10,f,a,yes"),
    "another category": ("40,10,x,a,yes", "40,10,,a,yes"),
    "a NUL": ("40,10,f\0,a,yes", "40,10,,a,yes"),
    "a quote": ('40,10,"f,a,yes', None),
    "a quote within": ('40,10,"f"x,a,yes', "40,10,,a,yes"),
    "too few cells": ("40,10,f,a", None),
    "too many cells": ("40,10,f,a,yes,1,2", None),
    "no outcome": ("40,10,f,a,", "40,10,f,a,"),
    "true": ("true,10,f,a,yes", "1,10,f,a,yes"),
}


def read_cut(path, schema=SCHEMA):
    with cells_cut():
        return read_table(path, schema)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("mark", [",", ";"])
def test_no_row_decides_whether_a_private_table_fits(tmp_path, caplog, odd, mark):
    path, (line, same) = written(tmp_path, rows=30), ODD[odd]
    lines = path.read_text().splitlines()
    for name, put in (("odd", line), ("same", same or ",,,,")):
        changed = [*lines[:8], put, *lines[9:]]
        (tmp_path / f"{name}.csv").write_text("\n".join(changed).replace(",", mark))
    found, plain = (read_cut(tmp_path / f"{name}.csv") for name in ("odd", "same"))
    np.testing.assert_array_equal(found.numeric, plain.numeric)
    np.testing.assert_array_equal(found.categories, plain.categories)
    np.testing.assert_array_equal(found.targets, plain.targets)
    assert np.isnan(found.targets).sum() == (same is None or same[-1] == ",")
    if odd != "true":
        log_notes([found])
        assert "odd.csv: " in caplog.text
        assert ("cells cut to fit: 1, expected" in caplog.text) | ("rows: 1" in caplog.text)


def test_a_simulation_tells_nothing_exact_and_keeps_what_its_preparation_spent(tmp_path, caplog):
    """Of rows that a and b both hold; also without a round."""
    clients = [read_cut(written(tmp_path, name, seed=name == "c"), SCHEMA) for name in "abc"]
    prepared_problem(clients, ["a", "b", "c"])
    assert "a, b hold exactly the same rows" in caplog.text
    caplog.clear()
    problem = prepared_problem(clients, ["a", "b", "c"], privacy=RULE)
    assert not caplog.text
    simulate(FedAvg(client_lr=0.1, local_steps=1), problem, 0, run_dir=tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert [own["gradients"] for own in kept.values()] == [[[2.0, 1.0, 2]]] * 3


LAST = b"HIV+ \xe9"  # the bytes of one private cell, which are not UTF-8
ARRAYS = {
    "bytes": ("parquet", pa.array([b"f"] * 30), pa.array([b"f"] * 29 + [LAST])),
    "bytes in NPZ": ("npz", np.array([b"f"] * 30), np.array([b"f"] * 29 + [LAST])),
    "text that is not UTF-8": ("parquet", pa.array(["f"] * 30), pa.Array.from_buffers(
        pa.string(), 30, pa.array([b"f"] * 29 + [LAST]).buffers())),
    "a list": ("parquet", pa.array([None] * 30, pa.list_(pa.int64())),
               pa.array([None] * 29 + [[1]])),
    "a date beyond Python's": ("parquet", pa.array([0] * 30, pa.timestamp("us")),
                               pa.array([0] * 29 + [2**60], pa.timestamp("us"))),
}  # fmt: skip


def saved(path, columns):
    if path.suffix == ".npz":
        np.savez(path, **columns)
    else:
        pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("column", ["sex", "note"])  # of the schema, and unknown to it
@pytest.mark.parametrize("case", ARRAYS)
def test_no_cell_of_an_array_decides_whether_a_private_file_is_read(tmp_path, column, case):
    kind, *both = ARRAYS[case]
    schema, found = stated(features={name: FEATURES[name] for name in ("age", "sex")}), []
    for name, cells in zip(("plain", "odd"), both, strict=True):
        columns = {"age": np.arange(30.0), "sex": ["m"] * 30, "ill": ["yes", "no"] * 15}
        columns[column] = cells
        path = saved(tmp_path / f"{name}.{kind}", columns)
        found.append(read_cut(path, schema))
    plain, odd = found
    np.testing.assert_array_equal(odd.numeric, plain.numeric)
    np.testing.assert_array_equal(odd.categories[:29], plain.categories[:29])
    assert len(odd.targets) == 30
    assert rows_on_node(odd) != rows_on_node(plain)
    if column == "sex":
        with pytest.raises(DataError, match=r"it cannot be read|found '\[1\]', expected"):
            read_table(path, schema)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
@pytest.mark.parametrize("column", ["sex", "ill"])
@pytest.mark.parametrize("way", [read_cut, read_table])
def test_a_zero_with_a_sign_changes_no_other_row(tmp_path, kind, column, way):
    schema = Schema("ill", {"sex": {"type": "categorical", "categories": ["0", "1"]}},
                    positive=["1"], negative=["0"])  # fmt: skip
    columns = {"sex": np.arange(30.0) % 2, "ill": np.arange(30.0) // 2 % 2}
    columns[column][0] = -0.0
    found = way(saved(tmp_path / f"a.{kind}", columns), schema)
    assert found.targets.tolist() == (2 * columns["ill"] - 1).tolist()
    assert found.categories[:, 0].tolist() == ["0", "1"] * 15


def test_a_row_without_an_outcome_has_no_gradient_no_loss_and_no_bin(tmp_path, monkeypatch):
    silent(monkeypatch)
    schema = stated(negative=["no"], test_fraction=0.3)
    path, rule = written(tmp_path, rows=40), replace(TELLS, loss_clip=5.0, clip=100.0)
    table = read_cut(path, schema)
    whole = PrivateTable.of(table, rule, Ledger(rule))
    preparation = prepare([whole], ["a"])
    for row in (table.training_rows[3], table.held_out_rows[2]):
        lines = path.read_text().splitlines()
        lines[row + 1] = lines[row + 1].rpartition(",")[0] + ",perhaps"
        odd = tmp_path / "odd.csv"
        odd.write_text("\n".join(lines))
        less = PrivateTable.of(read_cut(odd, schema), rule, Ledger(rule))
        assert np.isnan(less.targets).nonzero()[0].tolist() == [row]
        f, g = whole.objective(preparation), less.objective(preparation)
        x = np.linspace(-1.0, 1.0, f.shape[0])
        place = np.flatnonzero(table.training_rows == row)
        alone = f.objective.clipped_sum(x, 100.0, place) if place.size else 0.0
        np.testing.assert_allclose((f.gradient(x) - g.gradient(x)) * 28, alone, atol=1e-6)
        lost = f.objective.row_losses(x, place).sum() if place.size else 0.0
        assert (f.noisy_value(x) - g.noisy_value(x)) * 28 == pytest.approx(lost, abs=1e-6)
        counts = [each.noisy_quality(x)["noisy"].sum() for each in (f, g)]
        assert counts[0] - counts[1] == pytest.approx(1 - place.size, abs=1e-6)


@pytest.mark.parametrize(
    ("schema", "cells"),
    [
        ({"loss": "squared"}, ["", "x", "inf"]),
        ({"loss": "poisson"}, ["", "-1", "x"]),
        ({"loss": "gamma"}, ["0", "-1", ""]),
        ({"loss": "multinomial", "classes": ["1", "2", "3"]}, ["4", "", "x"]),
        ({"loss": "logistic", "positive": ["2"], "negative": ["1"]}, ["3", "", "x"]),
    ],
)
def test_outcomes_that_a_loss_does_not_take_end_nothing(tmp_path, schema, cells):
    """Even where no row has one that it takes."""
    known = Schema.load({"target": "y", "features": {"a": {"range": [0, 9]}}, **schema})
    path = tmp_path / "a.csv"
    several = len(schema.get("classes", "ab"))
    path.write_text("\n".join(["a,y", *(f"{k},{1 + k % several}" for k in range(9))]))
    begun = prepare([read_table(path, known)], ["a"])
    for good in (["1", "2", "1", "2"], []):
        path.write_text("\n".join(["a,y", *(f"{k},{y}" for k, y in enumerate([*good, *cells]))]))
        table = read_cut(path, known)
        rule = replace(TELLS, loss_clip=5.0)
        one = PrivateTable.of(table, rule, Ledger(rule))
        f = one.objective(begun)
        x = np.full(f.shape, 0.1)
        assert np.isfinite(f.gradient(x)).all()
        assert np.isfinite(f.noisy_value(x))
        assert f.num_examples == len(good) + 3


@on_grid
def test_a_node_s_refusal_does_not_depend_on_a_cell(tmp_path, caplog):
    files = [written(tmp_path, name, rows=60, seed=j) for j, name in enumerate("ab")]
    head, *lines = files[0].read_text().splitlines()
    lines[4] = "1e9,-1,x,z,perhaps"
    files[0] = write_rows(tmp_path / "odd.csv", head, [*lines, "7"])
    assert on_nodes(files, tmp_path, 2)["replies"].tolist() == [2.0]
    assert "column 'age': cells cut to fit: 1, expected a number from 0 to 120" in caplog.text


def test_a_column_that_is_absent_is_refused(tmp_path):
    path = write_rows(tmp_path / "a.csv", "age,dose,sex,ill", ["1,2,f,yes"])
    with pytest.raises(ConfigError, match="no column 'dx'"):
        read_cut(path)
    with pytest.raises(ConfigError, match="the range of 'age' is not public"):
        read_cut(path, stated(features={"age": {}}))


@pytest.mark.parametrize("seed", range(8))
def test_cells_of_any_kind_leave_a_private_table(tmp_path, seed):
    rng = np.random.default_rng(seed)
    odd = ["", "nan", "1e999", "-1", "1,5", '"', '""', "\0", "\ufeff", "x" * 200_000, "1\r2",
           "true", "0x1", "-0", "5e-324", "yes", "f", "1e308", ";", "NA", "1.234"]  # fmt: skip
    lines = ["age,dose,sex,dx,ill"]
    for _ in range(20):
        lines.append(",".join(rng.choice(odd, int(rng.integers(3, 7)))))
    path = tmp_path / "a.csv"
    content = "\n".join(lines).encode() + b"\n\xff\xfe,1,f,a,yes"
    path.write_bytes(content)
    table = read_cut(path)
    assert (np.isnan(table.numeric) | (np.abs(table.numeric) <= 120)).all()
    assert {*table.categories.ravel().tolist()} <= {"", "f", "m", "a", "b", "c"}
    log_notes([table])
    one = private(table)
    assert np.isfinite(one.answer("summary", {})["sums"]).all()
    begun = prepare([read_table(written(tmp_path), SCHEMA)], ["a"])
    assert np.isfinite(one.objective(begun).gradient(np.zeros(6))).all()
