"""Kaplan-Meier curves and log-rank tests: R's survival, rows written out, and tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from harness import Command, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular import run
from tabular import study as write_study
from trials import gbsg2, lung, rossi

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import FederatedCoxRegression
from flower_fedcon.objectives.cohorts import unscaled
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.strategies import FedAvg
from flower_fedcon.survival import kaplan_meier, logrank
from flower_fedcon.survival.of_tables import curves_of_tables
from flower_fedcon.tables.builders import clients_of, prepared_problem, tables
from flower_fedcon.tables.risk_counts import risk_counts

EXACT = {"rtol": 1e-9, "atol": 0}


def test_lung_against_r():
    """R 4.2.2, survival 3.5-3: survfit(Surv(time, status) ~ 1, conf.type = "log-log")."""
    table = lung()
    curve = kaplan_meier(table["time"], table["status"], groups=table["inst"])
    expected = [  # time, n.risk, n.event, surv, its standard error, lower, upper
        (5, 226, 1, 0.995575221238938046, 0.0044149785745867653, 0.969008813470040309,
         0.99937552323217893),
        (11, 225, 3, 0.982300884955752185, 0.0087708932277633048, 0.953533612468948300,
         0.99332021419033090),
        (12, 222, 1, 0.977876106194690231, 0.0097840458740035899, 0.947667942800681118,
         0.99073141822273558),
        (199, 144, 1, 0.681845215151455908, 0.0312352293669118479, 0.616228880204372276,
         0.73866128420280619),
    ]  # fmt: skip
    frame = curve.to_frame()
    for time, *numbers in expected:
        np.testing.assert_allclose(frame.loc[time].to_numpy(), numbers, **EXACT)
    assert (curve.quantile(0.25), curve.median, curve.quantile(0.75)) == (175, 310, 558)
    late = curve.at(821)
    assert late == pytest.approx(0.067909205102126904, rel=1e-9)
    assert len(curve.groups) == 18
    assert curve.left_out.size == 0


def test_others_against_r():
    table = rossi()
    curve = kaplan_meier(table["week"], table["arrest"], groups=table["race"])
    last = curve.time[-1], curve.at_risk[-1], curve.survival[-1], curve.lower[-1], curve.upper[-1]
    expected = (52, 322, 0.73611111111111083, 0.69185971579648720, 0.77506318337467417)
    np.testing.assert_allclose(last, expected, **EXACT)
    table = gbsg2()
    frame = kaplan_meier(table["time"], table["cens"], groups=table["tgrade"]).to_frame()
    expected = (0.657750395448056135, 0.019051457743188553, 0.618953265673009345,
                0.693614693213317035)  # fmt: skip
    np.testing.assert_allclose(frame.loc[:1000].iloc[-1].to_numpy()[2:], expected, **EXACT)


def test_log_rank_against_r():
    """survdiff, with and without strata(site)."""
    table = lung()
    time, event, site = table["time"], table["status"], table["inst"]
    test = logrank(time, event, table["sex"], groups=site)
    assert test.statistic == pytest.approx(9.886390844255363, rel=1e-9)
    np.testing.assert_allclose(test.expected, [90.134337569775852, 72.865662430224191], **EXACT)
    assert test.covariance[0, 0] == pytest.approx(39.917958940590999, rel=1e-9)
    assert test.observed.tolist() == [110, 53]
    strata = logrank(time, event, table["sex"], groups=site, stratified=True)
    assert strata.statistic == pytest.approx(8.3388910073766933, rel=1e-9)
    assert strata.covariance[0, 0] == pytest.approx(34.026354414163862, rel=1e-9)
    four = logrank(time, event, table["ph.ecog"], groups=site)
    assert (four.statistic, four.degrees) == (pytest.approx(21.856266107119882, rel=1e-9), 3)
    four = logrank(time, event, table["ph.ecog"], groups=site, stratified=True)
    assert (four.statistic, four.degrees) == (pytest.approx(26.619841214456642, rel=1e-9), 3)
    table = rossi()
    test = logrank(table["week"], table["arrest"], table["fin"], table["race"], stratified=True)
    assert test.statistic == pytest.approx(4.0484965977397271, rel=1e-9)
    table = gbsg2()
    time, event = table["time"], table["cens"]
    test = logrank(time, event, table["horm"], table["tgrade"], stratified=True)
    assert test.statistic == pytest.approx(7.395796537923184, rel=1e-9)
    test = logrank(time, event, table["tgrade"], table["menostat"], stratified=True)
    assert (test.statistic, test.degrees) == (pytest.approx(20.621080939800731, rel=1e-9), 2)


ROWS = st.lists(
    st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 1), st.integers(0, 2)),
    min_size=1, max_size=40,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(ROWS)
def test_random_rows_against_lifelines(rows):
    lifelines = pytest.importorskip("lifelines")
    from lifelines.statistics import multivariate_logrank_test

    time, event, arm, site = (np.array(column) for column in zip(*rows, strict=True))
    if not event.any():
        with pytest.raises(ConfigError, match="event is 0 in all rows"):
            kaplan_meier(time, event, groups=site)
        return
    curve = kaplan_meier(time, event, groups=site)
    theirs = lifelines.KaplanMeierFitter().fit(time, event)
    expected = theirs.survival_function_at_times(curve.time).to_numpy()
    np.testing.assert_allclose(curve.survival, expected, rtol=1e-9, atol=1e-12)
    limits = theirs.confidence_interval_survival_function_.loc[curve.time].to_numpy()
    inside = curve.survival > 0
    np.testing.assert_allclose(curve.lower[inside], limits[inside, 0], rtol=1e-9)
    np.testing.assert_allclose(curve.upper[inside], limits[inside, 1], rtol=1e-9)
    try:
        test = logrank(time, event, arm, groups=site)
    except ConfigError as error:
        assert "two arms" in str(error)  # noqa: PT017
        return
    theirs = multivariate_logrank_test(time, arm, event)
    np.testing.assert_allclose(test.statistic, theirs.test_statistic, rtol=1e-8, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(1, 6), st.lists(st.integers(0, 13), min_size=1, max_size=8, unique=True))
def test_no_small_count_leaves_a_site(rows, least, points):
    """And what leaves are its events, each once and not before its time."""
    time, event, arm, _ = (np.array(column) for column in zip(*rows, strict=True))
    grid = np.sort(np.array(points, float))
    at_risk, events = risk_counts(time.astype(float), event, arm, 2, grid, least)
    for told in (at_risk, events):
        assert ((told == 0) | (told >= least)).all()
    assert (events <= at_risk).all()
    for k in range(2):
        died = time[(arm == k) & event]
        within = np.array([(died <= g).sum() for g in grid])
        assert (np.cumsum(events[:, k]) <= within).all()
        if least == 1:
            np.testing.assert_array_equal(np.cumsum(events[:, k]), within)


def test_without_censoring_any_grid_is_exact():
    time = np.random.default_rng(0).exponential(10.0, 60)
    curve = kaplan_meier(time, np.ones(60), groups=np.arange(60) % 4, grid=[5, 9, 20, 80])
    np.testing.assert_allclose(curve.survival, [(time > t).mean() for t in curve.time], atol=1e-12)


def test_a_coarse_grid_lies_between_all_and_none_of_the_censored():
    rng = np.random.default_rng(1)
    time, last = rng.exponential(10.0, 300), rng.uniform(2.0, 30.0, 300)
    seen, event = np.minimum(time, last), time <= last
    exact = kaplan_meier(seen, event)
    for grid in ([10.0], [3.0, 12.0, 20.0]):
        coarse = kaplan_meier(seen, event, grid=grid)
        start = np.array([(seen > g).sum() for g in [-1.0, *grid[:-1]]])
        d = coarse.events
        gone = np.array([((seen > a) & (seen < b) & ~event).sum()
                         for a, b in zip([-1.0, *grid], grid, strict=False)])  # fmt: skip
        low, high = np.cumprod(1 - d / (start - gone)), np.cumprod(1 - d / start)
        assert ((low <= coarse.survival) & (coarse.survival <= high)).all()
        assert ((low <= exact.at(grid)) & (exact.at(grid) <= high)).all()
        assert np.abs(coarse.survival - exact.at(grid)).max() < 0.01


def test_sites_that_send_nothing_are_named():
    time, event = np.arange(1.0, 14.0), np.ones(13)
    curve = kaplan_meier(time, event, groups=["a"] * 10 + ["b"] * 3, min_rows=4)
    assert curve.left_out.tolist() == ["b"]
    assert curve.events.tolist() == [0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0, 0]
    assert curve.at_risk.tolist() == [10] * 4 + [6] * 4 + [0] * 5
    np.testing.assert_allclose(curve.survival[[2, 3, 7, 8]], [1.0, 0.6, 0.2, np.nan])


def test_edges():
    curve = kaplan_meier([3.0, 3.0, 3.0], [1, 1, 1], groups=[0, 1, 1])  # all times tied
    assert (curve.survival.tolist(), curve.median) == ([0.0], 3.0)
    assert np.isnan([curve.lower[0], curve.upper[0], curve.std_error[0]]).all()
    curve = kaplan_meier([1.0, 2.0], [0, 1], groups=[0, 1])  # no event at a site
    assert curve.survival.tolist() == [0.0]
    assert kaplan_meier([1.0, 2, 3], [0, 0, 0], grid=[1, 2]).survival.tolist() == [1.0, 1.0]
    with pytest.raises(ConfigError, match="two arms are at risk at one site: compare across"):
        logrank([1.0, 2.0, 3.0], [1, 1, 1], list("aab"), groups=[0, 0, 1], stratified=True)


WRONG = [
    ({"event": [1, 2, 1]}, "event must be 1 for an event .* got 2: .* event == 2"),
    ({"time": [1, -2, 1]}, "time must be >= 0, got -2 in row 1"),
    ({"time": [1, np.nan, 1]}, "time must be finite, got nan in row 1"),
    ({"event": [1, None, 0]}, "event must be finite, got nan in row 1"),
    ({"event": ["dead", "alive", "dead"]}, "event must hold numbers, got"),
    ({"time": [1, 2]}, "one value for each row, got 2 and 3"),
    ({"time": [], "event": []}, "one number for each row, got shape"),
    ({"event": [0, 0, 0]}, "event is 0 in all rows"),
    ({"grid": [2, 1]}, "each later than the one before"),
    ({"grid": []}, "grid must have at least one time"),
    ({"min_rows": 0}, "min_rows"),
    ({"alpha": 95}, "alpha must be in"),
    ({"groups": ["a", None, "b"]}, "groups has no value"),
    ({"by": ["a", "a", "a"]}, "at least two arms, got 'a' in all rows"),
    ({"by": ["a", None, "b"]}, "by has no value for 1 row"),
    ({"by": ["a", "b"]}, "inconsistent numbers"),
    ({"by": None}, "by must have the arm of each row"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_what_cannot_be_is_refused(given, words):
    arguments = {"time": [1.0, 2.0, 3.0], "event": [1, 0, 1]} | given
    with pytest.raises((ConfigError, ValueError), match=words):
        (logrank if "by" in given else kaplan_meier)(**arguments)


# --- tables: what they give is what their columns give -------------------------------------------


SCHEMA = """
target = "time"
event = "cens"
ties = "efron"
[features]
age = "numeric"
horTh = "categorical"
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """gbsg2 as one file of three sites."""
    monkeypatch.chdir(tmp_path)
    table = gbsg2()
    table.to_csv("all.csv", index=False)
    write_study(tmp_path, SCHEMA, 'client_column = "tgrade"')
    return table


