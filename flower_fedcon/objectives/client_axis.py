"""Many clients along one leading axis: stacks of objectives, and selections of clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from flower_fedcon.arrays import LINE, empty_at_a_line, is_array
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.validation import Array

_SMALL = 2**24  # bytes

Which: TypeAlias = "slice | Array"
"""Some of the clients of a stack: a slice with start and stop, or an array of their places."""


def places(which: Which) -> Array:
    """Return the clients' places.

    >>> places(slice(2, 5))
    array([2, 3, 4])
    """
    return np.arange(which.start, which.stop) if isinstance(which, slice) else which


def per_client(values: Sequence[float], dtype: np.dtype[Any], axes: int) -> Any:
    """Return a constant of the clients: a number if it is the same for all, else an array.

    Its shape is (clients, 1, ..., 1), with `axes` ones.

    >>> per_client([2.0, 2.0], np.dtype(float), 1), per_client([1.0, 2.0], np.dtype(float), 1)
    (2.0, array([[1.],
           [2.]]))
    """
    if len(set(values)) == 1:
        return values[0]
    return np.array(values, dtype).reshape(-1, *[1] * axes)


def chosen(constant: Any, which: Which) -> Any:
    """Return a constant in the form of `per_client` for some of the clients.

    >>> chosen(2.0, slice(0, 1)), chosen(np.array([[1.0], [2.0]]), slice(1, 2))
    (2.0, array([[2.]]))
    """
    return constant[which] if is_array(constant) else constant


def scaled_together(arrays: Sequence[Array], factors: Sequence[float]) -> Array:
    """Return arrays of one shape, each times its factor, along a new leading axis.

    >>> scaled_together([np.ones(2), np.ones(2)], [1.0, 2.0])
    array([[1., 1.],
           [2., 2.]])
    """
    joined = together(arrays)
    if all(factor == 1.0 for factor in factors):
        return joined
    scaled: Array = joined * np.array(factors, joined.dtype).reshape(-1, *[1] * (joined.ndim - 1))
    return scaled


def together(arrays: Sequence[Array] | Array) -> Array:
    """Return arrays of one shape, stacked along a new leading axis.

    A single array is not copied. Neither are adjacent parts of one array, unless it is small and
    does not start at a cache line.
    """
    if isinstance(arrays, np.ndarray):
        return arrays.view()
    first = arrays[0]
    large = len(arrays) * first.nbytes > _SMALL
    if large and len(arrays) == 1:
        return first[None]
    starts = [array.ctypes.data for array in arrays] if first.base is not None else []
    if (
        starts
        and (large or starts[0] % LINE == 0)
        and all(
            array.base is first.base
            and array.flags.c_contiguous
            and start == starts[0] + i * first.nbytes
            for i, (array, start) in enumerate(zip(arrays, starts, strict=True))
        )
    ):
        shape, strides = (len(arrays), *first.shape), (first.nbytes, *first.strides)
        return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)
    dtype = np.result_type(*{array.dtype for array in arrays})
    return np.stack(arrays, out=empty_at_a_line((len(arrays), *first.shape), dtype))


class VertexStep(NamedTuple):
    """A Frank-Wolfe step over an l1 ball, x := (1 - step) x + step s.

    s is the ball's vertex for g = scale grad f_j(x) + pull (x - center).

    Attributes
    ----------
    x : array, shape (clients, *shape)
    scale : float
    center : array, shape `shape`
    pull, step : float
    radius : float
        The radius of the ball.
    """

    x: Array
    scale: float
    center: Array
    pull: float
    step: float
    radius: float


class StepTaker:
    """An objective that can take a client's steps together."""

    def vertex_step(self, step: VertexStep) -> tuple[Array, Array] | None:
        """Return the vertices, as codes, and the new points; None to take the step in parts.

        See `sets.atoms.CoordinateAtom` for the codes.
        """
        return None

    def gradient_steps(
        self, steps: LocalPass, next_rows: Callable[[], Array | None] | None = None
    ) -> Array | None:
        """Return the end of a client's next gradient steps; None to take them one by one.

        Parameters
        ----------
        steps : LocalPass
            Steps that are `in_numbers`.
        next_rows : callable, optional
            Returns the rows of the next step, or None for all rows. Without it all steps use all
            rows; an engine's own objective knows its rows.
        """
        return None

    def variate_steps(
        self, steps: LocalPass, next_rows: Callable[[], Array | None] | None = None
    ) -> tuple[Array, Array] | None:
        """Return the moves of these steps, and the new control variates by their rate.

        None to compute them after the steps.
        """
        return None


