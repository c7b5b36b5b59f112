"""
The same problem by four methods
================================

Ten clients with different data fit a sparse logistic regression. FedMiD and FedDualAvg take local
steps and end with a bias. CompositeFL corrects the steps by control variates, and FedDR solves a
small problem on each client. Both converge to the optimum, which an independent solver found.
"""

import matplotlib.pyplot as plt

from flower_fedcon import simulate
from flower_fedcon.problems import l1_logistic
from flower_fedcon.strategies import CompositeFL, FedDR, FedDualAvg, FedMiD

problem = l1_logistic(clients=10, seed=1)
psi = problem.regularizer
print("F* =", problem.optimum.value)

strategies = [FedMiD(psi, client_lr="auto"), FedDualAvg(psi, client_lr="auto"),
              CompositeFL(psi, client_lr="auto"), FedDR(psi)]  # fmt: skip

# %%
# Only the strategy changes.

for strategy in strategies:
    history = simulate(strategy, problem, num_rounds=150, evaluate_every=2)
    plt.semilogy(history["round"], history["residual"].clip(1e-12), label=strategy.title)

plt.xlabel("rounds")
plt.ylabel("F - F*")
plt.legend()
plt.grid(alpha=0.3)
