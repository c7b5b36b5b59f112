"""Settings: what a message names is built again as it was, and nothing else is."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

from flower_fedcon.compressors import TopK
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import (
    L1,
    MCP,
    SCAD,
    SLOPE,
    Each,
    ElasticNet,
    GroupLasso,
    Indicator,
    L2Norm,
    L2Squared,
    Nonnegative,
    NuclearNorm,
    Regularizer,
    Separable,
    SparseGroupLasso,
    TotalVariation1D,
    TotalVariation2D,
    WithIntercept,
    Zero,
    as_regularizer,
)
from flower_fedcon.runs.toml import argument, parse_toml, tabled, write_value
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.sets import (
    AffineSubspace,
    Birkhoff,
    Box,
    CappedSimplex,
    ConstraintSet,
    ConvexHull,
    GroupL2Ball,
    HalfSpace,
    Hyperplane,
    Intersection,
    KNormBall,
    KSparsePolytope,
    L1Ball,
    L2Ball,
    LInfBall,
    LpBall,
    NuclearNormBall,
    Polyhedron,
    Product,
    ScaledSet,
    ShiftedSet,
    Simplex,
    SpectrahedronTraceBall,
)
from flower_fedcon.wire.settings import decode, encode, make, registered

ORACLES = [
    Box(-1.0, np.ones(2)), L1Ball(2.0), L2Ball(0.1), LInfBall(3.0), Simplex(0.3), L1(0.1),
    L2Squared(0.2), ElasticNet(0.1, 0.7), Indicator(Box(np.zeros(2), 1.0)), Zero(),
    LpBall(3.0, 0.5), LpBall(math.inf, 0.5), CappedSimplex(0.6, 1.0), KSparsePolytope(1, 0.5),
    GroupL2Ball(0.5, 2), GroupL2Ball(0.5, np.array([0, 1])), HalfSpace(np.ones(2), 0.1),
    Hyperplane(np.ones(2), 0.1), ScaledSet(L1Ball(1.0), 2.0), ShiftedSet(Box(0, 1), np.ones(2)),
    Product([(L1Ball(1.0), (1,)), (ShiftedSet(Simplex(), np.ones(1)), (1,))]),
    L1(np.array([0.1, 3.0])), L2Norm(0.3), GroupLasso(0.3, 1), SparseGroupLasso(0.1, 0.3, 2),
    AffineSubspace(np.array([[1.0, 2.0]]), np.ones(1)), KNormBall(2, 0.5),
    Polyhedron(np.eye(2), np.zeros(2)), ConvexHull(np.array([[0.0, 1.0], [1.0, 1.0]])),
    Polyhedron(np.eye(2), np.ones(2), np.array([[1.0, 1.0]]), np.zeros(1)),
    Intersection([L2Ball(1.0), Box(0, 1)], tolerance=1e-5),
    TotalVariation1D(0.1), Nonnegative(), Separable([(L1(0.1), (1,)), (Box(0, 1), [1])]),
    MCP(0.3, 2.0), SCAD(0.3, 3.0, 0.5), SLOPE(np.array([0.3, 0.1])),
    WithIntercept(L1(0.1)), GroupLasso(np.array([0.1, 0.2]), np.array([0, 1])),
]  # fmt: skip
MATRIX_ORACLES = [
    NuclearNormBall(2.0), SpectrahedronTraceBall(0.5), Birkhoff(2), NuclearNorm(0.3),
    GroupL2Ball(0.3, "rows"), GroupLasso(0.3, "rows"), Each(L2Norm(0.3)),
    TotalVariation2D(0.3, isotropic=False, tolerance=1e-4),
]  # fmt: skip


class Operator:
    """psi = ||x||_1 / 2 in pyproximal's convention."""

    def __call__(self, x):
        return 0.5 * np.abs(x).sum()

    def prox(self, x, tau):
        return np.sign(x) * np.maximum(np.abs(x) - 0.5 * tau, 0)


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda o: type(o).__name__)
def test_oracles_travel(oracle):
    text, arrays = encode({"oracle": oracle, "other": np.float32(0.5)})
    back = decode(text, arrays)
    assert back["other"] == 0.5
    found = back["oracle"]
    assert type(found) is type(oracle)
    v = np.array([3.0, -0.7])
    prox = [as_regularizer(o).prox(v, 0.3).tobytes() for o in (found, oracle)]
    assert prox[0] == prox[1]


