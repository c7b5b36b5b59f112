"""A user's own data: one NumPy file for each client, as on deployed nodes."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.objectives import LeastSquares, LogisticRegression, Objective, SoftmaxRegression
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.partitions import BY_CLASS, checked_rule
from flower_fedcon.problems.partitions import partition as dealt
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.validation import Array, nonnegative, positive


@stated
def files(
    *,
    data: str | list[str],
    partition: dict[str, Any] | None = None,
    num_classes: int | None = None,
    l1: float | None = None,
    l1_radius: float | None = None,
    l2: float = 0.0,
) -> FederatedProblem:
    """Return the problem whose clients are `.npz` files; see `load_file`.

    Parameters
    ----------
    data : str or list of str
        The files, in client order, or a pattern such as "clients/*.npz" (sorted, numbers as
        numbers), relative to the working directory.
    partition : dict, optional
        How the rows of one file are divided among clients, by their `y` or `b`: see
        `flower_fedcon.problems.partition`. For "natural" `column` names another array of the file.
    num_classes : int, optional
        The number of classes, for labels 0, 1, ...; by default the labels must be -1 and 1.
    l1 : float, optional
        Weight of an l1 regularizer.
    l1_radius : float, optional
        Radius of an l1 ball, a constraint instead of `l1`.
    l2 : float
        Each client's f_j has l2/2 ||x||^2.

    Raises
    ------
    ConfigError
        If no file matches, a file cannot be used, or an argument is out of range.

    Examples
    --------
    Each client's file is written from its own arrays:

    >>> import tempfile
    >>> folder, rng = tempfile.mkdtemp(), np.random.default_rng(0)
    >>> for i in range(3):
    ...     np.savez(f"{folder}/client-{i}.npz", A=rng.normal(size=(20, 5)), b=rng.normal(size=20))
    >>> problem = files(data=f"{folder}/client-*.npz", l1=0.1)
    >>> problem.num_clients, problem.x0.shape
    (3, (5,))
    """
    if l1 is not None and l1_radius is not None:
        raise ConfigError(f"give l1 or l1_radius, not both: got l1={l1!r}, l1_radius={l1_radius!r}")
    regularizer = None if l1 is None else L1(nonnegative("l1", l1))
    constraint = None if l1_radius is None else L1Ball(positive("l1_radius", l1_radius))
    paths = paths_of(data)
    if partition is None:
        names = paths
        objectives = [load_file(path, num_classes=num_classes, l2=l2) for path in paths]
    elif len(paths) != 1:
        raise ConfigError(
            f"partition divides one file, and data names {len(paths)}: leave it out, "
            f"or name one file"
        )
    else:
        parts = _dealt_out(paths[0], partition)
        names = list(parts)
        objectives = [
            _objective(f"{paths[0]}, client {name}", arrays, num_classes, l2)
            for name, arrays in parts.items()
        ]
    return FederatedProblem(objectives, names=names, regularizer=regularizer, constraint=constraint)


def _dealt_out(path: str, rule: dict[str, Any]) -> dict[str, dict[str, Array]]:
    """Return each client's arrays, by its name, from the rows of one file."""
    arrays, column = _arrays(path), None
    outcome = arrays["b"] if "b" in arrays else arrays["y"]
    by = checked_rule(rule)
    if outcome.ndim > 1:
        if by in BY_CLASS:
            raise ConfigError(
                f"partition by {by!r} needs one class a row, and b of {path} has the shape "
                f"{outcome.shape} of several outputs: divide the rows by iid, sizes or natural"
            )
        outcome = np.arange(len(outcome))
    if by == "natural":
        column = arrays.get(str(rule["column"]))
        if column is None:
            raise ConfigError(
                f"partition: {path} has no array {rule['column']!r}: "
                f"{nearest(str(rule['column']), arrays)}"
            )
    examples = {name: arrays[name] for name in ("A", "b", "y") if name in arrays}
    if len(examples["A"]) != len(outcome):
        raise ConfigError(
            f"{path}: A has {len(examples['A'])} rows and there are {len(outcome)} "
            f"outcomes: give one outcome for each row"
        )
    return {
        name: {key: array[rows] for key, array in examples.items()}
        for name, rows in dealt(outcome, rule, column).items()
    }


def load_file(path: str | Path, *, num_classes: int | None = None, l2: float = 0.0) -> Objective:
    """Return the objective of one client's `.npz` file.

    The file holds `A`, shape (rows, features), and either `b` (least squares; of shape (rows,
    outputs) for several outputs) or `y`: labels -1 and 1 (logistic regression), or with
    `num_classes` 0, 1, ... (softmax regression).

    Raises
    ------
    ConfigError
        If the file cannot be read, or holds something else; the error names the file.
    """
    return _objective(path, _arrays(path), num_classes, l2)


def _arrays(path: str | Path) -> dict[str, Array]:
    """Return the arrays of a file."""
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except OSError as error:
        reason = error.strerror or "it is damaged"
        raise ConfigError(f"cannot read {path}: {reason}") from None
    except Exception:  # a damaged zip can raise anything; NumPy would advise unpickling
        raise ConfigError(
            f"cannot read {path} as a .npz file of numeric arrays: write it by "
            "np.savez(path, A=..., b=...) from arrays of numbers, not of objects"
        ) from None
    if "A" not in arrays or ("b" in arrays) == ("y" in arrays):
        raise ConfigError(f"{path} holds {sorted(arrays)}, expected A, and b or y")
    return arrays


def _objective(
    whose: str | Path, arrays: dict[str, Array], num_classes: int | None, l2: float
) -> Objective:
    """Return the objective of these arrays."""
    try:
        if "b" in arrays:
            return LeastSquares(arrays["A"], arrays["b"], l2=l2)
        if num_classes is None:
            return LogisticRegression(arrays["A"], arrays["y"], l2)
        return SoftmaxRegression(arrays["A"], arrays["y"], num_classes, l2)
    except ConfigError as error:
        raise ConfigError(f"{whose}: {error}") from None


def paths_of(data: str | list[str]) -> list[str]:
    """Return the files that a pattern matches, or that a list names.

    Raises
    ------
    ConfigError
        If no file is found.
    """
    paths = sorted(glob.glob(data), key=natural) if isinstance(data, str) else list(data)
    if not paths:
        raise ConfigError(f"no file matches {data!r} in {Path.cwd()}")
    return paths


def natural(path: str) -> list[tuple[int, str]]:
    """Return a key that sorts 2.npz before 10.npz."""
    parts = re.split(r"(\d+)", path)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
