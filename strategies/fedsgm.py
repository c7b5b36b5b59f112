r"""FedSGM, the federated switching gradient method: a functional constraint, compressed messages.

    min_w (1/N) sum_j f_j(w)   s.t. g(w) = (1/N) sum_j g_j(w) <= 0,   all convex and Lipschitz

Round t = 0, 1, ..., for a cohort S:
    1. broadcast w_t; client j answers with the number g_j(w_t)
    2. server:    ghat = mean_S g_j(w_t), z = ghat - eps; broadcast sigma_t =
                  1 if z > 0 else 0 (hard)    or    min(1, max(0, 1 + beta z)) (soft)
    3. client j:  v = w_t;  E times  v := v - eta ((1 - sigma_t) grad f_j(v) + sigma_t grad g_j(v))
    4. upload Delta_j = C_j((w_t - v)/eta)
    5. server:    w_{t+1} = w_t - eta mean_S Delta_j
    output        w_bar = sum_t (1 - sigma_t) w_t / sum_t (1 - sigma_t)

Symbols: eta = client_lr, E = local_steps, eps = tolerance, beta = sharpness, C_j = uplink, C_0 =
downlink. One formula for w_bar serves both switches: 1 - sigma_t is 0 wherever ghat > eps. If no
round has weight, w_bar is the last w. Minibatches replace grad f_j alone; g_j is always evaluated
in full.

Error feedback, whenever C_j is not unbiased or C_0 is not the identity: the server also keeps an
exact x, from x_0 = w_0, client j what compression has held back, e_j = 0 at first, and
    4'. Delta_j = C_j(e_j + (w_t - v)/eta),   e_j := e_j + (w_t - v)/eta - Delta_j
    5'. x_{t+1} = x_t - eta mean_S Delta_j,   m_t = C_0(x_{t+1} - w_t),   w_{t+1} = w_t + m_t
Every compressor must then be contractive: RandK goes without its factor d/K. The increment m_t goes
to the clients that have just built on w_t; any other gets w_{t+1} itself when it is next asked. All
iterates are those of a broadcast of m_t to everybody.

Participation: any. Under sampling ghat is an estimate, and g(w_bar) <= eps holds only up to its
error; the theory is for full participation, and second-hand for hard switching under sampling.

Lost state: nothing without error feedback. With it the client starts again from a dense w_t and
e_j = 0: x - (eta/N) sum e_j moves once, and no bias stays.

Source: Upadhyay, Moon, Hashemi, "Switching Gradient Methods for Constrained Federated
Optimization", OPT workshop 2025, Algorithm 1. The weights of the soft average are reconstructed:
its proof forces them. Sampling and error feedback are second-hand, from accounts of the paper's
long version, and assembled with Islamov, As, Fatkhullin, "Safe-EF", ICML 2025 (here: E = 1, hard).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.card import Sheet
from flower_fedcon.clients.fedsgm import dense
from flower_fedcon.compressors import Compressor, Identity, RandK, as_compressor
from flower_fedcon.core import rng as streams
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import Array, choice, count, positive
from flower_fedcon.wire.payloads import Payload, flatten

_EXACT = Identity()
_log = logging.getLogger("flwr")


class FedSGMState(NamedTuple):
    """The server's state."""

    x: Array  # exact model, shape of x0; w itself without error feedback
    w: Array  # what the clients work with, shape of x0
    t: int  # rounds done
    increment: Payload  # m of the last round, as it crosses the wire; only with error feedback
    used: Array  # the clients that sent the last round's uploads, shape (|S|,)
    weighted: Array  # sum of (1 - sigma_t) w_t, shape of x0
    weight: float  # sum of 1 - sigma_t
    estimate: float  # ghat of the last query
    sigma: float  # the switch that it gave
    violations: int  # rounds that began with ghat > eps


