"""Proximal gradient on the dual problem: DualFL's arguments and constants."""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple, TypeVar, Unpack

from flower_fedcon.core.participation import Bernoulli, Participation, Sample
from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.solvers import gap_tolerance
from flower_fedcon.strategies.families.minimization import LocalMinimization, MinimisationOptions
from flower_fedcon.strategies.families.mirrored import HasMirror, Mirrored
from flower_fedcon.strategies.families.moduli import stated_zero
from flower_fedcon.validation import (
    AUTO,
    choice,
    chosen,
    nonnegative,
    optional,
    positive,
    up_to_one,
)
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State", bound=HasMirror)
_log = logging.getLogger("flwr.strategies")
_SLACK = 1 + 1e-9  # mu and L are known to rounding
FORMS = ("paper", "accelerated", "block")
LARGEST = 0.999  # rho of the accelerated form


class DualConstants(NamedTuple):
    """Constants that follow from the setup."""

    form: str
    nu: float
    rho: float
    num_clients: int
    ratio: float = 1.0  # r = s/nu of the block form's dual step s, and K of the accelerated form
    regularizer: Any = None  # psi in the clients' problems
    psi: Any = None  # psi at the server
    p: float = 1.0  # each client's probability of being used in a round
    q: float = 0.0  # of the accelerated form
    gap_gamma: float | None = None  # of the gap rule, if it is used

    @property
    def accelerated(self) -> bool:
        """Whether this is the accelerated form."""
        return self.form == "accelerated"

    def tolerance(self, n: int, modulus: float, momentum: float) -> Payload:
        """Return the gap rule's part of a round's broadcast, by name."""
        if self.gap_gamma is None:
            return {}
        gap = gap_tolerance(
            n,
            num_clients=self.num_clients,
            strong_convexity=modulus,
            momentum=momentum,
            gamma=self.gap_gamma,
        )
        return {"tolerance": gap}


class DualProximalGradient(LocalMinimization[State], Mirrored[State]):
    """The arguments and constants of DualFL; see there.

    Parameters
    ----------
    strong_convexity, momentum, regularizer, form, reply_rate, stopping, gap_gamma, regularization,
    mirror
        See `flower_fedcon.strategies.DualFL`.
    """

    constants: DualConstants

    def __init__(
        self,
        *,
        strong_convexity: float | None = None,
        momentum: float | str | None = None,
        regularizer: Any = None,
        form: str | None = None,
        reply_rate: float = 1.0,
        stopping: str = "solver",
        gap_gamma: float = 0.1,
        regularization: float = 0.0,
        mirror: bool = True,
        **common: Unpack[MinimisationOptions],
    ) -> None:
        super().__init__(**common)
        self.strong_convexity = optional(positive, "strong_convexity", strong_convexity)
        self.momentum = chosen(nonnegative, "momentum", momentum)
        self.regularizer = None if regularizer is None else as_regularizer(regularizer)
        self.form = None if form is None else choice("form", form, FORMS)
        self.reply_rate = up_to_one("reply_rate", reply_rate)
        self.stopping = choice("stopping", stopping, ("solver", "gap"))
        self.gap_gamma = positive("gap_gamma", gap_gamma)
        self.regularization = nonnegative("regularization", regularization)
        self.mirror = bool(mirror)

    def why_no_epochs(self) -> str:
        """Return why SGD is refused, if solves end by the gap rule."""
        gap = self.stopping == "gap"
        return 'stopping="gap" needs a solver that reaches a tolerance' if gap else ""

    def raced(self) -> list[str]:
        """Return the arguments that are "auto"."""
        return ["momentum"] if self.momentum == AUTO else []

    def rule_value(self, name: str) -> Any:
        """Return the rho in use."""
        return self.constants.rho if name == "momentum" else super().rule_value(name)

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return the rho that a race tries: the rule's and 0; more than nu/L has no proof."""
        return [value, value / 4, 0.0]

    def minimises_mean(self) -> bool:
        """Return whether it minimises F, without a square that `regularization` adds."""
        return super().minimises_mean() and not self.regularization

    def derive(self) -> DualConstants:
        """Settle the form, nu, rho and constants that follow."""
        if self.momentum == AUTO:
            raise ConfigError(
                f'{self.title}: momentum="auto" is chosen within a run: give a number here'
            )
        setup, alpha, psi = self.setup, self.regularization, self.regularizer
        n = setup.num_clients
        absent = setup.sampled or self.reply_rate < 1
        rule, uniform = self.participation, Sample | Bernoulli
        if setup.sampled and not isinstance(rule, uniform) and rule.inclusion(n) is not None:
            self.refuse_participation(
                "needs uniform cohorts", "Sample(...), Bernoulli(p) or Full()"
            )
        form = self.form or ("accelerated" if absent or psi is not None else "paper")
        nu = choose_modulus(setup, self.strong_convexity, alpha)
        gamma = self.gap_gamma if self.stopping == "gap" else None
        constants = DualConstants(form, nu, 0.0, setup.num_clients, gap_gamma=gamma)
        if form == "accelerated":
            rho = choose_momentum(setup, self.momentum, nu, alpha, strict=True)
            p, ratio = self._used_rate(), block_ratio(setup, self.participation)
            rho = min(rho, LARGEST)
            q = ratio * rho / (ratio * rho + 1 - rho)
            return constants._replace(rho=rho, ratio=ratio, psi=psi, p=p, q=q)
        if self.reply_rate != 1:
            raise ConfigError(
                f'reply_rate is for form="accelerated", got {self.reply_rate!r} with form={form!r}'
            )
        plain = psi is None and form == "paper"
        if not plain and (self.momentum or gamma is not None):
            clients = "" if psi is None else " and a regularizer in the clients' problems"
            raise ConfigError(
                f'with form="{form}"{clients} {self.title} has momentum=0 and stopping="solver", '
                f"got momentum={self.momentum!r} and stopping={self.stopping!r}: use "
                'form="accelerated"'
            )
        if form == "paper":
            if setup.sampled:
                self.refuse_participation(
                    "needs everyone in its paper's form", 'form="accelerated", or Full()'
                )
            rho = choose_momentum(setup, self.momentum, nu, alpha) if plain else 0.0
            return constants._replace(rho=rho, regularizer=psi)
        return constants._replace(ratio=block_ratio(setup, self.participation), regularizer=psi)

    def _used_rate(self) -> float:
        """Return the probability that a client's reply is used in a round.

        A round without any reply is void, and t does not move in it.
        """
        rate, n, answers = self.setup.rate, self.setup.num_clients, self.reply_rate
        alike = isinstance(self.participation, Bernoulli)
        each, tries = (rate * answers, n) if alike else (answers, round(rate * n))
        return answers * rate / (-math.expm1(tries * math.log1p(-each)) if each < 1 else 1.0)


