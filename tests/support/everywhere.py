"""One strategy in every engine, over a wire, and in a run that is interrupted."""

from __future__ import annotations

from typing import Any

import pytest
from harness import over_a_wire

from flower_fedcon import FederatedProblem, History, simulate

ABOUT = {"rel": 0, "abs": 1e-13}


def agrees_everywhere(
    strategy: Any,
    problem: FederatedProblem,
    folder: Any = None,
    *,
    rounds: int = 8,
    engines: tuple[str, ...] = ("stacked",),
    near: dict[str, float] = ABOUT,
    work: bool = True,
) -> History:
    """Assert that all ways lead to the same model, and return the history of one.

    Other engines may sum in another order; messages, a run that is resumed in `folder`, and worker
    processes change no bit. `work` is counted alike, but for local solves up to a tolerance.
    """
    direct = simulate(strategy, problem, rounds)
    for engine in engines:
        options = {"workers": 2} if engine == "workers" else {"engine": engine}
        found = simulate(strategy, problem, rounds, **options)
        if engine == "workers":
            assert found.x.tobytes() == direct.x.tobytes()
        margin = {"rel": 1e-9, "abs": 1e-12} if engine == "jax" else near
        assert found.x == pytest.approx(direct.x, **margin)
        for column in ("uplink_bytes", "downlink_bytes", *(["gradients"] if work else [])):
            assert found[column].tolist() == direct[column].tolist()
    run, alone = over_a_wire(strategy, problem, rounds)
    assert run.x.tobytes() == alone.x.tobytes() == direct.x.tobytes()
    for what in ("uplink_bytes", "downlink_bytes", "counts"):
        assert getattr(run.server, what) == getattr(alone.server, what)
    if folder is not None:
        simulate(strategy, problem, rounds // 2 + 1, run_dir=folder)
        again = simulate(strategy, problem, rounds, run_dir=folder, resume=True)
        assert again.x.tobytes() == direct.x.tobytes()
        for name, output in direct.outputs.items():
            assert again.outputs[name].tobytes() == output.tobytes()
    return direct
