r"""FedFW, the federated Frank-Wolfe algorithm: projection-free, one atom up.

    min_x (1/N) sum_i f_i(x)   s.t. x in D,   D convex and compact

Round t = 1, 2, ...
    1. broadcast x_bar
    2. client i:  g_i = (1/N) grad f_i(x_i) + lambda_t (x_i - x_bar)
    3. client i:  s_i = lmo(g_i) = argmin over s in D of <g_i, s>
                  x_i := (1 - eta_t) x_i + eta_t s_i
    4. upload the atom s_i
    5. server:    x_bar := (1 - eta_t) x_bar + (eta_t/N) sum_i s_i

The gradient carries 1/N and the penalty does not: the surrogate is
(1/N) sum f_i(x_i) + (lambda_t/2) sum ||x_i - x_bar||^2. The local iterate x_i survives the round:
a client that starts each round from x_bar has no penalty at all, and that scheme can fail.

Schedules, with p = C/N the expected fraction of clients a round, lambda_0 = penalty:
    convex      eta_t = 2/(p(t-1) + 2),   lambda_t = lambda_0 sqrt(p(t-1) + 2)
    nonconvex   eta = (pT)^(-2/3),        lambda = lambda_0 (pT)^(1/3),   T = num_rounds
    stochastic  eta_t = 9/(p(t-1) + 9),   lambda_t = lambda_0 sqrt(p(t-1) + 9), and in step 2
                d_i := (1 - rho_t) d_i + rho_t (1/N) grad f_i(x_i; batch) for the gradient,
                rho_t = 4/(p(t-1) + 8)^(2/3)

Participation: any. When some are left out, step 5 becomes the exact mean of all N iterates,
    x_bar := x_bar + (eta_t/N) sum_{i in S} (s_i - x_i),
for which the server repeats the clients' steps from their atoms ("mirror": N d numbers). Averaging
over the cohort alone converges to a wrong point.

Lost state: with a mirror x_i is sent back; with everyone present x_i := x_bar, and step 5 contracts
the error like 1/t^2.

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS workshop 2022,
Algorithm 1, Theorems 1 and 2. Stochastic schedules: the authors' code. Sampled form: their
schedules; the update is reconstructed as randomised block Frank-Wolfe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from flower_fedcon.card import Sheet
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.sets import Atom, ConstraintSet
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import Array, choice, positive
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")


class FedFWState(NamedTuple):
    """The server's state."""

    x_bar: Array  # mean of the clients' iterates, shape of x0
    t: int  # the coming round, from 1
    mirror: Array | None  # the clients' iterates x_i, shape (N, *x0); only under sampling


