"""Reports of paths: coefficients by name, and all points as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from flower_fedcon.paths.folds import CrossValidation
from flower_fedcon.paths.path import RegularizationPath
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.tables.ending.table_report import exponential_of
from flower_fedcon.tables.own_files import PATH
from flower_fedcon.tables.preparation import INTERCEPT
from flower_fedcon.validation import Array


def names_of(problem: FederatedProblem) -> list[str]:
    """Return the names of a flattened model's entries: a table's columns, or positions."""
    size, prepared = problem.layout.size, problem.preparation
    if prepared is not None:
        return list(prepared.entries(problem.layout.shape))
    if problem.layout.layered or len(problem.layout.shape) == 1:
        return [f"x[{i}]" for i in range(size)]
    return [f"x{list(place)}" for place in np.ndindex(problem.layout.shape)]


def unit_of(problem: FederatedProblem) -> str:
    """Return the unit of a table's coefficients, such as "per sd"; "" for other models."""
    if problem.preparation is None:
        return ""
    return "per sd" if problem.preparation.standardized else "per unit"


def ratio_of(problem: FederatedProblem) -> str:
    """Return the meaning of a coefficient's exponential, such as "odds ratio"; or ""."""
    return "" if problem.preparation is None else exponential_of(problem.preparation.loss)


def coefficients(
    problem: FederatedProblem, chosen: CrossValidation, place: int
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the titles and the rows of a point's nonzero coefficients.

    A row has the name and the value. For tables it also has the coefficient per unit and its
    exponential, if this is a ratio (that of an intercept is not); then the share of the folds.
    """
    names, unit, ratio = names_of(problem), unit_of(problem), ratio_of(problem)
    x, stable, prepared = _flat(chosen.path, place), chosen.stability, problem.preparation
    raw = x if prepared is None else prepared.in_units(x.reshape(problem.layout.shape)).reshape(-1)
    both = prepared is not None and prepared.standardized
    rows = []
    for i in np.flatnonzero(x).tolist():
        share = f"{stable[place, i]:.0%}" if i in chosen.path.active[place] else ""
        exponential = "" if names[i] == INTERCEPT else f"{np.exp(raw[i]):.4f}"
        cells = [
            f"{x[i]:.4f}",
            *([f"{raw[i]:.4g}"] if both else []),
            *([exponential] * bool(ratio)),
        ]
        rows.append((names[i], *cells, share))
    titles = [unit or "value", *(["per unit"] if both else []), *([ratio] if ratio else [])]
    return ("Coefficient", *(title.capitalize() for title in titles), "In folds"), rows


def to_csv(
    names: Sequence[str],
    path: RegularizationPath,
    chosen: CrossValidation | None = None,
    *,
    weight: str = "weight",
    unit: str = "",
) -> str:
    """Return a path as CSV, a row for each weight.

    `weight` is the name of its column, and the coefficients' names end with their `unit`.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    held = () if chosen is None else ("held_out_loss", "standard_error")
    rows.writerow([weight, *PATH, *held, *(_titled(name, unit) for name in names)])
    for i in range(len(path)):
        x = _flat(path, i)
        losses = () if chosen is None else (chosen.mean[i], chosen.standard_error[i])
        numbers = (path.values[i], path.kkt[i], path.rounds[i], path.exchanges[i],
                   path.uplink_bytes[i], path.downlink_bytes[i], *losses, *x)  # fmt: skip
        rows.writerow([repr(value.item()) for value in map(np.asarray, numbers)])
    return text.getvalue()


def _titled(name: str, unit: str) -> str:
    return f"{name} {unit}" if unit and not name.startswith(INTERCEPT) else name


def _flat(path: RegularizationPath, place: int) -> Array:
    """Return a point's model as one vector."""
    x = path.x[place]
    return np.concatenate([layer.ravel() for layer in (x if isinstance(x, list) else [x])])
