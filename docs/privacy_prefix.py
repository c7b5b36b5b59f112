"""What correlated noise saves where clients take turns: l1 logistic regression, epsilon 1 to 8.

    python docs/privacy_prefix.py docs/privacy_prefix.png

FedDualAvg with 10, 100 and 1,000 clients in ten groups, a group in each of 100 rounds, so that a
client takes part ten times; beside it everyone in each round. Data, five seeds and settings are
those of privacy_cost.py.
"""

from __future__ import annotations

import sys

import dp_accounting
import numpy as np
from matplotlib import pyplot as plt
from privacy_cost import CLIP, DELTA, SIZES, STEPS, WEIGHT, band, data, f1

from flower_fedcon import Cyclic, Full, simulate
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.privacy.prefix import encoder
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedDualAvg

ROUNDS, GROUPS, SEEDS = 100, 10, 5
EPSILONS = (1.0, 2.0, 4.0, 8.0)
LINES = {
    "everyone in each round, independent": ("independent", Full()),
    "in turns, independent": ("independent", Cyclic(GROUPS)),
    "in turns, tree": ("tree", Cyclic(GROUPS)),
    "in turns, banded": ("banded", Cyclic(GROUPS)),
}


def measured(mechanism, participation, clients: int, epsilon: float, seed: int) -> list[float]:
    """Return the gap of the objective and the F1 of the support after the last round."""
    problem, truth, _, _ = data(clients, seed)
    b = 1 if isinstance(participation, Full) else GROUPS
    square = encoder(mechanism, b, ROUNDS, None, None).sensitivity(ROUNDS)
    z = dp_accounting.get_sigma_gaussian(epsilon, DELTA) * square**0.5
    privacy = GaussianDP(CLIP, z, DELTA, mechanism=mechanism)
    made = FedDualAvg(L1(WEIGHT), **STEPS, participation=participation, privacy=privacy)
    history = simulate(made, problem, ROUNDS, engine="stacked", seed=seed, evaluate_every=ROUNDS)
    if abs(history["epsilon"][-1] / epsilon - 1) > 1e-3:
        raise ValueError(f"epsilon is {history['epsilon'][-1]}, expected {epsilon}")
    return [problem.objective(history.x) - best(clients, seed), f1(history.x, truth)]


def best(clients: int, seed: int, known: dict = {}) -> float:  # noqa: B006
    """Return the least value of the objective."""
    if (clients, seed) not in known:
        problem = data(clients, seed)[0]
        known[clients, seed] = problem.optimum.value
    return known[clients, seed]


def main(path: str) -> None:
    """Measure and draw."""
    figure, axes = plt.subplots(2, 3, figsize=(10, 6), sharex=True, layout="constrained")
    axes[0, 0].set_ylabel("objective above its minimum")
    axes[1, 0].set_ylabel("F1 of the support")
    places = np.arange(len(EPSILONS))
    for column, clients in enumerate(SIZES):
        for label, (mechanism, participation) in LINES.items():
            found = np.array([
                [measured(mechanism, participation, clients, epsilon, s) for s in range(SEEDS)]
                for epsilon in EPSILONS
            ])  # fmt: skip
            for row, title in enumerate(("gap", "F1")):
                band(axes[row, column], places, found[:, :, row], label)
                means = found[:, :, row].mean(axis=1)
                spread = found[:, :, row].std(axis=1, ddof=1)
                print(clients, label, title, means.round(3), spread.round(3), flush=True)
        axes[0, column].set_title(f"{clients:,} clients")
        axes[0, column].set_yscale("log")
        axes[1, column].set_ylim(0, 1.05)
        axes[1, column].set_xlabel("epsilon")
        axes[1, column].set_xticks(places, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes[0, 0].legend(fontsize=7)
        figure.savefig(path, dpi=110)  # what there is so far


if __name__ == "__main__":
    main(*sys.argv[1:])