class FrankWolfe(FedConStrategy[State]):
    """What FedFW and FedFWPlus share: arguments, schedules, atoms on the wire."""

    uplink = ("atom",)

    def __init__(
        self,
        constraint: ConstraintSet,
        *,
        penalty: float,
        schedule: str = "convex",
        gradient: str = "full",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if not isinstance(constraint, ConstraintSet):
            raise ConfigError(
                f"{self.sheet.title} needs a constraint set with a linear minimization oracle "
                f"(flower_fedcon.sets), got {constraint!r}"
            )
        self.constraint = constraint
        self.penalty = positive("penalty", penalty)
        self.schedule = choice("schedule", schedule, ("convex", "nonconvex"))
        self.uses_num_rounds = self.schedule == "nonconvex"
        self.gradient = choice("gradient", gradient, ("full", "stochastic"))
        if (self.gradient == "stochastic") != (self.batch_size is not None):
            raise ConfigError(
                f"gradient={self.gradient!r} with batch_size={self.batch_size!r}: give both "
                'gradient="stochastic" and a batch_size, or neither'
            )
        if self.gradient == "stochastic" and self.schedule != "convex":
            raise ConfigError('gradient="stochastic" has a convex schedule only')

    def scalars(self, t: int) -> Payload:
        """Return eta_t, lambda_t and, for stochastic gradients, rho_t."""
        p = self.setup.rate
        if self.schedule == "nonconvex":
            horizon = p * self.setup.num_rounds
            return {
                "step_size": min(1.0, horizon ** (-2 / 3)),
                "penalty": self.penalty * horizon ** (1 / 3),
            }
        offset = 2 if self.gradient == "full" else 9
        age = p * (t - 1) + offset
        scalars: Payload = {"step_size": offset / age, "penalty": self.penalty * age**0.5}
        if self.gradient == "stochastic":
            scalars["averaging"] = 4 / (age - 1) ** (2 / 3)
        return scalars

    def start_at(self, x0: Array) -> FedFWState:
        """Return x_i = x_bar = x0, which must be in D."""
        self.constraint.check_shape(x0.shape)
        if not self.constraint.contains(x0, 1e-9):
            raise ConfigError(
                f"the start x0 is outside {self.constraint!r} by "
                f"{self.constraint.violation(x0):.3g}: start from constraint.project(x0)"
            )
        mirror = np.repeat(x0[None], self.setup.num_clients, axis=0) if self.setup.sampled else None
        return FedFWState(x_bar=x0, t=1, mirror=mirror)

    def advance(self, state: FedFWState, uploads: Uploads) -> FedFWState:
        """Step 5, in its full or its sampled form; mirror rows are updated in place."""
        eta, n = self.scalars(state.t)["step_size"], uploads.num_clients
        if state.mirror is None:
            x_bar = uploads.sum("atom")
            x_bar *= eta / n
            x_bar += (1.0 - eta) * state.x_bar
        else:
            moved = uploads.sum("atom")
            for i, atom in uploads.items("atom"):
                moved -= state.mirror[i]
                state.mirror[i] = atom.mix(state.mirror[i], eta)
            x_bar = state.x_bar + (eta / n) * moved
        return FedFWState(x_bar, state.t + 1, state.mirror)

    def needs_whole_cohort(self) -> bool:
        """Without a mirror, step 5 needs every atom."""
        return not self.setup.sampled

    def decode(self, name: str, parts: Mapping[str, Array]) -> Atom:
        """Return the atom in a message."""
        layout = self.setup.layout
        constraint: ConstraintSet = self.constraint
        return constraint.decode_atom(parts, layout.shape, np.dtype(layout.dtype))


class FedFW(FrankWolfe[FedFWState]):
    """Federated Frank-Wolfe.

    Parameters
    ----------
    constraint : ConstraintSet
        D, bounded, with a linear minimization oracle.
    penalty : float
        lambda_0 > 0. A rule of thumb: max_i ||grad f_i(x0)|| / (N diameter).
    schedule : {"convex", "nonconvex"} (default: "convex")
        Steps that fall with t, or constant ones that need the number of rounds.
    gradient : {"full", "stochastic"} (default: "full")
        "stochastic" averages minibatch gradients (give `batch_size`).
    participation, batch_size, min_replies
        As for every strategy: see `FedConStrategy`.

    Raises
    ------
    ConfigError
        If an argument is out of range, or x0 is outside D.

    Examples
    --------
    The paper's example, on which averaging local Frank-Wolfe steps stays at 0 forever:

    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.sets import Box
    >>> two = 2 * np.eye(1)  # (x - 3)^2 and (x + 1)^2, up to constants
    >>> clients = [Quadratic(two, np.array([6.0])), Quadratic(two, np.array([-2.0]))]
    >>> problem = FederatedProblem(clients, constraint=Box(-1.0, 1.0))
    >>> simulate(FedFW(problem.constraint, penalty=1.0), problem, num_rounds=1000).x.round(6)
    array([0.940066])
    """

    name = "fedfw"
    downlink = ("x_bar",)
    client_settings = ("constraint", "gradient", "batch_size")
    sheet = Sheet(
        title="FedFW",
        problem="min F over a convex, compact set with an LMO",
        update="client: g = grad f_i(x_i)/N + lambda_t (x_i - x_bar), s_i = lmo(g), "
        "x_i := (1 - eta_t) x_i + eta_t s_i\n"
        "server: x_bar := (1 - eta_t) x_bar + (eta_t/N) sum s_i",
        state="x_i on the client; x_bar on the server, and a mirror of the x_i under sampling",
        down="1 vector, 2 numbers",
        up="1 atom",
        participation="any; sampled: exact mean of all iterates, by a mirror (N d numbers)",
        lost_state="sampled: x_i from the mirror; full: x_i := x_bar, which heals",
        paper="Dadras, Prakhya, Yurtsever, FL-NeurIPS 2022, Algorithm 1",
    )

    def initialize(self, x0: Array) -> FedFWState:
        """Start everywhere at x0."""
        return self.start_at(x0)

    def broadcast(self, state: FedFWState) -> Payload:
        """Step 1."""
        return {"x_bar": state.x_bar, **self.scalars(state.t)}

    def aggregate(self, state: FedFWState, uploads: Uploads) -> FedFWState:
        """Step 5."""
        return self.advance(state, uploads)

    def model(self, state: FedFWState) -> Array:
        """Return x_bar."""
        return state.x_bar

    def first_contact(self, state: FedFWState, client: int) -> Payload | None:
        """Return x0 to a client that was not sampled in round 1."""
        return None if state.mirror is None or state.t == 1 else {"x": state.mirror[client].copy()}

    def readmit(self, state: FedFWState, client: int) -> tuple[FedFWState, Payload]:
        """Return x_i where it is mirrored; else the client takes x_bar."""
        return state, {} if state.mirror is None else {"x": state.mirror[client].copy()}
