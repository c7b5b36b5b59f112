"""Certificates: how far the model is from a solution, from the clients' gradients alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.core.protocol import Reply
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.regularizers import Indicator, Zero
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server
    from flower_fedcon.engines.base import Engine


def certify(server: Server, engine: Engine) -> dict[str, float]:
    """Ask every client for its gradient at the model, and return the certificates.

    kkt : ||x - prox(x - grad F(x), 1)||, the proximal-gradient residual; 0 at a solution
    fw_gap : max over s in D of <grad F(x), x - s>, with a constraint set; at least F(x) - F* for
        convex F
    consensus : the root mean square of ||x_i - x||, where clients have iterates of their own

    Not part of a round: no state changes, and no bytes are counted.

    Raises
    ------
    RoundError
        If a client does not answer: the others' mean is the gradient of another function.
    """
    x, setup = server.x, server.setup
    answers = _answers(engine.answer(server.certificate_request()), x)
    missing = [c.name for j, c in enumerate(setup.clients) if j not in answers]
    if missing:
        raise RoundError(f"no certificate: no usable answer from {', '.join(missing)}")
    gradient = np.zeros_like(x)
    for client in sorted(answers):
        gradient += answers[client]["gradient"]
    gradient /= setup.num_clients
    constraint, psi = server.strategy.constraint, server.strategy.regularizer
    if constraint is not None:
        psi = Indicator(constraint)
    elif isinstance(psi, Indicator):
        constraint = psi.constraint
    psi = Zero() if psi is None else psi
    found = {"kkt": float(np.linalg.norm((x - psi.prox(x - gradient, 1.0)).ravel()))}
    if constraint is not None:
        vertex = constraint.lmo(gradient).dense()
        found["fw_gap"] = float(np.vdot(gradient, x - vertex))
    distances = [float(a["distance"]) for a in answers.values() if "distance" in a]
    if len(distances) == setup.num_clients:
        found["consensus"] = math.sqrt(math.fsum(d * d for d in distances) / len(distances))
    return found


def _answers(replies: Iterable[Reply], x: Array) -> dict[int, dict[str, Any]]:
    """Return the usable answers, by client."""
    found = {}
    usable = (reply for reply in replies if not reply.error)
    for one in (one for reply in usable for one in reply.single()):
        answer = {name: value for name, (value,) in one.payload.items()}
        gradient = answer.get("gradient")
        if not isinstance(gradient, np.ndarray):
            continue
        if gradient.shape != x.shape or gradient.dtype != x.dtype:
            raise ConfigError(
                f"a gradient has shape {gradient.shape} and dtype {gradient.dtype}, the model "
                f"{x.shape} and {x.dtype}"
            )
        if np.isfinite(gradient).all():
            found[one.clients[0]] = answer
    return found
