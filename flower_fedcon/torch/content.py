"""The content of a PyTorch objective, without the trained parameters."""

from __future__ import annotations

import types
from typing import Any

from flower_fedcon.wire.digests import Content


class Untrained(Content):
    """The content of a module and a loss, in which some parameters count by shape only.

    Parameters
    ----------
    trained : sequence of torch.nn.Parameter
    exact : bool
        Whether equal content must mean the same function in this process. Classes, functions and
        values that cannot be pickled then count by identity, not by name.
    """

    def __init__(self, trained: Any, *, exact: bool) -> None:
        super().__init__()
        self._trained = {id(parameter): str(place) for place, parameter in enumerate(trained)}
        self._exact = exact

    @classmethod
    def digest(cls, trained: Any, *values: Any, exact: bool) -> str:
        """Return the digest of some values."""
        content = cls(trained, exact=exact)
        for value in values:
            content.add(value)
        return content.hash.hexdigest()

    def _add_inside(self, value: Any) -> None:
        if self._exact:
            itself = isinstance(value, type | types.FunctionType)
            self._mark("is", str(id(value if itself else type(value))))
        super()._add_inside(value)

    def _add_tensor(self, value: Any) -> None:
        place = self._trained.get(id(value))
        if place is None:
            super()._add_tensor(value)
        else:
            self._mark("trained", place)

    def _add_unknown(self, value: Any) -> None:
        if self._exact:
            self._mark("is", str(id(value)))
