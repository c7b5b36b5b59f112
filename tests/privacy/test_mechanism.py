"""The mechanism: what is clipped, where the noise goes, which methods take it, and an audit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from contract import strategy
from harness import OpenRun
from scipy import stats
from test_release import NOT_PRIVATE, PRIVATE, SINGLE, shown, suited

from flower_fedcon import Bernoulli, FederatedProblem, Full, Only, Sample, simulate
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.core.round import Round
from flower_fedcon.errors import AlgorithmError, ConfigError, FedConError
from flower_fedcon.objectives import LeastSquares, PrivateObjective, Quadratic
from flower_fedcon.privacy import ExampleDP, GaussianDP
from flower_fedcon.privacy.accountant import Accountant, Sampling
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedProx, Scaffnew

IDLE = GaussianDP(clip=1e30, noise_multiplier=0.0, target_delta=1e-5)
NOISY = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
ONE = Sample(count=1)


def pulled(*where, d=2):
    """Clients that want to be there; the first step of FedAvg below goes half of the way."""
    return FederatedProblem([Quadratic(np.eye(d), np.full(d, float(b))) for b in where])


def fedavg(privacy=None, **more):
    return FedAvg(client_lr=0.5, local_steps=1, privacy=privacy, **more)


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("case", PRIVATE, ids=shown)
def test_an_idle_clip_changes_no_bit(case, engine):
    name, settings = case
    first = suited(name, settings)
    found = [
        simulate(strategy(name, first, **settings, privacy=privacy), first.problem(), 5,
                 engine=engine, evaluate_every=0)
        for privacy in (None, IDLE)
    ]  # fmt: skip
    assert found[0].x.tobytes() == found[1].x.tobytes()


@pytest.mark.parametrize("case", PRIVATE, ids=shown)
def test_each_method_runs_with_noise(case):
    name, settings = case
    first = suited(name, settings)
    history = simulate(
        strategy(name, first, **settings, privacy=NOISY), first.problem(), 3, evaluate_every=0
    )
    again = simulate(
        strategy(name, first, **settings, privacy=NOISY), first.problem(), 3, evaluate_every=0
    )
    assert np.isfinite(history.x).all()
    assert not np.array_equal(again.x, history.x) or not history.x.any()  # psi may leave nothing
    assert history["epsilon"][-1] > 0


@pytest.mark.parametrize("case", [*SINGLE, *NOT_PRIVATE], ids=shown)
def test_methods_that_need_each_upload_refuse(case):
    name, settings = case
    first = suited(name, settings)
    with pytest.raises(ConfigError, match=r"takes no privacy=\.\.\."):
        simulate(strategy(name, first, **settings, privacy=NOISY), first.problem(), 1)


def test_what_else_is_refused_says_why():
    problem = pulled(0, 1)
    for made, said in (
        (lambda: fedavg(NOISY, aggregation=CoordinateMedian()), "adds noise to a sum"),
        (lambda: fedavg(NOISY, participation=Only(0)), "leakage of other draws"),
        (
            lambda: Scaffnew(client_lr=0.1, privacy=NOISY, participation=Sample(count=1)),
            "every client",
        ),
    ):
        with pytest.raises(FedConError, match=said):
            simulate(made(), problem, 1)
    with pytest.raises(ConfigError, match="leave certificates out"):
        simulate(fedavg(NOISY), problem, 1, certificates=True)


def test_releases_are_clipped_and_their_sum_divided_by_a_known_number():
    clip = GaussianDP(clip=1.0, noise_multiplier=0.0, target_delta=1e-5)
    for engine in ("local", "stacked"):
        history = simulate(fedavg(clip), pulled(6, 8, 0.2, d=1), 1, engine=engine)
        assert history.x == pytest.approx([(1 + 1 + 0.1) / 3])
    # FedProx's points, 3 and 4, lie about the broadcast, which is 0
    point = simulate(FedProx(proximal=1.0, privacy=clip), pulled(6, 8, d=1), 1)
    assert point.x == pytest.approx([1.0])
    half = fedavg(clip, participation=Bernoulli(0.5))
    for seed in range(4):
        history = simulate(half, pulled(6, 8, 9, 7, d=1), 1, seed=seed)
        assert history.x == pytest.approx([history["replies"][0] / 2])


def test_the_sum_has_the_noise_that_is_stated():
    privacy = GaussianDP(clip=2.0, noise_multiplier=3.0, target_delta=1e-5)
    found = simulate(fedavg(privacy), pulled(0, 0, 0, d=300), 1).x * 3
    assert stats.kstest(found / 6.0, "norm").pvalue > 1e-4


def test_a_cohort_of_nobody_is_a_round_of_noise():
    rare = fedavg(NOISY, participation=Bernoulli(1e-9))
    history = simulate(rare, pulled(5, 5), 2)
    assert history["replies"].tolist() == [0, 0]
    assert np.isfinite(history.x).all()
    assert np.abs(history.x).max() > 1.0  # noise over an expected cohort of 2e-9


def test_no_seed_tells_who_is_drawn():
    sampled = fedavg(NOISY, participation=Sample(count=5))
    many = pulled(*range(40), d=1)
    asked = [[], []]
    for seen in asked:
        for client, objective in enumerate(many.objectives):

            def gradient(x, client=client, seen=seen):
                seen.append(client)
                return x

            objective.gradient = gradient
        simulate(sampled, many, 3, seed=1, evaluate_every=0)
    assert all(len(seen) == 15 for seen in asked)
    assert asked[0] != asked[1]


def test_a_quantile_moves_the_clip_to_it():
    privacy = GaussianDP(1.0, 0.2, 1e-5, quantile=0.5, count_noise=3.0)
    lengths = np.linspace(0.5, 10.0, 200)
    slow = FedAvg(client_lr=1.0, local_steps=1, server_lr=1e-9, privacy=privacy)
    history = simulate(slow, pulled(*lengths, d=1), 60)
    assert history["clip"][-1] == pytest.approx(np.median(lengths), rel=0.1)
    assert history["epsilon"][-1] == pytest.approx(
        Accountant(0.2, 1e-5, Sampling("full", 200, 200)).epsilon(60), rel=0.03
    )
    z, b = privacy.noise(1.0, 200), privacy.noise_of_count(200)
    assert z**-2 + (2 * b) ** -2 == pytest.approx(0.2**-2)  # Andrew et al., Theorem 1


def test_a_client_moves_the_count_of_a_quantile_by_half(monkeypatch):
    monkeypatch.setattr(Grid, "noise", lambda self, size: np.zeros(size, np.int64))
    told = []
    monkeypatch.setattr(GaussianDP, "next_clip", lambda self, clip, share: told.append(share) or 9)
    privacy = GaussianDP(9.0, 1.0, 1e-5, quantile=0.5)
    rule = Bernoulli(0.5)
    history = simulate(fedavg(privacy, participation=rule), pulled(*range(8), d=1), 12)
    assert len(set(history["replies"])) > 1
    assert told == pytest.approx(list(0.5 + history["replies"] / 2 / 4))  # each is short: + 1/2


def statistics(privacy, runs, canary):
    """Return where each of many first rounds ends, in units of the stated noise."""
    run = OpenRun(fedavg(privacy), pulled(canary, 0.0, 0.0, d=1))
    round_ = Round.begin(run.server)
    while (request := round_.next_request()) is not None:
        round_.take(run.answer(request))
    made, state = run.server.strategy, run.state
    found = [made.aggregate(state, round_.uploads()).w[0] for _ in range(runs)]
    return 3 * np.array(found) / (privacy.noise_multiplier * privacy.clip)


def empirical_epsilon(with_it, without, delta, threshold):
    """Return a lower bound of epsilon at 95%: of (TPR - delta)/FPR, by Clopper and Pearson."""
    n, hits, alarms = len(with_it), (with_it > threshold).sum(), (without > threshold).sum()
    low = stats.beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
    high = stats.beta.ppf(0.975, alarms + 1, n - alarms)
    return math.log((low - delta) / high) if low > delta else 0.0


def test_an_audit_finds_what_is_stated_and_catches_half_the_noise(monkeypatch):
    """One client adds its whole clip, or nothing, in a thousand one-round runs."""
    privacy = GaussianDP(clip=2.0, noise_multiplier=1.0, target_delta=0.1)
    stated = simulate(fedavg(privacy), pulled(1, 0, 0), 1)["epsilon"][-1]
    honest = [statistics(privacy, 1000, canary) for canary in (1e6, 0.0)]
    bounds = [empirical_epsilon(*honest, 0.1, t) for t in (0.5, 1.0, 1.5, 2.0)]
    assert 0 < max(bounds) <= stated
    noise = GaussianDP.noise
    monkeypatch.setattr(GaussianDP, "noise", lambda *arguments: 0.5 * noise(*arguments))
    halved = [statistics(privacy, 1000, canary) for canary in (1e6, 0.0)]
    assert empirical_epsilon(*halved, 0.1, 1.0) > stated


def test_a_single_upload_is_in_nobodys_reach():
    run = OpenRun(fedavg(NOISY), pulled(1, 2, 3, d=1))
    round_ = Round.begin(run.server)
    while (request := round_.next_request()) is not None:
        round_.take(run.answer(request))
    with pytest.raises(AlgorithmError, match="asked for a single client's 'delta'"):
        round_.uploads()["delta"]


class Poor(Quadratic):
    """A client whose rows overflow."""

    def gradient(self, x):
        return super().gradient(x) * np.inf


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("everyone", [False, True])
def test_no_run_ends_for_an_upload_that_cannot_be_used(engine, everyone, caplog):
    """One that is not finite, or too long, counts as one that changes nothing, and is not told."""
    own = Poor if everyone else Quadratic
    clients = [own(np.eye(2), np.full(2, b)) for b in (1.0, 2.0)]
    told = []
    for last in (Poor(np.eye(2), np.ones(2)), Quadratic(np.eye(2), np.zeros(2))):
        for bound in (None, 1e-9):
            made = fedavg(GaussianDP(1.0, 1e-9, 1e-5), norm_bound=bound)
            history = simulate(made, FederatedProblem([*clients, last]), 3, engine=engine)
            rows = [{k: v for k, v in row.items() if k != "seconds"} for row in history.rows]
            told.append(rows)
            if everyone or bound:
                np.testing.assert_allclose(history.x, 0.0, atol=1e-6)
    assert told[0] == told[1] == told[2] == told[3]
    assert "counts as 0" in caplog.text
    quiet = fedavg(GaussianDP(1.0, 0.0, 1e-5))
    with pytest.raises(FedConError, match="holds non-finite values"):
        simulate(quiet, FederatedProblem([Poor(np.eye(2), np.ones(2))]), 1)


def test_a_path_and_workers_are_not_private():
    paths = pytest.importorskip("flower_fedcon.paths", reason="a path is refused, too")
    private = FedDualAvg(L1(0.1), client_lr=0.1, local_steps=1, privacy=NOISY)
    with pytest.raises(ConfigError, match="exact gradients, which no noise protects"):
        paths.regularization_path(
            FederatedProblem(pulled(1, 2).objectives), L1(0.1), strategy=private
        )
    rule = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    rows = [PrivateObjective(LeastSquares(np.eye(2), np.ones(2)), rule) for _ in range(2)]
    with pytest.raises(ConfigError, match="workers=2: the processes would forget what private"):
        simulate(fedavg(), FederatedProblem(rows), 1, workers=2)


def test_everyone_and_a_cohort_of_all_cost_the_same():
    every, all_ = (simulate(fedavg(NOISY, participation=rule), pulled(0, 1), 2)["epsilon"]
                   for rule in (Full(), Sample(fraction=1.0)))  # fmt: skip
    assert every.tolist() == all_.tolist()
