"""The lists of the interface, completed: what is exported, and is on no list of its page.

A comment above a list says of what kind it is, such as ``.. and every other Participation``. Such a
class goes to the end of this list as soon as its module exports it.
"""

import re
from importlib import import_module
from pathlib import Path

API = Path(__file__).parents[1] / "api"
MODULE = re.compile(r"^\.\. currentmodule:: (\S+)$", re.MULTILINE)
TABLE = re.compile(
    r"(?:^\.\. and every other (?P<kind>\w+)\n\n)?"
    r"^(?P<head>\.\. autosummary::\n(?:   :.*\n)*\n)(?P<names>(?:   [\w.]+\n)+)",
    re.MULTILINE,
)


def completed(text):
    """Return a page whose lists have everything of their kinds."""
    return TABLE.sub(lambda found: f"{found['head']}{found['names']}{others(text, found)}", text)


def others(text, found):
    """Return the lines that a list lacks."""
    if not found["kind"]:
        return ""
    module = import_module(MODULE.search(text)[1])
    said = {name for table in TABLE.finditer(text) for name in table["names"].split()}
    public = getattr(module, "__all__", vars(module))
    values = {name: getattr(module, name) for name in public if name not in said}
    kind = getattr(module, found["kind"])
    return "".join(
        f"   {name}\n"
        for name, value in values.items()
        if isinstance(value, type) and issubclass(value, kind)
    )


def pages():
    """Return a text with the lists of all pages that Sphinx shall make pages of."""
    parts = []
    for page in sorted(API.glob("*.rst")):
        text = page.read_text("utf-8")
        for found in TABLE.finditer(text):
            if ":toctree: generated\n" in found["head"] and (names := others(text, found)):
                head = found["head"].replace(": generated\n", ": ../api/generated\n")
                parts.append(f"{MODULE.search(text)[0]}\n\n{head}{names}")
    return "\n".join(parts)
