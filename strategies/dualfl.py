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

Symbols: nu = strong_convexity in (0, mu], rho = momentum in [0, nu/L], psi = regularizer (rho = 0),
nu v_j = the dual variable xi_j of the paper, nu zeta_j -> grad f_j(theta*).

Participation: with everyone present r = 1, and this is the paper's algorithm (step 4 is then the
mean of the theta_j; x0 is but a warm start). Under sampling it is proximal gradient on a random
block of the dual, without momentum: rho = beta = 0, and r = s/nu with the dual step s = N nu/C for
cohorts of C, s = N nu/(pN + 1 - p) for Bernoulli(p). A reply that is missing drops its term.

Gap rule (stopping="gap"): with e the local energy, a local solve ends at an x with
||grad e(x)||^2/(2 nu) <= tol_n, and theta_j := x - grad e(x)/nu, the primal point of the dual one
whose gap this is; the next solve starts from x. tol_n is the paper's, absolute and loose at first:
((1 - sqrt rho)/(1 + gamma))^n / N, or 1/(N nu (n + 1)^(4 + gamma)) for rho = 0. Their own form of
the gap has the conjugate of f_j - nu/2 ||x||^2, which need not be finite; this one is equal to it
at the dual point grad f_j(x) - nu x. On quadratics (kappa = 20) it reaches 5.5e-11 in 100 rounds,
and 5.6e-9 at 2.6 times the inner steps if x itself is uploaded.

Lost state: v_j and c_j come back from a mirror (2 N d numbers; N d under sampling). Without it all
start again at v_j = -theta, c_j = 0, t = 1 (a collective reset): exact, but what the v_j knew is
lost. A client that alone starts again breaks theta = -mean v_j forever: a wrong limit.

Source: Park and Xu, "DualFL: A Duality-Based Federated Learning Algorithm with Communication
Acceleration in the General Convex Regime", 2023, Algorithm 1, Theorems 3.2, 3.3, 4.2. The sampled
form (from their dual problem 6.4), psi, and the computable form of their gap are reconstructed.
"""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.card import Sheet
from flower_fedcon.core.participation import Bernoulli
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.solvers import as_solver, gap_tolerance
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import Array, choice, nonnegative, positive
from flower_fedcon.wire.payloads import Payload

_log = logging.getLogger("flwr")
_SLACK = 1 + 1e-9  # mu and L are known to rounding


class DualFLState(NamedTuple):
    """The server's state."""

    theta: Array  # global model, shape of x0
    n: int  # rounds done
    t: float  # t_n of the momentum
    beta: float  # for the coming round
    origin: Array  # where the clients started: x0, or theta at a collective reset, shape of x0
    start: int  # rounds that were done then
    v: Array | None  # mirror of the v_j, shape (N, *x0)
    c: Array | None  # mirror of the c_j, shape (N, *x0); not under sampling


