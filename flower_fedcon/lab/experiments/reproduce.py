"""The papers' claims and the measurements: `fedcon reproduce`; see `claims`."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

from flower_fedcon.errors import ConfigError, FedConError, nearest
from flower_fedcon.lab.experiments.claims import Claims
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.figures import Curves
from flower_fedcon.lab.experiments.folders import label_slug
from flower_fedcon.lab.experiments.runner import Job, Played, play_jobs
from flower_fedcon.lab.experiments.sweeps import Scaling
from flower_fedcon.lab.experiments.verdicts import Verdict
from flower_fedcon.registry import algorithms
from flower_fedcon.runs.citing import plain
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.relative import with_relative
from flower_fedcon.runs.toml import read_toml

# --- running -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reproduction:
    """The result of `reproduce`.

    Attributes
    ----------
    verdicts : list of Verdict
    seconds : dict
        Processor seconds of the runs, by experiment.
    elapsed : float
        Total wall-clock seconds.
    left_out : int
        The number of rows that were not measured, since they need the full run, or a file.
    scalings : dict
        The data of fits of claims about scalings, by experiment.
    quick : bool
        Whether it is the quick run.
    panels : dict
        The panels of figures that are laid out as the papers', by the first author.
    """

    verdicts: list[Verdict]
    seconds: dict[str, float]
    elapsed: float
    left_out: int
    scalings: dict[str, list[Scaling]] = field(default_factory=dict)
    quick: bool = False
    panels: dict[str, list[Curves]] = field(default_factory=dict)


LABORATORY = Path(__file__).parents[1]
IN_A_WHEEL, IN_A_CLONE = LABORATORY / "sims", LABORATORY.parents[1] / "sims"
PACKAGED = IN_A_WHEEL if IN_A_WHEEL.is_dir() else IN_A_CLONE
"""The experiments and claims in the package."""


class Entry(NamedTuple):
    """The entry of a claims file in `fedcon reproduce --list`, by which it can be found.

    Attributes
    ----------
    path : Path
    paper : str
        Its authors' surnames, short title, venue and year; several papers with semicolons.
    figure : str
        The part of the paper.
    methods : list of str
        The methods of its experiment.
    claims : int
        The number of its claims.
    """

    path: Path
    paper: str
    figure: str
    methods: list[str]
    claims: int

    @classmethod
    def read(cls, path: Path) -> Entry:
        """Return the content of a file, unchecked."""
        tables = read_toml(path)
        experiment = path.parent.parent / tables.get("experiment", f"{path.stem}.toml")
        played = read_toml(experiment) if experiment.is_file() else {}
        every = [played.get("algorithm", {}), *played.get("compare", [])]
        methods = dict.fromkeys(str(table["name"]) for table in every if "name" in table)
        paper, figure = tables.get("paper", ""), tables.get("figure", "")
        return cls(path, paper, figure, [*methods], len(tables.get("claim", [])))

    def answers(self, name: str) -> bool:
        """Return whether a name belongs to one of the methods, an author, or a paper."""
        parts = {plain(part) for part in re.split("[,;:]", self.paper)}
        if number := _ARXIV.fullmatch(name.lower()):
            return any(
                plain(paper.title) in plain(self.paper) or parts >= {*map(plain, paper.surnames)}
                for kind in algorithms().values()
                for paper in kind.card().papers
                if paper.arxiv == number[1]
            )
        return plain(name) in parts | {*map(plain, self.methods)}


_ARXIV = re.compile(r"(?:arxiv:)?(\d{4}\.\d{4,5})(?:v\d+)?")


def find(sims: Path | None = None, names: Sequence[str] = ()) -> list[Path]:
    """Return the claims files of a folder, or those with the given names.

    A name is that of an experiment, of a method in experiments, of an author of their papers, or a
    paper's number on arXiv. By default the folder is ``sims`` in the working directory, if it
    exists, otherwise that of the package.
    """
    if sims is None:
        here = Path("sims")
        sims = here if (here / "claims").is_dir() else PACKAGED
    files = {path.stem: path for path in sorted((sims / "claims").glob("*.toml"))}
    if not files:
        raise ConfigError(f"{sims / 'claims'} holds no claims: give the folder with --sims")
    chosen: dict[Path, None] = {}
    for name in names or files:
        matching = [files[name]] if name in files else []
        matching = matching or [path for path in files.values() if Entry.read(path).answers(name)]
        if not matching:
            raise ConfigError(
                f"unknown claims {name!r}: no experiment's, and no method's, author's or arXiv "
                f"number's of one, as fedcon reproduce --list shows them; {nearest(name, files)}"
            )
        chosen |= dict.fromkeys(matching)
    return list(chosen)


def reproduce(
    paths: Sequence[Path],
    *,
    quick: bool = False,
    workers: int = 2,
    folder: Path | None = None,
    recalled: Sequence[Path] = (),
    earlier: Path | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Reproduction:
    """Run the experiments that claims files need, and judge the claims.

    Parameters
    ----------
    paths : sequence of Path
        Claims files.
    recalled, earlier : sequence of Path, Path
        Further claims files, which are not run, and the file with their earlier measurements, as
        `to_json` has them.
    quick : bool
        Whether to measure fewer claims, with fewer rounds.
    workers : int
        Processes.
    folder : Path, optional
        Keeps each run in a subfolder; a finished run is not repeated.
    say : callable
        Called with a line of text after each run.

    Raises
    ------
    FedConError
        If a file cannot be used, or a run fails.
    """
    began = time.perf_counter()
    every = [Claims(path, quick=quick) for path in paths]
    files = [claims for claims in every if claims.claims and not claims.skipped]
    needed: dict[Job, list[tuple[str, tuple[Any, ...]]]] = {}  # file and key of claims
    for claims in files:
        for key, experiment in claims.runs():
            job = _job(claims.name, key[0], experiment, folder)
            needed.setdefault(job, []).append((claims.name, key))
    runs: dict[str, dict[tuple[Any, ...], Sequence[Record]]] = {c.name: {} for c in files}
    seconds = dict.fromkeys(runs, 0.0)
    wanted = list(needed.values())
    for done, (i, played) in enumerate(play_jobs(list(needed), workers=workers), start=1):
        (name, (label, seed, *value)), *others = wanted[i]
        if played.error:
            raise FedConError(f"{name}: {label}: {played.error}")
        rows = _with_totals(played)
        for each, key in wanted[i]:
            runs[each][key] = rows
        seconds[name] += played.seconds
        place = "".join(f", at {number:g}" for number in value if not others)
        spent = "found" if played.found else f"{played.seconds:.1f} s"
        say(f"{done}/{len(needed)}: {name}: {label}, seed {seed}{place}, {spent}")
    judged = [v for claims in files for v in claims.judge(runs[claims.name])]
    if earlier is not None:
        kept = [Claims(path, quick=quick) for path in recalled]
        every += kept
        judged += _recall(kept, earlier, quick)
    shown = {text for claims in every for text in claims.shown}
    verdicts = [replace(v, companion=f"{v.experiment}: {v.what}" in shown) for v in judged]
    left_out = sum(len(claims.claims) + claims.left_out for claims in every) - len(verdicts)
    scalings = {claims.name: claims.scalings(runs[claims.name]) for claims in files}
    drawn = {name: fits for name, fits in scalings.items() if fits}
    panels: dict[str, list[Curves]] = {}
    for claims in files:
        if curves := claims.curves(runs[claims.name]):
            panels.setdefault(first_author(claims.paper), []).extend(curves)
    for figure in panels.values():
        figure.sort(key=lambda curves: curves.title)
    elapsed = time.perf_counter() - began
    return Reproduction(verdicts, seconds, elapsed, left_out, drawn, quick, panels)


def first_author(paper: str) -> str:
    """Return the first surname of a paper, in small letters.

    >>> first_author("Dadras, Prakhya, Yurtsever, Federated Frank-Wolfe Algorithm")
    'dadras'
    """
    return plain(paper.partition(",")[0])


def caption(paper: str, paths: Iterable[Path]) -> str:
    """Return what stands in the figure laid out as those of a paper, by its first author; or ""."""
    parts = []
    for path in paths:
        tables = read_toml(path)
        if first_author(tables.get("paper", "")) == paper:
            parts += [f"{panel['title']}, for {tables['figure']}: {panel['differs']}"
                      for panel in tables.get("panel", [])]  # fmt: skip
    if not parts:
        return ""
    return f"Our runs in the layout of the paper's figures. {'. '.join(sorted(parts))}."


def _recall(files: Sequence[Claims], earlier: Path, quick: bool) -> list[Verdict]:
    """Return the verdicts on claims that were measured earlier, with what their files say now."""
    tables = json.loads(earlier.read_text(encoding="utf-8"))
    if tables["quick"] != quick:
        other = "with" if tables["quick"] else "without"
        raise ConfigError(f"{earlier} is of a run {other} --quick: give the other one's file")
    stored = {(each["experiment"], each["what"]): each for each in tables["claims"]}
    found = []
    for claims in files:
        for claim in claims.claims:
            measured = stored.get((claims.name, claim["what"]))
            if measured is not None:
                found.append(claims.recall(claim, measured))
            elif not claims.skipped:
                raise ConfigError(
                    f"{earlier} has no measurement of {claims.name}: {claim['what']}; name "
                    f"{claims.name}, to run it"
                )
    return found


def _job(name: str, label: str, experiment: Experiment, folder: Path | None) -> Job:
    """Return the job of one run; its folder is named after all its settings."""
    index = experiment.labels.index(label)
    toml = experiment.to_toml(index)
    if folder is not None:
        digest = hashlib.sha256(toml.encode()).hexdigest()[:12]
        folder = (folder / name / f"{label_slug(label, [label])}-{digest}").resolve()
    return Job(experiment.source, toml, folder=folder)


def _with_totals(played: Played) -> list[Record]:
    """Return a run's rows with the further columns that claims can use."""
    rows = with_relative(played.rows)
    for row in rows:
        row["bytes"] = row["uplink_bytes"] + row["downlink_bytes"]
        row["megabytes"] = row["bytes"] / 1e6
    return rows


