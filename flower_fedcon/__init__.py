"""Federated constrained and composite optimisation for Flower."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import refuse_name

if TYPE_CHECKING:
    from flower_fedcon.core.availability import Available, Cyclic, Markov
    from flower_fedcon.core.buffered import Buffered
    from flower_fedcon.core.clock import Clock, Deadline, Exponential, LogNormal, Uniform
    from flower_fedcon.core.estimated import Estimated
    from flower_fedcon.core.participation import Bernoulli, Full, Only, Participation, Sample
    from flower_fedcon.core.weighted import Weighted
    from flower_fedcon.engines.patience import Patience
    from flower_fedcon.errors import FedConError
    from flower_fedcon.flower.apps import client_app, server_app
    from flower_fedcon.flower.legacy import as_legacy_strategy
    from flower_fedcon.flower.local_arrays import keep_local
    from flower_fedcon.flower.policy import Policy
    from flower_fedcon.flower.train_functions import train_step
    from flower_fedcon.paths.folds import cross_validate
    from flower_fedcon.paths.path import regularization_path
    from flower_fedcon.paths.stability import stability_selection
    from flower_fedcon.problems.federated import FederatedProblem
    from flower_fedcon.registry import register
    from flower_fedcon.runs.citing import cite
    from flower_fedcon.runs.cohort_log import read_cohorts
    from flower_fedcon.runs.frames import read_runs
    from flower_fedcon.runs.history import EarlyStopping, History
    from flower_fedcon.runs.observing import Observer
    from flower_fedcon.runs.plan import Plan
    from flower_fedcon.simulation import simulate
    from flower_fedcon.tables.fitted import load_model
    from flower_fedcon.training.local_round import current_method

__version__ = "0.2.0"

__all__ = [
    "Available",
    "Bernoulli",
    "Buffered",
    "Clock",
    "Cyclic",
    "Deadline",
    "EarlyStopping",
    "Estimated",
    "Exponential",
    "FedConError",
    "FederatedProblem",
    "Full",
    "History",
    "LogNormal",
    "Markov",
    "Observer",
    "Only",
    "Participation",
    "Patience",
    "Plan",
    "Policy",
    "Sample",
    "Uniform",
    "Weighted",
    "as_legacy_strategy",
    "cite",
    "client_app",
    "cross_validate",
    "current_method",
    "keep_local",
    "load_model",
    "read_cohorts",
    "read_runs",
    "register",
    "regularization_path",
    "server_app",
    "simulate",
    "stability_selection",
    "train_step",
]

# Loaded on first use: a node needs only the client app, and starts a new process for every message.
_HOMES = {
    "Available": "core.availability",
    "Bernoulli": "core.participation",
    "Buffered": "core.buffered",
    "Clock": "core.clock",
    "Cyclic": "core.availability",
    "Deadline": "core.clock",
    "EarlyStopping": "runs.history",
    "Estimated": "core.estimated",
    "Exponential": "core.clock",
    "FedConError": "errors",
    "FederatedProblem": "problems.federated",
    "Full": "core.participation",
    "History": "runs.history",
    "LogNormal": "core.clock",
    "Markov": "core.availability",
    "Observer": "runs.observing",
    "Only": "core.participation",
    "Participation": "core.participation",
    "Patience": "engines.patience",
    "Plan": "runs.plan",
    "Policy": "flower.policy",
    "Sample": "core.participation",
    "Uniform": "core.clock",
    "Weighted": "core.weighted",
    "as_legacy_strategy": "flower.legacy",
    "cite": "runs.citing",
    "client_app": "flower.apps",
    "cross_validate": "paths.folds",
    "current_method": "training.local_round",
    "keep_local": "flower.local_arrays",
    "load_model": "tables.fitted",
    "read_cohorts": "runs.cohort_log",
    "read_runs": "runs.frames",
    "register": "registry",
    "regularization_path": "paths.path",
    "server_app": "flower.apps",
    "simulate": "simulation",
    "stability_selection": "paths.stability",
    "train_step": "flower.train_functions",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        refuse_name(__name__, name, sys._getframe(1))
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
