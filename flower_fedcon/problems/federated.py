"""A federated problem: the clients' objectives, a constraint or regularizer, and the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import numpy as np

from flower_fedcon.arrays import exact_sum
from flower_fedcon.core.evaluation import check_metric_names, numbers, pooled
from flower_fedcon.core.infos import Numbered
from flower_fedcon.core.start import common_layout, start_point
from flower_fedcon.errors import ConfigError, FedConError, printable
from flower_fedcon.layout import Layout, Model
from flower_fedcon.objectives import ManyClients, Noisy, Scaled
from flower_fedcon.objectives.foreign import as_seen
from flower_fedcon.objectives.many import representatives
from flower_fedcon.objectives.private_objective import exact, is_private, own_content
from flower_fedcon.problems.constrained_reference import least_violation, solve_constrained
from flower_fedcon.problems.functional import FunctionalConstraints, check_bounds, check_convex
from flower_fedcon.problems.reference import Reference, solve
from flower_fedcon.regularizers import Indicator, Zero, as_regularizer
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.relative import ROUNDING, TINY
from flower_fedcon.sets import ConstraintSet
from flower_fedcon.solvers.units import mean_curvatures
from flower_fedcon.validation import Array, choice, float_array, nonnegative
from flower_fedcon.wire.digests import digest

Metric = Callable[[Any], float | None]


class FederatedProblem:
    """min (1/N) sum_j f_j(x) + psi(x), or subject to x in D.

    Parameters
    ----------
    objectives : sequence, or ManyClients
        f_1, ..., f_N: objects with `value(x)` and `gradient(x)`. If all have `metrics(x)`, a dict
        of numbers by name, the history has the clients' plain mean of each number; for a pair
        (value, weight) it has the weighted mean and each client's value. A nonconvex objective may
        set `convex = False`; with functional constraints no F* is then computed.
    constraint : ConstraintSet, optional
        D.
    regularizer : Regularizer, optional
        psi.
    weights : array, shape (N,), optional
        w_j >= 0, with a sum > 0: the mean becomes sum_j w_j f_j / sum_j w_j. Client j's objective
        is scaled by N w_j / sum w, so that algorithms see plain means.
    x0 : array or list of arrays, optional
        The start; by default zeros, projected onto D if there is a constraint.
    names : sequence of str, optional
        Names of the clients, for error messages.
    metrics : dict of callables, optional
        Functions of x that are recorded in addition to the objective. No other column may have
        their names. A value of None is not recorded.
    optimum : Reference, optional
        The optimum, if known; by default a solver finds it at first use.
    preparation : Attachment, optional
        For clients with tables: the names of their columns, and how they are scaled.
    constraints : {"mean", "each", "groups"} (default: "mean")
        Which functional constraints must hold. "mean": the mean of the g_j(x) <= 0
        (`constraint_value`), which all objectives must have. "each": every g_j(x) <= 0, which some
        objectives may lack. "groups": m constraints sum_j s_jk(x) / sum_j n_jk <= 0, of which every
        objective has its part (`constraint_sums(x)` and `constraint_counts`, as in
        `GroupLossBounds`). Weights apply to the mean only.

    Raises
    ------
    ConfigError
        If the objectives' shapes differ, an argument does not fit them, or `constraints` does not
        match the constraints of the objectives.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> problem = FederatedProblem([Quadratic(np.eye(2), np.ones(2)) for _ in range(3)])
    >>> problem.objective(np.zeros(2))
    0.0
    >>> problem.optimum.value
    -1.0
    """

    inference: str | None = None
    """Which standard errors a run on tables computes; see `Plan`."""
    column_names: Sequence[str] = ()
    """What messages call the entries of x, or its rows, if they are columns of a table."""
    scale_free: bool = False
    """Whether scores of these columns, and an intercept behind them, have no unit, as log odds."""
    heterogeneity: bool = False
    """Whether each client also reports a fit of its own rows; see `Plan`."""
    stated: Mapping[str, Any] | None = None
    """Name and arguments of the function that made it, as in an experiment file; see `stated`."""

    def __init__(
        self,
        objectives: Sequence[Any],
        *,
        constraint: ConstraintSet | None = None,
        regularizer: Any = None,
        weights: Any = None,
        x0: Model | None = None,
        names: Sequence[str] | None = None,
        metrics: Mapping[str, Metric] | None = None,
        optimum: Reference | None = None,
        preparation: Any = None,
        constraints: str = "mean",
    ) -> None:
        objectives = objectives if isinstance(objectives, ManyClients) else list(objectives)
        if not objectives:
            raise ConfigError("a problem needs at least one client's objective")
        standing = representatives(objectives)
        for j, objective in enumerate(standing):
            for method in ("value", "gradient"):
                if not callable(getattr(objective, method, None)):
                    what = f"{printable(repr(objective), 60)}: expected an objective of its data"
                    raise ConfigError(f"client {j}'s objective has no {method}(x): {what}")
        if constraint is not None and not isinstance(constraint, ConstraintSet):
            raise ConfigError(f"constraint must be one of flower_fedcon.sets, got {constraint!r}")
        if constraint is not None and regularizer is not None:
            raise ConfigError(
                "give a constraint or a regularizer, not both: Indicator(set) is a regularizer"
            )
        self.constraint = constraint
        self.regularizer = None if regularizer is None else as_regularizer(regularizer)
        if isinstance(self.regularizer, Indicator):
            self.constraint, self.regularizer = self.regularizer.constraint, None
        self.names = _names(names, len(objectives), many=isinstance(objectives, ManyClients))
        own_names = self.names[: len(standing)]
        self.layout = common_layout([Layout.for_objective(o) for o in standing], own_names, x0)
        self.weights = _weights(weights, len(objectives))
        self.constraints = choice("constraints", constraints, ("mean", "each", "groups"))
        self.objectives: Sequence[Any]
        self.clients: Sequence[Any]
        self._summands: Sequence[Any]  # their mean is the clients' mean
        if isinstance(objectives, ManyClients):
            weighted = objectives.weighted(len(objectives) * self.weights)
            self.objectives = self.clients = weighted
            self._summands = [weighted.mean]
        else:
            self.objectives = [
                _weighted(o, len(objectives) * w, self.layout, mean=self.constraints == "mean")
                for o, w in zip(objectives, self.weights, strict=True)
            ]
            self.clients = [as_seen(o, self.layout) for o in self.objectives]
            self._summands = self.clients
        self.private_examples = any(map(is_private, representatives(self.objectives)))
        if self.private_examples:  # a reference must not spend their budget
            self._summands = [as_seen(exact(o), self.layout) for o in self.objectives]
        self._functional = FunctionalConstraints(
            representatives(self.clients), constraints, own_names
        )
        if self.groups:
            check_bounds(objectives, self.names)
        if self.constraint is not None:
            self.constraint.check_shape(self.layout.shape)
        self.start = start_point(self.layout, x0, self.constraint)
        self.metrics = dict(metrics or {})
        check_metric_names(self.metrics)
        # From the given objectives: scaled ones have no metrics of their own.
        measures: list[Any] = [getattr(objective, "metrics", None) for objective in standing]
        self._own_metrics = measures if all(map(callable, measures)) else []
        self._optimum = optimum
        self.preparation = preparation

    def with_noise(self, std: float) -> Self:
        """Return the same problem with `Noisy` objectives: gradients of local steps have noise.

        A client's weight multiplies its noise. In a file: ``gradient_noise = 0.1`` in
        ``[problem]``.

        Raises
        ------
        ConfigError
            If `std` is below 0, or the clients are `ManyClients`.
        """
        if isinstance(self.objectives, ManyClients):
            raise ConfigError("ManyClients take no noise: give a list of objectives")
        noisy, shares = copy(self), (self.num_clients * self.weights).tolist()
        std = nonnegative("gradient_noise", std)
        pairs = zip(self.objectives, shares, strict=True)
        noisy.objectives = [Noisy(one, std * share) for one, share in pairs]
        if self.stated is not None:
            noisy.stated = {**self.stated, "gradient_noise": std}
        return noisy

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return len(self.objectives)

    @property
    def x0(self) -> Model:
        """The start, in the user's form."""
        return self.layout.unpack(self.start)

    def objective(self, x: Model) -> float:
        """Return F(x) = (1/N) sum_j f_j(x) + psi(x)."""
        return self._objective(self.layout.pack(x, "x"))

    def gradient(self, x: Model) -> Model:
        """Return the gradient of (1/N) sum_j f_j at x."""
        packed = self.layout.pack(x, "x")
        return self.layout.unpack(self._mean([c.gradient(packed) for c in self._summands]))

    def violation(self, x: Model) -> float:
        """Return the distance from x to D; 0 without a constraint."""
        if self.constraint is None:
            return 0.0
        return self.constraint.violation(self.layout.pack(x, "x"))

    @property
    def optimum(self) -> Reference:
        """The optimum by an independent solver: `x`, `value`, `residual`, `method`.

        It is computed at first use and kept; with functional constraints only for smooth, convex
        objectives. If no model satisfies the bounds, the error says so, and `least_violation` by
        how much.
        """
        if self._optimum is None and self.has_functional_constraint:
            self._optimum = self._constrained_optimum()
        if self._optimum is None:
            psi = Indicator(self.constraint) if self.constraint is not None else self.regularizer
            self._optimum = solve(self._summands, psi or Zero(), self.start)
        return self._optimum

    @property
    def has_optimum(self) -> bool:
        """Whether the optimum is known, so that residuals are recorded."""
        return self._optimum is not None

    @property
    def has_functional_constraint(self) -> bool:
        """Whether the objectives have functional constraints, g(x) <= 0."""
        return self._functional.any

    @property
    def groups(self) -> int:
        """The number of groups with a constraint, m; 0 without `constraints="groups"`."""
        return self._functional.groups

    def constraint_values(self, x: Model) -> Array:
        """Return the constraints that must be <= 0: their mean, each client's, or each group's.

        Clients without a constraint are left out; the shape is (1,), (at most N,) or (m,).
        """
        return self._functional.values(self.layout.pack(x, "x"))

    @cached_property
    def least_violation(self) -> float:
        """The minimum over x of the largest constraint value, by an independent solver.

        If it is above 0, no model satisfies the bounds, and they must be raised by at least this
        value. If it is below 0, lower bounds are possible. For convex and smooth constraints;
        computed at first use and kept.

        Raises
        ------
        ConfigError
            If the problem has no functional constraints, or a set besides them, or they are not
            convex.
        FedConError
            If the solver does not reach a certified residual.

        Examples
        --------
        >>> from flower_fedcon.objectives import LossBound, Quadratic
        >>> clients = [Quadratic(np.eye(1), np.array([b])) for b in (1.0, -1.0)]  # x^2/2 - b x
        >>> bounded = [LossBound(f, -0.25) for f in clients]
        >>> problem = FederatedProblem(bounded, constraints="each")
        >>> round(problem.least_violation, 6)
        0.25
        """
        if not self.has_functional_constraint or self.constraint is not None:
            raise ConfigError(
                f"least_violation needs functional constraints, such as LossBound, and no set, and "
                f"this problem has {self.constraint or 'none'}"
            )
        check_convex(self.objectives)
        return least_violation(
            self._functional.values,
            self._functional.gradients,
            self.start,
            curvatures=mean_curvatures(self._summands),
        ).value

    def _constrained_optimum(self) -> Reference:
        if self.constraint is not None or self.regularizer is not None:
            raise ConfigError(
                "no solver is available for functional constraints beside a set or a regularizer: "
                "give optimum=, or run without F* (reference = false)"
            )
        check_convex(self.objectives)
        return solve_constrained(
            self._objective,
            lambda x: self._mean([c.gradient(x) for c in self._summands]),
            self._functional.values,
            self._functional.gradients,
            self.start,
            curvatures=mean_curvatures(self._summands),
        )

    def digests(self) -> dict[str, list[str]]:
        """Return digests of the clients' data, of D and of psi, which a resumed run must match."""
        many = isinstance(self.objectives, ManyClients)
        each = [self.objectives] if many else self.objectives
        return {
            "data": [digest(own_content(objective)) for objective in each],
            "problem": [digest((self.constraint, self.regularizer))],
        }

    def evaluate(self, packed: Array, values: Sequence[float] | None = None) -> Record:
        """Return the record of a packed model: objective, residual, violation and metrics.

        `values` are the clients' f_j at this model, if known.

        Raises
        ------
        FedConError
            If the model satisfies the constraint and has a value below the optimum.
        """
        record: Record = {"objective": self._objective(packed, values)}
        if self._optimum is not None:
            record["residual"] = record["objective"] - self._optimum.value
        D = self.constraint
        record["violation"] = 0.0 if D is None else D.violation(packed)
        if self._functional.any:
            record["constraint"] = float(self._functional.values(packed).max())
        if self._optimum is not None and record.get("constraint", 0.0) <= 0:
            self._check_residual(packed, record, self._optimum)
        if not (self._own_metrics or self.metrics):
            return record
        shown = packed.view()
        shown.flags.writeable = False  # the run keeps this array
        x = self.layout.unpack(shown)
        if self._own_metrics:
            record |= pooled([metrics(x) for metrics in self._own_metrics], self.names)
        return record | numbers({name: metric(x) for name, metric in self.metrics.items()})

    def value_within(self, packed: Array) -> float:
        """Return F of a packed model; NaN outside D, or above a functional constraint's bound."""
        D, size = self.constraint, float(np.linalg.norm(packed))
        if D is not None and D.violation(packed) > TINY * size:
            return math.nan
        if self._functional.any and float(self._functional.values(packed).max()) > 0:
            return math.nan
        return self._objective(packed)

    def _check_residual(self, x: Array, record: Record, optimum: Reference) -> None:
        """Raise if F(x) is below F* by more than rounding, and by more than convexity allows."""
        relative = 1e-5 if x.dtype == np.float32 else ROUNDING
        allowed = relative * max(abs(record["objective"]), abs(optimum.value))
        if not record["residual"] < -allowed:
            return
        allowed = max(allowed, relative * abs(self._objective(self.start)))
        # F* has a certified residual; and outside D, F may be lower.
        if np.size(optimum.x) == x.size:
            away = optimum.length(x - np.asarray(optimum.x).reshape(x.shape))
            allowed += 2 * optimum.residual * away
        if self.constraint is not None and record["violation"]:
            inside = self.constraint.project(x)
            slope = np.linalg.norm(self._mean([c.gradient(inside) for c in self._summands]))
            allowed += float(slope) * record["violation"]
        if record["residual"] < -allowed:
            raise FedConError(
                f"F(x) = {record['objective']:.9g} is below the optimum F* = {optimum.value:.9g} "
                f"({optimum.method}) by {-record['residual']:.3g}, which a convex problem "
                f"excludes: the error is in an objective's value(x) or gradient(x), in a given "
                f"optimum, or in this package. Check the objectives and report it, or run without "
                f"F* (reference = false) if the problem is not convex"
            )

    def _objective(self, packed: Array, values: Sequence[float] | None = None) -> float:
        if values is None:
            values = [self._value(j, packed) for j in range(len(self._summands))]
        total = exact_sum(values) / len(values)
        return total if self.regularizer is None else total + self.regularizer.value(packed)

    def _value(self, j: int, packed: Array) -> float:
        """Return a summand's value; the error for one that is not a number names the client."""
        try:
            return self._summands[j].value(packed)  # type: ignore[no-any-return]
        except ConfigError as error:
            if len(self._summands) < self.num_clients:
                raise
            raise ConfigError(f"client {self.names[j]}: {error}") from None

    @staticmethod
    def _mean(arrays: Sequence[Array]) -> Array:
        total = arrays[0].copy()
        for array in arrays[1:]:
            total += array
        return total / len(arrays)


def _names(names: Sequence[str] | None, n: int, *, many: bool) -> Sequence[str]:
    if names is None:
        return Numbered(n) if many else tuple(str(j) for j in range(n))
    if len(names) != n or len({str(name) for name in names}) != n:
        raise ConfigError(f"names must be {n} different texts, one for each client, got {names!r}")
    return tuple(str(name) for name in names)


def _weights(weights: Any, n: int) -> Array:
    if weights is None:
        return np.full(n, 1.0 / n)
    array = float_array("weights", weights, ndim=1)
    if array.shape != (n,) or (array < 0).any() or not array.any():
        raise ConfigError(f"weights must be {n} numbers >= 0 that are not all 0, got {weights!r}")
    if array.max() > 1e300:  # the sum could overflow
        array = array / array.max()
    return array / float(array.sum())


def _weighted(objective: Any, factor: float, layout: Layout, *, mean: bool) -> Any:
    if math.isclose(factor, 1.0, rel_tol=1e-15):
        return objective
    seen = objective if layout.layered else as_seen(objective, layout)
    return Scaled(seen, factor, constraint=mean)
