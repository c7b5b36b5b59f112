"""The papers' claims and the measurements: `fedcon reproduce`; see `claims`."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from flower_fedcon.errors import ConfigError, FedConError, nearest
from flower_fedcon.lab.experiments.claims import COUNTED, MANY, Claims
from flower_fedcon.lab.experiments.experiment import Experiment
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
        The number of claims that were not measured, since they need the full run, or a file.
    scalings : dict
        The data of fits of claims about scalings, by experiment.
    """

    verdicts: list[Verdict]
    seconds: dict[str, float]
    elapsed: float
    left_out: int
    scalings: dict[str, list[Scaling]] = field(default_factory=dict)


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
    say: Callable[[str], object] = lambda _: None,
) -> Reproduction:
    """Run the experiments that claims files need, and judge the claims.

    Parameters
    ----------
    paths : sequence of Path
        Claims files.
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
    shown = {text for claims in every for text in claims.shown}
    judged = [v for claims in files for v in claims.judge(runs[claims.name])]
    verdicts = [replace(v, companion=f"{v.experiment}: {v.what}" in shown) for v in judged]
    left_out = sum(len(c.claims) + c.left_out if c.skipped else c.left_out for c in every)
    scalings = {claims.name: claims.scalings(runs[claims.name]) for claims in files}
    drawn = {name: fits for name, fits in scalings.items() if fits}
    return Reproduction(verdicts, seconds, time.perf_counter() - began, left_out, drawn)


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

TITLES = (
    "Experiment", "Claim", "Where", "Source", "Claimed", "Bound", "Measured", "Seeds", "Verdict",
    "Why",
)  # fmt: skip


def cells(verdict: Verdict) -> list[str]:
    """Return a verdict's row, as in `TITLES`."""
    return [
        verdict.experiment,
        verdict.what,
        verdict.where,
        f"{verdict.source} (companion)" if verdict.kind == "companions" else verdict.source,
        verdict.claimed,
        verdict.bound,
        verdict.measured,
        _seeds(verdict),
        "open" if verdict.verdict == "not explained" else verdict.verdict,
        verdict.note,
    ]


def in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the papers' claims, and then those of this collection."""
    return sorted(verdicts, key=lambda verdict: verdict.kind == "ours")


def _seeds(verdict: Verdict) -> str:
    """Return over how many seeds a claim was judged, "-" if nothing is random.

    >>> example = Verdict("lasso", "it falls", "", "ours", "", "order", "", "pass", "", ())
    >>> _seeds(example), _seeds(replace(example, seeds=1, few_seeds="an hour each"))
    ('-', 'one seed: an hour each')
    """
    if not verdict.seeds:
        return "-"
    if verdict.seeds >= MANY:
        return str(verdict.seeds)
    number = "one seed" if verdict.seeds == 1 else f"{verdict.seeds} seeds"
    return f"{number}: {verdict.few_seeds}" if verdict.few_seeds else number


def summary(outcome: Reproduction) -> str:
    """Return how many claims hold, or do not and whether it is known why; and the time.

    >>> for part in summary(Reproduction([], {"lasso": 4.0}, 3.0, 2)).split("; ")[:2]:
    ...     print(part)
    papers' claims that hold: 0
    that fail, and an experiment shows why: 0
    """
    of: dict[str, list[Verdict]] = {kind: [] for kind in COUNTED}
    for verdict in outcome.verdicts:
        of[verdict.kind].append(verdict)
    papers = of["papers' claims"]
    parts = [
        f"papers' claims that hold: {_ending(papers, 'pass')}",
        f"that fail, and an experiment shows why: {_ending(papers, 'explained')}",
        f"that fail and are open: {_ending(papers, 'not explained')}",
        f"of ours that hold: {_ending(of['ours'], 'pass')}",
        f"no longer as recorded: {_ending(outcome.verdicts, 'fail')}",
    ]
    if outcome.left_out:
        parts.append(f"{outcome.left_out} not run")
    spent = f"{outcome.elapsed:.0f} s, processors {sum(outcome.seconds.values()):.0f} s"
    return "; ".join([*parts, spent])


def _ending(verdicts: Sequence[Verdict], end: str) -> int:
    return sum(verdict.verdict == end for verdict in verdicts)


def to_json(outcome: Reproduction) -> str:
    """Return everything as JSON; numbers that are not finite are null."""

    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    claims = [{**vars(v), "values": [plain(x) for x in v.values]} for v in outcome.verdicts]
    tables = {
        "claims": claims,
        "seconds": outcome.seconds,
        "elapsed": outcome.elapsed,
        "left_out": outcome.left_out,
    }
    return json.dumps(tables, indent=2, ensure_ascii=False) + "\n"


def to_markdown(outcome: Reproduction) -> str:
    """Return the table in Markdown."""
    lines = [f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)]
    for verdict in in_order(outcome.verdicts):
        row = [cell.replace("|", "\\|") for cell in cells(verdict)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", summary(outcome)]) + "\n"
