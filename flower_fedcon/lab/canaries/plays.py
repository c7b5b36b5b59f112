"""Many runs of a private mechanism, with and without a canary, by the code of real runs.

Clipping, rounding to the grid, draws of cohorts and noise use the same functions as a run, for many
runs in one array. The canary is a worst case that the guarantee must cover: its upload, or its
gradient, is far longer than the clip in each release that it takes part in. The others send values
that an attacker may know: nothing; or, in cohorts of fixed size (where the canary's value is
exchanged), the opposite. The mean score is 0 without the canary and 1 with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.core.private import Private
from flower_fedcon.core.protocol import Reply, Setup
from flower_fedcon.core.server import Server
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import BudgetError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.objectives.private_objective import PrivateObjective
from flower_fedcon.objectives.row_gradients import clipped_steps
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.privacy.accountant import FIXED, FULL, NoisySum, Sampling, noisy_gradient
from flower_fedcon.privacy.noise import drawn
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

ENTRIES = 4  # entries of a release that are simulated; their noise is independent
_FAR, _NEAR = 1e6, 1 - 1e-4  # multiples of the clip: above it, and within it
Tick = Callable[[], None]


@dataclass(frozen=True, eq=False)
class Played:
    """Scores of many runs.

    Attributes
    ----------
    unit : str
        Who is protected, "client" or "row".
    delta : float
    kinds : list of NoisySum
        The stated kind of each release.
    stated : dict of float
        Epsilon after the first and after the last release, by the number of releases.
    absent, present : array, shape (releases, runs)
    there : array of bool, shape (releases, runs)
        Whether the canary took part, in runs with it.
    correlated : bool
        Whether the noise of releases is correlated.
    silent : int
        The number of entries of releases that were the same in all runs.
    """

    unit: str
    delta: float
    kinds: list[NoisySum]
    stated: dict[int, float]
    absent: Array
    present: Array
    there: Array
    correlated: bool
    silent: int


def play_clients(
    strategy: Any, problem: FederatedProblem, planned: int, rounds: int, runs: int, tick: Tick
) -> Played:
    """Run rounds of a strategy with `GaussianDP`, at its first model.

    With a `quantile` all rounds have the first clip, and the noisy count is part of the score.

    Parameters
    ----------
    strategy : FedConStrategy
    problem : FederatedProblem
    planned : int
        The number of rounds of a run, for which bands are designed.
    rounds, runs : int
    tick : callable
        Called after each round.
    """
    setup = Setup.of(
        LocalEngine(problem).describe(), planned, problem.layout, strategy.participation, 0,
        preparation=problem.preparation,
    )  # fmt: skip
    server = Server(strategy, setup, problem.start)
    client = _Canary(server, np.random.default_rng(0))
    worlds = [Private(server.strategy) for _ in range(2)]
    first, _ = worlds
    stated, kinds = {}, []
    scores: list[list[Array]] = [[], []]
    there: list[Array] = []
    silent = 0
    for t in range(1, rounds + 1):
        try:
            for private in worlds:
                private.begin()
        except BudgetError:
            if t == 1:
                raise
            break
        there.append(client.takes_part(first, t, runs))
        for world, private in enumerate(worlds):
            score, still = client.play(private, t, there[-1] & (world == 0))
            scores[world].append(score)
            silent += still
        kinds.append(client.kind)
        if t == 1:
            stated[t] = first.epsilon
        tick()
    stated[len(kinds)] = first.epsilon
    return Played(
        "client", strategy.privacy.target_delta, kinds, stated, np.array(scores[1]),
        np.array(scores[0]), np.array(there), first.remembers, silent,
    )  # fmt: skip


class _Canary:
    """The worst-case client of a federation.

    It replaces client 0.
    """

    def __init__(self, server: Server, rng: np.random.Generator) -> None:
        made, self._server = server.strategy, server
        assert made.privacy is not None  # noqa: S101  (the caller's case)
        self._rule = made.privacy
        self._names = made.expects(server.state)
        shapes = [made.upload_shape(name, server.setup.layout) for name in self._names]
        self._shapes = dict(zip(self._names, shapes, strict=True))
        self._down: Payload = made.broadcast(server.state)
        private = Private(made)
        self._about = private.centers(self._names, self._down)
        sizes = [math.prod(shape) for shape in shapes]
        starts = np.cumsum([0, *sizes[:-1]])
        spots = [start + int(rng.integers(size)) for start, size in zip(starts, sizes, strict=True)]
        free = np.setdiff1d(rng.choice(sum(sizes), min(sum(sizes), 4 * ENTRIES), False), spots)
        self._at = np.sort(np.array([*spots, *free[: max(0, ENTRIES - len(spots))]], int))
        direction = rng.standard_normal(len(self._at))
        self._direction = direction / np.linalg.norm(direction)
        # --- its effect, in a cohort whose other clients are known
        kind, num_clients, size = private.account()["sums"][1]
        self.kind = NoisySum(self._rule.noise_multiplier, Sampling(kind, num_clients, size))
        self._fixed = kind == FIXED
        clip = private.clip
        self._cohort = round(size) if self._fixed else 0
        own_steps = self._steps(private, _FAR * clip)
        others = self._steps(private, -_NEAR * clip) if self._fixed else 0 * own_steps
        self._base, self._move = self._cohort * others, own_steps - others
        self._zero = -_NEAR * clip * self._cohort
        self._length = clip * (1 + _NEAR) if self._fixed else clip

    def _steps(self, private: Private, length: float) -> Array:
        """Return the contribution of an upload of a given norm to the sum."""
        dtype = self._server.setup.layout.array_dtype
        whole = np.zeros(sum(map(math.prod, self._shapes.values())))
        whole[self._at] = length * self._direction
        payload, start = {}, 0
        for name, shape in self._shapes.items():
            part = whole[start : start + math.prod(shape)].reshape(shape)
            start += part.size
            payload[name] = (part + np.asarray(self._about.get(name, 0.0)))[None].astype(dtype)
        steps, _ = private.whole_steps([Reply([0], 1, payload)], self._names, self._about)
        entries: Array = steps[self._at]
        return entries

    def takes_part(self, private: Private, t: int, runs: int) -> Array:
        """Return in which runs it is in the cohort; without draws, as often as it may be."""
        if self.kind.sampling.kind == FULL:
            return np.full(runs, bool(private.kept([0], t)))
        cohorts = (private.cohort() or [] for _ in range(runs))
        return np.fromiter((cohort[:1] == [0] for cohort in cohorts), bool, runs)

    def play(self, private: Private, t: int, there: Array) -> tuple[Array, int]:
        """Return a round's scores, and the number of entries that were the same in all runs."""
        totals = self._base + there[:, None] * self._move
        clients = [0] if private.remembers and there.any() else []
        values = private.release(totals.ravel(), clients, t).reshape(totals.shape)
        still = int((np.ptp(values[there == there[0]], axis=0) == 0).sum())
        score: Array = (values @ self._direction - self._zero) / self._length
        rule, size = self._rule, self.kind.sampling.size
        if rule.quantile is not None and rule.noise_multiplier > 0:
            within, present = (
                self._cohort - (there & self._fixed),
                self._cohort + (there & (not self._fixed)),
            )
            each = 1.0 if self._fixed else 0.5
            count = (self._cohort / 2 - private.release_count(within, present)) / each
            weight = (self._length / rule.noise(private.clip, size)) ** 2
            more = (each / rule.noise_of_count(size)) ** 2
            score = (weight * score + more * count) / (weight + more)
        return score, still


