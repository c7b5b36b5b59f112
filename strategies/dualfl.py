r"""DualFL: accelerated proximal gradient on the dual problem, one local minimisation a round.

    min_x (1/N) sum_j f_j(x) + psi(x),   f_j convex, mu-strongly convex, L-smooth or not smooth

Round n = 0, 1, ..., for a cohort S:
    1. broadcast theta and beta
    2. client j:  c := v_j + r theta;  zeta := (1 + beta) c - beta c_j;  c_j := c
                  theta_j = argmin f_j(x) + psi(x) + ((r - 1) nu/2) ||x||^2 - nu <zeta, x>
                  v_j := zeta - r theta_j
    3. upload theta_j
    4. server:    theta := theta - (r/N) sum_S (theta - theta_j)
                  t' = [1 - rho t^2 + sqrt((1 - rho t^2)^2 + 4 t^2)] / 2
                  beta := ((t - 1)/t') (1 - rho t')/(1 - rho);  t := t'
Start: theta = x0, v_j = -x0, c_j = 0, t = 1, beta = 0. Always theta = -(1/N) sum_j v_j.

Symbols: nu = strong_convexity in (0, mu], rho = momentum in [0, nu/L] (above that, up to 1, nothing
is proved), psi = regularizer (rho = 0), nu v_j = the dual variable xi_j of the paper, nu zeta_j ->
grad f_j(theta*).

State: v_j and c_j on the client; theta on the server, and a mirror of both.
Wire: 1 vector and 1 number down (2 vectors at first contact); 1 vector up.
Participation: any; sampled, r > 1 and no momentum. With everyone present r = 1, and this is the
paper's algorithm (step 4 is then the mean of the theta_j; x0 is but a warm start). Under sampling
it is proximal gradient on a random block of the dual, without momentum: rho = beta = 0, and r =
s/nu with the dual step s = N nu/C for cohorts of C, s = N nu/(pN + 1 - p) for Bernoulli(p). A reply
that is missing drops its term.

Gap rule (stopping="gap"): a local solve ends once its primal-dual gap is below tol_n, and theta_j
is the primal point of the dual one whose gap this is: see `flower_fedcon.solvers.gap_tolerance`.
Lost state: v_j and c_j come back from a mirror (2 N d numbers; N d under sampling). Without it all
start again at v_j = -theta, c_j = 0, t = 1 (a collective reset): exact, but what the v_j knew is
lost. A client that alone starts again breaks theta = -mean v_j forever: a wrong limit.

Source: Park and Xu, "DualFL: A Duality-Based Federated Learning Algorithm with Communication
Acceleration in the General Convex Regime", 2023, Algorithm 1, Theorems 3.2, 3.3, 4.2. The sampled
form (from their dual problem 6.4), psi, and the computable form of their gap are reconstructed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.solvers import gap_tolerance
from flower_fedcon.solvers.extrapolation import extrapolate
from flower_fedcon.strategies.families.dual import DualProximalGradient, momentum_step
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class DualFLState(NamedTuple):
    """The server's state."""

    theta: Array  # global model, shape of x0
    n: int  # rounds done
    t: float  # t_n of the momentum
    beta: float  # for the coming round
    origin: Array  # where the clients started: x0, or theta at a collective reset, shape of x0
    start: int  # rounds that were done then
    mirror: Mirror | None  # the clients' v_j and, without sampling, c_j, by the names "v" and "c"


