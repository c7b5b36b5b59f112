"""Methods whose clients take K gradient steps, such as FedAvg and Scaffold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar, Unpack

from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.server.optimizers import OptimizerState, ServerOptimizer, as_optimizer
from flower_fedcon.server.own_rates import OwnRate
from flower_fedcon.server.schedules import Schedule, at
from flower_fedcon.solvers.bregman import Distance, dual_point, primal_point, safe_modulus
from flower_fedcon.solvers.distances import as_distance
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.strategies.families.ladders import between, condition
from flower_fedcon.validation import Array, chosen, count, positive

State = TypeVar("State")
_FLATTER = 1000.0  # L/mu from which a loss's curvature may be much smaller than L


class StepOptions(Common, total=False):
    """The arguments of `LocalSteps`."""

    client_lr: float | str | Schedule | OwnRate | None
    local_steps: int | str | None
    server_lr: float
    server_optimizer: ServerOptimizer | None


class OwnSteps(FedConStrategy[State]):
    """K local steps.

    Clients with their own train loop may choose K. They then send their numbers of steps, and the
    mean is counted.
    """

    local_steps: Any
    own_loop_decides: ClassVar[tuple[str, ...]] = ("local_steps",)
    """The arguments that may be left out if every client has its own train loop."""
    counts: ClassVar[bool] = True
    """Whether the server needs the numbers of steps."""

    def bind(self, setup: Setup) -> Self:
        """Return a copy for one run, in which all numbers are set."""
        if setup.own_loops and self.batch_size is not None:
            raise ConfigError(
                f"{self.title}: batch_size={self.batch_size} is for clients with an objective; "
                f"your own train loop draws its batches: leave batch_size out"
            )
        return super().bind(setup)

    @property
    def counted(self) -> tuple[str, ...]:
        """Return what clients send in addition: their number of steps, unless it is known."""
        return ("steps",) if self.counts and self.local_steps is None else ()

    def expects(self, state: State) -> tuple[str, ...]:
        """Return what clients upload in the coming round, by name."""
        return (*self.uplink, *self.counted)

    def units(self, uploads: Uploads) -> float:
        """Return by how much a round advances a counter in units of `unit` steps."""
        return uploads.mean_number("steps") if self.counted else 1

    @property
    def unit(self) -> int:
        """K, or 1 if each client has its own K."""
        return self.local_steps or 1


class LocalSteps(OwnSteps[State]):
    """K local steps of length `client_lr`; the server moves `server_lr` times the mean change.

    Parameters
    ----------
    client_lr : float, Schedule, OwnRate, "auto" or "adaptive", optional
        eta_c > 0, at most 1/L; each method has a default. A schedule of `flower_fedcon.schedules`
        changes it from round to round, if the method allows that; "auto" chooses it by a race. With
        `DeltaSGD()` or `AdaPGM()` each client finds its own steps; "adaptive" is the method's
        choice of the two.
    local_steps : int or "auto", optional
        K >= 1; each method has a default. Clients with their own train loop choose client_lr and
        local_steps if both are left out.
    server_lr : float (default: 1.0)
        eta_s > 0.
    server_optimizer : ServerOptimizer, optional
        A rule of `flower_fedcon.optimizers` by which the server applies the mean change. Refused by
        methods whose server step must be `server_lr` times the mean.
    """

    client_lr: Any
    usual_steps: ClassVar[int] = 1
    """The rule for K: above 1 only if the limit is still the optimum."""
    own_loop_decides: ClassVar[tuple[str, ...]] = ("client_lr", "local_steps")
    counts = False
    needs_server_lr: ClassVar[str] = "it does not declare that another server step is right"
    """Why the server must move by `server_lr` times the mean; "" if an optimizer is allowed."""
    needs_one_length: ClassVar[str] = ""
    """Why an optimizer must give all entries of the model one step length; "" if it need not."""

    def __init__(
        self,
        *,
        client_lr: float | str | Schedule | OwnRate | None = None,
        local_steps: int | str | None = None,
        server_lr: float = 1.0,
        server_optimizer: ServerOptimizer | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.client_lr = self.step_length(client_lr)
        self.local_steps = chosen(count, "local_steps", local_steps)
        if self.local_steps == 1 and isinstance(self.client_lr, OwnRate):
            raise ConfigError(
                f"{self.title}: client_lr={self.client_lr!r} adapts only after a round's first "
                f"step, and local_steps is 1: give local_steps of at least 2"
            )
        self.server_lr = positive("server_lr", server_lr)
        self.server_optimizer = as_optimizer(server_optimizer)
        why = self.needs_server_lr
        if not why and self.server_optimizer is not None and self.server_optimizer.entrywise:
            why = self.needs_one_length
        if why and server_optimizer is not None:
            raise ConfigError(
                f"{self.title} takes no server_optimizer={server_optimizer!r}: {why}. `fedcon "
                f"info {type(server_optimizer).__name__}` says which methods take it"
            )

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for K (5 if clients find their own steps) and eta_c."""
        usual = self.usual_steps if not isinstance(self.client_lr, OwnRate) else 5
        return {"local_steps": lambda: usual, "client_lr": self._longest_rate}

    def _settle(self) -> None:
        """Set what is left out, including the first of clients' own steps."""
        super()._settle()
        rate = self.client_lr
        if isinstance(rate, OwnRate) and rate.initial is None:
            self.client_lr = replace(rate, initial=self._longest_rate())

    def _longest_rate(self) -> float:
        """Return the rule's eta_c: a share of 1/L, smaller for small batches."""
        L = self.smoothness_for("client_lr", "at most 1/L")
        return self.safe_share() / (L * self._batch_factor())

    def safe_share(self) -> float:
        """Return the largest safe eta_c L: 1, with which no local step diverges.

        With server_lr > 1 the server moves further than the clients, so the K steps are shorter.
        """
        return 1 / (self.server_lr * self.local_steps) if self.server_lr > 1 else 1.0

    def safe_ladder(self, value: float) -> list[Any]:
        """Return the values that a race tries in addition to a client_lr safe for all K steps.

        With a share p of the clients in a round they go from p^(3/2)/(2 L) to 1.6 p^(1/2)/L; with
        all clients the latter is stable for any number of steps. The last one, up to
        6.4 p^(1/3)/L, is for losses whose curvature near the optimum is well below L, such as the
        logistic one; it is smaller for L/mu < 1000. The powers are measured.
        """
        share, longest = self.setup.rate, value / self.safe_share() / max(1.0, self.server_lr)
        low, high = max(value, 0.5 * share**1.5 * longest), 1.6 * share**0.5 * longest
        flatter = min(1.0, (condition(self.setup) or _FLATTER) / _FLATTER) ** 0.3
        flattest = 6.4 * flatter * share ** (1 / 3) * longest
        return [*between(value, low, high), *([flattest] if flattest > 1.5 * high else [])]

    def _batch_factor(self) -> float:
        """Return a bound of the ratio of a batch's L to that of all rows."""
        size = self.batch_size
        if size is None:
            return 1.0
        return max(1.0, *(client.num_examples / size for client in self.setup.clients))

    def bind(self, setup: Setup) -> Self:
        """Return a copy for one run."""
        if setup.any_own_loop and isinstance(self.client_lr, OwnRate):
            raise ConfigError(
                f"{self.title}: client_lr={self.client_lr!r} is for clients with an objective; "
                f"your own train loop chooses its steps: leave client_lr out"
            )
        both = {"client_lr", "local_steps"} <= {*self.own_loop_decides}
        if setup.own_loops and both and (self.client_lr is None) != (self.local_steps is None):
            raise ConfigError(
                f"{self.title} needs both client_lr and local_steps, or neither if every client "
                f"has its own train loop: got {self.client_lr!r} and {self.local_steps!r}"
            )
        return super().bind(setup)

    def rate(self, uploads: Uploads) -> float:
        """Return the client_lr of the uploads' round."""
        return at(self.client_lr, uploads.round)

    def server_move(
        self, mean: Array, state: OptimizerState | None
    ) -> tuple[Array, OptimizerState | None]:
        """Return server_lr times the mean, or the optimizer's step, and the optimizer's state."""
        after: OptimizerState | None = None
        if self.server_optimizer is not None:
            mean, after = self.server_optimizer.direction(mean, state)
        move: Array = mean if self.server_lr == 1 else self.server_lr * mean
        return move, after


