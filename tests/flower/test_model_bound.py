"""Uploads that would carry the model beyond what nodes accept, and refusals that all repeat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contract import EACH, FIRST, strategy
from fake_grid import FakeGrid, on_grid, with_config
from flwr.app import ConfigRecord

from flower_fedcon import FederatedProblem, Policy, client_app, simulate
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.errors import DivergedError, RoundError
from flower_fedcon.flower import messages
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedAvg, Scaffold

pytestmark = on_grid

MOST = 1e12
AVERAGING = {"client_lr": 0.5, "local_steps": 1}


def bounded(most=MOST):
    """Return what makes an app of nodes whose policy has only this limit."""
    return lambda load: client_app(load, policy=replace(Policy.open(), max_model=most))


def lying(factor, clients=(1,), rounds=(2,)):
    """Return what makes each array and number of some uploads so large, once for each round."""

    def alter(message, reply):
        asked = message.content["fitins.config"]
        place = (asked["round"], asked["client"])
        if asked["client"] in clients and asked["round"] in rounds and place not in done:
            done.add(place)
            content, config = reply.content, dict(reply.content["fitres.metrics"])
            sent = content["fitres.parameters"].to_numpy_ndarrays()
            content["fitres.parameters"] = messages.to_record(
                [np.full_like(a, factor) if a.dtype.kind == "f" else a for a in sent]
            )
            numbers = {k: factor for k in config if k.startswith("scalar.")}
            content["fitres.metrics"] = ConfigRecord({**config, **numbers})
        return [reply]

    done = set()
    return alter


def points(*at):
    return [Quadratic(np.eye(2), np.full(2, b)) for b in at]


THREE, FIVE = (1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0, 5.0)


def played(grid, made=None, rounds=3, **options):
    """Return the history of a run without evaluations, by default of FedAvg."""
    made = made or FedAvg(**AVERAGING)
    return made.start(grid, num_rounds=rounds, evaluate_every=0, **options).history


HARMLESS = {
    "fedfw": "a vertex is sent as its place",
    "fedfwplus": "a vertex is sent as its place",
    "fednewton": "the step of a gradient and a Hessian of 1e30 is short",
}


@EACH
def test_one_upload_of_1e30_changes_no_method(name, caplog):
    """It is dropped, named and asked again, whatever the method makes of its uploads."""
    case = FIRST[name]
    problem = case.problem()
    made = strategy(name, case)
    made.min_replies = problem.num_clients
    grid = FakeGrid(problem.objectives, make=bounded(), alter=lying(1e30))
    history = played(grid, made, 4, initial_arrays=problem.x0)
    assert np.abs(history.x).max() < 1e6
    if name in HARMLESS:
        assert history["dropped"][-1] == 0
        return
    honest = FakeGrid(problem.objectives, make=bounded())
    expected = played(honest, made, 4, initial_arrays=problem.x0)
    assert history["dropped"][-1] == 1, caplog.text
    assert "dropped the reply of client 1" in caplog.text
    assert history.x.tobytes() == expected.x.tobytes()


@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
@pytest.mark.parametrize("liars", [(1,), (0, 3), (1, 2, 3)])
def test_as_few_are_dropped_as_bring_the_model_back(kind, liars, caplog):
    """The others go on without them, as if they had not replied."""
    grid = FakeGrid(points(*FIVE), make=bounded(), alter=lying(-1e30, liars, range(1, 9)))
    history = played(grid, kind(**AVERAGING), 8)
    assert history["dropped"][-1] >= len(liars)
    alone = [b for j, b in enumerate(FIVE) if j not in liars]
    if kind is FedAvg:
        assert history.x == pytest.approx(np.mean(alone), rel=0.01)
    named = ", ".join(map(str, liars))
    assert f"dropped the repl{'y' if len(liars) == 1 else 'ies'} of client" in caplog.text
    assert f"{named}: it would carry the model beyond 1e+12, the largest entry" in caplog.text


def test_an_upload_counts_with_what_it_does_to_the_model():
    """4e12 from one of five brings it to 8e11; the same once more would bring it beyond 1e12."""
    lie = lambda: lying(4e12, (1,), (1, 2))  # noqa: E731
    once, twice = (
        played(FakeGrid(points(*FIVE), make=bounded(), alter=lie()), rounds=rounds)
        for rounds in (1, 2)
    )
    assert (once["dropped"][-1], once.x.max()) == (0, pytest.approx(8e11))
    assert twice["dropped"][-1] == 1
    assert np.abs(twice.x).max() < once.x.max()


def test_a_robust_rule_needs_no_help():
    grid = FakeGrid(points(*THREE), make=bounded(), alter=lying(1e30, (1,), (1, 2, 3)))
    history = played(grid, FedAvg(**AVERAGING, aggregation=CoordinateMedian()))
    assert history["dropped"][-1] == 0
    assert np.abs(history.x).max() < 4


class Grids(FakeGrid):
    """Nodes with a limit of their own each."""

    def __init__(self, objectives, limits, **more):
        super().__init__(objectives, make=client_app, **more)
        for node, limit in zip(self.nodes.values(), limits, strict=True):
            if limit is not None:
                node.node_config["policy.max-model"] = limit


@pytest.mark.parametrize(
    ("limits", "most", "size"),
    [
        ((None, None, None), 1e12, 1e30),
        ((1e18, 1e18, 1e18), 1e18, 1e30),
        ((1e18, None, 1e18), 1e18, 1e30),
        ((1e18, None, None), 1e12, 1e30),
        ((1e-300, None, None), 1e12, 1e30),
        ((0.01,) * 3, 0.01, 0.05),
    ],
)
def test_the_bound_is_what_most_nodes_state(limits, most, size, caplog):
    """Neither a node that accepts all nor one that accepts nothing sets it; it may be small."""
    made = FedAvg(**AVERAGING, min_replies=2)
    grid = Grids(points(0.0, 0.0, 0.0), limits, alter=lying(size, (2,), (1,)))
    played(grid, made, 1, max_retries=1)
    assert f"beyond {most:g}, the largest entry" in caplog.text


@pytest.mark.parametrize(
    ("limits", "most"), [((1e-300, None), 1e12), ((1e-300, 1e-300, None, None), 1e12)]
)
def test_of_an_even_number_half_cannot_end_the_run(limits, most):
    grid = Grids(points(*map(float, range(len(limits)))), limits)
    history = played(grid, FedAvg(**AVERAGING, min_replies=1), 2, max_retries=0)
    assert 0 < np.abs(history.x).max() < MOST


def test_a_client_whose_steps_are_too_long_is_named_at_the_end(caplog):
    """Without it the model is another problem's."""
    stiff = [Quadratic(np.eye(1) * L, np.array([3.0 * L])) for L in (1.0, 1.0, 100.0)]
    made = FedAvg(client_lr=0.5, local_steps=10, min_replies=2)
    played(FakeGrid(stiff, make=client_app), made, max_retries=0)
    assert "2 uploads of client 2 are not in the model" in caplog.text


