"""Paths for people and for spreadsheets: coefficients by name, and all points as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.paths.folds import CrossValidation
from flower_fedcon.paths.path import RegularizationPath
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.validation import Array


def names_of(problem: FederatedProblem) -> list[str]:
    """Return the names of a flattened model's entries: of a table's columns, else their places."""
    size, prepared = problem.layout.size, problem.preparation
    if prepared is not None and size == len(prepared.names) + 1:
        return [*prepared.names, "(intercept)"]
    if problem.layout.layered or len(problem.layout.shape) == 1:
        return [f"x[{i}]" for i in range(size)]
    return [f"x{list(place)}" for place in np.ndindex(problem.layout.shape)]


def coefficients(
    names: Sequence[str], chosen: CrossValidation, place: int
) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, value, exp(value) and the share of the folds, of all that are not 0."""
    x, stable = _flat(chosen.path, place), chosen.stability
    for i in np.flatnonzero(x).tolist():
        share = f"{stable[place, i]:.0%}" if i in chosen.path.active[place] else ""
        yield names[i], f"{x[i]:.4f}", f"{np.exp(x[i]):.4f}", share


def to_csv(
    names: Sequence[str], path: RegularizationPath, chosen: CrossValidation | None = None
) -> str:
    """Return a path as CSV, a row for each weight."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    held = () if chosen is None else ("held_out_loss", "standard_error")
    rows.writerow(
        ["weight", "kkt", "rounds", "exchanges", "uplink_bytes", "downlink_bytes", *held, *names]
    )
    for i in range(len(path)):
        x = _flat(path, i)
        losses = () if chosen is None else (chosen.mean[i], chosen.standard_error[i])
        numbers = (path.values[i], path.kkt[i], path.rounds[i], path.exchanges[i],
                   path.uplink_bytes[i], path.downlink_bytes[i], *losses, *x)  # fmt: skip
        rows.writerow([repr(value.item()) for value in map(np.asarray, numbers)])
    return text.getvalue()


def _flat(path: RegularizationPath, place: int) -> Array:
    """Return a point's model as one vector."""
    x = path.x[place]
    return np.concatenate([layer.ravel() for layer in (x if isinstance(x, list) else [x])])
