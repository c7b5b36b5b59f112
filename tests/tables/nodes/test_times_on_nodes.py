"""Times to events on nodes: curves, R's cox.zph and baselines, where a node's policy lists them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_grid import on_grid
from table_nodes import make_grid, run_on, start
from trials import gbsg2, rossi

from flower_fedcon import load_model, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.estimators import FederatedCoxRegression
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedNewton
from flower_fedcon.survival import logrank
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.ending import final_exchanges
from flower_fedcon.tables.ending.final_hazards import final_hazards
from flower_fedcon.tables.own_files import written_by
from flower_fedcon.tables.packed_text import packed_text

# --- curves --------------------------------------------------------------------------------------

FILES = [Path("I.csv"), Path("II.csv"), Path("III.csv")]
SCHEMA = {
    "target": "time", "event": "cens", "curve_times": [200.0, 500.0, 1000.0, 1500.0, 2000.0],
    "curve_by": "horTh", "features": {"age": "numeric", "horTh": "categorical"},
}  # fmt: skip
LASSO = FedNewton(L1(0.01))


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return gbsg2, of which each site has a file."""
    monkeypatch.chdir(tmp_path)
    whole = gbsg2()
    for file in FILES:
        whole[whole["tgrade"] == file.stem].to_csv(file, index=False)
    return whole


@on_grid
def test_nodes_count_what_this_process_counts(study):
    policy = {"policy.phases": "train,query,evaluate,prepare,curves", "policy.min-rows": 5}
    there = start(FILES, Schema.load(SCHEMA), 2, made=LASSO, node=policy, run_dir="nodes")
    problem = tables(data=list(map(str, FILES)), schema=SCHEMA, l1=0.01, min_rows=5)
    here = simulate(LASSO, problem, 2, run_dir="here")
    words = ("log-rank", "median", "grid", "events are counted up to 2000")
    said, told = (
        [line for line in one.report.lines if any(word in line for word in words)]
        for one in (here, there)
    )
    assert len(said) == 4
    assert said == told
    assert there.x.tobytes() == here.x.tobytes()
    assert Path("nodes/curves.csv").read_bytes() == Path("here/curves.csv").read_bytes()
    time, event, arm, site = (study[name] for name in ("time", "cens", "horTh", "tgrade"))
    test = logrank(time, event, arm, site, stratified=True, grid=SCHEMA["curve_times"], min_rows=5)
    assert f"stratified by client: {test.in_words}" in here.report.text
    assert "not a number at risk at a time" in here.report.text
    header, *rows = csv.reader(Path("here/curves.csv").read_text().splitlines())
    assert header[2] == "adjusted_at_risk"  # less some of the rows censored in the interval
    assert [row[0] for row in rows] == ["no"] * 5 + ["yes"] * 5
    assert all(int(count) == 0 or int(count) >= 5 for row in rows for count in row[2:4])
    with pytest.raises(FedConError, match=r"policy has policy\.phases = train.*, not curves"):
        start(FILES, Schema.load(SCHEMA), 2, made=LASSO, max_retries=0)


@on_grid
def test_curves_in_another_unit_are_asked_about(study):
    """A server has no times, but the numbers of events in intervals."""
    schema = Schema.load(SCHEMA | {"curve_times": [12.0, 36.0, 72.0]})
    policy = {"policy.phases": "train,query,evaluate,prepare,curves", "policy.min-rows": 5}
    there = start(FILES, schema, 2, made=LASSO, node=policy)
    early = 0
    for _, site in study[study["cens"] == 1].groupby("tgrade"):
        by_arm = site[site["time"] <= 72].groupby("horTh").size()
        early += by_arm.sum() if by_arm.min() >= 5 else 0
    events = int(study["cens"].sum())
    line = f"{early} of {events} events are counted up to 72, the last of curve_times: are curve_ti"
    assert line in there.report.text


@pytest.mark.usefixtures("study")
def test_an_answer_says_no_more_of_other_arms():
    """Whichever arms a server asks for, intervals are merged for the node's own."""
    table = read_table("I.csv", Schema.load(SCHEMA))

    def told(least, *arms):
        return table.answer("curves", {"categories": packed_text({"horTh": list(arms)})}, least)

    both, alone, none = told(5, "no", "yes"), told(5, "yes"), told(5, "other")
    for name in ("at_risk", "events"):
        np.testing.assert_array_equal(both[name].reshape(-1, 2)[:, 1], alone[name])
        assert not none[name].any()
    assert not told(10_000, "no", "yes")["at_risk"].any()  # of no arm enough rows


# --- hazards -------------------------------------------------------------------------------------

