"""The common server side of all algorithms; an algorithm's file adds only its mathematics."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from flower_fedcon.compressors import EF21, Compressor
from flower_fedcon.core import compressing
from flower_fedcon.core.batches import ORDERS
from flower_fedcon.core.client_side import ClientSide
from flower_fedcon.core.docstrings import Entry, complete, with_inherited
from flower_fedcon.core.estimated import Estimated, unweighted
from flower_fedcon.core.flow_check import check_flow
from flower_fedcon.core.method import State
from flower_fedcon.core.participation import Full, Only, Participation
from flower_fedcon.core.private import check_argument, check_private
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.scales import UNIT
from flower_fedcon.errors import ConfigError, FedConError, ParticipationError, UnknownScaleError
from flower_fedcon.flower.strategy import FlowerStrategy
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.registry import client_class
from flower_fedcon.regularizers.base import LONGEST
from flower_fedcon.server.aggregation import Aggregation, as_aggregation
from flower_fedcon.server.own_rates import AdaPGM, OwnRate, own_rate
from flower_fedcon.server.schedules import Schedule, rate_or_schedule
from flower_fedcon.strategies.families.arguments import Common as Common
from flower_fedcon.strategies.families.arguments import check_convexity, names_checked
from flower_fedcon.strategies.families.ladders import condition
from flower_fedcon.strategies.families.moduli import stated_zero
from flower_fedcon.validation import (
    AUTO,
    Array,
    choice,
    chosen,
    count,
    optional,
    parameters,
    positive,
)

_ILL = 1000.0  # L/mu from which one round of a race is not informative


class FedConStrategy(FlowerStrategy[State]):
    """A strategy: hyperparameters, and the server's part of one algorithm.

    An algorithm declares its `name` and its `uplink`, the names of what its clients upload. It
    defines `initialize`, `broadcast` and `aggregate` on an immutable state: a NamedTuple whose
    first field is the model. Only a `Mirror`, where a state has one, changes in place. The strategy
    object holds hyperparameters only. The run holds its state, and `constants` has values that
    follow from the setup, such as a default step size. `flower_fedcon.core.method.Method` lists
    everything that an algorithm may declare and define.

    Parameters
    ----------
    participation : Participation (default: Full())
        Who takes part in a round: everyone, `Full()`; a random cohort, `Sample(count=...)`,
        `Sample(fraction=...)`, `Bernoulli(p)` or, with a probability for each client, `Weighted`;
        one client, `Only(client)`; or clients that come and go, `Cyclic`, `Markov`, `Available`.
    batch_size : int, optional (default: None)
        Number of rows in each local gradient, drawn without replacement. None means all rows;
        methods whose clients minimise accept only None. A client with fewer rows uses all of them.
    batch_order : {"round", "epoch"} (default: "round")
        "round" draws a new order of a client's rows in each round. "epoch" goes through all rows
        before it draws a new order, also across rounds; it is for methods with a fixed number of
        local steps.
    clip : float, optional (default: None)
        Largest Euclidean norm of a client's gradient, > 0. In each local step a longer gradient, of
        a minibatch or of all rows, is scaled to this norm, before the method adds its terms.
        Refused by methods whose steps need the gradient itself (`needs_gradient`).
    min_replies : int, optional (default: None)
        Number of usable replies that a round needs. With fewer the round changes nothing, and the
        missing clients are asked again. By default all, if the algorithm needs everyone, else one.
    aggregation : Aggregation, optional (default: None)
        A rule of `flower_fedcon.aggregation` that replaces the mean over the cohort, as a defence
        against false uploads. Refused by methods whose server step must be the mean.
    norm_bound : float, optional (default: None)
        Largest Euclidean norm of an uploaded array, > 0. An upload with a longer array is dropped
        and counted; atoms lie in their set anyway. By default only uploads from nodes are dropped,
        if their numbers are too large to compute with: from 5.6e102 on, in double precision.
    privacy : GaussianDP, optional
        `flower_fedcon.privacy.GaussianDP(...)`: clients clip what they release, and the server adds
        noise to the sum. Refused by methods whose server needs each upload (`release`).
    compression : EF21 or Compressor, optional
        Compression of uploads, such as `EF21(TopK(fraction=0.1))` of `flower_fedcon.compressors`.
        Refused by methods that may reach a wrong limit with it (`needs_uncompressed`).
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls) and "title" not in vars(cls):
            cls.title = cls.__name__
        if "needs_exact" in vars(cls):  # its name in version 0.1
            cls.needs_uncompressed = vars(cls)["needs_exact"]
        if "name" in vars(cls):
            complete(cls)
        if "__init__" in vars(cls):
            cls.__init__ = names_checked(cls.__init__)  # type: ignore[method-assign]

    @classmethod
    def described(cls, own: list[Entry]) -> list[Entry]:
        """Return a docstring's lines on each argument, of which some are its own."""
        try:
            fields = client_class(cls.name).fields
        except FedConError:  # it is not registered yet
            return own
        refused = {name for name in ("batch_size", "clip") if name not in fields}
        refused |= {"batch_order"} if "batch_size" in refused else set()
        names = {name: None for told, _ in own for name in told}  # in the order of the file
        names |= {name: None for name in parameters(cls) if name not in refused}
        return with_inherited(cls, own, [*names], FedConStrategy)

    def __init__(
        self,
        *,
        participation: Participation | None = None,
        batch_size: int | None = None,
        batch_order: str = "round",
        clip: float | None = None,
        min_replies: int | None = None,
        aggregation: Aggregation | None = None,
        norm_bound: float | None = None,
        privacy: GaussianDP | None = None,
        compression: EF21 | Compressor | None = None,
    ) -> None:
        self.participation = Full() if participation is None else participation
        if not isinstance(self.participation, Participation):
            raise ConfigError(
                "participation must be Full(), Sample(fraction=0.5), Sample(count=3), "
                "Bernoulli(p), Only(client), Weighted(weights), Cyclic(groups), "
                "Markov(stay, back), Available(trace), Estimated(among), Buffered(buffer) or a "
                "Participation of your own, got "
                f"{participation!r}"
            )
        if isinstance(participation, Only) and self.client_side().state_type is not None:
            raise ParticipationError(
                f"{self.title} keeps state on every client: Only(...) is for methods whose clients "
                "keep none, such as FedAvg"
            )
        self.batch_size = None if batch_size is None else count("batch_size", batch_size)
        if batch_size is not None and "batch_size" not in self.client_settings:
            raise ConfigError(
                f"{self.title} takes no batch_size, got {batch_size}: its clients use all "
                "rows. For less local work give local_solver=GradientDescent(steps=...)"
            )
        self.batch_order = choice("batch_order", batch_order, ORDERS)
        if batch_order != ORDERS[0] and batch_size is None:
            raise ConfigError(f"batch_order={batch_order!r} is for minibatches: give batch_size")
        self.clip = optional(positive, "clip", clip)
        if clip is not None and (why := self._why_no_clip()):
            raise ConfigError(
                f"{self.title} takes no clip={clip!r}: {why}. `fedcon info` says which methods "
                "take it"
            )
        self.min_replies = None if min_replies is None else count("min_replies", min_replies)
        self.aggregation = as_aggregation(aggregation)
        if aggregation is not None and self.needs_mean:
            raise ConfigError(
                f"{self.title} takes no aggregation={aggregation!r}: {self.needs_mean}. Use "
                f"norm_bound to drop uploads that are too long; `fedcon info` says which methods "
                f"take a rule"
            )
        self.norm_bound = optional(positive, "norm_bound", norm_bound)
        self.privacy = privacy
        if privacy is not None:
            check_argument(self)
        self.compression = compression
        compressing.check_argument(self)

    def _why_no_clip(self) -> str:
        """Return why the gradients of local steps cannot be clipped; "" if they can."""
        if "local_solver" in self.client_settings:
            return "its clients minimise, and local_solver=SGD(..., clip=...) clips their steps"
        if self.needs_gradient or "clip" in self.client_settings:
            return self.needs_gradient
        return "its client neither declares `clip` nor hands it to its local pass"

    begin_with: ClassVar[dict[str, float]] = {}
    """First values of arguments whose rule needs L, for train loops, which do not state L."""
    usual_own_rate: ClassVar[type[OwnRate]] = AdaPGM
    """The rule that `client_lr="adaptive"` means."""

    def step_length(self, client_lr: Any) -> Any:
        """Return a checked `client_lr`.

        It is a float, None, "auto" or, for methods that allow them, a schedule or each client's own
        steps, such as "adaptive".

        Raises
        ------
        ConfigError
            If it is not one of these.
        """
        client_lr = own_rate(client_lr, self.usual_own_rate)
        if isinstance(client_lr, OwnRate):
            if self.needs_common_lr:
                raise ConfigError(
                    f"{self.title} takes no client_lr={client_lr!r}, with which each client finds "
                    f"its own steps: {self.needs_common_lr}. Give a number, or leave client_lr out "
                    f"for the default; FedAvg and FedMiD take it"
                )
            return client_lr
        rate = chosen(rate_or_schedule, "client_lr", client_lr)
        if isinstance(rate, Schedule) and self.needs_constant_lr:
            raise ConfigError(
                f"{self.title} takes no schedule for client_lr, got {rate!r}: "
                f"{self.needs_constant_lr}. Give a number; `fedcon info {type(rate).__name__}` "
                "says which methods take a schedule"
            )
        return rate

    # --- what a run uses of each method ----------------------------------------------------------

    def decode(self, name: str, parts: Mapping[str, Array]) -> Any:
        """Return the uploaded value `name` from its arrays on the wire."""
        if self.compression is not None:
            return compressing.decoded(self, name, parts)
        if set(parts) != {""}:
            raise ConfigError(f"{name!r} must be one array, got the parts {sorted(parts)}")
        return parts[""]

    def first_stage(self) -> int:
        """Return the number of rounds in the first stage of a race: 2 from L/mu = 1000 on."""
        kappa = condition(self.setup)
        return 2 if kappa is not None and kappa >= _ILL else 1

    def raced(self) -> list[str]:
        """Return the arguments with the value "auto"."""
        values = {name: getattr(self, name) for name in self.rules()}
        return [name for name, value in values.items() if isinstance(value, str) and value == AUTO]

    def smoothness_for(self, name: str, about: str) -> float:
        """Return L for the rule of the argument `name`, whose value is `about`; 1 if L is 0.

        Raises
        ------
        UnknownScaleError
            If some clients do not state L, and it is not estimated.
        """
        L = self.setup.smoothness
        if L is None:
            begin = self.begin_with.get(name) if self.setup.own_loops else None
            start = "" if begin is None else f". For a train loop begin with {name}={begin}"
            raise UnknownScaleError(
                f"{self.title}: the clients' smoothness L is unknown: give {name}, {about}{start}"
            )
        return L or UNIT

    def steepest_for(self, about: str) -> float:
        """Return max_i ||grad f_i(x0)|| for a rule, which `about` replaces; 1 if it is 0.

        Raises
        ------
        UnknownScaleError
            If the clients' gradients at the start are unknown.
        """
        if self.setup.scales is None:
            raise UnknownScaleError(
                f"{self.title}: the clients' gradients at the start are unknown: give {about}"
            )
        return self.setup.scales.steepest or UNIT

    def modulus_for(self, given: float | None) -> float:
        """Return mu for a method that needs it: the given one, or that of the clients.

        Raises
        ------
        ConfigError
            If it is left out, and not all clients state one above 0.
        """
        mu = given or self.setup.strong_convexity
        if mu is None:
            raise ConfigError(
                f"{self.title} needs strong_convexity > 0, which not all clients state: give "
                "strong_convexity=..."
            )
        if not mu:
            raise ConfigError(
                f"{self.title} needs strong_convexity > 0, and {stated_zero(self.setup)}, or take "
                f"a method for convex objectives (`fedcon list`)"
            )
        return mu

    guesses_modulus: ClassVar[bool] = False
    """Whether `strong_convexity` may be above the clients' mu: a guess of a restricted one."""

    def cautions(self, setup: Setup) -> list[str]:
        """Return warnings about a run with this setup, before it begins."""
        texts, given = super().cautions(setup), getattr(self, "strong_convexity", None)
        if not isinstance(given, float):
            return texts
        mu, own = setup.strong_convexity, getattr(self, "regularization", 0.0)
        L = None if setup.estimated else getattr(self, "smoothness", None) or setup.smoothness
        if L and given > (L + own) * (1 + 1e-6):  # not of constant objectives
            texts.append(
                f"strong_convexity={given:.6g} is above the smoothness L = {L + own:.6g}, which no "
                f"mu exceeds, so its theory does not hold: give less, or leave it out for the "
                f"clients' own"
            )
        elif mu is not None and not self.guesses_modulus and given > (mu + own) * (1 + 1e-6):
            texts.append(
                f"strong_convexity={given:.6g} is above the clients' mu = {mu:.6g}, so its theory "
                f"does not hold: give at most that"
            )
        return texts

    def within_prox(self, step: float, multiple: float = 1.0) -> float:
        """Return a step, shortened if psi does not have a prox at `multiple` times the step."""
        modulus = 0.0 if self.regularizer is None else self.regularizer.weak_convexity
        longest = 0.9 * LONGEST / (modulus * multiple) if modulus else math.inf
        return min(step, longest)

    def _settle(self) -> None:
        """Set the arguments that are left out to their rules' values."""
        theirs = getattr(self, "own_loop_decides", ()) if self.setup.own_loops else ()
        for name, rule in self.rules().items():
            given = getattr(self, name)
            if isinstance(given, str) and given == AUTO:
                raise ConfigError(
                    f'{self.title}: {name}="auto" is chosen within a run, by simulate, start or '
                    f"`fedcon run`: here give a number, or leave it out for the default"
                )
            if given is None and name not in theirs:
                setattr(self, name, rule())

    def refuse_participation(self, reason: str, instead: str) -> None:
        """Refuse this run's participation rule."""
        raise ParticipationError(
            f"{self.title} {reason}, got {self.participation!r}: use {instead}"
        )

    @classmethod
    def client_side(cls) -> type[ClientSide]:
        """Return the class of its clients, which the registry finds by name."""
        return client_class(cls.name)

    later: ClassVar[Mapping[str, Any]] = {
        "privacy": None, "server_optimizer": None, "compression": None, "clip": None,
        "batch_order": ORDERS[0],
    }  # fmt: skip
    """Arguments that earlier versions lack, with the values that leave a run as it was there.

    With these values they are not in checkpoints, so that earlier runs can be resumed.
    """

    def arguments(self) -> dict[str, Any]:
        """Return the hyperparameters, by argument name."""
        hidden = {"setup", "constants", "_draws", "_grid_run", "uses_num_rounds", "queries"}
        hidden |= {"inclusion"}
        hidden |= {k for k, usual in self.later.items() if getattr(self, k, None) == usual}
        return {k: v for k, v in vars(self).items() if k not in hidden}

    def bind(self, setup: Setup) -> Self:
        """Return a copy for one run."""
        bound = copy.copy(self)
        bound.setup, bound._draws = setup, None
        bound.participation = self.participation.for_clients(setup.clients)
        if self.min_replies is not None and self.min_replies > setup.num_clients:
            raise ConfigError(
                f"min_replies must be at most {setup.num_clients}, the number of clients, got "
                f"{self.min_replies}"
            )
        check_flow(bound)
        if setup.sampled and self.needs_everyone:
            bound.refuse_participation(
                f"needs every client in every round ({self.needs_everyone})",
                "Full(), or an algorithm that allows sampling (`fedcon list`)",
            )
        if setup.sampled or isinstance(bound.participation, Estimated):
            bound.inclusion = _probabilities(bound)
        if self.batch_order != ORDERS[0]:
            steps = getattr(self, "local_steps", None)
            if "local_steps" in self.client_settings and steps is None:
                raise ConfigError(
                    f"batch_order={self.batch_order!r} needs a number of "
                    f"local_steps: give local_steps"
                )
            if not {"local_steps", "stochastic"} & {*self.client_settings}:
                raise ConfigError(
                    f"{self.title} draws the number of its local steps, and takes no batch_order="
                    f"{self.batch_order!r}: leave it out"
                )
        bound._settle()
        check_convexity(bound)  # again, since a path sets new regularizers
        bound.constants = bound.derive()
        if self.privacy is not None:
            check_private(bound)
        compressing.check_setup(bound)
        return bound

    def settings(self) -> dict[str, Any]:
        """Return the value of each of the client's fields: a constant, or an attribute."""
        constants = self.constants._asdict() if self.constants is not None else {}
        values = {}
        for name in self.client_settings:
            if name not in constants and not hasattr(self, name):
                raise ConfigError(
                    f"the client of {self.title} declares {name!r}, which is no attribute of the "
                    "strategy and none of its constants: define it there, or correct the name"
                )
            values[name] = constants[name] if name in constants else getattr(self, name)
        return values


