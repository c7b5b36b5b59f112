"""Privacy of each example: gradients are clipped by row, get noise, and are counted.

The method is DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016). It draws a
Poisson sample of the rows, each with probability q. The rows' gradients are shortened to norm C and
added up, Gaussian noise of standard deviation z C is added in each entry, and the sum is divided by
q m. Two data sets are neighbours if the gradients of one row are left out of one; m itself is
public. Everything that is computed from these gradients alone (the whole upload, any number of
local steps, a proximal step) costs no further privacy.
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
    """How a client's gradients are made private, and the privacy budget of its data.

    A node's configuration sets each field by its name with hyphens, after "privacy.", such as
    `privacy.clip=1.0`. It overrides the app's setting, and no server can change it.

    Parameters
    ----------
    clip : float
        C > 0, the largest norm of the gradient of a row's loss; longer ones are scaled to it.
    noise_multiplier : float
        z > 0.
    target_delta : float
        In (0, 1): the probability with which epsilon may not hold; well below 1 / rows.
    budget : float, optional (default: None)
        The largest epsilon that this node's data may ever spend; gradients beyond it are refused.
    batch_size : int, optional (default: None)
        The mean number of rows in a gradient; by default the server's choice (all rows, or a
        `batch_size`).
    loss_clip : float, optional (default: None)
        A bound > 0 of a row's loss. Evaluations are then answered with the mean of the rows'
        losses, each cut to this absolute value, with noise of standard deviation z times the bound
        in their sum. Each answer counts like a gradient over all rows. Without it a node reveals no
        loss.
    quality : bool (default: False)
        Whether a node with a table and a logistic loss sends, for the model at the end of a run,
        noisy counts of its held-out rows by predicted probability (`tables.noisy_quality`), which
        give an AUC. They count like a gradient over all rows.

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
        """Return the settings of a node's configuration, otherwise `given`, otherwise None.

        Raises
        ------
        ConfigError
            If the configuration has an unknown key, or lacks one.
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
                    f"this node's configuration has {there}, and lacks {missing}: add it"
                )
        return cls(**values)

    def epsilon(self, spent: Mapping[float, int], distance: float = 0.0) -> float:
        """Return epsilon at `target_delta`, for numbers of gradients at each sampling rate.

        `distance` is the distance of their noise from continuous noise; see `privacy.accountant`.

        Raises
        ------
        ConfigError
            If dp-accounting (the extra `privacy`) is not installed.
        """
        counts = {noisy_gradient(self.noise_multiplier, rate): n for rate, n in spent.items()}
        return spent_epsilon(counts, self.target_delta, distance)
