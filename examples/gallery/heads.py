r"""
Sparse and low-rank heads on frozen features
============================================

The body of a network was trained elsewhere and is frozen. Ten clients fit a linear head on its
outputs h(x)::

    min_W (1/N) sum_i (mean cross-entropy of W' h(x) over client i) + psi(W),

with psi = l1 (few weights), the group lasso over W's rows (few features) or the nuclear norm (low
rank). This is convex, and CompositeFL solves it even if a client has few labels, as here. The
certificate "kkt" is 0 at a solution. Each weight of psi starts from the previous solution::

    python heads.py [--rounds 400] [--figure heads.png]
"""

# sphinx_gallery_thumbnail_path = "../examples/gallery/heads.png"

import argparse
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import nn

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import SoftmaxRegression
from flower_fedcon.regularizers import L1, GroupLasso, NuclearNorm
from flower_fedcon.strategies import CompositeFL

FEATURES, CLASSES, CLIENTS, LOCAL_STEPS = 32, 10, 10, 5
PUBLIC, PRIVATE, TEST = slice(0, 500), slice(500, 1500), slice(1500, 1797)
KINDS = {  # psi of a weight, its largest and least weight, and what it spares
    "l1": (L1, 0.1, 0.005, "share of weights"),
    "group lasso": (partial(GroupLasso, groups="rows"), 0.25, 0.0125, "share of features"),
    "nuclear norm": (NuclearNorm, 0.35, 0.1, "rank"),
}


def frozen_body(images, labels):
    """Return the body of a small network that was trained on public images."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 64)]
    body = nn.Sequential(*layers, nn.ReLU())
    network = nn.Sequential(body, nn.Linear(64, CLASSES))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return body.requires_grad_(False)


def features():
    """Return h(x), shape (1797, FEATURES), and the labels."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    outputs = frozen_body(images[PUBLIC], torch.tensor(labels[PUBLIC]))(images).double().numpy()
    whitened = PCA(FEATURES, whiten=True, random_state=0).fit(outputs[PUBLIC])
    return whitened.transform(outputs), labels


def clients_of(h, labels):
    """Return ten clients' objectives; each has two shards of the images sorted by label."""
    shards = np.argsort(labels[PRIVATE], kind="stable").reshape(2 * CLIENTS, -1)
    rows = np.random.default_rng(0).permutation(shards).reshape(CLIENTS, -1)
    return [SoftmaxRegression(h[PRIVATE][r], labels[PRIVATE][r], CLASSES, l2=1e-2) for r in rows]


def fit(clients, psi, start, rounds):
    """Return the head and its certificate."""
    problem = FederatedProblem(clients, regularizer=psi, x0=start)
    smoothness = np.mean([f.smoothness for f in clients])
    strategy = CompositeFL(psi, client_lr=2 / smoothness, local_steps=LOCAL_STEPS)
    options = {"engine": "stacked", "evaluate_every": 0, "certificates": True}
    history = simulate(strategy, problem, rounds, **options)
    return history.x, history["kkt"][-1]


def curves(rounds, count=6):
    """Return, for each kind of head, a row of numbers for each of `count` weights of psi."""
    h, labels = features()
    clients = clients_of(h, labels)
    found = {}
    for kind, (regularizer, largest, least, _) in KINDS.items():
        W = np.zeros((FEATURES, CLASSES))
        for weight in np.geomspace(largest, least, count):
            W, kkt = fit(clients, regularizer(weight), W, rounds)
            row = {
                "weight": weight,
                "kkt": kkt,
                "accuracy": np.mean((h[TEST] @ W).argmax(axis=1) == labels[TEST]),
                "share of weights": np.mean(W != 0),
                "share of features": np.mean((W != 0).any(axis=1)),
                "rank": np.linalg.matrix_rank(W, tol=1e-6),
            }
            found.setdefault(kind, []).append(row)
            print(f"{kind:12}", "  ".join(f"{name} {value:.3g}" for name, value in row.items()))
    return found


def draw(found, path):
    """Draw the accuracy over what each kind of head spares."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axes, (kind, rows) in zip(figure.subplots(1, 3, sharey=True), found.items(), strict=True):
        *_, spared = KINDS[kind]
        axes.plot([row[spared] for row in rows], [row["accuracy"] for row in rows], "o-")
        axes.set(title=kind, xlabel=spared)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("test accuracy")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    """Fit the heads, draw the curves, and return their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--figure", default="heads.png")
    given = parser.parse_args(arguments)
    found = curves(given.rounds)
    draw(found, given.figure)
    return found


if __name__ == "__main__":
    main()
