"""The words of pages, docstrings and messages: British, and none of the list that is refused."""

from __future__ import annotations

import ast
import re
from bisect import bisect

import pytest
from pages import ROOT, pages

SOURCES = sorted((ROOT / "flower_fedcon").rglob("*.py"))
NOT_PROSE = re.compile(
    r"^```.*?^```$"  # blocks of code, of pages
    r"|^ *Source: .*?(?:\n *\n|\Z)"  # titles of papers
    r"|`[^`]+`|\"[^\"\n]{1,200}\"|\]\([^)]*\)|https?://\S+"
    r"|^ *(?:>>>|\.\.\.) .*?$",
    re.MULTILINE | re.DOTALL,
)


def refused():
    """Return the patterns of the list, and what to write instead."""
    lines = (ROOT / "docs" / "words.txt").read_text("utf-8").splitlines()
    pairs = [line.split(" -> ") for line in lines if line and line[0] != "#"]
    return [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in pairs]


REFUSED = refused()


def complaints(text, first_line=1):
    """Return a sentence for each refused wording of a text, with its line."""
    prose = NOT_PROSE.sub(lambda found: "\n" * found[0].count("\n") + "·", text)
    lines = [m.start() for m in re.finditer("\n", prose)]
    return [
        f'line {first_line + bisect(lines, found.start())}: not "{found[0]}", but {instead}'
        for pattern, instead in REFUSED
        for found in pattern.finditer(prose)
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_no_refused_wording(page):
    assert not complaints(page.read_text("utf-8"))


def test_docstrings_and_messages_have_no_refused_wording():
    found = [
        f"{path.relative_to(ROOT)}, {complaint}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        for complaint in complaints(node.value, node.lineno)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["The behavior", "where nobody asks, none", "the files that there are", "a loss of one's own"],
)
def test_refused_wording_is_found(text):
    assert len(complaints(text)) == 1


@pytest.mark.parametrize(
    "text", ["`behavior`", "says that there is no such file", "```\ncolor = 1\n```", '"labeled"']
)
def test_code_quotations_and_plain_sentences_pass(text):
    assert not complaints(text)