COLUMNS = ["fin", "age", "prio"]
TIMES = [10.0, 20.0, 30.0, 40.0, 52.0]
STATED = {
    "target": "week", "event": "arrest", "ties": "efron", "curve_times": TIMES,
    "features": dict.fromkeys(COLUMNS, "numeric"),
}  # fmt: skip
# R 4.2.2, survival 3.5-3: cox.zph(fit, "log", terms = FALSE) of ... + strata(race).
R_LOG = [0.20858616208764588218, 8.56712120835462442869, 0.00095122468580186741,
         8.99214147058060930817]  # fmt: skip
BOTH = "train,evaluate,prepare,curves,statistics,baseline"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("rossi")
    for race, own in rossi().groupby("race"):
        own.to_csv(where / f"race{race}.csv", index=False)
    return where


def here(folder, **more):
    made = tables(data=f"{folder}/*.csv", schema=STATED, inference="model")
    return simulate(FedNewton(made.regularizer), made, 12, **more).report


def test_a_run_tests_hazards_as_r_does(folder, tmp_path):
    found = here(folder, run_dir=tmp_path / "run")
    file = pd.read_csv(tmp_path / "run" / "proportionality.csv", index_col="column")
    assert list(file.index) == [*COLUMNS, "GLOBAL"]
    np.testing.assert_allclose(file["chi2"], R_LOG, rtol=1e-6)
    assert file["df"].tolist() == [1, 1, 1, 3]
    assert "age: chi2 8.567, p = 0.00342" in found.text
    assert "of held-out rows" not in found.text  # there are none
    d = rossi()
    model = FederatedCoxRegression(0.0, ties="efron", share_baseline=True)
    model.fit(d[COLUMNS], d[["week", "arrest"]], d["race"])
    own = pd.read_csv(tmp_path / "run" / "baseline.csv")
    for race, known in model.baseline_cumulative_hazard_.items():
        steps = np.append(0.0, known[:, 1])[np.searchsorted(known[:, 0], TIMES, side="right")]
        told = own[own["client"] == f"race{race}"]["cumulative_hazard"]
        np.testing.assert_allclose(told, steps, rtol=1e-6)
        sites = load_model(tmp_path / "run")
        probabilities = sites.predict_survival(d[:5], TIMES, stratum=f"race{race}")
        theirs = model.predict_survival(d[COLUMNS][:5], TIMES, stratum=race)
        np.testing.assert_allclose(probabilities, theirs, rtol=1e-6)
    with pytest.raises(ConfigError, match=r"must name one of the baseline hazards 'race0', 'ra"):
        sites.predict_survival(d[:5], TIMES)
    for name in ("proportionality", "baseline"):
        assert written_by(list(pd.read_csv(tmp_path / "run" / f"{name}.csv"))) == "a run"


@pytest.mark.parametrize(("stratified", "known"), [
    (True, (2.16845962166070994, 2, 0.33816213443655680)),
    (False, (2.4564488030050944, 2, 0.29281203297815278)),
])  # fmt: skip
def test_hazards_of_all_columns_of_a_category_are_tested_together(stratified, known, tmp_path):
    """R 4.2.2, survival 3.5-3: the line of kind in cox.zph(fit, "log"), + strata(race) if so."""
    kinds = ["none", "few", "many"]
    d = rossi().assign(kind=lambda d: np.array(kinds)[np.digitize(d["prio"], [1, 4])])
    kind = {"type": "categorical", "categories": kinds}
    schema = STATED | {"features": {"fin": "numeric", "age": "numeric", "kind": kind}}
    schema = {k: v for k, v in schema.items() if stratified or k != "curve_times"}
    d.to_csv(tmp_path / "all.csv", index=False)
    made = tables(data=f"{tmp_path}/all.csv", schema=schema | {"stratified": stratified},
                  client_column="race", inference="model")  # fmt: skip
    found = simulate(FedNewton(), made, 12, run_dir=tmp_path / "run").report
    file = pd.read_csv(tmp_path / "run" / "proportionality.csv", index_col="column")
    assert list(file.index)[2:] == ["kind=few", "kind=many", "kind", "GLOBAL"]
    np.testing.assert_allclose(file.loc["kind"], known, rtol=1e-6)
    assert f"all columns of kind: chi2 {known[0]:.4g} with 2 degrees of freedom" in found.text


@on_grid
def test_nodes_tell_what_their_policy_lists(folder, monkeypatch):
    files, schema, known = sorted(folder.glob("*.csv")), Schema.load(STATED), here(folder)

    def there(*configs):
        grid = make_grid(files, schema)
        for j, config in enumerate(configs):
            grid.nodes[1000 - j].node_config |= config
        return run_on(grid, schema, 12, inference="model").report

    one = {"policy.phases": BOTH, "policy.min-cell": 1}
    found = there(one, one | {"policy.phases": BOTH.removesuffix(",baseline")})
    np.testing.assert_array_equal(found.hazards.test.statistic, known.hazards.test.statistic)
    same = found.hazards.baselines["race0"]
    np.testing.assert_array_equal(same, known.hazards.baselines["race0"])
    assert "no baseline hazard of site race1: refused" in found.text
    # Of two grids that differ by one event the difference would be that event's time.
    earlier = lambda s, e, t: final_hazards(s, e, t - 0.5)  # noqa: E731
    with monkeypatch.context() as server:
        server.setattr(final_exchanges, "final_hazards", earlier)
        said = "of sites race0, race1: refused: this node sends baseline hazards only at"
        assert said in there(one, one).text
    # With few events in an interval the hazard waits until there are enough.
    few = {"policy.phases": BOTH, "policy.min-rows": 25}
    merged = there(few, few).hazards
    assert merged.baselines["race1"][0] == 0 < merged.baselines["race1"][-1]
    assert "fewer than 25 events, the least by its policy" in merged.test  # of race0's 12 events


