"""How good a model is on rows held out, over sites, beside scikit-learn and statsmodels."""

from __future__ import annotations

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
from tabular import kept, run

from flower_fedcon import load_model
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
          "squared": sm.families.Gaussian(), "gamma": sm.families.Gamma(sm.families.links.Log()),
          "negative_binomial": sm.families.NegativeBinomial(alpha=0.7)}  # fmt: skip


def sites(loss, sizes=(150, 80, 60), seed=0, least=1, known=False):
    """Rows held out at some sites, and of each its scores, outcomes (0, 1 of classes), offsets."""
    rng = np.random.default_rng(seed)
    found, rows = {}, []
    for place, n in enumerate(sizes):
        A = rng.normal(size=(n, 2)) + 0.3 * place
        offset = np.linspace(-0.4, 0.8, n) * known
        at = A @ X[:2] + X[2] + offset
        y = {
            "logistic": lambda at: (rng.random(len(at)) < 1 / (1 + np.exp(0.2 - 0.7 * at))) * 1.0,
            "squared": lambda at: 0.9 * at + rng.normal(size=len(at)),
            "poisson": lambda at: rng.poisson(np.exp(0.6 * at)) * 1.0,
            "negative_binomial": lambda at: rng.negative_binomial(2, 1 / (1 + np.exp(at))) * 1.0,
            "gamma": lambda at: rng.gamma(2.0, np.exp(0.6 * at)),
        }[loss](at)
        own = 2 * y - 1 if loss == "logistic" else y
        found[f"s{place}"] = HeldOut(loss, A, own, least, offset=offset if known else None)
        rows.append((at, y, offset))
    return found, rows


def quality(loss, held):
    alpha = 0.7 if loss == "negative_binomial" else 0.0
    x = np.append(X, np.log(alpha)) if alpha else X

    def pooled(at):
        return sum(calibration_sums(own, x, at)["calibration"] for own in held.values())

    told = {name: quality_sums(own, x) for name, own in held.items()}
    return Quality.of(loss, told, pooled, parameter=alpha)


def expected(loss, scores, y, offset):
    """What scikit-learn and statsmodels say of these rows."""

    def fit(design, given):
        return sm.GLM(y, design, family=FAMILY[loss], offset=given).fit(tol=1e-14, maxiter=200)

    ones = np.ones((len(y), 1))
    line, null = fit(sm.add_constant(scores - offset), offset), fit(ones, offset)
    mean = FAMILY[loss].link.inverse(scores)
    found = {"calibration_intercept": line.params[0], "calibration_slope": line.params[1],
             "calibration_in_the_large": fit(ones, scores).params[0],
             "deviance_explained": 1 - FAMILY[loss].deviance(y, mean) / null.deviance}  # fmt: skip
    if loss == "logistic":
        found |= {"auc": roc_auc_score(y, scores), "brier": brier_score_loss(y, mean)}
    else:
        found |= {"mse": np.mean((y - mean) ** 2)}
    score = {"logistic": d2_log_loss_score, "squared": r2_score,
             "poisson": lambda *rows: d2_tweedie_score(*rows, power=1)}.get(loss)  # fmt: skip
    if score and not offset.any():
        assert found["deviance_explained"] == pytest.approx(score(y, mean))
    return found, line.bse


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("loss", FAMILY)
def test_each_site_and_all_together_are_those_of_the_pooled_rows(loss, known):
    """Beside a known offset, too."""
    held, rows = sites(loss, known=known)
    got, none = quality(loss, held), known and loss in ("logistic", "negative_binomial")
    assert list(got.absent) == ["pooled: deviance explained"] * none
    for name, own in zip(held, rows, strict=True):
        wanted, _ = expected(loss, *own)
        if none:
            del wanted["deviance_explained"]
        assert {k: got.sites[name][k] for k in wanted} == pytest.approx(wanted, rel=1e-8, abs=1e-9)
    wanted, bse = expected(loss, *(np.concatenate(part) for part in zip(*rows, strict=True)))
    pooled = dict(got.pooled)
    if none:
        assert "null model" in got.absent["pooled: deviance explained"]
        assert "deviance_explained" not in pooled
        del wanted["deviance_explained"]
    if loss == "logistic":
        assert abs(pooled.pop("auc") - wanted.pop("auc")) <= pooled["auc_error"] < 2e-3
    assert {k: pooled[k] for k in wanted} == pytest.approx(wanted, rel=1e-8, abs=1e-9)
    if loss in ("logistic", "poisson"):  # others have a variance about the line, or of a scale
        errors = [pooled["calibration_intercept_bse"], pooled["calibration_slope_bse"]]
        assert errors == pytest.approx(bse, rel=1e-6)


def test_the_curve_is_that_of_scikit_learn_at_its_thresholds():
    held, rows = sites("logistic")
    got = quality("logistic", held)
    scores, y, _ = (np.concatenate(part) for part in zip(*rows, strict=True))
    mean = 1 / (1 + np.exp(-scores))
    false, true, _ = roc_curve(y, np.floor(BINS * mean), drop_intermediate=False)
    assert got.roc["false_positive_rate"] == pytest.approx(false)
    assert got.roc["true_positive_rate"] == pytest.approx(true)
    assert sum(got.curve["rows"]) == 290
    shares = np.array(got.curve["rows"]) / 290
    assert shares @ got.curve["observed"] == pytest.approx(y.mean())
    assert shares @ got.curve["predicted"] == pytest.approx(mean.mean())


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
    held, rows = sites("logistic", sizes=(200, 12), least=10)
    held["none"] = HeldOut("logistic", np.zeros((0, 2)), np.zeros(0), 10)
    got = quality("logistic", held)
    assert list(got.sites) == ["s0"]
    assert got.absent["s1"] == got.absent["none"] != ""
    wanted, _ = expected("logistic", *rows[0])
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
    held, _ = sites("logistic")
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
    run(problem, 6, run_dir=tmp_path / "run", engine="stacked")
    found = kept(tmp_path / "run", "quality.json")
    model, scores, y = load_model(tmp_path / "run"), [], []
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
