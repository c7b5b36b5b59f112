r"""Scaffold: local gradient steps, corrected by control variates.

    min_x (1/N) sum_i f_i(x)

Round, for a cohort S, from c = c_i = 0:
    1. broadcast x and c
    2. client i:  y = x;  K times  y := y - eta_l (grad f_i(y) - c_i + c)
    3. client i:  dc_i = grad f_i(x) - c_i            (option "I": one more gradient)
                  dc_i = -c - (y - x)/(K eta_l)       (option "II": the mean of step 2's gradients)
                  c_i := c_i + dc_i
    4. upload y - x and dc_i
    5. server:    x := x + eta_g mean_S(y_i - x);  c := c + (1/N) sum_S dc_i

Symbols: eta_l = client_lr, eta_g = server_lr, K = local_steps. c moves by 1/N and stays the mean of
ALL c_i. With 1/|S| it would not, and the limit would be wrong for cohorts of varying size.

State: c_i on the client; x, c and, with a mirror, the c_i (N d numbers) on the server.
Wire: 2 vectors down; 1 vector up (2 in option "I", without mirror, and from your own train loops if
local_steps is left out).
Participation: any, and replies to earlier models (`Buffered`): all uploads are 0 exactly at the
optimum, so that it does not move if some clients answer more often; convergence is measured. With a
mirror, option "II" sends no dc_i: it follows from what the server knows.
First contact: with c_i = 0, which c contains until then: the first steps are corrected by c alone.
Compression: EF21, of y - x and dc_i, which vanish at the optimum: c_i, the memory, moves by the
decoded upload, and c stays the mean of the c_i. The fixed point is the same.
Lost state: c_i comes from the mirror. Without it all clients start again from c = c_i = 0 (a
collective reset; x stays). If a single client returned with c_i = 0, c would differ from the mean
of the c_i forever: on the tests' quadratics the limit is then 0.14 to 0.24 from the optimum.

Not for: a psi that is not smooth (CompositeFL), and clients that take part rarely: their control
variates are stale.

Source: Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank Reddi, Sebastian Stich, Ananda
Theertha Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
(arXiv:1910.06378), Algorithm 1; second-hand, from later papers.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.server.optimizers import OptimizerState
from flower_fedcon.strategies.families.control_variates import CorrectedSteps
from flower_fedcon.strategies.families.local_steps import StepOptions
from flower_fedcon.validation import Array, choice
from flower_fedcon.wire.payloads import Payload


class ScaffoldState(NamedTuple):
    """The server's state."""

    x: Array  # global model, shape of x0
    c: Array  # mean of all c_i, shape of x0
    resets: int  # number of collective resets of the c_i to 0
    mirror: Mirror | None  # the clients' c_i, by the name "c"
    optimizer: OptimizerState | None = None  # of server_optimizer; None without


class Scaffold(CorrectedSteps[ScaffoldState]):
    """Stochastic controlled averaging.

    Parameters
    ----------
    client_lr : float, Schedule or "auto", optional
        eta_l > 0; by default 1/(4 L K). A schedule of `flower_fedcon.schedules` changes it by the
        round.
    local_steps : int or "auto", optional
        K >= 1; by default 5.
    server_lr : float (default: 1.0)
        eta_g > 0.
    server_optimizer : ServerOptimizer, optional
        A rule of `flower_fedcon.optimizers`, whose step replaces the mean in the update of x. It
        changes neither fixed points, nor c and the c_i.
    option : {"I", "II"} (default: "II")
        c_i is a gradient at the broadcast model, or the mean of the local steps' gradients.
    mirror : bool (default: True)
        Keep a copy of every c_i on the server.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> clients = [Quadratic(np.array([[q]]), np.array([b])) for q, b in ((1.0, 1.0), (3.0, 9.0))]
    >>> simulate(Scaffold(client_lr=0.05, local_steps=5), FederatedProblem(clients), 99).x.round(9)
    array([2.5])
    """

    name = "scaffold"
    needs_shares = True
    uplink = ("delta", "dc")
    needs_gradient = ""
    needs_mean = "c must stay the mean of all c_i"
    needs_uniform = "c is the mean of all c_i, whichever clients take part, and corrects every step"
    needs_server_lr = ""
    needs_constant_lr = ""
    needs_uncompressed = ""
    needs_fresh = ""
    release = Release("without mirror")
    needs_independent = "its control variates also keep the noise of each round"

    def __init__(
        self, *, option: str = "II", mirror: bool = True, **steps: Unpack[StepOptions]
    ) -> None:
        super().__init__(**steps)
        self.option = choice("option", option, ("I", "II"))
        self.mirror = bool(mirror)

    def initialize(self, x0: Array) -> ScaffoldState:
        """Start at x0, with c = c_i = 0."""
        if self.option == "I" and self.setup.own_loops:
            raise ConfigError(
                'Scaffold: option="I" needs the gradient at the broadcast model, which clients '
                'with their own train loop cannot give: use option="II"'
            )
        c = np.zeros_like(x0)
        return ScaffoldState(x0, c, resets=0, mirror=self.mirrored(self.mirror, c=c))

    def broadcast(self, state: ScaffoldState) -> Payload:
        """Step 1, and without mirror the number of resets."""
        return {"x": state.x, "c": state.c, **self.reset_number(state)}

    def expects(self, state: ScaffoldState) -> tuple[str, ...]:
        """Return the names of step 4's uploads."""
        return ("delta",) if self._derives else self.uplink

    @property
    def _derives(self) -> bool:
        """Whether the server computes the dc_i itself, by step 3 of option "II"."""
        return self.mirror and self.option == "II" and self.local_steps is not None

    def aggregate(self, state: ScaffoldState, uploads: Uploads) -> ScaffoldState:
        """Step 5; the mirror is updated like the clients."""
        mean = uploads.mean("delta")
        move, optimizer = self.server_move(mean, state.optimizer)
        if state.mirror is None:
            c = state.c + uploads.moved("dc") / uploads.num_clients
        else:
            c = self._follow(state.c, state.mirror, uploads, mean)
        return ScaffoldState(state.x + move, c, state.resets, state.mirror, optimizer)

    def _follow(self, c: Array, mirror: Mirror, uploads: Uploads, mean: Array) -> Array:
        """Update the mirror like the clients' c_i; return the mean of all c_i."""
        if self._derives:
            rate = -1.0 / (self.local_steps * self.rate(uploads))
            everyone = uploads.everyone and uploads.unweighted and uploads.late is None
            held = uploads.held("c", like=mirror.rows["c"]) if everyone else None
            if held is not None:
                mirror.take(c=held)
            else:
                changes = uploads.stacked("delta") * rate - uploads.sent("c", c)
                mirror.add(uploads.clients, c=changes)
            if everyone:
                averaged: Array = mean * rate  # c + mean_i dc_i: each dc_i contains -c
                return averaged
        else:
            changes = uploads.stacked("dc")
            mirror.add(uploads.clients, c=changes)
        moved: Array = uploads.shares(changes).sum(axis=0) / uploads.num_clients
        return c + moved

    def reset(self, state: ScaffoldState) -> ScaffoldState:
        """Set c to 0, like the clients' c_i."""
        return state._replace(c=np.zeros_like(state.c), resets=state.resets + 1)
