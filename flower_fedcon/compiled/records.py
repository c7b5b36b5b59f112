"""What compiled loops are given: the data of all clients, their steps, or a gradient's point.

numba takes each of these records as one argument. All floats in their arrays have one dtype.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.validation import Array

# What a row's score counts for: see `gradients.add_mean`; `SOFTMAX` is for a score for each class.
LINEAR, LOGISTIC, PRODUCT, SOFTMAX = 0, 1, 2, 3
ALL_ROWS, ALL_STEPS = np.empty((0, 0), np.intp), np.empty((0, 0, 0), np.intp)


class Data(NamedTuple):
    """The data of all N clients, whose losses depend on a row's scores.

    Attributes
    ----------
    tables : array, shape (N, m, d)
    targets : array, shape (N, m)
        Of int, the classes, for softmax regression. Of shape (N, m * outputs) for several outputs.
    factors : array, shape (N,)
        The factor of each client's mean loss; softmax regression does not use it.
    ridges : array, shape (N,)
        l2 of each client, which gradients do not include.
    link : int
        As in `gradients.add_mean`, or `SOFTMAX`.
    """

    tables: Array
    targets: Array
    factors: Array
    ridges: Array
    link: int


class Steps(NamedTuple):
    """Gradient steps of n clients, with models of `size` entries.

    Client i minimises factors[i] times its mean loss, plus ridges[i]/2 ||x||^2, <linear - less, x>
    and shift/2 ||x - center||^2. The gradient g of step k is taken at the point w, the model z
    soft-thresholded at thresholds[k] and divided by divisors[k]; then
    z := of_z z + of_point w - step g.

    Attributes
    ----------
    rows : array of int, shape (n, steps, batch size), or ALL_STEPS for all rows in every step
    start : array, shape (n, size) or (1, size)
    linear, center : array, shape (n, size), (1, size) or (0, 0)
    less : array, shape (n, size) or (0, 0)
    first : array, shape (size,) or (0,)
        The point of the first step, if it is given.
    shift, step, of_z, of_point : number
    thresholds, divisors : array, shape (steps,)
    variate_rate : number
        The control variates end at less + (variate_rate (z - start) - linear).
    """

    rows: Array
    start: Array
    linear: Array
    less: Array
    center: Array
    first: Array
    shift: Any
    step: Any
    of_z: Any
    of_point: Any
    thresholds: Array
    divisors: Array
    variate_rate: Any


class Point(NamedTuple):
    """Where gradients of n clients are taken: scale times the gradient, plus pull (x - center).

    Attributes
    ----------
    x : array, shape (n, d) or (1, d)
    scale : float
    center : array, shape (d,) or (0,)
    pull : float
    """

    x: Array
    scale: float
    center: Array
    pull: float


def read_only(x: Array) -> Array:
    """Return a read-only, contiguous view, so that numba compiles for one type of array only."""
    flags = x.flags
    if not flags.c_contiguous:
        view = np.array(x, order="C")
    elif flags.writeable:
        view = x.view()
    else:
        return x
    view.setflags(write=False)
    return view
