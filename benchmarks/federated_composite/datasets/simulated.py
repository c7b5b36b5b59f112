"""Rows of a sparse linear model, at clients that differ."""

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Each client has covariates of a scale of its own, and a model near the common one.

    heterogeneity is the standard deviation of a client's model about the common one.
    """

    name = "simulated"
    requirements = ["numpy"]
    parameters = {
        "loss": ["squared", "logistic"],
        "clients": [20],
        "rows": [50],
        "features": [100],
        "heterogeneity": [0.5],
        "seed": [0],
    }

    def get_data(self):
        """Return the clients' rows."""
        rng = np.random.default_rng(self.seed)
        truth = np.where(np.arange(self.features) < max(1, self.features // 10), 1.0, 0.0)
        clients = []
        for _ in range(self.clients):
            own = truth + self.heterogeneity * rng.standard_normal(self.features) * (truth != 0)
            A = rng.uniform(0.5, 1.5) * rng.standard_normal((self.rows, self.features))
            scores = A @ own
            if self.loss == "squared":
                y = scores + rng.standard_normal(self.rows)
            else:
                y = np.where(rng.random(self.rows) < 1.0 / (1.0 + np.exp(-scores)), 1.0, -1.0)
            clients.append((A, y))
        return {"clients": clients, "loss": self.loss}
