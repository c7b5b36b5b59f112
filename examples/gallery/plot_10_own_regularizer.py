"""
A regularizer of your own
=========================

Any object with `prox(v, step)` and `__call__(v)` is a regularizer. This one shrinks the
coefficients towards those of a prior model instead of towards 0. Clients with few rows then stay
near the prior model.
"""

import matplotlib.pyplot as plt
import numpy as np

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.strategies import FedDR


class NearPrior:
    """psi(x) = weight ||x - prior||_1."""

    def __init__(self, weight, prior):
        self.weight, self.prior = weight, prior

    def __call__(self, x):
        return self.weight * np.abs(x - self.prior).sum()

    def prox(self, v, step):
        moved = v - self.prior
        return self.prior + np.sign(moved) * np.maximum(np.abs(moved) - step * self.weight, 0)


rng = np.random.default_rng(0)
prior = rng.normal(size=30)
truth = prior.copy()
truth[:4] += [2.0, -2.0, 1.5, 1.0]  # what has changed since
clients = []
for _ in range(5):
    A = rng.normal(size=(8, 30))
    clients.append(LeastSquares(A, A @ truth + 0.1 * rng.normal(size=8)))

psi = NearPrior(0.05, prior)
problem = FederatedProblem(clients, regularizer=psi)
print("F* =", problem.optimum.value)
history = simulate(FedDR(psi, step_size=1.0), problem, num_rounds=100)
print("F - F*", history["residual"][-1])

plt.stem(truth - prior, linefmt="C7-", markerfmt="C7o", basefmt="k-", label="what has changed")
plt.plot(history.x - prior, "C0x", label="found")
plt.xlabel("coefficient")
plt.ylabel("difference to the prior")
plt.legend()
