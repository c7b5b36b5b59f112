"""Sites whose outcomes seem to be turned round, from their sums for standard errors.

Of the simulated federations of `flower_fedcon.tables.opposite_effects`, with events, 7 of 4,000 are
remarked upon falsely, and 7 of 2,000 in which effects vary by up to their size; 54 and 51 % of
sites turned round are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flower_fedcon.objectives.profiled import pseudo_inverse
from flower_fedcon.tables.opposite_effects import COLUMNS, SiteSums, spread_of, turned_by_sums
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.statistics.site_sums import unpacked
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

EVIDENCE = 5.0
"""More than for rows, since one step from the model of all sites is not quite a site's own fit."""


def turned_at_the_end(
    names: Sequence[str], told: Mapping[int, Payload], x: Array, preparation: Preparation
) -> list[str]:
    """Return the remark on sites whose outcomes seem to be turned round; [] without any.

    Parameters
    ----------
    names : sequence of str
    told : dict
        The sites' answers with "score" and "information", by place.
    x : array, shape (entries,)
        The model at which the sums are taken.
    preparation : Preparation
        With the sites' numbers of rows by outcome: nothing is said of a site that does not tell
        them.
    """
    schema, p = preparation.stated, len(preparation.names)
    ordered = schema is not None and bool(schema.family.binary or schema.levels)
    if schema is None or not ordered or p > COLUMNS or x.ndim > 1:
        return []
    sums, known = [], []
    for client in sorted(told):
        by_outcome = np.array(preparation.outcomes[client])
        if not by_outcome.sum() > 0:
            continue
        weight = preparation.weights[client]
        part = preparation.effective[client] / weight if preparation.effective else 1.0
        full = part * unpacked(told[client]["information"], len(x))
        score = part * told[client]["score"]
        ties = full[:p, p:]
        if len(x) > p:
            ties = ties @ pseudo_inverse(full[p:, p:])[0]
        information = full[:p, :p] - ties @ full[p:, :p]
        share = by_outcome / by_outcome.sum()
        places = np.arange(len(share))
        sums.append(
            SiteSums(
                score[:p] - ties @ score[p:] + information @ x[:p], information,
                part * weight * spread_of(share)[1], float(places @ share / places[-1]),
                preparation.rows[client],
            )
        )  # fmt: skip
        known.append(names[client])
    return turned_by_sums(known, sums, len(schema.levels) or 2, EVIDENCE)
