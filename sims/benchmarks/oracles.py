"""Timings of the oracles: python sims/benchmarks/oracles.py.

Each line is a ratio of medians. The machine and the number of threads matter, and so does what
else it is doing: the two sides of a ratio are timed in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import MatrixCompletion
from flower_fedcon.sets import L1Ball, MatrixOperator, NuclearNormBall, RankOneAtom, Simplex
from flower_fedcon.strategies import FedFW
from flower_fedcon.wire import array_bytes

Work = Callable[[], object]


def medians(*works: Work, repeats: int) -> list[float]:
    """Return the median seconds of each work, all timed in turn after one round to warm up."""
    seconds: list[list[float]] = [[] for _ in works]
    for turn in range(repeats + 1):
        for times, work in zip(seconds, works, strict=True):
            begin = time.perf_counter()
            work()
            if turn:
                times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in seconds]


def show(what: str, base: float, other: float, note: str = "") -> None:
    """Print two medians and their ratio."""
    ratio = f"{base / other:8.2f}x"
    print(f"{what:<58} {1e3 * base:9.2f} ms {1e3 * other:9.2f} ms {ratio}  {note}", flush=True)


def projections(size: int = 10**6) -> None:
    """Time projections against one sort of the same numbers."""
    print(f"projection of {size} Gaussian entries | one numpy.sort (target: at most 2.5 of it)")
    x = np.random.default_rng(0).standard_normal(size)
    for ball in (L1Ball(1.0), L1Ball(1e3), L1Ball(0.3 * size), Simplex(1.0), Simplex(1e3)):
        for dtype in (np.float64, np.float32):
            y = x.astype(dtype)
            own, sort = medians(lambda: ball.project(y), lambda: np.sort(y), repeats=15)  # noqa: B023
            show(f"{ball!r}, {np.dtype(dtype)}", own, sort)


def nuclear() -> None:
    """Time the nuclear-norm LMO against dense decompositions."""
    print("dense SVD | LMO of the nuclear-norm ball (target: at least 5)")
    ball = NuclearNormBall(1.0)
    for shape in ((1000, 1000), (943, 1682), (64, 5000)):
        g = np.random.default_rng(1).standard_normal(shape)
        top = np.linalg.svd(g, compute_uv=False)[0]
        for tolerance in (1e-9, 1e-6, 1e-2):
            atom = ball.lmo(g, tolerance=tolerance)
            error = 1.0 + float((g * atom.dense()).sum()) / top
            dense, own = medians(
                lambda: np.linalg.svd(g, full_matrices=False),  # noqa: B023
                lambda: ball.lmo(g, tolerance=tolerance),  # noqa: B023
                repeats=3,
            )
            show(f"Gaussian {shape}, tolerance {tolerance:g}", dense, own, f"error {error:.1e}")


def completion(clients: int = 40, ratings: int = 100_000) -> None:
    """Time a client's step of FedFW on matrix completion, 943 x 1682."""
    print(f"a client's LMO of {clients}, {ratings} ratings: by dense SVD | here (target: 20)")
    shape = (943, 1682)
    rng = np.random.default_rng(2)
    flat = rng.choice(shape[0] * shape[1], ratings // clients, replace=False)
    values = rng.integers(1, 6, flat.size).astype(float)
    f = MatrixCompletion(flat // shape[1], flat % shape[1], values, shape)
    ball, zero = NuclearNormBall(7000.0), np.zeros(shape)
    x = zero
    for _ in range(5):
        x = ball.lmo(f.gradient(x) + 1e-3 * x, tolerance=1e-3).mix(x, 0.2)
    last = ball.lmo(f.gradient_operator(x) + 1e-4 * x)
    cases: dict[str, Work] = {
        "dense gradient and penalty": lambda: ball.lmo(f.gradient(x) + 1e-4 * x),
        "sparse + dense penalty": lambda: ball.lmo(f.gradient_operator(x) + 1e-4 * x),
        "the same, tolerance 1e-3": lambda: ball.lmo(
            f.gradient_operator(x) + 1e-4 * x, tolerance=1e-3
        ),
        "the same, warm start": lambda: ball.lmo(
            f.gradient_operator(x) + 1e-4 * x, tolerance=1e-3, start=last.arrays()["u"]
        ),
        "sparse alone": lambda: ball.lmo(f.gradient_operator(x)),
        "sparse + low rank": lambda: ball.lmo(f.gradient_operator(x) + factors),
    }
    left, right = rng.standard_normal((shape[0], 5)), rng.standard_normal((shape[1], 5))
    factors = MatrixOperator(shape, left=1e-3 * left, right=right)

    def dense() -> object:
        return np.linalg.svd(f.gradient(x) + 1e-4 * x, full_matrices=False)

    for name, work in cases.items():
        base, own = medians(dense, work, repeats=3)
        show(name, base, own)


def rounds(clients: int = 40, ratings: int = 100_000) -> None:
    """Time whole rounds of FedFW on matrix completion, 943 x 1682, server included."""
    print(f"a round of FedFW with {clients} clients: by dense SVD | here (target: 20)")
    shape = (943, 1682)
    rng = np.random.default_rng(2)
    flat = rng.choice(shape[0] * shape[1], ratings, replace=False)
    factors = rng.standard_normal((shape[0], 5)), rng.standard_normal((shape[1], 5))
    objectives = []
    for mine in np.array_split(flat, clients):
        row, column = mine // shape[1], mine % shape[1]
        values = np.clip(np.round(3.5 + (factors[0][row] * factors[1][column]).sum(1)), 1, 5)
        objectives.append(MatrixCompletion(row, column, values, shape))

    class DenseBall(NuclearNormBall):
        """The oracle that this project does without."""

        iterative = False

        def lmo(self, g, *, batch=0):
            u, _, vt = np.linalg.svd(g, full_matrices=False)
            return RankOneAtom(u[:, 0], vt[0], self.radius)

    def run(ball: NuclearNormBall, played: int) -> float:
        problem = FederatedProblem(objectives, constraint=ball)
        strategy = FedFW(ball, penalty=1e-3)
        history = simulate(strategy, problem, played, evaluate_every=0)
        return history["seconds"][-1] / played

    show("FedFW", run(DenseBall(7000.0), 2), run(NuclearNormBall(7000.0), 12))


def wire() -> None:
    """Print the bytes of an atom against those of the dense model."""
    print("bytes of a dense model | of an atom")
    rng = np.random.default_rng(3)
    for ball, shape in ((L1Ball(1.0), (100_000,)), (NuclearNormBall(1.0), (943, 1682))):
        dense = array_bytes(shape, np.dtype(np.float64))
        atom = ball.lmo(rng.standard_normal(shape), **({} if len(shape) == 1 else {"tolerance": 1}))
        print(f"{ball!r:<58} {dense:12d} {atom.nbytes:12d} {100 * atom.nbytes / dense:8.4f} %")


if __name__ == "__main__":
    projections()
    nuclear()
    completion()
    rounds()
    wire()
