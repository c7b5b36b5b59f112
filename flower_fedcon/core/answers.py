"""A client's answers to the core's own exchanges: a certificate, an evaluation, and its scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.core import rng
from flower_fedcon.core.evaluation import own_distance, spread_of, spread_out
from flower_fedcon.core.exchange import Site
from flower_fedcon.core.scales import SEVERAL, estimate
from flower_fedcon.errors import ConfigError, DivergedError, RefusedError, is_divergence
from flower_fedcon.objectives.private_objective import PrivateObjective, is_private
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


def certificate(site: Site, down: Payload) -> Payload:
    """Return the gradient at a model, and how far the client's own iterate lies from it.

    With "units" the roots of the curvatures along the entries are added, if they are known.
    """
    x = _model(site, down)
    spread = spread_of(site.seen, x) if "units" in down else {}
    return {"gradient": site.seen.gradient(x), **spread, **own_distance(site.state, x)}


def evaluation(site: Site, down: Payload) -> Payload:
    """Return the objective at a model and its own metrics; of private rows a noisy mean."""
    objective, x = site.objective, down["x"]
    if isinstance(objective, PrivateObjective):
        return {"objective": objective.noisy_value(x)}
    metrics = getattr(objective, "metrics", None)
    measured = spread_out(metrics(x)) if callable(metrics) else {}
    if hasattr(objective, "constraint_value"):
        measured["constraint"] = float(objective.constraint_value(x))
    return {"objective": float(objective.value(x)), **measured}


def own_scales(site: Site, down: Payload) -> Payload:
    """Return the length of the gradient at a start and, if "steps" > 0, an estimate of L.

    These are two numbers, of gradients that the client does not send. A server does not believe one
    that is far above those of the other clients (`flower_fedcon.core.scales.not_believed`).

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
    x0, steps = _model(site, down), down["steps"]
    if not (isinstance(steps, float | int) and 0 <= steps <= SEVERAL):
        raise ConfigError(f"steps must be a number from 0 to {SEVERAL}, got {steps!r}")

    def gradient(x: Array) -> Any:
        """Return NaN where the objective has no gradient, beyond its domain or by overflow."""
        try:
            return site.seen.gradient(x)
        except Exception as error:
            if x is x0 or not is_divergence(error):
                raise
            return np.full_like(x0, np.nan)

    draws = rng.stream(site.run.seed, rng.SCALES, 0, site.client)
    scales = estimate(gradient, x0, draws, steps=int(steps))
    numbers = {name: value for name, value in scales._asdict().items() if value is not None}
    if not np.isfinite([*numbers.values()]).all():
        raise DivergedError("its gradient at the start, or L there, is not a finite number")
    return numbers


def _model(site: Site, down: Payload) -> Array:
    """Return the model in a request.

    Raises
    ------
    ConfigError
        If it is not an array of the run's shape.
    """
    x, shape = down["x"], None if site.run is None else site.run.layout.shape
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or x.shape != shape:
        given = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise ConfigError(f"a model must be an array of floats of shape {shape}, got {given}")
    return x
