"""What a server may make of the mean change of its clients' models: momentum, Adagrad, Adam, Yogi.

A strategy takes one as `server_optimizer=`, if its server step is w := w + server_lr mean(delta);
others refuse it and say why (`fedcon info`). The step is then w := w + server_lr times what stands
below, and the state of the optimizer is part of the server's: saved, and resumed.

With Delta the mean, entry by entry, from m = 0 and v = tau^2:

    m := beta_1 m + (1 - beta_1) Delta                            and the step is
    m                                                             Momentum
    m / (sqrt(v) + tau),  v := v + Delta^2                        Adagrad (beta_1 = 0 by default)
    m / (sqrt(v) + tau),  v := beta_2 v + (1 - beta_2) Delta^2    Adam
    m / (sqrt(v) + tau),  v := v - (1 - beta_2) Delta^2 sign(v - Delta^2)    Yogi

with the new v. There is no correction of a bias at the start, as the paper has none: a large tau
stands for a cautious start.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive federated
optimization", ICLR 2021, Algorithm 2.

>>> from flower_fedcon.optimizers import Adam
>>> from flower_fedcon.strategies import FedAvg
>>> strategy = FedAvg(client_lr=0.1, local_steps=5, server_lr=0.03, server_optimizer=Adam())

In an experiment file: ``server_optimizer = {type = "Adam", tau = 1e-3}``.
"""

from flower_fedcon.optimizers.base import OptimizerState, ServerOptimizer, as_optimizer
from flower_fedcon.optimizers.rules import Adagrad, Adam, Momentum, Yogi

__all__ = [
    "Adagrad",
    "Adam",
    "Momentum",
    "OptimizerState",
    "ServerOptimizer",
    "Yogi",
    "as_optimizer",
]
