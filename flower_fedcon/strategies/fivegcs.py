r"""5GCS: local training with client sampling, for strongly convex objectives.

    min_x (1/N) sum_m f_m(x),   f_m mu-strongly convex and L-smooth

Round, for a cohort S of C clients, with F_m(x) = (1/N) (f_m(x) - (mu/2) ||x||^2):
    1. server:    xhat = (x - gamma v)/(1 + gamma mu); broadcast xhat
    2. client m:  y ~ argmin F_m(y) + (tau/2) ||y - (xhat + u_m/tau)||^2, started at xhat
    3.            upload Delta_m = grad F_m(y) - u_m;  u_m := u_m + Delta_m
    4. server:    x := xhat - gamma (N/C) sum_S Delta_m;  v := v + sum_S Delta_m

Symbols: gamma = primal_lr, tau = dual_lr. N/C scales the step of x, not of v. C is the drawn size,
even if replies are missing. u_m and v start at 0, x at x0; v = sum u_m over all clients, and at the
optimum u_m = grad F_m, v = -mu x. The model is xhat.

By default gamma = (3/16) sqrt(C/(L mu N)) and tau = 1/(2 gamma N), which is then
(8/3) sqrt(L mu/(N C)). O((N/C + sqrt(N kappa/C)) log(1/eps)) rounds, kappa = L/mu, if step 2 makes
K >= ((3/4) sqrt(C L/(N mu)) + 2) log(4 kappa) gradient steps. A client solves N times step 2:
f_m(y) + ((N tau - mu)/2) ||y - xhat||^2 - <N u_m + mu xhat, y>, which needs N tau >= mu.

State: u_m on the client; x, v and a mirror of the u_m on the server (N d numbers).
Wire: 1 vector down (without mirror also 1 number); 1 vector up.
Participation: cohorts of one size, uniform.
First contact: with u_m = 0, which v contains until then.
Compression: EF21, of Delta_m, whose memory is u_m: it moves by the decoded upload, and v stays the
sum of the u_m. The fixed point is the same.
Lost state: as in FedDyn. The server repeats step 3's update (a mirror, N d numbers); without the
mirror all clients start again with u_m = v = 0 and the same xhat.

Not for: cohorts of varying size, a psi or a constraint, and objectives without strong convexity.

Source: Michał Grudzień, Grigory Malinovsky, Peter Richtárik, "Can 5th Generation Local Training
Methods Support Client Sampling? Yes!", AISTATS 2023 (arXiv:2212.14370), Algorithm 1. The steps are
reconstructed; they reach the optimum to machine precision for every C, also with inexact local
solves. Re-entry is reconstructed too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.participation import Sample
from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.families.control_variates import ControlVariates, VariateOptions
from flower_fedcon.strategies.families.ladders import between, condition
from flower_fedcon.validation import Array, chosen, optional, positive
from flower_fedcon.wire.payloads import Payload


class FiveGCSState(NamedTuple):
    """The server's state."""

    x: Array  # shape of x0
    v: Array  # sum of all u_m, shape of x0
    resets: int  # number of collective resets to u_m = 0
    mirror: Mirror | None  # the clients' u_m, by the name "variate"


class FiveGCSConstants(NamedTuple):
    """Constants that follow from the setup."""

    mu: float
    gamma: float
    tau: float
    cohort_size: int  # C


