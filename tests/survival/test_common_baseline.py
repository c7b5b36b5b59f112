"""One baseline hazard for all sites, late entries and strata: R's survival on the pooled rows."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from flower_fedcon import load_model, simulate
from flower_fedcon.cli import main
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import FederatedCoxRegression, FederatedCoxRegressionCV
from flower_fedcon.objectives import CoxRegression
from flower_fedcon.objectives.common_baseline import CommonBaseline, SharedTimes, SiteRisks
from flower_fedcon.objectives.risk_sets import RiskSets
from flower_fedcon.paths.folds import deal_all
from flower_fedcon.strategies import FedNewton
from flower_fedcon.survival import kaplan_meier, logrank
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.statistics.risk_sums import _merging

NAMES = ("x1", "x2", "x3", "t", "e", "w", "z", "g", "cl", "ent")


def rows():
    """Return 250 rows with tied times, weights, strata, sites, clusters and entries."""
    rng, n = np.random.default_rng(3), 250
    X = rng.normal(size=(n, 3))
    t, e = rng.integers(3, 30, n) / 10.0, (rng.random(n) < 0.7).astype(int)
    w, z = rng.integers(1, 4, n).astype(float), rng.integers(0, 2, n)
    g, cl = rng.integers(0, 4, n), rng.integers(0, 40, n)
    return X, t, e, w, z, g, cl, np.maximum(t - rng.integers(1, 12, n) / 10.0 - 0.05, 0)


X, T, E, W, Z, G, CL, ENT = rows()
# coef, sqrt(diag(vcov)) and loglik[2] of R 4 with survival: coxph(Surv(...) ~ x1 + x2 + x3, d, ...)
IN_R = {
    # Surv(t, e)
    "efron": (
        {}, {},
        [-0.000980921788811047, 0.080450531832367528, -0.073104024286516606],
        [0.0783861024972353, 0.0758482433119566, 0.0797896793559377], -764.918682825274,
    ),
    # ties = "breslow"
    "breslow": (
        {"ties": "breslow"}, {},
        [0.00094658562112557, 0.07764965260556485, -0.07784087914091095],
        [0.0783660882195386, 0.0761839150943610, 0.0795832656147419], -773.183782104172,
    ),
    # + strata(z), weights = w, robust = FALSE
    "strata": (
        {}, {"strata": Z, "sample_weight": W},
        [-0.0279685069112106, 0.1278538040278741, -0.1238123561240626],
        [0.0561137941971519, 0.0553663946266354, 0.0586253345431975], -1547.01833038319,
    ),
    # + strata(z) + cluster(cl)
    "cluster": (
        {"inference": "cluster"}, {"strata": Z, "clusters": CL, "groups": CL % 4},
        [-0.00130089074688314, 0.08973207568581955, -0.07797600482175293],
        [0.0610421979750461, 0.0846120104185278, 0.0775553974053308], -650.857889482143,
    ),
    # weights = w, robust = TRUE
    "sampling": (
        {"inference": "robust", "weight_kind": "sampling"}, {"sample_weight": W},
        [-0.0273910671086871, 0.1216205953161947, -0.1162173617176915],
        [0.0829058883462319, 0.0784376749886892, 0.0860721615470262], np.nan,
    ),
    # Surv(ent, t, e)
    "entry": (
        {}, {"entry": ENT},
        [0.000853433646584627, 0.093560735521947852, -0.008237649816426405],
        [0.0816690777192886, 0.0776819668394652, 0.0766305504141615], -645.73395463108,
    ),
    # Surv(ent, t, e) ~ ... + strata(z), ties = "breslow", weights = w, robust = FALSE
    "entry and strata": (
        {"ties": "breslow"}, {"entry": ENT, "strata": Z, "sample_weight": W},
        [0.00219804911891041, 0.12328430301591348, -0.06464304145616598],
        [0.0589975816949623, 0.0553816950057584, 0.0561409305113083],
        -1340.14575410534,
    ),
    # Surv(ent, t, e) ~ ... + strata(g): each site is a stratum
    "stratified": (
        {"stratified": True}, {"entry": ENT},
        [0.0254116346096528, 0.1184437455522471, -0.0179298711263639],
        [0.0838181850263714, 0.0833566781551269, 0.0769641971971151], -420.309350872473,
    ),
}  # fmt: skip
# cox.zph(fit, transform = ...)$table[, 1] of "efron" and "entry"
ZPH = {
    ("efron", "log"): [0.590254324514, 0.795543141142, 0.264541587304, 1.976550743193],
    ("efron", "rank"): [0.442303178867, 0.366717337824, 0.663503602624, 1.758066012442],
    ("efron", "identity"): [0.455846827585, 0.326081398402, 0.851568977498, 1.929217984001],
    ("entry", "log"): [0.152676400201, 0.383814823843, 0.166977543770, 0.722235773829],
    ("entry", "rank"): [0.1446178914433, 0.0683736946839, 0.0191873795441, 0.2513214035441],
}


def fitted(t=T, groups=G, columns=X, event=E, **more):
    """Return a fit; arguments of `fit` and of the estimator together."""
    of_fit = {k: more.pop(k) for k in ("strata", "sample_weight", "clusters", "entry") if k in more}
    settings = {"ties": "efron", "stratified": False, "inference": "model", **more}
    y = np.c_[t, event]
    return FederatedCoxRegression(0.0, **settings).fit(columns, y, groups=groups, **of_fit)


@pytest.mark.parametrize("case", IN_R)
def test_the_fit_is_that_of_pooled_rows(case):
    settings, of_fit, coef, bse, loglik = IN_R[case]
    model = fitted(**settings, **of_fit)
    np.testing.assert_allclose(model.coef_, coef, atol=1e-10)
    np.testing.assert_allclose(model.bse_, bse, rtol=1e-9)
    np.testing.assert_allclose(model.loglik_, loglik, rtol=1e-11)
    said = str(model.summary())
    assert ("common" in said) == (case != "stratified")
    assert ("strata" in said.replace("Strata:", "")) == ("strata" in of_fit)


@pytest.mark.parametrize(("case", "transform"), ZPH)
def test_proportionality_is_cox_zph(case, transform):
    settings, of_fit, *_ = IN_R[case]
    test = fitted(**settings, **of_fit).proportionality(transform)
    told = [*test.statistic, test.global_statistic]
    np.testing.assert_allclose(told, ZPH[case, transform], rtol=1e-8)


def test_lifelines_agrees():
    lifelines = pytest.importorskip("lifelines")
    import pandas as pd

    table = pd.DataFrame(np.c_[X, T, E], columns=["a", "b", "c", "t", "e"])
    other = lifelines.CoxPHFitter().fit(table, "t", "e", fit_options={"precision": 1e-12})
    model = fitted()
    np.testing.assert_allclose(model.coef_, other.params_, atol=1e-8)
    np.testing.assert_allclose(model.bse_, other.standard_errors_, rtol=1e-8)
    times = [0.5, 1.0, 2.2]
    theirs = other.predict_survival_function(table.iloc[:3], times=times).to_numpy().T
    np.testing.assert_allclose(model.predict_survival(X[:3], times), theirs, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_sites_shifts_weights_of_zero_and_rounding_change_nothing(seed):
    """However rows are divided, moved, padded or their times rounded, the fit is the same."""
    rng = np.random.default_rng(seed)
    ties = ("efron", "breslow")[seed % 2]
    more = {"strata": Z, "sample_weight": W, "entry": ENT, "ties": ties}
    alone = fitted(groups=None, **more)
    site = rng.integers(0, rng.integers(2, 80), len(T))
    noise = T * (1 + 1e-15 * rng.integers(-2, 3, len(T)))
    late = ENT * (1 + 1e-15 * rng.integers(-2, 3, len(T)))
    other = fitted(noise, site, X + 1e6 * rng.normal(size=3), **more | {"entry": late})
    np.testing.assert_allclose(other.coef_, alone.coef_, atol=1e-8)
    np.testing.assert_allclose(other.bse_, alone.bse_, rtol=1e-8)
    none = rng.random(len(T)) < 0.3
    here = ~none
    some = {name: value[here] for name, value in (("strata", Z), ("entry", ENT))}
    padded = fitted(groups=site, **more | {"sample_weight": np.where(none, 0.0, W)})
    left = fitted(
        T[here], site[here], X[here], E[here], ties=ties, sample_weight=W[here], **some
    )  # fmt: skip
    np.testing.assert_allclose(padded.coef_, left.coef_, atol=1e-12)
    np.testing.assert_allclose(padded.bse_, left.bse_, rtol=1e-12)
    split = fitted(entry=np.r_[0 * T, T / 2], t=np.r_[T / 2, T], event=np.r_[0 * E, E],
                   columns=np.r_[X, X], groups=np.r_[site, site], ties=ties)  # fmt: skip
    np.testing.assert_allclose(split.coef_, fitted(ties=ties).coef_, atol=1e-9)


def test_a_grid_is_a_fit_of_times_on_it():
    grid = np.array([0.5, 1.0, 1.5, 2.0, 3.0])
    on = np.where(E == 1, grid[np.searchsorted(grid, T)], T)
    for entry in (None, ENT):
        more = {} if entry is None else {"entry": entry}
        one, other = fitted(baseline_times=grid, **more), fitted(on, **more)
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-10)
        np.testing.assert_allclose(one.bse_, other.bse_, rtol=1e-10)


def test_merged_sums_and_their_differences_rest_on_enough_rows():
    rng = np.random.default_rng(1)
    for least in (2, 3, 7):
        n, size = 60, 15
        cell = np.where(rng.random(n) < 0.5, rng.integers(0, size, n), size)
        end = np.where(cell < size, cell + 1, rng.integers(0, size + 1, n))
        first = np.maximum(end - rng.integers(1, 12, n), 0)
        start, stop, events = _merging(None, least)(first, end, cell, size, np.arange(n))
        places = np.arange(size)[:, None]
        at = (start <= places) & (places < stop)
        died = events == places
        assert at.any()
        assert died.any()
        groups = [at, died, at & ~died, at[:-1] & ~died[:-1] & ~at[1:], at[1:] & ~at[:-1]]
        for group in groups:
            counts = group.sum(axis=1)
            assert ((counts == 0) | (counts >= least)).all()
        assert not (died & ~at).any()


def test_penalties():
    y = np.c_[T, E]
    for ratio in (0.0, 0.5, 1.0):
        pair = [
            FederatedCoxRegression(0.02, l1_ratio=ratio, stratified=False).fit(X, y, groups=g).coef_
            for g in (G, None)
        ]
        np.testing.assert_allclose(*pair, atol=1e-9)
        alone = FederatedCoxRegression(0.02, l1_ratio=ratio).fit(X, y).coef_
        np.testing.assert_allclose(pair[0], alone, atol=1e-8)


def test_derivatives_with_entries():
    rng = np.random.default_rng(0)
    f = CoxRegression(X, T, E, strata=Z, sample_weight=W, entry=ENT, ties="efron")
    x, h = rng.normal(size=3) * 0.5, 1e-5
    slopes = [(f.value(x + h * d) - f.value(x - h * d)) / (2 * h) for d in np.eye(3)]
    curves = [(f.gradient(x + h * d) - f.gradient(x - h * d)) / (2 * h) for d in np.eye(3)]
    np.testing.assert_allclose(f.gradient(x), slopes, atol=1e-9)
    np.testing.assert_allclose(f.hessian(x), curves, atol=1e-9)
    np.testing.assert_allclose(
        f.score_residuals(x).T @ W[f.order], -W.sum() * f.gradient(x), atol=1e-9
    )
    for times in (1, 5, 8):
        first, end = rng.integers(0, times + 1, (2, 40))
        there = np.arange(times)[:, None]
        member = ((first <= there) & (there < end)).astype(float)
        sets, values = RiskSets(first, end, times), rng.normal(size=(40, 2))
        np.testing.assert_allclose(sets.sums(values), member @ values, atol=1e-12)
        np.testing.assert_allclose(
            sets.met(np.arange(times) + 1.0), (np.arange(times) + 1) @ member
        )


def test_large_risks_that_have_left_cost_no_digits():
    columns = np.array([[80.0], [0.0], [1.0], [0.5]])
    f = CoxRegression(columns, [1.0, 3.0, 4.0, 5.0], [1, 1, 1, 1], entry=[0.0, 2.0, 2.0, 2.0])
    late = CoxRegression(columns[1:], [3.0, 4.0, 5.0], [1, 1, 1])
    np.testing.assert_allclose(
        f.gradient(np.ones(1)) * 4, late.gradient(np.ones(1)) * 3, atol=1e-12
    )


def test_curves_and_tests_with_entries():
    curve = kaplan_meier(T, E, groups=G, entry=ENT)
    # summary(survfit(Surv(ent, t, e) ~ 1))$surv[c(1, 6, 11, 27)] and n.risk[1:5]
    known = [0.9259259259259259, 0.5489281465302934, 0.3146259226520185, 0.0141772544035207]
    np.testing.assert_allclose(curve.survival[[0, 5, 10, 26]], known, rtol=1e-12)
    assert curve.at_risk[:5].tolist() == [54, 57, 64, 65, 76]
    test = logrank(T, E, by=Z, groups=G, entry=ENT)
    observed = expected = variance = 0.0
    for time in np.unique(T[E == 1]):
        at, died = (time > ENT) & (time <= T), (time == T) & (E == 1)
        n, d, own = at.sum(), died.sum(), (at & (Z == 1)).sum()
        observed += (died & (Z == 1)).sum()
        expected += d * own / n
        variance += d * own * (n - own) * (n - d) / (n * n * max(n - 1, 1))
    np.testing.assert_allclose(test.statistic, (observed - expected) ** 2 / variance, rtol=1e-10)
    with pytest.raises(ConfigError, match=r"must enter before its time, got entry 2"):
        kaplan_meier([1.0, 2.0], [1, 1], entry=[0.0, 2.0])


@pytest.fixture
def files(tmp_path):
    table = np.c_[X, T, E, W, Z, G, CL, ENT]
    for site in range(4):
        np.savetxt(tmp_path / f"s{site}.csv", table[site == G], delimiter=",", fmt="%.17g",
                   header=",".join(NAMES), comments="")  # fmt: skip
    return f"{tmp_path}/s*.csv"


SCHEMA = {
    "target": "t", "event": "e", "ties": "efron", "stratified": False,
    "features": dict.fromkeys(("x1", "x2", "x3"), "numeric"),
}  # fmt: skip


@pytest.mark.parametrize("case", ["efron", "strata", "entry", "stratified"])
def test_tables_fit_what_the_estimator_fits(files, tmp_path, case):
    settings, of_fit, coef, bse, loglik = IN_R[case]
    keys = {"strata": ("strata", "z"), "sample_weight": ("weight", "w"), "entry": ("entry", "ent")}
    schema = SCHEMA | dict(keys[name] for name in of_fit) | settings
    problem = tables(data=files, schema=schema, inference="model")
    run = simulate(FedNewton(), problem, 8, run_dir=tmp_path / "run")
    found = run.report.estimates
    np.testing.assert_allclose(found.values, coef, atol=1e-9)
    np.testing.assert_allclose(found.bse, bse, rtol=1e-8)
    np.testing.assert_allclose(found.loglik, loglik, rtol=1e-10)
    if case == "stratified":
        return
    assert "one baseline hazard for all sites" in run.report.text
    header, *lines = (tmp_path / "run" / "baseline.csv").read_text().splitlines()
    assert header == "stratum,time,cumulative_hazard"
    known = fitted(**settings, **of_fit).baseline_cumulative_hazard_
    told = np.array([line.split(",")[1:] for line in lines], float)
    np.testing.assert_allclose(told, np.concatenate([*known.values()]), rtol=1e-8)


# summary(survfit(coxph(..., ties = "breslow"), d[1:3, ]), times = c(0.5, 1, 2.2))$surv: a row of
# the file each; with the columns of the fit's formula
SURVIVAL = {
    # Surv(t, e)
    "plain": ({}, [
        [0.9394182389210891, 0.8387850927766872, 0.4776460616021280],
        [0.9257878707551704, 0.8049979999357868, 0.4018448265010803],
        [0.9209050318106897, 0.7931114384961563, 0.3774893684299201],
    ]),
    # ... + strata(z), weights = w
    "strata": ({"strata": "z", "weight": "w"}, [
        [0.9496154602328521, 0.8631829107039349, 0.5363411375203703],
        [0.9251074046551452, 0.8012825449060121, 0.3913821727453379],
        [0.9072724927761140, 0.7713090812050676, 0.3504716853751060],
    ]),
    # Surv(ent, t, e)
    "entry": ({"entry": "ent"}, [
        [0.7767411221402268, 0.5598929892222901, 0.1943485354377907],
        [0.7382040965243702, 0.4981612624614711, 0.1397307068135011],
        [0.7328066306483628, 0.4898389916504708, 0.1332379123324609],
    ]),
}  # fmt: skip


@pytest.mark.parametrize("case", SURVIVAL)
def test_a_model_s_file_gives_probabilities_of_survival(files, tmp_path, case):
    """Those of R's survfit, in Python, by the command, and with json alone."""
    keys, known = SURVIVAL[case]
    folder, times = tmp_path / "run", [0.5, 1.0, 1.9 + 0.3]  # one is a time up to rounding
    schema = SCHEMA | {"ties": "breslow"} | keys
    simulate(FedNewton(), tables(data=files, schema=schema), 8, run_dir=folder)
    model = load_model(folder)
    new = pd.DataFrame(np.c_[X, Z][:3], columns=["x1", "x2", "x3", "z"])
    found = model.predict_survival(new, times)
    np.testing.assert_allclose(found, known, rtol=1e-8)
    new.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "out.csv"
    asked = ["predict", str(folder), str(tmp_path / "new.csv"), "-o", str(out), "--times"]
    assert main([*asked, "0.5,1,2.2"]) == 0
    told = pd.read_csv(out, float_precision="round_trip")
    np.testing.assert_array_equal(told[[f"survival [{t}]" for t in ("0.5", "1", "2.2")]], found)
    content = json.loads((folder / "model.json").read_text())
    names = [str(int(z)) if case == "strata" else "all" for z in Z[:3]]
    scores = X[:3] @ content["columns"]["coefficient"]
    for row, (name, score) in enumerate(zip(names, scores, strict=True)):
        hazard = content["baseline"][name]
        met = [np.array(hazard["cumulative_hazard"])[np.array(hazard["time"]) <= 1.0][-1]]
        np.testing.assert_allclose(np.exp(-np.exp(score) * met[0]), known[row][1], rtol=1e-8)
    assert main([*asked, "1,soon"]) == 2
    if case == "strata":
        with pytest.raises(ConfigError, match="add the column to the rows, or name one of '0'"):
            model.predict_survival(new.drop(columns="z"), times)
        same = model.predict_survival(new.drop(columns="z"), times, stratum=names[0])
        np.testing.assert_array_equal(same[0], found[0])
        other = new.assign(z=[5.0, *Z[1:3]])
        with pytest.raises(ConfigError, match=r"must name one of the baseline hazards.*got '5'"):
            model.predict_survival(other, times)
        some = model.predict_survival(other, times, unknown="missing")
        assert np.isnan(some[0]).all()
        np.testing.assert_array_equal(some[1:], found[1:])


