"""The result of a run on tables: coefficients by name, the certificate, and who took part."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.errors import ConfigError, clients_by_name, first_few, number_of
from flower_fedcon.regularizers import WithIntercept
from flower_fedcon.runs.directory import versions
from flower_fedcon.runs.history import Record
from flower_fedcon.tables.by_level import ByLevel
from flower_fedcon.tables.checks.collinear import dependent
from flower_fedcon.tables.checks.stated_times import ANOTHER_UNIT, CLEAR, EARLY, events_by
from flower_fedcon.tables.descriptives import Descriptives
from flower_fedcon.tables.ending.convergence import NO_DISPERSION, Convergence
from flower_fedcon.tables.ending.final_hazards import Hazards
from flower_fedcon.tables.ending.final_heterogeneity import HETEROGENEITY, lines_of, table_of
from flower_fedcon.tables.ending.final_odds import Odds
from flower_fedcon.tables.ending.joint_tests import joint_tests
from flower_fedcon.tables.families import family_of
from flower_fedcon.tables.fitted import FittedModel
from flower_fedcon.tables.log_rank import LogRank
from flower_fedcon.tables.numbers_at_risk import as_columns
from flower_fedcon.tables.own_files import AGAINST_FIRST as AGAINST_HEADER
from flower_fedcon.tables.own_files import COEFFICIENTS as HEADER
from flower_fedcon.tables.own_files import CURVES as CURVES_HEADER
from flower_fedcon.tables.preparation import INTERCEPT, Preparation, left_out_in_words
from flower_fedcon.tables.product_limit import KaplanMeier
from flower_fedcon.tables.quality import Quality
from flower_fedcon.tables.risk_counts import Curves
from flower_fedcon.tables.row_weights import counted_once
from flower_fedcon.tables.schema import COMMON, OWN, RANDOM, Schema
from flower_fedcon.tables.statistics import Estimates, Heterogeneity, RandomFit
from flower_fedcon.tables.statistics.estimates import DEBIASED
from flower_fedcon.tables.statistics.score_tests import ScoreTest
from flower_fedcon.tables.statistics.summary_text import Summary
from flower_fedcon.validation import Array
from flower_fedcon.wire.whole_files import write_csv, write_text

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server
    from flower_fedcon.tables.ending.final_exchanges import FinalAnswers

NAME, COEFFICIENTS, CURVES = "report.txt", "coefficients.csv", "curves.csv"
AGAINST_FIRST = "coefficients_against_first.csv"
QUALITY, DESCRIPTIVES = "quality.json", "descriptives.csv"
AT_RISK = "at_risk.csv"
BY_LEVEL, LEVEL_TESTS = "by_level.csv", "by_level_tests.csv"
_NO_DISPERSION = 1e-4  # alpha times the mean: the variance beyond Poisson's, relative to the mean
_NOT_MEASURED = (
    "whether counts vary more than Poisson's was not measured: it is by inference of a fit without "
    "penalty, random intercepts and weights of sampling"
)
_DIGITS = 1e-6  # the accuracy of sums of squares, for a length of 1
_SHOWN = 100  # the text has a row for so many columns; the file has all


@dataclass(frozen=True)
class Report:
    """A model with named columns, and how it was found.

    Attributes
    ----------
    rows : list of tuple
        (column, coefficient of the standardised column, coefficient in the column's own unit, its
        exponential). The intercept is last, and has no exponential: NaN. In a multinomial model
        the column's name is followed by the class, such as "age [setosa]"; of all equivalent
        models, it is the one whose free coefficients sum to 0 over the classes.
    ratio : str
        The meaning of the exponential, such as the odds ratio of one unit more; "" if it has none.
    lines : list of str
        Everything else, one line each.
    doubts : tuple of str
        Columns that are combinations of others, by the clients' Hessians.
    reached : Convergence, optional
        Whether the run has converged (`reached.converged`); None if it was interrupted.
    curves : Curves, optional
        Clients' counts for Kaplan-Meier curves, as in the folder's file.
    standardized : bool
        Whether columns were standardised; otherwise coefficients are per unit only.
    estimates : Estimates, optional
        If inference was asked for: the coefficients in the columns' own units; in a multinomial
        model of each class against the first.
    errors : list of list of float
        With inference, for each row: standard error, z or t, p-value, and the interval's ends, per
        unit. If debiased: for each column, with the debiased coefficient first.
    covariance : array, optional
        With inference: the covariance of the coefficients per unit, by column and class.
    quality : Quality, optional
        The model's quality on held-out rows, at each client and pooled.
    heterogeneity : Heterogeneity, optional
        If asked for: the fits of each client alone.
    hazards : Hazards, optional
        For a Cox model with inference: tests of proportionality, and baselines.
    odds : Odds, optional
        For ordered outcomes with inference: the test of proportional odds.
    described : Descriptives, optional
        Descriptions of the columns by client, from answers without noise.
    schema : Schema, optional
        Says what columns are called in the text.
    by_level : ByLevel, optional
        The columns by the levels of one of them, from answers without noise.
    remarks : tuple of str
        What stood out in the tables, before round 1 or at the end, from answers without noise.
    random : RandomFit, optional
        The fit of random intercepts, whose deviations are the last rows.
    """

    rows: list[tuple[str, float, float, float]]
    lines: list[str]
    ratio: str = ""
    reached: Convergence | None = None
    standardized: bool = True
    doubts: tuple[str, ...] = ()
    curves: Curves | None = None
    estimates: Estimates | None = None
    errors: list[list[float]] = field(default_factory=list)
    covariance: Array | None = None
    quality: Quality | None = None
    heterogeneity: Heterogeneity | None = None
    hazards: Hazards | None = None
    odds: Odds | None = None
    random: RandomFit | None = None
    described: Descriptives | None = None
    schema: Schema | None = None
    by_level: ByLevel | None = None
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, server: Server, ending: FinalAnswers) -> Report | None:
        """Return the report of a finished run; None without tables."""
        preparation, x = server.setup.preparation, np.asarray(ending.x, dtype=np.float64)
        if preparation is None:
            return None
        estimates, between = ending.estimates, ending.heterogeneity
        quality, hazards, odds = ending.quality, ending.hazards, ending.odds
        columns = len(preparation.names)
        classes = x.shape[1] if x.ndim == 2 else 1
        names = np.array(preparation.entries(x.shape), dtype=object).reshape(-1, classes)
        table, rows = centred(x, preparation, server).reshape(-1, classes), []
        units = preparation.in_units(table)
        for k in range(classes):
            triples = zip(names[:, k], table[:, k].tolist(), units[:, k].tolist(), strict=True)
            for place, (name, value, unit) in enumerate(triples):
                rows.append((name, value, unit, _exp(unit) if place < columns else math.nan))
        ratio = exponential_of(preparation.loss)
        doubts = tuple(_collinear(server, preparation))
        curves = preparation.curves
        lines = [*_lines(server, ending), *doubts, *_in_time(curves, preparation)]
        report = cls(rows, lines, ratio, ending.reached, preparation.standardized, doubts, curves)
        report = replace(report, quality=quality, hazards=hazards, odds=odds)
        report = replace(report, random=ending.random, schema=preparation.stated)
        if server.strategy.privacy is None:
            report = replace(report, described=preparation.described, by_level=preparation.by_level)
            report = replace(report, remarks=(*preparation.remarks, *ending.remarks))
        for tested in (hazards, odds):
            lines += [] if tested is None else tested.lines
            made = tested is not None and isinstance(tested.test, ScoreTest)
            if made and isinstance(estimates, Estimates) and estimates.clusters:
                lines.append("that test takes rows for independent, those of a cluster, too")
        lines += [why for why in (estimates, between) if isinstance(why, str)]
        measured = isinstance(estimates, Estimates) and not math.isnan(estimates.pearson_ratio)
        if preparation.family.quasi and not measured:
            lines.append(_NOT_MEASURED)
        if isinstance(between, Heterogeneity):
            stated = preparation.stated
            lines += lines_of(between, "" if stated is None else stated.cluster)
            report = replace(report, heterogeneity=between)
        if not isinstance(estimates, Estimates):
            return report
        shown = estimates.by_class(x.shape)
        ends = shown.conf_int()
        parts = [shown.bse, shown.statistics, shown.pvalues, ends[:, 0], ends[:, 1]]
        if estimates.method == DEBIASED:  # the intervals are not around the lasso's coefficients
            parts = [shown.values, *parts]
        # By column and class, as in models; rows are class by class.
        errors = np.stack(parts, axis=1).reshape(-1, classes, len(parts)).swapaxes(0, 1)
        each = errors.reshape(-1, len(parts)).tolist()
        V = None if estimates.method == DEBIASED else shown.covariance
        if x.ndim == 1:
            lines += joint_tests(estimates, preparation)
        else:
            lines.append(
                f"coefficients above and in {COEFFICIENTS} sum to 0 over the classes; those below "
                f"and in {AGAINST_FIRST} are of each class against the first"
            )
        if preparation.imputed:
            lines.append("errors and tests treat the filled-in cells as observed values")
        for name, value, error, p in () if ending.random is None else ending.random.parts:
            rows.append((name, value, value, math.nan))
            each.append([error, math.nan, p, math.nan, math.nan])
        return replace(report, estimates=estimates, errors=each, covariance=V)

    @property
    def _own_ratio(self) -> str:
        """The meaning of the exponentials in `rows`; intervals are not around a lasso's."""
        debiased = self.estimates is not None and self.estimates.method == DEBIASED
        return f"lasso {self.ratio}" if self.ratio and debiased else self.ratio

    def _called(self, name: str) -> str:
        return name if self.schema is None else self.schema.in_words(name)

    @property
    def text(self) -> str:
        """The report as text; columns that are not used are left out of the table."""
        used = [row for row in self.rows if row[1] or math.isnan(row[3])]
        notes = []
        if len(used) > _SHOWN:
            least = sorted((abs(row[1]) for row in used), reverse=True)[_SHOWN - 1]
            all_used, used = used, [row for row in used if abs(row[1]) >= least][:_SHOWN]
            more = len(all_used) - len(used)
            notes.append(f"and {more} smaller ones ({COEFFICIENTS} of a run's folder has all)")
        cells = [["column", "per sd", "per unit", self._own_ratio]]
        cells += [[self._called(name), *(_digits(v) for v in values)] for name, *values in used]
        cells = [row if self.ratio else row[:3] for row in cells]
        if not self.standardized:
            cells = [[row[0], *row[2:]] for row in cells]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        table = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in cells
        ]
        unused = [self._called(row[0]) for row in self.rows if not (row[1] or math.isnan(row[3]))]
        if unused:
            notes.append(f"coefficient 0: {first_few(unused, _SHOWN)}")
        facts = () if self.random is None else self.random.facts
        summary: list[str] = []
        if (found := self.estimates) is not None:
            found = replace(found, names=tuple(map(self._called, found.names)))
            strata = "" if self.schema is None else self._called(self.schema.strata)
            summary = ["", Summary.of(found, strata=strata, facts=facts)]
        stood_out = [f"- {remark}" for remark in self.remarks]
        remarks = ["", "Remarks", *stood_out] if stood_out else []
        by_level = [] if self.by_level is None else ["", *self.by_level.lines]
        every = [*map(str.rstrip, table), *notes, *self.lines, *summary, *by_level, *remarks]
        return "\n".join(every) + "\n"

    def write(self, folder: Path) -> None:
        """Write the text, and the coefficients with all digits, into a run's folder."""
        write_text(folder / NAME, self.text)
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        header = [*HEADER, self._own_ratio.replace(" ", "_")]
        shown = len(header) if self.ratio else 3
        header = header[:shown]
        about = 0  # there the errors begin with the debiased coefficient
        if self.estimates is not None:
            about = int(self.estimates.method == DEBIASED)
            header += ["debiased"] * about
            header += ["std_error", self.estimates.letter, "p_value", "lower", "upper"]
            ratio = self.ratio.replace(" ", "_")
            header += [*[ratio] * about, f"{ratio}_lower", f"{ratio}_upper"] if ratio else []
        writer.writerow(header)
        for place, (name, *values) in enumerate(self.rows):
            errors = self.errors[place] if place < len(self.errors) else []
            cells = [*values[: shown - 1], *errors]
            if errors and self.ratio:  # an intercept's exponential has no meaning
                logs = [*errors[:about], *errors[-2:]]
                cells += [math.nan if math.isnan(values[-1]) else _exp(v) for v in logs]
            writer.writerow([name, *("" if math.isnan(v) else repr(v) for v in cells)])
        write_text(folder / COEFFICIENTS, out.getvalue())
        if self.estimates is not None and self.estimates.family.several:
            write_csv(folder / AGAINST_FIRST, _against_first(self.estimates))
        if self.described is not None:
            write_csv(folder / DESCRIPTIVES, self.described.table)
        if self.by_level is not None:
            write_csv(folder / BY_LEVEL, self.by_level.table)
            write_csv(folder / LEVEL_TESTS, self.by_level.test_table)
        if self.curves is not None:
            out = io.StringIO()
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(CURVES_HEADER)
            for arm, curve in _by_arm(self.curves).items():
                names = (name.removeprefix("adjusted_") for name in CURVES_HEADER[1:])
                columns = (getattr(curve, name).tolist() for name in names)
                writer.writerows([arm, *map(repr, row)] for row in zip(*columns, strict=True))
            write_text(folder / CURVES, out.getvalue())
            times = np.append(0.0, self.curves.times)
            numbers = as_columns(self.curves.arms, times, self.curves.left)
            write_csv(folder / AT_RISK, numbers)
        for tested in (self.hazards, self.odds):
            if tested is not None:
                tested.write(folder)
        if self.heterogeneity is not None and self.estimates is not None:
            write_text(folder / HETEROGENEITY, table_of(self.heterogeneity, self.estimates))
        if self.quality is not None:
            write_text(folder / QUALITY, json.dumps(self.quality.stated, indent=1) + "\n")


