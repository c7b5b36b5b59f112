"""A table's rows as the model's columns: numbers and categories, imputed and scaled.

Without a wide feature (one with more than `WIDE` categories) the rows are an array whose columns
have mean 0 and variance 1. With one they are a sparse matrix with an entry for each category of a
row. Numeric columns stay the same; columns of categories are divided by their scale and not
centred. The intercept, or the risk sets of a Cox model, absorb the difference: no coefficient
changes. The columns of a schema's terms are those of `flower_fedcon.tables.design`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.tables.encoding import (
    check_shares,
    codes,
    dummies,
    hidden_places,
    is_wide,
    level_block,
)
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.schema import Feature
from flower_fedcon.tables.site_rows import SiteRows


def encoded(table: SiteRows, preparation: Preparation, least: int = 1) -> Any:
    """Return all rows of a table, shape (m, columns), as an array or a sparse matrix.

    Columns with fewer than `least` training rows are unknown and replaced by their mean.

    Raises
    ------
    ConfigError
        If the mean of a category's column is not a share.
    """
    schema, by_feature = table.schema, preparation.categories
    of_marks = np.asarray(preparation.kept) >= len(schema.numeric)
    check_shares(preparation.means[of_marks])
    parts = []
    for feature, (marks, rare) in zip(
        schema.categorical, table.known_categories(least), strict=True
    ):
        categories = by_feature[feature.name]
        hidden = hidden_places(categories, rare)
        parts.append((feature, categories, codes(marks, categories), hidden))
    if any(is_wide(categories) for _, categories, _, _ in parts):
        return _sparse(table, parts, preparation, least)
    columns = [table.known_numbers(least)]
    for feature, categories, places, hidden in parts:
        block = (places[:, None] == np.arange(len(categories))).astype(np.float64)
        block[places < 0] = np.nan
        block[:, hidden] = np.nan
        columns.append(block[:, _with_column(feature, categories)])
    whole = np.concatenate(columns, axis=1)[:, preparation.kept]
    whole = np.where(np.isnan(whole), preparation.means, whole)
    return (whole - preparation.centers) / preparation.scales


def _with_column(feature: Feature, categories: tuple[str, ...]) -> list[int]:
    """Return the places of the categories that have a column."""
    having = set(dummies(feature, categories))
    return [place for place, category in enumerate(categories) if category in having]


def _sparse(
    table: SiteRows,
    found: list[tuple[Feature, tuple[str, ...], Any, list[int]]],
    preparation: Preparation,
    least: int,
) -> Any:
    """Return the rows as a sparse matrix, including features that are not wide."""
    from scipy import sparse

    p = table.numeric.shape[1]
    scales, means, kept = preparation.scales, preparation.means, preparation.kept
    ours = kept < p
    dense = table.known_numbers(least)[:, kept[ours]]
    dense = np.where(np.isnan(dense), means[ours], dense)
    dense = (dense - means[ours]) / scales[ours]
    blocks, first = [sparse.csr_array(dense)], p
    for feature, categories, places, hidden in found:
        having = np.array(_with_column(feature, categories), dtype=np.intp)
        first += len(having)
        mine = np.flatnonzero((kept >= first - len(having)) & (kept < first))
        levels = having[kept[mine] - (first - len(having))]
        blocks.append(level_block(places, levels, hidden, means[mine], scales[mine]))
    return sparse.csr_array(sparse.hstack(blocks, format="csr"))
