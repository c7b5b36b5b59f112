r"""Scaffnew: gradient steps with control variates, and a random number of them in each round.

    min_x (1/N) sum_i f_i(x) + psi(x)          (psi = 0: Scaffnew; else RandProx)

Round r = 1, 2, ..., from x_bar = x0 and h_i = 0:
    1. server:    draw K_r ~ Geometric(p) on {1, 2, ...};  broadcast x_bar and K_r
    2. client i:  h_i := h_i + (p/gamma) (x_bar - xhat_i)     (xhat_i from the round before)
    3. client i:  x = x_bar;  K_r times  x := x - gamma (grad f_i(x) - h_i);  xhat_i = x
    4. upload v_i = xhat_i - (gamma/p) h_i
    5. server:    v_bar = mean v_i;  x_bar := prox(v_bar, gamma/p)

All clients share one coin, since all communicate in the same rounds. K_r has mean 1/p: O(kappa log)
gradients and, with p = 1/sqrt(kappa), O(sqrt(kappa) log) rounds. After step 2 the mean of the h_i
is -(p/gamma)(v_bar - x_bar), which is 0 without psi and else lies in the negative subdifferential
of psi at x_bar.
Symbols: gamma = client_lr, p = communication_probability, q_i = stop_probability, s =
refresh_probability, kappa = L/mu.

With `stop_probability` (GradSkip) client i stops in each step with probability q_i: instead of the
step it sets h_i := grad f_i(x), so that x stays where it is, as it would in all steps left of the
round, which it skips. Both kinds of step lead to the same x - gamma h_i. So one step multiplies the
expected sum of ||x_i - x*||^2 + (gamma/p)^2 ||h_i - grad f_i(x*)||^2 by at most max(1 - gamma mu,
(1 - p^2) max_i (1 - q_i)), also with psi, if gamma L_i <= p^2/(p^2 + q_i (1 - p^2)) for each
client. "rule" is the largest q_i that this allows, (1/(gamma L_i) - 1) p^2/(1 - p^2), at most 1.
With the defaults of gamma and p it is (kappa/kappa_i - 1)/(kappa - 1), kappa_i = L_i/mu: the
paper's, whose probabilities are those of going on, 1 - q_i. The rounds are Scaffnew's, and client i
takes kappa_i (1 + sqrt(kappa))/(kappa_i + sqrt(kappa)) gradients a round on average, at most
kappa_i.

With `refresh_probability` (ProxSkip-LSVRG) a step on a minibatch B uses grad_B f_i(x) - grad_B
f_i(y_i) + grad f_i(y_i), and with probability s sets y_i := x, the x before the step, from y_i =
x_bar in the client's first round. This is exact, where plain minibatches leave a floor. All clients
share this coin, too; the proof needs no independence between clients. For independent minibatches
whose functions are L-smooth, sigma_i = E ||grad_B f_i(y_i) - grad_B f_i(x*)||^2 and gamma = 1/(6L),
one step multiplies the sum above plus (4/s) gamma^2 sigma_i by at most max(1 - gamma mu, 1 - p^2, 1
- s/2). So p = sqrt(gamma mu) = 1/sqrt(6 kappa) and s = 2 gamma mu = 1/(3 kappa) are the smallest
that keep gamma's rate. The default takes for L that of the f_i. That of minibatches with few rows
can be larger, by at most the number of batches: if the run diverges, give a shorter client_lr.

State: h_i and xhat_i on the client, with `refresh_probability` also y_i and grad f_i(y_i); x_bar on
the server.
Wire: 1 vector and 1 number down, 1 number more to a client that stops early; 1 vector up.
Participation: full.
Compression: EF21, of v_i - x_bar: the client uses the decoded v_i in step 2, so that the h_i sum to
0. The fixed point is the same.
Lost state: h_i := 0, and y_i := x_bar. Step 4 uploads h_i with xhat_i, so that the sum is 0 again
after one round. Uploading xhat_i alone, as the h_i sum to 0, would make the loss permanent, and the
round with psi wrong.

Not for: absent clients (TAMUNA allows them), and rounds that must have a fixed length.

Source: Konstantin Mishchenko, Grigory Malinovsky, Sebastian Stich, Peter Richtárik, "ProxSkip: Yes!
Local Gradient Steps Provably Lead to Communication Acceleration! Finally!", ICML 2022
(arXiv:2202.09357) (Scaffnew); Laurent Condat, Peter Richtárik, "RandProx: Primal-Dual Optimization
Algorithms with Randomized Proximal Updates", ICLR 2023 (arXiv:2207.12891), where u_i = -h_i. The
round with psi is reconstructed. Artavazd Maranjyan, Mher Safaryan, Peter Richtárik, "GradSkip:
Communication-Accelerated Local Gradient Methods with Better Computational Complexity", 2022
(arXiv:2210.16402); Grigory Malinovsky, Kai Yi, Peter Richtárik, "Variance Reduced ProxSkip:
Algorithm, Theory and Application to Federated Learning", NeurIPS 2022 (arXiv:2207.04338). Both
rates are derived again here, with psi.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Unpack

import numpy as np

from flower_fedcon.core.release import Release
from flower_fedcon.core.rng import COIN, stream
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError, repr_of
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.strategies.families.random_rounds import CoinOptions, RandomRounds
from flower_fedcon.validation import Array, choice, nonnegative, up_to_one
from flower_fedcon.wire.payloads import Payload

RULE = "rule"


class ScaffnewState(NamedTuple):
    """The server's state."""

    x_bar: Array  # global model, shape of x0
    r: int  # the coming round, from 1


