"""The record of each loss for tables: one contract for all, and a loss of this file alone."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq, minimize
from tabular import kept, run

from flower_fedcon import load_model
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.families import base, families, family_of, names_of, register
from flower_fedcon.tables.families.base import NONE
from flower_fedcon.tables.families.squared import Squared
from flower_fedcon.tables.held_out import HeldOut
from flower_fedcon.tables.quality import Line, calibration_sums, quality_sums, why_absent

RNG = np.random.default_rng(8)
NEEDS = {"logistic": {"positive": ["yes"]}, "multinomial": {"classes": ["a", "b", "c"]},
         "cox": {"event": "seen"}, "ordinal": {"levels": ["a", "b", "c"]}}  # fmt: skip
LINKS = {"squared": "identity", "huber": "identity", "logistic": "logit", "multinomial": "softmax",
         "poisson": "log", "negative_binomial": "log", "gamma": "log",
         "cox": "log hazard ratio", "ordinal": "cumulative logit"}  # fmt: skip
BY_ROW = [name for name in names_of() if name != "cox"]  # whose rows have losses of their own
ONE_SCORE = [name for name in BY_ROW if name not in ("multinomial", "ordinal")]


def schema(name):
    return Schema("y", {"a": "numeric"}, loss=name, **NEEDS.get(name, {}))


def targets(name, n=40):
    """Targets as in the objective, of any size that the loss allows."""
    rng = np.random.default_rng(3)
    if name == "cox":
        return np.stack([rng.exponential(size=n), rng.integers(0, 2, n)], axis=1)
    made = {
        "logistic": lambda: rng.choice([-1.0, 1.0], n),
        "multinomial": lambda: rng.integers(0, 3, n) * 1.0,
        "ordinal": lambda: rng.integers(0, 3, n) * 1.0,
        "poisson": lambda: rng.poisson(2.0, n) * 1.0,
        "negative_binomial": lambda: rng.negative_binomial(2, 0.4, n) * 1.0,
        "gamma": lambda: rng.gamma(2.0, 1.5, n),
    }
    return made.get(name, lambda: 2.0 * rng.standard_t(2, n))()


def scores_of(name, n=40, seed=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3) if name == "multinomial" else n)


def model(name):
    """A model of two columns and the intercept, in the loss's shape."""
    x = np.array([0.3, -0.2, 0.1])
    if name in ("negative_binomial", "ordinal"):
        return np.append(x, math.log(0.7))
    return {"multinomial": np.outer(x, [0, 0.5, 1]), "cox": x[:2]}.get(name, x)


def objective(name, y, parameter):
    """The objective of rows that have the parameter, if the loss has one."""
    made = family_of(name).loss(np.ones((len(y), 1)), y, schema(name), intercept=True,
                                sample_weight=None)  # fmt: skip
    if name == "negative_binomial":
        made.alpha = parameter
    return made


def saturated(name, y):
    """The scores at which each row's loss is least."""
    family = family_of(name)
    if name == "multinomial":
        return 50.0 * (y[:, None] == np.arange(3))
    return family.link.of(family.numbers(y))


# --- the contract --------------------------------------------------------------------------------


def test_each_loss_has_a_family_and_each_family_a_loss():
    assert names_of()[: len(LINKS)] == list(LINKS)
    assert len({family.of for family in families()}) == len(names_of())
    for family in families():
        assert family_of(json.loads(json.dumps(family.name))) is family
    with pytest.raises(ConfigError, match=r"'possion' is not a loss of tables.*poisson"):
        family_of("possion")


def test_no_other_file_asks_for_a_loss_by_its_name():
    asked = re.compile(rf"""(==|!=|\bin|\bget\() [({{\[]?["']({"|".join(LINKS)})["']""")
    folder = Path(base.__file__).parent
    found = [
        f"{path.name}: {line.strip()}"
        for path in folder.parents[1].rglob("*.py")
        if path.parent != folder and path.parent.name not in ("privacy", "server")
        for line in path.read_text("utf-8").splitlines()
        if asked.search(line)
    ]
    assert found == []  # the two rooms have other things of these names


@pytest.mark.parametrize("name", names_of())
def test_a_record_pickles_by_its_name(name):
    again = pickle.loads(pickle.dumps(family_of(name)))
    assert again is family_of(name)
    assert len(pickle.dumps(family_of(name))) < 120


@pytest.mark.parametrize("name", names_of())
def test_the_link_is_the_inverse_of_its_inverse(name):
    link, s = family_of(name).link, scores_of(name)
    assert link.name == LINKS.get(name, link.name)  # as in model.json
    back = link.of(link.inverse(s))
    if name == "multinomial":  # up to a number that the classes share
        s, back = s - s[:, :1], back - back[:, :1]
    np.testing.assert_allclose(back, s, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in BY_ROW if name != "ordinal"])
