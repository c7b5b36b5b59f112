"""Which of Flower's privacy mods and wrappers work with this package, and why others do not.

They assume that a client sends a model close to the one that it received. Here a client sends what
its method needs (a change, a dual point, an atom), and the same messages carry the handshake.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from types import FrameType, FunctionType
from typing import Any

from flower_fedcon.errors import ConfigError, repr_of
from flower_fedcon.runs.history import EarlyStopping

_INSTEAD = "give the strategy privacy=flower_fedcon.privacy.GaussianDP(...) instead"
_CLIPS = "clips the difference between upload and broadcast, which are not both models here"
_MASKS = "masks whole replies, also the handshake and every client's numbers"
_SECURE = "leave it out, and give server_app secure_aggregation=SecAggPlus(...)"
MODS = {
    "LocalDpMod": f"{_CLIPS}, and adds noise on its own: {_INSTEAD}",
    "fixedclipping_mod": f"{_CLIPS}, by a norm that no server here sends: {_INSTEAD}",
    "adaptiveclipping_mod": f"{_CLIPS}, by a norm that no server here sends: {_INSTEAD}",
    "secagg_mod": f"{_MASKS}: {_SECURE}",
    "secaggplus_mod": f"{_MASKS}: {_SECURE}",
    "message_size_mod": "fails, in Flower 1.41, at an empty text, which messages here hold: use "
    "arrays_size_mod instead",
}
"""For each Flower mod that cannot be used: what it would do, and what to use instead."""
_TRACES = {
    **{f"{name} ": name for name in MODS},
    "clipping_norm value is not supplied": "fixedclipping_mod",
    "secaggplus_configs": "secaggplus_mod",
    "Config values must be": "message_size_mod",
}
"""Texts in the errors that they raise before a client is called."""
_WRAPPERS = ("DifferentialPrivacy", "DPFedAvg")


def check_mods(mods: Iterable[Any]) -> None:
    """Raise unless these client mods can be used with the methods.

    `arrays_size_mod` only reads messages, and can be used. Mods that are not Flower's are not
    checked.

    Raises
    ------
    ConfigError
        With the name of the mod.
    """
    for mod in mods:
        name = _name_of(mod)
        if name is not None:
            raise ConfigError(f"client_app takes no {name}: it {MODS[name]}")


def _name_of(mod: Any) -> str | None:
    """Return the name of a Flower mod that cannot be used."""
    while isinstance(mod, partial):
        mod = mod.func
    kind = mod if isinstance(mod, FunctionType | type) else type(mod)
    return kind.__name__ if kind.__name__ in MODS and _is_flowers(kind.__module__) else None


def _is_flowers(module: str) -> bool:
    return module.startswith(("flwr.clientapp.mod", "flwr.client.mod"))


def explained_mod(reason: str) -> str | None:
    """Return the cause of a node's error, if it comes from one of these mods.

    >>> explained_mod("fixedclipping_mod expects exactly one ArrayRecord")
    'the node runs fixedclipping_mod, which clips the difference between upload and broadcast, ...
    """
    name = next((name for trace, name in _TRACES.items() if trace in reason), None)
    return None if name is None else f"the node runs {name}, which {MODS[name]}"


def check_strategy(strategy: Any) -> None:
    """Raise if a strategy is one of Flower's wrappers for differential privacy.

    Raises
    ------
    ConfigError
    """
    kind = type(strategy)
    if kind.__name__.startswith(_WRAPPERS) and kind.__module__.startswith("flwr."):
        raise ConfigError(
            f"{kind.__name__} cannot wrap a strategy of flower_fedcon, since it clips and averages "
            f"models, and these methods release other values: {_INSTEAD}"
        )


def check_shares(strategy: Any) -> None:
    """Raise if clients would add noise to uploads that a server sees one by one.

    Raises
    ------
    ConfigError
    """
    privacy = strategy.privacy
    if privacy is not None and privacy.by_clients:
        raise ConfigError(
            'GaussianDP(noise_by="clients") needs secure aggregation, since each upload has only a '
            "share of the noise: give secure_aggregation=SecAggPlus(), or let the server add the "
            "noise"
        )


def check_stop(strategy: Any, should_stop: Any) -> None:
    """Raise unless this can be `should_stop` of a run of the strategy.

    Raises
    ------
    ConfigError
    """
    if isinstance(should_stop, EarlyStopping) or not callable(should_stop):
        raise ConfigError(
            f"should_stop is a function of a round's number and the result, as in Flower, got "
            f"{repr_of(should_stop)}: EarlyStopping and other functions of a record are "
            f"start(callbacks=[...])"
        )
    if strategy.privacy is not None and strategy.privacy.noise_multiplier:
        raise ConfigError(
            "should_stop sees what clients have measured, which no noise protects, so the number "
            "of rounds would reveal something of it. In a private run give rounds or a budget of "
            "epsilon, or callbacks=[EarlyStopping(..., unsafe=True)], which epsilon does not count"
        )


def check_callers() -> None:
    """Raise if a wrapper calls a strategy, or a mod a client, that does not work with it.

    With a mod, Flower reports the error: the mod would fail on a reply.

    Raises
    ------
    ConfigError
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        check_strategy(frame.f_locals.get("self"))
        name = frame.f_code.co_qualname.partition(".")[0]
        if name in MODS and _is_flowers(str(frame.f_globals.get("__name__"))):
            raise ConfigError(f"the node runs {name}, which {MODS[name]}")
        frame = frame.f_back
