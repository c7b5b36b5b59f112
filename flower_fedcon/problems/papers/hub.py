"""Image sets loaded by flwr-datasets (the extra `datasets`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, needing
from flower_fedcon.problems.images import Images


def or_folder(files: str) -> str:
    """Return the hint for a problem that can read a folder instead.

    >>> or_folder("its files")
    'give a folder with its files: data = "DIR", or --set data=DIR'
    """
    return f'give a folder with {files}: data = "DIR", or --set data=DIR'


def load_split(dataset: str, split: str, *, hint: str) -> Any:
    """Return a split of a dataset from the Hugging Face Hub, or from a folder that holds a copy.

    Parameters
    ----------
    dataset : str
        The name of the dataset, such as "ylecun/mnist".
    split : str
    hint : str
        An alternative for the user, for the error messages.

    Raises
    ------
    ConfigError
        If flwr-datasets is not installed, or the dataset cannot be loaded.
    """
    with needing(f"{dataset} is loaded by flwr-datasets", "datasets", hint):
        from flwr_datasets import FederatedDataset
    try:
        return FederatedDataset(dataset=dataset, partitioners={}, shuffle=False).load_split(split)
    except Exception as error:  # the network, the Hub and the files raise many types
        lines = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(f"cannot load {dataset}, split {split!r} ({lines[0]}): {hint}") from None


def as_images(rows: Any, image: str, label: str) -> Images:
    """Return the two columns of a split as arrays.

    Parameters
    ----------
    rows : datasets.Dataset
    image, label : str
        The columns' names.

    Raises
    ------
    ConfigError
        If there is no such column, or the images are not all of one shape.
    """
    for column in (image, label):
        if column not in rows.column_names:
            raise ConfigError(f"the dataset has no column {column!r}: it has {rows.column_names}")
    try:
        pixels = np.stack([np.asarray(one, dtype=np.uint8) for one in rows[image]])
    except ValueError as error:
        raise ConfigError(f"the dataset's images cannot be stacked: {error}") from None
    return Images(pixels, np.asarray(rows[label], dtype=np.int64))
