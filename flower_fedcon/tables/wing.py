"""What tables add: the exchanges in which sites prepare their columns and sum statistics.

A statistic is a line in `_EVERY`, a function (objective, down, least) -> sums in `statistics/`, and
its use after the last round, in a hook or in `ending/`. It needs at least `least` rows, or events
or groups, for whatever it sends.
"""

from __future__ import annotations

from collections.abc import Callable

from flower_fedcon.core.exchange import Exchange, Site
from flower_fedcon.core.protocol import PREPARE, STATISTICS
from flower_fedcon.core.wings import later
from flower_fedcon.layout import Layout
from flower_fedcon.wire.payloads import Payload

CURVES = "curves"
"""The word for events and rows at risk at the schema's times, in the exchanges of preparation."""
LEVELS = "levels"
"""The word for sums by the levels of a column, in the exchanges of preparation."""
ALONE = "alone"
"""A fit to a site's own rows, which is not a sum over sites."""
BASELINE = "baseline"
"""A site's baseline hazard, which reveals the times of its events."""
RISK_SETS = "risk_sets"
"""Sums over a site's rows at risk at the time of each event, which reveal single rows."""
EFFECTS = "effects"
"""A site's own predictions of random intercepts, of which it sends only the number."""
MOST = 2**21
"""The most entries of an array of sums at many times."""
_SUMS = "flower_fedcon.tables.statistics."
_most = later(f"{_SUMS}site_limits:most")
_of_clusters = later(f"{_SUMS}site_limits:of_clusters")
_check_parameters = later(f"{_SUMS}site_limits:check_parameters")
_at_agreed_times = later("flower_fedcon.tables.at_node:check_times")
_at_allowed_times = later(f"{_SUMS}risk_sums:check_times")
_keep_effects = later("flower_fedcon.tables.at_node:keep_effects")


def _limits_of_risk_sets(site: Site, down: Payload) -> None:
    _check_parameters(site, down, 0)
    _at_allowed_times(site, down)


def _statistic(
    name: str,
    place: str,
    *,
    counted: bool | Callable[[Payload], bool] = False,
    deviations: int = 0,
    models: Callable[[Payload], int] = lambda down: 1,
    own_word: bool = False,
    limits: Callable[[Site, Payload], None] | None = None,
    kept: Callable[[Site, Payload], None] | None = None,
) -> Exchange:
    """Return the exchange of one statistic at a final model.

    Parameters
    ----------
    name : str
    place : str
        The function in `statistics/`, as "module:name".
    counted : bool or callable
        Whether it sums over events, groups or clusters, and needs at least `min_cell` of them.
    deviations : int
        The number of standard deviations, which are further parameters.
    models : callable
        (down) -> the number of models at which it sums.
    own_word : bool
        Whether a policy must also list its name.
    limits : callable, optional
        Further limits.
    kept : callable, optional
        (site, down); writes what stays at the node.
    """
    told = later(place if "." in place else f"{_SUMS}{place}")

    def limit(site: Site, down: Payload) -> None:
        _check_parameters(site, down, deviations)
        if own_word:
            site.bounds.check_phase(name)
        if limits is not None:
            limits(site, down)

    def answer(site: Site, down: Payload) -> Payload:
        few = counted(down) if callable(counted) else counted
        cell = site.bounds.min_cell if few else 1
        sums: Payload = told(site.objective, down, max(site.bounds.min_rows, cell))
        if kept is not None and site.data is not None:
            kept(site, down)
        return sums

    return Exchange(
        name,
        answer,
        action=STATISTICS,
        words=(name,) if own_word else (),
        allowed=True,
        limits=limit,
        counts=models,
        most=_entries,
        beside_sums=False,
    )


def _entries(layout: Layout) -> int:
    """Return the most entries of an array in an answer."""
    return int(_most(layout))


_EVERY = (
    Exchange(
        PREPARE,
        later("flower_fedcon.tables.at_node:prepared"),
        words=(CURVES, LEVELS),
        allowed=True,
        limits=later("flower_fedcon.tables.at_node:check_table"),
        before_start=True,
    ),
    _statistic("estimates", "site_sums:estimates", counted=_of_clusters),
    _statistic("quality", "flower_fedcon.tables.quality:told_quality"),
    _statistic(
        "calibration",
        "flower_fedcon.tables.quality:told_calibration",
        models=lambda down: 2,  # a line, and one with the slope 1
    ),
    _statistic("noisy_quality", "flower_fedcon.tables.noisy_quality:told_noisily"),
    _statistic("marginal", "group_sums:marginal", counted=True, deviations=1),
    _statistic("variance_ratio", "group_sums:variance_ratio", counted=True, deviations=1),
    _statistic(EFFECTS, "group_sums:effects", kept=_keep_effects),
    _statistic(ALONE, "site_fits:alone", own_word=True),
    _statistic("apart", "site_fits:apart", models=later(f"{_SUMS}site_limits:models_apart")),
    _statistic(
        "by_threshold",
        "by_threshold:by_threshold",
        counted=True,
        limits=later(f"{_SUMS}by_threshold:check_thresholds"),
    ),
    _statistic("in_time", "hazards:in_time", counted=True),
    Exchange(
        RISK_SETS,
        later(f"{_SUMS}risk_sums:answer"),
        action=STATISTICS,
        words=(RISK_SETS,),
        allowed=True,
        limits=_limits_of_risk_sets,
        most=lambda layout: MOST,
        beside_sums=False,
    ),
    _statistic(BASELINE, "hazards:baseline", counted=True, own_word=True, limits=_at_agreed_times),
)
HOOKS = {
    "tables": later("flower_fedcon.tables.ending.table_hook:TableHook"),
}
BUILDERS = {
    "heart": later("flower_fedcon.tables.heart:heart"),
    "tables": later("flower_fedcon.tables.builders:tables"),
}
APPS = {"study": later("flower_fedcon.tables.study_app:Study")}
AGREEMENTS = {"schema": later("flower_fedcon.tables.agreeing:SchemaAgreement")}
READING_PRIVATE = {"cells": later("flower_fedcon.tables.read:privately")}
EXCHANGES = {exchange.name: exchange for exchange in _EVERY}