class LocalProxSteps(LocalSteps[State]):
    """FedMiD and FedDualAvg: steps with a prox, or a prox on the server only.

    Parameters
    ----------
    distance : {"euclidean", "entropy", "p-norm"} or Distance (default: "euclidean")
        h: a name, or `Entropy()`, `PNorm(p)`, `QuadraticForm(A)` or an object of your own class
        derived from `Distance`, all of `flower_fedcon.solvers`. A psi without a known prox in it is
        refused.
    """

    own_loop_decides = ("local_steps",)
    begin_with: ClassVar[dict[str, float]] = {"client_lr": 0.1}
    counts = True
    later: ClassVar[Mapping[str, Any]] = {**LocalSteps.later, "distance": "euclidean"}

    @property
    def counted(self) -> tuple[str, ...]:
        """Add the clients' numbers of steps, if steps differ in length."""
        return ("steps",) if isinstance(self.client_lr, OwnRate) else super().counted

    @property
    def unit(self) -> int:
        """K, or 1 if each client has its own K."""
        return 1 if self.counted else super().unit

    def __init__(
        self,
        regularizer: Any,
        *,
        server_prox_only: bool = False,
        distance: str | Distance = "euclidean",
        **steps: Unpack[StepOptions],
    ) -> None:
        super().__init__(**steps)
        self.regularizer = as_regularizer(regularizer)
        self.server_prox_only = bool(server_prox_only)
        self.distance = distance
        if self.geometry is None:
            return
        if "distance" not in self.client_settings:
            raise ConfigError(
                f"{self.title} takes no distance={distance!r}: its client does not declare "
                f"`distance`, so its steps are Euclidean"
            )
        self.geometry.check(self.regularizer)
        if isinstance(self.client_lr, OwnRate):
            raise ConfigError(
                f"{self.title} takes no client_lr={self.client_lr!r} with distance={distance!r}: "
                f"clients' own steps are measured in the Euclidean norm. Give a number"
            )

    @property
    def geometry(self) -> Distance | None:
        """h; None for the Euclidean distance."""
        return as_distance(self.distance)

    def dual(self, x: Array) -> Array:
        """Return grad h(x), which is x itself for the Euclidean distance."""
        return dual_point(x, self.geometry, x.ndim)

    def point(self, z: Array, step: float) -> Array:
        """Return argmin_w -<z, w> + step psi(w) + h(w)."""
        return primal_point(self.regularizer, z, step, self.geometry, z.ndim)

    def check_start(self, x0: Array) -> None:
        """Raise unless h is finite, with a gradient, at the start."""
        if self.geometry is not None:
            self.geometry.check_start(x0)

    def _longest_rate(self) -> float:
        """Return the rule's eta_c, at most the longest step at which psi has a prox."""
        return self.within_prox(
            super()._longest_rate(), max(1.0, self.server_lr * self.local_steps)
        ) * safe_modulus(self.geometry, self.regularizer, self.title)
