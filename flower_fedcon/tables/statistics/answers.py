"""What a server may request of a site for a model, by name, and what a node's policy must list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
"""By name: (objective, down, least) -> what a site tells."""
OF_GROUPS = frozenset(("marginal", "variance_ratio"))
"""Those of random intercepts, whose deviation is a parameter more."""
COUNTED = ("in_time", BASELINE, *OF_GROUPS)
"""Those of events, or of groups, of whose rows there are no fewer than a node's `min_cell`."""
OWN_PHASES = (ALONE, BASELINE)
"""Those of them that a node answers only where its policy lists a phase of their name."""


def counts_rows(down: Payload) -> bool:
    """Return whether a request is for sums over events, groups or clusters, which may be small."""
    asked = asked_of(down)
    clusters = "estimates" in asked and float(down["method"]) == KINDS[CLUSTER]
    return clusters or any(name in COUNTED for name in asked)


def asked_of(down: Payload) -> list[str]:
    """Return the statistics that a request names."""
    return [name.removeprefix(ASKS) for name in down if name.startswith(ASKS)]


def sums_of(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's answer to a request for a statistic.

    Parameters
    ----------
    objective : object
        The site's.
    down : dict
        "x", the model; "asks.<name>", which statistic; and what that takes.
    least : int
        Nothing is sent that is based on fewer rows.

    Raises
    ------
    ConfigError
        If the statistic is unknown, or the loss does not have it.
    """
    asked = asked_of(down)
    if len(asked) != 1 or asked[0] not in STATISTICS:
        raise ConfigError(
            f"the server asks for the statistics {asked}, and this node has "
            f"{', '.join(STATISTICS)}: run one version of flower-fedcon"
        )
    return STATISTICS[asked[0]](objective, down, least)
