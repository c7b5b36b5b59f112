"""What damages bytes and texts, and odd values, for the tests that feed parsers with them.

A test tries a few hundred cases of its seed; `make fuzz` as many as FEDCON_FUZZ says.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

CASES = int(os.environ.get("FEDCON_FUZZ", "200"))

TOKENS = (
    b"", b"\x00", b"\xff\xfe", b"\r\n", b"\n\n", b",", b",,,", b'"', b"'", b"[", b"]", b"{", b"}",
    b"[" * 3000, b'{"a":' * 3000, b"9" * 5000, b"-", b"--1", b"1e999", b"-1e-999", b"nan", b"inf",
    b"true", b"null", b"\xc2\xb2", b"\xe2\x88\x9e", b"1_0", b"0x10", b"2**70", b"=", b"#", b".",
    b"1979-05-27", b"\\u0000", b"\x1b[31m", b"../../etc/passwd", b"x" * 300,
)  # fmt: skip
"""What parsers stumble over."""

NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from([0, 1, 3, 32, 10**9, 0.5, float("inf"), float("nan"), -1, 1e300]),
)
VALUES = st.one_of(
    NUMBERS, st.text(max_size=50), st.booleans(), st.binary(max_size=20), st.lists(NUMBERS),
    st.sampled_from(["²", "7" * 5000, "[" * 10**5, "5", "null", '[[[8]], "float64", false]']),
    st.sampled_from(["train", "train,query", "private"]), st.lists(st.text(max_size=5)),
)  # fmt: skip
"""Of a message's or a node's configuration, by mistake or malice."""


def trees(*keys: str) -> Any:
    """Return what JSON can say, with these keys among others."""
    return st.recursive(
        st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=9), st.just("float64")),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(st.one_of(st.sampled_from([*keys, ""]), st.text()), inner),
        ),
        max_leaves=16,
    )


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to four faults: cut, flipped, doubled, moved, or foreign."""
    data = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 1, 4, 40, 1000)))
        kind = rng.randrange(7)
        if kind == 0:
            del data[start:]
        elif kind == 1 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[start:end]
        elif kind == 3:
            data[start:start] = data[start:end]
        elif kind == 4:
            data[start:end] = rng.choice(TOKENS)
        elif kind == 5:
            data[start:end] = rng.randbytes(end - start)
        else:
            part = data[start:end]
            del data[start:end]
            place = rng.randrange(len(data) + 1)
            data[place:place] = part
    return bytes(data)


def cases(whole: list[bytes], seed: int, share: float = 1.0) -> Iterator[bytes]:
    """Yield damaged forms of recorded files, as many as are asked for, or a share of them."""
    rng = random.Random(seed)
    for _ in range(max(1, int(CASES * share))):
        yield damaged(rng.choice(whole), rng)


def refused(read: Callable[[], Any]) -> bool:
    """Return whether reading was refused; any other error is a failure of the test."""
    from flower_fedcon.errors import FedConError  # this module is imported before any other

    try:
        read()
    except FedConError:
        return True
    return False


def ends(file: Path, whole: list[bytes], seed: int, *reads: Callable[[], Any], share=1.0):
    """Return which ends the first of some readings has for damaged forms of a file: refused, read.

    The file is written before each.
    """
    seen = set()
    for data in cases(whole, seed, share):
        file.write_bytes(data)
        first, *_ = [refused(read) for read in reads]
        seen.add(first)
    return seen
