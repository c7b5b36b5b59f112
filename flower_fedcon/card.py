"""An algorithm's sheet: what `fedcon list`, `fedcon info` and the README's table show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """One algorithm in words.

    Attributes
    ----------
    title : str
        The name as the paper writes it.
    problem : str
        The problem class.
    update : str
        The update rule, one line for each step.
    state : str
        What client and server remember.
    down, up : str
        What crosses the wire each round, for each client.
    participation : str
        Which cohorts the method allows, and what sampling does to it.
    lost_state : str
        What happens when a client's state is gone.
    paper : str
        The source.
    """

    title: str
    problem: str
    update: str
    state: str
    down: str
    up: str
    participation: str
    lost_state: str
    paper: str
