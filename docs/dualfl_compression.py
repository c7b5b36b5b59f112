"""DualFL with compressed uploads, which its paper does not have: where does F - F* end?

    python docs/dualfl_compression.py

The problem is that of sims/dualfl_digits.toml: softmax regression of the digits, 650 numbers, 8
clients, nu = 1e-2. Client and server both go on with the same approximation of theta_j, so that
theta stays the mean of the z_j. "upload" compresses theta_j itself, "memory" its difference from
the last approximation (EF21), "move" its difference from the broadcast theta, which tends to 0.
An unbiased compressor that keeps a memory, or a move, enters as C/(1 + q). Lines have
(F - F*)/F* in ROUNDS with the momentum of the paper, rho = nu/L, and without any (beta = 0). A run
that is beyond 100 has diverged and ends. All takes some minutes.
"""

import sys

import numpy as np
from scipy.optimize import minimize

from flower_fedcon.compressors import QSGD, Natural, Sign, TopK
from flower_fedcon.problems import digits

ROUNDS = 5, 10, 20, 40
NU = 1e-2
WAYS = {
    "none": None,
    "Natural": Natural(),
    "QSGD, 8 levels": QSGD(levels=8),
    "TopK, 10 %": TopK(fraction=0.1),
    "Sign": Sign(),
}


def sent(compressor, x, rng, *, damped):
    """Return C(x), divided by 1 + q if it is unbiased and `damped`."""
    if compressor is None:
        return x
    values = compressor.compress(x, rng).dense()
    return values / (1 + compressor.q(x.size)) if damped and compressor.unbiased else values


def argmin(f, zeta, start):
    """Return the minimiser of f(x) - nu <zeta, x>."""

    def value(flat):
        x = flat.reshape(zeta.shape)
        slope = f.gradient(x) - NU * zeta
        return f.value(x) - NU * np.sum(zeta * x), slope.ravel()

    options = {"gtol": 1e-6, "ftol": 0.0, "maxiter": 200}
    return minimize(value, start.ravel(), jac=True, method="L-BFGS-B", options=options).x.reshape(
        zeta.shape
    )


def run(problem, compressor, kind, rho, *, momentum, seed=0):
    """Return (F - F*)/F* in ROUNDS."""
    rng, n, found = np.random.default_rng(seed), problem.num_clients, []
    zero = np.zeros_like(problem.start)
    theta, t, beta = zero, 1.0, 0.0
    z, c, at, memory = ([zero] * n for _ in range(4))
    for r in range(1, max(ROUNDS) + 1):
        for j, f in enumerate(problem.objectives):
            now = theta - z[j]
            zeta = (1 + beta) * now - beta * c[j] if r > 1 else now
            at[j] = argmin(f, zeta, at[j])
            base = {"upload": zero, "memory": memory[j], "move": theta}[kind]
            memory[j] = base + sent(compressor, at[j] - base, rng, damped=kind != "upload")
            z[j], c[j] = memory[j] - zeta, now
        theta = np.mean(memory, axis=0)
        if momentum:
            last, low = t, 1 - rho * t**2
            t = (low + (low**2 + 4 * last**2) ** 0.5) / 2
            beta = (last - 1) / t * (1 - rho * t) / (1 - rho)
        if r in ROUNDS:
            found.append(problem.objective(theta) / problem.optimum.value - 1)
            if found[-1] > 100:
                break
    return np.array(found)


def main():
    """Print the table."""
    problem = digits(clients=8, split="even", l2=NU, test_size=5)
    rho = NU / max(f.smoothness for f in problem.objectives)
    for name, compressor in WAYS.items():
        for kind in ("upload", "memory", "move") if compressor else ("upload",):
            for momentum in (True, False):
                of = run(problem, compressor, kind, rho, momentum=momentum)
                text = " ".join(f"{value:9.1e}" for value in of)
                print(
                    f"{name:15s} {kind:7s} beta {'> 0' if momentum else '= 0'}  {text}", flush=True
                )


if __name__ == "__main__":
    sys.exit(main())
