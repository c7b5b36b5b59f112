"""What a server holds of uploads that it sees as a sum alone."""

from __future__ import annotations

from typing import Any, Self

from flower_fedcon.errors import AlgorithmError
from flower_fedcon.validation import Array


class Summed:
    """The sum of several clients' values of one name; a column of a reply of all of them.

    Parameters
    ----------
    name : str
    total : array
        Of one value's shape; of shape () for a number.
    count : int
        How many clients' values it is the sum of.
    each_bytes : int
        What each of them has sent for it.
    about : array, optional
        Of points: what they lie about. `total` is then the sum of their differences from it, from
        which `moved` and a mean follow without the number of clients.

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
        """Bytes of all clients' values on the wire."""
        return self._count * self.each_bytes

    def total(self) -> Array:
        """Return the sum, a new array."""
        if self.about is not None:
            total: Array = self._total + self._count * self.about
            return total
        return self._total.copy()

    def moved(self) -> Array:
        """Return the sum of the differences from what values lie about, a new array."""
        return self._total.copy()

    def part(self, i: int) -> Any:
        """Refuse: there is no single value here.

        Raises
        ------
        AlgorithmError
        """
        raise AlgorithmError(
            f"the strategy asked for a single client's {self.name!r}, and the server has only the "
            f"sum: state in the strategy's `release` why it needs each upload"
        )
