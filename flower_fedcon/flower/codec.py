"""Requests and replies as lists of arrays and flat configurations, the form of Flower.

Message-API apps, `ClientApp(client_fn)` and legacy servers all take a list of arrays and a mapping
of scalars, so one form serves them all. `names` in the configuration lists the arrays in their
order. Scalars of a payload are sent as "scalar.<name>".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.core.protocol import ClientInfo, Reply, Request, RunInfo
from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Layout
from flower_fedcon.validation import Array, positive
from flower_fedcon.wire.payloads import Payload, flatten
from flower_fedcon.wire.settings import decode, encode

if TYPE_CHECKING:
    from flwr.app import Context

DESCRIBE = "describe"
ERROR = "error"
DIVERGED = "diverged"
SCALAR, WORK_PREFIX, _RESTORE, _SETTINGS = "scalar.", "work.", "restore.", "settings."
_ATTACHED = "preparation."
Config = dict[str, Any]


class RequestEncoder:
    """Encodes the requests of one run; their common part is encoded once."""

    def __init__(self, run: RunInfo) -> None:
        self._factors = run.factors
        text, self.setting_arrays = encode(run.settings)
        self.setting_arrays |= attached_arrays(run.attached)
        self._common: Config = {
            "algorithm": run.algorithm,
            "seed": run.seed,
            "run-id": run.run_id,
            "incarnation": run.incarnation,
            "clients": run.num_clients,
            "layout": run.layout.to_json(),
            "settings": text,
        }
        if run.about:
            self._common["about"] = ",".join(f"{k}={v}" for k, v in run.about.items())

    def encode(self, request: Request, place: int) -> tuple[dict[str, Array], Config]:
        """Return the named arrays and the configuration for one client of a request."""
        client = request.clients[place]
        arrays, scalars = flatten(request.down(client))
        given = request.restore.get(client)
        if given is not None:
            more, numbers = flatten(given)
            arrays |= {_RESTORE + name: array for name, array in more.items()}
            scalars |= {_RESTORE + name: number for name, number in numbers.items()}
        arrays = {**arrays, **self.setting_arrays}
        config = {
            **self._common,
            "action": request.phase,
            "follow-up": client in request.held,
            "round": request.round,
            "client": client,
            "ack": int(request.acknowledged[place]),
            "keep": int(request.kept[place]),
            "restore": given is not None,
            "names": ",".join(arrays),
            **({} if self._factors is None else {"factor": self._factors[client]}),
            **{SCALAR + name: number for name, number in scalars.items()},
        }
        return arrays, config


def decode_request(
    parameters: Sequence[Array], config: Mapping[str, Any], own: Mapping[str, Any] | None
) -> tuple[RunInfo, Request]:
    """Return the run and the request in a message; `own` holds the client's own oracles."""
    try:
        arrays = named(parameters, str(config["names"]))
        layout = _layout(str(config["layout"]))
        settings = decode(str(config["settings"]), arrays, own)
        run = RunInfo(
            algorithm=str(config["algorithm"]),
            seed=int(config["seed"]),
            layout=layout,
            num_clients=int(config["clients"]),
            settings=settings,
            run_id=str(config["run-id"]),
            incarnation=int(config["incarnation"]),
            factor=positive("factor", config.get("factor", 1.0)),
            attached=attached_in(arrays),
            about=dict(pair.split("=") for pair in str(config.get("about", "")).split(",") if pair),
        )
        common = (_SETTINGS, _ATTACHED)
        values: Payload = {k: a for k, a in arrays.items() if not k.startswith(common)}
        values |= {k.removeprefix(SCALAR): v for k, v in config.items() if k.startswith(SCALAR)}
        given = {k.removeprefix(_RESTORE): v for k, v in values.items() if k.startswith(_RESTORE)}
        client = int(config["client"])
        request = Request(
            clients=[client],
            round=int(config["round"]),
            acknowledged=np.array([int(config["ack"])]),
            broadcast={k: v for k, v in values.items() if not k.startswith(_RESTORE)},
            kept=np.array([int(config["keep"])]),
            restore={client: given} if config["restore"] else {},
            phase=str(config["action"]),
            held=frozenset([client] if config["follow-up"] else []),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(
            f"the message is not from a flower_fedcon strategy ({error!r}): start the server with "
            f"flower_fedcon.server_app or one of flower_fedcon.strategies"
        ) from None
    return run, request


def attached_arrays(attached: Mapping[str, Array]) -> dict[str, Array]:
    """Return what clients have agreed on before round 1, as arrays of a message."""
    return {_ATTACHED + name: array for name, array in attached.items()}


def attached_in(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return what clients have agreed on, from a message's arrays; empty if there is nothing."""
    n = len(_ATTACHED)
    return {name[n:]: a for name, a in arrays.items() if name.startswith(_ATTACHED)}


def encode_reply(reply: Reply) -> tuple[list[Array], int, Config]:
    """Return one client's reply in the form of Flower's NumPyClient."""
    (client,) = reply.clients
    arrays, scalars = flatten({name: value for name, (value,) in reply.payload.items()})
    config: Config = {"client": client, "round": reply.round, "names": ",".join(arrays)}
    config |= {SCALAR + name: number for name, number in scalars.items()}
    for work in reply.work:
        config |= {WORK_PREFIX + name: float(number) for name, number in work.items()}
    if reply.lost:
        config["lost"] = True
    if reply.error:
        config[ERROR] = reply.error
    if reply.diverged:
        config[DIVERGED] = True
    return list(arrays.values()), int(reply.num_examples), config


def encode_info(info: ClientInfo, context: Context | None) -> Config:
    """Return a client's description, with its node's number of partitions."""
    node = dict(context.node_config) if context is not None else {}
    config: Config = {"num-examples": info.num_examples, "max-model": info.max_model}
    if "num-partitions" in node:
        config["num-partitions"] = int(node["num-partitions"])
    if info.layout is not None:
        config["layout"] = info.layout.to_json()
    for name in ("name", "version", "schema", "own_loop", "digest"):
        if text := getattr(info, name):
            config[name.replace("_", "-")] = text
    for name in ("smoothness", "strong_convexity"):
        value = getattr(info, name)
        if value is not None and math.isfinite(value):
            config[name] = value
    return config


def named(arrays: Sequence[Array], names: str) -> dict[str, Array]:
    """Return arrays by the names sent with them."""
    listed = names.split(",") if names else []
    if len(listed) != len(arrays) or len(set(listed)) != len(listed):
        raise ConfigError(f"{len(arrays)} arrays came under the names {listed}")
    return dict(zip(listed, arrays, strict=True))


_layout = lru_cache(maxsize=64)(Layout.from_json)
