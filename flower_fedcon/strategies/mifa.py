r"""MIFA: a step along the mean of everyone's last update, whoever takes part.

    min_w (1/N) sum_i f_i(w) + psi(w)

Round, for a cohort S, from G = G_i = 0:
    1. broadcast w
    2. client i:  v = w;  K times  v := v - eta grad f_i(v)
    3.            upload Delta_i = (v - w)/eta - G_i;  G_i := G_i + Delta_i
    4. server:    G := G + (1/N) sum_S Delta_i;  w := prox(w + eta G, eta K)

Symbols: eta = client_lr, K = local_steps, prox(v, t) = argmin_w psi(w) + ||w - v||^2 / (2 t).

G_i is minus the sum of the K gradients that client i took last, and G is the mean of all G_i, also
of those outside S. So a client weighs 1/N however often it takes part. With K = 1 the only fixed
point is the optimum: G = -grad F(w) and w = prox(w + eta G, eta). This is the proximal incremental
aggregated gradient method. With more local steps the limit is that of FedMiD with the prox on the
server, which differs from the optimum where clients differ, for any participation alike. If eta
falls with the rounds (a schedule; the paper's falls as 1/t), this bias vanishes with it.

The gradient of a client that is away for tau rounds is used tau times. If all f_i are the same
square with curvature L, and many blocks of clients, each with a share p, take turns, then w
converges with K = 1 for eta L < 4.9 p. If N clients of one speed are all at work and each reply
makes a step, replies are N steps old when they come: the bound is then 1.1/N. The default stays
below half of these bounds.

State: G_i on the client; G, w and a mirror of the G_i (N d numbers) on the server.
Wire: 1 vector down (without mirror also 1 number); 1 vector up.
Participation: any, and replies to earlier models (`Buffered`). With several local steps the fixed
point is biased, under any participation alike.
First contact: with G_i = 0, which G contains until then, as in the authors' program; their theorems
ask everyone in round 1. A late client needs nothing that it has missed, and the limit is the same.
Compression: EF21, of Delta_i, whose memory is G_i: it moves by the decoded upload, and G stays the
mean of the G_i. The fixed point is the same.
Lost state: G_i comes back from the mirror, and nothing is lost. Without the mirror all clients
start again from G_i = G = 0, and w stays (a collective reset, counted in every broadcast): a single
client that started again would make G another mean forever.

Not for: many local steps where clients differ (Scaffold, FedDR), and clients that stay away for
long, which need short steps: AREA averages models, and bears long steps.

Source: Xinran Gu, Kaixuan Huang, Jingzhao Zhang, Longbo Huang, "Fast Federated Learning in the
Presence of Arbitrary Device Unavailability", NeurIPS 2021 (arXiv:2106.04159), with the authors'
program. There psi = 0; the prox on the server, the mirror and re-entry are this collection's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import Zero, as_regularizer
from flower_fedcon.server.schedules import Schedule, at, longest
from flower_fedcon.strategies.base import Common
from flower_fedcon.strategies.families.local_steps import OwnSteps
from flower_fedcon.strategies.families.mirrored import Mirrored
from flower_fedcon.strategies.families.old_gradients import lasting_share
from flower_fedcon.validation import Array, chosen, count
from flower_fedcon.wire.payloads import Payload


class MIFAState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    g: Array  # mean of all G_i, shape of x0
    resets: int  # number of collective resets of the G_i to 0
    mirror: Mirror | None  # the clients' G_i, by the name "g"


class MIFA(OwnSteps[MIFAState], Mirrored[MIFAState]):
    """Memory-augmented averaging under impatient, arbitrary participation.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet, optional (default: None)
        psi: any object with `prox(v, step)`; a set stands for its indicator, and None for zero.
    client_lr : float, Schedule or "auto", optional
        eta > 0, at most 1/L; by default min(1, 2 p/K)/L, with p the share of clients in a round,
        and less with `Buffered`. A schedule of `flower_fedcon.schedules` changes it by the round.
    local_steps : int or "auto", optional
        K >= 1; by default 1: with more, heterogeneity leaves a floor.
    mirror : bool (default: True)
        Keep the clients' G_i on the server, so that a client may lose its state.

    Raises
    ------
    ConfigError
        If an argument is out of range, or L is unknown and a default needs it.

    Examples
    --------
    The second client takes part three times as often, and counts as much as the first:

    >>> from flower_fedcon import FederatedProblem, Weighted, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [Quadratic(np.eye(1), np.array([b])) for b in (1.0, 5.0)]
    >>> problem = FederatedProblem(clients, regularizer=L1(1.0))
    >>> strategy = MIFA(problem.regularizer, participation=Weighted([0.2, 0.6]))
    >>> simulate(strategy, problem, 400).x.round(9)
    array([2.])
    """

    name = "mifa"
    bias = "several local steps move the fixed point where clients differ"
    uplink = ("delta",)
    needs_gradient = ""
    needs_mean = "G must stay the mean of all G_i"
    needs_uniform = "G is the mean of all G_i, whichever clients take part"
    needs_uncompressed = ""
    needs_convex = ""
    needs_fresh = ""
    needs_constant_lr = ""
    needs_common_lr = "G adds up gradients of all clients, which steps of different length weigh"
    needs_shares = True
    counts = False
    own_loop_decides = ("client_lr", "local_steps")
    release = Release("without mirror")
    needs_independent = "its clients' memories keep noise that correlated mechanisms cancel later"

    def __init__(
        self,
        regularizer: Any = None,
        *,
        client_lr: float | str | Schedule | None = None,
        local_steps: int | str | None = None,
        mirror: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)
        self.client_lr = self.step_length(client_lr)
        self.local_steps = chosen(count, "local_steps", local_steps)
        self.mirror = bool(mirror)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for K and eta."""
        return {"local_steps": lambda: 1, "client_lr": self._longest_rate}

    def _longest_rate(self) -> float:
        share = min(1.0, lasting_share(self) / self.local_steps)
        rate = share / self.smoothness_for("client_lr", "at most 1/L")
        return self.within_prox(rate, self.local_steps)

    def initialize(self, x0: Array) -> MIFAState:
        """Start at x0, with G = G_i = 0."""
        unknown = self.local_steps is None or self.client_lr is None
        if unknown and not isinstance(self.regularizer, Zero):
            raise ConfigError(
                "MIFA: the step of the server's prox is client_lr times local_steps: give both, "
                "also for clients with their own train loop, or leave the regularizer out"
            )
        g = np.zeros_like(x0)
        return MIFAState(x0, g, 0, self.mirrored(self.mirror, g=g))

    def broadcast(self, state: MIFAState) -> Payload:
        """Step 1, and without mirror the number of resets."""
        return {"w": state.w, **self.reset_number(state)}

    def aggregate(self, state: MIFAState, uploads: Uploads) -> MIFAState:
        """Step 4; the mirror is updated like the clients."""
        g = state.g + uploads.moved("delta") / uploads.num_clients
        rate = 1.0 if self.client_lr is None else at(self.client_lr, uploads.round)
        w = self.regularizer.prox(state.w + rate * g, rate * self.unit)
        if state.mirror is not None:
            state.mirror.follow(uploads, g="delta")
        return state._replace(w=w, g=g)

    def longest_prox(self) -> float:
        """Return the longest eta K; 1 if eta is unknown and psi is 0."""
        return self.unit * (1.0 if self.client_lr is None else longest(self.client_lr))

    def reset(self, state: MIFAState) -> MIFAState:
        """Set G to 0, like the clients' G_i."""
        return state._replace(g=np.zeros_like(state.g), resets=state.resets + 1)
