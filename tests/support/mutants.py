"""Recorded messages of nodes, and what can become of them on the way or in hostile hands."""

from __future__ import annotations

import json
import random
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from contract import CONTRACTS, build
from fake_grid import FakeGrid, asked
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

HUGE = 2**63 - 1
ODD: list[Any] = [
    "", "x", "²", "7" * 5000, "a,a", "delta", "atom.code,atom.code", "[" * 2000, "\x1b[2J", "nan",
    0, 1, -1, 2, HUGE, -HUGE, True, False, 0.0, -0.0, 0.5, 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), -float("inf"), b"", b"\x00\xff" * 20,
    [], [1], [1.5, float("nan")], ["a", "b"], [True], [b"x"],
]  # fmt: skip
FIELDS = [
    "round", "client", "names", "lost", "error", "scalar.delta", "work.iterations", "name",
    "num-examples", "num-partitions", "layout", "smoothness", "digest",
]  # fmt: skip
DTYPES = [
    "<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u4", "<u2", "|u1", "|b1", "<c16", "<f2", "|S3",
]  # fmt: skip


@dataclass
class Recorded:
    """One algorithm's run on a grid: its strategy, bound to the run, and its nodes' replies."""

    name: str
    run: Any
    replies: list[tuple[Message, Message]]  # what was asked, and answered


def record(name: str) -> Recorded:
    """Play two rounds of an algorithm, with certificates, and keep what the nodes reply."""
    case = CONTRACTS[name].cases[0]
    problem = case.problem()
    kept: list[tuple[Message, Message]] = []

    class Recorder(FakeGrid):
        def replies_to(self, message):
            (reply,) = super().replies_to(message)
            if reply.has_content():
                kept.append((message, copied(reply, message)))
            return [reply]

    strategy = build(name, problem, **case.settings)
    options = {"num_rounds": 2, "evaluate_every": 1, "certificates": True, "max_retries": 0}
    strategy.start(Recorder(problem.objectives), **options)
    return Recorded(name, strategy._current()._run, kept)


def copied(reply: Message, to: Message) -> Message:
    """Return a reply whose records can be changed."""
    parts: dict[str, Any] = {}
    for key, value in reply.content.items():
        kind = type(value)
        parts[key] = kind(dict(value.items()))
    return Message(RecordDict(parts), reply_to=to)


def kind_of(message: Message) -> str:
    return str(asked(message)["action"])


def mutant(sent: Message, reply: Message, rng: np.random.Generator) -> Message:
    """Return a reply with one to three things changed."""
    if rng.random() < 0.01:
        return Message(Error(int(rng.integers(9)), str(odd(rng))), reply_to=sent)
    changed = copied(reply, sent)
    for _ in range(1 + rng.integers(3)):
        prefix = "fitres" if "fitres.metrics" in changed.content else "evaluateres"
        change = CHANGES[rng.integers(len(CHANGES))]
        try:
            change(changed.content, prefix, rng)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue  # Flower itself takes no such record
    return changed


def odd(rng: np.random.Generator) -> Any:
    return ODD[rng.integers(len(ODD))]


