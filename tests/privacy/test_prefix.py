"""Correlated noise for prefix sums: what is released, how far a client moves it, what it costs."""

from __future__ import annotations

import itertools
import math
import tomllib
from fractions import Fraction

import dp_accounting as dp
import numpy as np
import pytest
from contract import strategy
from dp_accounting import rdp
from pages import blocks
from test_mechanism import empirical_epsilon
from test_release import PRIVATE, shown, suited

from flower_fedcon import (
    Bernoulli,
    Cyclic,
    FederatedProblem,
    Full,
    Only,
    Sample,
    problems,
    simulate,
)
from flower_fedcon.cli import main
from flower_fedcon.core.patterned_releases import PatternedReleases, separation_of
from flower_fedcon.core.private import Private
from flower_fedcon.errors import BudgetError, ConfigError, FedConError, RoundError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import Quadratic
from flower_fedcon.optimizers import Momentum
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.privacy.prefix import Banded, Tree, encoder
from flower_fedcon.registry import strategy_class
from flower_fedcon.strategies import CFedDA, FastFedDA, FedAvg, FedDualAvg, Scaffold
from flower_fedcon.wire.digests import digest

Z, DELTA = 1.5, 1e-4
MECHANISMS = ("independent", "tree", "banded")


def rule(mechanism="tree", **more):
    settings = {"clip": 0.5, "noise_multiplier": Z, "target_delta": DELTA} | more
    return GaussianDP(mechanism=mechanism, **settings)


class Failing(Quadratic):
    """Raises in the gradients that `raises` has an error for, by their number."""

    resume_key = "failing"

    def __init__(self, b=1.0, raises=None):
        super().__init__(np.eye(2), np.full(2, b))
        self.raises, self.calls = raises or {}, 0

    def gradient(self, x):
        self.calls += 1
        if self.calls in self.raises:
            raise self.raises[self.calls]
        return super().gradient(x)


def problem(n=8, **failing):
    return FederatedProblem([Failing(0.0, **failing), *(Failing(float(j)) for j in range(1, n))])


def fedavg(privacy, participation=None, **more):
    return FedAvg(
        client_lr=0.1,
        local_steps=1,
        privacy=privacy,
        participation=participation or Cyclic(4),
        **more,
    )


def epsilon(square, z=Z):
    """Return what one Gaussian release costs that a client moves by the root of that, by C."""
    return dp.get_epsilon_gaussian(z / math.sqrt(square), DELTA)


# --- what is released, by hand -------------------------------------------------------------------


def played(made, totals, noise):
    """Return the noisy sums of rounds with these sums and this noise, a number for each release."""
    left, memory, found = list(noise), made.begin(), []
    for total in totals:
        draw = lambda size: np.array([left.pop(0)])  # noqa: E731
        estimate, memory = made.release(memory, np.array([total]), draw)
        found.append(estimate[0] / 2**made.bits)
    assert not left
    return np.array(found)


def test_first_rounds_of_a_tree_by_hand():
    # y: leaf 1 = 10 + 1, leaf 2 = 20 + 3, [1, 2] = 30 + 6, leaf 3 = 5 - 2, the root = 35 + 8
    found = played(Tree(3, 3), [10, 20, 5], [1, 3, 6, -2, 8])
    both = (2 * 36 + 34) / 3  # variances 1 and 2
    three = both + 3  # variances 2/3 and 1
    root = (5 / 3 * 43 + three) / (8 / 3)
    assert found == pytest.approx([11, both - 11, root - both])


