"""Random runs: a method, its losses, set or regularizer, participation, batches, layers, dtype."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, strategies
from flower_fedcon.objectives import (
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    NeymanPearson,
    PoissonRegression,
    Quadratic,
    SoftmaxRegression,
    TanhNetwork,
)
from flower_fedcon.regularizers import L1, ElasticNet, GroupLasso, L2Squared, Zero
from flower_fedcon.sets import L1Ball, L2Ball, LInfBall, Simplex
from flower_fedcon.solvers import AOGM, LBFGS, GradientDescent

Options = dict[str, Any]

STEPS = ["FedAvg", "FedMiD", "FedDualAvg", "Scaffold", "CompositeFL", "FedLin"]
AVERAGING = ["FastFedDA", "CFedDA", "MCFedDA"]
COINS = ["Scaffnew", "TAMUNA", "LoCoDL"]
SOLVES = ["DualFL", "APDAInexact", "FedProx", "FedExProx", "FedPD", "FedDR", "FedDyn", "FiveGCS"]
WOLFE = ["FedFW", "FedFWPlus", "AveragedFW"]
OTHERS = ["FedSGM", "FedProxAL", "FedNewton"]
MEMORIES = ["AREA", "MIFA", "FedVARP"]
LATER = ["SDANE", *MEMORIES, "FedMLS", "FRECON", "DRFA"]  # at the end: a place draws its runs
METHODS = [*STEPS, *AVERAGING, *COINS, *SOLVES, *WOLFE, *OTHERS, *LATER]

WITH_PSI = {"FedMiD", "FedDualAvg", "CompositeFL", *AVERAGING, "FedDR"}
MAY_HAVE_PSI = {"FedAvg", "Scaffnew", "DualFL", "FedNewton", "AREA", "MIFA", "FRECON", "DRFA"}
EVERYONE = {"FedLin", "Scaffnew", "LoCoDL", "APDAInexact", "FedPD", "FedProxAL", "FedMLS"}
ONE_SIZE = {"TAMUNA", "CompositeFL", "FiveGCS"}
BATCHES = {*STEPS, "Scaffnew", *MEMORIES, *AVERAGING, "FedMLS", "DRFA"} - {"FedLin"}
LAYERED = {"FedAvg", "FedMiD", "FedDualAvg", "Scaffold", "FedProx"}
SETTINGS: dict[str, Options] = {
    "LoCoDL": {"client_lr": 0.1, "communication_probability": 0.4, "strong_convexity": 0.1},
    "Scaffnew": {"client_lr": 0.1, "communication_probability": 0.4},
    "TAMUNA": {"client_lr": 0.1, "communication_probability": 0.4, "copies": 2},
    "DualFL": {"strong_convexity": 0.01, "regularization": 0.02},
    "FiveGCS": {"smoothness": 3.0, "strong_convexity": 0.1},
    "APDAInexact": {"primal_lr": 0.1, "dual_damping": 0.25},
    "FedSGM": {"tolerance": 0.1, "client_lr": 0.1},
    "FedProxAL": {"coupling": 1.0},
    "FedFW": {"penalty": 0.5},
    "FedFWPlus": {"penalty": 0.5},
    "SDANE": {"proximal": 1.0},
    "FedMLS": {"step_size": 1.0, "step_growth": 1.5},
    "DRFA": {"weight_lr": 0.05},
}


class Drawn(NamedTuple):
    """A run that was drawn."""

    words: str
    strategy: Any
    problem: FederatedProblem
    rounds: int
    seed: int


class OwnConstraint(LeastSquares):
    """Least squares with a constraint <c, x> <= 0.1 of the client's own."""

    def __init__(self, A: Any, b: Any, c: Any) -> None:
        super().__init__(A, b)
        self.c = c

    def constraint_value(self, x):
        return float(self.c @ x - 0.1)

    def constraint_gradient(self, x):
        return self.c.copy()


def _signs(rng, m):
    return np.where(rng.random(m) < 0.5, -1.0, 1.0)


LOSSES = {
    "least squares": lambda rng, A: LeastSquares(A, rng.standard_normal(len(A)).astype(A.dtype)),
    "logistic": lambda rng, A: LogisticRegression(A, _signs(rng, len(A)).astype(A.dtype), l2=0.1),
    "huber": lambda rng, A: HuberRegression(A, rng.standard_normal(len(A)), l2=0.1),
    "poisson": lambda rng, A: PoissonRegression(A, rng.poisson(1.0, len(A)) + 0.0, l2=0.1),
    "softmax": lambda rng, A: SoftmaxRegression(A, rng.integers(0, 3, len(A)), 3, l2=0.1),
    "weighted": lambda rng, A: LeastSquares(
        A, rng.standard_normal(len(A)), sample_weight=rng.uniform(0.5, 2.0, len(A))
    ),
    "sparse": lambda rng, A: LogisticRegression(
        csr_matrix(A * (rng.random(A.shape) < 0.5)), _signs(rng, len(A)), l2=0.1
    ),
    "intercept": lambda rng, A: LogisticRegression(A, _signs(rng, len(A)), l2=0.1, intercept=True),
    "quadratic": lambda rng, A: Quadratic(
        (A.T @ A + 0.5 * np.eye(A.shape[1])).astype(A.dtype),
        rng.standard_normal(A.shape[1]).astype(A.dtype),
    ),
    "network": lambda rng, A: TanhNetwork(A, rng.integers(0, 2, len(A)), num_classes=2, hidden=2),
}
OUTPUTS = "several outputs"  # every other run of least squares: another loss would draw all anew
LOSSES[OUTPUTS] = lambda rng, A: LeastSquares(
    A, rng.standard_normal((len(A), 3)).astype(A.dtype), l2=0.1
)
IN_SINGLE = ("least squares", "logistic", "quadratic", "softmax")


