"""Secure aggregation: the settings for sums whose single uploads the server cannot see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import count, optional, positive

MODULUS = 2**32  # bits of Flower's masks
FINEST = 2**30  # levels of a value: Flower rounds to 32-bit integers
FEWEST = 3  # clients in a sum: with two, each would learn the other's value


def finest_levels(cohort: int) -> int:
    """Return the largest number of values of an entry for which no cohort's sum wraps.

    >>> [finest_levels(n).bit_length() - 1 for n in (3, 5, 1000)]
    [30, 29, 22]
    """
    return min(FINEST, 1 << ((MODULUS - 1) // cohort).bit_length() - 1)


@dataclass(frozen=True)
class SecAggPlus:
    """Sums by Flower's own SecAgg+: the server sees only the sum of a round's uploads.

    It is for methods whose server needs only the sum (`fedcon info`, "release"). Each value must
    lie within a range, and is rounded at random to one of `quantization_range` levels in it, so
    that the error of each entry of a round's mean is below `step`. A client with a value beyond the
    range leaves the run and reports it; nothing is silently clipped.

    Parameters
    ----------
    clipping_range : float or dict, optional
        R > 0: all entries of all uploads must lie in [-R, R]; or an R for each upload's name. Leave
        it out if clients add noise, `GaussianDP(noise_by="clients")`: the range then follows from
        the clip and the noise.
    num_shares : int or float (default: 1.0)
        The number of clients, itself included, with which each client shares its key: >= 3, or a
        fraction of the round's clients. Fewer make large cohorts cheaper.
    reconstruction_threshold : int, optional
        The number of these clients needed to unmask, >= 2; by default more than half. A sum then
        has at least so many clients, and up to num_shares - reconstruction_threshold of them may
        fail.
    quantization_range : int, optional
        Number of levels; by default the largest that the cohort allows, 2^31 / (its size) to 2^32 /
        (its size), at most 2^30.

    Raises
    ------
    ConfigError
        If a value is out of range.

    Examples
    --------
    >>> from flower_fedcon.privacy import SecAggPlus
    >>> secure = SecAggPlus(clipping_range=8.0)
    >>> secure.levels(5), f"{secure.step('delta', 5):.1g}", secure.threshold(5)
    (536870912, '3e-08', 3)
    """

    clipping_range: float | Mapping[str, float] | None = None
    num_shares: int | float = 1.0
    reconstruction_threshold: int | None = None
    quantization_range: int | None = None

    def __post_init__(self) -> None:
        given = self.clipping_range
        named = given if isinstance(given, Mapping) else {"": given}
        if not named:
            raise ConfigError("clipping_range must name a range > 0 for each upload, got {}")
        for name, value in named.items():
            optional(positive, f"clipping_range[{name!r}]" if name else "clipping_range", value)
        if isinstance(self.num_shares, float):
            if not 0 < self.num_shares <= 1:
                raise ConfigError(
                    f"num_shares must be a fraction in (0, 1] or a whole number >= {FEWEST}, got "
                    f"{self.num_shares!r}"
                )
        else:
            count("num_shares", self.num_shares, minimum=FEWEST)
        if self.reconstruction_threshold is not None:
            least = count("reconstruction_threshold", self.reconstruction_threshold, minimum=2)
            if not isinstance(self.num_shares, float) and least >= self.num_shares:
                raise ConfigError(
                    f"reconstruction_threshold must be less than num_shares, {self.num_shares}, so "
                    f"that a client may fail, got {least}"
                )
        if self.quantization_range is not None:
            levels = count("quantization_range", self.quantization_range, minimum=2)
            if levels > FINEST:
                raise ConfigError(f"quantization_range must be at most 2**30, got {levels}")

    def range_of(self, name: str) -> float:
        """Return R of an upload.

        Raises
        ------
        ConfigError
            If `clipping_range` is a dict without it, or left out.
        """
        if self.clipping_range is None:
            raise ConfigError(
                "SecAggPlus needs a clipping_range, unless clients add noise to what is summed, "
                'GaussianDP(noise_by="clients")'
            )
        if not isinstance(self.clipping_range, Mapping):
            return self.clipping_range
        if name not in self.clipping_range:
            raise ConfigError(
                f"clipping_range has no range for the upload {name!r}: add one, or give one number "
                f"for all; it has {', '.join(map(repr, self.clipping_range))}"
            )
        return self.clipping_range[name]

    def levels(self, cohort: int) -> int:
        """Return the number of levels of a value, for a cohort of this size.

        Raises
        ------
        ConfigError
            If the sum of so many values would not fit Flower's modulus.
        """
        most = finest_levels(cohort)
        if self.quantization_range is not None and cohort * self.quantization_range >= MODULUS:
            raise ConfigError(
                f"quantization_range={self.quantization_range} is too fine for {cohort} clients, "
                f"whose sum must stay below 2**32: take at most {most}, or leave it out"
            )
        return self.quantization_range or most

    def step(self, name: str, cohort: int) -> float:
        """Return the distance between levels, which bounds the error of the mean's entries."""
        return 2 * self.range_of(name) / self.levels(cohort)

    def shares(self, cohort: int) -> int:
        """Return the number of clients with which each shares its key, rounded as in Flower."""
        if not isinstance(self.num_shares, float):
            return min(self.num_shares, cohort)
        shares = round(self.num_shares * cohort)
        shares += shares < cohort and shares % 2 == 0
        return shares if shares > 2 else cohort

    def threshold(self, cohort: int) -> int:
        """Return how many of a client's shares are needed, in a cohort of this size."""
        return self.reconstruction_threshold or self.shares(cohort) // 2 + 1
