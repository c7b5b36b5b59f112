"""The collection, client side: the local step of each algorithm.

A client class bears its strategy's name and "Client": `FedAvgClient`, `FedFWClient`, ... Each is
loaded when first asked for: a node starts a process for every message.
"""

from __future__ import annotations

from typing import Any

from flower_fedcon.clients.base import FedConClient as FedConClient
from flower_fedcon.registry import client_class, names


def __getattr__(name: str) -> type[FedConClient[Any]]:
    key = name.removesuffix("Client").lower()
    if name.endswith("Client") and key in names():
        kind = client_class(key)
        if kind.__name__ == name:
            globals()[name] = kind
            return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(client_class(name).__name__ for name in names())])
