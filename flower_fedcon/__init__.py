"""Federated constrained and composite optimisation for Flower."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from flower_fedcon.core.availability import Available, Cyclic, Markov
    from flower_fedcon.core.clock import Clock, Deadline, Exponential, LogNormal, Uniform
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
    "Clock",
    "Cyclic",
    "Deadline",
    "EarlyStopping",
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
    "Clock": "core.clock",
    "Cyclic": "core.availability",
    "Deadline": "core.clock",
    "EarlyStopping": "runs.history",
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
    "read_runs": "runs.frames",
    "register": "registry",
    "regularization_path": "paths.path",
    "server_app": "flower.apps",
    "simulate": "simulation",
    "stability_selection": "paths.stability",
    "train_step": "flower.train_functions",
}


# The modules with a page of the interface, other than this one.
_PUBLIC = (
    "strategies", "problems", "regularizers", "sets", "objectives", "estimators", "tables",
    "survival", "compressors", "privacy", "aggregation", "optimizers", "schedules", "paths",
    "solvers", "testing", "torch", "training",
)  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        _refuse(name, sys._getframe(1).f_code.co_name == "_handle_fromlist")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def _refuse(name: str, imported: bool) -> NoReturn:
    """Raise for a name that is not here, and say which public module has it.

    `from flower_fedcon import name` asks first whether the name is here, and makes an error of its
    own of an AttributeError: there the error is the ImportError that it would end in.
    """
    said = f"module {__name__!r} has no attribute {name!r}"
    here = Path(__file__).parent
    if not name.startswith("_") and not any(
        (here / f"{name}{end}").exists() for end in ("", ".py")
    ):
        for module in _PUBLIC:
            if name in _names_of(here, module):
                there = f"{__name__}.{module}"
                said = f"{name} is in {there}: write `from {there} import {name}`"
                if imported:
                    raise ImportError(said, name=__name__)
                break
    raise AttributeError(said)


def _names_of(here: Path, module: str) -> list[str]:
    """Return a module's public names, read from its source: it may need an extra."""
    path = here / f"{module}.py"
    try:
        text = (path if path.exists() else here / module / "__init__.py").read_text("utf-8")
    except OSError:  # an archive, or compiled files alone
        return []
    if whole := re.search(r"^from flower_fedcon\.(\S+) import \*$", text, re.MULTILINE):
        return _names_of(here, whole[1].replace(".", "/"))
    listed = re.search(r"^__all__ = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    named = re.findall(r'"(\w+)"', listed[1] if listed else "")
    return named or re.findall(r"^from \S+ import (?:\(\s+)?(\w+) as \1\b", text, re.MULTILINE)
