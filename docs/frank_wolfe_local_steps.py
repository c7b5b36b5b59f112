"""FedFW with several local steps a round, which its paper leaves open: are rounds saved?

    python docs/frank_wolfe_local_steps.py

Between two exchanges each client takes K steps towards vertices, with x_bar as of the last
exchange; eta and lambda fall with each step. The problems are those of frank_wolfe_penalty.py with
20 clients. Lines have F - F* over that of K = 1 after as many rounds, with FedFW's penalty, and
with K times as much, which holds the clients to the old x_bar. For K = 10 the two last numbers
are over K = 1 after as many steps, 100 and 300. The last lines are geometric means.
"""

import itertools
import sys

import numpy as np
from frank_wolfe_penalty import SETS, problem

ROUNDS = 10, 30, 100, 300
STEPS = 1, 2, 5, 10


def gaps(one, K, penalty):
    """Return F - F* in ROUNDS."""
    n, x_bar, found = one.num_clients, one.start, []
    x = [x_bar] * n
    for r in range(max(ROUNDS)):
        for k in range(K):
            age = r * K + k + 2
            eta, pull = 2 / age, penalty * age**0.5
            for i, f in enumerate(one.objectives):
                g = f.gradient(x[i]) / n + pull * (x[i] - x_bar)
                x[i] = one.constraint.lmo(g).mix(x[i], eta)
        x_bar = np.mean(x, axis=0)
        if r + 1 in ROUNDS:
            found.append(one.objective(x_bar) - one.optimum.value)
    return np.array(found)


def main():
    """Print the ratios."""
    ratios = {}
    for i, (name, classes) in enumerate(itertools.product(SETS, (False, True))):
        one = problem(name, classes, 20, 0.5 * (i % 2), np.random.default_rng(i))
        steepest = max(np.linalg.norm(f.gradient(one.start)) for f in one.objectives)
        rule = steepest / (20 * one.constraint.diameter_for(one.start.shape))
        base = gaps(one, 1, rule)
        for K, times in itertools.product(STEPS[1:], (False, True)):
            found = gaps(one, K, rule * (K if times else 1))
            of = np.r_[found / base, found[:2] / base[2:] if K == 10 else []]
            ratios.setdefault((K, times), []).append(of)
            print(name, "classes" if classes else "squares", K, times, of.round(2), flush=True)
    for key, of in ratios.items():
        print(key, np.exp(np.log(of).mean(axis=0)).round(2), np.max(of, axis=0).round(2))


if __name__ == "__main__":
    sys.exit(main())
