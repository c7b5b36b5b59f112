"""Robust aggregation in the methods that take it: iterates, fixed points, liars; and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contract import CONTRACTS, strategy
from harness import OpenRun, over_a_wire
from problems import q6, q6_limited

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.aggregation import (
    CoordinateMedian,
    GeometricMedian,
    NormClipping,
    TrimmedMean,
)
from flower_fedcon.compressors import RandK, TopK
from flower_fedcon.errors import AlgorithmError, ConfigError, FedConError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import DualFL, FedAvg, FedDualAvg, FedProx, FedSGM, Scaffold

RULES = [TrimmedMean(0.2), CoordinateMedian(), GeometricMedian(), NormClipping(0.5)]
EACH_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
TAKING = [name for name in CONTRACTS if not strategy_class(name).needs_mean]


@EACH_RULE
@pytest.mark.parametrize("name", TAKING)
def test_all_engines_find_the_same_iterates(name, rule):
    case = next(c for c in CONTRACTS[name].cases if not {"uplink", "downlink"} & {*c.settings})
    problem, made = case.problem(), strategy(name, case, aggregation=rule)
    run, direct = over_a_wire(made, problem)
    assert run.x.tobytes() == direct.x.tobytes()
    assert direct.server.counts == {}
    stacked = simulate(made, problem, 6, engine="stacked").x
    assert stacked == pytest.approx(direct.x, rel=1e-9, abs=1e-12)


B = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, -1.0], [3.0, 7.0], [40.0, 5.0]])


def points():
    """Clients ||x - b_i||^2/2: a change is a step towards b_i."""
    return FederatedProblem([Quadratic(np.eye(2), b) for b in B])


@EACH_RULE
def test_the_fixed_point_is_where_the_rule_of_the_changes_is_0(rule):
    """For medians and trimmed means of equal curvatures, the rule of the clients' own optima."""
    sent = {"aggregation": rule}
    found = simulate(FedAvg(client_lr=0.5, local_steps=1, **sent), points(), 400).x
    assert rule.combine(0.5 * (B - found)) == pytest.approx([0, 0], abs=2e-6)
    if not isinstance(rule, NormClipping):
        assert found == pytest.approx(rule.combine(B), abs=1e-5)
    proximal = simulate(FedProx(proximal=1.0, **sent), points(), 400).x  # v_i - w = (b_i - w)/2
    assert proximal == pytest.approx(found, abs=2e-6)
    psi = L1(0.5)
    dual = FedDualAvg(psi, client_lr=0.2, local_steps=1, **sent)
    problem = FederatedProblem(points().objectives, regularizer=psi)
    w = simulate(dual, problem, 3000).x
    force = rule.combine(0.2 * (B - w)) / 0.2  # minus the rule of the gradients
    assert psi.prox(w + force, 1.0) == pytest.approx(w, abs=1e-3)


@pytest.mark.parametrize(
    ("rule", "low", "high"),
    [
        (None, 0, 1e-15),
        (TrimmedMean(0.1), 0.09, 0.11),
        (CoordinateMedian(), 0.23, 0.25),
        (GeometricMedian(), 0.11, 0.13),
        (NormClipping(0.1), 0.11, 0.13),
        (NormClipping(1.0), 0, 1e-15),
    ],
    ids=repr,
)
def test_the_price_without_a_liar_is_what_the_package_says(rule, low, high):
    strategy = FedAvg(client_lr=1 / 40, local_steps=1, aggregation=rule)
    problem = q6()
    problem.optimum  # noqa: B018  (so that the residual is recorded)
    rounds = 2000 if low == 0 else 500
    history = simulate(strategy, problem, rounds, evaluate_every=0)
    assert low <= history["residual"][-1] <= high


@pytest.mark.parametrize("rule", [TrimmedMean(0.2), CoordinateMedian(), GeometricMedian()],
                         ids=lambda rule: type(rule).__name__)  # fmt: skip
def test_a_liar_is_outvoted(rule):
    """Of six equal clients one sends what it likes, within what the gate admits."""

    def lie(asked, reply):
        if asked.client != 2:
            return [reply]
        return [replace(reply, payload={"delta": [np.full(8, (-1.0) ** asked.round * 1e90)]})]

    equal = FederatedProblem([q6().objectives[0]] * 6)
    honest = simulate(FedAvg(client_lr=1 / 40, local_steps=3), equal, 50).x
    run = OpenRun(FedAvg(client_lr=1 / 40, local_steps=3, aggregation=rule), equal, alter=lie)
    assert run.play(50).x == pytest.approx(honest, abs=1e-6)
    assert run.server.counts == {}


