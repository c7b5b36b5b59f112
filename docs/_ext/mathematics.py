"""The tables of sets and regularizers, from their classes; what an oracle costs stands here."""

import dataclasses
import inspect

import numpy as np

from flower_fedcon import regularizers, sets
from flower_fedcon.errors import FedConError
from flower_fedcon.layout import array_bytes

SIDE = 100
FACES = np.concatenate([np.eye(SIDE * SIDE)[:3], -np.ones((1, SIDE * SIDE))])
EXAMPLES = {
    "AffineSubspace": sets.AffineSubspace(FACES.reshape(-1, SIDE, SIDE), np.ones(4)),
    "Birkhoff": sets.Birkhoff(SIDE),
    "Box": sets.Box(-1.0, 1.0),
    "CappedSimplex": sets.CappedSimplex(cap=0.5, radius=1.0),
    "ConvexHull": sets.ConvexHull(FACES.reshape(-1, SIDE, SIDE)),
    "GroupL2Ball": sets.GroupL2Ball(1.0, groups="rows"),
    "HalfSpace": sets.HalfSpace(np.ones((SIDE, SIDE)), 1.0),
    "Hyperplane": sets.Hyperplane(np.ones((SIDE, SIDE)), 1.0),
    "Intersection": sets.Intersection([sets.L2Ball(1.0), sets.Box(0.0, 1.0)]),
    "KNormBall": sets.KNormBall(k=5, radius=1.0),
    "KSparsePolytope": sets.KSparsePolytope(k=5, radius=1.0),
    "L1Ball": sets.L1Ball(1.0),
    "L2Ball": sets.L2Ball(1.0),
    "LInfBall": sets.LInfBall(1.0),
    "LpBall": sets.LpBall(p=1.5, radius=1.0),
    "NuclearNormBall": sets.NuclearNormBall(1.0),
    "Polyhedron": sets.Polyhedron(FACES.reshape(-1, SIDE, SIDE), np.ones(4)),
    "Simplex": sets.Simplex(1.0),
    "SpectrahedronTraceBall": sets.SpectrahedronTraceBall(1.0),
}
"""One of each set, for matrices of SIDE x SIDE; a new set enters here and in SET_COSTS."""

SET_COSTS = {  # of a projection and of an LMO, for d entries or an n x n matrix
    "AffineSubspace": ("d for each equation", ""),
    "Birkhoff": ("some hundred steps of n^2", "n^3"),
    "Box": ("d", "d"),
    "CappedSimplex": ("d log d", "d log d"),
    "ConvexHull": ("d for each point, some times", "d for each point"),
    "GroupL2Ball": ("d", "d"),
    "HalfSpace": ("d", ""),
    "Hyperplane": ("d", ""),
    "Intersection": ("some hundred projections onto each", ""),
    "KNormBall": ("some times d log d", "d"),
    "KSparsePolytope": ("d log d", "d"),
    "L1Ball": ("d log d", "d"),
    "L2Ball": ("d", "d"),
    "LInfBall": ("d", "d"),
    "LpBall": ("some Newton steps of d", "d"),
    "NuclearNormBall": ("n^3 (a singular value decomposition)", "some products with the matrix"),
    "Polyhedron": ("d for each inequality and active one", "a linear program, if bounded"),
    "Simplex": ("d log d", "d"),
    "SpectrahedronTraceBall": ("n^3 (an eigendecomposition)", "some products with the matrix"),
}

NO_LMO = {
    "Intersection": "the sets' vertices are not its vertices",
    "Polyhedron": "this one is unbounded (if bounded: a dense vertex, by a linear program)",
}

PROXES = {  # in closed form where there is one, and what it costs
    "L1": ("soft threshold: sign(v) max(abs(v) - step weight, 0)", "d"),
    "L2Squared": ("v / (1 + step weight)", "d"),
    "ElasticNet": ("soft threshold by step l1, then divided by 1 + step l2", "d"),
    "Nonnegative": ("max(v, 0)", "d"),
    "Zero": ("v", "1"),
    "L2Norm": ("v max(1 - step weight / norm(v), 0)", "d"),
    "GroupLasso": ("each group shrunk by step weight, or 0", "d"),
    "SparseGroupLasso": ("soft threshold by step l1, then each group shrunk", "d"),
    "NuclearNorm": ("soft threshold of the singular values", "n^3"),
    "TotalVariation1D": ("taut string", "d"),
    "TotalVariation2D": ("dual gradient steps up to a gap", "some hundred steps of d"),
    "SLOPE": ("sorted, less step weights, and pooled", "d log d"),
    "MCP": ("small entries soft thresholded, large ones kept; step < gamma", "d"),
    "SCAD": ("small entries soft thresholded, large ones kept; step < (a - 1)/factor", "d"),
    "Indicator": ("the set's projection", "the set's"),
    "Each": ("that of inner, for each model", "inner's"),
    "Separable": ("the layers' own", "the layers'"),
    "WithIntercept": ("that of inner; the intercept stays", "inner's"),
    "Foreign": ("the operator's own", "the operator's"),
}


def first_line(target):
    """Return a docstring's first line, without what every one says."""
    text = (inspect.getdoc(target) or "").partition("\n\n")[0]
    return " ".join(text.split()).removeprefix("Return ").rstrip(".")


def cell(text):
    """Return a text as a cell of a Markdown table, in which no character means anything else."""
    for mark in "\\|*_<>[]`":
        text = text.replace(mark, f"\\{mark}")
    return text


def table(titles, rows):
    """Return a Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sets_table():
    """Return the sets: what they are, and what their oracles do, cost and send."""
    g = np.random.default_rng(0).standard_normal((SIDE, SIDE))
    rows = []
    for name, example in EXAMPLES.items():
        projecting, minimising = SET_COSTS[name]
        oracle, wire = f"none: {NO_LMO.get(name, 'it is unbounded')}", ""
        try:
            atom = example.lmo(g)
        except FedConError:
            pass
        else:
            oracle = f"{cell(first_line(type(example).lmo))} ({minimising})"
            wire = f"{cell(first_line(type(atom)))}: {atom.nbytes:,} bytes"
        projection = f"{cell(first_line(type(example).project))} ({projecting})"
        definition = cell(first_line(type(example)).removeprefix("The set "))
        rows.append([f"[`{name}`](api/sets.rst)", definition, projection, oracle, wire])
    return table(["Set", "D", "Projection (cost)", "LMO (cost)", "A vertex on the wire"], rows)


def regularizers_table():
    """Return the regularizers: psi, its prox and what that costs."""
    rows = []
    for name, (prox, cost) in PROXES.items():
        kind = getattr(regularizers, name)
        known = [field.name for field in dataclasses.fields(kind) if field.init]
        psi = cell(first_line(kind).removeprefix("psi = ").removeprefix("psi(x) = "))
        rows.append(
            [f"[`{name}`](api/regularizers.rst)", psi, cell(", ".join(known)), cell(prox), cost]
        )
    return table(["Regularizer", "psi", "Fields", "prox(v, step)", "Cost"], rows)


def tables():
    """Return both tables."""
    dense = array_bytes((SIDE, SIDE), np.dtype(float))
    return f"""## Sets

For d entries, or matrices of n x n; sizes on the wire are those of a vertex of a
{SIDE} x {SIDE} matrix, which dense is {dense:,} bytes, and were counted when this
page was made.

{sets_table()}

`Product` has one set for each layer of a model that is a list of arrays; `set.scaled(factor)` and
`set.shifted(x)` make a set from another.

## Regularizers

{regularizers_table()}
"""
