"""How long a run on nodes waits for clients, and when it continues without them."""

from __future__ import annotations

from dataclasses import dataclass

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import count, nonnegative, positive


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Settings for slow, silent and failing nodes; all times are in seconds.

    `start` of a strategy takes these fields by name.

    Attributes
    ----------
    num_clients : int, optional
        The number of clients to wait for; by default the nodes' "num-partitions".
    timeout : float
        The time for replies to one training message.
    evaluate_timeout : float, optional
        The time for replies to an evaluation; by default `timeout`.
    start_timeout : float, optional
        The time to wait for the clients at the start; by default `timeout`.
    min_clients_to_start : int, optional
        The number of clients that suffices after `start_timeout`; by default all. A run with
        `Buffered` that is resumed goes on as soon as so many have answered, by default `buffer`.
    grace : float, optional
        How long a round or an evaluation waits for further replies when it has enough; by default
        its whole timeout.
    round_deadline : float
        How long, from its beginning, a round without enough replies is repeated, with pauses that
        grow to a minute; then the run ends. It also bounds the wait for a SuperLink that does not
        answer.
    max_retries : int, optional
        The largest number of such repetitions; by default as many as the deadline allows.
    quarantine_after, quarantine_rounds : int
        A client that fails in `quarantine_after` rounds in a row is left out for
        `quarantine_rounds` rounds, then for twice as many, unless a round needs it. 0 means no
        quarantine.
    authenticated : bool
        Whether the SuperLink knows its nodes by their keys (`--enable-supernode-auth`): a client's
        name then belongs to the key that first had it. Without keys, a name is free again when the
        SuperLink no longer lists the node that had it.
    """

    num_clients: int | None = None
    timeout: float = 3600
    evaluate_timeout: float | None = None
    start_timeout: float | None = None
    min_clients_to_start: int | None = None
    grace: float | None = None
    round_deadline: float = 3600
    max_retries: int | None = None
    quarantine_after: int = 3
    quarantine_rounds: int = 10
    authenticated: bool = False

    def __post_init__(self) -> None:
        for name in ("timeout", "evaluate_timeout", "start_timeout", "round_deadline"):
            if vars(self)[name] is not None:
                positive(name, vars(self)[name])
        if self.grace is not None:
            nonnegative("grace", self.grace)
        for name in ("num_clients", "min_clients_to_start"):
            if vars(self)[name] is not None:
                count(name, vars(self)[name])
        expected, least = self.num_clients, self.min_clients_to_start
        if expected is not None and least is not None and least > expected:
            raise ConfigError(
                f"min_clients_to_start is {least}, more than num_clients, {expected}: lower it"
            )
        if self.max_retries is not None:
            count("max_retries", self.max_retries, minimum=0)
        count("quarantine_after", self.quarantine_after, minimum=0)
        count("quarantine_rounds", self.quarantine_rounds)
