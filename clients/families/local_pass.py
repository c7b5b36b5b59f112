"""Methods that are a correction of a client's local pass, which is this package's or the user's.

In a step of this package and in a training loop of the user's own (`flower_fedcon.training`) they
consist of the same functions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.objectives.client_axis import Steps
from flower_fedcon.schedules import Schedule
from flower_fedcon.solvers import Correction
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")


class LocalPass(NamedTuple):
    """A local pass that is done.

    Attributes
    ----------
    start, end : array
        Of what moves, shape (..., *model).
    steps : int
        How many there were; 0 for a minimisation.
    gradient : array, optional
        The mean of the steps' gradients without correction, where the steps are the user's own.
    """

    start: Array
    end: Array
    steps: int = 0
    gradient: Array | None = None


class LocalPassClient(FedConClient[State]):
    """A client that states what its method adds to a local pass, and what the pass is for."""

    keeps_gradient: ClassVar[bool] = False
    """Whether a loop of the user's own has to note the mean of its gradients."""

    @classmethod
    def is_the_step(cls) -> bool:
        """Return whether the step itself is the method, and not only what is added to gradients."""
        return False

    @abstractmethod
    def correction(self, state: State, down: Payload) -> Correction:
        """Return where the pass starts, and what is added to each gradient."""

    @abstractmethod
    def upload(self, state: State, down: Payload, done: LocalPass) -> tuple[Payload, State]:
        """Return the upload and the state to keep, after the pass."""


class MinimizingClient(LocalPassClient[State]):
    """A client whose pass is a minimisation, as good as its solver."""

    def step(self, state: State, down: Payload) -> tuple[Payload, State]:
        """Minimise the corrected objective."""
        added = self.correction(state, down)
        end = self.minimize(
            added.start, linear=added.linear, shift=added.shift, center=added.center
        )
        return self.upload(state, down, LocalPass(added.start, end))


class LocalStepsClient(LocalPassClient[State]):
    """A client whose pass is K steps: a gradient at a `point`, and a `move` of what moves, z."""

    _schedule: Schedule | None = None  # of client_lr, where that changes from round to round

    def _take(self, settings: Mapping[str, Any]) -> None:
        """Take the settings; of a schedule the first step, until a round says which."""
        rate = settings.get("client_lr")
        self._schedule = rate if isinstance(rate, Schedule) else None
        if self._schedule is not None:
            settings = {**settings, "client_lr": self._schedule.at(1)}
        super()._take(settings)

    @classmethod
    def is_the_step(cls) -> bool:
        """Return whether points and moves are others than those of gradient steps."""
        plain = LocalStepsClient
        return cls.point is not plain.point or cls.move is not plain.move

    def point(self, z: Array, k: int, down: Payload) -> Array:
        """Return where the gradient of step k = 0, 1, ... is taken: by default z itself."""
        return z

    def move(self, z: Array, w: Array, g: Array) -> Array:
        """Return z after a step with the corrected gradient g at w."""
        moved: Array = z - self.client_lr * g
        return moved

    def counted(self, done: LocalPass) -> Payload:
        """Return the number of steps, for a server that does not know it."""
        return {"steps": float(done.steps)} if self.local_steps is None else {}

    def step(self, state: State, down: Payload) -> tuple[Payload, State]:
        """Take K steps."""
        if self._schedule is not None:
            self.client_lr = self._schedule.at(self._round)
        added, count = self.correction(state, down), self.local_steps or 0
        z = self._all_at_once(added, count)
        if z is None:
            z, corrects = added.start, added.corrects
            for k in range(count):
                w = self.point(z, k, down)
                g = self.gradient(w)
                z = self.move(z, w, added.add_to(g, w) if corrects else g)
        return self.upload(state, down, LocalPass(added.start, z, count))

    def _all_at_once(self, added: Correction, count: int) -> Array | None:
        """Return where the steps lead, if they are plain, and the objective can take them all."""
        if self.is_the_step() or added.subgradient is not None or count == 0:
            return None
        take = getattr(self.objective, "gradient_steps", None)
        if take is None:
            return None
        steps = Steps(added.start, self.client_lr, count, added.linear, added.shift, added.center)
        found: Array | None = take(steps)
        return found
