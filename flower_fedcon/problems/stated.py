"""Problems that record how they were made, so that a run's folder can state it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Problem = TypeVar("Problem")


def stated(builder: Callable[Arguments, Problem]) -> Callable[Arguments, Problem]:
    """Decorate a function that returns a problem, so that the problem records name and arguments.

    The folder of a run that was started in Python then holds a `config.toml`, with which
    ``fedcon run`` repeats it, if the function's module can be imported. All functions of
    `flower_fedcon.problems` are decorated. Your own function must be at the top level of a module.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem
    >>> from flower_fedcon.objectives import Quadratic
    >>> @stated
    ... def two(*, apart: float = 1.0) -> FederatedProblem:
    ...     return FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (0.0, apart)])
    >>> two(apart=3.0).stated["apart"]
    3.0
    """

    @wraps(builder)
    def built(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Problem:
        problem = builder(*args, **kwargs)
        given = inspect.signature(builder).bind(*args, **kwargs).arguments
        problem.stated = {"name": _name_of(builder), **given}  # type: ignore[attr-defined]
        return problem

    return built


def _name_of(builder: Callable[..., object]) -> str:
    """Return a function's name in experiment files."""
    module, name = builder.__module__, builder.__qualname__
    if module.startswith(f"{__name__.partition('.')[0]}."):
        return name
    if module == "__main__":  # a script, which other programs import by its file's name
        file = getattr(sys.modules[module], "__file__", None)
        module = module if file is None else Path(file).stem
    return f"{module}:{name}"
