"""The parts of the page that are text: summary, clients, coefficients, settings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flower_fedcon.errors import number_of
from flower_fedcon.lab.report.contents import Curves, RunContents
from flower_fedcon.lab.report.exchanges import KINDS, Exchanges
from flower_fedcon.lab.report.html import Html, table, tag
from flower_fedcon.lab.report.upload_shares import Shares
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.paper_tables import p_in_words

_SHOWN = {
    "objective": "Objective",
    "residual": "F − F*",
    "kkt": "KKT",
    "fw_gap": "FW gap",
    "violation": "Violation",
    "epsilon": "epsilon",
}
_COUNTED = (
    "round", "uplink_bytes", "downlink_bytes", "seconds", "simulated_seconds", "late", "cohort",
    "replies", "dropped",
    "retries", "lost", "refused", "unheard", "most_staleness", "stale", "waves",
)  # fmt: skip
_METRICS, _ROWS = 6, 50


def of_tables(curves: Sequence[Curves]) -> bool:
    """Return whether runs are on tables, whose pages begin with the model."""
    return any(run.coefficients for each in curves for run in each.runs)


def title(curves: Sequence[Curves]) -> str:
    """Return the title of the page: the experiments' titles, if all have one."""
    stated = {run.settings.get("title", ""): None for each in curves for run in each.runs}
    if stated and all(stated):
        return ", ".join(
            str(json.loads(text)) if text.startswith('"') else text for text in stated
        )[:200]
    return "Runs: " + ", ".join(each.label for each in curves)[:200]


def summary(curves: Sequence[Curves]) -> Html:
    """Return the table of each run's progress."""
    last = {each.label: each.rows[-1] for each in curves if each.rows}
    names = [name for row in last.values() for name in row if "/" not in name]
    shown = [name for name in _SHOWN if name in names]
    if all(not row.get("violation") for row in last.values()):
        shown = [name for name in shown if name != "violation"]
    others = [n for n in dict.fromkeys(names)
              if n not in (*_SHOWN, *_COUNTED) and not n.startswith("local_")]  # fmt: skip
    columns = {name: _SHOWN.get(name, _words(name)) for name in (*shown, *others[:_METRICS])}
    rows = []
    for i, each in enumerate(curves):
        end = last.get(each.label, {})
        low, high = (each.low or [{}])[-1], (each.high or [{}])[-1]
        cells = [_number(end, n, low, high) for n in columns]
        cells += [_megabytes(end, f"{way}link_bytes") for way in ("up", "down")]
        cells += [_seconds(end.get("seconds")), *(_number(end, n) for n in ("dropped", "lost"))]
        colour = tag("i", class_=f"chip c{i % 10}")
        status = "; ".join(dict.fromkeys(run.status for run in each.runs))
        name = tag("span", colour, f" {each.label}")
        rows.append([name, status, _number(end, "round"), *cells])
    header = ["Run", "Status", "Round", *columns.values(), "MB up", "MB down", "Seconds",
              "Dropped", "Lost"]  # fmt: skip
    return table(header, rows, numbers_from=2)


def missing(curves: Sequence[Curves]) -> Html:
    """Return the parts that cannot be shown, and why."""
    notes = [(run.label, note) for each in curves for run in each.runs for note in run.missing]
    if not notes:
        return Html("")
    items = (tag("li", tag("b", label), f": {note}") for label, note in notes)
    return tag("section", tag("h2", "What is missing"), tag("ul", *items), class_="missing")


