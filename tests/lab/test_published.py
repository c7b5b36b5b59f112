"""The shipped claims, and the tables that are published of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from flower_fedcon.lab.experiments import claims, reproduce

SIMS = Path(__file__).parents[2] / "sims"
PINS = Path(__file__).parents[1] / "pins"
"""Claims files of our own numbers, which show that nothing has changed since."""


FILES = [*reproduce.find(SIMS), *reproduce.find(PINS)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
@pytest.mark.parametrize("quick", [False, True])
def test_shipped_claims_are_valid(path, quick):
    found = claims.Claims(path, quick=quick)
    assert found.paper
    assert found.figure
    assert found.skipped or bool(found.runs()) == bool(found.claims)  # a pin may be of full runs


def test_claims_that_need_files_are_valid(tmp_path, monkeypatch):
    """Where the file is there; the rounds that they look at are recorded."""
    monkeypatch.chdir(tmp_path)
    needing = [path for path in reproduce.find(SIMS) if claims.Claims(path).requires]
    assert [path.stem for path in needing] == ["dualfl_mnist", "movielens_100k"]
    for path in needing:
        (tmp_path / claims.Claims(path).requires).touch()
        found = claims.Claims(path)
        assert not found.skipped
        runs = {key[0]: experiment.run_options for key, experiment in found.runs()}
        for claim in found.claims:
            options = runs[claim["algorithm"]]
            for number in claim.get("round", []) if isinstance(claim.get("round"), list) else []:
                assert number <= options.rounds
                assert number % options.evaluate_every == 0


PAGES = [("REPRODUCED_QUICK.md", True), ("REPRODUCED.md", False)]


def rows_of(page, folder=SIMS):
    """Return the cells of a page's table."""
    lines = [*(folder / page).read_text().splitlines(), ""]
    assert lines[0] == f"| {' | '.join(reproduce.TITLES)} |"
    end = lines.index("")
    cells = [line[2:].removesuffix("|").rstrip(" ").split(" | ") for line in lines[2:end]]
    width = len(reproduce.TITLES)
    rows = [[*row, ""] if len(row) < width else row for row in cells]
    assert all(len(row) == width for row in rows)
    return [[cell.removesuffix(" |") for cell in row] for row in rows]


@pytest.mark.parametrize("folder", [SIMS, PINS], ids=lambda folder: folder.name)
@pytest.mark.parametrize(("page", "quick"), PAGES)
def test_published_tables_are_of_the_shipped_claims(folder, page, quick):
    """A claim that was changed, added or removed is measured anew."""
    shown = [row[:2] for row in rows_of(page, folder)]
    expected = []
    for path in reproduce.find(folder):
        found = claims.Claims(path, quick=quick)
        out = quick and tomllib.loads(path.read_text()).get("quick") is False
        if not out and found.requires in ("", "mnist"):  # the files that were there
            what = [claim["what"].replace("|", "\\|") for claim in found.claims]
            expected += [[found.name, text] for text in what]
    assert sorted(shown) == sorted(expected)


def tally(page):
    """Return the parts of a page's last line, as `reproduce.summary` has them."""
    return (SIMS / page).read_text().splitlines()[-1].split("; ")


def kind_of(row):
    """Return what a row counts as."""
    source = row[reproduce.TITLES.index("Source")]
    if source == "ours":
        return "ours"
    return "companions" if source.endswith(" (companion)") else "papers' claims"


def told(page):
    """Return the tally of the table's rows, in words, and its numbers."""
    verdict, seeds, bound = (reproduce.TITLES.index(t) for t in ("Verdict", "Seeds", "Bound"))
    rows = rows_of(page)

    def those(kind, end):
        return [row for row in rows if (kind_of(row), row[verdict]) == (kind, end)]

    held, explained, still = (those("papers' claims", end) for end in ("pass", "explained", "open"))
    ours = those("ours", "pass")
    words = [
        f"papers' claims that hold: {len(held)}",
        f"that fail, and an experiment shows why: {len(explained)}",
        f"that fail and are open: {len(still)}",
        f"of ours that hold: {len(ours)}",
        "no longer as recorded: 0",
    ]
    after = sum(row[bound] == "measured" for row in held)
    few = sum(" seed" in row[seeds].partition(":")[0] for row in held)
    return words, [len(held), len(explained), len(still), len(ours), after, few]


@pytest.mark.parametrize("page", [page for page, _ in PAGES])
def test_published_counts_are_those_of_the_table(page):
    assert tally(page)[:5] == told(page)[0]


