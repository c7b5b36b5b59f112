"""Methods that average gradients in the dual: FastFedDA, CFedDA, MCFedDA."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Required, TypeVar, Unpack

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.base import Common
from flower_fedcon.strategies.families.local_steps import OwnSteps
from flower_fedcon.validation import count, positive

State = TypeVar("State")


class DampingOptions(Common, total=False):
    """The arguments of `DualAveraging`."""

    strong_convexity: Required[float]
    damping: float | None
    local_steps: int | None


class Damping(NamedTuple):
    """What follows from the setup."""

    damping: float  # gamma


class DualAveraging(OwnSteps[State]):
    """What these methods share: their arguments, and the damping where none is given.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi; a set stands for its indicator, any object with `prox(v, step)` will do.
    strong_convexity : float
        mu > 0: of every f_i, or a guess of the restricted modulus.
    damping : float, optional
        gamma > 0; by default a multiple of L, where the clients know L.
    local_steps : int
        K >= 1.
    """

    own_loop_decides: ClassVar[tuple[str, ...]] = ()
    needs_exact = "its rounds weigh more and more, and errors with them"
    needs_gradient = "its model of f takes gradients for those of a strongly convex function"

    def __init__(
        self,
        regularizer: Any,
        *,
        strong_convexity: float,
        damping: float | None = None,
        local_steps: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)
        self.strong_convexity = positive("strong_convexity", strong_convexity)
        self.damping = None if damping is None else positive("damping", damping)
        if local_steps is None and not self.own_loop_decides:
            raise ConfigError(f"{self.title} needs local_steps")
        self.local_steps = None if local_steps is None else count("local_steps", local_steps)

    def damping_or(self, multiple: int) -> float:
        """Return gamma as given, else multiple L."""
        return self.damping or multiple * self.known_smoothness("damping", multiple)

    def known_smoothness(self, name: str, multiple: float) -> float:
        """Return L, by which the default of the argument `name` is made."""
        smoothness = self.setup.smoothness
        if not smoothness:
            raise ConfigError(
                f"{self.title} takes its {name} from the clients' smoothness L, which is unknown: "
                f"give {name}, about {multiple:g} L{'/mu' if name == 'weight_shift' else ''}"
            )
        return smoothness
