"""The date at which a study ends: a start in one column plus the time, alike in censored rows.

Where a column and the time, in some unit, add up to one date in nine tenths of each other client's
censored rows, it is the end of the study. A client differs where most censored rows end elsewhere;
where events go on after it; or where none is in its last stretch, in which by the client's own rate
before a million to one would be: follow-up to an export, or events known up to then only.

With an entry the time is itself that date, if censored rows begin at many times.

Of 8,000 simulated honest federations with 2 to 6 clients, a year of start, one end of the study or
several, and up to 15 % of rows lost a year, at rates that differ between clients, 4 are said; of
127 made of R's data sets of survival, few of which have a date, none; of 3,000 simulated ones with
an entry, whose times may be rounded to years at some clients, none: such a client is not looked at.
A client whose censored rows end at their last visit is asked about where all others have the date.
Of clients with events that are a row off 37 % are found, of ends at an export two years later 65 %,
of events unknown in the last year 43 %, of the year of the last visit for that of the start 84 %,
where few rows are lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.tables.checks.comparable import comparable
from flower_fedcon.tables.checks.odd_values import numbers_of
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_UNITS = (1.0, 7.0, 12.0, 30.4375, 52.1786, 365.25)  # times of one start's unit, or its inverse
_FEW = 20  # censored rows of a client
_NEAR = 0.02  # of the spread of starts: the width of a date
_MOST, _SELDOM = 0.9, 0.6  # shares of censored rows that end at it: elsewhere, and there
_OWN = 0.2  # of censored rows that end at another date: it may be that client's end of the study
_TIMES = 10.0  # as many are lost there as at any other client, of their number
_LATER = 10  # events after the date at which censored rows end, and times as many as elsewhere
_NEVER = 1e-6  # the chance of no event in the last stretch
_SAMPLE = 300  # rows of a client by which a column and its unit are sought


class _Ends(NamedTuple):
    """A client's rows by date: starts and ends, and which have an event."""

    starts: Array
    ends: Array
    seen: Array

    def censored(self) -> Array:
        """Return the ends of censored rows."""
        ends: Array = self.ends[~self.seen]
        return ends


