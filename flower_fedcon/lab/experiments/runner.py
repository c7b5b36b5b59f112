"""Runs of experiments: one in this process, or many over processes.

`fedcon run`, `compare`, `tune` and `reproduce` all use `play`.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from flower_fedcon import simulation
from flower_fedcon.core.availability import short_trace
from flower_fedcon.core.participation import Participation
from flower_fedcon.errors import ConfigError, FedConError, StorageError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.folders import is_there, write
from flower_fedcon.problems.mismatch import why_mismatched
from flower_fedcon.registry import client_class
from flower_fedcon.runs.console import InterruptedRunError, progress, quiet, say
from flower_fedcon.runs.directory import CONFIG, HISTORY
from flower_fedcon.runs.history import EarlyStopping, History, Record, row_name
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.toml_schema import context
from flower_fedcon.validation import AUTO, count
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.own_code import names_a_place, own_code
from flower_fedcon.wire.whole_files import read_bytes

T = TypeVar("T")
RESULT = "result.json"
"""The file in a finished job's folder that says how it ended."""


def play(
    experiment: Experiment, index: int = 0, plan: Plan | None = None, *, label: str = ""
) -> History:
    """Run one algorithm of an experiment.

    Parameters
    ----------
    experiment : Experiment
    index : int
        As in `Experiment.strategy`.
    plan : Plan, optional
        By default that of the experiment's table ``[run]``, without a run directory.
    label : str
        The name of the run in progress lines; without it nothing is shown.

    Raises
    ------
    FedConError
        If the problem and the algorithm do not fit, or a round cannot be completed.
    InterruptedRunError
        On Ctrl-C, if there are a label and a run directory to continue in.
    """
    run, problem = experiment.run_options, experiment.problem()
    plan = plan or run.plan()
    if problem.preparation is not None and not experiment.races(index):
        from flower_fedcon.tables.ending.coefficients import check_inference

        asked, method = plan, experiment.strategy(index)
        if plan.inference is None:
            inference, apart = problem.inference, problem.heterogeneity
            asked = replace(plan, inference=inference, heterogeneity=apart)
        with context(experiment.source), context("[problem]"):
            check_inference(asked, method, problem)
    if experiment.seeks_optimum:
        problem.optimum  # noqa: B018  (found once, and recorded from then on)
    if label and (mismatch := why_mismatched(experiment.strategy(index), problem)) is not None:
        say(f"{label}: {mismatch.partition(': ')[0]}")  # the log is silenced below
    stacked = run.engine == "stacked"
    if label and stacked:  # in addition to the log, which is silenced below
        from flower_fedcon.engines.stacked import why_not_stackable

        reason = why_not_stackable(experiment.strategy(index), problem)
        if reason is not None:
            say(f"{label}: {reason}; running on the local engine")
    # The logs of Ray and JAX stay on; so does the stacked engine's, unless a message above said why
    # it is not used.
    silent = run.engine == "local" or (stacked and bool(label))
    if label and silent:
        say_short_traces([(label, experiment.participation(index), plan.num_rounds)])
    shown = progress(label, plan.num_rounds, plan.callbacks) if label else nullcontext()
    try:
        with shown as show, quiet(silent, strategies=bool(label)):
            callbacks = plan.callbacks if show is None else (*plan.callbacks, show)
            races = experiment.races(index)
            strategy = AUTO if races else experiment.strategy(index)
            plan = replace(plan, callbacks=callbacks, clock=experiment.clock)
            return simulation.simulate(
                strategy,
                problem,
                plan=plan,
                participation=experiment.participation(index) if races else None,
                engine=run.engine,
                workers=run.workers,
                timeout=run.timeout,
                clients_per_message=run.clients_per_message,
                on_mismatch=experiment.on_mismatch(index),
            )
    except KeyboardInterrupt:
        if not label or plan.run_dir is None:
            raise
        raise _interrupted(label, plan, Path(plan.run_dir)) from None


