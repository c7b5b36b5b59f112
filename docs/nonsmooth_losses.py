"""Rounds and subgradients to an accuracy, for two losses with kinks: the table of which_method.md.

    python docs/nonsmooth_losses.py

Ten clients of forty rows: a support vector machine, sorted by label, and least absolute deviations
with heavy tails and a level of each client's own. SciPy's linear programs find the optima. Each
method is given the best of a grid of steps for each accuracy, FedMLS also by its rule from D.
Lines have rounds and a client's subgradients for each accuracy.
"""

from math import ceil

import numpy as np
from scipy.optimize import linprog

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LeastAbsoluteDeviations, SupportVectorMachine
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.strategies import FedAvg, FedMLS

CLIENTS, ROWS, ENTRIES = 10, 40, 20
ACCURACIES = 0.03, 0.01, 0.003, 0.001, 0.0003  # of F(x0) - F*
GRID = [10.0**k for k in np.arange(-3, 1.01, 0.5)]  # of D/G


def machine(rng):
    """Return rows and labels of both classes, client by client, and the optimal value."""
    A = rng.normal(size=(CLIENTS * ROWS, ENTRIES))
    y = np.where(A @ rng.normal(size=ENTRIES) + rng.normal(size=len(A)) > 0, 1.0, -1.0)
    order = np.argsort(y + 0.3 * rng.normal(size=len(y)))
    A, y, m = A[order], y[order], len(y)
    cost, bounds = np.r_[np.zeros(ENTRIES), np.full(m, 1 / m)], [(None, None)] * ENTRIES
    found = linprog(
        cost, np.c_[-y[:, None] * A, -np.eye(m)], -np.ones(m), bounds=bounds + [(0, None)] * m
    )
    return SupportVectorMachine, A, y, found


def deviations(rng):
    """Return rows and targets with outliers and levels, and the optimal value."""
    A = rng.normal(size=(CLIENTS * ROWS, ENTRIES))
    levels = np.repeat(3 * rng.normal(size=CLIENTS), ROWS)
    b = A @ rng.normal(size=ENTRIES) + rng.standard_t(1.5, size=len(A)) + levels
    m = len(b)
    cost, size = np.r_[np.zeros(ENTRIES), np.full(m, 1 / m)], -np.eye(m)
    rows = np.block([[A, size], [-A, size]])
    found = linprog(cost, rows, np.r_[b, -b], bounds=[(None, None)] * (ENTRIES + m))
    return LeastAbsoluteDeviations, A, b, found


class MeanModel:
    """The objective at the mean of all models so far, as a metric of each round."""

    def __init__(self):
        self.problem, self.total, self.count = None, 0.0, 0

    def __call__(self, x):
        self.total, self.count = self.total + x, self.count + 1
        return self.problem.objective(self.total / self.count)


def problem_of(made):
    """Return a function that makes the problem, F*, D = ||x* - x0||, and a bound G."""
    kind, A, targets, found = made
    rows, each = A.reshape(CLIENTS, ROWS, ENTRIES), targets.reshape(CLIENTS, ROWS)
    clients = [kind(*own) for own in zip(rows, each, strict=True)]

    def make():
        mean = MeanModel()
        mean.problem = FederatedProblem(clients, metrics={"at_mean": mean})
        return mean.problem

    G = np.linalg.norm(rows, axis=2).mean(axis=1).max()
    return make, found.fun, np.linalg.norm(found.x[:ENTRIES]), G


def curve(strategy, make, least, rounds):
    """Return (F - F*)/(F(x0) - F*) of the better of last and mean model, after each round."""
    problem = make()
    history = simulate(strategy, problem, rounds, engine="stacked")
    values = np.minimum(history["objective"], history["at_mean"])
    return (values - least) / (problem.objective(problem.start) - least)


def first(errors, accuracy):
    """Return the first round from 1 at which the error is small enough; infinity if none."""
    there = np.flatnonzero(errors <= accuracy)
    return there[0] + 1 if len(there) else np.inf


def methods(D, G, steepest):
    """Yield a label, rounds, a client's subgradients in so many of them, and a grid."""
    for K, rounds in ((1, 3000), (10, 1000)):
        steps = [c * D / G / K for c in GRID]
        yield (
            f"FedAvg, {K} a round",
            rounds,
            lambda t, K=K: K * t,
            [FedAvg(client_lr=s, local_steps=K) for s in steps]
            + [FedAvg(client_lr=InverseSqrt(3 * s), local_steps=K) for s in steps],
        )
    # The step of the theory for all rounds, from the numbers that FedMLS takes for its rule.
    yield (
        "FedAvg, D and G given",
        3000,
        lambda t: t,
        [FedAvg(client_lr=InverseSqrt(D / steepest), local_steps=1)],
    )
    for K, rounds in ((1.0, 500), (4.0, 250)):
        own = {"step_growth": K}
        for words, factors in (("", (0.3, 1.0, 3.0, 10.0)), (", D given", (1.0,))):
            yield (
                f"FedMLS, {K:g} t{words}",
                rounds,
                lambda t, K=K: sum(ceil(K * s) for s in range(1, t + 1)),
                [FedMLS(distance=factor * D, **own) for factor in factors],
            )


def main():
    for name, sample in (("SVM", machine), ("LAD", deviations)):
        make, least, D, G = problem_of(sample(np.random.default_rng(0)))
        problem, x0 = make(), np.zeros(ENTRIES)
        start = problem.objective(x0)
        steepest = max(np.linalg.norm(f.gradient(x0)) for f in problem.objectives)
        print(f"{name}: F* = {least:.6f}, F(x0) = {start:.4f}, D = {D:.3g}, G = {G:.3g}")
        for label, rounds, total, grid in methods(D, G, steepest):
            errors = [curve(made, make, least, rounds) for made in grid]
            line = f"  {label:22}"
            for accuracy in ACCURACIES:
                t = min(first(each, accuracy) for each in errors)
                line += f" {t:5g} {total(t) if t < np.inf else t:7g} |"
            ends = [each[-1] for each in errors]
            best = int(np.nanargmin(ends))
            tail = np.arange(rounds // 10, rounds)
            slope = np.polyfit(np.log(tail + 1), np.log(errors[best][tail]), 1)[0]
            print(f"{line} end {ends[best]:.2g} (grid {best}), slope {slope:.2f}", flush=True)


if __name__ == "__main__":
    main()
