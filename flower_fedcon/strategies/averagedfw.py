r"""AveragedFW: averages of local Frank-Wolfe steps, a baseline, which can fail.

    min_x (1/N) sum_i f_i(x)   s.t. x in D,   D convex and compact

Round r = 1, 2, ..., for a cohort S:
    1. broadcast x_bar
    2. client i:  x = x_bar;  for k = 1..K, t = (r-1) K + k:
                      s = lmo(grad f_i(x)) = argmin over s in D of <grad f_i(x), s>
                      x := (1 - eta_t) x + eta_t s,   eta_t = 2/(t + 1)
    3. upload x - x_bar
    4. server:    x_bar := x_bar + mean_S(x_i - x_bar)

FedAvg with Frank-Wolfe steps. The mean of the clients' atoms is not an atom of their mean gradient:
for two clients with opposite atoms it is 0, and x_bar does not move for any step size
(`fedcon reproduce counterexample`). FedFW and FedFWPlus couple the clients instead.

Symbols: K = local_steps.

State: none on the client; x_bar on the server.
Wire: 1 vector and 1 number down; 1 vector up.
Participation: any; the limit, if it exists, is biased.
Lost state: nothing to lose.

Not for: anything but comparisons: use FedFW.

Source: refuted in Appendix A of Ali Dadras, Karthik Prakhya, Alp Yurtsever, "Federated Frank-Wolfe
Algorithm", FL-NeurIPS workshop 2022. The step size is that of the Frank-Wolfe method; the paper's
counterexample holds for every step size.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.sets import ConstraintSet
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.strategies.families.frank_wolfe import with_oracle
from flower_fedcon.validation import Array, count
from flower_fedcon.wire.payloads import Payload


class AveragedFWState(NamedTuple):
    """The server's state."""

    x_bar: Array  # global model, shape of x0
    r: int  # the coming round, from 1


class AveragedFW(FedConStrategy[AveragedFWState]):
    """The average of the clients' Frank-Wolfe models.

    Parameters
    ----------
    constraint : ConstraintSet
        D, bounded, with a linear minimisation oracle.
    local_steps : int (default: 1)
        K >= 1.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Examples
    --------
    The example of the paper: the minimiser is 1, and x_bar stays at 0.

    >>> from flower_fedcon import simulate
    >>> from flower_fedcon.problems import counterexample
    >>> problem = counterexample()
    >>> simulate(AveragedFW(problem.constraint), problem, num_rounds=100).x
    array([0.])
    """

    name = "averagedfw"
    needs_fresh = "its steps shrink from round to round, and replies would be of different steps"
    scope = Scope("convex", refuted=True)
    bias = "its limit, where there is one, is another point where clients differ"
    needs_uncompressed = "a compressed upload would take the model out of the set"
    uplink = ("delta",)
    needs_gradient = "its oracle uses only a gradient's direction, which clipping does not change"
    release = Release()
    needs_independent = "noise takes the model out of the set, in which clients must start"

    def __init__(
        self, constraint: ConstraintSet, *, local_steps: int = 1, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.constraint = with_oracle(self.title, constraint)
        self.local_steps = count("local_steps", local_steps)

    def initialize(self, x0: Array) -> AveragedFWState:
        """Start at x0."""
        return AveragedFWState(x_bar=x0, r=1)

    def broadcast(self, state: AveragedFWState) -> Payload:
        """Step 1, with the steps done."""
        return {"x_bar": state.x_bar, "steps": (state.r - 1) * self.local_steps}

    def aggregate(self, state: AveragedFWState, uploads: Uploads) -> AveragedFWState:
        """Step 4."""
        return AveragedFWState(state.x_bar + uploads.mean("delta"), state.r + 1)
