"""The site: it builds without a warning, links lead somewhere, and every public name is in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pages import ROOT, pages

import flower_fedcon
from flower_fedcon.registry import algorithms
from flower_fedcon.strategies import FedDualAvg, FedPD

sys.path.append(str(ROOT / "docs" / "_ext"))
import interface

FIGURES = ROOT / "sims" / "figures"
API = sorted((ROOT / "docs" / "api").glob("*.rst"))
NEIGHBOURS = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "examples",
              "flower_fedcon", "sims", "tests")  # fmt: skip
MADE = shutil.ignore_patterns("_build", "_generated", "methods", "gallery", "generated")
EXTERNAL = re.compile(r"https?://[^\s<>\"'`)\]}]+")
OF_THE_THEME = ("https://github.com/pradyunsg/furo", "https://pradyunsg.me",
                "https://www.sphinx-doc")  # fmt: skip


def listed(page):
    """Return the module of a page of the interface, and the names in its tables."""
    text = interface.completed(page.read_text("utf-8"))
    (module,) = re.findall(r"^\.\. currentmodule:: (\S+)$", text, re.MULTILINE)
    tables = re.findall(r"^\.\. autosummary::\n(?:   :.*\n)*\n((?:   \w+\n)+)", text, re.MULTILINE)
    return module, " ".join(tables).split()


INTERFACE = dict(listed(page) for page in API if page.stem != "index")


@pytest.mark.parametrize("module", INTERFACE)
def test_every_public_name_has_its_place(module):
    found = import_module(module)
    public = getattr(found, "__all__", None)
    if public is None:  # what the package's own file imports for others: `X as X`
        source = Path(found.__file__).read_text("utf-8")
        public = re.findall(r"import (\w+) as \1$", source, re.MULTILINE)
    assert sorted(INTERFACE[module]) == sorted(public)


def is_told_its_module(room, name):
    """Check what is said of a name that a room has not."""
    with pytest.raises(AttributeError) as asked:
        getattr(room, name)
    with pytest.raises(ImportError) as imported:
        exec(f"from {room.__name__} import {name}")
    assert str(asked.value) == str(imported.value)
    (module,) = re.findall(rf"write `from (\S+) import {name}`", str(asked.value))
    assert name in INTERFACE[module]


def test_a_name_asked_of_the_package_is_told_with_its_module():
    """Before: "cannot import name 'L1' from 'flower_fedcon'", and no more."""
    others = {name for names in INTERFACE.values() for name in names}
    others -= {*INTERFACE["flower_fedcon"]}
    others = [name for name in others if not find_spec(f"flower_fedcon.{name}")]  # `tables` is one
    assert len(others) > 150
    for name in others:
        is_told_its_module(flower_fedcon, name)
        assert not hasattr(flower_fedcon, name)
    exec("from flower_fedcon import regularizers, tables")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from flower_fedcon import nonsense")


@pytest.mark.parametrize("room", sorted({*INTERFACE, "flower_fedcon.clients"} - {"flower_fedcon"}))
def test_a_name_asked_of_a_wrong_module_is_told_with_its_own(room):
    found = import_module(room)
    modules = {
        path.stem for folder in getattr(found, "__path__", ()) for path in Path(folder).iterdir()
    }
    for names in INTERFACE.values():
        others = [name for name in names if name not in modules and not hasattr(found, name)]
        if others:
            is_told_its_module(found, others[0])
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        found.nonsense  # noqa: B018


def test_every_public_package_has_a_page():
    """What has `__all__`, and is neither the command nor what a run is made of."""
    packages = {
        path.parent.name
        for path in (ROOT / "flower_fedcon").glob("*/__init__.py")
        if "__all__ = [" in path.read_text("utf-8")
    }
    assert {f"flower_fedcon.{name}" for name in packages - {"cli"}} <= INTERFACE.keys()
    toctree = (ROOT / "docs" / "api" / "index.rst").read_text("utf-8")
    assert {page.stem for page in API} - {"index"} == set(re.findall(r"^   (\w+)$", toctree, re.M))


def test_every_page_is_in_the_index():
    shown = (ROOT / "docs" / "index.md").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        if page.stem != "index" and "orphan: true" not in page.read_text("utf-8")[:30]:
            assert f"\n{page.stem}\n" in shown, f"name {page.stem} in a toctree of docs/index.md"


def external_links():
    """Return every address outside that a page, a docstring or a script of the gallery names."""
    sources = [*pages(), ROOT / "CHANGELOG.md"]
    sources += sorted((ROOT / "docs" / "api").glob("*.rst"))
    for folder in ("flower_fedcon", "strategies", "clients", "examples"):
        sources += sorted((ROOT / folder).rglob("*.py"))
    found = {link for path in sources for link in EXTERNAL.findall(path.read_text("utf-8"))}
    return {link.rstrip(".,;:") for link in found if not re.search("127.0.0.1|localhost", link)}


def test_external_links_are_listed():
    """The list is what a person goes through now and then: no test reaches the network."""
    known = (ROOT / "docs" / "external_links.txt").read_text("utf-8").split()
    assert known == sorted(known)
    assert external_links() == set(known)


# --- formulas -------------------------------------------------------------------------------------


@pytest.fixture
def typeset(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    return import_module("typeset")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1/N) sum_i f_i(x_bar)", r"\tfrac{1}{N} \sum_{i} f_{i} (\bar{x})"),
        ("x s.t. ||x||_inf <= eps", r"x \quad\text{s.t.}\quad \|x\|_\infty \le \varepsilon"),
        ("<g_i, s> < sqrt(p^(-2/3))", r"\langle g_{i}, s \rangle < \sqrt{p ^{-2/3}}"),
        ("theta* ~ argmin_x F(x)", r"\theta^\star\approx \operatorname*{arg\,min}_{x} F (x)"),
        ("y_i+ := [a - x_0i]_+", r"y_{i}^+:= [a - x_{0i}]_{+}"),
    ],
)
def test_formulas_become_latex(typeset, text, expected):
    assert re.sub(r"\s+", "", typeset.latex(text)) == re.sub(r"\s+", "", expected)


def test_methods_have_figures_in_the_layout_of_their_papers(typeset):
    methods = import_module("methods")
    shown = {}
    for name, kind in algorithms().items():
        for text in methods.as_in_the_paper(kind.card())[1:]:
            shown.setdefault(re.search(r"paper_(\w+)\.png", text)[1], []).append(name)
            assert ", for " in text  # what of the paper each panel is, and what differs
    drawn = {path.stem.removeprefix("paper_") for path in FIGURES.glob("paper_*.png")}
    assert set(shown) == drawn
    assert {"fedfw", "fedfwplus"} <= set(shown["dadras"])
    linked = (ROOT / "docs" / "claims.md").read_text("utf-8")
    assert all(f"(../sims/figures/paper_{author}.png)" in linked for author in drawn)


def test_the_tables_of_methods_name_each_with_what_studies_measured(typeset):
    text = import_module("which").tables()
    for name, kind in algorithms().items():
        assert text.count(f"[{kind.title}](methods/{name}.rst)") == 1
    assert len(re.findall(r"\d+, \d+\.\d\d MB", text)) >= 20


def test_words_between_formulas_stay(typeset):
    line = "client i:  K times  v := P(v - a g_i),  g a subgradient of psi at v, the mean"
    formulas = typeset.runs(line)[1::2]
    assert formulas == ["i", "K", "v := P(v - a g_i)", "g", "psi", "v"]
    assert "".join(typeset.runs(line)) == line
    said = typeset.runs("such a psi has a prox, and then a m(u) + b")
    assert said[1::2] == ["psi", "a m(u) + b"]
    assert typeset.runs("c = 0 (a mirror, N d numbers)")[1::2] == ["c = 0", "N d"]
    of_fedsgm = "eta = D / (G sqrt(2 E T Gamma))"
    assert typeset.runs(f"{of_fedsgm},   eps = D")[1::2] == [of_fedsgm, "eps = D"]
    assert typeset.mixed("f_i mu-strongly convex").endswith(r":math:`\mu`\ -strongly convex")


def test_the_steps_of_all_methods_are_typeset(typeset):
    """No formula keeps a name in letters, an open brace, or a letter between the words."""

    for kind in algorithms().values():
        card = kind.card()
        for line in [card.problem, *card.update.splitlines()]:
            parts = typeset.runs(line)
            assert "".join(parts) == line
            assert not re.search(r"\b(?!a\b|A\b|I\b)[A-Za-z]\b(?!-)", "".join(
                re.sub(r"\"[^\"]*\"|'s\b", "", part) for part in parts[::2]
            )), line  # fmt: skip
            for formula in map(typeset.latex, parts[1::2]):
                assert formula.count("{") == formula.count("}"), formula
                assert set(re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", formula)) <= IN_FORMULAS


def test_a_method_s_page_says_whether_it_works_in_a_training_loop(typeset):
    """And the page on training loops names those that do."""

    methods = import_module("methods")
    assert "your own training loop" in methods.page(FedDualAvg, drawn=False)
    assert "training loop" not in methods.page(FedPD, drawn=False)
    told = (ROOT / "docs" / "training_loops.md").read_text()
    for name, kind in algorithms().items():
        if methods.takes_loops(name):
            assert kind.__name__ in told


def test_the_notes_on_methods_are_typeset(typeset):
    for name in typeset.PAGES:
        plain = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        made = typeset.page(plain)
        assert made.count("\n| ") >= plain.count("\n| ")  # lines of steps besides rows of tables
        formulas = re.findall(r"\$([^$]+)\$", made)
        assert len(formulas) > 100
        for formula in formulas:
            assert formula.count("{") == formula.count("}"), formula
            assert not re.search(r"\\sqrt\s*\\tfrac|\^-|#|`", formula), formula


IN_FORMULAS = {"lmo", "prox", "mean", "arg", "min", "diam", "Geometric"}


@pytest.mark.parametrize("name", ["which_method", "mathematics"])
def test_what_is_for_the_repository_s_readers_is_not_on_the_site(typeset, name):
    plain = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    source = [plain]
    import_module("generated").lead_to_pages(None, name, source)
    assert "make docs" in plain
    assert "make docs" not in source[0]
    assert "<!--" not in source[0]


def test_a_colon_in_an_attribute_s_text_begins_no_type(typeset):
    from sphinx.ext.napoleon import Config, NumpyDocstring

    docstrings = import_module("docstrings")
    lines = ["The radius: a float."]
    docstrings._process(None, "attribute", "a.radius", None, None, lines)
    made = NumpyDocstring(lines, Config(), what="attribute", name="a.radius")
    assert "The radius: a float." in str(made)
    assert ":type:" not in str(made)


# --- a build --------------------------------------------------------------------------------------


class Links(HTMLParser):
    """The addresses that a page refers to, and the places in it that can be referred to."""

    def __init__(self, text):
        super().__init__()
        self.targets: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.add(value)
            elif name == "id" and value:
                self.places.add(value)


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The site, of a copy of docs/, without the figures of methods and gallery: a minute."""
    pytest.importorskip("sphinx", reason="needs Sphinx: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=MADE)
    for name in NEIGHBOURS:
        (folder / name).symlink_to(ROOT / name)
    built = folder / "html"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q",
         "-D", "sphinx_gallery_conf.plot_gallery=0", "docs", str(built)],
        cwd=folder,
        env={**os.environ, "FEDCON_SITE": "quick", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.resolve(): Links(path.read_text("utf-8")) for path in built.rglob("*.html")}


@pytest.mark.nightly
def test_it_builds_without_a_warning_and_links_lead_somewhere(html):
    assert len(html) > 200
    for page, links in html.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or target.startswith(("//", "data:")):
                continue
            there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert there.exists(), f"{page.name} refers to {target}"
            if parts.fragment and there in html:
                places = html[there].places
                assert unquote(parts.fragment) in places, f"{page.name} refers to {target}"


@pytest.mark.nightly
def test_a_built_page_names_no_address_that_is_not_listed(html):
    known = set((ROOT / "docs" / "external_links.txt").read_text("utf-8").split())
    named = {t for links in html.values() for t in links.targets if t.startswith(("http", "//"))}
    assert {link for link in named if not link.startswith(OF_THE_THEME)} <= known


@pytest.mark.nightly
def test_every_method_has_its_page(html):

    built = {page.stem for page in html if page.parent.name == "methods"}
    assert algorithms().keys() <= built
