"""
The curse of primal averaging
=============================

The mean of sparse models is not sparse. FedMiD averages models, and its mean has entries that few
clients need. FedDualAvg averages the dual variables and applies the l1 prox afterwards, so its
model is sparse. FedAvg with subgradients is never sparse. The data are digits, at ten clients with
few labels each.
"""

import matplotlib.pyplot as plt

from flower_fedcon import simulate
from flower_fedcon.problems import digits
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedMiD

problem = digits(l1=1e-3)
print("F* =", problem.optimum.value)
strategies = {
    "FedDualAvg": FedDualAvg(problem.regularizer, client_lr="auto"),
    "FedMiD": FedMiD(problem.regularizer, client_lr="auto"),
    "FedAvg": FedAvg(regularizer=problem.regularizer, client_lr="auto"),
}

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for name, strategy in strategies.items():
    history = simulate(strategy, problem, num_rounds=150, evaluate_every=5)
    left.semilogy(history["round"], history["residual"], label=name)
    right.plot(history["round"], history["sparsity"], label=name)
left.set(xlabel="rounds", ylabel="F - F*")
right.set(xlabel="rounds", ylabel="share of zeros")
left.legend()
