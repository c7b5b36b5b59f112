"""The command `fedcon`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from flower_fedcon.errors import MissingExtraError, needing

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, one of `command.EXIT_CODES`."""
    try:
        _expect_packages()
    except MissingExtraError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from flower_fedcon.cli.command import main as run

    return run(arguments)


def _expect_packages() -> None:
    with needing("the command fedcon needs typer, rich and packaging", "cli"):
        import packaging  # noqa: F401
        import rich  # noqa: F401
        import typer  # noqa: F401


def __getattr__(name: str) -> Any:
    """Return a part of the command for tests and documentation: `app`."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _expect_packages()
    from flower_fedcon.cli.command import app

    return app