def _against_first(found: Estimates) -> dict[str, Any]:
    """Return the table of a multinomial model's classes against the first."""
    ends = found.conf_int()
    ratio = found.family.ratio.replace(" ", "_")
    free = np.array([name.startswith(INTERCEPT) for name in found.names])  # no ratio of these
    logs = (found.values, ends[:, 0], ends[:, 1])
    ratios = [np.where(free, np.nan, np.exp(np.minimum(one, 700.0))).tolist() for one in logs]
    names = (*AGAINST_HEADER, "std_error", found.letter, "p_value", "lower", "upper",
             ratio, f"{ratio}_lower", f"{ratio}_upper")  # fmt: skip
    parts = (
        found.values, found.bse, found.statistics, found.pvalues, ends[:, 0], ends[:, 1],
    )  # fmt: skip
    columns = [*(part.tolist() for part in parts), *ratios]
    cells = [[None if math.isnan(v) else v for v in column] for column in columns]
    return dict(zip(names, [list(found.names), *cells], strict=True))


def exponential_of(loss: str) -> str:
    """Return the meaning of a coefficient's exponential; "" if it has none.

    In a multinomial model only differences between two classes have one.

    >>> exponential_of("poisson"), exponential_of("squared")
    ('rate ratio', '')
    """
    family = family_of(loss)
    return "" if family.several else family.ratio


