"""What clients say about themselves before the first round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from flower_fedcon import __version__
from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.many import ManyClients
from flower_fedcon.validation import count, nonnegative

_LARGEST = 1e100  # bounds of a client's constants: their squares are finite


@dataclass(frozen=True)
class ClientInfo:
    """What a client says about itself before the first round.

    Attributes
    ----------
    name : str
        Stable across restarts: the partition id, a name from the node's configuration, or otherwise
        the node's id.
    num_examples : int
    layout : Layout
        The model that the client's objective takes.
    smoothness, strong_convexity : float, optional
        L and mu, where known.
    own_loop : str
        "app" or "client" (a function, or a method of a NumPyClient) if it trains with its own loop,
        and has no objective that it could evaluate.
    schema : str
        The digest of its schema, if it has a table and thus no objective before the preparation.
    digest : str
        The digest of the client's objective with its data; "" if the client was not asked for it.
    version : str
        The client's version of flower-fedcon.
    max_model : float
        The largest entry of a model that the client accepts.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    name: str
    num_examples: int
    layout: Layout | None
    smoothness: float | None = None
    strong_convexity: float | None = None
    digest: str = ""
    version: str = ""
    own_loop: str = ""
    schema: str = ""
    max_model: float = math.inf

    def __post_init__(self) -> None:
        count("num_examples", self.num_examples, minimum=0 if self.own_loop else 1)
        for name in ("smoothness", "strong_convexity"):
            value = getattr(self, name)
            if value is not None and nonnegative(name, value) > _LARGEST:
                raise ConfigError(f"{name} must be at most {_LARGEST:g}, got {value!r}")
        if not self.max_model > 0:
            raise ConfigError(f"max_model must be > 0, got {self.max_model!r}")
        L, mu = self.smoothness, self.strong_convexity
        if L is not None and mu is not None and mu > L * (1 + 1e-6):
            raise ConfigError(f"strong_convexity must be at most smoothness, got {mu!r} > {L!r}")

    @classmethod
    def of(cls, objective: Any, name: str) -> ClientInfo:
        """Return what an objective says about itself.

        Raises
        ------
        ConfigError
            If it is not an objective.
        """
        check_objective(objective)
        return cls(
            name=name,
            num_examples=_number(int, objective, "num_examples", 1),
            layout=Layout.for_objective(objective),
            smoothness=_number(float, objective, "smoothness"),
            strong_convexity=_number(float, objective, "strong_convexity"),
            version=__version__,
        )


def check_objective(objective: Any) -> None:
    """Raise unless an object has what every objective needs."""
    for method in ("value", "gradient"):
        if not callable(getattr(objective, method, None)):
            raise ConfigError(f"an objective needs a method {method}(x): got {objective!r}")


def _number(kind: type[Any], objective: Any, name: str, default: int | None = None) -> Any:
    """Return a number from an objective's attribute; `default` if it has none."""
    value = getattr(objective, name, default)
    try:
        return None if value is None else kind(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"an objective's {name} must be a number, got {value!r}") from None


class ClientInfos(Sequence[ClientInfo]):
    """What `ManyClients` say about themselves; each `ClientInfo` is made when it is read.

    Parameters
    ----------
    objectives : ManyClients
    names : sequence of str
    """

    def __init__(self, objectives: ManyClients, names: Sequence[str]) -> None:
        self._objectives, self.names = objectives, names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, client: int) -> ClientInfo: ...
    @overload
    def __getitem__(self, client: slice) -> ClientInfos: ...
    def __getitem__(self, client: int | slice) -> ClientInfo | ClientInfos:
        if isinstance(client, slice):
            return ClientInfos(self._objectives[client], self.names[client])
        return ClientInfo.of(self._objectives[client], self.names[client])

    def __iter__(self) -> Iterator[ClientInfo]:
        first = self[0]
        for name, L, mu in zip(self.names, *self._constants, strict=True):
            yield ClientInfo(name, first.num_examples, first.layout, L, mu, version=first.version)

    def constants(self, name: str) -> list[float | None]:
        """Return the "smoothness" or "strong_convexity" of each client."""
        return self._constants[("smoothness", "strong_convexity").index(name)]

    @cached_property
    def _constants(self) -> tuple[list[float | None], list[float | None]]:
        return self._objectives.constants()


class Numbered(Sequence[str]):
    """The names "0", "1", ... of clients without other names.

    >>> list(Numbered(3)), Numbered(10**6)[-1]
    (['0', '1', '2'], '999999')
    """

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    @property
    def resume_key(self) -> str:
        """A short value that identifies all names, for a run that is resumed."""
        return f"0 to {len(self) - 1}"

    def __repr__(self) -> str:
        return self.resume_key

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, client: int) -> str: ...
    @overload
    def __getitem__(self, client: slice) -> tuple[str, ...]: ...
    def __getitem__(self, client: int | slice) -> str | tuple[str, ...]:
        if isinstance(client, slice):
            return tuple(map(str, self._numbers[client]))
        return str(self._numbers[client])