@pytest.mark.parametrize("oracle", MATRIX_ORACLES, ids=lambda o: type(o).__name__)
def test_matrix_oracles_travel(oracle):
    found = decode(*encode({"oracle": oracle}))["oracle"]
    assert found == oracle
    v = np.array([[3.0, -0.7], [0.2, 1.1]])
    prox = [as_regularizer(o).prox(v, 0.3).tobytes() for o in (found, oracle)]
    assert prox[0] == prox[1]


def test_layers_of_ones_own_stay_at_home():
    psi = Separable([(L1(np.ones(2)), (2,)), (Operator(), (1,))])
    text, arrays = encode({"regularizer": psi})
    assert not arrays
    assert decode(text, arrays, {"regularizer": psi})["regularizer"] is psi


FROM_FILES = [o for o in ORACLES + MATRIX_ORACLES if type(o).__name__ in (
    "MCP", "SCAD", "SLOPE", "TotalVariation2D", "AffineSubspace", "Polyhedron", "ConvexHull",
    "Intersection", "KNormBall", "L1Ball", "GroupLasso",
)]  # fmt: skip


@pytest.mark.parametrize("oracle", FROM_FILES, ids=lambda o: type(o).__name__)
def test_a_file_can_state_oracles(oracle):
    written = parse_toml(f"it = {write_value(tabled(oracle))}")["it"]
    found = argument("it", written)
    assert found == oracle
    assert hash(found) == hash(oracle)


SPELT_OUT = {type(o).__name__ for o in ORACLES + MATRIX_ORACLES}


def test_every_set_and_regularizer_is_among_these():
    of = (ConstraintSet, Regularizer)
    assert {n for n, kind in registered().items() if issubclass(kind, of)} == SPELT_OUT


@pytest.mark.parametrize("name", sorted(registered().keys() - SPELT_OUT))
def test_other_registered_types_travel(name):
    made = []
    privacy = {"clip": 1.0, "noise_multiplier": 1.0, "target_delta": 1e-5}
    for arguments in (
        {}, {"fraction": 0.4}, {"steps": 3}, {"levels": 4}, {"bound": 1.0}, privacy,
        {"clipping_range": 1.0}, {"initial": 0.1}, {"initial": 0.1, "rounds": 5},
        {"initial": 0.1, "every": 2}, {"compressor": TopK(fraction=0.1)},
        {"epochs": 2, "batch_size": 8, "lr": InverseSqrt(0.1), "clip": 1.0},
    ):  # fmt: skip
        with contextlib.suppress(ConfigError):
            made.append(make(name, arguments))
    assert made
    for value in made:
        assert repr(decode(*encode({"it": value}))["it"]) == repr(value)


def test_oracles_of_ones_own_stay_at_home():
    class Ball(L1Ball):
        pass

    text, arrays = encode({"constraint": Ball(1.0)})
    own = Ball(1.0)
    assert decode(text, arrays, {"constraint": own})["constraint"] is own
    for missing in (None, {"regularizer": own}):
        words = r"constraint is a 'Ball', which is not one of this .*oracles=\{'constraint': ...\}"
        with pytest.raises(ConfigError, match=words):
            decode(text, arrays, missing)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_wrapped_operators_stay_at_home(factor):
    psi = as_regularizer(Operator()).scaled(factor)
    text, arrays = encode({"regularizer": psi})
    found = decode(text, arrays, {"regularizer": psi})["regularizer"]
    v = np.array([[3.0, -0.2]])
    assert found.prox(v, 1.0).tolist() == psi.prox(v, 1.0).tolist()


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("L1Bal", {}, "unknown .*'L1Bal': did you mean 'L1Ball'"),
        (None, {}, "unknown .* None"),
        ("os.system", {}, "unknown .* 'os.system'"),
        ("L1Ball", {"radios": 1}, "L1Ball has no parameter 'radios': did you mean 'radius'"),
        ("ElasticNet", {"l1": 1.0}, "ElasticNet needs the parameters l2"),
        ("L1Ball", {"radius": "big"}, r"L1Ball\(radius\) must be a number"),
        ("Indicator", {"constraint": 3}, "Indicator needs a constraint set"),
    ],
)
def test_settings_that_name_nothing(kind, parameters, words):
    with pytest.raises(ConfigError, match=words):
        make(kind, parameters)
