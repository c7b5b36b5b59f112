"""A node's part in secure aggregation, by Flower's own mod `secaggplus_mod`.

The mod would take every training message for one of its own, even the handshake; here it sees only
messages of the protocol. It masks a weight 1 and one vector of a client's values, each divided by
its range. If clients add noise, the values are whole steps with the client's share of the noise
(`privacy.shares`). A reply contains nothing else about a client's work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_fedcon.core.protocol import TRAIN
from flower_fedcon.errors import ConfigError, FedConError, RefusedError
from flower_fedcon.flower import messages
from flower_fedcon.flower.codec import ERROR, SCALAR, Config, named
from flower_fedcon.flower.policy import Policy
from flower_fedcon.privacy.secure_aggregation import FINEST, MODULUS
from flower_fedcon.privacy.shares import NoiseShares, Seen
from flower_fedcon.validation import Array, count, positive

CONFIGS, SUM, LOST = "secaggplus_configs", "sum", "lost"
UNTOLD = "this step fails for this node's rows"  # and would not without rows: this is not revealed
_RANGE = "fedcon.range"  # a node's state of a run
_STATE = "secaggplus_state"
_KEYS, _SELF = "public_keys_dict:K", "nid"  # in that state
_SETUP = {"mod_range": MODULUS, "max_weight": 1.0, "clipping_range": 1.0}
Fit: TypeAlias = Callable[[list[Array], Config, Seen], tuple[list[Array], int, Config]]
"""Answers a request, given how much of the answer a server sees."""


class BeyondError(ConfigError):
    """An entry of an upload lies beyond the range of the run."""


class _UnmaskedError(Exception):
    """An answer without a vector: an error, or a lost state."""

    def __init__(self, said: Config) -> None:
        self.said = said


def is_part(message: Message) -> bool:
    """Return whether a message is one of the protocol's."""
    return CONFIGS in message.content


def answer(message: Message, context: Context, fit: Fit, policy: Callable[[], Policy]) -> Message:
    """Return the reply to a message of the protocol; `policy` returns the node's policy.

    A run has one range for each upload. If a server could choose a new range in each round and
    learn who is beyond it, it would find the largest entry of each node by bisection. Steps that
    are just too long for arithmetic would allow the same. A step that fails because of this node's
    rows therefore counts as beyond the range; with noise, as that of a node without rows.
    """
    from flwr.client.mod import secaggplus_mod

    configs = ConfigRecord({**message.content.config_records[CONFIGS]})
    message.content = RecordDict({**message.content, CONFIGS: configs})  # the mod removes some

    def train(message: Message, context: Context) -> Message:
        arrays, config = messages.read_instruction(message, messages.TRAIN)
        if config.get("action") != TRAIN:
            raise RefusedError(
                f"refused: uploads of rounds are summed, and not answers to {config.get('action')}"
            )
        asked = json.loads(str(config[SUM]))
        setup = context.state.config_records[_STATE]
        least: Any = setup["threshold"]
        shares, kept = None, None
        if "noise" in asked:
            shares = _shares(asked["noise"], setup)
        else:
            kept = _one_range(context, asked["ranges"], rules)
        values, _, said = fit(arrays, config, Seen(int(least), shares))
        if kept is not None and said.get(ERROR) == UNTOLD:
            kept["ended"] = True
            raise BeyondError(_beyond(asked["ranges"]))
        if ERROR in said or LOST in said:
            raise _UnmaskedError(said)
        given = named(values, str(said["names"]))
        given |= {k.removeprefix(SCALAR): v for k, v in said.items() if k.startswith(SCALAR)}
        down = named(arrays, str(config["names"]))
        if shares is not None:
            moved = _differences(given, down, asked["names"], asked["about"])
            vector = shares.masked(np.concatenate([v.reshape(-1) for v in moved.values()]))
        else:
            try:
                vector = scaled(given, down, str(config[SUM]))
            except BeyondError:
                if kept is not None:
                    kept["ended"] = True
                raise
        return messages.train_reply(message, [vector], 1, {k: said[k] for k in ("client", "round")})

    try:
        rules = policy()  # an invalid policy is reported to the server like other errors
        _check_setup(configs)
        _check_nodes(configs, context.state.get(_STATE, {}))
        return secaggplus_mod(message, context, train)
    except _UnmaskedError as plain:
        return messages.train_reply(message, [], 1, plain.said)
    except FedConError as error:
        said = {"names": "", "round": 0, "client": 0, ERROR: error.told}
        return messages.train_reply(message, [], 1, said)


def scaled(values: Mapping[str, Any], down: Mapping[str, Array], asked: str) -> Array:
    """Return a client's values as one vector, each entry in [-1, 1].

    Parameters
    ----------
    values : dict of arrays and numbers
        The client's uploads, by name.
    down : dict of arrays
        The values that it was sent.
    asked : str
        "ranges", by the name of each upload, and "about": for uploads that are points, the name of
        their reference point.

    Raises
    ------
    ConfigError
        If the request names different values.
    BeyondError
        If an entry is beyond its range.

    Examples
    --------
    >>> asked = '{"ranges": {"v": 4.0, "gap": 2.0}, "about": {"v": "x"}}'
    >>> scaled({"v": np.array([3.0, 0.0]), "gap": 1.0}, {"x": np.array([1.0, 1.0])}, asked)
    array([ 0.5 , -0.25,  0.5 ])
    """
    wanted = json.loads(asked)
    ranges: dict[str, float] = wanted["ranges"]
    moved = _differences(values, down, ranges, wanted["about"])
    parts: list[Array] = []
    for name, most in ranges.items():
        value = moved[name]
        if not np.abs(value).max(initial=0.0) <= most:  # or not a number
            raise BeyondError(_beyond(ranges))
        parts.append(value.reshape(-1) / most)
    return np.concatenate(parts) if parts else np.zeros(0)


