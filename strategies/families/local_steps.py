"""Methods whose clients take K gradient steps, such as FedAvg and Scaffold."""

from __future__ import annotations

from typing import Any, Required, TypeVar, Unpack

from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.validation import count, positive

State = TypeVar("State")


class StepOptions(Common, total=False):
    """The arguments of `LocalSteps`."""

    client_lr: Required[float]
    local_steps: Required[int]
    server_lr: float


class LocalSteps(FedConStrategy[State]):
    """K local steps of length `client_lr`; the server goes `server_lr` times the mean change.

    Parameters
    ----------
    client_lr : float
        eta_c > 0; at most 1/L.
    local_steps : int
        K >= 1.
    server_lr : float (default: 1.0)
        eta_s > 0.
    """

    def __init__(
        self,
        *,
        client_lr: float,
        local_steps: int,
        server_lr: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.client_lr = positive("client_lr", client_lr)
        self.local_steps = count("local_steps", local_steps)
        self.server_lr = positive("server_lr", server_lr)


class LocalProxSteps(LocalSteps[State]):
    """FedMiD and FedDualAvg: steps with a prox, or with the prox on the server alone."""

    def __init__(
        self, regularizer: Any, *, server_prox_only: bool = False, **steps: Unpack[StepOptions]
    ) -> None:
        super().__init__(**steps)
        self.regularizer = as_regularizer(regularizer)
        self.server_prox_only = bool(server_prox_only)
