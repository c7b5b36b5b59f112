"""Benchmarks of the oracles: projections against sorting, the nuclear LMO against dense SVD."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.lab.benchmarks.in_process import rounds_of
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.objectives import MatrixCompletion
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.sets import L1Ball, NuclearNormBall, RankOneAtom, Simplex
from flower_fedcon.strategies import FedFW
from flower_fedcon.validation import Array


def projections(quick: bool = False) -> Iterator[Result]:
    """Time projections of 10^6 entries against one sort of the same numbers."""
    size = 10_000 if quick else 10**6
    x = np.random.default_rng(0).standard_normal(size)
    kinds: list[tuple[Any, Array]] = [
        (L1Ball, np.sort(np.abs(x))[::-1]),
        (Simplex, np.sort(x)[::-1]),
    ]
    for kind, ordered in kinds:
        for share in (1e-4, 0.1, 0.5, 0.9):
            active = int(share * size)
            ball = kind(float((ordered[:active] - ordered[active]).sum()))
            for dtype in (np.float64, np.float32):
                y = x.astype(dtype)
                works: dict[str, Work] = {
                    "sort": partial(np.sort, y),
                    "project": partial(ball.project, y),
                }
                times = in_turn(works, 2 if quick else 15)
                what = f"{kind.__name__}.project, {100 * share:g} % active, {np.dtype(dtype)}"
                yield ratio(
                    what, "numpy.sort", times["project"], times["sort"], unit="s", target="<= 2.5"
                )


def nuclear(quick: bool = False) -> Iterator[Result]:
    """Time the nuclear-norm LMO of Gaussian matrices, its worst case, against a dense SVD."""
    ball = NuclearNormBall(1.0)
    for shape in [(70, 80)] if quick else [(1000, 1000), (943, 1682), (64, 5000)]:
        g = np.random.default_rng(1).standard_normal(shape)
        works: dict[str, Work] = {"svd": partial(np.linalg.svd, g, full_matrices=False)}
        tolerances = (1e-9, 1e-6, 1e-2)
        works |= {f"{t:g}": partial(ball.lmo, g, tolerance=t) for t in tolerances}
        times = in_turn(works, 1 if quick else 3)
        top = float(np.linalg.svd(g, compute_uv=False)[0])
        for tolerance in tolerances:
            atom = ball.lmo(g, tolerance=tolerance)
            error = 1.0 + float((g * atom.dense()).sum()) / top
            what = f"nuclear LMO {shape}, tolerance {tolerance:g}, found to {error:.0e}"
            seconds = times[f"{tolerance:g}"]
            target = "<= 0.2" if tolerance == 1e-6 and min(shape) > 900 else ""
            yield ratio(what, "dense SVD", seconds, times["svd"], unit="s", target=target)


class _DenseBall(NuclearNormBall):
    """The nuclear-norm ball with an oracle by a dense SVD, for comparison."""

    iterative = False

    def lmo(self, g: Any, *, batch: int = 0, tolerance: float = 0.0) -> RankOneAtom:
        """Return the vertex by a dense SVD."""
        u, _, vt = np.linalg.svd(g, full_matrices=False)
        return RankOneAtom(u[:, 0], vt[0], self.radius)


def completion(quick: bool = False) -> Iterator[Result]:
    """Time a round of FedFW on 100,000 ratings of 943 x 1682 with 40 clients, server included."""
    (users, items), clients, ratings = (943, 1682), 40, 100_000
    if quick:
        (users, items), clients, ratings = (70, 80), 3, 600
    rng = np.random.default_rng(2)
    left, right = rng.standard_normal((users, 5)), rng.standard_normal((items, 5))
    objectives = []
    for mine in np.array_split(rng.choice(users * items, ratings, replace=False), clients):
        row, column = np.divmod(mine, items)
        stars = np.clip(np.round(3.5 + (left[row] * right[column]).sum(axis=1)), 1, 5)
        objectives.append(MatrixCompletion(row, column, stars, (users, items)))

    def rounds(ball: NuclearNormBall, number: int, before: int = 0) -> float:
        problem = FederatedProblem(objectives, constraint=ball)
        play = rounds_of(FedFW(ball, penalty=1e-3), problem, "local")
        play(before)
        began = time.process_time()
        play(number)
        return (time.process_time() - began) / number

    dense = rounds(_DenseBall(7000.0), 1 if quick else 2)
    ours = rounds(NuclearNormBall(7000.0), 2 if quick else 12, before=1)
    what = f"a round of FedFW, completion of {users} x {items}, {clients} clients"
    yield ratio(what, "with dense SVDs", [ours], [dense], unit="s", target="<= 0.05")

    u, v = rng.standard_normal((clients, users)), rng.standard_normal((clients, items))
    atoms = [RankOneAtom(*pair, 1.0) for pair in zip(u, v, strict=True)]

    def one_by_one() -> None:
        total = np.zeros((users, items))
        for atom in atoms:
            atom.add_to(total)

    works: dict[str, Work] = {"each": one_by_one, "sum": partial(RankOneAtom.sum, atoms)}
    times = in_turn(works, 2 if quick else 9)
    what = f"the server's sum of {clients} rank-one atoms"
    yield ratio(what, "one by one", times["sum"], times["each"], unit="s")