def of_sites(more=""):
    """Return the clients' tables and names, with more in the schema."""
    Path("schema.toml").write_text(more + SCHEMA)
    return clients_of("all.csv", "schema.toml", "tgrade")


def test_tables_give_what_columns_give(study):
    clients, names = of_sites()
    curves, test = curves_of_tables(clients, names, "horTh", stratified=True)
    assert names == ["I", "II", "III"]
    own = study["horTh"] == "yes"
    time, event, site = study["time"], study["cens"], study["tgrade"]
    expected = kaplan_meier(time[own], event[own], groups=site[own])
    assert curves["yes"].at(expected.time) == pytest.approx(expected.survival, rel=1e-12)
    theirs = logrank(time, event, study["horTh"], groups=site, stratified=True)
    assert test.statistic == pytest.approx(theirs.statistic, rel=1e-12)
    alone, none = curves_of_tables(clients, names, grid=[500, 1000, 2000], min_rows=20)
    assert none is None
    assert list(alone) == ["all"]
    with pytest.raises(ConfigError, match="'age' is not a categorical feature"):
        curves_of_tables(clients, names, "age")


def test_ties_reach_the_model(study):
    problem = prepared_problem(*of_sites())
    assert {f.ties for f in (unscaled(f)[0] for f in problem.objectives)} == {"efron"}


