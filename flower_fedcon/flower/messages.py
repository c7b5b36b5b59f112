"""Flower messages and records; only this file builds or reads them.

Records bear the names that Flower's own `NumPyClient` wrapper gives them ("fitins.parameters",
...), so that one server serves message-API apps and apps built on `ClientApp(client_fn)` alike.
The constructor of a `Message` needs the id of the running task, which Flower sets in a ServerApp
and in a ClientApp. These functions can only be called inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flower_fedcon.errors import ConfigError
from flower_fedcon.flower.codec import Config
from flower_fedcon.flower.endings import remote_cause_in, sentence_in
from flower_fedcon.flower.incoming import Parts
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import load_array, save_array

TRAIN, EVALUATE = "train", "evaluate"
_INS = {TRAIN: "fitins", EVALUATE: "evaluateins"}
_RES = {TRAIN: "fitres", EVALUATE: "evaluateres"}
_BLOCK = "fedcon.block"


class Tensors:
    """Arrays in Flower's form, each converted once for all messages that contain it.

    It is for arrays that do not change while messages are made, such as a round's model, which
    would otherwise be copied for every node.

    Parameters
    ----------
    make : callable
        Converts an array.
    """

    def __init__(self, make: Callable[[Array], FlowerArray] | None = None) -> None:
        self._make = as_tensor if make is None else make
        self._made: dict[tuple[object, ...], tuple[Array, FlowerArray]] = {}

    def __call__(self, array: Array) -> FlowerArray:
        """Return an array in Flower's form."""
        key = _memory(array)
        if key not in self._made:  # it also keeps the array, so that its memory is not reused
            self._made[key] = array, self._make(array)
        return self._made[key][1]

    def note(self, array: Array, made: FlowerArray) -> None:
        """Note an array that is there in Flower's form."""
        self._made[_memory(array)] = array, made


def _memory(array: Array) -> tuple[object, ...]:
    """Return what tells an array from all others that are alive."""
    return array.ctypes.data, array.shape, array.strides, array.dtype.str


def as_tensor(array: Array) -> FlowerArray:
    """Return an array in Flower's form, with one copy of its bytes; `numpy.save` makes two."""
    return FlowerArray(str(array.dtype), array.shape, "numpy.ndarray", save_array(array))


class Lent(FlowerArray):
    """An array in Flower's form that nobody changes; its bytes are made on demand."""

    def __init__(self, array: Array) -> None:
        self.dtype, self.shape, self.stype = str(array.dtype), array.shape, "numpy.ndarray"
        self.array = array

    @cached_property
    def data(self) -> bytes:  # type: ignore[override]
        """The array in NumPy's format."""
        return save_array(self.array)

    def numpy(self) -> Array:
        """Return a copy, like Flower's arrays."""
        return self.array.copy()


def instruction(
    kind: str,
    arrays: Iterable[Array],
    config: Config,
    node_id: int,
    tensor: Callable[[Array], FlowerArray] = as_tensor,
) -> Message:
    """Return a message to a node."""
    content = RecordDict(
        {
            f"{_INS[kind]}.parameters": to_record(arrays, tensor),
            f"{_INS[kind]}.config": ConfigRecord(config),
        }
    )
    return Message(content, node_id, kind)


def read_instruction(
    message: Message, kind: str, *, own: bool = True
) -> tuple[list[Array], Config]:
    """Return the arrays and the configuration in a message from a server.

    Without `own` the arrays are read-only views of the message's memory.
    """
    records = message.content
    try:
        arrays = records[f"{_INS[kind]}.parameters"]
        config = records[f"{_INS[kind]}.config"]
    except KeyError:
        raise ConfigError(
            "the message is not from a flower_fedcon strategy: start the server with "
            "flower_fedcon.server_app or one of flower_fedcon.strategies"
        ) from None
    return from_record(arrays, own=own), dict(config)


def train_reply(
    message: Message, arrays: Sequence[Array], num_examples: int, config: Config
) -> Message:
    """Return the reply to a training message."""
    return _reply(message, TRAIN, {"parameters": to_record(arrays)}, num_examples, config)


def evaluate_reply(message: Message, loss: float, num_examples: int, config: Config) -> Message:
    """Return the reply to an evaluation message."""
    return _reply(message, EVALUATE, {"loss": MetricRecord({"loss": loss})}, num_examples, config)


def _reply(
    message: Message, kind: str, own: dict[str, Any], num_examples: int, config: Config
) -> Message:
    records = own | {
        "num_examples": MetricRecord({"num_examples": num_examples}),
        "metrics": ConfigRecord(config),
        "status": ConfigRecord({"code": 0, "message": ""}),
    }
    content = RecordDict({f"{_RES[kind]}.{name}": record for name, record in records.items()})
    return Message(content, reply_to=message)


def block(content: bytes, version: str, node_id: int) -> Message:
    """Return a message of the simulation that holds the requests of many clients."""
    return Message(_block(content, version), node_id, TRAIN)


def block_reply(message: Message, content: bytes) -> Message:
    """Return the reply to such a message."""
    return Message(_block(content, block_version(message)), reply_to=message)


def _block(content: bytes, version: str) -> RecordDict:
    return RecordDict({_BLOCK: ConfigRecord({"version": version, "content": content})})


def block_version(message: Message) -> str:
    """Return the version of this package that made a block."""
    return str(message.content[_BLOCK]["version"])


def block_content(message: Message) -> bytes:
    """Return the content of a block, or of the reply to one."""
    content: Any = message.content[_BLOCK]["content"]
    return bytes(content)


