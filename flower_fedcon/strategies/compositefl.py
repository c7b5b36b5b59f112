r"""CompositeFL: local gradient steps with control variates, for composite problems.

    min_x (1/N) sum_i f_i(x) + psi(x)

Round, from x_bar = x0 and c_i = 0, with T = eta_g eta K:
    1. broadcast x_bar;  P = prox(x_bar, T) is the model
    2. client i:  c_i := c_i + (delta_i - delta_bar)/(eta K)   for the round before, in which
                  delta_bar = (x_bar - P)/eta_g with the P of that round
    3. client i:  z = zh = P;  for k = 0..K-1:
                      zh := zh - eta (grad f_i(z) + c_i);  z := prox(zh, (k+1) eta)
    4. upload delta_i = zh - P
    5. server:    x_bar := P + eta_g mean_S delta_i

The prox steps grow inside a round and act on zh, which adds up plain gradient steps. A round's
output therefore has one prox, and averages keep psi's structure (no curse of primal averaging). sum
c_i = 0, and at the optimum grad f_i + c_i is the same for all i: heterogeneity leaves no floor,
unlike in FedDualAvg and FedMiD. Step 2 gives the paper's c_i, (P - x_bar)/(eta_g eta K) minus the
mean of the round's gradients, but keeps no gradients.
Symbols: eta = client_lr, eta_g = server_lr, K = local_steps.

State: c_i, delta_i and P on the client; x_bar and a mirror of the c_i (N d numbers) on the server.
With batch_size the noise of the gradients enters c_i.
Wire: 1 vector (2 under sampling) down; 1 vector up.
Participation: full (the paper), or cohorts of a fixed size C >= 2. Under sampling step 2 runs on
the server, for S alone (a mirror of the c_i, N d numbers), and each client of the cohort gets its
c_i beside x_bar. A cohort of one moves no c_i, so C = 1 and Bernoulli cohorts are refused. If only
one reply arrives, that round moves x_bar alone.
First contact: with c_i = 0, which comes beside x_bar as in any other round.
Lost state: under sampling nothing is lost, since c_i comes with every message. With everyone
present c_i is sent back from the mirror. With mirror=False all clients start again from c_i = 0,
and x_bar stays (a collective reset): a single client that returned with c_i = 0 would bias the run
forever.

Not for: cohorts of one client or of varying size: FedDR allows them.

Source: Jiaojiao Zhang, Jiang Hu, Mikael Johansson, "Composite federated learning with heterogeneous
data", ICASSP 2024 (arXiv:2309.01795). The steps and the sampled form are reconstructed.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.participation import Sample
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.families.control_variates import CorrectedSteps
from flower_fedcon.strategies.families.local_steps import StepOptions
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class CompositeFLState(NamedTuple):
    """The server's state."""

    x_bar: Array  # the model before its prox, shape of x0
    resets: int  # number of collective resets of the c_i to 0
    mirror: Mirror | None  # the clients' c_i, by the name "c"


