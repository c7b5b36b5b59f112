"""Methods that average gradients in the dual: FastFedDA, CFedDA, MCFedDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, Unpack

from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.solvers.dual_model import model_minimizer
from flower_fedcon.strategies.base import Common
from flower_fedcon.strategies.families.local_steps import OwnSteps
from flower_fedcon.validation import Array, chosen, count, positive

State = TypeVar("State")


class DampingOptions(Common, total=False):
    """The arguments of `DualAveraging`."""

    strong_convexity: float | str | None
    damping: float | str | None
    local_steps: int | str | None


class DualAveraging(OwnSteps[State]):
    """The shared arguments of these methods, and the default damping.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi: any object with `prox(v, step)`; a set stands for its indicator.
    strong_convexity : float or "auto", optional
        mu > 0, the strong convexity of every f_i, or a guess of the restricted one; by default the
        clients' mu, or L/1000 if that is 0 or unknown.
    damping : float or "auto", optional
        gamma > 0; by default a multiple of L.
    local_steps : int or "auto", optional
        K >= 1; by default 1.
    """

    guesses_modulus = True
    own_loop_decides: ClassVar[tuple[str, ...]] = ()
    needs_uncompressed = "its rounds get larger and larger weights, and so do compression errors"
    needs_gradient = "its model of f assumes gradients of a strongly convex function"
    needs_convex = (
        "its models contain psi once for every step, and have one minimiser only if psi is convex"
    )

    def __init__(
        self,
        regularizer: Any,
        *,
        strong_convexity: float | str | None = None,
        damping: float | str | None = None,
        local_steps: int | str | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)
        self.strong_convexity = chosen(positive, "strong_convexity", strong_convexity)
        self.damping = chosen(positive, "damping", damping)
        self.local_steps = chosen(count, "local_steps", local_steps)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for K, mu and gamma."""
        return {
            "local_steps": lambda: 1,
            "strong_convexity": self._modulus,
            "damping": self.usual_damping,
        }

    def minimizer(self, z: Array, steps: float, **ball: Any) -> Array:
        """Return P(z, A), the minimiser of the model after A steps."""
        mu, gamma = self.strong_convexity, self.damping
        psi = self.regularizer
        return model_minimizer(psi, z, steps, damping=gamma, strong_convexity=mu, **ball)

    def _modulus(self) -> float:
        mu = self.setup.strong_convexity
        return mu or 1e-3 * self.smoothness_for("strong_convexity", "a guess below L")

    def usual_damping(self) -> float:
        """Return the rule's gamma."""
        multiple: float = 5 * self.local_steps
        return multiple * self.smoothness_for("damping", f"about {multiple:g} L")
