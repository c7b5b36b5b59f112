"""Clients with losses of rows, alike in shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.objectives import LeastSquares, LogisticRegression, Scaled


def clients(kind: str, n: int, rows: int, shape: tuple[int, ...], dtype: Any) -> list[Any]:
    rng = np.random.default_rng(rows)
    found: list[Any] = []
    for j in range(n):
        A = rng.standard_normal((rows, *shape)).astype(dtype)
        b = rng.standard_normal(rows).astype(dtype)
        if kind == "logistic":
            found.append(LogisticRegression(A, np.where(b > 0, 1, -1), l2=0.1 * j))
        elif kind == "scaled":
            found.append(Scaled(LeastSquares(A, b), 1.0 + j))
        else:
            found.append(LeastSquares(A, b, scale=1.0 + j))
    return found
