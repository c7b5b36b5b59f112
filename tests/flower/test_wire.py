"""What crosses the wire: bytes as counted, hostile bytes refused, settings built again as named."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from hypothesis import given
from hypothesis import strategies as st

from flower_fedcon import regularizers as psi
from flower_fedcon import sets
from flower_fedcon.compressors import TopK
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower import messages
from flower_fedcon.layout import array_bytes
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.runs.toml import argument, parse_toml, tabled, write_value
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.sets import CoordinateAtom, CornerAtom, DenseAtom
from flower_fedcon.wire.payloads import flatten, load_array, payload_bytes
from flower_fedcon.wire.settings import decode, encode, make, registered

ARRAYS = [
    np.arange(5.0), np.zeros((3, 4), np.float32), np.array(7, np.int64), np.zeros((0, 3)),
    np.arange(9, dtype=np.int8), np.packbits(np.ones(17, bool)), np.array([True, False]),
    np.zeros((2, 1, 3, 1, 2)), np.zeros(123456),
]  # fmt: skip
EACH_ARRAY = pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def with_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode() + data


def header(descr: str = "'<f8'", shape: str = "(1,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


# --- arrays ---------------------------------------------------------------------------------------


@EACH_ARRAY
def test_bytes_are_those_of_the_message(array):
    sent = messages.to_record([array])["0"].data
    assert sent == saved(array)  # as Flower writes it
    assert array_bytes(array.shape, array.dtype) == len(sent)
    back = load_array(sent)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable
    assert back.flags.aligned
    read = load_array(sent, own=False)
    assert read.tobytes() == array.tobytes()
    if array.size:  # in the bytes themselves
        assert np.shares_memory(read, np.frombuffer(sent, np.uint8))


def test_payload_bytes_count_compact_forms_and_scalars():
    double = np.dtype(np.float64)
    payload = {
        "x": np.zeros(8),
        "step": 0.5,
        "count": 3,
        "one": CoordinateAtom(-3, 2.0, (1000,), double),
        "corner": CornerAtom(np.ones(1000, bool), 0.0, 1.0, double),
        "dense": DenseAtom(np.zeros((2, 3))),
    }
    arrays, scalars = flatten(payload)
    assert list(arrays) == ["x", "one.code", "corner.bits", "dense.value"]
    assert scalars == {"step": 0.5, "count": 3.0}
    record = messages.to_record(arrays.values())
    assert payload_bytes(payload) == sum(len(a.data) for a in record.values()) + 8 * 2
    assert payload_bytes({"one": payload["one"]}) == 128 + 8


def test_an_array_is_made_into_bytes_once_for_all_nodes():
    model, again = np.arange(6.0), np.arange(6.0)
    tensor = messages.Tensors()
    first, other = (messages.to_record([x, x[:3]], tensor) for x in (model, model.reshape(6)))
    assert first["0"] is other["0"]
    assert first["1"] is other["1"]
    assert first["0"] is not messages.to_record([again], tensor)["0"]
    assert [a.numpy().size for a in first.values()] == [6, 3]


@EACH_ARRAY
def test_an_array_that_an_app_is_lent_is_as_flower_s_and_stays_as_it_is(array):
    array = array.view()
    array.flags.writeable = False
    lent, flower_s = messages.Lent(array), FlowerArray(array)
    for name in ("dtype", "shape", "stype"):
        assert getattr(lent, name) == getattr(flower_s, name)
    read = lent.numpy()
    read[...] = 0
    assert lent.data == flower_s.data
    assert lent.numpy().tobytes() == flower_s.numpy().tobytes()


def test_arrays_that_are_not_contiguous():
    matrix = np.arange(6.0).reshape(2, 3)
    for array in (matrix.T, matrix[:, ::2]):
        arrays, _ = flatten({"x": array})
        assert load_array(messages.to_record(arrays.values())["0"].data).tolist() == array.tolist()
    for array in (np.asfortranarray(matrix), np.arange(3, dtype="<f2")):
        found = load_array(FlowerArray(array).data)
        assert found.flags.c_contiguous
        assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (saved(np.array([{"a": 1}], object), allow_pickle=True), r"dtype \|O is not accepted"),
        (saved(np.zeros(9))[:-1], r"shape \(9,\) does not fit its 71 bytes"),
        (saved(np.zeros(9))[:90], "not an array in NumPy's format"),
        (saved(np.zeros(9)) + b"\0", "does not fit its 73 bytes"),
        (with_header(header(shape="(10**15,)")), "not an array in NumPy's format"),
        (with_header(header(shape=f"({10**15},)"), bytes(8)), "does not fit its 8 bytes"),
        (with_header(header(shape="(-1, -1)"), bytes(8)), "does not fit"),
        (b"\x93NUMPZ" + saved(np.zeros(1))[6:], "magic string"),
        (with_header("", version=b"\x02\x00"), r"format version \(2, 0\)"),
        (b"", "not an array in NumPy's format"),
        (saved(np.zeros(2, complex)), "dtype <c16 is not accepted"),
        (saved(np.zeros(2, ">f8")), "dtype >f8 is not accepted"),
        (saved(np.array(["ab"])), "dtype <U2 is not accepted"),
        (saved(np.zeros(2, "f8,i4")), "is not accepted"),
        (with_header(header(descr="('<f8', (2,))"), bytes(16)), "is not accepted"),
        # whatever they say: unclosed, deep, an empty type, empty but huge, of 65 axes, of True
        (with_header("{'descr': '<f8', 'shape': ("), None),
        (with_header("-" * 9000 + "1\n"), None),
        (with_header(header(descr="()"), bytes(8)), None),
        (with_header(header(shape=f"(0, {10**30})")), None),
        (with_header(header(shape="(" + "1, " * 65 + ")"), bytes(8)), None),
        (with_header(header(shape="(True,)"), bytes(8)), None),
    ],
)
def test_refused_bytes(data, words):
    with pytest.raises(ConfigError, match=words):
        load_array(data)


MUTANT = st.tuples(
    st.sampled_from([saved(a) for a in ARRAYS[:-1]]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(-3, 3),
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(MUTANT)
def test_damaged_bytes_are_an_array_of_their_size_or_refused(mutant):
    base, changes, cut = mutant
    data = bytearray(base if cut >= 0 else base[:cut])
    data += bytes(max(cut, 0))
    for place, byte in changes:
        data[place % len(data)] = byte
    try:
        array = load_array(bytes(data))
    except ConfigError:
        return
    start = 10 + int.from_bytes(data[8:10], "little")
    assert array.nbytes == len(data) - start
    assert array.dtype.kind in "fiub"


# --- settings -------------------------------------------------------------------------------------

VECTORS = [
    sets.Box(-1.0, np.ones(2)), sets.L1Ball(2.0), sets.L2Ball(0.1), sets.LInfBall(3.0),
    sets.Simplex(0.3), sets.LpBall(3.0, 0.5), sets.LpBall(math.inf, 0.5),
    sets.CappedSimplex(0.6, 1.0), sets.KSparsePolytope(1, 0.5), sets.GroupL2Ball(0.5, 2),
    sets.GroupL2Ball(0.5, np.array([0, 1])), sets.HalfSpace(np.ones(2), 0.1),
    sets.Hyperplane(np.ones(2), 0.1), sets.ScaledSet(sets.L1Ball(1.0), 2.0),
    sets.ShiftedSet(sets.Box(0, 1), np.ones(2)),
    sets.Product([(sets.L1Ball(1.0), (1,)), (sets.ShiftedSet(sets.Simplex(), np.ones(1)), (1,))]),
    sets.AffineSubspace(np.array([[1.0, 2.0]]), np.ones(1)), sets.KNormBall(2, 0.5),
    sets.Polyhedron(np.eye(2), np.zeros(2)), sets.ConvexHull(np.array([[0.0, 1.0], [1.0, 1.0]])),
    sets.Polyhedron(np.eye(2), np.ones(2), np.array([[1.0, 1.0]]), np.zeros(1)),
    sets.Intersection([sets.L2Ball(1.0), sets.Box(0, 1)], tolerance=1e-5),
    psi.L1(0.1), psi.L2Squared(0.2), psi.ElasticNet(0.1, 0.7), psi.Zero(), psi.L2Norm(0.3),
    psi.Indicator(sets.Box(np.zeros(2), 1.0)), psi.L1(np.array([0.1, 3.0])),
    psi.GroupLasso(0.3, 1), psi.SparseGroupLasso(0.1, 0.3, 2), psi.TotalVariation1D(0.1),
    psi.Nonnegative(), psi.Separable([(psi.L1(0.1), (1,)), (sets.Box(0, 1), [1])]),
    psi.MCP(0.3, 2.0), psi.SCAD(0.3, 3.0, 0.5), psi.SLOPE(np.array([0.3, 0.1])),
    psi.WithIntercept(psi.L1(0.1)), psi.GroupLasso(np.array([0.1, 0.2]), np.array([0, 1])),
]  # fmt: skip
MATRICES = [
    sets.NuclearNormBall(2.0), sets.SpectrahedronTraceBall(0.5), sets.Birkhoff(2),
    sets.GroupL2Ball(0.3, "rows"), psi.NuclearNorm(0.3), psi.GroupLasso(0.3, "rows"),
    psi.Each(psi.L2Norm(0.3)), psi.TotalVariation2D(0.3, isotropic=False, tolerance=1e-4),
]  # fmt: skip
SPELT_OUT = {type(o).__name__ for o in VECTORS + MATRICES}


class Operator:
    """psi = ||x||_1 / 2 in pyproximal's convention."""

    def __call__(self, x):
        return 0.5 * np.abs(x).sum()

    def prox(self, x, tau):
        return np.sign(x) * np.maximum(np.abs(x) - 0.5 * tau, 0)


