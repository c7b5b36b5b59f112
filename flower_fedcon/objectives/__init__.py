"""Smooth objectives: a client's loss, its gradients and its constants.

Each objective has `value(x)`, `gradient(x)`, `stochastic_gradient(x, rng, batch_size)`,
`smoothness` (L) and `strong_convexity` (mu). Any object with `value` and `gradient` can take its
place. The modules `packed` and `stacked` are for the engines: they turn an objective of a list of
layers into one of a vector, and the objectives of many clients into one in arrays.
"""

from flower_fedcon.objectives.base import Objective, Scaled, SmoothFunction
from flower_fedcon.objectives.bounds import GroupLossBounds, LossBound
from flower_fedcon.objectives.completion import MatrixCompletion
from flower_fedcon.objectives.losses import (
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
)
from flower_fedcon.objectives.many import ManyClients
from flower_fedcon.objectives.network import TanhNetwork
from flower_fedcon.objectives.neyman_pearson import NeymanPearson
from flower_fedcon.objectives.private import PrivateObjective
from flower_fedcon.objectives.quadratic import Quadratic
from flower_fedcon.objectives.quadratic_assignment import QuadraticAssignment
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.objectives.softmax import SoftmaxRegression
from flower_fedcon.objectives.survival import CoxRegression

__all__ = [
    "CoxRegression",
    "GroupLossBounds",
    "HuberRegression",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "LossBound",
    "ManyClients",
    "MatrixCompletion",
    "NeymanPearson",
    "Objective",
    "PoissonRegression",
    "PrivateObjective",
    "Quadratic",
    "QuadraticAssignment",
    "Scaled",
    "SmoothFunction",
    "SoftmaxRegression",
    "TanhNetwork",
]
