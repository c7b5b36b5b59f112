"""A client's answers to the core's own exchanges: a certificate, an evaluation, and its scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.core import rng
from flower_fedcon.core.evaluation import own_distance, spread_of, spread_out
from flower_fedcon.core.exchange import Site
from flower_fedcon.core.scales import SEVERAL, estimate
from flower_fedcon.errors import DivergedError, RefusedError, is_divergence
from flower_fedcon.objectives.private_objective import PrivateObjective, is_private
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


def certificate(site: Site, down: Payload) -> Payload:
    """Return the gradient at a model, and how far the client's own iterate lies from it.

    With "units" the roots of the curvatures along the entries are added, if they are known.
    """
    spread = spread_of(site.seen, down["x"]) if "units" in down else {}
    own = own_distance(site.state, down["x"])
    return {"gradient": site.seen.gradient(down["x"]), **spread, **own}


def evaluation(site: Site, down: Payload) -> Payload:
    """Return the objective at a model and its own metrics; of private rows a noisy mean."""
    objective, x = site.objective, down["x"]
    if isinstance(objective, PrivateObjective):
        return {"objective": objective.noisy_value(x)}
    metrics = getattr(objective, "metrics", None)
    own = spread_out(metrics(x)) if callable(metrics) else {}
    if hasattr(objective, "constraint_value"):
        own["constraint"] = float(objective.constraint_value(x))
    return {"objective": float(objective.value(x)), **own}


def own_scales(site: Site, down: Payload) -> Payload:
    """Return the length of the gradient at a start and, if "steps" > 0, an estimate of L.

    These are two numbers, of gradients that the client does not send.

    Raises
    ------
    RefusedError
        If the client's examples are private.
    DivergedError
        If the gradient at the start is not finite.
    """
    if is_private(site.objective):
        raise RefusedError(
            "refused: this client's examples are private (ExampleDP), and each gradient would "
            "spend privacy: give the settings"
        )
    assert site.run is not None  # noqa: S101  (every engine's sites have one)
    x0 = down["x"]

    def gradient(x: Array) -> Any:
        """Return NaN where the objective has no gradient, beyond its domain or by overflow."""
        try:
            return site.seen.gradient(x)
        except Exception as error:
            if x is x0 or not is_divergence(error):
                raise
            return np.full_like(x0, np.nan)

    draws = rng.stream(site.run.seed, rng.SCALES, 0, site.client)
    found = estimate(gradient, x0, draws, steps=min(int(down["steps"]), SEVERAL))
    numbers = {name: value for name, value in found._asdict().items() if value is not None}
    if not np.isfinite([*numbers.values()]).all():
        raise DivergedError("its gradient at the start, or L there, is not a finite number")
    return numbers