class DualFL(DualProximalGradient[DualFLState]):
    """DualFL, exact under heterogeneity.

    Parameters
    ----------
    strong_convexity : float, optional
        nu > 0, at most the clients' mu (plus `regularization`), which is the default.
    momentum : float, optional
        rho. By default nu/L, and 0 if L is unknown, with a `regularizer` and under sampling, where
        it must be 0. From nu/L to 1 it runs with a warning: no rate, and no convergence, is proved.
    regularizer : Regularizer, optional
        psi, in each client's problem. The local solver must know its prox.
    local_solver : str or LocalSolver (default: "exact")
        How step 2 is solved.
    stopping : {"solver", "gap"} (default: "solver")
        When a local solve ends: as its solver says, or earlier by the gap rule, which needs
        everyone present and no `regularizer`.
    gap_gamma : float (default: 0.1)
        gamma > 0 of the gap rule.
    regularization : float (default: 0.0)
        alpha >= 0 adds alpha/2 ||x||^2 to every f_j, for those that are not strongly convex.
    mirror : bool (default: True)
        Keep the clients' v_j and c_j on the server; False resets all clients when one is lost.
    participation, batch_size, min_replies, aggregation, norm_bound : see `FedConStrategy`

    Raises
    ------
    ConfigError
        If an argument is out of range, or nu is not known.
    ParticipationError
        If a momentum or the gap rule is asked for under sampling.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(q * np.eye(1), np.array([b])) for q, b in ((1.0, 4.0), (2.0, 2.0))]
    >>> history = simulate(DualFL(), FederatedProblem(clients), num_rounds=40)
    >>> history.x.round(9)  # 6/3
    array([2.])
    """

    name = "dualfl"
    uplink = ("theta",)
    needs_mean = "theta must stay the mean of all -v_j, the dual variables"

    def initialize(self, x0: Array) -> DualFLState:
        """Start at x0."""
        start = {"v": -x0} if self.setup.sampled else {"v": -x0, "c": np.zeros_like(x0)}
        mirror = self.mirrored(self.mirror, **start)
        return DualFLState(x0, n=0, t=1.0, beta=0.0, origin=x0, start=0, mirror=mirror)

    def broadcast(self, state: DualFLState) -> Payload:
        """Step 1, and the tolerance of the gap rule."""
        down: Payload = {"theta": state.theta}
        if not self.setup.sampled:
            down["beta"] = state.beta
        if self.stopping == "gap":
            down["tolerance"] = gap_tolerance(
                state.n - state.start,
                num_clients=self.setup.num_clients,
                strong_convexity=self.constants.nu,
                momentum=self.constants.rho,
                gamma=self.gap_gamma,
            )
        return down

    def personal(self, state: DualFLState, client: int, ack: int) -> Payload:
        """Tell a client where to start, at its first round since the start or a reset."""
        return {"origin": state.origin} if ack <= state.start else {}

    def aggregate(self, state: DualFLState, uploads: Uploads) -> DualFLState:
        """Step 4; and step 2 once more, for the mirror."""
        before, r = state.theta, self.constants.ratio
        t, beta = momentum_step(state.t, self.constants.rho)
        if self.setup.sampled:
            moved = len(uploads) * before - uploads.sum("theta")
            theta = before - (r / uploads.num_clients) * moved
        else:
            theta = uploads.mean("theta")
        if state.mirror is not None:
            self._follow(state.mirror, uploads, before, state.beta)
        return state._replace(theta=theta, n=state.n + 1, t=t, beta=beta)

    def _follow(self, mirror: Mirror, uploads: Uploads, theta: Array, beta: float) -> None:
        """Move v_j and c_j as the clients have."""
        r, sampled = self.constants.ratio, self.setup.sampled
        for j, theta_j in uploads.items("theta"):
            before = None if sampled else mirror["c"][j]
            zeta, c = extrapolate(mirror["v"][j], before, theta, r, beta)
            mirror.put(j, v=zeta - r * theta_j, **({} if sampled else {"c": c}))

    def model(self, state: DualFLState) -> Array:
        """Return theta."""
        return state.theta

    def needs_whole_cohort(self) -> bool:
        """Without sampling step 4 is the mean of all theta_j."""
        return not self.setup.sampled

    def reset(self, state: DualFLState) -> DualFLState:
        """Start again, all from theta."""
        return state._replace(t=1.0, beta=0.0, origin=state.theta, start=state.n)
