"""The fenced blocks of README, CONTRIBUTING, docs and examples."""

from __future__ import annotations

import re
from pathlib import Path

from flower_fedcon.cli.commands import new_app

ROOT = Path(__file__).parents[2]
APP = ("server_app.py", "client_app.py")
ON_NODES = ("README.md",)
"""Pages whose app every run of the tests deploys (`flower/test_deployed.py`)."""
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


def files(page: str = "README.md") -> dict[str, str]:
    """Return the files that a page shows, by the names in the first lines of their blocks."""
    found: dict[str, str] = {}
    for _, block in in_order(ROOT / page):
        if named := re.match(r"# (\S+\.\w+)\n", block):
            found[named.group(1)] = found.get(named.group(1), "") + block
    return found


def app_files(page: str = "README.md") -> dict[str, str]:
    """Return a page's app: what the page leaves out is README's, or of `fedcon new`."""
    written = new_app.files("my-app", "fedavg", "numpy")
    return (
        {name: written[name] for name in ("pyproject.toml", "LICENSE")}
        | {name: files()[name] for name in APP}
        | files(page)
    )
