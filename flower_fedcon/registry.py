"""The closed registry of algorithms: the pairs of strategy and client, by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError, nearest

if TYPE_CHECKING:
    from flower_fedcon.clients.base import FedConClient
    from flower_fedcon.strategies.base import FedConStrategy

# A pair's two modules bear its name, in strategies/ and in clients/: one is imported on a server,
# the other on a node.
CLASSES = {
    "fedavg": "FedAvg",
    "fedmid": "FedMiD",
    "feddualavg": "FedDualAvg",
    "fastfedda": "FastFedDA",
    "cfedda": "CFedDA",
    "mcfedda": "MCFedDA",
    "fedfw": "FedFW",
    "fedfwplus": "FedFWPlus",
    "dualfl": "DualFL",
    "fedsgm": "FedSGM",
    "scaffold": "Scaffold",
    "scaffnew": "Scaffnew",
    "apdainexact": "APDAInexact",
    "compositefl": "CompositeFL",
    "fedprox": "FedProx",
    "fedpd": "FedPD",
    "feddr": "FedDR",
    "feddyn": "FedDyn",
    "fivegcs": "FiveGCS",
}


def find(name: str) -> str:
    """Return the registered name of an algorithm, whatever its case.

    >>> find("FedFW")
    'fedfw'
    """
    key = str(name).lower()
    if key not in CLASSES:
        raise ConfigError(f"unknown algorithm {name!r}: {nearest(str(name), CLASSES.values())}")
    return key


def strategy_class(name: str) -> type[FedConStrategy[Any]]:
    """Return an algorithm's strategy class."""
    key = find(name)
    module = import_module(f"flower_fedcon.strategies.{key}")
    return getattr(module, CLASSES[key])  # type: ignore[no-any-return]


def client_class(name: str) -> type[FedConClient[Any]]:
    """Return an algorithm's client class."""
    key = find(name)
    module = import_module(f"flower_fedcon.clients.{key}")
    return getattr(module, CLASSES[key] + "Client")  # type: ignore[no-any-return]


def markdown_table() -> str:
    """Return the collection as a Markdown table, a row for each algorithm."""
    rows = ["| class | problem | participation | down | up | source |", "|---|---|---|---|---|---|"]
    for key, name in CLASSES.items():
        sheet = strategy_class(key).sheet
        cells = (f"`{name}`", sheet.problem, sheet.participation, sheet.down, sheet.up, sheet.paper)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
