"""Many clients along one leading axis: a stack of objectives, and how to name some of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flower_fedcon.validation import Array

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


def together(arrays: Sequence[Array]) -> Array:
    """Return arrays of one shape, stacked along a new leading axis.

    Nothing is copied if they already follow one another in one array.
    """
    first = arrays[0]
    starts = [array.ctypes.data for array in arrays] if first.base is not None else []
    if starts and all(
        array.base is first.base
        and array.flags.c_contiguous
        and start == starts[0] + i * first.nbytes
        for i, (array, start) in enumerate(zip(arrays, starts, strict=True))
    ):
        shape, strides = (len(arrays), *first.shape), (first.nbytes, *first.strides)
        return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)
    return np.stack(arrays)


class Steps(NamedTuple):
    """Steps z := z - step g, with g = grad h(w) at w = prox of z.

    h(x) = f_j(x) + <linear, x> + shift/2 ||x - center||^2.

    Attributes
    ----------
    start : array, shape (clients, *shape), or of `shape` for all
        Of z.
    step : float
    levels : list of (t, l1, l2)
        For each step: the prox is that of t (l1 ||x||_1 + l2/2 ||x||^2).
    from_point : bool
        Whether the steps are z := w - step g.
    linear, center : array, optional
        Shape of `start`; the origin if None.
    shift : float
    """

    start: Array
    step: float
    levels: Sequence[tuple[float, float, float]]
    from_point: bool
    linear: Array | None = None
    shift: float = 0.0
    center: Array | None = None


class Stack(ABC):
    """The objectives of several clients.

    Attributes
    ----------
    shape : tuple of int
        Shape of one client's model.
    num_examples : int
        Number of rows of each client.
    """

    shape: tuple[int, ...]
    num_examples: int = 1

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

    def add_gradient(self, x: Array, out: Array, scale: float, which: Which) -> None:
        """Add scale times the gradients of some clients to `out` in place."""
        out += scale * self.gradient(x, which)

    def pulled_gradient(
        self, x: Array, scale: float, center: Array, pull: float, which: Which
    ) -> Array:
        """Return scale times the gradients of some clients, plus pull * (x - center)."""
        gradient = x - center
        gradient *= pull
        self.add_gradient(x, gradient, scale, which)
        return gradient

    def uncompiled(self) -> None:
        """Take each gradient in one pass, without compiled kernels."""
        return

    def takes(self, steps: Steps) -> bool:
        """Return whether `gradient_steps` can take these."""
        return False

    def gradient_steps(self, steps: Steps, which: Which, rows: Array | None) -> Array:
        """Return where gradient steps of some clients lead, all of one client's in one go.

        Parameters
        ----------
        steps : Steps
        which : slice, or array of int
            The clients.
        rows : array of int, shape (clients, steps, batch size), optional
            The rows of each client that count in each step; all by default.
        """
        raise NotImplementedError

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the gradients over some rows, of shape (clients, batch size)."""
        raise NotImplementedError