@pytest.mark.parametrize("oracle", VECTORS + MATRICES, ids=lambda o: type(o).__name__)
def test_oracles_travel(oracle):
    back = decode(*encode({"oracle": oracle, "other": np.float32(0.5)}))
    found = back["oracle"]
    assert back["other"] == 0.5
    assert type(found) is type(oracle)
    v = np.array([3.0, -0.7])
    if oracle in MATRICES:
        assert found == oracle
        v = np.array([v, [0.2, 1.1]])
    prox = [as_regularizer(o).prox(v, 0.3).tobytes() for o in (found, oracle)]
    assert prox[0] == prox[1]


FROM_FILES = [o for o in VECTORS + MATRICES if type(o).__name__ in (
    "MCP", "SCAD", "SLOPE", "TotalVariation2D", "AffineSubspace", "Polyhedron", "ConvexHull",
    "Intersection", "KNormBall", "L1Ball", "GroupLasso",
)]  # fmt: skip


@pytest.mark.parametrize("oracle", FROM_FILES, ids=lambda o: type(o).__name__)
def test_a_file_can_state_oracles(oracle):
    written = parse_toml(f"it = {write_value(tabled(oracle))}")["it"]
    found = argument("it", written)
    assert found == oracle
    assert hash(found) == hash(oracle)


