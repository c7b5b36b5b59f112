"""The problems that an experiment file can name.

A builder is a function of keyword arguments, annotated, that returns a `FederatedProblem`. To add
one, write it in a module here and enter it in `BUILDERS`: its arguments are the keys that
``[problem]`` then accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.problem import FederatedProblem
from flower_fedcon.problems.counterexample import counterexample
from flower_fedcon.problems.digits import digits
from flower_fedcon.problems.files import files
from flower_fedcon.problems.lasso import lasso

Builder: TypeAlias = Callable[..., FederatedProblem]

BUILDERS: dict[str, Builder] = {
    "counterexample": counterexample,
    "digits": digits,
    "files": files,
    "lasso": lasso,
}

__all__ = ["BUILDERS", "Builder", "builder", "counterexample", "digits", "files", "lasso"]


def builder(name: object) -> Builder:
    """Return the builder of that name.

    >>> builder("lasso") is lasso
    True
    """
    if name not in BUILDERS:
        raise ConfigError(f"unknown problem {name!r}: {nearest(str(name), BUILDERS)}")
    return BUILDERS[str(name)]
