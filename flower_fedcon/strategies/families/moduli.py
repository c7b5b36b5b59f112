"""What is said where a method needs strongly convex objectives, and clients state that mu = 0."""

from __future__ import annotations

from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import clients_by_name


def stated_zero(setup: Setup) -> str:
    """Return which clients state mu = 0, and which of their objectives are constant, with a remedy.

    For a setup in which all clients state mu, and some of them 0.
    """
    flat = [j for j, mu in enumerate(setup.moduli) if not mu]
    stated = [] if setup.estimated else setup.smoothnesses
    constant = [j for j in flat if stated and not stated[j]]
    many = len(flat) > 1
    said = f"{clients_by_name([setup.names[j] for j in flat])} state{'' if many else 's'} mu = 0"
    if not constant:
        return f"{said}. Give each objective a square (such as l2=0.01)"
    if len(constant) == len(flat):
        theirs = "whose objectives are constant" if many else "whose objective is constant"
    else:
        names = clients_by_name([setup.names[j] for j in constant])
        have = "have constant objectives" if len(constant) > 1 else "has a constant objective"
        theirs = f"of which {names} {have}"
    return (
        f"{said}, {theirs} (L = 0, such as of no rows). Leave such clients out of the problem, or "
        f"give each objective a square (such as l2=0.01)"
    )
