"""Certificates: how far the model is from a solution, computed from clients' gradients."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.core.admission import ask
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.gate import NUMBERS
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import CERTIFY, Reply, Request
from flower_fedcon.errors import ConfigError, DivergedError, FedConError, printable
from flower_fedcon.regularizers import Indicator, Zero
from flower_fedcon.solvers.units import Units, units_of
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server

_log = logging.getLogger("flwr")
CERTIFICATES = frozenset(("kkt", "fw_gap", "consensus"))
"""The columns that `certify` adds."""


def check_certificates(wanted: bool, strategy: Method[Any]) -> None:
    """Refuse certificates of a private run.

    Raises
    ------
    ConfigError
    """
    if wanted and strategy.privacy is not None:
        raise ConfigError(
            "certificates use the clients' gradients, which no noise protects: with "
            "privacy=... leave certificates out"
        )


def certify(server: Server, engine: Engine, units: Units | None = None) -> dict[str, float]:
    """Ask every client for its gradient at the model, and return the certificates.

    kkt : ||z - prox(z - grad F in z, 1)||, the proximal-gradient residual; 0 at a solution. If
        clients know the curvatures of F along the entries, z is the model in units in which these
        are about 1 (`flower_fedcon.solvers.units`), and kkt^2 is about F(x) - F*; otherwise z is
        the model
    fw_gap : max over s in D of <grad F(x), x - s>, with a constraint set that has a linear
        minimisation oracle; at least F(x) - F* for convex F
    consensus : the root mean square of ||x_i - x||, if clients have their own iterates

    This is not part of a round: no state changes, and no bytes are counted.

    If a client does not answer, the certificates are NaN, since the others' mean is the gradient of
    a different function.

    Parameters
    ----------
    server : Server
    engine : Engine
    units : Units, optional
        The units to use; by default clients are asked for the values that determine them.
    """
    x, setup = server.x, server.setup
    found_gradient, answers = pooled_gradient(server, engine, units=units is None)
    constraint, psi = server.strategy.constraint, server.strategy.regularizer
    if constraint is not None:
        psi = Indicator(constraint)
    elif isinstance(psi, Indicator):
        constraint = psi.constraint
    if constraint is not None and constraint.without_oracle:
        constraint = None  # then there is no gap
    if found_gradient is None:
        gap = {} if constraint is None else {"fw_gap": math.nan}
        return {"kkt": math.nan, **gap}
    gradient, curvatures = found_gradient
    if units is None:
        units = units_of(Zero() if psi is None else psi, curvatures, x.shape)
    certificates = {"kkt": units.residual(x, gradient)}
    if constraint is not None:
        vertex = constraint.lmo(gradient).dense()
        certificates["fw_gap"] = float(np.vdot(gradient, x - vertex))
    distances = [float(a["distance"]) for a in answers.values() if "distance" in a]
    if len(distances) == setup.num_clients:
        certificates["consensus"] = math.sqrt(math.fsum(d * d for d in distances) / len(distances))
    return certificates


def pooled_gradient(
    server: Server, engine: Engine, x: Array | None = None, *, units: bool = False
) -> tuple[tuple[Array, Array | None] | None, dict[int, Payload]]:
    """Return the gradient of (1/N) sum_i f_i at the model, and the answers it is made from.

    The model is the server's, or x.

    It is None if a client does not answer; the log names these clients. Approximate curvatures of
    the mean along each entry are added if they are asked for and every client knows them.
    """
    setup, answers = server.setup, _answers(server, engine, x, units)
    missing = [c.name for j, c in enumerate(setup.clients) if j not in answers]
    if missing:
        _log.warning("no certificate: no usable answer from %s", ", ".join(missing))
        return None, answers
    gradient = np.zeros_like(server.x)
    for client in sorted(answers):
        gradient += answers[client]["gradient"]
    gradient /= setup.num_clients
    if not all("spread" in answer for answer in answers.values()):
        return (gradient, None), answers
    curvatures = np.zeros(gradient.shape)
    for client in sorted(answers):
        curvatures += np.square(answers[client]["spread"], dtype=np.float64)
    return (gradient, curvatures / setup.num_clients), answers


def _answers(server: Server, engine: Engine, x: Array | None, units: bool) -> dict[int, Payload]:
    """Return the usable answers, by client."""
    return answers_to(server.certificate_request(x, units=units), server, engine)


def answers_to(
    request: Request, server: Server, engine: Engine, outside: set[int] | None = None
) -> dict[int, Payload]:
    """Return the usable answers to a request for gradients, by client.

    Clients whose numbers are not finite are added to `outside`, if it is given, without a warning.
    """
    optional = (*NUMBERS, "spread") if "units" in request.broadcast else NUMBERS

    def admit(one: Reply) -> Payload:
        names = ("gradient", *(name for name in optional if name in one.payload))
        return server.gate.admit(one, CERTIFY, names)

    def refused(client: int, error: FedConError) -> None:
        if outside is not None and isinstance(error, DivergedError):
            outside.add(client)
            return
        name, reason = server.client_name(client), printable(str(error))
        _log.warning("no certificate by %s: %s", name, reason)

    return ask(request, server, engine.answer, admit, refused)
