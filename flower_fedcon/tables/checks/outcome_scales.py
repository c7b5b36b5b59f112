"""Outcomes, times, entries, exposures and weights of clients, beside those of the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.tables.checks.conspicuous import (
    in_another_unit,
    never_varies,
)
from flower_fedcon.tables.checks.stated_times import stated_times
from flower_fedcon.tables.checks.unlike_outcomes import (
    base_of_offsets,
    censored_at_once,
    counts_left_out,
    even_outcomes,
    falling_exposures,
    no_later_events,
    running_sums,
    unrelated_exposures,
)
from flower_fedcon.tables.table import Table
from flower_fedcon.validation import Array

_BY_CHANCE = 0.01  # of no late entry at a client
_VARIES = 5  # exposures: with fewer, all rows of another client may well have one
_FEW = 20  # rows of a client: with fewer of one value nothing is said


def scales_of_outcomes(names: Sequence[str], tables: Sequence[Table]) -> Iterator[str]:
    """Yield remarks on outcomes, times, entries, offsets and weights, and on a constant target.

    They are as in `conspicuous_values`, which has those on outcomes with a log link. Of entries
    those after 0 are compared: where few rows enter late, their mean would be low in any unit.
    """
    schema = tables[0].schema
    outcomes: dict[str, list[Array]] = {}
    if schema.offset and not schema.family.log_link:
        outcomes[schema.offset] = [np.asarray(table.offset) for table in tables]
    if schema.entry:
        late = [table.targets[:, 2] for table in tables]
        outcomes[schema.entry] = [entries[entries > 0] for entries in late]
        yield from _one_entry(schema.entry, names, late)
    if not schema.family.labelled:
        outcomes[schema.target] = [table.targets.reshape(len(table.targets), -1)[:, 0]
                                   for table in tables]  # fmt: skip
    if schema.weight:
        outcomes[schema.weight] = [table.weights for table in tables if table.weights is not None]
    for column, values in outcomes.items():
        if column == schema.target and len(np.unique(np.concatenate(values))) == 1:
            yield (
                f"target {column!r} is {values[0][0]:g} in all rows, so there is nothing to "
                f"fit: name another target"
            )
            return
        if column == schema.weight:
            yield from _exposed_alike(column, names, values)
        if column != schema.target or not schema.family.log_link:
            yield from in_another_unit(column, names, values, outcome=column == schema.target)
    if schema.family.labelled:
        return
    target, y = schema.target, outcomes[schema.target]
    exposures = [
        np.ones(len(table.targets)) if table.offset is None or not schema.family.log_link
        else np.exp(np.clip(table.offset, -300.0, 300.0)) for table in tables
    ]  # fmt: skip
    if schema.family.whole:
        yield from counts_left_out(target, names, y, exposures)
    else:
        yield from even_outcomes(target, names, y)
    if schema.event:
        yield from censored_at_once(target, names, y, [table.outcome for table in tables])
        yield from no_later_events(schema.event, names, tables)
        yield from stated_times(tables)
        return
    clusters = [np.zeros(len(t.targets)) if t.clusters is None else t.clusters for t in tables]
    yield from running_sums(target, names, y, exposures, clusters)
    if schema.family.log_link and schema.offsets:
        column = schema.exposure or schema.offset
        if len(schema.offsets) == 1:
            given = exposures if schema.exposure else [np.log(own) for own in exposures]
            yield from _exposed_alike(column, names, given)
        at_one = [*unrelated_exposures(target, column, names, y, exposures)]
        rows = [np.arange(len(own)) if t.clusters is None else t.clusters
                for t, own in zip(tables, y, strict=True)]  # fmt: skip
        yield from at_one or falling_exposures(target, column, y, exposures, rows)
        if not schema.exposure:
            yield from base_of_offsets(target, column, y, exposures, rows)


def _one_entry(column: str, names: Sequence[str], each: Sequence[Array]) -> Iterator[str]:
    """Yield the clients whose rows all begin at once: at 0, or at a time when few begin elsewhere.

    >>> late = np.arange(30.0)
    >>> [*_one_entry("diag", "abc", [late, late + 3, np.full(30, 8302.0)])]
    ["column 'diag': it is 8302 in all rows of c, and 16 on average elsewhere: is it not known \
there?"]
    """
    for k, (name, own) in enumerate(zip(names, each, strict=True)):
        rest = [part for j, part in enumerate(each) if j != k and len(part)]
        if not rest or not len(own) or np.ptp(own) > 0:
            continue
        others = np.concatenate(rest)
        by_chance = float((others == own[0]).mean()) ** len(own)
        varied = len(own) >= _FEW and min(len(np.unique(part)) for part in rest) >= _VARIES
        if by_chance < _BY_CHANCE and (own[0] == 0 or varied):
            yield never_varies(column, name, float(own[0]), float(others.mean()))


def _exposed_alike(column: str, names: Sequence[str], each: Sequence[Array]) -> Iterator[str]:
    """Yield the client whose exposures, offsets or weights have one value, if others' vary.

    Each other client has five values or more; or a few, as weights of strata, which others have,
    too, and this one, a broken number between them, nobody has. Exposures of 1 are said by their
    sums, on nodes, too; see `conspicuous.of_levels`.

    >>> e = np.linspace(2.0, 5.0, 30)
    >>> [*_exposed_alike("years", "abc", [e, e, np.full(30, 3.46)])]
    ["column 'years': it is 3.46 in all rows of c, and 3.5 on average elsewhere: is it not known \
there?"]
    >>> strata = np.repeat([3.405, 9.25, 19.968], 10)
    >>> [*_exposed_alike("pw", "abc", [strata, strata, np.full(30, 10.874)])]
    ["column 'pw': it is 10.874 in all rows of c, and 10.87 on average elsewhere: is it not known \
there?"]
    >>> [*_exposed_alike("pw", "abc", [strata, strata, np.full(30, 9.25)])]  # of one stratum
    []
    """
    alike = [k for k, own in enumerate(each) if len(own) and np.ptp(own) <= 1e-9 * abs(own[0])]
    if len(alike) == 1 < len(names) and len(own := each[alike[0]]) >= _FEW:
        rest = [part for k, part in enumerate(each) if k != alike[0]]
        many = min(len(np.unique(part)) for part in rest) >= _VARIES
        if abs(own[0] - 1) > 1e-9 and (many or _is_among(float(own[0]), rest)):
            elsewhere = float(np.concatenate(rest).mean())
            yield never_varies(column, names[alike[0]], float(own[0]), elsewhere)


def _is_among(value: float, rest: Sequence[Array]) -> bool:
    """Return whether a value lies between the few that other clients share, and is none of them."""
    sets = [set(part.tolist()) for part in rest]
    shared = set.intersection(*sets) if len(sets) > 1 else set()
    whole = value % 1 == 0 and all(one % 1 == 0 for one in shared)
    return bool(
        len(shared) > 1
        and not whole
        and min(shared) < value < max(shared)
        and not any(math.isclose(value, one) for own in sets for one in own)
        and all(np.isin(part, [*shared]).mean() > 0.5 for part in rest)
    )
