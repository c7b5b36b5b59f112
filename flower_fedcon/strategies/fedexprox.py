r"""FedExProx: averages of proximal steps, extrapolated.

    min_x (1/N) sum_i f_i(x),   f_i convex, with a minimiser that (nearly) all share

Round k, for a cohort S:
    1. broadcast x
    2. client i:  p_i ~ argmin_v f_i(v) + ||v - x||^2/(2 gamma)
    3. upload p_i - x                            ("polyak": and the number M_i - inf f_i)
    4. server:    x := x + alpha_k mean_S(p_i - x)

Extrapolation, with M_i = f_i(p_i) + ||x - p_i||^2/(2 gamma), the Moreau envelope at x:
    constant      alpha = 1/(gamma L_gamma),  L_gamma <= mean_i L_i/(1 + gamma L_i);
                  for cohorts of C, with Lmax the largest L_i, in place of L_gamma
                  ((N-C) Lmax/(1 + gamma Lmax) + N (C-1) L_gamma) / (C (N-1))
    "diversity"   alpha_k = mean_S ||p_i - x||^2 / ||mean_S(p_i - x)||^2            (GraDS)
    "polyak"      alpha_k = gamma mean_S(M_i - inf f_i) / ||mean_S(p_i - x)||^2     (StoPS)

L_gamma is the smoothness of the mean of the Moreau envelopes; the default uses its bound. Cohorts
of varying size use the alpha of C = 1, which is valid for every size. alpha = 1 is FedProx with mu
= 1/gamma. Once M_i - inf f_i is at the level of rounding (1e-12 |inf f_i|), "polyak" becomes
"diversity". On quadratics, the guarantee is no better than that of gradient descent.
Symbols: gamma = step_size, alpha = extrapolation, inf f_i = infimum.

State: none on the client; x on the server.
Wire: 1 vector down; 1 vector ("polyak": and 1 number) up.
Participation: any. Without a shared minimiser the constant form has FedProx's floor, and the other
two do not converge: their alpha_k grow without bound, up to max_extrapolation.
Lost state: nothing to lose.

Not for: clients without a common minimiser, for which a bias remains, and a psi or a constraint.

Source: Hanmin Li, Kirill Acharya, Peter Richtárik, "The Power of Extrapolation in Federated
Learning", NeurIPS 2024 (arXiv:2405.13766); the steps and constants are reconstructed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.solvers.moreau import constant_extrapolation, square
from flower_fedcon.strategies.families.minimization import LocalMinimization, MinimisationOptions
from flower_fedcon.validation import Array, chosen, optional, positive, real, word_or_number
from flower_fedcon.wire.payloads import Payload

_log = logging.getLogger("flwr.strategies")
RULES = ("constant", "diversity", "polyak")


class FedExProxState(NamedTuple):
    """The server's state."""

    x: Array  # global model, shape of x0
    alpha: float  # alpha of the last round
    capped: int  # rounds whose alpha was above max_extrapolation


class FedExProxConstants(NamedTuple):
    """Constants that follow from the setup."""

    alpha: float | None  # if it is constant
    polyak: bool  # whether clients send M_i - inf f_i