# --- output --------------------------------------------------------------------------------------

TITLES = ("What is claimed", "What was run: what was measured", "Verdict", "Why")
WORDS = {"pass": "holds", "explained": "explained", "not explained": "open", "fail": "fails"}
"""The words for a claim's verdict, from the best to the worst."""


class Claim(NamedTuple):
    """What a source says, with the verdicts on its parts."""

    says: str
    parts: list[Verdict]

    @property
    def kind(self) -> str:
        """The kind of the claim: one of `claims.COUNTED`."""
        return self._judged[0].kind

    @property
    def end(self) -> str:
        """The worst verdict of the parts, companions aside, as in `WORDS`."""
        worst = list(WORDS)
        return max((part.verdict for part in self._judged), key=worst.index)

    @property
    def word(self) -> str:
        """The word for the verdict."""
        return WORDS[self.end] if self.kind != "companions" else "not judged"

    @property
    def _judged(self) -> list[Verdict]:
        return [part for part in self.parts if part.kind != "companions"] or self.parts

    def cells(self) -> list[str]:
        """Return the row, as in `TITLES`."""
        letters: dict[str, str] = {}
        if len(self.parts) > 1:
            letters = {
                _key(p): f"({each})" for p, each in zip(self.parts, _letters(), strict=False)
            }
        stated = [*(part.where for part in self._judged), *(part.source for part in self._judged)]
        origin = "; ".join(text for text in dict.fromkeys(stated) if text not in ("", "ours"))
        ran = [_part(part, letters, self.says) for part in self.parts]
        why = [_why(part, letters) for part in self.parts if part.note]
        says = f"{self.says} ({origin})" if origin else self.says
        return [says, "\n".join(ran), self.word, "\n".join(why)]


