"""Cox regression: times to events, by rows compared with each other at one site."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.objectives.survival import CoxRegression
from flower_fedcon.tables.families.base import Cells, Family, Stated
from flower_fedcon.tables.families.link_functions import LOG_HAZARD
from flower_fedcon.tables.pairs import concordance, concordant
from flower_fedcon.validation import Array


class Cox(Family):
    """Cox regression, of targets (time, event)."""

    name = "cox"
    title = "Cox regression"
    of = CoxRegression
    link = LOG_HAZARD
    rank = 7
    ratio = "hazard ratio"
    needs = "event"
    compares = True
    separable = True
    bounded_slopes = True
    weighs_rows = False
    metrics = ("concordance",)
    no_quality = "a Cox model has only the concordance, since its baseline hazards stay at sites"

    def read(self, cells: Cells, stated: Stated) -> Array:
        """Return times and events; with an entry or strata, both of these, too."""
        time = cells.numbers_in(stated.target, "a time")
        remedy = (
            "correct it, or name in the schema the value without an event and the one with it, "
            "such as event_values = [1, 2]"
        )
        numbers = dict(zip(stated.event_values, (0.0, 1.0), strict=True))
        columns = [time, cells.labels(stated.event, numbers, remedy)]
        if stated.entry or stated.strata:
            early = np.full(len(time), -np.inf)
            columns.append(cells.entries(stated.entry, time) if stated.entry else early)
            columns.append(cells.strata(stated.strata) if stated.strata else np.zeros(len(time)))
        return np.stack(columns, axis=1)

    def outcomes(self, stated: Stated) -> list[str]:
        """Return the rows with an event, in words."""
        return [f"an event in column {stated.event!r} (of value {stated.event_values[1]})"]

    def marks(self, stated: Stated) -> list[str]:
        """Return the name of these rows."""
        return ["event"]

    def cells(self, y: Array, stated: Stated) -> dict[str, list[Any]]:
        """Return time and event, and any time of entry."""
        entry = {"entry": y[:, 2].tolist()} if stated.entry else {}
        return {**entry, "time": y[:, 0].tolist(), "event": y[:, 1].astype(int).tolist()}

    def limits(self, stated: Stated) -> tuple[Array, list[str]]:
        """Return the limit between rows without and with an event."""
        return np.array([0.5]), ["censored", "event"]

    def loss(self, A: Any, y: Array, stated: Stated, **options: Any) -> Any:
        """Return the objective, which has no intercept."""
        del options["intercept"]
        if stated.entry:
            options["entry"] = y[:, 2]
        if stated.strata:
            options["strata"] = y[:, 3]
        return CoxRegression(A, y[:, 0], y[:, 1], ties=stated.ties, **options)

    def rows_told(self, y: Array) -> list[Array]:
        """Return the rows with an event."""
        return [y[:, 1] != 0]

    def pairs(self, scores: Array, y: Array) -> dict[str, tuple[float, float]]:
        """Return the concordance, within strata."""
        if y.shape[1] == 2:
            return {"concordance": concordance(scores, y[:, 0], y[:, 1])}
        time, event, entry, stratum = y.T
        total, pairs = concordant(stratum, scores, time, event, None, entry)
        return {"concordance": (total / pairs if pairs else 0.0, pairs)}

    def means(self, scores: Array, y: Array, x: Array) -> dict[str, Array]:
        """Return nothing: no row has a part of its own."""
        return {}


FAMILY = Cox()
