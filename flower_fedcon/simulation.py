"""`simulate`: run a strategy on a problem, on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

from flower_fedcon.compiled.threads import VARIABLE, using
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.participation import Full, Participation
from flower_fedcon.core.protocol import ClientInfo, Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import ConfigError
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.fitting import contenders
from flower_fedcon.problems.mismatch import ON_MISMATCH, why_mismatched
from flower_fedcon.runs.history import EarlyStopping, History
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.relative import RELATIVE
from flower_fedcon.runs.run import Run
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import AUTO, choice, count, positive, takes_fields, with_fields

_log = logging.getLogger("flwr")
ENGINES = ("local", "stacked", "jax", "ray")


@takes_fields(Plan(num_rounds=0))
def simulate(
    strategy: FedConStrategy[Any] | str,
    problem: FederatedProblem,
    num_rounds: int | None = None,
    *,
    plan: Plan | None = None,
    participation: Participation | None = None,
    engine: str = "local",
    workers: int | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    clients_per_message: int | None = None,
    on_mismatch: str = "error",
    **settings: Any,
) -> History:
    """Run a strategy on a problem and return its history.

    Parameters
    ----------
    strategy : FedConStrategy or "auto"
        "auto" races the methods that fit the problem and the participation, each with its default
        settings: three rounds each, then nine for the best quarter, and so on, until the best
        continues from its own state. With everyone in a round this takes 15 rounds for 5 methods
        and 54 for 12, with 1 of 20 clients about ten times as many; in fewer rounds the run ends
        with the best model so far. The cost of the race counts, and `history.race` shows it. The
        log says why each other method is left out.
    problem : FederatedProblem
    num_rounds : int
        >= 0; not needed with a `plan`.
    plan : Plan, optional
        How the run proceeds, and what it writes; its fields may also be given by name.
    participation : Participation, optional
        For "auto": who takes part; by default everyone. Strategies have their own argument.
    engine : {"local", "stacked", "jax", "ray"} (default: "local")
        "local" calls the clients in this process; "ray" runs Flower's simulation. The iterates are
        the same. "stacked" holds clients with objectives of one type and shape in arrays and serves
        them in one pass, the fastest way for many clients. Cohorts, batches and bytes are the same,
        and iterates up to the rounding of sums; local solvers agree to their tolerance. What cannot
        be stacked (your own solvers or objectives, queries) runs as with "local", and a log line
        says so. "jax", with the extra `jax`, compiles what can be stacked, and full participation
        with objectives of up to 16 types and shapes: the rounds between two records are one loop,
        on JAX's default device. What cannot be compiled runs as with "stacked", and a log line says
        why.
    workers : int, optional
        With "local": the number of processes that share the clients, for objectives whose gradients
        take milliseconds; by default only this process. The iterates are the same.
    threads : int, optional
        Number of threads of the compiled loops (extra `fast`) in this process, at most its cores;
        by default the environment variable FEDCON_THREADS, else all cores. Loops over less than
        2**17 multiply-adds use one thread. The number changes no bit of the result. On a shared
        machine one thread may be faster. JAX manages its own threads.
    timeout : float, optional
        With "ray": the seconds that a client may take for one answer; by default an hour. A client
        that takes longer is stopped, named in the log, and asked again like one that fails.
    clients_per_message : int, optional
        With "ray": the largest number of clients that share a message to a worker; by default so
        many that each worker gets two messages. With 1 each client is a SuperNode, and gets the
        same messages as a deployed one.
    on_mismatch : {"error", "warn"} (default: "error")
        A strategy that ignores the problem's constraint or regularizer, or uses a different one,
        solves a different problem. It is refused, or with "warn" runs after a warning.
    seed, evaluate_every, run_dir, resume, checkpoint_every, allow_changes, certificates, audit
        As in `Plan`, like `callbacks`, `evaluate`, `config`, `clock` and `unsafe`. They override
        `plan`.

    Returns
    -------
    History

    Raises
    ------
    FedConError
        If strategy and problem do not fit, or a round cannot be completed.

    Examples
    --------
    >>> from flower_fedcon import EarlyStopping, FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.strategies import FedAvg
    >>> problem = FederatedProblem([Quadratic(np.eye(2), np.ones(2))])
    >>> history = simulate(FedAvg(client_lr=0.5, local_steps=1), problem, num_rounds=4)
    >>> [float(value) for value in history["objective"]]
    [-0.75, -0.9375, -0.984375, -0.99609375]
    """
    if num_rounds is not None:
        settings["num_rounds"] = num_rounds
    elif plan is None:
        raise ConfigError("simulate needs num_rounds, or a plan")
    plan = cast("Plan", with_fields("simulate", settings, plan or Plan(num_rounds=0))[0])
    if plan.inference is None and getattr(problem, "inference", None) is not None:
        plan = replace(plan, inference=problem.inference, heterogeneity=problem.heterogeneity)
    if not isinstance(problem, FederatedProblem):
        raise ConfigError(f"problem must be a FederatedProblem, got {problem!r}")
    choice("engine", engine, ENGINES)
    rivals: list[FedConStrategy[Any]] = []
    infos: Sequence[ClientInfo] | None = None
    if isinstance(strategy, str) and strategy == AUTO:
        infos = LocalEngine(problem).describe()
        strategy, *rivals = auto_strategies(problem, participation or Full(), plan, infos)
        if rivals and engine == "ray":
            raise ConfigError(
                'strategy="auto" races in this process: give engine="local", "stacked" or "jax", '
                "or a strategy"
            )
    elif participation is not None:
        raise ConfigError(
            f'participation={participation!r} is for strategy="auto": give it to the strategy'
        )
    if not isinstance(strategy, FedConStrategy):
        raise ConfigError(
            f'strategy must be one of flower_fedcon.strategies, or "auto", got {strategy!r}'
        )
    choice("on_mismatch", on_mismatch, ON_MISMATCH)
    if (mismatch := why_mismatched(strategy, problem)) is not None:
        if on_mismatch == "error":
            raise ConfigError(mismatch)
        _log.warning("%s", mismatch.partition(": ")[0])
    watched = {c.column for c in plan.callbacks if isinstance(c, EarlyStopping)}
    if watched & {"residual", RELATIVE}:
        problem.optimum  # noqa: B018  (found once, and recorded from then on)
    if workers is not None:
        count("workers", workers)
        if engine != "local":
            raise ConfigError(f'workers={workers} is for engine="local", not for {engine!r}')
    if threads is not None and (engine == "ray" or workers is not None):
        raise ConfigError(
            f"threads={threads} is for clients in this process: for other processes set the "
            f"environment variable {VARIABLE}, of which at most their part of the cores is used"
        )
    if timeout is not None:
        positive("timeout", timeout)
        if engine != "ray":
            raise ConfigError(f'timeout={timeout} is for engine="ray", not for {engine!r}')
    if clients_per_message is not None:
        count("clients_per_message", clients_per_message)
        if engine != "ray":
            raise ConfigError(
                f'clients_per_message={clients_per_message} is for engine="ray", not for {engine!r}'
            )
    if engine == "ray":
        from flower_fedcon.engines import ray

        return ray.simulate(strategy, problem, plan, timeout, clients_per_message)
    apart = next((s for s in rivals if stacked_apart(s, problem, engine)), strategy)
    with using(threads), closing(hold(engine, workers, apart, problem)) as clients:
        rule = strategy.participation
        setup = _setup(problem, clients.describe() if infos is None else infos, rule, plan)
        run = Run(plan, strategy, setup, problem.start, clients, problem.stated, rivals)
        return run.play()


def _setup(
    problem: FederatedProblem, infos: Sequence[ClientInfo], rule: Participation, plan: Plan
) -> Setup:
    rounds, seed = plan.num_rounds, plan.seed
    return Setup.of(infos, rounds, problem.layout, rule, seed, preparation=problem.preparation)


def stacked_apart(strategy: FedConStrategy[Any], problem: FederatedProblem, engine: str) -> bool:
    """Return whether one method of a race keeps all others from the requested engine."""
    if engine not in ("stacked", "jax"):
        return False
    from flower_fedcon.engines import stacked

    if stacked.why_not_stackable(strategy, problem) is not None:
        return True
    if engine == "stacked":
        return False
    _, traceable = _of_jax()
    return traceable.why_not_traceable(strategy, problem) is not None


def _of_jax() -> tuple[Callable[[], Callable[[FederatedProblem], Engine]], ModuleType]:
    """Return what makes the engine that JAX compiles, and the module of what it can trace."""
    try:
        from flower_fedcon.engines.jax import jax_engine, traceable
    except ModuleNotFoundError as error:  # of a room that was deleted
        raise ConfigError(
            f'engine="jax" needs {error.name}, which is not here: take engine="stacked", which '
            f"finds the same iterates"
        ) from None
    return jax_engine, traceable


def auto_strategies(
    problem: FederatedProblem,
    participation: Participation,
    plan: Plan,
    infos: Sequence[ClientInfo] | None = None,
    *,
    say: bool = True,
) -> list[FedConStrategy[Any]]:
    """Return the methods that race for "auto"; by default log them, and why others do not.

    `infos` are the clients' descriptions, if they have been asked.

    Raises
    ------
    ConfigError
        If no method fits.
    """
    level = logging.INFO if say else logging.DEBUG
    infos = LocalEngine(problem).describe() if infos is None else infos
    setup = _setup(problem, infos, participation, plan)
    methods, others = contenders(problem, participation, setup)
    for name, why in others.items():
        _log.log(level, "auto: without %s, which %s", name, why)
    if problem.has_functional_constraint and len(methods) > 1:
        methods = methods[:1]
        _log.log(
            level,
            "auto: %s, since under g <= 0 objectives alone cannot rank models",
            methods[0].title,
        )
    _log.log(level, "auto: %s", ", ".join(method.title for method in methods))
    return cast("list[FedConStrategy[Any]]", methods)


def hold(
    engine: str, workers: int | None, strategy: FedConStrategy[Any], problem: FederatedProblem
) -> Engine:
    """Return the engine that holds the clients on this machine."""
    if engine in ("stacked", "jax"):
        from flower_fedcon.engines import stacked

        reason, traced = stacked.why_not_stackable(strategy, problem), None
        if engine == "jax":
            jax_engine, traceable = _of_jax()
            kind = jax_engine()
            apart = reason and stacked.why_not_stackable(strategy, problem, traceable.KINDS)
            traced = apart or traceable.why_not_traceable(strategy, problem)
            if traced is None:
                return kind(problem)
        if reason is None:
            if traced is not None:
                _log.warning('engine="jax": %s; running on the stacked engine', traced)
            return stacked.StackedEngine(problem)
        _log.warning('engine="%s": %s; running on the local engine', engine, reason)
    if workers is not None and workers > 1:
        if problem.private_examples:
            raise ConfigError(
                f"workers={workers}: the processes would forget what private examples have spent: "
                f"leave workers out"
            )
        from flower_fedcon.engines.workers import WorkersEngine

        return WorkersEngine(problem, workers)
    return LocalEngine(problem)
