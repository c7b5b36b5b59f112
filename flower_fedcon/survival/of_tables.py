"""Curves and tests for tables with a schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.survival.pooled import counts_of_sites
from flower_fedcon.tables import Table
from flower_fedcon.tables.log_rank import LogRank
from flower_fedcon.tables.product_limit import KaplanMeier
from flower_fedcon.validation import Array

ALL = "all"


def curves_of_tables(
    clients: Sequence[Table],
    names: Sequence[str],
    by: str | None = None,
    *,
    grid: Any = None,
    min_rows: int = 1,
    stratified: bool = False,
) -> tuple[dict[str, KaplanMeier], LogRank | None]:
    """Return the curve of each arm, over the training rows, and the test between them.

    Parameters
    ----------
    clients : sequence of Table
        Tables with a schema for "cox".
    names : sequence of str
        The clients' names.
    by : str, optional
        The categorical feature whose categories are the arms; by default one arm, "all".
    grid, min_rows, stratified : see `flower_fedcon.survival.logrank`

    Returns
    -------
    curves : dict of KaplanMeier, by arm
    test : LogRank, or None for one arm

    Raises
    ------
    ConfigError
        If the schema is for a different loss, or `by` is not a categorical feature, or is missing
        in a row.
    """
    schema = clients[0].schema
    if not schema.family.compares:
        raise ConfigError(
            f'curves need times to events, and the schema has loss = "{schema.loss}": name the '
            f'column of the event, event = "COLUMN"'
        )
    rows = [table.training_rows for table in clients]
    marks = [np.full(len(here), ALL) for here in rows]
    if by is not None:
        features = [feature.name for feature in schema.categorical]
        if by not in features:
            raise ConfigError(f"{by!r} is not a categorical feature: {nearest(by, features)}")
        place = features.index(by)
        marks = [table.categories[here, place] for table, here in zip(clients, rows, strict=True)]
        for name, column in zip(names, marks, strict=True):
            if (column == "").any():
                raise ConfigError(
                    f"column {by!r} is missing in {(column == '').sum()} rows of {name}, and "
                    f"curves by it need a value in each row: fill it in, or remove these rows"
                )
    labels, arm = np.unique(np.concatenate(marks), return_inverse=True)
    y: Array = np.concatenate(
        [table.targets[here] for table, here in zip(clients, rows, strict=True)]
    )
    sites = np.repeat(np.array(names), [len(here) for here in rows])
    known_sites, points, n, d = counts_of_sites(
        y[:, 0], y[:, 1] == 1, arm, len(labels), sites, grid, min_rows,
        y[:, 2] if schema.entry else None,
    )  # fmt: skip
    curves = {
        str(label): KaplanMeier.of_counts(points, n[:, :, k], d[:, :, k], known_sites)
        for k, label in enumerate(labels)
    }
    if len(labels) == 1:
        return curves, None
    return curves, LogRank.of_counts(n, d, labels, stratified, grid=grid is not None)
