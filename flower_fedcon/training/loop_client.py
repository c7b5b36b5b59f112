"""A client whose local pass is a user's own loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.core.protocol import ClientInfo
from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.registry import client_class, names
from flower_fedcon.training.local_round import LocalTraining
from flower_fedcon.validation import Array
from flower_fedcon.wire.own_code import own_places
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")
Loop: TypeAlias = Callable[[Any], tuple[Sequence[Array], int]]
"""Takes a round's `LocalTraining`; returns the final layers and the number of examples used."""


class OwnLoop(LocalPassClient[State], Generic[State]):
    """A mixin, before the algorithm's class, that replaces this package's step by a loop.

    Parameters
    ----------
    loop : Loop
    training : type
        The kind of `LocalTraining` that the loop takes.
    kind : {"app", "client"}
        Whether the loop is a function of a ClientApp, or a method of a NumPyClient.
    place : str
        The first line of the user's function, for errors after it has ended.
    context, state_dir, oracles, name
        As in every client.
    """

    only_reads = True

    def __init__(
        self,
        loop: Loop,
        training: type[LocalTraining],
        kind: str = "app",
        place: str = "",
        **options: Any,
    ) -> None:
        super().__init__(_NoObjective(), **options)
        self.kind, self._place = kind, place
        self.num_examples = 1  # not known until the loop has run
        self._loop, self._training = loop, training

    def describe(self) -> ClientInfo:
        """Return the description that the server asks for before round 1."""
        return ClientInfo(self.name or "", int(self.num_examples), None, own_loop=self.kind)

    def step(self, state: State, down: Payload) -> tuple[Payload, State]:
        """Run the loop.

        Raises
        ------
        ConfigError
            For an error of the loop, with its line: another attempt would not help.
        RefusedError
            If it has used no examples.
        """
        assert self._run is not None  # noqa: S101  (set before any step)
        training = self._training(self, state, down, self._run.layout)
        try:
            with training.under_way():
                end, self.num_examples = self._loop(training)
            if self.num_examples:
                sent = training.finish(end)
                if training.steps:  # as counted by the method; the loop does not report rows
                    self.tally(gradients=training.steps)
                return sent
        except ConfigError as error:
            place = own_places(error) or self._place
            raise ConfigError(f"{error} ({place})" if place else str(error)) from error
        raise RefusedError(
            f"refused: {training.name}: this client has no examples, so it does not count"
        )


class _NoObjective:
    """Takes the place of an objective."""

    def value(self, x: Array) -> float:
        raise ConfigError(
            "this client has its own train loop, and no objective to evaluate: give its app an "
            "@app.evaluate() function"
        )

    def gradient(self, x: Array) -> Array:
        raise ConfigError(
            "this client has its own train loop, and cannot compute a gradient at the model: leave "
            "out what needs one (certificates), or use flower_fedcon.client_app"
        )


@cache
def own_loop(algorithm: str) -> type[Any]:
    """Return the client class of an algorithm, with a loop instead of its step.

    Raises
    ------
    ConfigError
        If the algorithm's step cannot be a correction of a loop.

    Examples
    --------
    >>> own_loop("fedprox").__name__
    'OwnLoopFedProxClient'
    """
    kind = client_class(algorithm)
    if not _in_loops(kind):
        able = sorted(n for n in names() if _in_loops(client_class(n)))
        raise ConfigError(
            f"{algorithm} cannot correct a train loop; the methods that can are {', '.join(able)}. "
            f"For others give flower_fedcon.client_app an objective, such as "
            f"flower_fedcon.torch.TorchObjective"
        )
    return type(f"OwnLoop{kind.__name__}", (OwnLoop, kind), {})


def _in_loops(kind: type[Any]) -> bool:
    return issubclass(kind, LocalPassClient) and kind.in_loops
