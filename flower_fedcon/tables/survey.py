"""A summary of tables for their owners, or a researcher, before anything is sent.

For each client's columns it has the numbers of values and of missing ones, minimum, mean and
maximum, and the categories with their rows. Remarks report conspicuous values, from the clients'
sums (`flower_fedcon.tables.checks.conspicuous`) and from the rows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, first_few, number_of
from flower_fedcon.tables.checks.beside_others import rows_beside_others
from flower_fedcon.tables.checks.collinear import collinear, unsought
from flower_fedcon.tables.checks.conspicuous import (
    check_outcomes,
    check_references,
    conspicuous_values,
)
from flower_fedcon.tables.checks.kinds_of_columns import codes_as_numbers, seen_in_rows, two_values
from flower_fedcon.tables.checks.odd_values import odd_across
from flower_fedcon.tables.checks.outcome_scales import scales_of_outcomes
from flower_fedcon.tables.checks.repeated_rows import same_identifiers
from flower_fedcon.tables.checks.turned_round import turned_round
from flower_fedcon.tables.checks.weights_in_rows import broken_frequencies, heavy_rows
from flower_fedcon.tables.columns import Columns
from flower_fedcon.tables.design import of_quantiles
from flower_fedcon.tables.marks import canonical
from flower_fedcon.tables.own_files import SURVEY
from flower_fedcon.tables.preparation import agree, conclude
from flower_fedcon.tables.row_weights import asks_for_kind
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.table import SPREAD, SUMMARY, Table
from flower_fedcon.validation import Array

_COPY = 1e-10  # from 1: the correlation with an outcome of which a column is a copy
_EACH = 3  # rows of each of two classes that a column tells apart
_FEW = 20  # rows: with fewer nothing is said


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
        findings += filter(None, [unsought(tables, preparation)])
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


def _identifiers(clients: Sequence[Client]) -> Iterator[str]:
    """Yield the columns of identifiers that clients share."""
    every = [client.columns.identifiers for client in clients]
    for column in dict.fromkeys(column for own in every for column in own):
        each = [own.get(column, frozenset()) for own in every]
        yield from same_identifiers(column, [client.name for client in clients], each)


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
            told = min(map(len, parts)) >= _EACH and any(
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
