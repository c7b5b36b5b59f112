r"""DRFA: distributionally robust averaging, which minimises the largest loss of a client.

    min_w max_lambda sum_i lambda_i f_i(w) + psi(w) - (rho/2) sum_i (N lambda_i - 1)^2 / N
    over weights lambda_i >= 0 that sum to 1, all f_i convex

Round, for a cohort S, from w = z = x0 and lambda_i = 1/N:
    1. server:    draw k from {1, ..., K};  broadcast w, z and k
    2. client i:  v = w;  K times  v := v - eta grad f_i(v);  v_i = v, and v_i' = v after k times
    3.            upload v_i - w, v_i' - w and l_i = f_i(z)
    4. server:    z := prox(w + mean_S N lambda_i (v_i' - w), eta k)
                  w := prox(w + mean_S N lambda_i (v_i - w), eta K)
    5.            h_i := l_i for i in S
                  lambda := P((lambda + gamma K h) / (1 + gamma K rho N))
    output        w_bar = the mean of the z that were broadcast

P projects onto the simplex; prox(v, t) = argmin_w psi(w) + ||w - v||^2 / (2 t). With rho = 0 the
maximum over lambda is the largest f_i(w); a large rho keeps lambda near 1/N, and the limit near the
optimum of the mean. With weight_step="multiplicative" step 5 is lambda_i := lambda_i exp(gamma K
h_i), normalised, for rho = 0.
Symbols: eta = client_lr, K = local_steps, gamma = weight_lr, rho = weight_penalty.

With K = 1 this is AFL: z is w, and w and lambda move at once, each by a gradient at the same w and
lambda.

Cohorts: w, z and lambda are known before S is drawn. If each client is in S with one probability,
mean_S N lambda_i d_i is sum_i lambda_i d_i on average; with probabilities p_i and weights 1/(N
p_i), too. h holds everyone's last loss, at first the mean of the first cohort's. Losses are then at
models of up to some rounds ago, which differ by multiples of eta, as other terms of the theorem do.
With loss_memory=False lambda moves by u instead: u_i = (N/|S|) l_i for i in S, 0 elsewhere (l_i/p_i
with weights), which is right on average and has the losses themselves as noise. If everyone takes
part, both are the same.

The paper draws S by lambda and takes plain means, which is the same on average, with less noise
where few clients have the weight; here clients come by a rule of their own. The paper asks a second
cohort for losses at z, after step 4, and lets lambda follow these alone, as u does. Here it is the
S of the next round, drawn independently of z, so that lambda is one round later for K > 1.

With `groups` the largest loss is that of m groups, whose rows lie on several clients: f_k =
sum_j s_jk/n_k, where client j has the sum s_jk of the losses of its n_jk rows of the group, and
n_k = sum_j n_jk. lambda and h have an entry for each. After step 1 clients tell the s_jk(z) and
n_jk, and with the sums over S (weighted by 1/p_j where the p_j are known) the steps are
    2. client j:  omega_j = sum_k lambda_k n_jk/n_k;  v := v - (eta/omega_j) sum_k lambda_k
                  grad s_jk(v)/n_k
    4. server:    z := prox(w + sum_S omega_j (v_j' - w), eta k),  w alike
    5.            h_k := sum_S s_jk(z)/n_k for the groups that have rows in S
where N is m in step 5 and in the problem. A cohort estimates each group's loss and gradient from
its own rows, which is not right on average, but up to an error that falls with their number. If
everyone takes part, it is exact.

Theorem, for psi = 0 and everyone in each round: let ||x0 - w*|| <= D, f_i be convex with ||grad
f_i|| <= G, and the losses less their mean be a vector of length at most B. On average over T rounds
w and lambda lose at most
    D^2/(2 eta K T) + eta G^2 (4 K - 3)/2   and   1/(2 gamma K T) + c gamma K B^2/2
to any others, where c = 1 for K = 1, else 3: lambda_t meets losses of the round before, and moves
by gamma K B at most. So eta = D/(G sqrt(K T (4 K - 3))) and gamma = 1/(K B sqrt(c T)) give
    max_i f_i(w_bar) - min_w max_i f_i(w) <= D G sqrt((4 K - 3)/(K T)) + B sqrt(c/T)
in expectation over the k. More local steps do not make this bound smaller. With K = 1 and strongly
convex f_i, w itself converges to the optimum if steps are short.

State: none on the client; w, z, lambda and h (N numbers each) and the sum of the z on the server.
Wire: 2 vectors and 1 number down (1 vector with K = 1); 2 vectors and 1 number up (1 vector and 1
number with K = 1). With groups a query before, 2 m numbers up and at most 2 m down instead of 1 up.
Participation: any; N lambda_i multiplies the noise of sampling, so that steps must be shorter. With
several local steps, and with cohorts, w ends at a floor.
Lost state: nothing to lose.

Not for: a small mean loss (any other method), and high accuracy: the rate is 1/sqrt(T). FedSGM
bounds each client's loss, and minimises the mean among the models that keep the bounds.

Source: Yuyang Deng, Mohammad Mahdi Kamani, Mehrdad Mahdavi, "Distributionally Robust Federated
Averaging", NeurIPS 2020 (arXiv:2102.12660), with the authors' program; Mehryar Mohri, Gary Sivek,
Ananda Theertha Suresh, "Agnostic Federated Learning", ICML 2019 (arXiv:1902.00146) (K = 1); Jae Ro,
Mingqing Chen, Rajiv Mathews, Mehryar Mohri, Ananda Theertha Suresh, "Communication-Efficient
Agnostic Federated Averaging", Interspeech 2021 (arXiv:2104.02748) (the multiplicative step). The
cohorts, h, psi and this theorem are reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from flower_fedcon.arrays import as_column, pick, placed
from flower_fedcon.core.release import Release
from flower_fedcon.core.rng import COIN
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.sets.simplex import simplex_projection
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.strategies.families.arguments import refuse_race
from flower_fedcon.strategies.families.switching import WeightedMean, names
from flower_fedcon.validation import Array, choice, chosen, count, nonnegative, optional, positive
from flower_fedcon.wire.payloads import Payload


class DRFAState(NamedTuple):
    """The server's state."""

    w: Array  # global model, shape of x0
    z: Array  # the model whose losses the coming round tells, shape of x0
    weights: Array  # lambda, shape (N,), or (m,) of groups
    losses: Array  # h, shape of lambda
    t: int  # the coming round, from 1
    average: WeightedMean  # mean of the z


