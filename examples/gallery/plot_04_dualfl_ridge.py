"""
DualFL on ridge regression
==========================

DualFL is accelerated and needs no step to tune. Its rounds grow with the square root of the
condition number L/mu; those of a plain proximal method grow with L/mu itself. Here it solves two
problems, one ten times better conditioned than the other.
"""

import matplotlib.pyplot as plt

from flower_fedcon import simulate
from flower_fedcon.problems import quadratics
from flower_fedcon.strategies import DualFL

for condition in (100.0, 1000.0):
    problem = quadratics(clients=10, condition=condition, directions="aligned")
    history = simulate(DualFL(), problem, num_rounds=400, evaluate_every=4)
    plt.semilogy(history["round"], history["error"].clip(1e-14), label=f"L/mu = {condition:.0f}")

plt.xlabel("rounds")
plt.ylabel("relative distance to the optimum")
plt.legend()
plt.grid(alpha=0.3)
