"""A summary of tables for their owners, or a researcher, before anything is sent.

For each client's columns it has the numbers of values and of missing ones, minimum, mean and
maximum, and the categories with their rows. Remarks report conspicuous values, from the clients'
sums (`flower_fedcon.tables.conspicuous`) and from the rows.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, first_few, number_of
from flower_fedcon.tables.columns import Columns
from flower_fedcon.tables.conspicuous import (
    check_outcomes,
    check_references,
    conspicuous_values,
    in_another_unit,
    is_heavy,
    never_varies,
)
from flower_fedcon.tables.design import of_quantiles
from flower_fedcon.tables.doubled_rows import doubled_rows
from flower_fedcon.tables.families.base import RESIDUAL
from flower_fedcon.tables.in_order import in_order
from flower_fedcon.tables.intervals import unlike_intervals
from flower_fedcon.tables.marks import DATE, canonical, is_id, number_in
from flower_fedcon.tables.near_copies import near_copies
from flower_fedcon.tables.noisy_copies import noisy_copies
from flower_fedcon.tables.odd_clusters import odd_clusters
from flower_fedcon.tables.odd_values import odd_across, odd_pairs, odd_values, remedy_of, totals
from flower_fedcon.tables.on_a_line import on_a_line
from flower_fedcon.tables.outcomes_left_out import outcomes_left_out
from flower_fedcon.tables.own_files import SURVEY
from flower_fedcon.tables.preparation import Preparation, agree, conclude
from flower_fedcon.tables.repeated_rows import same_identifiers, same_rows
from flower_fedcon.tables.row_weights import FREQUENCY, SAMPLING, asks_for_kind
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.tables.small_cells import effective_rows
from flower_fedcon.tables.split_outcomes import split_outcomes
from flower_fedcon.tables.stated_times import stated_times
from flower_fedcon.tables.table import SPREAD, SUMMARY, Table
from flower_fedcon.tables.turned_round import turned_round
from flower_fedcon.tables.unlike_outcomes import (
    by_default,
    censored_at_once,
    counts_left_out,
    empty_cells,
    even_outcomes,
    falling_exposures,
    no_later_events,
    running_sums,
    unrelated_exposures,
)
from flower_fedcon.tables.unlike_values import unlike_values
from flower_fedcon.tables.within_clusters import within_clusters
from flower_fedcon.validation import Array

_WORK = 1e11  # multiplications: half a minute
_COPY = 1e-10  # from 1: the correlation with an outcome of which a column is a copy
_CODES = 3, 7  # so many whole numbers, below 10, may be codes of categories
_BY_CHANCE = 0.01  # of no late entry at a client
_FEW = 20  # with fewer values a column is not taken for an identifier
_VARIES = 5  # exposures: with fewer, all rows of another client may well have one


@dataclass(frozen=True, eq=False)
class Client:
    """A client's table, which fits its schema."""

    name: str
    columns: Columns
    table: Table


@dataclass(frozen=True)
class Line:
    """The content of one client's column; numbers without a meaning are None.

    Parameters
    ----------
    column, client : str
    values, missing : int
    least, mean, greatest : float, optional
        For a numeric column, in the file's units.
    categories : tuple of (str, int)
        Categories of features, outcomes and events with their rows, the most frequent first.
    told : str
        What the server learns of the column before round 1.
    """

    column: str
    client: str
    values: int
    missing: int
    least: float | None
    mean: float | None
    greatest: float | None
    categories: tuple[tuple[str, int], ...]
    told: str


