"""Flower's own FedAvg, through its simulation: proximal gradient steps at the clients."""

import logging
import os
from pathlib import Path

import numpy as np
from benchmark_utils.problem import mean_loss, no_constraint, told
from benchopt import BaseSolver
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Solver(BaseSolver):
    """Flower's strategy, message API and virtual nodes; its time holds the start of Ray."""

    name = "FedAvg of Flower"
    requirements = ["pip::flwr[simulation]"]
    parameters = {"local_steps": [5]}

    def skip(self, problem):
        """Leave out functional constraints, which it cannot hold."""
        return no_constraint(problem)

    def set_objective(self, problem):
        """Take the arrays."""
        self.problem, self.step = problem, 1.0 / problem.smoothness

    def get_next(self, stop_val):
        """Return how many rounds the next run has: each begins a simulation."""
        return max(5, 2 * stop_val)

    def run(self, stop_val):
        """Play so many rounds."""
        self.x, self.rounds = np.zeros(self.problem.shape), stop_val
        if stop_val:
            self.x = _played(self.problem, self.step, self.local_steps, stop_val)

    def get_result(self):
        """Return the model, and what it has cost: float64 each way."""
        return told(self.problem, self.x, self.rounds, self.local_steps)


def _played(problem, step, local_steps, rounds):
    here = str(Path(__file__).parents[1])  # Ray's workers import benchmark_utils from it
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *(each for each in known if each != here)])
    logging.getLogger("flwr").setLevel(logging.ERROR)
    client, server, found = ClientApp(), ServerApp(), []

    @client.train()
    def train(message, context):
        A, y = problem.clients[int(context.node_config["partition-id"])]
        (own,) = message.content["arrays"].to_numpy_ndarrays()
        for _ in range(local_steps):
            own = problem.prox(own - step * mean_loss(problem.loss, A, y, own)[1], step)
        content = RecordDict({"arrays": ArrayRecord([own])})
        content["metrics"] = MetricRecord({"num-examples": 1})  # clients count alike
        return Message(content, reply_to=message)

    @server.main()
    def main(grid, context):
        strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=len(problem.clients),
            min_available_nodes=len(problem.clients),
        )  # fmt: skip
        start = ArrayRecord([np.zeros(problem.shape)])
        result = strategy.start(grid, start, num_rounds=rounds)
        found.extend(result.arrays.to_numpy_ndarrays())

    run_simulation(server, client, num_supernodes=len(problem.clients))
    return found[0]
