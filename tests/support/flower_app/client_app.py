"""Least squares on the node's own file."""

from pathlib import Path

import misfortunes
import numpy as np

from flower_fedcon import client_app
from flower_fedcon.objectives import LeastSquares


def load_objective(context):
    misfortunes.expect(Path(str(context.node_config["data"])).parent, "node")
    with np.load(str(context.node_config["data"])) as data:
        return LeastSquares(data["A"], data["b"])


app = client_app(load_objective)
