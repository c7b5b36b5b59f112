"""The collection, client side: the local step of each algorithm.

A client class has its strategy's name plus "Client": `FedAvgClient`, `FedFWClient`, ... Each is
loaded at first use, since a node starts a process for every message.
"""

from __future__ import annotations

import sys

from flower_fedcon.clients.base import FedConClient as FedConClient
from flower_fedcon.core.client_side import ClientSide
from flower_fedcon.errors import refuse_name
from flower_fedcon.registry import client_class, names


def __getattr__(name: str) -> type[ClientSide]:
    if name == "__all__":
        return _all()  # type: ignore[return-value]
    key = name.removesuffix("Client").lower()
    exported = name.endswith("Client") and key in names() and client_class(key).__name__ == name
    if not exported:
        refuse_name(__name__, name, sys._getframe(1))
    return client_class(key)


def _all() -> list[str]:
    return ["FedConClient", *(client_class(key).__name__ for key in sorted(names()))]


def __dir__() -> list[str]:
    return sorted({*globals(), *_all()})
