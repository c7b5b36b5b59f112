"""Regularizers psi: their values, proximal operators and subgradients."""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.regularizers.base import Regularizer
from flower_fedcon.regularizers.each import Each
from flower_fedcon.regularizers.elementwise import L1, ElasticNet, L2Squared, Nonnegative, Zero
from flower_fedcon.regularizers.folded_concave import MCP, SCAD
from flower_fedcon.regularizers.group_norms import GroupLasso, L2Norm, SparseGroupLasso
from flower_fedcon.regularizers.intercept import WithIntercept
from flower_fedcon.regularizers.matrix import NuclearNorm
from flower_fedcon.regularizers.slope import SLOPE
from flower_fedcon.regularizers.variation import TotalVariation1D
from flower_fedcon.regularizers.variation_2d import TotalVariation2D
from flower_fedcon.regularizers.wrap import Foreign, Indicator, Separable, as_regularizer

__all__ = [
    "L1",
    "MCP",
    "SCAD",
    "SLOPE",
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
    "TotalVariation2D",
    "WithIntercept",
    "Zero",
    "as_regularizer",
]

point_elsewhere(__name__)
