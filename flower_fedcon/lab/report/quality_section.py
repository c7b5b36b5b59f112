"""The part of the page on a model's quality on sites' held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flower_fedcon.lab.report.contents import Curves
from flower_fedcon.lab.report.html import Html, table, tag

_COLUMNS = {
    "rows": "Rows",
    "events": "Events",
    "auc": "AUC",
    "calibration_slope": "Calibration slope",
    "calibration_intercept": "Intercept",
    "calibration_in_the_large": "In the large",
    "brier": "Brier",
    "mse": "MSE",
    "deviance_explained": "Deviance explained",
}
_SIZE, _EDGE = 220, 30  # pixels of a panel, and of its margins


def quality(curves: Sequence[Curves]) -> Html:
    """Return tables by site, and panels of ROC and calibration, for the runs that have them."""
    parts = []
    for run in (run for each in curves for run in each.runs if run.quality):
        stated = run.quality
        lines = {**stated["sites"], "together": stated["pooled"]}
        names = [name for name in _COLUMNS if any(name in row for row in lines.values())]
        rows = [[site, *(_cell(row, name) for name in names)] for site, row in lines.items() if row]
        parts.append(tag("h3", run.label))
        if rows:
            parts.append(table(["Site", *(_COLUMNS[name] for name in names)], rows))
        error = stated["pooled"].get("auc_error")
        if error is not None:
            said = (
                f"The AUC of all sites together is from binned scores, with an error of at "
                f"most {error:.2g}."
            )
            parts.append(tag("p", said, class_="note"))
        if stated["roc"]:
            roc, curve = stated["roc"], stated["calibration_curve"]
            parts.append(
                _panel(
                    "ROC, all sites",
                    "false positive rate",
                    "true positive rate",
                    roc["false_positive_rate"],
                    roc["true_positive_rate"],
                )
            )
            parts.append(
                _panel(
                    "Calibration, all sites",
                    "predicted",
                    "observed",
                    curve["predicted"],
                    curve["observed"],
                    dots=True,
                )
            )
        for what, why in stated["absent"].items():
            parts.append(tag("p", f"Not known: {what}: {why}", class_="note"))
    if not parts:
        return Html("")
    return tag("section", tag("h2", "On held-out rows"), *parts)


def _cell(own: Mapping[str, float], name: str) -> str:
    if name not in own:
        return "–"
    if name in ("rows", "events"):
        return f"{own[name]:,.0f}"
    error = own.get(f"{name}_bse")
    return f"{own[name]:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _panel(
    title: str,
    x_name: str,
    y_name: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    dots: bool = False,
) -> Html:
    """Return a square from 0 to 1 on both axes, with the diagonal."""
    end = _EDGE + _SIZE

    def place(a: float, b: float) -> tuple[float, float]:
        return round(_EDGE + a * _SIZE, 1), round(end - b * _SIZE, 1)

    places = [place(a, b) for a, b in zip(x, y, strict=True)]
    frame: dict[str, Any] = {
        "x": f"{_EDGE}",
        "y": f"{_EDGE}",
        "width": f"{_SIZE}",
        "height": f"{_SIZE}",
        "fill": "none",
        "stroke": "#888",
    }
    marks = [
        tag("rect", **frame),
        tag("path", d=f"M{_EDGE},{end} L{end},{_EDGE}", stroke="#bbb", fill="none"),
        tag(
            "path", d="M" + " L".join(f"{a},{b}" for a, b in places), stroke="#0072b2", fill="none"
        ),
        *(tag("circle", cx=f"{a}", cy=f"{b}", r="3", fill="#0072b2") for a, b in places if dots),
        *(
            tag("text", words, x=f"{a}", y=f"{b}", fill="currentColor", style="font-size:11px")
            for words, a, b in (
                (title, _EDGE, 20),
                (f"{x_name} (0 to 1)", _EDGE, end + 14),
                (f"up: {y_name} (0 to 1)", _EDGE + 90, end + 26),
            )
        ),
    ]
    side = f"{end + _EDGE}"
    return tag("svg", *marks, width=side, height=side, role="img", **{"aria-label": title})
