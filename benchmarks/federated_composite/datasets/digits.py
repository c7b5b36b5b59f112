"""Scikit-learn's handwritten digits, of which each client has some more than others."""

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Shares of the classes at the clients are draws from a Dirichlet distribution."""

    name = "digits"
    requirements = ["scikit-learn"]
    parameters = {"clients": [10], "alpha": [0.3], "seed": [0]}

    def get_data(self):
        """Return the clients' rows."""
        from sklearn.datasets import load_digits

        A, y = load_digits(return_X_y=True)
        A, rng = A / 16.0, np.random.default_rng(self.seed)
        owner = np.empty(len(y), int)
        for label in range(10):
            rows = rng.permutation(np.flatnonzero(y == label))
            shares = np.cumsum(rng.dirichlet(np.full(self.clients, self.alpha)))
            owner[rows] = np.searchsorted(shares, (np.arange(len(rows)) + 0.5) / len(rows))
        owner = np.minimum(owner, self.clients - 1)
        parts = [(A[owner == j], y[owner == j].astype(float)) for j in range(self.clients)]
        return {"clients": [part for part in parts if len(part[1])], "loss": "multinomial"}
