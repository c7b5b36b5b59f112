"""BibTeX of the methods' papers and of this package: `fedcon cite`, `cite`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import refusal
from pages import ROOT, blocks

from flower_fedcon import cite
from flower_fedcon.card import papers_in
from flower_fedcon.clients import FedAvgClient
from flower_fedcon.errors import ConfigError
from flower_fedcon.registry import algorithms, register
from flower_fedcon.runs.citing import JOURNALS, VENUES
from flower_fedcon.strategies import FedAvg

NEEDED = {"article": {"journal"}, "inproceedings": {"booktitle"}, "misc": {"eprint"}}


def parsed(text):
    """Return the entries of BibTeX by their keys; nothing else but comments may stand there."""
    found: dict[str, dict[str, str]] = {}
    rest = re.sub(r"^%.*\n", "", text, flags=re.MULTILINE).strip()
    while rest:
        head = re.match(r"@(\w+)\{([a-z0-9_]+),\n", rest)
        assert head, rest[:80]
        lines, _, rest = rest[head.end() :].partition("\n}")
        fields = {"": head[1]}
        for line in lines.splitlines():
            name, value = re.fullmatch(r"  (\w+) = \{(.*)\},", line).groups()  # type: ignore[union-attr]
            depths = [
                value[: i + 1].count("{") - value[: i + 1].count("}") for i in range(len(value))
            ]
            assert min(depths, default=0) >= 0
            assert depths[-1] == 0, line
            fields[name] = value
        assert head[2] not in found, "a key stands twice"
        found[head[2]] = fields
        rest = rest.strip()
    return found


@pytest.mark.parametrize("name", algorithms())
def test_every_method_has_entries_that_parse(name):
    card = algorithms()[name].card()
    *entries, own = parsed(cite(name)).items()
    assert own[0] == "flower_fedcon"
    # All that stands in quotation marks is a title: no paper is left out for its form.
    assert len(entries) == len(card.papers) == card.source.count('"') // 2 > 0
    for (key, fields), paper in zip(entries, card.papers, strict=True):
        assert fields.keys() >= {"author", "title", "year"} | NEEDED[fields[""]], key
        assert fields["title"] == f"{{{paper.title}}}"
        assert key.startswith(re.sub("[^a-z]", "", fields["author"].split(",")[0].lower())[:3])
        assert all(" " in author for author in paper.authors), "a given name is missing"
        assert paper.venue in {"", *VENUES, *JOURNALS}, "runs/citing.py spells it out"
        assert all(ord(letter) < 128 for value in fields.values() for letter in value)


def test_keys_are_unique_and_each_paper_stands_once():
    every = parsed(cite(*algorithms()))  # which refuses a key that stands twice
    papers = {paper for kind in algorithms().values() for paper in kind.card().papers}
    assert len(every) == len(papers) + 1


def test_it_agrees_with_the_bibliography_of_the_journal_s_paper():
    text = (ROOT / "paper.bib").read_text("utf-8")
    theirs = dict(re.findall(r"  title = \{(.*)\},\n  author = \{(.*)\},\n", text))
    plain = {re.sub("[{}]", "", title).lower(): author for title, author in theirs.items()}
    both = 0
    for fields in parsed(cite(*algorithms())).values():
        known = plain.get(fields["title"].strip("{}").lower())
        if known is not None and "Principles" not in fields.get(
            "booktitle", ""
        ):  # not the longer one
            both += 1
            assert [name.split(",")[0] for name in known.split(" and ")] == [
                name.split(",")[0] for name in fields["author"].split(" and ")
            ]
    assert both >= 6


def test_the_page_s_commands(fedcon):
    """Names, a file, the folder of a comparison and that of one of its runs."""
    first, second = blocks("bash", "docs/commands.md")[1].splitlines()
    code, printed, _ = fedcon(*first.split()[1:])
    assert (code, printed) == (0, cite("FedFW", "feddualavg"))
    *_, folder, sign, _ = second.split()
    assert sign == ">"
    fedcon("compare", "small.toml", "--rounds", "1", "--run-dir", folder)
    _, printed, _ = fedcon("cite", folder)
    assert (
        printed == cite("small.toml") == cite(Path(folder)) == cite("FedFW", "FedFWPlus", "fedmid")
    )
    assert list(parsed(cite(f"{folder}/fedfwplus"))) == ["dadras2022federated", "flower_fedcon"]


def test_what_has_no_paper_says_so(fedcon):
    class Uncited(FedAvg):
        """Mine."""

        name = "uncited"

    class UncitedClient(FedAvgClient):
        algorithm = "uncited"

    register(Uncited, UncitedClient)
    Path("race.toml").write_text("[problem]\nname = 'lasso'\n[run]\nrounds = 1\n[algorithm]\n")
    first, second, *_ = (text := cite("uncited", "race.toml")).split("\n\n")
    assert first.startswith("% Uncited: its module names no paper")
    assert second == "% auto: the method that a race has chosen is to be named"
    assert list(parsed(text)) == ["flower_fedcon"]


def test_a_source_alone_is_enough_of_a_card(fedcon, monkeypatch):
    Path("sourced.py").write_text(
        '"""Mine.\n\nSource: Ada Lovelace, Kurt Gödel,\n"On it", ICML 2022 (arXiv:2201.1).\n"""\n'
        "from flower_fedcon.clients import FedAvgClient\n"
        "from flower_fedcon.registry import register\n"
        "from flower_fedcon.strategies import FedAvg\n"
        'class Sourced(FedAvg):\n    """Mine."""\n    name = "sourced"\n'
        'class SourcedClient(FedAvgClient):\n    algorithm = "sourced"\n'
        "register(Sourced, SourcedClient)\n"
    )
    monkeypatch.syspath_prepend(".")
    assert list(parsed(cite("sourced:Sourced"))) == ["lovelace2022it", "flower_fedcon"]


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ("fedwf", "'fedwf' is no method, and there is no such experiment file or folder"),
        ("empty", "empty holds no run: it has no config.toml in it, nor below"),
    ],
)
def test_refusals(fedcon, of, words):
    Path("empty").mkdir()
    assert words in refusal(fedcon, "cite", of)
    with pytest.raises(ConfigError, match=re.escape(words)):
        cite(of)


def test_only_the_form_of_a_source_is_read():
    assert papers_in('The authors\' code; "a title" alone, 2022.') == []
    (paper,) = papers_in('of A. B. Cee, Dee Eff-Gee, "T: on (it)!", SIAM J. Sci. 2014 (NIM).')
    assert (paper.authors, paper.venue) == (("A. B. Cee", "Dee Eff-Gee"), "SIAM J. Sci.")
