"""Regularizers psi: their values, proximal operators and subgradients."""

from flower_fedcon.regularizers.base import Regularizer
from flower_fedcon.regularizers.each import Each
from flower_fedcon.regularizers.elementwise import L1, ElasticNet, L2Squared, Nonnegative, Zero
from flower_fedcon.regularizers.grouped import GroupLasso, L2Norm, SparseGroupLasso
from flower_fedcon.regularizers.intercept import WithIntercept
from flower_fedcon.regularizers.matrix import NuclearNorm
from flower_fedcon.regularizers.variation import TotalVariation1D
from flower_fedcon.regularizers.wrap import Foreign, Indicator, Separable, as_regularizer

__all__ = [
    "L1",
    "Each",
    "ElasticNet",
    "Foreign",
    "GroupLasso",
    "Indicator",
    "L2Norm",
    "L2Squared",
    "Nonnegative",
    "NuclearNorm",
    "Regularizer",
    "Separable",
    "SparseGroupLasso",
    "TotalVariation1D",
    "WithIntercept",
    "Zero",
    "as_regularizer",
]
