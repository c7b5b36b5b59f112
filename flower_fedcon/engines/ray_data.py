"""The clients' data for Ray's workers: in a file of this machine, or in Ray's store.

Flower sends the client app with every message. The data therefore stays in one place, from which
each worker reads the data of its clients, once for each.
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

from flower_fedcon.core.client_side import ClientSide
from flower_fedcon.errors import ConfigError
from flower_fedcon.registry import register_client

if TYPE_CHECKING:
    from flwr.app import Context


HELD = 1024  # clients whose data a worker keeps


class Loader:
    """Loads the objective of a client; it is small, since every message contains it.

    A process that unpickles it knows the user's own algorithm.

    Parameters
    ----------
    place : str or ray.ObjectRef
        The path of a file, or a reference into Ray's object store.
    client : type of ClientSide
    key : str, optional
        Distinguishes this data from earlier data in the same place; by default a new key.
    """

    def __init__(self, place: Any, client: type[ClientSide], key: str = "") -> None:
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
    """Return a client's objective; the data begins with the positions of all objectives."""
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
    """Return a value as bytes for workers.

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
def shared(data: list[bytes], client: type[ClientSide], *, machines: int) -> Iterator[Loader]:
    """Yield a loader of each client's data in a worker, for this number of machines.

    Parameters
    ----------
    data : list of bytes
        Each client's objective. The list is emptied, to free the memory of all the data.
    client : type of ClientSide
    machines : int
        On one machine the data is in a file. On several it is in Ray's object store, which copies
        it to each machine once.
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
    """Yield a new file, and a path where this process' workers can read it.

    The file has no name and disappears with this process, however it ends. On systems where
    processes cannot open each other's descriptors, the file has a name and is removed at the end.
    """
    with tempfile.TemporaryFile(prefix="fedcon-") as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if os.access(path, os.R_OK):
            yield file, path
            return
    with tempfile.NamedTemporaryFile(prefix="fedcon-") as named:
        yield named.file, named.name
