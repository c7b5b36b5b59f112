"""Values of one client's column of numbers that stand apart from its others, and rows of totals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flower_fedcon.errors import first_few, number_of
from flower_fedcon.tables.checks.slips import codes, exchanged, slips, tail
from flower_fedcon.tables.marks import fills_in
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_LOWER = 4.0  # rows below a value, of which a few are expected if the frequencies have one peak
_PEAK = 0.8  # of the rows of the most frequent value: as many are a peak, too
_ALONE = 0.2  # of the others' range: so far from them one row is said, too
_SEVERAL = 4  # values: with fewer a negative one is not taken for a code
_FEW = 20  # rows: with fewer nothing is said
_MEASURED = 10  # values: with fewer they may be doses or codes
_FAR = 100.0  # times the others' range
_SURE = 0.05  # of the spread: how finely a mean must be written
_GAP, _TIMES = 0.4, 4.0  # of either group's range, and times any other gap: of two units
_SPREADS, _UNLIKE = 7.0, 3.0  # between their middles, and from one to the other
_EITHER = 5  # values of each
_AWAY = 2.5  # mean deviations: so far from the others a client's middle says nothing of cells
_BEYOND, _EXCESSES = 6.0, 4.0  # spreads of logarithms, and mean excesses of their tail
_RUN, _NEVER = 10, 1e-6  # rows of one value; their chance
_APART = 3.0  # times the range of most rows: a gap to others in another unit


def odd_values(
    values: Array,
    numbers: Array,
    remedy: str,
    clusters: Array | None = None,
    stated: float = 0.0,
) -> Iterator[str]:
    """Yield remarks on the values of a column.

    Parameters
    ----------
    values : array, shape (m,)
        NaN where a value is missing.
    numbers : array of int, shape (m,)
        The rows' numbers.
    remedy : str
        What to do about a code for a missing value.
    clusters : array of int, shape (m,), optional
        Each row's cluster. One whose rows are all far from others', as of a large state, may be so.
    stated : float
        The least value that the schema allows: negative ones from it on are meant.

    Examples
    --------
    >>> ages = np.append(np.arange(20.0, 80.0), [4.5, 99.0, 99.0])
    >>> for said in odd_values(ages, np.arange(1, 64), "leave it out"):
    ...     print(said)
    4.5 (row 61) is far from all others (20 to 99), and ten times it, 45, is not: has its decimal \
point slipped?
    99 (rows 62, 63), and all others at this site from 4.5 to 79: if it stands for a missing \
