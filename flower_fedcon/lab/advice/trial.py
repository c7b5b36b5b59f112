"""Short trial runs of the methods that fit, each with its step from a race."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flower_fedcon.errors import FedConError
from flower_fedcon.lab.advice.candidates import Candidate
from flower_fedcon.lab.experiments.tuning import refuse_private
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.runs.console import quiet
from flower_fedcon.runs.history import Record
from flower_fedcon.simulation import simulate
from flower_fedcon.validation import AUTO

_FEASIBLE = 1e-6
_RACED = ("client_lr", "step_size", "proximal", "penalty", "primal_lr", "damping")
WORTH = 20
"""Rounds from which on a race for a step is worth its cost."""
UNDECIDED = "not decided"


@dataclass(frozen=True)
class Trial:
    """The result of a candidate's trial.

    Attributes
    ----------
    candidate : Candidate
        The candidate, with "auto" for a step that a race chose.
    last : dict
        The last record; empty if the run failed.
    error : str
        Why it failed, or "".
    seconds : float
        Wall-clock time of the whole run.
    chosen : str
        The values that the race chose; "not decided" if it did not end, "" if there was none.
    """

    candidate: Candidate
    last: Record
    error: str
    seconds: float
    chosen: str = ""

    @property
    def infeasible(self) -> float:
        """The violation of the constraints by the model."""
        g = max(0.0, self.last.get("constraint", 0.0) - _tolerance(self.candidate))
        return max(self.last.get("violation", 0.0), g)

    def rank(self, *, by_bytes: bool) -> tuple[float, ...]:
        """Return the sort key of trials: feasible ones first, then the smallest objective.

        If bytes count, objectives within a tenth of the total decrease are equal.
        """
        if self.error:
            return (2.0, 0.0, 0.0)
        size = self.last["uplink_bytes"] + self.last["downlink_bytes"]
        gap = self.last.get("residual", self.last["objective"])
        if by_bytes and gap > 0:
            return (float(self.infeasible > _FEASIBLE), round(math.log10(gap), 1), size)
        return (float(self.infeasible > _FEASIBLE), gap, size)


def try_out(
    problem: FederatedProblem,
    candidates: Sequence[Candidate],
    rounds: int,
    *,
    by_bytes: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> list[Trial]:
    """Run each candidate for some rounds, and return the trials, best first.

    With 20 or more rounds, a race within these rounds chooses the step.

    Raises
    ------
    ConfigError
        If the examples are private.
    """
    refuse_private(problem, "recommend --try")
    trials = []
    for given in candidates:
        candidate = _racing(given) if rounds >= WORTH else given
        began, last, error, chosen = time.perf_counter(), Record(), "", ""
        try:
            with quiet(active=True):
                history = simulate(candidate.strategy, problem, rounds, evaluate_every=0)
            last = history.rows[-1]
            open_ = UNDECIDED if candidate.strategy.raced() else ""
            chosen = next((row["label"] for row in history.race if row["chosen"]), open_)
        except FedConError as failed:
            error = str(failed)
        trial = Trial(candidate, last, error, time.perf_counter() - began, chosen)
        trials.append(trial)
        told = error or f"F {last['objective']:.6g}"
        say(f"tried {candidate.kind.__name__}: {told}")
    return sorted(trials, key=lambda trial: trial.rank(by_bytes=by_bytes))


def _racing(candidate: Candidate) -> Candidate:
    """Return a candidate whose step a race chooses, in place of its first value.

    If objectives have a constraint of their own, a lower objective tells nothing.
    """
    names = [name for name in candidate.strategy.rules() if name in _RACED]
    if not names or candidate.kind.constraints:
        return candidate
    added = {names[0]: AUTO}
    strategy = candidate.strategy.with_arguments(added)
    return replace(candidate, settings=candidate.settings | added, strategy=strategy)


def _tolerance(candidate: Candidate) -> float:
    tolerance = candidate.settings.get("tolerance", 0.0)
    return float(tolerance) if isinstance(tolerance, float) else 0.0
