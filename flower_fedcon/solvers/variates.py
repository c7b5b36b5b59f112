"""Control variates, as clients and servers both find them."""

from __future__ import annotations

from flower_fedcon.validation import Array


def variate_change(c: Array, delta: Array, length: float) -> Array:
    """Return -(c + delta / length), in one new array: option II of Scaffold.

    Parameters
    ----------
    c : array, shape (..., *model)
    delta : array, shape (..., *model)
        Where steps of this length in all have led.
    length : float

    >>> variate_change(np.array([1.0]), np.array([[2.0], [-4.0]]), 2.0)
    array([[-2.],
           [ 1.]])
    """
    change: Array = delta / length
    change += c
    change *= -1.0
    return change
