"""The method for tables for which none is named."""

from __future__ import annotations

from typing import Any

from flower_fedcon.core.participation import Full, Participation
from flower_fedcon.errors import ConfigError
from flower_fedcon.optimizers import Momentum
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.strategies.compositefl import CompositeFL
from flower_fedcon.strategies.fedmid import FedMiD
from flower_fedcon.strategies.fednewton import FedNewton

_NEWTON = 1000  # entries of a model up to which Hessians are exchanged by default
_MOMENTUM = 0.9  # for large models: a tenth of the rounds if the problem is ill-conditioned


def default_strategy(
    problem: FederatedProblem, participation: Participation | None = None
) -> FedConStrategy[Any]:
    """Return the default method: the fastest, on tables of patients, that the objectives allow."""
    rule = Full() if participation is None else participation
    twice = all(callable(getattr(f, "hessian", None)) for f in problem.clients)
    if twice and problem.layout.size <= _NEWTON:
        return FedNewton(participation=rule)
    constants = [getattr(f, "smoothness", None) for f in problem.clients]
    known = [float(L) for L in constants if L is not None]
    if len(known) < len(constants):
        raise ConfigError(
            "no method can be chosen: the model is large, or an objective has no hessian(x), and "
            "its smoothness is unknown. Give a strategy"
        )
    if rule.is_full(problem.num_clients):  # L of the mean is at most the mean of the L_j
        lr = len(known) / sum(known)
        return FedMiD(
            None, client_lr=lr, local_steps=1, server_prox_only=True,
            server_lr=1 / (1 - _MOMENTUM), server_optimizer=Momentum(_MOMENTUM),
        )  # fmt: skip
    return CompositeFL(None, client_lr=1 / max(known), local_steps=1, participation=rule)
