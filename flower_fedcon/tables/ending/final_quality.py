"""The exchanges after a run in which sites evaluate its model on their held-out rows."""

from __future__ import annotations

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.runs.final_sums import asked, is_refusal
from flower_fedcon.tables.families import family_of
from flower_fedcon.tables.noisy_quality import SHAPES
from flower_fedcon.tables.quality import CALIBRATION, Quality, shapes_of, why_absent
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


def final_quality(server: Server, engine: Engine, x: Array) -> Quality | None:
    """Return a model's quality on held-out rows; None if a run has no such rows.

    This is not part of a round: no state changes. A site that does not answer is named, and the
    others' rows are pooled.
    """
    preparation = server.setup.preparation
    if preparation is None or not preparation.held_out:
        return None
    loss = preparation.loss
    why = why_absent(loss, preparation.held_out)
    if not why and server.strategy.privacy is not None:
        why = "no noise protects sums over held-out rows, and the run is private"
    if why:
        return Quality(loss, {}, {}, absent={"all": why})
    names = server.setup.names
    told, faults = asked(server, engine, "quality", shapes_of(loss), None, x)
    for client in [c for c, sums in told.items() if not _usable(sums)]:
        del told[client]
        faults[client] = "its counts cannot be used"
    answering, noisy = sorted(told), dict[int, Payload]()
    refusing = sorted(client for client, why in faults.items() if is_refusal(why))
    if refusing and family_of(loss).binary:  # sites with private rows send noisy counts
        noisy, still = asked(server, engine, "noisy_quality", SHAPES, refusing, x)
        faults = {c: why for c, why in faults.items() if c not in noisy} | still

    def calibration(at: Array) -> Array | None:
        shapes: dict[str, tuple[int, ...]] = {"calibration": (CALIBRATION,)}
        answers, lost = asked(server, engine, "calibration", shapes, answering, x, at=at)
        if lost:
            return None
        total: Array = np.sum([answers[client]["calibration"] for client in answering], axis=0)
        return total

    absent = {names[client]: faults[client] for client in sorted(faults)}
    return Quality.of(
        loss,
        {names[c]: told[c] for c in answering},
        calibration,
        absent,
        {names[c]: noisy[c] for c in sorted(noisy)},
        family_of(loss).parameter(np.asarray(x)),
    )


def _usable(told: Payload) -> bool:
    """Return whether these can be counts of bins: whole numbers, and valid bin edges."""
    if "counts" not in told:
        return True
    value: Array = told["counts"]
    whole = value[[0, 1, 3]]
    in_order = value[3] <= np.arange(value.shape[1])
    return bool((value >= 0).all() and (whole == np.floor(whole)).all() and in_order.all())
