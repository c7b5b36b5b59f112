"""The papers' claims beside what is measured: `fedcon reproduce`.

A claims file, ``sims/claims/NAME.toml``, belongs to an experiment file:

    paper = "..."
    figure = "Figure 1"
    experiment = "NAME.toml"            # the default: the file of the same name, a folder up
    requires = "u.data"                 # a file without which nothing of it is run
    rounds = 10000                      # of the full run; by default the experiment's
    algorithms = ["FedFW", "FedFWPlus"] # by default all that a claim names
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
those of the history, and "relative" (residual / |F*|) and "bytes" (up and down).
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.checks import Array, choice, count
from flower_fedcon.errors import ConfigError, FedConError, nearest
from flower_fedcon.experiments import Experiment
from flower_fedcon.history import History, Record
from flower_fedcon.tables import Table, check_keys, check_table, check_type, context

Runs: TypeAlias = Mapping[tuple[str, int], Sequence[Record]]  # (label, seed) -> rows


# --- measurements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A kind of measurement: the keys it takes besides the threshold's, and how it is found.

    `find` returns the measured numbers of one seed, one for each round or algorithm named.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    find: Callable[[Table, Callable[[str], Sequence[Record]]], list[float]]


def _value(claim: Table, rows: Callable[[str], Sequence[Record]]) -> list[float]:
    """Return the column at each round."""
    history = rows(claim["algorithm"])
    return [_at(history, claim["column"], number) for number in _rounds(claim, history)]


def _ratio(claim: Table, rows: Callable[[str], Sequence[Record]]) -> list[float]:
    """Return the column of one algorithm over that of each other one, at each round."""
    history = rows(claim["algorithm"])
    found = []
    for other in _listed(claim["over"]):
        for number in _rounds(claim, history):
            lower = _at(rows(other), claim["column"], number)
            upper = _at(history, claim["column"], number)
            found.append(upper / lower if lower else math.copysign(math.inf, upper))
    return found


def _lead(claim: Table, rows: Callable[[str], Sequence[Record]]) -> list[float]:
    """Return the column of one algorithm minus that of each other one, at each round."""
    history = rows(claim["algorithm"])
    return [
        _at(history, claim["column"], number) - _at(rows(other), claim["column"], number)
        for other in _listed(claim["over"])
        for number in _rounds(claim, history)
    ]


def _order(claim: Table, rows: Callable[[str], Sequence[Record]]) -> list[float]:
    """Return the ratio of each algorithm's column to the next one's: below 1 if in order."""
    found = []
    for number in _rounds(claim, rows(claim["algorithms"][0])):
        values = [_at(rows(label), claim["column"], number) for label in claim["algorithms"]]
        found += [a / b for a, b in itertools.pairwise(values)]
    return found


def _first(claim: Table, rows: Callable[[str], Sequence[Record]]) -> list[float]:
    """Return the first recorded round with the column at or below a level, inf if none is."""
    history = rows(claim["algorithm"])
    values = _column(history, claim["column"])
    reached = np.flatnonzero(values <= claim["level"])
    return [float(history[reached[0]]["round"]) if reached.size else math.inf]


def _slope(claim: Table, rows: Callable[[str], Sequence[Record]]) -> list[float]:
    """Return the exponent of t that fits the column between two rounds, by least squares."""
    history = rows(claim["algorithm"])
    numbers = _column(history, "round")
    values = _column(history, claim["column"])
    kept = (numbers >= claim.get("since", 1)) & (numbers <= claim.get("until", math.inf))
    if kept.sum() < 2 or not (values[kept] > 0).all():
        raise ConfigError("a slope needs two recorded rounds at least, with values above 0")
    return [float(np.polyfit(np.log(numbers[kept]), np.log(values[kept]), 1)[0])]


def _count(claim: Table, rows: Callable[[str], Sequence[Record]]) -> list[float]:
    """Return the number of recorded rounds with the column above a level."""
    values = _column(rows(claim["algorithm"]), claim["column"])
    return [float((values > claim["level"]).sum())]


MEASURES: dict[str, Measure] = {
    "value": Measure(("algorithm", "column"), ("round",), _value),
    "ratio": Measure(("algorithm", "over", "column"), ("round",), _ratio),
    "lead": Measure(("algorithm", "over", "column"), ("round",), _lead),
    "order": Measure(("algorithms", "column"), ("round",), _order),
    "first": Measure(("algorithm", "column", "level"), (), _first),
    "slope": Measure(("algorithm", "column"), ("since", "until"), _slope),
    "count": Measure(("algorithm", "column", "level"), (), _count),
}


def _rounds(claim: Table, history: Sequence[Record]) -> list[int]:
    return [int(n) for n in _listed(claim.get("round", history[-1]["round"]))]


def _at(history: Sequence[Record], column: str, number: int) -> float:
    for row in history:
        if row["round"] == number:
            return float(_column([row], column)[0])
    raise ConfigError(f"round {number} is not recorded: rounds up to {history[-1]['round']:g} are, "
                      "as evaluate_every says")  # fmt: skip


def _column(history: Sequence[Record], name: str) -> Array:
    columns = {key for row in history for key in row}
    if name not in columns:
        raise ConfigError(f"unknown column {name!r}: {nearest(name, columns)}")
    return np.array([row.get(name, math.nan) for row in history], dtype=float)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


# --- claims --------------------------------------------------------------------------------------

_NUMBERS = (int, float)
_TYPES: dict[str, Any] = {
    "what": str, "where": str, "measure": str, "explained": str, "algorithm": str, "column": str,
    "over": str | list, "algorithms": list, "round": int | list, "level": float, "since": int,
    "until": int, "below": float, "above": float, "near": float | list, "within": float,
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
        Whether nothing of it is to be run: not in the quick run, or a file is missing.

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

    def runs(self) -> list[tuple[Path, tuple[str, ...], str, int]]:
        """Return the runs it needs: the file, the overrides, the algorithm's label and the seed."""
        with context(self._source):
            experiment = Experiment.load(self.experiment, self.overrides(self.seeds[0]))
            labels: list[str] = list(self._options.get("algorithms", []))
            for claim in self.claims:
                for key in ("algorithm", "algorithms", "over"):
                    labels += _listed(claim.get(key, []))
            labels = list(dict.fromkeys(labels))
            for label in labels:
                if label not in experiment.labels:
                    hint = nearest(str(label), experiment.labels)
                    raise ConfigError(f"{self.experiment} has no algorithm {label!r}: {hint}")
        return [
            (self.experiment.resolve(), self.overrides(seed), label, seed)
            for seed in self.seeds
            for label in labels
        ]

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
            targets = _listed(claim["near"]) * len(measured)
            if len(targets) == len(measured):  # one target for all
                targets = [target for target in targets for _ in measured[0]]
            if len(targets) != len(values):
                raise ConfigError(f"near has {len(_listed(claim['near']))} numbers for "
                                  f"{len(measured[0])} measured ones")  # fmt: skip
            errors = [abs(v - t) / (abs(t) or 1.0) for v, t in zip(values, targets, strict=True)]
            holds = max(errors) <= claim["within"]
            claimed = f"{_many(_listed(claim['near']))} within {100 * claim['within']:g} %"
            text = f"{_many(values)} (off by {100 * max(errors):.2g} %)"
        else:
            below = "below" in claim
            limit = claim["below" if below else "above"]
            worst = max(values) if below else min(values)
            # not-a-number passes nothing
            holds = all(v < limit if below else v > limit for v in values)
            claimed = f"{'<' if below else '>'} {_number(limit)}"
            text = _number(worst)
            if len(values) > 1:
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
    numbers = _listed(claim.get("near", [])) + _listed(claim.get("round", []))
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


