"""Sites whose outcomes, or columns, seem to be turned round, from their sums for standard errors.

Of the simulated federations of `tables.checks.opposite_effects`, with events, 7 of 4,000 are
remarked upon falsely, and 7 of 2,000 in which effects vary by up to their size; 54 and 51 % of
sites turned round are found. Of linear models none and 1 of 4,000 are, and 82 % are found (by their
ranks 87 %): the squares in the sums show each site's own variance.

Columns are compared with each other, and each with the outcome, by the same sums. Of the simulated
federations of `tables.checks.unlike_relations` with numbers or events as outcomes, 6 of
1,056 are remarked upon falsely, and 27 of 547 whose relations vary by 0.45 of their size. Of
numbers turned round 33 % are found, with another column, or the outcome, named in 12 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.objectives.profiled import pseudo_inverse
from flower_fedcon.tables.checks.opposite_effects import (
    COLUMNS,
    SiteSums,
    spread_of,
    turned_by_sums,
)
from flower_fedcon.tables.checks.turned_features import Coordinates, turned_by_feature
from flower_fedcon.tables.checks.unlike_relations import VARYING, Columns, unlike_relations
from flower_fedcon.tables.families.base import RESIDUAL
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.statistics.site_sums import NUMBERS, unpacked
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_SQUARES, _CLUSTERS = NUMBERS.index("deviance"), NUMBERS.index("clusters")
EVIDENCE = 5.0
"""More than for rows, since one step from the model of all sites is not quite a site's own fit."""
_MORE = 1.0  # evidence for columns than from rows, since far values count more than ranks


def turned_at_the_end(
    names: Sequence[str], told: Mapping[int, Payload], x: Array, preparation: Preparation
) -> list[str]:
    """Return remarks on sites whose outcomes, or other columns, seem to be turned round.

    Columns are compared with each other (`unlike_relations`), and each with the outcome, if the
    outcomes agree.

    Parameters
    ----------
    names : sequence of str
    told : dict
        The sites' answers with "score", "information" and "numbers", by place.
    x : array, shape (entries,)
        The model at which the sums are taken.
    preparation : Preparation
        With the sites' numbers of rows by outcome: nothing is said of a site that does not tell
        them.
    """
    schema, p = preparation.stated, len(preparation.names)
    if schema is None or p > COLUMNS or x.ndim > 1:
        return []
    ordered, number = schema.family.binary or schema.levels, schema.family.scale == RESIDUAL
    sums, known, of_columns = [], [], []
    for client in sorted(told) if ordered or number else ():
        by_outcome = np.array(preparation.outcomes[client] if ordered else ())
        if ordered and not by_outcome.sum() > 0:
            continue
        weight, answer = preparation.weights[client], told[client]
        part = preparation.effective[client] / weight if preparation.effective else 1.0
        if number and schema.cluster:  # whose rows are alike: each cluster counts as one row
            part *= answer["numbers"][_CLUSTERS] / preparation.rows[client]
        full, score = unpacked(answer["information"], len(x)), answer["score"]
        ties, own = full[:p, p:], 0.0
        if len(x) > p:
            inverse = pseudo_inverse(full[p:, p:])[0]
            ties, own = ties @ inverse, score[p:] @ inverse @ score[p:]
        information = full[:p, :p] - ties @ full[p:, :p]
        from_x = score[:p] - ties @ score[p:]
        score, middle, spread = from_x + information @ x[:p], 0.5, 1.0
        whole = full[p:, p:].sum() if len(x) > p else weight
        means = full[:p, p:].sum(axis=1) / whole
        of_columns.append(OfColumns(part * weight, means, information / whole))
        if ordered:
            share = by_outcome / by_outcome.sum()
            places = np.arange(len(share))
            middle, spread = float(places @ share / places[-1]), spread_of(share)[1]
        else:  # numbers: of the variance of ranks
            squares = answer["numbers"][_SQUARES] - own + x[:p] @ (from_x + score)
            if not part * squares > 0:
                del of_columns[-1]
                continue
            spread = 1.0 / 3.0
            score, information = score * math.sqrt(spread * weight / squares), spread * information
        sums.append(
            SiteSums(
                part * score, part * information, part * weight * spread, middle,
                preparation.rows[client],
            )
        )  # fmt: skip
        known.append(names[client])
    levels = 0 if number else len(schema.levels) or 2
    said = turned_by_sums(known, sums, levels, EVIDENCE)
    about = Coordinates.of(preparation) if not said and len(known) > 1 else None
    return said if about is None else _columns_turned(known, sums, of_columns, about)


class OfColumns(NamedTuple):
    """What a site's sums tell of its columns: independent rows, means and covariance."""

    rows: float
    means: Array
    covariance: Array


def _variance(own: OfColumns, column: Array) -> float:
    return max(float((column.T @ own.covariance @ column).item()), 0.0)


def _columns_turned(
    names: Sequence[str], sums: Sequence[SiteSums], told: Sequence[OfColumns], about: Coordinates
) -> list[str]:
    """Return the remarks on sites with a column that is turned round."""
    n, T = np.array([own.rows for own in told]), about.map.copy()
    for levels, places in zip(about.levels, about.places, strict=True):
        if not levels:  # a number, which the schema may leave in its unit
            spread = math.sqrt(
                sum(m * _variance(own, T[:, places]) for m, own in zip(n, told, strict=True))
            )
            T[:, places] *= math.sqrt(n.sum()) / spread if spread > 0 else 0.0
    made = [T.T @ own.covariance @ T for own in told]
    varying = np.min([m * C.diagonal() for m, C in zip(n, made, strict=True)], axis=0)
    for levels, places in zip(about.levels, about.places, strict=True):
        if not levels:  # whose frequencies are unknown
            varying[places] = np.where(varying[places] > 0, VARYING, 0)
    columns = Columns(about.names, about.levels, about.places, set(), n, made, varying)
    if said := [*unlike_relations(names, columns, _MORE)]:
        return said
    moved = [
        one._replace(score=T.T @ one.score, information=T.T @ one.information @ T) for one in sums
    ]
    shares = [about.shares + own.means @ T for own in told]
    return turned_by_feature(names, moved, shares, about, EVIDENCE)
