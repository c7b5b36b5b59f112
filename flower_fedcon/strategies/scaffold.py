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

With windows of P rounds c and the c_i stay as they are within one. Client i also keeps m_i, the
mean of its gradients in the window, which is c_i before its first round there, and n_i, how many
rounds these are. Steps 3 and 5 are then
    3. client i:  n_i := n_i + 1;  dc_i = (g_i - m_i)/n_i, with g_i = c_i + (dc_i of above)
                  m_i := m_i + dc_i
    5. server:    x as above;  m := m + (1/N) sum_S dc_i, which stays the mean of all m_i
                  after P rounds:  x := x_0 + gamma (x - x_0), x_0 the x of P rounds ago
                                   c := m;  all clients  c_i := m_i, n_i := 0

Symbols: eta_l = client_lr, eta_g = server_lr, K = local_steps, P = window, gamma = amplification. c
moves by 1/N and stays the mean of ALL c_i. With 1/|S| it would not, and the limit would be wrong
for cohorts of varying size.

State: c_i on the client; x, c and, with a mirror, the c_i (N d numbers) on the server. With windows
m_i, n_i and the window's number beside each c_i (2 N d numbers in the mirror), and m and x_0 on the
server.
Wire: 2 vectors down (with windows also 1 number); 1 vector up (2 in option "I", without mirror, and
from your own train loops if local_steps is left out).
Participation: any, and without windows replies to earlier models (`Buffered`): all uploads are 0
exactly at the optimum, so that it does not move if some clients answer more often; convergence is
measured. With a mirror, option "II" sends no dc_i: it follows from what the server knows.
First contact: with c_i = 0, which c contains until then (with windows m_i = 0, n_i = 0): the first
steps are corrected by c alone.
Windows: Amplified Scaffold is option "II" with gamma > 1, and P a multiple of a cycle of clients
that take turns. A window of one round with gamma = 1 is Scaffold, by the option's own g_i; with
option "I" m_i is the mean of the gradients at the models that were sent. The fixed point is the
optimum for any P and gamma, since all dc_i are 0 there. Each round of a client counts alike in m_i,
and a client without a round in the window keeps its c_i. A window that the end of a run cuts off is
not amplified.
Compression: EF21, of y - x and dc_i, which vanish at the optimum: c_i (m_i), the memory, moves by
the decoded upload, and c (m) stays the mean of them. The fixed point is the same.
Lost state: c_i, m_i and n_i come from the mirror. Without it all clients start again from c = c_i =
0, with windows also m = m_i = 0 (a collective reset; x stays). If a single client returned with c_i
= 0, c would differ from the mean of the c_i forever: on the tests' quadratics the limit is then
0.14 to 0.24 from the optimum.

Not for: a psi that is not smooth (CompositeFL), and clients that take part rarely: their control
variates are stale.

Source: Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank Reddi, Sebastian Stich, Ananda
Theertha Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
(arXiv:1910.06378), Algorithm 1; second-hand, from later papers. The windows are those of Michael
Crawshaw, Mingrui Liu, "Federated Learning under Periodic Client Participation and Heterogeneous
Data: A New Communication-Efficient Algorithm and Analysis", NeurIPS 2024, and of the authors'
program.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

import numpy as np

from flower_fedcon.arrays import pick
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.server.optimizers import OptimizerState
from flower_fedcon.server.windows import Window, WindowMeans
from flower_fedcon.strategies.families.amplified_steps import AmplifiedSteps, WindowOptions
from flower_fedcon.strategies.families.control_variates import CorrectedSteps
from flower_fedcon.validation import Array, choice
from flower_fedcon.wire.payloads import Payload


class ScaffoldState(NamedTuple):
    """The server's state."""

    x: Array  # global model, shape of x0
    c: Array  # mean of all c_i, shape of x0
    resets: int  # number of collective resets of the c_i to 0
    mirror: Mirror | None  # the clients' c_i, by the name "c"; with windows all of `WindowMeans`
    optimizer: OptimizerState | None = None  # of server_optimizer; None without
    window: Window | None = None  # None without windows
    m: Array | None = None  # mean of all m_i, shape of x0; None without windows


class Scaffold(AmplifiedSteps[ScaffoldState], CorrectedSteps[ScaffoldState]):
    """Stochastic controlled averaging.

    Parameters
    ----------
    client_lr : float, Schedule or "auto", optional
        eta_l > 0; by default 1/(4 L K), and with windows 1/(4 L K max(1, gamma P)). A
        schedule of `flower_fedcon.schedules` changes it by the round.
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
    window : int (default: 1)
        P >= 1, the number of rounds in which c and the c_i stay the same.
    amplification : float (default: 1.0)
        gamma > 0: how many times a window's change of x counts; the authors take 1.5.

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
        self, *, option: str = "II", mirror: bool = True, **steps: Unpack[WindowOptions]
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
        c, window = np.zeros_like(x0), self.first_window(x0)
        if window is None:
            return ScaffoldState(x0, c, resets=0, mirror=self.mirrored(self.mirror, c=c))
        held = WindowMeans.of(c, tuple(range(-x0.ndim, 0)))
        mirror = self.mirrored(self.mirror, **held._asdict())
        return ScaffoldState(x0, c, resets=0, mirror=mirror, window=window, m=c)

    def safe_share(self) -> float:
        """Return the largest safe step times L: a window moves like the round of a longer K."""
        return super().safe_share() / max(1.0, self.window * self.amplification)

    def broadcast(self, state: ScaffoldState) -> Payload:
        """Step 1; without mirror the number of resets, and with windows the window's."""
        window = {} if state.window is None else {"window": state.window.rounds // self.window}
        return {"x": state.x, "c": state.c, **self.reset_number(state), **window}

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
        if state.window is not None and state.m is not None:
            x, window, ends = self.amplified(state.x + move, state.window)
            m = state.m + self._changed(state, state.window, uploads) / uploads.num_clients
            c = pick(ends, m, state.c)
            return ScaffoldState(x, c, state.resets, state.mirror, optimizer, window, m)
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
        elif uploads.are_apart("dc"):
            mirror.follow(uploads, c="dc")
            return c + uploads.moved("dc") / uploads.num_clients
        else:
            changes = uploads.stacked("dc")
            mirror.add(uploads.clients, c=changes)
        moved: Array = uploads.shares(changes).sum(axis=0) / uploads.num_clients
        return c + moved

    def _changed(self, state: ScaffoldState, window: Window, uploads: Uploads) -> Array:
        """Update the mirror like the clients' m_i; return the sum of their changes."""
        mirror = state.mirror
        if mirror is None:
            return uploads.moved("dc")
        rows = (mirror.some(name, uploads.clients) for name in WindowMeans._fields)
        held = WindowMeans(*rows).at(window.rounds // self.window)
        if self._derives:
            rate = -1.0 / (self.local_steps * self.rate(uploads))
            changes = held.change(uploads.stacked("delta") * rate - state.c)
        else:
            changes = uploads.stacked("dc")
        mirror.put(uploads.clients, **held.after(changes)._asdict())
        changed: Array = uploads.shares(changes).sum(axis=0)
        return changed

    def reset(self, state: ScaffoldState) -> ScaffoldState:
        """Set c to 0, like the clients' c_i."""
        zero = np.zeros_like(state.c)
        m = None if state.m is None else zero
        return state._replace(c=zero, resets=state.resets + 1, m=m)
