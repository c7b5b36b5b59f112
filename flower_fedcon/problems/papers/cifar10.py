"""Multinomial logistic regression on CIFAR-10."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.images import Images, Split
from flower_fedcon.problems.papers import hub
from flower_fedcon.problems.papers.image_files import folder, read_cifar
from flower_fedcon.problems.papers.two_parts import Part, two_part_problem
from flower_fedcon.problems.stated import stated

CLASSES = 10
FILES = "the binary version of CIFAR-10, data_batch_1.bin to data_batch_5.bin and test_batch.bin"


@stated
def cifar10(
    *,
    data: str | None = None,
    part: Part = "train",
    clients: int = 8,
    split: Split = "even",
    partition: dict[str, Any] | None = None,
    l1: float | None = None,
    l1_radius: float | None = None,
    bias: bool = True,
    l2: float = 0.0,
    test_size: int | None = None,
    seed: int = 0,
) -> FederatedProblem:
    """Return softmax regression of 32 x 32 colour images, pixels in [0, 1], into 10 classes.

    The model has shape (3073, 10), the last row for the bias. The 50,000 training images take
    1.2 GB.

    Parameters
    ----------
    data : str, optional
        A folder with CIFAR-10's binary version: ``data_batch_1.bin`` to ``data_batch_5.bin`` and
        ``test_batch.bin``. By default flwr-datasets (the extra `datasets`) loads the set.
    part : {"train", "test"}
        The images to train on: the 50,000 of "train", or the 10,000 of "test".
    split, test_size : see `flower_fedcon.problems.mnist`
    clients, partition, l1, l1_radius, bias, l2, seed : see `flower_fedcon.problems.digits`

    Metrics: "test_accuracy" in [0, 1], if there are test images; "sparsity", the fraction of
    entries with |x| <= 1e-8.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, the set cannot be loaded, or an argument is out of range.

    Source: the files' format, https://www.cs.toronto.edu/~kriz/cifar.html.

    Examples
    --------
    >>> from flower_fedcon.errors import ConfigError
    >>> try:
    ...     cifar10(data="nowhere")
    ... except ConfigError as error:
    ...     print(str(error)[:61])
    nowhere is not a folder: data must be a folder with the binar
    """
    return two_part_problem(
        lambda name: _load(data, name),
        CLASSES,
        part=part,
        clients=clients,
        split=split,
        partition=partition,
        test_size=test_size,
        seed=seed,
        l1=l1,
        l1_radius=l1_radius,
        bias=bias,
        l2=l2,
    )


def _load(data: str | None, part: Part) -> Images:
    if data is None:
        rows = hub.load_split("uoft-cs/cifar10", part, hint=hub.or_folder(FILES))
        images = hub.as_images(rows, "img", "label")
        # As in the files, which store one colour after the other.
        return Images(np.moveaxis(images.pixels, -1, 1), images.labels)
    names = ["test_batch"] if part == "test" else [f"data_batch_{i}" for i in range(1, 6)]
    batches = [read_cifar(folder(data, FILES) / f"{name}.bin") for name in names]
    return Images(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))