@dataclass(frozen=True)
class Survey:
    """The result of `survey`.

    Parameters
    ----------
    lines : tuple of Line
    findings : tuple of str
        Remarks, one sentence each.
    refusals : tuple of str
        Reasons why no model could be fitted.
    """

    lines: tuple[Line, ...]
    findings: tuple[str, ...]
    refusals: tuple[str, ...]

    @property
    def csv(self) -> str:
        """All lines as a CSV file: a line for each column and client, and for each category."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(SURVEY)
        for line in self.lines:
            numbers = ["" if v is None else repr(v) for v in (line.least, line.mean, line.greatest)]
            writer.writerow([line.column, line.client, "", line.values, line.missing, *numbers])
            for category, rows in line.categories:
                writer.writerow([line.column, line.client, category, rows, "", "", "", ""])
        return out.getvalue()


def survey(clients: Sequence[Client], least: int = 1) -> Survey:
    """Return the content of the clients' tables, and remarks.

    Parameters
    ----------
    clients : sequence of Client
    least : int
        The `min_rows` of every node's policy.
    """
    schema = clients[0].table.schema
    names = [client.name for client in clients]
    told = [client.table.answer(SUMMARY, {}, least) for client in clients]
    first = agree(schema, told)
    spread = [client.table.answer(SPREAD, first.payload, least) for client in clients]
    findings = [f"{c.name}: {note}" for c in clients for note in c.columns.notes]
    findings += conspicuous_values(schema, names, first, told, spread)
    findings += scales_of_outcomes(names, [client.table for client in clients])
    findings += [f"{c.name}: {line}" for c in clients for line in seen_in_rows(c.columns)]
    findings += odd_across(names, [client.table for client in clients])
    if schema.weight:
        weights = np.concatenate([np.asarray(client.table.weights) for client in clients])
        findings += asks_for_kind(schema.weight, schema.weight_kind, weights)
    findings += heavy_rows(names, [client.table for client in clients])
    findings += two_values([client.table for client in clients])
    findings += codes_as_numbers([client.table for client in clients])
    findings += broken_frequencies([client.table for client in clients])
    findings += _taken_as_one(clients)
    findings += _too_rare(clients, least)
    findings += _decided(clients)
    findings += _separating(clients)
    findings += _identifiers(clients)
    findings += rows_beside_others(names, [client.table for client in clients], findings)
    refusals = []
    try:
        check_outcomes(schema, told)
        check_references(schema, first)
        preparation = conclude(
            schema, first, spread,
            lambda stage, down, _: [c.table.answer(stage, down, least) for c in clients],
        )  # fmt: skip
    except ConfigError as error:
        refusals.append(str(error))
    else:
        for column, why in preparation.left_out.items():
            values = [client.columns.numbers.get(column, np.empty(0)) for client in clients]
            together = np.concatenate(values)
            if why == "constant" and len(np.unique(together[~np.isnan(together)])) > 1:
                why = "constant up to rounding"
            findings.append(f"column {column!r} is {why} over all clients, and is left out")
        tables = [client.table for client in clients]
        findings += turned_round(names, tables, preparation)
        findings += filter(None, [_unsought(tables, preparation, _WORK)])
        findings += collinear(tables, preparation)
    lines = [line for column in schema.columns for line in _lines(column, clients, told)]
    return Survey(tuple(lines), tuple(findings), tuple(refusals))


# --- the table -----------------------------------------------------------------------------------


def _lines(column: str, clients: Sequence[Client], told: Sequence[Any]) -> Iterator[Line]:
    """Yield a column's line of each client."""
    for client, answer in zip(clients, told, strict=True):
        numbers = client.columns.numbers.get(column)
        marks = _by_mark(client.columns.counts.get(column, {}))
        rows = len(client.table.targets)
        values = sum(marks.values()) if numbers is None else int((~np.isnan(numbers)).sum())
        filled = np.empty(0) if numbers is None else numbers[~np.isnan(numbers)]
        yield Line(
            column=column,
            client=client.name,
            values=values,
            missing=rows - values,
            least=float(filled.min()) if filled.size else None,
            mean=math.fsum(filled.tolist()) / filled.size if filled.size else None,
            greatest=float(filled.max()) if filled.size else None,
            categories=tuple(sorted(marks.items(), key=lambda pair: (-pair[1], pair[0]))),
            told=_told(column, client.table.schema, answer),
        )


def _by_mark(counts: dict[str, int]) -> dict[str, int]:
    """Return the rows of each mark, however it is written in the file."""
    by_mark: dict[str, int] = {}
    for text, rows in counts.items():
        by_mark[canonical(text)] = by_mark.get(canonical(text), 0) + rows
    return by_mark