class ScaffnewConstants(NamedTuple):
    """Constants that follow from the setup."""

    client_lr: float  # gamma
    communication_probability: float  # p
    stops: tuple[float, ...]  # q_i of each client; empty without GradSkip
    refresh_probability: float | None  # s


class Scaffnew(RandomRounds[ScaffnewState]):
    """ProxSkip for federated learning; RandProx with a `regularizer`.

    Parameters
    ----------
    client_lr : float or "auto", optional
        gamma > 0, at most 1/L; by default 1/L, with `refresh_probability` 1/(6L), and with numbers
        as `stop_probability` the longest that the theory allows.
    communication_probability : float or "auto", optional
        p in (0, 1]; by default 1/sqrt(kappa) if mu > 0 is known, with `refresh_probability`
        sqrt(gamma mu), else 0.1.
    stop_probability : "rule", float or list of float, optional (default: None)
        q_i in [0, 1], the same for all or one for each client, by which clients skip local
        gradients; "rule" finds them from the clients' L_i. None skips none. Only without
        batch_size.
    refresh_probability : "rule" or float, optional (default: None)
        s in (0, 1], with which minibatches leave no floor; "rule" is 2 gamma mu, or the batch's
        share of the rows if mu is unknown or 0. None leaves the floor. Only with batch_size.
    regularizer : Regularizer or ConstraintSet, optional (default: None)
        psi, on the server only.

    Raises
    ------
    ConfigError
        If an argument is out of range, or client_lr is None and L unknown.
    ParticipationError
        If the participation leaves clients out.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(np.array([[q]]), np.array([b])) for q, b in ((1.0, 1.0), (3.0, 9.0))]
    >>> simulate(Scaffnew(), FederatedProblem(clients), num_rounds=60).x.round(9)
    array([2.5])
    """

    name = "scaffnew"
    uplink = ("v",)
    needs_constant_lr = "the h_i move by the step length of the round before"
    needs_gradient = ""
    needs_mean = "the h_i sum to 0 only if v_bar is the mean of the v_i"
    needs_convex = "the h_i converge because the prox of a convex psi expands no distance"
    needs_uncompressed = ""
    release = Release(about={"v": "x_bar"})
    needs_independent = "its server takes a prox of each round's mean, and adds up nothing"
    needs_everyone = "all clients share one coin"

    later: ClassVar[Mapping[str, Any]] = {
        **RandomRounds.later, "stop_probability": None, "refresh_probability": None,
    }  # fmt: skip
    constants: ScaffnewConstants

    def __init__(
        self,
        *,
        stop_probability: str | float | Sequence[float] | None = None,
        refresh_probability: str | float | None = None,
        regularizer: Any = None,
        **coin: Unpack[CoinOptions],
    ) -> None:
        super().__init__(**coin)
        self.regularizer = as_regularizer(regularizer)
        self.stop_probability = _by_rule_or(_shares, "stop_probability", stop_probability)
        name = "refresh_probability"
        self.refresh_probability = _by_rule_or(up_to_one, name, refresh_probability)
        if stop_probability is not None and self.batch_size is not None:
            raise ConfigError(
                f"Scaffnew takes no stop_probability={stop_probability!r} with "
                f"batch_size={self.batch_size}: where a client stops, h_i becomes its gradient, "
                f"and a minibatch's is noisy. Leave one of them out"
            )
        if refresh_probability is not None and self.batch_size is None:
            raise ConfigError(
                f"{name}={refresh_probability!r} is for minibatches: give batch_size, or leave it "
                f"out"
            )

    def usual_client_lr(self) -> float:
        """Return 1/L, 1/(6L), or the longest step for the q_i."""
        L, q = self.smoothness_for("client_lr", "at most 1/L"), self.stop_probability
        if self.refresh_probability is not None:
            return 1 / (6 * L)
        if q is None or q == RULE:
            return 1 / L
        p = self.communication_probability
        square = (p if isinstance(p, float) else self.usual_probability()) ** 2
        bounds = [
            each * (square + stop * (1 - square)) / square
            for each, stop in zip(self.setup.smoothnesses, self._stops(), strict=True)
        ]
        return 1 / (max(bounds) or L)

    def usual_probability(self) -> float:
        """Return 1/sqrt(kappa), sqrt(gamma mu), or 0.1."""
        L, mu = self.setup.smoothness, self.setup.strong_convexity
        if self.refresh_probability is not None:
            return min(1.0, math.sqrt(self.client_lr * mu)) if mu else 0.1
        return min(1.0, (mu / L) ** 0.5) if mu and L else 0.1

    def derive(self) -> ScaffnewConstants:
        """Return gamma, p, the q_i and s."""
        gamma, p, s = self.client_lr, self.communication_probability, self.refresh_probability
        if s == RULE:
            s = self._usual_refreshes()
        return ScaffnewConstants(gamma, p, self._stops(), s)

    def _stops(self) -> tuple[float, ...]:
        """Return q_i of each client; none without GradSkip."""
        q, n = self.stop_probability, self.setup.num_clients
        if q is None:
            return ()
        if q == RULE:
            self.smoothness_for("stop_probability", "numbers in [0, 1]")
            gamma, square = self.client_lr, self.communication_probability**2
            return tuple(_longest_stop(gamma * L, square) for L in self.setup.smoothnesses)
        each = (q,) * n if isinstance(q, float) else q
        if len(each) != n:
            raise ConfigError(
                f"stop_probability must be one number, or one for each of {n} clients, got "
                f"{len(each)} numbers"
            )
        return each

    def _usual_refreshes(self) -> float:
        """Return 2 gamma mu, or the batch's share of the most rows."""
        if mu := self.setup.strong_convexity:
            return min(1.0, 2 * float(self.client_lr) * mu)
        assert self.batch_size is not None  # noqa: S101  (the constructor's condition)
        return min(1.0, self.batch_size / max(info.num_examples for info in self.setup.clients))

    def initialize(self, x0: Array) -> ScaffnewState:
        """Start at x0."""
        return ScaffnewState(x_bar=x0, r=1)

    def broadcast(self, state: ScaffnewState) -> Payload:
        """Step 1."""
        return {"x_bar": state.x_bar, "steps": self.steps_of(state.r)}

    def says(self, hook: str) -> bool:
        """Return whether it defines the hook; clients are told apart by GradSkip alone."""
        return super().says(hook) and (hook != "personal" or self.stop_probability is not None)

    def personal(self, state: ScaffnewState, client: int, ack: int) -> Payload:
        """Tell a client the step in which it stops, if that is before the round's end."""
        if np.ndim(client):  # all of them, in a round to be compiled
            raise TypeError("each client stops in a step of its own")
        q = self.constants.stops[client]
        if not q:
            return {}
        stop = int(stream(self.setup.seed, COIN, state.r, client).geometric(q))
        return {"stop": stop} if stop <= self.steps_of(state.r) else {}

    def aggregate(self, state: ScaffnewState, uploads: Uploads) -> ScaffnewState:
        """Step 5."""
        gamma, p = self.client_lr, self.communication_probability
        return ScaffnewState(self.regularizer.prox(uploads.mean("v"), gamma / p), state.r + 1)

    def readmit(self, state: ScaffnewState, client: int) -> tuple[ScaffnewState, Payload]:
        """Let the client start from h_i = 0."""
        return state, {}


def _by_rule_or(check: Callable[[str, object], Any], name: str, value: object) -> Any:
    """Return None, "rule", or `check` of a given value."""
    if isinstance(value, str):
        return choice(name, value, (RULE,))
    return None if value is None else check(name, value)


def _shares(name: str, value: object) -> float | tuple[float, ...]:
    """Return numbers in [0, 1], or one."""
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_share(name, each) for each in value)
    return _share(name, value)


def _share(name: str, value: object) -> float:
    """Return a number in [0, 1]."""
    number = nonnegative(name, value)
    if number > 1:
        raise ConfigError(f"{name} must be in [0, 1], got {repr_of(value)}")
    return number


def _longest_stop(step: float, square: float) -> float:
    """Return the largest q_i for gamma L_i and p^2.

    >>> _longest_stop(0.5, 0.25), _longest_stop(1.0, 0.25), _longest_stop(0.0, 0.25)
    (0.3333333333333333, 0.0, 1.0)
    """
    if step >= 1 or square == 1:
        return 0.0
    return min(1.0, (1 / step - 1) * square / (1 - square)) if step else 1.0