def say_short_traces(runs: Iterable[tuple[str, Participation, int]]) -> None:
    """Say once of each trace that it is repeated; runs whose log is silenced do not.

    `runs` are a label, who takes part, and the number of rounds.
    """
    said: dict[str, str] = {}
    for label, rule, num_rounds in runs:
        said.setdefault(short_trace(rule, num_rounds), label)
    said.pop("", None)
    for text, label in said.items():
        say(f"{label}: {text}")


def _interrupted(label: str, plan: Plan, folder: Path) -> InterruptedRunError:
    rows = History.read_rows(folder / HISTORY) if (folder / HISTORY).exists() else []
    done, what = int(rows[-1]["round"]) if rows else 0, row_name(rows[-1:]) or "round"
    return InterruptedRunError(
        f"interrupted: {label} is recorded up to {what} {done} of {plan.num_rounds} in {folder}; "
        f"go on with --resume --run-dir {folder}"
    )


# --- jobs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A run that any process can do, since it is described by texts only.

    Attributes
    ----------
    source : str
        The beginning of the texts of the experiment's errors.
    toml : str
        The experiment. Jobs with the same text share its problem and the optimum.
    index : int
        The algorithm, as in `Experiment.strategy`.
    folder : Path, optional
        Its run directory. A finished run in it is read, not repeated; an interrupted one continues.
    until : tuple, optional
        A column, and the level at which the run can stop.
    """

    source: str
    toml: str
    index: int = 0
    folder: Path | None = None
    until: tuple[str, float] | None = None


@dataclass(frozen=True)
class Played:
    """The result of a job.

    Attributes
    ----------
    rows : list of Record
        The rows of its history; empty if it failed.
    optimum : float, optional
        The problem's optimal value, if it is known.
    error : str
        Why it failed, or "".
    found : bool
        Whether its folder already held the finished run.
    seconds : float
        Processor time.
    """

    rows: list[Record] = field(default_factory=list)
    optimum: float | None = None
    error: str = ""
    found: bool = False
    seconds: float = 0.0


def play_jobs(jobs: Sequence[Job], *, workers: int) -> Iterator[tuple[int, Played]]:
    """Return an iterator over the jobs' numbers and results, in the order of their ends.

    With one worker, this process does the jobs.

    Raises
    ------
    ConfigError
        While iterating: if a job's folder cannot be made, or holds a run with other settings.
    """
    return in_processes(_play_job, [(job,) for job in jobs], workers=workers)


def in_processes(
    play: Callable[..., T], tasks: Sequence[tuple[Any, ...]], *, workers: int
) -> Iterator[tuple[int, T]]:
    """Return an iterator over the tasks' numbers and results of `play`, as they end.

    Raises
    ------
    FedConError
        While iterating: if a process dies.
    """
    count("workers", workers)
    if workers == 1 or len(tasks) <= 1:
        return ((i, play(*task)) for i, task in enumerate(tasks))
    from joblib import Parallel, delayed

    # One thread for each process: the problems are small, and there is a process for each core.
    with _one_thread():
        pool = Parallel(
            n_jobs=workers, return_as="generator_unordered", batch_size=1, pre_dispatch="all"
        )
        results: Iterator[tuple[int, T]] = pool(
            delayed(_in_a_worker)(os.getpid(), i, play, task) for i, task in enumerate(tasks)
        )
        return _of_living(results)


def _of_living(found: Iterator[T]) -> Iterator[T]:
    """Yield the results of processes; the death of a process is an error in one line."""
    try:
        yield from found
    except BrokenProcessPool:
        raise FedConError(
            "a worker process ended unexpectedly, perhaps out of memory: use fewer --workers. "
            "Finished runs in a run directory are not repeated"
        ) from None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let new processes use one thread each in linear algebra and compiled kernels."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _in_a_worker(
    parent: int, i: int, play: Callable[..., T], task: tuple[Any, ...]
) -> tuple[int, T]:
    from flower_fedcon.engines.workers import leave_with

    leave_with(parent)
    return i, play(*task)


def _play_job(job: Job) -> Played:
    began = time.process_time()
    folder = job.folder
    if folder is not None:
        ended = _ended(folder, job)
        if ended is not None:
            return ended
    rows: list[Record] = []
    optimum, error, again = None, "", False
    try:
        experiment = _experiment(job.source, job.toml)
        plan = experiment.run_options.plan(
            run_dir=folder,
            resume=folder is not None and is_there(folder),
            config=job.toml,
            callbacks=[] if job.until is None else [EarlyStopping(job.until[1], job.until[0])],
        )
        with quiet(experiment.run_options.engine in ("local", "stacked"), strategies=False):
            rows = play(experiment, job.index, plan).rows
        if experiment.seeks_optimum:
            optimum = experiment.problem().optimum.value
    except StorageError:  # a fault of this machine, not of the run
        raise
    except FedConError as problem:
        error = str(problem)
        again = names_a_place(error)  # of the user's own code, too
    except MemoryError:  # a fault of this machine, too
        raise
    except Exception as bug:  # from the user's own code: the other runs continue
        error, again = _what_and_where(bug), True
    if folder is not None:
        if not (folder / CONFIG).exists():  # it failed before it began
            write(folder / CONFIG, job.toml)
        if again:
            error += f"; `fedcon run {folder / CONFIG}` shows how it happened"
        else:
            result = {
                "error": error, "optimum": optimum, "until": job.until, "made_of": _made_of(job)
            }  # fmt: skip
            write(folder / RESULT, json.dumps(result) + "\n")
    return Played(rows, optimum, error, seconds=time.process_time() - began)


def _what_and_where(bug: Exception) -> str:
    """Return an unexpected error in one line, with the line of code that raised it.

    >>> try:
    ...     _ended(3, None)
    ... except TypeError as error:
    ...     print(_what_and_where(error).partition(", line")[0])
    TypeError: unsupported operand type(s) for /: 'int' and 'str' (runner.py
    """
    place = traceback.extract_tb(bug.__traceback__)[-1]
    said = " ".join(f"{type(bug).__name__}: {bug}".split())
    return f"{said} ({Path(place.filename).name}, line {place.lineno}, in {place.name})"


def _ended(folder: Path, job: Job) -> Played | None:
    """Return the finished run in a job's folder, if there is one.

    A run that would stop at a different level continues.
    """
    config, result = _content(folder / CONFIG), _content(folder / RESULT)
    if config is not None and config != job.toml.encode():
        raise ConfigError(f"{folder} holds a run with other settings: choose another --run-dir")
    try:
        ended = json.loads(result or b"")
        error, optimum = str(ended["error"]), ended["optimum"]
        optimum = None if optimum is None else float(optimum)
        if ended.get("until") not in (None, job.until and list(job.until)):
            return None
        then = ended["made_of"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # missing or damaged: the run continues from its checkpoint
    for what, now in _made_of(job).items():
        if then.get(what, now) != now:
            raise ConfigError(
                f"{folder} holds an earlier run, and {what}. Choose another --run-dir, or remove it"
            )
    rows = [] if error else History.read_rows(folder / HISTORY)
    return Played(rows, optimum, error, found=True)


def _made_of(job: Job) -> dict[str, str]:
    """Return digests of the data of a job's problem, and of the user's code in it.

    They are empty if the problem cannot be made.
    """
    experiment = _experiment(job.source, job.toml)
    try:
        problem, strategy = experiment.problem(), experiment.strategy(job.index)
    except FedConError:
        return {}
    maker, pair = experiment.builder, (type(strategy), client_class(strategy.name))
    return {
        "the problem's code is not what it was": own_code(maker),
        "the algorithm's code is not what it was": "".join(map(own_code, pair)),
        "the problem's data are not what they were": digest((problem.digests(), problem.weights)),
        "a file that its settings name is not what it was": digest(
            (strategy.arguments(), experiment.clock)
        ),
    }


def _content(path: Path) -> bytes | None:
    try:
        return read_bytes(path, follow=True)
    except FileNotFoundError:
        return None


_latest: list[Experiment] = []


def _experiment(source: str, toml: str) -> Experiment:
    """Return an experiment; it shares an equal problem, with its optimum, with recent ones."""
    made = Experiment(tomllib.loads(toml), source)
    for other in _latest:
        made.share_problem(other)
    _latest[:] = [made, *_latest[:1]]
    return made
