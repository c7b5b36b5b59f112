"""All that is asked after a run's last round, in its order: no part of it changes a state."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.runs.coefficients import estimates_of
from flower_fedcon.runs.convergence import Convergence, convergence
from flower_fedcon.runs.final_hazards import Hazards, final_hazards
from flower_fedcon.runs.final_heterogeneity import final_heterogeneity
from flower_fedcon.runs.final_intercepts import final_intercepts, has_random
from flower_fedcon.runs.final_quality import final_quality
from flower_fedcon.runs.history import Record
from flower_fedcon.tables.quality import Quality
from flower_fedcon.tables.statistics import Estimates, Heterogeneity, RandomFit
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr.strategies")


@dataclass(frozen=True)
class Ending:
    """A run's model, and what its clients have told of it.

    Attributes
    ----------
    x : array
        Packed; with random intercepts it is not that of the rounds.
    record : dict
        The last row of the history; metrics on rows held out are of this model.
    reached : Convergence, optional
        Whether the rounds have ended where they should.
    estimates : Estimates or str, optional
        With errors; or why there are none.
    quality : Quality, optional
    heterogeneity : Heterogeneity or str, optional
    hazards : Hazards, optional
    random : RandomFit, optional
        Of intercepts that are random; its estimates are `estimates`.
    """

    x: Array
    record: Record
    reached: Convergence | None = None
    estimates: Estimates | str | None = None
    quality: Quality | None = None
    heterogeneity: Heterogeneity | str | None = None
    hazards: Hazards | None = None
    random: RandomFit | None = None


def final_exchanges(
    server: Server,
    engine: Engine,
    start: Array,
    record: Record,
    *,
    inference: str | None,
    alone: bool,
    covered: bool,
) -> Ending:
    """Ask the clients what a run on tables is to say of its model.

    Parameters
    ----------
    server : Server
        After the last round.
    engine : Engine
    start : array
        Where round 1 began.
    record : dict
        The last row of the history.
    inference : str, optional
        The method of errors.
    alone : bool
        Whether clients are asked for what each finds alone.
    covered : bool
        Whether noise covers what the run releases, so that nothing else is asked for.
    """
    prepared, x = server.setup.preparation, server.x
    assert prepared is not None  # noqa: S101  (of a run on tables)
    reached = None
    # Of clients' gradients: none without noise in a private run, and noisy ones say little.
    if not covered and not engine.ledgers():
        reached = convergence(server, engine, start, record)
    found: Estimates | str | None = None
    random: RandomFit | None = None
    if has_random(server.setup):
        fit = final_intercepts(server, engine, reached)
        if isinstance(fit, str):
            found = fit
        else:
            x, random = fit
            found = random.estimates
            if prepared.held_out:
                record = _with_metrics(record, engine.evaluate(x), prepared.held_out)
    elif inference is not None:
        found = estimates_of(server, engine, inference, reached)
    if isinstance(found, str):
        _log.warning("%s", found)
    between: Heterogeneity | str | None = None
    if isinstance(found, Estimates) and alone:
        between = final_heterogeneity(server, engine, found)
    quality, hazards = final_quality(server, engine, x), None
    if isinstance(found, Estimates) and prepared.loss == "cox":
        known = prepared.curves
        hazards = final_hazards(server, engine, np.empty(0) if known is None else known.times)
    return Ending(x, record, reached, found, quality, between, hazards, random)


def _with_metrics(record: Record, other: Record, names: tuple[str, ...]) -> Record:
    """Return a record with another's metrics on rows held out, of all clients and of each."""

    def is_metric(key: str) -> bool:
        return key.partition("/")[0] in names

    kept = {key: value for key, value in record.items() if not is_metric(key)}
    return kept | {key: value for key, value in other.items() if is_metric(key)}
