"""What crosses the wire: bytes as counted, hostile bytes refused, nothing lost on the way."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from hypothesis import given
from hypothesis import strategies as st

from flower_fedcon.errors import ConfigError
from flower_fedcon.flower import messages
from flower_fedcon.layout import array_bytes
from flower_fedcon.sets import (
    CoordinateAtom,
    CornerAtom,
    DenseAtom,
)
from flower_fedcon.wire.payloads import flatten, load_array, payload_bytes

ARRAYS = [
    np.arange(5.0),
    np.zeros((3, 4), np.float32),
    np.array(7, np.int64),
    np.zeros((0, 3)),
    np.arange(9, dtype=np.int8),
    np.packbits(np.ones(17, bool)),
    np.array([True, False]),
    np.zeros((2, 1, 3, 1, 2)),
    np.zeros(123456),
]


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def with_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode() + data


def header(descr: str = "'<f8'", shape: str = "(1,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


# --- arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
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


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_an_array_that_an_app_is_lent_is_as_flower_s_and_stays_as_it_is(array):
    array = array.view()
    array.flags.writeable = False
    lent, flower_s = messages.Lent(array), FlowerArray(array)
    assert (lent.dtype, lent.shape, lent.stype) == (
        flower_s.dtype,
        flower_s.shape,
        flower_s.stype,
    )
    read = lent.numpy()
    read[...] = 0
    assert lent.data == flower_s.data
    assert lent.numpy().tobytes() == flower_s.numpy().tobytes()


def test_arrays_that_are_not_contiguous():
    matrix = np.arange(6.0).reshape(2, 3)
    for array in (matrix.T, matrix[:, ::2]):
        arrays, _ = flatten({"x": array})
        assert load_array(messages.to_record(arrays.values())["0"].data).tolist() == array.tolist()


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
    ],
)
def test_refused_bytes(data, words):
    with pytest.raises(ConfigError, match=words):
        load_array(data)


@pytest.mark.parametrize(
    "data",
    [
        with_header("{'descr': '<f8', 'shape': ("),
        with_header("-" * 9000 + "1\n"),
        with_header(header(descr="()"), bytes(8)),
        with_header(header(shape=f"(0, {10**30})")),
        with_header(header(shape="(" + "1, " * 65 + ")"), bytes(8)),
        with_header(header(shape="(True,)"), bytes(8)),
    ],
    ids=["unclosed", "deep", "empty descr", "empty but huge", "65 axes", "True"],
)
def test_refused_headers(data):
    with pytest.raises(ConfigError):
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
