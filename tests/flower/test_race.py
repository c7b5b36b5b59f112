"""Arguments that are "auto": a race within the run, the same wherever its clients are."""

from __future__ import annotations

import contextlib
import logging
import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from hypothesis import given
from hypothesis import strategies as st
from problems import q6, q6_ball, q6_l1, q6_objectives

from flower_fedcon import Bernoulli, EarlyStopping, FederatedProblem, Sample, simulate
from flower_fedcon.core.clock import Clock
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.runner import play
from flower_fedcon.objectives import Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.problems.papers.quadratics import quadratics
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import Zero
from flower_fedcon.runs.race import Entry, Race, Runner
from flower_fedcon.strategies import (
    CompositeFL,
    DualFL,
    FedAvg,
    FedDR,
    FedDyn,
    FedFW,
    FedLin,
    FedProx,
    FedSGM,
    Scaffold,
)
from flower_fedcon.testing.open_run import OpenRun

THREE = {"participation": Sample(count=3)}
PSI = q6_l1().regularizer
CASES = {
    "fedavg": (lambda **more: FedAvg(client_lr="auto", **more), q6),
    "scaffold": (lambda **more: Scaffold(client_lr="auto", local_steps="auto", **more), q6),
    "feddyn": (lambda **more: FedDyn(proximal="auto", **more), q6),
    "feddr": (lambda **more: FedDR(PSI, step_size="auto", **more), q6_l1),
    "compositefl": (lambda **more: CompositeFL(PSI, client_lr="auto", **more), q6_l1),
    "fedfw": (lambda **more: FedFW(q6_ball().constraint, penalty="auto", **more), q6_ball),
    "momentum": (lambda **more: FedAvg(server_momentum="auto", **more), q6),
    "dualfl": (lambda **more: DualFL(momentum="auto", **more), q6),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", CASES)
ROUNDS, LONG = 70, 130  # LONG with half of the clients in a round, whose race is longer
SLOWER = {"fedfw": 3}  # times as many: its stages are longer


def same_race(one, other):
    """Two runs have raced alike, and end at the same bytes."""
    assert one.x.tobytes() == other.x.tobytes()
    assert one.race == other.race


def chosen(history):
    return [row["chosen"] for row in history.race]


def played(name, rounds=None, *, sampled=False, **more):
    make, problem = CASES[name]
    rounds = rounds or (LONG if sampled else ROUNDS) * SLOWER.get(name, 1)
    return simulate(make(**THREE if sampled else {}), problem(), rounds, seed=5, **more)


@cache
def whole(name, rounds=None, *, sampled=False):
    """Return an undisturbed run."""
    return played(name, rounds, sampled=sampled)


@EACH
@pytest.mark.parametrize("sampled", [False, True], ids=["full", "sampled"])
def test_engines_race_alike(name, sampled):
    local, stacked = whole(name, sampled=sampled), played(name, sampled=sampled, engine="stacked")
    assert stacked.x == pytest.approx(local.x, abs=1e-9)
    for row, same in zip(stacked.race, local.race, strict=True):
        exact = ("label", "rounds", "uplink_bytes", "downlink_bytes", "gradients", "chosen")
        assert [row[key] for key in exact] == [same[key] for key in exact]
    assert list(stacked["round"]) == list(local["round"])
    assert list(stacked["uplink_bytes"]) == list(local["uplink_bytes"])


@on_grid
@EACH
def test_on_nodes_it_finds_the_same_bytes(name):
    strategy = CASES[name][0](**THREE)
    grid = FakeGrid(q6_objectives())
    result = strategy.start(grid, num_rounds=LONG, seed=5, evaluate_every=1)
    here = whole(name, LONG, sampled=True)
    assert result.history.x.tobytes() == here.x.tobytes()
    assert chosen(result.history) == chosen(here)


@EACH
def test_what_is_chosen_goes_on_from_its_own_state(name):
    """Its rounds are those of a run with the chosen values, but for when it pauses."""
    history = whole(name)
    (won,) = [row for row in history.race if row["chosen"]]
    make, problem = CASES[name]
    values = {key: won[key] for key in won if key in vars(make()) and key != "participation"}
    others = sum(row["rounds"] for row in history.race if not row["chosen"])
    rounds = int(history["round"][-1]) - others
    alone = simulate(make().with_arguments(values), problem(), rounds, seed=5)
    assert history.x.tobytes() == alone.x.tobytes()


@EACH
def test_a_race_that_is_cut_off_goes_on_to_the_same_bytes(name, tmp_path):
    for cut in (2, 7):
        played(name, cut, sampled=True, run_dir=tmp_path, resume=True)
    resumed = played(name, sampled=True, run_dir=tmp_path, resume=True)
    known = whole(name, sampled=True)
    same_race(resumed, known)
    assert resumed.rows[-1] | {"seconds": 0} == known.rows[-1] | {"seconds": 0}


def test_rounds_bytes_and_gradients_are_all_counted():
    history = whole("fedavg")
    assert history["round"][0] == 1
    assert history["round"][-1] == ROUNDS
    assert np.all(np.diff(history["objective"]) <= 1e-12)  # of the best so far
    vector = history.race[0]["uplink_bytes"] / history.race[0]["rounds"]
    assert history["uplink_bytes"][-1] == vector * ROUNDS
    assert history["gradients"][-1] == 6 * ROUNDS
    assert [row["rounds"] for row in history.race] == [2, 2, 1, 0, 0]
    assert len([row for row in history.race if row["chosen"]]) == 1


def test_values_that_diverge_are_out(caplog):
    scaled = FederatedProblem([type(f)(1e40 * f.Q, 1e40 * f.b) for f in q6_objectives()])
    with caplog.at_level(logging.INFO):
        history = simulate(FedAvg(client_lr="auto"), scaled, 80)
    assert history["objective"][-1] - scaled.optimum.value < 1e-6 * abs(scaled.optimum.value)
    assert "continues, at" in caplog.text


def test_a_level_that_is_reached_in_the_race_ends_the_run():
    problem = q6()
    problem.optimum  # noqa: B018  (then residuals are recorded)
    history = simulate(FedAvg(client_lr="auto"), problem, ROUNDS, callbacks=[EarlyStopping(0.1)])
    assert history.stopped
    assert history["round"][-1] < 57
    assert history["residual"][-1] <= 0.1


def test_a_single_round_is_the_rules():
    assert played("fedavg", 1).x.tobytes() == simulate(FedAvg(), q6(), 1, seed=5).x.tobytes()


def test_who_does_not_move_in_a_first_round_stays_in():
    """FedLin's first round finds gradients alone."""
    history = simulate(FedLin(client_lr="auto"), q6(), 40)
    assert max(row["rounds"] for row in history.race) > 1
    assert len({row["score"] for row in history.race}) == len(history.race)


def test_where_the_rule_is_alone_it_goes_on():
    alike = quadratics(clients=4, columns=6, condition=10.0)
    history = simulate(FedDR(Zero(), step_size="auto"), alike, 9)
    assert [(row["rounds"], row["chosen"]) for row in history.race] == [(0, True)]
    assert history.x.tobytes() == simulate(FedDR(Zero()), alike, 9).x.tobytes()


def test_a_choice_that_grows_is_given_up_once_and_for_all(caplog, tmp_path):
    """Four times 1/L is ahead for two rounds, then grows: the rule takes over, resumed or not."""
    problem = quadratics(clients=4, columns=24, condition=100.0, directions="aligned", seed=1)
    with caplog.at_level(logging.WARNING):
        whole = simulate(FedAvg(client_lr="auto"), problem, 200)
    assert caplog.text.count("is dropped: the run starts again from x0 with FedAvg") == 1
    others = [row["why"] for row in whole.race if row["label"] != "client_lr=0.04"]
    assert "given up" not in others
    assert len(others) == len(whole.race) - 1
    assert whole["objective"][-1] - problem.optimum.value < 1e-2 * -problem.optimum.value
    for rounds in (9, 40, 200):
        resumed = simulate(FedAvg(client_lr="auto"), problem, rounds, run_dir=tmp_path, resume=True)
    same_race(resumed, whole)


def test_certificates_decide_where_there_are_any():
    history = played("fedfw", certificates=True)
    assert all(row["score"] != row["objective"] for row in history.race if row["rounds"])
    assert "fw_gap" in history


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_race_goes_on_with_scores_of_one_kind(cut, certain, tmp_path):
    """What is decided is decided: then certificates may come and go."""

    def go(rounds, certificates):
        resumed = {"run_dir": tmp_path, "resume": True}
        return played("compositefl", rounds, certificates=certificates, **resumed)

    go(cut, certain)
    kinds = "certificates", "objectives"
    then, now = kinds if certain else kinds[::-1]
    with pytest.raises(ConfigError, match=f"compares {then}, .* go on with {now}. Set cert"):
        go(ROUNDS, not certain)
    whole = played("compositefl", certificates=certain)
    assert go(ROUNDS, certain).race == whole.race
    assert "kkt" in go(ROUNDS + 1, certificates=True)


ALLOWED = {**THREE, "allow_changes": ["participation"]}
RACING = Scaffold(client_lr="auto")
OTHER = "algorithm was 'scaffold'"


@pytest.mark.parametrize(
    ("before", "after", "more", "said"),
    [
        ("auto", Scaffold(), {}, "strategy was a race, is one method"),
        ("auto", "auto", THREE, r"participation was Full\(\), is Sample"),
        ("auto", "auto", ALLOWED, r"rivals was .*'fedlin'.*, is"),
        (RACING, FedDyn(), {}, OTHER),
        (RACING, FedDyn(proximal="auto"), {}, OTHER),
        (RACING, FedAvg(), {}, OTHER),
        (RACING, "auto", {}, "strategy was one method, is a race"),
    ],
)
def test_another_run_is_named_at_resume(before, after, more, said, tmp_path):
    """By what the user has changed, and not by the states that a file holds."""
    simulate(before, q6(), 9 if before == "auto" else 3, run_dir=tmp_path)
    with pytest.raises(FedConError, match=f"cannot resume .*: {said}"):
        simulate(after, q6(), 9, run_dir=tmp_path, resume=True, **more)


@pytest.mark.parametrize("sampled", [False, True], ids=["full", "sampled"])
@pytest.mark.parametrize("name", ["methods", "fedavg", "feddyn", "scaffold"])
def test_a_race_that_is_not_decided_says_how_many_rounds_it_takes(name, sampled, caplog):
    """Before, such a run ended with nothing said, even above the objective at the start."""
    more = THREE if sampled else {}
    strategy = "auto" if name == "methods" else CASES[name][0](**more)
    options = more if name == "methods" else {}

    def said(rounds, **callbacks):
        caplog.clear()
        history = simulate(strategy, q6(), rounds, **options, **callbacks)
        assert bool(history.race) != ("was not decided" in caplog.text) or history.stopped
        return re.findall(r"not decided: it takes up to about (\d+) rounds", caplog.text)

    (needed,) = said(1)
    assert said(int(needed)) == []
    assert len(said(2)) == 1
    assert said(int(needed), callbacks=[lambda record: True]) == []


def test_methods_left_out_where_convexity_is_unknown(caplog):
    """Objectives that state no mu may well be convex."""

    class Own:
        def __init__(self, f):
            self.value, self.gradient, self.shape = f.value, f.gradient, f.shape

    clients = [Own(f) for f in q6_objectives()]
    caplog.set_level(logging.INFO)
    simulate("auto", FederatedProblem(clients), 1)
    assert "SDANE, which is stated for convex objectives, and these state no strong" in caplog.text
    assert "these are not" not in caplog.text
    for client in clients:
        client.strong_convexity = 0.0
    caplog.clear()
    simulate("auto", FederatedProblem(clients), 1)
    assert "stated for convex" not in caplog.text


def test_a_bias_is_declared_and_the_card_says_the_same():
    for kind in algorithms().values():
        said = kind.card().participation
        everyone = re.sub(r"Under sampling[^.]*\.", "", said)
        assert bool(kind.bias) == bool(re.search("biased|floor", everyone)), kind
        if kind.sampling_bias:
            assert re.search("Under sampling[^.]*floor", said), kind


def test_a_clock_counts_the_race():
    clock = Clock(compute=0.1, latency=0.5)
    alone = simulate(FedAvg(), q6(), ROUNDS, seed=5, clock=clock)
    raced = played("fedavg", clock=clock)
    assert raced["simulated_seconds"][-1] == pytest.approx(alone["simulated_seconds"][-1])


PRIVATE = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FedAvg(server_lr="auto"), "server_lr must be a number, got 'auto'"),
        (lambda: FedAvg(client_lr="best"), "client_lr must be a number > 0 or a schedule"),
        (lambda: FedProx(proximal="Auto"), "proximal must be a number, got 'Auto'"),
        (lambda: FedDR(PSI, relaxation="auto"), "relaxation must be a number"),
        (lambda: FedSGM(client_lr="auto"), 'FedSGM takes no client_lr="auto"'),
        (lambda: OpenRun(FedAvg(client_lr="auto"), q6()),
         'client_lr="auto" is chosen within a run'),
        (lambda: simulate(FedAvg(client_lr="auto", privacy=PRIVATE), q6(), 5),
         r'client_lr="auto" compares objectives.*privacy=.*the choice would reveal'),
        (lambda: simulate("best", q6(), 5), r"strategy must be one of .* got 'best'"),
        (lambda: simulate(FedAvg(), q6(), 5, **THREE), r'participation=.* is for strategy="auto"'),
    ],
)  # fmt: skip
def test_races_that_are_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