def _probabilities(strategy: FedConStrategy[Any]) -> Array | None:
    """Return each client's probability of being in a cohort, if means use it as a weight.

    Raises
    ------
    ParticipationError
        If the participation asks for weights, but the method must not use them.
    """
    rule, n = strategy.participation, strategy.setup.num_clients
    if not strategy.weighs(rule):
        if rule.unbiased:
            reason = strategy.needs_uniform or "aggregation=... replaces the mean"
            strategy.refuse_participation(
                f"cannot weigh uploads by how often clients take part ({reason})",
                f"{unweighted(rule)}, for plain means, or a method that weighs them (`fedcon "
                "info`)",
            )
        return None
    if isinstance(rule, Estimated):
        if never := n - rule.reached(n):
            raise ParticipationError(
                f"{rule!r}: {never} of {n} clients are never there, which no weight mends: leave "
                f"them out of the problem, or use {unweighted(rule)}"
            )
        return np.ones(n)
    inclusion = rule.inclusion(n)
    if inclusion is None or inclusion.shape != (n,) or not (inclusion > 0).all():
        raise ParticipationError(
            f"{type(rule).__name__} has unbiased=True, but inclusion({n}) returns {inclusion!r}: "
            f"return each client's probability of being in a cohort, > 0, or leave unbiased "
            f"out and use Estimated({type(rule).__name__}(...))"
        )
    return inclusion
