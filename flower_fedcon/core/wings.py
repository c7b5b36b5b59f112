"""The wings: rooms that are built onto the core and found by their file `wing.py`.

A wing's `wing.py` says in a few lines what it adds. Each kind of addition is a dictionary, such as
`EXCHANGES` (see `flower_fedcon.core.exchange`). The core asks `brought` for all of one kind, and
imports no wing by its name, so a wing can be deleted and everything else works.

A package of your own brings such a module by an entry point of the group "flower_fedcon.wings"::

    [project.entry-points."flower_fedcon.wings"]
    mine = "my_package.wing"

A `wing.py` names its functions by `later`, which imports them at their first call: a node starts a
new process for every message, and needs few of them.
"""

from __future__ import annotations

import logging
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from flower_fedcon.errors import ConfigError

GROUP = "flower_fedcon.wings"
_log = logging.getLogger("flwr")


@cache
def wings() -> dict[str, ModuleType]:
    """Return the wings' modules by name: those of this package, then installed ones.

    An installed one that cannot be loaded is left out, and the log says why.
    """
    here = Path(__file__).parents[1]
    names = sorted(path.parent.name for path in here.glob("*/wing.py"))
    modules = {name: import_module(f"flower_fedcon.{name}.wing") for name in names}
    for point in entry_points(group=GROUP):
        if point.name in modules:
            _log.warning("the wing %s (%s) has a name that is taken", point.name, point.value)
            continue
        try:
            modules[point.name] = point.load()
        except Exception as error:  # any error of a foreign package
            _log.warning("the wing %s (%s) cannot be loaded: %r", point.name, point.value, error)
    return modules


def brought(kind: str) -> dict[str, Any]:
    """Return everything of one kind that the wings add, by name.

    Raises
    ------
    ConfigError
        If two wings bring the same name.

    >>> "estimates" in brought("EXCHANGES")
    True
    """
    added: dict[str, Any] = {}
    for wing, module in wings().items():
        for name, what in getattr(module, kind, {}).items():
            if name in added:
                raise ConfigError(f"the wing {wing} brings {name!r} of {kind} a second time")
            added[name] = what
    return added


def loaded(kind: str) -> dict[str, Any]:
    """Return everything of one kind that the wings add, by name, and import it."""
    return {name: _imported(what) for name, what in brought(kind).items()}


def bring(kind: str, name: str, what: str) -> Any:
    """Return one thing that a wing adds; `what` says for the error who needs it.

    Raises
    ------
    ConfigError
        If no wing here brings it.
    """
    added = brought(kind)
    if name not in added:
        raise ConfigError(f"{what}, and this installation has no wing that brings {name!r}")
    return _imported(added[name])


def _imported(what: Any) -> Any:
    return what.found if isinstance(what, later) else what


class later:  # noqa: N801  (it reads like the function that it stands for)
    """A function or class, given as "module:name", that is imported when it is first needed.

    >>> later("math:hypot")(3.0, 4.0)
    5.0
    """

    def __init__(self, place: str) -> None:
        self.place = place

    @cached_property
    def found(self) -> Any:
        """The function or class itself."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)

    def __call__(self, *args: Any, **more: Any) -> Any:
        """Call what it stands for."""
        return self.found(*args, **more)