class FedSGM(FedConStrategy[FedSGMState]):
    """The federated switching gradient method.

    The objectives need `constraint_value(x)` and `constraint_gradient(x)` (`NeymanPearson` has
    them). A history has the columns "constraint_estimate" (ghat of the round), "sigma" and
    "violations" (rounds so far that began with ghat > eps), and the output "average" (w_bar).

    Parameters
    ----------
    client_lr : float
        eta > 0.
    local_steps : int
        E >= 1.
    tolerance : float
        eps > 0, what g may exceed 0 by.
    switching : {"soft", "hard"} (default: "soft")
        Weigh the gradients of f and g near the tolerance, or take one of them.
    sharpness : float, optional
        beta > 0 of the soft switch; by default 2/eps, the least that the theory allows.
    uplink : Compressor, optional
        C_j, for what clients upload; by default `Identity()`.
    downlink : Compressor, optional
        C_0, for the change of the model; by default `Identity()`.
    participation, batch_size, min_replies
        As for every strategy: see `FedConStrategy`.

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
    downlink = ("w",)
    uplink = ("delta",)
    queries = ("constraint",)
    client_settings = (
        "client_lr",
        "local_steps",
        "uplink_compressor",
        "downlink_compressor",
        "feedback",
        "batch_size",
    )
    sheet = Sheet(
        title="FedSGM",
        problem="min F subject to (1/N) sum g_j <= 0",
        update="server: sigma = switch(mean_S g_j(w) - eps)\n"
        "client: E times v := v - eta ((1 - sigma) grad f_j(v) + sigma grad g_j(v)), from w\n"
        "server: w := w - eta mean_S C_j((w - v_j)/eta), with error feedback if C_j is biased",
        state="none on the client, with error feedback w and e_j; x, w and the average's sums on "
        "the server",
        down="1 vector (compressed with error feedback), 1 number",
        up="1 vector (compressed), 1 number",
        participation="any; sampled: feasible up to the error of the sampled constraint",
        lost_state="nothing to lose; with error feedback e_j = 0, which leaves no bias",
        paper="Upadhyay, Moon, Hashemi, OPT workshop 2025, Algorithm 1",
    )

    def __init__(
        self,
        *,
        client_lr: float,
        local_steps: int,
        tolerance: float,
        switching: str = "soft",
        sharpness: float | None = None,
        uplink: Compressor = _EXACT,
        downlink: Compressor = _EXACT,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.client_lr = positive("client_lr", client_lr)
        self.local_steps = count("local_steps", local_steps)
        self.tolerance = positive("tolerance", tolerance)
        self.switching = choice("switching", switching, ("soft", "hard"))
        self.sharpness = positive(
            "sharpness", 2 / self.tolerance if sharpness is None else sharpness
        )
        self.uplink_compressor = as_compressor(uplink)
        self.downlink_compressor = as_compressor(downlink)

    @property
    def feedback(self) -> bool:
        """Whether this is the form with error feedback."""
        exact = isinstance(self.downlink_compressor, Identity)
        return not (exact and self.uplink_compressor.unbiased)

    def arguments(self) -> dict[str, Any]:
        """Return the hyperparameters, by argument name."""
        return {k.removesuffix("_compressor"): v for k, v in super().arguments().items()}

    def initialize(self, x0: Array) -> FedSGMState:
        """Start at x_0 = w_0 = x0."""
        if self.feedback:
            self.uplink_compressor = contractive(self.uplink_compressor, x0.size)
            self.downlink_compressor = contractive(self.downlink_compressor, x0.size)
        else:
            self.uplink_compressor.q(x0.size)  # refuses more entries than there are
        nobody = np.empty(0, dtype=np.int64)
        return FedSGMState(x0, x0, 0, {}, nobody, np.zeros_like(x0), 0.0, 0.0, 0.0, 0)

    def broadcast(self, state: FedSGMState) -> Payload:
        """Step 1; with error feedback see `personal`."""
        return {} if self.feedback else {"w": state.w}

    def personal(self, state: FedSGMState, client: int, ack: int) -> Payload:
        """Return the increment to a client that holds the w before it, else w."""
        if not self.feedback:
            return {}
        return state.increment if client in state.used else {"w": state.w}

    def after_query(self, state: FedSGMState, answers: Uploads) -> tuple[FedSGMState, Payload]:
        """Step 2."""
        estimate = answers.mean_number("constraint")
        sigma = self.switch(estimate - self.tolerance)
        return state._replace(estimate=estimate, sigma=sigma), {"sigma": sigma}

    def switch(self, z: float) -> float:
        """Return sigma(z), the weight of the constraint."""
        if self.switching == "hard":
            return float(z > 0)
        return min(1.0, max(0.0, 1.0 + self.sharpness * z))

    def aggregate(self, state: FedSGMState, uploads: Uploads) -> FedSGMState:
        """Step 5 or 5', and the sums of the average."""
        x = w = state.x - self.client_lr * uploads.mean("delta")
        increment: Payload = {}
        if self.feedback:
            rng = self.setup.rng(streams.COMPRESS, state.t + 1)
            m = self.downlink_compressor.compress(x - state.w, rng)
            w = state.w + dense(m)
            increment, _ = flatten({"increment": m})
        weight = 1.0 - state.sigma
        return state._replace(
            x=x,
            w=w,
            t=state.t + 1,
            increment=increment,
            used=np.array(uploads.clients),
            weighted=state.weighted + weight * state.w,
            weight=state.weight + weight,
            violations=state.violations + (state.estimate > self.tolerance),
        )

    def model(self, state: FedSGMState) -> Array:
        """Return the last w."""
        return state.w

    def report(self, state: FedSGMState) -> dict[str, float]:
        """Return ghat and sigma of the round, and the number of violating rounds so far."""
        return {
            "constraint_estimate": state.estimate,
            "sigma": state.sigma,
            "violations": state.violations,
        }

    def outputs(self, state: FedSGMState) -> dict[str, Array]:
        """Return w_bar, or the last w if no round counts."""
        if state.weight == 0:
            _log.warning(
                "the constraint was above the tolerance in every round: the average is the last "
                "model (more rounds, a larger client_lr or a larger tolerance would help)"
            )
            return {"average": state.w}
        return {"average": state.weighted / state.weight}

    def readmit(self, state: FedSGMState, client: int) -> tuple[FedSGMState, Payload]:
        """Return w where clients keep a copy; e_j starts again from 0."""
        return state, {"w": state.w} if self.feedback else {}

    def decode(self, name: str, parts: Mapping[str, Array]) -> Any:
        """Return Delta_j from its arrays in a message."""
        layout = self.setup.layout
        return self.uplink_compressor.decode(parts, layout.shape, np.dtype(layout.dtype))


def contractive(compressor: Compressor, size: int) -> Compressor:
    """Return the compressor in its contractive form, for arrays of `size` entries."""
    if isinstance(compressor, RandK):
        compressor = replace(compressor, scaled=False)
    q = compressor.q(size)
    if compressor.unbiased and q >= 1:
        raise ConfigError(
            f"FedSGM with error feedback needs contractive compressors, and the error of "
            f"{compressor!r} on {size} entries can be {q:.3g} ||x||^2: use TopK or RandK, or QSGD "
            "with more levels"
        )
    return compressor
