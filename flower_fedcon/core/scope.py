"""Which objectives a method is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Scope:
    """Which objectives a method is for; the default demands nothing of them.

    The problem of the method's card says the same in words.

    Parameters
    ----------
    convexity : {"", "none", "convex", "strong"}
        What a client's objective must be: "strong"ly convex, "convex", or neither, by a theory that
        covers nonconvex ones, "none". "" if the theory is not about this.
    hessians : bool
        Whether objectives must have `hessian(x)`.
    shared_minimiser : bool
        Whether (nearly) one point must minimise all objectives.
    refuted : bool
        Whether a paper shows that the method can fail: a baseline, which no race takes.
    worst : bool
        Whether it minimises the largest of the clients' objectives, not their mean.
    """

    convexity: Literal["", "none", "convex", "strong"] = ""
    hessians: bool = False
    shared_minimiser: bool = False
    refuted: bool = False
    worst: bool = False
