"""HTML with every text escaped, since names of clients, columns and files are not trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


def tag(kind: str, *children: str, **attributes: str) -> Html:
    """Return an element; a child or an attribute that is not `Html` is escaped.

    >>> tag("td", "<b>", title='"')
    '<td title="&quot;">&lt;b&gt;</td>'
    """
    marks = "".join(f' {key.rstrip("_")}="{escape(text)}"' for key, text in attributes.items())
    return Html(f"<{kind}{marks}>{''.join(map(_escaped, children))}</{kind}>")


def _escaped(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> Html:
    """Return a table that scrolls if it is wider than the window."""

    def line(kind: str, cells: Sequence[str]) -> Html:
        return tag(
            "tr",
            *(tag(kind, cell, class_="number" if i >= numbers_from else "text")
              for i, cell in enumerate(cells)),
        )  # fmt: skip

    body = (line("td", cells) for cells in rows)
    inner = tag("table", tag("thead", line("th", header)), tag("tbody", *body))
    return tag("div", inner, class_="wide")


def embedded(value: Any) -> Html:
    """Return a value as JSON for a script; texts in it cannot end the script.

    >>> "<" in embedded("</script>"), json.loads(embedded("</script>"))
    (False, '</script>')
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
