"""Switching between the objective and one or several constraints, by their values.

FedSGM has the steps for one constraint, and the symbols. Several constraints g_k <= 0 are one,
g = max_k g_k. Each client's own has k = j, s_jj = g_j and n_jj = 1; of groups, g_k = sum_j s_jk /
sum_j n_jk, n_jk the group's rows on client j. With C = |S|, instead of steps 1 to 4:

    1*. client j answers with all s_jk(w_t) and n_jk
    2*. ghat_k = sum_S s_jk/n_k, n_k = sum_S n_jk; sigma_t as there from ghat = max_k ghat_k;
        lambda_k = sigma_t for one k with ghat_k = ghat, 0 for others (hard)
                   or  sigma_t sigma(z_k) / sum_l sigma(z_l), z_k = ghat_k - eps (soft)
    3*. omega_j = (1 - sigma_t)/C + sum_k lambda_k n_jk/n_k; with it, E times
        v := v - (eta/omega_j) ((1 - sigma_t) grad f_j(v)/C + sum_k lambda_k grad s_jk(v)/n_k)
    4*. upload Delta_j = C_j(C omega_j (w_t - v)/eta), which is 0 where omega_j = 0

The omega_j sum to 1: clients move on means of f_j and their own losses, as Lipschitz as these are,
and together on (1 - sigma_t) f + sum lambda_k g_k. The theorem holds, with q instead of q/N. Its
proof uses only that sigma_t g(w_t) is at least sigma_t (eps - 1/beta), and so is sum lambda_k
g_k(w_t) for any lambda_k >= 0 that sum to sigma_t and are 0 where sigma(z_k) is 0. With hard
switching on the clients' own constraints, only the client with the largest violation moves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar, Unpack

import numpy as np

from flower_fedcon.compressors import Compressor
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError, clients_by_name
from flower_fedcon.strategies.families.arguments import refuse_race
from flower_fedcon.strategies.families.compression import CompressedMessages, CompressionOptions
from flower_fedcon.validation import Array, choice, chosen, count, optional, positive
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")
_log = logging.getLogger("flwr.strategies")
OUT_OF_REACH = "no model satisfies the bound: FederatedProblem.least_violation says by how much"
_CLEARLY = 2  # multiples of the tolerance: soft switching ends at 1 at most, and steps overshoot


class SwitchingConstants(NamedTuple):
    """Constants that follow from the setup."""

    uplink_compressor: Compressor
    downlink_compressor: Compressor
    feedback: bool  # whether error feedback is used
    client_lr: float  # eta
    tolerance: float  # eps
    sharpness: float  # beta


class Switch(NamedTuple):
    """The results of the queries so far."""

    estimate: float = 0.0  # ghat of the last query
    sigma: float = 0.0  # the weight of the constraint that followed
    violations: int = 0  # rounds that began with ghat > eps


class WeightedMean(NamedTuple):
    """The weighted mean of the models so far."""

    total: Array  # sum of weight * model, shape of x0
    weight: float = 0.0

    def add(self, model: Array, weight: float) -> Self:
        """Return the mean with one more model."""
        return self._replace(total=self.total + weight * model, weight=self.weight + weight)

    def value(self, last: Array, *, warn: bool = False) -> Array:
        """Return the mean, or the last model if no round counts."""
        if self.weight == 0 and warn:
            _log.warning(
                "the constraint was above the tolerance in every round, so the average is the last "
                "model (try more rounds, a larger client_lr or a larger tolerance; or %s)",
                OUT_OF_REACH,
            )
        return self.total / self.weight if self.weight else last


class Switching(CompressedMessages[State]):
    """A constraint g <= 0 up to a tolerance, with weight sigma.

    Parameters
    ----------
    client_lr : float, optional
        eta > 0; by default the theorem's.
    local_steps : int or "auto", optional
        E >= 1; by default 1.
    tolerance : float, optional
        eps > 0, by which g may exceed 0; by default the theorem's.
    distance, lipschitz : float, optional
        D >= ||w_0 - w*|| and G, the Lipschitz constant of every f_j and g_j, for the theorem; by
        default guesses: G the longest gradient of an f_j at the start, D = G/L.
    switching : {"soft", "hard"} (default: "soft")
        Mix the gradients of f and g near the tolerance, or take one of them.
    sharpness : float, optional
        beta > 0 of the soft switch; by default 2/eps, the least that the theory allows.
    output : {"last", "average"} (default: "last")
        The model: w_t, or w_bar.
    constraints : {"mean", "each", "groups"} (default: "mean")
        Which constraints hold; see `FederatedProblem`.
    groups : int, optional
        m, with "groups".
    """

    constants: SwitchingConstants  # type: ignore[assignment]

    def __init__(
        self,
        *,
        client_lr: float | str | None = None,
        local_steps: int | str | None = None,
        tolerance: float | None = None,
        distance: float | None = None,
        lipschitz: float | None = None,
        switching: str = "soft",
        sharpness: float | None = None,
        output: str = "last",
        constraints: str = "mean",
        groups: int | None = None,
        **common: Unpack[CompressionOptions],
    ) -> None:
        super().__init__(**common)
        refuse_race(self.title, "client_lr", client_lr)
        self.client_lr = self.step_length(client_lr)
        self.local_steps = chosen(count, "local_steps", local_steps)
        self.tolerance = optional(positive, "tolerance", tolerance)
        self.distance = optional(positive, "distance", distance)
        self.lipschitz: Any = optional(positive, "lipschitz", lipschitz)
        self.switching = choice("switching", switching, ("soft", "hard"))
        self.sharpness = optional(positive, "sharpness", sharpness)
        self.output = choice("output", output, ("last", "average"))
        self.constraints = choice("constraints", constraints, ("mean", "each", "groups"))
        if (constraints == "groups") != (groups is not None):
            raise ConfigError(
                f"groups is the number of constraints, and belongs to constraints='groups', got "
                f"constraints={constraints!r}, groups={groups!r}: give both or neither"
            )
        self.groups = None if groups is None else count("groups", groups)
        if constraints != "mean":
            if self.aggregation is not None:
                raise ConfigError(
                    f"{self.title} takes aggregation={self.aggregation!r} only for the mean of the "
                    f"constraints, got constraints={constraints!r}: a rule against outliers would "
                    "drop what a few clients upload for their constraint"
                )
            self.queries = names("sum", self.groups) + names("count", self.groups)
        self.uses_num_rounds = self.by_theorem

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for E, and for G and D if the theorem gives eta or eps."""
        defaults: dict[str, Callable[[], Any]] = {"local_steps": lambda: 1}
        if self.by_theorem:
            defaults |= {"lipschitz": self._steepness, "distance": self._reach}
        return defaults

    def _steepness(self) -> float:
        """Return an estimate of G: the longest gradient of an objective at the start."""
        return self.steepest_for(
            "lipschitz (of every f_j and g_j) and distance (||w_0 - w*||), or client_lr and "
            "tolerance"
        )

    def _reach(self) -> float:
        """Return a guess of D: the length of a gradient step of 1/L, a lower bound."""
        return float(self.lipschitz) / self.smoothness_for("distance", "about ||w_0 - w*||")

    @property
    def by_theorem(self) -> bool:
        """Whether the theorem gives the step or the tolerance."""
        return self.client_lr is None or self.tolerance is None

    def derive(self) -> SwitchingConstants:  # type: ignore[override]
        """Set the compressors, and the theorem's values."""
        compression = super().derive()
        eta, eps = self.client_lr or 0.0, self.tolerance or 0.0
        if self.by_theorem:
            theorem = self._theorem(compression.uplink_compressor, compression.feedback)
            eta, eps = self.client_lr or theorem[0], self.tolerance or theorem[1]
        return SwitchingConstants(*compression, eta, eps, self.sharpness or 2 / eps)

    def _theorem(self, compressor: Compressor, feedback: bool) -> tuple[float, float]:
        if feedback:
            raise ConfigError(
                f"{self.title}: the theorem is for unbiased uplink compression without error "
                "feedback: give client_lr and tolerance"
            )
        return theorem_settings(
            distance=self.distance or 0.0,
            lipschitz=self.lipschitz or 0.0,
            local_steps=self.local_steps,
            rounds=self.setup.num_rounds,
            # A single client may carry a constraint: its compression error is not averaged.
            clients=self.setup.num_clients if self.constraints == "mean" else 1,
            variance=compressor.q(self.setup.layout.size),
            soft=self.switching == "soft",
        )

    def arguments(self) -> dict[str, Any]:
        """Return the hyperparameters; for one constraint as in versions without several."""
        values = super().arguments()
        new = ("constraints", "groups") if self.constraints == "mean" else ()
        return {name: value for name, value in values.items() if name not in new}

    def switch_by(self, answers: Uploads) -> tuple[float, float, Payload]:
        """Return ghat, or max_k ghat_k, over the cohort; sigma; and values for the clients.

        Clients are sent sigma and, with several constraints, which are active and C lambda_k / n_k
        for each, C = |S|. A client's own constraint has the client's number.
        """
        if self.constraints == "mean":
            estimate = answers.mean_number("constraint")
            sigma = self.switch(estimate - self.constants.tolerance)
            return estimate, sigma, {"sigma": sigma}
        sums, counts = (
            np.array([answers[name] for name in names(kind, self.groups)], dtype=np.float64)
            for kind in ("sum", "count")
        )  # shape (m, C)
        if self.constraints == "each":
            numbers, sums, counts = np.array(answers.clients), sums[0], counts[0]
        else:
            numbers, sums, counts = np.arange(len(sums)), sums.sum(axis=1), counts.sum(axis=1)
        seen = counts > 0  # the cohort may have no row of a group
        if not seen.any():
            nobody = np.empty(0, dtype=np.int64)
            return math.nan, 0.0, {"sigma": 0.0, "active": nobody, "weights": np.empty(0)}
        numbers, counts = numbers[seen], counts[seen]
        values = sums[seen] / counts
        each = np.array([self.switch(v - self.constants.tolerance) for v in values])
        worst = int(values.argmax())
        sigma = float(each[worst])
        if self.switching == "hard":
            each[np.arange(len(each)) != worst] = 0.0
        shares = sigma * (each / each.sum()) if sigma else each
        active = np.flatnonzero(shares)
        weights = shares[active] * len(answers.clients) / counts[active]
        told: Payload = {"sigma": sigma, "active": numbers[active], "weights": weights}
        return float(values[worst]), sigma, told

    def report(self, state: Any) -> dict[str, float]:
        """Return ghat and sigma of the round, and the number of violating rounds so far."""
        estimate, sigma, violations = state.switch
        measured = {"constraint_estimate": estimate, "sigma": sigma, "violations": violations}
        return measured | ({"tolerance": self.constants.tolerance} if self.by_theorem else {})

    def outputs(self, state: Any) -> dict[str, Array]:
        """Return w_bar, or the last w if no round counts."""
        return {"average": state.average.value(state.w, warn=True)}

    def doubts(self, state: Any, record: Mapping[str, float], unheard: Sequence[str]) -> list[str]:
        """Warn if the model is clearly above the tolerance, or if a bound was never measured."""
        warnings, eps = [], self.constants.tolerance
        if unheard and self.constraints == "each":
            warnings.append(
                f"no usable answer of {clients_by_name(unheard)} came in any round: whether the "
                f"model satisfies their bounds is not known"
            )
        g = record.get("constraint", -math.inf)
        if g > _CLEARLY * eps and state.average.weight:  # otherwise the average's warning says it
            warnings.append(
                f"the constraint is {g:.3g} at the end, above the tolerance {eps:.3g}: more "
                f"rounds, or a smaller or larger client_lr, may help; or {OUT_OF_REACH}"
            )
        return warnings

    def switch(self, z: float) -> float:
        """Return sigma(z), the weight of the constraint, z = ghat - eps."""
        if self.switching == "hard":
            return float(z > 0)
        return min(1.0, max(0.0, 1.0 + self.constants.sharpness * z))