class DRFAConstants(NamedTuple):
    """Constants that follow from the setup."""

    client_lr: float  # eta
    weight_lr: float  # gamma


class DRFA(FedConStrategy[DRFAState]):
    """Distributionally robust federated averaging; AFL with one local step.

    The history's columns are "worst_estimate", the largest of the losses that clients told last,
    and "largest_weight", the largest lambda_i. Its output "average" is w_bar. Its "objective" is
    the mean loss, which this method does not minimise. If the problem's clients have weights, these
    multiply their losses.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet, optional (default: None)
        psi: any object with `prox(v, step)`; a set stands for its indicator, and None for zero.
    client_lr : float, optional
        eta > 0; by default the theorem's, from D and G, times sqrt(|S|/N).
    local_steps : int, optional
        K >= 1; by default 1, which is AFL.
    weight_lr : float, optional
        gamma > 0; by default the theorem's, from B, times sqrt(|S|/N).
    weight_penalty : float (default: 0.0)
        rho >= 0.
    weight_step : {"projected", "multiplicative"} (default: "projected")
        How lambda moves.
    loss_memory : bool (default: True)
        Whether lambda follows everyone's last loss, h, or as in the paper the cohort's losses.
    groups : int, optional
        m: the weights are of m groups, which may share clients, and not of clients.
    distance, lipschitz, spread : float, optional
        D, G and B of the theorem; by default guesses, G the longest gradient of an f_i at the
        start, D = G/L and B = G D sqrt(N).
    output : {"last", "average"} (default: "last")
        The model: w, or w_bar, for which the theorem holds.

    Raises
    ------
    ConfigError
        If an argument is out of range, or a default needs an unknown constant.

    Examples
    --------
    The larger one of x^2/2 - x and x^2/2 + 3 x is least at 0, where they are equal:

    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(np.eye(1), np.array([b])) for b in (1.0, -3.0)]
    >>> problem = FederatedProblem(clients, x0=np.array([2.0]))
    >>> strategy = DRFA(client_lr=0.2, weight_lr=0.05)
    >>> abs(simulate(strategy, problem, num_rounds=400).x.round(6))
    array([0.])
    """

    name = "drfa"
    scope = Scope("convex", worst=True)
    bias = "it minimises the largest loss, not the mean"
    uplink = ("delta", "at_k", "loss")
    numbers = ("loss",)
    needs_mean = "it weighs each client's upload by lambda_i"
    needs_uniform = ""
    needs_uncompressed = "N lambda_i would multiply an upload's error"
    needs_gradient = "lambda follows the losses, whose gradients clipped ones are not"
    needs_constant_lr = "its average weighs rounds equally"
    needs_common_lr = "lambda weighs clients, and steps of different length would weigh them again"
    needs_fresh = "lambda and the losses of a round must belong to one model"
    needs_independent = "its server multiplies each upload by a weight of its own"
    needs_convex = "the theorem is for a convex problem"
    release = Release(single="it weighs them by the losses that clients tell")
    constants: DRFAConstants

    def __init__(
        self,
        regularizer: Any = None,
        *,
        client_lr: float | None = None,
        local_steps: int | None = None,
        weight_lr: float | None = None,
        weight_penalty: float = 0.0,
        weight_step: str = "projected",
        loss_memory: bool = True,
        groups: int | None = None,
        distance: float | None = None,
        lipschitz: float | None = None,
        spread: float | None = None,
        output: str = "last",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)
        self.client_lr = self.step_length(client_lr)
        self.local_steps: Any = chosen(count, "local_steps", local_steps)
        for name, value in {"client_lr": client_lr, "local_steps": local_steps}.items():
            refuse_race(self.title, name, value, "this method minimises another number")
        self.weight_lr = optional(positive, "weight_lr", weight_lr)
        self.weight_penalty = nonnegative("weight_penalty", weight_penalty)
        self.weight_step = choice("weight_step", weight_step, ("projected", "multiplicative"))
        if weight_penalty and weight_step != "projected":
            raise ConfigError(
                f"DRFA: weight_penalty={weight_penalty!r} is for weight_step='projected', got "
                f"{weight_step!r}: leave one of the two out"
            )
        self.loss_memory = bool(loss_memory)
        self.groups = None if groups is None else count("groups", groups)
        if groups is not None:
            why = "the cohort's rows estimate each group's loss" if not loss_memory else ""
            if self.batch_size is not None:
                why = "steps on groups take all rows of a client"
            if why:
                raise ConfigError(
                    f"DRFA takes no loss_memory={loss_memory!r}, batch_size={self.batch_size!r} "
                    f"with groups={groups!r}: {why}. Leave one out"
                )
            self.constraints = "groups"
            self.queries = names("sum", groups) + names("count", groups)
        self.distance: Any = optional(positive, "distance", distance)
        self.lipschitz: Any = optional(positive, "lipschitz", lipschitz)
        self.spread: Any = optional(positive, "spread", spread)
        self.output = choice("output", output, ("last", "average"))
        self.uses_num_rounds = client_lr is None or weight_lr is None

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for K, and for G, D and B as far as the theorem gives the steps."""
        defaults: dict[str, Callable[[], Any]] = {"local_steps": lambda: 1}
        if self.client_lr is None or (self.weight_lr is None and self.spread is None):
            defaults |= {"lipschitz": self._steepness, "distance": self._reach}
        if self.weight_lr is None:
            defaults["spread"] = self._range
        return defaults

    def _steepness(self) -> float:
        """Return an estimate of G: the longest gradient of an objective at the start."""
        return self.steepest_for("lipschitz, distance and spread, or client_lr and weight_lr")

    def _reach(self) -> float:
        """Return a guess of D: the length of a gradient step of 1/L, a lower bound."""
        return float(self.lipschitz) / self.smoothness_for("distance", "about ||x0 - w*||")

    def _range(self) -> float:
        """Return a guess of B: what N losses change by within the distance D."""
        return float(self.lipschitz * self.distance * math.sqrt(self._parts))

    @property
    def _parts(self) -> int:
        """The number of lambda's entries."""
        return self.groups or self.setup.num_clients

    def derive(self) -> DRFAConstants:
        """Set eta and gamma; in cohorts G and B count sqrt(N/|S|) times."""
        count, rounds, share = self.local_steps, self.setup.num_rounds, math.sqrt(self.setup.rate)
        eta, gamma = self.client_lr, self.weight_lr
        if eta is None:
            steps = count * rounds * (4 * count - 3)
            eta = share * self.distance / (self.lipschitz * math.sqrt(steps))
        if gamma is None:
            delayed = rounds if count == 1 else 3 * rounds
            gamma = share / (count * self.spread * math.sqrt(delayed))
        return DRFAConstants(eta, gamma)

    def initialize(self, x0: Array) -> DRFAState:
        """Start at w = z = x0, with equal weights."""
        n = self._parts
        weights, average = np.full(n, 1 / n), WeightedMean(np.zeros_like(x0))
        return DRFAState(x0, x0, weights, np.zeros(n), 1, average)

    def step_seen(self, state: DRFAState) -> int:
        """Return k of the coming round."""
        if self.local_steps == 1:
            return 1
        return 1 + int(self.setup.rng(COIN, state.t).integers(self.local_steps))

    def broadcast(self, state: DRFAState) -> Payload:
        """Step 1; with one local step z is w."""
        if self.local_steps == 1:
            return {"w": state.w}
        return {"w": state.w, "z": state.z, "k": self.step_seen(state)}

    def expects(self, state: DRFAState) -> tuple[str, ...]:
        """Return the names of step 3's uploads."""
        wanted = ("delta", "at_k") if self.local_steps > 1 else ("delta",)
        return wanted if self.groups else (*wanted, "loss")

    def after_query(self, state: DRFAState, answers: Uploads) -> tuple[DRFAState, Payload]:
        """Return h with the groups' losses at z, and C lambda_k/n_k of the groups that are here."""
        scale = len(answers.clients) * answers.scales
        sums, counts = (
            np.array([answers[name] for name in names(kind, self.groups)], dtype=np.float64) @ scale
            for kind in ("sum", "count")
        )
        here = np.flatnonzero(counts > 0)
        values = sums[here] / counts[here]
        losses = np.full(len(sums), values.mean()) if state.t == 1 else state.losses.copy()
        losses[here] = values
        active = here[state.weights[here] > 0]
        shares = len(answers.clients) * state.weights[active] / counts[active]
        return state._replace(losses=losses), {"active": active, "weights": shares}

    def _aggregate_groups(self, state: DRFAState, uploads: Uploads) -> DRFAState:
        """Do steps 4 and 5 for groups."""

        def moved(name: str, steps: int) -> Array:
            step = self.constants.client_lr * steps
            after: Array = self.regularizer.prox(state.w + uploads.mean(name), step)
            return after

        w = moved("delta", self.local_steps)
        z = w if self.local_steps == 1 else moved("at_k", self.step_seen(state))
        weights = self._ascended(state.weights, state.losses)
        average = state.average.add(state.z, 1.0)
        return DRFAState(w, z, weights, state.losses, state.t + 1, average)

    def aggregate(self, state: DRFAState, uploads: Uploads) -> DRFAState:
        """Do steps 4 and 5."""
        if self.groups:
            return self._aggregate_groups(state, uploads)
        n, clients, scales = uploads.num_clients, uploads.clients, uploads.scales
        places = np.array(clients) if isinstance(clients, list) else clients  # which are traced
        factors = n * state.weights[places] * scales

        def moved(name: str, steps: int) -> Array:
            changes = uploads.stacked(name)
            move = (as_column(factors, changes.ndim - 1, changes.dtype) * changes).sum(axis=0)
            after: Array = self.regularizer.prox(state.w + move, self.constants.client_lr * steps)
            return after

        w = moved("delta", self.local_steps)
        z = w if self.local_steps == 1 else moved("at_k", self.step_seen(state))
        told, before = uploads.stacked("loss"), state.losses
        if self.loss_memory:
            before = pick(state.t == 1, np.zeros(n) + told.mean(), before)
            losses = seen = placed(before + 0.0, places, told)
        else:
            losses = placed(before + 0.0, places, told)
            seen = placed(0.0 * before, places, n * scales * told)
        weights = self._ascended(state.weights, seen)
        average = state.average.add(state.z, 1.0)
        return DRFAState(w, z, weights, losses, state.t + 1, average)

    def _ascended(self, weights: Array, losses: Array) -> Array:
        """Return lambda after step 5."""
        step = self.constants.weight_lr * self.local_steps
        if self.weight_step == "projected":
            shrunk = 1.0 + step * self.weight_penalty * self._parts
            return simplex_projection((weights + step * losses) / shrunk, 1.0)
        grown = weights * np.exp(step * (losses - losses.max()))
        total: Array = grown / grown.sum()
        return total

    def model(self, state: DRFAState) -> Array:
        """Return w or w_bar."""
        return state.w if self.output == "last" else state.average.value(state.w)

    def outputs(self, state: DRFAState) -> dict[str, Array]:
        """Return w_bar."""
        return {"average": state.average.value(state.w)}

    def report(self, state: DRFAState) -> dict[str, float]:
        """Return the largest of the clients' last losses, and the largest weight."""
        worst, most = (float(numbers.max()) for numbers in (state.losses, state.weights))
        return {"worst_estimate": worst, "largest_weight": most}

    def longest_prox(self) -> float:
        """Return eta K."""
        return self.constants.client_lr * float(self.local_steps)
