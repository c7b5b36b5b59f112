"""The part of the page that draws coefficients with intervals, one line for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flower_fedcon.errors import number_of
from flower_fedcon.lab.report.contents import Curves
from flower_fedcon.lab.report.html import Html, tag
from flower_fedcon.runs.paper_tables import p_equals

_ROW, _WIDTH, _TOP, _BESIDE = 22, 360, 34, 14  # pixels: a line, the axis, margins
_NAMES, _NUMBERS, _LETTER = 60, 190, 6.6  # least width of names, and of the text on the right
_MOST, _LONGEST = 60, 40  # lines, and letters of a name
_TICKS = 5
_REACH = 1.959963984540054  # standard errors to each end of a 95 % interval


def forest(curves: Sequence[Curves]) -> Html:
    """Return a forest plot of each run that has standard errors."""
    runs = [run for each in curves for run in each.runs if run.intervals]
    if not runs:
        return Html("")
    parts = [tag("h2", "Coefficients with 95 % intervals")]
    for run in runs:
        lines = {name: row for name, row in run.intervals.items() if all(map(math.isfinite, row))}
        what = f"{run.ratio}s" if run.ratio else "coefficients"
        parts.append(tag("h3", f"{run.label}: {what}, for one unit more"))
        if lines:
            parts.append(_drawn(run.ratio, dict(list(lines.items())[:_MOST])))
        if len(lines) > _MOST:
            said = f"The first {_MOST} of {len(lines)}; all are in coefficients.csv"
            parts.append(tag("p", said, class_="note"))
        if lost := [name for name in run.intervals if name not in lines]:
            said = f"Not drawn, since an end of the interval is not finite: {', '.join(lost)}"
            parts.append(tag("p", said, class_="note"))
    return tag("section", *parts)


def forests_by_site(curves: Sequence[Curves]) -> Html:
    """Return each site's own fits, by column, for each run that has them."""
    runs = [run for each in curves for run in each.runs if run.heterogeneity]
    if not runs:
        return Html("")
    from flower_fedcon.tables.preparation import INTERCEPT

    parts = [tag("h2", "Sites' own estimates")]
    said = (
        "Intervals of sites, and of their fixed and random effects, use the model's errors. Those "
        "of (pooled) use the run's own inference, which may be robust or by cluster"
    )
    parts.append(tag("p", said, class_="note"))
    for run in runs:
        for row in run.heterogeneity[:_MOST]:
            parts.append(tag("h3", f"{run.label}: {row['column']}"))
            lines = by_site(row, run.ratio if row["column"] != INTERCEPT else "")
            parts.append(_drawn(run.ratio if row["column"] != INTERCEPT else "", lines))
            said = (
                f"Q {float(row['q']):.4g} with {number_of(float(row['df']), 'degree')} of freedom, "
                f"{p_equals(float(row['p_value']))}; I² {100 * float(row['i2']):.0f} %, "
                f"τ² {float(row['tau2']):.3g}"
            )
            if row["ratio_p_value"]:
                p = p_equals(float(row["ratio_p_value"]))
                said += f"; one effect against one for each site: {p}"
            parts.append(tag("p", said, class_="note"))
    return tag("section", *parts)


def by_site(row: Mapping[str, str], ratio: str) -> dict[str, tuple[float, float, float]]:
    """Return a column's estimates and intervals: the sites', their means, and the pooled one."""
    from flower_fedcon.tables.own_files import HETEROGENEITY

    sites = list(row)[len(HETEROGENEITY) :: 2]
    said = {site: (site, f"{site} std_error") for site in sites}
    for name, words in (("fixed", "fixed effect"), ("random", "random effects"), ("pooled",) * 2):
        said[f"({words})"] = (name, f"{name}_std_error")
    intervals = {}
    for name, (value, error) in said.items():
        middle, reach = float(row[value]), _REACH * float(row[error])
        ends = (middle, middle - reach, middle + reach)
        intervals[name] = tuple(math.exp(min(v, 700.0)) for v in ends) if ratio else ends
    return intervals  # type: ignore[return-value]


def ticks(low: float, high: float, logs: bool) -> list[float]:
    """Return round numbers between two ends, which are logarithms on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    ends = (math.exp(low), math.exp(high)) if logs else (low, high)
    places: list[float] = [*MaxNLocator(_TICKS).tick_values(*ends)]
    if logs:
        for inside in ((1,), (1, 2, 5)):  # for each power of ten
            some = LogLocator(subs=inside).tick_values(*ends)
            some = [tick for tick in some if ends[0] <= tick <= ends[1]]
            if 3 <= len(some) <= 2 * _TICKS:
                places = some
    return [float(tick) for tick in places if ends[0] <= tick <= ends[1]]


def _drawn(ratio: str, lines: dict[str, tuple[float, float, float]]) -> Html:
    """Return the plot, with a logarithmic axis for ratios, and a line of no effect."""
    logs = bool(ratio) and all(min(row) > 0 for row in lines.values())
    none = 1.0 if ratio else 0.0

    def moved(value: float) -> float:
        return math.log(value) if logs else value

    ends = [moved(end) for row in lines.values() for end in row] + [moved(none)]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0
    longest = max(min(len(name), _LONGEST) for name in lines)
    left = max(_NAMES, round(_LETTER * longest)) + _BESIDE
    bottom = _TOP + _ROW * len(lines)

    def across(value: float) -> float:
        return round(left + _WIDTH * (moved(value) - low) / span, 1)

    def words(text: str, x: float, y: float, anchor: str = "start", whole: str = "") -> Html:
        inner = [tag("title", whole)] if whole else []
        return tag(
            "text", text, *inner, x=f"{x:g}", y=f"{y:g}", fill="currentColor",
            style=f"font-size:11px;text-anchor:{anchor}",
        )  # fmt: skip

    def stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> Html:
        return tag("path", d=f"M{x1:g},{y1:g} L{x2:g},{y2:g}", stroke=colour, fill="none")

    title = ratio or "coefficient"
    right = left + _WIDTH + _BESIDE
    marks = [
        words(f"{title} (95 % interval)", right, _TOP - 14),
        stroke(across(none), _TOP - 4, across(none), bottom, "#888"),
        stroke(left, bottom, left + _WIDTH, bottom, "#888"),
    ]
    for tick in ticks(low, high, logs):
        x = across(tick)
        marks.append(stroke(x, bottom, x, bottom + 4, "#888"))
        marks.append(words(f"{tick:.6g}", x, bottom + 16, "middle"))
    for place, (name, (value, least, most)) in enumerate(lines.items()):
        y = _TOP + _ROW * (place + 0.5)
        short = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
        marks += [
            words(short, left - _BESIDE, y + 4, "end", name),
            stroke(across(least), y, across(most), y, "#0072b2"),
            tag("circle", cx=f"{across(value)}", cy=f"{y:g}", r="3.5", fill="#0072b2"),
            words(f"{value:.4g} ({least:.4g} to {most:.4g})", right, y + 4),
        ]
    size = {"width": f"{right + _NUMBERS}", "height": f"{bottom + 26}"}
    drawn = tag("svg", *marks, role="img", **size, **{"aria-label": f"Forest plot, {title}"})
    return tag("div", drawn, class_="wide")
