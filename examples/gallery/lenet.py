r"""
LeNet with one layer under a constraint or a regularizer
========================================================

Five clients train LeNet on MNIST's 10,000 test images, of which 2,000 are held out. W, of shape
(120, 256), is the layer above the convolutions::

    fedfw        W in the nuclear-norm ball ||W||_* <= 20, projection-free: for W a client sends a
                 vertex of the ball, 376 numbers instead of 30,720
    feddualavg   psi(W) = 1e-3 ||W||_1: W becomes sparse
    compositefl  the same, without a bias if clients differ

FedFW takes no gradient steps, so every layer needs a bounded set. For the other layers it is a ball
around the start, with half the norm of the start as its radius (biases: 0.2). A vertex of this ball
is a normalised gradient step. Only with schedule="nonconvex" does FedFW begin at the network's
start. The penalty follows the rule of FedFW's docstring. ::

    python lenet.py [FOLDER] [--method fedfw|feddualavg|compositefl] [--rounds R]

FOLDER has MNIST's t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz; without it flwr-datasets
(the extra `datasets`) loads them.
"""

import argparse

import numpy as np
import torch
from torch import nn

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.problems import mnist_images
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L2Ball, NuclearNormBall
from flower_fedcon.strategies import CompositeFL, FedDualAvg, FedFW
from flower_fedcon.torch import TorchObjective

CLIENTS, HELD_OUT, RADIUS = 5, 2000, 20.0
ROUNDS = {"fedfw": 1000, "feddualavg": 25, "compositefl": 25}
LAYER = "dense.weight"


class LeNet(nn.Module):
    """LeNet-5, with Xavier's start."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.dense, self.dense2 = nn.Linear(256, 120), nn.Linear(120, 84)
        self.out = nn.Linear(84, 10)
        for p in self.parameters():
            nn.init.xavier_normal_(p) if p.ndim > 1 else nn.init.zeros_(p)

    def forward(self, x):
        """Return the logits."""
        for conv in (self.conv1, self.conv2):
            x = nn.functional.avg_pool2d(torch.tanh(conv(x)), 2)
        return self.out(torch.tanh(self.dense2(torch.tanh(self.dense(x.flatten(1))))))


def load(data):
    """Return the clients' objectives, and one of the held out images that measures accuracy."""
    torch.manual_seed(0)
    network, loss = LeNet(), nn.CrossEntropyLoss()
    images = mnist_images(data, "test")
    order = np.random.default_rng(0).permutation(len(images.labels))
    pixels = torch.tensor((images.pixels[order] / 255 - 0.1307) / 0.3081).float()[:, None]
    labels = torch.tensor(images.labels[order].astype(np.int64))
    clients = [
        TorchObjective(
            network, loss, (pixels[HELD_OUT + i :: CLIENTS], labels[HELD_OUT + i :: CLIENTS])
        )
        for i in range(CLIENTS)
    ]
    held_out = (pixels[:HELD_OUT], labels[:HELD_OUT])
    measures = {"accuracy": lambda out, y: (out.argmax(1) == y).double().mean()}
    return clients, TorchObjective(network, loss, held_out, measures=measures)


def bounded(clients):
    """Return FedFW and its problem."""
    f = clients[0]
    balls = {
        name: L2Ball(np.linalg.norm(w) / 2 if w.ndim > 1 else 0.2).shifted(w)
        for name, w in zip(f.layer_names, f.start(), strict=True)
    }
    D = f.product({**balls, LAYER: NuclearNormBall(RADIUS)})
    x0 = f.start(within=D)
    G = max(np.sqrt(sum(np.vdot(g, g) for g in f.gradient(x0))) for f in clients)
    strategy = FedFW(
        D,
        penalty=float(G) / (CLIENTS * D.diameter),
        schedule="nonconvex",
        gradient="stochastic",
        batch_size=64,
    )
    return strategy, FederatedProblem(clients, constraint=D, x0=x0)


def sparse(clients, method):
    """Return FedDualAvg or CompositeFL, and their problem."""
    psi = clients[0].separable({LAYER: L1(1e-3)})
    strategy = method(psi, client_lr=0.2, local_steps=25, batch_size=32)
    return strategy, FederatedProblem(clients, regularizer=psi, x0=clients[0].start())


METHODS = {
    "fedfw": bounded,
    "feddualavg": lambda clients: sparse(clients, FedDualAvg),
    "compositefl": lambda clients: sparse(clients, CompositeFL),
}


def train(method, data, rounds):
    """Return the history, with the accuracy on the held out images and what W has become."""
    clients, held_out = load(data)
    strategy, problem = METHODS[method](clients)
    layer = held_out.layer_names.index(LAYER)
    problem.metrics = {
        "accuracy": lambda x: held_out.metrics(x)["accuracy"],
        "nuclear norm": lambda x: float(np.linalg.norm(x[layer], "nuc")),
        "zeros": lambda x: float(np.mean(x[layer] == 0)),
    }

    def tell(row):
        shown = ("objective", "accuracy", "nuclear norm", "zeros")
        print(f"{method} {row['round']:4}", "  ".join(f"{name} {row[name]:.4g}" for name in shown))

    every = max(1, rounds // 5)
    return simulate(strategy, problem, rounds, evaluate_every=every, callbacks=[tell])


def main(arguments=None):
    """Train, and return the history."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("data", nargs="?", metavar="FOLDER")
    parser.add_argument("--method", choices=METHODS, default="fedfw")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args(arguments)
    return train(given.method, given.data, given.rounds or ROUNDS[given.method])


if __name__ == "__main__":
    main()
