"""The solutions for a grid of weights of the regularizer, each from the one before."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.core.participation import Full, Participation
from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Model, array_bytes
from flower_fedcon.optimizers import Momentum
from flower_fedcon.paths.weights import largest_weight, penalised, weights
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import Regularizer, Zero, as_regularizer
from flower_fedcon.runs.certificates import certify, pooled_gradient
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.simulation import hold
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.strategies.compositefl import CompositeFL
from flower_fedcon.strategies.fedmid import FedMiD
from flower_fedcon.strategies.fednewton import FedNewton
from flower_fedcon.validation import Array, choice, count, positive
from flower_fedcon.wire.payloads import payload_bytes

_log = logging.getLogger("flwr")
_NEWTON = 1000  # entries of a model, up to which Hessians are exchanged by default
_MOMENTUM = 0.9  # of large models: a tenth of the rounds, where they are ill-conditioned
_ROUNDING = 1e-9
_SPARSER = 0.2  # share of a point's rounds that may pass until its residual is seen again


@dataclass(frozen=True)
class RegularizationPath:
    """The points of a path, from the largest weight to the smallest.

    Attributes
    ----------
    values : array, shape (num,)
        lambda: the regularizer of a point is lambda * psi.
    x : list of models
        The solutions.
    kkt : array, shape (num,)
        ||x - prox(x - grad F(x), 1)||, by the clients' gradients; at most the tolerance where
        `converged`.
    converged : array of bool, shape (num,)
    active : list of array of int
        The entries of the flattened model that psi penalises and that are not 0.
    rounds, exchanges : array of int, shape (num,)
        Rounds of the method; and with those for the residuals, and for the largest lambda.
    uplink_bytes, downlink_bytes : array of int, shape (num,)
        Of all exchanges of this point.
    seconds : array, shape (num,)
    """

    values: Array
    x: list[Model]
    kkt: Array
    converged: Array
    active: list[Array]
    rounds: Array
    exchanges: Array
    uplink_bytes: Array
    downlink_bytes: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.values)

    @property
    def coefs(self) -> Array:
        """The models as one array, shape (num, *model shape)."""
        return np.stack([np.asarray(x) for x in self.x])

    def __repr__(self) -> str:
        done = int(self.converged.sum())
        return (
            f"RegularizationPath({len(self)} points from {self.values[0]:.4g} to "
            f"{self.values[-1]:.4g}, {done} converged, {len(self.active[-1])} active at the end; "
            f"{self.rounds.sum()} rounds, {self.exchanges.sum()} exchanges, "
            f"{self.uplink_bytes.sum():,} bytes up, {self.downlink_bytes.sum():,} down, "
            f"{self.seconds.sum():.2f} s)"
        )


def regularization_path(
    problem: FederatedProblem,
    regularizer: Any = None,
    strategy: FedConStrategy[Any] | None = None,
    *,
    num: int = 100,
    min_ratio: float = 1e-3,
    values: Sequence[float] | Array | None = None,
    tolerance: float = 1e-8,
    max_rounds: int = 1000,
    engine: str = "local",
    seed: int = 0,
) -> RegularizationPath:
    """Solve min (1/N) sum_j f_j(x) + lambda psi(x) for a falling sequence of lambda.

    The largest lambda is the least for which all that psi penalises is 0: by one exchange of
    gradients at the null model (with a free intercept, after that is fitted). Each point starts
    from what server and clients hold of the one before, and ends when its KKT residual is small.

    Parameters
    ----------
    problem : FederatedProblem
        Its own regularizer, if it has one, is psi by default.
    regularizer : Regularizer, optional
        psi, such as `L1(1.0)` or `WithIntercept(ElasticNet(l1=0.5, l2=0.5))`.
    strategy : FedConStrategy, optional
        The method; its regularizer is set at each point. By default `FedNewton`, where objectives
        have a `hessian` and the model at most 1000 entries, else proximal gradient steps: `FedMiD`
        with one step, and momentum and the prox on the server or, for cohorts, `CompositeFL`. With
        `participation=Sample(...)` the method must be exact under sampling, as are FedNewton and
        FedDR; the residual is then of all clients.
    num : int (default: 100)
        Number of points, in even ratios.
    min_ratio : float (default: 1e-3)
        In (0, 1): the smallest lambda, relative to the largest.
    values : sequence of float, optional
        The lambdas instead of `num` and `min_ratio`; they are sorted, the largest first.
    tolerance : float (default: 1e-8)
        The KKT residual at which a point ends, times the norm of the gradient at the start where
        that is more than 1.
    max_rounds : int (default: 1000)
        The most rounds of a point; it is then not `converged`, and a warning says so.
    engine : {"local", "stacked"} (default: "local")
    seed : int (default: 0)

    Returns
    -------
    RegularizationPath

    Raises
    ------
    ConfigError
        If an argument is out of range, or no lambda makes all that psi penalises 0.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem
    >>> from flower_fedcon.objectives import LeastSquares
    >>> from flower_fedcon.regularizers import L1
    >>> A = np.diag([2.0, 4.0])
    >>> problem = FederatedProblem([LeastSquares(A, A @ b) for b in ([1.0, 0.0], [1.0, 1.0])])
    >>> path = regularization_path(problem, L1(1.0), num=3, min_ratio=0.25)
    >>> path.values.round(9), [part.tolist() for part in path.active]
    (array([4., 2., 1.]), [[], [1], [0, 1]])
    """
    walk = Walk(problem, regularizer, strategy, tolerance, max_rounds, engine, seed)
    try:
        if values is None:
            ratio = positive("min_ratio", min_ratio)
            if ratio >= 1:
                raise ConfigError(f"min_ratio must be in (0, 1), got {min_ratio!r}")
            largest = walk.largest_weight()
            grid = largest * np.geomspace(1.0, ratio, count("num", num))
        else:
            grid = weights(values)
        return walk.along(grid)
    finally:
        walk.close()


class Walk:
    """A run that goes from one weight of the regularizer to the next."""

    def __init__(
        self,
        problem: FederatedProblem,
        regularizer: Any,
        strategy: FedConStrategy[Any] | None,
        tolerance: float,
        max_rounds: int,
        engine: str,
        seed: int,
    ) -> None:
        if problem.constraint is not None:
            raise ConfigError(
                f"the problem has the constraint {problem.constraint!r}: a path is of a "
                "regularizer with a weight"
            )
        given = problem.regularizer if regularizer is None else regularizer
        self.psi: Regularizer = as_regularizer(given)
        if isinstance(self.psi, Zero):
            raise ConfigError("a path needs a regularizer, such as L1(1.0)")
        if self.psi.weak_convexity:
            raise ConfigError(
                f"a path goes from minimiser to minimiser, and {self.psi!r} is not convex: run a "
                "method at each weight"
            )
        self.psi.check_shape(problem.layout.shape)
        self.tolerance = positive("tolerance", tolerance)
        self.max_rounds = count("max_rounds", max_rounds)
        choice("engine", engine, ("local", "stacked"))
        self._strategy = default_strategy(problem) if strategy is None else strategy
        if not hasattr(self._strategy, "regularizer") or self._strategy.constraint is not None:
            raise ConfigError(f"{self._strategy.title} takes no regularizer: no path")
        if self._strategy.privacy is not None:
            raise ConfigError(
                "a path is led by the clients' exact gradients, which no noise covers: leave "
                "privacy=... out of its strategy"
            )
        self._layout = problem.layout
        self._engine = hold(engine, None, self._strategy, problem)
        rule = self._strategy.participation
        setup = Setup.of(self._engine.describe(), max_rounds, problem.layout, rule, seed)
        self._run = Run(Plan(max_rounds), self._with(self.psi), setup, problem.start, self._engine)
        self._gradients = 0
        self._start = self._gradient()
        self.target = self.tolerance * max(1.0, float(np.linalg.norm(self._start)))

    def close(self) -> None:
        """End the run and what holds the clients."""
        self._run.close()
        self._engine.close()

    def _with(self, psi: Regularizer) -> FedConStrategy[Any]:
        strategy = copy.copy(self._strategy)
        strategy.regularizer = psi
        return strategy

    def _turn(self, psi: Regularizer) -> None:
        """Go on with another regularizer."""
        run = self._run
        run.server = run.server.continued(self._with(psi))
        if "regularizer" in run.server.strategy.client_settings:
            states = self._engine.save()
            self._engine.open(run.server.info)
            if states is not None:
                self._engine.load(states)

    def largest_weight(self) -> float:
        """Return the least lambda at which all that psi penalises is 0."""
        gradient = self._start
        found = largest_weight(self.psi, self._run.server.x, gradient)
        if bool(np.all(penalised(self.psi, gradient + 1.0))):
            return found
        # Something is free: the null model is the solution for a far larger weight.
        self._turn(self.psi.scaled(1e3 * max(found, 1.0)))
        self._solve()
        self._play(1)  # to rounding, since the first point is to be the null model
        found = largest_weight(self.psi, self._run.server.x, self._gradient())
        return found * (1.0 + _ROUNDING)

    def _gradient(self) -> Array:
        gradient, _ = pooled_gradient(self._run.server, self._engine)
        self._gradients += 1
        if gradient is None:
            raise ConfigError("a path needs the gradients of all clients: see the log")
        return gradient

    def _solve(self) -> tuple[float, int]:
        """Play rounds until the KKT residual is small; return it and their number."""
        played = 0
        while True:
            kkt = certify(self._run.server, self._engine)["kkt"]
            self._gradients += 1
            if kkt <= self.target or played >= self.max_rounds:
                return kkt, played
            some = min(max(1, int(_SPARSER * played)), self.max_rounds - played)
            self._play(some)
            played += some

    def _play(self, rounds: int) -> None:
        for _ in range(rounds):
            self._run.play_round()

    def along(self, grid: Array) -> RegularizationPath:
        """Return the path over these weights."""
        points: list[dict[str, Any]] = []
        model = np.zeros(self._layout.shape, self._layout.array_dtype)
        up = array_bytes(model.shape, model.dtype) * self._run.server.setup.num_clients
        down = payload_bytes({"x": model}) * self._run.server.setup.num_clients
        began, sent, received, rounds, gradients = time.perf_counter(), 0, 0, 0, 0
        for value in grid.tolist():
            self._turn(self.psi.scaled(value))
            kkt, played = self._solve()
            server, now = self._run.server, time.perf_counter()
            x = server.x.copy()
            asked = self._gradients - gradients
            points.append(
                {
                    "x": self._layout.unpack(x),
                    "kkt": kkt,
                    "converged": kkt <= self.target,
                    "active": np.flatnonzero((x != 0) & penalised(self.psi, x)),
                    "rounds": played,
                    "exchanges": server.round - rounds + asked,
                    "uplink_bytes": server.uplink_bytes - sent + asked * up,
                    "downlink_bytes": server.downlink_bytes - received + asked * down,
                    "seconds": now - began,
                }
            )
            began, sent, received = now, server.uplink_bytes, server.downlink_bytes
            rounds, gradients = server.round, self._gradients
        lists = ("x", "active")
        columns: dict[str, Any] = {name: [p[name] for p in points] for name in points[0]}
        columns = {k: v if k in lists else np.array(v) for k, v in columns.items()}
        path = RegularizationPath(values=grid, **columns)
        if not path.converged.all():
            worst = int(np.argmax(~path.converged))
            _log.warning(
                "%d of %d points of the path did not reach a KKT residual of %g in %d rounds, the "
                "first at lambda = %.4g (%.3g): allow more max_rounds, or a larger tolerance",
                int((~path.converged).sum()), len(path), self.target, self.max_rounds,
                path.values[worst], path.kkt[worst],
            )  # fmt: skip
        return path


def default_strategy(
    problem: FederatedProblem, participation: Participation | None = None
) -> FedConStrategy[Any]:
    """Return the method that a problem's objectives allow, as was fastest on tables of patients."""
    rule = Full() if participation is None else participation
    twice = all(callable(getattr(f, "hessian", None)) for f in problem.clients)
    if twice and problem.layout.size <= _NEWTON:
        return FedNewton(participation=rule)
    constants = [getattr(f, "smoothness", None) for f in problem.clients]
    known = [float(L) for L in constants if L is not None]
    if len(known) < len(constants):
        raise ConfigError(
            "no method can be chosen: the model is large, or an objective has no hessian(x), and "
            "its smoothness is unknown. Give a strategy"
        )
    if rule.is_full(problem.num_clients):  # L of the mean is at most the mean of the L_j
        lr = len(known) / sum(known)
        return FedMiD(
            None, client_lr=lr, local_steps=1, server_prox_only=True,
            server_lr=1 / (1 - _MOMENTUM), server_optimizer=Momentum(_MOMENTUM),
        )  # fmt: skip
    return CompositeFL(None, client_lr=1 / max(known), local_steps=1, participation=rule)