@on_grid
def test_nodes_fit_one_baseline_hazard_if_their_policy_allows_it(folder):
    """On all times of events with the word in their policies; on a grid by sums of enough rows."""
    files = sorted(folder.glob("*.csv"))
    stated = {name: value for name, value in STATED.items() if name != "curve_times"}
    stated |= {"stratified": False, "test_fraction": 0.0}

    def there(schema, config):
        grid = make_grid(files, schema)
        for node in grid.nodes.values():
            node.node_config |= config
        return run_on(grid, schema, 12, inference="robust").report

    def here(schema, **more):
        made = tables(data=f"{folder}/*.csv", schema=schema, inference="robust", **more)
        return simulate(FedNewton(made.regularizer), made, 12).report

    allowed = {"policy.phases": "train,evaluate,prepare,statistics,risk_sets"}
    found, known = there(Schema.load(stated), allowed), here(stated)
    np.testing.assert_array_equal(found.estimates.values, known.estimates.values)
    np.testing.assert_array_equal(found.estimates.covariance, known.estimates.covariance)
    np.testing.assert_array_equal(found.hazards.curves["all"], known.hazards.curves["all"])
    d = rossi()
    pooled = FederatedCoxRegression(0.0, ties="efron", inference="robust")
    pooled.fit(d[COLUMNS], d[["week", "arrest"]])
    np.testing.assert_allclose(found.estimates.values, pooled.coef_, atol=1e-9)
    np.testing.assert_allclose(found.estimates.bse, pooled.bse_, rtol=1e-8)
    by_default = there(Schema.load(stated), {})
    assert "no common baseline hazard" in by_default.text
    assert "not risk_sets" in by_default.text
    assert by_default.estimates is None
    on_grid_of = stated | {"baseline_times": [float(week) for week in range(4, 53, 4)]}
    merged = there(Schema.load(on_grid_of), {"policy.min-rows": 5})
    whole = here(on_grid_of)
    assert merged.estimates.events > 100  # of 114
    np.testing.assert_allclose(merged.estimates.values, whole.estimates.values, atol=0.05)


@on_grid
def test_secure_aggregation_refuses_one_baseline_hazard_before_round_1(tmp_path):
    """With a penalty, too, where a run has no errors: it asks for sums over rows at risk."""
    stated = {name: value for name, value in STATED.items() if name != "curve_times"}
    files = [tmp_path / f"s{k}.csv" for k in range(3)]
    for k, file in enumerate(files):
        rossi()[k::3].to_csv(file, index=False)
    secure = {"secure_aggregation": SecAggPlus(clipping_range=100.0), "max_retries": 0}
    for psi in (None, L1(0.01)):
        made = FedAvg(client_lr=0.1, local_steps=1, regularizer=psi)
        with pytest.raises(ConfigError, match="stratified=False of a schema cannot be used with"):
            start(files, Schema.load(stated | {"stratified": False}), 1, made=made, **secure)


@on_grid
def test_the_share_of_events_shows_nodes_where_they_are_turned_round(tmp_path):
    """Of sums before round 1; no node sends times, so another follow-up is asked about, too."""
    whole = rossi().sample(frac=1, random_state=0)
    stated = {name: value for name, value in STATED.items() if name != "curve_times"}

    def remarks(turned, few=()):
        folder = tmp_path / f"{turned}{few}"  # a file is read once
        folder.mkdir()
        files = [folder / f"s{k}.csv" for k in range(4)]
        for k, file in enumerate(files):
            own = whole[k::4].head(15 if k in few else None)
            own.assign(arrest=own["arrest"] != (k in turned)).to_csv(file, index=False)
        return start(files, Schema.load(stated), 1).report.remarks

    assert remarks([]) == remarks([1, 2]) == remarks([0], few=[0]) == ()
    (said,) = remarks([0])
    own = np.arange(len(whole)) % 4 == 0
    here, elsewhere = 1 - whole["arrest"][own].mean(), whole["arrest"][~own].mean()
    shares = (
        f"{here:.0%} of the rows of s0 have an event, and {elsewhere:.0%} elsewhere: are events"
    )
    assert said.startswith(shares)
