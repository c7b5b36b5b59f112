"""Local problems of many clients along one leading axis, for solvers that serve all at once.

Sums over a client's entries are taken client by client, so that a client's numbers depend on the
others by rounding at most.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import FedConError
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.solvers.problem import LocalProblem, Stop
from flower_fedcon.validation import Array

Products = Callable[[Array], Array]


class Functions(ABC):
    """The functions f_i of n clients, each at a point of its own: x has shape (n, *shape)."""

    @abstractmethod
    def values(self, x: Array) -> Array:
        """Return f_i(x_i), shape (n,)."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """Return the gradients, shape of x."""

    @abstractmethod
    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both."""

    @abstractmethod
    def hessian_products(self, x: Array) -> Products | None:
        """Return the map v -> H_i v_i, for v in the shape of x; None where there is none."""

    def gradient_steps(self, steps: LocalPass) -> Array | None:
        """Return where gradient steps lead; None where they have to be taken one by one."""
        return None

    @abstractmethod
    def only(self, places: Array) -> Functions:
        """Return the functions of some of the clients."""

    @property
    @abstractmethod
    def objectives(self) -> list[Any]:
        """The clients' own objectives."""


class OneFunction(Functions):
    """The function of one client, with a leading axis of length 1."""

    def __init__(self, objective: Any) -> None:
        self.objective = objective

    @property
    def objectives(self) -> list[Any]:
        """The objective."""
        return [self.objective]

    def values(self, x: Array) -> Array:
        """Return the value."""
        return np.array([float(self.objective.value(x[0]))])

    def gradient(self, x: Array) -> Array:
        """Return the gradient."""
        return np.asarray(self.objective.gradient(x[0]))[None]

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both."""
        both = getattr(self.objective, "value_and_gradient", None)
        if both is None:
            return self.values(x), self.gradient(x)
        value, gradient = both(x[0])
        return np.array([float(value)]), np.asarray(gradient)[None]

    def hessian_products(self, x: Array) -> Products | None:
        """Return the Hessian's map, if the objective has one."""
        products = getattr(self.objective, "hessian_products", None)
        if products is None:
            return None
        product = products(x[0])
        return lambda v: product(v[0])[None]

    def only(self, places: Array) -> Functions:
        """Return itself: of one client nothing is left out."""
        return self


class StackedFunctions(Functions):
    """The functions of a stack of objectives."""

    def __init__(self, stack: Stack, objectives: list[Any]) -> None:
        self.stack, self._objectives = stack, objectives
        self._all = slice(0, len(objectives))

    @property
    def objectives(self) -> list[Any]:
        """The clients' own objectives."""
        return self._objectives

    def values(self, x: Array) -> Array:
        """Return the values."""
        return self.stack.own_values(x)

    def gradient(self, x: Array) -> Array:
        """Return the gradients."""
        return self.stack.gradient(x, self._all)

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both."""
        return self.stack.value_and_gradient(x)

    def hessian_products(self, x: Array) -> Products | None:
        """Return the Hessians' map, if the stack has one."""
        return self.stack.hessian_products(x)

    def gradient_steps(self, steps: LocalPass) -> Array | None:
        """Return where gradient steps lead, by the stack if it takes them."""
        taken = self.stack.takes(steps)
        return self.stack.gradient_steps(steps, self._all, None) if taken else None

    def only(self, places: Array) -> Functions:
        """Return the functions of some of the clients."""
        chosen = [self._objectives[place] for place in places.tolist()]
        return StackedFunctions(self.stack.only(places), chosen)


