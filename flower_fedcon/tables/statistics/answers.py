"""The statistics that a server may request of a site, and those that a node's policy must list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables.noisy_quality import told_noisily
from flower_fedcon.tables.quality import told_calibration, told_quality
from flower_fedcon.tables.statistics.group_sums import effects, marginal, variance_ratio
from flower_fedcon.tables.statistics.hazards import baseline, in_time
from flower_fedcon.tables.statistics.site_fits import alone, apart
from flower_fedcon.tables.statistics.site_sums import CLUSTER, KINDS, estimates
from flower_fedcon.wire.payloads import Payload

ASKS = "asks."
"""Prefix of the name that states a request's statistic."""
ALONE = "alone"
"""A fit to a site's own rows, which is not a sum over sites."""
BASELINE = "baseline"
"""A site's baseline hazard, which reveals the times of its events."""
EFFECTS = "effects"
"""A site's own predictions of random intercepts, of which it sends only the number."""
STATISTICS: dict[str, Callable[[Any, Payload, int], Payload]] = {
    "estimates": estimates,
    "quality": told_quality,
    "calibration": told_calibration,
    "noisy_quality": told_noisily,
    "marginal": marginal,
    "variance_ratio": variance_ratio,
    EFFECTS: effects,
    ALONE: alone,
    "apart": apart,
    "in_time": in_time,
    BASELINE: baseline,
}
"""By name: (objective, down, least) -> a site's answer."""
OF_GROUPS = frozenset(("marginal", "variance_ratio"))
"""The statistics of random intercepts, whose deviation is one more parameter."""
COUNTED = ("in_time", BASELINE, *OF_GROUPS)
"""The statistics over events or groups, which need at least a node's `min_cell` of them."""
OWN_PHASES = (ALONE, BASELINE)
"""The statistics that a node answers only if its policy lists a phase of their name."""


def counts_rows(down: Payload) -> bool:
    """Return whether a request is for sums over events, groups or clusters, which may be small."""
    asked = asked_of(down)
    clusters = "estimates" in asked and float(down["method"]) == KINDS[CLUSTER]
    return clusters or any(name in COUNTED for name in asked)


def asked_of(down: Payload) -> list[str]:
    """Return the statistics that a request names."""
    return [name.removeprefix(ASKS) for name in down if name.startswith(ASKS)]


def models_in(down: Payload) -> int:
    """Return the number of models at which a request asks for sums over rows.

    >>> models_in({"asks.apart": 1.0, "at": np.zeros((3, 5))}), models_in({"asks.estimates": 1.0})
    (3, 1)
    """
    asked = asked_of(down)
    if "apart" in asked:
        return max(1, len(np.atleast_2d(down.get("at", 0.0))))
    return 2 if "calibration" in asked else 1  # a line, and one with the slope 1


def sums_of(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's answer to a request for a statistic.

    Parameters
    ----------
    objective : object
        The site's objective.
    down : dict
        "x", the model; "asks.<name>", the statistic; and its arguments.
    least : int
        Nothing based on fewer rows is sent.

    Raises
    ------
    ConfigError
        If the statistic is unknown, or undefined for the loss.
    """
    asked = asked_of(down)
    if len(asked) != 1 or asked[0] not in STATISTICS:
        raise ConfigError(
            f"the server asks for the statistics {asked}, and this node has "
            f"{', '.join(STATISTICS)}: run one version of flower-fedcon"
        )
    return STATISTICS[asked[0]](objective, down, least)
