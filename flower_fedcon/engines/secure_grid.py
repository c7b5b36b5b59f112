"""Clients on a Flower grid with secure aggregation: a round's answer is one sum."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Message

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.estimated import unweighted
from flower_fedcon.core.exchange import OF_ROUNDS, exchange_of
from flower_fedcon.core.method import Method
from flower_fedcon.core.participation import Bernoulli
from flower_fedcon.core.protocol import TRAIN, Reply, Request
from flower_fedcon.core.summed import Summed
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.errors import ConfigError, FedConError, ParticipationError
from flower_fedcon.flower import secagg
from flower_fedcon.flower.incoming import Fault
from flower_fedcon.privacy.gaussian import GaussianDP
from flower_fedcon.privacy.secure_aggregation import FEWEST, SecAggPlus
from flower_fedcon.privacy.shares import NoiseShares
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_log = logging.getLogger("flwr")


class SecureGridEngine(GridEngine):
    """Clients on nodes; the server sees only the sum of a round's uploads.

    A round runs the protocol, and repeats it without nodes that have gone offline, until all nodes
    that it asks take part. It ends with a sum of enough uploads, or without one, and is then
    repeated as a whole. Exactly the clients whose uploads are in the sum are acknowledged.

    Parameters
    ----------
    secure : SecAggPlus
    options
        As for `GridEngine`.

    Raises
    ------
    ParticipationError
        If the run does not wait for its clients.
    """

    def __init__(self, secure: SecAggPlus, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self._secure = secure
        if isinstance(rule := self._strategy.participation, Buffered):
            raise ParticipationError(
                f"secure aggregation takes no {rule!r}: its sum needs a cohort that answers "
                f"together. Use Full() or Sample(...)"
            )

    why_no_gradients = "secure aggregation hides each client's gradient: give the settings"

    def check(
        self, strategy: Method[Any], *, certificates: bool, inference: str | None = None
    ) -> None:
        """Refuse settings that need single uploads, and log the effect of rounding.

        Raises
        ------
        ConfigError
        """
        setup, title = strategy.setup, strategy.title
        reason = strategy.why_single()
        if strategy.queries:
            reason = "it queries its clients before the step, and sees each answer"
        if strategy.inclusion is not None:
            plain = unweighted(strategy.participation)
            reason = f"means weigh each by how often its client takes part: give {plain}"
        if strategy.aggregation is not None:
            reason = f"aggregation={strategy.aggregation!r} compares them: leave it out"
        if strategy.privacy is not None and not strategy.privacy.by_clients:
            reason = (
                "its server clips each upload, and adds the noise: let the clients do both, "
                'GaussianDP(noise_by="clients"), or give nodes ExampleDP'
            )
        if strategy.compression is not None:
            reason = f"compression={strategy.compression!r} is each client's own: leave it out"
        if strategy.norm_bound is not None:
            reason = "norm_bound measures each: leave it out, clipping_range bounds their entries"
        if certificates:
            reason = "certificates use each client's gradient: leave certificates out"
        if reason:
            raise ConfigError(
                f"secure_aggregation hides each upload of {title} from the server: {reason}"
            )
        if inference is not None:
            preparation = setup.preparation
            asked = f"inference={inference!r}"
            what = asked if preparation is None else preparation.asked_at_the_end(inference)
            raise ConfigError(
                f"{what} cannot be used with secure_aggregation, since each client's sums of "
                f"scores and second derivatives after the last round are not masked: leave one of "
                f"the two out"
            )
        if setup.any_own_loop:
            raise ConfigError(
                "secure_aggregation is for nodes with an objective (client_app): your own train "
                "loops also send buffers and metrics, which cannot be summed"
            )
        if setup.sampled and isinstance(strategy.participation, Bernoulli):
            raise ConfigError(
                f"secure_aggregation needs at least {FEWEST} clients in every round, got "
                f"{strategy.participation!r}: use Sample(count=...) or Full()"
            )
        size = round(setup.rate * setup.num_clients) if setup.sampled else setup.num_clients
        if size < FEWEST:
            raise ConfigError(
                f"secure_aggregation needs at least {FEWEST} clients in a round, got {size}, since "
                f"in a sum of two each knows the other's upload"
            )
        if self._secure.threshold(size) > size:
            raise ConfigError(
                f"reconstruction_threshold must be at most {size}, the clients of a round, got "
                f"{self._secure.threshold(size)}"
            )
        self._bound, self._size = strategy, size
        if strategy.privacy is not None:
            self._check_shares(strategy.privacy)
            return
        steps = {name: self._secure.step(name, size) for name in strategy.uplink}
        _log.info(
            "Secure aggregation of %d clients: an entry of a round's mean is off by less than %s",
            size,
            ", ".join(f"{step:.1e} ({name})" for name, step in steps.items()),
        )

    def _check_shares(self, rule: GaussianDP) -> None:
        """Refuse settings that contradict noise by clients, and log the amount of noise.

        If all share keys with all, the threshold is set so that no sum of fewer can be unmasked.
        """
        secure, size, fewest = self._secure, self._size, rule.suffice(self._size)
        for name in ("clipping_range", "quantization_range"):
            if (given := getattr(secure, name)) is not None:
                raise ConfigError(
                    f"{name}={given!r} beside GaussianDP(noise_by='clients'), whose clip and noise "
                    f"say what is summed: leave {name} out, SecAggPlus()"
                )
        if secure.reconstruction_threshold is None and secure.shares(size) == size:
            least = max(secure.threshold(size), rule.least(size))
            self._secure = secure = replace(secure, reconstruction_threshold=least)
        elif secure.reconstruction_threshold is not None and secure.threshold(size) <= fewest:
            raise ConfigError(
                f"reconstruction_threshold={secure.threshold(size)} lets a server unmask a sum "
                f"with too little noise: give at least {fewest + 1}, one more than fewest"
            )
        _log.info(
            "Secure aggregation of %d clients, each of which adds noise: that of %d suffices for "
            "z = %g, and with fewer than %d the round is void",
            size, fewest, rule.noise_multiplier, rule.least(size),
        )  # fmt: skip

    def messages(self, request: Request) -> list[Message]:
        """Refuse: a sum takes several exchanges.

        Raises
        ------
        FedConError
        """
        raise FedConError(
            "with secure_aggregation a round has four exchanges: call strategy.start, which runs "
            "them, instead of configure_train and aggregate_train"
        )

    def _exchange(
        self, request: Request, online: Mapping[str, int], silent: dict[int, str]
    ) -> list[tuple[int, Reply | Fault]]:
        """Return one reply for all clients in the sum, and the results of the others."""
        if request.phase not in OF_ROUNDS:
            exchange = exchange_of(request.phase, request.broadcast)
            if not exchange.beside_sums:
                raise ConfigError(
                    f"secure_aggregation hides each upload from the server, and answers to "
                    f"{exchange.name!r} are not masked: leave out what asks for them"
                )
        if request.phase != TRAIN:  # the preparation of tables takes each node's own sums
            return super()._exchange(request, online, silent)
        asks = self._asks(request, online, silent)
        shapes = {name: self._shape(name) for name in request.names}
        size = sum(math.prod(shape) for shape in shapes.values())
        results: list[tuple[int, Reply | Fault]] = []
        while True:
            least = max(request.wanted, FEWEST, self._secure.threshold(max(len(asks), 1)))
            if len(asks) < least:
                return results + self._void(
                    asks, f"a sum needs {least} clients, and {len(asks)} are left"
                )
            asked = json.dumps(self._asked_for(shapes, len(asks)))
            for _, config in asks.values():
                config["sum"] = asked
            outcome = secagg.attempt(
                self._post, self._secure, asks, size, least, self._waiting(request)
            )
            results += [(self._asked[node], fault) for node, fault in outcome.faults.items()]
            asks = {node: ask for node, ask in asks.items() if node not in outcome.faults}
            if outcome.mean is not None:
                return [*results, self._summed(request, outcome, shapes, len(asks))]
            if not (outcome.again and outcome.faults):
                return results + self._void(asks, outcome.reason)

    def _asked_for(self, shapes: Iterable[str], asked: int) -> dict[str, Any]:
        """Return how this number of nodes makes one vector of these uploads."""
        about = {n: c for n, c in self._bound.release.about.items() if n in shapes}
        rule = self._bound.privacy
        if rule is None:
            return {"ranges": {n: self._secure.range_of(n) for n in shapes}, "about": about}
        noise = {
            "clip": rule.clip,
            "deviation": rule.noise(rule.clip, self._size),
            "fewest": rule.suffice(self._size),
        }
        return {"names": list(shapes), "about": about, "noise": noise}

    def _void(self, asks: Mapping[int, Any], reason: str) -> list[tuple[int, Reply | Fault]]:
        """Return replies that say that nothing from these nodes is used."""
        return [(self._asked[node], Fault(reason, silent=True)) for node in asks]

    def _summed(
        self,
        request: Request,
        outcome: secagg.Outcome,
        shapes: Mapping[str, tuple[int, ...]],
        asked: int,
    ) -> tuple[int, Reply]:
        """Return the joint reply of the clients in a sum, out of the number asked."""
        clients = sorted(self._asked[node] for node in outcome.nodes)
        n, about, rule = len(clients), self._bound.release.about, self._bound.privacy
        assert outcome.mean is not None  # noqa: S101  (the caller's case)
        whole = outcome.mean
        if rule is not None:
            whole = NoiseShares.of(rule, self._size, asked).total(outcome.mean, n)
        columns: Payload = {}
        done = 0
        for name, shape in shapes.items():
            entries = math.prod(shape)
            total: Array = whole[done : done + entries].reshape(shape)
            done += entries
            if rule is None:
                total = n * self._secure.range_of(name) * total
            if name in about:
                total += n * np.asarray(request.broadcast[about[name]], np.float64)
            if name not in self._bound.numbers:
                total = total.astype(self._run.layout.array_dtype)
            columns[name] = Summed(name, total, n, outcome.sent // (n * len(shapes)))
        return clients[0], Reply(clients, request.round, columns)

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an upload; () for a number."""
        return (
            () if name in self._bound.numbers else self._bound.upload_shape(name, self._run.layout)
        )
