"""`fedcon report`: one HTML file on the runs in some folders, which needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any

from flower_fedcon.errors import ConfigError, nearest, needing
from flower_fedcon.lab.experiments.figures import COLOURS, Limits
from flower_fedcon.lab.experiments.folders import write
from flower_fedcon.lab.report import sections
from flower_fedcon.lab.report.contents import Curves, read_folders
from flower_fedcon.lab.report.curves import charts
from flower_fedcon.lab.report.forest_plot import forest, forests_by_site
from flower_fedcon.lab.report.html import embedded
from flower_fedcon.lab.report.quality_section import quality


def write_report(
    folders: Sequence[Path],
    path: Path,
    *,
    xlim: Mapping[str, Limits] | None = None,
    ylim: Mapping[str, Limits] | None = None,
) -> Path:
    """Write the page of the runs in some folders, and return its path.

    Parameters
    ----------
    folders : sequence of Path
        Folders of runs or comparisons.
    path : Path
        An .html file.
    xlim, ylim : dict, optional
        Abscissa, or column of the histories -> the ends of its axis, each a number or None.

    Raises
    ------
    ConfigError
        If a folder holds no run, the file's name has a different ending, no curve has an axis of
        which ends are given, or plotly is missing.
    StorageError
        If it cannot be written.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"cannot write {path}: the name of a page must end in .html")
    library = _plotly()
    text = page(read_folders(folders), library, xlim or {}, ylim or {})
    write(path, text)
    return path


def page(
    curves: Sequence[Curves],
    library: str,
    xlim: Mapping[str, Limits] = MappingProxyType({}),
    ylim: Mapping[str, Limits] = MappingProxyType({}),
) -> str:
    """Return the page, including the library that draws it.

    The browser may run only the two scripts, identified by digests, and load nothing.
    """
    script, drawn = _part("page.js"), charts(curves)
    columns = [column for chart in drawn for column in chart["columns"]]
    abscissas = {name for column in columns for line in column["lines"] for name in line["x"]}
    for option, given, known in (
        ("xlim", xlim, abscissas), ("ylim", ylim, {column["key"] for column in columns})
    ):  # fmt: skip
        for name in given:
            if name not in known:
                why = (
                    f"no curve has this axis: {nearest(name, known)}"
                    if name
                    else (f"name the axis, as in --{option} {min(known)}=1,100")
                )
                raise ConfigError(f"--{option} {name}: {why}")
    data: dict[str, Any] = {
        "colours": COLOURS,
        "charts": drawn,
        "maps": sections.maps(curves),
        "xlim": dict(xlim),
        "ylim": dict(ylim),
    }
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in (library, script))
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return Template(_part("page.html")).substitute(
        policy=policy,
        title=escape(sections.title(curves)),
        style=_part("page.css"),
        parts=_parts(curves),
        data=embedded(data),
        library=library,
        script=script,
    )


def _parts(curves: Sequence[Curves]) -> str:
    """Return the parts of the page: for tables the model first, for others the curves."""
    went = [
        f"<section><h2>Summary</h2>{sections.summary(curves)}</section>",
        sections.missing(curves),
        '<div id="charts"><noscript><p class="note">The curves need JavaScript.</p></noscript>'
        "</div>",
        '<section id="clients"><h2>Who took part, and who failed when</h2><div id="maps"></div>'
        f"{sections.clients(curves)}</section>",
        sections.shares(curves),
    ]
    words = sections.descriptives(curves) + sections.reports(curves)
    model = [sections.coefficients(curves), forest(curves)]
    fit = [quality(curves), forests_by_site(curves)]
    if sections.of_tables(curves):
        parts = [*model, *fit, words, *went]
    else:
        parts = [*went, words, *model, *fit]
    return "\n".join([*parts, sections.settings(curves)])


def _plotly() -> str:
    with needing("the page is drawn by plotly", "report"):
        from plotly.offline import get_plotlyjs
    return str(get_plotlyjs())


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
