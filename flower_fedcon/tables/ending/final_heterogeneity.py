"""The exchanges in which sites report fits of their own rows, and the table of these."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.errors import FedConError, first_few, number_of
from flower_fedcon.runs.final_sums import asked
from flower_fedcon.runs.paper_tables import p_equals
from flower_fedcon.tables.descriptives import Descriptives
from flower_fedcon.tables.own_files import HETEROGENEITY as HEADER
from flower_fedcon.tables.statistics import Estimates, Heterogeneity, found_by_sites
from flower_fedcon.wire.payloads import Payload

HETEROGENEITY = "heterogeneity.csv"
_FEW, _SHOWN = 15, 5  # fewer than 15 columns have a line each; of more, the 5 that differ most


def final_heterogeneity(server: Server, engine: Engine, pooled: Estimates) -> Heterogeneity | str:
    """Return whether effects differ between sites; or why that is not known.

    This is not part of a round: no state changes. A site that does not answer, or whose policy does
    not allow the phase "alone", is named.

    Parameters
    ----------
    server : Server
    engine : Engine
    pooled : Estimates
        The run's estimates, in the columns' own units.
    """
    prepared, names = server.setup.preparation, server.setup.names
    assert prepared is not None  # noqa: S101  (of a run on tables)

    def ask(statistic: str, shapes: Any, **more: Any) -> tuple[dict[str, Payload], dict[str, str]]:
        told, faults = asked(server, engine, statistic, shapes, **more)
        return (
            {names[client]: told[client] for client in sorted(told)},
            {names[client]: faults[client] for client in sorted(faults)},
        )

    x = np.asarray(server.x, dtype=np.float64)
    try:
        units = prepared.in_units(np.eye(len(x)))
        return found_by_sites(ask, pooled, x, units, _lacking(prepared.described))
    except FedConError as error:  # it must not end a finished run
        return f"heterogeneity is not known: {error}"


def _lacking(described: Descriptives | None) -> dict[str, str]:
    """Return the categories that a site has no row of, in words, for each such site."""
    if described is None:
        return {}
    reasons = {}
    occurs = np.nansum(described.counts, axis=0) > 0
    for site, counts in zip(described.clients, described.counts, strict=True):
        absent = [
            f"{described.levels[j][0]}={described.levels[j][1]}"
            for j in np.flatnonzero(occurs & (counts == 0)).tolist()
        ]
        if absent:
            reasons[site] = f"no row has {first_few(absent)}"
    return reasons


def lines_of(found: Heterogeneity, cluster: str = "") -> list[str]:
    """Return a report's lines on it: the columns that differ most, and sites left out.

    Parameters
    ----------
    found : Heterogeneity
    cluster : str
        The column of clusters, which sites' own errors ignore.
    """
    few = len(found.names) < _FEW
    which = (
        ""
        if few
        else (f"; shown are the {_SHOWN} columns that differ most, {HETEROGENEITY} has all")
    )
    lines = [
        f"heterogeneity between {len(found.sites)} sites, always by the model's errors of "
        f"each{which}:"
    ]
    if cluster:
        lines.append(
            f"  these errors take rows of one {cluster!r} as independent: if they are alike, Q, "
            f"chi2, I^2 and tau^2 are too large, and p too small"
        )
    order = np.argsort(found.pvalues, kind="stable")[: None if few else _SHOWN].tolist()
    for k in order:
        said = (
            f"  {found.names[k]}: Q {found.q[k]:.4g} with {number_of(found.dfs[k], 'degree')} of "
            f"freedom, {p_equals(found.pvalues[k])}, I^2 {100 * found.i2[k]:.0f} %, tau^2 "
            f"{found.tau2[k]:.3g}; fixed effect {found.fixed[k]:.4g}, random effects "
            f"{found.random[k]:.4g}"
        )
        if not math.isnan(found.ratio[k]):
            said += (
                f"; one effect against one for each site: chi2 {found.ratio[k]:.4g} with "
                f"{found.ratio_df[k]:.0f}, {p_equals(found.ratio_pvalues[k])}"
            )
        lines.append(said)
    for name, known in zip(found.names, np.isfinite(found.values).T, strict=True):
        if absent := [found.sites[j] for j in np.flatnonzero(~known).tolist()]:
            lines.append(f"  {name}: rows of {first_few(absent)} alone tell nothing of it")
    for site, why in found.left_out.items():
        lines.append(f"not fitted alone: {first_few([site])}: {why}")
    return lines


def table_of(found: Heterogeneity, pooled: Estimates) -> str:
    """Return the table as text of CSV: a line for each parameter, and two columns for each site."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    each = [name for site in found.sites for name in (site, f"{site} std_error")]
    writer.writerow([*HEADER, *each])
    parts = [
        pooled.values, pooled.bse, found.fixed, found.fixed_bse, found.random, found.random_bse,
        found.q, found.dfs.astype(float), found.pvalues, found.i2, found.tau2,
        found.ratio, found.ratio_df, found.ratio_pvalues,
        *(column for pair in zip(found.values, found.bse, strict=True) for column in pair),
    ]  # fmt: skip
    for name, *row in zip(found.names, *(part.tolist() for part in parts), strict=True):
        writer.writerow([name, *("" if math.isnan(v) else repr(v) for v in row)])
    return out.getvalue()
