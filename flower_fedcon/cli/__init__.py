"""The command `fedcon`."""

from flower_fedcon.cli.command import app, main

__all__ = ["app", "main"]
