"""The pages and tables that are made from the package before Sphinx reads the sources.

A page for each method from its card (what `fedcon info` shows), with the curve of its contract
problem; the tables to choose by, of server steps and of participation, from the classes'
declarations and the claims of the shipped studies; the tables of sets and regularizers; the lists
of the interface. With FEDCON_SITE=quick no curve is drawn.
"""

import os
import re
from pathlib import Path

import curves
import interface
import mathematics
import methods
import typeset
import which

from flower_fedcon.registry import algorithms

DOCS = Path(__file__).parents[1]
TABLES = {
    "which.txt": which.tables,
    "server_steps.txt": which.server_steps,
    "unequal.txt": which.unequal,
    "late.txt": which.late,
    "first_contact.txt": which.first_contact,
    "mathematics.txt": mathematics.tables,
    "interface.rst": interface.pages,
}


def write(path, text):
    """Write a file where it is not what it is to be: Sphinx reads again what is newer."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def generate(app=None):
    """Write all of it."""
    drawn = set()
    if os.environ.get("FEDCON_SITE") != "quick":
        drawn = curves.draw(DOCS / "methods" / "figures")
    pages = {kind.name: methods.page(kind, kind.name in drawn) for kind in algorithms().values()}
    for name, text in {**pages, "index": methods.index()}.items():
        write(DOCS / "methods" / f"{name}.rst", text)
    for name, make in TABLES.items():
        write(DOCS / "_generated" / name, make())


OF_THE_SITE = {
    r"\]\(\.\./flower_fedcon/strategies/(\w+)\.py\)": r"](methods/\1.rst)",
    r"\]\(\.\./README\.md#algorithms\)": "](methods/index.rst)",
    r"\]\(\.\./examples/gallery/\)": "](gallery/index.rst)",
    r"\]\(\.\./CONTRIBUTING\.md\)": "](contributing.md)",
    r"\]\(\.\./sims/SCALE\.md\)": "](benchmarks.md)",
    r"\]\(\.\./sims/REPRODUCED_QUICK\.md\)": "](claims_quick.md)",
    r"\]\(\.\./sims/REPRODUCED\.md\)": "](#the-tables)",
}
NOT_ON_THE_SITE = re.compile(r"<!-- in the repository -->\n.*?<!-- end -->\n", re.DOTALL)


def lead_to_pages(app, name, source):
    """Make a page, which is also read in the repository, one of the site.

    It leads to the site's own page of a file, and what only a reader of the repository needs to
    know is left out.
    """
    if name in typeset.PAGES:
        source[0] = typeset.page(source[0])
    if name.startswith("api/"):
        source[0] = interface.completed(source[0])
    source[0] = NOT_ON_THE_SITE.sub("", source[0])
    for link, page in OF_THE_SITE.items():
        source[0] = re.sub(link, page, source[0])


def setup(app):
    """Run before the sources are listed."""
    app.connect("builder-inited", generate, priority=100)
    app.connect("source-read", lead_to_pages)
    # It copies MathJax when all is written, and says nothing about pages read side by side.
    mathjax = app.extensions["sphinx-mathjax-offline"]
    mathjax.parallel_read_safe = mathjax.parallel_write_safe = True
    return {"parallel_read_safe": True, "parallel_write_safe": True}
