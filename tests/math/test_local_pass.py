"""The record of a local pass says what its steps are, and one loop plays it."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon.objectives import LeastSquares
from flower_fedcon.objectives.local_pass import Done, LocalPass, Prox
from flower_fedcon.regularizers import L1, ElasticNet, L2Squared, Nonnegative, Zero

rng = np.random.default_rng(0)
F = LeastSquares(rng.standard_normal((8, 5)), rng.standard_normal(8))
START, LINEAR, LESS, CENTER, FIRST = rng.standard_normal((5, 5))
PSI = ElasticNet(0.3, 0.2)


@pytest.mark.parametrize("onward", [(1.0, 0.0), (0.0, 1.0), (1.0, 0.25), (0.5, 0.5)])
@pytest.mark.parametrize("shift", [0.7, -0.1])
def test_every_field_counts_in_the_steps(onward, shift):
    declared = LocalPass(
        START, LINEAR, shift, CENTER, less=LESS, subgradient=L2Squared(0.4), steps=4, rate=0.05,
        point=Prox(PSI, lambda k: 0.1 * k), first=FIRST, onward=onward,
    )  # fmt: skip
    z = START
    for k in range(4):
        w = PSI.prox(z, 0.1 * k) if k else FIRST
        g = F.gradient(w) + LINEAR - LESS + shift * (w - CENTER) + 0.4 * w
        z = onward[0] * z + onward[1] * w - 0.05 * g
    np.testing.assert_allclose(declared.play(F.gradient), z, rtol=0, atol=1e-14)
    own = declared._replace(gradient=lambda w: 2 * w)
    np.testing.assert_array_equal(own.play(F.gradient), declared.play(lambda w: 2 * w))


@pytest.mark.parametrize("psi", [L1(0.5), PSI, L2Squared(2.0), Zero()], ids=str)
def test_points_as_numbers_are_the_points(psi):
    point = Prox(psi, lambda k: 0.5 * k, lambda k: 1.0 + k)
    for given in (point, point._replace(curvature=None)):
        for k, (threshold, divisor) in enumerate(given.numbers(3)):
            w = np.sign(START) * np.maximum(np.abs(START) - threshold, 0) / divisor
            np.testing.assert_allclose(given(START, k), w, rtol=0, atol=1e-15)


def test_what_compiled_loops_take():
    steps = LocalPass(START, steps=3, rate=0.1)
    assert steps.in_numbers
    assert steps.plain
    assert steps._replace(point=Prox(Zero(), float), first=START).plain
    pointed = steps._replace(point=Prox(L1(1.0), float))
    assert pointed.in_numbers
    assert not pointed.plain
    for other in (
        {"point": Prox(Nonnegative(), float)},
        {"point": lambda z, k: z},
        {"subgradient": L1(1.0)},
        {"gradient": F.gradient},
    ):
        assert not steps._replace(**other).in_numbers


def test_variates_follow_from_the_change():
    declared = LocalPass(START, LINEAR, less=LESS, variate_rate=-2.0)
    by_end, by_change = Done(declared, START + CENTER), Done(declared, change=CENTER)
    np.testing.assert_allclose(by_end.change, by_change.change, rtol=0, atol=1e-15)
    np.testing.assert_allclose(by_change.end, by_end.end, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(by_change.variates, LESS + (-2.0 * CENTER - LINEAR))
