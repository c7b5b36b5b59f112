"""Facts on a problem, known before any run, on which the choice of a method depends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flower_fedcon.core.participation import Participation
from flower_fedcon.core.protocol import ClientInfo, Setup
from flower_fedcon.core.rng import SCALES, stream
from flower_fedcon.core.scales import LOUD, ONE, estimate
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import ConfigError
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.mismatch import is_zero
from flower_fedcon.regularizers.base import norm as _norm
from flower_fedcon.validation import Array

_PAIRS, _CLIENTS = 9, 5  # sizes of the probe


@dataclass(frozen=True)
class Facts:
    """The facts on which the choice of a method depends.

    Attributes
    ----------
    clients, size, layers : int
        N, the number of entries of the model, and of its arrays.
    rate : float
        The mean share of the clients in a round.
    smoothness, strong_convexity : float, optional
        The clients' largest L and smallest mu; None if they are not known.
    stated : bool
        Whether the clients state L; otherwise it is estimated.
    convex : bool
        False if two points show that an objective is not convex.
    term : str
        The type of the set or regularizer; "functional" for a constraint g(x) <= 0 in the
        objectives, "each" for a term of each client, "" for none.
    constrained : bool
        Whether the term is a set.
    """

    clients: int
    size: int
    layers: int
    rate: float
    smoothness: float | None
    strong_convexity: float | None
    stated: bool
    convex: bool
    term: str
    constrained: bool

    @property
    def sampled(self) -> bool:
        """Whether rounds leave clients out."""
        return self.rate < 1

    @property
    def strongly_convex(self) -> bool:
        """Whether mu is known to be > 0."""
        return bool(self.strong_convexity)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the facts as lines of text."""
        said = "" if self.stated else " (estimated)"
        curve = "convex, as far as a few points show" if self.convex else "not convex"
        if self.strongly_convex:
            curve = "strongly convex"
        bounds = ["L not known" if self.smoothness is None else f"L = {self.smoothness:.3g}{said}"]
        if self.strongly_convex:
            bounds.append(f"mu = {self.strong_convexity:.3g}")
        kind = "constraint set" if self.constrained else "regularizer"
        term = {"": "nothing added", "functional": "a functional constraint, on average",
                "each": "a functional constraint of each client",
                "groups": "functional constraints of groups of rows"}  # fmt: skip
        arrays = f" in {self.layers} arrays" if self.layers > 1 else ""
        return [
            f"objectives: {curve}; {', '.join(bounds)}",
            f"added: {term.get(self.term, f'{kind} {self.term}')}",
            f"clients: {self.clients}, {100 * self.rate:.3g} % of them in a round on average",
            f"model: {self.size:,} entries{arrays}",
        ]


def facts_of(problem: FederatedProblem, participation: Participation) -> Facts:
    """Return the facts on a problem and its participation.

    L is estimated from gradients if clients do not state it.

    Raises
    ------
    ConfigError
        If the examples are private.
    """
    if problem.private_examples:
        raise ConfigError(
            "recommend asks the clients for gradients, and private examples would spend privacy "
            "for each of them: give it a problem of the same form with public data"
        )
    setup = setup_of(problem, participation)
    mus = [info.strong_convexity for info in setup.clients]
    stated = [mu for mu in mus if mu is not None]
    L, convex = setup.smoothness, True
    slopes, steepest = _slopes(problem, stated=L is not None)
    L = slopes or None if L is None else L
    mu = min(stated) if len(stated) == len(mus) else None
    if not mu:
        step = steepest / L if L else 0.0
        convex = _are_monotone(problem.clients[:_CLIENTS], problem.start, step or 1.0)
    constraint = problem.constraint
    psi = problem.regularizer
    none = psi is None or is_zero(psi, problem.layout)
    term = "" if none else type(psi).__name__
    if problem.has_functional_constraint:
        term = {"mean": "functional"}.get(problem.constraints, problem.constraints)
    elif constraint is not None:
        term = type(constraint).__name__
    return Facts(
        clients=problem.num_clients,
        size=problem.layout.size,
        layers=len(problem.x0) if problem.layout.layered else 1,
        rate=setup.rate,
        smoothness=L,
        strong_convexity=mu,
        stated=setup.smoothness is not None,
        convex=convex,
        term=term,
        constrained=constraint is not None,
    )


def setup_of(problem: FederatedProblem, participation: Participation) -> Setup:
    """Return the setup of a strategy before a run."""
    infos: Sequence[ClientInfo] = LocalEngine(problem).describe()
    return Setup.of(infos, 100, problem.layout, participation, 0, preparation=problem.preparation)


def _slopes(problem: FederatedProblem, *, stated: bool) -> tuple[float, float]:
    """Return L as a run estimates it, 0 where it is stated, and the longest gradient at x0."""
    clients: Sequence[Any] = problem.clients[:_CLIENTS] if stated else problem.clients
    start, steps = problem.start, 0 if stated else ONE
    scales = [
        estimate(client.gradient, start, stream(0, SCALES, 0, j), steps=steps)
        for j, client in enumerate(clients)
    ]
    return max(each.smoothness or 0.0 for each in scales), max(each.steepness for each in scales)


def _are_monotone(clients: Sequence[Any], start: Array, step: float) -> bool:
    """Return whether some clients' gradients are, as pairs a step apart, ten and a hundred say."""
    rng = np.random.default_rng(0)
    for client in clients:
        for far in 10.0 ** (np.arange(_PAIRS) % 3):
            x, y = (start + far * step * _unit(rng, start) for _ in range(2))
            at_x, at_y, moved = client.gradient(x), client.gradient(y), x - y
            rounding = LOUD * np.finfo(at_x.dtype).eps * (_norm(at_x) + _norm(at_y))
            if float(np.vdot(at_x - at_y, moved)) < -rounding * _norm(moved):
                return False
    return True


def _unit(rng: np.random.Generator, like: Array) -> Array:
    v = rng.standard_normal(like.shape)
    return (v / _norm(v)).astype(like.dtype)
