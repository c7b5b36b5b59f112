r"""Scaffnew: gradient steps with control variates, and a random number of them in each round.

    min_x (1/N) sum_i f_i(x) + psi(x)          (psi = 0: Scaffnew; else RandProx)

Round r = 1, 2, ..., from x_bar = x0 and h_i = 0:
    1. server:    draw K_r ~ Geometric(p) on {1, 2, ...};  broadcast x_bar and K_r
    2. client i:  h_i := h_i + (p/gamma) (x_bar - xhat_i)     (xhat_i from the round before)
    3. client i:  x = x_bar;  K_r times  x := x - gamma (grad f_i(x) - h_i);  xhat_i = x
    4. upload v_i = xhat_i - (gamma/p) h_i
    5. server:    v_bar = mean v_i;  x_bar := prox(v_bar, gamma/p)

All clients share one coin, since all communicate in the same rounds. K_r has mean 1/p: O(kappa log)
gradients and, with p = 1/sqrt(kappa), O(sqrt(kappa) log) rounds. After step 2 the mean of the h_i
is -(p/gamma)(v_bar - x_bar), which is 0 without psi and else lies in the negative subdifferential
of psi at x_bar. Symbols: gamma = client_lr, p = communication_probability, kappa = L/mu.

State: h_i and xhat_i on the client; x_bar on the server.
Wire: 1 vector and 1 number down; 1 vector up.
Participation: full.
Compression: EF21, of v_i - x_bar: the client uses the decoded v_i in step 2, so that the h_i sum to
0. The fixed point is the same.
Lost state: h_i := 0. Step 4 uploads h_i with xhat_i, so that the sum is 0 again after one round.
Uploading xhat_i alone, as the h_i sum to 0, would make the loss permanent, and the round with psi
wrong.

Not for: absent clients (TAMUNA allows them), and rounds that must have a fixed length.

Source: Konstantin Mishchenko, Grigory Malinovsky, Sebastian Stich, Peter Richtárik, "ProxSkip: Yes!
Local Gradient Steps Provably Lead to Communication Acceleration! Finally!", ICML 2022
(arXiv:2202.09357) (Scaffnew); Laurent Condat, Peter Richtárik, "RandProx: Primal-Dual Optimization
Algorithms with Randomized Proximal Updates", ICLR 2023 (arXiv:2207.12891), where u_i = -h_i. The
round with psi is reconstructed.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.families.random_rounds import CoinOptions, RandomRounds
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class ScaffnewState(NamedTuple):
    """The server's state."""

    x_bar: Array  # global model, shape of x0
    r: int  # the coming round, from 1


class ScaffnewConstants(NamedTuple):
    """Constants that follow from the setup."""

    client_lr: float  # gamma
    communication_probability: float  # p


class Scaffnew(RandomRounds[ScaffnewState]):
    """ProxSkip for federated learning; RandProx with a `regularizer`.

    Parameters
    ----------
    client_lr : float or "auto", optional
        gamma > 0, at most 1/L; by default 1/L.
    communication_probability : float or "auto", optional
        p in (0, 1]; by default 1/sqrt(kappa) if mu > 0 is known, else 0.1.
    regularizer : Regularizer or ConstraintSet, optional (default: None)
        psi, on the server only.

    Raises
    ------
    ConfigError
        If an argument is out of range, or client_lr is None and L unknown.
    ParticipationError
        If the participation leaves clients out.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(np.array([[q]]), np.array([b])) for q, b in ((1.0, 1.0), (3.0, 9.0))]
    >>> simulate(Scaffnew(), FederatedProblem(clients), num_rounds=60).x.round(9)
    array([2.5])
    """

    name = "scaffnew"
    uplink = ("v",)
    needs_constant_lr = "the h_i move by the step length of the round before"
    needs_gradient = ""
    needs_mean = "the h_i sum to 0 only if v_bar is the mean of the v_i"
    needs_convex = "the h_i converge because the prox of a convex psi expands no distance"
    needs_uncompressed = ""
    release = Release(about={"v": "x_bar"})
    needs_independent = "its server takes a prox of each round's mean, and adds up nothing"
    needs_everyone = "all clients share one coin"

    constants: ScaffnewConstants

    def __init__(self, *, regularizer: Any = None, **coin: Unpack[CoinOptions]) -> None:
        super().__init__(**coin)
        self.regularizer = as_regularizer(regularizer)

    def usual_client_lr(self) -> float:
        """Return 1/L."""
        return 1 / self.smoothness_for("client_lr", "at most 1/L")

    def usual_probability(self) -> float:
        """Return 1/sqrt(kappa), or 0.1."""
        L, mu = self.setup.smoothness, self.setup.strong_convexity
        return min(1.0, (mu / L) ** 0.5) if mu and L else 0.1

    def derive(self) -> ScaffnewConstants:
        """Return gamma and p."""
        return ScaffnewConstants(self.client_lr, self.communication_probability)

    def initialize(self, x0: Array) -> ScaffnewState:
        """Start at x0."""
        return ScaffnewState(x_bar=x0, r=1)

    def broadcast(self, state: ScaffnewState) -> Payload:
        """Step 1."""
        return {"x_bar": state.x_bar, "steps": self.steps_of(state.r)}

    def aggregate(self, state: ScaffnewState, uploads: Uploads) -> ScaffnewState:
        """Step 5."""
        gamma, p = self.constants
        return ScaffnewState(self.regularizer.prox(uploads.mean("v"), gamma / p), state.r + 1)

    def readmit(self, state: ScaffnewState, client: int) -> tuple[ScaffnewState, Payload]:
        """Let the client start from h_i = 0."""
        return state, {}
