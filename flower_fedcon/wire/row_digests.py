"""A digest that recognises rows in any order, type or form."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from flower_fedcon.objectives.rows import is_sparse
from flower_fedcon.validation import Array

_BLOCK = 2**20  # entries processed at a time


def digest_of_rows(rows: Any) -> str:
    """Return 16 hexadecimal digits that stand for the rows of an array, in any order.

    Entries are rounded to single precision, so that a copy in that type has the same digest. Zeros
    do not count, so that sparse and dense forms have the same digest.

    Parameters
    ----------
    rows : array or SciPy sparse array, shape (m, ...)

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
        marks = _marks(csr.data, csr.indices)
        before = np.concatenate([np.zeros(1, np.uint64), np.cumsum(marks, dtype=np.uint64)])
        sums = before[csr.indptr[1:]] - before[csr.indptr[:-1]]
    else:
        rows = np.asarray(rows)
        rows = rows.reshape(len(rows), -1)
        columns, block = np.arange(rows.shape[1]), max(1, _BLOCK // max(1, rows.shape[1]))
        parts = [
            _marks(rows[i : i + block], columns).sum(axis=1, dtype=np.uint64)
            for i in range(0, len(rows), block)
        ]
        sums = np.concatenate([np.zeros(0, np.uint64), *parts])
    return hashlib.sha256(np.sort(_mixed(sums)).tobytes()).hexdigest()[:16]


def _marks(values: Array, columns: Array) -> Any:
    """Return a number for each entry, by its value and its column; 0 for a zero."""
    with np.errstate(over="ignore"):
        single = np.asarray(values).astype(np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    return np.where(single == 0, np.uint64(0), _mixed(bits | columns.astype(np.uint64) << 32))


def _mixed(numbers: Any) -> Any:
    """Return numbers of 64 bits, mixed by the last steps of SplitMix64 (2014)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
