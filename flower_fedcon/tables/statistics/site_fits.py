"""A site's own fit, and how much its own effect would improve the common one.

The message of the statistic "alone" holds, for a model of p entries:

values : p numbers
    The coefficients of the fit to the site's rows alone, with an intercept of its own (which is
    among them where the model has one).
step : p numbers
    If the fit diverges, since the outcome is separated here, the last step of each; else 0.
information, score, numbers
    As of the statistic "estimates", at these values.

That of "apart" holds, for each of K entries that are asked about, what "estimates" has at a model
of the others, the entry itself being the site's own: eliminated where its rows are, and not told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import unscaled
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.objectives.profiled import Profiled, pseudo_inverse
from flower_fedcon.tables.statistics.site_sums import estimates, fitted
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_STEPS = 25  # of Newton's method; each moves separated outcomes' odds by a factor of e
_SHORT = 1e-7  # a step in units of the scores, relative to the coefficient, that is the last
_ALIKE = (
    "outcomes are all alike here (counts all 0), so the site's own intercept is infinite, and the "
    "rows carry no information on the columns"
)


def alone(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return the fit to the site's rows alone; see the module.

    Raises
    ------
    ConfigError
        If the loss is not squared, logistic or Poisson, there are not more rows than parameters, or
        all outcomes are alike.
    """
    f = unscaled(objective)
    fitted(f, np.zeros(f.shape))  # which refuses what has no likelihood, or is private
    own = type(f) is Profiled
    loss = f.loss if own else f
    core = loss.loss if type(loss) is WithOffset else loss
    known = f.num_examples if f.weights is None else int((f.weights > 0).sum())
    parameters = f.shape[0] + own
    if known <= parameters:
        raise ConfigError(
            f"{known} rows for {parameters} parameters: a fit needs more rows than parameters"
        )
    profile = f if own else Profiled(f) if core.intercept else None
    if profile is not None and not profile.informative:
        raise ConfigError(_ALIKE)
    x, step = _minimum(f if profile is None else profile)
    if profile is not None and not own:
        x, step = profile.full(x), np.append(step, 0.0)
    return {"values": x, "step": step, **estimates(f, {"x": x, "method": 0.0})}


def apart(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's sums for the other entries if some are its own; see the module.

    Parameters
    ----------
    objective : object
    down : dict
        "entries", shape (K,), which are asked about one by one, and "at", shape (K, p), the models:
        of each all entries count but the one that is the site's.
    least : int

    Raises
    ------
    ConfigError
        If the loss is not squared, logistic or Poisson, or an entry is not in the model.
    """
    f = unscaled(objective)
    own = type(f) is Profiled
    at, entries = np.atleast_2d(down["at"]), np.asarray(down["entries"], dtype=np.float64)
    p = f.shape[0]
    fits = at.shape == (len(entries), p) and (entries == np.floor(entries)).all()
    if not fits or not len(entries) or entries.min() < 0 or entries.max() >= p:
        raise ConfigError(f"entries of a model of {p} are asked about, got {at.shape}")
    found = []
    for x, entry in zip(at, entries.astype(int).tolist(), strict=True):
        mine = Profiled(f.loss, (entry, -1)) if own else Profiled(f, (entry,))
        found.append(estimates(mine, {"x": np.delete(x, entry), "method": 0.0}))
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


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
