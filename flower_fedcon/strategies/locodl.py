r"""LoCoDL: local steps and unbiased compression, with double acceleration.

    min_x (1/N) sum_i f_i(x),   f_i mu-strongly convex and L-smooth

Round r = 1, 2, ..., from x_i = y = x0 and u_i = v = 0, with g = (s mu/2) ||x||^2, fi = f_i - g:
    1. server:    draw K_r ~ Geometric(p) on {1, 2, ...};  broadcast K_r and the last round's d_bar
    2. client i:  x_i := (1 - rho) x_i + rho (y + d_bar);  u_i := u_i + w (d_bar - d_i)
                  y := y + rho d_bar;  v := v + w d_bar          (y and v on the server, too)
    3. client i:  K_r times  x_i := x_i - gamma (grad fi(x_i) - u_i)
                             y := y - gamma (grad g(y) - v)      (on the server, too)
    4. upload d_i = C_i(x_i - y)
    5. server:    d_bar = (1/(2N)) sum d_i

The model is y, after step 2. C_i is unbiased, with variance omega: E||C(x) - x||^2 <= omega
||x||^2. rho = 1/(1 + omega/N), w = p rho/(gamma (1 + 2 omega)). By default gamma = 2/(L~ + mu~), L~
= L - s mu and mu~ = (1 - s) mu, and p balances both terms of the rate, p = min(1, sqrt((1 - (1 -
gamma mu~)^2) (1 + 2 omega)/rho)): two to three times fewer rounds than the paper's p = sqrt((1 +
omega/N) (1 + omega) mu/L). Always mean u_i + v = 0.
Symbols: s = share, gamma = client_lr, p = communication_probability, mu = strong_convexity, C_i =
uplink_compressor.

State: x_i, u_i, d_i and copies of y and v on the client; y, v, d_bar and a mirror of the u_i (N d
numbers) on the server.
Wire: 1 vector and 1 number down; 1 compressed vector up.
Participation: full.
Lost state: u_i comes from the mirror, y and v come from the server, and x_i := y. A single client
that returned with u_i = 0 would bias the run forever.

Not for: absent clients, and a psi or a constraint.

Source: Laurent Condat, Artavazd Maranjyan, Peter Richtárik, "LoCoDL: Communication-Efficient
Distributed Learning with Local Training and Compression", ICLR 2025 (arXiv:2403.04348). The steps
and the mirror are reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Unpack

import numpy as np

from flower_fedcon.compressors import Compressor, dense
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.families.compression import unbiased
from flower_fedcon.strategies.families.random_rounds import CoinOptions, RandomRounds
from flower_fedcon.validation import Array, optional, positive
from flower_fedcon.wire.payloads import Payload


class LoCoDLState(NamedTuple):
    """The server's state."""

    y: Array  # global model, shape of x0
    v: Array  # its control variate, shape of x0
    d_bar: Array  # mean d of the last round, shape of x0
    r: int  # the coming round, from 1
    mirror: Mirror  # the u_i, by the name "u"


class LoCoDLConstants(NamedTuple):
    """Constants that follow from the setup."""

    client_lr: float  # gamma
    communication_probability: float  # p
    pull: float  # s mu, of g
    relaxation: float  # rho
    dual_lr: float  # w


