"""What a server may ask a site at a model, by name, and what a node's policy must list for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables.noisy_quality import told_noisily
from flower_fedcon.tables.quality import told_calibration, told_quality
from flower_fedcon.tables.statistics.group_sums import effects, marginal, variance_ratio
from flower_fedcon.tables.statistics.hazards import baseline, in_time
from flower_fedcon.tables.statistics.site_fits import alone, apart
from flower_fedcon.tables.statistics.site_sums import estimates
from flower_fedcon.wire.payloads import Payload

ASKS = "asks."
"""Begins the name under which a request says which statistic it asks for."""
ALONE = "alone"
"""What a fit to a site's own rows finds, which is no sum over sites."""
BASELINE = "baseline"
"""A site's baseline hazard, which tells when its events were."""
EFFECTS = "effects"
"""A site's own predictions of random intercepts, of which it tells their number."""
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


def asked_of(down: Payload) -> list[str]:
    """Return which statistics a request asks for."""
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
        Nothing is told that stands on fewer rows.

    Raises
    ------
    ConfigError
        If the statistic is not known here, or the loss has none.
    """
    asked = asked_of(down)
    if len(asked) != 1 or asked[0] not in STATISTICS:
        raise ConfigError(
            f"the server asks for the statistics {asked}, and here is "
            f"{', '.join(STATISTICS)}: run one version of flower-fedcon"
        )
    return STATISTICS[asked[0]](objective, down, least)
