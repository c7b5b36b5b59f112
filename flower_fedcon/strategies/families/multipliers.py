"""The proximal augmented Lagrangian: FedProxAL's arguments and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, Unpack

from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.families.arguments import refuse_race
from flower_fedcon.strategies.families.minimization import LocalMinimization, MinimisationOptions
from flower_fedcon.validation import chosen, optional, positive

State = TypeVar("State")
_CLEARLY = 1e-3  # a constraint above this value causes a warning at the end of a run


class MultiplierConstants(NamedTuple):
    """Constants that follow from the setup."""

    penalty: float  # beta
    coupling: float  # rho
    pull: float  # kappa
    accuracy: float  # s


class Multipliers(LocalMinimization[State]):
    """The arguments and constants of FedProxAL; see there.

    Parameters
    ----------
    regularizer, penalty, coupling, accuracy
        See `flower_fedcon.strategies.FedProxAL`.
    """

    constants: MultiplierConstants

    def __init__(
        self,
        regularizer: Any = None,
        *,
        penalty: float | str | None = None,
        coupling: float | str | None = None,
        accuracy: float | None = None,
        **common: Unpack[MinimisationOptions],
    ) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)
        refuse_race(self.title, "penalty", penalty)
        self.penalty = optional(positive, "penalty", penalty)
        self.coupling = chosen(positive, "coupling", coupling)
        self.accuracy = optional(positive, "accuracy", accuracy)

    def why_no_epochs(self) -> str:
        """Return why SGD is refused."""
        return "its clients minimise an augmented Lagrangian, which is not a mean over rows"

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for rho: L/N."""
        return {"coupling": self._coupling}

    def _coupling(self) -> float:
        return self.smoothness_for("coupling", "about L/N") / self.setup.num_clients

    def derive(self) -> MultiplierConstants:
        """Settle beta, kappa and s."""
        parts, given, s = self.setup.num_clients + 1, self.penalty, self.accuracy
        if given is not None:
            return MultiplierConstants(given, self.coupling, 1 / (parts * given), s or 1.0)
        L = self.smoothness_for("penalty", "about ||grad f(x0)||^2/L")
        G = self.steepest_for(f"penalty, about max_i ||grad f_i(x0)||^2 / {L:.3g}")
        return MultiplierConstants(G * G / L, self.coupling, L / (100 * parts), s or G / 20)

    def doubts(self, state: Any, record: Mapping[str, float], unheard: Sequence[str]) -> list[str]:
        """Warn if a c_j is clearly above 0."""
        worst = record.get("constraint", state.worst)
        if not worst > _CLEARLY:
            return []
        return [
            f"a client's constraint is {worst:.3g} at the end, above 0: try more rounds or another "
            f"penalty. If no model satisfies the bounds, the multipliers grow without end; "
            f"FederatedProblem.least_violation says by how much the bounds are violated"
        ]
