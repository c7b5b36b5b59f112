"""The accountant: what so many rounds cost, by dp-accounting."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from flower_fedcon.errors import ConfigError

FULL, FIXED, POISSON = "full", "fixed", "poisson"


def library() -> Any:
    """Return dp-accounting.

    Raises
    ------
    ConfigError
        Where it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise ConfigError(
            "privacy is counted by dp-accounting: pip install 'flower-fedcon[privacy]'"
        ) from None
    return dp_accounting


class Sampling(NamedTuple):
    """How a round's cohort is drawn.

    Attributes
    ----------
    kind : {"full", "fixed", "poisson"}
    num_clients : int
    size : float
        Of a cohort, or its mean.
    """

    kind: str
    num_clients: int
    size: float

    @property
    def rate(self) -> float:
        """The probability with which a client takes part."""
        return self.size / self.num_clients


class Accountant:
    """Renyi differential privacy of rounds that are all alike.

    Everyone and independent draws: neighbours differ in one client's contribution. Cohorts of a
    fixed size, drawn without replacement: in its value, so that the sum moves by twice the clip.

    Parameters
    ----------
    noise_multiplier : float
    delta : float
    sampling : Sampling

    Raises
    ------
    ConfigError
        If dp-accounting is not installed.

    Examples
    --------
    >>> round(Accountant(4.0, 1e-5, Sampling("full", 100, 100)).epsilon(10), 3)
    3.617
    """

    def __init__(self, noise_multiplier: float, delta: float, sampling: Sampling) -> None:
        self.delta = delta
        self._orders, self._round = None, None
        if noise_multiplier > 0:
            self._orders, self._round = _of_one_round(noise_multiplier, sampling)

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after so many rounds."""
        if rounds == 0:
            return 0.0
        if self._round is None:
            return math.inf
        found, _ = library().rdp.compute_epsilon(self._orders, rounds * self._round, self.delta)
        return float(found)


@cache
def _of_one_round(noise_multiplier: float, sampling: Sampling) -> tuple[Any, Any]:
    """Return Renyi orders, and the divergence of one round at each."""
    dp = library()

    class OneRound(dp.rdp.RdpAccountant):  # type: ignore[misc, name-defined, unused-ignore]
        """The accountant, with its divergences: a round's are the same in all rounds."""

        def divergences(self) -> tuple[Any, Any]:
            return self._orders, self._rdp

    relation, event = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.GaussianDpEvent(noise_multiplier)
    if sampling.kind == POISSON:
        event = dp.PoissonSampledDpEvent(sampling.rate, event)
    elif sampling.kind == FIXED:
        relation = dp.NeighboringRelation.REPLACE_ONE
        half, size = dp.GaussianDpEvent(noise_multiplier / 2), round(sampling.size)
        event = dp.SampledWithoutReplacementDpEvent(sampling.num_clients, size, half)
    accountant = OneRound(neighboring_relation=relation)
    with _quiet():
        accountant.compose(event)
    return accountant.divergences()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the library says of orders that it leaves out."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
