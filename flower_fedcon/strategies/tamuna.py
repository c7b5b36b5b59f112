r"""TAMUNA: Scaffnew for sampled cohorts, with a sparse uplink.

    min_x (1/N) sum_i f_i(x),   f_i mu-strongly convex and L-smooth

Round r = 1, 2, ..., from x_bar = x0 and h_i = 0, for a cohort S of c clients:
    1. server:    draw K_r ~ Geometric(p) on {1, 2, ...}, and for each client of S a column of the
                  mask q, which has c columns and s ones in each row;  broadcast x_bar, K_r, h_i
    2. client i:  x = x_bar;  K_r times  x := x - gamma (grad f_i(x) - h_i);  x_i = x
    3. upload the entries of x_i on which q_i = 1
    4. server:    x_bar := entry by entry the mean of the x_i that were sent; where nobody has sent
                  one, as it was
                  h_i := h_i + (eta/gamma) q_i (x_bar - x_i)   for who has sent

Row k of q has its ones in the columns k s, ..., k s + s - 1 (mod c), which go to the clients of S
in random order. The mean is over the clients that sent the entry, so that sum h_i stays 0 even if
replies are missing (dividing by s would break this). With c = s = N all entries are sent, and the
method is Scaffnew.

By default gamma = 2/(L + mu), s = c, eta = p N (s-1)/(s (N-1)), and p = min(1, sqrt((1 - (1 - gamma
mu)^2) (N-1)/(s-1))).
Symbols: gamma = client_lr, p = communication_probability, s = copies.

State: none on the client; x_bar and the h_i (N d numbers) on the server, which can compute the h_i.
In the paper the clients keep h_i, and get x_bar before and after a round instead.
Wire: 2 vectors and 2 numbers down; 1 vector (s of every c entries) up.
Participation: full, or cohorts of one size c >= s, uniform; s >= 2.
First contact: with h_i = 0, which comes beside x_bar as in any other round.
Lost state: nothing to lose.

Not for: a psi or a constraint, and cohorts of varying size.

Source: Laurent Condat, Ivan Agarský, Grigory Malinovsky, Peter Richtárik, "TAMUNA: Doubly
Accelerated Distributed Optimization with Local Training, Compression, and Partial Participation",
2023 (arXiv:2302.09832). The steps are reconstructed; they reach the optimum to machine precision,
also with half of the replies missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Unpack

import numpy as np

from flower_fedcon.compressors.stripes import Stripe, Stripes
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.participation import Sample
from flower_fedcon.core.release import Release
from flower_fedcon.core.rng import COMPRESS
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.families.random_rounds import CoinOptions, RandomRounds
from flower_fedcon.validation import Array, count
from flower_fedcon.wire.payloads import Payload


class TAMUNAState(NamedTuple):
    """The server's state."""

    x_bar: Array  # global model, shape of x0
    r: int  # the coming round, from 1
    columns: Array  # of each client in the coming round, shape (N,); 0 outside the cohort
    mirror: Mirror  # the h_i, by the name "h"


class TAMUNAConstants(NamedTuple):
    """Values derived from the setup."""

    client_lr: float  # gamma
    communication_probability: float  # p
    cohort_size: int  # c
    copies: int  # s
    dual_lr: float  # eta