def _by_arm(curves: Curves) -> dict[str, KaplanMeier]:
    """Return the curve of each arm."""
    names = np.array(curves.names)
    return {
        arm: KaplanMeier.of_counts(
            curves.times, curves.at_risk[:, :, k], curves.events[:, :, k], names
        )
        for k, arm in enumerate(curves.arms)
    }


def _median_in_words(curve: KaplanMeier) -> str:
    """Return the interval of times in which a curve's median lies."""
    if math.isinf(curve.median):
        return f"not reached by {curve.time[-1]:g}" if len(curve.time) else "not reached"
    earlier = curve.time[(curve.time < curve.median) & (curve.events > 0)]
    return f"after {earlier[-1] if earlier.size else 0:g}, up to {curve.median:g}"


def _in_time(curves: Curves | None, preparation: Preparation) -> Iterator[str]:
    """Yield the lines on curves: medians, events that they show, and the tests between arms."""
    schema = preparation.stated
    if curves is None:
        return
    by_arm = _by_arm(curves)
    each = [(arm, _median_in_words(curve)) for arm, curve in by_arm.items()]
    medians = ", ".join(f"{arm} {median}" for arm, median in each)
    if schema is not None and schema.curve_by:
        groups = [(schema.group(schema.curve_by, arm), median) for arm, median in each]
        medians = "; ".join(f"{group}: {median}" for group, median in groups)
    yield (
        f"events are counted over training rows in {number_of(len(curves.times), 'interval')}, "
        f"each up to one of curve_times. adjusted_at_risk in {CURVES} belongs to an interval, "
        f"minus some of its censored rows: it is not a number at risk at a time; {AT_RISK} has "
        "these" + (", and tests compare intervals, not single times" if len(by_arm) > 1 else "")
    )
    yield f"median time to the event: {medians}"
    told = {k: of for k, (of,) in enumerate(preparation.outcomes) if not math.isnan(of)}
    if schema is not None and told and not schema.weight:
        early = {k: float(curves.events[k].sum()) for k in told}
        known = events_by(schema, sum(early.values()), sum(told.values()))
        clear = [k for k, of in told.items() if of >= CLEAR]  # others' may be too few to be sent
        few = sum(early[k] for k in clear) < EARLY * sum(told[k] for k in clear)
        asked = f"{known}: {ANOTHER_UNIT}"
        yield asked if few and asked not in preparation.remarks else known
    for stratified in (False, True) if len(by_arm) > 1 else ():
        try:
            arms = np.array(curves.arms)
            test = LogRank.of_counts(curves.at_risk, curves.events, arms, stratified, grid=True)
        except ConfigError as error:
            yield f"log-rank test: {error}"
        else:
            kind = "log-rank test, stratified by client" if stratified else "log-rank test"
            yield f"{kind}: {test.in_words}"


