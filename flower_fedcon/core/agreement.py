"""How clients agree before round 1 on what their objectives are made by.

Some nodes hold data that are no objective yet: the columns of a table get their means and scales
from all nodes. The agreement is carried out by a wing (`flower_fedcon.core.wings`), and its result
travels with every request as arrays that only the wing reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_fedcon.core.exchange import Bounds
from flower_fedcon.core.infos import ClientInfo
from flower_fedcon.core.protocol import Request
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class Agreement(ABC):
    """How nodes come to agree; a wing brings one for an argument of `start`."""

    @abstractmethod
    def reached(
        self, infos: list[ClientInfo], engine: Any, algorithm: str
    ) -> tuple[list[ClientInfo], Any]:
        """Return new descriptions of the clients, and the result, an `Attachment`.

        Raises
        ------
        ConfigError
            If the clients do not have the data that it is about.
        """


class DataAtNode(ABC):
    """A node's data that are no objective before an agreement.

    Data have a class attribute `at_node`, which makes it of (data, bounds, store, name, folder).

    Parameters
    ----------
    data : object
    bounds : Bounds
    store : Store, optional
        What outlasts a message on the node.
    name : str, optional
        The node's name.
    folder : Path, optional
        Where the node wants files of its own.
    """

    def __init__(
        self, data: Any, bounds: Bounds, store: Any, name: str | None, folder: Path | None
    ) -> None:
        self.data, self._bounds, self._store = data, bounds, store
        self._name, self._folder = name or "", folder

    @abstractmethod
    def make_private(self, privacy: Any, ledger: Any, notes: Any) -> None:
        """Answer with noise from now on, and count it."""

    @abstractmethod
    def described(self) -> ClientInfo:
        """Return what is known before the agreement."""

    @abstractmethod
    def tell(self, request: Request, down: Payload) -> Payload:
        """Return the answer to an exchange before the start."""

    @abstractmethod
    def objective(self, attached: Mapping[str, Array]) -> Any:
        """Return the objective, by the arrays of the agreement; the same one at each call.

        Raises
        ------
        ConfigError
            If there are none.
        RefusedError
            If this node has not taken part in the agreement.
        """

    @abstractmethod
    def evaluated(self, objective: Any, x: Any) -> None:
        """Write what the node keeps of an evaluation, if it wants files."""
