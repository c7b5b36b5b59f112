"""All questions about rows beside the other clients' rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flower_fedcon.tables.checks.calendar_ends import calendar_ends
from flower_fedcon.tables.checks.doubled_rows import doubled_rows
from flower_fedcon.tables.checks.empty_pairs import empty_pairs
from flower_fedcon.tables.checks.equal_means import equal_means
from flower_fedcon.tables.checks.first_rows import first_rows
from flower_fedcon.tables.checks.follows_from import follows_from
from flower_fedcon.tables.checks.frequent_row import frequent_row
from flower_fedcon.tables.checks.in_order import in_order
from flower_fedcon.tables.checks.intervals import unlike_intervals
from flower_fedcon.tables.checks.least_counts import least_counts
from flower_fedcon.tables.checks.multiples import multiples
from flower_fedcon.tables.checks.near_copies import near_copies
from flower_fedcon.tables.checks.noisy_copies import noisy_copies
from flower_fedcon.tables.checks.odd_clusters import odd_clusters
from flower_fedcon.tables.checks.on_a_line import on_a_line
from flower_fedcon.tables.checks.outcomes_left_out import outcomes_left_out
from flower_fedcon.tables.checks.repeated_rows import same_rows
from flower_fedcon.tables.checks.row_by_row import row_by_row
from flower_fedcon.tables.checks.spans import unlike_spans
from flower_fedcon.tables.checks.split_outcomes import split_outcomes
from flower_fedcon.tables.checks.turned_within import turned_within
from flower_fedcon.tables.checks.unlike_outcomes import by_default, empty_cells
from flower_fedcon.tables.checks.unlike_values import unlike_values
from flower_fedcon.tables.checks.unlike_weights import unlike_weights
from flower_fedcon.tables.checks.within_clusters import within_clusters
from flower_fedcon.tables.site_rows import SiteRows


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
        turned_within,
        unlike_intervals,
        doubled_rows,
        frequent_row,
        outcomes_left_out,
        same_rows,
        empty_cells,
        by_default,
        split_outcomes,
        in_order,
        row_by_row,
        unlike_weights,
        on_a_line,
        unlike_spans,
        multiples,
        calendar_ends,
        equal_means,
        first_rows,
        follows_from,
        empty_pairs,
        least_counts,
    ):
        yield from (
            line for line in check(names, tables) if line.partition(" lie apart ")[0] not in known
        )
