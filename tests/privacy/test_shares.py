"""Noise that clients add by shares: what it costs, how far a release goes, what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from flwr.common.secure_aggregation.quantization import quantize
from harness import OpenRun
from scipy import optimize, signal, stats
from typer.testing import CliRunner

from flower_fedcon import Bernoulli, Cyclic, FederatedProblem, Sample, simulate
from flower_fedcon.cli import app
from flower_fedcon.errors import BudgetError, ConfigError, RoundError
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.privacy.accountant import FULL, NoisySum, Sampling, spent_epsilon
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.privacy.secure_aggregation import MODULUS, finest_levels
from flower_fedcon.privacy.shares import NoiseShares, log_ratio
from flower_fedcon.runs.asked_rounds import account
from flower_fedcon.strategies import FedAvg, Scaffold

DELTA = 1e-5


def fedavg(z=1.0, clip=1.0, *, rule=None, budget=None, noise_by="clients", **more):
    privacy = GaussianDP(clip, z, DELTA, budget, noise_by=noise_by, **more)
    return FedAvg(client_lr=1.0, local_steps=1, privacy=privacy, participation=rule)


def still(n, d=2):
    """Clients that stay where they are."""
    return FederatedProblem([LeastSquares(np.zeros((1, d)), np.zeros(1)) for _ in range(n)])


# --- sums of discrete Gaussians ------------------------------------------------------------------


def discrete(variance, reach):
    """Return the probabilities of a discrete Gaussian on [-reach, reach]."""
    k = np.arange(-reach, reach + 1.0)
    p = np.exp(-(k**2) / (2 * variance))
    return p / p.sum()


def summed(deviation, count, reach=60):
    """Return the probabilities of the sum of discrete Gaussians, by convolution."""
    one = found = discrete(deviation**2, reach)
    for _ in range(count - 1):
        found = np.convolve(found, one)
    return found


@pytest.mark.parametrize("deviation", [0.5, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_sum_of_shares_is_within_the_stated_factor_of_a_discrete_gaussian(deviation, count):
    near = round(4 * deviation * math.sqrt(count))  # beyond, digits are lost
    found, whole = summed(deviation, count), discrete(count * deviation**2, 60 * count)
    middle = slice(60 * count - near, 60 * count + near + 1)
    off = np.abs(np.log(found[middle] / whole[middle])).max()
    stated = log_ratio(deviation, count)
    assert off <= stated + 1e-13
    assert count > 2 or off > stated / 3  # it is no empty bound


def truth(deviation, count, moved, rounds, delta):
    """Return epsilon of so many rounds, in each of which entries move by these steps.

    By the privacy loss distribution of the sum of shares itself, with losses rounded down and
    without its far tail: it is at most the true epsilon.
    """
    step, losses, mass = 1e-3, np.zeros(1), np.ones(1)
    whole = summed(deviation, count, round(12 * deviation))
    for shift in [*moved] * rounds:
        there, here = whole[shift:], whole[:-shift]  # noise k, and noise k - shift
        known = np.minimum(there, here) > 1e-18
        places = np.floor(np.log(there[known] / here[known]) / step).astype(int)
        one = np.bincount(places - places.min(), weights=there[known])
        mass = signal.fftconvolve(mass, one)
        losses = losses[0] + step * (places.min() + np.arange(len(mass)))

    def exceeds(epsilon):
        above = losses > epsilon
        return float(mass[above] @ -np.expm1(epsilon - losses[above])) - delta

    return optimize.brentq(exceeds, 0.0, float(losses[-1]))


CASES = [  # fewest, levels, z, rounds, entries
    (2, 2**8, 1.0, 1, 1),
    (5, 2**8, 1.0, 1, 1),
    (5, 2**7, 2.0, 1, 2),
    (3, 2**9, 4.0, 2, 1),
    (10, 2**8, 2.0, 1, 1),
]


@pytest.mark.parametrize(("fewest", "levels", "z", "rounds", "entries"), CASES)
def test_no_epsilon_is_below_the_true_one(fewest, levels, z, rounds, entries):
    """On a grid so coarse that it shows: a share deviates by 2 to 8 steps."""
    shares = NoiseShares(1.0, z, fewest, levels)
    deviation, radius = 2**shares.grid.bits, 1 / shares.grid.step
    assert 2 <= deviation <= 8
    each = radius / math.sqrt(entries)
    exact = truth(deviation, fewest, [math.floor(each)] * entries, rounds, DELTA)
    kind = NoisySum(z, Sampling(FULL, 2 * fewest, 2 * fewest))
    ratios = [rounds * ratio for ratio in shares.ratios(entries)]
    distance = rounds * shares.distance(entries, 2 * fewest)
    stated = spent_epsilon({kind: rounds}, DELTA, distance, ratios)
    assert exact <= stated
    # Of so coarse a grid the bound is by Renyi divergences, of a move by all of the clip.
    whole = math.floor(each) / each
    assert stated <= 1.3 * exact / whole


def test_the_distance_on_a_real_grid_costs_nothing_that_shows():
    for n in (10, 100, 1000):
        own = GaussianDP(1.0, 4.0, DELTA, noise_by="clients")
        shares = NoiseShares.of(own, n)
        kind = NoisySum(4.0, Sampling(FULL, n, n))
        ratios = [100 * ratio for ratio in shares.ratios(10_000)]
        plain = spent_epsilon({kind: 100}, DELTA)
        stated = spent_epsilon({kind: 100}, DELTA, 100 * shares.distance(10_000, n), ratios)
        assert plain < stated < plain + 2e-4


def test_what_is_beyond_is_paid_for_or_nothing_is_stated():
    kind = NoisySum(1.0, Sampling(FULL, 1, 1.0))
    plain = spent_epsilon({kind: 1}, DELTA)
    near = spent_epsilon({kind: 1}, DELTA, 1e-9, [0.01, 0.01])
    assert plain + 0.02 < near < plain + 0.03
    assert spent_epsilon({kind: 1}, DELTA, 1e-3, [0.0, 0.0]) == math.inf


@pytest.mark.parametrize("deviation", [2.0, 3.0, 8.0])
def test_a_discrete_gaussian_is_within_the_stated_factor_of_a_rounded_one(deviation):
    k = np.arange(round(16 * deviation) + 1.0)
    p = -(k**2) / (2 * deviation**2) - math.log(discrete(deviation**2, 400).max() ** -1)
    q = stats.norm.logsf((k - 0.5) / deviation)
    q += np.log(-np.expm1(stats.norm.logsf((k + 0.5) / deviation) - q))
    off = np.abs(p - q).max()
    assert 4 / deviation**2 < off <= 11 / deviation**2


# --- how far a release moves a sum, and that no sum wraps ----------------------------------------


def hold_a_share(rng):
    """Round a release to the grid, mask it as Flower does, and measure it in whole numbers."""
    cohort = int(10.0 ** rng.uniform(0.5, 4))
    fewest, levels = int(rng.integers(1, cohort)), finest_levels(cohort)
    clip, z = 10.0 ** rng.uniform(-6, 6), 10.0 ** rng.uniform(-1, 3)
    shares = NoiseShares(clip, z * clip, fewest, levels)
    grid, d = shares.grid, int(rng.integers(1, 40))
    length = clip * rng.choice([0.0, 0.5, 1 - 1e-15, 1.0, 1 + 1e-15, 3.0, 1e9, 1e200])
    values = rng.standard_normal(d) * rng.choice([1.0, 1e-9, 0.0], d, p=[0.6, 0.2, 0.2])
    values *= length / max(float(np.linalg.norm(values)), 1e-100)
    whole = grid.steps(values[None])[0]
    # sigma^2 = z^2 clip^2 is fewest 4^bits steps: a release is at most 1 / z of that, exactly
    square = Fraction(4**grid.bits) * fewest / Fraction(z) ** 2
    assert sum(int(k) ** 2 for k in whole) <= square * (1 + Fraction(1, 10**12))
    drawn = np.clip(grid.noise(d), -15 << grid.bits, 15 << grid.bits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "noise", lambda size: drawn)
        sent = shares.masked(values)
    (level,) = quantize([sent], 1.0, levels)
    np.testing.assert_array_equal(level.astype(object) - levels // 2, whole + drawn)
    assert 0 <= level.min() <= level.max() <= levels
    assert cohort * levels < MODULUS


def test_no_release_is_longer_than_the_clip_and_flower_carries_it_exactly():
    rng = np.random.default_rng(0)
    for _ in range(200):
        hold_a_share(rng)


@pytest.mark.nightly
def test_no_release_of_a_hundred_thousand_is_longer_than_the_clip():
    rng = np.random.default_rng()
    for _ in range(100_000):
        hold_a_share(rng)


def test_noise_that_the_modulus_has_no_room_for_is_refused():
    with pytest.raises(ConfigError, match="too little for the 4096 values"):
        NoiseShares(1.0, 1e-3, 900, 2**12)


# --- what a run has ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "fewest"), [(10, None), (10, 9), (100, 80)])
def test_the_noise_is_that_of_a_server_times_the_stated_factor(n, fewest):
    """sqrt(n/t), when all of n take part and t would suffice."""
    t = fewest or n // 2
    noise = simulate(fedavg(2.0, 0.5, fewest=fewest), still(n, 2000), 1).x * n
    assert stats.kstest(noise / (2.0 * 0.5 * math.sqrt(n / t)), "norm").pvalue > 1e-6
    server = simulate(fedavg(2.0, 0.5, noise_by="server"), still(n, 2000), 1).x * n
    ratio = noise.std() / server.std()
    assert ratio == pytest.approx(math.sqrt(n / t), rel=0.08)


def test_epsilon_is_that_of_the_server_s_noise_with_everyone():
    own, server = (simulate(fedavg(noise_by=by), still(6), 5) for by in ("clients", "server"))
    assert own["epsilon"].tolist() == pytest.approx(server["epsilon"].tolist(), rel=1e-6)


def test_no_cohort_is_counted_as_a_secret():
    """The server knows it: what counts is how often the client was asked who was asked most."""
    made, n = fedavg(rule=Sample(count=6)), 12
    run = OpenRun(made, still(n))
    asked, everyone = np.zeros(n, int), simulate(fedavg(), still(n), 8)["epsilon"]
    for _ in range(8):
        run.play(1)
        asked[run.server.cohort] += 1
        assert run.server.private.epsilon == pytest.approx(everyone[asked.max() - 1], rel=1e-6)
    assert asked.max() < 8


def test_a_resumed_run_knows_whom_it_has_asked(tmp_path):
    """And a round that was begun, and of which the checkpoint knows nothing, counts for all."""
    folder = tmp_path / "run"
    made = fedavg(4.0, rule=Sample(count=6))
    whole = simulate(made, still(12), 6)["epsilon"]
    simulate(made, still(12), 3, run_dir=folder, checkpoint_every=1)
    resumed = simulate(made, still(12), 6, run_dir=folder, resume=True)
    assert resumed["epsilon"][-1] == pytest.approx(whole[-1], rel=1e-6)
    private = OpenRun(made, still(12)).server.private
    private.begin()
    private.kept([0, 1, 2], 1)
    private.heard(3)
    assert private.account()["sums"][2] == 3
    assert private.account(1)["sums"][2] == 4


def test_a_budget_ends_the_run_and_the_folder_knows_what_is_spent(tmp_path):
    first = simulate(fedavg(4.0), still(4), 3)["epsilon"]
    history = simulate(fedavg(4.0, budget=first[1] * 1.001), still(4), 9, run_dir=tmp_path / "run")
    assert history.stopped
    assert history["epsilon"][-1] == pytest.approx(first[1], rel=1e-6)
    known = account(tmp_path / "run")
    assert known["rounds"] == 2
    assert 0 < known["distance"] < 1e-40
    assert 0 <= known["ratios"][1] < known["ratios"][0] < 1e-9
    printed = CliRunner().invoke(app, ["privacy", "spent", str(tmp_path / "run")]).output
    assert "4 by clients" in printed
    assert f"{first[1]:.4g}" in printed


class Failing(Quadratic):
    """A client whose gradient fails, in the calls that are named."""

    def __init__(self, *calls):
        super().__init__(np.eye(2), np.zeros(2))
        self.left, self.calls = set(calls), 0

    def gradient(self, x):
        self.calls += 1
        if self.calls in self.left:
            raise RoundError("it failed")
        return super().gradient(x)


def test_a_round_with_fewer_than_suffice_is_void():
    """One more than `fewest`: each knows its own share."""
    never = set(range(100))
    some = FederatedProblem([Failing(*never), Failing(*never), *(Failing() for _ in range(4))])
    history = simulate(fedavg(fewest=3), some, 1)
    assert history["replies"].tolist() == [4]
    with pytest.raises(RoundError, match="4 usable replies of 6, and 5 are needed"):
        simulate(fedavg(fewest=4), some, 1)


def test_a_round_that_is_asked_again_as_a_whole_counts_again():
    everyone = [Failing(1) for _ in range(4)]
    history = simulate(fedavg(), FederatedProblem(everyone), 1)
    assert history["retries"].tolist() == [1]
    twice = simulate(fedavg(), still(4), 2)["epsilon"]
    assert history["epsilon"][0] == pytest.approx(twice[1], rel=1e-6)
    again = [Failing(1) for _ in range(4)]
    with pytest.raises(BudgetError, match="would exceed the privacy budget"):
        simulate(fedavg(budget=twice[0] * 1.01), FederatedProblem(again), 1)
    trusted = [Failing(1) for _ in range(4)]
    server = simulate(fedavg(noise_by="server"), FederatedProblem(trusted), 1)
    assert server["epsilon"][0] == pytest.approx(twice[0], rel=1e-6)  # it uses one sum


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"noise_by": "nodes"}, r"GaussianDP\(noise_by\)"),
        ({"noise_by": "server", "fewest": 3}, 'is for noise_by="clients"'),
        ({"fewest": 0}, r"GaussianDP\(fewest\)"),
        ({"z": 0.0}, "without noise there are no shares"),
        ({"quantile": 0.5}, "quantile=0.5 needs a noisy count"),
        (
            {"mechanism": "tree"},
            "mechanism='tree' computes the noise of a round from other rounds' noise",
        ),
        ({"mechanism": "banded", "min_separation": 3}, "mechanism='banded' computes the noise"),
        ({"min_separation": 3}, "min_separation=3 leaves out clients"),
    ],
)
def test_a_rule_that_has_no_proof_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        fedavg(**given)


@pytest.mark.parametrize(
    ("rule", "more", "words"),
    [
        (Bernoulli(0.9), {}, "needs rounds of one size, .* got Bernoulli"),
        (Cyclic(groups=2), {}, "needs rounds of one size, .* got Cyclic"),
        (Sample(count=2), {}, "at least 3 clients in a round, got 2"),
        (Sample(count=4), {"fewest": 4}, "give fewest at most 3"),
        (None, {"fewest": 12}, "a sum needs 13 clients, .* give fewest at most 11"),
    ],
)
def test_cohorts_that_have_no_proof_are_refused(rule, more, words):
    with pytest.raises(ConfigError, match=words):
        simulate(fedavg(rule=rule, **more), still(12), 1)


def test_clients_that_keep_state_may_add_noise():
    privacy = GaussianDP(1.0, 1.0, DELTA, noise_by="clients")
    made = Scaffold(client_lr=0.1, local_steps=1, mirror=False, privacy=privacy)
    assert np.isfinite(simulate(made, still(4), 3).x).all()


def test_the_low_bits_of_noise_are_fair_coins():
    """A share is a whole number: its low bits say nothing of where the release lies."""
    shares = NoiseShares.of(GaussianDP(1.0, 3.0, DELTA, noise_by="clients"), 10)
    values = np.full(4000, 0.37 * shares.grid.step)
    sent = shares.masked(values) * (finest_levels(10) // 2)
    assert (sent == np.rint(sent)).all()
    for bit in range(12):
        assert abs(((sent.astype(int) >> bit) & 1).mean() - 0.5) < 0.05


def test_a_grid_can_be_given_its_bits():
    assert Grid(1.0, 2.0, 10, bits=5).step == 2.0 / 32
    with pytest.raises(ConfigError, match="too small for the grid"):
        Grid(1.0, 2.0, 10, bits=0)
