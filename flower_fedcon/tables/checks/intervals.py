"""Rows of clusters that follow each other, from entry to end, at all clients but one.

An entry is the end of the cluster's row before, as in rows of one patient, or each client has
gaps. One client alone with intervals that overlap, or with gaps nearly everywhere, has entries of
another kind. Of 2,000 simulated honest federations none was said: of patients with gaps in up to a
third of their rows, of patients of hospitals as clusters, and of clients that have gaps alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.tables.site_rows import SiteRows

_LEAST, _OF = 10, 20  # pairs of rows that follow each other, of a client and elsewhere
_FOLLOW, _SELDOM = 0.9, 0.1  # of pairs: so many, or few, begin at the end of the row before
_OVERLAP = 0.05  # of a client's pairs
_BY_CHANCE = 1e-6  # that no pair elsewhere overlaps
_ONE, _VARIED = 0.9, 0.5  # of rows and of events: so many have one length, and elsewhere at most
_KINDS, _EVENTS = 10, 10  # different entries; events


class _Own(NamedTuple):
    """One client's pairs of rows of a cluster, of which some follow, and some overlap."""

    pairs: int
    follow: int
    overlap: int
    step: float
    """The most frequent length of a row, by its share of the rows, and of those with an event."""
    share: float
    at_events: bool


def unlike_intervals(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients whose rows overlap, or end a fixed step after their entry, alone there.

    That all clients' rows end so is said of rows of clusters that do not follow each other.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    if not (schema.event and schema.entry):
        return
    told = [_of_client(table) for table in tables]
    entry, end = schema.entry, schema.target
    steps = [own.share >= _ONE and own.at_events for own in told]
    apart = [own.pairs >= _LEAST and own.follow <= _SELDOM * own.pairs for own in told]
    if all(steps) and all(apart) and not any(own.overlap for own in told):
        yield (
            f"column {entry!r}: rows of all sites, also those with events, end {told[0].step:g} "
            f"after it, and rows of one {schema.cluster!r} do not follow each other: is it "
            f"{end!r} less a fixed step?"
        )
        return
    for k, (name, own) in enumerate(zip(names, told, strict=True)):
        rest = [other for j, other in enumerate(told) if j != k]
        of = sum(other.pairs for other in rest)
        follow = of >= _OF and all(o.follow >= _FOLLOW * o.pairs for o in rest)
        varied = bool(rest) and max(other.share for other in rest) <= _VARIED
        if steps[k] and (varied or (follow and apart[k])):
            yield (
                f"column {entry!r}: {own.share:.0%} of the rows of {name}, also those with events, "
                f"end {own.step:g} after it, and elsewhere "
                f"{'rows follow each other' if follow else 'their lengths vary'}: is it {end!r} "
                f"less a fixed step there?"
            )
        elif own.pairs < _LEAST or of < _OF:
            continue
        elif own.overlap >= max(_LEAST, _OVERLAP * own.pairs) and not any(
            other.overlap for other in rest
        ):
            if (1 - own.overlap / own.pairs) ** of < _BY_CHANCE:
                yield (
                    f"columns {entry!r} and {end!r}: {own.overlap} of {own.pairs} rows of {name} "
                    f"begin before the end of the row before of their {schema.cluster!r}, and none "
                    f"of {of} elsewhere: is {entry!r} right, or are rows there twice?"
                )
        elif apart[k] and follow:
            yield (
                f"column {entry!r}: {own.follow} of {own.pairs} rows of {name} begin at the end of "
                f"the row before of their {schema.cluster!r}, and elsewhere "
                f"{sum(o.follow for o in rest) / of:.0%}: is it right there?"
            )


def _of_client(table: SiteRows) -> _Own:
    ends, events, entries = table.targets[:, :3].T
    lengths, rows = np.unique(np.round(ends - entries, 9), return_counts=True)
    place = int(rows.argmax())
    step, share = float(lengths[place]), float(rows[place] / len(ends))
    at = events > 0
    alike = np.isclose(ends[at] - entries[at], step, rtol=1e-9, atol=1e-9)
    varied = len(np.unique(entries)) >= _KINDS
    at_events = varied and len(alike) >= _EVENTS and float(alike.mean()) >= _ONE
    if table.clusters is None:
        return _Own(0, 0, 0, step, share, at_events)
    units = [np.asarray(table.clusters), *table.targets[:, 3:].T]  # of a patient in a stratum
    order = np.lexsort((entries, ends, *units))
    pairs = np.all([np.diff(unit[order]) == 0 for unit in units], axis=0)
    gaps = (entries[order][1:] - ends[order][:-1])[pairs]
    return _Own(len(gaps), int((gaps == 0).sum()), int((gaps < 0).sum()), step, share, at_events)
