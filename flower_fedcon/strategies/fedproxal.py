r"""FedProxAL: an augmented Lagrangian for each client's own convex constraint.

    min_w (1/N) sum_j f_j(w) + psi(w)   s.t. c_j(w) <= 0 for each client j,   all convex

Rounds of the stage k = 0, 1, ..., with the anchor w_k, from w_0 = x0 and mu_j = 0:
    1. broadcast w and k;  client j gets mu_j
    2. client j:  first of a stage:  u_j = w;  lambda_j = -grad P_j(w)
                  else:  r_j = ||grad P_j(w) + lambda_j - rho (w - u_j)||_inf
                         u_j := argmin_u P_j(u) + <lambda_j, u - w> + (rho/2) ||u - w||^2
                         lambda_j := lambda_j + rho (u_j - w)
    3. upload u_j + lambda_j/rho, r_j and c_j(w)
    4. server:    if sum r_j <= s/(k+1)^2:  w_{k+1} = w;  mu_j := [mu_j + beta c_j(w)]_+
                  else:  w := argmin_w psi(w) + (kappa/2) ||w - w_k||^2
                                       + sum_j (rho/2) ||w - u_j - lambda_j/rho||^2

Here P_j(w) = f_j(w)/N + ([mu_j + beta c_j(w)]_+^2 - mu_j^2)/(2 beta) + (kappa/2) ||w - w_k||^2. A
stage is a proximal step of the method of multipliers; its rounds are ADMM steps for psi + sum P_j.
kappa = 1/((N+1) beta) for a given beta. At the limit mu_j >= 0, mu_j c_j(w) = 0, and 0 lies in mean
grad f_j + sum mu_j grad c_j + the subdifferential of psi. FedSGM is the alternative: it satisfies
the mean of the constraints up to a tolerance, and has no multipliers.

Symbols: beta = penalty, rho = coupling, s = accuracy. The default of rho is L/N. If penalty is left
out, beta = G^2/L, kappa = L/(100 (N+1)) and s = G/20, where G = max_i ||grad f_i(x0)||. The run is
then the same in any unit of F and of x. Only the unit of the c_j matters: clear violations should
be about 1.

State: u_j, lambda_j and w_k on the client; w, w_k and the mu_j (N numbers) on the server.
Wire: 1 vector and 2 numbers down; 1 vector and 2 numbers up.
Participation: full.
Lost state: the client begins the stage anew, at the w of the round and with the server's w_k; the
mu_j are never lost.

A shared constraint, sum_j c_j(w) <= 0, cannot be given directly: [mu + beta sum_j c_j(w)]_+^2 is
not a sum over clients, as ADMM needs. Put numbers z_j into the model instead: c_j(w) - z_j <= 0 is
client j's own constraint, and the half-space sum_j z_j <= 0 is part of psi. A constraint of the
server is a set in psi.

Not for: clients that come and go, since everyone answers each round. FedSGM bounds a mean.

Source: Chuan He, Le Peng, Ju Sun, "Federated Learning with Convex Global and Local Constraints",
TMLR 2024 (arXiv:2310.10117), without the server's constraints; the steps are reconstructed, and the
solver sets the local accuracy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.strategies.families.multipliers import Multipliers
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedProxALState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    anchor: Array  # w_k, shape of x0
    k: int  # the stage, from 0
    multipliers: Array  # the mu_j, shape (N,)
    worst: float  # the largest c_j(w) of the last round's broadcast


class FedProxAL(Multipliers[FedProxALState]):
    """The proximal augmented Lagrangian method.

    An objective's constraint is `constraint_value(x)` <= 0, with `constraint_gradient(x)`. Each
    client's own constraint must hold, not their mean: the problem is
    `FederatedProblem(..., constraints="each")`. Clients without a constraint are not bound. A
    history has the columns "stage" and "worst_constraint".

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet, optional
        psi, on the server only.
    penalty : float, optional
        beta > 0, in the unit of F over that of c_j squared. A larger value needs fewer stages, but
        more rounds in each. Without it beta and kappa follow from L and the clients' gradients at
        the start.
    coupling : float or "auto", optional
        rho > 0; by default L/N.
    accuracy : float, optional
        s > 0, the accuracy of the first stage, in the unit of gradients. By default 1 with a
        penalty, else a twentieth of the longest gradient at the start.

    Raises
    ------
    ConfigError
        If an argument is out of range, or L or gradients that a default needs are unknown.
    ParticipationError
        If the participation leaves clients out.

    Examples
    --------
    The minimum of (x - 1)^2 / 2 over x <= 0, the first client's constraint:

    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> class Bounded(Quadratic):
    ...     def constraint_value(self, x):
    ...         return x[0]
    ...     def constraint_gradient(self, x):
    ...         return np.ones(1)
    >>> clients = [kind(np.eye(1), np.ones(1)) for kind in (Bounded, Quadratic)]
    >>> problem = FederatedProblem(clients, constraints="each")
    >>> abs(simulate(FedProxAL(), problem, num_rounds=100).x.item()) < 1e-3
    True
    """

    name = "fedproxal"
    scope = Scope("convex")
    uplink = ("z", "residual", "constraint")
    numbers = ("residual", "constraint")
    needs_uncompressed = "its multipliers follow each client's own constraint, for exact steps"
    needs_convex = "its multipliers are those of a convex problem"
    release = Release(single="each client has a multiplier of its own")
    needs_mean = needs_everyone = "w minimises a sum over all clients"
    constraints = "each"

    def initialize(self, x0: Array) -> FedProxALState:
        """Start at x0, with mu_j = 0."""
        return FedProxALState(x0, x0, 0, np.zeros(self.setup.num_clients), 0.0)

    def broadcast(self, state: FedProxALState) -> Payload:
        """Step 1, the part for all clients."""
        return {"w": state.w, "stage": state.k}

    def personal(self, state: FedProxALState, client: int, ack: int) -> Payload:
        """Step 1, the part for one client."""
        return {"multiplier": float(state.multipliers[client])}

    def aggregate(self, state: FedProxALState, uploads: Uploads) -> FedProxALState:
        """Step 4."""
        residuals, c = uploads["residual"], np.array(uploads["constraint"])
        worst = float(c.max())
        beta, rho, kappa, s = self.constants
        if min(residuals) >= 0 and sum(residuals) <= s / (state.k + 1) ** 2:
            multipliers = np.maximum(0.0, state.multipliers + beta * c)
            return FedProxALState(state.w, state.w, state.k + 1, multipliers, worst)
        weight = kappa + rho * uploads.num_clients
        center = (kappa * state.anchor + rho * uploads.sum("z")) / weight
        return state._replace(w=self.regularizer.prox(center, 1 / weight), worst=worst)

    def report(self, state: FedProxALState) -> dict[str, float]:
        """Return the stage, and the largest c_j at the round's broadcast model."""
        return {"stage": float(state.k), "worst_constraint": state.worst}

    def readmit(self, state: FedProxALState, client: int) -> tuple[FedProxALState, Payload]:
        """Return w_k."""
        return state, {"anchor": state.anchor}
