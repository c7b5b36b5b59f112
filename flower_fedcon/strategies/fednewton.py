r"""FedNewton: proximal Newton steps on the clients' second-order models.

    min_x (1/N) sum_i f_i(x) + psi(x),   f_i convex and twice differentiable

Round, for a cohort S:
    1. broadcast x
    2. client i:  m_i(z) = f_i(x) + <grad f_i(x), z - x> + (z - x)' hess f_i(x) (z - x) / 2
    3. upload m_i: H_i, b_i and c_i of m_i(z) = z'H_i z / 2 - b_i'z + c_i
    4. server:    m := mean of all m_i;  x := argmin m(z) + psi(z)

With everyone present all m_i are models around x, and (1/N) sum_i f_i(x) + psi(x) is known. While
it is higher than at the last accepted point w, the server takes x := (x + w) / 2 instead. Under
sampling m_i is that of the client's last round, without this safeguard, and x stays at the start
until all clients have replied, so that all first m_i are models around it. The method converges
quadratically. Under sampling it then converges superlinearly, from a start that is near enough; for
quadratic f_i it converges in that round. Negative curvature of m, as of a likelihood far from its
maximum, counts with the other sign, so that x still descends; at a minimum there is none.

State: none on the client; x, w, m, the first m and, under sampling, all m_i on the server (N d^2/2
numbers).
Wire: 1 vector down; 1 array of (d+1)(d+2)/2 numbers up: for models of up to some thousand entries.
The m_i of least squares are the client's moments A'A and A'b themselves.
Participation: any; exact.
First contact: with a model around the start, where x waits for all clients that are ever asked.
Lost state: nothing to lose.

Not for: models of more than some thousand entries, nonconvex losses, and clients that never reply.

Source: Jason D. Lee, Yuekai Sun, Michael A. Saunders, "Proximal Newton-type methods for minimizing
composite functions", SIAM Journal on Optimization 2014 (arXiv:1206.1623); under sampling Anton
Rodomanov, Dmitry Kropotov, "A Superlinearly-Convergent Proximal Newton-type Method for the
Optimization of Finite Sums", ICML 2016 (NIM). The guard is reconstructed.
"""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.release import Release
from flower_fedcon.core.scope import Scope
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.regularizers import as_regularizer
from flower_fedcon.solvers.quadratic_models import hardly_apart, minimizer
from flower_fedcon.strategies.base import Common
from flower_fedcon.strategies.families.second_order import SecondOrder
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_log = logging.getLogger("flwr")
_ROUNDING = 1000  # machine epsilons: rounding of a sum of values


class FedNewtonState(NamedTuple):
    """The server's state."""

    x: Array  # global model, shape of x0
    w: Array  # the last accepted point, shape of x0
    value: float  # the mean of the f_i(w)
    m: Array  # mean of the m_i, packed
    t: int  # the coming round, from 1
    heard: Array  # 1.0 for each client whose m_i is known, shape (N,)
    mirror: Mirror | None  # under sampling: the m_i, by the name "m"
    first: Array | None = None  # the m of round 1, without sampling


