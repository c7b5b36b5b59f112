"""The client of `flwr run sims`: the node's own file, or its part of the experiment's data."""

from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import Context

from flower_fedcon import FederatedProblem, client_app
from flower_fedcon.objectives import LeastSquares, Objective, SoftmaxRegression


def load_objective(context: Context) -> Objective:
    """Return this node's objective.

    A node with `data="file.npz"` in its configuration reads that file: `A` and integer labels `y`
    in 0, ..., 9 (softmax regression), or `A` and `b` (least squares).
    """
    path = context.node_config.get("data")
    if path is None:
        clients = problem(str(context.run_config["experiment"])).objectives
        return clients[int(context.node_config["partition-id"])]
    with np.load(str(path)) as data:
        if "b" in data:
            return LeastSquares(data["A"], data["b"])
        return SoftmaxRegression(data["A"], data["y"], num_classes=10)


@cache
def problem(experiment: str) -> FederatedProblem:
    """Return the experiment's problem."""
    from flower_fedcon.experiments import Experiment  # heavy, and not needed with own files

    return Experiment.load(Path(__file__).parent / experiment).problem()


app = client_app(load_objective)
