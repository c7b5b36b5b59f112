"""The collection, server side: one strategy for each algorithm.

An algorithm is registered by its line here. The registry, the exports, `fedcon list`, the README's
table and the contract test follow from these lines, in this order.
"""

# ruff: isort: skip_file
# The order of `fedcon list`: related methods are neighbours.

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.strategies.base import FedConStrategy as FedConStrategy

from flower_fedcon.strategies.fedavg import FedAvg as FedAvg
from flower_fedcon.strategies.fedmid import FedMiD as FedMiD
from flower_fedcon.strategies.feddualavg import FedDualAvg as FedDualAvg
from flower_fedcon.strategies.fastfedda import FastFedDA as FastFedDA
from flower_fedcon.strategies.cfedda import CFedDA as CFedDA
from flower_fedcon.strategies.mcfedda import MCFedDA as MCFedDA
from flower_fedcon.strategies.fedfw import FedFW as FedFW
from flower_fedcon.strategies.fedfwplus import FedFWPlus as FedFWPlus
from flower_fedcon.strategies.averagedfw import AveragedFW as AveragedFW
from flower_fedcon.strategies.dualfl import DualFL as DualFL
from flower_fedcon.strategies.fedsgm import FedSGM as FedSGM
from flower_fedcon.strategies.fedproxal import FedProxAL as FedProxAL
from flower_fedcon.strategies.fedmls import FedMLS as FedMLS
from flower_fedcon.strategies.drfa import DRFA as DRFA
from flower_fedcon.strategies.area import AREA as AREA
from flower_fedcon.strategies.mifa import MIFA as MIFA
from flower_fedcon.strategies.fedvarp import FedVARP as FedVARP
from flower_fedcon.strategies.scaffold import Scaffold as Scaffold
from flower_fedcon.strategies.fedlin import FedLin as FedLin
from flower_fedcon.strategies.scaffnew import Scaffnew as Scaffnew
from flower_fedcon.strategies.tamuna import TAMUNA as TAMUNA
from flower_fedcon.strategies.locodl import LoCoDL as LoCoDL
from flower_fedcon.strategies.frecon import FRECON as FRECON
from flower_fedcon.strategies.apdainexact import APDAInexact as APDAInexact
from flower_fedcon.strategies.compositefl import CompositeFL as CompositeFL
from flower_fedcon.strategies.fedprox import FedProx as FedProx
from flower_fedcon.strategies.fedexprox import FedExProx as FedExProx
from flower_fedcon.strategies.sdane import SDANE as SDANE
from flower_fedcon.strategies.fedpd import FedPD as FedPD
from flower_fedcon.strategies.feddr import FedDR as FedDR
from flower_fedcon.strategies.feddyn import FedDyn as FedDyn
from flower_fedcon.strategies.fivegcs import FiveGCS as FiveGCS
from flower_fedcon.strategies.fednewton import FedNewton as FedNewton

__all__ = [name for name, value in list(globals().items()) if isinstance(value, type)]

point_elsewhere(__name__)
