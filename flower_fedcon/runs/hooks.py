"""What a run does beside playing rounds: hooks, in an order that has a meaning.

A run has, in this order, the ledgers of private examples, its folder, the race, restarts, the
callbacks, and what wings bring (`runs.hook_registry`). So what has been spent is on the disk before
anything that it has paid for, and a row before callbacks see it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.round import Round
from flower_fedcon.core.server import Server
from flower_fedcon.errors import DivergedError
from flower_fedcon.runs.history import Callback, EarlyStopping, History, Record, row_name
from flower_fedcon.runs.limits import Budget
from flower_fedcon.runs.observing import is_unsafe
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.recording import Recorder
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr")


class Playing(Protocol):
    """A run, as its hooks see it.

    Attributes
    ----------
    plan : Plan
    engine : Engine
        Open, except before the first server is known.
    start : array
        The packed model before round 1.
    server : Server
        A hook may replace it (`lead`, `diverged`).
    recorder : Recorder
    history : History
        So far; from `begin` on.
    asking : bool
        Whether a round has begun and is not being applied: the run can still go back to its start.
    hooks : Hooks
    """

    plan: Plan
    engine: Engine
    start: Array
    server: Server
    recorder: Recorder
    history: History
    asking: bool

    @property
    def hooks(self) -> Hooks:
        """All hooks of the run."""
        ...

    def play_round(self) -> Round:
        """Play the next round."""

    def enter(self, row: Record, seen: Mapping[bool, Record] | None = None) -> bool:
        """Record a row, and return whether it ends the run."""

    def pause(self, *, now: bool) -> None:
        """Write a checkpoint, now or if one is due, and handle signals."""


class RunHook:
    """A part of a run. Each method does nothing, unless a hook defines it.

    Attributes
    ----------
    name : str
        Under which a checkpoint has its state.
    arguments : tuple of str
        The arguments of a plan that belong to it.
    asks : str, optional
        By which method it asks clients for more than rounds need; None if it does not.

    Examples
    --------
    A hook that counts rounds, also over the starts of a run:

    >>> class Rounds(RunHook):
    ...     name = "rounds"
    ...
    ...     def begin(self, run, known):
    ...         self.count = 0 if known is None else known
    ...
    ...     def after_round(self, run, raw=None):
    ...         self.count += raw is None
    ...
    ...     def snapshot(self):
    ...         return self.count

    `flower_fedcon.runs.hook_registry.register(Rounds)` makes it a part of each run from then on.
    """

    name = ""
    arguments: tuple[str, ...] = ()
    asks: str | None = None

    @classmethod
    def check(cls, plan: Plan) -> None:
        """Refuse a plan whose `arguments` are not valid, as soon as they are given.

        Raises
        ------
        ConfigError
        """

    @classmethod
    def of(cls, plan: Plan, strategy: Method[Any], setup: Setup) -> RunHook | None:
        """Return the hook of a run; None if it has no part in it.

        Raises
        ------
        ConfigError
            If the run cannot have what the plan asks for.
        """
        return cls()

    def begin(self, run: Playing, known: Any) -> None:
        """Begin. `known` is its state in the checkpoint from which the run is resumed, or None."""

    def lead(self, run: Playing) -> bool:
        """Do what comes before the first round, or play rounds; return whether the run goes on."""
        return True

    def before_round(self, run: Playing, most: int) -> int:
        """Return after how many of the coming rounds to look again: from 1 to `most`.

        An engine may do so many by itself.
        """
        return most

    def writing(self, run: Playing) -> None:
        """Be told that something is about to be shown or written that rounds have paid for."""

    def after_round(self, run: Playing, raw: Record | None = None) -> None:
        """Be told that rounds are complete; once more with the clients' evaluations, if any.

        Raises
        ------
        DivergedError
            If the run must start again, or end.
        """

    def diverged(self, run: Playing, error: DivergedError) -> bool:
        """Return whether it has replaced a server that diverges."""
        return False

    def recorded(self, run: Playing, row: Record, seen: Mapping[bool, Record]) -> bool:
        """Take a row of the history, and return whether to end the run.

        `seen` has what those may see that accept values that no noise covers, and the others.
        """
        return False

    def pause(self, run: Playing, *, now: bool) -> None:
        """Be told that a round is complete, with its row; write `now` what must not be lost."""

    def snapshot(self) -> Any:
        """Return its state for a checkpoint: dicts, lists, numbers and arrays; None for none."""
        return None

    def conclude(self, run: Playing, *, whole: bool) -> None:
        """Put results into the history after the last round; ask for more only of a `whole` run.

        A run that has ended by an error is not whole.
        """

    def sync(self) -> None:
        """Bring to the disk what a checkpoint is about to count."""

    def ended(self, run: Playing) -> None:
        """Write results to the run's folder, also after an error."""

    def doubts(self, run: Playing) -> Iterable[str]:
        """Return warnings about the result."""
        return ()