def choose_modulus(setup: Setup, given: float | None, regularization: float) -> float:
    """Return nu, at most mu + alpha.

    Raises
    ------
    ConfigError
        If nu is not known, or too large.
    """
    mu, alpha = setup.strong_convexity, regularization
    nu = given or (mu or 0.0) + alpha
    if nu == 0:
        known = "the clients' modulus is unknown: give strong_convexity"
        if mu is not None:
            known = stated_zero(setup)
        raise ConfigError(
            f"DualFL needs strongly convex objectives, and {known}, or regularization=alpha to add "
            f"alpha/2 ||x||^2 to each"
        )
    if mu is not None and nu > (mu + alpha) * _SLACK:
        raise ConfigError(
            f"strong_convexity must be at most {mu + alpha:.6g}, the clients' mu plus "
            f"regularization, got {nu!r}"
        )
    return nu


def choose_momentum(
    setup: Setup, given: float | None, nu: float, regularization: float, *, strict: bool = False
) -> float:
    """Return rho: by default nu/(L + alpha), or 0 if L is unknown.

    A larger value, up to 1, is used with a warning, or refused (`strict`).

    Raises
    ------
    ConfigError
        If rho is too large.
    """
    smoothness = setup.smoothness
    most = 1.0 if smoothness is None else min(1.0, nu / (smoothness + regularization))
    if given is None:
        return 0.0 if smoothness is None else most
    if given > _SLACK:
        raise ConfigError(f"momentum must be at most 1, got {given!r}")
    if given > 0 and smoothness is None:
        _log.warning(
            "momentum must be at most nu/L, and the clients' smoothness L is unknown: "
            "leave momentum out, or state L"
        )
    elif strict and given > most * _SLACK:
        raise ConfigError(
            f'with form="accelerated" momentum must be at most nu/L = {most:.6g}, got {given!r}'
        )
    elif given > most * _SLACK:
        _log.warning(
            "DualFL's momentum %g is above nu/L = %.6g: neither a linear rate nor convergence is "
            "guaranteed", given, most,
        )  # fmt: skip
        return min(given, 1.0)
    return min(given, most)


def block_ratio(setup: Setup, participation: Participation) -> float:
    """Return the block form's r: N/C for cohorts of C, N/(bN + 1 - b) for Bernoulli(b)."""
    n, p = setup.num_clients, setup.rate
    return n / (p * (n - 1) + 1) if isinstance(participation, Bernoulli) else 1 / p
