"""Neyman-Pearson classification of the breast cancer data that scikit-learn ships."""

from __future__ import annotations

import numpy as np

from flower_fedcon.errors import ConfigError, needing
from flower_fedcon.objectives import NeymanPearson
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.validation import count


@stated
def neyman_pearson(*, clients: int = 10, seed: int = 0) -> FederatedProblem:
    """Return the logistic losses of the benign tumours (f) and of the malignant ones (g).

    569 tumours (357 benign, 212 malignant) with 30 features, each standardised over all tumours;
    no bias. Every client gets the same number of each class, 35 and 21 for ten clients; the rest
    is dropped. The algorithm sets the tolerance of the functional constraint g(x) <= tolerance.

    Parameters
    ----------
    clients : int
        N, from 1 to 212.
    seed : int
        Seeds the shuffling within each class.

    Source: Upadhyay, Moon, Hashemi, "Switching Gradient Methods for Constrained Federated
    Optimization", 2025, Figure 1.

    >>> problem = neyman_pearson()
    >>> [(len(f.A0), len(f.A1)) for f in problem.objectives[:2]], problem.x0.shape
    ([(35, 21), (35, 21)], (30,))
    """
    with needing("the tumours come with scikit-learn", "estimators"):
        from sklearn.datasets import load_breast_cancer  # slow to import

    features, benign = load_breast_cancer(return_X_y=True)  # benign is coded as 1
    A = (features - features.mean(axis=0)) / features.std(axis=0)
    classes = [np.flatnonzero(benign == label) for label in (1, 0)]
    if count("clients", clients) > len(classes[1]):
        raise ConfigError(f"clients must be at most {len(classes[1])}, got {clients}")
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    shares = []
    for rows in classes:
        each = len(rows) // clients
        shares.append(rng.permutation(rows)[: clients * each].reshape(clients, each))
    return FederatedProblem([NeymanPearson(A[a0], A[a1]) for a0, a1 in zip(*shares, strict=True)])
