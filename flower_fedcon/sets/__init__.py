"""Constraint sets: projections and linear minimization oracles.

Each set has `contains(x)`, `project(x)`, `lmo(g)` (an `Atom`, the compact form of a vertex),
`diameter` and `violation(x)`.
"""

from flower_fedcon.sets.atoms import Atom, CoordinateAtom, CornerAtom, DenseAtom
from flower_fedcon.sets.balls import L1Ball, L2Ball, LInfBall
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.box import Box
from flower_fedcon.sets.simplex import Simplex

__all__ = [
    "Atom",
    "Box",
    "ConstraintSet",
    "CoordinateAtom",
    "CornerAtom",
    "DenseAtom",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "Simplex",
]