def _told(column: str, schema: Schema, answer: dict[str, Any]) -> str:
    for j, feature in enumerate(schema.numeric):
        if feature.name == column:
            if not answer["observed"][j]:
                return "nothing"
            return f"count and sum{', counts in intervals' * (column in of_quantiles(schema))}"
    for feature in schema.categorical:
        if feature.name == column:
            return "counts" if feature.categories else "counts and names"
    if column == schema.strata and not schema.stratified:
        return "names"
    counted = schema.event or schema.target
    told = []
    if column == counted and schema.outcomes and not np.isnan(answer["outcomes"]).any():
        told.append("counts")
    if "level" in answer and answer["level"].any():
        told += ["sums"] * (column in (schema.target, *schema.offsets))
    return " and ".join(told) or "nothing"


# --- remarks that need the rows ------------------------------------------------------------------


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
        for k, (name, entries) in enumerate(zip(names, late, strict=True)):
            others = np.concatenate([np.zeros(0), *late[:k], *late[k + 1 :]])
            by_chance = float((others == 0).mean()) ** len(entries) if len(others) else 1.0
            if len(entries) and not entries.any() and by_chance < _BY_CHANCE:
                yield never_varies(schema.entry, name, 0.0, float(others.mean()))
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


def _identifiers(clients: Sequence[Client]) -> Iterator[str]:
    """Yield the columns of identifiers that clients share."""
    every = [client.columns.identifiers for client in clients]
    for column in dict.fromkeys(column for own in every for column in own):
        each = [own.get(column, frozenset()) for own in every]
        yield from same_identifiers(column, [client.name for client in clients], each)


def rows_beside_others(
    names: Sequence[str], tables: Sequence[SiteRows], said: Sequence[str] = ()
) -> Iterator[str]:
    """Yield remarks on clients' rows that only the other clients' rows show.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    said : sequence of str
        Remarks on the same clients: what they say of a column's values there is not said again.
    """
    known = {line.partition(" are ")[0] for line in said}
    for check in (
        unlike_values,
        near_copies,
        noisy_copies,
        odd_clusters,
        within_clusters,
        unlike_intervals,
        doubled_rows,
        outcomes_left_out,
        same_rows,
        empty_cells,
        by_default,
        split_outcomes,
        in_order,
        on_a_line,
    ):
        yield from (
            line for line in check(names, tables) if line.partition(" lie apart ")[0] not in known
        )


def heavy_rows(names: Sequence[str], tables: Sequence[Table]) -> Iterator[str]:
    """Yield the training rows with a large share of the weight of all, for weights of sampling."""
    schema = tables[0].schema
    if schema.weight_kind != SAMPLING:
        return
    each = [np.asarray(table.weights)[table.training_rows] for table in tables]
    whole, rows = math.fsum(np.concatenate(each).tolist()), sum(map(len, each))
    effective = effective_rows(np.concatenate(each), np.arange(rows))
    for name, table, weights in zip(names, tables, each, strict=True):
        for place in np.flatnonzero(weights > 0).tolist():
            share = float(weights[place]) / whole
            if is_heavy(share, rows):
                row = table.numbers_of(table.training_rows[[place]])[0]
                yield (
                    f"column {schema.weight!r}: row {row} of {name} has {100 * share:.3g} % of the "
                    f"weight of all {rows} rows, whose effective number is {effective:.3g}, and "
                    f"estimates follow it: is it correct?"
                )


def two_values(tables: Sequence[Table]) -> Iterator[str]:
    """Yield a remark on the target of a linear model that has two values over all clients."""
    schema = tables[0].schema
    if schema.family.scale != RESIDUAL:
        return
    distinct = np.unique(np.concatenate([table.targets for table in tables]))
    if len(distinct) == 2 and sum(len(table.targets) for table in tables) >= _FEW:
        low, high = distinct.tolist()
        yield (
            f"target {schema.target!r} has two values, {low:g} and {high:g}, and a linear model is "
            f"fitted: positive = [{high:g}] with negative = [{low:g}] fits a logistic one"
        )


