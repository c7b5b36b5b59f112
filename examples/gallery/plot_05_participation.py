"""
Some clients in each round
==========================

All, half, or a tenth of twenty clients take part in a round. They are drawn anew in each round,
from the run's seed. CompositeFL has no floor under sampling: it only takes more rounds. In
megabytes, a small cohort costs little.
"""

import matplotlib.pyplot as plt

from flower_fedcon import Sample, simulate
from flower_fedcon.problems import l1_logistic
from flower_fedcon.strategies import CompositeFL

problem = l1_logistic(clients=20, seed=1)
print("F* =", problem.optimum.value)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for fraction in (1.0, 0.5, 0.1):
    strategy = CompositeFL(
        problem.regularizer, client_lr="auto", participation=Sample(fraction=fraction)
    )
    history = simulate(strategy, problem, num_rounds=400, evaluate_every=4)
    megabytes = (history["uplink_bytes"] + history["downlink_bytes"]) / 1e6
    residual = history["residual"].clip(1e-12)
    left.semilogy(history["round"], residual, label=f"{fraction:.0%} of 20 clients")
    right.semilogy(megabytes, residual)
left.set(xlabel="rounds", ylabel="F - F*")
right.set(xlabel="megabytes, up and down")
left.legend()
