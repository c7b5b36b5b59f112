"""Each client's share of the uploads of a run without rounds, from its log of events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.core.buffered import favoured
from flower_fedcon.errors import printable
from flower_fedcon.lab.report.exchanges import complete_lines
from flower_fedcon.runs.flowing import NAME

UNUSED = ("stale", "dropped", "lost", "silent")
"""The outcomes of a request that led to no upload that was used."""
_LISTED = 20  # clients in a line of text


@dataclass
class Shares:
    """The content of a log of events (`flower_fedcon.runs.flowing`), so far.

    Clients are numbers.

    Attributes
    ----------
    names : list of str
        In client order; empty in a log without its first line.
    bias : str, optional
        The method's `async_bias`; None if it is not known.
    used : Counter
        How many uploads of each client were used, or are held for the coming step.
    ages : Counter
        The sum of their ages, in steps.
    oldest : dict
        The age of the oldest.
    unused : dict
        Outcome -> how many requests to each client ended so.
    at_work : dict
        Clients that are at work -> the second at which they were asked.
    seconds : float
        The time of the last event.
    steps : int
        How many steps have been done or begun.
    unreadable : int
        The number of unreadable lines.
    """

    names: list[str] = field(default_factory=list)
    bias: str | None = None
    used: Counter[int] = field(default_factory=Counter)
    ages: Counter[int] = field(default_factory=Counter)
    oldest: dict[int, int] = field(default_factory=dict)
    unused: dict[str, Counter[int]] = field(
        default_factory=lambda: {outcome: Counter() for outcome in UNUSED}
    )
    at_work: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    unreadable: int = 0
    _version: int = 0  # steps done when clients were last asked

    def take(self, text: str | bytes) -> None:
        """Take in a line of the log, or count it as unreadable."""
        try:
            self._take(json.loads(text))
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            self.unreadable += 1

    def _take(self, line: Mapping[str, Any]) -> None:
        if "algorithm" in line:
            names, bias = [printable(str(name)) for name in line["clients"]], line["async_bias"]
            self.names, self.bias = names, str(bias)
            return
        seconds, step = float(line["seconds"]), int(line["step"])
        if "asked" in line:
            clients = [self._known(client) for client in line["asked"]]
            if step < self._version:  # the run has begun again
                self.at_work.clear()
            self.steps = self._version = step
            self.at_work |= dict.fromkeys(clients, seconds)
        else:
            client, age, outcome = (
                self._known(line["client"]),
                int(line["staleness"]),
                line["outcome"],
            )
            if outcome == "used":
                self.used[client] += 1
                self.ages[client] += age
                self.oldest[client] = max(age, self.oldest.get(client, 0))
                self.steps = step
            else:
                self.unused[outcome][client] += 1
            self.at_work.pop(client, None)
        self.seconds = seconds

    def _known(self, client: Any) -> int:
        number = int(client)
        if number < 0 or (self.names and number >= len(self.names)):
            raise ValueError(f"there is no client {number}")
        return number

    @property
    def clients(self) -> list[int]:
        """The clients, those with the largest share first; without names, those heard of."""
        heard = {*self.used, *self.at_work, *(c for own in self.unused.values() for c in own)}
        everyone = range(len(self.names)) if self.names else sorted(heard)
        return sorted(everyone, key=lambda client: -self.used[client])

    def name(self, client: int) -> str:
        """Return a client's name, or its number."""
        return self.names[client] if client < len(self.names) else str(client)

    def share(self, client: int) -> float:
        """Return a client's share of the uploads that were used; 0 before the first."""
        return self.used[client] / max(1, self.used.total())

    def age(self, client: int) -> float:
        """Return the mean age of a client's uploads, in steps."""
        return self.ages[client] / max(1, self.used[client])

    @property
    def pace(self) -> str:
        """How many steps come in a second, in words; "" before the first."""
        if not self.steps or not self.seconds:
            return ""
        return f"{self.steps / self.seconds:.3g} steps a second"

    @property
    def favoured(self) -> str:
        """The sentence on favoured clients, if the method has a bias."""
        if not self.bias or not self.names:
            return ""
        used = np.array([self.used[client] for client in range(len(self.names))])
        return favoured(self.bias, self.names, used)

    def line(self, *, running: bool) -> str:
        """Return each client's share and the mean age of its uploads; and who is at work."""
        told = [f"{self.name(c)} {self.share(c):.1%} ({self.age(c):.2g})" for c in self.clients]
        if len(told) > _LISTED:
            half = _LISTED // 2
            told[half:-half] = [f"{len(told) - 2 * half} between them"]
        parts = [f"{self.used.total():,} uploads (steps old): {', '.join(told)}", self.pace]
        if running and self.at_work:
            first = min(self.at_work, key=lambda client: self.at_work[client])
            since = f"{self.at_work[first]:.4g} of {self.seconds:.4g}"
            at_work = f"{len(self.at_work)} at work, {self.name(first)} since second {since}"
            parts.append(at_work)
        return "; ".join(part for part in parts if part)


def read_shares(folder: Path) -> Shares | None:
    """Return the content of a run's log of events; None without one.

    Raises
    ------
    StorageError
        If it cannot be read.
    """
    path = folder / NAME
    if not path.exists():
        return None
    shares = Shares()
    for text in complete_lines(path):
        shares.take(text)
    return shares