# --- running -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What `reproduce` found.

    Attributes
    ----------
    verdicts : list of Verdict
    seconds : dict
        Processor seconds of the runs, by experiment.
    elapsed : float
        Seconds in all, by the clock.
    left_out : int
        Claims that were not measured: they need the full run, or a file.
    """

    verdicts: list[Verdict]
    seconds: dict[str, float]
    elapsed: float
    left_out: int


def find(sims: Path, names: Sequence[str] = ()) -> list[Path]:
    """Return the claims files of a folder, or those of the names given."""
    files = {path.stem: path for path in sorted((sims / "claims").glob("*.toml"))}
    if not files:
        raise ConfigError(f"{sims / 'claims'} holds no claims: give the folder with --sims")
    for name in names:
        if name not in files:
            raise ConfigError(f"unknown claims {name!r}: {nearest(name, files)}")
    return [files[name] for name in names or files]


def reproduce(
    paths: Sequence[Path],
    *,
    quick: bool = False,
    workers: int = 2,
    say: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """Run the experiments that claims files need, and judge the claims.

    Parameters
    ----------
    paths : sequence of Path
        Claims files.
    quick : bool
        The quick run.
    workers : int
        Processes.
    say : callable
        Gets a line of text after each run.

    Raises
    ------
    FedConError
        If a file cannot be used, or a run fails.
    """
    began = time.perf_counter()
    every = [Claims(path, quick=quick) for path in paths]
    files = [claims for claims in every if claims.claims and not claims.skipped]
    jobs = [(claims.name, *run) for claims in files for run in claims.runs()]
    runs: dict[str, dict[tuple[str, int], Sequence[Record]]] = {c.name: {} for c in files}
    seconds = dict.fromkeys(runs, 0.0)
    results = parallel(_job, [(job,) for job in jobs], workers=workers)
    for done, ((name, label, seed), result, spent) in enumerate(results, start=1):
        if isinstance(result, str):
            raise FedConError(f"{name}: {label}: {result}")
        runs[name][label, seed] = result
        seconds[name] += spent
        say(f"{done}/{len(jobs)}: {name}: {label}, seed {seed}, {spent:.1f} s")
    verdicts = [v for claims in files for v in claims.judge(runs[claims.name])]
    left_out = sum(len(c.claims) + c.left_out if c.skipped else c.left_out for c in every)
    return Outcome(verdicts, seconds, time.perf_counter() - began, left_out)


def parallel(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], *, workers: int) -> Any:
    """Yield the function's results as they come; in this process if there is one worker."""
    count("workers", workers)
    if workers == 1 or len(jobs) <= 1:
        return (function(*job) for job in jobs)
    from joblib import Parallel, delayed

    # One thread for each process: the problems are small, and the processes fill the cores.
    with _one_thread():
        pool = Parallel(
            n_jobs=workers, return_as="generator_unordered", batch_size=1, pre_dispatch="all"
        )
        return pool(delayed(function)(*job) for job in jobs)


