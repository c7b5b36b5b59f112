"""Error feedback: the part that a compressor drops is sent in later rounds."""

from __future__ import annotations

from dataclasses import dataclass

from flower_fedcon.compressors.base import Compressor, Identity
from flower_fedcon.errors import ConfigError


@dataclass(frozen=True)
class EF21:
    """Error feedback by a memory m_i of each client, which the server also has.

    From m_i = 0, a client sends C(x_i - m_i) instead of x_i; both sides then set m_i := m_i + C(x_i
    - m_i), and use m_i as x_i. If x_i converges, so does m_i, to the same limit, for any
    contractive C and any cohorts: m_i does not change while its client is not sampled.

    Richtarik, Sokolov, Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically
    Faster Error Feedback" (NeurIPS 2021). An unbiased C of variance q enters as C/(1 + q), which is
    contractive.

    Parameters
    ----------
    compressor : Compressor

    Raises
    ------
    ConfigError
        If it is not a compressor, or is `Identity()`, which drops nothing.

    Examples
    --------
    >>> from flower_fedcon.compressors import QSGD, TopK
    >>> EF21(TopK(fraction=0.1)).scale(100), EF21(QSGD(levels=10)).scale(100)
    (1.0, 0.5)
    """

    compressor: Compressor

    def __post_init__(self) -> None:
        if not isinstance(self.compressor, Compressor) or isinstance(self.compressor, Identity):
            raise ConfigError(
                "EF21(compressor) must be TopK(...), RandK(...), QSGD(...), Natural() or Sign(), "
                f"got {self.compressor!r}"
            )

    def scale(self, size: int) -> float:
        """Return the factor of C for arrays of `size` entries: 1, or 1/(1 + q)."""
        q = self.compressor.q(size)
        return 1.0 / (1.0 + q) if self.compressor.unbiased else 1.0
