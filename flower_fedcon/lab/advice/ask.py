"""Questions that describe a problem, for a user who has no experiment file yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.core.participation import Full, Participation, Sample
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.objectives import LogisticRegression, NeymanPearson
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import L1, NuclearNorm
from flower_fedcon.sets import L1Ball, NuclearNormBall

Ask = Callable[[str, str], str]
"""(question, default) -> the answer."""

ADDED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "l1": {"regularizer": L1(1e-2)},
    "nuclear": {"regularizer": NuclearNorm(1e-2)},
    "l1-ball": {"constraint": L1Ball(radius=1.0)},
    "nuclear-ball": {"constraint": NuclearNormBall(radius=1.0)},
    "functional": {},
}
_MOST = 200  # clients of the stand-in: more would not change the advice


def ask_problem(ask: Ask) -> tuple[FederatedProblem, Participation]:
    """Return a small stand-in for the problem in the answers, and the participation.

    It has random data, since the choice depends only on the kind of problem.

    Raises
    ------
    ConfigError
        If an answer is not one of the choices.
    """
    added = ask(f"What is added to the objectives? {', '.join(ADDED)}", "nothing")
    if added not in ADDED:
        raise ConfigError(f"unknown answer {added!r}: {nearest(added, ADDED)}")
    strong = _yes(
        ask("Are they strongly convex, for example by a squared-norm term? yes, no", "no")
    )
    clients = _whole(ask("How many clients are there?", "10"))
    cohort = min(_whole(ask("How many of them are in a round?", str(clients))), clients)
    rng = np.random.default_rng(0)
    shape = (9, 4, 4) if added.startswith("nuclear") else (9, 8)

    def objective() -> LogisticRegression:
        rows = rng.normal(size=shape)
        if added == "functional":
            return NeymanPearson(rows, 1 + rng.normal(size=shape))
        return LogisticRegression(rows, rng.choice([-1.0, 1.0], len(rows)), l2=0.1 * strong)

    held = min(clients, _MOST)
    rule = Full() if cohort == clients else Sample(count=max(1, round(cohort * held / clients)))
    return FederatedProblem([objective() for _ in range(held)], **ADDED[added]), rule


def _yes(answer: str) -> bool:
    if answer.lower() not in ("yes", "y", "no", "n"):
        raise ConfigError(f"write yes or no, got {answer!r}")
    return answer.lower().startswith("y")


def _whole(answer: str) -> int:
    if not answer.isdecimal() or not 0 < int(answer) < 10**9:
        raise ConfigError(f"write a whole number >= 1, got {answer!r}")
    return int(answer)
