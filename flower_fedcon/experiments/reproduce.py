"""The papers' claims beside what is measured: `fedcon reproduce`; see `claims`."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from flower_fedcon.errors import ConfigError, FedConError, nearest
from flower_fedcon.experiments.claims import Claims, Verdict
from flower_fedcon.experiments.experiment import Experiment
from flower_fedcon.runs.history import History, Record
from flower_fedcon.validation import count

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
            row["megabytes"] = row["bytes"] / 1e6
    except FedConError as error:
        result = str(error)
    return (name, label, seed), result, time.process_time() - began


def play(experiment: Experiment, index: int = 0, **options: Any) -> History:
    """Run one algorithm of an experiment, without any output."""
    from flower_fedcon.experiments.console import quiet
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
            workers=run.workers,
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
