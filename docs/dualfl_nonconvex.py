"""DualFL where the f_j are not convex, which its theory does not cover: where does theta end?

    python docs/dualfl_nonconvex.py

Two clients x^2/2 + a cos(2x + b_j), not convex from a = 1/4 on. Local minima are the global ones,
found on a grid; nu = 0.2, rho = beta = 0. Lines have a, the b_j, F's minimiser, whether each f_j is
equal to its convex envelope there, and the range of theta in the last 200 of 2,000 rounds.
"""

import itertools
import sys

import numpy as np

NU, ROUNDS = 0.2, 2000
GRID = np.linspace(-4, 4, 160_001)


def last(clients):
    """Return theta in the last 200 rounds."""
    theta, z, found = 0.0, np.zeros(len(clients)), []
    for _ in range(ROUNDS):
        zeta = theta - z
        at = np.array(
            [GRID[np.argmin(f - NU * s * GRID)] for f, s in zip(clients, zeta, strict=True)]
        )
        z, theta = at - zeta, at.mean()
        found.append(theta)
    return np.array(found[-200:])


def main():
    """Print the lines."""
    for a, b in itertools.product((0.2, 0.3, 0.5), ((0.3, 0.5), (0.0, 1.5), (0.0, 2.5))):
        clients = [GRID**2 / 2 + a * np.cos(2 * GRID + shift) for shift in b]
        best, touches = np.argmin(np.mean(clients, axis=0)), []
        for f in clients:
            tilted = f - np.gradient(f, GRID)[best] * GRID
            touches.append(bool(tilted.min() >= tilted[best] - 1e-7))
        of = last(clients)
        print(a, b, round(GRID[best], 3), touches, of.min().round(3), of.max().round(3), flush=True)


if __name__ == "__main__":
    sys.exit(main())
