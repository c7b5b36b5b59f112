"""Faults between sites: units of exposures, offsets and entries, and outcomes turned round."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal
from tabular import deal, judged, lines, numeric, run

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedLogisticRegression,
    FederatedOrdinalRegression,
    FederatedPoissonRegressor,
)
from flower_fedcon.paths import cross_validate, regularization_path, stability_selection
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.checks.opposite_effects import TAU, SiteSums, agreement
from flower_fedcon.tables.checks.turned_features import _changed, _evidence
from flower_fedcon.tables.checks.unlike_outcomes import (
    censored_at_once,
    counts_left_out,
    running_sums,
    unrelated_exposures,
)
from flower_fedcon.tables.read import columns_of
from flower_fedcon.tables.survey import Client, survey

N = 60


def counts(unit=1.0, people=1.0, role="exposure", seed=0, many=1.0):
    """Rows of three sites, the second with exposures in another unit, or of groups of people."""
    rng = np.random.default_rng(seed)
    site = np.repeat([0, 1, 2], N)
    x, years = rng.normal(size=3 * N), rng.uniform(0.5, 3.0, 3 * N)
    years *= np.where(site == 1, people, 1.0)
    y = rng.poisson(many * years * np.exp(0.4 * x - 0.3 * (site == 2)))
    told = years * np.where(site == 1, unit, 1.0)
    return pd.DataFrame({"y": y, "x": x, role: told if role == "exposure" else np.log(told)})


def remarks(folder, frame, schema, asks="another unit?", **given):
    """What a run says before round 1, and `fedcon data check`, of the same three files."""
    data = deal(folder, frame, [range(k * N, (k + 1) * N) for k in range(3)])
    loaded, clients = Schema.load(schema), []
    for k in range(3):
        columns = columns_of(folder / f"site{k}.csv", loaded)
        clients.append(Client(f"site{k}", columns, columns.table()))
    by_run = tables(data=data, schema=schema, **given).preparation.remarks
    by_check = survey(clients).findings
    assert set(by_run) <= set(by_check)
    return [line for line in by_run if asks in line]


@pytest.mark.parametrize("loss", ["poisson", "negative_binomial", "gamma"])
@pytest.mark.parametrize("role", ["exposure", "offset"])
@pytest.mark.parametrize(
    ("unit", "times"), [(365.25, "about 3"), (12.0, "about 1"), (4.345, "about 4."), (2.5, "")]
)
def test_exposures_in_another_unit(loss, role, unit, times, tmp_path):
    """Of days, months, weeks for months, and the logarithms of them; estimators say the same."""
    frame = counts(unit, role=role)
    frame["y"] += loss == "gamma"
    schema = {"target": "y", "loss": loss, "features": numeric("x"), role: role}
    said = remarks(tmp_path, frame, schema)
    assert len(said) == bool(times)
    assert all(f"column '{role}': " in line and times in line for line in said)
    assert all(" at site1 are" in line and "'y' per exposure is" in line for line in said)
    if loss == "poisson":
        groups = np.repeat(["site0", "site1", "site2"], N)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = FederatedPoissonRegressor(0.0)
            model.fit(frame[["x"]], frame["y"], groups, **{role: frame[role]})
        assert [str(w.message) for w in caught] == said


@pytest.mark.parametrize(("wrong", "asked"), [(False, 0), (True, 1)])
def test_an_exposure_with_which_counts_fall_at_all_sites(wrong, asked, tmp_path):
    d = counts(many=4.0).assign(exposure=lambda d: 6 / d.exposure if wrong else d.exposure)
    schema = {"target": "y", "loss": "poisson", "exposure": "exposure", "features": numeric("x")}
    assert len(remarks(tmp_path, d, schema, "is it the right column?")) == asked


@pytest.mark.parametrize(("rate", "asked"), [(3.0, 1), (300.0, 0)])
def test_of_counts_of_hundreds_no_law_says_that_they_are_cut_off(rate, asked):
    """Elsewhere one row in ten is a large city."""
    y = np.random.default_rng(0).poisson(rate, (3, 100)).astype(float)
    y[0], y[1:, ::10] = np.minimum(y[0], rate), 4 * rate
    assert len([*counts_left_out("deaths", "abc", y, np.ones((3, 100)))]) == asked


def test_groups_of_many_people_are_not_another_unit(tmp_path):
    schema = {"target": "y", "loss": "poisson", "features": numeric("x"), "exposure": "exposure"}
    for seed in range(10):
        assert remarks(tmp_path, counts(people=300.0, seed=seed), schema) == []


def times(unit=1.0, late=1.0, seed=0):
    """Rows of three sites that enter late; at the second entries have another unit, or are few."""
    rng = np.random.default_rng(seed)
    site, x = np.repeat([0, 1, 2], N), rng.normal(size=3 * N)
    entry = np.where(rng.random(3 * N) < np.where(site == 1, late, 1.0), rng.uniform(10, 500), 0.0)
    entry = entry * rng.uniform(0.2, 1.0, 3 * N)
    time = entry + rng.exponential(600 * np.exp(-0.3 * x))
    return pd.DataFrame(
        {"t": time, "e": np.arange(3 * N) % 3 > 0, "x": x,
         "entry": entry * np.where(site == 1, unit, 1.0)}
    )  # fmt: skip


TIMES = {"target": "t", "event": "e", "entry": "entry", "features": numeric("x")}


@pytest.mark.parametrize(("unit", "late", "said"), [(1 / 365.25, 1.0, 1), (1.0, 0.1, 0)])
def test_entries_in_another_unit_than_times(unit, late, said, tmp_path):
    frame = times(unit, late)
    told = remarks(tmp_path, frame, TIMES)
    assert len(told) == said
    assert all(line.startswith("column 'entry': values at site1 are about 1/3") for line in told)
    groups = np.repeat(["site0", "site1", "site2"], N)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = frame[["t", "e"]].to_numpy(float)
        FederatedCoxRegression(0.0).fit(frame[["x"]], y, groups, entry=frame["entry"])
    assert [str(w.message) for w in caught] == told


@pytest.mark.parametrize("change", [
    lambda rows: rows.assign(entry=365.25 * rows["entry"] + 1),
    lambda rows: rows.rename(columns={"t": "entry", "entry": "t"}),
])  # fmt: skip
def test_entries_after_times_are_refused_with_their_row(change, tmp_path):
    """In a smaller unit at a site, or with the two columns exchanged."""
    frame = times()
    frame = pd.concat([frame[:N], change(frame[N : 2 * N]), frame[2 * N :]])
    with pytest.raises(ConfigError, match=r"site1.csv: row .*expected a time of entry before the"):
        remarks(tmp_path, frame, TIMES)


def test_an_offset_of_scores_in_another_unit(tmp_path):
    frame = counts().assign(score=lambda d: 3.0 + d["x"])
    frame.loc[N : 2 * N - 1, "score"] *= 10
    schema = {"target": "y", "features": numeric("x"), "offset": "score"}
    (said,) = remarks(tmp_path, frame, schema)
    assert said.startswith("column 'score': values at site1 are about 10 times")


# --- columns of one value, and outcomes of another kind ------------------------------------------


COUNTS = {"target": "y", "loss": "poisson", "features": numeric("x"), "exposure": "exposure"}
LINEAR = {"target": "y", "features": numeric("x")}
ARMS = np.tile([*"abc"], N)


@pytest.mark.parametrize(("frame", "column", "value", "schema", "asks"), [
    (times(), "e", True, TIMES, "all 60 rows of site1 have an event, and 33% elsewhere are cens"),
    (times(), "entry", 0.0, TIMES, "column 'entry': it is 0 in all rows of site1, and "),
    (counts(), "exposure", 1.0, COUNTS, "column 'exposure': it is 1 in all rows of site1, and 1.7"),
    (counts(), "exposure", 2.5, COUNTS, "'exposure': it is 2.5 in all rows of site1, and 1.7"),
    (counts().rename(columns={"exposure": "score"}), "score", 2.5,
     {"target": "y", "loss": "poisson", "features": numeric("x"), "offset": "score"},
     "column 'score': it is 2.5 in all rows of site1, and "),
    (times(), "t", lambda d: d["t"].where(d["e"], 6000.0), TIMES, "more events would be expected"),
    (counts(many=50.0), "exposure", lambda d: d["exposure"].to_numpy()[::-1], COUNTS,
     "column 'exposure': 'y' does not rise with it at site1 (slope of logarithms "),
    (counts(), "y", lambda d: d["y"].cumsum(), COUNTS, "times the others': are they running sums"),
    (counts().assign(y=lambda d: 288 + 54 * d["x"]), "y", lambda d: d["y"] - 242, LINEAR,
     "): another unit, or a change from a first value?"),
    (counts().assign(y=lambda d: d["x"]), "y", lambda d: d["y"].rank(pct=True), LINEAR,
     "column 'y': values at site1 are evenly distributed from 0.0166667 to 1, as ranks"),
    (counts().assign(arm=ARMS), "arm", lambda d: d["arm"].replace("c", "a"),
     {**LINEAR, "features": numeric("x", arm="categorical")},
     "column 'arm': none of the 60 known values at site1 is 'c', and 33% elsewhere are: "),
    (counts(), "y", lambda d: d["y"].clip(upper=1), COUNTS, "all counts at site1 are 0 or 1, whe"),
    (counts(), "y", lambda d: d["y"].clip(upper=2), COUNTS, "no count at site1 is above 2, where "),
    (counts(), "y", lambda d: d["y"].clip(lower=1), COUNTS, "no count at site1 is 0, where about"),
])  # fmt: skip
def test_one_value_or_changes_at_a_site(frame, column, value, schema, asks, tmp_path):
    """Nothing is said where the column varies as elsewhere."""
    assert remarks(tmp_path, frame, schema, asks) == []
    second = frame[N : 2 * N]
    frame = pd.concat([frame[:N], second.assign(**{column: value}), frame[2 * N :]])
    assert len(remarks(tmp_path, frame, schema, asks)) == 1


def test_of_one_site_there_is_nothing_to_compare():
    y, ones = [np.arange(60.0)], [np.ones(60)]
    assert [*running_sums("y", "a", y, ones, ones)] == []
    assert [*censored_at_once("y", "a", [np.minimum(y[0], 20)], [y[0] < 20])] == []
    assert [*unrelated_exposures("y", "e", "a", y, [y[0][::-1] + 1])] == []


# --- outcomes turned round -----------------------------------------------------------------------


ESTIMATORS = {
    2: (FederatedLogisticRegression(C=np.inf), {"positive": [1], "negative": [0]}),
    4: (FederatedOrdinalRegression(), {"levels": ["0", "1", "2", "3"]}),
}


@pytest.mark.parametrize("levels", [2, 4])
@pytest.mark.parametrize(("turned", "sites"), [((), 3), ((1,), 3), ((0, 3), 5), ((1,), 2)])
def test_an_outcome_turned_round_at_some_sites(levels, turned, sites, tmp_path, caplog):
    """By rows before round 1, by an estimator, and by sums of errors when a run ends."""
    frame, site = judged(turned, levels, sites=sites, effect=1.0)
    model, outcome = ESTIMATORS[levels]
    data = deal(tmp_path, frame, [np.flatnonzero(site == k) for k in range(sites)], "s")
    schema = {"target": "y", "features": numeric(*"abcde"), **outcome}
    made = tables(data=data, schema=schema, inference="model")
    said = list(made.preparation.remarks)
    assert len(said) == bool(turned)
    if turned:
        assert "coded the other way round" in said[0]
        named = [f"s{k} (" in said[0].partition(": ")[0] + said[0] for k in range(sites)]
        assert np.flatnonzero(named).tolist() == ([0, 1] if sites == 2 else list(turned))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(frame[list("abcde")], frame["y"], [f"s{k}" for k in site])
    assert [str(w.message) for w in caught] == said
    made.preparation = replace(made.preparation, remarks=())  # as nodes, which send no rows
    assert list(run(made).report.remarks) == said
    assert all(f"tables: {line}" in caplog.text for line in said)


@pytest.mark.parametrize("levels", [2, 4])
def test_nothing_is_said_of_effects_that_vary(levels):
    model, said = ESTIMATORS[levels][0], 0
    for seed in range(20):
        frame, site = judged(levels=levels, seed=seed, effect=0.3)
        frame["a"] *= 1.0 + 0.3 * (site == 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(frame[list("abcde")], frame["y"], site)
        said += len(caught)
    assert said == 0


@pytest.mark.parametrize(("turned", "cluster"), [(None, ""), (1, ""), (1, "ward")])
def test_a_number_turned_round_at_a_site(turned, cluster, tmp_path):
    """Rows of a ward are alike: forty of them tell no more than one."""
    rng = np.random.default_rng(0)
    site, ward = np.repeat([0, 1, 2], 120), np.arange(360) // 40
    frame = pd.DataFrame(rng.normal(size=(9 if cluster else 360, 2)), columns=[*"ab"])
    frame = frame.iloc[ward].reset_index(drop=True) if cluster else frame
    frame["y"] = frame["a"] - frame["b"] + rng.standard_t(3, size=360)
    frame["ward"] = ward
    if turned is not None:
        frame.loc[site == turned, "y"] = 1000 - frame["y"]
    data = deal(tmp_path, frame, [np.flatnonzero(site == k) for k in range(3)], "s")
    schema = {"target": "y", "features": numeric("a", "b")}
    schema |= {"cluster": cluster} if cluster else {}
    made = tables(data=data, schema=schema, inference="cluster" if cluster else "model")
    said = [line for line in made.preparation.remarks if "round" in line]
    assert len(said) == (turned is not None and not cluster)
    assert all(" opposite to those elsewhere at s1: is it, or a column, coded" in s for s in said)
    made.preparation = replace(made.preparation, remarks=())  # as nodes, which send no rows
    assert list(run(made).report.remarks) == said


@pytest.mark.parametrize(("change", "said"), [
    ({}, ""),
    ({"day": lambda d: 9 - d["day"]}, "opposite to those elsewhere at s1: is it, or a column, co"),
    ({"pain": lambda d: d["pain"].map(dict(zip("abc", "cba", strict=True)))},
     "column 'pain': its effects differ at s1 from those elsewhere, and would not if 'a' and 'c' "
     "were exchanged"),
    ({"dose": lambda d: 5 - d["dose"]}, "column 'dose' has at s1 an effect opposite to that else"),
])  # fmt: skip
def test_one_feature_turned_round_at_a_site(change, said, tmp_path):
    """Of patients seen on ten days, whose levels and slopes differ."""
    rng = np.random.default_rng(1)
    who, day = np.repeat(np.arange(36), 10), np.tile(np.arange(10.0), 36)
    level, slope = rng.normal(0, 2, 36), rng.normal(1, 0.4, 36)
    frame = pd.DataFrame({"who": who, "day": day, "dose": rng.integers(0, 6, 360),
                          "pain": rng.choice([*"abc"], 360)})  # fmt: skip
    effects = 2.0 * (frame["pain"] == "c") - 2.0 * (frame["pain"] == "a") + 0.8 * frame["dose"]
    frame["y"] = level[who] + slope[who] * day + effects + rng.normal(size=360)
    frame = pd.concat([frame[:120], frame[120:240].assign(**change), frame[240:]])
    data = deal(tmp_path, frame, [range(k * 120, (k + 1) * 120) for k in range(3)], "s")
    features = numeric("day", "dose", pain="categorical")
    schema = {"target": "y", "cluster": "who", "features": features}
    remarks = tables(data=data, schema=schema, site_effects="random").preparation.remarks
    assert [said in line for line in remarks if "is it" in line or "are they" in line] == (
        [True] if said else []
    )


def test_outcomes_per_exposure_in_another_unit(tmp_path):
    frame = counts()
    frame.loc[N : 2 * N - 1, "y"] *= 30
    said = remarks(tmp_path, frame, COUNTS)
    assert any("column 'y': values per exposure at site1 are about " in line for line in said)


@pytest.mark.parametrize("last", [0, 40])
def test_outcomes_by_default_at_the_end_of_a_file(last, tmp_path):
    rng = np.random.default_rng(8)
    frame = pd.DataFrame({"x": rng.normal(size=360), "y": rng.choice(["no", "yes"], 360)})
    frame.loc[240 - last : 239, "y"] = "no"
    data = deal(tmp_path, frame, [range(k * 120, (k + 1) * 120) for k in range(3)], "s")
    schema = {"target": "y", "loss": "logistic", "positive": ["yes"], "features": numeric("x")}
    said = [line for line in tables(data=data, schema=schema).preparation.remarks if "rows" in line]
    assert ["all have one outcome" in line for line in said] == [True] * bool(last)


@pytest.mark.parametrize(("told", "said"), [
    ("", ""), ("no", "none of the "), ("yes", "each of the "),
])  # fmt: skip
def test_a_category_with_one_outcome_at_a_site(told, said, tmp_path):
    """As where it is known only of those with the event."""
    rng = np.random.default_rng(8)
    frame = pd.DataFrame({"x": rng.normal(size=360), "arm": rng.choice([*"ab"], 360),
                          "y": rng.choice(["no", "yes"], 360)})  # fmt: skip
    if told:
        frame.loc[(frame.index // 120 == 1) & (frame["arm"] == "b"), "y"] = told
    data = deal(tmp_path, frame, [range(k * 120, (k + 1) * 120) for k in range(3)], "s")
    features = numeric("x", arm="categorical")
    schema = {"target": "y", "loss": "logistic", "positive": ["yes"], "features": features}
    remarks = [line for line in tables(data=data, schema=schema).preparation.remarks
               if "known from the other" in line]  # fmt: skip
    assert [said in line for line in remarks] == [True] * bool(told)


def test_outcomes_of_clusters_are_known_by_their_means(tmp_path):
    """A person's outcome on all his rows: nothing varies within, and nothing is said."""
    rng = np.random.default_rng(6)
    who = np.repeat(np.arange(36), 5)
    frame = pd.DataFrame({"who": who, "x": rng.normal(size=180), "y": rng.normal(size=36)[who]})
    data = deal(tmp_path, frame, [range(k * 60, (k + 1) * 60) for k in range(3)], "s")
    schema = {"target": "y", "cluster": "who", "features": numeric("x")}
    assert not tables(data=data, schema=schema).preparation.remarks