def codes_as_numbers(tables: Sequence[Table]) -> Iterator[str]:
    """Yield the numeric features that may be categories: a few small whole numbers at all clients.

    Numbers from 0 on whose frequencies have one peak may be counts, or a score. A feature whose
    schema states a range, or uses it in a spline or a polynomial, is meant as a number.

    Parameters
    ----------
    tables : sequence of Table
        Tables of one schema; on a node its own.
    """
    schema = tables[0].schema
    bent = {factor.feature for term in schema.design for factor in term.factors if factor.basis}
    for j, feature in enumerate(schema.numeric):
        if feature.range or feature.transform != "none" or feature.name in bent:
            continue
        values = np.concatenate([table.numeric[:, j] for table in tables])
        distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
        few = _CODES[0] <= len(distinct) <= _CODES[1] and counts.sum() >= _FEW
        if not few or distinct[0] < 0 or distinct[-1] >= 10 or (distinct % 1).any():
            continue
        steps = np.diff(counts.astype(float))
        rises = steps[np.abs(steps) > 2.0 * np.sqrt(counts[1:] + counts[:-1])] > 0  # not by chance
        if distinct[0] == 0 and not (rises[1:] & ~rises[:-1]).any():
            continue
        said = ", ".join(f"{value:g}" for value in distinct)
        yield (
            f"column {feature.name!r}: its values are {said}, and one slope is fitted to them: if "
            f'they are codes, write type = "categorical"; if numbers, a range'
        )


def broken_frequencies(tables: Sequence[Table]) -> Iterator[str]:
    """Yield a remark on weights that are stated to count equal rows, and are no whole numbers.

    Parameters
    ----------
    tables : sequence of Table
        Tables of one schema; on a node its own.
    """
    schema = tables[0].schema
    if schema.weight_kind != FREQUENCY:
        return
    weights = np.concatenate([np.asarray(table.weights) for table in tables])
    broken = weights[np.abs(weights - np.rint(weights)) > 1e-9 * weights]
    if len(broken):
        yield (
            f"column {schema.weight!r}: {len(broken)} of {number_of(len(weights), 'weight')} are "
            f"no whole numbers, such as {broken[0]:g}, and weight_kind = {FREQUENCY!r} takes each "
            f"for so many equal rows: are they sampling weights (weight_kind = {SAMPLING!r})?"
        )


def seen_in_rows(columns: Columns) -> Iterator[str]:
    """Yield remarks on one client's columns of numbers.

    Parameters
    ----------
    columns : Columns
        The columns; `table` must have been called.
    """
    yield from columns.repeated
    numbers, rows, clusters = columns.numbers, columns.rows, columns.clusters
    if total := [*totals({name: values for name, values in numbers.items() if len(values)})]:
        yield from total
        numbers, rows = {name: values[:-1] for name, values in numbers.items()}, rows[:-1]
        clusters = None if clusters is None else clusters[:-1]
    yield from odd_pairs(numbers, rows)
    for column, values in numbers.items():
        filled = values[~np.isnan(values)]
        distinct = np.unique(filled)
        schema = columns.schema
        nothing = column in (schema.weight, schema.entry, schema.offset)  # where 0 has a meaning
        looked_at = np.where(values == 0, np.nan, values) if nothing else values
        for said in odd_values(looked_at, rows, remedy_of(schema, column), clusters):
            yield f"column {column!r}: {said}"
        if column in columns.schema.names and _counts_rows(column, filled, distinct):
            yield (
                f"column {column!r} has a different whole number in each row: is it an identifier? "
                f"Leave it out"
            )
        part = filled[filled != np.floor(filled)]
        if column == columns.schema.target and columns.schema.family.whole and part.size:
            yield (
                f"column {column!r}: {part.size} of {filled.size} values, such as {part[0]:g}, are "
                f"not whole numbers: are they counts? For a rate give the count and its exposure"
            )
    for column, texts in columns.counts.items():
        dates = [text for text in texts if DATE.match(text)]
        if column in columns.schema.names and len(dates) > max(_FEW, len(texts)) / 2:
            yield (
                f"column {column!r}: {dates[0]!r} is a date, and each date becomes a category: "
                f"write the number of days since a fixed day, or leave the column out"
            )
        elif column in columns.schema.names and _measured(list(map(canonical, texts))):
            yield (
                f"column {column!r}: its {len(texts)} categories are all numbers, close together: "
                'are they measured, or counted? Then write type = "numeric"'
            )


