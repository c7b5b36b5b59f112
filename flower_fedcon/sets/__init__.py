"""Constraint sets: projections and linear minimisation oracles.

Each set has `contains(x)`, `project(x)`, `lmo(g)` (an `Atom`, the compact form of a vertex),
`diameter` and `violation(x)`.
"""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.sets.affine import AffineSubspace
from flower_fedcon.sets.atoms import Atom, CoordinateAtom, CornerAtom, DenseAtom, StackedAtom
from flower_fedcon.sets.balls import L1Ball, L2Ball, LInfBall
from flower_fedcon.sets.base import AffineAtom, ConstraintSet, ScaledSet, ShiftedSet
from flower_fedcon.sets.birkhoff import Birkhoff
from flower_fedcon.sets.box import Box
from flower_fedcon.sets.compact import (
    GroupAtom,
    PermutationAtom,
    RankOneAtom,
    SparseSignAtom,
    SquareAtom,
)
from flower_fedcon.sets.flats import HalfSpace, Hyperplane
from flower_fedcon.sets.groups import GroupL2Ball
from flower_fedcon.sets.hull import ConvexHull, ListedAtom
from flower_fedcon.sets.intersection import Intersection
from flower_fedcon.sets.knorm import EitherAtom, KNormBall
from flower_fedcon.sets.lp import LpBall
from flower_fedcon.sets.operators import MatrixOperator
from flower_fedcon.sets.polyhedra import Polyhedron
from flower_fedcon.sets.product import Product, ProductAtom
from flower_fedcon.sets.simplex import Simplex
from flower_fedcon.sets.sparse import CappedSimplex, KSparsePolytope
from flower_fedcon.sets.spectral import NuclearNormBall, SpectrahedronTraceBall

__all__ = [
    "AffineAtom",
    "AffineSubspace",
    "Atom",
    "Birkhoff",
    "Box",
    "CappedSimplex",
    "ConstraintSet",
    "ConvexHull",
    "CoordinateAtom",
    "CornerAtom",
    "DenseAtom",
    "EitherAtom",
    "GroupAtom",
    "GroupL2Ball",
    "HalfSpace",
    "Hyperplane",
    "Intersection",
    "KNormBall",
    "KSparsePolytope",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "ListedAtom",
    "LpBall",
    "MatrixOperator",
    "NuclearNormBall",
    "PermutationAtom",
    "Polyhedron",
    "Product",
    "ProductAtom",
    "RankOneAtom",
    "ScaledSet",
    "ShiftedSet",
    "Simplex",
    "SparseSignAtom",
    "SpectrahedronTraceBall",
    "SquareAtom",
    "StackedAtom",
]

point_elsewhere(__name__)
