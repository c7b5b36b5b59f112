r"""FastFedDA: federated dual averaging with strong convexity in the model of F.

    min_w (1/N) sum_i f_i(w) + psi(w),   f_i L-smooth and mu-strongly convex

The method minimises, after t steps with gradients G_s taken at the points w_s,
    sum_{s <= t} [ <G_s, w> + (mu/4) ||w - w_s||^2 + psi(w) ] + (gamma/2) ||w - w_0||^2:
half of the strong convexity enters the model, hence mu/2 below (with mu it is another method). With
z = gamma w_0 + sum_{s <= t} [ (mu/2) w_s - G_s ] the minimiser is
    P(z, t) = prox(z / c, t / c),   c = gamma + (mu/2) t.

Round r = 1, 2, ..., for a cohort S, from z = gamma w_0 and w = w_0:
    1. broadcast w, z and the steps done, (r-1) K
    2. client i:  v = w, z_i = z;  for k = 1..K:
                      z_i := z_i - grad f_i(v) + (mu/2) v
                      if k < K: v := P(z_i, (r-1) K + k)
    3. upload z_i
    4. server:    z := mean_S z_i;  w := P(z, r K)

Weights (Remark 2.1): with alpha_t = (t + a)^q each step counts alpha_t times,
    z_i := z_i - alpha_t (grad f_i(v) - (mu/2) v),   P(z, A_t) with A_t = sum_{s <= t} alpha_s.
q = 0 is the method above; q > 0 forgets the first steps. With output="average" the model is the
mean of all points, (1/A_t) sum_s alpha_s w_s over steps and clients, for which the theory holds.

Each step adds a gradient together with its own point. (The authors' code also adds the server's
point to the clients' last one, K + 1 points for K gradients, and does not converge exactly.) The
paper keeps the sums G of the gradients and W of the points apart, and sends w, G, W down and G, W
up. P needs them only as z = gamma w_0 + (mu/2) W - G: z alone is sent, for the same iterates.

Symbols: mu = strong_convexity, gamma = damping, K = local_steps, psi = regularizer, q =
weight_power, a = weight_shift.

Bound, for K = 1 and everyone present, derived here since the paper's constants were not available:
with phi = F + psi, c_t = gamma + (mu/2) t, gamma > L and gradients of variance sigma^2,
    sum_{s=1..T} E[phi(w_s) - phi*] + (c_T/2) E||w_T - w*||^2
        <= (gamma/2) ||w_0 - w*||^2 + sum_{s<T} sigma^2/(2 N (c_s - L)).
It holds for CFedDA, and for each stage of MCFedDA from where the stage starts, also in a ball, for
any point u of it in place of w*. With K > 1 and gamma >= 2 L FastFedDA's right-hand side, without
noise, is (gamma/2) ||w_0 - w*||^2 + L sum_s V_s, where V_s is the mean square of the distances of
the clients' points in step s from that of the mean z, of order (K zeta / c_s)^2, with zeta the
difference of the clients' gradients.

State: none on the client; w and z on the server, and the sum of the points for the average.
Wire: 2 vectors and 1 number down (2 numbers with weights); 1 vector up (2 for the average).
Participation: any (the theory is for full). Clients keep nothing between rounds.
Aggregation: any rule of `flower_fedcon.aggregation`; w then solves the problem with that rule of
the gradients instead of their mean, which is the same only without heterogeneity.
Lost state: nothing to lose.

Not for: objectives without strong convexity, and high accuracy: the rate is sublinear where
CompositeFL's is linear.

Source: Yajie Bao, Michael Crawshaw, Shan Luo, Mingrui Liu, "Fast Composite Optimization and
Statistical Recovery in Federated Learning", ICML 2022 (arXiv:2207.08204), Algorithm 1, Theorem 2.1;
reconstructed from its prose and the authors' code. The weights of the theory are those of Sebastian
U. Stich, "Unified Optimal Analysis of the (Stochastic) Gradient Method", 2019 (arXiv:1907.04232) (q
= 2); their constants, here a = 2 q kappa and gamma = 5 L (1 + a)^q, are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.solvers.dual_model import step_weight
from flower_fedcon.strategies.families.dual_averaging import DampingOptions, DualAveraging
from flower_fedcon.validation import Array, choice, nonnegative, optional
from flower_fedcon.wire.payloads import Payload


class FastFedDAState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    z: Array  # gamma w_0 + (mu/2) (sum of points) - (sum of gradients), shape of x0
    r: float  # the coming round, from 1; or step, if clients choose K
    A: float  # sum of the weights alpha_t of the steps so far
    points: Array | None  # sum of the points times alpha_t, shape of x0; for the average


class FastFedDA(DualAveraging[FastFedDAState]):
    """Fast federated dual averaging.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi: any object with `prox(v, step)`; a set stands for its indicator.
    strong_convexity : float or "auto", optional
        mu > 0, the strong convexity of every f_i, or a guess of the restricted one; by default the
        clients' mu, or L/1000 if that is 0 or unknown.
    damping : float or "auto", optional
        gamma > 0; by default 5 L.
    local_steps : int or "auto", optional
        K >= 1; by default 1.
    weight_power : float (default: 0.0)
        q >= 0 of the weights alpha_t = (t + a)^q; 2 is Stich's.
    weight_shift : float, optional
        a >= 0; by default 2 q L/mu.
    output : {"last", "average"} (default: "last")
        The model: w, or the average of all points, for one more vector up.

    Raises
    ------
    ConfigError
        If an argument is out of range, or L is unknown and a default needs it.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [Quadratic(np.eye(1), np.array([b])) for b in (1.0, 5.0)]
    >>> problem = FederatedProblem(clients, regularizer=L1(1.0))
    >>> strategy = FastFedDA(problem.regularizer, strong_convexity=1.0, local_steps=1)
    >>> simulate(strategy, problem, num_rounds=300).x.round(2)  # soft(3, 1)
    array([2.])
    """

    name = "fastfedda"
    scope = Scope("strong")
    uplink = ("z",)
    needs_mean = needs_uniform = ""
    needs_fresh = "z is a point, and its steps are counted for one cohort"
    release = Release(about={"z": "z"})
    needs_independent = ""
    own_loop_decides = ("local_steps",)

    def __init__(
        self,
        regularizer: Any,
        *,
        weight_power: float = 0.0,
        weight_shift: float | None = None,
        output: str = "last",
        **options: Unpack[DampingOptions],
    ) -> None:
        super().__init__(regularizer, **options)
        self.weight_power = nonnegative("weight_power", weight_power)
        self.weight_shift: Any = optional(nonnegative, "weight_shift", weight_shift)
        self.output = choice("output", output, ("last", "average"))

    @property
    def average(self) -> bool:
        """Whether the weighted average is the output."""
        return self.output == "average"

    def derive(self) -> None:
        """Refuse a number of steps that is needed and not known."""
        if self.local_steps is None and (self.weight_power or self.average):
            raise ConfigError(
                "FastFedDA with weights, or with the average as output, counts its steps: give "
                "local_steps"
            )

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules; that of a (2 q L/mu) comes before that of gamma."""
        defaults = super().rules()
        last = defaults.pop("damping")
        return {**defaults, "weight_shift": self._shift, "damping": last}

    def _shift(self) -> float:
        q = self.weight_power
        about = f"about {2 * q:g} L/mu"
        L = self.smoothness_for("weight_shift", about) if q else 0.0
        return float(2 * q * L / self.strong_convexity)

    def usual_damping(self) -> float:
        """Return 5 L (1 + a)^q."""
        return 5 * self.smoothness_for("damping", "about 5 L") * self._weight(1)

    def _weight(self, t: int) -> float:
        """Return alpha_t."""
        return step_weight(t, self.weight_power, self.weight_shift)

    def expects(self, state: FastFedDAState) -> tuple[str, ...]:
        """Return the names of step 3's uploads."""
        return (*super().expects(state), *(["points"] if self.average else []))

    def initialize(self, x0: Array) -> FastFedDAState:
        """Start at w_0 = x0, with no gradient yet."""
        points = np.zeros_like(x0) if self.average else None
        return FastFedDAState(x0, self.damping * x0, 1, 0.0, points)

    def broadcast(self, state: FastFedDAState) -> Payload:
        """Step 1."""
        down: Payload = {"w": state.w, "z": state.z, "steps": state.A}
        if self.weight_power or self.average:
            down["t"] = (state.r - 1) * self.unit
        return down

    def aggregate(self, state: FastFedDAState, uploads: Uploads) -> FastFedDAState:
        """Step 4."""
        z, done = uploads.mean("z", about=state.z), state.r - 1 + self.units(uploads)
        A, points = done * self.unit, state.points
        if self.weight_power:
            steps = range(round((state.r - 1) * self.unit) + 1, round(A) + 1)
            A = sum(map(self._weight, steps), start=state.A)
        if points is not None:
            points = points + uploads.mean("points")
        return FastFedDAState(self.minimizer(z, A), z, done + 1, A, points)

    def model(self, state: FastFedDAState) -> Array:
        """Return w, or the average of the points."""
        return state.w if state.points is None or state.A == 0 else state.points / state.A
