"""Whether the inputs of a run that is repeated from its folder are still what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.folders import label_slug
from flower_fedcon.lab.experiments.study import home_of, runs_of
from flower_fedcon.runs.checkpoint import Fingerprint, changed_inputs, described_inputs
from flower_fedcon.runs.console import say
from flower_fedcon.runs.directory import CONFIG, HISTORY

Digests: TypeAlias = dict[str, list[str]]


def say_what_changed(file: Path, experiment: Experiment) -> None:
    """Say which inputs differ from those of the run that has written this file, if one has.

    Inputs are what the file names, but does not contain: data, traces, code. What the command line
    changes is left out.

    Parameters
    ----------
    file : Path
        An experiment file. Only one of the name config.toml can be of a run directory.
    experiment : Experiment
        It, with the changes of the command line.
    """
    if file.name != CONFIG:
        return
    before, labels = Experiment.load(file), experiment.labels
    before.share_problem(experiment)
    if experiment.sweep:
        _say_of_study(file.parent, before, experiment)
        return
    for i, label in enumerate(labels):
        seed = f"seed-{experiment.run_options.seed}"
        places = [file.parent] if len(labels) == 1 else []
        with suppress(KeyError):  # the command line gives it another name
            places += [file.parent / label_slug(label, before.labels)]
        places += [place / seed for place in places]
        for folder in places:
            if not (folder / HISTORY).exists():
                continue
            changes = _changes(folder, before, experiment, i, {})
            if changes:
                say(f"{label}: not with the inputs of {folder}: {'; '.join(changes.values())}")


def _say_of_study(folder: Path, before: Experiment, experiment: Experiment) -> None:
    """Say each change once, and of how many of a study's runs it is."""
    then = runs_of(before)
    labels = list(dict.fromkeys(run.label for run in then))
    homes = {(run.label, run.seed): home_of(run, labels, folder) for run in then}
    asked = {(run.label, run.seed): run.experiment for run in then}
    problems: list[Experiment] = []  # one for each problem, which runs share
    played, counts, digests = 0, Counter[str](), dict[int, Digests]()
    for run in runs_of(experiment):
        name, now = (run.label, run.seed), run.experiment
        if name not in homes or not (homes[name] / HISTORY).exists():
            continue
        for other in problems:
            now.share_problem(other)
        if all(now.problem() is not other.problem() for other in problems):
            problems.append(now)
        asked[name].share_problem(now)
        tuned = now.grid(run.label) if experiment.sweep.get("tune") else {}
        played += 1
        counts.update(_changes(homes[name], asked[name], now, 0, digests, tuned).values())
    for change, number in counts.items():
        say(f"not with the inputs of {number} of the {played} runs in {folder}: {change}")


def _changes(
    folder: Path,
    before: Experiment,
    experiment: Experiment,
    index: int,
    digests: dict[int, Digests],
    without: Container[str] = (),
) -> dict[str, str]:
    """Return what has changed since the run in a folder, apart from what a command has changed."""
    asked, now = (_inputs(one, index, digests) for one in (before, experiment))
    kept = {k: v for k, v in now.items() if asked.get(k) == v and k not in without}
    return changed_inputs(folder, kept, experiment.strategy(index)) if kept else {}


def _inputs(experiment: Experiment, index: int, digests: dict[int, Digests]) -> Fingerprint:
    """Return what stands for the inputs of an algorithm's run; `digests` are of its problem."""
    if experiment.races(index):
        return {}
    problem = experiment.problem()
    if id(problem) not in digests:
        digests[id(problem)] = problem.digests()
    return described_inputs(experiment.strategy(index), experiment.clock, digests[id(problem)])