def _differences(
    values: Mapping[str, Any], down: Mapping[str, Array], names: Iterable[str], about: Any
) -> dict[str, Array]:
    """Return uploads in the order of these names; points as differences from `about`.

    Raises
    ------
    ConfigError
        If the request names different values.
    """
    differences: dict[str, Array] = {}
    if values.keys() != {*names}:
        raise ConfigError(
            f"this client uploads {sorted(values)}, the server asked for {sorted(names)}"
        )
    for name in names:
        value = np.asarray(values[name], np.float64)
        if name in about:
            with np.errstate(over="ignore", invalid="ignore"):
                value = value - down[about[name]]
        differences[name] = value
    return differences


def _shares(asked: Mapping[str, Any], setup: Mapping[str, Any]) -> NoiseShares:
    """Return this node's share of the requested noise.

    Raises
    ------
    ConfigError, RefusedError
    """
    clip, deviation = (positive(name, asked[name]) for name in ("clip", "deviation"))
    levels, threshold = int(setup["target_range"]), int(setup["threshold"])
    if levels.bit_count() != 1 or threshold < 2:
        raise RefusedError(
            "refused: with noise that clients add levels are a power of 2, and sums of at least 2 "
            f"clients, not {levels} and {threshold}"
        )
    return NoiseShares(clip, deviation, count("fewest", asked["fewest"]), levels)


def _beyond(ranges: Mapping[str, float]) -> str:
    """Return the error, with the same words for every client, round, upload and excess."""
    said = ", ".join(f"{most:g} ({name})" for name, most in ranges.items())
    return (
        f"an entry of its upload lies beyond the range of the sum, {said}, so it takes no more "
        f"part in this run: start a run with a larger clipping_range, or smaller steps"
    )


def _one_range(context: Context, ranges: Mapping[str, float], policy: Policy) -> ConfigRecord:
    """Return this node's state of a run, whose range is that of the first request.

    Raises
    ------
    RefusedError
        If the range is below the policy's limit, or is not that of the run.
    BeyondError
        If an upload of this run was beyond it.
    """
    for name, most in ranges.items():
        policy.check_range(name, most)
    if _RANGE not in context.state:
        context.state[_RANGE] = ConfigRecord({"ranges": "{}", "ended": False})
    kept = cast(ConfigRecord, context.state[_RANGE])
    agreed: dict[str, float] = json.loads(str(kept["ranges"]))
    if kept["ended"]:
        raise BeyondError(_beyond(agreed))
    for name, most in ranges.items():
        if agreed.setdefault(name, most) != most:
            raise RefusedError(
                f"refused: the range of {name!r} is {agreed[name]:g} in this run, not {most:g}: a "
                f"run has one range"
            )
    kept["ranges"] = json.dumps(agreed)
    return kept


def _check_setup(configs: Mapping[str, Any]) -> None:
    """Raise if a server asks for other masks, or other rounding, than this package's.

    Flower's masks are numbers below the modulus minus one: with a modulus of 2 they are all 0. With
    other weights, ranges or levels, its quantization would round values that are already whole.
    """
    given = {key: configs[key] for key in _SETUP if key in configs}
    wrong = [key for key, value in given.items() if value != _SETUP[key]]
    if wrong or configs.get("target_range", 2) > FINEST:
        key = wrong[0] if wrong else "target_range"
        most = f"{_SETUP[key]:g}" if wrong else f"at most {FINEST}"
        raise RefusedError(
            f"refused: secure aggregation with {key} = {configs[key]!r:.40}, which is {most} here"
        )


def _check_nodes(configs: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise if a server names a node twice, as both active and dead, or leaves one out.

    Flower's mod compares the lengths of the lists with the threshold: a list of one name, repeated,
    would unmask that node's vector alone. Both secrets of a node together unmask its vector, too.
    The same would happen if a node masked its vector with only a few others, and all of these were
    then called dead. A node therefore masks with all nodes whose keys it was sent, and a round that
    loses one of them begins again. (A node cannot see whether other nodes are sent different keys:
    docs/secure_aggregation.md.)
    """
    active, dead, sources = (
        [*configs.get(name, ())] for name in ("active_nids", "dead_nids", "srcs")
    )
    if both := sorted({*active} & {*dead}):
        raise RefusedError(f"refused: the server calls node {both[0]} both active and dead")
    for named_nodes in (active, dead, sources):
        if len({*named_nodes}) < len(named_nodes):
            twice = next(node for node in named_nodes if named_nodes.count(node) > 1)
            raise RefusedError(f"refused: the server names node {twice} twice in one list")
    if "srcs" in configs:
        missing = {*state.get(_KEYS, ())} - {*sources, state.get(_SELF)}
        if missing:
            raise RefusedError(
                f"refused: the server has sent the keys of node {min(missing)}, and no share of "
                "it: begin the sum anew without that node"
            )