@pytest.mark.parametrize(
    "made",
    [
        FedAvg(client_lr=1 / 40, local_steps=2),
        Scaffold(client_lr=0.01, local_steps=2),
        DualFL(),
    ],
    ids=lambda made: made.name,
)
@pytest.mark.parametrize("poison", [1e200, 1e308, 5e102])
def test_a_huge_reply_is_dropped_and_the_run_goes_on(made, poison):
    """Its square would overflow, in the next gradient if not in the mean."""

    def alter(asked, reply):
        if asked.client == 4 and asked.round == 3 and not done:
            done.append(1)
            (name,) = reply.payload
            return [replace(reply, payload={name: [np.full(8, poison)]})]
        return [reply]

    done = []
    strategy = made.bind(OpenRun(made, q6()).server.setup)
    strategy.min_replies = 6
    run = OpenRun(strategy, q6(), alter=alter).play(40)
    assert done
    assert run.server.counts == {"dropped": 1, "retries": 1}
    assert run.x.tobytes() == OpenRun(made, q6()).play(40).x.tobytes()


def test_a_norm_bound_drops_what_is_longer(caplog):
    strategy = FedAvg(client_lr=0.5, local_steps=1, norm_bound=5.0)
    for engine in ("local", "stacked"):
        caplog.clear()
        history = simulate(strategy, points(), 2, engine=engine)
        assert history["dropped"].tolist() == [1, 2]  # the one at 40, each time
        assert history["replies"].tolist() == [4, 4]
        assert "dropped the reply of client 4: 'delta' has norm 20.2, more than 5" in caplog.text
        assert history.x == pytest.approx(0.75 * B[:4].mean(axis=0))


def test_a_model_that_is_not_finite_is_not_applied():
    run = OpenRun(FedAvg(client_lr=0.5, local_steps=1, server_lr=1e308), points())
    words = r"^round 1: the replies lead to a model that is not finite, and are not applied"
    with np.errstate(over="ignore"), pytest.raises(FedConError, match=words):
        run.play()
    assert run.x.tolist() == [0, 0]


def test_a_constraint_s_estimate_is_robust_too():
    """One client's lie about g does not move the switch."""

    def lie(asked, reply):
        false = asked.client == 1 and asked.phase == "query"
        return [replace(reply, payload={"constraint": [1e90]}) if false else reply]

    options = {"client_lr": 0.01, "local_steps": 2, "tolerance": 0.1}
    plain, robust = (
        OpenRun(FedSGM(**options, **more), q6_limited(), alter=lie).play(3)
        for more in ({}, {"aggregation": CoordinateMedian()})
    )
    honest = OpenRun(FedSGM(**options), q6_limited()).play(3)
    estimates = [r.server.strategy.report(r.state)["constraint_estimate"]
                 for r in (plain, robust, honest)]  # fmt: skip
    assert estimates[0] > 1e88
    assert abs(estimates[1] - estimates[2]) < 2
    for name, compressor in (("uplink", TopK(count=2)), ("downlink", RandK(count=2))):
        with pytest.raises(ConfigError, match=rf"only without compression, got {name}_compress"):
            FedSGM(**options, aggregation=CoordinateMedian(), **{name: compressor})


def test_a_sum_is_no_mean():
    class Sums(FedAvg):
        def aggregate(self, state, uploads):
            return state._replace(w=state.w + uploads.sum("delta"))

    with pytest.raises(AlgorithmError, match=r"asks for uploads.sum\('delta'\): use mean"):
        simulate(Sums(client_lr=0.1, local_steps=1, aggregation=CoordinateMedian()), q6(), 1)


def test_a_compressed_upload_is_held_to_the_bound_too():
    def alter(asked, reply):
        if asked.client != 4 or asked.phase == "query" or asked.round != 2:
            return [reply]
        (value,) = reply.payload["delta"]
        value.values[:] = 1e150
        return [reply]

    strategy = FedSGM(client_lr=0.01, local_steps=1, tolerance=0.1, uplink=TopK(count=2))
    run = OpenRun(strategy, q6_limited(), alter=alter).play(3)
    assert run.server.counts["dropped"] == 1
    assert np.isfinite(run.x).all()
    assert np.abs(run.x).max() < 10
