"""How many rounds a private run has asked for or released: written down before each of them.

A server that is killed in the middle of a round may have released something of it. Its checkpoint
does not know; this file does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import FedConError
from flower_fedcon.wire import state_files

if TYPE_CHECKING:
    from flower_fedcon.core.private import Private

NAME = "spent"


def keep(private: Private, folder: Path) -> None:
    """Count what the folder's file knows of, and write each further round into it.

    Raises
    ------
    FedConError
        If the file is damaged.
    """
    path, found = folder / NAME, account(folder)
    private.heard(found["rounds"])

    def write(spent: int) -> None:
        state_files.write(path, {"rounds": spent, **private.account()})

    private.before_round = write


def account(folder: Path) -> dict[str, Any]:
    """Return what the folder's file says: "rounds", 0 if there is none, and `Private.account`.

    Raises
    ------
    FedConError
        If the file is damaged.
    """
    path = folder / NAME
    try:
        found = state_files.read(path, {})
    except FileNotFoundError:
        return {"rounds": 0}
    except state_files.DamagedError as error:
        raise FedConError(
            f"it is not known what this run has spent: {error}. Start again in another run "
            f"directory"
        ) from None
    if not isinstance(found, dict) or type(found.get("rounds")) is not int or found["rounds"] < 0:
        raise FedConError(f"{path} does not say what this run has spent: use another run directory")
    return found