def _counts_rows(column: str, known: Array, distinct: Array) -> bool:
    """Return whether a column looks like row numbers, or like an identifier that is a number."""
    if len(known) < _FEW or len(distinct) < len(known) or (known != np.floor(known)).any():
        return False
    consecutive = distinct[-1] - distinct[0] == len(distinct) - 1
    return bool(consecutive) or is_id(column)


def _measured(marks: Sequence[str]) -> bool:
    """Return whether categories look like measured or counted numbers rather than codes.

    >>> _measured([str(age) for age in range(20, 90)]), _measured(["01067", "20095"] * 20)
    (True, False)
    """
    numbers = [number_in(mark) for mark in marks]
    if len(marks) <= _FEW or None in numbers or any(re.match(r"0\d", mark) for mark in marks):
        return False
    values: Any = np.unique(np.array(numbers))
    dense = values[-1] - values[0] <= 2 * len(values)
    return bool((values != np.floor(values)).any() or dense)


def _too_rare(clients: Sequence[Client], least: int) -> Iterator[str]:
    """Yield remarks on categories with too few rows at a client to be sent."""
    schema = clients[0].table.schema
    for feature in schema.categorical if least > 1 else ():
        listed = [
            f"{mark!r} ({number_of(rows, 'row')} at {client.name})"
            for client in clients
            for mark, rows in _by_mark(client.columns.counts.get(feature.name, {})).items()
            if rows < least
        ]
        if listed:
            yield (
                f"column {feature.name!r}: not told, since they are in fewer than {least} rows "
                f"(min-rows): {first_few(listed)}; a category that no client tells is missing"
            )


def _decided(clients: Sequence[Client]) -> Iterator[str]:
    """Yield the categories whose training rows all have one outcome, so that their effect diverges.

    This concerns logistic losses, and counts that are all 0.
    """
    schema = clients[0].table.schema
    every = np.concatenate([client.table.targets[client.table.training_rows] for client in clients])
    if schema.family.decides(every):
        return  # a constant outcome, which is said
    for j, feature in enumerate(schema.categorical):
        outcomes: dict[str, list[Array]] = {}
        for client in clients:
            rows = client.table.training_rows
            marks, targets = client.table.categories[rows, j], client.table.targets[rows]
            for mark in dict.fromkeys(marks.tolist()):
                outcomes.setdefault(mark, []).append(targets[marks == mark])
        if not 1 < len(outcomes) <= _FEW + 1:
            continue
        for mark, parts in outcomes.items():
            whole = np.concatenate(parts)
            if mark and schema.family.decides(whole):
                yield (
                    f"column {feature.name!r}: all {number_of(len(whole), 'row')} of {mark!r} have "
                    "one outcome: without a penalty its coefficient has no end. Join it to "
                    "another category, or take l1 > 0"
                )


def _separating(clients: Sequence[Client]) -> Iterator[str]:
    """Yield the numeric columns that tell the outcome of each training row, as a copy of it would.

    Two classes lie on different sides of a value; a target that is a number is a multiple of the
    column, up to a constant.
    """
    schema, tables = clients[0].table.schema, [client.table for client in clients]
    if schema.event or schema.family.several or schema.sparse:
        return
    y = np.concatenate([table.targets[table.training_rows] for table in tables])
    for j, feature in enumerate(schema.numeric):
        x = np.concatenate([table.numeric[table.training_rows, j] for table in tables])
        there = ~np.isnan(x)
        own, outcome = x[there], y[there]
        if len(np.unique(own)) < 2 or len(own) < _FEW:
            continue
        if schema.family.binary:
            parts = own[outcome > 0], own[outcome <= 0]
            told = min(map(len, parts)) >= _CODES[0] and any(
                a.max() < b.min() for a, b in (parts, parts[::-1])
            )
        else:
            told = outcome.std() > 0 and 1 - abs(np.corrcoef(own, outcome)[0, 1]) < _COPY
        if told:
            yield (
                f"column {feature.name!r} alone tells the outcome of all {len(own)} rows: was it "
                f"made from the outcome, or known only after it?"
            )


