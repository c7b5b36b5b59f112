"""How long a run on nodes waits, for whom, and whom it then goes on without."""

from __future__ import annotations

from dataclasses import dataclass

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import count, nonnegative, positive


@dataclass(frozen=True, kw_only=True)
class Patience:
    """What an operator decides about slow, silent and failing nodes; all times in seconds.

    `start` of a strategy takes these fields by name.

    Attributes
    ----------
    num_clients : int, optional
        How many clients to wait for; by default the nodes' "num-partitions".
    timeout : float
        For the replies to one message of training.
    evaluate_timeout : float, optional
        For the replies to an evaluation; by default `timeout`.
    start_timeout : float, optional
        For the clients at the start; by default `timeout`.
    min_clients_to_start : int, optional
        How many clients are enough once `start_timeout` is over; by default all of them.
    grace : float, optional
        How long a round, or an evaluation, waits for the other replies once it has enough; by
        default for its whole timeout.
    round_deadline : float
        How long after its beginning a round without enough replies is asked again, with pauses
        that grow to a minute; then the run ends. It also bounds the wait for a SuperLink that does
        not answer.
    max_retries : int, optional
        How often it is asked again at most; by default as often as the deadline allows.
    quarantine_after, quarantine_rounds : int
        A client that fails in so many rounds in a row (0: none) is left out for so many, then for
        twice as many; unless a round cannot do without it.
    authenticated : bool
        Whether the SuperLink knows its nodes by their keys (`--enable-supernode-auth`): a client's
        name then stays with the key that had it first. Without keys it is free again once the
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
