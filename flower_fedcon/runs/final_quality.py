"""The exchanges after a run in which sites tell how good its model is on the rows they hold out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.evaluation import LARGEST
from flower_fedcon.core.protocol import STATISTICS, Reply
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, FedConError, printable
from flower_fedcon.tables.quality import CALIBRATION, Quality, shapes_of, why_absent
from flower_fedcon.tables.statistics.site_sums import ASKS
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload, payload_bytes


def final_quality(server: Server, engine: Engine) -> Quality | None:
    """Return how good the model is on rows held out; None where a run has no such rows.

    No part of a round: no state changes. A site that does not answer is named; the others are
    those whose rows are pooled.
    """
    preparation = server.setup.preparation
    if preparation is None or not preparation.held_out:
        return None
    loss = preparation.loss
    why = why_absent(loss, preparation.held_out)
    if not why and server.strategy.privacy is not None:
        why = "no noise covers sums over rows held out, and the run is private"
    if why:
        return Quality(loss, {}, {}, absent={"all": why})
    names, asking = server.setup.names, _Asking(server, engine)
    told = asking.answers("quality", shapes_of(loss), server.everyone)
    answering = sorted(told)

    def calibration(at: Array) -> Array | None:
        shapes: dict[str, tuple[int, ...]] = {"calibration": (CALIBRATION,)}
        found = asking.answers("calibration", shapes, answering, at=at)
        if len(found) < len(answering):
            return None
        total: Array = np.sum([found[client]["calibration"] for client in answering], axis=0)
        return total

    absent = {names[client]: fault for client, fault in sorted(asking.faults.items())}
    return Quality.of(loss, {names[c]: told[c] for c in answering}, calibration, absent)


@dataclass
class _Asking:
    """Who has answered what, and why others have not."""

    server: Server
    engine: Engine
    faults: dict[int, str] = field(default_factory=dict)

    def answers(
        self,
        statistic: str,
        shapes: Mapping[str, tuple[int, ...]],
        clients: Sequence[int],
        **more: Array,
    ) -> dict[int, Payload]:
        """Return the answers of those that give one, by client."""
        server, found = self.server, dict[int, Payload]()
        down: Payload = {"x": server.x, f"{ASKS}{statistic}": 1.0, **more}
        request = server.question(STATISTICS, down, clients)
        server.audit.asked(request)
        server.count_bytes(down=len(clients) * payload_bytes(down))
        faults = dict.fromkeys(clients, "no answer")
        for reply in self.engine.answer(request):
            for one in reply.single() if reply.payload else [reply]:
                (client,) = one.clients
                try:
                    server.gate.check_round(one, server.round)
                    answer = _admitted(one, shapes)
                except FedConError as error:
                    faults[client] = printable(str(error))
                    if one.silent:
                        server.audit.silent([client], faults[client])
                    else:
                        server.audit.dropped(client, faults[client])
                    continue
                if client in clients:
                    server.audit.used(one)
                    server.count_bytes(up=payload_bytes(answer))
                    found[client] = answer
        self.faults |= {c: why for c, why in faults.items() if c in clients and c not in found}
        return found


def _admitted(reply: Reply, shapes: Mapping[str, tuple[int, ...]]) -> Payload:
    """Return an answer that can be used.

    Raises
    ------
    ConfigError
    """
    answer = {name: np.asarray(value) for name, (value,) in reply.payload.items()}
    if answer.keys() != shapes.keys():
        raise ConfigError(f"it holds {sorted(answer)}, expected {sorted(shapes)}")
    for name, shape in shapes.items():
        value = answer[name]
        if (
            value.dtype != np.float64
            or value.shape != shape
            or not (np.abs(value) <= LARGEST).all()
        ):
            raise ConfigError(f"{name!r} holds numbers that cannot be used")
        if name == "counts" and not _is_counts(value):
            raise ConfigError(f"{name!r} are no counts in bins")
    return dict(answer)


def _is_counts(value: Array) -> bool:
    """Return whether these can be the counts of bins: whole numbers, and where each begins."""
    whole = value[[0, 1, 3]]
    in_order = value[3] <= np.arange(value.shape[1])
    return bool((value >= 0).all() and (whole == np.floor(whole)).all() and in_order.all())