def play_rows(
    rule: ExampleDP, rows: int, entries: int, spent: Mapping[float, int], runs: int, tick: Tick
) -> Played:
    """Run noisy gradients of a node's rows, with a number of them at each sampling rate.

    The rows belong to a linear model: the canary's gradient is far longer than the clip, and all
    others are 0.

    Parameters
    ----------
    rule : ExampleDP
    rows, entries : int
        The number of rows of the node's data, and of entries of its model.
    spent : dict
        The number of gradients at each rate.
    runs : int
    tick : callable
        Called after each gradient.
    """
    rng, d = np.random.default_rng(0), min(entries, ENTRIES)
    direction = rng.standard_normal(d)
    direction /= np.linalg.norm(direction)
    data, targets = np.zeros((rows, d)), np.zeros(rows)
    data[0], targets[0] = _FAR * rule.clip * direction, -_FAR
    node = PrivateObjective(LeastSquares(data, targets), rule)
    grid, at = node.grid, np.zeros(d)
    move = clipped_steps(node.objective, at, grid, np.array([0]))
    others = clipped_steps(node.objective, at, grid, np.arange(1, min(rows, 100)))
    kinds, stated, silent = [], {}, 0
    scores: list[list[Array]] = [[], []]
    there: list[Array] = []
    for rate in (rate for rate, n in sorted(spent.items()) for _ in range(n)):
        node.ledger.spend(rate, grid.distance(entries))
        taken = np.full(runs, rate == 1.0)
        if rate < 1.0:
            taken[drawn(runs, rate)] = True  # drawn for each run separately
        there.append(taken)
        for world, present in enumerate((taken, taken & False)):
            totals = others + present[:, None] * move
            values = grid.release(totals.ravel()).reshape(totals.shape)
            silent += int((np.ptp(values[present == present[0]], axis=0) == 0).sum())
            scores[world].append(values @ direction / rule.clip)
        kinds.append(noisy_gradient(rule.noise_multiplier, rate))
        if len(kinds) == 1:
            stated[1] = node.ledger.epsilon
        tick()
    stated[len(kinds)] = node.ledger.epsilon
    return Played(
        "row", rule.target_delta, kinds, stated, np.array(scores[1]), np.array(scores[0]),
        np.array(there), False, silent,
    )  # fmt: skip
