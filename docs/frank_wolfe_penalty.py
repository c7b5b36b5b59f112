"""FedFWPlus beside FedFW for penalties that are a share of FedFW's rule: the table of its page.

    python docs/frank_wolfe_penalty.py

24 problems: four sets, least squares and classification, and 5, 20 and 50 clients, alike in every
other problem and with optima of their own in the others. An independent solver finds F*. A line
has, for one share, the geometric mean of FedFWPlus's F - F* over FedFW's, and the largest ratio,
in some rounds; before them each problem's ratios with a twentieth are printed.
"""

import itertools
import sys

import numpy as np

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LeastSquares, LogisticRegression, SoftmaxRegression
from flower_fedcon.sets import Birkhoff, L1Ball, NuclearNormBall, Simplex
from flower_fedcon.strategies import FedFW, FedFWPlus

ROUNDS = 30, 100, 300, 1000
SHARES = 1, 1 / 5, 1 / 10, 1 / 20, 1 / 50
SETS = {"l1 ball": L1Ball(3.0), "simplex": Simplex(), "nuclear norm": NuclearNormBall(3.0),
        "Birkhoff": Birkhoff(8)}  # fmt: skip


def truth(name, rng):
    """Return a point of the set with few vertices, and the start, in the set's middle."""
    if name == "l1 ball":
        x = np.where(rng.random(40) < 0.15, rng.normal(size=40), 0.0)
        return 3.0 * x / np.abs(x).sum(), np.zeros(40)
    if name == "simplex":
        x = np.where(rng.random(40) < 0.15, rng.random(40), 0.0)
        return x / x.sum(), np.full(40, 1 / 40)
    if name == "nuclear norm":
        x = rng.normal(size=(10, 2)) @ rng.normal(size=(2, 6))
        return 3.0 * x / np.linalg.norm(x, "nuc"), np.zeros((10, 6))
    x = np.mean([np.eye(8)[rng.permutation(8)] for _ in range(3)], axis=0)
    return x, np.full((8, 8), 1 / 8)


def problem(name, classes, n, apart, rng):
    """Return the problem; `apart` is how far the clients' truths are from each other."""
    x, start = truth(name, rng)
    clients = []
    for _ in range(n):
        own = x + apart * np.abs(x).max() * rng.normal(size=x.shape)
        A = rng.normal(size=(400 // n, len(x))) * (1 + 2 * apart * rng.random(len(x)))
        z = A @ own
        z = z + 0.1 * z.std() * rng.normal(size=z.shape)
        if not classes:
            clients.append(LeastSquares(A, z))
        elif z.ndim == 1:
            clients.append(LogisticRegression(A, np.where(z > 0, 1.0, -1.0)))
        else:
            clients.append(SoftmaxRegression(A, z.argmax(1), num_classes=z.shape[1]))
    return FederatedProblem(clients, constraint=SETS[name], x0=start)


def gaps(method, one):
    """Return F - F* in ROUNDS."""
    history = simulate(method, one, max(ROUNDS), engine="stacked", evaluate_every=10)
    found = dict(zip(history["round"], history["objective"], strict=True))
    return np.array([found[t] for t in ROUNDS]) - one.optimum.value


def main():
    """Print the table."""
    kinds = list(itertools.product(SETS, (False, True), (5, 20, 50)))
    ratios = []
    for i, (name, classes, n) in enumerate(kinds):
        one = problem(name, classes, n, 0.5 * (i % 2), np.random.default_rng(i))
        steepest = max(np.linalg.norm(f.gradient(one.start)) for f in one.objectives)
        rule = steepest / (n * one.constraint.diameter_for(one.start.shape))
        base = gaps(FedFW(one.constraint), one)
        ratios.append([gaps(FedFWPlus(one.constraint, penalty=s * rule), one) / base
                       for s in SHARES])  # fmt: skip
        words = name, "classes" if classes else "squares", n, "apart" if i % 2 else "alike"
        print(*words, ratios[-1][3].round(3), flush=True)
    for share, of in zip(SHARES, np.swapaxes(ratios, 0, 1), strict=True):
        mean, most = np.exp(np.log(of).mean(axis=0)), of.max(axis=0)
        print(f"{share:.3g}", mean.round(2), most.round(2), "behind:", (of > 1).sum(axis=0))


if __name__ == "__main__":
    sys.exit(main())
