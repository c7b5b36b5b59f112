"""
A client that lies
==================

One client of ten sends false updates. The mean follows it; a trimmed mean and a coordinate-wise
median do not. If clients differ, as here, a robust rule also has a price: it moves the limit.
"""

import matplotlib.pyplot as plt
import numpy as np

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.aggregation import CoordinateMedian, TrimmedMean
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.strategies import FedAvg

rng = np.random.default_rng(0)
truth = rng.normal(size=10)
honest = []
for _ in range(9):
    A = rng.normal(size=(50, 10))
    honest.append(LeastSquares(A, A @ (truth + 0.1 * rng.normal(size=10))))
A = rng.normal(size=(50, 10))
liar = LeastSquares(A, A @ (truth + 30))

metrics = {"error": lambda x: float(np.linalg.norm(x - truth))}
problem = FederatedProblem([*honest, liar], metrics=metrics)
for name, rule in {
    "mean": None,
    "trimmed mean": TrimmedMean(0.2),
    "coordinate-wise median": CoordinateMedian(),
}.items():
    strategy = FedAvg(client_lr=0.1, local_steps=5, aggregation=rule)
    history = simulate(strategy, problem, num_rounds=60)
    plt.semilogy(history["round"], history["error"], label=name)

plt.xlabel("rounds")
plt.ylabel("distance to the honest clients' truth")
plt.legend()
plt.grid(alpha=0.3)
