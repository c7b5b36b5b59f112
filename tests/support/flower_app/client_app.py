"""Least squares on the node's own file."""

import numpy as np

from flower_fedcon import client_app
from flower_fedcon.objectives import LeastSquares


def load_objective(context):
    with np.load(str(context.node_config["data"])) as data:
        return LeastSquares(data["A"], data["b"])


app = client_app(load_objective)
