"""Proximal gradient on the dual problem: the arguments of DualFL, and what follows from them."""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple, TypeVar, Unpack

from flower_fedcon.core.participation import Bernoulli, Participation
from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.families.minimization import LocalMinimization, MinimizationOptions
from flower_fedcon.strategies.families.mirrored import HasMirror, Mirrored
from flower_fedcon.validation import choice, nonnegative, optional, positive

State = TypeVar("State", bound=HasMirror)
_log = logging.getLogger("flwr.strategies")
_SLACK = 1 + 1e-9  # mu and L are known to rounding


class DualConstants(NamedTuple):
    """What follows from the setup."""

    nu: float
    rho: float
    ratio: float  # r = s/nu of the dual step s


class DualProximalGradient(LocalMinimization[State], Mirrored[State]):
    """The arguments and constants of DualFL; see there.

    Parameters
    ----------
    strong_convexity, momentum, regularizer, stopping, gap_gamma, regularization, mirror
        See `flower_fedcon.strategies.DualFL`.
    """

    constants: DualConstants

    def __init__(
        self,
        *,
        strong_convexity: float | None = None,
        momentum: float | None = None,
        regularizer: Any = None,
        stopping: str = "solver",
        gap_gamma: float = 0.1,
        regularization: float = 0.0,
        mirror: bool = True,
        **common: Unpack[MinimizationOptions],
    ) -> None:
        super().__init__(**common)
        self.strong_convexity = optional(positive, "strong_convexity", strong_convexity)
        self.momentum = optional(nonnegative, "momentum", momentum)
        self.regularizer = None if regularizer is None else as_regularizer(regularizer)
        self.stopping = choice("stopping", stopping, ("solver", "gap"))
        self.gap_gamma = positive("gap_gamma", gap_gamma)
        self.regularization = nonnegative("regularization", regularization)
        self.mirror = bool(mirror)
        if self.regularizer is not None and (self.momentum or self.stopping == "gap"):
            raise ConfigError(
                f'with a regularizer {self.title} has momentum=0 and stopping="solver", got '
                f"momentum={momentum!r} and stopping={stopping!r}"
            )

    def derive(self) -> DualConstants:
        """Settle nu, rho and r."""
        setup, alpha = self.setup, self.regularization
        nu = choose_modulus(setup, self.strong_convexity, alpha)
        if not setup.sampled:
            plain = self.regularizer is None
            rho = choose_momentum(setup, self.momentum, nu, alpha, by_default=plain)
            return DualConstants(nu, rho, 1.0)
        if self.momentum or self.stopping == "gap":
            self.refuse_participation(
                "has neither momentum nor a gap rule without some clients",
                'momentum=0 and stopping="solver", or Full()',
            )
        return DualConstants(nu, 0.0, block_ratio(setup, self.participation))


def choose_modulus(setup: Setup, given: float | None, regularization: float) -> float:
    """Return nu, at most mu + alpha.

    Raises
    ------
    ConfigError
        If it is not known, or too large.
    """
    mu, alpha = setup.strong_convexity, regularization
    nu = given or (mu or 0.0) + alpha
    if nu == 0:
        raise ConfigError(
            "DualFL needs strongly convex objectives, and the clients' modulus is "
            f"{'unknown' if mu is None else 0}: give strong_convexity, or regularization=alpha "
            "to add alpha/2 ||x||^2 to each"
        )
    if mu is not None and nu > (mu + alpha) * _SLACK:
        raise ConfigError(
            f"strong_convexity must be at most {mu + alpha:.6g}, the clients' mu plus "
            f"regularization, got {nu!r}"
        )
    return nu


def choose_momentum(
    setup: Setup, given: float | None, nu: float, regularization: float, *, by_default: bool
) -> float:
    """Return rho: by default nu/(L + alpha), or 0; a larger one, up to 1, is used with a warning.

    Raises
    ------
    ConfigError
        If it is above 1.
    """
    smoothness = setup.smoothness
    most = 1.0 if smoothness is None else min(1.0, nu / (smoothness + regularization))
    if given is None:
        return 0.0 if smoothness is None or not by_default else most
    if given > _SLACK:
        raise ConfigError(f"momentum must be at most 1, got {given!r}")
    if given > 0 and smoothness is None:
        _log.warning("the clients' smoothness L is unknown: momentum must be at most nu/L")
    elif given > most * _SLACK:
        _log.warning(
            "DualFL's momentum %g is above nu/L = %.6g: neither its linear rate nor that it "
            "converges at all is guaranteed", given, most,
        )  # fmt: skip
        return min(given, 1.0)
    return min(given, most)


def block_ratio(setup: Setup, participation: Participation) -> float:
    """Return r under sampling: N/C for cohorts of C, N/(pN + 1 - p) for Bernoulli(p)."""
    n, p = setup.num_clients, setup.rate
    return n / (p * (n - 1) + 1) if isinstance(participation, Bernoulli) else 1 / p


def momentum_step(t: float, rho: float) -> tuple[float, float]:
    """Return t_{n+1} and beta_n from t_n.

    >>> [round(x, 6) for x in momentum_step(1.0, 0.0)]
    [1.618034, 0.0]
    """
    a = 1 - rho * t * t
    after = (a + math.sqrt(a * a + 4 * t * t)) / 2
    if rho == 1:
        return after, 0.0
    return after, (t - 1) / after * (1 - rho * after) / (1 - rho)
