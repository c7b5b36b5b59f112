"""How good a model is on rows held out, over sites, beside scikit-learn and statsmodels."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    brier_score_loss,
    d2_log_loss_score,
    d2_tweedie_score,
    r2_score,
    roc_auc_score,
    roc_curve,
)

from flower_fedcon import load_model, simulate
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.held_out import HeldOut
from flower_fedcon.tables.quality import (
    BINS,
    Quality,
    binned_counts,
    calibration_sums,
    pooled_auc,
    quality_sums,
    why_absent,
)

X = np.array([0.8, -0.5, 0.3])  # two columns and the intercept
FAMILY = {"logistic": sm.families.Binomial(), "poisson": sm.families.Poisson(),
          "squared": sm.families.Gaussian()}  # fmt: skip


def sites(loss, sizes=(150, 80, 60), seed=0, least=1):
    """Rows held out at some sites, and all scores and outcomes (0 and 1 of classes)."""
    rng = np.random.default_rng(seed)
    found, scores, outcomes = {}, [], []
    for place, n in enumerate(sizes):
        A = rng.normal(size=(n, 2)) + 0.3 * place
        at = A @ X[:2] + X[2]
        if loss == "logistic":
            y = (rng.random(n) < 1 / (1 + np.exp(-(0.7 * at - 0.2)))).astype(float)
            own = 2 * y - 1
        else:
            y = own = (
                rng.poisson(np.exp(0.6 * at)) * 1.0
                if loss == "poisson"
                else 0.9 * at + rng.normal(size=n)
            )
        found[f"s{place}"] = HeldOut(loss, A, own, least)
        scores.append(at)
        outcomes.append(y)
    return found, scores, outcomes


def quality(loss, held):
    def pooled(at):
        return sum(calibration_sums(own, X, at)["calibration"] for own in held.values())

    return Quality.of(loss, {name: quality_sums(own, X) for name, own in held.items()}, pooled)


def expected(loss, scores, y):
    """What scikit-learn and statsmodels say of these rows."""
    design = sm.add_constant(scores)
    line = sm.GLM(y, design, family=FAMILY[loss]).fit(tol=1e-14)
    large = sm.GLM(y, np.ones((len(y), 1)), family=FAMILY[loss], offset=scores).fit(tol=1e-14)
    found = {"calibration_intercept": line.params[0], "calibration_slope": line.params[1],
             "calibration_in_the_large": large.params[0]}  # fmt: skip
    mean = {"logistic": 1 / (1 + np.exp(-scores)), "poisson": np.exp(scores)}.get(loss, scores)
    if loss == "logistic":
        found |= {"auc": roc_auc_score(y, scores), "brier": brier_score_loss(y, mean),
                  "deviance_explained": d2_log_loss_score(y, mean)}  # fmt: skip
    elif loss == "poisson":
        found |= {"deviance_explained": d2_tweedie_score(y, mean, power=1),
                  "mse": np.mean((y - mean) ** 2)}  # fmt: skip
    else:
        found |= {"deviance_explained": r2_score(y, mean), "mse": np.mean((y - mean) ** 2)}
    return found, line.bse


@pytest.mark.parametrize("loss", ["logistic", "poisson", "squared"])
def test_each_site_and_all_together_are_those_of_the_pooled_rows(loss):
    held, scores, outcomes = sites(loss)
    got = quality(loss, held)
    assert got.absent == {}
    for name, own, y in zip(held, scores, outcomes, strict=True):
        wanted, _ = expected(loss, own, y)
        assert {k: got.sites[name][k] for k in wanted} == pytest.approx(wanted, rel=1e-8, abs=1e-9)
    wanted, bse = expected(loss, np.concatenate(scores), np.concatenate(outcomes))
    pooled = dict(got.pooled)
    if loss == "logistic":
        assert abs(pooled.pop("auc") - wanted.pop("auc")) <= pooled["auc_error"] < 2e-3
    assert {k: pooled[k] for k in wanted} == pytest.approx(wanted, rel=1e-8, abs=1e-9)
    errors = [pooled["calibration_intercept_bse"], pooled["calibration_slope_bse"]]
    if loss != "squared":  # whose own variance is about the line, and not the predictions
        assert errors == pytest.approx(bse, rel=1e-6)


def test_the_curve_is_that_of_scikit_learn_at_its_thresholds():
    held, scores, outcomes = sites("logistic")
    got = quality("logistic", held)
    p = np.floor(BINS / (1 + np.exp(-np.concatenate(scores))))
    false, true, _ = roc_curve(np.concatenate(outcomes), p, drop_intermediate=False)
    assert got.roc["false_positive_rate"] == pytest.approx(false)
    assert got.roc["true_positive_rate"] == pytest.approx(true)
    assert sum(got.curve["rows"]) == 290
    shares = np.array(got.curve["rows"]) / 290
    y = np.concatenate(outcomes)
    assert shares @ got.curve["observed"] == pytest.approx(y.mean())
    assert shares @ got.curve["predicted"] == pytest.approx(
        np.mean(1 / (1 + np.exp(-np.concatenate(scores))))
    )


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=60),
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=60),
    st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_bins_hold_the_least_rows_and_the_area_is_within_its_bound(one, other, least):
    """Whatever the scores: no count from 1 to least - 1, none lost, the AUC as near as is said."""
    told, p_all, y_all = [], [], []
    for rows in (one, other):
        p, y = (np.array(column) for column in zip(*rows, strict=True))
        if min(y.sum(), (~y).sum()) < least:
            return
        counts = binned_counts(p, y, least)
        assert not ((counts[:2] > 0) & (counts[:2] < least)).any()
        assert counts[:3].sum(axis=1) == pytest.approx([(~y).sum(), y.sum(), p.sum()])
        used = np.flatnonzero(counts[:2].any(axis=0))
        begins = used[1:] if least == 1 else used[:-1] + 1  # where another ends
        assert (counts[3, used][1:] == begins).all()
        told.append(counts)
        p_all.append(p)
        y_all.append(y)
    value, error = pooled_auc(told)
    exact = roc_auc_score(np.concatenate(y_all), np.concatenate(p_all))
    assert abs(value - exact) <= error + 1e-12


def test_sites_that_tell_nothing_are_named():
    held, scores, outcomes = sites("logistic", sizes=(200, 12), least=10)
    held["none"] = HeldOut("logistic", np.zeros((0, 2)), np.zeros(0), 10)
    got = quality("logistic", held)
    assert list(got.sites) == ["s0"]
    assert got.absent["s1"] == got.absent["none"] != ""
    wanted, _ = expected("logistic", scores[0], outcomes[0])
    assert got.pooled["calibration_slope"] == pytest.approx(wanted["calibration_slope"])
    assert not quality_sums(held["s1"], X)["counts"].any()
    nothing = quality("logistic", {"none": held["none"]})
    assert nothing.pooled == {}
    assert nothing.lines == ["quality on held-out rows: not known at any site (none)"]


def test_predictions_that_separate_have_no_line_and_that_is_said():
    A = np.linspace(-3, 3, 40)[:, None] * np.ones((1, 2))
    scores = A @ X[:2] + X[2]
    held = {"a": HeldOut("logistic", A, np.where(scores > 0, 1.0, -1.0))}
    got = quality("logistic", held)
    assert got.pooled["auc"] == pytest.approx(1.0, abs=1e-3)
    assert "calibration_slope" not in got.pooled
    assert "separate the outcomes" in got.absent["pooled: calibration"]
    assert "separate the outcomes" in got.absent["a: calibration"]
    alike = HeldOut("logistic", np.zeros((40, 2)), np.resize([1.0, -1.0], 40))
    assert "all alike" in quality("logistic", {"a": alike}).absent["a: calibration"]


def test_the_lines_of_a_report_name_sites_and_errors():
    held, _, _ = sites("logistic")
    text = "\n".join(quality("logistic", held).lines)
    assert "AUC of all sites' rows together: 0." in text
    assert "calibration slope: s0 0." in text
    assert "(s.e. 0." in text
    assert "Brier score: s0 0." in text
    assert math.isfinite(quality("logistic", held).pooled["brier"])


def test_a_run_leaves_what_scikit_learn_says_of_all_rows_held_out(tmp_path):
    rng, both = np.random.default_rng(3), []
    for site, n in (("north", 240), ("south", 160)):
        frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n) + (site == "south")})
        frame["ill"] = np.where(rng.random(n) < 1 / (1 + np.exp(-frame["a"])), "yes", "no")
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
        both.append(frame)
    schema = {"target": "ill", "positive": ["yes"], "features": {"a": "numeric", "b": "numeric"},
              "test_fraction": 0.5}  # fmt: skip
    problem = tables(data=f"{tmp_path}/*.csv", schema=schema)
    run = tmp_path / "run"
    simulate(FedNewton(), problem, num_rounds=6, run_dir=run, engine="stacked")
    found = json.loads((run / "quality.json").read_text())
    model, scores, y = load_model(run), [], []
    for site, frame in zip(("north", "south"), both, strict=True):
        _, held = read_table(tmp_path / f"{site}.csv", Schema.load(schema))._split
        p = model.predict_proba(frame)[held, 1]
        ill = (frame["ill"] == "yes").to_numpy()[held]
        assert found["sites"][site]["auc"] == pytest.approx(roc_auc_score(ill, p))
        assert found["sites"][site]["brier"] == pytest.approx(brier_score_loss(ill, p))
        scores.append(p)
        y.append(ill)
    p, ill = np.concatenate(scores), np.concatenate(y)
    pooled = found["pooled"]
    assert pooled["rows"] == 200
    assert abs(pooled["auc"] - roc_auc_score(ill, p)) <= pooled["auc_error"] < 0.002
    assert pooled["deviance_explained"] == pytest.approx(d2_log_loss_score(ill, p))
    line = sm.Logit(ill, sm.add_constant(np.log(p / (1 - p)))).fit(disp=0)
    got = [pooled["calibration_intercept"], pooled["calibration_slope"]]
    assert got == pytest.approx(line.params, abs=1e-6)
    assert pooled["calibration_slope_bse"] == pytest.approx(line.bse[1], rel=1e-5)


def test_losses_without_probabilities_say_so():
    for loss in ("cox", "multinomial"):
        assert "only" in why_absent(loss, ["test_loss"])
