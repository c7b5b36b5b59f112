"""`simulate`: run a strategy on a problem, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flower_fedcon import streams
from flower_fedcon.checks import choice, count
from flower_fedcon.coordinator import Coordinator
from flower_fedcon.engines import local
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.history import Callback, History
from flower_fedcon.layout import Layout
from flower_fedcon.loop import run_rounds
from flower_fedcon.participation import Participation
from flower_fedcon.problem import FederatedProblem
from flower_fedcon.protocol import ClientInfo, Setup
from flower_fedcon.strategies.base import FedConStrategy

ENGINES = ("local", "stacked", "ray")


def simulate(
    strategy: FedConStrategy[Any],
    problem: FederatedProblem,
    num_rounds: int,
    *,
    engine: str = "local",
    seed: int = 0,
    evaluate_every: int = 1,
    run_dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> History:
    """Run a strategy on a problem and return its history.

    Parameters
    ----------
    strategy : FedConStrategy
    problem : FederatedProblem
    num_rounds : int
        >= 0.
    engine : {"local", "ray"} (default: "local")
        "local" calls the clients in this process; "ray" runs Flower's simulation. The iterates
        are the same.
    seed : int (default: 0)
        In [0, 2**63). Same seed, same iterates.
    evaluate_every : int (default: 1)
        Record each so many rounds, and the last; 0 for the last only.
    run_dir : path, optional
        Folder for configuration, history and model.
    resume : bool (default: False)
        Go on with an interrupted run.
    callbacks : sequence of callables
        Each sees every record, and may stop the run by returning True.

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
    if not isinstance(strategy, FedConStrategy):
        raise ConfigError(f"strategy must be one of flower_fedcon.strategies, got {strategy!r}")
    if not isinstance(problem, FederatedProblem):
        raise ConfigError(f"problem must be a FederatedProblem, got {problem!r}")
    choice("engine", engine, ENGINES)
    count("num_rounds", num_rounds, minimum=0)
    streams.check_seed(seed)
    if engine == "stacked" or resume:
        what = 'engine="stacked"' if engine == "stacked" else "resume=True"
        raise FedConError(f'{what} is not available yet: use engine="local" from round 1')
    options: dict[str, Any] = {
        "seed": seed,
        "evaluate_every": evaluate_every,
        "run_dir": run_dir,
        "callbacks": callbacks,
    }
    if engine == "ray":
        from flower_fedcon.engines import ray

        return ray.simulate(strategy, problem, num_rounds, **options)
    infos = local.describe(problem.objectives, problem.names, strategy.name)
    setup = make_setup(infos, num_rounds, problem.layout, strategy.participation, seed)
    coordinator = Coordinator(strategy, setup, problem.start)
    exchange = local.open_exchange(problem.objectives, coordinator.info)
    del options["seed"]
    return run_rounds(coordinator, exchange, num_rounds, evaluate=problem.evaluate, **options)


def make_setup(
    infos: Sequence[ClientInfo],
    num_rounds: int,
    layout: Layout,
    participation: Participation,
    seed: int,
) -> Setup:
    """Return what a strategy may know when it starts."""
    n = len(infos)
    return Setup(
        clients=tuple(infos),
        num_rounds=num_rounds,
        layout=layout,
        sampled=not participation.is_full(n),
        rate=participation.rate(n),
        seed=streams.check_seed(seed),
    )