def test_the_evidence_is_the_likelihood_of_the_sites_own_estimates():
    """Of normal estimates about effects with or without their sign changed, by SciPy."""
    rng = np.random.default_rng(3)
    p, K = 2, 3
    b = np.array([0.9, -0.7])
    information, estimates = [], []
    for k in range(K):
        A = rng.normal(size=(80, p))
        information.append(A.T @ A / 5)
        estimates.append(b * (-1) ** (k == 1) + rng.normal(size=p) * 0.1)
    spread = [float(80 / 5)] * K
    sizes = np.sqrt(np.diag(sum(information)) / sum(spread))

    def density(signs):
        blocks = [np.diag(sizes) @ np.linalg.inv(one) @ np.diag(sizes) for one in information]
        V = np.kron(np.outer(signs, signs), np.eye(p))
        for k in range(K):
            V[k * p : (k + 1) * p, k * p : (k + 1) * p] += blocks[k] + TAU**2 * np.eye(p)
        return multivariate_normal.logpdf(np.concatenate(estimates * np.tile(sizes, (K, 1))), cov=V)

    sums = [
        SiteSums(one @ own, one, s, 0.5, 80)
        for one, own, s in zip(information, estimates, spread, strict=True)
    ]
    pairs = agreement(sums)
    for signs in ([1, -1, 1], [1, 1, -1]):
        known = density(signs) - density([1, 1, 1])
        gain = 0.5 * (np.array(signs) @ pairs @ signs - pairs.sum())
        assert gain == pytest.approx(known, rel=1e-9)


