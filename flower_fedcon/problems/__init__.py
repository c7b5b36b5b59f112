"""Federated problems: the clients' objectives with their constraint or regularizer, and builders.

`federated` has `FederatedProblem`; `reference` has the independent solver that finds its optimum.
`tables`, `files`, `digits` and `heart` build problems from data. The problems of the papers'
experiments, and the table of all that an experiment file can name, belong to the laboratory, which
is loaded when one of them is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flower_fedcon.problems.digits import digits as digits
from flower_fedcon.problems.files import files as files
from flower_fedcon.problems.heart import heart as heart
from flower_fedcon.problems.tables import tables as tables

if TYPE_CHECKING:
    from flower_fedcon.lab.papers import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        laboratory = import_module("flower_fedcon.lab.papers")
        if name in laboratory.__all__:
            return getattr(laboratory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
