r"""FedDualAvg: federated dual averaging.

    min_w (1/N) sum_i f_i(w) + psi(w)

Round r = 0, 1, ..., for a cohort S:
    1. broadcast the dual z_r and the elapsed step e_r = eta_s eta_c r K
    2. client i:  z = z_r;  for k = 0..K-1:
                      w = prox(z, e_r + eta_c k);  z := z - eta_c grad f_i(w)
    3. upload z - z_r
    4. server:    z_{r+1} = z_r + eta_s mean_S(z_i - z_r);  e_{r+1} = e_r + eta_s eta_c K
    output        w_{r+1} = prox(z_{r+1}, e_{r+1})

The prox is applied to z with the accumulated step; z_0 = x0 and e_0 = 0, so that the first gradient
is taken at x0. With `server_prox_only` the client starts at w = prox(z_r, e_r), takes plain
gradient steps and uploads w - prox(z_r, e_r); for K = 1 the two agree.

The paper states it for any distance-generating function h: w is the point to which the dual z and
the elapsed step e belong,
    w = argmin_w -<z, w> + e psi(w) + h(w),   z_0 = grad h(x0).
distance = "euclidean", h = ||w||^2/2, gives prox(z, e) as above; "entropy", h = sum w log w, gives
w = r exp(z) / sum exp(z) on the simplex of radius r; "p-norm" is ||w||_p^2/2, and `QuadraticForm`
w'Aw/2. A psi is refused if its w follows neither in closed form nor by one equation in one unknown.

Symbols: eta_c = client_lr, eta_s = server_lr, K = local_steps, psi = regularizer.

State: none on the client; z and e on the server.
Wire: 1 vector and 1 number down; 1 vector up.
Participation: any (the theory is for full); with K > 1 heterogeneity leaves a floor.
Aggregation: any rule of `flower_fedcon.aggregation`; w then solves the problem with that rule of
the gradients instead of their mean, which is the same only without heterogeneity.
Compression: any. With EF21 the limit is the same; unbiased compressors alone leave a floor, since
the z_i - z do not vanish one by one under heterogeneity.
Lost state: nothing to lose.

Not for: high accuracy: the rate is sublinear, and with several local steps heterogeneity leaves a
floor. CompositeFL and FedDR are exact.

Source: Honglin Yuan, Manzil Zaheer, Sashank Reddi, "Federated Composite Optimization", ICML 2021
(arXiv:2011.08474), Algorithm 3, Theorem 4.3. The server_prox_only form is reconstructed: if clients
took gradients at z itself, psi would not act on them while the output's threshold grows, and the
output would tend to 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.server.schedules import Schedule
from flower_fedcon.solvers.bregman import Distance
from flower_fedcon.strategies.families.local_steps import LocalProxSteps, StepOptions
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedDualAvgState(NamedTuple):
    """The server's state."""

    z: Array  # dual average, shape of x0
    r: float  # rounds done, or steps, if clients choose K; with a schedule times eta_c


class FedDualAvg(LocalProxSteps[FedDualAvgState]):
    """Federated dual averaging.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi: any object with `prox(v, step)`; a set stands for its indicator.
    client_lr : float, Schedule or "auto", optional
        eta_c > 0; by default 1/(2 L K). With a schedule e_r is the sum of the steps taken; the
        theory is for a constant length.
    local_steps : int or "auto", optional
        K >= 1; by default 1: with more, heterogeneity leaves a floor.
    server_prox_only : bool (default: False)
        Take plain gradient steps on the clients; for the Euclidean distance.
    server_optimizer : ServerOptimizer, optional
        Refused: z and the step of its prox grow together.

    Raises
    ------
    ConfigError
        If an argument is out of range, or psi has no known prox in the distance.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> problem = FederatedProblem(
    ...     [Quadratic(np.eye(1), np.array([b])) for b in (1.0, 5.0)], regularizer=L1(1.0)
    ... )
    >>> strategy = FedDualAvg(problem.regularizer, client_lr=0.5, local_steps=1)
    >>> history = simulate(strategy, problem, num_rounds=60)
    >>> bool(abs(history.x[0] - 2.0) < 1e-12)  # soft(3, 1)
    True
    """

    name = "feddualavg"
    bias = "several local steps leave a floor where clients differ"
    uplink = ("delta",)
    needs_gradient = ""
    needs_mean = needs_uniform = ""
    needs_server_lr = "z and the step of its prox grow together, both by server_lr times the steps"
    needs_constant_lr = ""
    needs_convex = (
        "its prox step grows in every round, and such a psi has a prox only for short steps"
    )
    needs_uncompressed = ""
    needs_fresh = ""
    async_bias = "each client weighs as often as its replies come, so fast clients count more"
    release = Release()
    needs_independent = ""

    def __init__(
        self,
        regularizer: Any,
        *,
        server_prox_only: bool = False,
        distance: str | Distance = "euclidean",
        **steps: Unpack[StepOptions],
    ) -> None:
        super().__init__(regularizer, server_prox_only=server_prox_only, distance=distance, **steps)
        if server_prox_only and self.geometry is not None:
            raise ConfigError(
                f"distance={distance!r} needs server_prox_only=False: the form with plain steps is "
                f"reconstructed, and for the Euclidean distance only"
            )

    def safe_share(self) -> float:
        """Return eta_c L: a half divided by K."""
        return float(1 / (2 * self.local_steps * max(1.0, self.server_lr)))

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return the values that a race tries for an argument."""
        return self.safe_ladder(value) if name == "client_lr" else super().ladder(name, value)

    def arguments(self) -> dict[str, Any]:
        """Return the hyperparameters, and what checkpoints of 0.1.0 have for h = ||w||^2/2."""
        return {**super().arguments(), "distance": self.distance, "simplex_radius": None}

    def elapsed(self, r: float) -> float:
        """Return e_r = eta_s eta_c r K, the sum of the steps so far."""
        lr = 1.0 if isinstance(self.client_lr, Schedule) else self.client_lr
        steps: float = self.server_lr * lr * r * self.unit
        return steps

    def initialize(self, x0: Array) -> FedDualAvgState:
        """Start at the dual point of x0, e_0 = 0."""
        self.check_start(x0)
        return FedDualAvgState(z=self.dual(x0), r=0)

    def broadcast(self, state: FedDualAvgState) -> Payload:
        """Step 1."""
        return {"z": state.z, "elapsed": self.elapsed(state.r)}

    def aggregate(self, state: FedDualAvgState, uploads: Uploads) -> FedDualAvgState:
        """Step 4."""
        z = state.z + self.server_lr * uploads.mean("delta")
        units = self.units(uploads) * uploads.progress
        if isinstance(self.client_lr, Schedule):
            units = units * self.rate(uploads)
        return FedDualAvgState(z=z, r=state.r + units)

    def model(self, state: FedDualAvgState) -> Array:
        """Return w_r."""
        return self.point(state.z, self.elapsed(state.r))