def test_models_in_large_units_need_a_larger_limit_on_nodes_alone():
    far = points(1e15, 3e15)
    here = simulate(FedAvg(**AVERAGING), FederatedProblem(far), 3).x
    there = played(Grids(far, (1e17, 1e17)))
    assert there.x.tobytes() == here.tobytes()
    assert there["dropped"][-1] == 0
    said = r"after 2 attempts \(clients 0, 1: it would carry the model beyond 1e\+12"
    with pytest.raises(DivergedError, match=said):
        FedAvg(**AVERAGING).start(Grids(far, (None, None)), num_rounds=3)


def test_a_run_that_diverges_ends_within_seconds(caplog):
    """Nodes refuse no model then; steps that come from an estimate would be shortened instead."""
    said = r"0 usable replies of 3.*after 2 attempts \(clients 0, 1, 2: it would carry"
    with pytest.raises(DivergedError, match=said):
        played(Grids(points(*THREE), (None,) * 3), FedAvg(client_lr=50.0, local_steps=2), 30)
    assert "policy.max-model = " not in caplog.text


def test_a_refusal_that_all_repeat_ends_the_run_at_the_second_attempt():
    """Their own words are in the error."""
    grid = Grids(points(*THREE), (None,) * 3)
    said = (
        r"^round 1: 0 usable replies of 3, and 1 are needed, after 2 attempts \(clients 0, 1, 2: "
        r"refused: this node's policy has policy\.max-model = 1e\+12, not entries of 1e\+13"
    )
    with pytest.raises(RoundError, match=said):
        played(grid, initial_arrays=np.full(2, 1e13))
    asked = [m.content["fitins.config"] for m in grid.pushed if "fitins.config" in m.content]
    assert sum(config["action"] == "train" for config in asked) == 6


def test_other_refusals_are_asked_again():
    """Of some, or in other words: a node's owner may still change them."""
    said = "refused: this node's policy has policy.min-rows = {}00, and it has 1"

    def alter(message, reply):
        client = message.content["fitins.config"]["client"]
        return with_config(error=said.format(client + 1))(message, reply)

    grid = FakeGrid(points(1.0, 2.0), make=bounded(), alter=alter)
    with pytest.raises(RoundError, match="after 4 attempts"):
        FedAvg(**AVERAGING).start(grid, num_rounds=1, max_retries=3)
