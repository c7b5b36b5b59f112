"""
Noise that the clients add
==========================

A hundred clients train a sparse model with privacy for each client. If the server is
trusted, it adds the noise. Otherwise each client adds a share before secure aggregation, and the
shares of any t clients suffice. The noise is then larger than needed by the square root of 100/t,
so choose t close to a hundred. A round with fewer than t + 1 replies is void.
"""

import matplotlib.pyplot as plt

from flower_fedcon import simulate
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.problems import l1_logistic
from flower_fedcon.strategies import FedDualAvg

problem = l1_logistic(clients=100, rows=20, columns=20, seed=0)
print("F* =", problem.optimum.value)
RULES = {
    "server": {},
    "clients, t = 90": {"noise_by": "clients", "fewest": 90},
    "clients, t = 50": {"noise_by": "clients", "fewest": 50},
    "clients, t = 20": {"noise_by": "clients", "fewest": 20},
}
for name, rule in RULES.items():
    privacy = GaussianDP(clip=0.5, noise_multiplier=12.0, target_delta=1e-4, **rule)
    strategy = FedDualAvg(problem.regularizer, client_lr=0.3, local_steps=5, privacy=privacy)
    history = simulate(strategy, problem, num_rounds=40, engine="stacked", unsafe=True)
    plt.plot(history["round"], history["residual"], label=name)
    print(f"{name}: epsilon {history['epsilon'][-1]:.3f}")
plt.yscale("log")
plt.xlabel("rounds")
plt.ylabel("F - F*")
plt.legend(title="who adds the noise")
