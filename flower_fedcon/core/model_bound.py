"""The largest model that clients accept, and the uploads that would carry it beyond.

A node refuses arrays with an entry beyond its own limit (`policy.max-model`), whatever made them so
large. One upload of 1e30 would thus end a run. Each method makes something else of its uploads,
which are changes, points, gradients or compressed forms, with weights. So the rule is about the
result: the server computes what clients would be sent after the round, and if this is beyond their
limit, it drops as few uploads as bring it back, the longest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from flower_fedcon.compressors.values import Compressed
from flower_fedcon.core.method import Method
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import DivergedError, is_divergence
from flower_fedcon.validation import largest_entry

Subset = Callable[[Collection[int]], Uploads]
"""Returns a round's uploads without those of some clients."""


class ModelBound:
    """Keeps what clients are sent within what they accept.

    Parameters
    ----------
    strategy : Method
        Bound to the run's setup.
    """

    def __init__(self, strategy: Method[Any]) -> None:
        self._strategy = strategy
        self._most = strategy.setup.max_model
        self.dropped: Counter[int] = Counter()  # by client: its uploads that were too long
        self._measured: tuple[Any, float] = None, 0.0  # the last state, and its largest entry

    @property
    def reason(self) -> str:
        """Why an upload is dropped: the same words for every client."""
        return (
            f"it would carry the model beyond {self._most:g}, the largest entry that the clients "
            f"accept (policy.max-model): check the data, or use smaller steps"
        )

    def doubts(self) -> Iterator[str]:
        """Yield a warning about clients without which the model was found."""
        for client, times in sorted(self.dropped.items()):
            yield (
                f"{times} uploads of client {self._strategy.setup.names[client]} are not in the "
                f"model, since each would have carried it beyond {self._most:g} "
                f"(policy.max-model). If the client's data are right, its steps are too long"
            )

    def check(self, state: Any, server_round: int) -> None:
        """Raise if clients would be sent an entry beyond the bound.

        Raises
        ------
        DivergedError
            The round is then not applied.
        """
        if self._most == math.inf:
            return
        if not (reached := self._sent(state)) <= self._most:
            raise DivergedError(
                f"round {server_round}: the replies lead to entries of {reached:.3g} in the model "
                f"or beside it, and are not applied, since the clients accept at most "
                f"{self._most:g} (policy.max-model). The run diverges: use smaller steps, or units "
                f"of columns and outcomes in which a model is smaller"
            )
        self._measured = state, reached

    def carriers(self, state: Any, names: Sequence[str], uploads: Subset) -> list[int]:
        """Return the clients whose uploads would carry the model beyond the bound.

        If neither the model nor an upload has an entry above the bound's square root, nothing is
        computed: no step is so long.
        """
        if self._most == math.inf or not names:
            return []
        whole = uploads(())
        near = min(math.sqrt(self._most), self._most)
        if whole.longest <= near and self._sent(state) <= near:
            return []
        sizes = {name: [_largest(value) for value in whole[name]] for name in names}
        if max(map(max, sizes.values())) <= near and self._sent(state) <= near:
            return []
        if self._within(state, whole):
            return []
        # Columns have different units, so each is compared with its own median.
        middle = {name: float(np.median(each)) for name, each in sizes.items()}
        excess = np.max(
            [np.array(each) / (middle[name] or 1.0) for name, each in sizes.items()], axis=0
        )
        longest = [whole.clients[i] for i in np.argsort(-excess, kind="stable")]
        kept_out, enough = 0, len(longest)
        while enough - kept_out > 1:
            tried = (kept_out + enough) // 2
            if self._within(state, uploads(longest[:tried])):
                enough = tried
            else:
                kept_out = tried
        return sorted(longest[:enough])

    def _within(self, state: Any, uploads: Uploads) -> bool:
        """Return whether a round of these uploads stays within the bound; `state` stays as is."""
        apart = state._make(value.copy() if isinstance(value, Mirror) else value for value in state)
        with np.errstate(all="ignore"):
            try:
                return self._sent(self._strategy.aggregate(apart, uploads)) <= self._most
            except Exception as error:
                if not is_divergence(error):
                    raise
                return False

    def _sent(self, state: Any) -> float:
        """Return the largest entry of the arrays that clients are sent with a state."""
        if state is self._measured[0]:
            return self._measured[1]
        sent = [self._strategy.model(state), *self._strategy.broadcast(state).values()]
        apart = {id(value): value for value in sent}  # the model is mostly sent as it is
        arrays = [v for v in apart.values() if isinstance(v, np.ndarray | Compressed)]
        return max(map(_largest, arrays))


def _largest(value: Any) -> float:
    """Return the largest absolute value of an entry; 0 of an atom, which its set bounds.

    >>> _largest(np.array([1.0, -3.0])), _largest(-2.0), _largest(np.array([np.nan, 1.0]))
    (3.0, 2.0, inf)
    """
    if isinstance(value, int | float):
        return abs(value)
    array = value.dense() if isinstance(value, Compressed) else value
    if not isinstance(array, np.ndarray):
        return 0.0
    largest = largest_entry(array)
    return largest if largest >= 0 else math.inf
