"""The Gaussian mechanism on the sum of clipped uploads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import choice, count, nonnegative, optional, positive

MECHANISMS = "independent", "tree", "banded"
SERVER, CLIENTS = "server", "clients"
_LATER = {"later": True}  # so that older runs can be resumed


@dataclass(frozen=True)
class GaussianDP:
    """Differential privacy of whole clients, against everyone who sees the models of a run.

    The server is trusted with uploads, unless clients add the noise (`noise_by`).

    Each client's release, all values of a round together, is clipped to the Euclidean norm C, and
    the server adds Gaussian noise of standard deviation z C to each coordinate of their sum, before
    its own step; a prox afterwards costs no privacy. Sum and noise are whole steps of one grid
    (`privacy.noise`), so that no low bit reveals the sum. The sum is divided by a number that is
    known before the round. With noise, neither the noise nor the cohorts follow from the run's
    seed: both come from the operating system, and a resumed run draws new ones.

    Two federations are neighbours if one client of the first contributes nothing in the second;
    with cohorts of a fixed size, `Sample(...)`, if one client's data is replaced, which needs twice
    the noise. The bound follows from privacy loss distributions, by dp-accounting (the extra
    `privacy`).

    Parameters
    ----------
    clip : float
        C > 0; with a `quantile` the first C.
    noise_multiplier : float
        z >= 0; 0 clips only, and epsilon is infinite.
    target_delta : float
        delta in (0, 1), for which epsilon is stated; less than 1/N.
    budget : float, optional
        The largest epsilon > 0: the run stops before it would exceed it.
    quantile : float, optional
        In (0, 1): C follows this quantile of the norms, from a noisy count of those within C. The
        count is included in z, so the noise of the uploads is a little larger.
    clip_lr : float (default: 0.2)
        eta > 0: with a `quantile`, C := C exp(-eta (noisy share within C - quantile)).
    count_noise : float, optional
        The standard deviation of the count's noise, above z/2; by default a twentieth of the
        cohort, and at least z.
    mechanism : {"independent", "tree", "banded"} (default: "independent")
        "independent": each round has independent noise. "tree" and "banded", for methods whose
        server adds up all uploads (`fedcon info`), correlate the noise of rounds, so that the sum
        over all rounds has less noise: by binary trees, or by the best matrix with `bands`. z is
        the standard deviation divided by C in each release.
    min_separation : int, optional
        b: a client that took part in a round is left out of the next b - 1. It is known for
        `Full()` (1) and `Cyclic(groups)`, and required for other participation with "tree" or
        "banded". The cost is then counted by how often a client can take part, without
        amplification.
    bands : int, optional
        For "banded": the number of bands, at most b, which is the default.
    restart : int, optional
        For "tree": the number of rounds of a tree, at most b, which is the default. With everyone
        in each round any number is possible, by default 1,024.
    noise_by : {"server", "clients"} (default: "server")
        Who adds the noise. With "clients" each adds a share before secure aggregation, on nodes
        `SecAggPlus()`, so that the server sees no sum without noise; see `privacy.shares`. The
        accounting then does not assume that cohorts are secret: with `Full()` or `Sample(...)`
        neighbours differ in one client's contribution, and epsilon is that of the client that was
        asked most often. Simulations add up the same shares.
    fewest : int, optional
        t: the shares of any t clients add up to the stated noise. A sum needs at least t + 1
        clients, since each knows its own share; with fewer replies a round is void. By default t is
        half of a round's clients. The noise of a sum of n clients is larger by sqrt(n/t).

    Raises
    ------
    ConfigError
        If a value is out of range.

    References
    ----------
    McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
    ICLR 2018. Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
    Clipping", NeurIPS 2021, for the `quantile`. For "tree" and "banded" see
    `flower_fedcon.privacy.prefix`.

    Examples
    --------
    >>> GaussianDP(clip=1.0, noise_multiplier=1.5, target_delta=1e-5, budget=8.0).noise(1.0, 100.0)
    1.5
    """

    clip: float
    noise_multiplier: float
    target_delta: float
    budget: float | None = None
    quantile: float | None = None
    clip_lr: float = 0.2
    count_noise: float | None = None
    mechanism: str = field(default="independent", metadata=_LATER)
    min_separation: int | None = field(default=None, metadata=_LATER)
    bands: int | None = field(default=None, metadata=_LATER)
    restart: int | None = field(default=None, metadata=_LATER)
    noise_by: str = field(default=SERVER, metadata=_LATER)
    fewest: int | None = field(default=None, metadata=_LATER)

    def __post_init__(self) -> None:
        positive("GaussianDP(clip)", self.clip)
        nonnegative("GaussianDP(noise_multiplier)", self.noise_multiplier)
        positive("GaussianDP(clip_lr)", self.clip_lr)
        for name in ("budget", "count_noise"):
            optional(positive, f"GaussianDP({name})", getattr(self, name))
        for name in ("target_delta", "quantile"):
            value = getattr(self, name)
            if value is not None and positive(f"GaussianDP({name})", value) >= 1:
                raise ConfigError(f"GaussianDP({name}) must be in (0, 1), got {value!r}")
        z = self.noise_multiplier
        if self.budget is not None and z == 0:
            raise ConfigError("GaussianDP(budget) needs noise: give a noise_multiplier > 0")
        if self.count_noise is not None and 2 * self.count_noise <= z:
            raise ConfigError(
                f"GaussianDP(count_noise) must be more than half the noise_multiplier, {z / 2:g}, "
                f"got {self.count_noise!r}"
            )
        choice("GaussianDP(mechanism)", self.mechanism, MECHANISMS)
        for name, owner in (("min_separation", ""), ("bands", "banded"), ("restart", "tree")):
            value = optional(count, f"GaussianDP({name})", getattr(self, name))
            if value is not None and owner not in ("", self.mechanism):
                raise ConfigError(
                    f"GaussianDP({name}) is for mechanism={owner!r}, got {value} with "
                    f"{self.mechanism!r}: leave it out"
                )
        if self.mechanism != MECHANISMS[0]:
            self.check_one_clip(f"mechanism={self.mechanism!r}", "mechanism")
        if self.min_separation is not None:
            self.check_one_clip("min_separation", "min_separation")
        self._check_shares()

    def check_one_clip(self, what: str, instead: str) -> None:
        """Refuse a `quantile` beside something that needs one clip for all rounds.

        Parameters
        ----------
        what : str
            What needs it.
        instead : str
            What can be left out, or done, instead of leaving out the quantile.

        Raises
        ------
        ConfigError
        """
        if self.quantile is not None:
            raise ConfigError(
                f"GaussianDP(quantile) changes the clip from round to round, and {what} needs one "
                f"clip for all rounds: leave quantile out, or {instead}"
            )

    def _check_shares(self) -> None:
        """Raise unless the settings are possible with noise that clients add."""
        choice("GaussianDP(noise_by)", self.noise_by, (SERVER, CLIENTS))
        optional(count, "GaussianDP(fewest)", self.fewest)
        if not self.by_clients:
            if self.fewest is not None:
                raise ConfigError(
                    f'GaussianDP(fewest={self.fewest}) is for noise_by="clients": leave it out, or '
                    "let clients add the noise"
                )
            return
        reasons = {
            "noise_multiplier": "is 0, and without noise there are no shares"
            if not self.noise_multiplier else "",
            "quantile": "needs a noisy count of norms, to which clients cannot add shares"
            if self.quantile is not None else "",
            "mechanism": "computes the noise of a round from other rounds' noise, which the server "
                         "must not know" if self.mechanism != MECHANISMS[0] else "",
            "min_separation": "leaves out clients by counts that only the server has"
            if self.min_separation is not None else "",
        }  # fmt: skip
        for name, reason in reasons.items():
            if reason:
                raise ConfigError(
                    f'GaussianDP(noise_by="clients"): {name}={getattr(self, name)!r} {reason}: '
                    "give another, or let the server add the noise"
                )

    @property
    def by_clients(self) -> bool:
        """Whether clients add the noise."""
        return self.noise_by == CLIENTS

    def suffice(self, cohort: int) -> int:
        """Return t, the number of clients whose noise suffices, for a cohort of this size.

        >>> GaussianDP(1.0, 1.0, 1e-5, noise_by="clients").suffice(11)
        5
        """
        return self.fewest or max(1, cohort // 2)

    def least(self, cohort: int) -> int:
        """Return how many replies a round needs for its noise."""
        return self.suffice(cohort) + 1 if self.by_clients else 1

    def noise(self, clip: float, cohort: float) -> float:
        """Return the standard deviation of the sum's noise, for a clip and an expected cohort."""
        z = self.noise_multiplier
        if self.quantile is not None and z > 0:
            z = (z**-2 - (2 * self.noise_of_count(cohort)) ** -2) ** -0.5
        return z * clip

    def noise_of_count(self, cohort: float) -> float:
        """Return the standard deviation of the count's noise, with a `quantile`."""
        if self.noise_multiplier == 0:
            return 0.0
        return self.count_noise or max(cohort / 20, self.noise_multiplier)

    def next_clip(self, clip: float, share: float) -> float:
        """Return C after a round with this noisy share of norms within C.

        >>> adaptive = GaussianDP(1.0, 1.0, 1e-5, quantile=0.5)
        >>> round(adaptive.next_clip(2.0, 1.0), 6)
        1.809675
        """
        if self.quantile is None:
            return clip
        step = self.clip_lr * (min(1.0, max(0.0, share)) - self.quantile)
        return clip * math.exp(-step)
