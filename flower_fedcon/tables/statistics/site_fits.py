"""A site's own fit, and its sums for a test of its own effect against the common one.

The message of the statistic "alone" holds, for a model of p entries:

values : p numbers
    The coefficients of the fit to the site's rows alone, with its own intercept (one of the p
    numbers if the model has an intercept).
step : p numbers
    If the fit diverges because the outcome is separated here, the last step of each; else 0.
information, score, numbers
    As in the statistic "estimates", at these values.

The message of "apart" holds, for each of K requested entries, the arrays of "estimates" for the
other entries. The requested entry is the site's own: it is eliminated at the site and not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, number_of
from flower_fedcon.objectives.base import unscaled
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.objectives.profiled import Profiled, pseudo_inverse
from flower_fedcon.tables.statistics.site_sums import estimates, fitted
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_STEPS = 25  # of Newton's method; each moves separated outcomes' odds by a factor of e
_SHORT = 1e-7  # the last step's size, in units of the scores, relative to the coefficient
_ALIKE = (
    "outcomes are all alike here (counts all 0), so the site's own intercept is infinite, and the "
    "rows carry no information on the columns"
)


def alone(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return the fit to the site's rows alone; see the module.

    Raises
    ------
    ConfigError
        If the loss is not squared, logistic or Poisson, rows are no more than parameters, or all
        outcomes are equal.
    """
    f = unscaled(objective)
    fitted(f, np.zeros(f.shape))  # raises without a likelihood, and for private rows
    profiled = type(f) is Profiled
    loss = f.loss if profiled else f
    core = loss.loss if type(loss) is WithOffset else loss
    rows = f.num_examples if f.weights is None else int((f.weights > 0).sum())
    parameters = f.shape[0] + profiled
    if rows <= parameters:
        raise ConfigError(
            f"{number_of(rows, 'row')} for {number_of(parameters, 'parameter')}: a fit needs more "
            "rows than parameters"
        )
    profile = f if profiled else Profiled(f) if core.intercept else None
    if profile is not None and not profile.informative:
        raise ConfigError(_ALIKE)
    x, step = _minimum(f if profile is None else profile)
    if profile is not None and not profiled:
        x, step = profile.full(x), np.append(step, 0.0)
    return {"values": x, "step": step, **estimates(f, {"x": x, "method": 0.0})}


def apart(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's sums for the other entries if some are its own; see the module.

    Parameters
    ----------
    objective : object
    down : dict
        "entries", shape (K,), the requested entries, each once; and "at", shape (K, p), the model
        for each, in which the requested entry is not used.
    least : int

    Raises
    ------
    ConfigError
        If the loss is not squared, logistic or Poisson, an entry is not in the model, or one is
        requested twice.
    """
    f = unscaled(objective)
    profiled = type(f) is Profiled
    at, entries = np.atleast_2d(down["at"]), np.asarray(down["entries"], dtype=np.float64)
    p = f.shape[0]
    fits = at.shape == (len(entries), p) and (entries == np.floor(entries)).all()
    if not fits or not len(entries) or entries.min() < 0 or entries.max() >= p:
        raise ConfigError(f"entries of a model of {p} are asked about, got {at.shape}")
    if len(np.unique(entries)) < len(entries):
        raise ConfigError(
            f"each entry of a model can be requested once in a message, got {entries.tolist()[:20]}"
        )
    sums = []
    for x, entry in zip(at, entries.astype(int).tolist(), strict=True):
        mine = Profiled(f.loss, (entry, -1)) if profiled else Profiled(f, (entry,))
        sums.append(estimates(mine, {"x": np.delete(x, entry), "method": 0.0}))
    return {name: np.stack([one[name] for one in sums]) for name in sums[0]}


def _minimum(f: Any) -> tuple[Array, Array]:
    """Return the minimiser of a loss of rows by Newton's method, and the remaining step."""
    x: Array = np.zeros(f.shape)
    sizes = np.sqrt(np.maximum(f.entry_curvatures(), np.finfo(float).tiny))
    value, step = f.value(x), np.zeros(f.shape)
    for _ in range(_STEPS):
        step = -pseudo_inverse(f.hessian(x))[0] @ f.gradient(x)
        x, value = halved(f.value, x, step, value)
        if (np.abs(step) * sizes <= _SHORT * (1.0 + np.abs(x) * sizes)).all():
            return x, np.zeros(f.shape)
    return x, step


def halved(
    value_at: Callable[[Array], float], x: Array, step: Array, value: float
) -> tuple[Array, float]:
    """Return the point after a step that is halved until the value does not rise, and its value.

    >>> halved(lambda x: float(x[0] ** 2), np.array([1.0]), np.array([-4.0]), 1.0)
    (array([-1.]), 1.0)
    """
    for _ in range(50):
        tried = value_at(x + step)
        if tried <= value + 1e-13 * abs(value):
            return x + step, tried
        step = 0.5 * step
    return x, value
