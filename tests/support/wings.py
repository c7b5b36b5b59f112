"""The wings: what each is, and which tests are left where one was deleted.

A test that asks for a wing by itself, by an import, a problem's builder or a command, is skipped
where the wing is not there. Where another room asks for it, the test fails.
"""

from __future__ import annotations

import importlib.abc
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import flower_fedcon

PACKAGE = Path(flower_fedcon.__file__).parent
TESTS = Path(__file__).parents[1]


class Wing(NamedTuple):
    """Rooms that are deleted together, the folders of their tests, and the commands then gone."""

    rooms: tuple[str, ...]
    tests: tuple[str, ...] = ()
    commands: str = ""


WINGS = {
    "lab": Wing(
        ("lab",),
        ("lab",),
        "recommend run compare tune path reproduce plot table report watch steps bench "
        "data/partition data/curves privacy/audit",
    ),
    "report": Wing(("lab/report",), commands="report watch data/curves"),
    "tables": Wing(
        ("tables", "estimators", "paths", "survival"),
        ("tables", "estimators", "survival"),
        "path predict contrast estimates data/check data/curves data/describe",
    ),
    "paths": Wing(
        ("paths", "estimators", "survival"), ("estimators", "survival"), "path data/curves"
    ),
    "estimators": Wing(("estimators", "survival"), ("estimators", "survival"), "data/curves"),
    "survival": Wing(("survival",), ("survival",), "data/curves"),
    "torch": Wing(("torch",)),
    "jax": Wing(("engines/jax",)),
}
ROOMS = {room for wing in WINGS.values() for room in wing.rooms}
LACKING = {room for room in ROOMS if not (PACKAGE / room).is_dir()}
GONE = {f"flower_fedcon.{room.replace('/', '.')}" for room in LACKING}
COMMANDS = {
    command.rpartition("/")[2]
    for wing in WINGS.values()
    if LACKING & {*wing.rooms}
    for command in wing.commands.split()
}
REFUSED = re.compile(
    rf"No such command '({'|'.join(COMMANDS)})'"
    r"|has no wing that brings '.*?'|needs \S+, which is not here"
)
DOORS = {"__init__.py", "errors.py"}  # they hand on what is asked of them


def gone(name: str | None) -> bool:
    """Return whether a module is of a wing that was deleted."""
    return any(name == room or f"{name}".startswith(f"{room}.") for room in GONE)


class Finder(importlib.abc.MetaPathFinder):
    """Refuses the modules of deleted wings, which an editable installation finds elsewhere."""

    def find_spec(self, name, path=None, target=None):
        if gone(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def skip_if_asked(error: BaseException) -> None:
    """Skip the test if it is what has asked for a wing that was deleted."""
    if GONE and REFUSED.search(f"{error}"):
        pytest.skip(f"of a wing that is not here: {error}", allow_module_level=True)
    if not (isinstance(error, ModuleNotFoundError) and gone(error.name)):
        return
    at, files = error.__traceback__, []
    while at is not None:
        files.append(Path(at.tb_frame.f_code.co_filename))
        at = at.tb_next
    for file in reversed(files):
        if file.is_relative_to(TESTS) and file != Path(__file__):
            pytest.skip(f"of a wing that is not here: {error}", allow_module_level=True)
        if file.is_relative_to(PACKAGE) and f"{file.relative_to(PACKAGE)}" not in DOORS:
            return


def skip_without_command(said: str) -> None:
    """Skip the test if it has called a command that needs a wing that was deleted."""
    if found := REFUSED.search(said):
        pytest.skip(f"of a wing that is not here: {found[0]}")


def pytest_configure():
    """Let nothing bring a deleted wing back, and look at what commands answer."""
    if not GONE:
        return
    sys.meta_path.insert(0, Finder())
    from typer.testing import CliRunner

    from flower_fedcon.cli import command

    complain, invoke = command._complain, CliRunner.invoke

    def complained(text, code):
        skip_without_command(text)
        return complain(text, code)

    def invoked(*arguments, **more):
        result = invoke(*arguments, **more)
        skip_without_command(f"{result.output} {result.exception}")
        return result

    command._complain, CliRunner.invoke = complained, invoked


class Module(pytest.Module):
    """A file of tests, which may be of a wing."""

    def _getobj(self):
        try:
            return super()._getobj()
        except self.CollectError as error:
            skip_if_asked(error.__cause__ or error)
            raise
        except Exception as error:
            skip_if_asked(error)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    """Collect a file of tests."""
    return Module.from_parent(parent, path=module_path) if GONE else None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """Run a test."""
    try:
        return (yield)
    except Exception as error:
        skip_if_asked(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup():
    """Make a fixture."""
    try:
        return (yield)
    except Exception as error:
        skip_if_asked(error)
        raise
