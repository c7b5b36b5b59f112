r"""FedDR: randomised Douglas-Rachford splitting of the consensus problem.

    min_x (1/N) sum_i f_i(x) + psi(x),   f_i smooth, nonconvex allowed

Start, when a client is first sampled (until then xhat_i = x0):
    y_i = xbar, of that round,  and steps 3 to 5

Round, for a cohort S:
    1. broadcast xbar
    2. client i:  y_i := y_i + alpha (xbar - x_i)
    3.            x_i := prox_i(y_i) ~ argmin_x f_i(x) + ||x - y_i||^2 / (2 eta)
    4.            upload Delta_i = (2 x_i - y_i) - xhat_i;  xhat_i := xhat_i + Delta_i
    5. server:    xtilde := xtilde + (1/N) sum_S Delta_i;  xbar := prox(xtilde, eta)

prox(v, eta) = argmin_w psi(w) + ||w - v||^2 / (2 eta), with eta and not eta/N. xtilde and xbar
start at x0; xtilde is the mean of all xhat_i, also outside S. Averaging over the cohort alone is
another algorithm, which has a floor. At the optimum y_i - xbar = eta grad f_i(xbar). With alpha =
2, psi = 0 and everyone present this is FedSplit: its z_i are the xhat_i, and its step is eta =
1/sqrt(mu L). The paper's rate holds if the squared errors of step 3 have a finite sum over the
rounds. The errors of `SGD(epochs, batch_size, lr)`, as in its experiments, do not vanish, so that
the limit has an error, too.
Symbols: eta = step_size, alpha = relaxation.

With `step_size="balanced"` 1/eta is doubled or halved, at most 20 times, by clients' primal and
dual residuals (2 numbers more up, 1 down). A client that receives a new eta' replaces y_i by x_i +
(eta'/eta) (y_i - x_i) in step 2, so that its gradient does not change. xhat_i follows in step 4;
until then xtilde has the old one, which is a valid start.

State: y_i, x_i, xhat_i on the client; xtilde, xbar and a mirror of the xhat_i on the server (N d
numbers).
Wire: 1 vector down (2 at a late first contact); 1 vector up.
Participation: any, and replies to earlier models (`Buffered`). With buffer=1 this is AsyncFedDR,
the paper's Algorithm 2, whose rate is for bounded delays; larger buffers are measured, not proved.
First contact: with y_i = xbar of that round (x0 in round 1), without step 2, and with xhat_i = x0,
which xtilde contains until then. Any y_i is a valid start: from the round in which the last client
comes the run is the paper's, begun with these y_i. xbar is a better one than x0 if it is nearer to
the optimum (docs/participation.md).
Compression: EF21, of Delta_i, whose memory is xhat_i: it moves by the decoded upload, and xtilde
stays the mean of the xhat_i. The fixed point is the same.
Lost state: the client comes as at its first contact, but uploads against the server's copy of
xhat_i ("mirror": N d numbers), so that xtilde stays the mean, and the loss is repaired. Without the
mirror a client that has lost its state is refused, and the run ends.

Not for: clients for whom a local minimisation costs too much: CompositeFL takes gradient steps.

Source: Quoc Tran-Dinh, Nhan H. Pham, Dzung T. Phan, Lam M. Nguyen, "FedDR: Randomized
Douglas-Rachford Splitting Algorithms for Nonconvex Federated Composite Optimization", NeurIPS 2021
(arXiv:2103.03452), Algorithm 1. The paper starts all clients in a first pass; here they enter one
by one. Entry and re-entry are reconstructed. FedSplit is from Reese Pathak, Martin J. Wainwright,
"FedSplit: An algorithmic framework for fast federated optimization", NeurIPS 2020
(arXiv:2005.05238).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.families.balancing import Balance, Balanced, number_or_balanced
from flower_fedcon.strategies.families.minimization import MinimisationOptions
from flower_fedcon.strategies.families.mirrored import Mirrored
from flower_fedcon.validation import Array, positive
from flower_fedcon.wire.payloads import Payload


class FedDRState(NamedTuple):
    """The server's state."""

    xbar: Array  # global model, shape of x0
    xtilde: Array  # mean of all xhat_i, shape of x0
    x0: Array  # the start: xhat_i of clients that have not come yet
    t: int  # the coming round, from 1
    mirror: Mirror | None  # the clients' xhat_i, by the name "xhat"
    balance: Balance | None = None  # of 1/eta; None if it is constant