class DualFL(FedConStrategy[DualFLState]):
    """DualFL, exact under heterogeneity.

    Parameters
    ----------
    strong_convexity : float, optional
        nu > 0, at most the clients' mu (plus `regularization`), which is the default.
    momentum : float, optional
        rho, from 0 to nu/L. By default nu/L, and 0 if L is unknown, with a `regularizer` and under
        sampling, where it must be 0.
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
    participation, batch_size, min_replies
        As for every strategy: see `FedConStrategy`. `batch_size` must be None.

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
    downlink = ("theta",)
    uplink = ("theta",)
    client_settings = ("nu", "ratio", "regularization", "regularizer", "local_solver")
    sheet = Sheet(
        title="DualFL",
        problem="min F + psi, strongly convex, smooth or not",
        update="client: c := v_j + r theta, zeta := (1 + beta) c - beta c_j, c_j := c\n"
        "theta_j = argmin f_j(x) + psi(x) + ((r - 1) nu/2) ||x||^2 - nu <zeta, x>, "
        "v_j := zeta - r theta_j\n"
        "server: theta := theta - (r/N) sum_S (theta - theta_j), beta from rho",
        state="v_j and c_j on the client; theta on the server, and a mirror of both",
        down="1 vector, 1 number (2 vectors at first contact)",
        up="1 vector",
        participation="any; sampled: r > 1, without momentum",
        lost_state="from the mirror, or all clients start again",
        paper="Park, Xu, 2023, Algorithm 1",
    )

    nu: float
    rho: float
    ratio: float

    def __init__(
        self,
        *,
        strong_convexity: float | None = None,
        momentum: float | None = None,
        regularizer: Any = None,
        local_solver: Any = "exact",
        stopping: str = "solver",
        gap_gamma: float = 0.1,
        regularization: float = 0.0,
        mirror: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.strong_convexity = strong_convexity
        if strong_convexity is not None:
            self.strong_convexity = positive("strong_convexity", strong_convexity)
        self.momentum = momentum
        if momentum is not None:
            self.momentum = nonnegative("momentum", momentum)
        self.regularizer = None if regularizer is None else as_regularizer(regularizer)
        self.local_solver = as_solver(local_solver)
        self.stopping = choice("stopping", stopping, ("solver", "gap"))
        self.gap_gamma = positive("gap_gamma", gap_gamma)
        self.regularization = nonnegative("regularization", regularization)
        self.mirror = bool(mirror)
        if self.regularizer is not None and (self.momentum or self.stopping == "gap"):
            raise ConfigError(
                'with a regularizer DualFL has momentum=0 and stopping="solver", got '
                f"momentum={momentum!r} and stopping={stopping!r}"
            )

    def initialize(self, x0: Array) -> DualFLState:
        """Start at x0, after nu, rho and r have been settled."""
        self.nu, self.rho, self.ratio = self._modulus(), 0.0, 1.0
        n, sampled = self.setup.num_clients, self.setup.sampled
        if not sampled:
            self.rho = self._momentum()
        elif self.momentum or self.stopping == "gap":
            self.refuse_participation(
                "has neither momentum nor a gap rule without some clients",
                'momentum=0 and stopping="solver", or Full()',
            )
        elif isinstance(self.participation, Bernoulli):
            self.ratio = n / (self.setup.rate * (n - 1) + 1)
        else:
            self.ratio = 1 / self.setup.rate
        v = np.repeat(-x0[None], n, axis=0) if self.mirror else None
        c = np.zeros_like(v) if v is not None and not sampled else None
        return DualFLState(x0, n=0, t=1.0, beta=0.0, origin=x0, start=0, v=v, c=c)

    def _modulus(self) -> float:
        """Return nu, at most mu + alpha."""
        mu, alpha = self.setup.strong_convexity, self.regularization
        nu = self.strong_convexity or (mu or 0.0) + alpha
        if nu == 0:
            raise ConfigError(
                "DualFL needs strongly convex objectives, and the clients' modulus is "
                f"{'unknown' if mu is None else 0}: give strong_convexity, or regularization=alpha "
                "to add alpha/2 ||x||^2 to each"
            )
        if mu is not None and nu > (mu + alpha) * _SLACK:
            raise ConfigError(
                f"strong_convexity must be at most {mu + alpha:.6g}, the clients' mu plus "
                f"regularization, got {nu!r}"
            )
        return nu

    def _momentum(self) -> float:
        """Return rho, at most nu/(L + alpha)."""
        smoothness, rho = self.setup.smoothness, self.momentum
        most = 1.0 if smoothness is None else self.nu / (smoothness + self.regularization)
        most = min(1.0, most)
        if rho is None:
            return 0.0 if smoothness is None or self.regularizer is not None else most
        if rho > most * _SLACK:
            bound = "1" if smoothness is None else f"nu/L = {most:.6g}"
            raise ConfigError(f"momentum must be at most {bound}, got {rho!r}")
        if rho > 0 and smoothness is None:
            _log.warning("the clients' smoothness L is unknown: momentum must be at most nu/L")
        return min(rho, most)

    def broadcast(self, state: DualFLState) -> Payload:
        """Step 1, and the tolerance of the gap rule."""
        down: Payload = {"theta": state.theta}
        if not self.setup.sampled:
            down["beta"] = state.beta
        if self.stopping == "gap":
            down["tolerance"] = gap_tolerance(
                state.n - state.start,
                num_clients=self.setup.num_clients,
                strong_convexity=self.nu,
                momentum=self.rho,
                gamma=self.gap_gamma,
            )
        return down

    def personal(self, state: DualFLState, client: int, ack: int) -> Payload:
        """Tell a client where to start, at its first round since the start or a reset."""
        return {"origin": state.origin} if ack <= state.start else {}

    def aggregate(self, state: DualFLState, uploads: Uploads) -> DualFLState:
        """Repeat step 2 for the mirror (rows in place), then step 4."""
        theta, beta, r = state.theta, state.beta, self.ratio
        if state.v is not None:
            for j, theta_j in uploads.items("theta"):
                zeta = c = state.v[j] + r * theta
                if state.c is not None:
                    zeta = (1 + beta) * c - beta * state.c[j] if beta else c
                    state.c[j] = c
                state.v[j] = zeta - r * theta_j
        t, beta = momentum_step(state.t, self.rho)
        if self.setup.sampled:
            moved = len(uploads) * theta - uploads.sum("theta")
            theta = theta - (r / uploads.num_clients) * moved
        else:
            theta = uploads.mean("theta")
        return state._replace(theta=theta, n=state.n + 1, t=t, beta=beta)

    def model(self, state: DualFLState) -> Array:
        """Return theta."""
        return state.theta

    def needs_whole_cohort(self) -> bool:
        """Without sampling step 4 is the mean of all theta_j."""
        return not self.setup.sampled

    def readmit(self, state: DualFLState, client: int) -> tuple[DualFLState, Payload]:
        """Return v_j and c_j where they are mirrored; else start again, all from theta."""
        if state.v is None:
            return state._replace(t=1.0, beta=0.0, origin=state.theta, start=state.n), {}
        given = {"v": state.v[client].copy()}
        return state, given if state.c is None else given | {"c": state.c[client].copy()}


def momentum_step(t: float, rho: float) -> tuple[float, float]:
    """Return t_{n+1} and beta_n from t_n.

    >>> [round(x, 6) for x in momentum_step(1.0, 0.0)]
    [1.618034, 0.0]
    """
    a = 1 - rho * t * t
    after = (a + math.sqrt(a * a + 4 * t * t)) / 2
    if rho == 1:
        return after, 0.0
    return after, (t - 1) / after * (1 - rho * after) / (1 - rho)
