"""
An algorithm of your own
========================

An algorithm is two classes and one call of `register`. It then runs in every engine, with run
directories and resumed runs. `check_algorithm` holds it to the rules of the collection. Here it is
FedAvg with momentum on the server.
"""

from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from flower_fedcon import register, simulate
from flower_fedcon.clients.base import FedConClient
from flower_fedcon.problems import quadratics
from flower_fedcon.strategies import FedAvg
from flower_fedcon.strategies.families.local_steps import LocalSteps


class State(NamedTuple):
    """The server's state: the global model, which comes first, and the momentum."""

    w: Any
    m: Any


class HeavyBall(LocalSteps[State]):
    """FedAvg with heavy-ball momentum on the server."""

    name = "heavy_ball"
    uplink = ("delta",)

    def initialize(self, x0):
        return State(w=x0, m=np.zeros_like(x0))

    def broadcast(self, state):
        return {"w": state.w}

    def aggregate(self, state, uploads):
        m = 0.9 * state.m + uploads.mean("delta")
        return State(w=state.w + self.server_lr * m, m=m)


class HeavyBallClient(FedConClient[None]):
    """K gradient steps."""

    algorithm = "heavy_ball"

    client_lr: float
    local_steps: int
    batch_size: int | None

    def step(self, state, down):
        v = w = down["w"]
        for _ in range(self.local_steps):
            v = v - self.client_lr * self.gradient(v)
        return {"delta": v - w}, None


register(HeavyBall, HeavyBallClient)

# %%
# It is used like the collection's algorithms, here in the engine that serves all clients at once.

problem = quadratics(clients=10, condition=100.0, directions="aligned")
for method in (FedAvg, HeavyBall):
    strategy = method(client_lr=0.01, local_steps=1)
    history = simulate(strategy, problem, num_rounds=400, engine="stacked", evaluate_every=4)
    plt.semilogy(history["round"], history["error"].clip(1e-14), label=method.__name__)

plt.xlabel("rounds")
plt.ylabel("relative distance to the optimum")
plt.legend()
plt.grid(alpha=0.3)
