"""The names of a strategy's arguments, and their other names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from inspect import signature
from typing import Any, TypedDict

from flower_fedcon.compressors import EF21, Compressor
from flower_fedcon.core.method import Method
from flower_fedcon.core.participation import Participation
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.flower.from_fedavg import instead_of
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.regularizers.base import LONGEST, Regularizer
from flower_fedcon.server.aggregation import Aggregation
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.validation import AUTO, Parameters, parameters

COMMON = {
    "epochs": "local_steps",
    "learning_rate": "client_lr",
    "lr": "client_lr",
}
"""Other common words for arguments."""


class Common(TypedDict, total=False):
    """The keyword arguments that every strategy takes; see `FedConStrategy`."""

    participation: Participation | None
    batch_size: int | None
    batch_order: str
    clip: float | None
    min_replies: int | None
    aggregation: Aggregation | None
    norm_bound: float | None
    privacy: GaussianDP | None
    compression: EF21 | Compressor | None


def other_names(kind: type[Method[Any]]) -> dict[str, str]:
    """Return other words for a method's arguments: the paper's symbols, and common ones."""
    arguments = parameters(kind)
    pairs = re.findall(r"(\w+) = (\w+)", sys.modules[kind.__module__].__doc__ or "")
    return {**COMMON, **{symbol: name for symbol, name in pairs if name in arguments}}


def names_checked(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that refuses unknown arguments with the nearest known one."""

    @wraps(init)
    def checked(self: Method[Any], *args: Any, **given: Any) -> None:
        kind = type(self)
        if kind.__init__ is checked:  # not the one that a subclass's constructor calls
            _check_names(kind, args, given)
        init(self, *args, **given)
        if kind.__init__ is checked:
            check_convexity(self)

    return checked


def _check_names(kind: type[Method[Any]], args: Sequence[Any], given: Mapping[str, Any]) -> None:
    """Raise for an argument with an unknown name, a surplus positional one, or a missing one."""
    (arguments, in_place), title = _known(kind), kind.__name__
    for name in given:
        if name not in arguments:
            hint = instead_of(name) or nearest(name, arguments, other_names(kind))
            raise ConfigError(f"{title} has no argument {name!r}: {hint}")
    if len(args) > len(in_place):
        value = args[len(in_place)]
        terms = _terms(value)
        if terms and not arguments.keys() & terms:
            raise ConfigError(
                f"{title} takes no {terms[0]}, got {value!r}: its problem is "
                f"{kind.card().problem}. `fedcon list` shows the methods with their problems"
            )
        free = [name for name in arguments if name not in in_place and name not in given]
        fitting = [name for name in terms if name in free] or free
        raise ConfigError(
            f"{title} takes {' and '.join(in_place) or 'no argument'} without a name, got "
            f"{value!r} too: write {title}({fitting[0]}={value!r}), with "
            f"a name of {', '.join(arguments)}"
        )
    missing = [
        name
        for name, p in arguments.items()
        if p.default is p.empty and name not in given and name not in in_place[: len(args)]
    ]
    if missing:
        raise ConfigError(f"{title} needs {', '.join(missing)}: `fedcon info {title}` explains it")


def _terms(value: Any) -> list[str]:
    """Return the names of arguments that can hold this part of a problem, if it is a part."""
    if isinstance(value, ConstraintSet):
        return ["constraint", "regularizer"]
    return ["regularizer"] if isinstance(value, Regularizer) else []


@lru_cache(maxsize=256)
def _known(kind: type[Method[Any]]) -> tuple[Parameters, list[str]]:
    """Return a strategy's arguments and its positional ones, cached for each class."""
    in_place: list[str] = []
    for base in kind.__mro__:
        if "__init__" in vars(base):
            listed = signature(vars(base)["__init__"]).parameters.values()
            in_place += [p.name for p in listed if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
            if not any(p.kind is p.VAR_POSITIONAL for p in listed):  # otherwise its base's follow
                break
    return parameters(kind), in_place


def refuse_race(
    title: str, name: str, value: Any, why: str = "here a lower one may break the constraints"
) -> None:
    """Refuse "auto" for an argument of a method that does not just minimise the mean objective.

    Raises
    ------
    ConfigError
    """
    if isinstance(value, str) and value == AUTO:
        raise ConfigError(
            f'{title} takes no {name}="auto": a race compares objectives, and {why}. Give a '
            "number, or leave it out for the rule"
        )


def check_convexity(strategy: Method[Any]) -> None:
    """Refuse a weakly convex regularizer if the method needs a convex one, or smaller steps.

    Raises
    ------
    ConfigError
        With the reason, or the steps at which the regularizer has a prox.
    """
    psi, title = strategy.regularizer, strategy.title
    modulus = 0.0 if psi is None else psi.weak_convexity
    if not modulus:
        return
    if strategy.needs_convex:
        raise ConfigError(
            f"{title} needs a convex regularizer, and {psi!r} is weakly convex (modulus "
            f"{modulus:g}): {strategy.needs_convex}. `fedcon info` says which methods take it"
        )
    if getattr(strategy, "setup", None) is None and any(
        getattr(strategy, name) in (None, AUTO) for name in strategy.rules()
    ):
        return  # known once the strategy is bound
    longest = strategy.longest_prox()
    if longest * modulus >= LONGEST:
        raise ConfigError(
            f"{title} takes prox steps of up to {longest:g}, and {psi!r} has a prox only for steps "
            f"below {1 / modulus:g}, the inverse of its modulus of weak convexity: take smaller "
            f"steps, or a regularizer with a smaller modulus"
        )
