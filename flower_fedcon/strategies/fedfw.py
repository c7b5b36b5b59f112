r"""FedFW: federated Frank-Wolfe, without projections and with one atom up.

    min_x (1/N) sum_i f_i(x)   s.t. x in D,   D convex and compact

Round t = 1, 2, ..., from x_i = x_bar = x0:
    1. broadcast x_bar
    2. client i:  g_i = (1/N) grad f_i(x_i) + lambda_t (x_i - x_bar)
    3. client i:  s_i = lmo(g_i) = argmin over s in D of <g_i, s>
                  x_i := (1 - eta_t) x_i + eta_t s_i
    4. upload the atom s_i
    5. server:    x_bar := (1 - eta_t) x_bar + (eta_t/N) sum_i s_i

The gradient carries 1/N and the penalty does not: the surrogate is
(1/N) sum f_i(x_i) + (lambda_t/2) sum ||x_i - x_bar||^2. The local iterate x_i is kept between
rounds: if clients started each round from x_bar, the penalty would be 0, and that scheme can fail.

Schedules, with p = C/N the expected fraction of clients a round, lambda_0 = penalty:
    convex      eta_t = 2/(p(t-1) + 2),   lambda_t = lambda_0 sqrt(p(t-1) + 2)
    nonconvex   eta = (pT)^(-2/3),        lambda = lambda_0 (pT)^(1/3),   T = num_rounds
    stochastic  eta_t = 9/(p(t-1) + 9),   lambda_t = lambda_0 sqrt(p(t-1) + 9), and in step 2
                d_i := (1 - rho_t) d_i + rho_t (1/N) grad f_i(x_i; batch) for the gradient,
                rho_t = 4/(p(t-1) + 8)^(2/3); with the nonconvex schedule rho = eta^(2/3)

Penalty: lambda_0 = G/(N diam D), with G = max_i ||grad f_i(x0)||, is the rule. With the penalty
    lambda the clients' iterates are about G/(N lambda) apart, which raises F at x_bar by up to
    G^2/(N lambda). A step raises it by eta lambda N (diam D)^2/2 through the penalty's curvature.
    The sum is least at lambda = G/(N diam D) sqrt(2/eta_t),
which is the convex schedule's lambda_t with this lambda_0, and the nonconvex one's up to sqrt(2).

Several local steps a round, with x_bar as of the last exchange, are an open question of the paper,
and not offered. They would save rounds: on eight problems with 20 clients F - F* is after 300
rounds 0.61, 0.30 and 0.17 of that of one step, with 2, 5 and 10 steps and this penalty (geometric
means; at worst 1.35, 0.72, 0.43; in the first 30 rounds over the simplex up to 12). Each step sends
an atom: after 100 and 300 atoms, ten steps a round have 2.8 and 1.9 times the F - F* of one step
(docs/frank_wolfe_local_steps.py).

Networks need the nonconvex schedule, since eta_1 = 1 erases the start, from which a network learns.
A layer without its own constraint gets a ball around its start, L2Ball(r).shifted(w), on which the
oracle is a normalised gradient step. Each step is then at most eta times the layer's diameter long.

State: x_i on the client; x_bar on the server, and a mirror of the x_i under sampling.
Wire: 1 vector and 2 numbers down; 1 atom up.
Participation: any; under sampling a mirror gives the exact mean of all iterates. Step 5 then
    becomes x_bar := x_bar + (eta_t/N) sum_{i in S} (s_i - x_i),
for which the server repeats the clients' steps from their atoms (a mirror, N d numbers). Averaging
over the cohort alone converges to a wrong point.
First contact: with x_i = x0, which x_bar contains until then: the server sends it, since x_bar has
moved. A first d_i is the gradient alone, in any round (rho = 1).
Lost state: with a mirror x_i is sent back; with everyone present x_i := x_bar, and step 5 contracts
the error like 1/t^2.

Not for: high accuracy: the rate is 1/t. If projections are cheap and uploads may be dense, FedDR
and CompositeFL are faster: on digits over an l1 ball CompositeFL takes 30 rounds and 0.09 processor
seconds to 1 %, FedFWPlus 1,140 and 0.53, and FedFW is not there on every split after 10,000 rounds
(docs/frank_wolfe_time.py).

Source: Ali Dadras, Karthik Prakhya, Alp Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS
workshop 2022, Algorithm 1, Theorems 1 and 2; a longer version is Ali Dadras, Sourasekhar Banerjee,
Karthik Prakhya, Alp Yurtsever, "Federated Frank-Wolfe Algorithm", ECML PKDD 2024
(arXiv:2408.10090). The schedules for stochastic gradients and for sampling are from the authors'
code. The sampled update is reconstructed as randomised block Frank-Wolfe, rho of the nonconvex
schedule as the convex one's.
"""

from __future__ import annotations

from typing import NamedTuple

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.strategies.families.frank_wolfe import FrankWolfe
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedFWState(NamedTuple):
    """The server's state."""

    x_bar: Array  # mean of the clients' iterates, shape of x0
    t: int  # the coming round, from 1
    mirror: Mirror | None  # the clients' iterates x_i, by the name "x"; only under sampling


class FedFW(FrankWolfe[FedFWState]):
    """Federated Frank-Wolfe.

    Parameters
    ----------
    constraint : ConstraintSet
        D, bounded, with a linear minimisation oracle.
    penalty : float or "auto", optional
        lambda_0 > 0; by default max_i ||grad f_i(x0)|| / (N diameter).
    schedule : {"convex", "nonconvex"} (default: "convex")
        Step sizes that decrease with t, or constant ones, which need the number of rounds and are
        for networks.
    gradient : {"full", "stochastic"} (default: "full")
        "stochastic" averages minibatch gradients (give `batch_size`).

    Raises
    ------
    ConfigError
        If an argument is out of range, or x0 is outside D.

    Examples
    --------
    The paper's example, on which averaging local Frank-Wolfe steps stays at 0 forever:

    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.sets import Box
    >>> two = 2 * np.eye(1)  # (x - 3)^2 and (x + 1)^2, up to constants
    >>> clients = [Quadratic(two, np.array([6.0])), Quadratic(two, np.array([-2.0]))]
    >>> problem = FederatedProblem(clients, constraint=Box(-1.0, 1.0))
    >>> simulate(FedFW(problem.constraint, penalty=1.0), problem, num_rounds=1000).x.round(6)
    array([0.940066])
    """

    name = "fedfw"
    needs_fresh = "its steps shrink from round to round, and replies would be of different steps"

    def initialize(self, x0: Array) -> FedFWState:
        """Start all iterates at x0, which must be in D."""
        self.check_start(x0)
        return FedFWState(x_bar=x0, t=1, mirror=self.mirrored(self.setup.sampled, x=x0))

    def broadcast(self, state: FedFWState) -> Payload:
        """Step 1."""
        return {"x_bar": state.x_bar, **self.scalars(state.t)}

    def aggregate(self, state: FedFWState, uploads: Uploads) -> FedFWState:
        """Step 5."""
        x_bar = self.mean_iterate(state.x_bar, state.t, state.mirror, uploads)
        return FedFWState(x_bar, state.t + 1, state.mirror)

    def reset(self, state: FedFWState) -> FedFWState:
        """Change nothing: the client takes x_bar, and the error decays."""
        return state
