"""The solutions for a grid of weights of the regularizer, each started at the one before."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError, number_of
from flower_fedcon.layout import Model, array_bytes
from flower_fedcon.objectives.cohorts import unscaled
from flower_fedcon.paths.weights import largest_weight, penalised, weights
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import Regularizer, WithIntercept, Zero, as_regularizer
from flower_fedcon.runs.certificates import certify, pooled_gradient
from flower_fedcon.runs.final_sums import total_sums
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.simulation import hold
from flower_fedcon.solvers.units import units_of
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.strategies.fednewton import FedNewton
from flower_fedcon.tables.default_method import default_strategy
from flower_fedcon.tables.ending.convergence import falling, separated_by, separating
from flower_fedcon.validation import Array, choice, count, positive
from flower_fedcon.wire.payloads import Payload, payload_bytes

_log = logging.getLogger("flwr")
_ROUNDING = 1e-9
_NOTHING = 1000.0  # machine epsilons: below it a gradient is rounding
_DIGIT = 4.0  # in machine epsilons of a model's terms: the last digit of the gradient
_REACH = 4.0  # in such digits: the rounding of the gradient
_CONSTANT = (
    "the null model leaves nothing to explain, as with a constant target, so no weight selects a "
    "column"
)
_TRIES = 5  # at a weight at which nothing is active
_SPARSER = 0.2  # share of a point's rounds after which its residual is computed again


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
        ||z - prox(z - grad F in z, 1)||, from the clients' gradients. z is the model in units in
        which the curvature of F along each entry is about 1; see `runs.certificates.certify`.
    converged : array of bool, shape (num,)
        Whether kkt reached the tolerance.
    active : list of array of int
        The entries of the flattened model that psi penalises and that are not 0.
    rounds, exchanges : array of int, shape (num,)
        Rounds of the method; these together with the exchanges for residuals and for the largest
        lambda.
    uplink_bytes, downlink_bytes : array of int, shape (num,)
        Bytes of all exchanges of this point.
    seconds : array, shape (num,)
    apart : array of the flattened model's shape, optional
        For each active entry at the last point: the share of its column's square that is not a
        combination of the other columns (1 - R^2). A coefficient has about 15 reliable digits,
        minus the leading zeros of this share. Only with FedNewton, which has the Hessian.
    runaway : array of int
        The entries of the flattened model that only psi keeps finite at the last point, since they
        separate the outcome (`flower_fedcon.solvers.runaway`). If psi has weight 0 there is no
        solution, and that point has not `converged`. Only with FedNewton.
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
    apart: Array | None = None
    runaway: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

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
            f"{number_of(self.rounds.sum(), 'round')}, "
            f"{number_of(self.exchanges.sum(), 'exchange')}, {self.uplink_bytes.sum():,} bytes up, "
            f"{self.downlink_bytes.sum():,} down, {self.seconds.sum():.2f} s)"
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
    """Solve min (1/N) sum_j f_j(x) + lambda psi(x) for a decreasing sequence of lambda.

    The largest lambda is the smallest one for which all penalised entries are 0. It follows from
    one exchange of gradients at the null model, whose free intercept is fitted first. Each point
    starts from the states of server and clients at the point before, and ends when its KKT residual
    is small.

    Parameters
    ----------
    problem : FederatedProblem
        Its own regularizer, if it has one, is psi by default.
    regularizer : Regularizer, optional
        psi, such as `L1(1.0)` or `WithIntercept(ElasticNet(l1=0.5, l2=0.5))`.
    strategy : FedConStrategy, optional
        The method; its regularizer is set at each point. By default it is `FedNewton` if objectives
        have a `hessian` and the model has at most 1000 entries. Otherwise proximal gradient steps
        are taken: by `FedMiD` with one step, and momentum and the prox on the server or, for
        cohorts, by `CompositeFL`. With `participation=Sample(...)` the method must be exact under
        sampling, like FedNewton and FedDR; the residual is still that of all clients.
    num : int (default: 100)
        Number of points, in even ratios.
    min_ratio : float (default: 1e-3)
        In (0, 1): the smallest lambda, relative to the largest.
    values : sequence of float, optional
        The lambdas instead of `num` and `min_ratio`; they are sorted, the largest first.
    tolerance : float (default: 1e-8)
        The KKT residual at which a point ends, relative to the norm of the gradient at the start,
        or at the null model if it was fitted. Both are in units in which the curvature of F along
        each entry is about 1, so the units of the data do not matter.
    max_rounds : int (default: 1000)
        The largest number of rounds of a point. A point that needs more is not `converged`, and a
        warning says so.
    engine : {"local", "stacked"} (default: "local")
    seed : int (default: 0)

    Returns
    -------
    RegularizationPath

    Raises
    ------
    ConfigError
        If an argument is out of range, or no lambda makes all penalised entries 0.

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
            largest = walk.largest_weight(ratio)
            grid = largest * np.geomspace(1.0, ratio, count("num", num))
        else:
            grid = weights(values)
        return walk.along(grid)
    finally:
        walk.close()


