r"""FedSGM: federated switching subgradients, for constraints on functions, with compression.

    min_w (1/N) sum_j f_j(w)   s.t. g(w) = (1/N) sum_j g_j(w) <= 0,   all convex and Lipschitz

Round t = 0, 1, ..., for a cohort S:
    1. broadcast w_t; client j answers with the number g_j(w_t)
    2. server:    ghat = mean_S g_j(w_t), z = ghat - eps; broadcast sigma_t =
                  1 if z > 0 else 0 (hard)    or    min(1, max(0, 1 + beta z)) (soft)
    3. client j:  v = w_t;  E times  v := v - eta ((1 - sigma_t) grad f_j(v) + sigma_t grad g_j(v))
    4. upload Delta_j = C_j((w_t - v)/eta)
    5. server:    w_{t+1} = w_t - eta mean_S Delta_j
    output        w_bar = sum_t (1 - sigma_t) w_t / sum_t (1 - sigma_t)

Symbols: eta = client_lr, E = local_steps, eps = tolerance, beta = sharpness, C_j =
uplink_compressor, C_0 = downlink_compressor. One formula for w_bar serves both switches: 1 -
sigma_t is 0 wherever ghat > eps. If all weights are 0, w_bar is the last w. Minibatches are for
grad f_j only; g_j is always evaluated in full.

Theorem: with D = ||w_0 - w*||, Lipschitz constants G, and q of C_j (E||C(x) - x||^2 <= q ||x||^2),
    Gamma = 2 E^2 + E q/(2 N),   eta = D / (G sqrt(2 E T Gamma)),   eps = D G sqrt(2 Gamma/(E T))
(twice that eps for soft) give f(w_bar) - f* <= eps and g(w_bar) <= eps: of order D G sqrt(E/T).

Several constraints g_k <= 0 are one, g = max_k g_k: `flower_fedcon.strategies.families.switching`
has their steps, 1* to 4*.

Error feedback, whenever C_j is not unbiased or C_0 is not the identity: the server also keeps an
exact x, from x_0 = w_0; client j keeps the error of compression e_j, 0 at first, and
    4'. Delta_j = C_j(e_j + (w_t - v)/eta),   e_j := e_j + (w_t - v)/eta - Delta_j
    5'. x_{t+1} = x_t - eta mean_S Delta_j,   m_t = C_0(x_{t+1} - w_t),   w_{t+1} = w_t + m_t
Every compressor must then be contractive: RandK drops its factor d/K. Clients that hold w_t get the
increment m_t, and others get w_{t+1}; the iterates are the same.

State: none on the client, with error feedback w and e_j; x, w and the average's sums on the server.
Wire: 1 vector (compressed with error feedback) and 1 number down (of several constraints 2 more for
each active one); 1 vector (compressed) and 1 number (of m constraints 2 m) up.
Participation: any; sampled, g(w_bar) <= eps holds up to the error of the estimate ghat. The paper's
theory is for full participation; that for hard switching under sampling is second-hand. With each
client's own constraint a cohort sees only its members' constraints. Let V be the number of rounds
with sigma = 1: a client is above eps, unseen, in at most (N/C - 1) V rounds with weight (hard, in
expectation).
First contact: with w_t, sent whole, and with e_j = 0 if there is error feedback.
Aggregation: any rule of `flower_fedcon.aggregation`, without compression, for Delta_j and g_j: the
rule then replaces the means in objective and constraint, which is equivalent only without
heterogeneity.
Lost state: nothing without error feedback. With it the client starts again from a dense w_t and
e_j = 0. Then x - (eta/N) sum e_j jumps once, and no bias stays.

Not for: constraints that every client must satisfy (FedProxAL), and high accuracy: the rate is
1/sqrt(T).

Source: Antesh Upadhyay, Sang Bin Moon, Abolfazl Hashemi, "Switching Gradient Methods for
Constrained Federated Optimization", OPT workshop 2025, Algorithm 1. The weights of the soft
average, which follow from its proof, and several constraints are reconstructed. Sampling and error
feedback are second-hand, from accounts of the long version, with Rustem Islamov, Yarden As, Ilyas
Fatkhullin, "Safe-EF: Error Feedback for Non-smooth Constrained Optimization", ICML 2025
(arXiv:2505.06053) (E = 1, hard).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.compressors import dense
from flower_fedcon.core.rng import COMPRESS
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.strategies.families.switching import Switch, Switching, WeightedMean
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload, flatten


class FedSGMState(NamedTuple):
    """The server's state."""

    x: Array  # exact model, shape of x0; w itself without error feedback
    w: Array  # the clients' model, shape of x0
    t: int  # rounds done
    increment: Payload  # m of the last round in its wire form; only with error feedback
    used: Array  # the clients that sent the last round's uploads, shape (|S|,)
    average: WeightedMean  # mean of the w_t, with weights 1 - sigma_t
    switch: Switch  # the last query


