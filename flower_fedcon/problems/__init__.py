"""Federated problems: the clients' objectives with their constraint or regularizer, and builders.

`federated` has `FederatedProblem`; `reference` has the independent solver for its optimum.
`files` and `digits` build problems from data, and `partition` divides rows among clients; the wing
of tables brings `tables` and `heart`. `papers` has the problems of the papers' experiments, and the
table of all problems that an experiment file can name; it is loaded at first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flower_fedcon.core.wings import bring
from flower_fedcon.errors import refuse_name
from flower_fedcon.problems.digits import digits
from flower_fedcon.problems.federated import FederatedProblem as FederatedProblem
from flower_fedcon.problems.files import files
from flower_fedcon.problems.partitions import partition as partition
from flower_fedcon.problems.stated import stated as stated

if TYPE_CHECKING:
    from flower_fedcon.problems.papers import *  # noqa: F403

__all__ = [  # noqa: F405
    "BUILDERS",
    "Builder",
    "builder",
    "chr12a",
    "cifar10",
    "counterexample",
    "digits",
    "digits_network",
    "emnist",
    "facility",
    "fair_digits",
    "fair_heart",
    "files",
    "fmri",
    "heart",
    "l1_logistic",
    "lasso",
    "low_rank",
    "many_clients",
    "mixture",
    "mnist",
    "mnist_images",
    "movielens",
    "multitask",
    "neyman_pearson",
    "partition",
    "quadratics",
    "six_quadratics",
    "sparse_regression",
    "stated",
    "synthetic",
    "tables",
]

OF_TABLES = ("heart", "tables")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        refuse_name(__name__, name, sys._getframe(1))
    if name in OF_TABLES:
        return bring("BUILDERS", name, f"the problem {name!r} is of tables")
    return getattr(import_module("flower_fedcon.problems.papers"), name)
