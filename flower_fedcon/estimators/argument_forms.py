"""The client of each row, and the rows held out: `groups` and `cv` in any form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length

from flower_fedcon.errors import ConfigError, number_of, repr_of
from flower_fedcon.validation import (
    Array,
    count,
    expect_unmasked,
    is_missing,
    plain_array,
    time_in_words,
)

_FOLDS = 5
_WRITTEN = ("", "nan", "NaN", "NaT", "<NA>")  # a missing value among texts, as libraries write it
_LABELLED = {
    "clusters": "cluster",
    "strata": "stratum",
    "by": "group",
}  # by argument; else a client


def why_not_numbers(X: Any) -> str:
    """Return which column of a table holds a text or a date, and what to do; "" if none does.

    >>> print(why_not_numbers([[1.0, "m"], [2.0, "f"]]))
    column 1 of X holds the text 'm'. Replace a categorical column by columns of 0 and 1
    (sklearn.preprocessing.OneHotEncoder(drop="first")), or fit tables with a schema in which it is
    "categorical" (flower_fedcon.problems.tables)
    """
    names = getattr(X, "columns", None)
    cells: Any = X if hasattr(X, "iloc") else np.asarray(X, dtype=object)
    for j in range(cells.shape[1] if cells.ndim == 2 else 0):
        column = cells.iloc[:, j] if hasattr(X, "iloc") else cells[:, j]
        if getattr(column.dtype, "kind", "O") in "biuf":
            continue
        name = j if names is None else names[j]
        for value in column:
            if said := time_in_words(value):
                return f"column {name!r} of X holds {said}"
            if not isinstance(value, str | bytes) or _is_number(value):
                continue
            coded = 'sklearn.preprocessing.OneHotEncoder(drop="first")'
            if hasattr(X, "iloc"):
                coded = f"pandas.get_dummies(X, columns=[{name!r}], drop_first=True)"
            return (
                f"column {name!r} of X holds the text {value!r}. Replace a categorical column by "
                f"columns of 0 and 1 ({coded}), or fit tables with a schema in which it is "
                f'"categorical" (flower_fedcon.problems.tables)'
            )
    return ""


def expect_outcomes(y: Any) -> None:
    """Raise if outcomes are missing, dates or durations, in whatever form they are given.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> expect_outcomes(["yes", "no"]), expect_outcomes(np.array([1.0, 2.0]))
    (None, None)
    """
    if y is None or getattr(getattr(y, "dtype", None), "kind", "O") in "biuf":
        return
    cells = np.asarray(y, dtype=object).reshape(-1).tolist()
    if missing := [row for row, cell in enumerate(cells) if is_missing(cell) or cell in _WRITTEN]:
        raise ValueError(
            f"y has no value for {number_of(len(missing), 'row')}, the first of them row "
            f"{missing[0]} ({cells[missing[0]]!r}): drop these rows, since no outcome may be "
            "missing"
        )
    for value in cells:
        if said := time_in_words(value):
            raise ValueError(f"y holds {said}")


def _is_number(value: Any) -> bool:
    """Return whether scikit-learn reads a text as a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def clients_of(groups: Any, n: int, name: str = "groups") -> tuple[Array, Array]:
    """Return the clients that `groups` names, in order, and each row's client by its place.

    Parameters
    ----------
    groups : array, list or column of n labels, or None
        Numbers, texts, dates, tuples, or a mixture of these; None for one client.
    n : int
        Rows.
    name : str
        For messages.

    Raises
    ------
    ValueError
        If a row has no label, or two labels look the same.

    Examples
    --------
    >>> clients_of(["b", "a", "b"], 3)
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    >>> clients_of([("Ulm", 2), ("Ulm", 1), ("Ulm", 2)], 3)
    (array([('Ulm', 1), ('Ulm', 2)], dtype=object), array([1, 0, 1]))
    """
    if groups is None:
        return np.zeros(1, int), np.zeros(n, np.intp)
    expect_unmasked(name, groups)
    if isinstance(groups, str):
        raise ValueError(f"{name} must have one label for each row, got {groups!r}")
    if getattr(groups, "ndim", 1) == 2:  # a table of one column, say
        groups = np.asarray(groups)
        if groups.shape[1] != 1:
            raise ValueError(
                f"{name} must have one label for each row, got shape {groups.shape}: write several "
                "columns as tuples, `list(map(tuple, ...))`"
            )
        groups = groups[:, 0]
    check_consistent_length(np.empty(n), groups)
    if isinstance(groups, np.ndarray) and groups.dtype.kind != "O":
        _expect_labels(np.flatnonzero(groups != groups), name)
        labels, place = np.unique(groups, return_inverse=True)
        return labels, place
    cells = list(groups)
    for row, cell in enumerate(cells):
        if getattr(type(cell), "__hash__", None) is None:
            raise ValueError(
                f"{name} has {repr_of(cell)} in row {row}: name a {_LABELLED.get(name, 'client')} "
                f"by a number, a text or a tuple of these"
            )
    _expect_labels([row for row, cell in enumerate(cells) if is_missing(cell)], name)
    distinct = list(dict.fromkeys(cells))
    try:
        distinct.sort()
    except TypeError:  # labels of several types
        distinct.sort(key=lambda label: (type(label).__name__, str(label)))
    written: dict[str, Any] = {}
    for label in distinct:
        if (other := written.setdefault(str(label), label)) is not label:
            raise ValueError(
                f"{name} has {other!r} and {label!r}, which look the same: name each "
                f"{_LABELLED.get(name, 'client')} in one way"
            )
    places = {label: place for place, label in enumerate(distinct)}
    return _together(distinct), np.array([places[cell] for cell in cells], np.intp)


