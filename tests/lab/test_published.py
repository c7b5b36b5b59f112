"""The shipped claims, and the tables that are published of them."""

from __future__ import annotations

import functools
import json
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


PAGES = [("REPRODUCED_QUICK", True), ("REPRODUCED", False)]


def stored(page, folder=SIMS):
    """Return a page's rows, as they were measured."""
    return json.loads((folder / f"{page}.json").read_text())["claims"]


@functools.cache
def recalled(page, quick, folder=SIMS):
    """Return a page's measurements with what the claims files say now."""
    files = reproduce.find(folder)
    return reproduce.reproduce([], recalled=files, earlier=folder / f"{page}.json", quick=quick)


@pytest.mark.parametrize("folder", [SIMS, PINS], ids=lambda folder: folder.name)
@pytest.mark.parametrize(("page", "quick"), PAGES)
def test_published_tables_are_of_the_shipped_claims(folder, page, quick):
    """A claim that was changed, added or removed is measured anew."""
    shown = [(row["experiment"], row["what"]) for row in stored(page, folder)]
    expected = []
    for path in reproduce.find(folder):
        found = claims.Claims(path, quick=quick)
        out = quick and tomllib.loads(path.read_text()).get("quick") is False
        if not out and found.requires in ("", "mnist"):  # the files that were there
            expected += [(found.name, claim["what"]) for claim in found.claims]
    assert sorted(shown) == sorted(expected)


@pytest.mark.parametrize("folder", [SIMS, PINS], ids=lambda folder: folder.name)
@pytest.mark.parametrize(("page", "quick"), PAGES)
def test_published_pages_are_those_of_the_measurements(folder, page, quick):
    """With the files' seeds, companions and words; `fedcon reproduce --from` writes them anew."""
    outcome = recalled(page, quick, folder)
    assert json.loads(reproduce.to_json(outcome))["claims"] == stored(page, folder)
    assert reproduce.to_markdown(outcome) == (folder / f"{page}.md").read_text()
    assert {row["verdict"] for row in stored(page, folder)} <= {*reproduce.WORDS} - {"fail"}


def test_every_claim_of_a_paper_has_a_part_that_counts():
    for paper, found in reproduce.grouped(recalled("REPRODUCED", False).verdicts).items():
        for claim in found:
            if not all("no test" in part.what for part in claim.parts):
                assert claim.kind == ("ours" if paper == reproduce.OURS else "papers' claims")


def test_the_papers_claims_come_first_and_ours_are_no_pins():
    for page, quick in PAGES:
        outcome = recalled(page, quick)
        assert list(reproduce.grouped(outcome.verdicts))[-1] == reproduce.OURS
        shown = {text for path in FILES for text in shown_by(path, quick)}
        for verdict in outcome.verdicts:
            if verdict.kind == "ours" and verdict.bound == "measured" and not verdict.note:
                assert verdict.what in shown  # it shows why a claim fails
    pinned = [row for page, _ in PAGES for row in stored(page, PINS)]
    assert {row["source"] for row in pinned} == {"ours"}
    assert {row["bound"] for row in pinned} == {"measured"}


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
        name = f"{'quick' if quick else 'full'} run](../sims/{page}.md)"
        assert f"{name}: {reproduce.tally(recalled(page, quick).verdicts)}" in text
    verdicts = recalled("REPRODUCED", False).verdicts
    readme = " ".join((SIMS.parent / "README.md").read_text().split())
    assert reproduce.tally(verdicts).removesuffix(".") in readme
    parts = [v for v in verdicts if (v.kind, v.verdict) == ("papers' claims", "pass")]
    after = sum(part.bound == "measured" for part in parts)
    one, none = (sum(part.seeds == seeds for part in parts) for seeds in (1, 0))
    assert one + none == sum(part.seeds < claims.MANY for part in parts)
    assert (
        f"Companions aside, {len(parts)} parts of the papers' claims hold: {after} are held to a "
        f'number that is "measured" in this sense, {one} have one seed, and {none} have nothing '
        "random."
    ) in text
    found = re.search(r"Of all parts (\d+) need MNIST's test images; (\d+) more, which need", text)
    assert found is not None
    mnist, movielens = map(int, found.groups())
    full = [claims.Claims(path) for path in reproduce.find(SIMS)]
    assert mnist == sum(len(one.claims) for one in full if one.requires == "mnist")
    assert movielens == recalled("REPRODUCED", False).left_out


@pytest.mark.nightly
def test_pins_hold():
    outcome = reproduce.reproduce(reproduce.find(PINS), quick=True)
    assert [v.what for v in outcome.verdicts if v.verdict == "fail"] == []


def test_shipped_counterexample_passes():
    outcome = reproduce.reproduce(reproduce.find(SIMS, ["counterexample"]), quick=True, workers=1)
    assert [v.verdict for v in outcome.verdicts] == ["pass"] * 3


def test_the_page_on_rounds_without_waiting_has_the_study_s_numbers():
    every = [*stored("REPRODUCED"), *stored("REPRODUCED", PINS)]
    measured = {
        row["what"]: row["measured"] for row in every if row["experiment"] == "asynchronous"
    }
    seconds, sent = (measured[f"two stragglers: {what} to F - F* of 1e-6"]
                     for what in ("simulated seconds", "bytes up"))  # fmt: skip
    page = (SIMS.parent / "docs" / "asynchronous.md").read_text().partition("## What it gains")[2]
    table = page.partition("| --- |\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) == 7
    for line in table:
        label, time, share, megabytes = (cell.strip() for cell in line.strip("|").split("|"))
        label = label.replace("`", "")
        assert f"{label}: {time}" in seconds
        (found,) = re.findall(rf"(?:^|, ){re.escape(label)}: ([\d.e+]+) \(", sent)
        assert megabytes == f"{float(found) / 1e6:.2f} MB"
        assert share == "1" or share in measured.values()
