r"""FedAvg with subgradients, the baseline for composite problems.

    min_w (1/N) sum_i f_i(w) + psi(w)

Round, for a cohort S:
    1. broadcast w
    2. client i:  v = w;  K times  v := v - eta_c (grad f_i(v) + q),  q a subgradient of psi at v
    3. upload v - w
    4. server:    m := beta m + mean_S(v_i - w);  w := w + eta_s m
                  every P rounds:  w := w_0 + gamma (w - w_0),  w_0 the model P rounds ago

Symbols: eta_c = client_lr, eta_s = server_lr, K = local_steps, psi = regularizer, beta =
server_momentum, m = 0 at the start; with beta = 0, the default, m is the mean itself. P = window,
gamma = amplification; with gamma = 1, the default, the second line of step 4 changes nothing.

State: none on the client; w, with momentum m, and with an amplification w_0, on the server.
Wire: 1 vector down; 1 vector up.
Participation: any; under heterogeneity, or with a nonsmooth psi, the fixed point is biased: this is
the algorithm.
Windows: Amplified FedAvg is for clients that take turns, with P a multiple of a cycle, so that all
clients count alike in w - w_0, however the server made this change. The fixed point of P rounds is
that without amplification. A window that the end of a run cuts off is not amplified.
Own steps: with `client_lr=DeltaSGD()`, "adaptive", client i finds its eta in step 2 from how its
gradients change (`flower_fedcon.schedules`). A client with a smaller L_i moves further. If clients
share a minimiser, it is still the limit; else clients weigh about in proportion to their steps T_i.
Aggregation: any rule of `flower_fedcon.aggregation`; at the fixed point the rule of the v_i - w is
then 0 instead of their mean, which is the same only without heterogeneity.
Compression: any. With EF21 the fixed point is the same; unbiased compressors alone leave a floor,
since the v_i - w do not vanish one by one under heterogeneity.
Lost state: nothing to lose.

Not for: exact solutions where clients differ or psi is not smooth: CompositeFL and FedDR have no
bias.

Source: Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Agüera y Arcas,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017
(arXiv:1602.05629); with a subgradient as the baseline (Algorithm 1) of Honglin Yuan, Manzil Zaheer,
Sashank Reddi, "Federated Composite Optimization", ICML 2021 (arXiv:2011.08474). The momentum is
FedAvgM's: Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown, "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", 2019 (arXiv:1909.06335). The windows are those of
Michael Crawshaw, Mingrui Liu, "Federated Learning under Periodic Client Participation and
Heterogeneous Data: A New Communication-Efficient Algorithm and Analysis", NeurIPS 2024, and of the
authors' program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.server.optimizers import OptimizerState
from flower_fedcon.server.own_rates import DeltaSGD
from flower_fedcon.server.windows import Window
from flower_fedcon.strategies.families.amplified_steps import AmplifiedSteps, WindowOptions
from flower_fedcon.validation import AUTO, Array, chosen, nonnegative
from flower_fedcon.wire.payloads import Payload

_MOMENTA = 0.0, 0.5, 0.9
_FAR = 1e8  # so far out that a norm's slope is negligible against a square's


class FedAvgState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    m: Array | None = None  # momentum, shape of x0; None without
    optimizer: OptimizerState | None = None  # of server_optimizer; None without
    window: Window | None = None  # None without amplification


class FedAvg(AmplifiedSteps[FedAvgState]):
    """FedAvg; with a `regularizer`, its subgradient is added to each local gradient.

    Parameters
    ----------
    client_lr : float, Schedule, OwnRate, "auto" or "adaptive", optional
        eta_c > 0, at most 1/L; by default 1/L, and 1/(L K P gamma) if gamma > 1. A schedule of
        `flower_fedcon.schedules` changes it by the round. "adaptive" is the schedules'
        `DeltaSGD()`: each client finds its own steps.
    local_steps : int or "auto", optional
        K >= 1; by default 1: with more, heterogeneity leaves a floor.
    server_momentum : float or "auto" (default: 0.0)
        beta in [0, 1).
    server_optimizer : ServerOptimizer, optional
        A rule of `flower_fedcon.optimizers`, whose step replaces m. The fixed points stay the same.
    window : int (default: 1)
        P >= 1, the rounds after which w is amplified; with gamma = 1 without an effect.
    amplification : float (default: 1.0)
        gamma > 0: how many times the window's change of w counts; the authors take up to 3.
    regularizer : Regularizer, optional
        psi; it needs a subgradient.

    Raises
    ------
    ConfigError
        If an argument is out of range; at the start of a run, if the regularizer has no
        subgradient.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> problem = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (1.0, 3.0)])
    >>> history = simulate(FedAvg(client_lr=0.5, local_steps=1), problem, num_rounds=3)
    >>> history.x  # gradient descent towards 2: 1, 1.5, 1.75
    array([1.75])
    """

    name = "fedavg"
    bias = "several local steps move the fixed point where clients differ"
    title = "FedAvg (subgradient)"
    uplink = ("delta",)
    needs_gradient = ""
    needs_mean = needs_uniform = ""
    needs_convex = ""
    needs_server_lr = ""
    needs_constant_lr = needs_common_lr = ""
    usual_own_rate = DeltaSGD
    needs_uncompressed = ""
    needs_fresh = ""
    async_bias = "each client weighs as often as its replies come, so fast clients count more"
    release = Release()
    needs_independent = ""
    takes_sets = False

    def __init__(
        self,
        *,
        server_momentum: float | str = 0.0,
        regularizer: Any = None,
        **steps: Unpack[WindowOptions],
    ) -> None:
        super().__init__(**steps)
        self.server_momentum = chosen(nonnegative, "server_momentum", server_momentum)
        if self.server_momentum != AUTO and self.server_momentum >= 1:
            raise ConfigError(f"server_momentum must be in [0, 1), got {server_momentum!r}")
        if self.server_momentum and self.server_optimizer is not None:
            raise ConfigError(
                f"FedAvg takes either server_momentum or server_optimizer, got {server_momentum!r} "
                f"and {self.server_optimizer!r}: leave one out"
            )
        self.regularizer = None if regularizer is None else as_regularizer(regularizer)

    @property
    def windowed(self) -> bool:
        """Whether windows change anything."""
        return self.amplification != 1

    def safe_share(self) -> float:
        """Return the largest safe step times L: amplified, a window moves by one step of 1/L."""
        if self.amplification <= 1:
            return super().safe_share()
        each = max(1.0, self.server_lr) * self.local_steps
        return float(1 / (each * self.window * self.amplification))

    def smoothness_for(self, name: str, about: str) -> float:
        """Return L plus psi's curvature far out, as of a square, since psi has no prox here."""
        L = super().smoothness_for(name, about)
        if self.regularizer is None:
            return L
        far = np.full(self.setup.layout.shape, _FAR, dtype=self.setup.layout.dtype)
        there, back = self.regularizer.subgradient(far), self.regularizer.subgradient(-far)
        return L + float(np.linalg.norm(there - back) / np.linalg.norm(2 * far))

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for K, eta_c and beta (0)."""
        return {**super().rules(), "server_momentum": lambda: 0.0}

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return the values that a race tries for an argument."""
        return list(_MOMENTA) if name == "server_momentum" else super().ladder(name, value)

    def initialize(self, x0: Array) -> FedAvgState:
        """Start at x0."""
        if self.regularizer is not None:
            self.regularizer.subgradient(x0)  # raises here rather than in round 1
        return FedAvgState(w=x0, window=self.first_window(x0))

    def why_independent(self) -> str:
        """Return why the noise of rounds must be independent with these arguments; "" if not."""
        if self.server_momentum or self.server_optimizer is not None:
            return (
                "with server_momentum or a server_optimizer its model is not the sum of the changes"
            )
        if self.windowed:
            return "with an amplification its model is not the sum of the changes"
        return ""

    def broadcast(self, state: FedAvgState) -> Payload:
        """Step 1."""
        return {"w": state.w}

    def aggregate(self, state: FedAvgState, uploads: Uploads) -> FedAvgState:
        """Step 4."""
        m = uploads.mean("delta")
        if self.server_momentum and state.m is not None:
            m = self.server_momentum * state.m + m
        move, optimizer = self.server_move(m, state.optimizer)
        w, window = state.w + move, state.window
        if window is not None:
            w, window, _ = self.amplified(w, window)
        return FedAvgState(w, m if self.server_momentum else None, optimizer, window)
