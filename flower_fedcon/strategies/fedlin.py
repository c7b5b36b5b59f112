r"""FedLin: local gradient steps, each corrected by the gradients at the broadcast model.

    min_x (1/N) sum_i f_i(x),   f_i L-smooth

Rounds come in pairs, from x = x0:
    1. broadcast x;  client i uploads grad f_i(x);  server:  g := mean grad f_i(x)
    2. broadcast x and g;  client i:  y = x;  H times  y := y - eta (grad f_i(y) - grad f_i(x) + g)
                           and uploads y - x;  server:  x := x + mean(y_i - x)

The correction is the limit of Scaffold's control variates, computed exactly in every round. There
is therefore no state, and no floor under heterogeneity, at the price of one more exchange. By
default eta = 1/(6 L H); two rounds then advance about as far as one gradient step of 1/(6 L), for
any H. With batch_size every gradient is of a minibatch, and their noise leaves a floor.
Symbols: eta = client_lr, H = local_steps.

State: none on the client; x and g on the server.
Wire: 1 vector down in a first round, 2 in a second; 1 vector up.
Participation: full.
Lost state: nothing to lose.

Not for: absent clients: everyone answers twice a round. Scaffold allows them.

Source: Aritra Mitra, Rayana Jaafar, George J. Pappas, Hamed Hassani, "Linear Convergence in
Federated Learning: Tackling Client Heterogeneity and Sparse Gradients", NeurIPS 2021
(arXiv:2102.07053), without sparse gradients and with one H for all clients; the steps are
second-hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.server.schedules import Schedule
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.validation import Array, chosen, count
from flower_fedcon.wire.payloads import Payload


class FedLinState(NamedTuple):
    """The server's state."""

    x: Array  # global model, shape of x0
    g: Array | None  # mean gradient at x, shape of x0; None if the coming round asks for it


class FedLin(FedConStrategy[FedLinState]):
    """FedLin.

    Parameters
    ----------
    local_steps : int or "auto", optional
        H >= 1; by default 5.
    client_lr : float, Schedule or "auto", optional
        eta > 0; by default 1/(6 L H). A schedule of `flower_fedcon.schedules` counts rounds, which
        come in pairs.

    Raises
    ------
    ConfigError
        If an argument is out of range, or L is unknown and a default needs it.
    ParticipationError
        If the participation leaves clients out.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(np.array([[q]]), np.array([b])) for q, b in ((1.0, 1.0), (3.0, 9.0))]
    >>> strategy = FedLin(local_steps=3, client_lr=0.2)
    >>> simulate(strategy, FederatedProblem(clients), num_rounds=80).x.round(9)
    array([2.5])
    """

    name = "fedlin"
    uplink = ("gradient", "delta")
    needs_constant_lr = ""
    needs_gradient = ""
    needs_uncompressed = "its steps are corrected by the exact gradients of a first exchange"
    needs_mean = "the corrections sum to 0 only if g is the mean of the gradients"
    release = Release()
    needs_independent = "its clients' steps are corrected by the gradient of one round only"
    needs_everyone = "g and the steps that it corrects must come from the same clients"

    def __init__(
        self,
        *,
        local_steps: int | str | None = None,
        client_lr: float | str | Schedule | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.local_steps = chosen(count, "local_steps", local_steps)
        self.client_lr = self.step_length(client_lr)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for H and eta."""
        return {"local_steps": lambda: 5, "client_lr": self._rate}

    def _rate(self) -> float:
        L = self.smoothness_for("client_lr", "about 1/(6 L local_steps)")
        return float(1 / (6 * L * self.local_steps))

    def initialize(self, x0: Array) -> FedLinState:
        """Start at x0."""
        return FedLinState(x=x0, g=None)

    def broadcast(self, state: FedLinState) -> Payload:
        """Step 1 or 2."""
        return {"x": state.x} if state.g is None else {"x": state.x, "g": state.g}

    def expects(self, state: FedLinState) -> tuple[str, ...]:
        """Return the names of the step's uploads."""
        return ("gradient",) if state.g is None else ("delta",)

    def aggregate(self, state: FedLinState, uploads: Uploads) -> FedLinState:
        """Step 1 or 2."""
        if state.g is None:
            return FedLinState(state.x, uploads.mean("gradient"))
        return FedLinState(state.x + uploads.mean("delta"), None)
