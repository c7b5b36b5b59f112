r"""FedPD, federated primal-dual: clients keep multipliers, and random rounds skip communication.

    min_x (1/N) sum_i f_i(x),   f_i smooth, nonconvex allowed

Round:
    1. toss the round's coin ("skip" with probability q) and broadcast it; if the last round
       aggregated, broadcast x_0 too, and clients set x_0i := x_0
    2. client i:  x_i ~ argmin_x f_i(x) + <lambda_i, x - x_0i> + ||x - x_0i||^2 / (2 eta)
    3.            lambda_i := lambda_i + (x_i - x_0i)/eta
    4.            u_i = x_i + eta lambda_i                      (the new lambda_i)
    5. no skip:   upload u_i; server: x_0 := mean u_i
       skip:      x_0i := u_i, and nothing is uploaded

Symbols: eta = step_size, q = skip_probability. x_i and lambda_i start at x0 and 0. After an exact
step 2, lambda_i = -grad f_i(x_i). With q = 0 the iterates are those of FedDR without a regularizer
and relaxation, and of FedDyn with alpha = 1/eta. With q > 0 clients drift apart in skipped rounds,
and under heterogeneity x_0 stays in a neighbourhood of the optimum: this is the algorithm. The
paper's rate has a term for the error of step 2. With `SGD(epochs, batch_size, lr)`, its Oracle I
with stochastic gradients, this error does not vanish, so that the limit is a neighbourhood, too.

With `step_size="balanced"` 1/eta is doubled or halved, at most 20 times, by clients' primal and
dual residuals (2 numbers more up, 1 down); the lambda_i keep their meaning.

State: x_i, lambda_i, x_0i on the client; x_0 on the server.
Wire: 1 vector and 1 number down (1 number after a skipped round); 1 vector up (nothing in a skipped
round).
Participation: full; the coin skips a round for everybody.
Lost state: x_i := x_0i := x_0, the last mean, and lambda_i := 0. One exact step 2 and 3 gives
lambda_i = -grad f_i(x_i) for any earlier lambda_i, so the loss is repaired.

Not for: absent clients, a psi or a constraint, and heterogeneity with skipped rounds.

Source: Xinwei Zhang, Mingyi Hong, Sairaj Dhople, Wotao Yin, Yang Liu, "FedPD: A Federated Learning
Framework with Optimal Rates and Adaptivity to Non-IID Data", 2020 (arXiv:2005.11418), Algorithm 1,
and the authors' Python code. Their Matlab code takes the old lambda_i in step 4, which in our test
needs 74 rounds instead of 45.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.rng import COIN
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.families.balancing import Balance, Balanced, number_or_balanced
from flower_fedcon.strategies.families.minimization import MinimisationOptions
from flower_fedcon.validation import Array, nonnegative
from flower_fedcon.wire.payloads import Payload


class FedPDState(NamedTuple):
    """The server's state."""

    x_0: Array  # global model, shape of x0
    t: int  # the coming round, from 1
    skip: bool  # whether it skips communication
    fresh: bool  # whether clients do not know x_0 yet, since the last round aggregated
    balance: Balance | None = None  # of 1/eta; None if it is constant


class FedPDConstants(NamedTuple):
    """Constants that follow from the setup."""

    step_size: float


class FedPD(Balanced[FedPDState]):
    """Federated primal-dual.

    Parameters
    ----------
    step_size : float, "auto" or "balanced", optional
        eta > 0; by default 1/sqrt(mu L), at most 10/L; 0.3/L if mu is unknown. For convex
        objectives and exact local solves any value converges; the nonconvex theory needs eta <
        (sqrt(5) - 1)/(4L). "balanced" starts there and balances residuals.
    skip_probability : float (default: 0.0)
        q in [0, 1), the probability that a round skips communication.
    local_solver : str or LocalSolver (default: "exact")
        The local solver and its accuracy: see `flower_fedcon.solvers`.

    Raises
    ------
    ConfigError
        If an argument is out of range.
    ParticipationError
        If the run leaves clients out.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(2 * np.eye(1), np.zeros(1)), Quadratic(np.eye(1), np.array([3.0]))]
    >>> problem = FederatedProblem(clients)
    >>> simulate(FedPD(step_size=0.5), problem, num_rounds=60).x.round(12)
    array([1.])
    """

    name = "fedpd"
    scope = Scope("none")
    penalty_name = "step_size"
    constants: FedPDConstants
    uplink = ("u",)
    needs_uncompressed = (
        "after a skipped round client and server have no model in common; FedDR takes it"
    )
    needs_mean = "the multipliers sum to 0 in the limit only if x_0 is the mean of the u_i"
    release = Release(about={"u": "x_0"})
    needs_independent = "its server takes the last round's mean, and adds up nothing"
    needs_everyone = "the server averages what all clients hold"

    def __init__(
        self,
        *,
        step_size: float | str | None = None,
        skip_probability: float = 0.0,
        **common: Unpack[MinimisationOptions],
    ) -> None:
        super().__init__(**common)
        self.step_size = number_or_balanced("step_size", step_size)
        self.skip_probability = nonnegative("skip_probability", skip_probability)
        if self.skip_probability >= 1:
            raise ConfigError(f"skip_probability must be in [0, 1), got {skip_probability!r}")
        if self.skip_probability and self.balances:
            raise ConfigError(
                f"FedPD: step_size={self.step_size!r} balances residuals of a common model, which "
                f"skipped rounds lack: give step_size a number, or skip_probability=0, got "
                f"{skip_probability!r}"
            )

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for eta."""
        return {"step_size": lambda: self.usual_prox("step_size")}

    def derive(self) -> FedPDConstants:
        """Return eta; if balanced, its first value."""
        return FedPDConstants(self.first_value())

    def skips(self, t: int) -> bool:
        """Return whether round t skips communication, by a random draw."""
        q = self.skip_probability
        return q > 0 and bool(self.setup.rng(COIN, t).random() < q)

    def why_not_private(self) -> str:
        """Return why the method cannot use noisy sums of uploads; "" if it can."""
        apart = "after a skipped round the u_i have no common centre: give skip_probability=0"
        return apart if self.skip_probability else super().why_not_private()

    def initialize(self, x0: Array) -> FedPDState:
        """Start everywhere at x0."""
        balance = self.balance(1 / self.constants.step_size, x0)
        return FedPDState(x_0=x0, t=1, skip=self.skips(1), fresh=True, balance=balance)

    def broadcast(self, state: FedPDState) -> Payload:
        """Step 1."""
        coin = {"skip": int(state.skip), **self.told(state.balance)}
        return {**coin, "x_0": state.x_0} if state.fresh else coin

    def expects(self, state: FedPDState) -> tuple[str, ...]:
        """Return the names of step 5's uploads."""
        return () if state.skip else super().expects(state)

    def aggregate(self, state: FedPDState, uploads: Uploads) -> FedPDState:
        """Step 5."""
        x_0 = state.x_0 if state.skip else uploads.mean("u")
        t = state.t + 1
        balance = self.balanced(state.balance, x_0, uploads)
        return FedPDState(x_0, t, self.skips(t), fresh=not state.skip, balance=balance)

    def readmit(self, state: FedPDState, client: int) -> tuple[FedPDState, Payload]:
        """Return x_0, if the broadcast does not contain it."""
        return state, {} if state.fresh else {"x_0": state.x_0}
