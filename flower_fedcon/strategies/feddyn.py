r"""FedDyn: dynamic regularisation, a control variate on each client that removes the drift.

    min_x (1/N) sum_i f_i(x)

Round, for a cohort S:
    1. broadcast theta
    2. client i:  theta_i ~ argmin_x f_i(x) - <g_i, x> + (alpha/2) ||x - theta||^2
    3.            g_i := g_i - alpha (theta_i - theta)
    4. upload theta_i
    5. server:    h := h - (alpha/N) sum_S (theta_i - theta)
                  theta := mean_S theta_i - h/alpha

h moves by 1/N over all clients, theta is a mean over S, and h uses the theta that was broadcast.
Symbols: alpha = proximal. g_i and h start at 0; h is the mean of all g_i, and at the optimum h = 0,
g_i = grad f_i. The theorems are for exact local minimisers. The paper's experiments use
`local_solver=SGD(epochs, batch_size, lr)`, which leaves noise in every g_i.

With `proximal="balanced"` alpha begins at its default, and is doubled or halved, at most 20 times,
by clients' primal and dual residuals (2 numbers more up, 1 down). The g_i keep their meaning.
The speed depends on alpha, and the default is not the best for a large condition number. An
example: 12 quadratics with condition number 1e4, one client a round, the relative distance to the
optimum after 1,500 rounds. If every client has its own eigenbasis, so that the mean is well
conditioned, the distance is 1e-3 with the default, and 5e-16 with alpha = L. If the mean is as
ill-conditioned as the clients, the distances are 4e-3 and 0.81. "auto" tries both.

State: g_i on the client; theta, h and a mirror of the g_i on the server (N d numbers).
Wire: 1 vector down (without mirror also 1 number); 1 vector up.
Participation: any, and replies to earlier models (`Buffered`): theta is then the mean of all
clients' last theta_i minus h/alpha, instead of the cohort's. This form is this collection's, and
measured only.
First contact: with g_i = 0, which h contains until then (with `Buffered` also theta_i = x0).
Compression: EF21, of theta_i - theta, which vanishes at the optimum: g_i, the memory, moves by the
decoded upload, and h stays the mean of the g_i. The fixed point is the same.
Lost state: g_i comes back from the mirror, in which the server repeats step 3. Without it all
clients start again with g_i = h = 0, and the model stays (a collective reset, counted in every
broadcast). A single client that started from g_i = 0 would make h, and with it the limit, wrong
forever.

Not for: a psi or a constraint (FedDR), and clients for whom a local minimisation costs too much.

Source: Durmus Alp Emre Acar, Yue Zhao, Ramon Matas, Matthew Mattina, Paul Whatmough, Venkatesh
Saligrama, "Federated Learning Based on Dynamic Regularization", ICLR 2021 (arXiv:2111.04263),
Algorithm 1. Re-entry is reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.strategies.families.balancing import Balance, Balanced, number_or_balanced
from flower_fedcon.strategies.families.control_variates import ControlVariates, VariateOptions
from flower_fedcon.strategies.families.ladders import between, condition
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedDynState(NamedTuple):
    """The server's state."""

    theta: Array  # global model, shape of x0
    h: Array  # mean of all g_i, shape of x0
    resets: int  # number of collective resets to g_i = 0
    mirror: Mirror | None  # the clients' g_i, by the name "variate"
    balance: Balance | None = None  # of alpha; None if it is constant
    last: Mirror | None = None  # with `Buffered`: all clients' last theta_i, by the name "theta"


class FedDynConstants(NamedTuple):
    """Constants that follow from the setup."""

    alpha: float


