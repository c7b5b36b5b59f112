"""The collection, server side: one strategy for each algorithm."""

from flower_fedcon.strategies.apdainexact import APDAInexact
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.strategies.cfedda import CFedDA
from flower_fedcon.strategies.compositefl import CompositeFL
from flower_fedcon.strategies.dualfl import DualFL
from flower_fedcon.strategies.fastfedda import FastFedDA
from flower_fedcon.strategies.fedavg import FedAvg
from flower_fedcon.strategies.feddr import FedDR
from flower_fedcon.strategies.feddualavg import FedDualAvg
from flower_fedcon.strategies.feddyn import FedDyn
from flower_fedcon.strategies.fedfw import FedFW
from flower_fedcon.strategies.fedfwplus import FedFWPlus
from flower_fedcon.strategies.fedmid import FedMiD
from flower_fedcon.strategies.fedpd import FedPD
from flower_fedcon.strategies.fedprox import FedProx
from flower_fedcon.strategies.fedsgm import FedSGM
from flower_fedcon.strategies.fivegcs import FiveGCS
from flower_fedcon.strategies.mcfedda import MCFedDA
from flower_fedcon.strategies.scaffnew import Scaffnew
from flower_fedcon.strategies.scaffold import Scaffold

__all__ = [
    "APDAInexact",
    "CFedDA",
    "CompositeFL",
    "DualFL",
    "FastFedDA",
    "FedAvg",
    "FedConStrategy",
    "FedDR",
    "FedDualAvg",
    "FedDyn",
    "FedFW",
    "FedFWPlus",
    "FedMiD",
    "FedPD",
    "FedProx",
    "FedSGM",
    "FiveGCS",
    "MCFedDA",
    "Scaffnew",
    "Scaffold",
]