class FiveGCS(ControlVariates[FiveGCSState]):
    """5GCS, the fifth generation of local training with client sampling.

    Parameters
    ----------
    smoothness : float, optional
        L, used only for the default of primal_lr; by default the value that the clients state.
    strong_convexity : float, optional
        mu > 0, or less than the true one; by default the value that the clients state.
    primal_lr : float or "auto", optional
        gamma > 0; by default (3/16) sqrt(C/(L mu N)).
    dual_lr : float or "auto", optional
        tau >= mu/N; by default 1/(2 gamma N).
    mirror : bool (default: True)
        Keep the clients' u_m on the server, for clients that lose their state.
    local_solver : str or LocalSolver (default: "exact")
        The local solver and its accuracy: see `flower_fedcon.solvers`.

    Raises
    ------
    ConfigError
        If an argument is out of range, or is left out without a default for these clients.
    ParticipationError
        If cohorts vary in size.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, Sample, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(2 * np.eye(1), np.zeros(1)), Quadratic(np.eye(1), np.array([3.0]))]
    >>> strategy = FiveGCS(participation=Sample(count=1))
    >>> simulate(strategy, FederatedProblem(clients), num_rounds=150).x.round(9)
    array([1.])
    """

    name = "fivegcs"
    needs_fresh = "its theory needs uniform cohorts at one model"
    title = "5GCS"
    scope = Scope("strong")
    uplink = ("delta",)
    needs_mean = "v must stay the sum of all u_m"
    needs_uniform = "its theory needs uniform cohorts"
    needs_uncompressed = ""
    release = Release("without mirror")
    needs_independent = "its model weighs the last round and the sum of all rounds differently"
    constants: FiveGCSConstants

    def __init__(
        self,
        *,
        smoothness: float | None = None,
        strong_convexity: float | None = None,
        primal_lr: float | str | None = None,
        dual_lr: float | str | None = None,
        **common: Unpack[VariateOptions],
    ) -> None:
        super().__init__(**common)
        self.smoothness = optional(positive, "smoothness", smoothness)
        self.strong_convexity = optional(positive, "strong_convexity", strong_convexity)
        self.primal_lr = chosen(positive, "primal_lr", primal_lr)
        self.dual_lr = chosen(positive, "dual_lr", dual_lr)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for gamma and tau."""
        return {
            "primal_lr": self._primal_lr,
            "dual_lr": lambda: 1 / (2 * self.primal_lr * self.setup.num_clients),
        }

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return the gamma that a race tries: 3 sqrt(p)/L to 3 kappa^(1/5) times the rule's."""
        kappa, L = condition(self.setup), self.smoothness or self.setup.smoothness
        if name != "primal_lr" or kappa is None or not L:
            return super().ladder(name, value)
        return between(value, 3 * math.sqrt(self.setup.rate) / L, 3 * kappa**0.2 * value)

    def _primal_lr(self) -> float:
        n, mu = self.setup.num_clients, self.modulus_for(self.strong_convexity)
        about = "or primal_lr, about 3/16 sqrt(C/(L mu N))"
        L = self.smoothness or self.smoothness_for("smoothness", about)
        return 3 / 16 * math.sqrt(self._size() / (L * mu * n))

    def _size(self) -> int:
        """Return C."""
        if self.setup.sampled and not isinstance(self.participation, Sample):
            self.refuse_participation("needs cohorts of one size", "Sample(count=...) or Full()")
        return round(self.setup.rate * self.setup.num_clients)

    def derive(self) -> FiveGCSConstants:
        """Set mu."""
        n, size = self.setup.num_clients, self._size()
        mu, gamma, tau = self.modulus_for(self.strong_convexity), self.primal_lr, self.dual_lr
        if n * tau < mu:
            raise ConfigError(
                f"dual_lr must be at least mu/N = {mu / n:.3g}, got {tau:.3g}: give a larger "
                f"dual_lr, or a smaller primal_lr if dual_lr is left to its default"
            )
        return FiveGCSConstants(mu, gamma, tau, size)

    def initialize(self, x0: Array) -> FiveGCSState:
        """Start at x = x0, with u_m = v = 0."""
        return FiveGCSState(x0, v=np.zeros_like(x0), resets=0, mirror=self.variates(x0))

    def broadcast(self, state: FiveGCSState) -> Payload:
        """Step 1."""
        return {"xhat": self.model(state)} | self.reset_number(state)

    def aggregate(self, state: FiveGCSState, uploads: Uploads) -> FiveGCSState:
        """Step 4; the mirror is updated like the clients."""
        dv = uploads.sum("delta")
        step = self.constants.gamma * (uploads.num_clients / self.constants.cohort_size)
        after = state._replace(x=self.model(state) - step * dv, v=state.v + dv)
        if state.mirror is not None:
            state.mirror.follow(uploads, variate="delta")
        return after

    def model(self, state: FiveGCSState) -> Array:
        """Return xhat."""
        gamma, mu = self.constants.gamma, self.constants.mu
        return (state.x - gamma * state.v) / (1 + gamma * mu)

    def reset(self, state: FiveGCSState) -> FiveGCSState:
        """Set v to 0, like the clients' u_m, and x so that xhat does not change."""
        x = (1 + self.constants.gamma * self.constants.mu) * self.model(state)
        return state._replace(x=x, v=np.zeros_like(state.v), resets=state.resets + 1)