def _expect_labels(missing: Any, name: str) -> None:
    if len(missing):
        raise ValueError(
            f"{name} has no value for {number_of(len(missing), 'row')}, the first of them row "
            f"{missing[0]}: name the {_LABELLED.get(name, 'client')} of each row, or drop these "
            f"rows"
        )


def _together(labels: list[Any]) -> Array:
    """Return labels as an array, of their own type if NumPy has it."""
    for kind in (str, (bool, np.bool_), (int, float, np.number)):
        if all(isinstance(label, kind) for label in labels):
            return np.array(labels)
    array = np.empty(len(labels), object)
    array[:] = labels
    return array


def folds_of(cv: Any, X: Any, y: Array, place: Array | None) -> int | list[tuple[Array, Array]]:
    """Return a number of folds, or for each fold the rows to fit and those held out.

    Parameters
    ----------
    cv : int, splitter, iterable of pairs, or None
        Pairs hold arrays of row numbers, or masks. None means 5 folds.
    X, y : arrays
        The arguments of a splitter.
    place : array of int, optional
        The groups, for a splitter that takes groups.

    Raises
    ------
    ConfigError
        If `cv` is none of these, or a row number is out of range.
    """
    if cv is None:
        return _FOLDS
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        return count("cv", cv, minimum=2)
    if hasattr(cv, "split") and not isinstance(cv, str):
        cv = cv.split(X, y, place if _takes_groups(cv) else None)
    if isinstance(cv, str | bytes) or not isinstance(cv, Iterable):
        raise _no_folds(repr_of(cv))
    folds = []
    for k, pair in enumerate(cv):
        parts = pair if isinstance(pair, list | tuple) else [pair]
        if len(parts) != 2:
            raise _no_folds(f"{repr_of(pair)} as fold {k}")
        fit, held = (_row_numbers(f"cv: fold {k}", part, len(y)) for part in parts)
        if not (fit.size and held.size):
            what = "held out" if fit.size else "to fit"
            raise ConfigError(f"cv: fold {k} has no rows {what}")
        folds.append((fit, held))
    if not folds:
        raise _no_folds("no fold")
    return folds


def _takes_groups(splitter: Any) -> bool:
    """Return whether a splitter takes groups; scikit-learn's other splitters warn about them."""
    if not hasattr(splitter, "get_metadata_routing"):
        return True
    return bool(splitter.get_metadata_routing().consumes("split", ["groups"]))


def _row_numbers(name: str, part: Any, n: int) -> Array:
    """Return rows as numbers from 0, given as numbers or as a mask."""
    rows = plain_array(name, part)
    if rows.ndim != 1:
        raise ConfigError(f"{name} must have row numbers or a mask, got shape {rows.shape}")
    if rows.dtype.kind == "b":
        if rows.size != n:
            raise ConfigError(
                f"{name} has a mask of {rows.size} rows, and the data have {n}: give "
                f"one entry for each row"
            )
        return np.flatnonzero(rows)
    if not rows.size:
        return np.empty(0, np.intp)
    if rows.dtype.kind not in "iu":
        raise ConfigError(
            f"{name} must have whole row numbers or a mask of booleans, got {rows.dtype}: convert "
            f"it, for example by `rows.astype(int)`"
        )
    if rows.min() < -n or rows.max() >= n:
        wrong = rows[(rows < -n) | (rows >= n)][0]
        raise ConfigError(
            f"{name} has row {wrong}, and the data have {n} rows: give numbers from 0 to {n - 1}"
        )
    numbers: Array = np.where(rows < 0, rows + n, rows).astype(np.intp)
    return numbers


def _no_folds(got: str) -> ConfigError:
    return ConfigError(
        "cv must be a number of folds >= 2, a splitter of scikit-learn, or pairs (rows to fit, "
        f"rows held out), got {got}"
    )
