"""Arrays of a model that stay with each client, such as the statistics of batch normalisation."""

from __future__ import annotations

import fnmatch
import hashlib
import logging
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from flower_fedcon.errors import ConfigError
from flower_fedcon.flower import messages
from flower_fedcon.validation import Array
from flower_fedcon.wire import state_files

_log = logging.getLogger("flwr")
_RECORD = "fedcon.local"


def keep_local(*patterns: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a client keep some of the model's arrays to itself, in training and evaluation.

    Put this decorator on the train function, below `train_step`, and on the evaluate function. From
    the second round on, both find this client's own arrays in the message instead of the server's.
    The arrays are kept in Flower's context or, with "state-dir" in the node configuration, in a
    file that survives a restart. A repeated round starts from the arrays of the round before.

    Parameters
    ----------
    patterns : str
        Names, or patterns such as "norm.*". They may only match buffers, since the server owns
        optimised arrays.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> @app.evaluate()
    ... @keep_local("*running_mean", "*running_var", "*num_batches_tracked")
    ... def evaluate(message, context): ...
    """
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError(f'keep_local needs names or patterns, such as "norm.*": got {patterns!r}')

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def serve(message: Message, context: Context, *more: Any) -> Any:
            record, config = message.content.get("arrays"), message.content.get("config")
            if not isinstance(record, ArrayRecord) or not isinstance(config, ConfigRecord):
                raise ConfigError(
                    f"keep_local must stand below train_step, or over an evaluate function: the "
                    f"message holds {', '.join(message.content) or 'nothing'}"
                )
            server_round = int(config["server-round"])  # type: ignore[arg-type]
            training = message.metadata.message_type == messages.TRAIN
            store = _Store(context)
            rounds = [r for r in store.rounds if r < server_round + (not training)]
            arrays = messages.own_arrays(record)
            if rounds:
                arrays |= store.rounds[max(rounds)]
            message.content["arrays"] = messages.named_record(arrays)
            reply = function(message, context, *more)
            if training and isinstance(reply, Message) and reply.has_content():
                for trained in reply.content.values():
                    if not isinstance(trained, ArrayRecord):
                        continue
                    named = messages.own_arrays(trained)
                    names = [n for n in named if any(fnmatch.fnmatchcase(n, q) for q in patterns)]
                    store.keep(server_round, {name: named[name] for name in names})
            return reply

        return serve

    return decorate


class _Store:
    """A client's own arrays after the last two rounds that it has taken part in."""

    def __init__(self, context: Context) -> None:
        self._state = context.state
        node = dict(context.node_config)
        name = str(node.get("name", node.get("partition-id", context.node_id)))
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        folder = node.get("state-dir")
        run = str(context.run_id)
        self._path = None if not folder else Path(str(folder)) / f"local-{run}" / digest
        self.rounds: dict[int, dict[str, Array]] = self._read()

    def keep(self, server_round: int, arrays: dict[str, Array]) -> None:
        """Keep the arrays at the end of a round."""
        before = [r for r in self.rounds if r < server_round]
        kept = {r: self.rounds[r] for r in sorted(before)[-1:]} | {server_round: arrays}
        tree = {str(r): held for r, held in kept.items()}
        if self._path is not None:
            try:
                state_files.write(self._path, tree)
            except OSError as error:
                raise ConfigError(f"cannot keep arrays in {self._path}: {error}") from None
            return
        flat = {f"{r} {name}": a for r, held in tree.items() for name, a in held.items()}
        self._state[_RECORD] = messages.named_record(flat)

    def _read(self) -> dict[int, dict[str, Array]]:
        by_round: dict[int, dict[str, Array]] = {}
        if self._path is not None:
            try:
                tree = state_files.read(self._path, {})
                return {int(r): dict(arrays) for r, arrays in tree.items()}
            except FileNotFoundError:
                return {}
            except state_files.DamagedError as error:
                _log.warning("%s: this client takes the server's arrays", error)
                return {}
        record = self._state.get(_RECORD)
        for key, array in messages.own_arrays(record).items() if record else ():  # type: ignore[arg-type]
            number, _, name = key.partition(" ")
            by_round.setdefault(int(number), {})[name] = array
        return by_round
