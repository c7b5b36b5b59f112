r"""FastFedDA, fast federated dual averaging: strong convexity in the model of F.

    min_w (1/N) sum_i f_i(w) + psi(w),   f_i L-smooth and mu-strongly convex

The method minimises, after t steps with gradients G_s taken at the points w_s,
    sum_{s <= t} [ <G_s, w> + (mu/4) ||w - w_s||^2 + psi(w) ] + (gamma/2) ||w - w_0||^2:
half of the strong convexity enters the model, hence mu/2 in what follows (mu in its place is
another method). With z = gamma w_0 + sum_{s <= t} [ (mu/2) w_s - G_s ] the minimiser is
    P(z, t) = prox(z / c, t / c),   c = gamma + (mu/2) t.

Round r = 1, 2, ..., for a cohort S, from z = gamma w_0 and w = w_0:
    1. broadcast w, z and the steps done, (r-1) K
    2. client i:  v = w, z_i = z;  for k = 1..K:
                      z_i := z_i - grad f_i(v) + (mu/2) v
                      if k < K: v := P(z_i, (r-1) K + k)
    3. upload z_i
    4. server:    z := mean_S z_i;  w := P(z, r K)

Each step adds a gradient together with its own point. (The authors' code also adds the server's
point to the clients' last one, K + 1 points for K gradients, and does not converge exactly.)

Symbols: mu = strong_convexity, gamma = damping, K = local_steps, psi = regularizer.

The paper keeps the sum G of the gradients and the sum W of the points apart, and sends w, G, W down
and G, W up. P needs them only as z = gamma w_0 + (mu/2) W - G, so z alone is sent: the iterates are
the same, for 2 vectors down and 1 up.

State: none on the client; w and z on the server.
Wire: 2 vectors and 1 number down; 1 vector up.
Participation: any (the theory is for full). All that is remembered is on the server.
Aggregation: any rule of `flower_fedcon.aggregation`; w then solves the problem in which the rule of
the gradients takes the place of their mean: the same only without heterogeneity.
Lost state: nothing to lose.

Source: Bao, Crawshaw, Luo, Liu, "Fast Composite Optimization and Statistical Recovery in Federated
Learning", ICML 2022, Algorithm 1, Theorem 2.1; reconstructed from its prose and the authors' code,
with all weights alpha_t = 1. The theory's weighted average is not offered: the last w is returned.
"""

from __future__ import annotations

from typing import NamedTuple

from flower_fedcon.core.uploads import Uploads
from flower_fedcon.solvers.dual_averaging import model_minimizer
from flower_fedcon.strategies.families.dual_averaging import Damping, DualAveraging
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FastFedDAState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    z: Array  # gamma w_0 + (mu/2) (sum of points) - (sum of gradients), shape of x0
    r: float  # the coming round, from 1; or step, where K is the clients' own


class FastFedDA(DualAveraging[FastFedDAState]):
    """Fast federated dual averaging.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi; a set stands for its indicator, any object with `prox(v, step)` will do.
    strong_convexity : float
        mu > 0: of every f_i, or a guess of the restricted modulus.
    damping : float, optional
        gamma > 0; by default 5 L, where the clients know L.
    local_steps : int
        K >= 1.
    participation, batch_size, min_replies, aggregation, norm_bound : see `FedConStrategy`

    Raises
    ------
    ConfigError
        If an argument is out of range, or the damping is left out and L is unknown.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> problem = FederatedProblem(
    ...     [Quadratic(np.eye(1), np.array([b])) for b in (1.0, 5.0)], regularizer=L1(1.0)
    ... )
    >>> strategy = FastFedDA(problem.regularizer, strong_convexity=1.0, local_steps=1)
    >>> simulate(strategy, problem, num_rounds=300).x.round(2)  # soft(3, 1)
    array([2.])
    """

    name = "fastfedda"
    uplink = ("z",)
    needs_mean = ""
    own_loop_decides = ("local_steps",)

    constants: Damping

    def derive(self) -> Damping:
        """Return gamma: as given, else 5 L."""
        return Damping(self.damping_or(5))

    def initialize(self, x0: Array) -> FastFedDAState:
        """Start at w_0 = x0, with no gradient yet."""
        return FastFedDAState(w=x0, z=self.constants.damping * x0, r=1)

    def broadcast(self, state: FastFedDAState) -> Payload:
        """Step 1."""
        return {"w": state.w, "z": state.z, "steps": (state.r - 1) * self.unit}

    def aggregate(self, state: FastFedDAState, uploads: Uploads) -> FastFedDAState:
        """Step 4."""
        z, done = uploads.mean("z", about=state.z), state.r - 1 + self.units(uploads)
        w = model_minimizer(
            self.regularizer,
            z,
            done * self.unit,
            damping=self.constants.damping,
            strong_convexity=self.strong_convexity,
        )
        return FastFedDAState(w=w, z=z, r=done + 1)

    def model(self, state: FastFedDAState) -> Array:
        """Return w."""
        return state.w
