"""What commands print: lines, tables, the progress of a run."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from flower_fedcon.runs.history import Record
    from flower_fedcon.runs.limits import End


class InterruptedRunError(Exception):
    """Ctrl-C during a run; the text says how to continue it."""


def console() -> Console:
    """Return a console for standard output."""
    from rich.console import Console

    screen = Console(markup=False, highlight=False)
    if screen.is_terminal or "COLUMNS" in os.environ:
        return screen
    # A file or a pipe has no width, and 80 columns would break every cell.
    return Console(markup=False, highlight=False, width=160)


def table(*columns: str, plain: bool = False, right_from: int | None = None) -> Table:
    """Return an empty table; `plain` without header, numbers from column `right_from` on."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=None if plain else SIMPLE_HEAD, show_header=not plain, pad_edge=False)
    for i, name in enumerate(columns):
        right = right_from is not None and i >= right_from
        made.add_column(name, justify="right" if right else "left", overflow="fold")
    return made


def say(text: str) -> None:
    """Print a line of any length without breaks."""
    print(text, flush=True)


@contextmanager
def progress(label: str, rounds: int, callbacks: Sequence[Any] = ()) -> Iterator[Any]:
    """Yield a callback that shows a bar on a terminal, or otherwise a line at each tenth.

    It shows the time left, and which of `callbacks` will end the run first.
    """
    from flower_fedcon.runs.history import row_name
    from flower_fedcon.runs.limits import Forecast

    screen, forecast = console(), Forecast(rounds, callbacks)
    if not screen.is_terminal:
        began, shown = time.perf_counter(), 0

        def line(record: Record) -> None:
            nonlocal shown
            tenth, end = int(10 * record["round"] / rounds), forecast(record)
            if tenth > shown or record["round"] == rounds or end.reached:
                shown = tenth
                seconds = time.perf_counter() - began
                say(f"{label}: {row_name([record])} {record['round']:g}/{rounds}, "
                    f"{brief(record)}, {seconds:.1f} s{left(end)}")  # fmt: skip

        yield line
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[state]}", markup=False),
    )
    with progress.Progress(*columns, console=screen) as bar:
        task = bar.add_task(label, total=rounds, state="")

        def move(record: Record) -> None:
            state = brief(record) + left(forecast(record))
            bar.update(task, completed=record["round"], state=state)

        yield move


@contextmanager
def steps(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step: a bar on a terminal, otherwise nothing."""
    screen = console()
    if not screen.is_terminal:
        yield lambda: None
        return
    from rich import progress

    with progress.Progress(console=screen) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def brief(record: Record) -> str:
    """Return a record's objective, with F - F* and epsilon if they are known."""
    text = f"F {record['objective']:.6g}" if "objective" in record else "not evaluated"
    text += f", F - F* {over_optimum(record):.3g}" if "residual" in record else ""
    return text + (f", epsilon {record['epsilon']:.3g}" if "epsilon" in record else "")


def over_optimum(record: Record) -> float:
    """Return F - F*, as 0 if it is negative by rounding only; NaN if it is not known.

    >>> over_optimum({"objective": 0.5, "residual": -5.55e-18})
    0.0
    >>> over_optimum({"objective": 0.5, "residual": -1e-3})
    -0.001
    """
    from flower_fedcon.runs.relative import ROUNDING

    residual = record.get("residual", math.nan)
    value = record.get("objective", 0.0)
    rounding = ROUNDING * max(abs(value), abs(value - residual))
    return 0.0 if -rounding <= residual < 0 else residual


def left(end: End) -> str:
    """Return a run's time left and what will end it, or what has ended it.

    >>> from flower_fedcon.runs.limits import End
    >>> left(End(75.2, "round 100", reached=False)), left(End(0.0, "2 megabytes", reached=True))
    (', 1:15 left until round 100', ', ended by 2 megabytes')
    """
    if end.reached:
        return "" if end.what.startswith(("round ", "step ")) else f", ended by {end.what}"
    if not math.isfinite(end.seconds):
        return ""
    return f", {clock(end.seconds)} left until {end.what}"


def clock(seconds: float) -> str:
    """Return a duration in the form of a clock.

    >>> clock(75.2), clock(3661)
    ('1:15', '1:01:01')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def quiet(active: bool, *, strategies: bool = False) -> Iterator[None]:
    """Silence Flower's log and NumPy's warnings: a diverging run ends with a single error.

    With `strategies`, a strategy's messages about its settings are still shown.
    """
    if not active:
        yield
        return
    import numpy as np

    from flower_fedcon.runs.json_log import JsonLog

    logs = {"flwr": logging.ERROR}
    logs["flwr.strategies"] = logging.WARNING if strategies else logging.ERROR
    before = {name: logging.getLogger(name).level for name in logs}
    heard = [h for h in logging.getLogger("flwr").handlers if not isinstance(h, JsonLog)]
    muted: dict[logging.Handler, int] = {}
    if len(heard) < len(logging.getLogger("flwr").handlers):  # the JSON log has everything
        muted = {handler: handler.level for handler in heard}
        for handler in heard:
            handler.setLevel(logging.ERROR)
    else:
        for name, level in logs.items():
            logging.getLogger(name).setLevel(level)
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        for handler, level in muted.items():
            handler.setLevel(level)