def config_value(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    config = dict(content[f"{prefix}.metrics"])
    known = [*config, *FIELDS]
    config[known[rng.integers(len(known))]] = odd(rng)
    content[f"{prefix}.metrics"] = ConfigRecord(config)


def config_key(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    config = dict(content[f"{prefix}.metrics"])
    if rng.random() < 0.5 and config:
        del config[list(config)[rng.integers(len(config))]]
    else:
        keys = ["", "scalar.", "work.x", "scalar.atom.code", "error.more", "a" * 10**4, "objective"]
        config[keys[rng.integers(len(keys))]] = odd(rng)
    content[f"{prefix}.metrics"] = ConfigRecord(config)


def number(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    field = ["num_examples", "loss"][rng.integers(2)]
    content[f"{prefix}.{field}"] = MetricRecord({field: odd(rng)})


def status(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    content[f"{prefix}.status"] = ConfigRecord({"code": odd(rng), "message": odd(rng)})


def missing_record(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    del content[list(content)[rng.integers(len(content))]]


def other_record(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    keys = list(content)
    content[keys[rng.integers(len(keys))]] = content[keys[rng.integers(len(keys))]]


def parameters(content: RecordDict, prefix: str) -> dict[str, bytes]:
    return {k: a.data for k, a in content[f"{prefix}.parameters"].items()}


def replaced(content: RecordDict, prefix: str, tensors: dict[str, bytes]) -> None:
    arrays = {k: Array("x", (), "numpy.ndarray", data) for k, data in tensors.items()}
    content[f"{prefix}.parameters"] = ArrayRecord(arrays)


def bytes_of(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    tensors = parameters(content, prefix)
    key = list(tensors)[rng.integers(len(tensors))]
    data = bytearray(tensors[key])
    how = rng.integers(4)
    if how == 0:
        data[rng.integers(len(data))] ^= 1 + int(rng.integers(255))
    elif how == 1:
        del data[rng.integers(len(data)) :]
    elif how == 2:
        data += rng.bytes(int(rng.integers(1, 40)))
    else:
        data = bytearray(rng.bytes(int(rng.integers(200))))
    replaced(content, prefix, {**tensors, key: bytes(data)})


def array_of(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    """Put another array in the place of one: of another shape, type, or with other numbers."""
    tensors = parameters(content, prefix)
    key = list(tensors)[rng.integers(len(tensors))]
    shapes = [(), (0,), (1,), (2,), (3,), (6,), (8,), (2, 2), (8, 1), (1, 8), (0, 3), (3, 3)]
    shape = shapes[rng.integers(len(shapes))]
    fills = [0, 1, -1, 2, 7, 8, 127, 2**31 - 1, -(2**31), HUGE, -HUGE, 0.5, 1e308, -1e308, 1e200,
             np.nan, np.inf, -np.inf]  # fmt: skip
    size = int(np.prod(shape))
    values = np.array([float(fills[i]) for i in rng.integers(len(fills), size=size)])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        dtype = DTYPES[rng.integers(len(DTYPES))]
        array = values.astype(dtype).reshape(shape)
    replaced(content, prefix, {**tensors, key: dumped(array)})


def arrays_of(content: RecordDict, prefix: str, rng: np.random.Generator) -> None:
    """Lose, double or reorder arrays."""
    tensors = list(parameters(content, prefix).values())
    how = rng.integers(3)
    if how == 0:
        tensors.pop()
    elif how == 1:
        tensors.append(tensors[rng.integers(len(tensors))])
    else:
        tensors.reverse()
    replaced(content, prefix, {str(i): data for i, data in enumerate(tensors)})


def dumped(array: np.ndarray) -> bytes:
    return bytes(Array(array).data)


CHANGES = [config_value, config_value, config_key, number, status, missing_record, other_record,
           bytes_of, array_of, array_of, arrays_of]  # fmt: skip


# --- requests ------------------------------------------------------------------------------------

ODD_REQUESTS: list[Any] = [
    "", None, -1, 0, 1, 2**70, float("nan"), float("inf"), 1e308, True, b"\x00", "x", [1, 2], "{}",
    '[[[8]], "float64", false]', '[[[100000000000]], "float64", false]', "[" * 5000, 10**18,
]  # fmt: skip
ODD_SETTINGS: list[Any] = [
    None, -1, 1e400, "x", [], {}, {"type": "L1Ball", "radius": 1.0},
    {"type": "L1", "weight": 1e308}, {"array": "settings.9"}, 10**30,
    {"type": "AOGM", "max_iterations": 2**70},
]  # fmt: skip


def mutate_request(rng: random.Random, arrays: list[np.ndarray], config: dict[str, Any]) -> None:
    """Change one or two things of a message to a node in place."""
    for _ in range(rng.randint(1, 2)):
        kind = rng.randrange(8)
        if kind < 4:
            config[rng.choice(list(config))] = rng.choice(ODD_REQUESTS)
        elif kind < 5:
            config.pop(rng.choice(list(config)))
        elif kind < 7 and arrays:
            j = rng.randrange(len(arrays))
            a = arrays[j]
            odd = [a * np.nan, a * 1e300, a.astype("i4"), np.zeros((2, 2)), np.zeros(0), a.sum()]
            arrays[j] = np.asarray(rng.choice(odd))
        elif str(config.get("settings", "")).startswith('{"'):
            settings = json.loads(config["settings"])
            settings[rng.choice(list(settings))] = rng.choice(ODD_SETTINGS)
            config["settings"] = json.dumps(settings)
