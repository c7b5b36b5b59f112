"""A digest that recognises rows in any order, type or form.

Numbers count as rounded to half precision by way of single precision, so that a copy in double,
single or half precision has the same digest. Only one made from double precision directly may round
a number elsewhere: about one in 16,000 of those that single precision does not hold. Numbers that
half precision does not hold (beyond 65,504) keep single precision. Rows that differ by less have
one digest: whoever counts by it counts more, not less.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from flower_fedcon.objectives.rows import is_sparse
from flower_fedcon.validation import Array

_BLOCK = 2**20  # entries processed at a time


def digest_of_rows(rows: Any, *, single: bool = False) -> str:
    """Return 16 hexadecimal digits that stand for the rows of an array, in any order.

    Entries are rounded; see the module. Zeros do not count, so that sparse and dense forms have the
    same digest.

    Parameters
    ----------
    rows : array or SciPy sparse array, shape (m, ...)
    single : bool (default: False)
        Whether entries keep single precision, as in version 0.1.

    Examples
    --------
    >>> import scipy.sparse
    >>> A = np.arange(6.0).reshape(3, 2)
    >>> digest_of_rows(A[::-1]) == digest_of_rows(scipy.sparse.csr_array(A.astype("float32")))
    True
    >>> digest_of_rows(A[:2]) == digest_of_rows(A)
    False
    """
    if is_sparse(rows):
        csr = rows.tocsr(copy=True)
        csr.sum_duplicates()
        marks = _marks(csr.data, csr.indices, single)
        before = np.concatenate([np.zeros(1, np.uint64), np.cumsum(marks, dtype=np.uint64)])
        sums = before[csr.indptr[1:]] - before[csr.indptr[:-1]]
    else:
        rows = np.asarray(rows)
        rows = rows.reshape(len(rows), -1)
        columns, block = np.arange(rows.shape[1]), max(1, _BLOCK // max(1, rows.shape[1]))
        parts = [
            _marks(rows[i : i + block], columns, single).sum(axis=1, dtype=np.uint64)
            for i in range(0, len(rows), block)
        ]
        sums = np.concatenate([np.zeros(0, np.uint64), *parts])
    return _of_sums(sums)


def digest_of_columns(columns: Mapping[str, tuple[Array, Array]]) -> str:
    """Return 16 hexadecimal digits that stand for rows of numbers and texts, in any order.

    Parameters
    ----------
    columns : dict
        For each column, by its name, its numbers (NaN for no number), and what stands for its
        texts: whole numbers of 64 bits (0 for no text). A cell with neither does not count.

    Examples
    --------
    >>> ages, none = np.array([50.0, 60.0]), np.zeros(2, np.uint64)
    >>> known = digest_of_columns({"age": (ages, none)})
    >>> digest_of_columns({"age": (ages[::-1], none), "more": (none * np.nan, none)}) == known
    True
    >>> digest_of_columns({"weight": (ages, none)}) == known
    False
    """
    sums = np.zeros(0, np.uint64)
    for name, (numbers, texts) in columns.items():
        there = ~np.isnan(numbers)
        bits = _rounded(np.where(there, numbers, 0.0), False).view(np.uint32).astype(np.uint64)
        hashes = _mixed(_mixed(np.where(there, bits, texts)) + word(name))
        marks = np.where(there | (texts != 0), hashes, np.uint64(0))
        sums = marks if not sums.size else sums + marks
    return _of_sums(sums)


def word(text: str) -> Any:
    """Return a whole number of 64 bits that stands for a text; never 0."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8]
    return np.uint64(int.from_bytes(digest, "little") or 1)


def _of_sums(sums: Any) -> str:
    return hashlib.sha256(np.sort(_mixed(sums)).tobytes()).hexdigest()[:16]


def _marks(values: Array, columns: Array, single: bool) -> Any:
    """Return a number for each entry, by its value and its column; 0 for a zero."""
    rounded = _rounded(np.asarray(values), single)
    bits = rounded.view(np.uint32).astype(np.uint64)
    return np.where(rounded == 0, np.uint64(0), _mixed(bits | columns.astype(np.uint64) << 32))


def _rounded(values: Array, single: bool) -> Any:
    """Return numbers in the precision that counts, in single precision; without signs of zeros."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(np.float32)
        if single:
            return rounded
        half = rounded.astype(np.float16).astype(np.float32)
    return np.where(np.isfinite(half), half, rounded) + np.float32(0.0)


def _mixed(numbers: Any) -> Any:
    """Return numbers of 64 bits, mixed by the last steps of SplitMix64 (2014)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
