r"""FedMiD: federated mirror descent.

    min_w (1/N) sum_i f_i(w) + psi(w)

Round, for a cohort S:
    1. broadcast w
    2. client i:  v = w;  K times  v := prox(v - eta_c grad f_i(v), eta_c)
    3. upload v - w
    4. server:    w := prox(w + eta_s mean_S(v_i - w), eta_s eta_c K)

prox(v, step) = argmin_u psi(u) + ||u - v||^2 / (2 step). With `server_prox_only` step 2 has no
prox.

The paper states it for any distance-generating function h. With point(z, step) the minimiser w of
-<z, w> + step psi(w) + h(w), step 2 is v := point(grad h(v) - eta_c grad f_i(v), eta_c), step 3 the
upload of grad h(v) - grad h(w), and step 4 w := point(grad h(w) + eta_s mean, eta_s eta_c K). For
distance = "euclidean", h = ||w||^2/2, these are the steps above; "entropy" is sum w log w, "p-norm"
||w||_p^2/2, and `QuadraticForm` w'Aw/2. A psi is refused if its point follows neither in closed
form nor by one equation in one unknown. This differs from the paper where h is not ||w||^2/2: its
Algorithm 2 adds the mean of the points' moves v - w to grad h(w), which is in other units, and by
which even one client does not stop at the minimiser. Here the mean is one of duals.

Symbols: eta_c = client_lr, eta_s = server_lr, K = local_steps.

State: none on the client; w on the server.
Wire: 1 vector down; 1 vector up.
Participation: any (the theory is for full); the fixed point is biased. The prox runs on both
clients and server, so that the fixed point is biased even for K = 1: this is the algorithm.
Own steps: with `client_lr=AdaPGM()`, "adaptive", client i finds its eta in step 2 from how its
gradients change (`flower_fedcon.schedules`), and sends one more number: the sum T_i of its K steps,
in units of the first. eta_c K in step 4 is their mean. Clients then weigh about in proportion to
their T_i.
Aggregation: any rule of `flower_fedcon.aggregation`; the fixed point is then that of the prox of w
plus this rule of the v_i - w instead of their mean, which is the same only without heterogeneity.
Compression: any. With EF21 the fixed point is the same; unbiased compressors alone leave a floor,
since the v_i - w do not vanish one by one under heterogeneity.
Lost state: nothing to lose.

Not for: exact solutions where clients differ: the bias stays at every step length. CompositeFL has
none.

Source: Honglin Yuan, Manzil Zaheer, Sashank Reddi, "Federated Composite Optimization", ICML 2021
(arXiv:2011.08474), Algorithm 2.
"""

from __future__ import annotations

from typing import NamedTuple

from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.server.optimizers import OptimizerState
from flower_fedcon.server.schedules import longest
from flower_fedcon.strategies.families.local_steps import LocalProxSteps
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedMiDState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    optimizer: OptimizerState | None = None  # of server_optimizer; None without


class FedMiD(LocalProxSteps[FedMiDState]):
    """Federated mirror descent.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi: any object with `prox(v, step)`; a set stands for its indicator.
    client_lr : float, Schedule, OwnRate, "auto" or "adaptive", optional
        eta_c > 0, at most 1/L; by default 1/L. A schedule of `flower_fedcon.schedules` changes it
        by the round. "adaptive" is the schedules' `AdaPGM()`: each client finds its own steps.
    local_steps : int or "auto", optional
        K >= 1; by default 1: with more, heterogeneity leaves a floor.
    server_prox_only : bool (default: False)
        Take the prox on the server only.
    server_optimizer : ServerOptimizer, optional
        `Momentum(...)` of `flower_fedcon.optimizers`, whose step replaces the mean. The fixed
        points stay the same; optimizers with a step length for each entry would move them.

    Raises
    ------
    ConfigError
        If an argument is out of range, or psi has no known prox in the distance.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> problem = FederatedProblem([Quadratic(np.eye(1), np.array([3.0]))], regularizer=L1(1.0))
    >>> strategy = FedMiD(problem.regularizer, client_lr=1.0, local_steps=1, server_prox_only=True)
    >>> simulate(strategy, problem, num_rounds=2).x  # proximal gradient: soft(3, 1)
    array([2.])
    """

    name = "fedmid"
    bias = "its prox on the clients moves the fixed point where clients differ"
    uplink = ("delta",)
    needs_gradient = ""
    needs_mean = needs_uniform = ""
    needs_convex = ""
    needs_server_lr = ""
    needs_one_length = (
        "its prox has one step for all entries; with others w has another fixed point"
    )
    needs_constant_lr = needs_common_lr = ""
    needs_uncompressed = ""
    needs_fresh = ""
    async_bias = "each client weighs as often as its replies come, so fast clients count more"
    release = Release()
    needs_independent = (
        "its server takes a prox in each round, so the model is not a sum over rounds"
    )

    def initialize(self, x0: Array) -> FedMiDState:
        """Start at x0."""
        self.check_start(x0)
        return FedMiDState(w=x0)

    def broadcast(self, state: FedMiDState) -> Payload:
        """Step 1."""
        return {"w": state.w}

    def aggregate(self, state: FedMiDState, uploads: Uploads) -> FedMiDState:
        """Step 4."""
        move, optimizer = self.server_move(uploads.mean("delta"), state.optimizer)
        steps = self.unit * self.units(uploads)
        length = self.server_lr * self.rate(uploads) * steps
        return FedMiDState(self.point(self.dual(state.w) + move, length), optimizer)

    def longest_prox(self) -> float:
        """Return the longer of the prox steps of 2 and 4."""
        rate = longest(self.client_lr)
        return max(0.0 if self.server_prox_only else rate, self.server_lr * rate * self.unit)
