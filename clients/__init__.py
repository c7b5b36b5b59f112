"""The collection, client side: the local step of each algorithm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_fedcon.clients.apdainexact import APDAInexactClient
    from flower_fedcon.clients.base import FedConClient
    from flower_fedcon.clients.cfedda import CFedDAClient
    from flower_fedcon.clients.compositefl import CompositeFLClient
    from flower_fedcon.clients.dualfl import DualFLClient
    from flower_fedcon.clients.fastfedda import FastFedDAClient
    from flower_fedcon.clients.fedavg import FedAvgClient
    from flower_fedcon.clients.feddr import FedDRClient
    from flower_fedcon.clients.feddualavg import FedDualAvgClient
    from flower_fedcon.clients.feddyn import FedDynClient
    from flower_fedcon.clients.fedfw import FedFWClient
    from flower_fedcon.clients.fedfwplus import FedFWPlusClient
    from flower_fedcon.clients.fedmid import FedMiDClient
    from flower_fedcon.clients.fedpd import FedPDClient
    from flower_fedcon.clients.fedprox import FedProxClient
    from flower_fedcon.clients.fedsgm import FedSGMClient
    from flower_fedcon.clients.fivegcs import FiveGCSClient
    from flower_fedcon.clients.mcfedda import MCFedDAClient
    from flower_fedcon.clients.scaffnew import ScaffnewClient
    from flower_fedcon.clients.scaffold import ScaffoldClient

__all__ = [
    "APDAInexactClient",
    "CFedDAClient",
    "CompositeFLClient",
    "DualFLClient",
    "FastFedDAClient",
    "FedAvgClient",
    "FedConClient",
    "FedDRClient",
    "FedDualAvgClient",
    "FedDynClient",
    "FedFWClient",
    "FedFWPlusClient",
    "FedMiDClient",
    "FedPDClient",
    "FedProxClient",
    "FedSGMClient",
    "FiveGCSClient",
    "MCFedDAClient",
    "ScaffnewClient",
    "ScaffoldClient",
]


def __getattr__(name: str) -> Any:
    """Load a client when first asked for: a node starts a process for every message."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "base" if name == "FedConClient" else name.removesuffix("Client").lower()
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