def expect_strata(problem: FederatedProblem) -> None:
    """Refuse a Cox model with one baseline hazard for all sites, which is not a sum over clients.

    Raises
    ------
    ConfigError
    """
    prepared = problem.preparation
    if prepared is not None and prepared.stated is not None and not prepared.stated.stratified:
        raise ConfigError(
            "a path, cross-validation and stability selection add up clients' losses, and with "
            "stratified = false the loss is none of these sums: take stratified = true, or `fedcon "
            "run` for single values of l1"
        )


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
                f"a path needs a regularizer with a weight, and the problem has the constraint "
                f"{problem.constraint!r}: give a regularizer instead"
            )
        expect_strata(problem)
        given = problem.regularizer if regularizer is None else regularizer
        self.psi: Regularizer = as_regularizer(given)
        if isinstance(self.psi, Zero):
            raise ConfigError("a path needs a regularizer, such as L1(1.0)")
        if self.psi.weak_convexity:
            raise ConfigError(
                f"a path follows minimisers, and {self.psi!r} is not convex: run a method at each "
                f"weight"
            )
        self.psi.check_shape(problem.layout.shape)
        self.tolerance = positive("tolerance", tolerance)
        self.max_rounds = count("max_rounds", max_rounds)
        choice("engine", engine, ("local", "stacked"))
        self._strategy = default_strategy(problem) if strategy is None else strategy
        if not hasattr(self._strategy, "regularizer") or self._strategy.constraint is not None:
            raise ConfigError(
                f"{self._strategy.title} takes no regularizer, so it has no path: "
                f"use another method"
            )
        if self._strategy.privacy is not None:
            raise ConfigError(
                "a path uses the clients' exact gradients, which no noise protects: leave "
                "privacy=... out of its strategy"
            )
        if isinstance(rule := self._strategy.participation, Buffered):
            raise ConfigError(
                f"a path plays rounds, and {rule!r} has none: give another rule of participation, "
                f"such as Full(), or call simulate(..., clock=Clock(...)) at each weight"
            )
        self._layout = problem.layout
        prepared = problem.preparation
        self._names = problem.column_names if prepared is None else prepared.names
        self._scale_free = problem.scale_free
        self._separable = all(getattr(unscaled(f)[0], "separable", False) for f in problem.clients)
        self._bounded = all(getattr(f, "smoothness", None) is not None for f in problem.clients)
        self._engine = hold(engine, None, self._strategy, problem)
        setup = Setup.of(self._engine.describe(), max_rounds, problem.layout, rule, seed)
        self._run = Run(Plan(max_rounds), self._with(self.psi), setup, problem.start, self._engine)
        self._gradients, self._up, self._down = 0, 0, 0
        self._least = 0.0  # residuals below it are rounding
        self._begin = self._run.server.x
        self._start, self._curvatures = self._gradient(units=True)
        self._take_units(self.psi)

    def close(self) -> None:
        """End the run and the engine."""
        self._run.close()
        self._engine.close()

    def _with(self, psi: Regularizer) -> FedConStrategy[Any]:
        strategy = copy.copy(self._strategy)
        strategy.regularizer = psi
        return strategy

    def _turn(self, psi: Regularizer) -> None:
        """Continue with another regularizer."""
        run = self._run
        run.server = run.server.continued(self._with(psi))
        if "regularizer" in run.server.strategy.client_settings:
            states = self._engine.save()
            self._engine.open(run.server.info)
            if states is not None:
                self._engine.load(states)

    def _take_units(self, psi: Regularizer) -> None:
        """Measure gradients in the units of F + psi."""
        self._units = units_of(psi, self._curvatures, self._start.shape)
        self.target = max(self.tolerance * self._units.length(self._start), self._least)

    def largest_weight(self, ratio: float) -> float:
        """Return the smallest lambda at which all penalised entries are 0.

        If the null model fits up to rounding, as for a constant target, all penalised entries are 0
        even at `ratio` times the returned lambda.
        """
        start, x = self._start, self._run.server.x
        largest = largest_weight(self.psi, x, start)
        if bool(np.all(penalised(self.psi, start + 1.0))):
            if not largest:
                _log.warning("%s", _CONSTANT)
            return largest
        # Some entries are free: the null model is the solution for a far larger weight.
        weight = 1e3 * (largest or self._units.length(start) or 1.0)
        for _ in range(_TRIES):
            psi = self.psi.scaled(weight)
            self._take_units(psi)
            self._turn(psi)
            self._solve()
            self._play(1)  # to rounding, since the first point must be the null model
            x = self._run.server.x
            if not (x[penalised(self.psi, x)] != 0).any():
                break
            weight *= 1e6
        self._take_units(self.psi)
        # From here on, gradients are compared with that at the null model.
        self._start, _ = self._gradient()
        size = self._units.length(start) + self._units.reach(x)
        noise = _NOTHING * float(np.finfo(x.dtype).eps) * size
        largest = largest_weight(self.psi, x, self._start)
        if self._units.length(self._start) <= noise:
            _log.warning("%s", _CONSTANT)
            self._least = noise
            entrywise = self._units.psi.entrywise(x.shape)
            if entrywise is not None:
                largest = max(largest, noise / float(entrywise[0][entrywise[0] > 0].min()))
            return 100.0 * largest / ratio
        self._take_units(self.psi)
        return largest * (1.0 + _ROUNDING)

    def _gradient(self, *, units: bool = False) -> tuple[Array, Array | None]:
        pooled, _ = pooled_gradient(self._run.server, self._engine, units=units)
        if pooled is None:
            raise ConfigError("a path needs the gradients of all clients: see the log")
        self._count(1 if pooled[1] is None else 2, 1.0 if units else None)
        return pooled

    def total_sums(
        self,
        statistic: str,
        shapes: Mapping[str, tuple[int, ...]],
        x: Array | None = None,
        **more: float,
    ) -> dict[str, Array]:
        """Return the totals of a statistic at a model; see `flower_fedcon.runs.final_sums`."""
        return total_sums(self._run.server, self._engine, statistic, shapes, x, **more)

    def _count(self, vectors: int, number: float | None = None) -> None:
        """Count an exchange of gradients: vectors up; one vector, and perhaps a number, down."""
        model = np.zeros(self._layout.shape, self._layout.array_dtype)
        clients = self._run.server.setup.num_clients
        down: Payload = {"x": model} if number is None else {"x": model, "units": number}
        self._gradients += 1
        self._up += vectors * array_bytes(model.shape, model.dtype) * clients
        self._down += payload_bytes(down) * clients

    def _solve(self) -> tuple[float, bool, int]:
        """Play rounds until the KKT residual is small.

        Return the residual, whether it reached the tolerance or the last digit of its terms, and
        the number of rounds.
        """
        played = 0
        while True:
            kkt = certify(self._run.server, self._engine, self._units)["kkt"]
            self._count(1)
            x = self._run.server.x
            reach = self._units.reach(x)
            if self._scale_free:
                reach += self._units.reach_of_one(len(self._names))
            digit = _DIGIT * float(np.finfo(x.dtype).eps) * reach
            if kkt <= max(self.target, _REACH * digit) or played >= self.max_rounds:
                return kkt, kkt <= max(self.target, digit), played
            some = min(max(1, int(_SPARSER * played)), self.max_rounds - played)
            self._play(some)
            played += some

    def _play(self, rounds: int) -> None:
        for _ in range(rounds):
            self._run.play_round()

    def along(self, grid: Array) -> RegularizationPath:
        """Return the path over these weights."""
        points: list[dict[str, Any]] = []
        began, sent, received, rounds, gradients = time.perf_counter(), 0, 0, 0, 0
        for value in grid.tolist():
            psi = self.psi.scaled(value)
            self._take_units(psi)
            self._turn(psi)
            kkt, converged, played = self._solve()
            server, now = self._run.server, time.perf_counter()
            x = server.x.copy()
            asked = self._gradients - gradients
            up, down = server.uplink_bytes + self._up, server.downlink_bytes + self._down
            points.append(
                {
                    "x": self._layout.unpack(x),
                    "kkt": kkt,
                    "converged": converged,
                    "active": np.flatnonzero((x != 0) & penalised(self.psi, x)),
                    "rounds": played,
                    "exchanges": server.round - rounds + asked,
                    "uplink_bytes": up - sent,
                    "downlink_bytes": down - received,
                    "seconds": now - began,
                }
            )
            began, sent, received = now, up, down
            rounds, gradients = server.round, self._gradients
        lists = ("x", "active")
        columns: dict[str, Any] = {name: [p[name] for p in points] for name in points[0]}
        columns = {k: v if k in lists else np.array(v) for k, v in columns.items()}
        server = self._run.server
        newton = server.strategy if isinstance(server.strategy, FedNewton) else None
        if newton is not None:
            columns["apart"] = newton.apart(server.state)
        if self._separable:
            runaway = server.strategy.runaway(server.state)
            if not runaway.size and not grid[-1] and self._bounded:
                start, rows = (
                    self._begin,
                    self._layout.shape[0] - isinstance(self.psi, WithIntercept),
                )
                units = units_of(Zero(), self._curvatures, start.shape)
                runaway = falling(server, self._engine, start, self._start, units, rows)
            columns["runaway"] = runaway
            columns["converged"][-1] &= bool(grid[-1]) or not runaway.size
        path = RegularizationPath(values=grid, **columns)
        if path.runaway.size:
            names = tuple(self._names)
            if not names and isinstance(self.psi, WithIntercept):
                names = tuple(map(str, range(self._layout.shape[0] - 1)))
            entries = separating(path.runaway, self._layout.shape, names)
            held = bool(grid[-1])
            _log.warning(
                "lambda = %.4g: %s", grid[-1], separated_by(entries, "take a penalty", held=held)
            )
        elif not path.converged.all():
            worst = int(np.argmax(~path.converged))
            _log.warning(
                "%d of %d points of the path did not reach a KKT residual of %g in %d rounds, the "
                "first at lambda = %.4g (%.3g): allow more max_rounds, or a larger tolerance",
                int((~path.converged).sum()), len(path), self.target, self.max_rounds,
                path.values[worst], path.kkt[worst],
            )  # fmt: skip
        return path
