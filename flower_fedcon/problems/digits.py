"""Multinomial logistic regression on the UCI digits that scikit-learn ships."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flower_fedcon.checks import Array, choice, count, nonnegative, positive
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import SoftmaxRegression
from flower_fedcon.problem import FederatedProblem, Metric
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball

CLASSES = 10


def digits(
    *,
    clients: int = 10,
    split: Literal["label-skew", "even"] = "label-skew",
    l1: float | None = None,
    l1_radius: float | None = None,
    bias: bool = True,
    l2: float = 0.0,
    test_size: int = 297,
    seed: int = 0,
) -> FederatedProblem:
    """Return softmax regression of 8 x 8 images, pixels in [0, 1], on 10 classes.

    The model has shape (65, 10), the last row for the bias. The 1,797 images are shuffled, and
    the last `test_size` are held out.

    Parameters
    ----------
    clients : int
        N >= 1.
    split : {"label-skew", "even"}
        "label-skew": the training images sorted by label and cut into 2 N shards, two random
        shards for each client. "even": N blocks of (almost) the same size.
    l1 : float, optional
        Weight of an l1 regularizer on all entries, bias included.
    l1_radius : float, optional
        Radius of an l1 ball as constraint, instead of `l1`.
    bias : bool
        Append a column of ones.
    l2 : float
        Each client's f_j has l2/2 ||X||^2, bias included.
    test_size : int
        From 0 to 1,796. With 0 all images are for training, in the order in which they are
        shipped.
    seed : int
        Of the shuffling and of the shards.

    Metrics: "test_accuracy" in [0, 1], if there are test images; "sparsity", the fraction of
    entries with |x| <= 1e-8.

    >>> problem = digits(l1=1e-3)
    >>> problem.num_clients, problem.x0.shape, sum(f.num_examples for f in problem.objectives)
    (10, (65, 10), 1500)
    """
    from sklearn.datasets import load_digits  # slow to import

    count("clients", clients)
    choice("split", split, ("label-skew", "even"))
    regularizer = None if l1 is None else L1(nonnegative("l1", l1))
    constraint = None if l1_radius is None else L1Ball(radius=positive("l1_radius", l1_radius))
    if l1 is not None and l1_radius is not None:
        raise ConfigError(f"give l1 or l1_radius, not both: got l1={l1!r}, l1_radius={l1_radius!r}")
    images, labels = load_digits(return_X_y=True)
    A = images / 16.0
    if bias:
        A = np.hstack([A, np.ones((len(A), 1))])
    total = len(A)
    if count("test_size", test_size, minimum=0) >= total:
        raise ConfigError(f"test_size must be at most {total - 1}, got {test_size}")
    count("seed", seed, minimum=0)
    order = np.random.default_rng(seed).permutation(total) if test_size else np.arange(total)
    train, test = order[: total - test_size], order[total - test_size :]
    shares = _shares(labels[train], clients, split, seed)

    metrics: dict[str, Metric] = {"sparsity": lambda x: float(np.mean(np.abs(x) <= 1e-8))}
    if test_size:
        metrics = {"test_accuracy": _accuracy(A[test], labels[test]), **metrics}
    return FederatedProblem(
        [
            SoftmaxRegression(A[train[rows]], labels[train[rows]], CLASSES, nonnegative("l2", l2))
            for rows in shares
        ],
        regularizer=regularizer,
        constraint=constraint,
        metrics=metrics,
    )


def _shares(labels: Array, clients: int, split: str, seed: int) -> list[Array]:
    """Return each client's rows of the training set."""
    shards = clients if split == "even" else 2 * clients
    if shards > len(labels):
        raise ConfigError(
            f"{clients} clients with split={split!r} need at least {shards} training images, "
            f"there are {len(labels)}: fewer clients, or a smaller test_size"
        )
    if split == "even":
        return list(np.array_split(np.arange(len(labels)), clients))
    pieces = np.array_split(np.argsort(labels, kind="stable"), shards)
    p = np.random.default_rng(seed).permutation(shards)
    return [np.concatenate([pieces[p[2 * i]], pieces[p[2 * i + 1]]]) for i in range(clients)]


def _accuracy(A: Array, labels: Array) -> Metric:
    def accuracy(x: Any) -> float:
        return float(np.mean(np.argmax(A @ x, axis=1) == labels))

    return accuracy
