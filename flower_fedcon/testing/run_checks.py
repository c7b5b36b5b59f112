"""Checks of a pair, of its runs, and of the forms of models."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.engines.stacked import why_not_stackable
from flower_fedcon.errors import ConfigError
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.mismatch import why_mismatched
from flower_fedcon.registry import client_class, strategy_class
from flower_fedcon.server.own_rates import OwnRate
from flower_fedcon.server.schedules import Schedule
from flower_fedcon.simulation import simulate
from flower_fedcon.testing.expect import (
    CheckError,
    Strategy,
    close,
    contents,
    expect,
    forms,
    model_bytes,
    same,
)
from flower_fedcon.testing.open_run import OpenRun, Wire
from flower_fedcon.testing.problems import SIZE, Reshaped, default_problem, quadratics

# --- the pair -------------------------------------------------------------------------------------


def registered(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that the name is registered for the pair, and that the problem fits."""
    kind = type(strategy)
    expect(
        issubclass(kind, strategy_class(strategy.name)),
        f"the name {strategy.name!r} leads to {strategy_class(strategy.name)!r}, not to {kind!r}",
    )
    mismatch = why_mismatched(strategy, problem)
    expect(mismatch is None, f"the problem does not fit: {mismatch}")


def fields_as_declared(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that the client takes exactly its declared fields, and refuses others by name."""
    kind, info = client_class(strategy.name), OpenRun(strategy, problem).server.info
    expect(
        info.settings.keys() == set(kind.fields),
        f"the server sends {sorted(info.settings)}, the client declares {sorted(kind.fields)}",
    )
    client = kind(problem.objectives[0])
    client.configure(info)
    for name, value in info.settings.items():
        by_round = isinstance(value, Schedule | OwnRate)  # a client holds the round's value
        held = by_round or getattr(client, name) is value
        expect(held, f"the client does not hold {name!r} as it was sent")
    for name in (*info.settings, "surplus"):
        settings = {key: value for key, value in info.settings.items() if key != name}
        if name not in info.settings:
            settings = {**settings, name: 1.0}
        try:
            kind(problem.objectives[0]).configure(replace(info, settings=settings))
        except ConfigError as error:
            expect(repr(name) in str(error), f"the refusal does not name {name!r}: {error}")
        else:
            raise CheckError(f"settings with another {name!r} are not refused")


# --- runs -----------------------------------------------------------------------------------------


def finite_iterates(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that the model keeps its shape and stays finite, with every participation."""
    for made in forms(strategy, problem):
        run = OpenRun(made, problem)
        for number in range(1, 21):
            run.play()
            where = f"after round {number} with {made.participation!r} the model"
            expect(run.x.shape == problem.start.shape, f"{where} has the shape {run.x.shape}")
            expect(np.isfinite(run.x).all(), f"{where} is not finite: take smaller steps")


def seeded(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that runs with the same seed are equal to the byte."""
    for made in forms(strategy, problem):
        first, same = (simulate(made, problem, 10, seed=1, evaluate_every=0).x for _ in range(2))
        expect(
            model_bytes(first) == model_bytes(same),
            "two runs with one seed differ: draw from the round",
        )


def same_through_records(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that messages through Flower's records, to new client objects, change nothing."""
    for made in forms(strategy, problem):
        run, direct = OpenRun(made, problem), OpenRun(made, problem)
        wire = Wire(run)
        for number in range(1, 13):
            run.round(wire)
            direct.play()
            where = f"round {number} with {made.participation!r}"
            expect(same(run.x, direct.x), f"{where}: the iterates differ over a wire")
        for what in ("uplink_bytes", "counts"):
            sent, kept = (getattr(r.server, what) for r in (run, direct))
            expect(sent == kept, f"{what} over a wire are {sent}, here {kept}")


def same_stacked(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that a step on arrays with a leading client axis equals the steps of single clients."""
    for made in forms(strategy, problem):
        if why_not_stackable(made, problem) is not None:
            continue
        one, many = (
            simulate(made, problem, 10, evaluate_every=0, engine=engine).x
            for engine in ("local", "stacked")
        )
        expect(
            close(np.asarray(one), np.asarray(many), 1e-9),  # layers are never stacked
            "the stacked engine, which serves all clients in one call, reaches another model: let "
            "`step` reduce over `self.model_axes` with keepdims=True, or state in the client's "
            "`one_at_a_time` why it cannot",
        )


def strategy_unchanged(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that a run changes only its state, not the caller's strategy nor its own copy."""
    for made in forms(strategy, problem):
        run = OpenRun(made, problem)
        for what, held in (("the caller's strategy", made), ("the bound one", run.server.strategy)):
            before, names = contents(vars(held)), dict(vars(held))
            run.play(5)
            expect(contents(vars(held)) == before, f"a run changes {what}: keep it in the state")
            kept = all(value is names[key] for key, value in vars(held).items())
            expect(kept, f"a run replaces an attribute of {what}: keep it in the state")


def state_unchanged(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that a round returns a new state, and does not change the old one.

    Mirrors are exempt, since their columns change in place (`Mirror`).
    """
    for made in forms(strategy, problem):
        run = OpenRun(made, problem)
        for _ in range(3):
            held = [part for part in run.server.state if not isinstance(part, Mirror)]
            before = contents(held)
            run.play()
            expect(
                contents(held) == before,
                "`aggregate` changes its state in place: return a new state with new arrays (x + "
                "y, not x += y)",
            )


def resumed(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that a run resumed from its checkpoint equals an uninterrupted one to the byte."""
    if strategy.uses_num_rounds:
        return
    whole = simulate(strategy, problem, 9, seed=1, evaluate_every=0).x
    with tempfile.TemporaryDirectory() as folder:
        simulate(strategy, problem, 4, seed=1, run_dir=folder, evaluate_every=0)
        options: dict[str, Any] = {"run_dir": folder, "resume": True, "evaluate_every": 0}
        model = simulate(strategy, problem, 9, seed=1, **options).x
    expect(
        model_bytes(model) == model_bytes(whole),
        "a resumed run ends at another model: keep everything in states",
    )


# --- the form of the model -----------------------------------------------------------------------


def any_shape(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that matrices and layers give the iterates of the flat model."""

    def run(shapes: list[tuple[int, ...]], *, layered: bool = False) -> Any:
        flat = quadratics(strategy)
        objectives = [Reshaped(o, shapes, layered=layered) for o in flat]
        return simulate(strategy, default_problem(strategy, objectives), 20, evaluate_every=0).x

    if not _is_default(strategy, problem):
        return
    expected = run([(SIZE,)])
    matrix = run([(2, SIZE // 2)])
    expect(matrix.shape == (2, SIZE // 2), f"a matrix becomes an array of shape {matrix.shape}")
    expect(close(matrix.ravel(), expected, 1e-12), "a matrix has other iterates than a vector")
    layers = run([(2, 2), (2,)], layered=True)
    shapes = [layer.shape for layer in layers]
    expect(shapes == [(2, 2), (2,)], f"layers come back with shapes {shapes}")
    flat = np.concatenate([layer.ravel() for layer in layers])
    expect(close(flat, expected, 1e-12), "layers have other iterates than a vector")


def single_precision(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that a model in float32 stays in float32."""
    if not _is_default(strategy, problem):
        return
    runs: dict[str, Any] = {}
    for dtype in ("float32", "float64"):
        made = default_problem(strategy, list(quadratics(strategy, dtype)))
        runs[dtype] = simulate(strategy, made, 20, evaluate_every=0).x
        expect(runs[dtype].dtype == dtype, f"a model in {dtype} becomes {runs[dtype].dtype}")
    expect(close(runs["float32"], runs["float64"], 1e-4), "float32 ends more than 1e-4 away")


def _is_default(strategy: Strategy, problem: FederatedProblem) -> bool:
    """Return whether this is the default problem, and the strategy's psi allows any form."""
    default = default_problem(strategy)
    shaped = [part for part in (strategy.constraint, strategy.regularizer) if part is not None]
    try:
        for part in shaped:
            part.check_shape((2, SIZE // 2))
    except ConfigError:
        return False
    pairs = zip(default.objectives, problem.objectives, strict=False)
    return all(type(a) is type(b) and np.array_equal(a.Q, b.Q) for a, b in pairs)
