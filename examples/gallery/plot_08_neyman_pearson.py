"""
Neyman-Pearson classification by FedSGM
=======================================

A missed tumour is worse than a false alarm. So the loss on healthy patients is minimised under a
bound on the loss on ill ones, g(x) <= 0.1. Both are averaged over ten clients. FedSGM switches
between the gradients of the two losses.
"""

import matplotlib.pyplot as plt

from flower_fedcon import simulate
from flower_fedcon.problems import neyman_pearson
from flower_fedcon.strategies import FedSGM

TOLERANCE = 0.1
problem = neyman_pearson(clients=10)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for switching in ("soft", "hard"):
    strategy = FedSGM(client_lr=0.3, local_steps=5, tolerance=TOLERANCE, switching=switching)
    history = simulate(strategy, problem, num_rounds=100)
    left.plot(history["round"], history["objective"], label=switching)
    right.plot(history["round"], history["constraint_estimate"], label=switching)
right.axhline(TOLERANCE, color="gray", linestyle=":")
left.set(xlabel="rounds", ylabel="f: loss on the healthy")
right.set(xlabel="rounds", ylabel="g: loss on the ill")
left.legend()
