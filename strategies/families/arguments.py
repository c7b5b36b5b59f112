"""The names of a strategy's arguments, and what else they are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.validation import parameters

if TYPE_CHECKING:
    from flower_fedcon.strategies.base import FedConStrategy

COMMON = {
    "epochs": "local_steps",
    "learning_rate": "client_lr",
    "lr": "client_lr",
    "fraction_fit": "participation",
    "fraction_train": "participation",
    "min_train_nodes": "min_replies",
}
"""Other words for arguments, from elsewhere."""


def names_checked(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that refuses an argument of an unknown name with the nearest one."""

    @wraps(init)
    def checked(self: FedConStrategy[Any], *args: Any, **given: Any) -> None:
        kind = type(self)
        if kind.__init__ is checked:  # and not one that a subclass's calls
            known = parameters(kind)
            for name in given:
                if name not in known:
                    hint = nearest(name, known, kind.other_names())
                    raise ConfigError(f"{kind.__name__} has no argument {name!r}: {hint}")
        init(self, *args, **given)

    return checked
