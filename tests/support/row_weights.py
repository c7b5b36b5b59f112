"""Sites whose rows have weights, and the models of their pooled rows by scikit-learn."""

from __future__ import annotations

import numpy as np

SCHEMA = {"target": "y", "weight": "w", "features": {"a": "numeric", "b": "numeric"}}
LOSSES = {
    "squared": {},
    "logistic": {"positive": [1], "negative": [0]},
    "poisson": {"loss": "poisson"},
}


def write_sites(folder, seed, loss):
    """Three files of different sizes, whose weights differ by thousands; their names, and rows."""
    rng = np.random.default_rng(seed)
    files, parts = [], []
    for name, m in zip("abc", rng.integers(20, 60, size=3).tolist(), strict=True):
        A = rng.normal([0.0, 3.0], [1.0, 2.0], size=(m, 2))
        scores = A @ [0.5, -0.2] + rng.normal()
        if loss == "squared":
            y = scores + rng.normal(size=m)
        elif loss == "logistic":
            y = (rng.random(m) < 1 / (1 + np.exp(-scores))) * 1.0
            y[:8], A[:8] = np.tile([0.0, 1.0], 4), np.repeat(A[:4], 2, axis=0)  # never separated
        else:
            y = rng.poisson(np.exp(scores)) * 1.0
        w = 10 ** rng.uniform(-1, 1) * rng.choice([0.0, 1.0, 2.5, 0.3], size=m)
        w[:8] = 10 ** rng.uniform(-1, 1)
        lines = [",".join(map(repr, row)) for row in np.column_stack([y, A, w]).tolist()]
        path = folder / f"{name}.csv"
        path.write_text("\n".join(["y,a,b,w", *lines]))
        files.append(str(path))
        parts.append((A, y, w))
    return files, tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def pooled_model(loss, rows):
    """Return the coefficients in the columns' units, and the intercept."""
    from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor

    A, y, w = rows
    common = {"tol": 1e-12, "max_iter": 1000, "solver": "newton-cholesky"}
    if loss == "squared":
        model = LinearRegression()
    elif loss == "logistic":
        model = LogisticRegression(C=np.inf, **common)
    else:
        model = PoissonRegressor(alpha=0.0, **common)
    model.fit(A, y, sample_weight=w)
    return [*np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])]
