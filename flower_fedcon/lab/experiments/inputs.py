"""Whether the inputs of a run that is repeated from its folder are still what they were."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.folders import label_slug
from flower_fedcon.runs.checkpoint import Fingerprint, changed_inputs, described_inputs
from flower_fedcon.runs.console import say
from flower_fedcon.runs.directory import CONFIG, HISTORY


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
    for i, label in enumerate(labels):
        seed = f"seed-{experiment.run_options.seed}"
        places = [file.parent] if len(labels) == 1 else []
        with suppress(KeyError):  # the command line gives it another name
            places += [file.parent / label_slug(label, before.labels)]
        places += [place / seed for place in places]
        for folder in places:
            if not (folder / HISTORY).exists():
                continue
            asked, now = _inputs(before, i), _inputs(experiment, i)
            kept = {name: entry for name, entry in now.items() if asked.get(name) == entry}
            changes = changed_inputs(folder, kept)
            if changes:
                say(f"{label}: not with the inputs of {folder}: {'; '.join(changes.values())}")


def _inputs(experiment: Experiment, index: int) -> Fingerprint:
    """Return what stands for the inputs of an algorithm's run."""
    if experiment.races(index):
        return {}
    digests = experiment.problem().digests()
    return described_inputs(experiment.strategy(index), experiment.clock, digests)
