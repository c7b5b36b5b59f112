"""Sites whose outcomes seem to be turned round, from their sums for standard errors.

Of the simulated federations of `flower_fedcon.tables.opposite_effects`, with events, 7 of 4,000 are
remarked upon falsely, and 7 of 2,000 in which effects vary by up to their size; 54 and 51 % of
sites turned round are found. Of linear models none and 1 of 4,000 are, and 82 % are found (by their
ranks 87 %): the squares in the sums show each site's own variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flower_fedcon.objectives.profiled import pseudo_inverse
from flower_fedcon.tables.families.base import RESIDUAL
from flower_fedcon.tables.opposite_effects import COLUMNS, SiteSums, spread_of, turned_by_sums
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.statistics.site_sums import NUMBERS, unpacked
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_SQUARES, _CLUSTERS = NUMBERS.index("deviance"), NUMBERS.index("clusters")
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
    sums, known = [], []
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
        if ordered:
            share = by_outcome / by_outcome.sum()
            places = np.arange(len(share))
            middle, spread = float(places @ share / places[-1]), spread_of(share)[1]
        else:  # numbers: of the variance of ranks
            squares = answer["numbers"][_SQUARES] - own + x[:p] @ (from_x + score)
            if not part * squares > 0:
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
    return turned_by_sums(known, sums, levels, EVIDENCE)