class FedNewton(SecondOrder[FedNewtonState]):
    """Proximal Newton on the clients' second-order models; NIM under sampling.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet, optional (default: None)
        psi: any object with `prox(v, step)`; a set stands for its indicator. With `Each` the model
        holds several independent models side by side, and Hessians are block diagonal.

    Raises
    ------
    ConfigError
        If the model has more than 2000 entries.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import LogisticRegression
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [LogisticRegression([[1.0], [2.0], [3.0]], y) for y in ([1, 1, -1], [1, 1, 1])]
    >>> problem = FederatedProblem(clients, regularizer=L1(0.1))
    >>> found = simulate(FedNewton(problem.regularizer), problem, num_rounds=5, certificates=True)
    >>> bool(found["kkt"][-1] < 1e-12)
    True
    """

    name = "fednewton"
    scope = Scope("convex", hessians=True)
    uplink = ("m",)
    needs_gradient = "its models consist of exact gradients and second derivatives"
    needs_uncompressed = "it is exact by its second derivatives, which errors would spoil"
    needs_mean = "m must stay the mean of the m_i: it is not a step, but a model of the objective"
    needs_uniform = "m is the mean of the latest m_i of all clients, whichever clients take part"
    needs_convex = "its server minimises a model that is convex only if psi is"
    needs_fresh = ""
    release = Release("with everyone")
    needs_independent = "its server solves with each round's own Hessian"

    def __init__(self, regularizer: Any = None, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.regularizer = as_regularizer(regularizer)

    def why_single(self) -> str:
        """Return why the server needs each upload in this run; "" if the sum suffices."""
        return (
            "under sampling it keeps the m_i of earlier rounds: use Full()"
            if self.setup.sampled
            else ""
        )

    def why_not_private(self) -> str:
        """Return why the method cannot use noisy sums of uploads."""
        return "with noise in its Hessian the model of the objective may have no minimiser"

    def initialize(self, x0: Array) -> FedNewtonState:
        """Start at x0."""
        n, m = self.setup.num_clients, np.zeros(self.packed_size(x0.shape), x0.dtype)
        mirror = Mirror.of(n, m=m) if self.setup.sampled else None
        return FedNewtonState(x0, w=x0, value=0.0, m=m, t=1, heard=np.zeros(n), mirror=mirror)

    def broadcast(self, state: FedNewtonState) -> Payload:
        """Step 1."""
        return {"x": state.x}

    def aggregate(self, state: FedNewtonState, uploads: Uploads) -> FedNewtonState:
        """Step 4."""
        if state.mirror is not None:
            return self._incremental(state, uploads)
        psi, x = self.regularizer, state.x
        m = self.convex(uploads.mean("m"), x)
        blocks = self.blocks(m, x)
        value = math.fsum(model.value(row) for model, _, row in blocks)
        if state.t > 1:
            # Far away the terms are so large that any rise would pass as rounding.
            there, before = blocks, self.blocks(state.m, state.w)
            size = min(
                math.fsum(model.size(row) for model, _, row in some) for some in (there, before)
            )
            rounding = _ROUNDING * float(np.finfo(x.dtype).eps) * size
            if not value + psi.value(x) <= state.value + psi.value(state.w) + rounding:
                return state._replace(x=(0.5 * (x + state.w)).astype(x.dtype), t=state.t + 1)
        first = m if state.t == 1 else state.first
        after = self.renew(state._replace(w=x, value=value, m=m, first=first, t=state.t + 1))
        if state.t == 1:
            prepared = self.setup.preparation
            names = [] if prepared is None else prepared.entries(x.shape)
            if alike := hardly_apart(self.apart(after), names):
                _log.warning("%s", alike)
        return after

    def _incremental(self, state: FedNewtonState, uploads: Uploads) -> FedNewtonState:
        """Do step 4 with the m_i of earlier rounds, then add those of the cohort."""
        assert state.mirror is not None  # noqa: S101  (the caller's case)
        heard = state.heard.copy()
        heard[uploads.clients] = 1.0
        shares = {j: uploads.share(j, m_j) for j, m_j in uploads.items("m")}
        total = sum(shares.values())
        for j in np.flatnonzero(heard).tolist():
            if j not in shares:
                total = total + state.mirror.rows["m"][j]
        m = self.convex(np.asarray(total / heard.sum(), dtype=state.m.dtype), state.x)
        after = self.renew(state._replace(w=state.x, m=m, t=state.t + 1, heard=heard))
        for j, m_j in shares.items():
            state.mirror.put(j, m=m_j)
        return after

    def renew(self, state: FedNewtonState) -> FedNewtonState:
        """Minimise m + psi, with a new psi if one is given.

        While m is the model of some clients alone it may have no minimiser, or one far away.
        """
        awaited = self.participation.reached(self.setup.num_clients)
        if state.t == 1 or (state.mirror is not None and state.heard.sum() < awaited):
            return state
        parts = [minimizer(*block) for block in self.blocks(state.m, state.x)]
        return state._replace(x=np.stack(parts).reshape(state.x.shape))
