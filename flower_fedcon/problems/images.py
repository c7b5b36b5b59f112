"""Softmax regression of images, for the digits, MNIST, CIFAR-10 and EMNIST."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import SoftmaxRegression
from flower_fedcon.problems.federated import FederatedProblem, Metric
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.validation import Array, choice, count, nonnegative, positive

Split: TypeAlias = Literal["label-skew", "even", "writer-like"]
SPLITS = ("label-skew", "even", "writer-like")
Part: TypeAlias = Literal["train", "test"]


class Images(NamedTuple):
    """Images with their classes.

    Attributes
    ----------
    pixels : array, shape (n, ...)
        Integers from 0 to 255, or floats that are taken as they are.
    labels : array of int, shape (n,)
    """

    pixels: Array
    labels: Array

    def take(self, rows: Array) -> Images:
        """Return the images at `rows`."""
        return Images(self.pixels[rows], self.labels[rows])

    def features(self, bias: bool) -> Array:
        """Return A, shape (n, d) or with a column of ones (n, d + 1), pixels from 0 to 1."""
        flat = self.pixels.reshape(len(self.pixels), -1)
        A = np.ones((len(flat), flat.shape[1] + bias))
        A[:, : flat.shape[1]] = flat
        if flat.dtype.kind in "iu":
            A[:, : flat.shape[1]] /= 255
        return A


def hold_out(total: int, test_size: int, seed: int, *, shuffle: bool) -> tuple[Array, Array]:
    """Return the rows to train on and `test_size` others, drawn at random.

    Parameters
    ----------
    total : int
        The number of rows.
    test_size : int
        >= 0 and < `total`.
    seed : int
        >= 0, seeds the draw.
    shuffle : bool
        Whether the rows to train on are shuffled; else they keep their order.

    Raises
    ------
    ConfigError
        If `test_size` leaves no row to train on.

    >>> hold_out(5, 2, seed=0, shuffle=False)
    (array([2, 3, 4]), array([0, 1]))
    """
    if count("test_size", test_size, minimum=0) >= total:
        raise ConfigError(f"test_size must be at most {total - 1}, got {test_size}")
    order = np.random.default_rng(count("seed", seed, minimum=0)).permutation(total)
    train, test = order[: total - test_size], order[total - test_size :]
    return train if shuffle else np.sort(train), test


def shares(labels: Array, clients: int, split: Split, seed: int) -> list[Array]:
    """Return each client's rows.

    Parameters
    ----------
    labels : array of int, shape (n,)
    clients : int
        N >= 1.
    split : {"label-skew", "even", "writer-like"}
        "label-skew": the rows sorted by label and cut into 2 N shards, two random shards for each
        client. "even" and "writer-like": N blocks of consecutive rows, of (almost) the same size.
    seed : int
        Seeds the shards.

    Raises
    ------
    ConfigError
        If there are too few rows.

    >>> shares(np.array([1, 0, 1, 0]), 2, "even", seed=0)
    [array([0, 1]), array([2, 3])]
    """
    choice("split", split, SPLITS)
    pieces = count("clients", clients) * (2 if split == "label-skew" else 1)
    if pieces > len(labels):
        raise ConfigError(
            f"{clients} clients with split={split!r} need at least {pieces} training images, "
            f"got {len(labels)}: take fewer clients, or a smaller test_size"
        )
    if split != "label-skew":
        return list(np.array_split(np.arange(len(labels)), clients))
    shards = np.array_split(np.argsort(labels, kind="stable"), pieces)
    p = np.random.default_rng(seed).permutation(pieces)
    return [np.concatenate([shards[p[2 * i]], shards[p[2 * i + 1]]]) for i in range(clients)]


def two_part_problem(
    load: Callable[[Part], Images],
    num_classes: int,
    *,
    part: Part,
    clients: int,
    split: Split,
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
        Which images to train on.
    clients, split, seed
        See `shares`. The images are shuffled first, except for "writer-like".
    test_size : int, optional
        Images of `part` that are held out; by default none, and the test images are the part
        "test", if it is not trained on.
    **model
        See `softmax_problem`.

    >>> both = Images(np.eye(4), np.arange(4) % 2)
    >>> settings = {"l1": None, "l1_radius": None, "bias": False, "l2": 0.1}
    >>> two_part_problem(lambda part: both, 2, part="train", clients=2, split="even",
    ...                  test_size=None, seed=0, **settings).num_clients
    2
    """
    choice("part", part, ("train", "test"))
    choice("split", split, SPLITS)
    images, shuffle = load(part), split != "writer-like"
    kept, held = hold_out(len(images.labels), test_size or 0, seed, shuffle=shuffle)
    train, test = images.take(kept), images.take(held)
    if test_size is None and part == "train":
        test = load("test")
    return softmax_problem(
        train, test, shares(train.labels, clients, split, seed), num_classes, **model
    )


def softmax_problem(
    train: Images,
    test: Images,
    rows: Sequence[Array],
    num_classes: int,
    *,
    l1: float | None,
    l1_radius: float | None,
    bias: bool,
    l2: float,
    weights: Array | None = None,
) -> FederatedProblem:
    """Return the problem whose clients hold rows of `train`.

    Parameters
    ----------
    train, test : Images
        `test` may be empty.
    rows : sequence of N arrays of int
        Each client's rows.
    num_classes : int
    l1 : float, optional
        Weight of an l1 regularizer on all entries, bias included.
    l1_radius : float, optional
        Radius of an l1 ball, a constraint instead of `l1`.
    bias : bool
        Append a column of ones.
    l2 : float
        Each client's f_j has l2/2 ||X||^2, bias included.
    weights : array, shape (N,), optional
        The clients' weights.

    Metrics: "test_accuracy" in [0, 1], if there are test images; "sparsity", the fraction of
    entries with |x| <= 1e-8.

    Raises
    ------
    ConfigError
        If a number is out of range, or both `l1` and `l1_radius` are given.

    >>> both = Images(np.eye(4), np.arange(4) % 2)
    >>> problem = softmax_problem(both, both, shares(both.labels, 2, "even", seed=0), 2,
    ...                           l1=None, l1_radius=None, bias=True, l2=0.1)
    >>> problem.num_clients, problem.x0.shape, sorted(problem.metrics)
    (2, (5, 2), ['sparsity', 'test_accuracy'])
    """
    regularizer = None if l1 is None else L1(nonnegative("l1", l1))
    constraint = None if l1_radius is None else L1Ball(radius=positive("l1_radius", l1_radius))
    if l1 is not None and l1_radius is not None:
        raise ConfigError(f"give l1 or l1_radius, not both: got l1={l1!r}, l1_radius={l1_radius!r}")
    nonnegative("l2", l2)
    metrics: dict[str, Metric] = {"sparsity": lambda x: float(np.mean(np.abs(x) <= 1e-8))}
    if len(test.labels):
        metrics = {"test_accuracy": _accuracy(test, bias), **metrics}
    objectives = []
    for share in rows:  # one at a time: only one copy of a large set as floats is made
        part = train.take(share)
        objectives.append(SoftmaxRegression(part.features(bias), part.labels, num_classes, l2))
    return FederatedProblem(
        objectives,
        regularizer=regularizer,
        constraint=constraint,
        weights=weights,
        metrics=metrics,
    )


def _accuracy(test: Images, bias: bool) -> Metric:
    A, labels = test.features(bias), test.labels

    def accuracy(x: Any) -> float:
        return float(np.mean(np.argmax(A @ x, axis=1) == labels))

    return accuracy
