"""The collection, client side: the local step of each algorithm."""

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.clients.fedavg import FedAvgClient
from flower_fedcon.clients.feddualavg import FedDualAvgClient
from flower_fedcon.clients.fedfw import FedFWClient
from flower_fedcon.clients.fedfwplus import FedFWPlusClient
from flower_fedcon.clients.fedmid import FedMiDClient

__all__ = [
    "FedAvgClient",
    "FedConClient",
    "FedDualAvgClient",
    "FedFWClient",
    "FedFWPlusClient",
    "FedMiDClient",
]