def test_every_set_and_regularizer_is_among_these():
    of = (sets.ConstraintSet, psi.Regularizer)
    assert {n for n, kind in registered().items() if issubclass(kind, of)} == SPELT_OUT


@pytest.mark.parametrize("name", sorted(registered().keys() - SPELT_OUT))
def test_other_registered_types_travel(name):
    made = []
    privacy = {"clip": 1.0, "noise_multiplier": 1.0, "target_delta": 1e-5}
    for arguments in (
        {}, {"fraction": 0.4}, {"steps": 3}, {"levels": 4}, {"bound": 1.0}, privacy,
        {"clipping_range": 1.0}, {"initial": 0.1}, {"initial": 0.1, "rounds": 5},
        {"initial": 0.1, "every": 2}, {"A": [1.0, 4.0]}, {"compressor": TopK(fraction=0.1)},
        {"epochs": 2, "batch_size": 8, "lr": InverseSqrt(0.1), "clip": 1.0},
    ):  # fmt: skip
        with contextlib.suppress(ConfigError):
            made.append(make(name, arguments))
    assert made
    for value in made:
        assert repr(decode(*encode({"it": value}))["it"]) == repr(value)


def test_oracles_of_ones_own_stay_at_home():
    class Ball(sets.L1Ball):
        pass

    text, arrays = encode({"constraint": Ball(1.0)})
    own = Ball(1.0)
    assert decode(text, arrays, {"constraint": own})["constraint"] is own
    for missing in (None, {"regularizer": own}):
        words = r"constraint is a 'Ball', which is not one of this .*oracles=\{'constraint': ...\}"
        with pytest.raises(ConfigError, match=words):
            decode(text, arrays, missing)


def test_layers_of_ones_own_stay_at_home():
    own = psi.Separable([(psi.L1(np.ones(2)), (2,)), (Operator(), (1,))])
    text, arrays = encode({"regularizer": own})
    assert not arrays
    assert decode(text, arrays, {"regularizer": own})["regularizer"] is own


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_wrapped_operators_stay_at_home(factor):
    own = as_regularizer(Operator()).scaled(factor)
    text, arrays = encode({"regularizer": own})
    found = decode(text, arrays, {"regularizer": own})["regularizer"]
    v = np.array([[3.0, -0.2]])
    assert found.prox(v, 1.0).tolist() == own.prox(v, 1.0).tolist()


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