class Callbacks(RunHook):
    """The plan's callbacks, each of which sees every row, also that at which another one stops."""

    def recorded(self, run: Playing, row: Record, seen: Mapping[bool, Record]) -> bool:
        """Show a row, and return whether a callback ends the run; the log says which, and why."""
        ends = [one for one in run.plan.callbacks if one(seen[is_unsafe(one)])]
        if ends and run.server.round < run.plan.num_rounds:
            reasons = "; ".join(_why(one, seen[is_unsafe(one)]) for one in ends)
            _log.info("stopped at %s %d: %s", row_name([row]), row["round"], reasons)
        return bool(ends)

    def doubts(self, run: Playing) -> Iterable[str]:
        """Say which callbacks never saw the column that they watch."""
        watching = (one for one in run.plan.callbacks if isinstance(one, EarlyStopping))
        return [one.doubt for one in watching if one.doubt]


def _why(callback: Callback, record: Record) -> str:
    """Return why a callback ends a run with a record."""
    if isinstance(callback, EarlyStopping | Budget):
        return callback.why(record)
    name = getattr(callback, "__name__", type(callback).__name__)
    return f"the callback {name} returned True"


class Hooks:
    """The hooks of a run, each method of which calls those that define it, in their order.

    Parameters
    ----------
    parts : sequence of RunHook
    """

    def __init__(self, parts: Sequence[RunHook]) -> None:
        self.parts = tuple(parts)
        self._before, self._writing = self._defined("before_round"), self._defined("writing")
        self._after, self._pausing = self._defined("after_round"), self._defined("pause")

    def _defined(self, name: str) -> list[Any]:
        """Return a method of the hooks that define it: a run calls it in every round."""
        parts = (part for part in self.parts if getattr(type(part), name) != getattr(RunHook, name))
        return [getattr(part, name) for part in parts]

    @property
    def asks(self) -> str | None:
        """By which method clients are asked for more than rounds need; None if they are not."""
        return next((part.asks for part in self.parts if part.asks is not None), None)

    def begin(self, run: Playing, known: Mapping[str, Any]) -> None:
        """Begin, with the states that a checkpoint has."""
        for part in self.parts:
            part.begin(run, known.get(part.name))

    def lead(self, run: Playing) -> bool:
        """Do what comes before the first round; return whether all want the run to go on."""
        return all(part.lead(run) for part in self.parts)

    def before_round(self, run: Playing, most: int) -> int:
        """Return how many rounds may be played before all have to look again."""
        for before in self._before:
            most = before(run, most)
        return most

    def writing(self, run: Playing) -> None:
        """Tell that something is about to be shown or written."""
        for writing in self._writing:
            writing(run)

    def after_round(self, run: Playing, raw: Record | None = None) -> None:
        """Tell of complete rounds, or of an evaluation."""
        for after in self._after:
            after(run, raw)

    def diverged(self, run: Playing, error: DivergedError) -> bool:
        """Return whether one of them has replaced a server that diverges."""
        return any(part.diverged(run, error) for part in self.parts)

    def recorded(self, run: Playing, row: Record, seen: Mapping[bool, Record]) -> bool:
        """Show a row to all, and return whether one of them ends the run."""
        return any([part.recorded(run, row, seen) for part in self.parts])  # noqa: C419

    def pause(self, run: Playing, *, now: bool) -> None:
        """Tell that a round is complete, with its row."""
        for pausing in self._pausing:
            pausing(run, now=now)

    def snapshot(self) -> dict[str, Any]:
        """Return their states, by name."""
        states = ((part.name, part.snapshot()) for part in self.parts if part.name)
        return {name: state for name, state in states if state is not None}

    def conclude(self, run: Playing, *, whole: bool) -> None:
        """Let all put results into the history."""
        for part in self.parts:
            part.conclude(run, whole=whole)

    def sync(self) -> None:
        """Let all bring to the disk what a checkpoint is about to count."""
        for part in self.parts:
            part.sync()

    def ended(self, run: Playing) -> None:
        """Let all write results."""
        for part in self.parts:
            part.ended(run)

    def doubts(self, run: Playing) -> Iterator[str]:
        """Yield the warnings of all."""
        for part in self.parts:
            yield from part.doubts(run)
