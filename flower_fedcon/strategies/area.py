r"""AREA: averaging with a memory, exact also where clients answer unequally often.

    min_x (1/N) sum_i f_i(x) + psi(x)

Round, for the clients S whose replies are used, from z = x = x0 and y_i = x0:
    1. broadcast x
    2. client i:  v = x;  K times  v := v - eta grad f_i(v)
    3.            upload Delta_i = v - y_i;  y_i := y_i + Delta_i
    4. server:    z := z + (1/N) sum_S Delta_i;  x := prox(z, eta K)

prox(v, t) = argmin_w psi(w) + ||w - v||^2 / (2 t). y_i is the last model that client i has made,
and z is the mean of all y_i, also of those outside S. So a client weighs 1/N however often it
answers, and with K = 1 the only fixed point is the optimum: z = x - eta grad F(x) and x = prox(z,
eta). With more local steps the limit is that of FedMiD with the prox on the server, which differs
from the optimum where clients differ, for any speeds.
Symbols: eta = client_lr, K = local_steps.

If every f_i is mu-strongly convex and L-smooth, K = 1 and eta <= 2/(L + mu), then x - eta grad f_i
is a contraction by 1 - eta mu and the prox is nonexpansive, so that ||x - x*|| after a step is at
most 1 - eta mu times the largest distance among the models that the last replies answer: linear
convergence for any bounded delays (docs/asynchronous.md). The paper states rates for delays of
finite mean.

State: y_i on the client; z, x and a mirror of the y_i (N d numbers) on the server.
Wire: 1 vector down (without mirror also 1 number, and after a reset 2 vectors); 1 vector up.
Participation: any, and replies to earlier models (`Buffered`). With several local steps the fixed
point is biased, under any participation alike.
First contact: with y_i = x0 (after a reset, with the model of that reset), which z contains until
then. So z has a trace of the start until all clients have answered.
Compression: EF21, of Delta_i, whose memory is y_i: it moves by the decoded upload, and z stays the
mean of the y_i. The fixed point is the same.
Lost state: y_i comes back from the mirror, and nothing is lost. Without the mirror all clients
start again from y_i = z = x, the model of that moment (a collective reset, counted in every
broadcast, which then has this model, too): a single client that started again would make z another
mean forever.

Not for: many local steps where clients differ: FedDR and Scaffold have no bias then.

Source: Charikleia Iakovidou, Kibaek Kim, "Asynchronous Federated Stochastic Optimization for
Heterogeneous Objectives Under Arbitrary Delays", 2024 (arXiv:2405.10123), with the authors'
program. There psi = 0; the prox on the server, the mirror and re-entry are this collection's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import Zero, as_regularizer
from flower_fedcon.strategies.base import Common
from flower_fedcon.strategies.families.local_steps import OwnSteps
from flower_fedcon.strategies.families.mirrored import Mirrored
from flower_fedcon.validation import Array, chosen, count
from flower_fedcon.wire.payloads import Payload


class AREAState(NamedTuple):
    """The server's state."""

    x: Array  # global model, shape of x0
    z: Array  # mean of all y_i, shape of x0
    start: Array  # of the y_i: x0, or the model at the last reset; shape of x0
    t: int  # the coming step, from 1
    resets: int  # number of collective resets
    mirror: Mirror | None  # the clients' y_i, by the name "y"


class AREA(OwnSteps[AREAState], Mirrored[AREAState]):
    """Asynchronous exact averaging.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet, optional (default: None)
        psi: any object with `prox(v, step)`; a set stands for its indicator, and None for zero.
    client_lr : float or "auto", optional
        eta > 0, at most 1/L; by default 1/L.
    local_steps : int or "auto", optional
        K >= 1; by default 1: with more, heterogeneity leaves a floor.
    mirror : bool (default: True)
        Keep the clients' y_i on the server, so that a client may lose its state.

    Raises
    ------
    ConfigError
        If an argument is out of range, or L is unknown and a default needs it.

    Examples
    --------
    The second client is five times slower, and counts as much as the first:

    >>> from flower_fedcon import Buffered, Clock, FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [Quadratic(np.eye(1), np.array([b])) for b in (1.0, 5.0)]
    >>> problem = FederatedProblem(clients, regularizer=L1(1.0))
    >>> strategy = AREA(problem.regularizer, client_lr=0.5, participation=Buffered())
    >>> simulate(strategy, problem, 400, clock=Clock(compute=[1.0, 5.0])).x.round(9)
    array([2.])
    """

    name = "area"
    bias = "several local steps move the fixed point where clients differ"
    uplink = ("delta",)
    needs_gradient = ""
    needs_mean = "z must stay the mean of all y_i"
    needs_uniform = "z is the mean of all y_i, whichever clients take part"
    needs_uncompressed = ""
    needs_convex = ""
    needs_fresh = ""
    needs_constant_lr = needs_common_lr = "z averages models that were made with equal steps"
    needs_shares = True
    counts = False
    own_loop_decides = ("client_lr", "local_steps")
    release = Release("without mirror")
    needs_independent = "its clients' memories keep noise that correlated mechanisms cancel later"

    def __init__(
        self,
        regularizer: Any = None,
        *,
        client_lr: float | str | None = None,
        local_steps: int | str | None = None,
        mirror: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)
        self.client_lr = self.step_length(client_lr)
        self.local_steps = chosen(count, "local_steps", local_steps)
        self.mirror = bool(mirror)

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for K and eta."""
        return {"local_steps": lambda: 1, "client_lr": self._longest_rate}

    def _longest_rate(self) -> float:
        longest = 1 / self.smoothness_for("client_lr", "at most 1/L")
        return self.within_prox(longest, self.local_steps)

    def initialize(self, x0: Array) -> AREAState:
        """Start all variables at x0."""
        unknown = self.local_steps is None or self.client_lr is None
        if unknown and not isinstance(self.regularizer, Zero):
            raise ConfigError(
                "AREA: the step of the server's prox is client_lr times local_steps: give both, "
                "also for clients with their own train loop, or leave the regularizer out"
            )
        return AREAState(x0, x0, x0, 1, 0, self.mirrored(self.mirror, y=x0))

    def broadcast(self, state: AREAState) -> Payload:
        """Step 1, and without mirror what the last reset was."""
        start = {"start": state.start} if state.resets else {}
        return {"x": state.x, **self.reset_number(state), **start}

    def aggregate(self, state: AREAState, uploads: Uploads) -> AREAState:
        """Step 4; the mirror is updated like the clients."""
        z = state.z + uploads.moved("delta") / uploads.num_clients
        x = self.regularizer.prox(z, self.longest_prox())
        if state.mirror is not None:
            state.mirror.follow(uploads, y="delta")
        return state._replace(x=x, z=z, t=state.t + 1)

    def longest_prox(self) -> float:
        """Return eta K; 1 if it is unknown and psi is 0."""
        known = self.client_lr is not None and self.local_steps is not None
        return float(self.client_lr * self.local_steps) if known else 1.0

    def first_contact(self, state: AREAState, client: int) -> Payload | None:
        """Return the start, for a client that is asked for the first time after step 1."""
        return None if state.t == 1 else {"y": state.start}

    def reset(self, state: AREAState) -> AREAState:
        """Start again from the model, like the clients' y_i."""
        return state._replace(z=state.x, start=state.x, resets=state.resets + 1)
