"""Softmax regression of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.objectives import SoftmaxRegression
from flower_fedcon.problems.federated import FederatedProblem, Metric
from flower_fedcon.problems.partitions import checked_rule
from flower_fedcon.problems.partitions import partition as dealt
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.validation import Array, choice, count, nonnegative, positive

Split: TypeAlias = Literal["label-skew", "even", "writer-like"]
SPLITS = ("label-skew", "even", "writer-like")


class Images(NamedTuple):
    """Images with their classes.

    Attributes
    ----------
    pixels : array, shape (n, ...)
        Integers from 0 to 255, or floats, which are used unchanged.
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
    """Return the training rows and `test_size` others, drawn at random.

    Parameters
    ----------
    total : int
        The number of rows.
    test_size : int
        >= 0 and < `total`.
    seed : int
        >= 0, seeds the draw.
    shuffle : bool
        Whether the training rows are shuffled; else they keep their order.

    Raises
    ------
    ConfigError
        If `test_size` leaves no training row.

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


def rows_of_clients(
    labels: Array,
    clients: int,
    split: Split,
    partition: Mapping[str, Any] | None,
    seed: int,
    columns: Mapping[str, Array] | None = None,
) -> list[Array]:
    """Return each client's rows, by a rule of `partition` if one is given, else by `shares`.

    Parameters
    ----------
    labels, clients, split, seed : see `shares`
    partition : dict, optional
        A rule of `flower_fedcon.problems.partition`.
    columns : dict of array, shape (n,), optional
        Columns that state the client of each row, by name, for the rule "natural".

    Raises
    ------
    ConfigError
        As in `partition` and `shares`, or if a column is missing.

    >>> rule = {"by": "classes", "clients": 2, "classes": 1, "mode": "deterministic"}
    >>> rows_of_clients(np.array([1, 0, 1, 0]), 10, "even", rule, seed=0)
    [array([1, 3]), array([0, 2])]
    """
    if partition is None:
        return shares(labels, clients, split, seed)
    column = None
    if checked_rule(partition) == "natural":
        by_name, name = columns or {}, str(partition["column"])
        if name not in by_name:
            remedy = nearest(name, by_name) if by_name else "use another rule"
            raise ConfigError(
                f"partition: no column {name!r} states the client of each image: {remedy}"
            )
        column = by_name[name]
    return list(dealt(labels, partition, column).values())


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
    l1, l1_radius, bias, l2 : see `flower_fedcon.problems.digits`
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
    for share in rows:  # one at a time, so that only one copy of a large set as floats exists
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
