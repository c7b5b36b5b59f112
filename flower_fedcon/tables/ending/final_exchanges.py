"""The exchanges after a run's last round, in their order; none of them changes a state."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.runs.history import Record
from flower_fedcon.tables.checks.opposite_effects import CODED
from flower_fedcon.tables.checks.unlike_relations import PREDICTED
from flower_fedcon.tables.ending.coefficients import estimates_of
from flower_fedcon.tables.ending.convergence import Convergence, convergence
from flower_fedcon.tables.ending.final_baseline import (
    CommonFit,
    final_baseline,
    has_common_baseline,
)
from flower_fedcon.tables.ending.final_hazards import Hazards, common_hazards, final_hazards
from flower_fedcon.tables.ending.final_heterogeneity import final_heterogeneity
from flower_fedcon.tables.ending.final_intercepts import final_intercepts, has_random
from flower_fedcon.tables.ending.final_odds import Odds, final_odds
from flower_fedcon.tables.ending.final_quality import final_quality
from flower_fedcon.tables.quality import Quality
from flower_fedcon.tables.statistics import Estimates, Heterogeneity, RandomFit
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr.strategies")


@dataclass(frozen=True)
class FinalAnswers:
    """A run's model, and what clients have reported about it.

    Attributes
    ----------
    x : array
        The packed model; with random intercepts, or one baseline hazard for all sites, it is not
        that of the rounds.
    record : dict
        The last row of the history, with this model's metrics on held-out rows.
    reached : Convergence, optional
        Whether the rounds have converged.
    estimates : Estimates or str, optional
        Estimates with errors; or why there are none.
    quality : Quality, optional
    heterogeneity : Heterogeneity or str, optional
    hazards : Hazards, optional
    odds : Odds, optional
    random : RandomFit, optional
        The fit of random intercepts; its estimates are `estimates`.
    common : CommonFit, optional
        The fit with one baseline hazard for all sites.
    remarks : tuple of str
        What the sums for standard errors say of outcomes that are turned round, unless rows have
        said so before round 1.
    """

    x: Array
    record: Record
    reached: Convergence | None = None
    estimates: Estimates | str | None = None
    quality: Quality | None = None
    heterogeneity: Heterogeneity | str | None = None
    hazards: Hazards | None = None
    odds: Odds | None = None
    random: RandomFit | None = None
    common: CommonFit | None = None
    remarks: tuple[str, ...] = ()


def final_exchanges(
    server: Server,
    engine: Engine,
    start: Array,
    record: Record,
    *,
    inference: str | None,
    alone: bool,
    covered: bool,
) -> FinalAnswers:
    """Ask the clients for everything that a run on tables reports about its model.

    Parameters
    ----------
    server : Server
        The server after the last round.
    engine : Engine
    start : array
        The model before round 1.
    record : dict
        The last row of the history.
    inference : str, optional
        The method for standard errors.
    alone : bool
        Whether clients are asked for fits of their own rows.
    covered : bool
        Whether noise covers what the run releases; nothing further is then asked for.
    """
    prepared, x = server.setup.preparation, server.x
    assert prepared is not None  # noqa: S101  (of a run on tables)
    reached = None
    # It needs clients' gradients: a private run has only noisy ones, which show little.
    if not covered and not engine.ledgers():
        reached = convergence(server, engine, start, record)
    estimates: Estimates | str | None = None
    random: RandomFit | None = None
    common: CommonFit | None = None
    remarks: list[str] = []
    if has_random(server.setup):
        fit = final_intercepts(server, engine, reached)
        if isinstance(fit, str):
            estimates = fit
        else:
            x, random = fit
            estimates = random.estimates
            if prepared.held_out:
                record = _with_metrics(record, engine.evaluate(x), prepared.held_out)
    elif has_common_baseline(prepared):
        found = final_baseline(server, engine)
        if isinstance(found, str):
            estimates = found
        else:
            common, x, reached = found, found.x, found.reached
            if prepared.held_out:
                record = _with_metrics(record, engine.evaluate(x), prepared.held_out)
            if inference is not None:
                estimates = estimates_of(server, engine, inference, reached, common)
    elif inference is not None:
        estimates = estimates_of(server, engine, inference, reached, remarks=remarks)
    if isinstance(estimates, str):
        _log.warning("%s", estimates)
    if any(words in line for line in prepared.remarks for words in (CODED, PREDICTED)):
        remarks = []
    for line in remarks:
        _log.warning("tables: %s", line)
    between: Heterogeneity | str | None = None
    if isinstance(estimates, Estimates) and alone:
        between = final_heterogeneity(server, engine, estimates)
    quality, hazards = final_quality(server, engine, x), None
    if common is not None:
        hazards = common_hazards(server, common, tested=isinstance(estimates, Estimates))
    elif isinstance(estimates, Estimates) and prepared.family.compares:
        curves = prepared.curves
        hazards = final_hazards(server, engine, np.empty(0) if curves is None else curves.times)
    odds = None
    if isinstance(estimates, Estimates) and prepared.family.ordered:
        odds = final_odds(server, engine)
    return FinalAnswers(x, record, reached, estimates, quality, between, hazards, odds, random,
                        common, tuple(remarks))  # fmt: skip


def _with_metrics(record: Record, other: Record, names: tuple[str, ...]) -> Record:
    """Return a record with the metrics on held-out rows of another one."""

    def is_metric(key: str) -> bool:
        return key.partition("/")[0] in names

    kept = {key: value for key, value in record.items() if not is_metric(key)}
    return kept | {key: value for key, value in other.items() if is_metric(key)}
