"""The table ``[run]`` of an experiment file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flower_fedcon.core import rng
from flower_fedcon.runs.run import Plan
from flower_fedcon.simulation import ENGINES
from flower_fedcon.validation import choice, count


@dataclass(frozen=True)
class RunOptions:
    """The table ``[run]``: its keys are these fields."""

    rounds: int
    seed: int = 0
    engine: str = "local"
    evaluate_every: int = 1
    workers: int | None = None

    def __post_init__(self) -> None:
        count("rounds", self.rounds, minimum=0)
        count("evaluate_every", self.evaluate_every, minimum=0)
        rng.check_seed(self.seed)
        choice("engine", self.engine, ENGINES)
        if self.workers is not None:
            count("workers", self.workers)

    def plan(self, **more: Any) -> Plan:
        """Return the plan of such a run, with further entries of `Plan`."""
        return Plan(
            num_rounds=self.rounds, seed=self.seed, evaluate_every=self.evaluate_every, **more
        )