@pytest.mark.parametrize(("page", "quick"), PAGES)
def test_published_rows_are_of_the_files_seeds_and_companions(page, quick):
    every = {path.stem: claims.Claims(path, quick=quick) for path in reproduce.find(SIMS)}
    shown = {text for one in every.values() for text in one.shown}
    seeds, bound, source = (reproduce.TITLES.index(t) for t in ("Seeds", "Bound", "Source"))
    for row in rows_of(page):
        file, what = every[row[0]], row[1].replace("\\|", "|")
        claim = next(one for one in file.claims if one["what"] == what)
        assert row[bound] == claim["bound"]
        assert row[source].removesuffix(" (companion)") == claim["source"]
        if kind_of(row) != "ours":
            assert (f"{row[0]}: {what}" in shown) == (kind_of(row) == "companions")
        number = row[seeds].partition(" ")[0].replace("one", "1").replace("-", "0")
        assert int(number) == file.drawn(claim)


def test_the_papers_claims_come_first_and_ours_are_no_pins():
    for page, quick in PAGES:
        ours = [kind_of(row) == "ours" for row in rows_of(page)]
        assert ours == sorted(ours)
        shown = {text for path in FILES for text in shown_by(path, quick)}
        bound = reproduce.TITLES.index("Bound")
        for row in rows_of(page):
            if kind_of(row) == "ours" and row[bound] == "measured":
                assert row[1] in shown  # it shows why a claim fails
    pinned = [row for page, _ in PAGES for row in rows_of(page, PINS)]
    assert {row[reproduce.TITLES.index("Source")] for row in pinned} == {"ours"}
    assert {row[reproduce.TITLES.index("Bound")] for row in pinned} == {"measured"}


def shown_by(path, quick):
    """Return what the explanations of a file name."""
    found = []
    for claim in claims.Claims(path, quick=quick).claims:
        named = claim.get("explained", {}).get("shown_by", [])
        found += [named] if isinstance(named, str) else named
    return [text.partition(": ")[2] if text.split(": ")[0].isidentifier() else text
            for text in found]  # fmt: skip


def test_the_page_and_the_readme_state_the_published_counts():
    text = " ".join((SIMS.parent / "docs" / "claims.md").read_text().split())
    for page, quick in PAGES:
        held, explained, still, ours, after, few = told(page)[1]
        name = f"{'quick' if quick else 'full'} run](../sims/{page})"
        left = "1 fails and is open" if still == 1 else f"{still} fail and are open"
        counts = (
            f"{held} hold, {explained} fail and an experiment shows why, and {left}; "
            f"of ours {ours} hold."
        )
        assert f"{name}: of the papers' claims {counts}" in text
    assert (
        f"Of the {held} that hold in the full run, {after} are held to a bound set after a run, "
        f"and {few} were judged over fewer than five seeds."
    ) in text
    seeds = [row[reproduce.TITLES.index("Seeds")] for row in rows_of("REPRODUCED.md")]
    many, fewer = (sum(map(test, seeds)) for test in (str.isdigit, lambda s: " seed" in s[:8]))
    assert f"{many} are over five seeds or more, {fewer} over fewer" in text
    found = re.search(r"(\d+) claims need MNIST's images, and (\d+) more MovieLens-100k", text)
    assert found is not None
    mnist, movielens = map(int, found.groups())
    full = [claims.Claims(path) for path in reproduce.find(SIMS)]
    assert mnist == sum(len(one.claims) for one in full if one.requires == "mnist")
    assert tally("REPRODUCED.md")[5] == f"{movielens} not run"
    readme = " ".join((SIMS.parent / "README.md").read_text().split())
    assert f"of the papers' claims {counts.replace(' hold, ', ' hold here, ', 1)}" in readme


@pytest.mark.nightly
def test_pins_hold():
    outcome = reproduce.reproduce(reproduce.find(PINS), quick=True)
    assert [v.what for v in outcome.verdicts if v.verdict == "fail"] == []


def test_shipped_counterexample_passes():
    outcome = reproduce.reproduce(reproduce.find(SIMS, ["counterexample"]), quick=True, workers=1)
    assert [v.verdict for v in outcome.verdicts] == ["pass"] * 4


def test_the_page_on_rounds_without_waiting_has_the_study_s_numbers():
    every = [*rows_of("REPRODUCED.md"), *rows_of("REPRODUCED.md", PINS)]
    rows = {row[1]: row for row in every if row[0] == "asynchronous"}
    measured = {what: row[reproduce.TITLES.index("Measured")] for what, row in rows.items()}
    seconds, sent = (measured[f"two stragglers: {what} to F - F* of 1e-6"]
                     for what in ("simulated seconds", "bytes up"))  # fmt: skip
    page = (SIMS.parent / "docs" / "asynchronous.md").read_text().partition("## What it gains")[2]
    table = page.partition("| --- |\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) == 7
    for line in table:
        label, time, share, megabytes = (cell.strip() for cell in line.strip("|").split("|"))
        label = label.replace("`", "")
        assert f"{label} {time}" in seconds
        (found,) = re.findall(rf"(?:^|, ){re.escape(label)} ([\d.e+]+) \(", sent)
        assert megabytes == f"{float(found) / 1e6:.2f} MB"
        assert share == "1" or share in measured.values()