# --- values in a line -------------------------------------------------------------------------


def in_line(scores, first=2):
    """Play a race of values whose scores are these, and do not change; return it."""
    runners = []
    for i, _ in enumerate(scores):
        server = SimpleNamespace(round=0, setup=SimpleNamespace(rate=1.0))
        runners.append(Runner(Entry(str(i), {"client_lr": float(i)}, None), server))
    race = Race(runners, first)
    while (runner := race.next()) is not None:
        assert runner.server.round < race.goal
        runner.server.round, runner.score = race.goal, scores[runners.index(runner)]
        runner.out = "diverges" if runner.score == np.inf else ""
    return race


ORDERED = st.lists(st.floats(0, 100), min_size=0, max_size=5, unique=True)


@given(ORDERED, ORDERED, st.integers(0, 2), st.integers(0, 2))
def test_of_values_in_a_line_the_best_is_found_by_its_neighbours(left, right, low, high):
    """Scores that fall to one place and rise beyond it, with values that diverge at both ends."""
    falling, rising = sorted(left, reverse=True), sorted(set(right) - set(left))
    scores = [np.inf] * low + falling + [-1.0] + rising + [np.inf] * high
    race = in_line(scores)
    best = low + len(falling)
    assert race.leader is race.runners[best]
    played = [runner for runner in race.runners if runner.server.round]
    assert len(played) <= max(3, abs(best - len(scores) // 2) + 3 + low + high)
    longer = [i for i, runner in enumerate(race.runners) if runner.server.round > 2]
    if len(falling) + len(rising) == 0:
        assert longer == []
    else:
        beside = {best - 1, best + 1} & {*range(low, low + len(falling) + len(rising) + 1)}
        assert longer == sorted([best, min(beside, key=lambda i: scores[i])])


def test_values_that_are_equally_good_are_all_tried():
    race = in_line([3.0] * 6)
    assert [runner.server.round for runner in race.runners] == [4] * 6


def test_values_far_from_the_best_are_not_tried():
    race = in_line([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 6.0, 7.0, 8.0])
    assert [runner.server.round for runner in race.runners] == [0, 0, 0, 2, 4, 4, 2, 0, 0]
    said = [runner.out for runner in race.runners]
    assert said[2:6] == ["not tried", "behind after 2 rounds", "behind after 4 rounds", ""]


class Killed(BaseException):
    """What no program catches."""


MANY = {"rounds": LONG, "kills": (16, 18, 30, 20, 130)}
KILLS = [
    pytest.param("scaffold", 24, (24, 22), id="scaffold"),
    *(pytest.param(name, *MANY.values(), id=f"{name}-long", marks=pytest.mark.nightly)
      for name in ("scaffold", "feddyn", "feddr")),
]  # fmt: skip


@on_grid
@pytest.mark.parametrize(("name", "rounds", "kills"), KILLS)
def test_a_server_that_is_killed_in_the_race_ends_at_the_same_bytes(name, rounds, kills, tmp_path):
    """Nodes keep what they hold of each that takes part, and never one's for another."""

    class Dying(FakeGrid):
        left = 0

        def replies_to(self, message):
            self.left -= 1
            if not self.left:
                raise Killed
            return super().replies_to(message)

    def play(left):
        grid = Dying(q6_objectives())
        grid.left = left
        for node in grid.nodes.values():
            node.node_config["state-dir"] = str(tmp_path / "state")
        return CASES[name][0](**THREE).start(
            grid, num_rounds=rounds, seed=5, run_dir=tmp_path / "run", resume=True,
            checkpoint_every=6, num_clients=6,
        ).history  # fmt: skip

    for left in kills:
        with pytest.raises(Killed):
            play(left)
    history, known = play(0), whole(name, rounds, sampled=True)
    assert history.x.tobytes() == known.x.tobytes()
    assert chosen(history) == chosen(known)


@EACH
def test_a_process_that_is_killed_in_the_race_ends_at_the_same_bytes(name, tmp_path):
    for dies_at, every in ((1, 4), (2, 1), (4, 4), (2, 1), (30, 4)):
        seen = []

        def look(row, seen=seen, dies_at=dies_at):
            seen.append(row)
            if len(seen) == dies_at:
                raise Killed

        with contextlib.suppress(Killed):
            played(name, run_dir=tmp_path, resume=True, checkpoint_every=every, callbacks=[look])
    resumed = played(name, run_dir=tmp_path, resume=True)
    same_race(resumed, whole(name))
    for column in ("cohort", "replies", "uplink_bytes", "objective"):
        assert list(resumed[column]) == list(whole(name)[column]), column


# --- methods ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [None, Sample(count=3)], ids=["full", "sampled"])
@pytest.mark.parametrize("problem", [q6, q6_l1, q6_ball])
def test_methods_that_fit_race(problem, sampled, caplog):
    with caplog.at_level(logging.INFO):
        found = {
            engine: simulate("auto", problem(), 240, engine=engine, participation=sampled, seed=2)
            for engine in ("local", "stacked")
        }
    history = found["local"]
    assert history["objective"][-1] - problem().optimum.value < (1e-9 if sampled is None else 0.05)
    assert found["stacked"].x == pytest.approx(history.x, abs=1e-9)
    (won,) = [row["label"] for row in history.race if row["chosen"]]
    assert f"race: {won} continues" in caplog.text
    assert "auto: without " in caplog.text
    assert history["round"][-1] == 240


class Untold(Quadratic):
    """One that does not know its smoothness."""

    smoothness = None


@pytest.mark.parametrize("kind", [Quadratic, Untold])
@pytest.mark.parametrize("rule", [Sample(count=1), Bernoulli(0.4)], ids=["one", "bernoulli"])
def test_methods_that_take_no_such_cohorts_are_left_out(kind, rule):
    clients = [kind(f.Q, f.b) for f in q6_objectives()]
    for psi in (None, PSI):
        problem = FederatedProblem(clients, regularizer=psi, x0=np.zeros(8))
        history = simulate("auto", problem, 150, participation=rule)
        assert history["objective"][-1] < problem.objective(problem.start)


def test_a_race_of_methods_is_resumed_to_the_same_bytes(tmp_path):
    undisturbed = simulate("auto", q6_l1(), 120)
    for rounds in (5, 50, 90):
        simulate("auto", q6_l1(), rounds, run_dir=tmp_path, resume=True)
    same_race(simulate("auto", q6_l1(), 120, run_dir=tmp_path, resume=True), undisturbed)


class Counted(Quadratic):
    """One that counts how often it is asked for its smoothness."""

    asked = 0

    @property
    def smoothness(self):
        Counted.asked += 1
        return super().smoothness


def test_a_race_of_methods_describes_each_client_once():
    Counted.asked = 0
    simulate(FedAvg(), FederatedProblem([Counted(f.Q, f.b) for f in q6_objectives()]), 0)
    once, Counted.asked = Counted.asked, 0
    simulate("auto", FederatedProblem([Counted(f.Q, f.b) for f in q6_objectives()]), 0)
    assert Counted.asked == once


def test_the_configuration_of_a_race_of_methods_makes_it_again(tmp_path):
    problem = quadratics(clients=4, columns=6, l1=0.1)
    problem.optimum  # noqa: B018  (a file's run records residuals)
    first = simulate("auto", problem, 40, seed=3, run_dir=tmp_path, **THREE)
    experiment = Experiment.load(tmp_path / "config.toml")
    assert experiment.races()
    same_race(play(experiment), first)
