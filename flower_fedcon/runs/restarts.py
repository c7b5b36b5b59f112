"""A run that diverges starts again with shorter steps, if these are estimates or won a race."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.server import Server
from flower_fedcon.errors import DivergedError
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.hooks import Playing, RunHook
from flower_fedcon.runs.race_hook import RaceHook
from flower_fedcon.runs.scouting import Guard, ended_above, sharper
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr.strategies")
_MOST = 40


class Restarts(RunHook):
    """Watches the objective, and replaces a server that diverges.

    Parameters
    ----------
    race_hook : RaceHook
    server : Server
        The run's first server.
    x0 : array
        The packed start.
    engine : Engine
        Open for this server.
    """

    def __init__(self, race_hook: RaceHook, server: Server, x0: Array, engine: Engine) -> None:
        self._race_hook, self._start, self._engine = race_hook, x0, engine
        self._watched, self._guard = server, self._guarded(server.setup)
        self._count = 0

    def _guarded(self, setup: Setup) -> Guard | None:
        """Return the guard against growth, if steps are estimates or come from a race."""
        falls = [row["objective"] for row in self._race_hook.rows if self._race_hook.chosen]
        falls = [value for value in falls if math.isfinite(value)]
        guard = Guard.of_estimates(setup, self._start, self._engine)
        if not falls:
            return guard
        first = self._engine.evaluate(self._start).get("objective", math.nan)
        fall = first - min(falls)
        if fall < 0:  # no value fell, perhaps since all diverge
            fall = -fall if guard is None else min(-fall, guard.fall)
        return Guard(self._engine, first, fall)

    def lead(self, run: Playing) -> bool:
        """Watch the winner of a race."""
        if run.server is not self._watched:
            self._guard = self._guarded(run.server.setup)
        return True

    def before_round(self, run: Playing, most: int) -> int:
        """Return how many rounds may be played before the next check."""
        return most if self._guard is None else min(most, self._guard.until_due(run.server.round))

    def after_round(self, run: Playing, raw: Record | None = None) -> None:
        """Check the objective, if a check is due or clients have evaluated the model.

        Raises
        ------
        DivergedError
        """
        if self._guard is None:
            return
        if raw:
            self._guard.check(run.server, raw.get("objective"))
        elif raw is None and self._guard.is_due(run.server.round):
            self._guard.check(run.server)

    def diverged(self, run: Playing, error: DivergedError) -> bool:
        """Start again from x0 in the next round, with shorter steps, if L is an estimate.

        Not if it is not, or if several such starts have not helped.
        """
        race_hook = self._race_hook
        if self._guard is None or self._count >= _MOST:
            return False
        if race_hook.race is not None:  # everyone in it diverges
            run.server, run.history.race = race_hook.abandon(), race_hook.rows
        self._count += 1
        old = run.server
        setup, why = old.setup, str(error).partition(": the run diverges")[0]
        if race_hook.chosen:
            race_hook.give_up()
            _log.warning(
                "%s: %s. The race's choice is dropped: the run starts again from x0 with %s and "
                "its defaults",
                old.strategy.title,
                why,
                race_hook.plain.title,
            )
        else:
            setup = sharper(setup)
            _log.warning(
                "%s: %s. The clients' smoothness was estimated, and is now taken as %.3g: the run "
                "starts again from x0",
                old.strategy.title,
                why,
                setup.smoothness,
            )
        run.asking = False
        run.server = old.anew(race_hook.plain, setup, run.start, run.plan.clock)
        run.engine.open(run.server.info)
        self._guard = Guard.of_estimates(setup, run.start, run.engine)
        return True

    def doubts(self, run: Playing) -> Iterator[str]:
        """Yield that the objective has not fallen, or has grown."""
        last, server = run.history.rows[-1] if run.history.rows else {}, run.server
        if self._guard is not None:
            doubt = self._guard.doubt(server, last)
        else:
            doubt = ended_above(server, run.engine, run.start, last)
        if doubt:
            yield f"{server.strategy.title}: {doubt}"
