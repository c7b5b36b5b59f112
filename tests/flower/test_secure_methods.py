"""Secure aggregation: which methods it serves, and what is refused before round 1."""

from __future__ import annotations

import numpy as np
import pytest
from contract import CONTRACTS, FIRST
from contract import strategy as build
from fake_grid import FakeGrid, on_grid
from problems import q6_objectives
from test_release import SUMS, shown

from flower_fedcon import Bernoulli, Sample, simulate
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.compressors import EF21, Natural, Sign
from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy import GaussianDP, SecAggPlus
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDR, FedExProx, FedSGM, Scaffold

SECURE = SecAggPlus(clipping_range=8.0)
METHODS = [case for case in SUMS if case[0] != "fedsgm"]  # it asks before the step


@on_grid
@pytest.mark.parametrize("case", METHODS, ids=shown)
def test_every_method_that_needs_sums_alone_has_its_iterates(case):
    name, settings = case
    first = FIRST[name] if "participation" not in settings else CONTRACTS[name].cases[-1]
    problem, method = first.problem(), build(name, first, **settings)
    if len(problem.objectives) < 6:
        pytest.skip("a cohort of fewer than three")
    plain = simulate(method, problem, 2)
    secure = SecAggPlus(clipping_range=1000.0, num_shares=5)  # of the next ones in a ring
    result = method.start(
        FakeGrid(problem.objectives), problem.start, num_rounds=2, secure_aggregation=secure
    )
    scale = max(1.0, np.abs(plain.x).max())
    assert np.abs(result.history.x - plain.x).max() < 1e-3 * scale


@on_grid
@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (FedDR(L1(weight=0.1), step_size=0.1), "upload of FedDR from"),
        (FedAvg(client_lr=0.1, local_steps=1, norm_bound=3.0), "norm_bound measures each"),
        (FedAvg(client_lr=0.1, local_steps=1, aggregation=CoordinateMedian()), "compares them"),
        (
            FedAvg(client_lr=0.1, local_steps=1, privacy=GaussianDP(1.0, 1.0, 1e-5)),
            "its server clips each",
        ),
        (FedAvg(client_lr=0.1, local_steps=1, compression=EF21(Sign())), "is each client's own"),
        (FedAvg(client_lr=0.1, local_steps=1, compression=Natural()), "is each client's own"),
        (FedExProx(step_size=0.1, extrapolation="diversity"), "give extrapolation a number"),
        (Scaffold(client_lr=0.1, local_steps=1), "upload of Scaffold from"),
        (
            FedSGM(client_lr=0.1, local_steps=1, tolerance=0.1),
            "queries its clients before the step",
        ),
        (
            FedAvg(client_lr=0.1, local_steps=1, participation=Bernoulli(0.9)),
            r"at least 3 clients in every round, got Bernoulli",
        ),
        (
            FedAvg(client_lr=0.1, local_steps=1, participation=Sample(count=2)),
            "at least 3 clients in a round, got 2",
        ),
    ],
)
def test_what_needs_single_uploads_is_refused_before_round_1(strategy, words):
    with pytest.raises(ConfigError, match=words):
        strategy.start(FakeGrid(q6_objectives()), num_rounds=1, secure_aggregation=SECURE)


@on_grid
def test_certificates_are_refused():
    with pytest.raises(ConfigError, match="certificates use each client's gradient"):
        FedAvg(client_lr=0.1, local_steps=3).start(
            FakeGrid(q6_objectives()), num_rounds=1, secure_aggregation=SECURE, certificates=True
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clipping_range": 0.0}, "clipping_range must be finite and > 0, got 0.0"),
        ({"clipping_range": {}}, "a range > 0 for each upload"),
        ({"clipping_range": {"v": -1.0}}, r"clipping_range\['v'\]"),
        ({"num_shares": 2}, "num_shares must be a whole number >= 3, got 2"),
        ({"num_shares": 1.5}, r"a fraction in \(0, 1\]"),
        ({"reconstruction_threshold": 1}, ">= 2, got 1"),
        ({"num_shares": 5, "reconstruction_threshold": 5}, "must be less than num_shares, 5"),
        ({"quantization_range": 2**31}, r"at most 2\*\*30"),
    ],
)
def test_a_value_out_of_range_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        SecAggPlus(**{"clipping_range": 1.0, **given})


def test_levels_never_overflow_the_modulus():
    for cohort in (3, 4, 5, 7, 8, 100, 1000, 1023, 1024, 1025):
        levels = SECURE.levels(cohort)
        assert cohort * levels < 2**32
        assert 2 * (cohort + 1) * levels >= 2**32 or levels == 2**30
    with pytest.raises(ConfigError, match="too fine for 5 clients"):
        SecAggPlus(clipping_range=1.0, quantization_range=2**30).levels(5)
    with pytest.raises(ConfigError, match="no range for the upload 'v'"):
        SecAggPlus(clipping_range={"u": 1.0}).range_of("v")