def maps(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    """Return the maps of clients by rounds, in the form that the page's script reads."""
    grids = []
    for run, exchanges in _audited(curves):
        grid = exchanges.map
        if grid.counts.size:
            counts = {kind: grid.counts[k].tolist() for k, kind in enumerate(KINDS)}
            grids.append({"run": run.label, "clients": grid.labels, "width": grid.width,
                          "counts": counts})  # fmt: skip
    return grids


def clients(curves: Sequence[Curves]) -> Html:
    """Return how often each client took part, and the reasons for failures."""
    parts = []
    for run, exchanges in _audited(curves):
        order = sorted(exchanges.totals, key=lambda name: _failures(exchanges, name), reverse=True)
        rows = []
        for name in order[:_ROWS]:
            total = exchanges.totals[name]
            counts = [f"{total[kind]:,}" for kind in KINDS]
            rows.append([name, *counts, f"{exchanges.sent[name] / 1e6:.4g}"])
        inner = [table(["Client", *map(str.capitalize, KINDS), "MB up"], rows)]
        if len(order) > _ROWS:
            inner.append(
                _note(f"{_ROWS} of {len(order)} clients are shown: those that failed most often.")
            )
        if exchanges.starts > 1:
            again = f"The run was started {exchanges.starts} times: rounds after a checkpoint were "
            inner.append(_note(again + "played, and are counted, again."))
        if exchanges.reasons:
            reasons = [
                [name, kind, reason or "no reason is recorded", f"{times:,}"]
                for (name, kind, reason), times in exchanges.reasons.most_common(_ROWS)
            ]
            inner.append(table(["Client", "What", "Why", "Times"], reasons, numbers_from=3))
        parts.append(_folded(f"{run.label}: clients, all exchanges", inner))
    without = [each.label for each in curves if not any(run.exchanges for run in each.runs)]
    if without:
        said = "keep no audit log" if len(without) > 1 else "keeps no audit log"
        parts.append(_note(
            f"{', '.join(without)} {said}: with audit = true in [run] a run notes who was asked in "
            "each round and what became of the answer."
        ))  # fmt: skip
    return Html("".join(parts))


def shares(curves: Sequence[Curves]) -> Html:
    """Return each client's share of the uploads, for the runs that do not wait for clients."""
    found = [(run, run.shares) for each in curves for run in each.runs if run.shares is not None]
    parts = []
    for run, own in found:
        every = own.clients
        shown = every if len(every) <= _ROWS else [*every[: _ROWS // 2], *every[-_ROWS // 2 :]]
        largest = max((own.share(client) for client in shown), default=0.0)
        failed = [outcome for outcome, counts in own.unused.items() if counts]
        at_work = own.at_work if run.running else {}
        rows = []
        for client in shown:
            share = own.share(client)
            cells = [_bar(share, largest, f"{share:.1%}"), f"{own.used[client]:,}"]
            if own.used[client]:
                cells += [f"{own.age(client):.3g}", f"{own.oldest[client]:,}"]
            else:
                cells += ["–", "–"]
            cells += [f"{own.unused[outcome][client]:,}" for outcome in failed]
            cells += [f"{at_work[client]:.4g}" if client in at_work else "–"] if at_work else []
            rows.append([own.name(client), *cells])
        header = ["Client", "Share", "Uploads used", "Mean age, steps", "Oldest"]
        header += [*map(str.capitalize, failed), *(["At work since second"] if at_work else [])]
        inner = [_note(said) for said in _on_shares(own)]
        inner.append(table(header, rows))
        if len(shown) < len(every):
            inner.append(_note(
                f"{len(shown)} of {len(every)} clients are shown: those with the largest shares, "
                f"and those with the smallest."
            ))  # fmt: skip
        parts.append(_folded(f"{run.label}: uploads", inner, opened=len(found) <= 2))
    if not parts:
        return Html("")
    return tag("section", tag("h2", "Each client’s share"), *parts)


def _on_shares(own: Shares) -> Iterator[str]:
    """Yield how many uploads there are, and what unequal shares do to the result."""
    said = f"{own.used.total():,} uploads in {own.seconds:.6g} seconds"
    if own.pace:
        said += f", {own.pace}"
    equal = f"; equal shares would be {1 / len(own.clients):.1%}" if own.clients else ""
    yield f"{said}{equal}. An upload’s age is how many steps were done since its client was asked."
    if own.favoured:
        yield own.favoured[0].upper() + own.favoured[1:] + "."
    elif own.bias:
        yield f"With unequal shares the result would be biased: {own.bias}."
    elif own.bias is not None:
        yield "Where this method ends does not depend on the shares."


def reports(curves: Sequence[Curves]) -> Html:
    """Return the reports of runs on tables: errors, tests, references, rows left out."""
    runs = [run for each in curves for run in each.runs if run.report]
    parts = [part for run in runs for part in (tag("h3", run.label), tag("pre", run.report))]
    return tag("section", tag("h2", "In words"), *parts) if parts else Html("")


def coefficients(curves: Sequence[Curves]) -> Html:
    """Return coefficients for runs with names, and their errors if there are any."""
    every = [run for each in curves for run in each.runs if run.coefficients]
    runs = [run for run in every if not run.estimates]
    tables = [part for run in every if run.estimates for part in _estimates(run)]
    if not every:
        return Html("")
    if not runs:
        return tag("section", tag("h2", "Coefficients"), *tables)
    names = list(dict.fromkeys(name for run in runs for name in run.coefficients))
    names.sort(key=lambda name: -max(abs(run.coefficients.get(name, 0.0)) for run in runs))
    largest = max((abs(v) for run in runs for v in run.coefficients.values()
                   if math.isfinite(v)), default=0.0)  # fmt: skip
    shown = [n for n in names if any(run.coefficients.get(n) for run in runs)]
    rows = [
        [name, *(_bar(run.coefficients.get(name), largest) for run in runs)]
        for name in shown[: 4 * _ROWS]
    ]
    parts = [
        tag("h2", "Coefficients"),
        *tables,
        _note("For one unit more of each column, the largest first."),
        table(["Column", *(run.label for run in runs)], rows),
    ]
    if len(shown) > 4 * _ROWS:
        parts.append(_note(f"The {4 * _ROWS} largest of {len(shown)}; all are in coefficients.csv"))
    zero = [name for name in names if name not in shown]
    if zero:
        many = number_of(len(zero), "coefficient is", "coefficients are")
        parts.append(_folded(f"{many} 0", [_note(", ".join(zero))]))
    return tag("section", *parts)


def descriptives(curves: Sequence[Curves]) -> Html:
    """Return a table of each run's columns by client, like a paper's table 1."""
    runs = [run for each in curves for run in each.runs if run.described]
    parts = []
    for run in runs:
        clients = list(dict.fromkeys(row["client"] for row in run.described))
        lines: dict[tuple[str, str], dict[str, str]] = {}
        for row in run.described:
            cells = lines.setdefault((row["column"], row["category"]), {})
            cells[row["client"]] = _described(row)
        rows = [
            [f"{name}: {mark}" if mark else name, *(cells.get(client, "–") for client in clients)]
            for (name, mark), cells in list(lines.items())[: 4 * _ROWS]
        ]
        parts += [tag("h3", run.label), table(["Column", *clients], rows)]
        if len(lines) > len(rows):
            said = f"The first {len(rows)} of {len(lines)}; descriptives.csv has all"
            parts.append(_note(said))
    said = (
        "Of the rows trained on: mean (standard deviation) of numbers, rows (share) of categories "
        "and outcomes, of all these rows, also those without a value. Where a site has fewer rows "
        "of a kind than its min_rows it tells nothing of them"
    )
    return tag("section", tag("h2", "Rows by site"), _note(said), *parts) if parts else Html("")


def _described(row: Mapping[str, str]) -> str:
    if row["share"]:
        return f"{int(row['values']):,} ({100 * float(row['share']):.1f} %)"
    return f"{_short(row['mean'])} ({_short(row['std_dev'])})" if row["mean"] else "–"


def _estimates(run: RunContents) -> list[Html]:
    """Return a run's table of estimates, in the form of papers."""
    rows, lines = run.estimates[: 4 * _ROWS], []
    letter = next(name for name in ("z", "t") if name in rows[0])
    ratio = run.ratio.replace(" ", "_")
    for row in rows:
        value = row.get("debiased") or row["per_unit"]
        cells = [_short(value), _short(row["std_error"]), _short(row[letter]), _p(row["p_value"])]
        cells.insert(2, _ends(row, "lower", "upper"))
        if ratio:
            cells += [_short(row[ratio]), _ends(row, f"{ratio}_lower", f"{ratio}_upper")]
        lines.append([row["column"], *cells])
    header = ["Column", "Coefficient", "Standard error", "95 % interval", letter, "p"]
    header += [run.ratio.capitalize(), "95 % interval"] if ratio else []
    parts = [tag("h3", f"{run.label}: for one unit more"), table(header, lines)]
    if len(run.estimates) > len(rows):
        parts.append(
            _note(f"The first {len(rows)} of {len(run.estimates)}; coefficients.csv has all")
        )
    return parts


def _short(cell: str) -> str:
    return f"{float(cell):.4g}" if cell else "–"


def _ends(row: Mapping[str, str], lower: str, upper: str) -> str:
    return f"{_short(row[lower])} to {_short(row[upper])}" if row[lower] and row[upper] else "–"


def _p(cell: str) -> str:
    return p_in_words(float(cell)) if cell else "–"


def settings(curves: Sequence[Curves]) -> Html:
    """Return the settings that differ between runs, followed by all settings and versions."""
    runs = [each.runs[0] for each in curves]  # runs over seeds differ in nothing else
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    labels = [run.label for run in runs]

    def rows(names: Iterable[str], *, versions: bool = False) -> list[list[str]]:
        stated = [run.versions if versions else run.settings for run in runs]
        return [[name, *(each.get(name, "–") for each in stated)] for name in names]

    parts = [tag("h2", "Configuration")]
    if len(runs) > 1:
        differing = [key for key in keys if len({run.settings.get(key) for run in runs}) > 1]
        parts.append(tag("h3", "What differs"))
        if differing:
            parts.append(table(["Setting", *labels], rows(differing), numbers_from=99))
        else:
            parts.append(_note("The runs have the same settings."))
    whole = table(["Setting", *labels], rows(keys), numbers_from=99)
    parts.append(_folded("All settings", [whole], opened=len(runs) == 1))
    packages = list(dict.fromkeys(name for run in runs for name in run.versions))
    if packages:
        versions = table(["", *labels], rows(packages, versions=True), numbers_from=99)
        parts.append(_folded("Machine and versions", [versions]))
    places = [[run.label, str(run.folder)] for each in curves for run in each.runs]
    parts.append(_folded("Folders", [table(["Run", "Folder"], places, numbers_from=99)]))
    return tag("section", *parts)


def _audited(curves: Sequence[Curves]) -> list[tuple[RunContents, Exchanges]]:
    runs = (run for each in curves for run in each.runs)
    return [(run, run.exchanges) for run in runs if run.exchanges is not None]


def _failures(exchanges: Exchanges, name: str) -> int:
    return sum(exchanges.totals[name][kind] for kind in KINDS[1:])


def _folded(words: str, inner: Iterable[Html], *, opened: bool = False) -> Html:
    mark = {"open": ""} if opened else {}
    return tag("details", tag("summary", words), *inner, **mark)


def _note(text: str) -> Html:
    return tag("p", text, class_="note")


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _number(row: Record, name: str, low: Record | None = None, high: Record | None = None) -> str:
    """Return a value to a few digits, with all digits on hovering; over seeds with its range."""
    if name not in row:
        return "–"
    short = f"{row[name]:,}" if isinstance(row[name], int) else f"{row[name]:.6g}"
    if low and high and low.get(name) != high.get(name):
        short = f"{row[name]:.4g} ({low[name]:.3g} to {high[name]:.3g})"
    return tag("span", short, title=repr(row[name]))


def _megabytes(row: Record, name: str) -> str:
    return f"{row[name] / 1e6:.4g}" if name in row else "–"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _bar(value: float | None, largest: float, words: str = "") -> str:
    if value is None:
        return "–"
    width = abs(value) / largest if largest and math.isfinite(value) else 0.0
    kind = "bar below" if value < 0 else "bar"
    return tag(
        "span",
        f"{words or f'{value:.5g}'} ",
        tag("i", class_=kind, style=f"width:{4 * width:.3f}em"),
    )
