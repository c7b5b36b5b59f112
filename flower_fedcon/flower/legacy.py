"""Strategies for deployments whose `server_fn` still returns `ServerAppComponents`.

Only this file uses Flower's older interface (`flwr.server.strategy`, `flwr.common`), on which such
apps are built.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.evaluation import usable
from flower_fedcon.core.protocol import ClientInfo, Reply
from flower_fedcon.core.round import Round
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, FedConError, RoundError
from flower_fedcon.flower import codec, incoming
from flower_fedcon.flower.app_side import AppSide
from flower_fedcon.flower.forms import agree_on_start
from flower_fedcon.flower.incoming import Fault, Parts
from flower_fedcon.flower.nodes import natural
from flower_fedcon.flower.refusals import check_callers, check_shares
from flower_fedcon.layout import Model
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import Array, count

_log = logging.getLogger("flwr")
_VAIN = 3  # consecutive Flower rounds without any usable reply


def as_legacy_strategy(
    strategy: FedConStrategy[Any],
    *,
    num_clients: int | None = None,
    num_rounds: int | None = None,
    seed: int = 0,
    x0: Model | Mapping[str, Array] | None = None,
    timeout: float = 3600,
    on_round: Callable[[int, Model], None] | None = None,
    train_config: Mapping[str, Scalar] | None = None,
    evaluate_config: Mapping[str, Scalar] | None = None,
    buffers: Sequence[str] | None = None,
    weighting: str = "uniform",
) -> Strategy:
    """Return a strategy for `flwr.server.ServerAppComponents(strategy=...)`.

    The nodes run `flower_fedcon.client_app`, or `ClientApp(client_fn)` with one of
    `flower_fedcon.clients`. A round with too few usable replies changes nothing; the missing
    clients are asked again in the server's next round.

    A `NumPyClient` with its own train loop becomes a client by `train_step` over its `fit`, which
    then also takes the round's method. Its state is kept in its context::

        class Client(NumPyClient):
            def __init__(self, context): self.context = context

            @train_step  # of flower_fedcon.torch, or of flower_fedcon for loops on arrays
            def fit(self, parameters, config, method): ...

        app = ClientApp(lambda context: Client(context).to_client())

    Its `evaluate` does not change; the metrics of both are averaged, weighted by examples.

    Parameters
    ----------
    strategy : FedConStrategy
        A strategy that needs one exchange per round.
    num_clients : int, optional
        The number of clients to wait for before round 1; by default the nodes' "num-partitions".
    num_rounds : int, optional
        The same as in `ServerConfig`; needed if the steps depend on it.
    seed : int (default: 0)
    x0 : array, list of arrays or dict of arrays by name, optional
        The start; by default zeros, projected onto the strategy's constraint set. It is required
        for clients with their own train loop.
    timeout : float (default: 3600)
        Seconds to wait for the clients at the start.
    on_round : callable, optional
        Called with the number of completed rounds and the model after each.
    train_config, evaluate_config : dict, optional
        The `config` of such clients' `fit` and `evaluate`, to which "server-round" is added.
    buffers : sequence of str, optional
        As for `start`: arrays of the model that are not optimised, by name, or by number if x0 is a
        list.

    weighting : {"uniform", "examples"} (default: "uniform")
        As for `start`.

    Raises
    ------
    ConfigError
        If the strategy needs two exchanges per round, needs `num_rounds`, or does not wait for its
        clients (`Buffered`).

    Examples
    --------
    >>> from flower_fedcon.strategies import FedAvg
    >>> avg = FedAvg(client_lr=0.1, local_steps=1)
    >>> legacy = as_legacy_strategy(avg)
    """
    check_shares(strategy)
    if strategy.queries:
        raise ConfigError(
            f"{strategy.title} needs two exchanges a round, and ServerAppComponents has one: use "
            f"flower_fedcon.server_app"
        )
    if isinstance(strategy.participation, Buffered):
        raise ConfigError(
            f"ServerAppComponents waits for each round, and {strategy.participation!r} has none: "
            f"use flower_fedcon.server_app, or another rule of participation, such as Full()"
        )
    if strategy.uses_num_rounds and num_rounds is None:
        raise ConfigError(
            f"the steps of {strategy!r} depend on num_rounds: give num_rounds here, too"
        )
    if num_clients is not None:
        count("num_clients", num_clients)
    start: dict[str, Any] = {"num_rounds": num_rounds or 0, "seed": seed}
    start |= {"declared": buffers, "weighting": weighting}
    configs = dict(train_config or {}), dict(evaluate_config or {})
    return _Legacy(strategy, num_clients, x0, start, timeout, on_round, configs)


class _Legacy(Strategy):
    """One run of a strategy through Flower's older interface."""

    def __init__(
        self,
        strategy: FedConStrategy[Any],
        num_clients: int | None,
        x0: Model | Mapping[str, Array] | None,
        start: Mapping[str, Any],
        timeout: float,
        on_round: Callable[[int, Model], None] | None,
        configs: tuple[dict[str, Scalar], dict[str, Scalar]],
    ) -> None:
        self._strategy, self._num_clients = strategy, num_clients
        self._x0, self._start, self._timeout = x0, start, timeout  # for `agree_on_start`
        self._on_round, self._configs = on_round, configs
        self._names: dict[str, str] = {}
        self._round: Round | None = None
        self._vain = 0

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Wait for the clients, ask each for its description, and return the start."""
        check_callers()
        infos: dict[str, ClientInfo] = {}
        wanted = self._num_clients or 1
        deadline = time.monotonic() + self._timeout
        while len(infos) < wanted:  # nodes that are online may know of more
            client_manager.wait_for(wanted, timeout=max(1, int(deadline - time.monotonic())))
            newcomers, partitions = self._meet(client_manager)
            infos |= newcomers
            wanted = self._num_clients or max(wanted, partitions)
            if len(infos) < wanted:
                if time.monotonic() > deadline:
                    raise FedConError(
                        f"{len(infos)} of {wanted} clients are online after {self._timeout:g} s: "
                        "start the missing ones, or set num_clients"
                    )
                time.sleep(1.0)  # a node that has failed is asked again
        clients = sorted(infos.values(), key=lambda info: natural(info.name))
        form, setup, start, buffers, loops = agree_on_start(
            self._strategy, clients, self._x0, name="x0", **self._start
        )
        # An attempt is one of Flower's rounds; Flower counts them.
        self._server = Server(self._strategy, setup, start, max_retries=None)
        self._app: AppSide | None = None
        if form is not None and loops:
            self._app = AppSide(form, *self._configs)
            self._app.open(self._server, buffers)
        self._encoder = codec.RequestEncoder(self._server.info)
        self._index = {info.name: j for j, info in enumerate(clients)}
        return self._parameters()

    def _meet(self, client_manager: ClientManager) -> tuple[dict[str, ClientInfo], int]:
        """Ask new clients for their descriptions; return these and the number of clients."""
        infos: dict[str, ClientInfo] = {}
        most = 0
        config: dict[str, Scalar] = {"action": codec.DESCRIBE, "algorithm": self._strategy.name}
        everyone = client_manager.all()
        for cid, proxy in everyone.items():
            if cid in self._names:
                continue
            try:
                answer = proxy.fit(FitIns(Parameters([], "numpy.ndarray"), config), 60.0, 0)
            except Exception as error:  # this is how Flower reports a failed node
                _log.warning("node %s cannot take part: %s", cid, incoming.readable(repr(error)))
                continue
            description = incoming.description(_parts(answer), cid)
            if isinstance(description, Fault):
                _log.warning("node %s cannot take part: %s", cid, description.reason)
                continue
            name = description.info.name
            if any(self._names[other] == name for other in self._names.keys() & everyone.keys()):
                _log.warning("node %s cannot take part: client %s is on another node", cid, name)
                continue
            self._names[cid] = name
            infos[name] = description.info
            most = max(most, description.partitions or 0)
        return infos, most

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the requests of a round, or the remaining ones of an unfinished round."""
        self._meet(client_manager)
        if self._round is None:
            self._round = Round.begin(self._server)
        online = client_manager.all().items()
        proxies = {self._names[cid]: proxy for cid, proxy in online if cid in self._names}
        messages = []
        request = self._round.next_request()
        for place, client in enumerate(request.clients if request is not None else ()):
            name = self._server.setup.clients[client].name
            if request is not None and name in proxies:
                arrays, config = self._encoder.encode(request, place)
                parts = list(arrays.values())
                if self._app is not None:
                    parts, config = self._app.instruct(client, parts, config, request.round)
                ins = FitIns(ndarrays_to_parameters(parts), config)
                messages.append((proxies[name], ins))
        return messages

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Apply the round if it is complete."""
        if self._round is None:
            return None, {}
        self._round.take([self._reply(proxy, result) for proxy, result in results])
        if not self._round.is_complete():
            self._check_anybody(failures)
            _log.warning("round %d is not complete: asking again", self._server.round)
            return None, {}
        self._vain = 0
        self._round.finish()
        metrics: dict[str, Scalar] = {"replies": self._server.replies, **self._server.spent()}
        if self._app is not None:
            self._app.take_means(self._round.uploads().clients)
            metrics |= self._app.trained
        self._round = None
        if self._on_round is not None:
            x = self._server.setup.layout.unpack(self._server.x.copy())
            self._on_round(self._server.round, x)
        return self._parameters(), metrics

    def _check_anybody(self, failures: Sequence[Any]) -> None:
        """Raise if no client has answered at first, or three times in a row.

        Flower would continue its rounds without results, and report the run as finished.

        Raises
        ------
        RoundError
        """
        round_ = self._round
        if round_ is None or len(round_.missing()) < len(round_.cohort):
            return
        self._vain += 1
        if self._vain < _VAIN and self._server.acknowledgements.rounds.any():
            return
        missing = {j: why for j, why in round_.missing().items() if why != "no reply"}
        reasons = [*self._server.in_words(missing), *(incoming.readable(f) for f in failures)]
        raise RoundError(
            f"round {self._server.round}: no client has given a usable reply "
            f"({'; '.join(reasons[:3]) or 'none has answered'}): see the nodes' own logs"
        )

    def _reply(self, proxy: ClientProxy, result: FitRes) -> Reply:
        client = self._index.get(self._names.get(proxy.cid, ""), -1)
        parts, app = _parts(result), self._app
        heard = parts if app is None or client < 0 else (lambda: app.hear(client, parts()))
        most = self._server.strategy.most_entries(self._server.setup.layout)
        answer = incoming.reply(client, most, heard)
        if isinstance(answer, Reply):
            return answer
        fault = Reply([client], self._server.round, error=answer.reason, remote=True)
        fault.diverged = answer.diverged
        return fault

    def _parameters(self) -> Parameters:
        x = self._server.setup.layout.unpack(self._server.x)
        layers = x if isinstance(x, list) else [x]
        return ndarrays_to_parameters(
            layers if self._app is None else list(self._app.model(layers).values())
        )

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return evaluations of the current model for all clients that are online.

        Return none in a run with noise, which would not cover the losses.
        """
        setup, privacy = self._server.setup, self._strategy.privacy
        if privacy is not None and privacy.noise_multiplier:
            return []
        config: dict[str, Scalar] = {
            "layout": setup.layout.to_json(),
            "algorithm": self._strategy.name,
            "client": 0,
        }
        if self._app is not None:
            config = self._app.evaluate_config()
        everyone = client_manager.all().values()
        return [(proxy, EvaluateIns(self._parameters(), config)) for proxy in everyone]

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Return F(x), with psi, if every client has evaluated; or the mean of app losses."""
        if self._app is not None:
            record = self._app.record(
                [
                    (self._index[name], partial(_measured, result))
                    for proxy, result in results
                    if (name := self._names.get(proxy.cid)) in self._index
                ]
            )
            return record.pop("loss", None), {**record}
        if len(results) < self._server.setup.num_clients:
            return None, {}
        losses = [result.loss for _, result in sorted(results, key=lambda r: natural(r[0].cid))]
        if not all(map(usable, losses)):
            _log.warning("no objective: the clients' are %s", losses)
            return None, {}
        value = sum(losses) / len(losses)
        psi = self._strategy.regularizer
        return value if psi is None else value + psi.value(self._server.x), {}

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Leave the evaluation to the clients."""
        return None


def _measured(result: EvaluateRes) -> tuple[dict[str, Scalar], int]:
    """Return the metrics of a client's own evaluation, and its number of examples."""
    return {"loss": result.loss, **result.metrics}, result.num_examples


def _parts(result: FitRes) -> Callable[[], Parts]:
    """Return a function that reads the parts of a client's reply."""
    return lambda: Parts(result.parameters.tensors, result.num_examples, None, result.metrics)