def centred(x: Array, preparation: Preparation, server: Server) -> Array:
    """Return the equivalent multinomial model whose free coefficients sum to 0.

    Intercepts are free, and so are all coefficients without a penalty: adding the same number for
    each class changes no probability.

    Parameters
    ----------
    x : array, shape (entries,) or (entries, classes)
    preparation : Preparation
    server : Server
        The server of the run, whose regularizer decides which are free.
    """
    rule = server.strategy.regularizer
    if x.ndim == 1 or not isinstance(rule, WithIntercept):
        return x
    weight, columns = getattr(rule.inner, "weight", None), len(preparation.names)
    free = np.arange(len(x)) >= (0 if weight is not None and not np.any(weight) else columns)
    return np.where(free[:, None], x - x.mean(axis=1, keepdims=True), x)


def fitted_model(server: Server, ending: FinalAnswers, report: Report) -> FittedModel:
    """Return the model with named columns, for predictions of other rows."""
    preparation, names = server.setup.preparation, server.setup.names
    assert preparation is not None  # noqa: S101  (it has a report)
    schema = preparation.stated
    assert schema is not None  # noqa: S101  (it was concluded here)
    sd, residual_sd = math.nan, math.nan
    if ending.random is not None:
        sd, residual_sd = ending.random.sd, ending.random.residual_sd
    elif preparation.site_effects == RANDOM:  # there is no such fit
        preparation = replace(preparation, site_effects=COMMON)
    x = centred(np.asarray(ending.x, dtype=np.float64), preparation, server)
    estimates = None
    if report.covariance is not None and report.estimates is not None:
        entries = tuple(preparation.entries(x.shape))
        estimates = replace(report.estimates.by_class(x.shape), names=entries)
    baselines = {} if report.hazards is None else report.hazards.by_name
    return FittedModel(
        schema, preparation, x, report.covariance, names, versions(), sd, residual_sd, estimates,
        baselines,
    )  # fmt: skip


