"""
A first lasso
=============

Ten clients hold 20 rows each of a least-squares problem with 400 unknowns, of which 20 are not
zero. The model is bounded by the l1 ball through the truth. FedFW and FedFWPlus are
projection-free: a client sends one vertex of the ball, 136 bytes instead of 3,200.
"""

import matplotlib.pyplot as plt

from flower_fedcon import simulate
from flower_fedcon.problems import lasso
from flower_fedcon.strategies import FedFW, FedFWPlus

problem = lasso(clients=10, rows=200, columns=400, nonzeros=20)

# %%
# A strategy is given its set, and "auto" lets the run find its penalty. `simulate` runs it in this
# process and returns its history.

for strategy in (
    FedFW(problem.constraint, penalty="auto"),
    FedFWPlus(problem.constraint, penalty="auto"),
):
    history = simulate(strategy, problem, num_rounds=3000, evaluate_every=10)
    plt.loglog(history["round"], history["residual"], label=strategy.title)
    print(strategy.title, "sent", history["uplink_bytes"][-1], "bytes up")

plt.xlabel("rounds")
plt.ylabel("F - F*")
plt.legend()
plt.grid(alpha=0.3)
