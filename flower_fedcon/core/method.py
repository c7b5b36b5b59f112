"""The server side of a method, as a run sees it: what it declares and what it defines.

A run, its rounds and its gate know of a strategy what stands here. `FedConStrategy` adds the
arguments that all of them take, and what Flower calls.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from flower_fedcon.compressors import EF21, Compressor
from flower_fedcon.core.batches import minibatch
from flower_fedcon.core.participation import Draws, Participation
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.release import Release
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import StateLostError
from flower_fedcon.layout import Layout
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.registry import client_class
from flower_fedcon.server.aggregation import Aggregation
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")
POWERS = (1.0, 4.0, 0.25, 16.0, 0.0625)
"""Of a rule's value, that a race tries."""


class Method(ABC, Generic[State]):
    """What a method declares, in attributes of its class, and the hooks that it defines.

    The state is immutable: a NamedTuple whose first field is the model. Only a `Mirror`, where a
    state has one, changes in place. The object itself holds hyperparameters only.
    """

    name: ClassVar[str]
    """The name in the registry: that of the two modules."""
    title: ClassVar[str] = ""
    """The name as the paper writes it; by default the class's."""
    uplink: ClassVar[tuple[str, ...]]
    """What a client uploads, by name."""
    numbers: ClassVar[tuple[str, ...]] = ()
    """Which of it are numbers, and not values of the model's shape."""
    queries: tuple[str, ...] = ()
    """What clients are asked before the step, by name; empty for one exchange a round."""

    needs_everyone: ClassVar[str] = ""
    """Why every client must take part in every round; "" where cohorts are allowed."""

    needs_mean: ClassVar[str] = "it does not declare that another rule than the mean is right"
    """Why the server step must be the plain mean; "" where `aggregation` may take its place."""
    needs_uniform: ClassVar[str] = "it does not declare that weights are right"
    """Why means must not weigh uploads by 1/p where clients take part unequally often; "" if so."""
    needs_exact: ClassVar[str] = "it does not declare that compressed uploads are right"
    """Why uploads must not be compressed; "" where `compression` is right."""
    needs_gradient: ClassVar[str] = "it does not declare that clipped gradients are right"
    """Why clients' gradients must not be clipped; "" where `clip` is right."""
    needs_constant_lr: ClassVar[str] = "it does not declare that varying steps are right"
    """Why `client_lr` must stay the same; "" where a schedule will do."""
    needs_common_lr: ClassVar[str] = "it does not declare that different steps of clients are right"
    """Why all clients must take steps of one length; "" where each may find its own."""
    release: ClassVar[Release] = Release(single="it does not declare that their sum is enough")
    """What the server needs of the uploads: whether their sum is enough."""
    needs_independent: ClassVar[str] = "it does not declare that its server adds up all uploads"
    """Why one round's noise must not make up for another's; "" where the state is a prefix sum."""
    compact: ClassVar[bool] = False
    """Whether an upload may take less than arrays of the model's shape: `decode` reads it."""
    takes_sets: ClassVar[bool] = True
    """Whether a constraint set may be its `regularizer`: not where it needs subgradients."""
    needs_convex: ClassVar[str] = "it does not declare that another psi is right"
    """Why `regularizer` must be convex; "" where a weakly convex one will do."""
    constraints: str = ""
    """Which constraints of the objectives' own it keeps: their "mean", "each", or "groups"."""
    needs_shares: ClassVar[bool] = False
    """Whether the server moves by each client's share of all clients' examples."""
    uses_num_rounds: bool = False
    """Whether the iterates depend on how many rounds the run is to have."""

    setup: Setup
    _draws: Draws | None = None
    """The run's; known once it is bound to one."""
    inclusion: Array | None = None
    """Each client's probability of being in a cohort, where means weigh by it; known once bound."""
    constants: Any = None
    """What `derive` has found."""
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

        Called once, before `initialize`; then `self.constants`.
        """
        return None

    @abstractmethod
    def initialize(self, x0: Array) -> State:
        """Return the server's state before round 1; `setup` and `constants` are known here."""

    @abstractmethod
    def broadcast(self, state: State) -> Payload:
        """Return what every client of the cohort gets."""

    @abstractmethod
    def aggregate(self, state: State, uploads: Uploads) -> State:
        """Return the state after a round with these uploads."""

    def model(self, state: State) -> Array:
        """Return the global model of a state: by default its first field."""
        return state[0]  # type: ignore[index, no-any-return]

    def personal(self, state: State, client: int, ack: int) -> Payload:
        """Return what this client alone gets beside the broadcast.

        `ack` is the round of its last reply that was used, 0 for none.
        """
        return {}

    def expects(self, state: State) -> tuple[str, ...]:
        """Return what clients upload in the coming round, by name."""
        return self.uplink

    def after_query(self, state: State, answers: Uploads) -> tuple[State, Payload]:
        """Return the state and what to broadcast for the step, after a query's answers."""
        return state, {}

    def report(self, state: State) -> dict[str, float]:
        """Return numbers for the history, beside the objective."""
        return {}

    def outputs(self, state: State) -> dict[str, Array]:
        """Return further models that the method offers (an average, say), by name."""
        return {}

    def runaway(self, state: State, **more: float) -> Array:
        """Return the entries of the model along which the clients' mean objective falls for ever.

        With `flat`, see `flower_fedcon.solvers.runaway`, also what may be on its way. Empty where
        there are none, or a method cannot say.
        """
        return np.empty(0, dtype=np.int64)

    def hessian(self, state: State) -> Array | None:
        """Return a mean of the clients' Hessians, of the flattened model, that the server has."""
        return None

    def doubts(
        self, state: State, record: Mapping[str, float], unheard: Sequence[str]
    ) -> list[str]:
        """Return what a run that has ended leaves in doubt, a text for each warning.

        `record` is the history's last one, empty if there is none; `unheard` names the clients of
        which no reply was ever used.
        """
        return []

    def longest_prox(self) -> float:
        """Return the longest step for which it takes the regularizer's prox, 0 for none."""
        return 0.0

    def raced(self) -> list[str]:
        """Return the arguments that a race within the run is to choose, by name."""
        return []

    def with_arguments(self, changed: Mapping[str, Any]) -> Self:
        """Return the same method with other hyperparameters, by argument name; unchecked."""
        other = copy.copy(self)
        for name, value in changed.items():
            setattr(other, name, value)
        return other

    def rule_value(self, name: str) -> Any:
        """Return what a bound method has for an argument."""
        return getattr(self, name)

    def first_stage(self) -> int:
        """Return how many rounds the first stage of a race takes; of a bound method."""
        return 1

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return what a race tries for an argument, around its rule's value; of a bound method."""
        if isinstance(value, int):
            return [max(1, round(value * power)) for power in POWERS]
        most = 1.0 if name == "communication_probability" else math.inf
        return [min(most, value * power) for power in POWERS]

    def first_contact(self, state: State, client: int) -> Payload | None:
        """Return the state that a client needs at its first contact, if it cannot know it."""
        return None

    def readmit(self, state: State, client: int) -> tuple[State, Payload]:
        """Return the server's state, and what lets a client without state come back.

        Raises
        ------
        StateLostError
            If the algorithm has no way back.
        """
        raise StateLostError(
            f"{self.title} cannot re-admit a client that has lost its state (it defines no readmit)"
        )

    def upload_shape(self, name: str, layout: Layout) -> tuple[int, ...]:
        """Return the shape of the uploaded value `name`: the model's, unless a method says else."""
        return layout.shape

    def most_entries(self, layout: Layout) -> int:
        """Return how many entries an array of an answer has at most."""
        shapes = [self.upload_shape(name, layout) for name in self.uplink]
        return max(layout.size, *map(math.prod, shapes), 0)

    def renew(self, state: State) -> State:
        """Return the state for this strategy's regularizer, after rounds with another one.

        For methods that can say at once, without a round, what the new one changes.
        """
        return state

    def needs_whole_cohort(self) -> bool:
        """Return whether a round is void unless every member of the cohort replies."""
        return bool(self.needs_everyone)

    def why_single(self) -> str:
        """Return why the server needs each upload in this run, not their sum alone; "" if not.

        Known once it is bound to a setup; with the remedy, if there is one.
        """
        return self.release.single

    def why_not_private(self) -> str:
        """Return why noise in the sum of the uploads will not do in this run; "" if it will."""
        return ""

    def why_independent(self) -> str:
        """Return why noise must be independent in each round, as the method is set; "" if not."""
        return self.needs_independent

    # --- what a run asks -------------------------------------------------------------------------

    @property
    def rows_each(self) -> int | None:
        """Rows in a minibatch, by its batch size or its local solver; None where all count."""
        return minibatch(self.batch_size, getattr(self, "local_solver", None))

    @abstractmethod
    def bind(self, setup: Setup) -> Self:
        """Return a copy for one run; refuse a run that it cannot play."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the hyperparameters, by argument name."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what its client's step needs to know, by field."""

    @abstractmethod
    def decode(self, name: str, parts: Mapping[str, Array]) -> Any:
        """Return the uploaded value `name` from its arrays on the wire."""

    @property
    def client_settings(self) -> tuple[str, ...]:
        """What the client's step needs to know: the fields that the client class declares."""
        return client_class(self.name).fields

    @property
    def clients_keep_state(self) -> bool:
        """Whether clients keep a state between rounds, which they can lose."""
        own = client_class(self.name).state_type is not None
        return own or isinstance(self.compression, EF21)

    def says(self, hook: str) -> bool:
        """Return whether this method defines "personal", say, and so tells one client alone."""
        return getattr(type(self), hook) is not getattr(Method, hook)

    def weighs(self, rule: Participation) -> bool:
        """Return whether means weigh uploads by how often a rule's clients take part."""
        wanted = rule.unbiased is not False
        return wanted and not self.needs_uniform and self.aggregation is None

    def cohort(self, server_round: int) -> list[int]:
        """Return whom a round asks, in client order."""
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
