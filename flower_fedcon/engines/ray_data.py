"""The clients' data where Ray's workers find it: in a file of this machine, or in Ray's store.

Flower ships the client app with every message. So the data stays in one place, from which each
worker reads the clients that it serves, each of them once.
"""

from __future__ import annotations

import os
import pickle
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.registry import register_client

if TYPE_CHECKING:
    from flwr.app import Context

    from flower_fedcon.clients.base import FedConClient

HELD = 1024  # clients that a worker keeps the data of


class Loader:
    """Loads the objective of a client; small, since it travels with every message.

    Where it arrives, an algorithm of the user's own is known.

    Parameters
    ----------
    place : str or ray.ObjectRef
        The path of a file, or what stands for it in Ray's object store.
    client : type of FedConClient
    key : str, optional
        Tells this data from other that has had the same place before it; made up here.
    """

    def __init__(self, place: Any, client: type[FedConClient[Any]], key: str = "") -> None:
        self._place, self._client, self._key = place, client, key or secrets.token_hex(8)
        register_client(client)

    def __reduce__(self) -> tuple[Any, ...]:
        return Loader, (self._place, self._client, self._key)

    def __call__(self, context: Context) -> Any:
        """Return the objective of a SuperNode that is one client."""
        return self.objective(int(context.node_config["partition-id"]))

    def objective(self, client: int) -> Any:
        """Return the objective of a client."""
        return _load(self._place, client, self._key)


@lru_cache(maxsize=HELD)
def _load(place: Any, client: int, key: str) -> Any:
    """Return a client's objective: the data begins with the places where each begins and ends."""
    if isinstance(place, str):
        with open(place, "rb") as file:
            file.seek(8 * client)
            start, end = np.frombuffer(file.read(16), dtype=np.int64).tolist()
            file.seek(start)
            return pickle.loads(file.read(end - start))  # noqa: S301  (written by the parent)
    import ray

    stored = ray.get(place)  # not copied: a view of this machine's memory
    start, end = stored[8 * client : 8 * client + 16].view(np.int64).tolist()
    return pickle.loads(stored[start:end].data)  # noqa: S301  (as above)


_dumps = partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)


def pickled(value: Any, what: str, dumps: Callable[[Any], bytes] = _dumps) -> bytes:
    """Return a value as the bytes that workers are given.

    Raises
    ------
    ConfigError
        If it cannot be pickled.
    """
    try:
        return dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f'{what} cannot be pickled ({error}), which engine="ray" needs: define it at the top '
            'level of a module, or use engine="local"'
        ) from None


@contextmanager
def shared(
    data: list[bytes], client: type[FedConClient[Any]], *, machines: int
) -> Iterator[Loader]:
    """Yield what loads each client's data in a worker on any of so many machines.

    Parameters
    ----------
    data : list of bytes
        Each client's objective; emptied here, since it is as large as all of the data.
    client : type of FedConClient
    machines : int
        On one machine the data is in a file, read where it is needed. On several it is in Ray's
        object store, which brings it to each machine once.
    """
    ends = np.cumsum([8 * (len(data) + 1), *map(len, data)], dtype=np.int64)
    if machines > 1:
        import ray

        stored = ray.put(np.frombuffer(b"".join([ends.tobytes(), *data]), dtype=np.uint8))
        data.clear()
        yield Loader(stored, client)
        return
    with _data_file() as (file, path):
        ends.tofile(file)
        file.writelines(data)
        file.flush()
        data.clear()
        yield Loader(path, client)


@contextmanager
def _data_file() -> Iterator[tuple[IO[bytes], str]]:
    """Yield a new file, and a path by which this process' workers can read it.

    It has no name, and is gone with this process, however that ends. Where processes cannot reach
    each other's descriptors it has a name, and is removed in the end.
    """
    with tempfile.TemporaryFile(prefix="fedcon-") as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if os.access(path, os.R_OK):
            yield file, path
            return
    with tempfile.NamedTemporaryFile(prefix="fedcon-") as named:
        yield named.file, named.name
