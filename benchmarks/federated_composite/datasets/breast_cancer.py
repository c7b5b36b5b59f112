"""Tumours of scikit-learn's breast cancer data, in classes of the same shares at each client."""

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Standardised; y = 1 for benign tumours."""

    name = "breast cancer"
    requirements = ["scikit-learn"]
    parameters = {"clients": [10], "seed": [0]}

    def get_data(self):
        """Return the clients' rows."""
        from sklearn.datasets import load_breast_cancer

        A, target = load_breast_cancer(return_X_y=True)
        A, y = (A - A.mean(axis=0)) / A.std(axis=0), np.where(target == 1, 1.0, -1.0)
        rng = np.random.default_rng(self.seed)
        owner = np.empty(len(y), int)
        for label in (-1.0, 1.0):
            rows = rng.permutation(np.flatnonzero(y == label))
            owner[rows] = np.arange(len(rows)) % self.clients
        clients = [(A[owner == j], y[owner == j]) for j in range(self.clients)]
        return {"clients": clients, "loss": "logistic"}