class FedSGM(Switching[FedSGMState]):
    """The federated switching gradient method.

    The objectives need `constraint_value(x)` and `constraint_gradient(x)` (`NeymanPearson` and
    `LossBound` have them), or with groups the methods of `GroupLossBounds`. The history's columns
    are "constraint_estimate" (ghat of the round, nan for a cohort without constraint), "sigma",
    "violations" (rounds so far that began with ghat > eps) and, if the theorem gives it,
    "tolerance" (eps). The history's output "average" is w_bar.

    Parameters
    ----------
    client_lr, tolerance : float, optional
        eta > 0, and eps > 0, by which g may exceed 0; by default the theorem's, from D and G.
    distance, lipschitz : float, optional
        D >= ||w_0 - w*|| and G, the Lipschitz constant of every f_j and g_j; by default guesses, G
        the longest gradient of an f_j at the start, D = G/L.
    output : {"last", "average"} (default: "last")
        The model: w_t, or w_bar, for which the theorem holds.
    constraints : {"mean", "each", "groups"} (default: "mean")
        g: the mean of the clients' constraints, the largest of them, or the largest of groups; the
        same as the problem's.
    groups : int, optional
        The number of groups, m, with "groups".
    uplink_compressor : Compressor, optional
        C_j, for what clients upload; by default `Identity()`.
    downlink_compressor : Compressor, optional
        C_0, for the change of the model; by default `Identity()`.
    uplink, downlink : Compressor, optional
        Older names of these two arguments.

    Raises
    ------
    ConfigError
        If an argument is out of range, an objective has no constraint, or with error feedback a
        compressor is not contractive.

    Examples
    --------
    The minimum of (x - 1)^2/2 over x <= 0; w_bar may exceed 0 by the tolerance:

    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> class Bounded(Quadratic):
    ...     def constraint_value(self, x):
    ...         return x[0]
    ...     def constraint_gradient(self, x):
    ...         return np.ones(1)
    >>> problem = FederatedProblem([Bounded(np.eye(1), np.ones(1)) for _ in range(2)])
    >>> strategy = FedSGM(client_lr=0.01, local_steps=2, tolerance=0.1)
    >>> simulate(strategy, problem, num_rounds=500).outputs["average"].round(3)
    array([0.073])
    """

    name = "fedsgm"
    needs_fresh = "its query decides for one cohort at one model"
    scope = Scope("convex")
    uplink = ("delta",)
    needs_mean = ""
    needs_gradient = "its bound on the violation is for the gradients of objective and constraint"
    needs_constant_lr = (
        "its average weighs rounds equally, which is right only for steps of one length"
    )
    needs_uniform = "its estimate of the constraint is the plain mean of a uniform cohort"
    queries = ("constraint",)
    constraints = "mean"

    def initialize(self, x0: Array) -> FedSGMState:
        """Start at x_0 = w_0 = x0."""
        nobody = np.empty(0, dtype=np.int64)
        return FedSGMState(x0, x0, 0, {}, nobody, WeightedMean(np.zeros_like(x0)), Switch())

    def broadcast(self, state: FedSGMState) -> Payload:
        """Step 1; with error feedback see `personal`."""
        return {} if self.constants.feedback else {"w": state.w}

    def personal(self, state: FedSGMState, client: int, ack: int) -> Payload:
        """Return the increment to a client that holds the previous w, otherwise w."""
        if not self.constants.feedback:
            return {}
        return state.increment if client in state.used else {"w": state.w}

    def after_query(self, state: FedSGMState, answers: Uploads) -> tuple[FedSGMState, Payload]:
        """Step 2 or 2*."""
        estimate, sigma, told = self.switch_by(answers)
        return state._replace(switch=state.switch._replace(estimate=estimate, sigma=sigma)), told

    def aggregate(self, state: FedSGMState, uploads: Uploads) -> FedSGMState:
        """Step 5 or 5', and one more term of the average."""
        x = w = state.x - self.constants.client_lr * uploads.mean("delta")
        increment: Payload = {}
        if self.constants.feedback:
            rng = self.setup.rng(COMPRESS, state.t + 1)
            m = self.constants.downlink_compressor.compress(x - state.w, rng)
            w = state.w + dense(m)
            increment, _ = flatten({"increment": m})
        violations = state.switch.violations + (state.switch.estimate > self.constants.tolerance)
        switch = state.switch._replace(violations=violations)
        average = state.average.add(state.w, 1.0 - switch.sigma)
        used = np.array(uploads.clients)
        return FedSGMState(x, w, state.t + 1, increment, used, average, switch)

    def model(self, state: FedSGMState) -> Array:
        """Return the last w, or w_bar."""
        return state.w if self.output == "last" else state.average.value(state.w)

    def readmit(self, state: FedSGMState, client: int) -> tuple[FedSGMState, Payload]:
        """Return w if clients keep a copy; e_j starts again from 0."""
        return state, {"w": state.w} if self.constants.feedback else {}
