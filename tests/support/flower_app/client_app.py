"""Least squares on the node's own file."""

import time
from pathlib import Path

import misfortunes
import numpy as np

from flower_fedcon import client_app
from flower_fedcon.objectives import LeastSquares


class Slow(LeastSquares):
    """Takes its time for a gradient."""

    seconds = 0.0

    def gradient(self, x):
        time.sleep(self.seconds)
        return super().gradient(x)


def load_objective(context):
    misfortunes.expect(Path(str(context.node_config["data"])).parent, "node")
    hang = Path(str(context.node_config.get("hang", "no such file")))
    while hang.exists():  # a test has this node answer no more
        hang.with_name("hanging").touch()
        time.sleep(0.1)
    with np.load(str(context.node_config["data"])) as data:
        if "seconds" not in context.node_config:
            return LeastSquares(data["A"], data["b"])
        objective = Slow(data["A"], data["b"])
    objective.seconds = float(context.node_config["seconds"])
    return objective


app = client_app(load_objective)
