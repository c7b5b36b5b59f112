r"""S-DANE: local minimisation with corrected gradients, around centres that move by gradients.

    min_x (1/N) sum_i f_i(x),   f_i convex with a modulus mu >= 0, and L-smooth

Rounds come in pairs, with one cohort S for both, from x = v = x0 and alpha = 0:
    1. server:    s = 1/(2 lambda) + sqrt(1/(4 lambda^2) + alpha/lambda)
                  y = (alpha x + s v)/(alpha + s);  broadcast y
                  client i uploads grad f_i(y);  server:  g := mean_S grad f_i(y)
    2. broadcast y and g;  client i:
                  x_i ~ argmin_z f_i(z) + <g - grad f_i(y), z> + (lambda/2) ||z - y||^2
                  and uploads x_i - y and grad f_i(x_i);  server:  h := mean_S grad f_i(x_i)
                  x := y + mean_S(x_i - y);  v := (v + mu s x - s h)/(1 + mu s)
                  alpha := (alpha + s)/(1 + mu s) in the accelerated form; it stays 0 in the plain

The plain form has s = 1/lambda and y = v. With exact local solves v = x, and the method is DANE.
With stopping="relative" a local solve ends once its gradient is at most (lambda/2) ||x_i - y||.

Theorem, for everyone and delta^2 ||x - y||^2 >= mean_i ||grad (f - f_i)(x) - grad (f - f_i)(y)||^2:
with lambda >= delta/sqrt(2) and exact local solves, or lambda >= 2 delta and stopping="relative",
after k pairs the plain form has ||v - x*||^2 <= D/(1 + mu/lambda)^k, D = ||x0 - x*||^2, and the
accelerated F(x) - F* <= (lambda D/2) min{(1 + sqrt(mu/lambda))^(1 - k), 4/k^2}; docs/sdane.md has
the proof. As delta <= L/2 always holds, the default of lambda is L/sqrt(8), or L with "relative" or
a solver other than "exact".
Symbols: lambda = proximal, mu = strong_convexity.

State: none on the client; x, v, g and alpha on the server.
Wire: 1 vector down in a first round, 2 in a second; 1 vector up in a first round, 2 in a second.
Participation: any. Under sampling g and the steps are a cohort's, and heterogeneity leaves a floor,
lower for larger lambda; if all clients share a minimiser, there is no floor. A missing reply in one
of the two rounds adds to that noise; with everyone present the client is asked again.
Lost state: nothing to lose.

Not for: a psi or a constraint, and clients that cannot answer twice a round.

Source: Xiaowen Jiang, Anton Rodomanov, Sebastian U. Stich, "Stabilized Proximal-Point Methods for
Federated Optimization", NeurIPS 2024 (arXiv:2407.07084), S-DANE and Acc-S-DANE, as the authors'
program states them (github.com/mlolab/S-DANE, src/optimizers/sdane.py), without its line search;
alpha is A/B there. The defaults of lambda are reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.solvers import Exact
from flower_fedcon.strategies.families.minimization import LocalMinimization, MinimisationOptions
from flower_fedcon.validation import Array, choice, chosen, nonnegative, optional, positive
from flower_fedcon.wire.payloads import Payload


class SDANEState(NamedTuple):
    """The server's state."""

    x: Array  # global model, shape of x0
    v: Array  # the point that centres are drawn to, shape of x0
    alpha: float  # weight of x in the centre
    g: Array | None  # mean gradient at the centre, shape of x0; None if the coming round asks


class SDANEConstants(NamedTuple):
    """Values derived from the setup."""

    plain: bool
    proximal: float  # lambda
    mu: float


