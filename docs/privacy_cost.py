"""What client-level privacy costs: l1 logistic regression, epsilon 1 to 8 and none.

    python docs/privacy_cost.py docs/privacy_cost.png

Three methods, 10, 100 and 1,000 clients, everyone in each of 25 rounds, five seeds of data and
noise; two minutes. Bands are 95% intervals of the mean, by Student's t. Settings were not tuned for
the noise: 5 local steps of 0.3, clip 0.5, l1 weight 0.02.
"""

from __future__ import annotations

import sys

import matplotlib
import numpy as np
from scipy import stats
from scipy.optimize import brentq

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.privacy.accountant import Accountant, Sampling
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedMiD

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROUNDS, DELTA, CLIP, WEIGHT = 25, 1e-4, 0.5, 0.02
ROWS, FEATURES, NONZEROS = 20, 50, 5
STEPS = {"client_lr": 0.3, "local_steps": 5}
EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
SIZES, SEEDS = (10, 100, 1000), 5
METHODS = {
    "FedDualAvg": lambda **k: FedDualAvg(L1(WEIGHT), **STEPS, **k),
    "FedMiD": lambda **k: FedMiD(L1(WEIGHT), **STEPS, **k),
    "FedAvg (subgradient)": lambda **k: FedAvg(regularizer=L1(WEIGHT), **STEPS, **k),
}


def data(clients: int, seed: int) -> tuple[FederatedProblem, np.ndarray, np.ndarray, np.ndarray]:
    """Return a problem, its truth, and rows that nobody trains on."""
    rng = np.random.default_rng(seed)
    truth = np.zeros(FEATURES)
    truth[:NONZEROS] = 2.0 * rng.choice([-1.0, 1.0], NONZEROS)

    def draw(rows: int) -> tuple[np.ndarray, np.ndarray]:
        A = rng.standard_normal((rows, FEATURES))
        return A, np.where(A @ truth + rng.logistic(size=rows) > 0, 1, -1)

    objectives = [LogisticRegression(*draw(ROWS)) for _ in range(clients)]
    return FederatedProblem(objectives, regularizer=L1(WEIGHT)), truth, *draw(4000)


def multiplier(epsilon: float, clients: int) -> float:
    """Return the noise multiplier that spends epsilon in all rounds."""
    sampling = Sampling("full", clients, clients)
    return brentq(lambda z: Accountant(z, DELTA, sampling).epsilon(ROUNDS) - epsilon, 0.3, 300.0)


def measured(make, clients: int, epsilon: float | None, seed: int) -> list[float]:
    """Return F, the F1 of the support and the accuracy after the last round."""
    problem, truth, A, y = data(clients, seed)
    privacy = None
    if epsilon is not None:
        privacy = GaussianDP(CLIP, multiplier(epsilon, clients), DELTA)
    x = simulate(
        make(privacy=privacy), problem, ROUNDS, engine="stacked", seed=seed, evaluate_every=0
    ).x
    return [problem.objective(x), f1(x, truth), np.mean(np.where(A @ x > 0, 1, -1) == y)]


def f1(x: np.ndarray, truth: np.ndarray) -> float:
    """Return the F1 of the support."""
    found, real = np.abs(x) > 1e-8, truth != 0
    return 2 * (found & real).sum() / max(1, found.sum() + real.sum())


def band(ax, places: np.ndarray, values: np.ndarray, label: str) -> None:
    """Draw means over the last axis, and their 95% intervals."""
    mean, n = values.mean(axis=1), values.shape[1]
    half = stats.t.ppf(0.975, n - 1) * values.std(axis=1, ddof=1) / np.sqrt(n)
    ax.plot(places, mean, marker="o", markersize=3, label=label)
    low = np.maximum(mean - half, values.min(axis=1) / 2)  # a logarithmic axis has no 0
    ax.fill_between(places, low, mean + half, alpha=0.2)


def main(path: str) -> None:
    """Measure and draw."""
    titles = "objective", "F1 of the support", "accuracy, held-out rows"
    figure, axes = plt.subplots(3, 3, figsize=(10, 8), sharex=True, layout="constrained")
    places = np.arange(len(EPSILONS))
    for column, clients in enumerate(SIZES):
        for label, make in METHODS.items():
            found = np.array([
                [measured(make, clients, epsilon, seed) for seed in range(SEEDS)]
                for epsilon in EPSILONS
            ])  # fmt: skip
            for row, ax in enumerate(axes[:, column]):
                values = found[:, :, row]
                band(ax, places, values, label)
                print(clients, label, titles[row], values.mean(axis=1).round(3).tolist())
        axes[0, column].set_title(f"{clients:,} clients")
        axes[0, column].set_yscale("log")
        axes[2, column].set_xlabel("epsilon")
        axes[2, column].set_xticks(places, ["1", "2", "4", "8", "none"])
    for row, title in enumerate(titles):
        axes[row, 0].set_ylabel(title)
    for ax in axes[1]:
        ax.set_ylim(0, 1.05)
    for ax in axes[2]:
        ax.set_ylim(0.45, 1.0)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
