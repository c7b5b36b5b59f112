"""LoCoDL: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract
from harness import OpenRun, settled
from problems import HALF, q6, two_clients

from flower_fedcon import Bernoulli
from flower_fedcon.compressors import QSGD, RandK
from flower_fedcon.strategies import LoCoDL

STEPS = {"client_lr": 0.1, "communication_probability": 0.5}


def uncompressed():
    # mu = 1, g = x^2/4, rho = 1, w = 5; seed 0 draws K = 2, 1
    # 1: x := .85x + .4: 1.4625;  2: x := .95x - .1: .7075;  y := .95y: .9025
    # d = .56, -.195: d_bar = .09125, y = .99375, v = .45625, u = -2.34375, 1.43125, x = .99375
    # 1: 1.0103125;  2: .9871875;  y = .9896875;  d_bar = (.020625 - .0025)/4 = .00453125
    return LoCoDL(**STEPS), two_clients(), [0.99375, 0.99421875]


def compressed():
    # of one entry QSGD(1) sends all, but counts as omega = 1: rho = 2/3, w = 10/9.  As above, and
    # y = .9025 + .0608333;  x_1 = .4875 + .6625 = 1.15, x_2 = .8983333, v = .1013889
    # u_1 = -.5208333, u_2 = .3180556.  1: 1.3254167;  2: .7852222;  y = .9253056
    # d_bar = (.4001111 - .1400833)/4, y = 209227/216000
    strategy = LoCoDL(**STEPS, uplink_compressor=QSGD(levels=1))
    return strategy, two_clients(), [289 / 300, 209227 / 216000]


def invariant(run: OpenRun) -> None:
    """The u_i and v balance, and mirror and copies are what they copy, bit for bit."""
    state, mirrored = run.state, run.state.mirror.rows["u"]
    assert np.abs(mirrored.mean(axis=0) + state.v).max() < 1e-13
    assert settled(run, "u").tobytes() == mirrored.tobytes()
    for name in ("y", "v"):
        assert {row.tobytes() for row in settled(run, name)} == {getattr(state, name).tobytes()}


def sent_by(compressor):
    return {"uplink_compressor": compressor}


CONTRACT = Contract(
    cases=[
        Case("random 4 of 8", q6, sent_by(RandK(count=4)), 400, 0, 1e-15),
        Case("default", q6, {}, 200, 0, 1e-15),
        Case("random 2 of 8", q6, sent_by(RandK(count=2)), 600, 0, 2e-15),
        Case("quantised", q6, sent_by(QSGD(levels=8)), 200, 0, 1e-15),
        Case("settings given", q6, {"share": 0.3, "strong_convexity": 0.8}, 300, 0, 1e-15),
    ],
    sampled=[],
    first_rounds=[uncompressed, compressed],
    small={**STEPS, "strong_convexity": 1.0},
    lost="heals",
    refuses=[HALF["participation"], Bernoulli(0.5)],
    invariant=invariant,
)