value, leave it out
    """
    filled = values[~np.isnan(values)]
    distinct, counts = np.unique(filled, return_counts=True)
    rows = dict(zip(distinct.tolist(), counts.tolist(), strict=True))

    def where(*odd: float) -> str:
        return f"({_rows(numbers[np.isin(values, odd)])})"

    said: set[float] = set()
    for factor, places in slips(values):
        said.update(values[places].tolist())
        yield slipped(values, factor, places, _rows(numbers[places]))
    for value, _ in codes(values):
        said.add(value)
        yield coded(values, value, where(value), remedy, " at this site")
    if (points := _thousands(rows)) and not said.issuperset(points):
        said.update(points)
        yield (
            f"{number_of(sum(rows[value] for value in points), 'number')} with three decimals, "
            f"such as {points[0]:.3f} {where(points[0])}, among whole numbers up to "
            f"{[*rows][-1]:g}: does the point stand between thousands and hundreds?"
        )
    for value in _negative_codes(rows) if len(filled) >= _FEW else ():
        if value >= stated:
            continue
        yield (
            f"{value:g} {where(value)} is the only negative value: if it stands for a missing "
            f"value, {remedy}"
        )
    for value, rest in _far_out([*rows]):
        if value in said:
            continue
        if fills_in(value):
            yield f"{value:g} {where(value)}: if it stands for a missing value, {remedy}"
        else:
            yield (
                f"{value:g} {where(value)} is far from all others ({rest[0]:g} to {rest[-1]:g}): "
                f"is it correct?"
            )
    if len(filled) < _FEW:
        return
    if _dates(rows):
        first = next(iter(rows))
        yield (
            f"its numbers are dates, such as {first:.0f}, whose differences are no numbers of "
            f"days: write the number of days since a fixed day, or leave the column out"
        )
    elif (
        (apart := _another_group(rows))
        and not said.issuperset(apart[0])
        and not _is_a_cluster(np.isin(values, apart[0]), clusters)
    ):
        group, rest = apart
        yield (
            f"{number_of(sum(rows[value] for value in group), 'row')} from {group[0]:g} to "
            f"{group[-1]:g} {where(*group)} are far from all others ({rest[0]:g} to {rest[-1]:g}): "
            f"are they in another unit?"
        )
    if run := _filled_down(values):
        first, last = numbers[[run[0], run[1]]].tolist()
        yield (
            f"rows {first} to {last} all have {values[run[0]]:g}, and before and after values "
            f"change from row to row: is one filled down?"
        )


def _is_a_cluster(odd: Array, clusters: Array | None) -> bool:
    """Return whether odd rows are several, and all of one cluster.

    >>> _is_a_cluster(np.arange(6) < 3, np.array([7, 7, 7, 2, 2, 2]))
    True
    >>> _is_a_cluster(np.arange(6) < 2, np.array([7, 7, 7, 2, 2, 2]))
    False
    """
    if clusters is None or odd.sum() < 2:
        return False
    own = clusters[odd]
    return bool((own == own[0]).all() and odd.sum() == (clusters == own[0]).sum())


def _filled_down(values: Array) -> tuple[int, int] | None:
    """Return the first and last place of a long run of a measured value; see `long_run`.

    The value is not near an end, where amounts of 0 are. Of 3,964 columns of R's data sets two are
    said, one of unemployment by district.
    """
    run = long_run(values)
    if run is None:
        return None
    rest = np.concatenate([values[: run[0]], values[run[1] + 1 :]])
    low, high = np.nanquantile(rest, [0.05, 0.95])
    many = len(np.unique(rest[~np.isnan(rest)])) >= _MEASURED
    return run if many and low < values[run[0]] < high else None


def long_run(values: Array) -> tuple[int, int] | None:
    """Return the first and last place of a long run of one value among others that hardly repeat.

    By their frequencies such a run would occur once in a million such columns, and the others
    follow each other as by chance.

    >>> x = np.random.default_rng(0).normal(60.0, 9.0, 150).round()
    >>> long_run(x) is None
    True
    >>> x[40:60] = x[40]
    >>> long_run(x)
    (40, 59)
    """
    starts = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)  # a missing value is no run
    lengths = np.diff(starts, append=len(values))
    if len(starts) < _FEW or lengths.max() < _RUN:
        return None
    k = int(lengths.argmax())
    first, last = int(starts[k]), int(starts[k] + lengths[k]) - 1
    rest = np.concatenate([values[:first], values[last + 1 :]])
    rest = rest[~np.isnan(rest)]
    if len(rest) < _FEW:
        return None
    shares = np.unique(rest, return_counts=True)[1] / len(rest)
    same = float(shares @ shares)
    noise = 2 * math.sqrt(same * (1 - same) / len(rest)) + 0.02
    often = (float((rest == values[first]).sum()) + 1) / (len(rest) + 2)
    by_chance = len(values) * often ** float(lengths[k])
    found = (np.diff(rest) == 0).mean() <= same + noise and by_chance < _NEVER
    return (first, last) if found else None


def _thousands(rows: Mapping[float, int]) -> list[float]:
    """Return the values from 1 to 10 that seem to be thousands with a point; see `odd_values`.

    All other numbers are whole, and go far beyond, and of these nearly all need three decimals.

    >>> _thousands({float(days): 1 for days in range(8, 999, 9)}
    ...            | {days / 1000: 1 for days in (1002, 1431, 1650, 2034, 2659)})
    [1.002, 1.431, 1.65, 2.034, 2.659]
    """
    broken = [value for value in rows if value != round(value)]
    whole = [value for value in rows if value == round(value)]
    three = [value for value in broken if round(100 * value, 6) != round(100 * value)]
    exact = all(round(1000 * value, 6) == round(1000 * value) for value in broken)
    fit = len(broken) >= _EITHER <= len(whole) and exact and len(three) >= 0.6 * len(broken)
    if not fit or min(broken) < 1 or max(broken) >= 10 or not 500 <= max(whole) < 1000:
        return []
    return sorted(broken)


def slipped(values: Array, factor: float, places: Array, where: str) -> str:
    """Return the remark on values whose decimal point seems to have slipped."""
    own = sorted({*values[places].tolist()})
    rest = np.delete(values, places)
    size = "ten" if factor in (10.0, 0.1) else "a hundred"
    of_it = f"a {size.split()[-1]}th of" if factor > 1 else f"{size} times"
    true = first_few([f"{value / factor:.10g}" for value in own])
    is_are, it, its, points = (
        ("is", "it", "its", "point") if len(own) == 1 else ("are", "them", "their", "points")
    )
    not_so = "is not" if len(own) == 1 else "are not"
    return (
        f"{first_few([f'{value:.10g}' for value in own])} ({where}) {is_are} far from all others "
        f"({np.nanmin(rest):g} to {np.nanmax(rest):g}), and {of_it} {it}, {true}, {not_so}: "
        f"{'has' if len(own) == 1 else 'have'} {its} decimal {points} slipped?"
    )


def coded(values: Array, value: float, where: str, remedy: str, here: str = "") -> str:
    """Return the remark on a value that seems to stand for a missing one."""
    rest = values[values != value]
    if np.nanmin(rest) < value < np.nanmax(rest):
        return (
            f"{value:g} {where} is far more frequent than any other value{here} "
            f"({np.nanmin(rest):g} to {np.nanmax(rest):g}): if it stands for a missing value, "
            f"{remedy}"
        )
    return (
        f"{value:g} {where}, and all others{here} from {np.nanmin(rest):g} to {np.nanmax(rest):g}: "
        f"if it stands for a missing value, {remedy}"
    )


def _rows(numbers: Any) -> str:
    """Return the numbers of the first few rows, in words."""
    return first_few([*map(str, numbers)], what="row")


def odd_pairs(columns: Mapping[str, Array], numbers: Array) -> Iterator[str]:
    """Yield remarks on rows in which two columns seem exchanged; see `slips.exchanged`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> high, low = rng.normal(130, 17, 80).round(), rng.normal(80, 11, 80).round()
    >>> high[7], low[7] = 70.0, 141.0
    >>> list(odd_pairs({"sbp": high, "dbp": low}, np.arange(1, 81)))
    ["columns 'sbp' and 'dbp' seem exchanged in row 8: 70 and 141 there"]
    """
    for a, b, places in exchanged(columns):
        yield _exchanged(columns, a, b, places, _rows(numbers[places]))


def _exchanged(columns: Mapping[str, Array], a: str, b: str, places: Array, where: str) -> str:
    pairs = [f"{columns[a][k]:g} and {columns[b][k]:g}" for k in places.tolist()]
    return f"columns {a!r} and {b!r} seem exchanged in {where}: {first_few(pairs)} there"


def odd_across(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield what only the values of all clients show: a slip, a code, exchanged cells, or one far.

    Rows that their client's own values show, too, are left out.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    if len(tables) < 2 or tables[0].schema.sparse:
        return
    each = [_without_totals(numbers_of(table)) for table in tables]
    starts = np.cumsum([0, *(len(table.targets) for table in tables)])

    def where(places: Array) -> str:
        sites = np.searchsorted(starts, places, side="right") - 1
        of = zip(sites.tolist(), places.tolist(), strict=True)
        return _rows([
            f"{tables[k].numbers_of(place - int(starts[k]))} of {names[k]}" for k, place in of
        ])  # fmt: skip

    def left(places: Array, known: Sequence[Array]) -> Array:
        return places[~np.isin(places, np.concatenate([[-1], *known]))]

    whole = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    schema = tables[0].schema
    for name, values in whole.items():
        parts = list(zip(starts, (one[name] for one in each), strict=False))
        known = [start + slip.places for start, own in parts for slip in slips(own)]
        for factor, places in slips(values):
            if len(left(places, known)) == len(places):
                yield f"column {name!r}: {slipped(values, factor, places, where(places))}"
        known = [start + places for start, own in parts for _, places in codes(own)]
        for value, places in codes(values):
            if len(others := left(places, known)):
                said = coded(values, value, f"({where(others)})", remedy_of(schema, name))
                yield f"column {name!r}: {said}"
    for name, values in whole.items():
        if (place := _far_beyond(values, [one[name] for one in each])) is not None:
            rest = np.delete(values, place)
            yield (
                f"column {name!r}: {values[place]:g} ({where(np.array([place]))}) is more than "
                f"twice any other value of all sites ({np.nanmin(rest):g} to "
                f"{np.nanmax(rest):g}): is it correct?"
            )
    pairs: dict[tuple[str, str], list[Array]] = {}
    for start, one in zip(starts, each, strict=False):
        for a, b, places in exchanged(one):
            pairs.setdefault((a, b), []).append(start + places)
    for a, b, places in exchanged({name: _alike([one[name] for one in each]) for name in whole}):
        if len(others := left(places, pairs.get((a, b), []))):
            yield _exchanged(whole, a, b, others, where(others))


def _far_beyond(values: Array, parts: Sequence[Array]) -> int | None:
    """Return the place of one positive value that is far above all others of all clients.

    It is over twice the next one, and by logarithms over six robust standard deviations from its
    client's others and from all others, and further from the next one than four times the mean
    excess of the others' tail. Of 2,047 positive columns of R's data sets, dealt out to three
    clients, 4 are said, and most of these seem to be errors; of 890 with one value
    times 3.7, 24 % are found, since skewed ones reach as far. One that its client's own values show
    is left out.

    Parameters
    ----------
    values : array, shape (m,)
    parts : sequence of array
        The clients' values, of which `values` consists.

    Examples
    --------
    >>> miles = np.random.default_rng(0).normal(7500.0, 1000.0, 90).round()
    >>> _far_beyond(miles, np.split(miles, 3)) is None
    True
    >>> miles[70] = 26148.0
    >>> _far_beyond(miles, np.split(miles, 3))
    70
    """
    filled = values[~np.isnan(values)]
    if len(filled) < 3 * _FEW or not filled.min() > 0:
        return None
    place = int(np.nanargmax(values))
    highest = float(values[place])
    rest = np.sort(filled)[:-1]
    if highest <= 2 * rest[-1] or len(np.unique(rest)) < _MEASURED:
        return None
    own = next(part[~np.isnan(part)] for part in parts if (part == highest).any())
    known = {value for value, _ in _far_out(np.unique(own).tolist())}
    known |= {highest for part in (own, values) for slip in slips(part)
              if highest in part[slip.places]}  # fmt: skip
    known |= {value for part in (own, values) for value, _ in codes(part)}
    own = own[own < highest]
    if highest in known or len(own) < _FEW:
        return None
    for others in (own, rest):
        middle, spread = _middle(np.log(others), np.ones(len(others), dtype=int))
        if math.log(highest) - middle <= _BEYOND * spread:
            return None
    top, excess, _ = tail(np.log(rest))
    return place if math.log(highest) - top > _EXCESSES * excess else None


def _alike(each: Sequence[Array]) -> Array:
    """Return a column of all clients, NaN at those whose middle is far from the others'.

    In another unit, say, its values would seem to be those of another column.
    """
    known = [values[~np.isnan(values)] for values in each]
    filled = [values for values in known if len(values)]
    if not filled:
        return np.concatenate(each)
    middle = float(np.median([np.median(values) for values in filled]))
    spread = float(np.median([np.abs(values - np.median(values)).mean() for values in filled]))
    return np.concatenate([
        values if len(own) and abs(np.median(own) - middle) <= _AWAY * spread
        else np.full(len(values), np.nan)
        for values, own in zip(each, known, strict=True)
    ])  # fmt: skip


def remedy_of(schema: Schema, column: str) -> str:
    """Return what to do about a code for a missing value in a column."""
    if column in schema.names:
        return "add it to missing in the schema"
    return "remove these rows, since no target, time or weight may be missing"


_UNDONE: dict[str, Callable[[Array], Array]] = {
    "log": np.exp, "log1p": np.expm1, "sqrt": np.square, "square": np.sqrt,
}  # fmt: skip


def numbers_of(table: SiteRows) -> dict[str, Array]:
    """Return numeric columns before any transform, and a target that is a number."""
    schema, columns = table.schema, {}
    for feature, values in zip(schema.numeric, table.numeric.T, strict=True):
        undo = _UNDONE.get(feature.transform)
        columns[feature.name] = values if undo is None else _rounded(undo(values))
    if not schema.family.labelled:
        columns[schema.target] = table.targets.reshape(len(table.targets), -1)[:, 0]
    return columns


def all_columns(tables: Sequence[SiteRows]) -> list[dict[str, Array]]:
    """Return the same with categories as numbers from 0, alike at all clients; NaN without one."""
    columns = [numbers_of(table) for table in tables]
    for j, feature in enumerate(tables[0].schema.categorical):
        kinds = np.unique(np.concatenate([table.categories[:, j] for table in tables]))
        for own, table in zip(columns, tables, strict=True):
            marks = table.categories[:, j]
            codes = np.searchsorted(kinds, marks).astype(np.float64)
            own[feature.name] = np.where(marks == "", np.nan, codes)
    return columns


def _without_totals(columns: dict[str, Array]) -> dict[str, Array]:
    """Return columns without the numbers of a last row of totals."""
    if not any(len(values) for values in columns.values()) or not [*totals(columns)]:
        return columns
    return {name: np.append(values[:-1], np.nan) for name, values in columns.items()}


def _rounded(values: Array) -> Array:
    """Return values with twelve digits, as they were before a transform.

    >>> _rounded(np.exp(np.log(np.array([0.3, 7.0])))).tolist()
    [0.3, 7.0]
    """
    with np.errstate(divide="ignore"):
        places = 11.0 - np.floor(np.log10(np.abs(values)))
    plain = (places >= 0) & (places <= 22)  # powers of ten that are numbers
    power = 10.0 ** np.where(plain, places, 0.0)
    found: Array = np.rint(values * power) / power
    found[~plain] = [float(f"{value:.12g}") for value in values[~plain].tolist()]
    return found


def _negative_codes(rows: Mapping[float, int]) -> Iterator[float]:
    """Yield a negative whole number that seems to be a code: the only one.

    It is in several rows, or far from all others, which are from 0 on. It is no code if it
    continues them: it lies no further from them than they from each other, it is rarer than the
    next one, which is not among the most frequent, and so rare that the lack of still lower ones is
    no wonder.

    Parameters
    ----------
    rows : dict
        The number of rows by value, ascending.

    Examples
    --------
    >>> visits = {0.0: 60, 1.0: 25, 2.0: 12, 3.0: 8, 4.0: 4, 5.0: 1}
    >>> list(_negative_codes({-1.0: 9} | visits))
    [-1.0]
    >>> degrees = {0.0: 4, 1.0: 9, 2.0: 15, 3.0: 12, 4.0: 8, 5.0: 5}
    >>> list(_negative_codes({-1.0: 2} | degrees)), list(_negative_codes({-4.0: 2} | degrees))
    ([], [-4.0])
    """
    value, *others = rows or [0.0]
    if not -10 < value < 0 or value != int(value) or fills_in(value):
        return
    if len(others) < _SEVERAL or others[0] < 0:
        return
    if rows[value] < 2 and others[0] - value < _ALONE * (others[-1] - others[0]):
        return
    gap = max(b - a for a, b in pairwise(others[:_SEVERAL]))
    nearest = others[0]
    continued = others[0] - value <= gap and rows[value] <= rows[nearest]
    rare = rows[value] ** 2 < _LOWER * rows[nearest]
    tail = rows[nearest] < _PEAK * max(rows[other] for other in others)
    if not (continued and rare and tail):
        yield value


def _far_out(values: list[float]) -> Iterator[tuple[float, list[float]]]:
    """Yield extreme values that are far from the others, each with the others.

    Parameters
    ----------
    values : list of float
        Ascending.

    Examples
    --------
    >>> [value for value, _ in _far_out([-999.0, 18.0, 20.5, 30.0, 9999.0])]
    [-999.0, 9999.0]
    >>> [value for value, _ in _far_out([-99.0, -88.0, 0.0, 1.0])]
    [-99.0, -88.0]
    """
    others = [value for value in values if value >= 0 or not fills_in(value)]
    for step in (1, -1):
        rest = values[::step]
        while len(rest) > 1:
            value, rest = rest[0], rest[1:]
            gap, reach = abs(rest[0] - value), abs(rest[-1] - rest[0])
            nines = fills_in(value)
            below = nines and value < 0 <= min(others, default=-1.0)
            beyond = len(rest) > 2 and gap > reach * (1.0 if nines else _FAR) > 0
            if not (below or beyond):
                break
            yield value, sorted(rest)


def _dates(rows: Mapping[float, int]) -> bool:
    """Return whether all numbers are days, as 20240131 is.

    >>> _dates({20240131.0: 1, 19991201.0: 2} | {20230101.0 + k: 1 for k in range(9)})
    True
    >>> _dates({20240100.0 + 3 * k: 2 for k in range(30)})
    False
    """
    if len(rows) < _MEASURED:
        return False
    values: Array = np.array(list(rows))
    whole = (values == np.floor(values)) & (values >= 18000101) & (values <= 21001231)
    month, day = values // 100 % 100, values % 100
    return bool((whole & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


def _another_group(rows: Mapping[float, int]) -> tuple[list[float], list[float]] | None:
    """Return the values beyond a wide gap, and the others, if there are many.

    >>> ages = {18.0 + k: 5 for k in range(16)}
    >>> group, others = _another_group(ages | {190.0 + 10 * k: 1 for k in range(9)})
    >>> group[0], group[-1], others[0], others[-1]
    (190.0, 270.0, 18.0, 33.0)
    >>> _another_group(ages | {60.0: 3})
    """
    values = list(rows)
    if len(values) < _MEASURED:
        return None
    if apart := _in_two_units(rows):
        return apart
    gap, place = max((b - a, k) for k, (a, b) in enumerate(pairwise(values), 1))
    groups = values[:place], values[place:]
    fewer, more = sorted(groups, key=lambda group: sum(rows[value] for value in group))
    signs = values[0] < 0 < values[-1]  # another unit changes none
    if signs or len(fewer) < 2 or len(more) < _MEASURED or gap <= _APART * (more[-1] - more[0]):
        return None
    return fewer, more


def _in_two_units(rows: Mapping[float, int]) -> tuple[list[float], list[float]] | None:
    """Return the two groups of positive values that differ by a factor, as those in two units do.

    The gap between their logarithms is far wider than any other, and nearly as wide as either
    group; the groups' middles are many spreads apart, and the spreads are alike. Of simulated
    columns of 150 rows, the first third in another unit, 95 % are found of glucose (1/18), 97 % of
    creatinine (88), all of Celsius and Fahrenheit, 85 % of ages in months, and none of weights in
    pounds, where values of both units mix. One of 6,000 honest ones is said, and of 3,951 columns
    of R three, two of which are identifiers.

    >>> mg = {60.0 + 2 * k: 2 for k in range(40)}
    >>> group, others = _in_two_units({round(value / 18, 1): 2 for value in list(mg)[::3]} | mg)
    >>> group[0], group[-1], others[0], others[-1]
    (3.3, 7.7, 60.0, 138.0)
    """
    values: Array = np.array(sorted(rows))
    if values[0] <= 0 or len(values) < 2 * _EITHER:
        return None
    logs, counts = np.log(values), np.array([rows[value] for value in values.tolist()])
    gaps = np.diff(logs)
    place = int(gaps.argmax()) + 1
    parts = logs[:place], logs[place:]
    weights = counts[:place], counts[place:]
    if min(map(len, parts)) < _EITHER or min(part.sum() for part in weights) < _MEASURED:
        return None
    middles, spreads = zip(*map(_middle, parts, weights), strict=True)
    ranges = [float(np.ptp(part)) for part in parts]
    widest = max(float(np.diff(part).max()) for part in parts)
    if (
        gaps.max() < max(_GAP * max(ranges), _TIMES * widest)
        or middles[1] - middles[0] < _SPREADS * max(spreads)
        or max(spreads) > _UNLIKE * min(spreads)
    ):
        return None
    fewer, more = sorted(
        (values[:place].tolist(), values[place:].tolist()),
        key=lambda group: sum(rows[value] for value in group),
    )
    return fewer, more


def _middle(values: Array, times: Array) -> tuple[float, float]:
    """Return the median of values that occur so often, and their robust spread."""
    whole = np.repeat(values, times)
    middle = float(np.median(whole))
    away = float(np.median(np.abs(whole - middle)))
    return middle, 1.4826 * away or float(whole.std())


def totals(columns: Mapping[str, Array]) -> Iterator[str]:
    """Yield a remark if the last row has the sums or means of all rows above it.

    Parameters
    ----------
    columns : dict of array, shape (m,)
        Columns of numbers, NaN where a value is missing.

    Examples
    --------
    >>> x, y = np.array([1.5, 2.5, 3.0, 6.5, 8.25, 2.0]), np.array([7.0, 8, 1, 1, 9, 3])
    >>> list(totals({"x": np.append(x, x.sum()), "y": np.append(y, y.sum())}))
    ["the last row has the sums of all rows above it in columns 'x', 'y': remove it"]
    """
    for what in ("sums", "means"):
        found, others = [], 0
        for name, values in columns.items():
            above = values[:-1][~np.isnan(values[:-1])]
            if len(above) < 5 or math.isnan(values[-1]) or (above == above[0]).all():
                continue
            total = math.fsum(above) / (1 if what == "sums" else len(above))
            digits = len(f"{values[-1]:.6f}".rstrip("0").partition(".")[2])
            near = abs(values[-1] - total) <= 0.5 * 10.0**-digits * (1 + 1e-6) + 1e-12 * abs(total)
            told = 10.0**-digits <= _SURE * above.std()  # else they are near by chance
            if what == "sums":
                told = not above.min() <= total <= above.max()
            others += not near
            found += [repr(name)] if near and told else []
        if len(found) >= 2 and not others:
            yield (
                f"the last row has the {what} of all rows above it in columns {', '.join(found)}: "
                f"remove it"
            )
