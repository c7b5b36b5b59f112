"""Certificates are what they say, in process and through Flower's records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import OpenRun, client_states, wire_exchange
from problems import l1ls, q6, q6_l1
from scipy.optimize import brentq

from flower_fedcon import EarlyStopping, Sample, simulate
from flower_fedcon.objectives.curvatures import entry_curvatures
from flower_fedcon.runs.certificates import certify
from flower_fedcon.strategies import FedDualAvg, FedFW


def test_gap_and_consensus_of_frank_wolfe():
    problem = l1ls()
    strategy = FedFW(problem.constraint, penalty=0.1)
    history = simulate(strategy, problem, 300, certificates=True, evaluate_every=50)
    x, gradient = history.x, problem.gradient(history.x)
    vertices = np.vstack([5 * np.eye(50), -5 * np.eye(50)])
    assert history["fw_gap"][-1] == pytest.approx(max((x - vertices) @ gradient), rel=1e-12)
    assert (history["fw_gap"] >= history["objective"] - problem.optimum.value).all()
    # In units in which each column has a mean square of 1: z = x / unit, and |unit| @ |z| <= 5.
    unit = np.mean([entry_curvatures(f) for f in problem.objectives], axis=0) ** -0.5
    point = x / unit - unit * gradient

    def step(threshold):
        return np.sign(point) * np.maximum(np.abs(point) - threshold * unit, 0)

    threshold = brentq(lambda t: unit @ np.abs(step(t)) - 5, 0, 1e3, xtol=1e-15, rtol=1e-15)
    assert history["kkt"][-1] == pytest.approx(np.linalg.norm(x / unit - step(threshold)), rel=1e-9)
    run = OpenRun(strategy, problem).play(300)
    spread = [np.linalg.norm(s.x - run.x) ** 2 for s in client_states(run)]
    assert history["consensus"][-1] == pytest.approx(np.sqrt(np.mean(spread)), rel=1e-12)


def test_residual_stops_a_composite_run():
    problem = q6_l1()
    strategy = FedDualAvg(problem.regularizer, client_lr=1 / 40, local_steps=1)
    history = simulate(
        strategy, problem, 6000, certificates=True, callbacks=[EarlyStopping(1e-6, "kkt")]
    )
    assert history.stopped
    assert history["kkt"][-1] <= 1e-6 < history["kkt"][-2]
    assert np.linalg.norm(history.x - problem.optimum.x) < 1e-5
    assert "fw_gap" not in history
    assert "consensus" not in history


def test_certificates_move_nothing_and_travel():
    problem = l1ls(6)
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(count=3))
    asked = simulate(strategy, problem, 30, certificates=True)
    calm = simulate(strategy, problem, 30)
    assert asked.x.tobytes() == calm.x.tobytes()
    assert np.array_equal(asked["uplink_bytes"], calm["uplink_bytes"])
    run = OpenRun(strategy, problem)
    engine, _ = wire_exchange(run)
    for server_round in range(30):
        run.round(engine)
        found = certify(run.server, engine)
        same = asked.rows[server_round]
        for name in ("kkt", "fw_gap"):
            assert found[name] == pytest.approx(same[name], rel=1e-12)
    assert found["consensus"] == pytest.approx(asked["consensus"][-1], rel=1e-12)
    assert run.x.tobytes() == calm.x.tobytes()


def test_a_missing_answer_is_no_certificate(caplog):
    """And no reason to end the run: the next one may be whole."""
    run = OpenRun(FedDualAvg(None, client_lr=0.01, local_steps=1), q6()).play(2)
    run.alter = lambda asked, reply: [] if asked.client == 3 else [reply]
    assert np.isnan(certify(run.server, run)["kkt"])
    assert "no certificate: no usable answer from 3" in caplog.text
    ball = l1ls(6)
    run = OpenRun(FedFW(ball.constraint, penalty=0.1), ball).play(2)
    run.alter = lambda asked, reply: [replace(reply, payload={"gradient": [np.full(50, 1e200)]})]
    found = certify(run.server, run)
    assert found.keys() == {"kkt", "fw_gap"}
    assert np.isnan([*found.values()]).all()
    stop = EarlyStopping(1.0, "kkt")
    assert [stop({"kkt": v}) for v in (np.nan, 0.5)] == [False, True]
