"""Methods whose clients take Frank-Wolfe steps and send the atom: FedFW and FedFWPlus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.scales import UNIT
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.sets import Atom, ConstraintSet
from flower_fedcon.strategies.base import Common
from flower_fedcon.strategies.families.mirrored import HasMirror, Mirrored
from flower_fedcon.validation import Array, choice, chosen, positive
from flower_fedcon.wire.payloads import Payload


class HasIterates(HasMirror, Protocol):
    """A state that counts rounds, and under sampling holds the clients' iterates."""

    @property
    def t(self) -> int:
        """The coming round, from 1."""


State = TypeVar("State", bound=HasIterates)


def with_oracle(title: str, constraint: object) -> ConstraintSet:
    """Return `constraint` if it is a set with a linear minimisation oracle; otherwise raise."""
    if isinstance(constraint, ConstraintSet):
        if constraint.without_oracle:
            raise ConfigError(
                f"{title} steps to vertices of its set, and {constraint.without_oracle}"
            )
        return constraint
    raise ConfigError(
        f"{title} needs a constraint set with a linear minimisation oracle (flower_fedcon.sets), "
        f"got {constraint!r}"
    )


class FrankWolfe(Mirrored[State]):
    """The common part of FedFW and FedFWPlus: arguments, schedules, the mean of the iterates.

    Parameters
    ----------
    constraint : ConstraintSet
        D, bounded, with a linear minimisation oracle.
    penalty : float or "auto", optional
        lambda_0 > 0; by default max_i ||grad f_i(x0)|| / (N diameter), divided by `weaker`.
    schedule : {"convex", "nonconvex"} (default: "convex")
        Step sizes that decrease with t, or constant ones, which need the number of rounds.
    gradient : {"full", "stochastic"} (default: "full")
        "stochastic" averages minibatch gradients (give `batch_size`).
    """

    uplink = ("atom",)
    scope = Scope("none")  # by schedule="nonconvex"
    compact = True
    needs_uncompressed = "an atom is compact already, and a compressed one would leave the set"
    needs_mean = "x_bar must stay the mean of all x_i, and each step moves it by eta_t/N at most"
    needs_gradient = "its oracle weighs the gradient against the pull to x_bar"
    needs_uniform = "x_bar is the mean of all x_i, whichever clients take part"
    release = Release("with everyone")
    needs_independent = "its server gives each round a different weight"
    weaker = 1.0
    """What the rule divides FedFW's penalty by."""

    def __init__(
        self,
        constraint: ConstraintSet,
        *,
        penalty: float | str | None = None,
        schedule: str = "convex",
        gradient: str = "full",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.constraint = with_oracle(self.title, constraint)
        self.penalty = chosen(positive, "penalty", penalty)
        self.schedule = choice("schedule", schedule, ("convex", "nonconvex"))
        self.uses_num_rounds = self.schedule == "nonconvex"
        self.gradient = choice("gradient", gradient, ("full", "stochastic"))
        if self.stochastic != (self.batch_size is not None):
            raise ConfigError(
                f"gradient={self.gradient!r} with batch_size={self.batch_size!r}: give both "
                'gradient="stochastic" and a batch_size, or neither'
            )

    def minimises_mean(self) -> bool:
        """Return False: it is F and a penalty, whose weight falls only with the rounds."""
        return False

    @classmethod
    def favours_frequent(cls) -> bool:
        """Return False: x_bar is the mean of all x_i, also of clients that are away."""
        return False

    def first_stage(self) -> int:
        """Return 27: the first rounds visit the same vertices for every penalty."""
        return 27

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for lambda_0."""
        return {"penalty": self._balanced}

    def _balanced(self) -> float:
        """Return max_i ||grad f_i(x0)|| / (weaker N diameter): see FedFW, and FedFWPlus."""
        diameter = self.constraint.diameter_for(self.setup.layout.shape)
        widths = self.weaker * self.setup.num_clients * diameter
        steepest = self.steepest_for(f"penalty, about max_i ||grad f_i(x0)|| / {widths:.3g}")
        return steepest / widths if widths else UNIT  # the set is one point: any value works

    @property
    def stochastic(self) -> bool:
        """Whether clients average minibatch gradients."""
        return self.gradient == "stochastic"

    def scalars(self, t: int) -> Payload:
        """Return eta_t, lambda_t and, for stochastic gradients, rho_t."""
        p = self.setup.rate
        if self.schedule == "nonconvex":
            horizon = p * self.setup.num_rounds
            constant: Payload = {
                "step_size": min(1.0, horizon ** (-2 / 3)),
                "penalty": self.penalty * horizon ** (1 / 3),
            }
            if self.stochastic:
                constant["averaging"] = min(1.0, horizon ** (-4 / 9))
            return constant
        offset = 9 if self.stochastic else 2
        age = p * (t - 1) + offset
        scalars: Payload = {"step_size": offset / age, "penalty": self.penalty * age**0.5}
        if self.stochastic:
            scalars["averaging"] = 4 / (age - 1) ** (2 / 3)
        return scalars

    def check_start(self, x0: Array) -> None:
        """Raise unless x0 is in D."""
        self.constraint.check_shape(x0.shape)
        rounding = 100 * float(np.finfo(x0.dtype).eps)  # rounding of a projection in float32
        if not self.constraint.contains(x0, max(1e-9, rounding)):
            raise ConfigError(
                f"the start x0 is outside {self.constraint!r} by "
                f"{self.constraint.violation(x0):.3g}: start from constraint.project(x0)"
            )

    def mean_iterate(self, x_bar: Array, t: int, mirror: Mirror | None, uploads: Uploads) -> Array:
        """Step 5, full or sampled: return x_bar, and update the mirror's x_i."""
        eta, n = self.scalars(t)["step_size"], uploads.num_clients
        if mirror is None:
            mean: Array = (eta / n) * uploads.sum("atom") + (1.0 - eta) * x_bar
            return mean
        x = mirror.some("x", uploads.clients)
        moved = uploads.sum("atom") - x.sum(axis=0)
        mirror.put(uploads.clients, x=uploads.stacked("atom").mix(x, eta))
        after: Array = x_bar + (eta / n) * moved
        return after

    def why_single(self) -> str:
        """Return why the server needs each upload in this run; "" if their sum is enough."""
        if not self.setup.sampled:
            return self.release.single
        return "under sampling its mirror of the x_i needs each atom: use Full()"

    def first_contact(self, state: State, client: int) -> Payload | None:
        """Return the start, for a client that was not sampled in round 1."""
        return None if state.mirror is None or state.t == 1 else state.mirror.row(client)

    def needs_whole_cohort(self) -> bool:
        """Without a mirror, step 5 needs every atom."""
        return not self.setup.sampled

    def decode(self, name: str, parts: Mapping[str, Array]) -> Atom:
        """Return the atom in a message."""
        layout = self.setup.layout
        constraint: ConstraintSet = self.constraint
        return constraint.decode_atom(parts, layout.shape, np.dtype(layout.dtype))