class SDANE(LocalMinimization[SDANEState]):
    """S-DANE, and Acc-S-DANE, its accelerated form.

    Parameters
    ----------
    form : {"accelerated", "plain"}, optional
        By default the accelerated form with everyone present, and the plain form under sampling.
    proximal : float or "auto", optional
        lambda > 0; by default L/sqrt(8), and L for inexact local solves. Similar clients allow a
        smaller value, about the theorem's delta, which "auto" looks for.
    strong_convexity : float, optional
        mu >= 0, at most the true one; by default the value that the clients state, or 0.
    local_solver : str or LocalSolver (default: "exact")
        The local solver and its accuracy: see `flower_fedcon.solvers`.
    stopping : {"solver", "relative"} (default: "solver")
        When a local solve ends: by its solver's own rule, or as soon as the theorem allows.

    Raises
    ------
    ConfigError
        If an argument is out of range, or L is unknown and a default needs it.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(np.array([[q]]), np.array([b])) for q, b in ((1.0, 1.0), (3.0, 9.0))]
    >>> simulate(SDANE(), FederatedProblem(clients), num_rounds=80).x.round(9)
    array([2.5])
    """

    name = "sdane"
    needs_fresh = "its second exchange is with the clients of the first, at one model"
    scope = Scope("convex")
    sampling_bias = "a cohort's gradient and steps leave a floor where clients differ"
    title = "S-DANE"
    uplink = ("gradient", "delta", "end_gradient")
    needs_gradient = "its clients minimise with corrections from exact gradients"
    needs_uncompressed = "its corrections cancel only with exact gradients of a first exchange"
    needs_mean = "the corrections sum to 0 only if g is the mean of the gradients"
    needs_uniform = "its theory needs uniform cohorts"
    release = Release()
    needs_independent = "its clients' corrections use the gradient of one round only"
    constants: SDANEConstants

    def __init__(
        self,
        *,
        form: str | None = None,
        proximal: float | str | None = None,
        strong_convexity: float | None = None,
        stopping: str = "solver",
        **common: Unpack[MinimisationOptions],
    ) -> None:
        super().__init__(**common)
        self.form = None if form is None else choice("form", form, ("accelerated", "plain"))
        self.proximal = chosen(positive, "proximal", proximal)
        self.strong_convexity = optional(nonnegative, "strong_convexity", strong_convexity)
        self.stopping = choice("stopping", stopping, ("solver", "relative"))

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for lambda."""
        return {"proximal": self._proximal}

    def _proximal(self) -> float:
        L = self.smoothness_for("proximal", "from delta, the clients' dissimilarity, to L")
        exact = isinstance(self.local_solver, Exact) and self.stopping == "solver"
        return L / math.sqrt(8) if exact else L

    def derive(self) -> SDANEConstants:
        """Set the form, lambda and mu."""
        plain = self.setup.sampled if self.form is None else self.form == "plain"
        given, stated = self.strong_convexity, self.setup.strong_convexity
        mu = stated or 0.0 if given is None else given
        return SDANEConstants(plain, self.proximal, mu)

    def initialize(self, x0: Array) -> SDANEState:
        """Start at x0."""
        return SDANEState(x=x0, v=x0, alpha=0.0, g=None)

    def cohort(self, server_round: int) -> list[int]:
        """Return the clients of a round, the same for both rounds of a pair."""
        return self.draws.cohort((server_round + 1) // 2)

    def needs_whole_cohort(self) -> bool:
        """With everyone present the corrections sum to 0."""
        return not self.setup.sampled

    def why_not_private(self) -> str:
        """Return why the method cannot use noisy sums of uploads."""
        return (
            "private cohorts are drawn anew in each round, and it needs one cohort for two rounds"
            if self.setup.sampled
            else ""
        )

    def broadcast(self, state: SDANEState) -> Payload:
        """Step 1 or 2."""
        s, alpha = self._step(state.alpha), state.alpha
        y = (alpha * state.x + s * state.v) / (alpha + s)
        return {"y": y} if state.g is None else {"y": y, "g": state.g}

    def expects(self, state: SDANEState) -> tuple[str, ...]:
        """Return the names of the step's uploads."""
        return ("gradient",) if state.g is None else ("delta", "end_gradient")

    def aggregate(self, state: SDANEState, uploads: Uploads) -> SDANEState:
        """Step 1 or 2."""
        if state.g is None:
            return state._replace(g=uploads.mean("gradient"))
        (plain, _, mu), s = self.constants, self._step(state.alpha)
        x = self.broadcast(state)["y"] + uploads.mean("delta")
        v = (state.v + mu * s * x - s * uploads.mean("end_gradient")) / (1 + mu * s)
        alpha = 0.0 if plain else (state.alpha + s) / (1 + mu * s)
        return SDANEState(x, v, alpha, g=None)

    def _step(self, alpha: float) -> float:
        """Return s such that lambda s^2 = alpha + s."""
        lam = self.constants.proximal
        half = 0.5 / lam
        root: float = (half * half + alpha / lam) ** 0.5
        return half + root
