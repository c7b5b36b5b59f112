"""What stands out between the clients of an estimator: units of offsets, and outcomes turned round.

Runs on tables say the same before round 1, by the same sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedcon.tables.checks.conspicuous import in_another_unit, level_of, of_levels
from flower_fedcon.tables.checks.opposite_effects import turned_in_rows
from flower_fedcon.tables.families import Family
from flower_fedcon.tables.row_weights import as_rows
from flower_fedcon.tables.schema import Schema
from flower_fedcon.validation import Array


def stands_out(
    family: Family,
    names: Sequence[str],
    rows: Sequence[Any],
    X: Any,
    y: Array,
    *,
    weight: Array | None,
    kind: str,
    given: Mapping[str, Any],
    offset: Array | None,
    levels: int,
) -> Iterator[str]:
    """Yield remarks, one sentence each.

    Parameters
    ----------
    family : Family
    names : sequence of str
        The clients' names.
    rows : sequence of array of int
        Each client's rows.
    X : array or sparse array, shape (n, p)
    y : array, shape (n,); of times (n, 3) or (n, 4): time, event, stratum, entry
    weight : array, shape (n,), optional
    kind : str
        What weights mean.
    given : dict
        The arguments "offset" and "exposure"; None if they are left out.
    offset : array, shape (n,), optional
        Both together: what is added to the scores.
    levels : int
        The number of ordered outcomes; 0 for others.
    """
    w = np.ones(len(y)) if weight is None else weight
    if offset is not None and family.log_link:
        roles = {name: name for name, column in given.items() if column is not None}
        schema = Schema("y", {"x": "numeric"}, loss=family.name, **roles)  # type: ignore[arg-type]
        told = [{"level": level_of(y[own], offset[own], w[own])} for own in rows]
        yield from of_levels(schema, names, [float(w[own].sum()) for own in rows], told)
    elif offset is not None:
        yield from in_another_unit("offset", names, [offset[own] for own in rows])
    if y.ndim > 1 and y.shape[1] > 3:
        late = [y[own, 3] for own in rows]
        yield from in_another_unit("entry", names, [entries[entries > 0] for entries in late])
    if levels and isinstance(X, np.ndarray):
        outcome = y[:, 1] if y.ndim > 1 else y
        parts = [
            (X[own], outcome[own], None if weight is None else as_rows(weight[own], kind))
            for own in rows
        ]
        yield from turned_in_rows(names, parts, levels)
