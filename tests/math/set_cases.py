"""Sets of every kind and models of every size, for the tests of properties."""

import math

import numpy as np
from hypothesis import strategies as st

from flower_fedcon import sets
from flower_fedcon.sets import (
    AffineSubspace,
    Birkhoff,
    ConvexHull,
    GroupL2Ball,
    HalfSpace,
    Hyperplane,
    KNormBall,
    KSparsePolytope,
    L1Ball,
    L2Ball,
    LpBall,
    NuclearNormBall,
    Product,
    ScaledSet,
    ShiftedSet,
    Simplex,
    SpectrahedronTraceBall,
)

EPS = {8: 1e-11, 4: 2e-5}
radii = st.sampled_from([1e-6, 0.3, 1.0, 7.0, 1e6])
dtypes = st.sampled_from([np.float64, np.float32])
FLAT = ("halfspace", "hyperplane", "affine")


def halves(radius, size):
    if size == 1:
        return Product([(L1Ball(radius), (1,))])
    return Product([(L1Ball(radius), (size // 2,)), (Simplex(radius), (size - size // 2,))])


def labelled(radius, shape):
    size = math.prod(shape)
    return GroupL2Ball(radius, np.minimum(np.arange(size) % 4, size - 1).reshape(shape))


def normal(shape):
    return np.random.default_rng(0).normal(size=shape)


VECTORS = {
    "capped": lambda radius, shape: sets.CappedSimplex(radius / min(math.prod(shape), 2.5), radius),
    "ksparse": lambda radius, shape: KSparsePolytope(3, radius),
    "group": lambda radius, shape: GroupL2Ball(radius, 1 if math.prod(shape) % 2 else 2),
    "labels": labelled,
    "lp1.5": lambda radius, shape: LpBall(1.5, radius),
    "lp3": lambda radius, shape: LpBall(3, radius),
    "scaled": lambda radius, shape: ScaledSet(L1Ball(2.0), radius),
    "shifted": lambda radius, shape: ShiftedSet(L2Ball(radius), radius * normal(shape)),
    "product": lambda radius, shape: halves(radius, math.prod(shape)),
    "knorm": lambda radius, shape: KNormBall(3, radius),
    "hull": lambda radius, shape: ConvexHull(radius * (normal((5, *shape)) + 1)),
}
"""Sets of vectors, by a radius and the model's shape; a new set enters here."""
MATRICES = {
    "nuclear": lambda radius, shape: NuclearNormBall(radius),
    "spectrahedron": lambda radius, shape: SpectrahedronTraceBall(radius),
    "birkhoff": lambda radius, shape: Birkhoff(shape[0]),
}
VECTOR, MATRIX = tuple(VECTORS), tuple(MATRICES)


def make(kind, radius, shape):
    size = math.prod(shape)
    rng = np.random.default_rng(0)
    if kind == "affine":
        normals = rng.normal(size=(min(size, 3), *shape)) + 0.1
        return AffineSubspace(normals, radius * rng.normal(size=min(size, 3)))
    if kind in FLAT:
        known = {"halfspace": HalfSpace, "hyperplane": Hyperplane}
        return known[kind](rng.normal(size=shape) + 0.1, radius)
    return (VECTORS if kind in VECTORS else MATRICES)[kind](radius, shape)


def fill(rng, how, shape):
    return {
        "normal": lambda: rng.normal(size=shape),
        "ties": lambda: rng.integers(-2, 3, size=shape).astype(float),
        "zeros": lambda: np.zeros(shape),
        "constant": lambda: np.full(shape, -1.5),
        "sparse": lambda: rng.normal(size=shape) * (rng.random(shape) < 0.1),
    }[how]()


@st.composite
def cases(draw, kinds=VECTOR + MATRIX + FLAT, batch=0):
    """A set and a model (or a stack): any size and scale, zeros, ties, one row."""
    kind, radius = draw(st.sampled_from(kinds)), draw(radii)
    if kind == "nuclear":
        shape = (draw(st.integers(1, 80)), draw(st.integers(1, 80)))
    elif kind in MATRIX:
        shape = (draw(st.integers(1, 20 if kind == "birkhoff" else 80)),) * 2
    else:
        shape = (draw(st.one_of(st.integers(1, 8), st.integers(1, 2000))),)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    how = draw(st.sampled_from(["normal", "ties", "zeros", "constant", "sparse"]))
    scale = 10.0 ** draw(st.integers(-8, 8 if kind != "birkhoff" else 2))
    x = fill(rng, how, (3,) * batch + shape)
    if kind != "birkhoff" and draw(st.integers(0, 5)) == 0:  # far beyond what a float32 holds
        return make(kind, radius, shape), x * draw(st.sampled_from([1e-100, 1e100])), kind
    return make(kind, radius, shape), (x * scale).astype(draw(dtypes)), kind
