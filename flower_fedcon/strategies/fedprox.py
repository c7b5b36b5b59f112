r"""FedProx: averages of proximal steps, a baseline.

    min_w (1/N) sum_j f_j(w)

Round, for a cohort S:
    1. broadcast w
    2. client j:  v_j ~ argmin_x f_j(x) + (mu/2) ||x - w||^2
    3. upload v_j
    4. server:    w := mean_S v_j

Symbols: mu = proximal. `local_solver` determines the accuracy of step 2. With mu = 0 the local
minimisers are averaged (each f_j must then have one). The paper's experiments use
`SGD(epochs, batch_size, lr)`. The theorem then needs gamma-inexact local solutions, which no number
of epochs guarantees: noise times lr leaves a floor.

State: none on the client; w on the server.
Wire: 1 vector down; 1 vector up.
Participation: any. Cohorts are drawn uniformly; the paper draws clients with probability
proportional to their numbers of examples. Under heterogeneity the fixed point is biased, less for
larger mu: this is the algorithm. With one client the method is the proximal point algorithm.
Aggregation: any rule of `flower_fedcon.aggregation`; at the fixed point the rule of the v_j - w is
then 0 instead of their mean, which is the same only without heterogeneity.
Compression: any, of v_j - w. With EF21 the fixed point is the same; unbiased compressors alone
leave a floor, since the v_j - w do not vanish one by one under heterogeneity.
Lost state: nothing to lose.

Not for: exact solutions where clients differ: FedDyn has the same local work and no bias.

Source: Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith,
"Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv:1812.06127), Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.strategies.families.minimization import LocalMinimization, MinimisationOptions
from flower_fedcon.validation import Array, chosen, nonnegative
from flower_fedcon.wire.payloads import Payload


class FedProxState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0


class FedProx(LocalMinimization[FedProxState]):
    """FedProx.

    Parameters
    ----------
    proximal : float or "auto", optional
        mu >= 0; from L/10 to L, by default L.
    local_solver : str or LocalSolver (default: "exact")
        The local solver and its accuracy: see `flower_fedcon.solvers`.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Examples
    --------
    Two clients have the minimisers 0 and 3; the optimum is 1, and a bias stays:

    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(2 * np.eye(1), np.zeros(1)), Quadratic(np.eye(1), np.array([3.0]))]
    >>> problem = FederatedProblem(clients)
    >>> [simulate(FedProx(proximal=mu), problem, 1000).x.round(3).item() for mu in (1.0, 100.0)]
    [1.286, 1.007]
    """

    name = "fedprox"
    bias = "its fixed point is another where clients differ, nearer for a larger proximal"
    uplink = ("v",)
    needs_mean = needs_uniform = ""
    needs_uncompressed = ""
    begin_with: ClassVar[dict[str, float]] = {"proximal": 0.1}
    needs_fresh = ""
    async_bias = "each client weighs as often as its replies come, so fast clients count more"
    release = Release(about={"v": "w"})
    needs_independent = "its server takes the mean of models, and does not add up changes"

    def __init__(
        self, *, proximal: float | str | None = None, **common: Unpack[MinimisationOptions]
    ) -> None:
        super().__init__(**common)
        self.proximal = chosen(nonnegative, "proximal", proximal)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for mu: L."""
        return {"proximal": lambda: self.smoothness_for("proximal", "from L/10 to L")}

    def initialize(self, x0: Array) -> FedProxState:
        """Start at x0."""
        return FedProxState(w=x0)

    def broadcast(self, state: FedProxState) -> Payload:
        """Step 1."""
        return {"w": state.w}

    def aggregate(self, state: FedProxState, uploads: Uploads) -> FedProxState:
        """Step 4."""
        return FedProxState(w=uploads.mean("v", about=state.w))
