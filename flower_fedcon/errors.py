"""Errors that a user can cause; all derive from `FedConError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedConError(Exception):
    """A user error: its text names the value, the valid range and the remedy."""


class ConfigError(FedConError):
    """An argument, file entry or setting that cannot be used."""


class ParticipationError(FedConError):
    """A cohort rule that the algorithm cannot work with."""


class RoundError(FedConError):
    """A round that could not be completed with enough valid replies."""


class AlgorithmError(FedConError):
    """A strategy and its client do not fit together: a mistake in their code."""


class StateLostError(FedConError):
    """A client is asked to go on, but its state is gone."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return a hint naming the valid word nearest to `word`, then all of them.

    >>> nearest("penality", ["penalty", "schedule"])
    "did you mean 'penalty'? Valid: penalty, schedule"
    """
    words = sorted(valid)
    lowered = {w.lower(): w for w in words}
    close = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.5)
    hint = f"did you mean '{lowered[close[0]]}'? " if close else ""
    return f"{hint}Valid: {', '.join(words)}"