def test_deviance_is_twice_the_loss_above_its_least(name):
    family, y, s = family_of(name), targets(name), scores_of(name)
    parameter = family.parameter(model(name))
    loss = objective(name, y, parameter)
    best = saturated(name, y)

    def losses(at):
        return loss.loss(at.T if family.several else at, loss.targets)

    found = family.deviance(s, y, parameter)
    np.testing.assert_allclose(family.deviance(best, y, parameter), 0.0, atol=1e-13)
    between = found - family.deviance(s + scores_of(name, seed=6), y, parameter)
    np.testing.assert_allclose(
        between, 2.0 * (losses(s) - losses(s + scores_of(name, seed=6))), rtol=1e-10, atol=1e-12
    )
    assert (found >= 0).all()
    at = s.T if family.several else s  # as the objective has them
    _, of_sums, *_ = family.likelihood(loss, at, loss.targets)
    np.testing.assert_allclose(of_sums, found, rtol=1e-12)


@pytest.mark.parametrize("name", ONE_SCORE)
def test_slopes_are_those_of_the_deviance(name):
    family, y, s, h = family_of(name), targets(name), scores_of(name), 1e-5
    parameter = family.parameter(model(name))
    residual, weight = family.slopes(s, y, parameter)
    # The line of a loss that is no likelihood is that of least squares.
    whose = family_of("squared") if family.scale == NONE else family
    known = [whose.deviance(at, y, parameter) for at in (s - h, s + h)]
    np.testing.assert_allclose(residual, (known[0] - known[1]) / (4 * h), rtol=1e-7, atol=1e-8)
    mean = family.link.inverse(s)
    if family.binary:  # the expectation over both outcomes
        sides = [
            mean * family.slopes(at, np.ones(40))[0]
            + (1 - mean) * family.slopes(at, -np.ones(40))[0]
            for at in (s - h, s + h)
        ]
    else:
        sides = [family.slopes(at, mean, parameter)[0] for at in (s - h, s + h)]
    np.testing.assert_allclose(weight, (sides[0] - sides[1]) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("offset", [None, np.linspace(-0.4, 0.6, 40)])
@pytest.mark.parametrize("name", ONE_SCORE)
def test_the_null_model_is_the_best_constant(name, offset):
    family, y = family_of(name), targets(name)
    parameter, level = family.parameter(model(name)), family.level(y, offset)
    if level is None:
        assert name in ("logistic", "negative_binomial")
        assert offset is not None
        return
    null = family.null(level[0] / level[1], y, offset)
    constant = null if offset is None else null - offset
    np.testing.assert_allclose(constant, constant[0])
    here, *beside = (family.deviance(null + d, y, parameter).sum() for d in (0.0, -1e-3, 1e-3))
    assert here < min(beside)
    slope = (beside[1] - beside[0]) / 2e-3
    assert abs(slope) < 1e-2 * (beside[0] + beside[1] - 2 * here) / 1e-6


@pytest.mark.parametrize("name", [name for name in ONE_SCORE if family_of(name).mean_null])
def test_null_models_of_sites_are_pooled_by_their_means(name):
    family, y = family_of(name), targets(name)
    parameter = family.parameter(model(name))
    total = family.deviance(family.null(family.numbers(y).mean(), y, None), y, parameter).sum()
    parts = 0.0
    for own in (y[:11], y[11:]):
        at = family.numbers(own).mean()
        parts += family.deviance(family.null(at, own, None), own, parameter).sum()
        parts += len(own) * family.between(at, family.numbers(y).mean(), parameter)
    assert parts == pytest.approx(total, rel=1e-12)
    assert family.between(0.4, 0.4, parameter) == 0.0


@pytest.mark.parametrize("name", names_of())
def test_metrics_have_the_names_of_the_family(name):
    held = HeldOut(name, RNG.normal(size=(40, 2)), targets(name))
    assert tuple(held(model(name))) == family_of(name).held_out
    empty = HeldOut(name, np.zeros((0, 2)), targets(name)[:0])
    assert tuple(empty(model(name))) == family_of(name).held_out
    assert (why_absent(name, ["some"]) != "") == (name in ("multinomial", "cox", "ordinal"))


# --- overflow ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("name", names_of())
def test_no_number_overflows_however_far_the_model_is(name, size):
    x = model(name) * size
    if name == "negative_binomial":
        x[-1] = 0.0
    held = HeldOut(name, np.random.default_rng(2).normal(size=(40, 2)), targets(name))
    assert np.isfinite([value for pair in held(x).values() for value in pair]).all()
    if family_of(name).no_quality:
        return
    for sums in (quality_sums(held, x), calibration_sums(held, x, np.array([0.1, 0.9, 0.2]))):
        assert all(np.isfinite(own).all() for own in sums.values())
    line = Line.fit(lambda at: calibration_sums(held, x, at)["calibration"])
    assert line is None or math.isfinite(line.slope)


@pytest.mark.parametrize("name", [family.name for family in families() if family.log_link])
def test_means_and_sums_stay_finite_at_the_cut(name):
    family = family_of(name)
    means = family.link.inverse(np.array([-1e9, 0.0, 1e9, np.nan]))
    np.testing.assert_array_equal(means, [math.exp(-700), 1.0, math.exp(700), np.nan])
    y = np.ones(2)
    loss = objective(name, y, 1.0)
    for part in family.summed(loss, np.array([-1e9, 1e9]), y):
        assert (np.abs(part) <= 1e100).all()


def test_a_sure_and_wrong_probability_costs_its_score():
    """Deviances follow from scores: 1 - p would be 0, and its logarithm infinite."""
    found = family_of("logistic").deviance(np.array([50.0, -50.0, 900.0]), np.array([-1.0, 1, -1]))
    np.testing.assert_allclose(found, [100.0, 100.0, 1800.0])


# --- Huber's deviance ----------------------------------------------------------------------------


def test_deviance_explained_by_a_huber_model_is_of_its_loss():
    """One outlier of 1000 leaves it as it is; squares would be explained to 0 %."""
    rng = np.random.default_rng(4)
    A = rng.normal(size=(60, 1))
    y = 2.0 * A[:, 0] + 0.1 * rng.normal(size=60)
    y[0] = 1000.0

    def h(r):
        return np.where(np.abs(r) <= 1.35, r * r, 1.35 * (2 * np.abs(r) - 1.35))

    numbers = quality_sums(HeldOut("huber", A, y), np.array([2.0, 0.0]))["numbers"]
    best = minimize(lambda c: h(y - c).sum(), 0.0, method="Nelder-Mead", options={"xatol": 1e-10})
    assert numbers[2] == pytest.approx(h(y - 2.0 * A[:, 0]).sum())
    assert numbers[3] == pytest.approx(best.fun, rel=1e-10)


# --- a loss from outside -------------------------------------------------------------------------


class LogCoshRegression(LinearModel):
    """Mean of log cosh of the residuals."""

    curvatures = (0.0, 1.0)

    def loss(self, scores, targets):
        r = np.abs(scores - targets)
        return r + np.log1p(np.exp(-2.0 * r)) - np.log(2.0)

    def slope(self, scores, targets):
        return np.tanh(scores - targets)

    def curvature(self, scores, targets):
        return 1.0 - np.square(np.tanh(scores - targets))

    hessian_products = LinearModel.second_derivatives


class LogCosh(Squared):
    """Log cosh, a loss that is no likelihood; its null model is no mean."""

    name = "outside"
    title = "Regression by log cosh"
    of = LogCoshRegression
    rank = 100
    scale = NONE
    profiled = debiased = weighs_rows = mean_null = False

    def deviance(self, scores, y, parameter=0.0):
        r = np.abs(scores - y)
        return 2.0 * (r + np.log1p(np.exp(-2.0 * r)) - np.log(2.0))

    def likelihood(self, loss, scores, y):
        none = np.zeros_like(scores)
        return none, self.deviance(scores, y), none, none

    def null(self, mean, y, offset):
        left = y if offset is None else y - offset
        at = brentq(lambda c: np.tanh(c - left).sum(), left.min() - 1, left.max() + 1)
        return np.full(len(y), at) + (0.0 if offset is None else offset)


@pytest.fixture
def outside(monkeypatch):
    monkeypatch.setattr(base, "_FAMILIES", dict(base._FAMILIES))
    register(LogCosh())
    return family_of("outside")


def test_a_loss_that_only_this_file_knows_is_fitted_from_files_to_the_report(tmp_path, outside):
    rng = np.random.default_rng(6)
    for site, n in (("north", 60), ("south", 50)):
        dose = rng.normal(size=n)
        effect = 1.5 * dose - 0.5 + rng.standard_t(2, n)
        pd.DataFrame({"dose": dose, "effect": effect}).to_csv(tmp_path / f"{site}.csv", index=False)
    stated = {"target": "effect", "features": {"dose": "numeric"}, "loss": "outside",
              "test_fraction": 0.3}  # fmt: skip
    problem = tables(data=f"{tmp_path}/*.csv", schema=stated, inference="robust")
    history = run(problem, 15, run_dir=tmp_path / "run")
    f = problem.objectives
    whole = minimize(lambda x: sum(one.value(x) for one in f), np.zeros(2), tol=1e-12)
    np.testing.assert_allclose(history.x, whole.x, atol=1e-6)
    text = (tmp_path / "run" / "report.txt").read_text()
    assert "Regression by log cosh" in text
    assert "robust (HC1)" in text
    quality = kept(tmp_path / "run", "quality.json")
    assert 0.2 < quality["sites"]["north"]["deviance_explained"] < 1
    assert "outside loss is not a mean" in quality["absent"]["pooled: deviance explained"]
    found = load_model(tmp_path / "run")
    assert kept(tmp_path / "run")["link"] == "identity"
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict({"dose": [1.0]}), found.predict({"dose": [1.0]}))
    assert again.estimates.family is outside
    with pytest.raises(ConfigError, match="is for squared, logistic, poisson losses"):
        tables(data=f"{tmp_path}/*.csv", schema=stated, site_effects="own")


def test_another_loss_of_the_same_name_is_refused(outside):
    class Another(Squared):
        name = "outside"

    with pytest.raises(ConfigError, match="'outside' is already a loss of tables"):
        register(Another())
