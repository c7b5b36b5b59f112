"""FedAvg written by hand: proximal gradient steps at the clients, and the mean of their models."""

import numpy as np
from benchmark_utils.problem import mean_loss, no_constraint, told
from benchopt import BaseSolver


class Solver(BaseSolver):
    """The yardstick: nothing but arrays, steps of 1 / L over all rows."""

    name = "FedAvg by hand"
    requirements = ["numpy"]
    parameters = {"local_steps": [1, 5]}

    def skip(self, problem):
        """Leave out functional constraints, which it cannot hold."""
        return no_constraint(problem)

    def set_objective(self, problem):
        """Take the arrays."""
        self.problem, self.step = problem, 1.0 / problem.smoothness

    def run(self, stop_val):
        """Play so many rounds."""
        problem, step = self.problem, self.step
        x = np.zeros(problem.shape)
        for _ in range(stop_val):
            total = np.zeros_like(x)
            for A, y in problem.clients:
                own = x
                for _ in range(self.local_steps):
                    own = problem.prox(own - step * mean_loss(problem.loss, A, y, own)[1], step)
                total += own
            x = total / len(problem.clients)
        self.x, self.rounds = x, stop_val

    def get_result(self):
        """Return the model, and what it has cost: float64 each way."""
        return told(self.problem, self.x, self.rounds, self.local_steps)