def reply_parts(message: Message, kind: str) -> Parts:
    """Return the parts of a node's reply, unchecked; `incoming` checks them.

    Raises
    ------
    ConfigError
        If the node reports an error. A reply of a different form may raise any error.
    """
    if message.has_error():
        raise ConfigError(_failure(message.error.reason))
    res, records = _RES[kind], message.content
    status: Any = records[f"{res}.status"]
    if status["code"] != 0:
        raise ConfigError(f"the client failed: {status['message']!s}")
    config: Any = records[f"{res}.metrics"]
    examples = records[f"{res}.num_examples"]["num_examples"]
    if kind == EVALUATE:
        return Parts([], examples, records[f"{res}.loss"]["loss"], config)
    return Parts(_tensors(records[f"{res}.parameters"]), examples, None, config)


def _failure(reason: str | None) -> str:
    """Return a text on a node's error; for an exception, also where its line is logged.

    An error of this package says itself what to do.

    >>> _failure("<class 'ZeroDivisionError'>:<'division by zero'>")[-59:]
    "for 'Traceback' in the node's own log, which names the line"
    """
    if sentence := sentence_in(str(reason)):
        return sentence
    if cause := remote_cause_in(str(reason)):
        return f"the client failed: {cause}"
    where = "; look for 'Traceback' in the node's own log, which names the line"
    return f"the client failed: {reason}{where if str(reason).startswith('<class ') else ''}"


def app_instruction(
    arrays: Mapping[str, Array],
    config: Config,
    tensor: Callable[[Array], FlowerArray] = as_tensor,
) -> RecordDict:
    """Return a message in the form of Flower's quickstart, for train and evaluate functions."""
    return RecordDict({"arrays": named_record(arrays, tensor), "config": ConfigRecord(config)})


def app_evaluation(content: RecordDict, node_id: int) -> Message:
    """Return a message to a node's own evaluate function."""
    return Message(content, node_id, EVALUATE)


def app_metrics(message: Message) -> tuple[dict[str, Any], Any]:
    """Return the metrics and number of examples in the reply of an app's evaluate function.

    Raises
    ------
    ConfigError
        If it has failed, or its reply has a different form.
    """
    if message.has_error():
        raise ConfigError(_failure(message.error.reason))
    if "evaluateres.loss" in message.content:  # from a NumPyClient
        _, examples, loss, config = reply_parts(message, EVALUATE)
        return {"loss": loss, **config}, examples
    records = list(message.content.metric_records.values())
    if len(records) != 1 or "num-examples" not in records[0]:
        raise ConfigError(
            'the evaluate function must reply one MetricRecord, with "num-examples"; it replied '
            + (", ".join(message.content) or "nothing")
        )
    metrics = dict(records[0])
    return metrics, metrics.pop("num-examples")


def app_reply(content: RecordDict) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and metrics in the reply of an app's train function.

    Raises
    ------
    ConfigError
        If there is not exactly one record of each, or no "num-examples".
    """
    # Not content.array_records, after which the arrays stay until Python collects them.
    arrays = [record for record in content.values() if isinstance(record, ArrayRecord)]
    metrics = [record for record in content.values() if isinstance(record, MetricRecord)]
    if len(arrays) != 1 or len(metrics) != 1:
        replied = ", ".join(f"{k!r} ({type(v).__name__})" for k, v in content.items()) or "nothing"
        raise ConfigError(
            f"the train function replied {replied}: reply one ArrayRecord, the model, and one "
            'MetricRecord that has "num-examples"'
        )
    if "num-examples" not in metrics[0]:
        raise ConfigError(
            f'the train function replied the metrics {sorted(metrics[0])}, without "num-examples": '
            "add how many examples it has used"
        )
    return named_arrays(arrays[0]), dict(metrics[0])


def named_record(
    arrays: Mapping[str, Array], tensor: Callable[[Array], FlowerArray] = as_tensor
) -> ArrayRecord:
    """Return arrays as a record, by their names."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = tensor(array)  # the same object, so that Flower hashes it once
    return record


def named_arrays(record: ArrayRecord) -> dict[str, Array]:
    """Return the read-only arrays of a record by name, in its order; nothing is unpickled."""
    return {k: load_array(array.data, own=False) for k, array in record.items() if k != "_empty"}


def lent_array(tensor: FlowerArray) -> Array:
    """Return the read-only array in Flower's form, without a copy if its type allows it."""
    if not isinstance(tensor, Lent):
        return load_array(tensor.data, own=False)
    view = tensor.array.view()
    view.flags.writeable = False
    return view


def own_arrays(record: ArrayRecord) -> dict[str, Array]:
    """Return the arrays, of any type, in a record that this program has made."""
    return {k: array.numpy() for k, array in record.items()}


def to_record(
    arrays: Iterable[Array], tensor: Callable[[Array], FlowerArray] = as_tensor
) -> ArrayRecord:
    """Return arrays as a record whose keys are their positions."""
    return named_record({str(i): array for i, array in enumerate(arrays)}, tensor)


def from_record(record: Any, *, own: bool = True) -> list[Array]:
    """Return the arrays of a record, in order; nothing is unpickled."""
    return [load_array(tensor, own=own) for tensor in _tensors(record)]


def _tensors(record: Any) -> list[bytes]:
    """Return the bytes of a record's arrays, in order."""
    if not isinstance(record, ArrayRecord):
        raise ConfigError(f"expected arrays, got {type(record).__name__}")
    arrays: Mapping[str, FlowerArray] = {k: v for k, v in record.items() if k != "_empty"}
    numbered = all(key.isdecimal() and key.isascii() and len(key) < 10 for key in arrays)
    keys = sorted(arrays, key=int) if numbered else list(arrays)
    return [arrays[key].data for key in keys]
