"""Where a run starts: the layout that all clients share, and x0."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.core.infos import ClientInfo, ClientInfos
from flower_fedcon.core.method import Method
from flower_fedcon.core.participation import check_rule
from flower_fedcon.core.protocol import MOST_EXAMPLES, UNIFORM, Setup
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Layout, Model
from flower_fedcon.sets import ConstraintSet
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr")


def common_layout(
    layouts: Sequence[Layout | None], names: Sequence[str], x0: Model | None
) -> Layout:
    """Return the layout that all clients and x0 share.

    Raises
    ------
    ConfigError
        If they differ, or no shape is known.
    """
    stated = [(name, lay) for name, lay in zip(names, layouts, strict=True) if lay is not None]
    if not stated and x0 is None:
        raise ConfigError("the clients' objectives do not state the model's shape: give x0")
    first = stated[0] if stated else None
    for name, layout in stated:
        if first is not None and layout.shapes != first[1].shapes:
            raise ConfigError(
                f"client {name} has a model of shape {_shape(layout)}, client {first[0]} "
                f"{_shape(first[1])}: all clients must share one model"
            )
    if x0 is None:
        assert first is not None  # noqa: S101  (checked above)
        single = all(layout.dtype == "float32" for _, layout in stated)
        return Layout(first[1].shapes, "float32" if single else "float64", first[1].layered)
    layout = Layout.of(x0)
    if first is not None and layout.layered != first[1].layered:
        kinds = ("one array", "a list of arrays")
        raise ConfigError(
            f"x0 is {kinds[layout.layered]}, the clients' model {kinds[first[1].layered]}"
        )
    if first is not None and layout.shapes != first[1].shapes:
        raise ConfigError(f"x0 has shape {_shape(layout)}, the clients' model {_shape(first[1])}")
    return layout


def check_participation(strategy: Method[Any], setup: Setup) -> None:
    """Check a rule by which some clients are drawn.

    Raises
    ------
    ConfigError
    """
    if not setup.sampled:
        return
    rng = partial(stream, setup.seed, COHORT)
    rule = strategy.participation.for_clients(setup.clients)
    even = strategy.weighs(rule) or not strategy.favours_frequent()
    check_rule(rule, setup.names, rng, even=even)


def check_weighting(strategy: Method[Any], setup: Setup) -> None:
    """Raise if the strategy must weight these clients by their examples, but cannot.

    Raises
    ------
    ConfigError
    """
    if setup.weighting == UNIFORM:
        return
    if strategy.aggregation is not None:
        raise ConfigError(
            f'weighting="examples" and aggregation={strategy.aggregation!r} both replace the plain '
            f"mean: give one of them"
        )
    if not any(c.num_examples for c in setup.clients):
        raise ConfigError('weighting="examples": no client has examples: give weighting="uniform"')
    check_claims(setup)
    unknown = [c.name for c in setup.clients if c.own_loop and c.num_examples == 1]
    if unknown and (needed := shares_needed(strategy, setup.weighting)):
        raise ConfigError(f"{needed}. Client {unknown[0]} does not state it")


def shares_needed(strategy: Method[Any], weighting: str) -> str:
    """Return what train loops must state before round 1, since weights are shares; "" if nothing.

    >>> from flower_fedcon.strategies import FedAvg, Scaffold
    >>> shares_needed(FedAvg(), "examples"), shares_needed(Scaffold(), "uniform")
    ('', '')
    """
    if weighting == UNIFORM or not strategy.needs_shares:
        return ""
    return (
        f'{strategy.title} with weighting="examples" must know every client\'s number of examples '
        f"before round 1: a train loop states it by @train_step(num_examples=...), a function of "
        f"the context"
    )


def short_of_rows(batch_size: int | None, clients: Sequence[ClientInfo]) -> str:
    """Return a sentence on clients that have fewer rows than a batch; "" if there are none.

    A client that reports 1 may have an objective that does not count its rows.
    """
    if batch_size is None:
        return ""
    many = isinstance(clients, ClientInfos)  # these have equally many rows
    short = [c for c in (clients[:1] if many else clients) if 1 < c.num_examples < batch_size]
    if not short:
        return ""
    first = f"client {short[0].name} has {short[0].num_examples}"
    return (
        f"batch_size={batch_size} is more than the rows of {len(clients) if many else len(short)} "
        f"of {len(clients)} clients (the first, {first}): these use all their rows in each step"
    )


def check_claims(setup: Setup) -> None:
    """Raise if a client claims too many examples; log if one outweighs all others.

    A client's claim cannot be checked, and with weights by examples it sets the client's share of
    the model.

    Raises
    ------
    ConfigError
    """
    claims = np.array([float(client.num_examples) for client in setup.clients])
    largest = int(claims.argmax())
    name, most = setup.names[largest], claims[largest]
    if most > MOST_EXAMPLES:
        raise ConfigError(
            f'client {name} states {most:.3g} examples, and with weighting="examples" would '
            f"determine the model alone: at most {MOST_EXAMPLES:g} are allowed; correct the "
            f'number, leave the client out, or give weighting="uniform"'
        )
    share = most / claims.sum()
    if not (len(claims) > 2 and share > 0.5):
        return
    if setup.preparation is None:
        _log.warning(
            "client %s has %.1f%% of the weight, by the number of examples that it states: if this "
            'number is wrong, give weighting="uniform"',
            name,
            100 * share,
        )
    else:
        _log.info("%s", setup.preparation.told_of_share(name, 100 * share))


def start_point(layout: Layout, x0: Model | None, constraint: ConstraintSet | None) -> Array:
    """Return the packed start: x0, or the projection of zeros onto the constraint set."""
    if x0 is not None:
        return layout.pack(x0, "x0").copy()
    zeros = np.zeros(layout.shape, dtype=layout.dtype)
    if constraint is None:
        return zeros
    constraint.check_shape(layout.shape)
    return zeros if constraint.contains(zeros) else constraint.project(zeros)


def _shape(layout: Layout) -> Any:
    return list(layout.shapes) if layout.layered else layout.shape