def names(kind: str, groups: int | None) -> tuple[str, ...]:
    """Return the names of the clients' answers of one kind.

    >>> names("sum", 2), names("sum", None)
    (('sum_0', 'sum_1'), ('sum_0',))
    """
    return tuple(f"{kind}_{k}" for k in range(groups or 1))


def theorem_settings(
    *,
    distance: float,
    lipschitz: float,
    local_steps: int,
    rounds: int,
    clients: int,
    variance: float,
    soft: bool,
) -> tuple[float, float]:
    """Return eta and eps from Theorems 1 (hard) and 2 (soft).

    With Gamma = 2 E^2 + E q/(2 N): eta = sqrt(D^2/(2 G^2 E T Gamma)), and eps =
    sqrt(2 D^2 G^2 Gamma/(E T)), twice that for a soft switch.

    >>> found = theorem_settings(distance=4.0, lipschitz=1.0, local_steps=2, rounds=64, clients=1,
    ...                          variance=0.0, soft=False)
    >>> [round(number, 6) for number in found]
    [0.088388, 1.414214]
    """
    gamma = 2 * local_steps**2 + local_steps * variance / (2 * clients)
    steps = max(1, local_steps * rounds)
    eta = distance / (lipschitz * math.sqrt(2 * steps * gamma))
    eps = distance * lipschitz * math.sqrt(2 * gamma / steps)
    return eta, 2 * eps if soft else eps