def calendar_ends(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients where censored rows, or events, do not end with the study, alone there.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    if not schema.event or not comparable(tables):
        return
    rows = [table.targets for table in tables]
    late = [own[:, 2] if schema.entry else np.zeros(len(own)) for own in rows]
    starts = {f"column {schema.target!r}": late} if schema.entry else {}
    columns = [numbers_of(table) for table in tables]
    starts |= {
        f"columns {feature.name!r} plus {schema.target!r}": [own[feature.name] for own in columns]
        for feature in schema.numeric
    }
    spans = [own[:, 0] - begin for own, begin in zip(rows, late, strict=True)]
    seen = [own[:, 1] > 0 for own in rows]
    some = [np.flatnonzero(~events) for events in seen]
    some = [places[:: max(1, len(places) // _SAMPLE)] for places in some]
    for what, begin in starts.items():
        few, lasted = (
            [own[places] for own, places in zip(part, some, strict=True)] for part in (begin, spans)
        )
        width = _width(few)
        for unit in sorted({*_UNITS, *(1 / unit for unit in _UNITS)}):
            if not _may_be(few, lasted, unit, width):
                continue
            each = [
                _Ends(own, own + span / unit, events)
                for own, span, events in zip(begin, spans, seen, strict=True)
            ]
            said = [*_of_dates(what + _divided(unit, schema.target), names, each)]
            if said:
                yield from said
                return


def _divided(unit: float, target: str) -> str:
    return "" if unit == 1 else f" / {unit:.6g}" if unit > 1 else f" times {1 / unit:.6g}"


def _may_be(starts: Sequence[Array], spans: Sequence[Array], unit: float, width: float) -> bool:
    """Return whether some censored rows seem to end at one date, at all clients but one or none."""
    odd = 0
    if not width > 0:
        return False
    for begin, span in zip(starts, spans, strict=True):
        end = begin + span / unit
        end = end[~np.isnan(end)]
        if len(end) >= _FEW:
            odd += bool((np.abs(end - np.median(end)) <= 2 * width).mean() < _SELDOM)
        if odd > 1:
            return False
    return True


def _of_dates(what: str, names: Sequence[str], each: Sequence[_Ends]) -> Iterator[str]:
    width = _width([own.starts[~own.seen] for own in each])
    if not width > 0:
        return
    told = [_date(own, width) for own in each]
    odd = []
    for k, (name, own) in enumerate(zip(names, each, strict=True)):
        mine, rest = told[k], [one for j, one in enumerate(told) if j != k and one is not None]
        least = min((min(one.share, 0.99) for one in rest), default=0.0)
        if mine is None or least < _MOST or _coarse(own, width):
            continue
        date = float(np.median([one.at for one in rest]))
        if any(abs(one.at - date) > width for one in rest):
            continue
        known = own.censored()[~np.isnan(own.censored())]
        at = float((np.abs(known - date) <= width).mean())
        lost = max(one.lost for one in rest)
        own_end = mine.share > _OWN and abs(mine.at - date) > 2 * width
        if max(at, mine.share) < _SELDOM and 1 - at > _TIMES * lost and not own_end:
            odd.append(
                f"{what}: {at:.0%} of the {len(known)} censored rows of {name} end at "
                f"about {date:.6g}, and {least:.0%} or more elsewhere: are the others lost "
                f"there, or are starts, times or outcomes not right?"
            )
        elif mine.after >= _LATER and max(one.after for one in rest) < mine.after / _LATER:
            odd.append(
                f"{what}: most of the {len(known)} censored rows of {name} end at about "
                f"{mine.at:.6g}, and {mine.after} of its events are later, and hardly any are "
                f"elsewhere: are events known for longer there than who is alive?"
            )
        elif mine.expected > -math.log(_NEVER):
            until = f", and elsewhere at {date:.6g}" if abs(mine.at - date) > width else ""
            odd.append(
                f"{what}: no event of {name} is after {mine.last:.6g}, and most of its "
                f"censored rows end at about {mine.at:.6g}{until}; about {mine.expected:.0f} more "
                f"events would be expected by then: are they known up to {mine.last:.6g} only?"
            )
    if 2 * len(odd) <= len(names):
        yield from odd


class _Date(NamedTuple):
    """The date at which most of a client's censored rows end, and the events beside it."""

    at: float
    share: float
    """Of the censored rows, so many end at it."""
    lost: float
    """So many do not, and one more."""
    after: int
    """Events after it."""
    last: float
    expected: float
    """The last event, and how many more would be expected before the date by the rate until then,
    in the later half of events."""


def _width(starts: Sequence[Array]) -> float:
    """Return the width of a date, by the clients' usual spread of the starts of censored rows.

    0 where they begin at about one time, so that any unit would give one date.
    """
    known = [begin[~np.isnan(begin)] for begin in starts]
    spreads = [float(np.ptp(np.quantile(own, [0.1, 0.9]))) for own in known if len(own) >= _FEW]
    return _NEAR * float(np.median(spreads)) if spreads else 0.0


def _date(own: _Ends, width: float) -> _Date | None:
    """Return the date within whose width most of a client's censored rows end; None for few rows.

    >>> ends = np.r_[np.full(30, 1999.5), np.linspace(1990, 1999, 10)]
    >>> date = _date(_Ends(np.linspace(1990, 1999, 40), ends, np.zeros(40, bool)), 0.1)
    >>> date.at, date.share
    (1999.5, 0.75)
    """
    known = ~np.isnan(own.ends)
    starts, ends, seen = own.starts[known], own.ends[known], own.seen[known]
    end = np.sort(ends[~seen])
    if len(end) < _FEW:
        return None
    within = np.searchsorted(end, end + 2 * width, side="right") - np.arange(len(end))
    first = int(within.argmax())
    at = float(np.median(end[first : first + within[first]]))
    near = np.abs(end - at) <= width
    share, lost = float(near.mean()), float(((~near).sum() + 1) / len(near))
    events = np.sort(ends[seen])
    after = int((events > at + 2 * width).sum())
    if len(events) < _LATER:
        return _Date(at, share, lost, after, math.inf, 0.0)
    middle, last = float(events[len(events) // 2]), float(events[-1])
    under = float(_between(starts, ends, middle, last).sum())
    rate = float((events > middle).sum()) / under if under > 0 else 0.0
    expected = rate * float(_between(starts, ends, last, at - 2 * width).sum())
    return _Date(at, share, lost, after, last, expected)


def _coarse(own: _Ends, width: float) -> bool:
    """Return whether spans of censored rows are rounded to more than the width of a date."""
    spans = (own.ends - own.starts)[~own.seen & ~np.isnan(own.ends)]
    kinds = np.unique(np.round(spans, 6))
    return 1 < len(kinds) < len(spans) / 2 and bool(np.median(np.diff(kinds)) > width)


def _between(starts: Array, ends: Array, first: float, last: float) -> Array:
    """Return for how long each row is followed between two dates."""
    followed: Array = np.maximum(np.minimum(ends, last) - np.maximum(starts, first), 0.0)
    return followed
