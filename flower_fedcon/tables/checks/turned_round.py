"""Clients of tables whose outcomes, or other columns, seem to be coded the other way round.

Rows in one process show it by their effects (`opposite_effects`). On nodes
the sums for standard errors do (`flower_fedcon.tables.ending.final_signs`), or held-out rows, if a
site sends its AUC (see `flower_fedcon.tables.quality`), and the numbers of events of times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.tables.checks.opposite_effects import CODED, FEW, Rows, turned_in_rows
from flower_fedcon.tables.checks.turned_features import turned_feature
from flower_fedcon.tables.checks.unlike_relations import (
    columns_of,
    copied,
    moved,
    unlike_relations,
)
from flower_fedcon.tables.families.link_functions import IDENTITY
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.row_weights import as_rows
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

OPPOSITE = -4.0
"""The standard score at which an association is opposite to that of the others."""
_FAR = 0.4  # between shares of events: nearer ones are opposite by chance, about 1/2


def turned_round(
    names: Sequence[str], tables: Sequence[SiteRows], preparation: Preparation
) -> Iterator[str]:
    """Yield a remark on the clients whose outcomes, or other columns, seem to be turned round.

    Columns are also compared with each other, first for rows that are off (`unlike_relations`).
    Events of times are also told by shares, if times are alike; see `_opposite_shares`.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Tables of one schema, with `matrix` of a preparation.
    preparation : Preparation
    """
    if len(tables) < 2:
        return
    schema = tables[0].schema
    made = _model_rows(tables, preparation)
    about = columns_of(tables)
    said = [*copied(names, about)] or [*moved(names, about)] if about else []
    said = said or (turned_in_rows(names, *made) if made else [])
    said = said or ([*unlike_relations(names, about)] if about else [])
    said = said or (turned_feature(names, *made, preparation) if made else [])
    yield from said
    if made and schema.event and not said:
        times = [table.targets[table.training_rows, 0] for table in tables]
        events = [y for _, y, _ in made[0]]
        for k in _opposite_shares(times, events):
            rest = float(np.concatenate([y for j, y in enumerate(events) if j != k]).mean())
            yield (
                f"{events[k].mean():.0%} of the rows of {names[k]} have an event, and {rest:.0%} "
                f"elsewhere, with times alike: are events {CODED} there?"
            )


def _model_rows(
    tables: Sequence[SiteRows], preparation: Preparation
) -> tuple[list[Rows], int, list[Array]] | None:
    """Return what `turned_in_rows` takes; None of outcomes without an order, or sparse columns."""
    schema = tables[0].schema
    numbers = schema.family.link is IDENTITY and not (schema.family.labelled or schema.event)
    ordered = schema.family.binary or schema.event or schema.levels
    if not (ordered or numbers) or preparation.width:
        return None
    rows: list[Rows] = []
    clusters: list[Array] = []
    for table in tables:
        A = table.matrix(preparation)[table.training_rows]  # type: ignore[attr-defined]
        if not isinstance(A, np.ndarray):
            return None
        weights = None
        if table.weights is not None:
            weights = as_rows(table.weights[table.training_rows], schema.weight_kind)
        if numbers and table.clusters is not None:
            clusters.append(table.clusters[table.training_rows])
        rows.append((A, table.outcome[table.training_rows], weights))
    return rows, 0 if numbers else len(schema.levels) or 2, clusters


def _opposite_shares(times: Sequence[Array], events: Sequence[Array]) -> list[int]:
    """Return the client whose share of events is opposite to that of the others; [] without one.

    Follow-up decides whether an event is seen, so columns may hardly tell. The others' shares are
    alike, the client's is far from theirs and turned round like them, and so are its times.

    Parameters
    ----------
    times : sequence of array
        Of three clients or more.
    events : sequence of array
        1 or 0 for each time.

    Examples
    --------
    >>> t, seen = np.arange(60.0), np.repeat([1.0, 0.0], [45, 15])
    >>> _opposite_shares([t, t, t], [seen, 1 - seen, seen])
    [1]
    >>> _opposite_shares([t, t / 3, t], [seen, 1 - seen, seen])  # a shorter follow-up
    []
    """
    n = np.array([len(y) for y in events], float)
    middle = np.array([t.mean() for t in times])
    found = []
    for k in _opposite(n, np.array([y.mean() for y in events])):
        rest = np.arange(len(n)) != k
        spread = np.concatenate([times[j] for j in np.flatnonzero(rest).tolist()]).std()
        late = abs(middle[k] - n[rest] @ middle[rest] / n[rest].sum())
        found += [k] if late <= 3 * spread / math.sqrt(n[k]) else []
    return found if len(found) == 1 else []


def _opposite(n: Array, share: Array) -> Iterator[int]:
    """Yield clients of which the others' shares are alike, and theirs is opposite and far."""
    for k in range(len(n)) if len(n) >= 3 and n.min() >= FEW else ():
        rest = np.arange(len(n)) != k
        elsewhere = float(n[rest] @ share[rest] / n[rest].sum())
        errors = np.sqrt(elsewhere * (1 - elsewhere) / n)
        error = float(errors[k]) * math.sqrt(1 + n[k] / n[rest].sum())
        alike = (np.abs(share[rest] - elsewhere) <= 3 * errors[rest]).all()
        gap = abs(share[k] - elsewhere), abs(1 - share[k] - elsewhere)
        if alike and gap[0] > max(_FAR, -OPPOSITE * error) and gap[1] <= 2 * error:
            yield k


def turned_on_nodes(names: Sequence[str], preparation: Preparation) -> Iterator[str]:
    """Yield a remark on the client whose share of events of times is opposite to the others'.

    It rests on the sums before round 1, which have no times. So it asks about follow-up, too.

    Parameters
    ----------
    names : sequence of str
    preparation : Preparation
        With the clients' numbers of rows, and of events unless they are too few to be told.
    """
    if preparation.stated is None or not preparation.stated.event:
        return
    pairs = zip(names, preparation.rows, preparation.outcomes, strict=True)
    told = [(name, rows, events) for name, rows, (events,) in pairs if not math.isnan(events)]
    n, events = np.array([one[1:] for one in told], float).reshape(-1, 2).T
    found = [*_opposite(n, events / n)]
    if len(found) == 1:
        (k,) = found
        rest = (events.sum() - events[k]) / (n.sum() - n[k])
        yield (
            f"{events[k] / n[k]:.0%} of the rows of {told[k][0]} have an event, and {rest:.0%} "
            f"elsewhere: are events coded the other way round there, or are rows followed for "
            f"another time?"
        )
