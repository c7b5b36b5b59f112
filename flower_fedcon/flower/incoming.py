"""Parsers of a node's messages, each to a value or to a fault of that node.

A node is a different program on a different machine. It may have a different version, be
misconfigured, broken or malicious; only its own part in a run may end then. So the functions here
accept any input and never raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from flower_fedcon.core import evaluation as evaluations
from flower_fedcon.core.gate import WORK
from flower_fedcon.core.protocol import ClientInfo, Reply
from flower_fedcon.errors import ConfigError, DivergedError, FedConError, printable
from flower_fedcon.flower.codec import DIVERGED, ERROR, SCALAR, WORK_PREFIX, named
from flower_fedcon.flower.policy import Policy
from flower_fedcon.layout import Layout
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload, load_array

REASON = 500  # characters of a node's message in the log
_NAME, _NAMES, _LAYOUT, _DIGEST = 200, 10_000, 100_000, 64  # characters of each name
_CLIENTS = 10**6
_WHOLE = 2**63 - 1
_HEADER = 4096  # bytes that an array may have in addition to its numbers


@dataclass(frozen=True)
class Fault:
    """Why nothing that a node sent can be used.

    Attributes
    ----------
    reason : str
        One line of printable characters, not much longer than `REASON`.
    silent : bool
        Whether no message came at all.
    diverged : bool
        Whether the node's numbers are no longer finite: a loss such as NaN, or those of a step.
    """

    reason: str
    silent: bool = False
    diverged: bool = False


class Parts(NamedTuple):
    """The parts of a reply, before anything in it is checked."""

    tensors: Sequence[Any]  # the bytes of each array
    examples: Any
    loss: Any
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Description:
    """A node's description at first contact: its client, the number of clients, its pass."""

    info: ClientInfo
    partitions: int | None
    password: str = ""


def description(parts: Callable[[], Parts], node: int | str) -> Description | Fault:
    """Return a node's description of its client; without a name, it gets the node's."""
    return guarded(lambda: _description(_Fields(parts().config), node))


def reply(client: int, most: int, parts: Callable[[], Parts]) -> Reply | Fault:
    """Return a client's reply; its payload holds undecoded arrays and numbers, by full name.

    An array of more than `most` entries is refused before it is loaded.
    """
    return guarded(lambda: _reply(client, most, parts()))


def evaluation(parts: Callable[[], Parts]) -> dict[str, Any] | Fault:
    """Return a client's evaluation of a model: "objective", and its own metrics."""
    return guarded(lambda: _evaluation(parts()))


