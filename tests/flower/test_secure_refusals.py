"""Secure aggregation: what it refuses before round 1, with and without noise of the clients."""

from __future__ import annotations

import pytest
from fake_grid import on_grid
from secure_nodes import SECURE, STEPS, start

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.compressors import EF21, Natural, Sign
from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy import GaussianDP, SecAggPlus
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDR, FedExProx, FedSGM, Scaffold


def fedavg(**more):
    return FedAvg(client_lr=0.1, local_steps=1, **more)


def noisy(noise_by="clients", cohort=None, **more):
    privacy = GaussianDP(1.0, 1.0, 1e-5, noise_by=noise_by, **more)
    return fedavg(participation=cohort, privacy=privacy)


SINGLE = [
    (FedDR(L1(weight=0.1), step_size=0.1), "upload of FedDR from"),
    (fedavg(norm_bound=3.0), "norm_bound measures each"),
    (fedavg(aggregation=CoordinateMedian()), "compares them"),
    (noisy("server"), "its server clips each"),
    (fedavg(compression=EF21(Sign())), "is each client's own"),
    (fedavg(compression=Natural()), "is each client's own"),
    (FedExProx(step_size=0.1, extrapolation="diversity"), "give extrapolation a number"),
    (Scaffold(client_lr=0.1, local_steps=1), "upload of Scaffold from"),
    (FedSGM(client_lr=0.1, local_steps=1, tolerance=0.1), "queries its clients before the step"),
    (fedavg(participation=Bernoulli(0.9)), r"at least 3 clients in every round, got Bernoulli"),
    (fedavg(participation=Sample(count=2)), "at least 3 clients in a round, got 2"),
]
CLIENTS = SecAggPlus()  # their clip is the range
NOISY = [
    (noisy(), None, r"needs secure aggregation, since each upload has only a share"),
    (noisy("server"), CLIENTS, r'let the clients do both, GaussianDP\(noise_by="cli'),
    (noisy(), SecAggPlus(8.0), "clipping_range=8.0 beside GaussianDP"),
    (noisy(), SecAggPlus(quantization_range=64), "quantization_range=64 beside GaussianDP"),
    (noisy(fewest=4), SecAggPlus(reconstruction_threshold=4),
     "reconstruction_threshold=4 lets a server unmask .* give at least 5"),
    (noisy(cohort=Sample(count=3), fewest=3), CLIENTS, "give fewest at most 2"),
    (fedavg(), CLIENTS, "SecAggPlus needs a clipping_range"),
]  # fmt: skip
OPTIONS = [
    (STEPS, SECURE, {"certificates": True}, "certificates use each client's gradient"),
    (noisy(), CLIENTS, {"weighting": "examples"},
     "weights by numbers of examples would be revealed"),
]  # fmt: skip


@on_grid
@pytest.mark.parametrize(
    ("strategy", "secure", "options", "words"),
    [
        *((strategy, SECURE, {}, words) for strategy, words in SINGLE),
        *((strategy, secure, {}, words) for strategy, secure, words in NOISY),
        *OPTIONS,
    ],
)
def test_what_is_refused_before_round_1(strategy, secure, options, words):
    """What needs single uploads, and what contradicts itself."""
    with pytest.raises(ConfigError, match=words):
        start(strategy, secure=secure, **options)


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