def _lines(server: Server, ending: FinalAnswers) -> list[str]:
    preparation, setup = server.setup.preparation, server.setup
    record, reached = ending.record, ending.reached
    assert preparation is not None  # noqa: S101  (the caller's case)
    rule = server.strategy.regularizer
    psi = rule.inner if isinstance(rule, WithIntercept) else rule
    weights = None if psi is None else psi.entrywise((len(preparation.names), *server.x.shape[1:]))
    none = psi is None or (weights is not None and not np.any(weights))
    lines = [f"penalty: {'none' if none else repr(psi)}"]
    lines[0] += ", not of the intercept" * (psi is not rule and not none)
    if "objective" in record:
        what = f"the {'weighted ' * _is_weighted(preparation)}mean loss"
        what += ", plus the penalty" * (not none)
        lines.append(f"objective: {record['objective']:.12g}, {what}")
    if reached is not None:
        lines.append(reached.text)
    if unheard := record.get("unheard"):
        lines.append(
            f"{unheard:.0f} of {setup.num_clients} clients, named in the log, have not evaluated "
            f"the model, so there is no objective, and nothing is pooled"
        )
    if record:
        lines += [_metric(name, record, setup.names) for name in preparation.held_out]
    lines += [] if ending.quality is None else ending.quality.lines
    up, down = (server.uplink_bytes / 1e6, server.downlink_bytes / 1e6)
    lines.append(
        f"{server.strategy.title}, {number_of(server.round, 'round')}: {up:.3f} MB up, {down:.3f} "
        "down"
    )
    used = server.acknowledgements.rounds.tolist()
    part = [
        f"{client.name} ({number_of(client.num_examples, 'row')}{'' if last else ', in no round'})"
        for client, last in zip(setup.clients, used, strict=True)
    ]
    lines.append(f"took part: {', '.join(part)}")
    if server.strategy.privacy is None:  # otherwise counts have noise
        lines += _outcomes_in_words(preparation, setup.names)
        lines += _weights_in_words(preparation)
    lines += _rows_in_words(preparation, setup.names, ending.quality)
    if preparation.family.dispersed and preparation.level:
        lines += _dispersion(preparation.family.parameter(np.asarray(ending.x)), preparation)
    if preparation.site_effects == OWN:
        lines.append("each site has its own intercept, which has not left the site")
        mute = [client.name for client in setup.clients if client.smoothness == 0]
        if mute:
            lines.append(
                f"outcomes are {preparation.family.alike} at {first_few(mute, what='site')}: its "
                f"own intercept is infinite, so its rows carry no information on the columns"
            )
    if ending.random is not None:
        lines.append(
            f"random intercepts: converged after {number_of(ending.random.exchanges, 'exchange')} "
            "of sums"
            if ending.random.converged
            else f"random intercepts: NOT CONVERGED: {ending.random.unfinished}"
        )
        lines.append(
            "objective, KKT residual and history are those of the fit without random intercepts, "
            "where the fit with them starts"
            + "; held-out rows are predicted for a site with the mean intercept"
            * bool(preparation.held_out)
        )
    strata = "" if preparation.stated is None else preparation.stated.strata
    if ending.common is not None:
        lines.append(
            "one baseline hazard for all sites"
            + f" with each value of {strata!r}" * bool(strata)
            + ": hazard ratios compare rows of all sites. Objective and history are those of the "
            "rounds, in which each site is a stratum; the KKT residual is that of the fit after "
            "them, from sums over rows at risk"
        )
    elif preparation.family.compares:
        lines.append(
            f"stratified by site and {strata!r}: each value at a site has its own baseline hazard, "
            "and hazard ratios compare rows of the same site with the same value"
            if strata
            else "stratified by site: each site has its own baseline hazard, and hazard ratios "
            "compare rows of the same site"
        )
    lines += _columns_in_words(preparation)
    if preparation.left_out:
        lines.append(f"left out: {left_out_in_words(preparation.left_out)}")
    return lines


