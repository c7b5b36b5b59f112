r"""FRECON, COFIG and DIANA: compressed differences of gradients, exact also with sampled clients.

    min_x (1/N) sum_i f_i(x) + psi(x)

Round k = 0, 1, ..., for a cohort S, from x_0 = x_{-1} = x0 and g = h = h_i = 0:
    1. broadcast x_k and x_{k-1}
    2. client i:  u_i = C_i(grad f_i(x_k) - h_i);  q_i = C_i(grad f_i(x_k) - grad f_i(x_{k-1}))
    3.            upload u_i and q_i;  h_i := h_i + alpha u_i
    4. server:    g := mean_S q_i + (1 - lambda) g + lambda (h + mean_S u_i)
                  h := h + (alpha/N) sum_S u_i;  x_{k+1} = prox(x_k - gamma g, gamma)

Variant "cofig" is COFIG: without x_{k-1} and q_i, and with g = h + mean_S u_i. With everyone in
each round this is DIANA, and without compression SAGA, whose memory of gradients is the h_i.

C_i is unbiased, with variance omega: E||C_i(v) - v||^2 <= omega ||v||^2, and alpha = 1/(1 + omega).
Symbols: gamma = step_size, lambda = mixing, C_i = uplink_compressor, prox(v, t) = argmin_x psi(x) +
||x - v||^2 / (2 t).

h is the mean of all h_i, and g estimates grad F(x_k). At a fixed point all u_i and q_i are 0, also
those of clients outside S: then h_i = grad f_i(x), g = h = grad F(x) and x = prox(x - gamma g,
gamma). So x is a stationary point of F + psi, whichever clients take part how often.

With S clients in a round on average, lambda = S/(2 (1 + omega) N), and
gamma = 1/(L (1 + sqrt(10 N) (1 + omega)/S)), the bound for nonconvex F. COFIG:
gamma = min(1/(1 + 6 v), S/((1 + omega) sqrt(N)))/L,
v = omega/S + (N - S)/(S (N - 1)), which is omega/N with everyone. If F is mu-strongly convex, x and
the h_i then converge linearly in the mean square with any convex psi, at the rate
min(gamma mu, alpha S/(2 N)).

State: h_i on the client; x, the x before, g, h and a mirror of the h_i (N d numbers) on the server.
Wire: 2 vectors down (COFIG 1, without mirror also 1 number); 2 compressed vectors up (COFIG 1).
Participation: any; the proofs are for uniform cohorts, and convergence under others is measured. A
client that was absent gets both models, so that q_i is always of the server's last step.
First contact: with h_i = 0, which h contains until then, and with both models of the server.
Lost state: h_i comes back from the mirror, and nothing is lost. Without the mirror all clients
start again from h_i = h = 0, and x and g stay (a collective reset, counted in every broadcast).

Not for: convex problems (variant "cofig" has longer steps and half the uploads), minibatches, whose
noise would stay in h_i, and contractive compressors such as TopK (Scaffold with EF21).

Source: Haoyu Zhao, Konstantin Burlachenko, Zhize Li, Peter Richtárik, "Faster Rates for Compressed
Federated Learning with Client-Variance Reduction", 2021 (arXiv:2112.13097); second-hand, from a
program of one of the authors, with one cohort for u_i and q_i. DIANA is from Konstantin Mishchenko,
Eduard Gorbunov, Martin Takáč, Peter Richtárik, "Distributed Learning with Compressed Gradient
Differences", 2019 (arXiv:1901.09269), and the step of COFIG follows from Eduard Gorbunov, Filip
Hanzely, Peter Richtárik, "A Unified Theory of SGD: Variance Reduction, Sampling, Quantization and
Coordinate Descent", AISTATS 2020 (arXiv:1905.11261). The program starts from everyone's gradient.
The start from 0, psi for FRECON, the mirror and re-entry are this collection's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Unpack

import numpy as np

from flower_fedcon.compressors import Compressor, Identity, dense
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.base import Common
from flower_fedcon.strategies.families.compression import unbiased
from flower_fedcon.strategies.families.mirrored import Mirrored
from flower_fedcon.validation import Array, choice, chosen, optional, positive
from flower_fedcon.wire.payloads import Payload


class FRECONState(NamedTuple):
    """The server's state."""

    x: Array  # global model x_k, shape of x0
    before: Array  # x_{k-1}, shape of x0
    g: Array  # estimate of the mean gradient, shape of x0
    h: Array  # mean of all h_i, shape of x0
    resets: int  # number of collective resets of the h_i to 0
    mirror: Mirror | None  # the clients' h_i, by the name "h"