def test_the_evidence_for_two_levels_exchanged_is_the_likelihood_as_well():
    rng = np.random.default_rng(4)
    own = []
    for n in (60, 200, 90):
        A = np.eye(3)[rng.integers(0, 3, n)]
        J = (A - A.mean(axis=0)).T @ A + 0.1 * np.eye(3)
        own.append((J @ rng.normal(size=3), J))

    def density(parts):  # of estimates about one b with the prior N(0, 1)
        cov = np.kron(np.ones((3, 3)), np.eye(3))
        for k, (_, J) in enumerate(parts):
            cov[3 * k : 3 * k + 3, 3 * k : 3 * k + 3] += np.linalg.inv(J)
        estimates = [np.linalg.solve(J, h) for h, J in parts]
        return multivariate_normal.logpdf(np.concatenate(estimates), cov=cov)

    def evidence(parts):
        return _evidence(*(np.sum([one[j] for one in parts], axis=0) for j in (0, 1)))

    moved = [own[0], _changed(*own[1], (0, 2)), own[2]]
    known = density(moved) - density(own)
    assert evidence(moved) - evidence(own) == pytest.approx(known, rel=1e-9)


# --- a column of one value, weights, paths -------------------------------------------------------


@pytest.mark.parametrize(("marks", "kind", "value"), [
    ([0, 1], "numeric", "0"), (["usual", "new"], "categorical", "'usual'"),
])  # fmt: skip
def test_no_treated_patient_at_a_site(marks, kind, value, tmp_path):
    """Is said where it is hardly by chance; not of a rare category."""
    rng = np.random.default_rng(0)
    frame = counts().drop(columns="exposure")
    for share, told in ((0.4, 1), (0.02, 0)):
        arm = (rng.random(3 * N) < share) & (np.arange(3 * N) // N != 1)
        frame["arm"] = pd.Series(np.array(marks)[arm * 1]).drop([N, N + 1])  # two are blank
        data = deal(tmp_path, frame, [range(k * N, (k + 1) * N) for k in range(3)])
        arms = {"type": kind} | ({"impute": "mean"} if kind == "numeric" else {})
        schema = {"target": "y", "features": numeric("x", arm=arms)}
        said = [r for r in tables(data=data, schema=schema).preparation.remarks if "'arm'" in r]
        others = round(100 * arm.sum() / (2 * N))
        assert said == told * [
            f"column 'arm': all {N - 2} known values at site1 are {value}, and {others}% elsewhere "
            "are not: site1 tells nothing of it"
        ]


@pytest.mark.parametrize(("kind", "broken", "asked"), [
    ("frequency", 0.25, 1), ("frequency", 0.0, 0), ("sampling", 0.25, 0),
])  # fmt: skip
def test_frequencies_that_are_not_whole_are_asked_about(kind, broken, asked, tmp_path):
    d = counts().assign(w=lambda d: np.where(d.index % 3, 2.0, 15 + broken))
    schema = {"target": "y", "weight": "w", "weight_kind": kind, "features": numeric("x")}
    said = f"{N} of {3 * N} weights are no whole numbers, such as 15.25, and weight_kind = "
    assert len(remarks(tmp_path, d, schema, said)) == asked


@pytest.mark.parametrize(("weights", "kind", "words", "asked"), [
    ([1, 2, 3], "", "frequency, as no weight_kind is stated (sum", True),
    ([1, 2, 3], "frequency", "frequency (sum", False),
    ([1, 2, 3], "sampling", "sampling (sum", False),
])  # fmt: skip
def test_a_kind_of_weights_is_said_alike_everywhere(
    weights, kind, words, asked, tmp_path, run_command
):
    rows = [f"{k * 7 % 11},{k % 5},{weights[k % 3]}" for k in range(40)]
    lines(tmp_path, a=["y,x,w", *rows], b=["y,x,w", *rows[::-1][:25]])
    schema = {"target": "y", "weight": "w", "features": numeric("x")}
    schema |= {"weight_kind": kind} if kind else {}
    text = "\n".join(f"{key} = '{schema[key]}'" for key in schema if key != "features")
    (tmp_path / "s.toml").write_text(f"{text}\n[features]\nx = 'numeric'\n")
    _, out, _ = run_command("data", "check", "a.csv", "b.csv", "--schema", "s.toml")
    assert ("column 'w': weights of no stated kind" in " ".join(out.split())) == asked
    report = run(tables(data=f"{tmp_path}/*.csv", schema=schema, inference="robust")).report
    assert f"weights in 'w': {words}" in report.text
    assert f"{'Weights:':<18}{words}" in report.text
    assert "no stated kind" not in report.text


@pytest.mark.parametrize(
    "ask", [regularization_path, cross_validate, partial(stability_selection, error=2.0)]
)
def test_one_baseline_hazard_has_no_path(ask, tmp_path):
    """Its loss is no sum over clients; the path was that of the stratified model."""
    schema = {"target": "t", "event": "e", "features": numeric("x"), "stratified": False}
    made = tables(data=deal(tmp_path, times()), schema=schema, l1=0.1)
    with pytest.raises(ConfigError, match="with stratified = false the loss is none of these"):
        ask(made)