def _key(verdict: Verdict) -> str:
    return f"{verdict.experiment}: {verdict.what}"


def _letters() -> Iterator[str]:
    return (first + last for first in ("", *ascii_lowercase) for last in ascii_lowercase)


def _part(verdict: Verdict, letters: Mapping[str, str], says: str) -> str:
    """Return what was run, its number, and what was claimed of it."""
    what = "" if verdict.what == says else f"{verdict.what}: "
    return "; ".join(
        [
            f"{_marked(verdict, letters)}{what}**{verdict.measured}**",
            f"claimed {verdict.claimed} ({verdict.bound})",
            *_seeds(verdict),
            f"`{verdict.experiment}`",
        ]
    )


def _marked(verdict: Verdict, letters: Mapping[str, str]) -> str:
    """Return a part's letter, and whether it is a companion."""
    mark = letters.get(_key(verdict), "")
    return f"{mark} companion: ".lstrip() if verdict.kind == "companions" else f"{mark} ".lstrip()


def _why(verdict: Verdict, letters: Mapping[str, str]) -> str:
    """Return why a part does not hold, or on what a claim depends, and which parts show it."""
    mark = letters.get(_key(verdict), "") if verdict.verdict != "pass" else ""
    shown = [
        letters.get(text) or letters.get(f"{verdict.experiment}: {text}") or f'"{text}"'
        for text in verdict.shown_by
    ]
    by = f". Shown by {_listed(shown)}" if shown else ""
    return f"{mark} {verdict.note}{by}".strip()


