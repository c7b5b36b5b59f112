"""The shipped claims, and the tables that are published of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TypeAlias

import pytest

from flower_fedcon.lab.experiments import claims, reproduce

SIMS = Path(__file__).parents[2] / "sims"


@pytest.mark.parametrize("path", reproduce.find(SIMS), ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [False, True])
def test_shipped_claims_are_valid(path: Path, quick: bool) -> None:
    found = claims.Claims(path, quick=quick)
    assert found.paper
    assert found.figure
    assert found.skipped or found.runs()


PAGES = [("REPRODUCED_QUICK.md", True), ("REPRODUCED.md", False)]


def rows_of(page: str) -> list[list[str]]:
    """Return the cells of a page's table."""
    lines = (SIMS / page).read_text().splitlines()
    assert lines[0] == f"| {' | '.join(reproduce.TITLES)} |"
    end = lines.index("")
    return [line.strip("| ").split(" | ") for line in lines[2:end]]


@pytest.mark.parametrize(("page", "quick"), PAGES)
def test_published_tables_are_of_the_shipped_claims(page: str, quick: bool) -> None:
    """A claim that was changed, added or removed is measured anew."""
    shown = [row[:2] for row in rows_of(page)]
    expected = []
    for path in reproduce.find(SIMS):
        found = claims.Claims(path, quick=quick)
        out = quick and tomllib.loads(path.read_text()).get("quick") is False
        if not out and found.requires in ("", "mnist"):  # the files that were there
            what = [claim["what"].replace("|", "\\|") for claim in found.claims]
            expected += [[found.name, text] for text in what]
    assert sorted(shown) == sorted(expected)


Counts: TypeAlias = dict[bool, tuple[int, ...]]


def counts(page: str) -> tuple[Counts, int]:
    """Return what a page's last line says: claims, pass, explained, fail of the papers and of us.

    The second number is that of the claims that were not run.
    """
    last = (SIMS / page).read_text().splitlines()[-1]
    tally = r"(\d+), (\d+) pass, (\d+) explained, (\d+) fail"
    found = re.match(rf"papers' claims: {tally}; ours: {tally}; (\d+) not run", last)
    assert found is not None
    numbers = tuple(map(int, found.groups()))
    return {False: numbers[:4], True: numbers[4:8]}, numbers[8]


@pytest.mark.parametrize("page", [page for page, _ in PAGES])
def test_published_counts_are_those_of_the_table(page: str) -> None:
    source, verdict = (reproduce.TITLES.index(title) for title in ("Source", "Verdict"))
    for ours, counted in counts(page)[0].items():
        rows = [row for row in rows_of(page) if (row[source] == "ours") == ours]
        verdicts = [row[verdict].partition(":")[0] for row in rows]
        tally = [verdicts.count(kind) for kind in ("pass", "explained", "fail")]
        assert counted == (len(verdicts), *tally)


def test_the_page_states_the_published_counts() -> None:
    text = " ".join((SIMS.parent / "docs" / "claims.md").read_text().split())
    for page, _ in PAGES:
        (papers, held, explained, failed), (ours, passed, _, broken) = counts(page)[0].values()
        assert failed == broken == 0
        assert (
            f"of the [papers' {papers} claims](../sims/{page}) {held} hold, and {explained} do not "
            f"and say why; of {ours} of our own {passed} hold"
        ) in text
    found = re.search(r"(\d+) claims need MNIST's images, and (\d+) more MovieLens-100k", text)
    assert found is not None
    mnist, movielens = map(int, found.groups())
    full = [claims.Claims(path) for path in reproduce.find(SIMS)]
    assert mnist == sum(len(one.claims) for one in full if one.requires == "mnist")
    assert movielens == counts("REPRODUCED.md")[1]


def test_shipped_counterexample_passes() -> None:
    outcome = reproduce.reproduce(reproduce.find(SIMS, ["counterexample"]), quick=True, workers=1)
    assert [v.verdict for v in outcome.verdicts] == ["pass"] * 5
