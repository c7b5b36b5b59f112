"""Completion of a matrix of ratings: MovieLens-100k, or a synthetic set of the same form."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import MatrixCompletion
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.sets import NuclearNormBall
from flower_fedcon.validation import Array, choice, count, nonnegative, positive

RANK = 5
_SPREAD = np.array([1.0, 1.6])  # deviations of the logarithms of MovieLens' users and items
_ENTRIES = 10**9  # entries of the dense model


@stated
def movielens(
    *,
    data: str | None = None,
    clients: int = 40,
    radius: float = 7000.0,
    test_fraction: float = 0.1,
    users: int = 943,
    items: int = 1682,
    ratings: int = 100_000,
    popularity: float = 0.0,
    seed: int = 0,
    precision: str = "float64",
) -> FederatedProblem:
    """Return min sum over ratings of (X_ij - Y_ij)^2 over a nuclear-norm ball, from 0.

    The ratings are shuffled, a part is held out, and the rest is split evenly. f_c is the sum over
    the ratings of client c, and F the mean of the f_c. Metrics: "train_rmse" and
    "test_rmse"; nothing is clipped.

    Parameters
    ----------
    data : str, optional
        Path of MovieLens-100k's file u.data: lines of user, item, rating and time. Without it a
        synthetic set of the same form: ratings 1 to 5 of a matrix of rank 5, at random entries.
    clients : int
        N >= 1.
    radius : float
        Radius of the ball; the paper's is 7000.
    test_fraction : float
        The fraction held out, at least 0 and below 1.
    users, items, ratings : int
        Size of the synthetic set; the counts of `data`, if it is given, take their place.
    popularity : float
        How unevenly the entries of the synthetic set are spread, at least 0: with 0 evenly, with 1
        about as in MovieLens-100k, where a user has at most 737 ratings and an item 583, and the
        medians are 65 and 27 (here some 670, 710, 80 and 22).
    seed : int
        Seeds the synthetic set and the shuffling.
    precision : {"float64", "float32"} (default: "float64")
        The precision of ratings and models. With single precision a round takes half the memory,
        and half to three quarters of the time.

    Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", 2022, Figure 1(c).

    >>> problem = movielens(clients=3, users=20, items=30, ratings=200, radius=50.0)
    >>> problem.x0.shape, [f.num_examples for f in problem.objectives]
    ((20, 30), [60, 60, 60])
    """
    dtype = choice("precision", precision, ("float64", "float32"))
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    ball = NuclearNormBall(positive("radius", radius))
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"test_fraction must be >= 0 and < 1, got {test_fraction!r}")
    table = _synthetic(users, items, ratings, popularity, rng) if data is None else _read(data)
    if data is not None:
        users, items = (int(table[:, k].max()) for k in (0, 1))
    shape = (users, items)
    table = table[rng.permutation(len(table))]
    held_out = round(test_fraction * len(table))
    test, train = table[:held_out], table[held_out:]
    if count("clients", clients) > len(train):
        raise ConfigError(f"clients must be at most the {len(train)} ratings to train on")

    def completion(part: Array) -> MatrixCompletion:
        return MatrixCompletion(part[:, 0] - 1, part[:, 1] - 1, part[:, 2].astype(dtype), shape)

    metrics = {"train_rmse": completion(train).rmse}
    if held_out:
        metrics["test_rmse"] = completion(test).rmse
    return FederatedProblem(
        [completion(part) for part in np.array_split(train, clients)],
        constraint=ball,
        metrics=metrics,
    )


def _read(path: str) -> Array:
    """Return the columns user, item and rating of a file in u.data's format."""
    try:
        table = np.loadtxt(Path(path), dtype=np.int64, usecols=(0, 1, 2), ndmin=2)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path} as ratings ({error}): data is the file u.data of MovieLens-100k, "
            "lines of user, item, rating and time"
        ) from None
    if not len(table) or table[:, :2].min() < 1:
        raise ConfigError(f"{path} must hold users and items that are counted from 1")
    users, items = (int(table[:, k].max()) for k in (0, 1))
    if users * items > _ENTRIES:
        raise ConfigError(
            f"{path} holds user {users} and item {items}, a matrix of more than {_ENTRIES} "
            "entries: number them from 1 without gaps"
        )
    return table


def _synthetic(
    users: int, items: int, ratings: int, popularity: float, rng: np.random.Generator
) -> Array:
    """Return rows of user, item and rating: the rounded entries of a matrix of rank 5."""
    size = count("users", users) * count("items", items)
    if count("ratings", ratings) > size:
        raise ConfigError(f"ratings must be at most users * items = {size}, got {ratings}")
    if nonnegative("popularity", popularity):
        of_user, of_item = popularity * _SPREAD
        chances = of_user * rng.standard_normal((users, 1)) + of_item * rng.standard_normal(items)
        keys = (chances + rng.gumbel(size=(users, items))).reshape(-1)  # draws without replacement
        entries = np.sort(np.argpartition(-keys, ratings - 1)[:ratings])
    else:
        entries = rng.choice(size, size=ratings, replace=False)
    rows, cols = np.divmod(entries, items)
    left = rng.standard_normal((users, RANK - 1))
    right = rng.standard_normal((items, RANK - 1)) / np.sqrt(RANK - 1)
    scores = 3.5 + (left[rows] * right[cols]).sum(axis=1)
    stars = np.clip(np.rint(scores), 1, 5).astype(np.int64)
    return np.stack([rows + 1, cols + 1, stars], axis=1)
