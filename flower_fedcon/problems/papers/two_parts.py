"""Softmax regression on sets of images with a training part and a test part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.images import (
    SPLITS,
    Images,
    Split,
    hold_out,
    rows_of_clients,
    softmax_problem,
)
from flower_fedcon.validation import choice

Part: TypeAlias = Literal["train", "test"]


def two_part_problem(
    load: Callable[[Part], Images],
    num_classes: int,
    *,
    part: Part,
    clients: int,
    split: Split,
    partition: dict[str, Any] | None,
    test_size: int | None,
    seed: int,
    **model: Any,
) -> FederatedProblem:
    """Return the problem of a set that comes in two parts, "train" and "test".

    Parameters
    ----------
    load : callable
        Returns a part.
    num_classes : int
    part : {"train", "test"}
        The images to train on.
    clients, split, partition, seed
        See `rows_of_clients`. The images are shuffled first, except for "writer-like".
    test_size : int, optional
        The number of held-out images of `part`. By default none: the test images are then those of
        "test", unless these are trained on.
    **model
        See `softmax_problem`.

    >>> both = Images(np.eye(4), np.arange(4) % 2)
    >>> settings = {"l1": None, "l1_radius": None, "bias": False, "l2": 0.1}
    >>> two_part_problem(lambda part: both, 2, part="train", clients=2, split="even",
    ...                  partition=None, test_size=None, seed=0, **settings).num_clients
    2
    """
    choice("part", part, ("train", "test"))
    choice("split", split, SPLITS)
    images, shuffle = load(part), split != "writer-like"
    kept, held = hold_out(len(images.labels), test_size or 0, seed, shuffle=shuffle)
    train, test = images.take(kept), images.take(held)
    if test_size is None and part == "train":
        test = load("test")
    rows = rows_of_clients(train.labels, clients, split, partition, seed)
    return softmax_problem(train, test, rows, num_classes, **model)