class FedDRConstants(NamedTuple):
    """Constants that follow from the setup."""

    step_size: float


class FedDR(Balanced[FedDRState], Mirrored[FedDRState]):
    """Federated Douglas-Rachford splitting.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi: any object with `prox(v, step)`; a set stands for its indicator, and None for zero.
    step_size : float, "auto" or "balanced", optional
        eta > 0; by default 1/sqrt(mu L), at most 10/L; 0.3/L if mu is unknown, since nonconvex
        objectives need it small. "balanced" starts there and balances residuals.
    relaxation : float (default: 1.0)
        alpha in (0, 2]. 2 is Peaceman-Rachford splitting (FedSplit), which the paper leaves out: it
        converges for smooth and strongly convex f_i.
    mirror : bool (default: True)
        Keep the clients' xhat_i on the server, so that a client may lose its state.
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
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [Quadratic(2 * np.eye(1), np.zeros(1)), Quadratic(np.eye(1), np.array([3.0]))]
    >>> problem = FederatedProblem(clients, regularizer=L1(0.75))
    >>> simulate(FedDR(problem.regularizer, step_size=0.5), problem, num_rounds=60).x.round(12)
    array([0.5])
    """

    name = "feddr"
    scope = Scope("none")
    penalty_name = "step_size"
    constants: FedDRConstants
    uplink = ("delta",)
    needs_mean = "xtilde must stay the mean of all xhat_i"
    needs_uniform = "xtilde is the mean of all xhat_i, whichever clients take part"
    needs_convex = ""
    needs_uncompressed = ""
    needs_fresh = ""
    release = Release("without mirror")
    needs_independent = "its clients' states keep noise that correlated mechanisms cancel later"

    def __init__(
        self,
        regularizer: Any,
        *,
        step_size: float | str | None = None,
        relaxation: float = 1.0,
        mirror: bool = True,
        **common: Unpack[MinimisationOptions],
    ) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)
        self.step_size = number_or_balanced("step_size", step_size)
        self.relaxation = positive("relaxation", relaxation)
        if self.relaxation > 2:
            raise ConfigError(f"relaxation must be in (0, 2], got {relaxation!r}")
        self.mirror = bool(mirror)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for eta."""
        return {"step_size": lambda: self.usual_prox("step_size")}

    def derive(self) -> FedDRConstants:
        """Return eta; if balanced, its first value."""
        return FedDRConstants(self.first_value())

    def initialize(self, x0: Array) -> FedDRState:
        """Start all variables at x0."""
        mirror, eta = self.mirrored(self.mirror, xhat=x0), self.constants.step_size
        return FedDRState(x0, x0, x0, 1, mirror, self.balance(1 / eta, x0))

    def broadcast(self, state: FedDRState) -> Payload:
        """Step 1."""
        return {"xbar": state.xbar, **self.told(state.balance)}

    def aggregate(self, state: FedDRState, uploads: Uploads) -> FedDRState:
        """Step 5; the mirror is updated like the clients."""
        xtilde = state.xtilde + uploads.sum("delta") / uploads.num_clients
        eta = self.constants.step_size if state.balance is None else 1 / state.balance.penalty
        xbar = self.regularizer.prox(xtilde, eta)
        balance = self.balanced(state.balance, xbar, uploads)
        if state.mirror is not None:
            state.mirror.follow(uploads, xhat="delta")
        return state._replace(xbar=xbar, xtilde=xtilde, t=state.t + 1, balance=balance)

    def longest_prox(self) -> float:
        """Return eta; a balanced eta has no bound."""
        return math.inf if self.balances else float(self.step_size)

    def needs_whole_cohort(self) -> bool:
        """Without a mirror, a client that cannot come back ends the run; it cannot drop out."""
        return not self.mirror

    def first_contact(self, state: FedDRState, client: int) -> Payload | None:
        """Return xhat_i = x0, for a client that was not sampled in round 1."""
        return None if state.t == 1 else {"xhat": state.x0}
