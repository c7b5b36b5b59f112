"""Stochastic gradient steps for a number of epochs, as in the papers of inexact methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.local_pass import LocalPass, Prox
from flower_fedcon.regularizers import Zero
from flower_fedcon.server.schedules import Schedule, at, rate_or_schedule
from flower_fedcon.solvers.gradient import GradientDescent
from flower_fedcon.solvers.problem import LocalProblem, LocalSolver, Solution, Stop
from flower_fedcon.validation import count, optional, positive


@dataclass(frozen=True)
class SGD(LocalSolver):
    """Steps along minibatch gradients of f, plus the full gradient of the terms a method adds.

    An epoch goes over a client's rows in a new order, without replacement, in floor(m / batch_size)
    batches: the remaining rows are left out of that epoch. With psi in the local problem every step
    is followed by its prox. There is no tolerance: the end of the steps is the solution. Batches
    are drawn from the run's stream for client and round, the same in every engine. For private
    examples (`ExampleDP`) they are Poisson samples of that average size.

    It suits methods that use nothing but the local minimiser: FedProx, FedDyn, FedDR, FedPD and
    DualFL with ``stopping="solver"``. A constant lr leaves an error of the gradients' noise times
    lr in every local solution, even if the method is exact.

    Parameters
    ----------
    epochs : int
        >= 1.
    batch_size : int
        >= 1; a client with no more rows than this takes one step an epoch, on all of them.
    lr : float or Schedule
        > 0; less than 2/L_h, where L_h is the smoothness of f plus the terms. A schedule of
        `flower_fedcon.schedules` counts rounds; rounds are then not compiled.
    clip : float, optional
        > 0: a longer minibatch gradient of f is shortened to this norm. If gradients are clipped at
        the minimiser, the run converges to another point.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import LeastSquares
    >>> from flower_fedcon.strategies import FedProx
    >>> clients = [LeastSquares(np.ones((6, 1)), np.full(6, b)) for b in (1.0, 3.0)]
    >>> strategy = FedProx(proximal=1.0, local_solver=SGD(epochs=2, batch_size=3, lr=0.5))
    >>> history = simulate(strategy, FederatedProblem(clients), num_rounds=30)
    >>> history.x.round(6), int(history["gradients"][0])  # 2 clients, 2 epochs, 2 batches
    (array([2.]), 8)
    """

    epochs: int
    batch_size: int
    lr: float | Schedule
    clip: float | None = None

    def __post_init__(self) -> None:
        count("SGD(epochs)", self.epochs)
        count("SGD(batch_size)", self.batch_size)
        rate_or_schedule("SGD(lr)", self.lr)
        optional(positive, "SGD(clip)", self.clip)

    def number(self, rows: int) -> int:
        """Return the number of steps of a client with this number of rows."""
        return self.epochs * max(1, rows // self.batch_size)

    def steps(self, declared: LocalPass, rows: int, server_round: Any = 1) -> LocalPass:
        """Return these steps in place of a minimisation, for clients with `rows` rows each.

        Parameters
        ----------
        declared : LocalPass
            With a solver.
        rows : int
        server_round : int (default: 1)

        Raises
        ------
        ConfigError
            If the pass needs more than the end point of the steps.
        """
        if declared.stop is not None or declared.objective is not None:
            what = "a stopping rule" if declared.objective is None else "its own function"
            raise ConfigError(
                f"SGD takes a number of steps along f, and this method has {what}: use "
                f'another local solver, such as "exact"'
            )
        psi, rate = declared.regularizer, at(self.lr, server_round)
        plan = declared._replace(
            solver=None,
            regularizer=None,
            steps=self.number(rows),
            rate=rate,
            clip=self.clip,
        )
        if psi is None or isinstance(psi, Zero):
            return plan
        point = Prox(psi, lambda k: rate)
        return plan._replace(point=point, first=declared.start, onward=(0.0, 1.0))

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Raise: batches are drawn by the client; see `steps`.

        Raises
        ------
        ConfigError
        """
        raise ConfigError(
            "SGD works only within a client's step, whose batches it uses: use another local "
            'solver here, such as "exact"'
        )


def check_noise(solver: object) -> None:
    """Raise if a local solver needs gradients without noise.

    Raises
    ------
    ConfigError
    """
    counted = isinstance(solver, GradientDescent) and solver.tolerance is None
    if solver is None or counted or isinstance(solver, SGD):
        return
    raise ConfigError(
        f"with Noisy objectives local_solver={solver!r} never reaches its tolerance: use "
        "SGD(epochs=..., batch_size=..., lr=...) or GradientDescent(steps=..., lr=...)"
    )
