"""Checkpoints: what a run needs to continue as if it had never stopped."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.errors import FedConError
from flower_fedcon.registry import client_class
from flower_fedcon.validation import Array
from flower_fedcon.wire import state_files

if TYPE_CHECKING:
    from flower_fedcon.core.protocol import Setup
    from flower_fedcon.strategies.base import FedConStrategy

NAME = "checkpoint"


def fingerprint(strategy: FedConStrategy[Any], setup: Setup, x0: Array) -> dict[str, str]:
    """Return what must not change when a run is resumed, by name."""
    entries = {name: repr(value) for name, value in strategy.arguments().items()}
    entries |= {
        "algorithm": strategy.name,
        "seed": str(setup.seed),
        "clients": json.dumps([client.name for client in setup.clients]),
        "model": setup.layout.to_json(),
        "x0": hashlib.sha256(x0.tobytes()).hexdigest(),
    }
    if strategy.uses_num_rounds:
        entries["num_rounds"] = str(setup.num_rounds)
    return entries


def save(folder: Path, content: dict[str, Any]) -> None:
    """Write the checkpoint of a run directory, in one step."""
    state_files.write(folder / NAME, content)


def load(
    folder: Path,
    strategy: FedConStrategy[Any],
    setup: Setup,
    x0: Array,
    allow_changes: Sequence[str] = (),
) -> dict[str, Any] | None:
    """Return the checkpoint of a run directory; None if there is none.

    Raises
    ------
    FedConError
        If it is damaged, or belongs to a run with other settings. Settings named in
        `allow_changes` may differ.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = state_files.read(path, _types(strategy))
    except state_files.DamagedError as error:
        raise FedConError(f"cannot resume: {error}. Start again in another run directory") from None
    now, then = fingerprint(strategy, setup, x0), content["fingerprint"]
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) != then.get(name) and name not in allow_changes:
            raise FedConError(
                f"cannot resume {folder}: {name} was {then.get(name, 'not set')}, is "
                f"{now.get(name, 'not set')}. Set it back, allow this change "
                f"(allow_changes=[{name!r}], --allow-change {name}), or use another run directory"
            )
    return content


def _types(strategy: FedConStrategy[Any]) -> dict[str, type[Any]]:
    """Return the named tuples of an algorithm's own modules: its states are made of them."""
    found: dict[str, type[Any]] = {"Versions": Versions, "Mirror": Mirror}
    for kind in (*type(strategy).__mro__, *client_class(strategy.name).__mro__):
        for name, value in vars(sys.modules[kind.__module__]).items():
            if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
                found[name] = value
    return found
