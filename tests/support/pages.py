"""The fenced blocks of README, CONTRIBUTING, docs and examples."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Return every page that a user may paste from."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def in_order(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block of a page."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def blocks(language: str, page: str = "README.md") -> list[str]:
    """Return the blocks of a page in a language, in their order."""
    return [block for found, block in in_order(ROOT / page) if found == language]
