"""A network with a hidden layer on the UCI digits: composite problems that are not convex."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, needing
from flower_fedcon.objectives import TanhNetwork
from flower_fedcon.problems.digits import CLASSES
from flower_fedcon.problems.federated import FederatedProblem, Metric
from flower_fedcon.problems.images import Split, hold_out, shares
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1, NuclearNorm, Regularizer, Separable, Zero
from flower_fedcon.validation import nonnegative


@stated
def digits_network(
    *,
    clients: int = 10,
    split: Split = "label-skew",
    hidden: int = 32,
    l1: float | None = None,
    nuclear: float | None = None,
    l2: float = 0.0,
    test_size: int = 297,
    seed: int = 0,
) -> FederatedProblem:
    """Return the training of a network: 64 pixels in [0, 1], tanh units, 10 classes.

    The model is a list of layers (see `TanhNetwork`) with a random start. The regularizer is on the
    two weight matrices, and leaves the biases free. The problem is not convex and its optimum is
    not known, so an experiment needs ``reference = false``.

    Parameters
    ----------
    clients : int
        N >= 1.
    split : {"label-skew", "even", "writer-like"}
        How images are divided among clients, as for `digits`.
    hidden : int
        Units of the hidden layer, >= 1.
    l1 : float, optional
        Weight of an l1 regularizer.
    nuclear : float, optional
        Weight of the matrices' nuclear norms, instead of `l1`.
    l2 : float
        Each client's f_j has l2/2 times the squared norm of the model.
    test_size : int
        Images held out, from 0 to 1,796.
    seed : int
        Seeds the shuffling, the shards and the start.

    Metrics: "test_accuracy" in [0, 1], if there are test images; "sparsity", the fraction of
    weights with |w| <= 1e-8; "rank", the singular values of both matrices above 1e-6.

    Raises
    ------
    ConfigError
        If a number is out of range, or both `l1` and `nuclear` are given.

    >>> problem = digits_network(l1=1e-3)
    >>> problem.num_clients, [layer.shape for layer in problem.x0]
    (10, [(64, 32), (32,), (32, 10), (10,)])
    >>> problem.metrics["rank"](problem.x0)
    42.0
    """
    with needing("the digits come with scikit-learn", "estimators"):
        from sklearn.datasets import load_digits  # slow to import

    if l1 is not None and nuclear is not None:
        raise ConfigError(f"give l1 or nuclear, not both: got l1={l1!r}, nuclear={nuclear!r}")
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels / 16
    kept, held = hold_out(
        len(labels), test_size, seed, shuffle=test_size != 0 and split != "writer-like"
    )
    objectives = [
        TanhNetwork(pixels[kept[rows]], labels[kept[rows]], CLASSES, hidden, l2)
        for rows in shares(labels[kept], clients, split, seed)
    ]
    metrics: dict[str, Metric] = {
        "sparsity": lambda x: float(np.mean(np.abs(np.r_[x[0].ravel(), x[2].ravel()]) <= 1e-8)),
        "rank": lambda x: float(sum(map(_rank, (x[0], x[2])))),
    }
    network, images, classes = objectives[0], pixels[held], labels[held]
    if held.size:
        metrics["test_accuracy"] = lambda x: float(
            np.mean(network.logits(x, images).argmax(axis=1) == classes)
        )
    psi: Regularizer | None = None
    if l1 is not None:
        psi = L1(nonnegative("l1", l1))
    elif nuclear is not None:
        psi = NuclearNorm(nonnegative("nuclear", nuclear))
    if psi is not None:
        on_weights: list[Regularizer] = [psi, Zero(), psi, Zero()]
        psi = Separable(tuple(zip(on_weights, network.shape, strict=True)))
    return FederatedProblem(
        objectives,
        regularizer=psi,
        x0=network.start(np.random.default_rng(seed)),
        metrics=metrics,
    )


def _rank(matrix: Any) -> int:
    return int(np.count_nonzero(np.linalg.svd(matrix, compute_uv=False) > 1e-6))
