"""The client of `flwr run sims`: the node's own file, or its part of the experiment's data."""

from functools import cache
from pathlib import Path

from flwr.app import Context

from flower_fedcon import FederatedProblem, Policy, client_app
from flower_fedcon.objectives import Objective
from flower_fedcon.problems.files import load_file


def load_objective(context: Context) -> Objective:
    """Return this node's objective.

    A node with `data="file.npz"` in its configuration reads that file (and `num-classes`, for
    softmax regression); another takes its partition of the experiment's data.
    """
    node = context.node_config
    if "data" in node:
        classes = node.get("num-classes")
        return load_file(str(node["data"]), num_classes=None if classes is None else int(classes))
    clients = problem(str(context.run_config["experiment"])).objectives
    return clients[int(node["partition-id"])]


@cache
def problem(experiment: str) -> FederatedProblem:
    """Return the experiment's problem."""
    from flower_fedcon.lab.experiments.experiment import (
        Experiment,  # heavy, and not needed with own files
    )

    return Experiment.load(Path(__file__).parent / experiment).problem()


def policy(context: Context) -> Policy | None:
    """Return what a server may ask: of the experiment's data, which it has itself, anything."""
    return None if "data" in context.node_config else Policy.open()


app = client_app(load_objective, policy=policy)