def test_first_rounds_of_a_band_by_hand():
    unit = 2**Banded.bits
    found = played(Banded(2, [unit, unit // 2]), [10, 20, 5], [unit, -unit, 2 * unit])
    # C = 1, 1/2 below: y = 10 + 1, 20 + 10/2 - 1, 5 + 20/2 + 2
    assert found == pytest.approx([11, 24 - 11 / 2, 17 - (24 - 11 / 2) / 2])
    assert played(Banded(1, [unit]), [10, 20], [3, -unit]) == pytest.approx([10 + 3 / unit, 19])


def encoded(made, rounds):
    """Return C, (releases, rounds), as it is defined."""
    if isinstance(made, Banded):
        found = np.zeros((rounds, rounds))
        for i, j in itertools.product(range(rounds), repeat=2):
            if 0 <= i - j < len(made.coefficients):
                found[i, j] = made.coefficients[i - j] / 2**made.bits
        return found
    rows = []
    for start in range(0, rounds, made.rounds):
        length = min(made.rounds, rounds - start)
        sizes = [2**h for h in range(11)]
        spans = {(k, s) for s in sizes for k in range(0, length - s + 1, s)}
        if length == made.rounds:
            spans.add((0, length))
        rows += [(np.arange(rounds) >= start + k) & (np.arange(rounds) < start + k + s)
                 for k, s in sorted(spans)]  # fmt: skip
    return np.array(rows, dtype=float)


def patterns(rounds, separation):
    """Yield all sets of rounds in which one client may take part."""
    for bits in itertools.product((0, 1), repeat=rounds):
        taken = np.flatnonzero(bits)
        if (np.diff(taken) >= separation).all():
            yield np.array(bits, dtype=float)


ENCODERS = [
    *(Tree(b, n) for b, n in ((1, 1), (1, 3), (1, 8), (1, 20), (2, 2), (3, 3), (4, 2), (5, 5))),
    *(encoder(m, b, n, k, None) for m, b, n, k in (
        ("independent", 1, 9, None), ("independent", 3, 9, None), ("banded", 2, 9, None),
        ("banded", 4, 9, 2), ("banded", 4, 12, None), ("banded", 7, 30, None),
    )),
]  # fmt: skip


@pytest.mark.parametrize("made", ENCODERS, ids=lambda m: f"{type(m).__name__}-{m.separation}")
def test_no_pattern_and_no_direction_moves_more_than_is_stated_and_one_does(made):
    rng = np.random.default_rng(0)
    for rounds in range(1, 11):
        C, worst = encoded(made, rounds), 0.0
        assert made.releases(rounds) == len(C)
        np.testing.assert_allclose(made.squares(rounds), (C**2).sum(axis=0))
        stated = made.sensitivity(rounds)
        found = list(patterns(rounds, made.separation))
        worst = max(float(((C @ taken) ** 2).sum()) for taken in found)
        assert worst == pytest.approx(stated, rel=1e-12)
        for taken in found[:: max(1, len(found) // 8)]:
            u = rng.standard_normal((rounds, 3))
            u *= (taken / np.linalg.norm(u, axis=1))[:, None]
            assert ((C @ u) ** 2).sum() <= stated * (1 + 1e-12)


@pytest.mark.parametrize("made", ENCODERS, ids=lambda m: f"{type(m).__name__}-{m.separation}")
def test_without_noise_sums_are_what_they_were_and_noise_comes_from_the_release_alone(made):
    rounds, rng = 10, np.random.default_rng(1)
    n, unit = made.releases(rounds), 2**made.bits
    totals = rng.integers(-99, 99, rounds)
    assert played(made, totals, [0] * n) == pytest.approx(totals, abs=1e-9)
    # D z is the noise of the sums, for D with D C = 1: they follow from y = C G + z by D
    zero = [0] * rounds
    D = np.stack([played(made, zero, unit * 1000 * row) for row in np.eye(n, dtype=int)]).T / 1000
    order = sorted(range(n), key=lambda k: np.flatnonzero(np.abs(D[:, k]) > 1e-12).min())
    C = encoded(made, rounds)
    first = sorted(range(n), key=lambda k: np.flatnonzero(C[k]).max())
    if isinstance(made, Banded):
        np.testing.assert_allclose(D @ C, np.eye(rounds), atol=1e-9)
    assert [np.flatnonzero(C[k]).max() for k in first] == [
        np.flatnonzero(np.abs(D[:, k]) > 1e-12).min() for k in order
    ]


def test_prefix_sums_have_less_noise_at_the_same_cost():
    rounds, b = 100, 10
    errors = {}
    for name in MECHANISMS:
        made, rng = encoder(name, b, rounds, None, None), np.random.default_rng(2)
        memory, prefix, total = made.begin(), 0.0, 0.0
        for _ in range(rounds):
            z = lambda size, rng=rng: np.rint(1e6 * rng.standard_normal(size)).astype(int)  # noqa: E731
            found, memory = made.release(memory, np.zeros(300, int), z)
            prefix = prefix + found
            total += np.mean(prefix**2)
        errors[name] = math.sqrt(total / rounds * made.sensitivity(rounds)) / 1e6
    # sqrt(b (rounds + 1)/2 ...): 22.5 independent, 13.8 by trees, 9.3 by bands
    assert errors["independent"] == pytest.approx(math.sqrt(10 * 101 / 2), rel=0.05)
    assert errors["banded"] < 0.75 * errors["tree"] < 0.5 * errors["independent"]


def test_coefficients_are_a_minimum():
    rounds, b = 40, 4

    def error(c):
        C = np.tril(np.triu(np.ones((rounds, rounds)), 1 - b))
        for j in range(b):
            C[np.arange(j, rounds), np.arange(rounds - j)] = c[j]
        B = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(C)
        worst = max((C[:, k::b] ** 2).sum() for k in range(b))
        return (B**2).sum() * worst

    best = np.array(encoder("banded", b, rounds, None, None).coefficients, dtype=float)
    for j, step in itertools.product(range(1, b), (-0.05, 0.05)):
        assert error(best + step * best[0] * np.eye(b)[j]) > error(best)


# --- what it costs -------------------------------------------------------------------------------


def test_a_single_tree_costs_what_dp_accounting_says():
    for rounds in (1, 3, 4, 8):
        account = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
        account.compose(dp.SingleEpochTreeAggregationDpEvent(Z, rounds))
        one = rdp.RdpAccountant()
        square = Tree(16, 16).sensitivity(rounds)
        one.compose(dp.GaussianDpEvent(Z / math.sqrt(square)))
        assert one.get_epsilon(DELTA) == pytest.approx(account.get_epsilon(DELTA))
        assert epsilon(square) <= account.get_epsilon(DELTA)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_column_is_of_the_rounds_so_far(mechanism):
    made = encoder(mechanism, 4, 10, None, None)
    history = simulate(fedavg(rule(mechanism)), problem(), 10)
    stated = [epsilon(made.sensitivity(t)) for t in range(1, 11)]
    assert history["epsilon"].tolist() == pytest.approx(stated, rel=1e-6)


def test_everyone_in_a_tree_moves_its_root_by_all_rounds():
    found = simulate(fedavg(rule(), Full()), problem(), 4)["epsilon"].tolist()
    assert found == pytest.approx([epsilon(k) for k in (1, 2 + 4, 3 + 4, 4 + 8 + 16)])
    short = simulate(fedavg(rule(restart=2), Full()), problem(), 4)["epsilon"].tolist()
    assert short == pytest.approx([epsilon(k) for k in (1, 6, 7, 12)])


def released(mechanism, rounds, canary, entries, noise=Z):
    """Return an attacker's best statistic of each of many runs, in which one client is or is not.

    The entries of one run are as many runs: the noise of each is its own.
    """
    settings = rule(mechanism, noise_multiplier=noise, clip=1.0)
    made = PatternedReleases(settings, 2, 1, rounds, entries)
    sums = []
    for t in range(1, rounds + 1):
        there = canary * (t % 2)
        column = np.full((entries, 1), float(there))
        total = made.grid.steps(column)[:, 0]
        sums.append(made.release(total, [0] if t % 2 else [], t))
    C = encoded(made._encoder, rounds)
    taken = np.arange(1, rounds + 1) % 2
    if mechanism == "tree":  # C+ of the best estimate is not C's inverse: by its own noise
        y = np.array(sums)
        weights = np.linalg.solve(np.cov(y) + 1e-9 * np.eye(rounds), taken)
        return weights @ y / math.sqrt(weights @ taken)
    return (C @ taken) @ (C @ np.array(sums)) / np.linalg.norm(C @ taken)


@pytest.mark.parametrize("mechanism", ["tree", "banded"])
def test_an_audit_finds_what_is_stated_and_catches_half_the_noise(mechanism):
    rounds, n, delta = 4, 4000, 0.1
    square = encoder(mechanism, 2, rounds, None, None).sensitivity(rounds)
    stated = dp.get_epsilon_gaussian(Z / math.sqrt(square), delta)
    found = [released(mechanism, rounds, canary, n) for canary in (1.0, 0.0)]
    shift = (found[0].mean() - found[1].mean()) / found[1].std()
    bounds = [empirical_epsilon(*found, delta, t * found[1].std()) for t in (0.5, 1.0, 1.5, 2.0)]
    least = 0.6 if mechanism == "banded" else 0.4  # of a tree, sums tell less than all releases
    assert least * stated < max(bounds) <= stated
    assert shift <= math.sqrt(square) / Z * 1.1
    if mechanism == "banded":  # all of y follows from the sums
        assert shift == pytest.approx(math.sqrt(square) / Z, rel=0.1)
    halved = [released(mechanism, rounds, canary, n, Z / 2) for canary in (1.0, 0.0)]
    scale = halved[1].std()
    assert max(empirical_epsilon(*halved, delta, t * scale) for t in (1.0, 1.5, 2.0)) > stated


def test_one_client_moves_whole_steps_by_no_more_than_the_clip():
    """Exactly, in rational numbers: summands are rounded before they are multiplied."""
    settings = rule("banded", clip=0.05, noise_multiplier=0.3)
    made = PatternedReleases(settings, 3, 5, 9, 7)
    rng, grid = np.random.default_rng(3), made.grid
    radius = Fraction(2**grid.bits) / Fraction(0.3)
    for scale in (1e-4, 0.05, 1e6):
        steps = grid.steps(scale * rng.standard_normal((1, 7)))[0].astype(object)
        moved = [c * k for c in made._encoder.coefficients for k in steps]
        square = Fraction(made._encoder.sensitivity(3))
        assert sum(k * k for k in moved) <= radius**2 * square


@pytest.mark.parametrize("mechanism", ["tree", "banded"])
def test_a_budget_stops_the_run_before_it_is_exceeded(mechanism):
    made = encoder(mechanism, 4, 50, None, None)
    budget = epsilon(made.sensitivity(6)) * 1.0001
    history = simulate(fedavg(rule(mechanism, budget=budget)), problem(), 50)
    assert history.stopped
    assert history["epsilon"][-1] <= budget < epsilon(made.sensitivity(len(history["round"]) + 1))
    with pytest.raises(BudgetError, match="one more round would exceed"):
        simulate(fedavg(rule(mechanism, budget=0.01)), problem(), 50)


# --- runs ----------------------------------------------------------------------------------------

METHODS = {
    "feddualavg": lambda **k: FedDualAvg(client_lr=0.1, local_steps=3, **k),
    "fastfedda": lambda **k: FastFedDA(
        strong_convexity=0.1, damping=5.0, local_steps=2, output="average", **k
    ),
    "cfedda": lambda **k: CFedDA(strong_convexity=0.1, damping=5.0, local_steps=2, **k),
    "fedavg": lambda **k: FedAvg(client_lr=0.1, local_steps=3, server_lr=0.7, **k),
}


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_noise_is_no_privacy_and_next_to_none_follows_it(mechanism, name, engine):
    given = problems.l1_logistic(clients=6, rows=8, columns=4, nonzeros=2)
    psi = given.regularizer
    for participation in (Cyclic(3), *([Full()] if mechanism != "banded" else [])):
        plain = METHODS[name](regularizer=psi, participation=participation)
        found = simulate(plain, given, 7, engine=engine, evaluate_every=0).x
        for noise in (0.0, 1e-11):
            settings = rule(mechanism, clip=1e4, noise_multiplier=noise)
            made = METHODS[name](regularizer=psi, participation=participation, privacy=settings)
            same = simulate(made, given, 7, engine=engine, evaluate_every=0).x
            np.testing.assert_allclose(same, found, rtol=0, atol=1e-5 if noise else 0)


@pytest.fixture
def replayed(monkeypatch):
    """Noise of a generator that goes on over the runs of a test, or begins anew."""
    state = {"rng": np.random.default_rng(0)}
    draw = lambda grid, n: np.rint(2.0**grid.bits * state["rng"].standard_normal(n)).astype(int)  # noqa: E731
    monkeypatch.setattr(Grid, "noise", draw)
    return lambda: state.update(rng=np.random.default_rng(0))


@pytest.mark.parametrize("mechanism", ["tree", "banded"])
def test_a_resumed_run_goes_on_with_the_noise_that_it_has(mechanism, tmp_path, replayed):
    made = fedavg(rule(mechanism))
    whole = simulate(made, problem(), 10)
    replayed()
    simulate(made, problem(), 6, run_dir=tmp_path)
    again = simulate(made, problem(), 10, run_dir=tmp_path, resume=True)
    if mechanism == "tree":
        assert again.x.tobytes() == whole.x.tobytes()
        assert again["epsilon"].tolist() == whole["epsilon"].tolist()
    replayed()
    stopped = problem(raises={3: KeyboardInterrupt()})  # client 0, in round 9
    folder = tmp_path / "interrupted"
    with pytest.raises(KeyboardInterrupt):
        simulate(made, stopped, 10, run_dir=folder)
    resumed = simulate(made, problem(), 10, run_dir=folder, resume=True)
    assert resumed.x.tobytes() == whole.x.tobytes()
    # round 9 was asked for twice, and released once
    assert resumed["epsilon"].tolist() == whole["epsilon"].tolist()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rounds_released_after_the_checkpoint_are_another_line(mechanism, tmp_path):
    made, killed = fedavg(rule(mechanism)), problem(raises={2: KeyboardInterrupt()})  # in round 5
    with pytest.raises(KeyboardInterrupt):
        simulate(made, killed, 8, run_dir=tmp_path, checkpoint_every=3)
    history = simulate(made, problem(), 8, run_dir=tmp_path, resume=True, checkpoint_every=3)
    sensitivity = encoder(mechanism, 4, 8, None, None).sensitivity
    assert history["round"].tolist() == [1, 2, 3, *range(4, 9)]
    assert history["epsilon"][2] == pytest.approx(epsilon(sensitivity(3)))
    assert history["epsilon"][3] == pytest.approx(epsilon(sensitivity(4) + sensitivity(1)))
    assert history["epsilon"][-1] == pytest.approx(epsilon(sensitivity(4) + sensitivity(5)))


def test_a_lost_round_does_not_advance_and_a_lost_client_changes_nothing(tmp_path):
    error = FedConError("not today")
    made = fedavg(rule())
    one = simulate(made, problem(raises={1: error}), 2)
    assert one["replies"].tolist() == [1, 2]
    assert one["epsilon"].tolist() == pytest.approx([epsilon(1), epsilon(2)])
    strict = fedavg(rule(), min_replies=2)
    with pytest.raises(RoundError):
        simulate(strict, problem(raises=dict.fromkeys(range(2, 99), error)), 9, run_dir=tmp_path)
    history = simulate(strict, problem(), 9, run_dir=tmp_path, resume=True)
    sensitivity = encoder("tree", 4, 9, None, None).sensitivity
    assert history["epsilon"].tolist() == pytest.approx(
        [epsilon(sensitivity(t)) for t in range(1, 10)]
    )


def test_who_comes_back_too_soon_is_left_out():
    for participation in (Sample(count=3), Bernoulli(0.5)):
        asked = []
        many = problem(12)
        for client, objective in enumerate(many.objectives):
            objective.gradient = lambda x, client=client, asked=asked: asked.append(client) or x
        made = fedavg(rule("banded", min_separation=3), participation)
        history = simulate(made, many, 9, evaluate_every=1, engine="local")
        rounds = np.split(np.array(asked), np.cumsum(history["cohort"])[:-1])
        assert len(asked) == history["cohort"].sum() > 12
        for i, cohort in enumerate(rounds):
            assert not {*cohort} & {c for earlier in rounds[max(0, i - 2) : i] for c in earlier}


def test_what_was_not_counted_is_refused():
    made = PatternedReleases(rule("banded"), 3, 4, 9, 2)
    made.release(np.zeros(2, int), [0, 1], 1)
    made.release(np.zeros(2, int), [2], 2)
    with pytest.raises(RoundError, match="round 3: a client took part again within 3 rounds"):
        made.release(np.zeros(2, int), [1, 3], 3)
    made.release(np.zeros(2, int), [1, 3], 4)


def test_the_command_says_what_the_history_does(tmp_path, capsys):
    for mechanism in (*MECHANISMS, "plain"):
        folder = tmp_path / mechanism
        settings = rule("independent") if mechanism == "plain" else rule(mechanism)
        participation = Bernoulli(0.5) if mechanism == "plain" else Cyclic(4)
        history = simulate(fedavg(settings, participation), problem(), 6, run_dir=folder)
        assert main(["privacy", "spent", str(folder)]) == 0
        said = capsys.readouterr().out
        assert f"{history['epsilon'][-1]:.4g}" in said
        assert "6 rounds" in said
        assert (mechanism in said) == (mechanism in ("tree", "banded"))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", PRIVATE, ids=shown)
@pytest.mark.parametrize("mechanism", ["tree", "banded"])
def test_methods_that_add_up_no_uploads_refuse_by_name(case, mechanism):
    name, settings = case
    first, reason = suited(name, settings), strategy_class(name).needs_independent
    assert "does not declare" not in reason
    settings = {**settings, "privacy": rule(mechanism, min_separation=1), "participation": Full()}
    if name == "fedavg" and settings.get("amplification", 1) != 1:
        reason = "with an amplification its model is not the sum of the changes"
    if reason:
        with pytest.raises(ConfigError, match=r"takes no GaussianDP\(mechanism=") as found:
            simulate(strategy(name, first, **settings), first.problem(), 1)
        assert strategy_class(name).title in str(found.value)
        assert reason in str(found.value)
    elif mechanism == "tree":
        assert simulate(strategy(name, first, **settings), first.problem(), 1)["epsilon"] > 0


def test_what_else_is_refused_says_why():
    for made, said in (
        (lambda: fedavg(rule(), server_momentum=0.5), "not the sum of the changes"),
        (lambda: fedavg(rule(), server_optimizer=Momentum(0.5)), "not the sum of the changes"),
        (lambda: fedavg(rule(), Sample(count=2)), "or min_separation"),
        (lambda: fedavg(rule(), Cyclic(4, unbiased=True)), "give the participation unbiased=False"),
        (lambda: fedavg(rule("banded"), Only(1)), "or min_separation"),
        (lambda: fedavg(rule("banded"), Full()), "is independent noise"),
        (lambda: fedavg(rule(min_separation=5)), "with Cyclic.* come back after 4 rounds"),
        (lambda: fedavg(rule(min_separation=2), Full()), "come back after 1 round:"),
        (lambda: fedavg(rule("banded", bands=5)), "must be at most 4, .* got 5"),
        (lambda: fedavg(rule(restart=5)), "must be at most 4, .* got 5"),
        (lambda: fedavg(rule("band")), "mechanism.* must be one of"),
        (lambda: fedavg(rule("banded", restart=2)), r"restart\) is for mechanism='tree'"),
        (lambda: fedavg(rule("tree", bands=2)), r"bands\) is for mechanism='banded'"),
        (lambda: fedavg(rule("banded", bands=0)), "must be a whole number >= 1"),
        (lambda: fedavg(rule(quantile=0.5)), "mechanism='tree' needs one clip for all rounds"),
        (lambda: fedavg(rule("independent", min_separation=4, quantile=0.5)), "and min_separation"),
        (lambda: fedavg(rule("independent", quantile=0.5)), "of Cyclic.* needs one clip"),
        (
            lambda: Scaffold(client_lr=0.1, local_steps=1, mirror=False, participation=Cyclic(4),
                             privacy=rule("independent")),
            "clients keep state|needs",
        ),
    ):  # fmt: skip
        with pytest.raises(FedConError, match=said):
            simulate(made(), problem(), 1)


def test_patterns_are_known_of_everyone_and_of_turns():
    independent, given = rule("independent"), rule("independent", min_separation=3)
    for found, expected in (
        (separation_of(independent, Full(), 8), None),
        (separation_of(independent, Sample(count=2), 8), None),
        (separation_of(independent, Cyclic(4), 8), 4),
        (separation_of(given, Sample(count=2), 8), 3),
        (separation_of(rule(), Cyclic(4), 8), 4),
        (separation_of(rule(), Full(), 8), 1),
    ):
        assert found == expected


def test_the_page_s_block_is_an_experiment_s():
    text = """
        problem = {name = "l1_logistic", clients = 10, rows = 9, columns = 8, nonzeros = 3}
        run = {rounds = 3}
        [algorithm]
        name = "FedAvg"
        client_lr = 0.1
        local_steps = 1
    """
    block = blocks("toml", "docs/privacy.md")[1]
    found = Experiment(tomllib.loads(text + block), "file.toml", ())
    (made,) = found.strategies().values()
    assert made.privacy == rule("banded", noise_multiplier=2.0)
    assert simulate(made, found.problem(), 2)["epsilon"][-1] > 0


def test_runs_from_before_can_be_resumed():
    assert digest(GaussianDP(0.5, 1.5, 1e-4, budget=2.0)) == "f09857c8173a6988"
    assert digest(rule("tree")) != digest(rule("independent"))


def test_a_checkpoint_keeps_no_noise_that_is_still_to_come(tmp_path):
    """Two copies of a folder that go on draw other noise: neither tells of the other's."""
    assert Private.remembers
    found = [simulate(fedavg(rule()), problem(), 3).x for _ in range(2)]
    assert not np.array_equal(*found)
