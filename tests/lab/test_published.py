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


Counts: TypeAlias = dict[str, tuple[int, ...]]


def counts(page: str) -> tuple[Counts, int]:
    """Return what a page's last line says of each kind, and how many claims were not run.

    Of a kind: claims, as many as end in each of `reproduce.ENDS`, and, of those on anything drawn,
    over five seeds and over fewer.
    """
    *parts, rest = (SIMS / page).read_text().splitlines()[-1].split("; ")[:5]
    found: Counts = {}
    for part in parts:
        kind, _, numbers = part.partition(": ")
        found[kind] = tuple(map(int, re.findall(r"(?:^|, )(\d+)\b", numbers)))
    assert list(found) == list(claims.COUNTED)
    return found, int(rest.removesuffix(" not run"))


def kind_of(row: list[str]) -> str:
    """Return what a row counts as."""
    source, bound = (row[reproduce.TITLES.index(title)] for title in ("Source", "Bound"))
    if source == "ours":
        return "regression pins" if bound == "measured" else "ours"
    return "companions" if source.endswith(" (companion)") else "papers' claims"


@pytest.mark.parametrize("page", [page for page, _ in PAGES])
def test_published_counts_are_those_of_the_table(page: str) -> None:
    verdict, quick = reproduce.TITLES.index("Verdict"), dict(PAGES)[page]
    every = {path.stem: claims.Claims(path, quick=quick) for path in reproduce.find(SIMS)}
    shown = {text for one in every.values() for text in one.shown}
    for row in rows_of(page):
        named = f"{row[0]}: {row[1]}".replace("\\|", "|") in shown
        assert named == (kind_of(row) == "companions") or kind_of(row) in (
            "ours",
            "regression pins",
        )
    seeds = reproduce.TITLES.index("Seeds")
    for kind, counted in counts(page)[0].items():
        rows = [row for row in rows_of(page) if kind_of(row) == kind]
        verdicts = [row[verdict].partition(":")[0] for row in rows]
        many = sum(row[seeds].isdigit() for row in rows)
        fewer = sum(" seed" in row[seeds].partition(":")[0] for row in rows)
        tally = (verdicts.count(end) for end in reproduce.ENDS)
        assert counted == (len(verdicts), *tally, many, fewer)
        for row in rows:
            file = every[row[0]]
            drawn = {claim["what"].replace("|", "\\|"): file.drawn(claim) for claim in file.claims}
            number = row[seeds].partition(" ")[0].replace("one", "1").replace("-", "0")
            assert int(number) == (file.repeats if drawn[row[1]] else 0)


def test_the_page_states_the_published_counts() -> None:
    text = " ".join((SIMS.parent / "docs" / "claims.md").read_text().split())
    for page, quick in PAGES:
        told = counts(page)[0]
        papers, again, ours, pins = told.values()
        assert [kind[len(reproduce.ENDS)] for kind in told.values()] == [0] * 4  # none fails
        assert (
            f"of the [papers' {papers[0]} claims](../sims/{page}) {papers[1]} hold, {papers[2]} do "
            f"not and say why, and {papers[3]} do not and are not explained; of {ours[0]} of our "
            f"own {ours[1]} hold"
        ) in text
        many, fewer = (sum(kind[k] for kind in told.values()) for k in (-2, -1))
        assert f"{many} are over five seeds or more, {fewer} over fewer" in text
        words = f"{again[0]} in the quick run" if quick else f"{again[0]} companions"
        assert words in text
        assert (f"regression pins ({pins[0]})" if quick else f"{pins[0]} regression pins") in text
    found = re.search(r"(\d+) claims need MNIST's images, and (\d+) more MovieLens-100k", text)
    assert found is not None
    mnist, movielens = map(int, found.groups())
    full = [claims.Claims(path) for path in reproduce.find(SIMS)]
    assert mnist == sum(len(one.claims) for one in full if one.requires == "mnist")
    assert movielens == counts("REPRODUCED.md")[1]


def test_shipped_counterexample_passes() -> None:
    outcome = reproduce.reproduce(reproduce.find(SIMS, ["counterexample"]), quick=True, workers=1)
    assert [v.verdict for v in outcome.verdicts] == ["pass"] * 6
