"""Short runs of the methods that fit, each with its step from a race, to see how they fare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flower_fedcon.errors import FedConError
from flower_fedcon.lab.advice.candidates import Candidate
from flower_fedcon.lab.experiments.console import quiet
from flower_fedcon.lab.experiments.tuning import refuse_private
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.runs.history import Record
from flower_fedcon.simulation import simulate
from flower_fedcon.validation import AUTO

_FEASIBLE = 1e-6
_RACED = ("client_lr", "step_size", "proximal", "penalty", "primal_lr", "damping")
_WORTH = 20  # rounds from which on a race for a step is worth what it costs


@dataclass(frozen=True)
class Trial:
    """How a candidate fared.

    Attributes
    ----------
    candidate : Candidate
        With "auto" for the step that was chosen by a race.
    last : dict
        The last record; empty if the run failed.
    error : str
        Why it failed, or "".
    seconds : float
        Of the whole run, by the clock.
    chosen : str
        What the race has chosen, or "".
    """

    candidate: Candidate
    last: Record
    error: str
    seconds: float
    chosen: str = ""

    @property
    def infeasible(self) -> float:
        """How far the model is from keeping the constraints."""
        g = max(0.0, self.last.get("constraint", 0.0) - _tolerance(self.candidate))
        return max(self.last.get("violation", 0.0), g)

    def rank(self, *, by_bytes: bool) -> tuple[float, ...]:
        """Return what trials are sorted by: feasible ones first, then the smallest objective.

        By bytes, objectives that agree to a tenth of the way count as equal.
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
    """Run each candidate for some rounds, and return the trials, the best first.

    Its step is chosen by a race within these rounds, from 20 of them on.

    Raises
    ------
    ConfigError
        If the examples are private.
    """
    refuse_private(problem, "recommend --try")
    found = []
    for given in candidates:
        candidate = _racing(given) if rounds >= _WORTH else given
        began, last, error, chosen = time.perf_counter(), Record(), "", ""
        try:
            with quiet(active=True):
                history = simulate(candidate.strategy, problem, rounds, evaluate_every=0)
            last = history.rows[-1]
            chosen = next((row["label"] for row in history.race if row["chosen"]), "")
        except FedConError as failed:
            error = str(failed)
        trial = Trial(candidate, last, error, time.perf_counter() - began, chosen)
        found.append(trial)
        told = error or f"F {last['objective']:.6g}"
        say(f"tried {candidate.kind.__name__}: {told}")
    return sorted(found, key=lambda trial: trial.rank(by_bytes=by_bytes))


def _racing(candidate: Candidate) -> Candidate:
    """Return a candidate whose step is chosen by a race, if it is left to a rule."""
    names = [n for n in candidate.strategy.rules() if n in _RACED and n not in candidate.settings]
    if not names:
        return candidate
    added = {names[0]: AUTO}
    strategy = candidate.strategy.with_arguments(added)
    return replace(candidate, settings=candidate.settings | added, strategy=strategy)


def _tolerance(candidate: Candidate) -> float:
    tolerance = candidate.settings.get("tolerance", 0.0)
    return float(tolerance) if isinstance(tolerance, float) else 0.0
