r"""Forms of ADMM that can adapt the penalty to balance the residuals.

With `"balanced"`, the penalty rho, the inverse of the proximal step, starts at the default. A
window has 2 ceil(1/p) rounds, about two passes over the clients. At its end, with x the mean of the
window's models, x' that of the window before, and means over the window's uploads,

    a = sqrt(mean ||x_i - x_S||^2) / ||x - x0||       the primal residual, and its scale
    b = rho ||x - x'|| / sqrt(mean ||g_i||^2)         the dual residual, and its scale
    rho := 2 rho  if a > 10 b;     rho := rho/2  if b > 10 a;     20 times at most

where x_S is the point sent to client i and g_i its multiplier. Both ratios are free of units. If
x - x' or the x_i - x_S are rounding errors, rho stays, since the problem is solved. The multipliers
do not change: a client that keeps g_i/rho rescales it when it next takes part.

Proofs: with everyone present, convex f_i and exact local solves, these methods are ADMM, which
converges if the penalty changes finitely often (He, Yang, Wang, "Alternating direction method with
self-adaptive penalty parameters for monotone variational inequalities", 2000). Under sampling, each
method's own theorem holds from the last change on. The quality of the chosen penalty was measured
(docs/server_steps.md), not proved.

Source: He, Yang, Wang, above; in federated learning Song, Wang, Zuazua, "FedADMM-InSa", 2024, where
each client has its own penalty. The scales are those of Wohlberg, "ADMM penalty parameter selection
by residual balancing", 2017, but from x0; windows are ours.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from flower_fedcon.core.uploads import Uploads
from flower_fedcon.regularizers.base import norm
from flower_fedcon.strategies.families.minimization import LocalMinimization
from flower_fedcon.validation import Array, chosen, positive
from flower_fedcon.wire.payloads import Payload

BALANCED = "balanced"
_APART, _FACTOR, _MOST = 10.0, 2.0, 20
_ROUNDING = 1000  # machine epsilons of x: rounding errors of a window
State = TypeVar("State")


class Balance(NamedTuple):
    """The state of a balanced penalty."""

    penalty: float  # rho of the coming round
    origin: Array  # x0
    last: Array  # mean model of the previous window, x'
    total: Array  # sum of this window's models
    gaps: float  # sum of its mean ||x_i - x_S||^2
    pulls: float  # sum of its mean ||g_i||^2
    rounds: int  # rounds in this window
    windows: int  # finished windows
    changes: int  # changes of the penalty

    @classmethod
    def start(cls, penalty: float, x0: Array) -> Balance:
        """Return the balance before round 1."""
        return cls(penalty, x0, x0, np.zeros_like(x0), 0.0, 0.0, 0, 0, 0)

    def after(self, x: Array, gap: float, pull: float, window: int) -> Balance:
        """Return the balance after a round that has led to x."""
        total, rounds = self.total + x, self.rounds + 1
        gaps, pulls = self.gaps + gap, self.pulls + pull
        if rounds < window:
            return self._replace(total=total, gaps=gaps, pulls=pulls, rounds=rounds)
        x, penalty = total / rounds, self.penalty
        apart, moved = math.sqrt(gaps / rounds), norm(x - self.last)
        least = _ROUNDING * float(np.finfo(x.dtype).eps) * norm(x)
        if self.windows and self.changes < _MOST and min(apart, moved) > least:
            a = apart * math.sqrt(pulls / rounds)  # both times the other's scale
            b = penalty * moved * norm(x - self.origin)
            if a > _APART * b > 0:
                penalty *= _FACTOR
            elif b > _APART * a > 0:
                penalty /= _FACTOR
        changes = self.changes + (penalty != self.penalty)
        begun = Balance.start(penalty, self.origin)
        return begun._replace(last=x, windows=self.windows + 1, changes=changes)


def number_or_balanced(name: str, value: Any) -> Any:
    """Return "balanced", or a number > 0 as in `chosen`.

    >>> number_or_balanced("step_size", "balanced"), number_or_balanced("step_size", 2)
    ('balanced', 2.0)
    """
    balanced = isinstance(value, str) and value == BALANCED
    return value if balanced else chosen(positive, name, value)


class Balanced(LocalMinimization[State]):
    """Strategies whose penalty, or step (its inverse), may be "balanced"."""

    penalty_name: ClassVar[str]
    """The name of the argument."""
    numbers = ("gap", "pull")

    @property
    def balances(self) -> bool:
        """Whether the penalty is balanced."""
        value = getattr(self, self.penalty_name)
        return isinstance(value, str) and value == BALANCED

    def first_value(self) -> float:
        """Return the argument's number; the rule's, if it is balanced."""
        value = getattr(self, self.penalty_name)
        return float(self.rules()[self.penalty_name]() if self.balances else value)

    def balance(self, penalty: float, x0: Array) -> Balance | None:
        """Return the balance before round 1; None for a constant penalty."""
        return Balance.start(penalty, x0) if self.balances else None

    def balanced(self, balance: Balance | None, x: Array, uploads: Uploads) -> Balance | None:
        """Return the balance after a round that has led to x."""
        if balance is None:
            return None
        gap, pull = (uploads.mean_number(name) for name in self.numbers)
        return balance.after(x, gap, pull, 2 * math.ceil(1 / self.setup.rate))

    def told(self, balance: Balance | None) -> Payload:
        """Return its part of the broadcast."""
        return {} if balance is None else {"penalty": balance.penalty}

    def report(self, state: State) -> dict[str, float]:
        """Return the penalty of the coming round, if it is balanced."""
        balance: Balance | None = getattr(state, "balance", None)
        return super().report(state) if balance is None else {"penalty": balance.penalty}

    def expects(self, state: State) -> tuple[str, ...]:
        """Return what clients upload: also their residuals, if the penalty is balanced."""
        names = super().expects(state)
        return (*names, *self.numbers) if self.balances and names else names

    def why_not_private(self) -> str:
        """Return why the method cannot use noisy sums of uploads; "" if it can."""
        if self.balances:
            return (
                f"{self.penalty_name}={BALANCED!r} uses lengths of uploads that no noise protects"
            )
        return super().why_not_private()
