"""The server side of a method, as used by a run: its declarations and hooks.

A run, its rounds and its gate use nothing else of a strategy. `FedConStrategy` adds the arguments
that all strategies take, and the methods that Flower calls.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from flower_fedcon.card import Card, card_of
from flower_fedcon.compressors import EF21, Compressor
from flower_fedcon.core.batches import minibatch
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.client_side import ClientSide
from flower_fedcon.core.participation import Draws, Participation
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.release import Release
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import StateLostError
from flower_fedcon.layout import Layout
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.server.aggregation import Aggregation
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")
POWERS = (1.0, 4.0, 0.25, 16.0, 0.0625)
"""Of a rule's value, that a race tries."""


class Method(ABC, Generic[State]):
    """What a method declares, in attributes of its class, and the hooks that it defines.

    The state is an immutable NamedTuple whose first field is the model. Only a `Mirror` in it
    changes in place. The object itself holds hyperparameters only.
    """

    name: ClassVar[str]
    """The name in the registry: that of the two modules."""
    title: ClassVar[str] = ""
    """The name as the paper writes it; by default the class's."""
    uplink: ClassVar[tuple[str, ...]]
    """What a client uploads, by name."""
    numbers: ClassVar[tuple[str, ...]] = ()
    """The names of uploads that are numbers, not values of the model's shape."""
    queries: tuple[str, ...] = ()
    """The names of values that a query asks for before the step; empty for one exchange a round."""

    scope: ClassVar[Scope] = Scope()
    """Which objectives it is for."""
    needs_everyone: ClassVar[str] = ""
    """Why every client must take part in every round; "" if cohorts are allowed."""

    bias: ClassVar[str] = ""
    """Why its limit is not the optimum where clients differ; "" where it is."""
    sampling_bias: ClassVar[str] = ""
    """Why its limit is not the optimum in rounds that leave clients out; "" where it is."""

    needs_mean: ClassVar[str] = "it does not declare that another rule than the mean is right"
    """Why the server step must be the plain mean; "" if `aggregation` may replace it."""
    needs_uniform: ClassVar[str] = "it does not declare that weights are right"
    """Why means must not weight uploads by 1/p under unequal participation; "" if they may."""
    needs_uncompressed: ClassVar[str] = "it does not declare that compressed uploads are right"
    """Why uploads must not be compressed; "" if `compression` is allowed."""
    needs_gradient: ClassVar[str] = "it does not declare that clipped gradients are right"
    """Why clients' gradients must not be clipped; "" if `clip` is allowed."""
    needs_constant_lr: ClassVar[str] = "it does not declare that varying steps are right"
    """Why `client_lr` must be constant; "" if a schedule is allowed."""
    needs_common_lr: ClassVar[str] = "it does not declare that different steps of clients are right"
    """Why all clients must take steps of one length; "" if each may adapt its own."""
    needs_fresh: ClassVar[str] = "it does not declare that replies to earlier models are right"
    """Why replies to earlier models must not be used; "" if `Buffered` is allowed."""
    async_bias: ClassVar[str] = ""
    """Why its limit is not the optimum if replies come unequally often; "" where it is."""
    release: ClassVar[Release] = Release(single="it does not declare that their sum is enough")
    """What the server needs of the uploads: whether their sum suffices."""
    needs_independent: ClassVar[str] = "it does not declare that its server adds up all uploads"
    """Why the noise of rounds must not be correlated; "" if the state is a prefix sum."""
    compact: ClassVar[bool] = False
    """Whether an upload may be more compact than arrays of the model's shape; `decode` reads it."""
    takes_sets: ClassVar[bool] = True
    """Whether a constraint set may be its `regularizer`; not if it needs subgradients."""
    needs_convex: ClassVar[str] = "it does not declare that another psi is right"
    """Why `regularizer` must be convex; "" if a weakly convex one is allowed."""
    constraints: str = ""
    """Which of the objectives' constraints it satisfies: their "mean", "each", or "groups"."""
    needs_shares: ClassVar[bool] = False
    """Whether clients' weights in the server's step are their shares of all examples."""
    uses_num_rounds: bool = False
    """Whether the iterates depend on the number of rounds of the run."""

    setup: Setup
    _draws: Draws | None = None
    """The setup of the run; known once it is bound."""
    inclusion: Array | None = None
    """Each client's probability of being in a cohort, if means use it; known once bound.

    With `Estimated` participation the server keeps it at the estimate for the coming round.
    """
    constants: Any = None
    """The constants from `derive`."""
    regularizer: Any = None
    constraint: Any = None
    participation: Participation
    batch_size: int | None
    batch_order: str = "round"
    clip: float | None = None
    min_replies: int | None
    aggregation: Aggregation | None
    norm_bound: float | None
    privacy: GaussianDP | None
    compression: EF21 | Compressor | None

    # --- what a method defines -------------------------------------------------------------------

    def derive(self) -> Any:
        """Return the constants that follow from hyperparameters and `setup`, as a NamedTuple.

        Called once, before `initialize`; the result is then `self.constants`.
        """
        return None

    @abstractmethod
    def initialize(self, x0: Array) -> State:
        """Return the server's state before round 1; `setup` and `constants` are set by then."""

    @abstractmethod
    def broadcast(self, state: State) -> Payload:
        """Return what is sent to every client of the cohort."""

    @abstractmethod
    def aggregate(self, state: State, uploads: Uploads) -> State:
        """Return the state after a round with these uploads."""

    def model(self, state: State) -> Array:
        """Return the global model of a state: by default its first field."""
        return state[0]  # type: ignore[index, no-any-return]

    def personal(self, state: State, client: int, ack: int) -> Payload:
        """Return what is sent to this client alone, in addition to the broadcast.

        `ack` is the round of its last reply that was used, 0 for none.
        """
        return {}

    def expects(self, state: State) -> tuple[str, ...]:
        """Return what clients upload in the coming round, by name."""
        return self.uplink

    def after_query(self, state: State, answers: Uploads) -> tuple[State, Payload]:
        """Return the state after a query's answers, and the broadcast for the step."""
        return state, {}

    def report(self, state: State) -> dict[str, float]:
        """Return numbers for the history, in addition to the objective."""
        return {}

    def outputs(self, state: State) -> dict[str, Array]:
        """Return further models of the method by name, such as an average."""
        return {}

    def runaway(self, state: State, **more: float) -> Array:
        """Return the entries of the model along which the mean objective decreases without end.

        With `flat` also entries that may be moving off; see `flower_fedcon.solvers.runaway`. Empty
        if there are none, or if the method cannot tell.
        """
        return np.empty(0, dtype=np.int64)

    def hessian(self, state: State) -> Array | None:
        """Return the mean of the clients' Hessians in the flattened model, if the server has it."""
        return None

    def doubts(
        self, state: State, record: Mapping[str, float], unheard: Sequence[str]
    ) -> list[str]:
        """Return warnings about the result of a run that has ended.

        `record` is the last record of the history, or empty; `unheard` names the clients that never
        gave a usable reply.
        """
        return []

    def minimises_mean(self) -> bool:
        """Return whether what it minimises in this run is F; not a robust centre of it, say."""
        everyone = self.participation.reached(self.setup.num_clients) == self.setup.num_clients
        private = self.privacy is not None  # with clipping
        return everyone and self.aggregation is None and self.clip is None and not private

    def cautions(self, setup: Setup) -> list[str]:
        """Return warnings about a run with this setup, before it begins."""
        if not (setup.sampled and self.sampling_bias):
            return []
        return [
            f"rounds leave clients out, and {self.sampling_bias}: `fedcon info {self.name}` says "
            f"under participation how much it matters"
        ]

    def longest_prox(self) -> float:
        """Return the longest step at which it takes the regularizer's prox; 0 for none."""
        return 0.0

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for arguments that are left out, by the argument's name.

        A rule may use `setup` and the values of the rules before it. It gets the clients' L from
        `smoothness_for`.
        """
        return {}

    def raced(self) -> list[str]:
        """Return the arguments that a race within the run will choose, by name."""
        return []

    def with_arguments(self, changed: Mapping[str, Any]) -> Self:
        """Return the same method with other hyperparameters, by argument name; unchecked."""
        other = copy.copy(self)
        for name, value in changed.items():
            setattr(other, name, value)
        return other

    def rule_value(self, name: str) -> Any:
        """Return a bound method's value of an argument."""
        return getattr(self, name)

    def first_stage(self) -> int:
        """Return the number of rounds in the first stage of a race; for a bound method."""
        return 1

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return the values that a race tries, around the rule's; for a bound method."""
        if isinstance(value, int):
            return [max(1, round(value * power)) for power in POWERS]
        most = 1.0 if name == "communication_probability" else math.inf
        return [min(most, value * power) for power in POWERS]

    def first_contact(self, state: State, client: int) -> Payload | None:
        """Return the state that a client must be sent at its first contact, or None."""
        return None

    def readmit(self, state: State, client: int) -> tuple[State, Payload]:
        """Return the server's state, and what a client without state needs to come back.

        Raises
        ------
        StateLostError
            If the algorithm has no way back.
        """
        raise StateLostError(
            f"{self.title} cannot re-admit a client that has lost its state (it defines no readmit)"
        )

    def upload_shape(self, name: str, layout: Layout) -> tuple[int, ...]:
        """Return the shape of the uploaded value `name`; by default the model's."""
        return layout.shape

    def most_entries(self, layout: Layout) -> int:
        """Return the largest number of entries in an array of an answer."""
        shapes = [self.upload_shape(name, layout) for name in self.uplink]
        return max(layout.size, *map(math.prod, shapes), 0)

    def renew(self, state: State) -> State:
        """Return the state for this strategy's regularizer, after rounds with another one.

        For methods that know at once, without a round, what the new regularizer changes.
        """
        return state

    def needs_whole_cohort(self) -> bool:
        """Return whether a round is void unless every member of the cohort replies."""
        return bool(self.needs_everyone)

    def why_single(self) -> str:
        """Return why the server needs each upload, not only the sum; "" if the sum suffices.

        Known once it is bound to a setup; with the remedy, if there is one.
        """
        return self.release.single

    def why_not_private(self) -> str:
        """Return why the method cannot use noisy sums of uploads in this run; "" if it can."""
        return ""

    def why_independent(self) -> str:
        """Return why the noise of rounds must be independent with these arguments; "" if not."""
        return self.needs_independent

    # --- what a run asks -------------------------------------------------------------------------

    @property
    def rows_each(self) -> int | None:
        """Rows in a minibatch, by batch size or local solver; None for all rows."""
        return minibatch(self.batch_size, getattr(self, "local_solver", None))

    @classmethod
    @abstractmethod
    def client_side(cls) -> type[ClientSide]:
        """Return the class of its clients."""

    @classmethod
    def card(cls) -> Card:
        """Return the card of the method, from the module's docstring."""
        return card_of(cls, cls.client_side())

    @abstractmethod
    def bind(self, setup: Setup) -> Self:
        """Return a copy for one run; refuse a run that it cannot carry out."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the hyperparameters, by argument name."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the values that its client's step needs, by field."""

    @abstractmethod
    def decode(self, name: str, parts: Mapping[str, Array]) -> Any:
        """Return the uploaded value `name` from its arrays on the wire."""

    @property
    def client_settings(self) -> tuple[str, ...]:
        """The values that the client's step needs: the fields that the client class declares."""
        return self.client_side().fields

    @property
    def clients_keep_state(self) -> bool:
        """Whether clients keep a state between rounds, and thus can lose it."""
        stateful = self.client_side().state_type is not None
        return stateful or isinstance(self.compression, EF21)

    @property
    def flows(self) -> bool:
        """Whether replies to earlier models come in; for a bound method."""
        return isinstance(self.participation, Buffered) and self.setup.sampled

    def says(self, hook: str) -> bool:
        """Return whether this method defines the hook of this name, such as "personal"."""
        return getattr(type(self), hook) is not getattr(Method, hook)

    @classmethod
    def favours_frequent(cls) -> bool:
        """Return whether its plain means favour clients that take part more often.

        By default unless it declares that its limit is the same however often each client answers.
        """
        return bool(cls.needs_fresh or cls.async_bias)

    def weighs(self, rule: Participation) -> bool:
        """Return whether means weight uploads by how often a rule's clients take part."""
        wanted = rule.unbiased is not False
        return wanted and not self.needs_uniform and self.aggregation is None

    def cohort(self, server_round: int) -> list[int]:
        """Return the clients that a round asks, in client order."""
        return self.draws.cohort(server_round)

    @property
    def draws(self) -> Draws:
        """The cohorts of this run."""
        if self._draws is None:
            n, seed = self.setup.num_clients, self.setup.seed
            self._draws = Draws(self.participation, n, lambda t: stream(seed, COHORT, t))
        return self._draws

    def quorum(self, cohort_size: int) -> int:
        """Return the number of usable replies that a round of this cohort needs."""
        if self.needs_whole_cohort():
            return cohort_size
        noisy = 1 if self.privacy is None else self.privacy.least(cohort_size)
        return min(max(self.min_replies or 1, noisy), cohort_size)
