"""Multinomial logistic regression on the UCI digits that scikit-learn ships."""

from __future__ import annotations

from typing import Any

from flower_fedcon.errors import needing
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.images import Images, Split, hold_out, rows_of_clients, softmax_problem
from flower_fedcon.problems.stated import stated
from flower_fedcon.validation import positive

CLASSES = 10


@stated
def digits(
    *,
    clients: int = 10,
    split: Split = "label-skew",
    partition: dict[str, Any] | None = None,
    l1: float | None = None,
    l1_radius: float | None = None,
    bias: bool = True,
    l2: float = 0.0,
    brightest: float = 1.0,
    test_size: int = 297,
    seed: int = 0,
) -> FederatedProblem:
    """Return softmax regression of 8 x 8 images, pixels in [0, `brightest`], into 10 classes.

    The model has shape (65, 10), the last row for the bias. The 1,797 images are shuffled, and
    the last `test_size` are held out.

    Parameters
    ----------
    clients : int
        N >= 1.
    split : {"label-skew", "even", "writer-like"}
        "label-skew": the training images sorted by label and cut into 2 N shards, two random
        shards for each client. "even": N blocks of (almost) the same size. "writer-like": N blocks
        in the shipped order of the images, in which about 130 consecutive ones are by one writer.
    partition : dict, optional
        A rule of `flower_fedcon.problems.partition` instead of `clients` and `split`, such as
        ``{"by": "dirichlet", "clients": 10, "alpha": 0.3}``.
    l1 : float, optional
        Weight of an l1 regularizer on all entries, bias included.
    l1_radius : float, optional
        Radius of an l1 ball, a constraint instead of `l1`.
    bias : bool
        Whether to append a column of ones.
    l2 : float
        Each client's f_j has l2/2 ||X||^2, bias included.
    brightest : float
        The value of a white pixel; as shipped it is 16, with which the smoothness is 250 times
        as large.
    test_size : int
        From 0 to 1,796. With 0 all images are for training, in their shipped order.
    seed : int
        Seeds the shuffling and the shards.

    Metrics: "test_accuracy" in [0, 1], if there are test images; "sparsity", the fraction of
    entries with |x| <= 1e-8.

    >>> problem = digits(l1=1e-3)
    >>> problem.num_clients, problem.x0.shape, sum(f.num_examples for f in problem.objectives)
    (10, (65, 10), 1500)
    """
    with needing("the digits come with scikit-learn", "estimators"):
        from sklearn.datasets import load_digits  # slow to import

    pixels, labels = load_digits(return_X_y=True)
    images = Images(pixels / 16 * positive("brightest", brightest), labels)
    shuffle = test_size != 0 and split != "writer-like"
    kept, held = hold_out(len(labels), test_size, seed, shuffle=shuffle)
    rows = rows_of_clients(labels[kept], clients, split, partition, seed)
    return softmax_problem(
        images.take(kept),
        images.take(held),
        rows,
        CLASSES,
        l1=l1,
        l1_radius=l1_radius,
        bias=bias,
        l2=l2,
    )
