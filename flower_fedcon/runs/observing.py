"""What a callback can read of a run besides its record: the states of server and clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.core.compressing import Remembering
from flower_fedcon.core.evaluation import check_metric_names, numbers
from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.runs.history import Record

if TYPE_CHECKING:
    from flower_fedcon.core.engine import Engine
    from flower_fedcon.core.server import Server


class RunView:
    """A run after a recorded round, with read-only arrays.

    Attributes
    ----------
    round : int
    record : dict
        The record of the round so far.
    x : array or list of arrays
        The model, in the form of the problem's x0.
    state : NamedTuple
        The server's state, as the strategy's module defines it.
    names : sequence of str
        All clients' names, in client order.
    clients : dict of NamedTuple, or None
        By name, the state of each client after the last of its replies that the server used, as the
        client's module defines it. Empty if clients keep no state; None if their states are not in
        this process (on nodes, in Ray's workers).

    Raises
    ------
    RefusedError
        If an observer without ``unsafe = True`` asks a private run for `cohort` or `clients`, which
        no noise covers.
    """

    def __init__(
        self, server: Server, engine: Engine, record: Record, covered: bool = False
    ) -> None:
        self._server, self._engine, self._covered = server, engine, covered
        self.round, self.record = server.round, dict(record)
        self.names: Sequence[str] = server.setup.names

    def _expect_open(self, name: str) -> None:
        if self._covered:
            raise RefusedError(
                f"an observer reads {name} of a private run, which no noise "
                f"protects and epsilon does not count: give its class unsafe = True, or leave it "
                f"out"
            )

    @property
    def cohort(self) -> list[int]:
        """The clients that were asked in the last round."""
        self._expect_open("the cohort")
        return list(self._server.cohort)

    @cached_property
    def x(self) -> Any:
        """The model."""
        model = self._server.setup.layout.unpack(np.array(self._server.x))
        return (
            [_read_only(layer) for layer in model] if isinstance(model, list) else _read_only(model)
        )

    @cached_property
    def state(self) -> Any:
        """The server's state."""
        return _read_only(self._server.state)

    @cached_property
    def clients(self) -> dict[str, Any] | None:
        """The clients' states, by name."""
        self._expect_open("clients' states")
        if self._engine.clients_keep_states:
            return None
        versions = self._engine.save()
        if versions is None:
            return {}
        states = {}
        for client, last in enumerate(self._server.acknowledgements.rounds.tolist()):
            state = versions[client].at(last) if last else None
            if isinstance(state, Remembering):
                state = state.state
            if state is not None:
                states[self.names[client]] = _read_only(state)
        return states


class Observer:
    """A callback that measures a run: `measure` takes a `RunView` and returns columns.

    Attributes
    ----------
    unsafe : bool
        Whether it may read, in a private run, values that no noise protects; see `Plan`.

    Examples
    --------
    The distance of the clients' control variates from a sum of 0:

    >>> from flower_fedcon import FederatedProblem, Observer, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.strategies import Scaffold
    >>> class Variates(Observer):
    ...     def measure(self, view):
    ...         own = [state.c for state in view.clients.values()]
    ...         return {"variates": float(np.abs(sum(own)).max())}
    >>> problem = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (1.0, 3.0)])
    >>> strategy = Scaffold(client_lr=0.5, local_steps=2)
    >>> history = simulate(strategy, problem, num_rounds=3, callbacks=[Variates()])
    >>> history["variates"]
    array([3.    , 0.75  , 0.1875])
    """

    unsafe = False

    def measure(self, view: RunView) -> Mapping[str, float] | None:
        """Return numbers to add to a record, under names that are not columns yet."""
        return None

    def __call__(self, record: Record) -> bool:
        """Return whether to stop, given the whole record."""
        return False


def is_unsafe(callback: Any) -> bool:
    """Return whether a callback accepts, in a private run, values that no noise covers."""
    return bool(getattr(callback, "unsafe", False))


def observed(
    callbacks: Iterable[Any],
    server: Server,
    engine: Engine,
    records: Mapping[bool, Record],
    covered: bool = False,
) -> Record:
    """Return the measurements of the callbacks that are observers.

    Parameters
    ----------
    callbacks, server, engine
    records : dict
        The record of the round so far, for unsafe callbacks and for the others.
    covered : bool
        Whether the others see only values that noise covers.

    Raises
    ------
    ConfigError
        If a column is not a number, or its name is taken.
    """
    measured: Record = {}
    watching = [one for one in callbacks if callable(getattr(one, "measure", None))]
    views: dict[bool, RunView] = {}
    for one in watching:
        unsafe = is_unsafe(one)
        if unsafe not in views:
            views[unsafe] = RunView(server, engine, records[unsafe], covered and not unsafe)
        more = one.measure(views[unsafe])
        if more is None:
            continue
        if not isinstance(more, Mapping):
            raise ConfigError(
                f"{type(one).__name__}.measure must return numbers by name, or None, got {more!r}"
            )
        check_metric_names(more)
        for name in more:
            if name in records[True] or name in measured:
                raise ConfigError(
                    f"{type(one).__name__}.measure returns {name!r}, which is already a column: "
                    f"choose another name"
                )
        measured |= numbers(more)
    return measured


def _read_only(value: Any) -> Any:
    """Return a value with its arrays as read-only views."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(_read_only, value))
    return value