def _taken_as_one(clients: Sequence[Client]) -> Iterator[str]:
    """Yield the texts of a column that count as one mark."""
    schema = clients[0].table.schema
    for column in schema.columns:
        texts: dict[str, dict[str, None]] = {}
        for client in clients:
            for text in client.columns.counts.get(column, {}):
                texts.setdefault(canonical(text), {})[text] = None
        said = [" and ".join(map(repr, group)) for group in texts.values() if len(group) > 1]
        if said:
            yield f"column {column!r}: taken as one: {first_few(said)}"


def collinear(
    tables: Sequence[Table], preparation: Preparation, work: float = _WORK
) -> Iterator[str]:
    """Yield remarks on columns of the model that are combinations of others in the training rows.

    Parameters
    ----------
    tables : sequence of Table
    preparation : Preparation
    work : float
        The largest number of multiplications; if more are needed, combinations are not sought.
    """
    names = preparation.names
    if _unsought(tables, preparation, work):
        return
    yield from dependent(names, _triangle(tables, preparation))


def dependent(names: Sequence[str], triangle: Array, rounding: float = 1e-10) -> Iterator[str]:
    """Yield remarks on columns that are combinations of others; see `combinations`."""
    for column, others in combinations(names, triangle, rounding):
        if len(others) == 1:
            yield f"columns {column!r} and {others[0]!r} are exactly collinear: leave one out"
        else:
            said = first_few([repr(name) for name in others])
            yield f"column {column!r} is exactly a combination of {said}: leave one out"


def _unsought(tables: Sequence[Table], preparation: Preparation, work: float) -> str:
    """Return why combinations of columns are not sought; "" if they are."""
    columns, rows = len(preparation.names), sum(preparation.rows)
    if preparation.width:
        return "collinear columns were not searched for, since the model's columns are sparse"
    if columns >= rows:
        return (
            f"the model has {number_of(columns, 'column')} and only "
            f"{number_of(rows, 'training row')}, so some columns are combinations of others"
        )
    if columns**2 * (rows + columns * len(tables)) > work:
        return f"collinear columns were not searched for among the model's {columns} columns"
    return ""


def _triangle(tables: Sequence[Table], preparation: Preparation) -> Array:
    """Return R of the QR factorisation of all clients' centred training rows."""
    middle = (preparation.means - preparation.centers) / preparation.scales
    triangle: Any = np.zeros((0, len(middle)))
    for table in tables:
        rows = table.matrix(preparation)[table.training_rows]
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        triangle = np.linalg.qr(np.concatenate([triangle, dense - middle]), mode="r")
    upper: Array = triangle
    return upper


def combinations(
    names: Sequence[str], triangle: Array, rounding: float = 1e-10
) -> Iterator[tuple[str, list[str]]]:
    """Yield the columns that are combinations of others, with those others.

    Parameters
    ----------
    names : sequence of str
    triangle : array, shape (rows, columns)
        A matrix whose columns have the same scalar products as those of the data.
    rounding : float
        The largest residual of a column of length 1 that counts as a combination.

    Examples
    --------
    >>> A = np.array([[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    >>> [(name, sorted(others)) for name, others in combinations("abcd", A)]
    [('c', ['a']), ('d', ['a', 'b'])]
    """
    from scipy.linalg import qr, solve_triangular

    lengths = np.linalg.norm(triangle, axis=0)
    scaled = triangle / np.where(lengths > 0, lengths, 1.0)
    upper, order = qr(scaled, mode="r", pivoting=True)
    sizes = np.abs(np.diag(upper))
    rank = int((sizes > rounding * math.sqrt(len(names)) * max(1.0, sizes[0])).sum())
    weights = solve_triangular(upper[:rank, :rank], upper[:rank, rank:])
    for j, shares in zip(order[rank:], weights.T, strict=True):
        yield names[j], [names[order[i]] for i in np.flatnonzero(np.abs(shares) > 100 * rounding)]