class Stackable(ABC):
    """An objective whose kind can be combined into one of many clients."""

    why_not_traced: str | None = None
    """Why rounds with it cannot be compiled: it uses more than NumPy; None if they can."""

    @abstractmethod
    def stack_key(self) -> Hashable | None:
        """Return what objectives must share to form one stack; None if this one cannot join any."""

    @classmethod
    @abstractmethod
    def along_axis(cls, objectives: Sequence[Any], factors: Sequence[float]) -> Any:
        """Return objectives with the same `stack_key`, each times its factor, as one object.

        It is a `Stack`, or for `StackedObjective` an objective whose arrays have a client axis.
        """

    def padded_key(self) -> Hashable | None:
        """Return what objectives must share to form one stack after `padded`; None if none can."""
        return None

    def padded(self, count: int) -> Any:
        """Return the same objective with `count` rows; the added rows do not count."""
        raise NotImplementedError

    @classmethod
    def why_not_stacked(cls, objectives: Sequence[Any]) -> str | None:
        """Return why objectives with the same `stack_key` still form no stack; None if they do."""
        return None


class Stack(ABC):
    """The objectives of several clients.

    Attributes
    ----------
    shape : tuple of int
        Shape of one client's model.
    num_examples : int
        Number of rows of each client.
    entries : int
        Numbers in the data of each client.
    models_at_once : int
        Entries of the models in one pass, so that they stay in the cache.
    whole : (Stack, slice or array of int), optional
        The stack that this is a part of, and its clients in it. Results that are computed once,
        such as products of rows, are kept there.
    """

    shape: tuple[int, ...]
    num_examples: int = 1
    entries: int = 1
    models_at_once: int = 2**18
    whole: tuple[Any, Which] | None = None

    @abstractmethod
    def gradient(self, x: Array, which: Which) -> Array:
        """Return the gradients of some clients, one for each.

        Parameters
        ----------
        x : array, shape (clients, *shape), or of `shape` for one point
        which : slice, or array of int
            The clients.
        """

    @abstractmethod
    def values(self, x: Array) -> Array:
        """Return the value of each client at one point, shape (clients,)."""

    # For local solvers: all clients of a stack, each at its own point.

    @abstractmethod
    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients; a slice copies no data."""

    @abstractmethod
    def own_values(self, x: Array) -> Array:
        """Return the value of each client at its own point, shape (clients,).

        Parameters
        ----------
        x : array, shape (clients, *shape)
        """

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the values and the gradients, for x as in `own_values`."""
        return self.own_values(x), self.gradient(x, slice(0, len(x)))

    def hessian_products(self, x: Array) -> Callable[[Array], Array] | None:
        """Return the map v -> H_i v_i of the second derivatives at x, for v in the shape of x.

        None for a stack that has none.
        """
        return None

    def add_gradient(self, x: Array, out: Array, scale: float, which: Which) -> None:
        """Add scale times the gradients of some clients to `out` in place."""
        out += scale * self.gradient(x, which)

    def pulled_gradient(
        self, x: Array, scale: float, center: Array, pull: float, which: Which
    ) -> Array:
        """Return scale times the gradients of some clients, plus pull * (x - center)."""
        return pull * (x - center) + scale * self.gradient(x, which)

    def vertex_step(self, step: VertexStep, which: Which) -> tuple[Array, Array] | None:
        """Return the vertices and the new points of some clients, as `StepTaker` does."""
        return None

    def takes(self, steps: LocalPass, full: bool = True) -> bool:
        """Return whether `gradient_steps` can take these steps, on all rows or on batches."""
        return False

    def gradient_steps(self, steps: LocalPass, which: Which, rows: Array | None) -> Array:
        """Return the end of some clients' gradient steps, taking all steps of a client together.

        Parameters
        ----------
        steps : LocalPass
        which : slice, or array of int
            The clients.
        rows : array of int, shape (clients, steps, batch size), optional
            The rows of each client in each step; all by default.
        """
        raise NotImplementedError

    def variate_steps(
        self, steps: LocalPass, which: Which, rows: Array | None
    ) -> tuple[Array, Array] | None:
        """Return the moves and the control variates, as `StepTaker` does."""
        return None

    def _in_shape(self, models: Array) -> Array:
        """Return models in the model's shape: the same array, not a view, if they have it."""
        return models if models.ndim > len(self.shape) else models.reshape(-1, *self.shape)

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows, of shape (clients, batch size)."""
        raise NotImplementedError