def readable(text: object) -> str:
    r"""Return a node's text as one line of bounded length.

    >>> readable("out of\x1b[31m\nmemory"), len(readable("x" * 10**7)) <= 500
    ('out of\\x1b[31m\\nmemory', True)
    """
    whole = str(text)
    if len(whole) > REASON:  # both ends of a traceback are informative
        ends = whole[: REASON // 4], whole[-REASON // 2 :]
        whole = f"{ends[0]} ... {ends[1]} ({len(whole)} characters)"
    return printable(whole.strip(), 2 * REASON)[: 2 * REASON]


# --- the fields ------------------------------------------------------------------------------


class _Fields:
    """A configuration whose fields are read as their expected types."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)

    def text(self, key: str, default: str | None, limit: int) -> str | None:
        value = self._config.get(key, default)
        if value is None or value is default:
            return default
        if not isinstance(value, str) or len(value) > limit or not value.isprintable():
            raise self._wrong(key, f"printable text of at most {limit} characters")
        return value

    def whole(self, key: str, default: int | None, low: int, high: int) -> int | None:
        value = self._config.get(key, default)
        if value is None or value is default:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(key, f"a whole number from {low} to {high}")
        return value

    def flag(self, key: str) -> bool:
        value = self._config.get(key, False)
        if type(value) is not bool:
            raise self._wrong(key, "true or false")
        return value

    def number(self, key: str) -> float | None:
        """Return a number, which may not be finite; None if there is none."""
        value = self._config.get(key)
        return None if value is None else _number(key, value)

    def error(self) -> str:
        """Return why the client could not do the work, "" if it could."""
        return readable(self._config.get(ERROR, ""))

    def starting(self, prefix: str) -> dict[str, Any]:
        """Return the fields whose keys have a prefix, by the rest of the key."""
        n = len(prefix)
        return {key[n:]: v for key, v in self._config.items() if key.startswith(prefix)}

    def _wrong(self, key: str, wanted: str) -> ConfigError:
        return ConfigError(f"its {key} is {shown(self._config[key])}, expected {wanted}")


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"its {key} is {shown(value)}, expected a number")
    if isinstance(value, int) and abs(value) > _WHOLE:
        raise ConfigError(f"its {key} is a whole number of more than 63 bits")
    return float(value)


def shown(value: object) -> str:
    """Return a value of unknown kind and size for a message."""
    if isinstance(value, int) and abs(value) > _WHOLE:
        return "a whole number of more than 63 bits"  # Python refuses to print the longest
    if isinstance(value, str | bytes | list):
        return repr(value[:40])
    return repr(value) if isinstance(value, int | float) else type(value).__name__


# --- the three replies -----------------------------------------------------------------------


def _description(fields: _Fields, node: int | str) -> Description:
    if fields.error():
        raise ConfigError(fields.error())
    name = fields.text("name", None, _NAME)
    layout = fields.text("layout", None, _LAYOUT)
    examples = fields.whole("num-examples", None, 0, _WHOLE)
    if examples is None:
        raise ConfigError("it does not describe a client of this package")
    most = fields.number("max-model")  # earlier versions do not state it
    info = ClientInfo(
        name=(name or "").strip() or f"node-{node}",
        num_examples=examples,
        layout=None if layout is None else Layout.from_json(layout),
        smoothness=fields.number("smoothness"),
        strong_convexity=fields.number("strong_convexity"),
        digest=fields.text("digest", "", _DIGEST) or "",
        version=fields.text("version", "", _DIGEST) or "",
        own_loop=fields.text("own-loop", "", _DIGEST) or "",
        schema=fields.text("schema", "", _DIGEST) or "",
        max_model=Policy.max_model if most is None else most,
    )
    partitions = fields.whole("num-partitions", None, 1, _CLIENTS)
    return Description(info, partitions, fields.text("pass", "", _DIGEST) or "")


def _reply(client: int, most: int, parts: Parts) -> Reply:
    fields = _Fields(parts.config)
    if fields.error():
        raise (DivergedError if fields.flag(DIVERGED) else ConfigError)(fields.error())
    server_round = fields.whole("round", None, 0, _WHOLE)
    if server_round is None:
        raise ConfigError("it does not name a round")
    names = fields.text("names", "", _NAMES) or ""
    largest = 8 * most + _HEADER
    arrays: list[Array] = []
    for tensor in parts.tensors:
        if not isinstance(tensor, bytes) or len(tensor) > largest:
            raise ConfigError(f"it holds an array of {len(tensor)} bytes, at most {largest} fit")
        arrays.append(load_array(tensor, own=False))
    payload: Payload = dict(named(arrays, names))
    payload |= {k: _number(k, v) for k, v in fields.starting(SCALAR).items()}
    work = {k: v for k, v in fields.starting(WORK_PREFIX).items() if k in WORK}
    return Reply(
        clients=[client],
        round=server_round,
        payload={name: [value] for name, value in payload.items()},
        num_examples=_number("num_examples", parts.examples),
        lost=fields.flag("lost"),
        work=[work],
        remote=True,
    )


def _evaluation(parts: Parts) -> dict[str, Any]:
    return evaluations.admit(parts.loss, {k: v for k, v in parts.config.items() if k != "client"})


# --- the guarantee ---------------------------------------------------------------------------

Value = TypeVar("Value")


def guarded(parse: Callable[[], Value]) -> Value | Fault:
    """Return the result of a parser for a node's content, or the fault."""
    try:
        return parse()
    except FedConError as error:
        return Fault(readable(error), diverged=isinstance(error, DivergedError))
    except KeyError as error:
        return Fault(f"it is not in this package's form: it holds no {readable(error)}")
    except Exception as error:  # an unforeseen form is a fault, too
        return Fault(f"it is not in this package's form: {readable(repr(error))}")