class FRECONConstants(NamedTuple):
    """Constants that follow from the setup."""

    alpha: float


class FRECON(Mirrored[FRECONState]):
    """Compressed differences of gradients with client-variance reduction.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet, optional (default: None)
        psi: any object with `prox(v, step)`; a set stands for its indicator, and None for zero.
    variant : {"frecon", "cofig"} (default: "frecon")
        FRECON, or COFIG, which with everyone in each round is DIANA.
    uplink_compressor : Compressor, optional
        C_i, unbiased; by default `Identity()`.
    step_size : float or "auto", optional
        gamma > 0; by default 1/(L (1 + sqrt(10 N) (1 + omega)/S)); for COFIG see
        the module.
    mixing : float, optional
        lambda in (0, 1], of FRECON; by default S/(2 (1 + omega) N).
    mirror : bool (default: True)
        Keep the clients' h_i on the server, so that a client may lose its state.

    Raises
    ------
    ConfigError
        If an argument is out of range, or L is unknown and a default needs it.

    Examples
    --------
    Two of three clients in each round, and one of two entries of each vector:

    >>> from flower_fedcon import FederatedProblem, Sample, simulate
    >>> from flower_fedcon.compressors import RandK
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [Quadratic(np.eye(2), np.array([b, -b])) for b in (1.0, 2.0, 6.0)]
    >>> problem = FederatedProblem(clients, regularizer=L1(1.0))
    >>> half = {"uplink_compressor": RandK(count=1), "participation": Sample(count=2)}
    >>> for variant in ("frecon", "cofig"):
    ...     strategy = FRECON(problem.regularizer, variant=variant, **half)
    ...     print(simulate(strategy, problem, num_rounds=400).x.round(9))
    [ 2. -2.]
    [ 2. -2.]
    """

    name = "frecon"
    uplink = ("u", "q")
    compact = True
    needs_gradient = "its h_i become the clients' gradients, which must be those of F"
    needs_mean = "h must stay the mean of all h_i"
    needs_uniform = "h is the mean of all h_i, whichever clients take part"
    needs_uncompressed = "it has its own, uplink_compressor"
    needs_convex = ""
    needs_independent = "h would add up the noise of all rounds, and the h_i have none"
    needs_fresh = "its differences are of gradients at one model, the server's, and the one before"
    release = Release("without mirror and compression")
    constants: FRECONConstants

    def __init__(
        self,
        regularizer: Any = None,
        *,
        variant: str = "frecon",
        uplink_compressor: Compressor | None = None,
        step_size: float | str | None = None,
        mixing: float | None = None,
        mirror: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)
        self.variant = choice("variant", variant, ("frecon", "cofig"))
        self.uplink_compressor = unbiased("uplink_compressor", uplink_compressor)
        self.step_size = chosen(positive, "step_size", step_size)
        self.mixing: Any = optional(positive, "mixing", mixing)
        if mixing is not None and (mixing > 1 or self.variant == "cofig"):
            raise ConfigError(
                f'mixing must be in (0, 1], for variant="frecon", got mixing={mixing!r} with '
                f"variant={variant!r}"
            )
        self.mirror = bool(mirror)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for lambda and gamma."""
        return {"mixing": self._usual_mixing, "step_size": self._usual_step}

    def _usual_mixing(self) -> float:
        omega, _, share = self._noise()
        return share / (2 * (1 + omega))

    def _usual_step(self) -> float:
        (omega, size, _), n = self._noise(), self.setup.num_clients
        if self.variant == "cofig":
            variance = omega / size + (n - size) / (size * max(1, n - 1))
            longest = min(1 / (1 + 6 * variance), size / ((1 + omega) * math.sqrt(n)))
        else:
            longest = 1 / (1 + math.sqrt(10 * n) * (1 + omega) / size)
        return self.within_prox(longest / self.smoothness_for("step_size", "at most 1/L"))

    def _noise(self) -> tuple[float, float, float]:
        """Return omega, and the mean size of a cohort, S, also as a share of N."""
        rate = self.setup.rate
        return self._omega(), rate * self.setup.num_clients, rate

    def _omega(self) -> float:
        return self.uplink_compressor.q(self.setup.layout.size)

    def derive(self) -> FRECONConstants:
        """Set alpha."""
        return FRECONConstants(1 / (1 + self._omega()))

    @property
    def one_at_a_time(self) -> str:
        """Why a client's step cannot serve all clients at once; "" if it can."""
        return "" if self._plain else "compresses each client's upload by its own random draws"

    @property
    def _plain(self) -> bool:
        """Whether nothing is compressed."""
        return isinstance(self.uplink_compressor, Identity)

    def why_single(self) -> str:
        """Return why the server needs each upload in this run; "" if the sum suffices."""
        apart = "each upload is compressed differently: use Identity()"
        return super().why_single() or ("" if self._plain else apart)

    def why_not_private(self) -> str:
        """Return why the method cannot use noisy sums of uploads."""
        return self.needs_independent

    def longest_prox(self) -> float:
        """Return gamma."""
        return float(self.step_size)

    @classmethod
    def favours_frequent(cls) -> bool:
        """Return False: h has everyone's last gradient, also of clients that are away."""
        return False

    def initialize(self, x0: Array) -> FRECONState:
        """Start at x0, with g = h = h_i = 0."""
        zero = np.zeros_like(x0)
        return FRECONState(x0, x0, zero, zero, 0, self.mirrored(self.mirror, h=zero))

    def broadcast(self, state: FRECONState) -> Payload:
        """Step 1, and without mirror the number of resets."""
        before = {} if self.variant == "cofig" else {"before": state.before}
        return {"x": state.x, **before, **self.reset_number(state)}

    def expects(self, state: FRECONState) -> tuple[str, ...]:
        """Return the names of step 3's uploads."""
        return ("u",) if self.variant == "cofig" else self.uplink

    def decode(self, name: str, parts: Mapping[str, Array]) -> Any:
        """Return a compressed upload from its arrays in a message."""
        layout = self.setup.layout
        return self.uplink_compressor.decode(parts, layout.shape, np.dtype(layout.dtype))

    def aggregate(self, state: FRECONState, uploads: Uploads) -> FRECONState:
        """Step 4; the mirror is updated like the clients."""
        alpha, gamma, mixing = self.constants.alpha, self.step_size, self.mixing
        g = state.h + uploads.mean("u")
        if self.variant == "frecon":
            g = uploads.mean("q") + (1 - mixing) * state.g + mixing * g
        h = state.h + alpha / uploads.num_clients * uploads.sum("u")
        x = self.regularizer.prox(state.x - gamma * g, gamma)
        if state.mirror is not None:
            u = uploads.stacked("u") if self._plain else np.stack([dense(u) for u in uploads["u"]])
            state.mirror.add(uploads.clients, h=alpha * u)
        return FRECONState(x, state.x, g, h, state.resets, state.mirror)

    def reset(self, state: FRECONState) -> FRECONState:
        """Set h to 0, like the clients' h_i."""
        return state._replace(h=np.zeros_like(state.h), resets=state.resets + 1)
