"""The number of rounds that a private run has asked for or released, kept in a file.

The number is written before each round. A server that is killed in the middle of a round may have
released a part of it. This file then knows of the round, and the checkpoint does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import FedConError
from flower_fedcon.wire import state_files

if TYPE_CHECKING:
    from flower_fedcon.core.protection import Protection

NAME = "spent"


def keep(private: Protection, folder: Path) -> None:
    """Count the rounds in the folder's file, and write each further round into it.

    Raises
    ------
    FedConError
        If the file is damaged.
    """
    path = folder / NAME

    def write(spent: int) -> None:
        state_files.write(path, {"rounds": spent, **private.account()})

    private.keep_rounds(lambda: int(account(folder)["rounds"]), write)


def account(folder: Path) -> dict[str, Any]:
    """Return the file's content: "rounds" (0 without a file) and `Private.account`.

    Raises
    ------
    FedConError
        If the file is damaged.
    """
    path = folder / NAME
    try:
        spent = state_files.read(path, {})
    except FileNotFoundError:
        return {"rounds": 0}
    except state_files.DamagedError as error:
        raise FedConError(
            f"it is not known what this run has spent: {error}. Start again in another run "
            f"directory"
        ) from None
    if not isinstance(spent, dict) or type(spent.get("rounds")) is not int or spent["rounds"] < 0:
        raise FedConError(f"{path} does not say what this run has spent: use another run directory")
    return spent