class LoCoDL(RandomRounds[LoCoDLState]):
    """Accelerated local training with compression.

    Parameters
    ----------
    uplink_compressor : Compressor, optional
        C_i, unbiased; by default `Identity()`.
    share : float (default: 0.5)
        s in (0, 1), the share of the strong convexity that g takes.
    strong_convexity : float, optional
        mu > 0, or less than the true one; by default the value that the clients state.
    client_lr : float or "auto", optional
        gamma > 0, less than 2/L~; by default 2/(L~ + mu~).
    communication_probability : float or "auto", optional
        p in (0, 1]; by default as above.

    Raises
    ------
    ConfigError
        If an argument is out of range, or is left out without a default for these clients.
    ParticipationError
        If the participation leaves clients out.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.compressors import RandK
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(q * np.eye(2), np.array([4.0, 8.0])) for q in (1.0, 3.0)]
    >>> strategy = LoCoDL(uplink_compressor=RandK(count=1))
    >>> simulate(strategy, FederatedProblem(clients), num_rounds=300).x.round(9)
    array([2., 4.])
    """

    name = "locodl"
    scope = Scope("strong")
    uplink = ("d",)
    needs_gradient = "its steps subtract g's gradient, a share of f_i's, from the whole gradient"
    needs_constant_lr = "its duals move by the step length of the round before"
    needs_uncompressed = "it has its own, uplink_compressor"
    needs_mean = "the u_i and v balance only if d_bar is half the mean of the d_i"
    release = Release(single="its mirror needs each client's own upload")
    needs_everyone = "all clients share one coin, and y and v"
    constants: LoCoDLConstants

    def __init__(
        self,
        *,
        uplink_compressor: Compressor | None = None,
        share: float = 0.5,
        strong_convexity: float | None = None,
        **coin: Unpack[CoinOptions],
    ) -> None:
        super().__init__(**coin)
        self.uplink_compressor = unbiased("uplink_compressor", uplink_compressor)
        self.share = positive("share", share)
        self.strong_convexity = optional(positive, "strong_convexity", strong_convexity)
        if self.share >= 1:
            raise ConfigError(f"share must be in (0, 1), got {share!r}")

    def usual_client_lr(self) -> float:
        """Return 2/(L~ + mu~)."""
        mu = self.modulus_for(self.strong_convexity)
        L = self.smoothness_for("client_lr", "less than 2/L")
        return 2 / (L - self.share * mu + (1 - self.share) * mu)

    def usual_probability(self) -> float:
        """Return the p that balances both terms of the rate."""
        omega, rho = self._noise()
        left = (1 - self.share) * self.modulus_for(self.strong_convexity)
        rate = (1 - (1 - self.client_lr * left) ** 2) * (1 + 2 * omega) / rho
        return math.sqrt(min(1.0, rate)) if rate > 0 else 1.0

    def _noise(self) -> tuple[float, float]:
        """Return omega and rho."""
        omega = self.uplink_compressor.q(self.setup.layout.size)
        return omega, 1 / (1 + omega / self.setup.num_clients)

    def derive(self) -> LoCoDLConstants:
        """Set rho and w."""
        (omega, rho), mu = self._noise(), self.modulus_for(self.strong_convexity)
        gamma, p = self.client_lr, self.communication_probability
        w = p * rho / (gamma * (1 + 2 * omega))
        return LoCoDLConstants(gamma, p, self.share * mu, rho, w)

    def initialize(self, x0: Array) -> LoCoDLState:
        """Start at x0, with all other variables 0."""
        zero = np.zeros_like(x0)
        return LoCoDLState(x0, zero, zero, 1, Mirror.of(self.setup.num_clients, u=zero))

    def broadcast(self, state: LoCoDLState) -> Payload:
        """Step 1."""
        return {"d_bar": state.d_bar, "steps": self.steps_of(state.r)}

    def first_contact(self, state: LoCoDLState, client: int) -> Payload:
        """Return the common start."""
        return {"y": state.y}

    def readmit(self, state: LoCoDLState, client: int) -> tuple[LoCoDLState, Payload]:
        """Return a client's state, except for x_i."""
        return state, {"y": state.y, "v": state.v, **state.mirror.row(client)}

    def decode(self, name: str, parts: Mapping[str, Array]) -> Any:
        """Return a compressed upload from its arrays in a message."""
        layout = self.setup.layout
        return self.uplink_compressor.decode(parts, layout.shape, np.dtype(layout.dtype))

    def aggregate(self, state: LoCoDLState, uploads: Uploads) -> LoCoDLState:
        """Step 3 for y, step 5, and step 2 of the next round."""
        gamma, _, pull, rho, w = self.constants
        y = state.y
        for _ in range(self.steps_of(state.r)):
            y = y - gamma * (pull * y - state.v)
        d_bar = uploads.mean("d") / 2
        after = LoCoDLState(y + rho * d_bar, state.v + w * d_bar, d_bar, state.r + 1, state.mirror)
        u = np.stack([w * (d_bar - dense(d)) for d in uploads["d"]])
        state.mirror.add(uploads.clients, u=u)
        return after
