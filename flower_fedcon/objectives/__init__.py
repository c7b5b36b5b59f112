"""Smooth objectives: a client's loss, its gradients and its constants.

Each objective has `value(x)`, `gradient(x)`, `stochastic_gradient(x, rng, batch_size)`,
`smoothness` (L) and `strong_convexity` (mu). Any object with `value` and `gradient` can replace it.
The modules `packed` and `cohorts` are for the engines: they turn an objective of a list of layers
into one of a vector, and the objectives of many clients into one in arrays.
"""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.objectives.base import Objective as Objective
from flower_fedcon.objectives.base import Scaled as Scaled
from flower_fedcon.objectives.base import SmoothFunction as SmoothFunction
from flower_fedcon.objectives.bounds import GroupLossBounds as GroupLossBounds
from flower_fedcon.objectives.bounds import LossBound as LossBound
from flower_fedcon.objectives.completion import MatrixCompletion as MatrixCompletion
from flower_fedcon.objectives.dispersion import WithDispersion as WithDispersion
from flower_fedcon.objectives.losses import GammaRegression as GammaRegression
from flower_fedcon.objectives.losses import HuberRegression as HuberRegression
from flower_fedcon.objectives.losses import LeastSquares as LeastSquares
from flower_fedcon.objectives.losses import LogisticRegression as LogisticRegression
from flower_fedcon.objectives.losses import (
    NegativeBinomialRegression as NegativeBinomialRegression,
)
from flower_fedcon.objectives.losses import PoissonRegression as PoissonRegression
from flower_fedcon.objectives.many import ManyClients as ManyClients
from flower_fedcon.objectives.network import TanhNetwork as TanhNetwork
from flower_fedcon.objectives.neyman_pearson import NeymanPearson as NeymanPearson
from flower_fedcon.objectives.noisy import Noisy as Noisy
from flower_fedcon.objectives.nonsmooth import (
    LeastAbsoluteDeviations as LeastAbsoluteDeviations,
)
from flower_fedcon.objectives.nonsmooth import SupportVectorMachine as SupportVectorMachine
from flower_fedcon.objectives.offset import WithOffset as WithOffset
from flower_fedcon.objectives.private_objective import PrivateObjective as PrivateObjective
from flower_fedcon.objectives.profiled import Profiled as Profiled
from flower_fedcon.objectives.proportional_odds import ProportionalOdds as ProportionalOdds
from flower_fedcon.objectives.proportional_odds import WithThresholds as WithThresholds
from flower_fedcon.objectives.quadratic import Quadratic as Quadratic
from flower_fedcon.objectives.quadratic_assignment import QuadraticAssignment as QuadraticAssignment
from flower_fedcon.objectives.random_intercepts import RandomIntercepts as RandomIntercepts
from flower_fedcon.objectives.rows import LinearModel as LinearModel
from flower_fedcon.objectives.softmax import SoftmaxRegression as SoftmaxRegression
from flower_fedcon.objectives.survival import CoxRegression as CoxRegression

__all__ = [name for name, value in list(globals().items()) if isinstance(value, type)]

point_elsewhere(__name__)