class LocalProblems:
    """Minimise h_i(x) + psi(x) for n clients: `LocalProblem` with a leading axis.

    h_i(x) = f_i(x) + <linear_i, x> + shift/2 ||x - center_i||^2.

    Parameters
    ----------
    functions : Functions
    start : array, shape (n, *shape)
    linear, center : array, optional
        Shape of `start`, or one model's.
    shift : float
    regularizer : Regularizer, optional
        One client's psi.
    """

    def __init__(
        self,
        functions: Functions,
        start: Array,
        linear: Array | None,
        shift: float,
        center: Array | None,
        regularizer: Any,
    ) -> None:
        self.functions, self.start, self.shift = functions, start, shift
        self.linear, self.center, self.regularizer = linear, center, regularizer
        self.eps = float(np.finfo(start.dtype).eps)

    @classmethod
    def of_one(cls, problem: LocalProblem) -> LocalProblems:
        """Return one client's problem, with a leading axis."""
        p = problem
        linear = None if p.linear is None else p.linear[None]
        center = None if p.center is None else p.center[None]
        function = OneFunction(p.objective)
        return cls(function, p.start[None], linear, p.shift, center, p.regularizer)

    def only(self, places: Array, start: Array) -> LocalProblems:
        """Return the problems of some of the clients, with other starts."""
        linear, center = (self._some(array, places) for array in (self.linear, self.center))
        functions = self.functions.only(places)
        return LocalProblems(functions, start, linear, self.shift, center, self.regularizer)

    def _some(self, array: Array | None, places: Array) -> Array | None:
        own = array is not None and array.ndim == self.start.ndim and len(array) > 1
        return array[places] if own and array is not None else array

    def one(self, place: int, start: Array) -> LocalProblem:
        """Return the problem of one client, without the axis."""
        linear, center = (
            array if array is None else np.broadcast_to(array, self.start.shape)[place]
            for array in (self.linear, self.center)
        )
        return LocalProblem(
            self.functions.objectives[place],
            start,
            linear=linear,
            shift=self.shift,
            center=center,
            regularizer=self.regularizer,
        )

    def values(self, x: Array) -> Array:
        """Return h_i(x_i), without psi, shape (n,)."""
        return sum(self._terms(x, self.functions.values(x)))  # type: ignore[return-value]

    def gradient(self, x: Array) -> Array:
        """Return the gradients, in the shape and dtype of x."""
        return self._add(x, self.functions.gradient(x))

    def evaluate(self, x: Array) -> tuple[Array, Array, Array]:
        """Return h_i(x_i), the gradients, and the sums of the sizes of the terms of h_i(x_i)."""
        values, gradient = self.functions.value_and_gradient(x)
        terms = self._terms(x, values)
        sizes = sum(np.abs(term) for term in terms)
        return sum(terms), self._add(x, gradient), sizes  # type: ignore[return-value]

    def hessian_products(self, x: Array) -> Products | None:
        """Return the map v -> (Hessian of h_i) v_i; None where there is none."""
        product = self.functions.hessian_products(x)
        if product is None or not self.shift:
            return product

        def shifted(v: Array) -> Array:
            found = product(v)
            found += self.shift * v
            return found

        return shifted

    def rounding(self, x: Array) -> Array:
        """Return the norms below which gradients are rounding error; see `LocalProblem`."""
        total = np.zeros(len(x))
        if self.linear is not None:
            total = total + self._norms(self.linear)
        if self.shift:
            total = total + self.shift * norms(x)
            if self.center is not None:
                total = total + self.shift * self._norms(self.center)
        return 100 * self.eps * total

    def _norms(self, array: Array) -> Array:
        return norms(array if array.ndim == self.start.ndim else array[None])

    def _terms(self, x: Array, values: Array) -> list[Array]:
        terms = [values]
        if self.linear is not None:
            terms.append(dots(np.broadcast_to(self.linear, x.shape), x))
        if self.shift:
            away = x if self.center is None else x - self.center
            terms.append(0.5 * self.shift * dots(away, away))
        return terms

    def _add(self, x: Array, gradient: Array) -> Array:
        if self.linear is not None:
            gradient = gradient + self.linear
        if self.shift:
            gradient = gradient + self.shift * (x if self.center is None else x - self.center)
        return gradient.astype(x.dtype, copy=False)


class Solutions(NamedTuple):
    """What a solver found for n clients: the fields of `Solution`, along the axis.

    Attributes
    ----------
    x : array, shape (n, *shape)
    gradient_norm, iterations, evaluations, converged, trials : array, shape (n,)
    errors : dict
        Of clients whose solve failed, by their places; their x means nothing.
    """

    x: Array
    gradient_norm: Array
    iterations: Array
    evaluations: Array
    converged: Array
    trials: Array
    errors: dict[int, FedConError]

    @classmethod
    def begun(cls, start: Array) -> Solutions:
        """Return a place for the solutions, with nothing done."""
        n = len(start)
        counts = (np.zeros(n, np.int64) for _ in range(3))
        iterations, evaluations, trials = counts
        lengths, converged = np.full(n, np.nan), np.zeros(n, bool)
        return cls(start.copy(), lengths, iterations, evaluations, converged, trials, {})


class ClientsError(FedConError):
    """Some clients' solves failed.

    Attributes
    ----------
    errors : dict
        By the clients' places among those served.
    """

    def __init__(self, errors: dict[int, FedConError]) -> None:
        super().__init__(str(next(iter(errors.values()))))
        self.errors = errors


def dots(a: Array, b: Array) -> Array:
    """Return each client's inner product, shape (n,), in double precision.

    >>> dots(np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 2)))
    array([3., 7.])
    """
    n = len(a)
    found: Array = np.matmul(a.reshape(n, 1, -1), b.reshape(n, -1, 1)).reshape(n)
    return found.astype(np.float64, copy=False)


def norms(a: Array) -> Array:
    """Return each client's Euclidean norm, shape (n,), in double precision.

    >>> norms(np.array([[3.0, 4.0], [0.0, 2.0]]))
    array([5., 2.])
    """
    return np.sqrt(dots(a, a))


def along(numbers: Array, x: Array) -> Array:
    """Return one number a client in the shape and dtype that multiply x.

    >>> along(np.array([1.0, 2.0]), np.ones((2, 3))).shape
    (2, 1)
    """
    return numbers.astype(x.dtype, copy=False).reshape(-1, *[1] * (x.ndim - 1))


def wide(mask: Array, x: Array) -> Array:
    """Return a mask of clients in the shape that chooses among their x.

    >>> wide(np.array([True, False]), np.ones((2, 3))).shape
    (2, 1)
    """
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def some(stop: Stop | None, places: Array) -> Stop | None:
    """Return a stopping rule of many clients as that of some of them."""
    only = getattr(stop, "only", None)
    return stop if only is None else only(places)


def ends(stop: Stop | None, x: Array, gradient: Array) -> Array:
    """Return for which clients a stopping rule holds, shape (n,)."""
    if stop is None:
        return np.zeros(len(x), bool)
    return np.reshape(stop(x, gradient), len(x))
