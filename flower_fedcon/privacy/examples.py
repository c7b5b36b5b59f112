"""Privacy of each example: a client's own gradients are clipped by row, noisy, and counted.

What DP-SGD does (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016): of a Poisson
sample of the rows, each with probability q, the gradients are shortened to norm C and added up,
Gaussian noise of standard deviation z C is added in each entry, and the sum is divided by q m.
Two data sets are neighbours if the gradients of one row are left out of one; m itself is public.
What follows from gradients alone (the whole upload, any number of local steps, a proximal step) is
no further release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy.accountant import noisy_gradient, spent_epsilon
from flower_fedcon.validation import check_field, count, fields_of_node, optional, positive

_PREFIX = "privacy."


@dataclass(frozen=True)
class ExampleDP:
    """How a client's gradients are made private, and how much privacy it spends in all.

    A node's configuration sets each field under its name with hyphens, after "privacy.", such as
    `privacy.clip=1.0`. It goes before what the app says, and no server can change it.

    Parameters
    ----------
    clip : float
        C > 0: a longer gradient of a row's loss is shortened to it.
    noise_multiplier : float
        z > 0.
    target_delta : float
        In (0, 1): the probability with which epsilon may not hold; well below 1 / rows.
    budget : float, optional (default: None)
        The most epsilon that this node's data may ever spend: a gradient beyond it is refused.
    batch_size : int, optional (default: None)
        Rows that a gradient sees on average; by default what the server asks for, all rows or a
        `batch_size`.
    loss_clip : float, optional (default: None)
        > 0: then evaluations are answered with the mean of the rows' losses, each cut to at most
        this in absolute value, with noise of standard deviation z times it in their sum; each
        counts like a gradient over all rows. Without it a node tells no loss.
    quality : bool (default: False)
        Whether a node whose table is of a logistic loss tells, of a model at the end of a run,
        noisy counts of its rows held out by predicted probability (`tables.noisy_quality`), from
        which an AUC follows; they count like a gradient over all rows.

    Raises
    ------
    ConfigError
        If a value is out of range.

    Examples
    --------
    >>> ExampleDP.of({"privacy.clip": 1.0, "privacy.noise-multiplier": 1.1,
    ...               "privacy.target-delta": 1e-5, "privacy.budget": 4.0})
    ExampleDP(clip=1.0, noise_multiplier=1.1, target_delta=1e-05, budget=4.0, batch_size=None, ...
    """

    clip: float
    noise_multiplier: float
    target_delta: float
    budget: float | None = None
    batch_size: int | None = None
    loss_clip: float | None = field(default=None, metadata={"later": True})
    quality: bool = field(default=False, metadata={"later": True})

    def __post_init__(self) -> None:
        positive("ExampleDP(clip)", self.clip)
        positive("ExampleDP(noise_multiplier)", self.noise_multiplier)
        if positive("ExampleDP(target_delta)", self.target_delta) >= 1:
            raise ConfigError(f"ExampleDP(target_delta) must be < 1, got {self.target_delta!r}")
        for name in ("budget", "loss_clip"):
            optional(positive, f"ExampleDP({name})", getattr(self, name))
        check_field("ExampleDP(quality)", self.quality, "bool")
        if self.batch_size is not None:
            count("ExampleDP(batch_size)", self.batch_size)

    @classmethod
    def of(cls, node_config: Mapping[str, Any], given: ExampleDP | None = None) -> ExampleDP | None:
        """Return what a node's configuration says, then `given`; None if neither says anything.

        Raises
        ------
        ConfigError
            If the configuration has an unknown key, or too few.
        """
        values = fields_of_node(cls, _PREFIX, node_config)
        if given is not None:
            return replace(given, **values)
        if not values:
            return None
        for name in [f.name for f in fields(cls)][:3]:
            if name not in values:
                there, missing = (_PREFIX + n.replace("_", "-") for n in (min(values), name))
                raise ConfigError(
                    f"this node's configuration has {there}, and no {missing}: add it"
                )
        return cls(**values)

    def epsilon(self, spent: Mapping[float, int], distance: float = 0.0) -> float:
        """Return epsilon at `target_delta`, of so many gradients at each sampling rate.

        `distance` is that of their noise from continuous noise; see `privacy.accountant`.

        Raises
        ------
        ConfigError
            Without dp-accounting, which counts (the extra `privacy`).
        """
        counts = {noisy_gradient(self.noise_multiplier, rate): n for rate, n in spent.items()}
        return spent_epsilon(counts, self.target_delta, distance)
