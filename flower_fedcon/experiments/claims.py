"""The papers' claims, as files.

A claims file, ``sims/claims/NAME.toml``, belongs to an experiment file:

    paper = "..."
    figure = "Figure 1"
    experiment = "NAME.toml"            # the default: the file of the same name, a folder up
    requires = "u.data"                 # a file without which these claims are skipped
    rounds = 10000                      # of the full run; by default the experiment's
    algorithms = ["FedFW", "FedFWPlus"] # to run besides those that claims name
    set = ["run.evaluate_every=10"]     # overrides
    seeds = [0]
    vary = ["run.seed"]                 # what a seed sets

    [quick]                             # replaces entries above in the quick run, or quick = false
    rounds = 1000

    [[claim]]
    what = "FedFW falls at least as fast as t^(-1/2)"
    where = "Theorem 1"
    measure = "slope"                   # one of `MEASURES`, with its own keys
    algorithm = "FedFW"
    column = "total"
    below = -0.5                        # or above, or near = ... and within = ... (relative)
    quick = {until = 1000}              # replaces entries, or false: not in the quick run
    explained = "..."                   # why it does not hold, where that is known

Where a claim covers several rounds, algorithms or seeds, the worst of them counts. Columns are
those of the history, and "relative" (residual / |F*|), "bytes" and "megabytes" (up and down).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.experiments.experiment import Experiment
from flower_fedcon.experiments.measures import MEASURES, Runs, listed
from flower_fedcon.experiments.schema import Table, check_keys, check_table, check_type, context
from flower_fedcon.runs.history import Record
from flower_fedcon.validation import choice, count

_NUMBERS = (int, float)
_TYPES: dict[str, Any] = {
    "what": str, "where": str, "measure": str, "explained": str, "algorithm": str, "column": str,
    "over": str | list, "algorithms": list, "round": int | list, "level": float, "since": int,
    "of": str, "until": int, "below": float, "above": float, "near": float | list, "within": float,
    "quick": bool | dict,
}  # fmt: skip
_THRESHOLDS = ("below", "above", "near")
_SHARED = ("what", "where", "measure", "explained", "quick", *_THRESHOLDS, "within")
_OPTIONS: dict[str, Any] = {
    "rounds": int, "algorithms": list, "set": list, "seeds": list, "vary": list
}  # fmt: skip
_TEXTS = ("paper", "figure", "experiment", "requires")
_TOP = (*_TEXTS, *_OPTIONS, "quick", "claim")


@dataclass(frozen=True)
class Verdict:
    """A claim with what was measured.

    Attributes
    ----------
    experiment, what, where : str
    claimed, measured : str
        As the table shows them.
    verdict : {"pass", "fail", "explained"}
    note : str
        Why a claim that is known not to hold does not.
    values : tuple of float
        Everything measured: for each seed, each algorithm and each round.
    """

    experiment: str
    what: str
    where: str
    claimed: str
    measured: str
    verdict: str
    note: str
    values: tuple[float, ...]


class Claims:
    """A checked claims file.

    Parameters
    ----------
    path : path
    quick : bool
        Apply the entries for the quick run.

    Attributes
    ----------
    name, paper, figure, requires : str
    experiment : Path
    seeds : list of int
    skipped : bool
        Whether its claims are skipped: they are not in the quick run, or a file is missing.

    Raises
    ------
    ConfigError
        If an entry is missing, unknown or of the wrong type.
    """

    def __init__(self, path: Path, *, quick: bool = False) -> None:
        self.name, self._source, self._quick = path.stem, str(path), quick
        tables = _read(path)
        with context(self._source):
            check_keys(tables, _TOP)
            for key in _TEXTS:
                check_type(key, tables.get(key, ""), str)
            self.paper, self.figure = tables.get("paper", ""), tables.get("figure", "")
            file = tables.get("experiment", f"{path.stem}.toml")
            self.experiment = path.parent.parent / file
            changes = tables.get("quick", {})
            self.requires = tables.get("requires", "")
            missing = bool(self.requires) and not Path(self.requires).exists()
            self.skipped = missing or (quick and changes is False)
            if changes is not False:
                check_table(changes, "[quick]")
                with context("[quick]"):
                    check_keys(changes, _OPTIONS)
            options = {key: tables[key] for key in _OPTIONS if key in tables}
            if quick and changes:
                options |= changes
            for key, value in options.items():
                check_type(key, value, _OPTIONS[key])
            self._options = options
            self.seeds = [count("seeds", s, minimum=0) for s in options.get("seeds", [0])]
            given = tables.get("claim", [])
            if not isinstance(given, list) or not given:
                raise ConfigError("write [[claim]], in double brackets, for each claim")
            self.claims = []
            for i, table in enumerate(given, start=1):
                with context(f"[[claim]] {i}"):
                    claim = _checked(table, quick)
                    if claim is not None:
                        self.claims.append(claim)
            self.left_out = len(given) - len(self.claims)

    def overrides(self, seed: int) -> tuple[str, ...]:
        """Return what `Experiment.load` is given."""
        found = [str(text) for text in self._options.get("set", [])]
        if "rounds" in self._options:
            found.append(f"run.rounds={self._options['rounds']}")
        if "seeds" in self._options:
            found += [f"{key}={seed}" for key in self._options.get("vary", ["run.seed"])]
        return tuple(found)

    def runs(self) -> list[tuple[str, int, Experiment]]:
        """Return the runs that the claims need: the label, the seed and the experiment of each."""
        with context(self._source):
            experiment = Experiment.load(self.experiment, self.overrides(self.seeds[0]))
            labels: list[str] = list(self._options.get("algorithms", []))
            for claim in self.claims:
                for key in ("algorithm", "algorithms", "over"):
                    labels += listed(claim.get(key, []))
            labels = list(dict.fromkeys(labels))
            for label in labels:
                if label not in experiment.labels:
                    hint = nearest(str(label), experiment.labels)
                    raise ConfigError(f"{self.experiment} has no algorithm {label!r}: {hint}")
        path = self.experiment.resolve()
        each = {seed: Experiment.load(path, self.overrides(seed)) for seed in self.seeds}
        return [(label, seed, each[seed]) for seed in self.seeds for label in labels]

    def judge(self, runs: Runs) -> list[Verdict]:
        """Return a verdict for each claim."""
        found = []
        for claim in self.claims:
            with context(self._source), context(claim["what"]):
                found.append(self._judge(claim, runs))
        return found

    def _judge(self, claim: Table, runs: Runs) -> Verdict:
        find = MEASURES[claim["measure"]].find
        measured = [find(claim, _of_seed(runs, seed)) for seed in self.seeds]
        values = [value for each in measured for value in each]
        if "near" in claim:
            targets = listed(claim["near"]) * len(measured)
            if len(targets) == len(measured):  # one target for all
                targets = [target for target in targets for _ in measured[0]]
            if len(targets) != len(values):
                raise ConfigError(f"near has {len(listed(claim['near']))} numbers for "
                                  f"{len(measured[0])} measured ones")  # fmt: skip
            errors = [abs(v - t) / (abs(t) or 1.0) for v, t in zip(values, targets, strict=True)]
            holds = max(errors) <= claim["within"]
            claimed = f"{_many(listed(claim['near']))} within {100 * claim['within']:g} %"
            text = f"{_named(claim, values)} (off by {100 * max(errors):.2g} %)"
        else:
            below = "below" in claim
            limit = claim["below" if below else "above"]
            worst = max(values) if below else min(values)
            # not-a-number passes nothing
            holds = all(v < limit if below else v > limit for v in values)
            claimed = f"{'<' if below else '>'} {_number(limit)}"
            text = _number(worst)
            if claim["measure"] == "cost":
                text = _named(claim, values)
            elif len(values) > 1:
                text += f" (worst of {len(values)}: {_number(min(values))} to "
                text += f"{_number(max(values))})"
        explained = str(claim.get("explained", ""))
        verdict = "pass" if holds else "explained" if explained else "fail"
        return Verdict(
            self.name,
            claim["what"],
            str(claim.get("where", self.figure)),
            claimed,
            text,
            verdict,
            "" if holds else explained,
            tuple(values),
        )


def _of_seed(runs: Runs, seed: int) -> Callable[[str], Sequence[Record]]:
    return lambda label: runs[label, seed]


def _read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _checked(table: Any, quick: bool) -> Table | None:
    """Return a claim with the quick run's entries applied, None if it is not in that run."""
    check_table(table, "[[claim]]")
    if "measure" not in table:
        raise ConfigError(f"measure is missing: it is one of {', '.join(sorted(MEASURES))}")
    choice("measure", table["measure"], tuple(MEASURES))
    measure = MEASURES[table["measure"]]
    changes = table.get("quick", {})
    check_type("quick", changes, bool | dict)
    claim: Table = {k: v for k, v in table.items() if k != "quick"}
    if isinstance(changes, dict):
        with context("quick"):
            check_keys(changes, [*_SHARED, *measure.required, *measure.optional])
        changed = set(changes)
        if quick and changed & set(_THRESHOLDS):
            claim = {k: v for k, v in claim.items() if k not in _THRESHOLDS}
        if quick:
            claim |= changes
    check_keys(claim, [*_SHARED, *measure.required, *measure.optional])
    for key in ("what", *measure.required):
        if key not in claim:
            raise ConfigError(f"{key} is missing: the measure {table['measure']!r} needs it")
    for key, value in claim.items():
        check_type(key, value, _TYPES[key])
    if sum(key in claim for key in _THRESHOLDS) != 1:
        raise ConfigError("give one of below, above, and near")
    if ("near" in claim) != ("within" in claim):
        raise ConfigError("near and within belong together: near = 4619, within = 0.02")
    numbers = listed(claim.get("near", [])) + listed(claim.get("round", []))
    if not all(isinstance(n, _NUMBERS) and not isinstance(n, bool) for n in numbers):
        raise ConfigError("near and round hold numbers only")
    return None if quick and changes is False else claim


def _number(value: float) -> str:
    """Return a number for a table.

    >>> _number(10559.2), _number(0.5), _number(1.3e-5), _number(float("inf"))
    ('10559', '0.5', '1.3e-05', 'never')
    """
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def _many(values: Iterable[float]) -> str:
    return ", ".join(map(_number, values))


def _named(claim: Table, values: Sequence[float]) -> str:
    """Return the values, with the algorithms' labels where there is one for each.

    >>> _named({"measure": "cost", "algorithms": ["FedFW", "FedDR"]}, [20.0, math.inf])
    'FedFW 20, FedDR never'
    """
    labels = claim["algorithms"] if claim["measure"] == "cost" else []
    if len(labels) != len(values):
        return _many(values)
    return ", ".join(f"{name} {_number(v)}" for name, v in zip(labels, values, strict=True))
