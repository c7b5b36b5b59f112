r"""FedMLS: local subgradient steps that slide along a consensus penalty, for losses with kinks.

    min_x (1/N) sum_i f_i(x),   f_i convex and Lipschitz

Round t = 1, 2, ..., from w = z = w_i = z_i = x0 and y = x0, with a_t = 2/(t + 1):
    1. broadcast y and t
    2. client i:  c = z_i - (t/4) (y_i - y),   y_i = (1 - a_t) w_i + a_t z_i
                  u_0 = z_i;  for k = 1..K_t, K_t = ceil(K0 t):
                      u_k = u_{k-1} - 2/(k+2) ((lambda_0/(4N)) grad f_i(u_{k-1}) + u_{k-1} - c)
                  z_i := u_{K_t};  w_i := (1 - a_t) w_i + a_t ubar,
                  ubar = mean of the u_k, weighted by k + 1
    3. upload y_i = (1 - a_{t+1}) w_i + a_{t+1} z_i
    4. server:    y := (1 - a_{t+1}) w + a_{t+1} z
                  z := z - ((t+1)/4) (y - mean_i y_i);  w := (1 - a_{t+1}) w + a_{t+1} z

Symbols: lambda_0 = step_size, K0 = step_growth, D = distance, G = lipschitz. grad f_i is any
subgradient.

The method minimises (1/N) sum f_i(x_i) + (1/(2 lambda_t)) sum ||x_i - x||^2 over all x_i and x. It
is gradient sliding: accelerated steps (beta = 4/(lambda_t t)) on the penalty, whose gradient costs
a round, and in each of them K_t subgradient steps on the f_i, which cost none. At the server's x
the mean of the f_i is at most lambda_t G^2/(2N) above the penalised objective, whatever the clients
hold: nothing bounds how much they differ. So lambda_t must fall with the accuracy. With lambda_t =
lambda_0/t that is O(1/eps) rounds, and with K_t growing like t O(1/eps^2) subgradients. Subgradient
steps on the mean take as many subgradients, and as many rounds.

Step size: with lambda = lambda_0/T in all of T rounds the bound of gradient sliding is
    F(w) - F* <= (1/T) (12 N D^2/lambda_0 + (1 + 8/K0) lambda_0 G^2/(2N)),
which is least, (2/T) G D sqrt(6 (1 + 8/K0)), at lambda_0 = (N D/G) sqrt(24/(1 + 8/K0)). This is the
rule. With the lambda_t that falls the same argument gives the same order up to log T, if the
iterates stay bounded. Fewer local steps (K0) cost rounds by sqrt(1 + 8/K0), and save subgradients
by K0 + 8.

State: w_i and z_i on the client; w, z and y on the server.
Wire: 1 vector and 1 number down; 1 vector up.
Participation: full. An absent client's y_i would be of another round, and the server weighs how far
it is off by (t+1)/4.
Lost state: w_i = z_i := y, with which y_i = y, as the argument for a round needs. The error that
this makes falls like 1/t.

Not for: absent clients, a psi or a constraint, and smooth losses, for which other methods are
faster.

Source: Karlo Palenzuela, Ali Dadras, Alp Yurtsever, Tommy Löfstedt, "Provable Reduction in
Communication Rounds for Non-Smooth Convex Federated Learning", MLSP 2025 (arXiv:2503.21627), as in
the authors' Matlab program; the rule for lambda_0 is ours. The bound is that of Guanghui Lan,
"Gradient sliding for composite optimization", Mathematical Programming 2016, applied to the
penalty. w is that of the program after one more round, since the server can take this step at once.
An older program has lambda_0/sqrt(t + 1), whose bound is that of subgradient steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.scales import UNIT
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.validation import Array, chosen, optional, positive
from flower_fedcon.wire.payloads import Payload


class FedMLSState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    z: Array  # the server's end of accelerated steps, shape of x0
    y: Array  # the point at which the penalty's gradient is taken, shape of x0
    t: int  # the coming round, from 1


class FedMLS(FedConStrategy[FedMLSState]):
    """Local subgradient steps that slide along a consensus penalty.

    Parameters
    ----------
    step_size : float or "auto", optional
        lambda_0 > 0; by default (N D/G) sqrt(24/(1 + 8/K0)).
    step_growth : float (default: 1.0)
        K0 > 0: round t takes ceil(K0 t) local steps.
    distance, lipschitz : float, optional
        D, about ||x0 - x*||, and G, the Lipschitz constant of every f_i, for the rule of lambda_0.
        G is by default the longest gradient of an f_i at the start, and D is G/L if clients state
        L. Losses with kinks have none, and then D must be given: a D that is ten times too short
        or too long takes up to ten times the rounds.

    Raises
    ------
    ConfigError
        If an argument is out of range, or D is needed and no L is stated.
    ParticipationError
        If the run leaves clients out.

    Examples
    --------
    The median of the clients' medians, which are 1, 2 and 6:

    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import LeastAbsoluteDeviations
    >>> clients = [LeastAbsoluteDeviations(np.ones((1, 1)), [b]) for b in (1.0, 2.0, 6.0)]
    >>> problem = FederatedProblem(clients)
    >>> strategy = FedMLS(distance=2.0)
    >>> simulate(strategy, problem, num_rounds=100).x.round(1)
    array([2.])
    """

    name = "fedmls"
    scope = Scope("convex")
    uplink = ("y",)
    needs_everyone = "the server's steps are for the mean of all y_i, which change in every round"
    needs_fresh = "its steps grow from round to round, and replies would be of different steps"
    needs_mean = "the penalty's gradient at the server is for the mean of the y_i"
    needs_uncompressed = "its server weighs round t by t, and so would it compression errors"
    needs_gradient = "its bound needs subgradients of one convex function, which clipping changes"
    needs_independent = "its server gives each round a different weight"
    release = Release(about={"y": "y"})

    def __init__(
        self,
        *,
        step_size: float | str | None = None,
        step_growth: float = 1.0,
        distance: float | None = None,
        lipschitz: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.step_size = chosen(positive, "step_size", step_size)
        self.step_growth = positive("step_growth", step_growth)
        self.distance: Any = optional(positive, "distance", distance)
        self.lipschitz: Any = optional(positive, "lipschitz", lipschitz)
        if self.batch_order != "round":
            raise ConfigError(
                f"FedMLS takes no batch_order={self.batch_order!r}, which is for a fixed number of "
                "local steps: its number grows from round to round. Leave batch_order out"
            )

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for lambda_0, and before it those for G and D, which it needs."""
        if self.step_size is not None and self.step_size != "auto":
            return {}
        return {
            "lipschitz": self._steepness,
            "distance": self._reach,
            "step_size": self._balanced,
        }

    def _smoothness(self) -> float:
        """Return L, from which D follows; before G is asked of the clients, for nothing."""
        L = self.setup.smoothness
        if L is None:
            raise ConfigError(
                "FedMLS: losses with kinks have no smoothness L from which the length of steps "
                "would follow: give distance, about ||x0 - x*||, or step_size"
            )
        return L or UNIT

    def _steepness(self) -> float:
        """Return a guess of G: the longest gradient of an f_i at the start."""
        if self.distance is None:
            self._smoothness()
        return self.steepest_for("step_size, or lipschitz and distance")

    def _reach(self) -> float:
        """Return a guess of D: the length of a gradient step of 1/L."""
        return float(self.lipschitz) / self._smoothness()

    def _balanced(self) -> float:
        """Return the lambda_0 with which the bound is least."""
        ratio = self.setup.num_clients * self.distance / self.lipschitz
        return float(ratio * math.sqrt(24 / (1 + 8 / self.step_growth)))

    def why_not_private(self) -> str:
        """Return why the method cannot use noisy sums of uploads."""
        return "its server weighs round t by t, and so would it the noise"

    def initialize(self, x0: Array) -> FedMLSState:
        """Start everywhere at x0."""
        return FedMLSState(w=x0, z=x0, y=x0, t=1)

    def broadcast(self, state: FedMLSState) -> Payload:
        """Step 1."""
        return {"y": state.y, "t": state.t}

    def aggregate(self, state: FedMLSState, uploads: Uploads) -> FedMLSState:
        """Step 4."""
        t = state.t + 1
        a = 2 / (t + 1)
        y = (1 - a) * state.w + a * state.z
        z = state.z - (t / 4) * (y - uploads.mean("y", about=state.y))
        return FedMLSState((1 - a) * state.w + a * z, z, y, t)

    def readmit(self, state: FedMLSState, client: int) -> tuple[FedMLSState, Payload]:
        """Let the client start again from y."""
        return state, {}