def test_private_runs_have_no_curves(study):
    """Before, such a run wrote each client's numbers of events at each time into its folder."""
    privacy = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    method = FedAvg(client_lr=0.1, local_steps=1, privacy=privacy)
    assert simulate(method, prepared_problem(*of_sites()), 1).stopped is False
    made = prepared_problem(*of_sites("curve_times = [500, 1000]"))
    with pytest.raises(ConfigError, match="curve_times cannot be used with privacy="):
        simulate(method, made, 1)


def test_a_report_says_between_which_times_a_median_lies(study):
    exact = kaplan_meier(study["time"], study["cens"], groups=study["tgrade"]).median
    made = prepared_problem(*of_sites("curve_times = [400, 900, 1900, 2500]"))
    text = run(made, 2).report.text
    (said,) = re.findall(r"median time to the event: all after (\d+), up to (\d+)\n", text)
    assert float(said[0]) < exact <= float(said[1])
    made = prepared_problem(*of_sites("curve_times = [400, 900]"))
    text = run(made, 2).report.text
    assert "median time to the event: all not reached by " in text


def test_medians_name_the_column_of_the_arms(study, run_command: Command):
    """An arm named 1 read "1 after 200, up to 400"."""
    labels = 'horTh = {type = "categorical", label = "Hormones", labels = {yes = "given"}}'
    more = 'curve_times = [400, 900, 1900, 2500]\ncurve_by = "horTh"\n'
    schema = more + SCHEMA.replace('horTh = "categorical"', labels)
    Path("schema.toml").write_text(schema)
    made = prepared_problem(*clients_of("all.csv", "schema.toml", "tgrade"))
    (said,) = re.findall(r"median time to the event: (.*)\n", run(made, 2).report.text)
    each = r"(after \d+, up to \d+|not reached by [0-9.]+)"
    assert re.fullmatch(f"Hormones = no: {each}; Hormones = given: {each}", said)
    _, out, _ = run_command("data", "curves", "study.toml", "--by", "horTh")
    assert out.count("Hormones = given") == 2  # of the curve, and of the numbers at risk


