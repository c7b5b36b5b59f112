"""The server's state in each form of DualFL, and its update in a round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.arrays import as_column, number, placed, root
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.solvers.extrapolation import catch_up, extrapolate, move
from flower_fedcon.strategies.families.dual import DualConstants
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class PlainState(NamedTuple):
    """The server's state in the paper's form and in the block form."""

    theta: Array  # global model, shape of x0
    origin: Array  # where the clients started: x0, or theta at a collective reset, shape of x0
    mirror: Mirror | None  # the clients' z_j and, in the paper's form, c_j, by the names "z", "c"
    n: int = 0  # rounds done
    start: int = 0  # rounds that were done at the start, or at a collective reset
    t: float = 1.0  # t_n of the momentum
    beta: float = 0.0  # for the coming round

    def broadcast(self, known: DualConstants) -> Payload:
        """Step 1, and the tolerance of the gap rule."""
        beta = {"beta": self.beta} if known.form == "paper" else {}
        tolerance = known.tolerance(self.n - self.start, known.nu, known.rho)
        return {"theta": self.theta} | beta | tolerance

    def personal(self, client: int) -> Payload:
        """Return nothing: an absent client misses nothing."""
        return {}

    def after(self, known: DualConstants, uploads: Uploads) -> PlainState:
        """Step 4; and step 2 for the mirror."""
        t, beta = momentum_step(self.t, known.rho)
        if known.form == "paper":
            theta = uploads.mean("theta")
        else:
            moved = len(uploads) * self.theta - uploads.sum("theta")
            theta = self.theta - (known.ratio / uploads.num_clients) * moved
        if self.mirror is not None:
            self._follow(self.mirror, known, uploads)
        return self._replace(theta=theta, n=self.n + 1, t=t, beta=beta)

    def _follow(self, mirror: Mirror, known: DualConstants, uploads: Uploads) -> None:
        """Update z_j and c_j like the clients."""
        r, clients, theta = known.ratio, uploads.clients, uploads.stacked("theta")
        before = mirror.some("c", clients) if known.form == "paper" else None
        zeta, c = extrapolate(mirror.some("z", clients), before, self.theta, r, self.beta)
        mirror.put(clients, z=r * theta - zeta, **({} if before is None else {"c": c}))

    def model(self, known: DualConstants) -> Array:
        """Return theta."""
        return self.theta

    def again(self) -> PlainState:
        """Start again, with theta for all clients."""
        return self._replace(t=1.0, beta=0.0, origin=self.theta, start=self.n)


class AcceleratedState(NamedTuple):
    """The server's state in the accelerated form."""

    z: Array  # mean of all z_j, shape of x0
    e: Array  # mean of all e_j, shape of x0
    origin: Array  # where the clients started: x0, or z + e at a collective reset, shape of x0
    drift: Array  # A_j of each client, shape (N,)
    left: Array  # B_j of each client, shape (N,)
    mirror: Mirror | None  # the clients' z_j and e_j, by the names "z" and "e"
    n: int = 0  # rounds done
    start: int = 0  # rounds that were done at the start, or at a collective reset
    t: float = 1.0  # t of the coming round

    def broadcast(self, known: DualConstants) -> Payload:
        """Step 1, and the tolerance of the gap rule."""
        now = round_numbers(self.t, known.p, known.q, known.ratio)
        theta = _prox(known, self.z + now.sigma * self.e)
        sent = {"r": now.r, "chi": now.chi, "a": now.a, "b": now.b, "k": now.k}
        momentum = known.p * known.p * known.q
        tolerance = known.tolerance(self.n - self.start, now.r * known.nu, momentum)
        return {"theta": theta} | sent | tolerance

    def personal(self, client: int) -> Payload:
        """Return the updates that a client has missed."""
        return {"drift": number(self.drift[client]), "left": number(self.left[client])}

    def after(self, known: DualConstants, uploads: Uploads) -> AcceleratedState:
        """Step 4; the mirror is updated like the clients."""
        now = round_numbers(self.t, known.p, known.q, known.ratio)
        mean = uploads.sum("delta") / uploads.num_clients
        z, e = move(self.z, self.e, mean, now.a, now.b, now.k)
        drift = placed(self.drift + now.a * self.left, uploads.clients, 0.0)
        left = placed(now.b * self.left, uploads.clients, 1.0)
        if self.mirror is not None:
            self._follow(self.mirror, now, uploads)
        t = next_t(self.t, known.p, known.q)
        return self._replace(z=z, e=e, drift=drift, left=left, n=self.n + 1, t=t)

    def _follow(self, mirror: Mirror, now: RoundNumbers, uploads: Uploads) -> None:
        """Update z_j and e_j like the clients."""
        clients, delta = uploads.clients, uploads.stacked("delta")
        form = self.z.ndim, self.z.dtype
        drift, left = as_column(self.drift[clients], *form), as_column(self.left[clients], *form)
        z, e = catch_up(mirror.some("z", clients), mirror.some("e", clients), drift, left)
        z, e = move(z, e, delta, now.a, now.b, now.k)
        mirror.put(clients, z=z, e=e)

    def model(self, known: DualConstants) -> Array:
        """Return prox(z + e, 1/nu)."""
        return _prox(known, self.z + self.e)

    def again(self) -> AcceleratedState:
        """Start again, with z + e for all clients."""
        z, none = self.z + self.e, np.zeros_like(self.drift)
        return self._replace(
            z=z, e=np.zeros_like(z), origin=z, drift=none, left=none + 1, start=self.n, t=1.0
        )


class RoundNumbers(NamedTuple):
    """The numbers of a round of the accelerated form."""

    sigma: float  # theta = prox(z + sigma e)
    r: float  # the local problem's weight, in units of nu
    chi: float  # m = z - chi e
    a: float  # z takes a e
    b: float  # e keeps b e
    k: float  # e loses k delta


def round_numbers(t: float, p: float, q: float, ratio: float) -> RoundNumbers:
    """Return the numbers of a round from its t.

    >>> round_numbers(1.0, 0.5, 0.0, 2.0)
    RoundNumbers(sigma=0.5, r=2.0, chi=0.0, a=0.0, b=0.5, k=0.0)
    """
    sigma, beta, rest = (1 - p / t) / (1 - p * p * q), p * q * t, 1 - q * t
    return RoundNumbers(
        sigma=sigma,
        r=ratio * (1 - q) * t / rest,
        chi=(1 - p) * q * t * sigma / rest,
        a=beta * sigma,
        b=(1 - beta) * sigma,
        k=1 - 1 / t,
    )


def next_t(t: float, p: float, q: float) -> float:
    """Return the next t: with p = 1 the paper's, for rho = q; with q = 0 APPROX's.

    >>> round(next_t(1.0, 1.0, 0.0), 6)
    1.618034
    """
    h = p * (1 - q * t * t)
    after: float = (h + root(h * h + 4 * t * t)) / 2
    return after


def momentum_step(t: float, rho: float) -> tuple[float, float]:
    """Return t_{n+1} and beta_n of the paper's form from t_n.

    >>> [round(x, 6) for x in momentum_step(1.0, 0.0)]
    [1.618034, 0.0]
    """
    after = next_t(t, 1.0, rho)
    if rho == 1:
        return after, 0.0
    return after, (t - 1) / after * (1 - rho * after) / (1 - rho)


def _prox(known: DualConstants, v: Array) -> Array:
    """Return prox(v, 1/nu) of the server's psi."""
    return v if known.psi is None else known.psi.prox(v, 1 / known.nu)
