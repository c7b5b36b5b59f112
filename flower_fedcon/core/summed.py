"""Uploads that the server sees only as a sum."""

from __future__ import annotations

from typing import Any, Self

from flower_fedcon.errors import AlgorithmError
from flower_fedcon.validation import Array


class Summed:
    """The sum of several clients' values of one name: a column in their joint reply.

    Parameters
    ----------
    name : str
    total : array
        The sum, with the shape of one value; shape () for a number.
    count : int
        The number of clients in the sum.
    each_bytes : int
        The bytes that each of them has sent for it.
    about : array, optional
        For points: their reference point. `total` is then the sum of the differences from it;
        `moved` and a mean follow from these without the number of clients.

    Examples
    --------
    >>> column = Summed("delta", np.array([3.0, 6.0]), 3, 100)
    >>> column.total(), column.shape, column.stack_bytes
    (array([3., 6.]), (3, 2), 300)
    """

    def __init__(
        self, name: str, total: Array, count: int, each_bytes: int, about: Array | None = None
    ) -> None:
        self.name, self.each_bytes, self.about = name, each_bytes, about
        self._total, self._count = total, count
        self.shape, self.dtype = (count, *total.shape), total.dtype

    @classmethod
    def of(cls, name: str, values: Array, each_bytes: int) -> Self:
        """Return the sum of values of shape (clients, *shape)."""
        return cls(name, values.sum(axis=0), len(values), each_bytes)

    @property
    def stack_bytes(self) -> int:
        """The bytes of all clients' values on the wire."""
        return self._count * self.each_bytes

    def total(self) -> Array:
        """Return the sum as a new array."""
        if self.about is not None:
            total: Array = self._total + self._count * self.about
            return total
        return self._total.copy()

    def moved(self) -> Array:
        """Return the sum of the differences from the reference point, as a new array."""
        return self._total.copy()

    def part(self, i: int) -> Any:
        """Refuse, since there are no single values here.

        Raises
        ------
        AlgorithmError
        """
        raise AlgorithmError(
            f"the strategy asked for a single client's {self.name!r}, and the server has only the "
            f"sum: state in the strategy's `release` why it needs each upload"
        )
