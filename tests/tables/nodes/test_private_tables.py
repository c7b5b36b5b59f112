"""Tables whose rows are private from the first number on: sums before round 1, then gradients."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from fake_grid import on_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import blocks
from private_rows import sums_without_noise
from private_tables import (
    CATEGORIES,
    FEATURES,
    QUIET,
    RULE,
    SCHEMA,
    STEP,
    STEPS,
    TELLS,
    counted,
    on_nodes,
    private,
    stated,
    written,
)
from scipy.stats import kstest
from sklearn.metrics import roc_auc_score

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError, FedConError, RefusedError
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import prepare, prepared_problem
from flower_fedcon.tables.noisy_quality import NOISY_BINS, as_binned, bins_of, told_noisily
from flower_fedcon.tables.noisy_sums import PrivateTable, bounds, check_public
from flower_fedcon.tables.packed_text import packed_text
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.quality import BINS, Quality, pooled_auc
from flower_fedcon.tables.schema import Feature
from flower_fedcon.tables.table import Table

pytestmark = on_grid


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


@pytest.mark.parametrize(
    ("seed", "cases"),
    [*((seed, 1) for seed in range(8)), pytest.param(None, 5_000, marks=pytest.mark.nightly)],
)
def test_a_row_moves_the_sums_by_at_most_the_clip(tmp_path, monkeypatch, seed, cases):
    rng = np.random.default_rng(seed)
    for _ in range(cases):
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


def test_nodes_spend_one_ledger_from_the_first_exchange(tmp_path):
    files = [written(tmp_path, name, seed=j) for j, name in enumerate("ab")]
    first, second = (on_nodes(files, tmp_path, 2, seed=k) for k in range(2))
    assert counted(tmp_path) == [2 + 2 * 6] * 2  # the second run asks what the first has asked
    assert "objective" not in first.columns
    assert not np.array_equal(first.x, second.x)


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


@pytest.mark.parametrize("tells", [True, False])
def test_nodes_tell_noisy_counts_where_they_say_so(tmp_path, tells):
    files = [written(tmp_path, name, 1500, seed=j) for j, name in enumerate("ab")]
    report = on_nodes(files, tmp_path, 2, STEP, HELD, {"privacy.quality": tells}).report
    assert counted(tmp_path) == [2 + 2 + tells] * 2
    assert ("auc" in report.quality.pooled) == tells
    if not tells:
        assert all("privacy.quality = true" in why for why in report.quality.absent.values())


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