def _listed(names: Sequence[str]) -> str:
    """Return names as text.

    >>> _listed(["(a)"]), _listed(["(a)", "(b)", "(c)"])
    ('(a)', '(a), (b) and (c)')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _seeds(verdict: Verdict) -> list[str]:
    """Return over how many seeds a claim was judged, if anything is random.

    >>> example = Verdict("lasso", "it falls", "", "ours", "", "order", "", "pass", "", ())
    >>> _seeds(example), _seeds(replace(example, seeds=1, few_seeds="an hour each"))
    ([], ['one seed: an hour each'])
    """
    if not verdict.seeds:
        return []
    number = "one seed" if verdict.seeds == 1 else f"{verdict.seeds} seeds"
    return [f"{number}: {verdict.few_seeds}" if verdict.few_seeds else number]


def grouped(verdicts: Iterable[Verdict]) -> dict[str, list[Claim]]:
    """Return the claims of each paper, and then those of this collection, with their parts."""
    claims: dict[tuple[bool, str, str], list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda v: (v.kind == "ours", v.paper, v.experiment)):
        key = verdict.kind == "ours", verdict.paper, verdict.says
        claims.setdefault(key, []).append(verdict)
    papers: dict[str, list[Claim]] = {}
    for (ours, paper, says), parts in claims.items():
        parts.sort(key=lambda part: part.kind == "companions")
        papers.setdefault(OURS if ours else paper, []).append(Claim(says, parts))
    return papers


OURS = "Ours: checks and findings of this collection"


def tally(verdicts: Iterable[Verdict]) -> str:
    """Return how many claims hold, or fail, or are not judged.

    >>> tally([])
    'Of 0 claims of the papers 0 hold; of 0 claims of ours 0 hold.'
    """
    tables = grouped(verdicts)
    ours = tables.pop(OURS, [])
    papers = [claim for claims in tables.values() for claim in claims]
    counted = (f"{len(claims)} claims of {whose} {_ends(claims)}"
               for claims, whose in ((papers, "the papers"), (ours, "ours")))  # fmt: skip
    return f"Of {'; of '.join(counted)}."


def _ends(claims: Sequence[Claim]) -> str:
    """Return how many claims end how; 0 only of those that hold."""
    words = [claim.word for claim in claims]
    known, without = words.count("explained"), words.count("open") + words.count("fails")
    counted = {"hold": words.count("holds")}
    if known or without:
        counted["fail for a reason that is shown"] = known
    if without:
        counted["fail without one"] = without
    if others := words.count("not judged"):
        counted["are not judged"] = others
    *found, last = [f"{number} {_singular(end) if number == 1 else end}"
                    for end, number in counted.items()]  # fmt: skip
    return f"{', '.join(found)}, and {last}" if found else last


def _singular(end: str) -> str:
    verb, space, rest = end.partition(" ")
    return f"{'is' if verb == 'are' else verb + 's'}{space}{rest}"


def summary(outcome: Reproduction) -> str:
    """Return the tally, what changed or was not run, and the time.

    >>> summary(Reproduction([], {"lasso": 4.0}, 3.0, 2)).partition(". ")[2]
    'No longer as recorded: 0; 2 not run; 3 s, processors 4 s'
    """
    changed = sum(verdict.verdict == "fail" for verdict in outcome.verdicts)
    parts = [f"No longer as recorded: {changed}"]
    if outcome.left_out:
        parts.append(f"{outcome.left_out} not run")
    spent = f"{outcome.elapsed:.0f} s, processors {sum(outcome.seconds.values()):.0f} s"
    return f"{tally(outcome.verdicts)} {'; '.join([*parts, spent])}"


def to_json(outcome: Reproduction) -> str:
    """Return everything as JSON; numbers that are not finite are null."""

    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    claims = [{**vars(v), "values": [plain(x) for x in v.values]} for v in outcome.verdicts]
    tables = {
        "quick": outcome.quick,
        "claims": claims,
        "seconds": outcome.seconds,
        "elapsed": outcome.elapsed,
        "left_out": outcome.left_out,
    }
    return json.dumps(tables, indent=2, ensure_ascii=False) + "\n"


def to_markdown(outcome: Reproduction) -> str:
    """Return a table for each paper, and one of this collection's claims, in Markdown."""
    lines = [tally(outcome.verdicts)]
    for paper, claims in grouped(outcome.verdicts).items():
        lines += ["", f"### {paper}", "", f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)]
        for claim in claims:
            row = [cell.replace("|", "\\|").replace("\n", "<br>") for cell in claim.cells()]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"