class _one_thread:  # noqa: N801  (used as a statement)
    """Have new processes use one thread each in linear algebra."""

    _NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._NAMES}
        os.environ.update(dict.fromkeys(self._NAMES, "1"))

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@lru_cache(maxsize=2)
def _experiment(path: Path, overrides: tuple[str, ...], _changed: int) -> Experiment:
    """Keep the problems of the latest files, with their optimum."""
    return Experiment.load(path, overrides)


def _job(
    job: tuple[str, Path, tuple[str, ...], str, int],
) -> tuple[tuple[str, str, int], list[Record] | str, float]:
    """Run one algorithm; return its rows, or what went wrong."""
    name, path, overrides, label, seed = job
    began = time.process_time()
    result: list[Record] | str
    try:
        experiment = _experiment(path, overrides, path.stat().st_mtime_ns)
        result = play(experiment, experiment.labels.index(label)).rows
        if experiment.reference:
            size = abs(experiment.problem().optimum.value)
            for row in result:
                if size and "residual" in row:
                    row["relative"] = row["residual"] / size
        for row in result:
            row["bytes"] = row["uplink_bytes"] + row["downlink_bytes"]
    except FedConError as error:
        result = str(error)
    return (name, label, seed), result, time.process_time() - began


def play(experiment: Experiment, index: int = 0, **options: Any) -> History:
    """Run one algorithm of an experiment, without any output."""
    from flower_fedcon.console import quiet
    from flower_fedcon.simulation import simulate

    run = experiment.run_options
    problem = experiment.problem()
    if experiment.reference:
        problem.optimum  # noqa: B018  (found once, and recorded from then on)
    with quiet(run.engine == "local"):
        return simulate(
            experiment.strategy(index),
            problem,
            run.rounds,
            engine=run.engine,
            seed=run.seed,
            evaluate_every=run.evaluate_every,
            **options,
        )


# --- output --------------------------------------------------------------------------------------

TITLES = ("Experiment", "Claim", "Where", "Claimed", "Measured", "Verdict")


def cells(verdict: Verdict) -> list[str]:
    """Return a verdict's row, as in `TITLES`."""
    last = f"{verdict.verdict}: {verdict.note}" if verdict.note else verdict.verdict
    return [
        verdict.experiment,
        verdict.what,
        verdict.where,
        verdict.claimed,
        verdict.measured,
        last,
    ]


def summary(outcome: Outcome) -> str:
    """Return how many claims passed, and the time.

    >>> summary(Outcome([], {"lasso": 4.0}, 3.0, 2))
    '0 claims: 0 pass, 0 explained, 0 fail; 2 not run; 3 s, processors 4 s'
    """
    verdicts = [v.verdict for v in outcome.verdicts]
    tally = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("pass", "explained", "fail"))
    spent = f"{outcome.elapsed:.0f} s, processors {sum(outcome.seconds.values()):.0f} s"
    more = f"; {outcome.left_out} not run" if outcome.left_out else ""
    return f"{len(verdicts)} claims: {tally}{more}; {spent}"


def to_json(outcome: Outcome) -> str:
    """Return everything as JSON; numbers that JSON does not know are null."""

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


def to_markdown(outcome: Outcome) -> str:
    """Return the table in Markdown."""
    lines = [f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)]
    for verdict in outcome.verdicts:
        row = [cell.replace("|", "\\|") for cell in cells(verdict)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", summary(outcome)]) + "\n"