class FedExProx(LocalMinimization[FedExProxState]):
    """FedExProx, with a constant or an adaptive extrapolation.

    Parameters
    ----------
    step_size : float or "auto", optional
        gamma > 0; by default 1/sqrt(mu L), at most 10/L; 0.3/L if mu is unknown.
    extrapolation : float or {"constant", "diversity", "polyak"} (default: "constant")
        alpha > 0, or the rule for it; "constant" computes it from the clients' L_i.
    infimum : float, optional
        For "polyak": inf f_i, the same for every client (0 for least squares that fit all rows
        exactly); by default each client computes it with its local solver, from 0.
    max_extrapolation : float (default: 1000.0)
        The largest alpha_k of "diversity" and "polyak", > 0.
    local_solver : str or LocalSolver (default: "exact")
        The local solver and its accuracy: see `flower_fedcon.solvers`.

    Raises
    ------
    ConfigError
        If an argument is out of range, or the rule for alpha needs unknown L_i.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(q * np.eye(1), np.array([q])) for q in (1.0, 3.0)]
    >>> strategy = FedExProx(step_size=0.1, extrapolation="diversity")
    >>> simulate(strategy, FederatedProblem(clients), num_rounds=150).x.round(9)  # minimises both
    array([1.])
    """

    name = "fedexprox"
    needs_fresh = "it extrapolates by replies to one model"
    scope = Scope("convex", shared_minimiser=True)
    bias = "where no minimiser is shared, it has FedProx's floor or does not converge"
    uplink = ("delta", "gap")
    numbers = ("gap",)
    needs_uncompressed = "its extrapolation is computed for exact proximal steps"
    needs_mean = "alpha is derived for the mean, and would amplify false uploads"
    needs_uniform = "alpha is derived for uniform cohorts"
    release = Release("with a constant extrapolation")
    needs_independent = "its steps are extrapolated for exact means"
    constants: FedExProxConstants

    def __init__(
        self,
        *,
        step_size: float | str | None = None,
        extrapolation: float | str = "constant",
        infimum: float | None = None,
        max_extrapolation: float = 1000.0,
        **common: Unpack[MinimisationOptions],
    ) -> None:
        super().__init__(**common)
        self.step_size = chosen(positive, "step_size", step_size)
        self.extrapolation = word_or_number("extrapolation", extrapolation, RULES)
        self.infimum = optional(real, "infimum", infimum)
        self.max_extrapolation = positive("max_extrapolation", max_extrapolation)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rule for gamma."""
        return {"step_size": lambda: self.usual_prox("step_size")}

    def why_no_epochs(self) -> str:
        """Return why SGD is refused, if alpha is computed from values."""
        polyak = self.extrapolation == "polyak"
        return 'extrapolation="polyak" is computed for exact proximal points' if polyak else ""

    @property
    def one_at_a_time(self) -> str:
        """Why a client's step cannot serve all clients at once; "" if it can."""
        return "measures each client's envelope" if self.extrapolation == "polyak" else ""

    def derive(self) -> FedExProxConstants:
        """Set alpha."""
        alpha, polyak = self.extrapolation, self.extrapolation == "polyak"
        if polyak and self.setup.own_loops:
            raise ConfigError(
                'FedExProx: extrapolation="polyak" needs values of the objectives, which your own '
                'train loops do not give: take "diversity" or a number'
            )
        if alpha == "constant":
            size = self.participation.size(self.setup.num_clients) or 1
            alpha = constant_extrapolation(self.step_size, self.setup.smoothnesses, size)
        return FedExProxConstants(None if isinstance(alpha, str) else alpha, polyak)

    def why_single(self) -> str:
        """Return why the server needs each upload in this run; "" if the sum suffices."""
        return "" if self.constants.alpha else "it needs their lengths: give extrapolation a number"

    def initialize(self, x0: Array) -> FedExProxState:
        """Start at x0."""
        return FedExProxState(x=x0, alpha=self.constants.alpha or 1.0, capped=0)

    def broadcast(self, state: FedExProxState) -> Payload:
        """Step 1."""
        return {"x": state.x}

    def expects(self, state: FedExProxState) -> tuple[str, ...]:
        """Return the names of step 3's uploads."""
        return self.uplink if self.constants.polyak else ("delta",)

    def aggregate(self, state: FedExProxState, uploads: Uploads) -> FedExProxState:
        """Step 4."""
        mean, capped = uploads.mean("delta"), state.capped
        alpha = self.constants.alpha or self._adapted(uploads, mean)
        if self.constants.alpha is None and alpha > self.max_extrapolation:
            alpha, capped = self.max_extrapolation, capped + 1
            if capped == 1:
                _log.warning(
                    'FedExProx: the extrapolation is above max_extrapolation=%g: "%s" is for '
                    "clients that share a minimiser; for others give extrapolation a number",
                    alpha, self.extrapolation,
                )  # fmt: skip
        return FedExProxState(state.x + alpha * mean, alpha, capped)

    def _adapted(self, uploads: Uploads, mean: Array) -> float:
        """Return alpha_k of "diversity" or "polyak"; 1 if no client moves."""
        length = square(mean)
        if length == 0:
            return 1.0
        if self.constants.polyak and min(uploads["gap"]) > 0:
            return float(self.step_size * uploads.mean_number("gap") / length)
        return uploads.mean_number("delta", of=square) / length

    def report(self, state: FedExProxState) -> dict[str, float]:
        """Return the round's alpha."""
        return {"extrapolation": state.alpha}
