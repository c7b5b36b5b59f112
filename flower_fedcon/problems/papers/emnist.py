"""Sparse multinomial logistic regression on Federated EMNIST, one client for each writer."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.images import (
    SPLITS,
    Images,
    Split,
    hold_out,
    rows_of_clients,
    softmax_problem,
)
from flower_fedcon.problems.papers import hub
from flower_fedcon.problems.stated import stated
from flower_fedcon.validation import Array, choice, count

DATASET = "flwrlabs/femnist"
HINT = (
    "give a folder with a copy of that dataset, data = DIR, or use the shipped digits, name = "
    '"digits" with split = "writer-like"'
)


@stated
def emnist(
    *,
    data: str | None = None,
    classes: Literal[10, 62] = 10,
    clients: int = 367,
    split: Split = "writer-like",
    partition: dict[str, Any] | None = None,
    l1: float | None = None,
    l1_radius: float | None = None,
    bias: bool = False,
    l2: float = 0.0,
    test_size: int = 0,
    seed: int = 0,
) -> FederatedProblem:
    """Return softmax regression of 28 x 28 images, pixels in [0, 1], into 10 or 62 classes.

    The model has shape (784, classes). The images are those of `clients` writers, drawn at random
    from all writers of any of the classes. flwr-datasets (the extra `datasets`) loads them, some
    hundred MB.

    Parameters
    ----------
    data : str, optional
        A folder with a copy of the dataset flwrlabs/femnist; by default it is downloaded.
    classes : {10, 62}
        Digits only, or digits, upper-case and lower-case letters.
    clients : int
        N >= 1, also the number of writers. The paper takes a tenth of them: 367, or 379 for 62
        classes.
    split : {"writer-like", "label-skew", "even"}
        "writer-like": each client is one writer, and has the weight of its number of images, as in
        the paper. "label-skew": the images sorted by label and cut into 2 N shards, two random
        shards for each client. "even": N blocks of (almost) the same size of the shuffled images.
    partition : dict, optional
        A rule of `flower_fedcon.problems.partition` in place of `split`, for the images of so many
        writers; "natural" has the column "writer_id".
    l1 : float, optional
        Weight of an l1 regularizer on all entries, bias included; the paper's is 1e-4.
    l1_radius, bias, l2 : see `flower_fedcon.problems.digits`
    test_size : int
        Images held out, drawn at random from those of all writers.
    seed : int
        Seeds the draw of writers, the shuffling and the shards.

    Metrics: "test_accuracy" in [0, 1], if there are test images; "sparsity", the fraction of
    entries with |x| <= 1e-8.

    Raises
    ------
    ConfigError
        If the set cannot be loaded, or an argument is out of range.

    Source: Bao, Crawshaw, Luo, Liu, "Fast Composite Optimization and Statistical Recovery in
    Federated Learning", ICML 2022, Figures 3 and 4; the data, Caldas et al., "LEAF", 2018.

    Examples
    --------
    >>> from flower_fedcon.errors import ConfigError
    >>> try:
    ...     emnist(classes=26)
    ... except ConfigError as error:
    ...     print(error)
    classes must be 10 (digits) or 62 (digits and letters), got 26
    """
    if classes not in (10, 62):
        raise ConfigError(f"classes must be 10 (digits) or 62 (digits and letters), got {classes}")
    choice("split", split, SPLITS)
    count("seed", seed, minimum=0)
    images, writers = _load(data or DATASET, classes, count("clients", clients), seed)
    by_writer = split == "writer-like" and partition is None
    kept, held = hold_out(len(writers), test_size, seed, shuffle=split != "writer-like")
    if by_writer:
        rows = [np.flatnonzero(writers[kept] == writer) for writer in range(clients)]
        if not all(map(len, rows)):
            raise ConfigError(f"test_size = {test_size} leaves a writer without images: lower it")
    else:
        columns = {"writer_id": writers[kept]}
        rows = rows_of_clients(images.labels[kept], clients, split, partition, seed, columns)
    return softmax_problem(
        images.take(kept),
        images.take(held),
        rows,
        classes,
        l1=l1,
        l1_radius=l1_radius,
        bias=bias,
        l2=l2,
        weights=np.array([len(share) for share in rows], dtype=float) if by_writer else None,
    )


def _load(dataset: str, classes: int, clients: int, seed: int) -> tuple[Images, Array]:
    """Return the images of `clients` writers, and each image's writer, 0 to clients - 1."""
    rows = hub.load_split(dataset, "train", hint=HINT)
    for column in ("writer_id", "character"):
        if column not in rows.column_names:
            raise ConfigError(f"{dataset} has no column {column!r}: it has {rows.column_names}")
    kept = np.flatnonzero(np.asarray(rows["character"]) < classes)
    names, writers = np.unique(np.asarray(rows["writer_id"])[kept], return_inverse=True)
    if clients > len(names):
        raise ConfigError(f"clients must be at most the {len(names)} writers, got {clients}")
    drawn = np.sort(np.random.default_rng(seed).choice(len(names), clients, replace=False))
    where = np.isin(writers, drawn)
    order = np.argsort(writers[where], kind="stable")  # each writer's images together
    chosen = kept[where][order]
    images = hub.as_images(rows.select(chosen), "image", "character")
    return images, np.searchsorted(drawn, writers[where][order])