def test_an_event_at_time_0_leaves_a_test_of_proportionality(study):
    """R's cox.zph along log(time) stops there: "computationally singular"."""
    study["time"] = np.where(np.arange(len(study)) % 50 == 0, 0, study["time"])
    study.to_csv("all.csv", index=False)
    for more in ("", "stratified = false\n"):
        Path("schema.toml").write_text(more + SCHEMA)
        made = tables(data="all.csv", schema="schema.toml", client_column="tgrade",
                      inference="model")  # fmt: skip
        report = run(made).report
        found = report.hazards.test
        X = np.column_stack([study["age"], study["horTh"] == "yes"]).astype(float)
        model = FederatedCoxRegression(alpha=0, ties="efron", stratified=not more, tol=1e-12)
        model.fit(X, np.column_stack([study["time"], study["cens"]]), study["tgrade"])
        known = model.proportionality("identity")
        assert found.statistic == pytest.approx(known.statistic, rel=1e-6)
        assert found.global_pvalue == pytest.approx(known.global_pvalue, rel=1e-6)
        assert "test of proportional hazards along time (" in report.text
        assert "an event is at time 0, which has no logarithm" in report.text


def test_commands_that_look_at_data_need_no_rounds(study, run_command: Command):
    """Before: "rounds is missing: write rounds = 100, or another number, below [run]"."""
    Path("study.toml").write_text(Path("study.toml").read_text().partition("[run]")[0])
    assert run_command("data", "curves", "study.toml", "--by", "horTh")[0] == 0
    assert run_command("data", "partition", "study.toml", "-o", "rows.svg")[0] == 0
    assert "rounds is missing" in refusal(run_command, "run", "study.toml")


def test_the_command(study, run_command: Command):
    code, out, _ = run_command(
        "data", "curves", "study.toml", "--by", "horTh", "--stratified", "-o", "c.svg"
    )
    assert code == 0
    assert "stratified log-rank test: chi2 7.396, 1 degree of freedom, " in out
    assert " events, p = 0.00654" in out
    assert "figure: c.svg" in out
    code, out, _ = run_command(
        "data", "curves", "study.toml", "--by", "horTh", "--grid", "100,2000,2999", "--min-rows",
        "40",
    )  # fmt: skip
    assert code == 0
    assert "nan" not in out
    assert "events, in counts below --min-rows" in out
    assert "median: up to the next grid time" in out
    told = refusal(run_command, "data", "curves", "study.toml", "--grid", "90,x")
    assert "--grid must be times separated by commas, such as 30,60,90, got '90,x'" in told
    told = refusal(run_command, "data", "curves", "study.toml", "--grid", "90", "-o", "c.gif")
    assert "c.gif" in told
