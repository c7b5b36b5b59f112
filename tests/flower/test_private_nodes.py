"""Private rounds on nodes: what they send is clipped before it leaves."""

from __future__ import annotations

import numpy as np
from fake_grid import FakeGrid, on_grid

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.strategies import FedAvg, FedProx

CLIP = GaussianDP(clip=0.5, noise_multiplier=0.0, target_delta=1e-5)


def fedavg():
    return FedAvg(client_lr=0.5, local_steps=1, privacy=CLIP)


def fedprox():
    return FedProx(proximal=1.0, privacy=CLIP)


@on_grid
def test_nodes_clip_what_they_send_and_find_the_same_iterates():
    for made in (fedavg, fedprox):
        objectives = [Quadratic(np.eye(2), np.full(2, b)) for b in (6.0, 8.0, 0.2)]
        problem, sent = FederatedProblem(objectives), []

        def watch(message, reply, sent=sent):
            sent.append((message, reply))
            return [reply]

        grid = FakeGrid(problem.objectives, alter=watch)
        found = made().start(grid, num_rounds=3, seed=0).history
        direct = simulate(made(), problem, 3)
        assert np.array_equal(found.x, direct.x)
        assert len(sent) == 9
        for message, reply in sent:
            (down, *_), (up,) = ([a.numpy() for a in m.content[kind].values()] for m, kind in (
                (message, "fitins.parameters"), (reply, "fitres.parameters")))  # fmt: skip
            moved = up - down if "v" in reply.content["fitres.metrics"]["names"] else up
            assert np.linalg.norm(moved) <= 0.5
            assert not any("work." in key for key in reply.content["fitres.metrics"])
