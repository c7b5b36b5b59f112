"""Multinomial logistic regression on MNIST."""

from __future__ import annotations

from typing import Any

from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.images import Images, Split
from flower_fedcon.problems.papers import hub
from flower_fedcon.problems.papers.image_files import find, folder, read_mnist
from flower_fedcon.problems.papers.two_parts import Part, two_part_problem
from flower_fedcon.problems.stated import stated

CLASSES = 10
FILES = "MNIST's files, such as t10k-images-idx3-ubyte.gz"


@stated
def mnist(
    *,
    data: str | None = None,
    part: Part | None = None,
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
    """Return softmax regression of 28 x 28 images, pixels in [0, 1], into 10 classes.

    The model has shape (785, 10), the last row for the bias.

    Parameters
    ----------
    data : str, optional
        A folder with MNIST's files, gzipped or not: ``t10k-images-idx3-ubyte`` and
        ``t10k-labels-idx1-ubyte``, ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte``.
        By default flwr-datasets (the extra `datasets`) loads the set.
    part : {"train", "test"}, optional
        The images to train on: the 60,000 of "train", or the 10,000 of "test". By default "train",
        or "test" for a folder with only these.
    split : {"label-skew", "even", "writer-like"}
        "label-skew": the training images sorted by label and cut into 2 N shards, two random
        shards for each client. "even": N blocks of (almost) the same size of the shuffled images.
        "writer-like": such blocks in the files' order, one source after the other.
    test_size : int, optional
        The number of held-out images of `part`. By default none: the test images are then those of
        "test", unless these are trained on.
    clients, partition, l1, l1_radius, bias, l2, seed : see `flower_fedcon.problems.digits`

    Metrics: "test_accuracy" in [0, 1], if there are test images; "sparsity", the fraction of
    entries with |x| <= 1e-8.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, the set cannot be loaded, or an argument is out of range.

    Source: the files' format, http://yann.lecun.com/exdb/mnist.

    Examples
    --------
    >>> from flower_fedcon.errors import ConfigError
    >>> try:
    ...     mnist(data="nowhere")
    ... except ConfigError as error:
    ...     print(str(error)[:63])
    nowhere is not a folder: data must be a folder with MNIST's fil
    """
    if part is None:
        bare = data is not None and not find(folder(data, FILES), "train-images-idx3-ubyte")
        part = "test" if bare else "train"
    return two_part_problem(
        lambda name: mnist_images(data, name),
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


def mnist_images(data: str | None, part: Part) -> Images:
    """Return MNIST's images with their classes, for your own models.

    Parameters
    ----------
    data : str, optional
        As for `mnist`.
    part : {"train", "test"}

    Returns
    -------
    Images
        `pixels` of shape (n, 28, 28), uint8, and `labels`.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, or the set cannot be loaded.

    Examples
    --------
    >>> from flower_fedcon.errors import ConfigError
    >>> try:
    ...     mnist_images("nowhere", "test")
    ... except ConfigError as error:
    ...     print(str(error)[:26])
    nowhere is not a folder: d
    """
    if data is not None:
        return read_mnist(folder(data, FILES), "train" if part == "train" else "t10k")
    rows = hub.load_split("ylecun/mnist", part, hint=hub.or_folder(FILES))
    return hub.as_images(rows, "image", "label")
