"""Methods that amplify the change of the model over a window of rounds: FedAvg and Scaffold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, Unpack

from flower_fedcon.arrays import pick
from flower_fedcon.server.windows import Window
from flower_fedcon.strategies.families.local_steps import LocalSteps, StepOptions
from flower_fedcon.validation import Array, count, positive

State = TypeVar("State")


class WindowOptions(StepOptions, total=False):
    """The arguments of `AmplifiedSteps`."""

    window: int
    amplification: float


class AmplifiedSteps(LocalSteps[State]):
    """K local steps; after every P rounds x := x_0 + gamma (x - x_0), x_0 being P rounds older.

    Parameters
    ----------
    window : int (default: 1)
        P >= 1, the rounds of a window.
    amplification : float (default: 1.0)
        gamma > 0.
    """

    later: ClassVar[Mapping[str, Any]] = {**LocalSteps.later, "window": 1, "amplification": 1.0}

    def __init__(
        self, *, window: int = 1, amplification: float = 1.0, **steps: Unpack[StepOptions]
    ) -> None:
        super().__init__(**steps)
        self.window = count("window", window)
        self.amplification = positive("amplification", amplification)

    @property
    def windowed(self) -> bool:
        """Whether windows change anything."""
        return self.window > 1 or self.amplification != 1

    def first_stage(self) -> int:
        """Return the number of rounds in the first stage of a race: whole windows."""
        return super().first_stage() * (self.window if self.windowed else 1)

    def first_window(self, x0: Array) -> Window | None:
        """Return the window before round 1, if there are any."""
        return Window(x0, 0) if self.windowed else None

    def amplified(self, x: Array, window: Window) -> tuple[Array, Window, Any]:
        """Return the model and the window after a round, and whether it was a window's last.

        Parameters
        ----------
        x : array
            The model that the round itself leads to.
        window : Window
            As before the round.
        """
        rounds = window.rounds + 1
        ends = rounds % self.window == 0
        if self.amplification != 1:
            x = pick(ends, window.start + self.amplification * (x - window.start), x)
        return x, Window(pick(ends, x, window.start), rounds), ends