class TAMUNA(RandomRounds[TAMUNAState]):
    """TAMUNA: local training, compression and partial participation.

    Parameters
    ----------
    client_lr : float or "auto", optional
        gamma > 0; by default 2/(L + mu), and 1/L without mu.
    communication_probability : float or "auto", optional
        p in (0, 1]; by default as above if mu > 0 is known, else 0.1.
    copies : int, optional (default: None)
        s, the number of clients of a cohort that send each entry, from 2 to c; None means c.

    Raises
    ------
    ConfigError
        If an argument is out of range, or client_lr is None and L unknown.
    ParticipationError
        If cohorts vary in size, or have one client.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, Sample, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(q * np.eye(1), np.array([4.0])) for q in (1.0, 2.0, 3.0)]
    >>> strategy = TAMUNA(participation=Sample(count=2))
    >>> simulate(strategy, FederatedProblem(clients), num_rounds=200).x.round(9)
    array([2.])
    """

    name = "tamuna"
    needs_fresh = "each entry of its model has the same number of senders in a round"
    scope = Scope("strong")
    uplink = ("x",)
    needs_constant_lr = "the h_i move by the step length of the round before"
    needs_gradient = ""
    needs_uncompressed = "it has its own: each client sends copies / C of the entries"
    needs_mean = "the h_i sum to 0 only if x_bar is the mean of what was sent"
    needs_uniform = "its theory needs uniform cohorts"
    release = Release(single="each client sends different entries, for its own h_i")
    constants: TAMUNAConstants

    def __init__(self, *, copies: int | None = None, **coin: Unpack[CoinOptions]) -> None:
        super().__init__(**coin)
        self.copies = None if copies is None else count("copies", copies, minimum=2)

    def usual_client_lr(self) -> float:
        """Return 2/(L + mu), or 1/L."""
        L, mu = self.smoothness_for("client_lr", "at most 1/L"), self.setup.strong_convexity
        return 2 / (L + mu) if mu else 1 / L

    def usual_probability(self) -> float:
        """Return the p that balances both terms of the rate, or 0.1."""
        n, mu, (_, s) = self.setup.num_clients, self.setup.strong_convexity, self._sizes()
        rate = (1 - (1 - self.client_lr * mu) ** 2) * (n - 1) / (s - 1) if mu else 0.01
        return math.sqrt(min(1.0, rate)) if rate > 0 else 1.0

    def _sizes(self) -> tuple[int, int]:
        """Return c and s."""
        rule = self.participation
        c = rule.size(self.setup.num_clients) or 0
        if c < 2 or (self.setup.sampled and not isinstance(rule, Sample)):
            self.refuse_participation(
                "needs cohorts of one size of at least 2", "Sample(count=2) or more, or Full()"
            )
        s = self.copies or c
        if s > c:
            raise ConfigError(f"copies must be from 2 to {c}, the size of a cohort, got {s}")
        return c, s

    def derive(self) -> TAMUNAConstants:
        """Set c, s and eta."""
        n, (c, s) = self.setup.num_clients, self._sizes()
        gamma, p = self.client_lr, self.communication_probability
        return TAMUNAConstants(gamma, p, c, s, dual_lr=p * n * (s - 1) / (s * (n - 1)))

    def initialize(self, x0: Array) -> TAMUNAState:
        """Start at x0, with h_i = 0."""
        mirror = Mirror.of(self.setup.num_clients, h=np.zeros_like(x0))
        return TAMUNAState(x0, 1, self._columns(1), mirror)

    def _columns(self, r: int) -> Array:
        """Return the columns of the clients of round r's cohort."""
        columns = np.zeros(self.setup.num_clients, dtype=np.int32)
        order = self.setup.rng(COMPRESS, r).permutation(self.constants.cohort_size)
        columns[self.cohort(r)] = order
        return columns

    def broadcast(self, state: TAMUNAState) -> Payload:
        """Step 1, the part for all clients."""
        return {"x_bar": state.x_bar, "steps": self.steps_of(state.r)}

    def personal(self, state: TAMUNAState, client: int, ack: int) -> Payload:
        """Step 1, the part for one client."""
        return {**state.mirror.row(client), "column": int(state.columns[client])}

    def decode(self, name: str, parts: Mapping[str, Array]) -> Stripe:
        """Return a stripe from its arrays in a message."""
        layout, constants = self.setup.layout, self.constants
        stripes = Stripes(constants.cohort_size, constants.copies)
        return stripes.decode(parts, layout.shape, np.dtype(layout.dtype))

    def aggregate(self, state: TAMUNAState, uploads: Uploads) -> TAMUNAState:
        """Step 4."""
        total, senders = np.zeros_like(state.x_bar), np.zeros_like(state.x_bar)
        for _, sent in uploads.items("x"):
            sent.add_to(total)
            senders.flat[sent.indices] += 1
        x_bar = np.where(senders > 0, total / np.maximum(senders, 1), state.x_bar)
        after = TAMUNAState(x_bar, state.r + 1, self._columns(state.r + 1), state.mirror)
        rate = self.constants.dual_lr / self.constants.client_lr
        for client, sent in uploads.items("x"):
            h = state.mirror.rows["h"][client]
            h.flat[sent.indices] += rate * (x_bar.flat[sent.indices] - sent.values)
        return after
