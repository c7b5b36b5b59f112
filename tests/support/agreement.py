"""Runs that end alike: by another engine, or interrupted; and problems to try it on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, History, simulate
from flower_fedcon.engines.stacked import why_not_stackable
from flower_fedcon.objectives import LeastSquares

COUNTED = ["uplink_bytes", "downlink_bytes", "cohort", "replies", "dropped", "retries", "lost"]


def flat(x: Any) -> np.ndarray:
    """Return a model in one array."""
    return np.concatenate([np.ravel(layer) for layer in (x if isinstance(x, list) else [x])])


def near(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Assert that two models have one type, and are the same relative to the largest entry."""
    found, expected = flat(found), flat(expected)
    assert found.dtype == expected.dtype
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(found - expected).max() <= tolerance * scale


def agree(
    strategy: Any,
    problem: FederatedProblem,
    rounds: int = 40,
    tolerance: float = 1e-10,
    *,
    engine: str = "stacked",
    columns: Any = COUNTED,
    about: Any = (),
    **options: Any,
) -> History:
    """Return an engine's history, whose model and columns are those of the local one.

    Of the columns in `about` it says how far they may be, relative to the local one's, which are
    not 0. Where it is the stacked engine, it was not the local one.
    """
    if engine == "jax":
        pytest.importorskip("jax")
    if engine == "stacked":
        assert why_not_stackable(strategy, problem) is None
    options = {"seed": 3, **({"evaluate_every": 10} if engine == "jax" else {}), **options}
    local, other = (
        simulate(strategy, problem, rounds, engine=e, **options) for e in ("local", engine)
    )
    near(other.x, local.x, tolerance)
    assert np.abs(flat(local.x) - problem.start.ravel()).max() > 1e-3
    for row, same in zip(other.rows, local.rows, strict=True):
        assert {k: row[k] for k in columns} == {k: same[k] for k in columns}
        if options.get("certificates"):  # and all that they show
            assert row.keys() == same.keys()
            both = ((row[k], same[k]) for k in row.keys() - {"seconds"})
            assert all(np.isclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True) for a, b in both)
        for name, slack in dict(about).items():
            assert abs(row[name] - same[name]) <= slack * same[name], name
            assert row[name] > 0
    return other


def squares(rows: Any, columns: int = 3, *, seed: int = 3, **terms: Any) -> FederatedProblem:
    """Return least squares of clients with so many rows each."""
    rng = np.random.default_rng(seed)
    own = [LeastSquares(rng.normal(size=(m, columns)), rng.normal(size=m)) for m in rows]
    return FederatedProblem(own, **terms)


class StopError(Exception):
    """What interrupts a run here."""


def stop_at(number: int) -> Any:
    """Return a callback that interrupts a run after a round."""

    def stop(record: dict[str, float]) -> None:
        if record["round"] == number:
            raise StopError

    return stop


def interrupted(strategy: Any, problem: FederatedProblem, at: int, rounds: int, **how: Any) -> None:
    """Interrupt a run of so many rounds."""
    with pytest.raises(StopError):
        simulate(strategy, problem, rounds, callbacks=[stop_at(at)], **how)


def untimed(history: History) -> list[dict[str, float]]:
    """Return the rows, without the seconds that they took."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history.rows]
