r"""CFedDA, constrained federated dual averaging: FastFedDA within a ball around the start.

    min_w (1/N) sum_i f_i(w) + psi(w)   s.t. ||w - w_0||_psi <= rho

||.||_psi is psi's norm (for L1 the l1 norm). A loss that is not strongly convex on the whole space
may be so on a part of it (restricted strong convexity), and the ball keeps the iterates there.

As in FastFedDA (see there), P(z, A) minimises a model of F + psi, but over the ball:
    P(z, A) = argmin psi(w) + (c / 2A) ||w - z/c||^2  over the ball,   c = gamma + (mu/2) A.
The points of the model are the server's iterates w_0, ..., w_{r-1}, each for K gradients, so that
z = gamma w_0 + (mu/2) K (w_0 + ... + w_{r-1}) - (sum of gradients); A = r K all through round r.

Round r = 1, 2, ..., for a cohort S, from w = w_0 and z = (gamma + (mu/2) K) w_0:
    1. broadcast w, z, A = r K and, if there is a ball, its centre w_0
    2. client i:  v = w, g_i = 0;  for k = 1..K:
                      g_i := g_i + grad f_i(v)
                      if k < K: v := P(z - g_i, A)
    3. upload g_i
    4. server:    z := z - mean_S g_i;  w := P(z, A);  z := z + (mu/2) K w
    also offered  the average (w_0 + ... + w_r)/(r + 1), which the theory is for

Symbols: mu = strong_convexity, gamma = damping, K = local_steps, psi = regularizer, rho = radius.

Over the ball, P is exact to rounding for L1, and iterated for other norms. The authors' code takes
the prox and then projects. The two agree only while the ball is inactive, as it is with the radii
of the paper's experiments.

State: none on the client; w, z, w_0 and the sum of the iterates on the server.
Wire: 2 vectors (3 with a radius) and 1 number down; 1 vector up.
Participation: any (the theory is for full). Clients keep nothing between rounds. The paper sends
w_0 once; here a run with a ball sends w_0 in each round.
Aggregation: any rule of `flower_fedcon.aggregation`; w then solves the problem with that rule of
the gradients instead of their mean, which is the same only without heterogeneity.
Lost state: nothing to lose.

Not for: objectives without strong convexity, and high accuracy: the rate is sublinear where
CompositeFL's is linear.

Source: Yajie Bao, Michael Crawshaw, Shan Luo, Mingrui Liu, "Fast Composite Optimization and
Statistical Recovery in Federated Learning", ICML 2022 (arXiv:2207.08204), Algorithm 2, Theorem 3.1;
reconstructed like FastFedDA.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.regularizers.constrained import norm_ball
from flower_fedcon.strategies.families.dual_averaging import DampingOptions, DualAveraging
from flower_fedcon.validation import Array, optional, positive
from flower_fedcon.wire.payloads import Payload


class CFedDAState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    z: Array  # gamma w_0 + (mu/2) K (sum of iterates) - (sum of gradients), shape of x0
    total: Array  # W, the sum of the r iterates w_0, ..., w_{r-1}, shape of x0
    anchor: Array  # w_0, shape of x0
    r: int  # the coming round, from 1


class CFedDA(DualAveraging[CFedDAState]):
    """Constrained federated dual averaging.

    The average of the server's iterates is in `History.outputs["average"]`.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi: any object with `prox(v, step)`; a set stands for its indicator. With a radius, psi
        must have a norm: L1, L2Norm, L2Squared, GroupLasso or NuclearNorm.
    damping : float or "auto", optional
        gamma > 0; by default 5 L K.
    radius : float, optional
        rho > 0, the radius of a ball around the start in psi's norm; by default there is no ball.

    Raises
    ------
    ConfigError
        If an argument is out of range, the regularizer has no norm ball for the radius, or the
        damping is left out and L is unknown.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [Quadratic(np.eye(1), np.array([b])) for b in (1.0, 5.0)]
    >>> problem = FederatedProblem(clients, regularizer=L1(1.0))
    >>> strategy = CFedDA(problem.regularizer, strong_convexity=1.0, local_steps=2, radius=1.5)
    >>> simulate(strategy, problem, num_rounds=300).x.round(4)  # soft(3, 1) is outside
    array([1.5])
    """

    name = "cfedda"
    uplink = ("g",)
    needs_mean = needs_uniform = ""
    needs_fresh = "z is a point, and its steps are counted for one cohort"
    release = Release()
    needs_independent = ""

    def __init__(
        self, regularizer: Any, *, radius: float | None = None, **options: Unpack[DampingOptions]
    ) -> None:
        super().__init__(regularizer, **options)
        self.radius = optional(positive, "radius", radius)
        if self.radius is not None:
            norm_ball(self.regularizer, self.radius)  # raises here rather than in round 1

    def initialize(self, x0: Array) -> CFedDAState:
        """Start at w_0 = x0, with no gradient yet."""
        pull = self.damping + 0.5 * self.strong_convexity * self.local_steps
        return CFedDAState(w=x0, z=pull * x0, total=x0, anchor=x0, r=1)

    def broadcast(self, state: CFedDAState) -> Payload:
        """Step 1."""
        down = {"w": state.w, "z": state.z, "steps": state.r * self.local_steps}
        return down if self.radius is None else {**down, "anchor": state.anchor}

    def aggregate(self, state: CFedDAState, uploads: Uploads) -> CFedDAState:
        """Step 4."""
        z = state.z - uploads.mean("g")
        anchor = None if self.radius is None else state.anchor
        w = self.minimizer(z, state.r * self.local_steps, anchor=anchor, radius=self.radius)
        z = z + (0.5 * self.strong_convexity * self.local_steps) * w
        return CFedDAState(w, z, state.total + w, state.anchor, state.r + 1)

    def outputs(self, state: CFedDAState) -> dict[str, Array]:
        """Return the average of the server's iterates, including w_0."""
        return {"average": state.total / state.r}