def draw(method: str, number: int) -> Drawn:
    """Return the run of a method with this number, always the same."""
    rng = np.random.default_rng([METHODS.index(method), number])
    n, m, d = int(rng.integers(3, 9)), int(rng.integers(4, 25)), int(rng.integers(4, 60))
    kinds = [k for k in LOSSES if k != OUTPUTS and (k != "network" or method in LAYERED)]
    kind = str(rng.choice(kinds))
    if method == "FedNewton" and kind == "huber":  # its Hessian need not be definite
        kind = "logistic"
    single = kind in IN_SINGLE and method not in OTHERS and rng.random() < 0.2
    dtype = np.float32 if single else np.float64
    if kind == "least squares" and number % 2:
        kind = OUTPUTS
    sizes = rng.integers(max(2, m // 2), m + 1, n) if rng.random() < 0.2 else [m] * n
    tables = [(rng.standard_normal((k, d)) / np.sqrt(d)).astype(dtype) for k in sizes]
    terms: Options = {}
    if method == "FedSGM":
        objectives = [NeymanPearson(A + 0.1, A[1:] - 0.1) for A in tables]
    elif method == "FedProxAL":
        draws = [(rng.standard_normal(len(A)), rng.standard_normal(d)) for A in tables]
        objectives = [OwnConstraint(A, b, c) for A, (b, c) in zip(tables, draws, strict=True)]
        terms["constraints"] = "each"
    else:
        objectives = [LOSSES[kind](rng, A) for A in tables]
    options = {**SETTINGS.get(method, {}), **_participation(method, rng, n)}
    if method in (*STEPS, *AVERAGING, "FedSGM", *MEMORIES, "DRFA"):
        options["local_steps"] = int(rng.integers(1, 6))
    if method in (*STEPS, *MEMORIES, "DRFA"):
        options["client_lr"] = float(rng.choice([0.05, 0.1, 0.2]))
    if method in AVERAGING:
        options |= {"strong_convexity": 0.3, "damping": 30.0}
    if method in ("FedExProx", "FedPD", "FedDR"):
        options["step_size"] = float(rng.choice([0.5, 1.0, 2.0]))
    if method in ("FedDyn", "FedProx"):
        options["proximal"] = float(rng.choice([0.5, 2.0]))
    if method == "FedExProx":
        options["extrapolation"] = 1.5
    if method == "FastFedDA" and rng.random() < 0.3:
        options |= {"weight_power": 1.0, "weight_shift": 5.0}
    if method == "FRECON":
        options["variant"] = str(rng.choice(["frecon", "cofig"]))
    if method in BATCHES and kind not in ("quadratic", "network") and rng.random() < 0.3:
        options["batch_size"] = int(rng.integers(1, 4))
    if method in (*SOLVES, "SDANE"):
        solvers = [
            "exact",
            AOGM(tolerance=1e-8),
            GradientDescent(steps=5, lr=0.1),
            LBFGS(tolerance=1e-12),
        ]
        if method == "DualFL":  # its local problems must be solved
            del solvers[2]
        options["local_solver"] = solvers[rng.integers(0, len(solvers))]
    options |= _terms(method, rng, kind, d, terms)
    if method == "Scaffnew" and rng.random() < 0.5:
        options["refresh_probability" if "batch_size" in options else "stop_probability"] = 0.3
    problem = FederatedProblem(objectives, **terms)
    first = [options.pop("constraint")] if method in WOLFE else []
    strategy = getattr(strategies, method)(*first, **options)
    words = f"{method} {number}: {kind}, {n} clients of {m} x {d}, {np.dtype(dtype)}, {options}"
    return Drawn(words, strategy, problem, int(rng.integers(3, 9)), number)


def _participation(method: str, rng: Any, n: int) -> Options:
    if method in EVERYONE or rng.random() < 0.5:
        return {"participation": Full()}
    if method not in ONE_SIZE and rng.random() < 0.3:
        return {"participation": Bernoulli(0.6)}
    return {"participation": Sample(count=max(2, n // 2))}


def _terms(method: str, rng: Any, kind: str, d: int, terms: Options) -> Options:
    """Return the oracle of a method, and note it among the terms of its problem."""
    if method in WOLFE:
        sets = [L1Ball(radius=2.0), L2Ball(radius=1.0), LInfBall(radius=0.5), Simplex(radius=1.0)]
        terms["constraint"] = sets[rng.integers(0, 4)]
        return {"constraint": terms["constraint"]}
    if method not in WITH_PSI and (method not in MAY_HAVE_PSI or rng.random() < 0.5):
        return {}
    psis = [L1(0.01), L1(0.05), ElasticNet(0.01, 0.02), L2Squared(0.05), Zero()]
    if kind not in ("softmax", "intercept", "network", OUTPUTS):
        psis.append(GroupLasso(0.02, (np.arange(d) * 3) // d))
    psi = L1(0.02) if method == "FedNewton" else psis[rng.integers(0, len(psis))]
    terms["regularizer"] = psi
    return {"regularizer": psi}
