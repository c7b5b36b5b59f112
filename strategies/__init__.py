"""The collection, server side: one strategy for each algorithm."""

from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.strategies.fedavg import FedAvg
from flower_fedcon.strategies.feddualavg import FedDualAvg
from flower_fedcon.strategies.fedfw import FedFW
from flower_fedcon.strategies.fedfwplus import FedFWPlus
from flower_fedcon.strategies.fedmid import FedMiD

__all__ = ["FedAvg", "FedConStrategy", "FedDualAvg", "FedFW", "FedFWPlus", "FedMiD"]