class FedDyn(ControlVariates[FedDynState], Balanced[FedDynState]):
    """Federated learning with dynamic regularisation.

    Parameters
    ----------
    proximal : float, "auto" or "balanced", optional
        alpha > 0, from sqrt(mu L) to L; by default sqrt(mu L/p), with p the share of clients in a
        round; L/10 for convex objectives with mu = 0; 3 L if mu is unknown. "balanced" starts there
        and balances residuals.
    mirror : bool (default: True)
        Keep the clients' g_i on the server, for clients that lose their state.
    local_solver : str or LocalSolver (default: "exact")
        The local solver and its accuracy: see `flower_fedcon.solvers`.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(2 * np.eye(1), np.zeros(1)), Quadratic(np.eye(1), np.array([3.0]))]
    >>> simulate(FedDyn(), FederatedProblem(clients), num_rounds=60).x.round(12)
    array([1.])
    """

    name = "feddyn"
    penalty_name = "proximal"
    needs_shares = True
    uplink = ("theta",)
    needs_mean = "h must stay the mean of all g_i"
    needs_uniform = "h is the mean of all g_i, whichever clients take part"
    needs_uncompressed = ""
    needs_fresh = ""
    begin_with: ClassVar[dict[str, float]] = {"proximal": 0.1}
    release = Release("without mirror", about={"theta": "theta"})
    needs_independent = "its model is the last round's mean, corrected by the sum of all"
    constants: FedDynConstants

    def __init__(
        self, *, proximal: float | str | None = None, **common: Unpack[VariateOptions]
    ) -> None:
        super().__init__(**common)
        self.proximal = number_or_balanced("proximal", proximal)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for alpha: sqrt(mu L/p), L/10 for mu = 0, or 3 L if mu is unknown."""
        return {"proximal": self._proximal}

    def _proximal(self) -> float:
        mu, about = self.setup.strong_convexity, "from sqrt(mu L) to L"
        if mu:
            return math.sqrt(mu * self.smoothness_for("proximal", about) / self.setup.rate)
        return 1 / self.usual_prox("proximal", about)

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return the values of alpha that a race tries: inverse steps of `LocalMinimization`.

        With a share p of the clients in a round, the values are 1/sqrt(p) times as large.
        """
        kappa, L = condition(self.setup), self.setup.smoothness
        if kappa is None or not L:
            return super().ladder(name, value)
        unit = L / math.sqrt(self.setup.rate)
        return between(value, unit / kappa ** (2 / 3), 0.28 * unit)

    def derive(self) -> FedDynConstants:
        """Return alpha."""
        return FedDynConstants(self.first_value())

    def initialize(self, x0: Array) -> FedDynState:
        """Start at x0, with g_i = h = 0."""
        balance, n = self.balance(self.constants.alpha, x0), self.setup.num_clients
        last = Mirror.of(n, theta=x0) if self.flows else None
        return FedDynState(x0, np.zeros_like(x0), 0, self.variates(x0), balance, last)

    def broadcast(self, state: FedDynState) -> Payload:
        """Step 1."""
        return {"theta": state.theta, **self.reset_number(state), **self.told(state.balance)}

    def aggregate(self, state: FedDynState, uploads: Uploads) -> FedDynState:
        """Step 5; the mirror is updated like the clients."""
        alpha, before = self.constants.alpha, state.theta
        if state.balance is not None:
            alpha = state.balance.penalty
        moved = uploads.moved("theta", before)  # small terms, so that rounding does not accumulate
        h = state.h - (alpha / uploads.num_clients) * moved
        theta = self._mean(state, uploads) - h / alpha
        balance = self.balanced(state.balance, theta, uploads)
        after = state._replace(theta=theta, h=h, balance=balance)
        if state.mirror is not None:
            changes = -alpha * (uploads.stacked("theta") - uploads.sent("theta", before))
            state.mirror.add(uploads.clients, variate=changes)
        if state.last is not None:
            state.last.put(uploads.clients, theta=uploads.stacked("theta"))
        return after

    def _mean(self, state: FedDynState, uploads: Uploads) -> Array:
        """Return the mean of the cohort's theta_i, or with `Buffered` of all clients' last ones."""
        if state.last is None:
            return uploads.mean("theta")
        rows = state.last.rows["theta"].copy()
        rows[uploads.clients] = uploads.stacked("theta")
        everyone = range(uploads.num_clients)
        shares = [uploads.share(client, row) for client, row in zip(everyone, rows, strict=True)]
        mean: Array = np.stack(shares).mean(axis=0)
        return mean

    def reset(self, state: FedDynState) -> FedDynState:
        """Set h to 0, like the clients' g_i."""
        return state._replace(h=np.zeros_like(state.h), resets=state.resets + 1)