def _outcomes_in_words(preparation: Preparation, names: Sequence[str]) -> Iterator[str]:
    """Yield how many of the training rows have each outcome, for classes and events."""
    schema, rows = preparation.stated, sum(preparation.rows)
    if schema is None:
        return
    places = range(len(schema.outcomes))
    for place in places[1:] if schema.family.binary else places:  # others have the other
        counts = [of_site[place] for of_site in preparation.outcomes]
        told = [of_site for of_site in counts if not math.isnan(of_site)]
        each = [
            f"{name} {'not told, of few rows' if math.isnan(of_site) else f'{of_site:.0f}'}"
            for name, of_site in zip(names, counts, strict=True)
        ]
        whole = f"{sum(told):.0f} of {rows}"
        if len(told) < len(counts):
            whole = f"{sum(told):.0f} at the sites that tell it"
        yield f"rows with {schema.outcomes[place]}: {whole} ({first_few(each, 20)})"
    if preparation.family.log_link and not schema.weight and preparation.level[1]:
        outcomes, exposures, _ = preparation.level
        given = [repr(schema.exposure)] * bool(schema.exposure)
        given += [f"exp({schema.offset!r})"] * bool(schema.offset)
        over = f", over {' times '.join(given)} of {exposures:.10g} in all" * bool(given)
        yield f"sum of {schema.target!r}: {outcomes:.10g}{over}"


def _is_weighted(preparation: Preparation) -> bool:
    return preparation.stated is not None and bool(preparation.stated.weight)


def _weights_in_words(preparation: Preparation) -> Iterator[str]:
    """Yield what the rows' weights are, and where they do not count."""
    schema = preparation.stated
    if schema is not None and _is_weighted(preparation):
        yield f"weights in {schema.weight!r}: {preparation.weighing}"
        yield f"numbers of rows, and {DESCRIPTIVES}: {counted_once(schema.weight)}"


