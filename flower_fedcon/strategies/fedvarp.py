r"""FedVARP: the server keeps everyone's last change, and corrects the cohort's mean by it.

    min_w (1/N) sum_i f_i(w)

Round, for a cohort S, from ybar = y_i = 0:
    1. broadcast w
    2. client i:  v = w;  K times  v := v - eta_c grad f_i(v)
    3. upload Delta_i = v - w
    4. server:    w := w + eta_s (ybar + mean_S(Delta_i - y_i))
                  ybar := ybar + (1/N) sum_S (Delta_i - y_i);  y_i := Delta_i for i in S

Symbols: eta_c = client_lr, eta_s = server_lr, K = local_steps.

ybar is the mean of all y_i, and step 4 uses the one from before the round: SAGA, for clients'
changes instead of gradients. Under uniform cohorts the move is right on average. With everyone in
each round it is FedAvg. At a fixed point every y_i is the Delta_i of that w, and their mean is 0:
so it is that of FedAvg with everyone in each round, whichever clients take part how often, and with
K = 1 the optimum. With more local steps it differs from the optimum where clients differ. If eta_c
falls with the rounds (a schedule), this bias vanishes with it.

State: none on the client; w, ybar and the y_i (N d numbers) on the server.
Wire: 1 vector down; 1 vector up.
Participation: any, and replies to earlier models (`Buffered`); the proofs are for uniform cohorts,
and convergence under others is measured. With several local steps the fixed point is biased, under
any participation alike.
First contact: with y_i = 0, which ybar contains until then; clients keep nothing.
Lost state: nothing to lose; the memory is the server's.

Not for: many local steps where clients differ (Scaffold, FedDR), and servers that may not see
single uploads: MIFA without mirror keeps the memory on the clients.

Source: Divyansh Jhunjhunwala, Pranay Sharma, Aushim Nagarkatti, Gauri Joshi, "FedVARP: Tackling the
Variance Due to Partial Client Participation in Federated Learning", UAI 2022 (arXiv:2207.14130);
second-hand, from a program of FedAU's authors. Replies to earlier models are this collection's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.server.optimizers import OptimizerState
from flower_fedcon.strategies.families.local_steps import LocalSteps
from flower_fedcon.strategies.families.old_gradients import lasting_share
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedVARPState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    ybar: Array  # mean of all y_i, shape of x0
    memory: Mirror  # all clients' last changes, by the name "y"
    optimizer: OptimizerState | None = None  # of server_optimizer; None without


class FedVARP(LocalSteps[FedVARPState]):
    """Variance reduction by a memory of everyone's last change.

    Parameters
    ----------
    client_lr : float, Schedule or "auto", optional
        eta_c > 0, at most 1/L; by default min(1, 2 p/K)/L, with p the share of clients in a round,
        and less with `Buffered`. A schedule of `flower_fedcon.schedules` changes it by the round.
    local_steps : int or "auto", optional
        K >= 1; by default 1: with more, heterogeneity leaves a floor.
    server_lr : float (default: 1.0)
        eta_s > 0.
    server_optimizer : ServerOptimizer, optional
        A rule of `flower_fedcon.optimizers`, whose step replaces eta_s times the corrected mean.
        The fixed points stay the same.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Examples
    --------
    One of two clients in each round:

    >>> from flower_fedcon import FederatedProblem, Sample, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> problem = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (1.0, 3.0)])
    >>> strategy = FedVARP(client_lr=0.5, participation=Sample(count=1))
    >>> simulate(strategy, problem, num_rounds=200).x.round(9)
    array([2.])
    """

    name = "fedvarp"
    bias = "several local steps move the fixed point where clients differ"
    uplink = ("delta",)
    needs_gradient = ""
    needs_mean = "ybar must stay the mean of all y_i"
    needs_uniform = "ybar is the mean of all y_i, whichever clients take part"
    needs_uncompressed = "y_i would keep the error of an upload until the client's next one"
    needs_server_lr = ""
    needs_constant_lr = ""
    needs_common_lr = "ybar adds up changes of all clients, which steps of different length weigh"
    needs_fresh = ""
    needs_shares = True
    release = Release(single="it corrects each upload by the client's last one")

    def safe_share(self) -> float:
        """Return the default eta_c L, for changes that stay in ybar until the client's next."""
        reach: float = self.local_steps * max(1.0, self.server_lr)
        return min(super().safe_share(), lasting_share(self) / reach)

    def initialize(self, x0: Array) -> FedVARPState:
        """Start at x0, with ybar = y_i = 0."""
        y = np.zeros_like(x0)
        return FedVARPState(x0, y, Mirror.of(self.setup.num_clients, y=y))

    def broadcast(self, state: FedVARPState) -> Payload:
        """Step 1."""
        return {"w": state.w}

    def aggregate(self, state: FedVARPState, uploads: Uploads) -> FedVARPState:
        """Step 4."""
        deltas, clients = uploads.stacked("delta"), uploads.clients
        new = uploads.shares(deltas - state.memory.some("y", clients))
        ybar = state.ybar + new.sum(axis=0) / uploads.num_clients
        corrected = state.ybar + uploads.aged(new).sum(axis=0) / len(clients)
        move, optimizer = self.server_move(corrected, state.optimizer)
        state.memory.put(clients, y=deltas)
        return FedVARPState(state.w + move, ybar, state.memory, optimizer)
