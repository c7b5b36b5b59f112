r"""DualFL: accelerated proximal gradient on the dual problem, one local minimisation a round.

    min_x (1/N) sum_j f_j(x) + psi(x),   f_j convex, mu-strongly convex, L-smooth or not smooth

Round, for a cohort S, in the paper's form (r = 1) and the block form (r > 1, beta = 0):
    1. broadcast theta and beta
    2. client j:  c := r theta - z_j;  zeta := (1 + beta) c - beta c_j;  c_j := c
                  theta_j = argmin f_j(x) + psi(x) + ((r - 1) nu/2) ||x||^2 - nu <zeta, x>
                  z_j := r theta_j - zeta
    3. upload theta_j
    4. server:    theta := theta - (r/N) sum_S (theta - theta_j)
                  t' = [1 - rho t^2 + sqrt((1 - rho t^2)^2 + 4 t^2)] / 2
                  beta := ((t - 1)/t') (1 - rho t')/(1 - rho);  t := t'
    and in the accelerated form:
    1. broadcast theta = prox(z + sigma e, 1/nu), r, chi, a, b and k; to client j also A_j and B_j
    2. client j:  z_j := z_j + A_j e_j;  e_j := B_j e_j;  m = z_j - chi e_j;  zeta = r theta - m
                  theta_j = argmin f_j(x) + ((r - 1) nu/2) ||x||^2 - nu <zeta, x>, from theta
                  delta_j = m + r (theta_j - theta) - z_j - a e_j
                  z_j := z_j + a e_j + delta_j;  e_j := b e_j - k delta_j
    3. upload delta_j
    4. server:    z := z + a e + D;  e := b e - k D,  with D = (1/N) sum_S delta_j
                  A_j := 0, B_j := 1 for j in S;  A_j := A_j + a B_j, B_j := b B_j for the others
                  t := [p (1 - q t^2) + sqrt(p^2 (1 - q t^2)^2 + 4 t^2)] / 2
                  sigma = (1 - p/t)/(1 - p^2 q);  r = K (1 - q) t/(1 - q t);  k = 1 - 1/t
                  chi = (1 - p) q t sigma/(1 - q t);  a = p q t sigma;  b = (1 - p q t) sigma

Start: theta = z = z_j = x0, c_j = e = e_j = 0, t = 1, beta = 0. theta, or z, is mean z_j.

Symbols: nu = strong_convexity in (0, mu], rho = momentum in [0, nu/L], psi = regularizer;
z_j -> theta* - grad f_j(theta*)/nu. With l = 1 - reply_rate, for cohorts of C
p = (1 - l) C/(N (1 - l^C)) and K = N/C, for Bernoulli(b) p = c/(1 - (1 - c)^N), c = (1 - l) b, and
K = N/(bN + 1 - b); q = K rho/(K rho + 1 - rho).
The model is theta, or prox(z + e, 1/nu). Only the paper's form takes rho above nu/L, and without
proof. There is also no proof for `local_solver=SGD(...)`, which does not reach the tolerances of
the theorems.

State: z_j, and c_j or e_j, on the client; their means, and a mirror of both, on the server.
Wire: 1 vector and 1 number down (accelerated: 7 numbers, and 2 vectors at first contact); 1 vector
up.
Participation: any. With everyone present and without psi the paper's form runs. Under sampling, or
with psi (then at the server), the accelerated form runs: it extends the paper's method to absent
clients. Its rate needs p to be each client's probability of being used. The block form is proximal
gradient on a random block of the dual, with rho = beta = 0 and r = K. A missing reply drops its
term; the paper's form asks again.
First contact: with z_j = x0 (after a reset, z_j as there) and c_j = e_j = 0, which theta, or z and
e, contain until then. As e_j = 0, A_j and B_j change nothing, and are not sent.

Gap rule (stopping="gap"): a local solve ends once its primal-dual gap is below tol_n, and theta_j
is the primal point that belongs to the dual point of this gap: see
`flower_fedcon.solvers.gap_tolerance`.
Lost state: the mirror (2 N d numbers; N d in the block form) gives it back. Without it all clients
start again, at z_j = theta or z + e, c_j = e_j = 0, t = 1 (a collective reset). The limit stays
exact, but the progress of the z_j is lost. A single client that starts again breaks theta = mean
z_j forever, and the limit is wrong.

Compressed uploads, an addition to the paper, are not offered. If client and server both go on with
the same approximation of theta_j, theta stays the mean of the z_j, but the momentum multiplies the
errors. On the digits (F - F*)/F* is 4.0e-7 after 40 rounds without compression, and 4.3e-7 with
Natural (q = 1/8) within EF21. With TopK of 10 %, QSGD with 8 levels and Sign within EF21 it grows,
to 0.75, 9.7e3 and 2.8e5. Without momentum (beta = 0), where no compression has 3.9e-5, Sign is at
4.1e-5 and QSGD at 2.1e-3, and only TopK grows, to 0.24. Compressed differences from the broadcast
theta cost rounds but did not diverge: with momentum QSGD is at 4.7e-5, Sign at 3.5e-4 and TopK at
2.4e-3. Without a memory Natural stays at 1e-2. No proof is known for any of these
(docs/dualfl_compression.py).

Nonconvex f_j have no such theory. A fixed point has nu zeta_j = grad f_j(theta), so it is
stationary for F, but theta must also be the global minimiser of f_j - nu <zeta_j, x> for each j,
where f_j is equal to its convex envelope. For two clients x^2/2 + a cos(2x + b_j), minimised on a
grid, with nu = 0.2 and beta = 0, it ends at F's minimum where both are (a = 0.2, convex; a = 0.3, b
= 0.3, 0.5; a = 0.5, b = 0.3, 0.5), and never settles where one is not: with a = 0.3 and b = 0, 1.5
theta still moves between -0.05 and 0.53 after 2,000 rounds (docs/dualfl_nonconvex.py). A
`regularization` that makes each f_j convex changes the solution.

Not for: clients whose steep directions are unrelated (FiveGCS or tuned FedDyn are faster there),
nonconvex losses, and clients for whom a local minimisation costs too much.

Source: Jongho Park, Jinchao Xu, "DualFL: A Duality-Based Federated Learning Algorithm with
Communication Acceleration in the General Convex Regime", 2023 (arXiv:2305.10294), Algorithm 1,
Theorems 3.2, 3.3, 4.2. The block and accelerated forms of their dual problem (6.4), psi, and the
computable form of their gap are reconstructed. docs/dualfl_sampling.md proves the accelerated
form's rate.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.strategies.families.dual import DualProximalGradient
from flower_fedcon.strategies.families.dual_states import AcceleratedState, PlainState
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

DualFLState: TypeAlias = PlainState | AcceleratedState


class DualFL(DualProximalGradient[DualFLState]):
    """DualFL, exact under heterogeneity.

    Parameters
    ----------
    strong_convexity : float, optional
        nu > 0, at most the clients' mu (plus `regularization`), which is the default.
    momentum : float or "auto", optional
        rho. By default nu/L, and 0 if L is unknown, in the block form and with psi in the clients'
        problems, where it must be 0. From nu/L to 1 the paper's form runs with a warning, since
        neither a rate nor convergence is proved. For large L/mu the value 0 often reaches a low
        accuracy sooner.
    regularizer : Regularizer, optional
        psi: at the server in the accelerated form, else in each client's problem, where the local
        solver must know its prox.
    form : {"paper", "accelerated", "block"}, optional
        By default the paper's with everyone present, `reply_rate` 1 and no `regularizer`, else the
        accelerated.
    reply_rate : float (default: 1.0)
        In (0, 1]: the probability that a client replies when asked, independently of the others;
        for different clients the smallest. Rounds without any reply change nothing, which p
        accounts for. With a value below the true one the method is slower; with a larger one no
        rate is proved.
    local_solver : str or LocalSolver (default: "exact")
        The solver of step 2.
    stopping : {"solver", "gap"} (default: "solver")
        When a local solve ends: by its solver's own rule, or earlier by the gap rule. The gap rule
        is not available in the block form, nor with psi in the clients' problems.
    gap_gamma : float (default: 0.1)
        gamma > 0 of the gap rule.
    regularization : float (default: 0.0)
        alpha >= 0 adds alpha/2 ||x||^2 to every f_j, for f_j that are not strongly convex.
    mirror : bool (default: True)
        Keep the clients' states on the server; False resets all clients when one is lost.

    Raises
    ------
    ConfigError
        If an argument is out of range or not for this form, or nu is unknown.
    ParticipationError
        If the paper's form is requested under sampling.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, Sample, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(q * np.eye(1), np.array([b])) for q, b in ((1.0, 4.0), (2.0, 2.0))]
    >>> history = simulate(DualFL(), FederatedProblem(clients), num_rounds=40)
    >>> history.x.round(9)  # 6/3
    array([2.])
    >>> sampled = DualFL(participation=Sample(count=1))
    >>> simulate(sampled, FederatedProblem(clients), num_rounds=80).x.round(9)
    array([2.])
    """

    name = "dualfl"
    needs_fresh = "its acceleration assumes that all replies are to one model"
    scope = Scope("convex")  # and `regularization` makes them strongly convex
    uplink = ("theta",)
    needs_uncompressed = (
        "its momentum multiplies the errors: with it F - F* grew, within EF21, with TopK, Sign and "
        "QSGD"
    )
    needs_mean = "theta must stay the mean of all z_j, the dual variables"
    needs_uniform = "its theory needs uniform cohorts"
    needs_convex = "it works on the dual problem, which holds the conjugate of psi"
    release = Release("without mirror", about={"theta": "theta"})
    needs_independent = "its momentum gives each round a different weight"

    def initialize(self, x0: Array) -> DualFLState:
        """Start at x0."""
        form, n, zero = self.constants.form, self.setup.num_clients, np.zeros_like(x0)
        start = {"z": x0} | {"paper": {"c": zero}, "accelerated": {"e": zero}, "block": {}}[form]
        mirror = self.mirrored(self.mirror, **start)
        if form == "accelerated":
            return AcceleratedState(x0, zero, x0, np.zeros(n), np.ones(n), mirror)
        return PlainState(x0, x0, mirror)

    def expects(self, state: DualFLState) -> tuple[str, ...]:
        """Return the names of step 3's uploads."""
        return ("delta",) if self.constants.accelerated else self.uplink

    def broadcast(self, state: DualFLState) -> Payload:
        """Step 1."""
        return state.broadcast(self.constants)

    def personal(self, state: DualFLState, client: int, ack: int) -> Payload:
        """Send a client its start, in its first round since the run's start or a reset."""
        return {"origin": state.origin} if ack <= state.start else state.personal(client)

    def aggregate(self, state: DualFLState, uploads: Uploads) -> DualFLState:
        """Step 4."""
        return state.after(self.constants, uploads)

    def model(self, state: DualFLState) -> Array:
        """Return theta, or prox(z + e, 1/nu)."""
        return state.model(self.constants)

    def needs_whole_cohort(self) -> bool:
        """In the paper's form step 4 is the mean of all theta_j."""
        return self.constants.form == "paper"

    def reset(self, state: DualFLState) -> DualFLState:
        """Start again, with the same vector for all."""
        return state.again()
