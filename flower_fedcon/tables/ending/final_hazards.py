"""The exchanges after a Cox run on tables: proportional hazards and sites' baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, FedConError, first_few
from flower_fedcon.runs.final_sums import asked, total_sums
from flower_fedcon.tables import own_files
from flower_fedcon.tables.ending.final_baseline import CommonFit
from flower_fedcon.tables.ending.score_lines import (
    lines_of_test,
    terms_of,
    write_rows,
    write_test,
)
from flower_fedcon.tables.row_weights import NO_SCORE_TESTS, SAMPLING
from flower_fedcon.tables.statistics.after_fit import proportionality_test
from flower_fedcon.tables.statistics.hazards import (
    IDENTITY,
    LOG,
    NO_LOGARITHM,
    TRANSFORMS,
    Proportionality,
    logarithms,
    shapes_in_time,
    sums_of_all_sites,
)
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

BASELINE, ALL = "baseline.csv", "all"


@dataclass(frozen=True)
class Hazards:
    """What sites report about hazards over time.

    Attributes
    ----------
    test : Proportionality or str
        The test with the logarithm of time, or with time if an event is at time 0, which has no
        logarithm; or why it is not known.
    times : array, shape (k,)
        The schema's `curve_times`.
    baselines : dict of array, shape (k,)
        By site: the baseline cumulative hazard at these times, for a row of zeros.
    absent : dict
        By site: why it reports none.
    curves : dict of array, shape (times, 2)
        With one baseline for all sites, by stratum: the times of events, and the cumulative hazard
        up to them.
    terms : dict of list of int
        By feature or term with several columns: their places in the test.
    """

    test: Proportionality | str
    times: Array = field(default_factory=lambda: np.empty(0))
    baselines: dict[str, Array] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    curves: dict[str, Array] = field(default_factory=dict)
    terms: dict[str, list[int]] = field(default_factory=dict)

    @property
    def by_name(self) -> dict[str, Array]:
        """The baseline hazards by stratum or site: times, and the cumulative hazard up to them."""
        sites = self.baselines.items()
        return self.curves | {name: np.stack([self.times, one], axis=1) for name, one in sites}

    @property
    def lines(self) -> list[str]:
        """The lines of a report on it."""
        what = "test of proportional hazards"
        if isinstance(self.test, Proportionality):
            what += f" along {'log(time)' if self.test.transform == LOG else 'time'}"
        lines = [*lines_of_test(what, self.test, self.terms)]
        if isinstance(self.test, Proportionality) and self.test.transform == IDENTITY:
            lines.append("  not along log(time): an event is at time 0, which has no logarithm")
        if self.baselines:
            who = first_few(list(self.baselines), what="site")
            lines.append(f"baseline hazards of {who}: {BASELINE}")
        if self.curves:
            what = f" of {len(self.curves)} strata" * (len(self.curves) > 1)
            lines.append(f"baseline hazard of all sites{what}: {BASELINE}")
        by_reason: dict[str, list[str]] = {}
        for site, why in self.absent.items():
            by_reason.setdefault(why, []).append(site)
        for why, sites in by_reason.items():
            lines.append(f"no baseline hazard of {first_few(sites, what='site')}: {why}")
        return lines

    def write(self, folder: Path) -> None:
        """Write the tables that are known into a run's folder."""
        if not isinstance(self.test, str):
            write_test(folder, self.test, self.terms)
        if hazards := self.by_name:
            header = own_files.COMMON_BASELINE if self.curves else own_files.BASELINE
            each = [(name, *pair) for name, one in hazards.items() for pair in one.tolist()]
            write_rows(folder / BASELINE, header, each)


def _tested(names: Sequence[str], ask: Callable[[str, float], Payload]) -> Proportionality:
    """Return the test along log(time), or along time if an event at time 0 has no logarithm.

    Raises
    ------
    FedConError
    """
    try:
        return proportionality_test(LOG, names, lambda center: ask(LOG, center))
    except FedConError as error:
        if NO_LOGARITHM not in str(error):
            raise
    return proportionality_test(IDENTITY, names, lambda center: ask(IDENTITY, center))


def common_hazards(server: Server, fit: CommonFit, *, tested: bool) -> Hazards:
    """Return the baseline hazard of a fit with one baseline for all sites, and any test."""
    prepared, f, x = server.setup.preparation, fit.likelihood, fit.x
    assert prepared is not None  # noqa: S101  (of a run on tables)
    schema = prepared.stated
    test: Proportionality | str
    try:
        if not tested:
            raise ConfigError("it needs errors of the coefficients")
        if schema is not None and schema.weight_kind == SAMPLING:
            raise ConfigError(NO_SCORE_TESTS)
        times = f.shared.times
        test = _tested(
            prepared.names,
            lambda along, center: sums_of_all_sites(
                f, x, logarithms(times, f.counts > 0) if along == LOG else times, center
            ),
        )
    except FedConError as error:  # it must not end a finished run
        test = str(error)
    shift = float(np.exp(-(prepared.centers / prepared.scales) @ x))
    named = {fit.strata[int(place)]: hazard for place, hazard in f.baseline(x).items()}
    curves = {name or ALL: hazard * [1.0, shift] for name, hazard in named.items()}
    return Hazards(test, curves=curves, terms=terms_of(prepared))


def final_hazards(server: Server, engine: Engine, times: Array) -> Hazards:
    """Return what sites report about hazards over time, after a Cox run without a penalty.

    This is not part of a round: no state changes. Baseline hazards are asked for if there are
    times.

    Parameters
    ----------
    server : Server
    engine : Engine
    times : array, shape (k,)
        The schema's `curve_times`.
    """
    prepared, names = server.setup.preparation, server.setup.names
    assert prepared is not None  # noqa: S101  (of a run on tables)
    shapes = shapes_in_time(len(prepared.names))
    test: Proportionality | str
    schema = prepared.stated
    try:
        if schema is not None and schema.weight_kind == SAMPLING:
            raise ConfigError(NO_SCORE_TESTS)
        test = _tested(
            prepared.names,
            lambda along, center: total_sums(
                server, engine, "in_time", shapes,
                transform=float(TRANSFORMS.index(along)), center=center,
            ),
        )  # fmt: skip
    except FedConError as error:  # it must not end a finished run
        test = str(error)
    found = Hazards(test, times, terms=terms_of(prepared))
    if not times.size:
        return found
    told, faults = asked(server, engine, "baseline", {"hazard": times.shape}, times=times)
    # For a row of zeros in the columns' own units; the model is that of centred columns.
    shift = float(np.exp(-(prepared.centers / prepared.scales) @ np.asarray(server.x)))
    baselines = {names[client]: shift * told[client]["hazard"] for client in sorted(told)}
    absent = {names[client]: faults[client] for client in sorted(faults)}
    return replace(found, baselines=baselines, absent=absent)
