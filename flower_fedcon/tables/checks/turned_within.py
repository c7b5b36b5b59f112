"""Two columns that rise together within clusters, and at a client one falls with the other.

The days of a patient are counted backwards, say. Between clusters the columns may go together in
any way, so that `unlike_relations` does not see it. Nine tenths of each client's clusters must say
so: correlations alone are those of a few large ones. Of 3,000 simulated federations none was said,
and of 1,146 made of R's data sets with clusters none; by correlations alone it were 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.tables.checks.odd_values import numbers_of
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_STRONG = 0.5  # correlations within clusters: there below minus this, and elsewhere above it
_FEW, _ERRORS = 20, 5.0  # degrees of freedom; standard errors of the client's correlation from 0
_CLUSTERS, _MOST = 8, 0.9  # clusters of the client; the share of each client's with its sign
_OTHERS = 2  # clients: of two it is not known which one is turned
_WIDE, _CELLS = 40, 2e7  # columns and cells: of more nothing is sought


def turned_within(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients where two columns go the other way together within clusters.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    clusters = [table.clusters for table in tables if table.clusters is not None]
    if len(clusters) < len(tables) or len(tables) <= _OTHERS or schema.sparse:
        return
    each = [numbers_of(table) for table in tables]
    columns = [name for name in each[0] if not (schema.event and name == schema.target)]
    cells = len(columns) * sum(len(table.targets) for table in tables)
    if not 2 <= len(columns) <= _WIDE or cells > _CELLS:
        return
    values = [np.column_stack([one[name] for name in columns]) for one in each]
    codes = [np.unique(own, return_inverse=True)[1].reshape(-1) for own in clusters]
    told = [_within(*pair) for pair in zip(values, codes, strict=True)]
    together, freedom = (np.stack(parts) for parts in zip(*told, strict=True))
    for i in range(len(columns)):
        for j in range(i):
            k = _turned(together[:, i, j], freedom[:, i, j])
            if k is None:
                continue
            pairs = [own[:, [i, j]] for own in values]
            signs = [_of_clusters(*pair) for pair in zip(pairs, codes, strict=True)]
            rise = np.sign(together[:, i, j])
            most = min(
                float((own == up).mean()) if len(own) else 0.0
                for own, up in zip(signs, rise, strict=True)
            )
            if len(signs[k]) >= _CLUSTERS and most >= _MOST:
                own, rest = together[k, i, j], np.delete(together[:, i, j], k)
                how = ("falls", "rises") if own < 0 else ("rises", "falls")
                yield (
                    f"columns {columns[j]!r} and {columns[i]!r}: within {schema.cluster!r} one "
                    f"{how[0]} with the other at {names[k]} (correlation {own:.2f}), and elsewhere "
                    f"it {how[1]} ({rest[np.abs(rest).argmin()]:.2f} or further): is one counted "
                    f"backwards there?"
                )


def _within(values: Array, codes: Array) -> tuple[Array, Array]:
    """Return the correlations of columns within clusters, and their degrees of freedom.

    >>> days = np.array([1.0, 2, 3, 1, 2, 3])
    >>> both = np.column_stack([days, [5.0, 6, 7, 50, 49, 48]])
    >>> [float(part[0, 1]) for part in _within(both, np.array([0, 0, 0, 1, 1, 1]))]
    [0.0, 4.0]
    """
    known = (~np.isnan(values)).astype(float)
    rows = np.stack([np.bincount(codes, own) for own in known.T], axis=1)
    sums = np.stack([np.bincount(codes, own) for own in np.nan_to_num(values).T], axis=1)
    means = sums / np.maximum(rows, 1.0)
    inside = np.where(known > 0, values - means[codes], 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        squares = (inside**2).T @ known
        together = (inside.T @ inside) / np.sqrt(squares * squares.T)
    return np.nan_to_num(together), known.T @ known - len(rows)


def _turned(together: Array, freedom: Array) -> int | None:
    """Return the client whose correlation is strong and opposite to all others'; None without."""
    if freedom.min() < _FEW or np.abs(together).min() < _STRONG:
        return None
    signs = np.sign(together)
    odd = [k for k in range(len(signs)) if (np.delete(signs, k) == -signs[k]).all()]
    if len(odd) != 1 or abs(together[odd[0]]) * np.sqrt(freedom[odd[0]]) < _ERRORS:
        return None
    return odd[0]


def _of_clusters(pair: Array, codes: Array) -> Array:
    """Return for each cluster in which two columns vary whether they rise together (1) or not (-1).

    >>> pair = np.array([[1.0, 5], [2, 6], [1, 8], [2, 3], [0, 4]])
    >>> _of_clusters(pair, np.array([0, 0, 1, 1, 2]))
    array([ 1., -1.])
    """
    known = ~np.isnan(pair).any(axis=1)
    both, own = pair[known], codes[known]
    rows = np.maximum(np.bincount(own), 1)
    inside = both - np.stack([np.bincount(own, x) / rows for x in both.T], axis=1)[own]
    signs = np.sign(np.bincount(own, inside[:, 0] * inside[:, 1]))
    found: Array = signs[signs != 0]
    return found
