"""`Buffered`: rounds that do not wait, as a rule of who is asked and how many replies make a step.

A method takes part if it declares that replies to earlier models are right (`needs_fresh`).
`flower_fedcon.core.flow_check` refuses the others, and `flower_fedcon.core.flow` does the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from flower_fedcon.core.participation import Participation
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, count, nonnegative, optional

_UNEQUAL = 1.5  # times the smallest share, from which a client counts as favoured


@dataclass(frozen=True, repr=False)
class Buffered(Participation):
    """Rounds that do not wait: the server steps as soon as it has `buffer` replies.

    Clients that are idle are asked at once, with the model of that moment, and answer in their own
    time. A *step* uses the first `buffer` replies that come in, also to earlier models, and takes
    the place of a round in the history. A client whose reply is held for the coming step is not
    asked before it, so it counts at most once a step. `flower_fedcon.strategies.AREA`, `FedDR`,
    `Scaffold` and others then end at the optimum; averages of models or changes favour fast clients
    (`fedcon info`).

    In this process times come from a simulated clock: ``simulate(..., clock=Clock(...))``. On
    deployed nodes they are real.

    Parameters
    ----------
    buffer : int (default: 1)
        B, how many replies make a step.
    concurrency : int, optional
        K, how many clients are at work or have a reply held; by default all.
    dispatch : int (default: 1)
        O, how many places must be free before idle clients are asked. 1 <= O <= B <= K <= N. With
        O = B = K = N every step waits for everyone, like a round of `Full()`.
    max_staleness : int, optional
        A reply is dropped if the server has done more steps than this since it was asked for; by
        default none is.
    discount : float (default: 0)
        a >= 0: a reply that is t steps old has the weight (1 + t)^(-a) in means. This favours fast
        clients further.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    References
    ----------
    Buffers and discounts: John Nguyen, Kshitiz Malik, Hongyuan Zhan, Ashkan Yousefpour, Mike
    Rabbat, Mani Malek, Dzmitry Huba, "Federated Learning with Buffered Asynchronous Aggregation",
    AISTATS 2022 (arXiv:2106.06639). There a client may be used twice in one step.

    Examples
    --------
    >>> import numpy as np
    >>> from flower_fedcon import Clock, FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.strategies import FedAvg
    >>> problem = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (1.0, 3.0)])
    >>> strategy = FedAvg(client_lr=0.5, local_steps=1, participation=Buffered(buffer=1))
    >>> history = simulate(strategy, problem, num_rounds=4, clock=Clock(compute=[1.0, 3.5]))
    >>> history["simulated_seconds"], history["staleness"]  # the fast client three times
    (array([1. , 2. , 3. , 3.5]), array([0., 0., 0., 3.]))
    """

    buffer: int = 1
    concurrency: int | None = None
    dispatch: int = 1
    max_staleness: int | None = None
    discount: float = 0.0

    def __post_init__(self) -> None:
        count("Buffered(buffer)", self.buffer)
        optional(count, "Buffered(concurrency)", self.concurrency)
        count("Buffered(dispatch)", self.dispatch)
        if self.max_staleness is not None:
            count("Buffered(max_staleness)", self.max_staleness, minimum=0)
        nonnegative("Buffered(discount)", self.discount)
        if self.concurrency is not None and self.buffer > self.concurrency:
            raise ConfigError(
                f"Buffered(buffer={self.buffer}, concurrency={self.concurrency}): a client whose "
                f"reply is held is not asked again, so a step of {self.buffer} replies would never "
                f"come: give buffer <= concurrency"
            )
        if self.dispatch > self.buffer:
            raise ConfigError(
                f"Buffered(buffer={self.buffer}, dispatch={self.dispatch}): a step frees "
                f"{self.buffer} places: give dispatch from 1 to {self.buffer}"
            )

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        told = (f"{name}={value:.12g}" for name, value, usual in given if value != usual)
        return f"Buffered({', '.join(told)})"

    def at_work(self, num_clients: int) -> int:
        """Return K, how many of so many clients may be at work or have a reply held.

        Raises
        ------
        ConfigError
            If there are fewer clients.
        """
        for name, wanted in (("concurrency", self.concurrency), ("buffer", self.buffer)):
            if wanted is not None and wanted > num_clients:
                raise ConfigError(
                    f"Buffered({name}={wanted}) is more than the {num_clients} clients: give at "
                    f"most {num_clients}"
                )
        return num_clients if self.concurrency is None else self.concurrency

    def size(self, num_clients: int) -> int:
        """Return B."""
        self.at_work(num_clients)
        return self.buffer

    def rate(self, num_clients: int) -> float:
        """Return B / N."""
        return self.size(num_clients) / num_clients

    def is_full(self, num_clients: int) -> bool:
        """Return whether every step waits for everyone."""
        return self.at_work(num_clients) == self.buffer == self.dispatch == num_clients

    def weight(self, staleness: int) -> float:
        """Return the weight of a reply that is so many steps old.

        >>> Buffered(discount=0.5).weight(3)
        0.5
        """
        return float((1 + staleness) ** -self.discount)


def unit_of(rule: Participation) -> str:
    """Return what a run by this rule counts: "step" where it does not wait, else "round"."""
    return "step" if isinstance(rule, Buffered) else "round"


def favoured(bias: str, names: Sequence[str], used: Array) -> str:
    """Return a sentence on the clients that a biased method favours; "" if it favours none.

    Parameters
    ----------
    bias : str
        The method's `async_bias`.
    names : sequence of str
    used : array of int, shape (N,)
        How many replies of each client were used.
    """
    if not bias or not used.any():
        return ""
    shares = used / used.sum()
    low, high = int(shares.argmin()), int(shares.argmax())
    if shares[high] <= _UNEQUAL * shares[low]:
        return ""
    return (
        f"{bias}: client {names[high]} gave {shares[high]:.1%} of the uploads, client {names[low]} "
        f"{shares[low]:.1%}, where {1 / len(used):.1%} would be equal. The model favours the "
        f"former; AREA, FedDR, FedDyn, Scaffold and FedNewton do not"
    )
