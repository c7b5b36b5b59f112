"""min f(x) + psi(x), or f(x) over a set or under g(x) <= level; f the mean of the clients' losses.

Nothing here comes from a library that takes part: the values, and the optimum that curves are
measured against, are computed from the arrays alone.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

STRUCTURES = ("l1", "nuclear", "l1_ball", "constraint")


class Problem:
    """One problem of the benchmark.

    Parameters
    ----------
    clients : list of (A, y)
        y real for "squared", -1 or 1 for "logistic", a class from 0 for "multinomial".
    loss : {"squared", "logistic", "multinomial"}
        The mean over a client's rows; squared errors are halved.
    structure : {"l1", "nuclear", "l1_ball", "constraint"}
        "constraint": the loss of rows with y = 1 is f, that of rows with y = -1 is g (logistic).
    level : float
        The weight as a share of the least one whose optimum is 0; the radius as a share of the
        least squares solution's l1 norm; or the bound on g.
    """

    def __init__(self, clients, loss, structure, level):
        self.clients, self.loss, self.structure = clients, loss, structure
        d = clients[0][0].shape[1]
        classes = 1 + max(int(y.max()) for _, y in clients) if loss == "multinomial" else 0
        self.shape = (d, classes) if classes else (d,)
        self.level = self._scaled(float(level))
        self.optimum, self.x = self._optimum()

    # --- values ----------------------------------------------------------------------------------

    def smooth(self, x):
        """Return f and its gradient."""
        parts = [mean_loss(self.loss, *self._rows(client), x) for client in self.clients]
        return tuple(np.mean([part[i] for part in parts], axis=0) for i in range(2))

    def constraint(self, x):
        """Return g and its gradient."""
        parts = [mean_loss(self.loss, A[y < 0], y[y < 0], x) for A, y in self.clients]
        return tuple(np.mean([part[i] for part in parts], axis=0) for i in range(2))

    def value(self, x):
        """Return F(x), the regularizer included, and how far x is from being feasible."""
        f = float(self.smooth(x)[0])
        if self.structure == "l1":
            return f + self.level * float(np.abs(x).sum()), 0.0
        if self.structure == "nuclear":
            return f + self.level * float(np.linalg.svd(x, compute_uv=False).sum()), 0.0
        if self.structure == "l1_ball":
            return f, max(0.0, float(np.abs(x).sum()) - self.level)
        return f, max(0.0, float(self.constraint(x)[0]) - self.level)

    def prox(self, v, step):
        """Return the proximal point, or the projection."""
        if self.structure == "l1":
            return _shrunk(v, step * self.level)
        if self.structure == "nuclear":
            U, s, Vt = np.linalg.svd(v, full_matrices=False)
            return (U * _shrunk(s, step * self.level)) @ Vt
        if self.structure == "l1_ball":
            return _onto_l1_ball(v, self.level)
        raise ValueError("a functional constraint has no projection here")

    @property
    def smoothness(self):
        """A Lipschitz constant of every client's gradient."""
        curved = {"squared": 1.0, "logistic": 0.25, "multinomial": 0.5}[self.loss]
        own = [self._rows(client)[0] for client in self.clients]
        return max(curved * np.linalg.norm(A, 2) ** 2 / len(A) for A in own)

    def _rows(self, client):
        A, y = client
        return (A[y > 0], y[y > 0]) if self.structure == "constraint" else (A, y)

    # --- what values are measured against -------------------------------------------------------

    def _scaled(self, level):
        if self.structure == "constraint":
            return level
        if self.structure == "l1_ball":
            A = np.concatenate([A / np.sqrt(len(A)) for A, _ in self.clients])
            y = np.concatenate([y / np.sqrt(len(y)) for _, y in self.clients])
            return level * float(np.abs(np.linalg.lstsq(A, y, rcond=None)[0]).sum())
        gradient = self.smooth(np.zeros(self.shape))[1]
        return level * float(np.linalg.norm(gradient, 2 if gradient.ndim == 2 else np.inf))

    def _optimum(self):
        """Return the least value and where it is attained."""
        if self.structure == "constraint":
            found = minimize(
                self.smooth, np.zeros(self.shape), jac=True, method="SLSQP",
                constraints={
                    "type": "ineq",
                    "fun": lambda x: self.level - self.constraint(x)[0],
                    "jac": lambda x: -self.constraint(x)[1],
                },
                options={"maxiter": 2_000, "ftol": 1e-14},
            )  # fmt: skip
            return float(found.fun), found.x
        step, x, t = 1.0 / self.smoothness, np.zeros(self.shape), 1.0
        z = x
        for _ in range(20_000):  # FISTA, begun anew where it turns back
            moved = self.prox(z - step * self.smooth(z)[1], step)
            if float(((z - moved) * (moved - x)).sum()) > 0:
                t, z = 1.0, x
                moved = self.prox(z - step * self.smooth(z)[1], step)
            after = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t))
            z, change = moved + (t - 1.0) / after * (moved - x), np.abs(moved - x).max()
            x, t = moved, after
            if change <= 1e-14 * max(1.0, np.abs(x).max()):
                break
        return self.value(x)[0], x


def no_constraint(problem):
    """Return whether FedAvg leaves a problem out, and why."""
    if problem.structure == "constraint":
        return True, "FedAvg holds no functional constraint"
    return False, None


def told(problem, x, rounds, local_steps, width=8):
    """Return a model, and what rounds of everyone have cost: arrays of so many bytes an entry."""
    clients = len(problem.clients)
    sent = rounds * clients * x.size * width
    return {
        "x": x,
        "rounds": rounds,
        "uplink": sent,
        "downlink": sent,
        "gradients": rounds * clients * local_steps,
    }


def mean_loss(loss, A, y, x):
    """Return the mean loss of rows at a model, and its gradient."""
    scores = A @ x
    if loss == "squared":
        residual = scores - y
        return 0.5 * float(np.mean(residual**2)), A.T @ residual / len(y)
    if loss == "logistic":
        slopes = -y / (1.0 + np.exp(np.minimum(y * scores, 700.0)))
        return float(np.logaddexp(0.0, -y * scores).mean()), A.T @ slopes / len(y)
    top = scores.max(axis=1, keepdims=True)
    shares = np.exp(scores - top)
    total = shares.sum(axis=1, keepdims=True)
    own = y.astype(int)
    value = float(np.mean(np.log(total[:, 0]) + top[:, 0] - scores[np.arange(len(y)), own]))
    shares /= total
    shares[np.arange(len(y)), own] -= 1.0
    return value, A.T @ shares / len(y)


def _shrunk(v, by):
    return np.sign(v) * np.maximum(np.abs(v) - by, 0.0)


def _onto_l1_ball(v, radius):
    if np.abs(v).sum() <= radius:
        return v
    ordered = np.sort(np.abs(v))[::-1]
    over = (np.cumsum(ordered) - radius) / np.arange(1, len(v) + 1)
    return _shrunk(v, over[np.flatnonzero(ordered > over)[-1]])
