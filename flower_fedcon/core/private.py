"""The server's side of privacy: what a run has spent, its cohorts, and the noise of a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from flower_fedcon.core.estimated import unweighted
from flower_fedcon.core.method import Method
from flower_fedcon.core.participation import Bernoulli, Participation, Sample
from flower_fedcon.core.patterned_releases import PatternedReleases, separation_of
from flower_fedcon.core.protection import Protection
from flower_fedcon.core.protocol import UNIFORM, Reply
from flower_fedcon.core.summed import Summed
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import BudgetError, ConfigError
from flower_fedcon.privacy.accountant import (
    FIXED,
    FULL,
    POISSON,
    NoisySum,
    Sampling,
    library,
    spent_epsilon,
)
from flower_fedcon.privacy.clipping import CLIP, clipped, norms, rows, slack
from flower_fedcon.privacy.gaussian import MECHANISMS, GaussianDP
from flower_fedcon.privacy.noise import Grid, drawn, subset
from flower_fedcon.privacy.secure_aggregation import FEWEST
from flower_fedcon.privacy.shares import NoiseShares
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class Private(Protection):
    """What makes the rounds of one run private.

    Parameters
    ----------
    strategy : Method
        Bound to the run's setup, with `privacy`.

    Attributes
    ----------
    spent : int
        Rounds that have been asked for, applied or not; with a pattern of participation
        (`core.patterned_releases`), rounds that have been released.
    clip : float
        The clipping bound C of the coming round.
    """

    hides: ClassVar[bool] = True

    def __init__(self, strategy: Method[Any]) -> None:
        super().__init__(strategy)
        assert strategy.privacy is not None  # noqa: S101  (the caller's case)
        self._rule: GaussianDP = strategy.privacy
        self._participation, self._about = strategy.participation, strategy.release.about
        n = strategy.setup.num_clients
        separation = separation_of(self._rule, self._participation, n)
        self._sampling = sampling_of(self._participation, n, patterned=separation is not None)
        # Clients' states show earlier cohorts, and a server that is not trusted knows all of these.
        if strategy.clients_keep_state or self._rule.by_clients:
            self._sampling = self._sampling._replace(kind=FULL)  # no amplification
        self._num_clients = n
        layout = strategy.setup.layout
        self._shape = partial(strategy.upload_shape, layout=layout)
        self._dtype = layout.array_dtype
        self._distance, self._ratios = 0.0, (0.0, 0.0)
        self._released: PatternedReleases | None = None
        self._shares: NoiseShares | None = None
        entries = sum(math.prod(self._shape(name)) for name in strategy.uplink)
        if self._rule.by_clients:
            cohort = round(self._sampling.size)
            self._shares = NoiseShares.of(self._rule, cohort)
            self._distance = self._shares.distance(entries, cohort)
            self._ratios = self._shares.ratios(entries)
        elif self._rule.noise_multiplier > 0:
            if separation is not None:
                rounds = strategy.setup.num_rounds
                self._released = PatternedReleases(self._rule, separation, n, rounds, entries)
            self._distance = self._grid(self._rule.clip).distance(entries)
            if self._rule.quantile is not None:
                self._distance += self._count_grid().distance(1)
        library()
        self.spent, self.clip = 0, self._rule.clip
        # How often each client was asked for a share: no secret; a sum shows nothing else of it.
        self._asked = np.zeros(n, np.int64) if self._rule.by_clients else None
        self._cohort, self._drawing = list[int](), 0
        self._write: Callable[[int], None] = lambda spent: None

    # --- what it costs ---------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """What has been spent."""
        return self._epsilon()

    @property
    def exhausted(self) -> bool:
        """Whether one more round would exceed the budget."""
        budget = self._rule.budget
        return budget is not None and self._epsilon(1) > budget

    def account(self, more: int = 0) -> dict[str, Any]:
        """Return what epsilon is computed from after so many more rounds, as the file has it."""
        kind, count = NoisySum(self._rule.noise_multiplier, self._sampling), self.spent + more
        if self._asked is not None:
            count = int(self._asked.max()) + self._drawing + more
        distance = count * self._distance
        if self._released is not None:
            kind, distance = self._released.cost(more)
            count = min(count, 1)
        return {
            "mechanism": self._rule.mechanism,
            "noise": self._rule.noise_multiplier,
            "noise_by": self._rule.noise_by,
            "sums": [kind.noise_multiplier, list(kind.sampling), count],
            "distance": distance,
            "ratios": [count * r for r in self._ratios] if self._rule.by_clients else [],
            "target_delta": self._rule.target_delta,
            "budget": self._rule.budget,
        }

    def _epsilon(self, more: int = 0) -> float:
        return epsilon_of(self.account(more))

    @property
    def remembers(self) -> bool:
        """Whether its noise depends on that of earlier rounds, which a checkpoint then holds."""
        return self._released is not None

    def begin(self) -> None:
        """Account for a round before any client is asked.

        With a pattern of participation, a round is accounted for when it is released.

        Raises
        ------
        BudgetError
            If it would exceed the budget.
        """
        if self.exhausted:
            raise BudgetError(
                f"one more round would exceed the privacy budget of epsilon = "
                f"{self._rule.budget:g} (it would be {self._epsilon(1):.4g}, after {self.spent} "
                f"rounds): give a larger noise_multiplier or budget, or fewer rounds"
            )
        if self._released is None:
            self._spend()

    def again(self) -> None:
        """Account for a round that is repeated as a whole.

        A server that is trusted with uploads uses one noisy sum of a round. A server that is not
        trusted may have seen the sum that it says has failed.

        Raises
        ------
        BudgetError
            If one more sum would exceed the budget.
        """
        if self._asked is not None:
            self.begin()
            self.kept(self._cohort, 0)

    def _spend(self) -> None:
        self.spent += 1
        self._drawing = 1  # a round whose cohort is not known yet
        self._write(self.spent)

    def keep_rounds(self, heard: Callable[[], int], write: Callable[[int], None]) -> None:
        """Count the rounds that a file knows of, and write down each further one in advance."""
        self.heard(heard())
        self._write = write

    def heard(self, rounds: int) -> None:
        """Count what a file says has been spent, which may be more than in the checkpoint."""
        if rounds > self.spent and self._released is not None:
            self._released.abandon(rounds - self.spent)
        if rounds > self.spent and self._asked is not None:
            self._asked += rounds - self.spent
        self.spent = max(self.spent, rounds)

    def record(self) -> dict[str, float]:
        """Return what a history records."""
        adaptive = {} if self._rule.quantile is None else {"clip": self.clip}
        return {"epsilon": self.epsilon, **adaptive}

    def snapshot(self) -> dict[str, Any]:
        """Return what it adds to a checkpoint."""
        content: dict[str, Any] = {"spent": self.spent, "clip": self.clip}
        if self._released is not None:
            content["released"] = self._released.snapshot()
        if self._asked is not None:
            content["asked"] = self._asked.copy()
        return {"privacy": content}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        content = snapshot["privacy"]
        self.spent, self.clip = content["spent"], float(content["clip"])
        if self._released is not None:
            self._released.resume(content["released"])
        if self._asked is not None:
            self._asked = content["asked"].copy()

    # --- a round ---------------------------------------------------------------------------------

    def cohort(self) -> list[int] | None:
        """Return a round's cohort, drawn without the run's seed; None if the seed may draw it.

        An empty draw is a round of noise alone: if it were repeated, every round would show that
        somebody was drawn.
        """
        rule, n = self._participation, self._num_clients
        if self._rule.noise_multiplier == 0 or self._sampling.kind == FULL:
            return None
        if isinstance(rule, Bernoulli):
            clients: list[int] = drawn(n, rule.p).tolist()
        else:
            clients = subset(n, round(self._sampling.size)).tolist()
        return clients

    def kept(self, cohort: list[int], server_round: int) -> list[int]:
        """Return a cohort without clients that come back too soon, and note who is asked."""
        if self._asked is not None:
            self._asked[cohort] += 1
            self._cohort, self._drawing = cohort, 0
        if self._released is None:
            return cohort
        return self._released.kept(cohort, server_round)

    def instructed(self, broadcast: Payload) -> Payload:
        """Return a broadcast with the clipping bound."""
        return broadcast | {CLIP: self.clip}

    def uploads(
        self, replies: Sequence[Reply], names: Sequence[str], down: Payload, server_round: int
    ) -> Uploads:
        """Return a round's uploads, clipped, with noise in their sum and a known denominator.

        Clients on nodes have already clipped their uploads; the guarantee does not depend on it.
        """
        about = self.centers(names, down)
        size, rule = self._sampling.size, self._rule
        noisy = any(isinstance(v, Summed) for reply in replies for v in reply.payload.values())
        if names and not noisy:  # a sum already has the clients' noise
            present = sum(len(reply.clients) for reply in replies)
            if rule.noise_multiplier > 0:
                within, replies = self._noised(replies, names, about, server_round)
                # Each counts 1/2 or -1/2: one client more or less moves the sum by 1/2.
                share = 0.5
                if rule.quantile is not None:
                    share += float(self.release_count(np.array([within]), present)[0]) / size
            else:
                cut = [self._clipped(reply, names, about) for reply in replies]
                replies = [reply for reply, _ in cut]
                share = (sum(count for _, count in cut) - present / 2) / size + 0.5
            self.clip = rule.next_clip(self.clip, share)
        return Uploads(replies, self._num_clients, denominator=size, about=about)

    def centers(self, names: Sequence[str], down: Payload) -> dict[str, Array]:
        """Return the reference points of uploads that are points, by name."""
        return {name: down[self._about[name]] for name in names if name in self._about}

    def instead(self, reply: Reply, names: Sequence[str], down: Payload) -> Payload | None:
        """Return the columns of a client that changes nothing, if sums have noise.

        If its upload were dropped, or ended the run, this would reveal something about the client's
        data without noise.
        """
        if self._rule.noise_multiplier == 0 or len(reply.clients) > 1:
            return None
        return self.nothing(names, down)

    def nothing(self, names: Sequence[str], down: Payload) -> Payload:
        """Return the columns of a client that changes nothing."""
        about = self.centers(names, down)
        return {
            name: [np.zeros(self._shape(name), self._dtype) + about.get(name, 0)] for name in names
        }

    def _grid(self, clip: float) -> Grid:
        """Return the grid of a round's sum."""
        if self._shares is not None:
            return self._shares.grid
        return Grid(clip, self._rule.noise(clip, self._sampling.size), self._num_clients)

    def _count_grid(self) -> Grid:
        """Return the grid of the noisy count of norms within C."""
        deviation = self._rule.noise_of_count(self._sampling.size)
        return Grid(0.5, deviation, self._num_clients)

    def _clipped(
        self, reply: Reply, names: Sequence[str], about: Mapping[str, Array]
    ) -> tuple[Reply, int]:
        """Return a reply with releases clipped to length C, and how many were shorter."""
        columns = {name: rows(reply.payload[name], len(reply.clients)) for name in names}
        lengths = norms(columns, about)
        within = int(np.count_nonzero(lengths < self.clip * (1 - slack(columns))))
        if not (lengths > self.clip).any():
            return reply, within
        cut = clipped(columns, about, self.clip)
        payload = {
            name: column if isinstance(reply.payload[name], np.ndarray) else list(column)
            for name, column in cut.items()
        }
        return replace(reply, payload=payload), within

    def _noised(
        self,
        replies: Sequence[Reply],
        names: Sequence[str],
        about: Mapping[str, Array],
        server_round: int,
    ) -> tuple[int, list[Reply]]:
        """Return how many releases were shorter than C, and one reply with the noisy sums.

        Releases, their sum and the noise are whole multiples of one step; anything computed from
        the noisy sum afterwards costs no more privacy. If nobody was drawn, the sum is noise alone.
        """
        clients = sorted(client for reply in replies for client in reply.clients)
        total, within = self.whole_steps(replies, names, about)
        noisy = self.release(total, clients, server_round)
        payload: dict[str, Any] = {}
        shapes = [self._shape(name) for name in names]
        parts = np.split(noisy, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
        for name, shape, part in zip(names, shapes, parts, strict=True):
            released = np.asarray(part.reshape(shape), self._dtype)
            payload[name] = Summed(name, released, len(clients), 0, about.get(name))
        return within, [Reply(clients, server_round, payload)]

    def whole_steps(
        self, replies: Sequence[Reply], names: Sequence[str], about: Mapping[str, Array]
    ) -> tuple[Array, int]:
        """Return the sum of clipped releases in steps, names concatenated; and how many were short.

        The sum has no noise yet, and must not be released.
        """
        sizes = [math.prod(self._shape(name)) for name in names]
        centers = [np.asarray(about.get(name, 0.0), np.float64) for name in names]
        within, released = 0, self._released
        grid = self._grid(self.clip) if released is None else released.grid
        total = np.zeros(sum(sizes), np.int64)
        for reply in replies:
            n = len(reply.clients)
            columns = {name: rows(reply.payload[name], n) for name in names}
            lengths = norms(columns, about)
            within += int(np.count_nonzero(lengths < self.clip * (1 - slack(columns))))
            moved = [
                (columns[name].astype(np.float64) - center).reshape(n, -1)
                for name, center in zip(names, centers, strict=True)
            ]
            total += grid.steps(np.concatenate(moved, axis=1)).sum(axis=0)
        return total, within

    def release(self, total: Array, clients: list[int], server_round: int) -> Array:
        """Return the noisy release of a round's sum, in steps, from these clients."""
        if self._shares is not None:  # as much noise as these clients would add
            return self._shares.release(total, max(len(clients), self._shares.fewest))
        released = self._released
        if released is None:
            return self._grid(self.clip).release(total)
        released.rounds += 1
        self._spend()
        return released.release(total, clients, server_round)

    def release_count(self, within: Array, present: int | Array) -> Array:
        """Return the noisy count of short releases, less half the number of clients."""
        grid = self._count_grid()
        half = grid.steps(np.array([[0.5]]))[0]
        return grid.release(half * (2 * within - present))


def protection_of(strategy: Method[Any]) -> Protection:
    """Return what protects the uploads of a run of this strategy, which is bound to its setup."""
    return Protection(strategy) if strategy.privacy is None else Private(strategy)


def epsilon_of(account: Mapping[str, Any]) -> float:
    """Return epsilon of what `Private.account` returns."""
    noise, (kind, num_clients, size), count = account["sums"]
    sums = NoisySum(noise, Sampling(kind, num_clients, size))
    delta, ratios = account["target_delta"], account.get("ratios", [])
    return spent_epsilon({sums: count}, delta, account["distance"], ratios)


def sampling_of(
    participation: Participation, num_clients: int, *, patterned: bool = False
) -> Sampling:
    """Return how a rule draws cohorts, for the accountant.

    With a pattern there is no amplification: any rule of a known mean size is accepted.

    Raises
    ------
    ConfigError
        If the accountant does not cover it.
    """
    if participation.is_full(num_clients):
        return Sampling(FULL, num_clients, num_clients)
    if isinstance(participation, Bernoulli) and not patterned:
        return Sampling(POISSON, num_clients, participation.p * num_clients)
    if isinstance(participation, Sample) and not patterned:
        return Sampling(FIXED, num_clients, participation.size(num_clients))
    if patterned:
        return Sampling(FULL, num_clients, participation.rate(num_clients) * num_clients)
    raise ConfigError(
        f"privacy=... needs Full(), Sample(...), Bernoulli(p) or Cyclic(groups) as participation, "
        f"got {participation!r}: use one of these, or give GaussianDP a min_separation, since the "
        f"leakage of other draws is not known"
    )


def check_argument(strategy: Method[Any]) -> None:
    """Raise unless `privacy` is a rule, and the method can be private.

    Raises
    ------
    ConfigError
    """
    if not isinstance(strategy.privacy, GaussianDP):
        raise ConfigError(
            "privacy must be flower_fedcon.privacy.GaussianDP(clip=..., noise_multiplier=..., "
            f"target_delta=...), got {strategy.privacy!r}"
        )
    if strategy.aggregation is not None:
        raise ConfigError(
            f"{strategy.title}: privacy=... adds noise to a sum, and "
            f"aggregation={strategy.aggregation!r} uses no sum: give one of them"
        )
    reason = strategy.release.single
    if reason or strategy.queries:
        raise ConfigError(
            f"{strategy.title} takes no privacy=...: "
            + (f"its server needs each upload, not their sum ({reason})" if reason else
               "its clients answer a query before the step, which no noise protects")
            + "; `fedcon list` says which methods need only the sum"
        )  # fmt: skip


def check_private(strategy: Method[Any]) -> None:
    """Raise unless a strategy can be private in the run that it is bound to.

    Raises
    ------
    ConfigError
        With the reason, and the remedy if there is one.
    """
    setup, rule, n = strategy.setup, strategy.participation, strategy.setup.num_clients
    assert strategy.privacy is not None  # noqa: S101  (the caller's case)
    mechanism = strategy.privacy.mechanism
    if mechanism != MECHANISMS[0] and (reason := strategy.why_independent()):
        raise ConfigError(
            f"{strategy.title} takes no GaussianDP(mechanism={mechanism!r}): {reason}; `fedcon "
            "info` says which methods do"
        )
    patterned = separation_of(strategy.privacy, rule, n) is not None
    if patterned:
        strategy.privacy.check_one_clip(
            f"the accounting of {rule!r}", "draw cohorts with Sample(...) or Bernoulli(...)"
        )
    sampling = sampling_of(rule, n, patterned=patterned)
    reasons = [
        _why_no_shares(strategy.privacy, rule, sampling),
        strategy.why_single(),
        strategy.why_not_private(),
        "weights by numbers of examples would be revealed: give weighting='uniform'"
        if setup.weighting != UNIFORM
        else "",
        "uploads would be weighed by how often their clients take part: give the participation "
        f"{unweighted(rule)}"
        if strategy.inclusion is not None
        else "",
        "your own train loops also send metrics and buffers: give nodes an objective, such as a "
        "TorchObjective"
        if setup.any_own_loop
        else "",
        "its clients keep state, which needs cohorts of one size: use Sample(...) or Full()"
        if strategy.clients_keep_state
        and setup.sampled
        and (patterned or isinstance(rule, Bernoulli))
        else "",
    ]
    for reason in filter(None, reasons):
        raise ConfigError(f"{strategy.title} takes no privacy=... here: {reason}")


def _why_no_shares(rule: GaussianDP, participation: Participation, sampling: Sampling) -> str:
    """Return why clients cannot add the noise with such cohorts; "" if they can."""
    if not rule.by_clients:
        return ""
    if sampling.kind == POISSON or (sampling.kind == FULL and sampling.size < sampling.num_clients):
        return (
            f'noise_by="clients" needs rounds of one size, with Full() or Sample(...), got '
            f"{participation!r}"
        )
    cohort = round(sampling.size)
    if cohort < FEWEST:
        return f'noise_by="clients" needs at least {FEWEST} clients in a round, got {cohort}'
    if rule.least(cohort) > cohort:
        return (
            f"with fewest={rule.fewest} a sum needs {rule.least(cohort)} clients, since each knows "
            f"its own share, and a round has {cohort}: give fewest at most {cohort - 1}"
        )
    return ""
