"""Clients whose events seem to be coded the other way round: their share and effects are opposite.

Rows in one process show it by correlations of columns with the outcome. On nodes held-out rows do,
if a site sends its AUC (see `flower_fedcon.tables.quality`), and the numbers of events of times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

OPPOSITE = -4.0
"""The standard score at which an association is opposite to that of the others."""
_FAR = 0.4  # between shares of events: nearer ones are opposite by chance, about 1/2
_FEW = 20  # rows: with fewer nothing is said


def turned_round(
    names: Sequence[str], tables: Sequence[SiteRows], preparation: Preparation
) -> Iterator[str]:
    """Yield a remark on the clients whose events seem to be coded the other way round.

    Each client's columns are weighted by the others' mean correlation with the outcome, every
    client alike. If this sum is associated with the outcome the other way round there, and the
    share of events is no nearer to the others' than its opposite, the client is named. Events of
    times are also told by shares, if times are alike; see `_opposite_shares`.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Tables of one schema, with `matrix` of a preparation.
    preparation : Preparation
    """
    schema = tables[0].schema
    if not (schema.family.binary or schema.event) or len(tables) < 2 or preparation.width:
        return
    rows: list[tuple[Array, Array]] = []
    for table in tables:
        A = table.matrix(preparation)[table.training_rows]  # type: ignore[attr-defined]
        if not isinstance(A, np.ndarray):
            return
        rows.append((A - A.mean(axis=0), (table.outcome[table.training_rows] > 0).astype(float)))
    shares = [float(y.mean()) for _, y in rows]
    slopes = [A.T @ (y - y.mean()) for A, y in rows]
    units = [slope / max(float(np.linalg.norm(slope)), 1e-300) for slope in slopes]
    turned = []
    for k, (A, y) in enumerate(rows):
        if len(y) < _FEW or not 0 < shares[k] < 1:
            continue
        score = A @ (np.sum(units, axis=0) - units[k])
        size = float(np.linalg.norm(score)) * math.sqrt(float(np.sum((y - y.mean()) ** 2)))
        z = float(score @ (y - y.mean())) / size * math.sqrt(len(y)) if size else 0.0
        others = [y for place, (_, y) in enumerate(rows) if place != k]
        if z < OPPOSITE and may_be_turned(shares[k], len(y), float(np.concatenate(others).mean())):
            turned.append(k)
    if not turned and schema.event:
        times = [table.targets[table.training_rows, 0] for table in tables]
        for k in _opposite_shares(times, [y for _, y in rows]):
            rest = float(np.concatenate([y for j, (_, y) in enumerate(rows) if j != k]).mean())
            yield (
                f"{shares[k]:.0%} of the rows of {names[k]} have an event, and {rest:.0%} "
                f"elsewhere, with times alike: are events coded the other way round there?"
            )
    if turned and 2 * len(turned) <= len(names):
        yield turned_in_words(
            [names[k] for k in turned],
            [shares[k] for k in turned],
            float(np.concatenate([y for k, (_, y) in enumerate(rows) if k not in turned]).mean()),
        )
    elif len(names) == 2 and turned:
        yield (
            f"columns have opposite effects on the outcome at {names[0]} ({shares[0]:.0%} of the "
            f"rows have it) and {names[1]} ({shares[1]:.0%}): is it, or a column, coded the other "
            f"way round at one of them?"
        )


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
    for k in range(len(n)) if len(n) >= 3 and n.min() >= _FEW else ():
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


def may_be_turned(share: float, rows: float, elsewhere: float) -> bool:
    """Return whether a share of events, turned round, is at least as near to that elsewhere.

    >>> may_be_turned(0.8, 100, 0.2), may_be_turned(0.2, 100, 0.2), may_be_turned(0.5, 100, 0.45)
    (True, False, True)
    """
    own, other = (_logit(p, rows) for p in (share, elsewhere))
    error = 2.0 / math.sqrt(rows * max(share * (1 - share), 1.0 / rows))
    return abs(-own - other) <= abs(own - other) + error


def turned_in_words(names: Sequence[str], shares: Sequence[float], elsewhere: float) -> str:
    """Return the remark on clients, with their shares of events."""
    pairs = zip(names, shares, strict=True)
    listed = ", ".join(f"{one} ({p:.0%} of the rows have an event)" for one, p in pairs)
    return (
        f"the outcome may be coded the other way round at {listed}: elsewhere {elsewhere:.0%} "
        f"have one, and what goes with more events elsewhere goes with fewer there. Does 1 mean "
        f"there what 0 means elsewhere, in the outcome or in a column?"
    )


def _logit(share: float, rows: float) -> float:
    inside = min(max(share, 0.5 / rows), 1.0 - 0.5 / rows)
    return math.log(inside / (1.0 - inside))
