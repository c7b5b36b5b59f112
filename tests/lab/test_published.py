"""The shipped claims, and the tables that are published of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from flower_fedcon.lab.experiments import claims, reproduce, verdicts

SIMS = Path(__file__).parents[2] / "sims"


@pytest.mark.parametrize("path", reproduce.find(SIMS), ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [False, True])
def test_shipped_claims_are_valid(path, quick):
    found = claims.Claims(path, quick=quick)
    assert found.paper
    assert found.figure
    assert found.skipped or found.runs()


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


def rows_of(page):
    """Return the cells of a page's table."""
    lines = (SIMS / page).read_text().splitlines()
    assert lines[0] == f"| {' | '.join(reproduce.TITLES)} |"
    end = lines.index("")
    return [line.strip("| ").split(" | ") for line in lines[2:end]]


@pytest.mark.parametrize(("page", "quick"), PAGES)
def test_published_tables_are_of_the_shipped_claims(page, quick):
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


def tally(page):
    """Return the parts of a page's last line, as `reproduce.summary` has them."""
    return (SIMS / page).read_text().splitlines()[-1].split("; ")


def kind_of(row):
    """Return what a row counts as."""
    source, bound = (row[reproduce.TITLES.index(title)] for title in ("Source", "Bound"))
    if source == "ours":
        return "regression pins" if bound == "measured" else "ours"
    return "companions" if source.endswith(" (companion)") else "papers' claims"


def told(page):
    """Return the tally of the table's rows, in words, and its numbers."""
    verdict, seeds, bound = (reproduce.TITLES.index(t) for t in ("Verdict", "Seeds", "Bound"))
    rows = rows_of(page)

    def those(kind, end=""):
        found = [row for row in rows if kind_of(row) == kind]
        return [row for row in found if row[verdict].partition(":")[0] == end or not end]

    def over(found):
        many = sum(row[seeds].isdigit() for row in found)
        fewer = sum(" seed" in row[seeds].partition(":")[0] for row in found)
        return f"{many} over 5 seeds or more, {fewer} over fewer"

    def holding(found):
        return f"{len(found)}, {sum(row[verdict] == 'pass' for row in found)} hold"

    held, explained = (those("papers' claims", end) for end in ("pass", "explained"))
    after = sum(row[bound] == "measured" for row in held)
    whose = [f" {name}" for name in verdicts.WHOSE.values()]
    faults = [sum(row[verdict].partition(":")[2].startswith(f"{name}:") for row in explained)
              for name in whose]  # fmt: skip
    ours = those("ours")
    many = [row for row in ours if row[seeds].isdigit()]
    rest = [row for row in ours if not row[seeds].isdigit()]
    still = len(those("papers' claims", "not explained"))
    words = [
        f"papers' claims that hold: {len(held)}, {over(held)}, {after} to a bound set after a run",
        f"that fail, with evidence whose fault it is: {len(explained)}, "
        + ", ".join(f"{number}{name}" for number, name in zip(faults, whose, strict=True)),
        f"ours over 5 seeds or more: {holding(many)}",
        f"regression pins: {holding(those('regression pins'))}",
        f"papers' claims that fail, open: {still}",
        f"companions: {holding(those('companions'))}",
        f"ours, of fewer seeds or of nothing drawn: {holding(rest)}",
        "no longer as recorded: 0",
        f"of all on anything drawn {over(rows)}",
    ]
    pins, again = len(those("regression pins")), len(those("companions"))
    few = sum(" seed" in row[seeds].partition(":")[0] for row in held)
    good, other = (sum(row[verdict] == "pass" for row in found) for found in (many, rest))
    kinds = [len(found) for found in (held, explained, many, rest)]
    return words, [*kinds, pins, still, again, after, few, good, other]


@pytest.mark.parametrize("page", [page for page, _ in PAGES])
def test_published_counts_are_those_of_the_table(page):
    assert tally(page)[:9] == told(page)[0]


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
        if kind_of(row) not in ("ours", "regression pins"):
            assert (f"{row[0]}: {what}" in shown) == (kind_of(row) == "companions")
        number = row[seeds].partition(" ")[0].replace("one", "1").replace("-", "0")
        assert int(number) == file.drawn(claim)


def test_the_page_and_the_readme_state_the_published_counts():
    text = " ".join((SIMS.parent / "docs" / "claims.md").read_text().split())
    for page, quick in PAGES:
        held, explained, ours, rest, pins, still, again, after, few, good, other = told(page)[1]
        name = f"{'quick' if quick else 'full'} run](../sims/{page})"
        assert (
            f"{name}: of the papers' claims {held} hold, of them {after} to a bound set after a "
            f"run and {few} over fewer than five seeds, {explained} fail with evidence whose fault "
            f"it is, and {still} fail and are open; ours over five seeds: {ours}, {good} hold; "
            f"regression pins: {pins}; besides, {again} companions, and {rest} of ours of fewer "
            f"seeds or of nothing drawn, {other} of which hold."
        ) in text
        many, fewer = re.findall(r"(\d+) over", tally(page)[8])
        assert f"{many} are over five seeds or more, {fewer} over fewer" in text
    found = re.search(r"(\d+) claims need MNIST's images, and (\d+) more MovieLens-100k", text)
    assert found is not None
    mnist, movielens = map(int, found.groups())
    full = [claims.Claims(path) for path in reproduce.find(SIMS)]
    assert mnist == sum(len(one.claims) for one in full if one.requires == "mnist")
    assert tally("REPRODUCED.md")[9] == f"{movielens} not run"
    readme = " ".join((SIMS.parent / "README.md").read_text().split())
    held, explained, ours, _, pins, still, _, after, few, good, _ = told("REPRODUCED.md")[1]
    assert (
        f"of the papers' claims {held} hold here, of them {after} to a bound set after a run and "
        f"{few} over fewer than five seeds, {explained} do not, with evidence why, and {still} do "
        f"not and are open; {good} of {ours} of our own hold over five seeds, and {pins} "
        "measurements are pinned"
    ) in readme


def test_shipped_counterexample_passes():
    outcome = reproduce.reproduce(reproduce.find(SIMS, ["counterexample"]), quick=True, workers=1)
    assert [v.verdict for v in outcome.verdicts] == ["pass"] * 6


def test_the_page_on_rounds_without_waiting_has_the_study_s_numbers():
    rows = {row[1]: row for row in rows_of("REPRODUCED.md") if row[0] == "asynchronous"}
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
