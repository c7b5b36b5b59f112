"""Measurements: rounds and megabytes of each method in the studies of sims/.

`studies.json` has the numbers. `measure`, called by `fedcon recommend --measure sims`, makes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from flower_fedcon.errors import FedConError
from flower_fedcon.lab.advice.facts import Facts, facts_of
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.runner import play
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.toml import write_value

STUDIES = {
    **{f"participation_{rate}": 1e-3 for rate in (10, 20, 50, 100)},
    **{f"participation_smooth_{rate}": 1e-3 for rate in (10, 20, 50, 100)},
    "fedfw_lasso": 1e-2,
    "feddualavg_low_rank": 1e-2,
    "digits_l1": 5e-2,
}
"""Experiment files in sims/, and the share of the first gap F(x0) - F* to which they are run."""


@dataclass(frozen=True)
class Measured:
    """The result of one method in one study.

    Attributes
    ----------
    algorithm : str
        The name of its class.
    label : str
        Its name in the study.
    settings : dict
        Its arguments in TOML.
    rounds : int, optional
        Rounds to the study's level; None if the run's rounds were not enough.
    megabytes : float, optional
        Megabytes of all clients, up and down, until then.
    """

    algorithm: str
    label: str
    settings: dict[str, str]
    rounds: int | None
    megabytes: float | None


@dataclass(frozen=True)
class Study:
    """One experiment, and the results of its methods.

    Attributes
    ----------
    name : str
        The name of its file in sims/.
    level : float
        The level to reach, as a share of F(x0) - F*.
    limit : int
        The number of rounds of each method.
    facts : Facts
    measured : list of Measured
    """

    name: str
    level: float
    limit: int
    facts: Facts
    measured: list[Measured]

    @property
    def command(self) -> str:
        """The command that repeats these measurements."""
        return f"fedcon compare sims/{self.name}.toml --rounds {self.limit}"

    def best(self, algorithm: str) -> Measured | None:
        """Return the best of a method's settings, by rounds; None if it was not tried."""
        tried = [each for each in self.measured if each.algorithm == algorithm]
        return min(tried, key=lambda each: each.rounds or math.inf, default=None)


@cache
def studies() -> list[Study]:
    """Return the studies whose numbers the package has."""
    text = resources.files(__package__).joinpath("studies.json").read_text(encoding="utf-8")
    return [_study(stated) for stated in json.loads(text)]


def _study(stated: Mapping[str, Any]) -> Study:
    facts = Facts(**stated["facts"])
    measured = [Measured(**each) for each in stated["measured"]]
    return Study(stated["name"], stated["level"], stated["limit"], facts, measured)


def nearest(facts: Facts) -> Study | None:
    """Return the study most similar to a problem; None if none has a term of its kind.

    The same set or regularizer counts most, then strong convexity, then the share of clients in a
    round, and their number.
    """

    def distance(study: Study) -> float:
        theirs = study.facts
        return (
            4.0 * (theirs.term != facts.term)
            + 1.0 * (theirs.strongly_convex != facts.strongly_convex)
            + abs(math.log(theirs.rate / facts.rate))
            + 0.2 * abs(math.log(theirs.clients / facts.clients))
        )

    alike = [
        study for study in studies()
        if facts.convex and study.facts.constrained == facts.constrained
        and bool(study.facts.term) == bool(facts.term) and facts.term not in ("functional", "each")
    ]  # fmt: skip
    return min(alike, key=distance, default=None)


def measure(
    sims: Path,
    names: Sequence[str] = tuple(STUDIES),
    say: Callable[[str], object] = lambda _: None,
) -> str:
    """Run the studies, and return the text of `studies.json`.

    Raises
    ------
    ConfigError
        If a file does not exist, or cannot be run.
    """
    cases = []
    for name in names:
        experiment = Experiment.load(sims / f"{name}.toml")
        problem, limit = experiment.problem(), experiment.run_options.rounds
        gap = problem.objective(problem.x0) - problem.optimum.value
        measured = []
        for i, label in enumerate(experiment.labels):
            rounds, megabytes = _cost(experiment, i, gap * STUDIES[name])
            settings = {k: write_value(v) for k, v in experiment.settings(label).items()}
            kind = type(experiment.strategy(i)).__name__
            measured.append({"algorithm": kind, "label": label, "settings": settings,
                             "rounds": rounds, "megabytes": megabytes})  # fmt: skip
            say(f"{name}: {label}: {rounds} rounds, {megabytes} MB")
        facts = facts_of(problem, experiment.strategy().participation)
        cases.append({"name": name, "level": STUDIES[name], "limit": limit,
                      "facts": facts.to_dict(), "measured": measured})  # fmt: skip
    return json.dumps(cases, indent=1) + "\n"


def _cost(experiment: Experiment, index: int, level: float) -> tuple[int | None, float | None]:
    """Return the rounds and megabytes after which the residual is at most a level."""

    def reached(row: Record) -> bool:
        return row["residual"] <= level and row.get("violation", 0.0) <= 1e-9

    plan = replace(experiment.run_options.plan(), callbacks=[reached])
    try:
        last = play(experiment, index, plan).rows[-1]
    except FedConError:  # it diverges
        return None, None
    if not reached(last):
        return None, None
    total = (last["uplink_bytes"] + last["downlink_bytes"]) / 1e6
    return int(last["round"]), float(f"{total:.4g}")