def test_what_a_model_does_not_know_of_hazards_is_said(files, tmp_path, caplog):
    new = dict(zip(("x1", "x2", "x3"), X[:2].T, strict=True))
    grid = {"baseline_times": [0.5, 1.0, 3.0], "ties": "breslow"}
    run = simulate(FedNewton(), tables(data=files, schema=SCHEMA | grid), 8, run_dir=tmp_path / "a")
    assert run.report.hazards.curves["all"].shape == (3, 2)
    model = load_model(tmp_path / "a")
    found = model.predict_survival(new, [0.5, 0.7, 3.0, 9.0])
    np.testing.assert_array_equal(found[:, [0, 2]], found[:, [1, 3]])
    assert "no baseline hazard after 3: the probability at 9" in caplog.text
    assert "at 0.5, 1, 3: the probability at 0.7 is that of the time before" in caplog.text
    content = json.loads((tmp_path / "a" / "model.json").read_text())
    content["baseline"]["all"]["cumulative_hazard"][0] = 7.0
    (tmp_path / "a" / "model.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="is damaged"):
        load_model(tmp_path / "a")
    schema = SCHEMA | {"stratified": True}
    simulate(FedNewton(), tables(data=files, schema=schema), 8, run_dir=tmp_path / "b")
    with pytest.raises(ConfigError, match="knows no baseline hazard, so there are no prob"):
        load_model(tmp_path / "b").predict_survival(new, [1.0])


def test_strata_of_a_schema_alone_divide_a_sites_rows(files):
    schema = SCHEMA | {"strata": "z", "stratified": True, "test_fraction": 0.0}
    run = simulate(FedNewton(), tables(data=files, schema=schema, inference="model"), 8)
    model = fitted(stratified=True, strata=Z)
    np.testing.assert_allclose(run.report.estimates.values, model.coef_, atol=1e-9)


def test_refusals(files):
    with pytest.raises(ConfigError, match="cross-validation divides each client's rows"):
        FederatedCoxRegressionCV(stratified=False).fit(X, np.c_[T, E], groups=G)
    with pytest.raises(ConfigError, match="stability selection divides each client's rows"):
        FederatedCoxRegression(stratified=False).stability_selection(X, np.c_[T, E], G)
    with pytest.raises(ConfigError, match="give stratified=False, too"):
        fitted(stratified=True, baseline_times=[1.0])
    with pytest.raises(ConfigError, match="stratified must be True or False"):
        fitted(stratified="no")
    with pytest.raises(ValueError, match=r"must enter before its time.*row 0"):
        fitted(entry=T)
    with pytest.raises(ValueError, match="no two rows of a stratum are at risk together"):
        fitted(columns=np.ones_like(X), inference=None)
    with pytest.raises(ConfigError, match="must name one of the baseline hazards"):
        fitted(strata=Z).predict_survival(X[:1], [1.0])
    with pytest.raises(ConfigError, match=r'stratified = false needs weighting = "examples"'):
        tables(data=files, schema=SCHEMA, weighting="uniform")
    for key, value in (("entry", "x"), ("strata", "x"), ("stratified", False)):
        with pytest.raises(ConfigError, match=f'{key}.* is for loss = "cox"'):
            Schema("y", {"a": "numeric"}, **{key: value})
    with pytest.raises(ConfigError, match="write stratified = false, too"):
        Schema("t", {"a": "numeric"}, event="e", baseline_times=[1.0])


def test_a_site_without_events_or_rows_of_a_stratum_counts():
    own = [
        CoxRegression(X[k == G], T[k == G], E[k == G] * (k > 0), strata=Z[k == G] * (k != 2))
        for k in range(4)
    ]
    pooled = CoxRegression(X, T, E * (G > 0), strata=Z * (G != 2))
    x = np.array([0.3, -0.2, 0.1])
    np.testing.assert_allclose(
        CommonBaseline.of_sites(own).gradient(x), pooled.gradient(x), atol=1e-14
    )
    shared = SharedTimes.on_grid(np.zeros(1), np.array([1.0]))
    assert SiteRisks(own[0], shared, np.zeros(3)).events()["counts"].tolist() == [0.0]


@pytest.mark.parametrize(
    "more", [{}, {"entry": ENT}, {"strata": Z}, {"entry": ENT, "strata": Z, "sample_weight": W}]
)
def test_stability_selection_takes_what_fit_takes(more):
    """Shares follow from fits of the same halves, by the estimator itself."""
    event = (2.0 + X[:, 0] > T).astype(int)
    y, settings = np.c_[T, event], {"tol": 1e-9, "ties": "efron"}
    found = FederatedCoxRegression(**settings).stability_selection(
        X, y, G, pairs=2, num=6, min_ratio=0.2, error=2.0, **more
    )
    own = [np.flatnonzero(k == G) for k in range(4)]
    parts = [{name: value[rows] for name, value in more.items()} for rows in own]
    cores = [
        CoxRegression(X[rows], T[rows], event[rows], **part)
        for rows, part in zip(own, parts, strict=True)
    ]
    counts = np.zeros(3)
    for pair in range(2):
        for half in deal_all(cores, 2, pair):
            places = (rows[f.order[one[0]]] for rows, f, one in zip(own, cores, half, strict=True))
            rows = np.concatenate([*places])
            of_rows = {name: value[rows] for name, value in more.items()}
            ever = np.zeros(3, bool)
            selected = ever
            for alpha in found.values:
                fit = FederatedCoxRegression(alpha, **settings).fit(
                    X[rows], y[rows], G[rows], **of_rows
                )
                ever = ever | (fit.coef_ != 0)
                selected = ever if ever.sum() <= found.most else selected
            counts += selected
    np.testing.assert_allclose(found.shares, counts / 4)
    assert found.shares[0] == 1.0
    one_column = np.where(event == 1, T, -T)
    again = FederatedCoxRegression(**settings).stability_selection(
        X, one_column, G, pairs=2, num=6, min_ratio=0.2, error=2.0, **more
    )
    np.testing.assert_array_equal(again.paths, found.paths)
