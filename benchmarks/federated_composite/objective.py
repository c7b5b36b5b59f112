"""Federated composite optimisation: rounds, bytes and gradients to a given accuracy."""

import numpy as np
from benchmark_utils.problem import STRUCTURES, Problem
from benchopt import BaseObjective
from benchopt.stopping_criterion import SufficientProgressCriterion


class Objective(BaseObjective):
    """The mean of the clients' losses with a regularizer, over a set, or under a constraint."""

    name = "Federated composite optimisation"
    min_benchopt_version = "1.10"
    requirements = ["numpy", "scipy"]
    sampling_strategy = "iteration"  # rounds; each point is a run of its own
    stopping_criterion = SufficientProgressCriterion(patience=6, eps=1e-10)
    test_dataset_name = "simulated"
    test_config = {"dataset": {"clients": 3, "rows": 12, "features": 5}}

    parameters = {
        "structure, level": [("l1", 0.1), ("nuclear", 0.1), ("l1_ball", 0.5), ("constraint", 0.1)]
    }

    def set_data(self, clients, loss):
        """Take the clients' rows, and find the optimum."""
        self.problem = Problem(clients, loss, self.structure, self.level)

    def skip(self, clients, loss):
        """Leave out what a data set does not define."""
        wanted = {
            "l1": ("squared", "logistic"),
            "nuclear": ("multinomial",),
            "l1_ball": ("squared",),
            "constraint": ("logistic",),
        }
        if self.structure not in STRUCTURES:
            return True, f"structure is one of {', '.join(STRUCTURES)}, not {self.structure}"
        if loss not in wanted[self.structure]:
            return True, f"{self.structure} is of {' or '.join(wanted[self.structure])} losses"
        if self.structure == "constraint" and any(len(set(y.tolist())) < 2 for _, y in clients):
            return True, "a client has no rows of one class"
        return False, None

    def get_objective(self):
        """Return what solvers get."""
        return {"problem": self.problem}

    def evaluate_result(self, x, rounds, uplink, downlink, gradients):
        """Return the accuracy, and what it has cost.

        "value", by which runs end, is the suboptimality or the violation, whichever is larger.
        """
        value, violation = self.problem.value(np.asarray(x, float).reshape(self.problem.shape))
        excess = value - self.problem.optimum
        return {
            "value": max(excess, violation, 0.0),
            "suboptimality": excess,
            "violation": violation,
            "nonzeros": int(np.count_nonzero(x)),
            "rounds": rounds,
            "megabytes": (uplink + downlink) / 1e6,
            "uplink_megabytes": uplink / 1e6,
            "gradients": gradients,
        }

    def get_one_result(self):
        """Return a result of the right form."""
        zero = np.zeros(self.problem.shape)
        return {"x": zero, "rounds": 0, "uplink": 0, "downlink": 0, "gradients": 0}
