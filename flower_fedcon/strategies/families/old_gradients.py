"""The steps of methods that use clients' gradients until they answer again: MIFA and FedVARP."""

from __future__ import annotations

from typing import Any

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.strategies.base import FedConStrategy


def lasting_share(strategy: FedConStrategy[Any]) -> float:
    """Return a step times L that old gradients allow; it may be above 1.

    Let a gradient be used for m steps, and be d steps old before. If all objectives are the same
    square with curvature L, the steps converge up to m v^2 / (2 L sin(m v / 2)), v = pi/(m + 2 d),
    for large m; below half of this is 2 m / (m + 2 d)^2. In rounds m = 1/p and d = 0, with p the
    share of clients in a round. With `Buffered` a reply waits for those of the other clients that
    are at work.
    """
    rule, n = strategy.participation, strategy.setup.num_clients
    used, before = 1 / strategy.setup.rate, 0.0
    if isinstance(rule, Buffered):
        before = rule.at_work(n) / rule.size(n) - 1
    return 2 * used / (used + 2 * before) ** 2