class CompositeFL(CorrectedSteps[CompositeFLState]):
    """Composite federated learning with heterogeneous data.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi: any object with `prox(v, step)`; a set stands for its indicator.
    client_lr : float or "auto", optional
        eta > 0; by default 1/(4 L K).
    local_steps : int or "auto", optional
        K >= 1; by default 5.
    server_lr : float (default: 1.0)
        eta_g > 0; in [1, sqrt N].
    mirror : bool (default: True)
        Keep a copy of every c_i on the server; sampling needs it.
    server_optimizer : ServerOptimizer, optional
        Refused, as is a schedule for client_lr: the variates follow from the step of one round.

    Raises
    ------
    ConfigError
        If an argument is out of range.
    ParticipationError
        If cohorts have one client or no fixed size, or are sampled without mirror.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [Quadratic(np.array([[q]]), np.array([b])) for q, b in ((1.0, 1.0), (3.0, 9.0))]
    >>> problem = FederatedProblem(clients, regularizer=L1(1.0))
    >>> strategy = CompositeFL(problem.regularizer, client_lr=0.05, local_steps=5)
    >>> simulate(strategy, problem, num_rounds=200).x.round(9)  # soft(5, 1)/2
    array([2.])
    """

    name = "compositefl"
    uplink = ("delta",)
    needs_gradient = ""
    needs_uncompressed = (
        "its control variates amplify errors, and with error feedback it diverged in tests"
    )
    needs_mean = "the c_i sum to 0 only if delta_bar is the mean of the delta_i"
    needs_uniform = "its theory needs uniform cohorts of one size, with which the c_i sum to 0"
    needs_convex = ""
    needs_server_lr = "the clients take delta_bar from x_bar, as server_lr times the mean"
    needs_constant_lr = "c_i and the model follow from x_bar by the step length of one round"
    needs_common_lr = (
        "at the optimum all delta_i must be -eta K times one vector; with each client's own length "
        "T_i they are -T_i times it, so c_i keeps moving, and the limit is wrong if there is one"
    )
    release = Release("with everyone and without mirror")
    needs_independent = "its server takes a prox in each round, and its clients build on the result"
    own_loop_decides = ()

    def __init__(
        self, regularizer: Any, *, mirror: bool = True, **steps: Unpack[StepOptions]
    ) -> None:
        super().__init__(**steps)
        self.regularizer = as_regularizer(regularizer)
        self.mirror = bool(mirror)

    def _longest_rate(self) -> float:
        """Return the rule's eta, such that psi has a prox at T."""
        longest = max(1.0, self.server_lr) * self.local_steps
        return self.within_prox(super()._longest_rate(), longest)

    def bind(self, setup: Setup) -> Self:
        """Return a copy for one run."""
        n, rule = setup.num_clients, self.participation
        if setup.sampled and not (isinstance(rule, Sample) and rule.size(n) >= 2):
            self.refuse_participation(
                "moves its control variates within cohorts of a fixed size of at least 2",
                "Sample(count=2) or more, or Full()",
            )
        if setup.sampled and not self.mirror:
            self.refuse_participation("needs its mirror for cohorts", "mirror=True, or Full()")
        return super().bind(setup)

    def initialize(self, x0: Array) -> CompositeFLState:
        """Start at x0, with c_i = 0."""
        return CompositeFLState(
            x0, resets=0, mirror=self.mirrored(self.mirror, c=np.zeros_like(x0))
        )

    def needs_whole_cohort(self) -> bool:
        """Return whether this is the full form, in which everyone does step 2."""
        return not self.setup.sampled

    def broadcast(self, state: CompositeFLState) -> Payload:
        """Step 1, and without mirror the number of resets."""
        return {"x_bar": state.x_bar, **self.reset_number(state)}

    def personal(self, state: CompositeFLState, client: int, ack: int) -> Payload:
        """Return c_i, under sampling."""
        if state.mirror is None or not self.setup.sampled:
            return {}
        return state.mirror.row(client)

    def aggregate(self, state: CompositeFLState, uploads: Uploads) -> CompositeFLState:
        """Step 5; then step 2 in the mirror, like the clients."""
        p = self.model(state)
        x_bar = p + self.server_lr * uploads.mean("delta")
        if state.mirror is not None:
            delta_bar, length = (x_bar - p) / self.server_lr, self.client_lr * self.local_steps
            changes = (uploads.stacked("delta") - delta_bar) / length
            state.mirror.add(uploads.clients, c=changes)
        return state._replace(x_bar=x_bar)

    def model(self, state: CompositeFLState) -> Array:
        """Return P = prox(x_bar, T)."""
        step = self.server_lr * self.client_lr * self.local_steps
        return self.regularizer.prox(state.x_bar, step)  # type: ignore[no-any-return]

    def longest_prox(self) -> float:
        """Return the longer of T and the last prox step of 3."""
        length: float = self.client_lr * self.local_steps
        return float(max(self.server_lr * length, length - self.client_lr))

    def reset(self, state: CompositeFLState) -> CompositeFLState:
        """Let every client start from c_i = 0."""
        return state._replace(resets=state.resets + 1)

    def readmit(self, state: CompositeFLState, client: int) -> tuple[CompositeFLState, Payload]:
        """Return c_i, unless the message contains it anyway, as under sampling."""
        return (state, {}) if self.setup.sampled else super().readmit(state, client)