def _rows_in_words(
    preparation: Preparation, names: Sequence[str], quality: Quality | None
) -> Iterator[str]:
    """Yield which rows were not used: held-out and incomplete ones."""
    schema, sites = preparation.stated, {} if quality is None else quality.sites
    if preparation.incomplete:
        each = [
            f"{name} {'fewer than its min_rows' if math.isnan(rows) else f'{rows:.0f}'}"
            for name, rows in zip(names, preparation.incomplete, strict=True)
        ]
        yield f"rows left out, with a missing value in some column: {first_few(each, 20)}"
    if schema is None or not schema.test_fraction:
        return
    each = [f"{name} {sites[name]['rows']:.0f}" for name in names if name in sites]
    yield (
        f"held out, and not used for coefficients: "
        f"{first_few(each, 20) + ', ' if each else ''}{schema.test_fraction:g} of each client's "
        f"rows, by split_seed = {schema.split_seed} and their number (`fedcon predict --held-out` "
        f"shows which)"
    )


def _columns_in_words(preparation: Preparation) -> Iterator[str]:
    """Yield the references, knots, and filled cells that coefficients refer to."""
    schema, categories = preparation.stated, preparation.categories
    if schema is None:
        return
    references = [
        schema.in_words(f"{feature.name}={feature.reference or categories[feature.name][0]}")
        for feature in schema.categorical
        if categories[feature.name]
    ]
    if references:
        yield f"reference categories: {first_few(references, 20)}"
    if preparation.design is not None:
        for name, knots in preparation.design.knots.items():
            yield f"knots of {name}: {', '.join(f'{knot:.6g}' for knot in knots)}"
    if preparation.imputed:
        words = {feature.name: feature.impute for feature in schema.features}
        filled = [f"{name} {cells} ({words[name]})" for name, cells in preparation.imputed.items()]
        what = "missing values"
        if schema.complete_cases:  # such rows are then left out, and the remaining ones have one
            what = "cells with a category that no client tells (policy.min-rows)"
        yield f"{what}, filled in: {first_few(filled, 20)}"


def _dispersion(alpha: float, preparation: Preparation) -> Iterator[str]:
    """Yield alpha, and whether there is overdispersion."""
    yield f"alpha {alpha:.6g}, in the variance mu + alpha mu^2"
    if alpha * preparation.level[0] / math.fsum(preparation.weights) < _NO_DISPERSION:
        yield NO_DISPERSION


def _collinear(server: Server, preparation: Preparation) -> Iterator[str]:
    """Yield which columns are combinations of others, as far as a Hessian's precision shows."""
    H, columns = server.strategy.hessian(server.state), len(preparation.names)
    if H is None or not preparation.family.weighs_rows or columns >= sum(preparation.rows):
        return
    H = H[:: server.x.size // len(server.x), :: server.x.size // len(server.x)]  # of one class
    products, more = H[:columns, :columns], H[:columns, columns : columns + 1]
    if more.any():  # around the means: the intercept compensates
        products = products - more @ more.T / H[columns, columns]
    sizes = np.sqrt(np.maximum(np.diag(products), 0.0))
    used = np.flatnonzero(sizes > 0)
    if not used.size:
        return
    values, vectors = np.linalg.eigh(products[np.ix_(used, used)] / sizes[used] / sizes[used, None])
    triangle = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    yield from dependent([preparation.names[j] for j in used], triangle, _DIGITS)


def _metric(name: str, record: Record, clients: Sequence[str]) -> str:
    """Return a metric on held-out rows: each client's, the pooled one, and who has none."""
    start = f"{name}/"
    each = {k.removeprefix(start): v for k, v in record.items() if k.startswith(start)}
    parts = [", ".join(f"{client} {value:.4f}" for client, value in each.items())] if each else []
    if name in record:
        parts.append(f"pooled {record[name]:.4f}")
    if len(each) < len(clients) and (each or name not in record):  # of many, only the mean
        without = [client for client in clients if client not in each]
        named = each and len(without) + len(each) == len(clients)  # as the run names them
        where = clients_by_name(without) if named else "some clients" if each else "any client"
        parts.append(
            f"not known at {where} (too few held-out rows, no two to compare, or not sent)"
        )
    return f"{name}: {'; '.join(parts)}"


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5g}"
